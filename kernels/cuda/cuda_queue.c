/*
 * cuda_queue.c - the thread that feeds a GPU. It waits for other devices' events, launches records
 * one behind the other, and records an event in the stream where a record signals; when the stream
 * has passed it, the timeline rises. The thread does both in one loop, so that a signal is seen
 * while it waits for the answer to it.
 *
 * It spins while a step is on its way: a sleep would cost as much as a small operator. Between
 * steps it sleeps.
 */
#include "kernels/cuda/cuda_device.h"

#include <inttypes.h>
#include <sched.h>
#include <string.h>

enum { SPINS = 200 }; /* looks before another thread is given the core */

static bool driver_fail(struct cuda_queue *q, cu_result result, const char *doing)
{
    struct oato_error error;
    cuda_fail(q->device->cu, result, q->device->id, doing, &error);
    return job_queue_fail(&q->base, TIMELINE_DIED, &error);
}

static bool cancelled(struct cuda_queue *q)
{
    struct oato_error error;
    oato_fail(&error, OATO_EDEVICE, "%s: the step was cancelled", q->device->id);
    return job_queue_fail(&q->base, TIMELINE_DIED, &error);
}

/* ------------------------------------------------------------------------------ signals --- */

/* Raises the timeline to what the stream has passed. */
static bool pump(struct cuda_queue *q)
{
    const struct cuda_driver *cu = q->device->cu;
    while (q->passed != q->recorded) {
        const uint32_t at = q->passed % CUDA_EVENTS;
        const cu_result result = cu->event_query(q->event[at]);
        if (result == CU_ERROR_NOT_READY)
            return true;
        if (result)
            return driver_fail(q, result, "running a step");
        q->passed++;
        timeline_signal(&q->base.timeline, q->value[at], now_ns());
    }
    return true;
}

static bool pump_again(struct cuda_queue *q, int *spins)
{
    if (!pump(q))
        return false;
    if (++*spins % SPINS == 0)
        sched_yield();
    return !atomic_load(&q->base.stop) || cancelled(q);
}

static bool pump_all(struct cuda_queue *q)
{
    for (int spins = 0; q->passed != q->recorded;)
        if (!pump_again(q, &spins))
            return false;
    return true;
}

/* The timeline rises to value when the stream gets here. */
static bool signal_here(struct cuda_queue *q, uint64_t value)
{
    for (int spins = 0; q->recorded - q->passed == CUDA_EVENTS;)
        if (!pump_again(q, &spins))
            return false;
    const uint32_t at = q->recorded % CUDA_EVENTS;
    cu_result result = cuda_measure_mark(q->device, value);
    if (!result)
        result = q->device->cu->event_record(q->event[at], q->stream);
    if (result)
        return driver_fail(q, result, "recording an event");
    q->value[at] = value;
    q->recorded++;
    return true;
}

static bool wait_for_others(struct cuda_queue *q, const struct compiled *c, uint32_t index,
                            const struct step *step)
{
    const struct program_record *r = &c->program->records[index];
    for (int i = 0; i < r->n_waits; i++) {
        const int other = r->wait[i].device;
        const uint64_t value = step->timeline_base[other] + r->wait[i].ordinal;
        if (other == c->self)
            continue; /* the stream keeps the order */
        for (int spins = 0; !timeline_reached(step->timeline[other], value);) {
            if (atomic_load(&step->timeline[other]->failed)) {
                struct oato_error error;
                oato_fail(
                    &error, OATO_EDEVICE, "%s: record %" PRIu32 " waited for %s, which failed",
                    q->device->id, index,
                    c->program->device_ids ? c->program->device_ids[other] : "another device");
                return job_queue_fail(&q->base, TIMELINE_STRANDED, &error);
            }
            if (!pump_again(q, &spins))
                return false;
        }
    }
    return true;
}

/* --------------------------------------------------------------------------------- jobs --- */

static bool begin_stream(struct cuda_queue *q, const struct compiled *c,
                         const struct program_record *r)
{
    cu_result result;
    for (int spins = 0; (result = cuda_stream_room(q->device)) == CU_ERROR_NOT_READY;)
        if (!pump_again(q, &spins))
            return false;
    if (!result)
        result = cuda_stream_run(q->device, c, r);
    if (!result && r->signal)
        result = cuda_stream_await(q->device, c, r); /* it is done when the weights are there */
    return !result || driver_fail(q, result, "streaming weights");
}

static bool run_record(struct cuda_queue *q, const struct compiled *c, uint32_t index,
                       const struct step *step)
{
    const struct program_record *r = &c->program->records[index];
    struct oato_error error;
    if (r->kind == RECORD_STREAM)
        return !record_rows(r, step) || begin_stream(q, c, r);
    const cu_result result = cuda_stream_await(q->device, c, r);
    if (result)
        return driver_fail(q, result, "waiting for weights");
    return !cuda_run_record(q->device, c, index, step, &error) ||
           job_queue_fail(&q->base, TIMELINE_DIED, &error);
}

/* The record, or the graph that begins with it; *n is how many records that were. */
static bool run_records(struct cuda_queue *q, struct compiled *c, uint32_t index,
                        const struct step *step, uint32_t *n)
{
    cu_result result = CU_OK;
    *n = 0;
    if (!atomic_load(&q->base.fail_after)) /* which counts records */
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
        return job_queue_fail(&q->base, TIMELINE_DIED, &error);
    cuda_graphs_begin(q->device, c, step);
    for (uint32_t i = 0, n; i < p->n_records; i += n) {
        if (!wait_for_others(q, c, i, step))
            return false;
        if (atomic_load(&q->base.fail_after) > 0 && atomic_fetch_sub(&q->base.fail_after, 1) == 1) {
            oato_fail(&error, OATO_EDEVICE, "%s: injected failure at record %" PRIu32,
                      q->device->id, i);
            return job_queue_fail(&q->base, TIMELINE_DIED, &error);
        }
        if (!run_records(q, c, i, step, &n))
            return false;
        const struct program_record *r = &p->records[i + n - 1]; /* the one that may signal */
        if (r->signal && !signal_here(q, step->timeline_base[c->self] + r->signal))
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
        result = cu->stream_synchronize(q->stream);
    if (result)
        return driver_fail(q, result, job->download ? "reading memory" : "writing memory");
    if (job->signal)
        timeline_signal(&q->base.timeline, job->signal, now_ns());
    return true;
}

static void start(struct job_queue *base)
{
    cuda_enter(((struct cuda_queue *)base)->device);
}

static void run_job(struct job_queue *base, const struct job *job)
{
    struct cuda_queue *q = (struct cuda_queue *)base;
    if (job->compiled ? run_step(q, job->compiled, job->step) : run_copy(q, job))
        return;
    cuda_streams_wait(q->device); /* nothing uses memory any more */
    q->device->cu->stream_synchronize(q->stream);
}

/* ------------------------------------------------------------------------------- queue ---- */

static void free_stream(struct cuda_queue *q)
{
    for (int i = 0; i < CUDA_EVENTS; i++)
        if (q->event[i])
            q->device->cu->event_destroy(q->event[i]);
    if (q->stream)
        q->device->cu->stream_destroy(q->stream);
}

oato_status cuda_queue_open(struct cuda_queue *q, struct cuda_device *d, struct oato_error *err)
{
    q->device = d;
    timeline_init(&q->base.timeline);
    cu_result result = d->cu->stream_create(&q->stream, CU_STREAM_NON_BLOCKING);
    for (int i = 0; i < CUDA_EVENTS && !result; i++)
        result = d->cu->event_create(&q->event[i], CU_EVENT_DISABLE_TIMING);
    if (result) {
        cuda_fail(d->cu, result, d->id, "making its queue", err);
        free_stream(q);
        return err->status;
    }
    q->base.id = d->id;
    q->base.start = start;
    q->base.run = run_job;
    const oato_status status = job_queue_open(&q->base, "oato-cuda", err);
    if (status)
        free_stream(q);
    return status;
}

void cuda_queue_close(struct cuda_queue *q)
{
    job_queue_close(&q->base);
    free_stream(q);
}
