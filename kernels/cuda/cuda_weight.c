/*
 * cuda_weight.c - weights of a GPU as core (core/weights.c) asks for them: how many bytes they
 * take, rows brought to the device's layout (cuda_layout.h) on the host, room, and the lanes by
 * which they are sent: streams of the driver's, events between them.
 */
#include "kernels/cuda/cuda_device.h"

/* Vectors have the layout of F32. */
static oato_dtype dtype_of(const struct weight_source *s)
{
    return s->use == WEIGHT_VECTOR ? DT_F32 : s->dtype;
}

uint64_t cuda_bytes(const struct oato_device *base, const struct weight_source *s)
{
    const int64_t rows = s->row_end - s->row_begin;
    (void)base;
    if (s->use == WEIGHT_VECTOR)
        return (uint64_t)rows * (uint64_t)s->k * sizeof(float);
    if (s->use == WEIGHT_COLUMNS)
        return columns_bytes(s->dtype, rows, s->k, columns_blocks(s->dtype, s->list, s->k));
    return cuda_layout_bytes(s->dtype, rows, s->k);
}

/* A block of columns has something of every row. */
bool cuda_planes(const struct oato_device *base, const struct weight_source *s,
                 struct weight_plane plane[WEIGHT_PLANES])
{
    uint64_t row[CUDA_PLANES], offset[CUDA_PLANES];
    (void)base;
    if (s->use == WEIGHT_COLUMNS)
        return false;
    cuda_layout_row(dtype_of(s), s->k, row);
    cuda_layout_planes(dtype_of(s), s->row_end - s->row_begin, s->k, offset);
    for (int i = 0; i < CUDA_PLANES; i++)
        plane[i] = (struct weight_plane){offset[i], row[i]};
    return true;
}

void cuda_convert(const struct oato_device *base, const struct weight_source *s, int64_t begin,
                  int64_t end, void *to)
{
    atomic_fetch_add(&cuda_of(base)->filled, 1);
    if (s->use == WEIGHT_COLUMNS) {
        struct oato_weight whole = {.dtype = s->dtype,
                                    .use = s->use,
                                    .rows = s->row_end - s->row_begin,
                                    .k = s->k,
                                    .data = to};
        columns_prepare(s, &whole, begin, end);
    } else if (s->use != WEIGHT_VECTOR) {
        cuda_layout_rows(s, to, begin, end);
    } else {
        for (int64_t r = begin; r < end; r++)
            quants_row(s->dtype, weight_source_row(s, r), s->k, floats(to) + r * s->k);
    }
}

/* ---------------------------------------------------------------------------------- lanes - */

static const struct cuda_driver *enter(struct oato_device *base)
{
    cuda_enter(cuda_of(base));
    return cuda_of(base)->cu;
}

static cu_stream stream_of(struct oato_device *base, struct lane *lane)
{
    return lane ? (cu_stream)(void *)lane : cuda_of(base)->queue.stream;
}

static cu_event event_of(struct lane_mark *mark)
{
    return (cu_event)(void *)mark;
}

static oato_status said(struct oato_device *base, cu_result result, const char *doing,
                        struct oato_error *err)
{
    struct cuda_device *d = cuda_of(base);
    return result ? cuda_fail(d->cu, result, d->far.id, doing, err) : OATO_OK;
}

static oato_status lane_open(struct oato_device *base, struct lane **out, struct oato_error *err)
{
    cu_stream stream = NULL;
    const cu_result result = enter(base)->stream_create(&stream, CU_STREAM_NON_BLOCKING);
    *out = (struct lane *)(void *)stream;
    return said(base, result, "making what sends weights", err);
}

static void lane_close(struct oato_device *base, struct lane *lane)
{
    enter(base)->stream_destroy(stream_of(base, lane));
}

static oato_status lane_mark_open(struct oato_device *base, struct lane_mark **out,
                                  struct oato_error *err)
{
    cu_event event = NULL;
    const cu_result result = enter(base)->event_create(&event, CU_EVENT_DISABLE_TIMING);
    *out = (struct lane_mark *)(void *)event;
    return said(base, result, "making an event", err);
}

static void lane_mark_close(struct oato_device *base, struct lane_mark *mark)
{
    enter(base)->event_destroy(event_of(mark));
}

static oato_status lane_copy(struct oato_device *base, struct lane *lane, void *to, uint64_t offset,
                             const void *from, uint64_t bytes, struct oato_error *err)
{
    const cu_result result =
        enter(base)->upload((cu_address)(uintptr_t)to + offset, from, bytes, stream_of(base, lane));
    return said(base, result, "sending a weight", err);
}

static oato_status lane_call(struct oato_device *base, struct lane *lane,
                             void (*function)(void *user), void *user, struct oato_error *err)
{
    const cu_result result = enter(base)->host_call(stream_of(base, lane), function, user);
    return said(base, result, "having weights converted", err);
}

static oato_status lane_mark(struct oato_device *base, struct lane *lane, struct lane_mark *mark,
                             struct oato_error *err)
{
    const cu_result result = enter(base)->event_record(event_of(mark), stream_of(base, lane));
    return said(base, result, "marking where weights are", err);
}

static oato_status lane_wait(struct oato_device *base, struct lane *lane, struct lane_mark *mark,
                             struct oato_error *err)
{
    const cu_result result = enter(base)->stream_wait(stream_of(base, lane), event_of(mark), 0);
    return said(base, result, "waiting for weights", err);
}

static oato_status lane_unpack(struct oato_device *base, struct lane *lane,
                               const struct weight_source *rows, const void *from, void *to,
                               const struct weight_plane plane[WEIGHT_PLANES],
                               struct oato_error *err)
{
    enter(base);
    const cu_result result = cuda_unpack(cuda_of(base), stream_of(base, lane), rows, from,
                                         (cu_address)(uintptr_t)to, plane);
    return said(base, result, "sending a weight", err);
}

static oato_status lane_unpacked(struct oato_device *base, struct lane *lane,
                                 struct oato_error *err)
{
    enter(base);
    return said(base, cuda_unpacked(cuda_of(base), stream_of(base, lane)), "waiting for planes",
                err);
}

static oato_status lane_passed(struct oato_device *base, struct lane_mark *mark, bool *out,
                               struct oato_error *err)
{
    const cu_result result = enter(base)->event_query(event_of(mark));
    *out = !result;
    return result == CU_ERROR_NOT_READY ? OATO_OK
                                        : said(base, result, "streaming from the host", err);
}

static oato_status lane_drain(struct oato_device *base, struct lane *lane, struct oato_error *err)
{
    enter(base);
    const cu_result result = cuda_stream_finish(cuda_of(base), stream_of(base, lane));
    return said(base, result, "writing a weight", err);
}

const struct lane_ops cuda_lanes = {.open = lane_open,
                                    .close = lane_close,
                                    .mark_open = lane_mark_open,
                                    .mark_close = lane_mark_close,
                                    .copy = lane_copy,
                                    .call = lane_call,
                                    .mark = lane_mark,
                                    .wait = lane_wait,
                                    .passed = lane_passed,
                                    .unpacks = cuda_unpacks,
                                    .unpack = lane_unpack,
                                    .unpacked = lane_unpacked,
                                    .drain = lane_drain};
