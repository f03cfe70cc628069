/*
 * prepare.c - requests between their last byte and the engine thread: their JSON, templates,
 * tokens, schemas. That may take long, so threads of its own do it, and those that answer stay
 * free. Long requests have a lane of their own, so that short ones do not wait for them, and all of
 * these threads yield to the engine's. What a request may take in all is its budget's, and what
 * nobody waits for any more is given up. Answers of very many numbers are written here, too.
 */
#include "server/server_internal.h"

#include <malloc.h>
#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

enum { SHORT, LONG, VAST };
static const int32_t lanes[LANE_THREADS] = {VAST, LONG, SHORT, SHORT}; /* of the threads */

enum {
    SHORT_BYTES = 32 << 10, /* of a body */
    LONG_BYTES = 1 << 20,
    SHORT_NICE = 10,
    LONG_NICE = 15,
    LOOK_NS = 20000000,     /* how often a client is looked for */
    PATIENCE_NS = 500000000 /* then a request goes before shorter ones */
};

/* ------------------------------------------------------------------------------- cancelling --- */

/* budget.cancelled */
static bool nobody_waits(void *user)
{
    struct exchange *x = user;
    const uint64_t now = now_ns();
    if (now - x->looked_ns < LOOK_NS)
        return false;
    x->looked_ns = now;
    return (x->taken && atomic_load(&x->instance->now)) || client_went(x->connection);
}

/* ------------------------------------------------------------------------------- threads ------ */

void body_release(struct exchange *x)
{
    text_free(&x->body);
    text_init(&x->body);
    atomic_fetch_sub(&x->server->held_bytes, x->held_bytes);
    x->held_bytes = 0;
}

static void prepare(struct exchange *x, bool stopped)
{
    x->budget.cancelled = nobody_waits;
    x->budget.user = x;
    enum MHD_Result result = MHD_NO; /* also where nobody waits any more */
    enum models_take taking = MODEL_TAKEN;
    struct oato_error err;
    if (stopped && !x->job)
        result = reply_ending(x);
    else if (client_went(x->connection))
        result = MHD_NO;
    else if (x->job)
        result = answer_whole(x);
    else if (json_afford(&x->budget, or_empty(x->body.data), x->body.len, &err))
        result = reply_failure(x, &err);
    else if ((taking = models_take(x, &result)) == MODEL_TAKEN)
        result = x->route->answer(x);
    if (taking != MODEL_AWAITED)
        prepare_end(x, result);
}

void prepare_end(struct exchange *x, enum MHD_Result result)
{
    body_release(x);
    if (x->json)
        x->fields = json_incref(json_object_get(x->json, "response_fields"));
    json_decref(x->json);
    x->json = NULL;
    x->failed = result != MHD_YES;
    x->preparing = PREPARED;
    MHD_resume_connection(x->connection); /* from now on x is the HTTP thread's */
}

/* The shortest, but nobody waits for many others. */
static struct exchange *lane_take(struct lane *l)
{
    struct exchange **at = &l->first;
    for (struct exchange **other = at; *other; other = &(*other)->next)
        if ((*other)->queued_ns < (*at)->queued_ns)
            at = other;
    if (now_ns() - (*at)->queued_ns < PATIENCE_NS)
        at = &l->first;
    struct exchange *x = *at;
    *at = x->next;
    return x;
}

/* A thread that is only nice keeps a core for milliseconds once it has it, for which all threads of
 * a step then wait; an idle one is off at once when anybody else wakes, but may wait for seconds on
 * a busy machine, which only what no conversation needs may do. */
static void give_way(int32_t which)
{
    const struct sched_param none = {0};
    if (which != VAST || pthread_setschedparam(pthread_self(), SCHED_IDLE, &none))
        (void)!nice(which == SHORT ? SHORT_NICE : LONG_NICE);
}

static void *lane_run(void *thread)
{
    const struct lane_thread *own = thread;
    struct preparation *p = own->of;
    const int32_t which = own->lane;
    struct lane *l = &p->lane[which];
    give_way(which);
    pthread_mutex_lock(&p->lock);
    for (;;) {
        while (!l->first && !p->stop)
            pthread_cond_wait(&l->wake, &p->lock);
        const bool stopped = p->stop;
        if (!l->first)
            break;
        struct exchange *x = lane_take(l);
        pthread_mutex_unlock(&p->lock);
        prepare(x, stopped);
        if (which != SHORT)
            malloc_trim(0); /* its many small pieces would stay otherwise */
        pthread_mutex_lock(&p->lock);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

/* With the lock. */
static void lane_add(struct exchange *x)
{
    struct preparation *p = &x->server->preparation;
    const size_t n = x->body.len;
    struct lane *l = &p->lane[n > LONG_BYTES ? VAST : n > SHORT_BYTES || x->job ? LONG : SHORT];
    struct exchange **at = &l->first;
    x->budget = BUDGET_REQUEST;
    x->queued_ns = now_ns();
    while (*at && (*at)->body.len <= x->body.len) /* the shortest first */
        at = &(*at)->next;
    x->next = *at;
    *at = x;
    pthread_cond_signal(&l->wake);
}

/* The threads go on until the lanes are empty, and models_stop comes before their end. */
void prepare_again(struct exchange *x)
{
    struct preparation *p = &x->server->preparation;
    pthread_mutex_lock(&p->lock);
    lane_add(x);
    pthread_mutex_unlock(&p->lock);
}

enum MHD_Result prepare_later(struct exchange *x)
{
    struct preparation *p = &x->server->preparation;
    x->preparing = PREPARING;
    pthread_mutex_lock(&p->lock);
    const bool taken = !p->stop;
    if (taken) {
        MHD_suspend_connection(x->connection);
        lane_add(x);
    }
    pthread_mutex_unlock(&p->lock);
    if (taken)
        return MHD_YES;
    x->preparing = PREPARE_NOT;
    return x->job ? answer_whole(x) : reply_ending(x);
}

oato_status prepare_open(struct server *s, struct oato_error *err)
{
    struct preparation *p = &s->preparation;
    pthread_mutex_init(&p->lock, NULL);
    for (int32_t i = 0; i < LANES; i++)
        pthread_cond_init(&p->lane[i].wake, NULL);
    for (; p->n_threads < LANE_THREADS; p->n_threads++) {
        struct lane_thread *t = &p->thread[p->n_threads];
        *t = (struct lane_thread){.of = p, .lane = lanes[p->n_threads]};
        if (pthread_create(&t->id, NULL, lane_run, t))
            return oato_fail(err, OATO_EIO, "cannot start the threads that prepare requests");
    }
    return OATO_OK;
}

void prepare_close(struct server *s)
{
    struct preparation *p = &s->preparation;
    if (!p->n_threads)
        return;
    pthread_mutex_lock(&p->lock);
    p->stop = true;
    for (int32_t i = 0; i < LANES; i++)
        pthread_cond_broadcast(&p->lane[i].wake);
    pthread_mutex_unlock(&p->lock);
    while (p->n_threads)
        pthread_join(p->thread[--p->n_threads].id, NULL);
}
