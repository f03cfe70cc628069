/*
 * cuda_unpack.c - weights that the GPU brings to its layout by itself (planes_make.cu): the host
 * only copies the file's rows to a page-locked buffer. They go to one of two rooms in the GPU's
 * memory, and from there a stream of its own makes the planes while the next ones arrive:
 *
 *   lane     waits until the room is free; copy to the room
 *   stream   waits for the copy; kernel; the room is free
 *
 * The rooms are beside the budget, as what the driver takes for itself. A type's kernel is tried on
 * made-up blocks before it is relied on; where it gives other bytes than the host, or there is no
 * memory for the rooms, the host converts.
 */
#include "kernels/cuda/cuda_device.h"

#include <stdlib.h>
#include <string.h>

enum { TRIED_ROWS = 5, TRIED_K = 1536 };

static cu_result rooms_make(struct cuda_device *d, struct cuda_unpacker *u)
{
    cu_result result = d->cu->stream_create(&u->stream, CU_STREAM_NON_BLOCKING);
    if (!result)
        result = cuda_events_create(d, u->arrived, UNPACK_ROOMS, CU_EVENT_DISABLE_TIMING);
    if (!result)
        result = cuda_events_create(d, u->made, UNPACK_ROOMS, CU_EVENT_DISABLE_TIMING);
    for (int i = 0; i < UNPACK_ROOMS && !result; i++)
        result = d->cu->memory_alloc(&u->room[i], LANE_BUFFER_BYTES);
    return result;
}

void cuda_unpacker_close(struct cuda_device *d)
{
    struct cuda_unpacker *u = &d->unpacker;
    if (u->stream)
        cuda_stream_finish(d, u->stream);
    for (int i = 0; i < UNPACK_ROOMS; i++)
        if (u->room[i])
            d->cu->memory_free(u->room[i]);
    cuda_events_destroy(d, u->arrived, UNPACK_ROOMS);
    cuda_events_destroy(d, u->made, UNPACK_ROOMS);
    if (u->stream)
        d->cu->stream_destroy(u->stream);
    memset(u, 0, sizeof *u);
}

static cu_result make_planes(const struct cuda_device *d, const struct weight_source *s,
                             cu_address from, cu_address to,
                             const struct weight_plane plane[WEIGHT_PLANES])
{
    const struct cuda_unpacker *u = &d->unpacker;
    const int32_t elements = dtype_info((int)s->dtype)->block_elems;
    struct cuda_planes_args a = {.from = (const uint8_t *)(uintptr_t)from,
                                 .blocks = (s->row_end - s->row_begin) * (s->k / elements)};
    void *arguments[] = {&a};
    for (int i = 0; i < WEIGHT_PLANES; i++)
        a.plane[i] = (uint8_t *)(uintptr_t)to + plane[i].offset;
    return d->cu->launch(u->kernel[s->dtype], cuda_planes_grid(a.blocks, elements), 1, 1,
                         PLANES_THREADS, 1, 1, 0, u->stream, arguments, NULL);
}

/* In the rooms: blocks to one of them, planes to the other. */
static cu_result try_on(struct cuda_device *d, const struct weight_source *s, uint8_t *got,
                        uint64_t bytes)
{
    struct cuda_unpacker *u = &d->unpacker;
    struct weight_plane plane[WEIGHT_PLANES];
    size_t row = 0;
    cuda_planes(&d->far.base, s, plane);
    dtype_row_bytes(s->dtype, s->k, &row);
    cu_result result = d->cu->upload(u->room[0], s->data, row * TRIED_ROWS, u->stream);
    if (result || (result = d->cu->fill(u->room[1], 0, bytes, u->stream)) ||
        (result = make_planes(d, s, u->room[0], u->room[1], plane)) ||
        (result = d->cu->download(got, u->room[1], bytes, u->stream)))
        return result;
    return cuda_stream_finish(d, u->stream);
}

/* Whether the type's kernel does here what the host does. */
static bool is_right(struct cuda_device *d, oato_dtype dtype)
{
    const uint64_t bytes = cuda_layout_bytes(dtype, TRIED_ROWS, TRIED_K);
    size_t row = 0;
    dtype_row_bytes(dtype, TRIED_K, &row);
    uint8_t *memory = calloc(1, 2 * bytes + row * TRIED_ROWS);
    if (!memory)
        return false;
    uint8_t *expected = memory, *got = memory + bytes, *blocks = got + bytes;
    const struct weight_source s = {
        .data = blocks, .dtype = dtype, .k = TRIED_K, .n = TRIED_ROWS, .row_end = TRIED_ROWS};
    uint32_t seed = 1;
    for (size_t i = 0; i < row * TRIED_ROWS; i++) {
        seed = seed * 1664525u + 1013904223u;
        blocks[i] = (uint8_t)(seed >> 24);
    }
    cuda_layout_rows(&s, expected, 0, TRIED_ROWS);
    const bool good = !try_on(d, &s, got, bytes) && !memcmp(expected, got, bytes);
    free(memory);
    return good;
}

static bool find_kernel(struct cuda_device *d, oato_dtype dtype)
{
    struct cuda_unpacker *u = &d->unpacker;
    char name[32];
    snprintf(name, sizeof name, "planes_%s", dtype_name(dtype));
    if (cuda_kernel(d, name, &u->kernel[dtype]))
        return false;
    if (is_right(d, dtype))
        return true;
    u->kernel[dtype] = NULL;
    if (!d->warning[0])
        snprintf(d->warning, sizeof d->warning,
                 "%s: the GPU makes other planes of %s than the host, which converts these "
                 "weights; loading takes longer",
                 d->far.id, dtype_name(dtype));
    return false;
}

bool cuda_unpacks(struct oato_device *base, const struct weight_source *s)
{
    struct cuda_device *d = cuda_of(base);
    struct cuda_unpacker *u = &d->unpacker;
    if (u->declined || s->use == WEIGHT_VECTOR || s->use == WEIGHT_COLUMNS ||
        dtype_info((int)s->dtype)->block_elems == 1)
        return false;
    cuda_enter(d);
    if (!u->stream && rooms_make(d, u)) {
        cuda_unpacker_close(d);
        u->declined = true;
        return false;
    }
    if (!u->tried[s->dtype]) {
        u->tried[s->dtype] = true;
        find_kernel(d, s->dtype);
    }
    return u->kernel[s->dtype];
}

cu_result cuda_unpack(struct cuda_device *d, cu_stream lane, const struct weight_source *rows,
                      const void *from, cu_address to,
                      const struct weight_plane plane[WEIGHT_PLANES])
{
    const struct cuda_driver *cu = d->cu;
    struct cuda_unpacker *u = &d->unpacker;
    const uint32_t i = u->turn++ % UNPACK_ROOMS;
    size_t row = 0;
    dtype_row_bytes(rows->dtype, rows->k, &row);
    const uint64_t bytes = row * (uint64_t)(rows->row_end - rows->row_begin);
    cu_result result = cu->stream_wait(lane, u->made[i], 0);
    if (result || (result = cu->upload(u->room[i], from, bytes, lane)) ||
        (result = cu->event_record(u->arrived[i], lane)) ||
        (result = cu->stream_wait(u->stream, u->arrived[i], 0)) ||
        (result = make_planes(d, rows, u->room[i], to, plane)))
        return result;
    return cu->event_record(u->made[i], u->stream);
}

cu_result cuda_unpacked(const struct cuda_device *d, cu_stream lane)
{
    const struct cuda_unpacker *u = &d->unpacker;
    return u->turn ? d->cu->stream_wait(lane, u->made[(u->turn - 1) % UNPACK_ROOMS], 0) : CU_OK;
}
