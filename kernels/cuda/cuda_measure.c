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
        cuda_fail(d->cu, result, d->far.id, "measuring", &m->why);
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
        job_queue_drain(&d->far.queue, NULL);
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
    struct timeline *t = &d->far.queue.timeline;
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

/* ------------------------------------------------------------------------------- rates --- */

/* Runs that measure one or two bandwidths. */
struct rate_runs {
    cu_result (*once)(struct cuda_device *d, const struct rate_runs *r, float ms[2]);
    const char *doing;
    int n;
    uint64_t bytes, host_bytes; /* of the buffers */
    void *device, *host;
    float best[2]; /* ms of the fastest run */
};

/* The events come from switch_on or from here. */
static oato_status run_all(struct cuda_device *d, struct rate_runs *r, struct oato_error *err)
{
    const bool lent = d->measure.clock != CLOCK_USUAL;
    cu_result result = CU_OK;
    if (job_queue_drain(&d->far.queue, err) || far_alloc(&d->far.base, r->bytes, &r->device, err))
        return err->status;
    cuda_enter(d);
    if (r->host_bytes)
        result = d->cu->host_alloc(&r->host, r->host_bytes, CU_HOST_PORTABLE);
    if (!result && !lent)
        result = cuda_events_create(d, d->measure.event, CUDA_MARKS, CU_EVENT_TIMED);
    for (int run = 0; run < r->n && !result; run++) {
        float ms[2] = {0, 0}, *best = r->best;
        result = r->once(d, r, ms);
        const bool better = best[0] + best[1] <= 0 || ms[0] + ms[1] < best[0] + best[1];
        for (int i = 0; i < 2 && run && better; i++) /* the first wakes it up */
            best[i] = ms[i];
    }
    if (!lent)
        cuda_events_destroy(d, d->measure.event, CUDA_MARKS);
    if (r->host)
        d->cu->host_free(r->host);
    far_free(&d->far.base, r->device, r->bytes);
    return result ? cuda_fail(d->cu, result, d->far.id, r->doing, err) : OATO_OK;
}

static double rate_of(uint64_t bytes, float ms)
{
    return ms > 0 ? (double)bytes * 1e3 / (double)ms : 0;
}

static cu_result read_once(struct cuda_device *d, const struct rate_runs *r, float ms[2])
{
    struct cuda_read_args a = {
        .from = r->device, .stretches = r->bytes / READ_STRETCH, .out = r->device};
    void *arguments[] = {&a};
    const unsigned blocks = (unsigned)(d->multiprocessors * READ_BLOCKS);
    const cu_event *event = d->measure.event;
    const cu_stream stream = d->queue.stream;
    cu_function kernel;
    cu_result result;
    if ((result = cuda_kernel(d, "read_all", &kernel)) ||
        (result = d->cu->event_record(event[0], stream)) ||
        (result =
             d->cu->launch(kernel, blocks, 1, 1, READ_THREADS, 1, 1, 0, stream, arguments, NULL)) ||
        (result = d->cu->event_record(event[1], stream)) ||
        (result = cuda_stream_finish(d, stream)))
        return result;
    return d->cu->event_elapsed(ms, event[0], event[1]);
}

oato_status cuda_read_rate(struct oato_device *base, double *bytes_per_s, struct oato_error *err)
{
    struct cuda_device *d = cuda_of(base);
    struct rate_runs runs = {read_once, .doing = "reading all of a buffer", .n = READ_RUNS};
    struct device_info info;
    base->ops->info(base, &info);
    uint64_t bytes = 16 * (uint64_t)d->l2_bytes; /* hits are few, and a launch is short beside it */
    bytes = bytes > READ_MOST ? READ_MOST : bytes;
    bytes = bytes > info.free_bytes / 2 ? info.free_bytes / 2 : bytes;
    runs.bytes = bytes / READ_STRETCH * READ_STRETCH;
    *bytes_per_s = 0;
    if (runs.bytes && run_all(d, &runs, err))
        return err->status;
    *bytes_per_s = rate_of(runs.bytes, runs.best[0]);
    return OATO_OK;
}

/* Copies to the device in the stream of weights, copies to the host in the computing one: as a step
 * has them that streams weights. Each direction has half of the buffers. */
static cu_result both_once(struct cuda_device *d, const struct rate_runs *r, float ms[2])
{
    const struct cuda_driver *cu = d->cu;
    const cu_stream stream[2] = {(cu_stream)(void *)d->far.base.weights->streams.copy,
                                 d->queue.stream};
    const cu_address address = (cu_address)(uintptr_t)r->device;
    const cu_event *event = d->measure.event; /* begin and end of each */
    const uint64_t bytes = r->bytes / 2;
    uint8_t *host = r->host;
    cu_result result = CU_OK;
    for (int way = 0; way < 2 && !result; way++)
        result = cu->event_record(event[2 * way], stream[way]);
    for (int i = 0; i < BOTH_COPIES && !result; i++) {
        result = cu->upload(address, host, bytes, stream[0]);
        if (!result)
            result = cu->download(host + bytes, address + bytes, bytes, stream[1]);
    }
    for (int way = 0; way < 2 && !result; way++)
        result = cu->event_record(event[2 * way + 1], stream[way]);
    for (int way = 0; way < 2 && !result; way++)
        result = cuda_stream_finish(d, stream[way]);
    for (int way = 0; way < 2 && !result; way++)
        result = cu->event_elapsed(&ms[way], event[2 * way], event[2 * way + 1]);
    return result;
}

oato_status cuda_both_rates(struct oato_device *base, double *to_device, double *to_host,
                            struct oato_error *err)
{
    struct rate_runs runs = {both_once, .doing = "copying both ways", .n = BOTH_RUNS};
    struct device_info info;
    uint64_t bytes = BOTH_MOST; /* of one copy */
    *to_device = *to_host = 0;
    base->ops->info(base, &info);
    while (bytes > info.free_bytes / 4)
        bytes /= 2;
    runs.bytes = runs.host_bytes = 2 * bytes;
    if (bytes && run_all(cuda_of(base), &runs, err))
        return err->status;
    *to_device = rate_of(bytes * BOTH_COPIES, runs.best[0]);
    *to_host = rate_of(bytes * BOTH_COPIES, runs.best[1]);
    return OATO_OK;
}
