/*
 * job_queue.c - see job_queue.h. Putting waits for room only. Once the queue has failed, jobs are
 * taken out without being done, so that whoever drains it returns.
 */
#include "kernels/job_queue.h"

#include <inttypes.h>
#include <sched.h>
#include <stdarg.h>
#include <string.h>

bool job_queue_fail(struct job_queue *q, enum timeline_failure why, const struct oato_error *error)
{
    pthread_mutex_lock(&q->lock);
    if (!q->failed)
        q->error = *error;
    q->failed = true;
    pthread_cond_broadcast(&q->changed);
    pthread_mutex_unlock(&q->lock);
    timeline_fail(&q->timeline, why);
    return false;
}

bool job_queue_fail_text(struct job_queue *q, enum timeline_failure why, const char *fmt, ...)
{
    char text[sizeof q->error.text - 32];
    struct oato_error error;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    oato_fail(&error, OATO_EDEVICE, "%s: %s", q->id, text);
    return job_queue_fail(q, why, &error);
}

enum { YIELD_EVERY = 64 }; /* spins, lest another thread waits for this core */

/* Not longer than the queue's time. */
static void spin_while(const struct job_queue *q, const _Atomic uint64_t *count, uint64_t value)
{
    if (!q->spin_ns)
        return;
    const uint64_t end = now_ns() + q->spin_ns;
    for (int i = 1; atomic_load(count) == value && now_ns() < end; i++)
        if (i % YIELD_EVERY)
            cpu_relax();
        else
            sched_yield();
}

static void *queue_main(void *arg)
{
    struct job_queue *q = arg;
    if (q->start)
        q->start(q);
    for (;;) {
        spin_while(q, &q->put, atomic_load(&q->done));
        pthread_mutex_lock(&q->lock);
        while (q->put == q->done && !q->closing)
            pthread_cond_wait(&q->changed, &q->lock);
        if (q->put == q->done)
            break;
        struct job job = q->jobs[q->done % QUEUE_JOBS];
        bool failed = q->failed;
        pthread_mutex_unlock(&q->lock);
        if (!failed)
            q->run(q, &job);
        pthread_mutex_lock(&q->lock);
        q->done++;
        pthread_cond_broadcast(&q->changed);
        pthread_mutex_unlock(&q->lock);
    }
    pthread_mutex_unlock(&q->lock);
    return NULL;
}

oato_status job_queue_open(struct job_queue *q, const char *name, struct oato_error *err)
{
    pthread_mutex_init(&q->lock, NULL);
    pthread_cond_init(&q->changed, NULL);
    int e = pthread_create(&q->thread, NULL, queue_main, q);
    if (!e) {
        pthread_setname_np(q->thread, name);
        return OATO_OK;
    }
    pthread_cond_destroy(&q->changed);
    pthread_mutex_destroy(&q->lock);
    return oato_fail(err, OATO_EFIT, "%s: cannot start its thread: %s", q->id, strerror(e));
}

void job_queue_close(struct job_queue *q)
{
    job_queue_cancel(q);
    timeline_fail(&q->timeline, TIMELINE_DIED); /* who still waits for it waits no longer */
    pthread_mutex_lock(&q->lock);
    q->closing = true;
    pthread_cond_broadcast(&q->changed);
    pthread_mutex_unlock(&q->lock);
    pthread_join(q->thread, NULL);
    pthread_cond_destroy(&q->changed);
    pthread_mutex_destroy(&q->lock);
}

oato_status job_queue_put(struct job_queue *q, const struct job *job, struct oato_error *err)
{
    pthread_mutex_lock(&q->lock);
    while (q->put - q->done == QUEUE_JOBS && !q->failed)
        pthread_cond_wait(&q->changed, &q->lock);
    bool failed = q->failed;
    if (failed) {
        *err = q->error;
    } else {
        q->jobs[q->put++ % QUEUE_JOBS] = *job;
        pthread_cond_broadcast(&q->changed);
    }
    pthread_mutex_unlock(&q->lock);
    return failed ? err->status : OATO_OK;
}

oato_status job_queue_copy(struct job_queue *q, struct job *job, uint64_t *value,
                           struct oato_error *err)
{
    if (value)
        job->signal = q->promised + 1;
    if (job_queue_put(q, job, err))
        return err->status;
    if (!value)
        return job_queue_drain(q, err);
    *value = q->promised = job->signal;
    return OATO_OK;
}

oato_status job_queue_step(struct job_queue *q, struct compiled *c, const struct program *p,
                           int self, const struct step *step, struct oato_error *err)
{
    if (step->n_tokens > p->max_tokens || step->n_rows > program_rows(p, ROWS_LOGITS) ||
        step->n_rows - step->n_states > p->max_rows || step->n_seqs > p->max_seqs)
        return oato_fail(err, OATO_EUSAGE,
                         "%s: a step of %" PRId32 " tokens, %" PRId32 " rows and %" PRId32
                         " sequences exceeds the program's limits of %" PRId32 ", %" PRId32
                         " and %" PRId32,
                         q->id, step->n_tokens, step->n_rows, step->n_seqs, p->max_tokens,
                         p->max_rows, p->max_seqs);
    const uint64_t base = step->timeline_base[self];
    if (base < q->promised)
        return oato_fail(err, OATO_EUSAGE,
                         "%s: a step begins at event %" PRIu64 ", but events up to %" PRIu64
                         " are in use",
                         q->id, base, q->promised);
    const struct job job = {.compiled = c, .step = step};
    if (job_queue_put(q, &job, err))
        return err->status;
    q->promised = base + p->n_signals;
    return OATO_OK;
}

static bool reached(struct job_queue *q, struct timeline *t, uint64_t value, uint64_t *clock_ns)
{
    if (!q->meanwhile)
        return timeline_wait_unless(t, value, clock_ns, &q->stop);
    while (!timeline_reached(t, value))
        if (atomic_load(&t->failed) || !q->meanwhile(q))
            return false;
    return true;
}

bool job_queue_await(struct job_queue *q, const struct program *p, uint32_t index,
                     const struct step *step, uint64_t *clock_ns)
{
    const struct program_record *r = &p->records[index];
    bool stranded = false;
    for (int i = 0; i < r->n_waits && !stranded; i++) {
        const int other = r->wait[i].device;
        uint64_t clock = 0;
        if (step->timeline[other] == &q->timeline)
            continue; /* the queue keeps the order */
        stranded = !reached(q, step->timeline[other],
                            step->timeline_base[other] + r->wait[i].ordinal, &clock);
        if (stranded && !atomic_load(&q->stop))
            return job_queue_fail_text(q, TIMELINE_STRANDED,
                                       "record %" PRIu32 " waited for %s, which failed", index,
                                       p->device_ids ? p->device_ids[other] : "another device");
        if (clock_ns && clock > *clock_ns)
            *clock_ns = clock;
    }
    return (!stranded && !atomic_load(&q->stop)) ||
           job_queue_fail_text(q, TIMELINE_DIED, "record %" PRIu32 " was cancelled", index);
}

bool job_queue_injects(struct job_queue *q, const struct program *p, uint32_t index)
{
    const struct program_record *r = &p->records[index];
    char key[OP_KEY_SIZE] = "copy";
    if (atomic_load(&q->fail_after) <= 0 || atomic_fetch_sub(&q->fail_after, 1) != 1)
        return false;
    if (r->kind == RECORD_RUN)
        oato_op_key(&r->op, NULL, key);
    return !job_queue_fail_text(q, TIMELINE_DIED, "injected failure at record %" PRIu32 " (%s)",
                                index, key);
}

void job_queue_do_copy(struct job_queue *q, const struct job *job)
{
    if (job->bytes)
        memcpy(job->to, job->from, job->bytes);
    if (job->signal)
        timeline_signal(&q->timeline, job->signal, now_ns());
}

oato_status job_queue_drain(struct job_queue *q, struct oato_error *err)
{
    const uint64_t done = atomic_load(&q->done);
    if (done != atomic_load(&q->put))
        spin_while(q, &q->done, done); /* for the one job that there is, as a rule */
    pthread_mutex_lock(&q->lock);
    while (q->put != q->done)
        pthread_cond_wait(&q->changed, &q->lock);
    bool failed = q->failed;
    if (failed && err)
        *err = q->error;
    pthread_mutex_unlock(&q->lock);
    return failed ? OATO_EDEVICE : OATO_OK;
}

void job_queue_cancel(struct job_queue *q)
{
    pthread_mutex_lock(&q->lock);
    bool idle = q->put == q->done;
    pthread_mutex_unlock(&q->lock);
    if (idle)
        return;
    atomic_store(&q->stop, true);
    job_queue_drain(q, NULL);
}
