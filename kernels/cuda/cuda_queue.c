/*
 * cuda_queue.c - the thread that feeds a GPU. It waits for other devices' events, launches records
 * one behind the other, and has the stream count in the host's memory where a record signals; when
 * it sees the count, the timeline rises. The thread does both in one loop, so that a signal is seen
 * while it waits for the answer to it. Where a stream cannot write to memory, it asks the driver
 * for events instead, which takes longer.
 *
 * The stream itself never waits for the host's memory (cuStreamWaitValue): what was launched behind
 * such a wait could not be taken back when the awaited device fails, and would run on values that
 * were never made; and the driver does not know of orders that are made so, and may deadlock.
 *
 * It spins while a step is on its way: a sleep would cost as much as a small operator. Between
 * steps it sleeps.
 *
 * Its waits for the GPU have a limit (cuda_hang.c). A launch into a stream that is full of others
 * waits in the driver, where no limit reaches; so stretches of launches without a signal are marked
 * now and then, and only few of these marks may be ahead of the GPU.
 */
#include "kernels/cuda/cuda_device.h"

#include <inttypes.h>
#include <sched.h>
#include <string.h>

enum {
    SPINS = 200,        /* looks before another thread is given the core */
    LOOKS_ASKED = 1000, /* at the count, before the driver is asked whether the GPU still works */
    MARK_LAUNCHES = 32, /* records, of up to 4 kernels, or graphs; a stream holds about 1000 */
    MARKS_AHEAD = 6,
};
#define SPIN_NS 500000 /* a token is sampled and said meanwhile */

static bool driver_fail(struct cuda_queue *q, cu_result result, const char *doing)
{
    struct oato_error error;
    cuda_fail(q->device->cu, result, q->device->far.id, doing, &error);
    return job_queue_fail(q->base, TIMELINE_DIED, &error);
}

/* The GPU owes something, and nothing has come of it for too long. */
static bool hangs(struct cuda_queue *q)
{
    struct cuda_device *d = q->device;
    if (q->passed == q->recorded && !q->owed) {
        q->patience.since_ns = 0;
        return false;
    }
    return cuda_hangs(d, &q->patience,
                      q->passed + d->far.base.weights->streams.records + atomic_load(&d->filled)) &&
           !job_queue_fail(q->base, TIMELINE_DIED, &d->why_hung);
}

/* ------------------------------------------------------------------------------ signals --- */

/* CU_OK or CU_ERROR_NOT_READY: whether the stream has passed the oldest signal. */
static cu_result look(struct cuda_queue *q)
{
    const struct cuda_driver *cu = q->device->cu;
    if (!q->count)
        return cu->event_query(q->event[q->passed % CUDA_SIGNALS]);
    if (atomic_load_explicit(q->count, memory_order_acquire) > q->passed)
        return CU_OK;
    if (++q->looks % LOOKS_ASKED)
        return CU_ERROR_NOT_READY;
    const cu_result result = cu->stream_query(q->stream); /* one that failed never writes */
    return result ? result : CU_ERROR_NOT_READY;          /* passed since: the next look sees it */
}

static cu_result count_here(struct cuda_queue *q)
{
    const struct cuda_driver *cu = q->device->cu;
    return q->count ? cu->stream_write(q->stream, q->count_address, q->recorded + 1, 0)
                    : cu->event_record(q->event[q->recorded % CUDA_SIGNALS], q->stream);
}

/* Raises the timeline to what the stream has passed. */
static bool pump(struct cuda_queue *q)
{
    while (q->passed != q->recorded) {
        const cu_result result = look(q);
        if (result == CU_ERROR_NOT_READY)
            return true;
        if (result)
            return driver_fail(q, result, "running a step");
        const uint64_t value = q->value[q->passed++ % CUDA_SIGNALS];
        if (value) /* none is a mark's */
            timeline_signal(&q->base->timeline, value, now_ns());
    }
    return true;
}

static bool pump_again(struct cuda_queue *q)
{
    if (!pump(q))
        return false;
    cpu_relax();
    if (++q->spins % SPINS == 0) {
        sched_yield();
        if (hangs(q))
            return false;
    }
    return !atomic_load(&q->base->stop) ||
           job_queue_fail_text(q->base, TIMELINE_DIED, "the step was cancelled");
}

static bool pump_all(struct cuda_queue *q)
{
    while (q->passed != q->recorded)
        if (!pump_again(q))
            return false;
    return true;
}

/* The timeline rises to value when the stream gets here; 0: it does not. */
static bool signal_here(struct cuda_queue *q, uint64_t value)
{
    while (q->recorded - q->passed == CUDA_SIGNALS)
        if (!pump_again(q))
            return false;
    cu_result result = value ? cuda_measure_mark(q->device, value) : CU_OK;
    if (!result)
        result = count_here(q);
    if (result)
        return driver_fail(q, result, "signalling");
    q->value[q->recorded++ % CUDA_SIGNALS] = value;
    q->unmarked = 0;
    return true;
}

/* Behind each launch. What follows the mark follows no kernel. */
static bool mark_here(struct cuda_queue *q)
{
    if (++q->unmarked < MARK_LAUNCHES)
        return true;
    if (!signal_here(q, 0))
        return false;
    q->chain = q->chain ? CHAIN_BEGINS : CHAIN_NONE;
    while (q->recorded - q->passed > MARKS_AHEAD)
        if (!pump_again(q))
            return false;
    return true;
}

/* --------------------------------------------------------------------------------- jobs --- */

/* Sleeps where nobody waits for a signal of the GPU's: who reads the file may need the core. */
static bool wait_for_file(struct cuda_queue *q, struct file_stream *file, uint32_t weights)
{
    struct oato_error error;
    file_stream_want(file, weights);
    while (!file_stream_arrived(file, weights)) {
        if (q->passed == q->recorded)
            file_stream_wait(file, weights, &q->base->stop);
        if (file_stream_failed(file, &error))
            return job_queue_fail(q->base, TIMELINE_DIED, &error);
        if (!pump_again(q))
            return false;
    }
    return true;
}

/* Where the history is there that a room of the record's layer gets; NULL: it has none. */
static struct lane_mark *history_mark(const struct compiled *c, const struct program_record *r)
{
    return c->kv_arrived && r->kv_layer >= 0
               ? (struct lane_mark *)(void *)c->kv_arrived[r->kv_layer]
               : NULL;
}

/* The stream waits for what the record reads of all that is streamed. */
static oato_status await_streams(struct cuda_queue *q, const struct compiled *c,
                                 const struct program_record *r, struct oato_error *err)
{
    struct oato_device *d = &q->device->far.base;
    struct lane_mark *history = history_mark(c, r);
    const oato_status status = history ? cuda_lanes.wait(d, NULL, history, err) : OATO_OK;
    return status ? status : weights_await(d, c->program, r, err);
}

static bool begin_stream(struct cuda_queue *q, const struct compiled *c,
                         const struct program_record *r, const struct step *step)
{
    struct oato_device *d = &q->device->far.base;
    struct weight_file_use *use = c->file_uses ? &c->file_uses[r - c->program->records] : NULL;
    struct oato_error error;
    bool room = false;
    if (use && use->weights && !wait_for_file(q, use->file, use->weights))
        return false;
    oato_status status = weights_room(d, &room, &error);
    q->owed = true;
    for (; !status && !room; status = weights_room(d, &room, &error))
        if (!pump_again(q))
            return false;
    q->owed = false;
    if (!status)
        status = weights_stream(d, c->program, r, step, history_mark(c, r), use, &error);
    if (!status && r->signal)
        status = await_streams(q, c, r, &error); /* it is done when all is there */
    return !status || job_queue_fail(q->base, TIMELINE_DIED, &error);
}

static bool run_record(struct cuda_queue *q, const struct compiled *c, uint32_t index,
                       const struct step *step)
{
    const struct program_record *r = &c->program->records[index];
    struct oato_error error;
    if (r->kind == RECORD_STREAM)
        return (!record_rows(r, step) && !c->file_uses) || begin_stream(q, c, r, step);
    return (!await_streams(q, c, r, &error) &&
            !cuda_run_record(q->device, c, index, step, &error)) ||
           job_queue_fail(q->base, TIMELINE_DIED, &error);
}

/* The record, or the graph that begins with it; *n is how many records that were. */
static bool run_records(struct cuda_queue *q, struct compiled *c, uint32_t index,
                        const struct step *step, uint32_t *n)
{
    cu_result result = CU_OK;
    *n = 0;
    if (!atomic_load(&q->base->fail_after)) /* which counts records */
        *n = cuda_graphs_run(q->device, c, index, step, &result);
    if (result)
        return driver_fail(q, result, "launching a graph");
    if (*n)
        return true;
    *n = 1;
    return run_record(q, c, index, step);
}

static bool run_step(struct cuda_queue *q, struct compiled *c, const struct step *step)
{
    const struct program *p = c->program;
    struct oato_error error;
    if (cuda_step_upload(q->device, c, step, &error))
        return job_queue_fail(q->base, TIMELINE_DIED, &error);
    cuda_graphs_begin(q->device, c, step);
    file_stream_begin(weights_file(&q->device->far.base));
    for (uint32_t i = 0, n; i < p->n_records; i += n) {
        if (!job_queue_await(q->base, p, i, step, NULL) || job_queue_injects(q->base, p, i) ||
            !run_records(q, c, i, step, &n))
            return false;
        const struct program_record *r = &p->records[i + n - 1]; /* the one that may signal */
        if (r->signal && !signal_here(q, step->timeline_base[c->self] + r->signal))
            return false;
        if (!r->signal && !mark_here(q))
            return false;
        if (!pump(q)) /* others wait for signals while what follows them is launched */
            return false;
    }
    /* also when the last records have no signal of their own */
    if (!signal_here(q, step->timeline_base[c->self] + p->n_signals) || !pump_all(q))
        return false;
    cuda_measure_take(q->device);
    return true;
}

static bool run_copy(struct cuda_queue *q, const struct job *job)
{
    const struct cuda_driver *cu = q->device->cu;
    cu_result result =
        job->download
            ? cu->download(job->to, (cu_address)(uintptr_t)job->from, job->bytes, q->stream)
            : cu->upload((cu_address)(uintptr_t)job->to, job->from, job->bytes, q->stream);
    if (!result)
        result = cuda_stream_finish(q->device, q->stream);
    if (q->device->hung)
        return job_queue_fail(q->base, TIMELINE_DIED, &q->device->why_hung);
    if (result)
        return driver_fail(q, result, job->download ? "reading memory" : "writing memory");
    if (job->signal)
        timeline_signal(&q->base->timeline, job->signal, now_ns());
    return true;
}

static struct cuda_queue *queue_of(const struct job_queue *base)
{
    return &cuda_of(&far_of_queue(base)->base)->queue;
}

static bool meanwhile(struct job_queue *base)
{
    return pump_again(queue_of(base));
}

static void start(struct job_queue *base)
{
    cuda_enter(cuda_of(&far_of_queue(base)->base));
}

static void run_job(struct job_queue *base, const struct job *job)
{
    struct cuda_queue *q = queue_of(base);
    q->patience.since_ns = 0;
    q->owed = false;
    if (job->compiled ? run_step(q, job->compiled, job->step) : run_copy(q, job))
        return;
    struct oato_error ignored;
    weights_drain(&q->device->far.base, &ignored); /* nothing uses memory any more */
    cuda_stream_finish(q->device, q->stream);
}

/* ------------------------------------------------------------------------------- queue ---- */

static void free_count(struct cuda_queue *q)
{
    if (q->count)
        q->device->cu->host_free((void *)(uintptr_t)q->count);
    q->count = NULL;
}

static void free_stream(struct cuda_queue *q)
{
    cuda_events_destroy(q->device, q->event, CUDA_SIGNALS);
    free_count(q);
    if (q->stream)
        q->device->cu->stream_destroy(q->stream);
}

/* The stream writes once before it is relied on: some drivers know the attribute and refuse the
 * deed. */
static void make_count(struct cuda_queue *q)
{
    const struct cuda_device *d = q->device;
    void *p = NULL;
    int writes = 0;
    if (d->cu->device_attribute(&writes, CU_ATTRIBUTE_STREAM_WRITES_64, d->ordinal) || !writes ||
        d->cu->host_alloc(&p, sizeof *q->count, CU_HOST_DEVICEMAP))
        return;
    q->count = p;
    atomic_store(q->count, 0);
    if (d->cu->host_address(&q->count_address, p, 0) ||
        d->cu->stream_write(q->stream, q->count_address, 1, 0) ||
        d->cu->stream_synchronize(q->stream) || atomic_load(q->count) != 1)
        free_count(q);
    else
        atomic_store(q->count, 0);
}

oato_status cuda_queue_open(struct cuda_queue *q, struct cuda_device *d, struct oato_error *err)
{
    q->device = d;
    q->base = &d->far.queue;
    cu_result result = d->cu->stream_create(&q->stream, CU_STREAM_NON_BLOCKING);
    if (!result)
        make_count(q);
    if (!result && !q->count)
        result = cuda_events_create(d, q->event, CUDA_SIGNALS, CU_EVENT_DISABLE_TIMING);
    if (result) {
        cuda_fail(d->cu, result, d->far.id, "making its queue", err);
        free_stream(q);
        return err->status;
    }
    q->base->start = start;
    q->base->run = run_job;
    q->base->meanwhile = meanwhile;
    q->base->spin_ns = SPIN_NS;
    const oato_status status = job_queue_open(q->base, "oato-cuda", err);
    if (status)
        free_stream(q);
    return status;
}

void cuda_queue_close(struct cuda_queue *q)
{
    job_queue_close(q->base);
    cuda_enter(q->device);
    free_stream(q);
}
