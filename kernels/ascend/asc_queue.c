/*
 * asc_queue.c - the thread that feeds an NPU. It waits for other devices' events, has one record
 * after the other queued on the stream, and records an event of CANN's where a record signals; when
 * it sees that the stream has passed the event, the timeline rises. It does both in one loop, so
 * that a signal is seen while it waits for the answer to it. Events are a ring and used again: some
 * chips have few.
 *
 * No step waits inside CANN, which may never return: whoever waits looks, again and again, and
 * gives up when nothing has come for the limit (core/patience.h). Then the device has failed, and
 * nothing is asked of it any more.
 */
#include "kernels/ascend/asc_internal.h"

#include <inttypes.h>
#include <sched.h>
#include <string.h>

enum {
    SPINS = 64,        /* looks before another thread is given the core */
    MARK_RECORDS = 32, /* records without a signal, after which the stream is marked */
    MARKS_AHEAD = 8,
};
#define SPIN_NS 500000 /* a token is sampled and said meanwhile */

static struct asc_device *device_of(struct job_queue *q)
{
    return asc_of(&far_of_queue(q)->base);
}

/* --------------------------------------------------------------------------------- limit -- */

bool asc_hangs(struct asc_device *d, struct patience *p, uint64_t progress)
{
    bool leaves;
    if (d->hung)
        return true;
    const uint64_t limit = patience_ends(p, progress, d->limit_ns, &leaves);
    if (!limit)
        return false;
    oato_fail(&d->why_hung, OATO_EDEVICE,
              "%s: the NPU has been at the same work for %.3g s and is left as it is; look for its "
              "error with npu-smi info and in ~/ascend/log, or raise OATO_ASCEND_STEP_LIMIT",
              d->far.id, (double)limit * 1e-9);
    d->hung = true;
    return true;
}

/* ------------------------------------------------------------------------------- signals -- */

static bool cann_failed(struct asc_device *d, int error, const char *doing)
{
    struct oato_error why;
    asc_fail(d->api, error, d->far.id, doing, &why);
    why.status = OATO_EDEVICE; /* whatever it was: the step is lost */
    return job_queue_fail(&d->far.queue, TIMELINE_DIED, &why);
}

void asc_queue_arrives(struct asc_device *d, void *to, const void *from, uint64_t bytes)
{
    struct asc_queue *q = &d->queue;
    q->arrival[q->sent++ % ASC_ARRIVALS] = (struct asc_arrival){to, from, bytes, q->recorded};
}

/* Raises the timeline to what the stream has passed. */
static bool pump(struct asc_device *d)
{
    struct asc_queue *q = &d->queue;
    while (q->passed != q->recorded) {
        int status = 0;
        const int error = d->api->rtQueryEventStatus(q->event[q->passed % ASC_SIGNALS], &status);
        if (error)
            return cann_failed(d, error, "running a step");
        if (status != ASC_EVENT_COMPLETE)
            return true;
        for (; q->arrived != q->sent && q->arrival[q->arrived % ASC_ARRIVALS].after <= q->passed;
             q->arrived++) {
            const struct asc_arrival *a = &q->arrival[q->arrived % ASC_ARRIVALS];
            memcpy(a->to, a->from, a->bytes);
        }
        const uint64_t value = q->value[q->passed++ % ASC_SIGNALS];
        if (value) /* none is a mark's */
            timeline_signal(&d->far.queue.timeline, value, now_ns());
    }
    return true;
}

static bool pump_again(struct job_queue *base)
{
    struct asc_device *d = device_of(base);
    struct asc_queue *q = &d->queue;
    if (!pump(d))
        return false;
    cpu_relax();
    if (++q->spins % SPINS == 0) {
        sched_yield();
        if (q->passed == q->recorded)
            q->patience.since_ns = 0;
        else if (asc_hangs(d, &q->patience, q->passed))
            return job_queue_fail(base, TIMELINE_DIED, &d->why_hung);
    }
    return !atomic_load(&base->stop) ||
           job_queue_fail_text(base, TIMELINE_DIED, "the step was cancelled");
}

static bool pump_until(struct asc_device *d, uint64_t ahead)
{
    struct asc_queue *q = &d->queue;
    while (q->recorded - q->passed > ahead)
        if (!pump_again(&d->far.queue))
            return false;
    return true;
}

/* The timeline rises to value when the stream gets here; 0: it does not. */
static bool signal_here(struct asc_device *d, uint64_t value)
{
    struct asc_queue *q = &d->queue;
    if (!pump_until(d, ASC_SIGNALS - 1))
        return false;
    int error = value ? asc_measure_mark(d, value) : 0;
    if (!error)
        error = d->api->rtRecordEvent(q->event[q->recorded % ASC_SIGNALS], q->stream);
    if (error)
        return cann_failed(d, error, "signalling");
    q->value[q->recorded++ % ASC_SIGNALS] = value;
    q->unmarked = 0;
    return true;
}

/* Behind records: a long step shows that it goes on though nothing signals, the stream is not
 * filled with more than it holds, for which a call would wait, and there is room for the next
 * arrival. */
static bool mark_here(struct asc_device *d, uint32_t records, bool signals)
{
    struct asc_queue *q = &d->queue;
    const bool full = q->sent - q->arrived == ASC_ARRIVALS;
    q->unmarked += signals ? 0 : records;
    if (q->unmarked < MARK_RECORDS && !full)
        return true;
    return signal_here(d, 0) && pump_until(d, full ? 0 : MARKS_AHEAD);
}

/* A stream goes on behind an operator that failed: only a wait, here for what is done already,
 * tells.
 */
static int stream_check(const struct asc_device *d, asc_stream stream)
{
    const uint64_t ms = d->limit_ns / 1000000;
    return d->api->rtSynchronizeStreamWithTimeout
               ? d->api->rtSynchronizeStreamWithTimeout(stream,
                                                        ms && ms < INT32_MAX ? (int32_t)ms : -1)
               : d->api->rtSynchronizeStream(stream);
}

oato_status asc_stream_finish(struct asc_device *d, asc_stream stream, const char *doing,
                              struct oato_error *err)
{
    struct patience p = {0};
    asc_event event = NULL;
    int status = 0;
    if (d->hung) {
        *err = d->why_hung;
        return err->status;
    }
    int error = d->api->rtCreateEventWithFlag(&event, ASC_EVENT_PROGRESS);
    if (!error)
        error = d->api->rtRecordEvent(event, stream);
    for (int looks = 0; !error; looks++) {
        error = d->api->rtQueryEventStatus(event, &status);
        if (error || status == ASC_EVENT_COMPLETE)
            break;
        if (asc_hangs(d, &p, 0)) {
            *err = d->why_hung;
            return err->status;
        }
        patience_pause(looks);
    }
    /* also where there was no event: the caller gives back memory that the stream may use */
    const int waited = stream_check(d, stream);
    if (event)
        d->api->rtDestroyEvent(event);
    if (!error)
        error = waited;
    return error ? asc_fail(d->api, error, d->far.id, doing, err) : OATO_OK;
}

/* ---------------------------------------------------------------------------------- jobs -- */

/* The record, or the graph that begins with it; *n is how many records that were. */
static bool run_records(struct asc_device *d, struct compiled *c, uint32_t index,
                        const struct step *step, struct asc_emit *e, uint32_t *n)
{
    struct job_queue *q = &d->far.queue;
    oato_status status = OATO_OK;
    struct oato_error err;
    *n = 0;
    if (!atomic_load(&q->fail_after)) /* which counts records */
        *n = asc_graphs_run(c, index, step, &status, &err);
    if (!status && !*n) {
        *n = 1;
        e->captures = false;
        status = asc_run_record(c, index, step, e, &err);
    }
    if (!status)
        return true;
    oato_fail_at(&err, "record %" PRIu32, index);
    err.status = OATO_EDEVICE;
    return job_queue_fail(q, TIMELINE_DIED, &err);
}

static bool run_step(struct asc_device *d, struct compiled *c, const struct step *step)
{
    const struct program *p = c->program;
    struct job_queue *q = &d->far.queue;
    struct oato_error err;
    struct asc_emit e;
    if (asc_rooms_settle(d, &err) || asc_step_send(c, step, &err))
        return job_queue_fail(q, TIMELINE_DIED, &err);
    asc_graphs_begin(c, step);
    for (uint32_t i = 0, n; i < p->n_records; i += n) {
        if (!job_queue_await(q, p, i, step, NULL) || job_queue_injects(q, p, i))
            return false;
        if (!run_records(d, c, i, step, &e, &n))
            return false;
        const struct program_record *r = &p->records[i + n - 1]; /* the one that may signal */
        if (r->signal && !signal_here(d, step->timeline_base[c->self] + r->signal))
            return false;
        if (!mark_here(d, n, r->signal))
            return false;
        if (!pump(d)) /* others wait for signals while what follows them is queued */
            return false;
    }
    /* also when the last records have no signal of their own */
    const uint64_t last = step->timeline_base[c->self] + p->n_signals;
    int error = asc_measure_mark(d, last);
    if (!error && (!signal_here(d, 0) || !pump_until(d, 0)))
        return false;
    if (!error)
        error = stream_check(d, d->queue.stream);
    if (error)
        return cann_failed(d, error, "running a step");
    asc_measure_take(d);
    timeline_signal(&q->timeline, last, now_ns());
    return true;
}

/* A copy may be of any host memory, which CANN takes only when it waits for it. The stream is idle:
 * every job before has been done. */
static bool run_copy(struct asc_device *d, const struct job *job)
{
    const int error = job->bytes ? d->api->rtMemcpy(job->to, job->bytes, job->from, job->bytes,
                                                    job->download ? ASC_TO_HOST : ASC_TO_DEVICE)
                                 : 0;
    if (error)
        return cann_failed(d, error, job->download ? "reading memory" : "writing memory");
    if (job->signal)
        timeline_signal(&d->far.queue.timeline, job->signal, now_ns());
    return true;
}

static void run_job(struct job_queue *q, const struct job *job)
{
    struct asc_device *d = device_of(q);
    struct oato_error ignored;
    d->queue.patience.since_ns = 0;
    if (job->compiled ? run_step(d, job->compiled, job->step) : run_copy(d, job))
        return;
    asc_stream_finish(d, d->queue.stream, "giving up", &ignored); /* nothing uses memory any more */
}

/* --------------------------------------------------------------------------------- queue -- */

static void start(struct job_queue *q)
{
    asc_enter(device_of(q));
}

static void free_stream(struct asc_device *d)
{
    struct asc_queue *q = &d->queue;
    if (d->hung)
        return;
    for (int i = 0; i < ASC_SIGNALS; i++)
        if (q->event[i])
            d->api->rtDestroyEvent(q->event[i]);
    if (q->stream)
        d->api->rtDestroyStream(q->stream);
}

oato_status asc_queue_open(struct asc_device *d, struct oato_error *err)
{
    struct asc_queue *q = &d->queue;
    int error = d->api->rtCreateStream(&q->stream);
    for (int i = 0; i < ASC_SIGNALS && !error; i++)
        error = d->api->rtCreateEventWithFlag(&q->event[i], ASC_EVENT_PROGRESS);
    if (error) {
        asc_fail(d->api, error, d->far.id, "making its queue", err);
        free_stream(d);
        return err->status;
    }
    d->far.queue.start = start;
    d->far.queue.run = run_job;
    d->far.queue.spin_ns = SPIN_NS;
    d->far.queue.meanwhile = pump_again;
    const oato_status status = job_queue_open(&d->far.queue, "oato-ascend", err);
    if (status)
        free_stream(d);
    return status;
}

void asc_queue_close(struct asc_device *d)
{
    job_queue_close(&d->far.queue);
    asc_enter(d);
    free_stream(d);
}
