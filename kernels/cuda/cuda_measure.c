/*
 * cuda_measure.c - a GPU under measurement. Where a step signals, the stream gets a mark; when the
 * step is over, the timeline's clocks become those of the GPU: the time in which it worked, as
 * CUPTI's records tell. Without CUPTI, or when its records of a step are not complete, they come
 * from the driver's events and include the gaps between kernels. Results are the same in any case.
 */
#include "kernels/cuda/cuda_activity.h"
#include "kernels/cuda/cuda_device.h"

enum { READ_BLOCKS = 8 /* of a multiprocessor */, READ_RUNS = 9, BOTH_COPIES = 8, BOTH_RUNS = 5 };
#define READ_MOST ((uint64_t)1 << 30)
#define BOTH_MOST ((uint64_t)16 << 20) /* of one copy: a millisecond, in which both have begun */

static void switch_on(struct cuda_device *d, enum device_clock clock)
{
    struct cuda_measure *m = &d->measure;
    m->n = 0;
    m->why = (struct oato_error){OATO_OK, ""};
    cu_result result = cuda_events_create(d, d->measure.event, CUDA_MARKS, CU_EVENT_TIMED);
    if (!result)
        result = cuda_kernel(d, CUDA_MARK_KERNEL, &m->mark);
    if (result) {
        cuda_events_destroy(d, d->measure.event, CUDA_MARKS);
        cuda_fail(d->cu, result, d->id, "measuring", &m->why);
        return;
    }
    m->activity = clock == CLOCK_WORKS && !cuda_activity_start(d->cu->version, &m->why);
    m->clock = clock;
}

void cuda_measure_close(struct cuda_device *d)
{
    if (d->measure.activity)
        cuda_activity_stop();
    cuda_events_destroy(d, d->measure.event, CUDA_MARKS);
    d->measure.activity = false;
    d->measure.clock = CLOCK_USUAL;
}

bool cuda_measure(struct oato_device *base, enum device_clock clock, struct oato_error *why)
{
    struct cuda_device *d = cuda_of(base);
    if (clock != d->measure.clock) {
        job_queue_drain(&d->queue.base, NULL);
        cuda_enter(d);
        cuda_measure_close(d);
        if (clock != CLOCK_USUAL)
            switch_on(d, clock);
    }
    if (why)
        *why = d->measure.why;
    return !d->measure.why.status;
}

cu_result cuda_measure_mark(struct cuda_device *d, uint64_t value)
{
    struct cuda_measure *m = &d->measure;
    struct cuda_mark_args nothing = {0};
    void *arguments[] = {&nothing};
    cu_result result = CU_OK;
    if (m->clock == CLOCK_USUAL || m->n == CUDA_MARKS)
        return CU_OK;
    if (m->n && m->value[m->n - 1] == value) /* a step's end, signalled by its last record before */
        return CU_OK;
    if (m->activity)
        result = d->cu->launch(m->mark, 1, 1, 1, 1, 1, 1, 0, d->queue.stream, arguments, NULL);
    if (!result)
        result = d->cu->event_record(m->event[m->n], d->queue.stream);
    m->value[m->n++] = value;
    return result;
}

/* ns[i]: from the first event to the i-th. */
static void take_events(const struct cuda_device *d, uint64_t *ns)
{
    const struct cuda_measure *m = &d->measure;
    for (uint32_t i = 0; i < m->n; i++) {
        float ms = 0;
        if (d->cu->event_elapsed(&ms, m->event[0], m->event[i]))
            ms = 0;
        ns[i] = ms > 0 ? (uint64_t)((double)ms * 1e6 + 0.5) : 0;
    }
}

void cuda_measure_take(struct cuda_device *d)
{
    struct cuda_measure *m = &d->measure;
    struct timeline *t = &d->queue.base.timeline;
    struct oato_error why;
    uint64_t ns[CUDA_MARKS] = {0};
    if (!m->n)
        return;
    if (!m->activity || cuda_activity_take(m->n, ns, &why)) {
        if (m->activity)
            m->why = why;
        take_events(d, ns);
    }
    for (uint32_t i = 0; i < m->n; i++)
        __atomic_store_n(&t->clock_ns[m->value[i] % TIMELINE_RING], m->clock_ns + ns[i],
                         __ATOMIC_RELAXED);
    m->clock_ns += ns[m->n - 1];
    m->n = 0;
}

/* ------------------------------------------------------------------------ memory's rate --- */

/* The events around a read; they come from switch_on or from here. */
static cu_result read_once(struct cuda_device *d, cu_function kernel, struct cuda_read_args *a,
                           float *ms)
{
    void *arguments[] = {a};
    const unsigned blocks = (unsigned)(d->multiprocessors * READ_BLOCKS);
    const cu_event *event = d->measure.event;
    const cu_stream stream = d->queue.stream;
    cu_result result;
    if ((result = d->cu->event_record(event[0], stream)) ||
        (result =
             d->cu->launch(kernel, blocks, 1, 1, READ_THREADS, 1, 1, 0, stream, arguments, NULL)) ||
        (result = d->cu->event_record(event[1], stream)) ||
        (result = d->cu->stream_synchronize(stream)))
        return result;
    return d->cu->event_elapsed(ms, event[0], event[1]);
}

oato_status cuda_read_rate(struct oato_device *base, double *bytes_per_s, struct oato_error *err)
{
    struct cuda_device *d = cuda_of(base);
    struct device_info info;
    cu_function kernel;
    void *buffer;
    float best = 0;
    base->ops->info(base, &info);
    uint64_t bytes = 16 * (uint64_t)d->l2_bytes; /* hits are few, and a launch is short beside it */
    bytes = bytes > READ_MOST ? READ_MOST : bytes;
    bytes = bytes > info.free_bytes / 2 ? info.free_bytes / 2 : bytes;
    bytes = bytes / READ_STRETCH * READ_STRETCH;
    *bytes_per_s = 0;
    if (!bytes || job_queue_drain(&d->queue.base, err) || cuda_alloc(base, bytes, &buffer, err))
        return bytes ? err->status : OATO_OK;
    cuda_enter(d);
    const bool lent = d->measure.clock != CLOCK_USUAL;
    struct cuda_read_args a = {.from = buffer, .stretches = bytes / READ_STRETCH, .out = buffer};
    cu_result result = cuda_kernel(d, "read_all", &kernel);
    if (!result && !lent)
        result = cuda_events_create(d, d->measure.event, CUDA_MARKS, CU_EVENT_TIMED);
    for (int run = 0; run < READ_RUNS && !result; run++) {
        float ms = 0;
        result = read_once(d, kernel, &a, &ms);
        best = run && (best <= 0 || ms < best) ? ms : best; /* the first wakes it up */
    }
    if (!lent)
        cuda_events_destroy(d, d->measure.event, CUDA_MARKS);
    cuda_free(base, buffer, bytes);
    if (result)
        return cuda_fail(d->cu, result, d->id, "reading all of a buffer", err);
    *bytes_per_s = best > 0 ? (double)bytes * 1e3 / (double)best : 0;
    return OATO_OK;
}

/* -------------------------------------------------------------------- both ways at once --- */

/* Room for the two directions, half of it each. */
struct both_room {
    void *device, *host;
    uint64_t bytes; /* of one copy */
};

/* Copies to the device in the stream of weights, copies to the host in the computing one: as a step
 * has them that streams weights. */
static cu_result both_once(const struct cuda_device *d, const struct both_room *room, float ms[2])
{
    const struct cuda_driver *cu = d->cu;
    const cu_stream stream[2] = {d->streams.copy, d->queue.stream};
    const cu_address address = (cu_address)(uintptr_t)room->device;
    const cu_event *event = d->measure.event; /* begin and end of each */
    uint8_t *host = room->host;
    cu_result result = CU_OK;
    for (int way = 0; way < 2 && !result; way++)
        result = cu->event_record(event[2 * way], stream[way]);
    for (int i = 0; i < BOTH_COPIES && !result; i++) {
        result = cu->upload(address, host, room->bytes, stream[0]);
        if (!result)
            result =
                cu->download(host + room->bytes, address + room->bytes, room->bytes, stream[1]);
    }
    for (int way = 0; way < 2 && !result; way++)
        result = cu->event_record(event[2 * way + 1], stream[way]);
    for (int way = 0; way < 2 && !result; way++)
        result = cu->stream_synchronize(stream[way]);
    for (int way = 0; way < 2 && !result; way++)
        result = cu->event_elapsed(&ms[way], event[2 * way], event[2 * way + 1]);
    return result;
}

oato_status cuda_both_rates(struct oato_device *base, double *to_device, double *to_host,
                            struct oato_error *err)
{
    struct cuda_device *d = cuda_of(base);
    struct device_info info;
    struct both_room room = {.bytes = BOTH_MOST};
    float best[2] = {0, 0};
    *to_device = *to_host = 0;
    base->ops->info(base, &info);
    while (room.bytes > info.free_bytes / 4)
        room.bytes /= 2;
    if (!room.bytes)
        return OATO_OK;
    if (job_queue_drain(&d->queue.base, err) || cuda_alloc(base, 2 * room.bytes, &room.device, err))
        return err->status;
    cuda_enter(d);
    const bool lent = d->measure.clock != CLOCK_USUAL;
    cu_result result = d->cu->host_alloc(&room.host, 2 * room.bytes, CU_HOST_PORTABLE);
    if (!result && !lent)
        result = cuda_events_create(d, d->measure.event, CUDA_MARKS, CU_EVENT_TIMED);
    for (int run = 0; run < BOTH_RUNS && !result; run++) {
        float ms[2] = {0, 0};
        result = both_once(d, &room, ms);
        const bool better = best[0] + best[1] <= 0 || ms[0] + ms[1] < best[0] + best[1];
        for (int way = 0; way < 2 && run && better; way++) /* the first wakes it up */
            best[way] = ms[way];
    }
    if (!lent)
        cuda_events_destroy(d, d->measure.event, CUDA_MARKS);
    if (room.host)
        d->cu->host_free(room.host);
    cuda_free(base, room.device, 2 * room.bytes);
    if (result)
        return cuda_fail(d->cu, result, d->id, "copying both ways", err);
    const double bytes = (double)room.bytes * BOTH_COPIES * 1e3;
    *to_device = best[0] > 0 ? bytes / (double)best[0] : 0;
    *to_host = best[1] > 0 ? bytes / (double)best[1] : 0;
    return OATO_OK;
}
