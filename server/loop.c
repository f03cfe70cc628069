/*
 * loop.c - the engine thread. It opens the session, takes jobs from the queue before every step,
 * cancels those whose client went, and sleeps while there is nothing to do. No lock is held during
 * a step.
 */
#include "server/server_internal.h"

#include <errno.h>

enum { LOOK_NS = 100000000 }; /* how often waiting connections are looked at */

/* Those of them that no batch has yet: all of a request that is alone, and as many as fill a
 * quarter of the places where others are there: with more, steps would take half as long again for
 * all. */
static void job_add_choices(struct server *s, struct batch *b, struct job *j)
{
    struct oato_error err = {0};
    const int32_t seqs = s->options->session.engine.seqs;
    const bool alone = s->active == j && !j->next;
    const int32_t most = alone ? seqs : (seqs + 3) / 4;
    while (j->n_added < j->n_choices && j->n_added - j->n_ended < most) {
        struct choice *c = j->choices[j->n_added++];
        const struct batch_request r = {.ids = c->ids,
                                        .n_ids = c->n_ids,
                                        .most = j->ask.most,
                                        .seq = -1,
                                        .sampler = c->sampler,
                                        .on_begin = choice_begin,
                                        .on_fed = j->ask.progress ? choice_fed : NULL,
                                        .on_row = j->ask.kind == ASK_EMBED ? choice_row
                                                  : c->scores              ? choice_score
                                                                           : NULL,
                                        .on_token = choice_token,
                                        .on_end = choice_end,
                                        .user = c};
        if (!s->now && !batch_add(b, &r, &c->id, &err))
            continue;
        pthread_mutex_lock(&j->lock);
        if (err.status)
            job_fail(j, &err, false);
        pthread_mutex_unlock(&j->lock);
        choice_end(c, BATCH_CANCELLED);
    }
}

static void jobs_take(struct server *s)
{
    pthread_mutex_lock(&s->lock);
    struct job *incoming = s->incoming;
    s->incoming = NULL;
    s->incoming_end = &s->incoming;
    pthread_mutex_unlock(&s->lock);
    struct job **end = &s->active;
    while (*end)
        end = &(*end)->next;
    *end = incoming;
}

/* Cancels what nobody waits for; lets go of what has ended. */
static void jobs_look(struct server *s, struct batch *b, bool closely)
{
    for (struct job **at = &s->active; *at;) {
        struct job *j = *at;
        pthread_mutex_lock(&j->lock);
        const bool ended = j->n_ended == j->n_choices;
        if (!ended && closely && j->suspended && client_went(j->connection)) {
            j->cancelled = true;
            job_wake(j);
        }
        if (!ended && s->now)
            job_cut(j, true);
        const bool cancel = j->cancelled || j->error.status;
        pthread_mutex_unlock(&j->lock);
        for (int32_t i = 0; i < j->n_added && cancel && !ended && b; i++)
            batch_cancel(b, j->choices[i]->id);
        while (cancel && j->n_added < j->n_choices)
            choice_end(j->choices[j->n_added++], BATCH_CANCELLED);
        if (ended || (!b && j->n_ended == j->n_choices)) {
            *at = j->next;
            job_release(j);
        } else {
            at = &j->next;
        }
    }
}

static void before_step(void *user, struct batch *b)
{
    struct server *s = user;
    const uint64_t now = now_ns();
    const bool closely = now - s->looked_ns >= LOOK_NS;
    s->looked_ns = closely ? now : s->looked_ns;
    jobs_take(s);
    jobs_look(s, b, closely);
    for (struct job *j = s->active; j; j = j->next)
        job_add_choices(s, b, j);
    pthread_mutex_lock(&s->lock);
    s->counts.n_busy = batch_requests(b);
    batch_get_times(b, &s->counts.times);
    s->counts.policy = s->policy;
    pthread_mutex_unlock(&s->lock);
}

/* A moment without work: whether other ranks have stopped meanwhile. Called with the lock held. */
static oato_status moment_wait(struct server *s)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += LOOK_NS;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    if (pthread_cond_timedwait(&s->wake, &s->lock, &until) != ETIMEDOUT)
        return OATO_OK;
    pthread_mutex_unlock(&s->lock);
    const oato_status status = collective_alive(s->session.ranks, &s->error);
    pthread_mutex_lock(&s->lock);
    return status;
}

/* False: the thread is to end. */
static bool loop_wait(struct server *s)
{
    const bool alone = collective_ranks(s->session.ranks) == 1;
    oato_status status = OATO_OK;
    pthread_mutex_lock(&s->lock);
    if (!s->incoming && !s->active) {
        pthread_mutex_unlock(&s->lock);
        seen_take(s, NULL, 0);
        pthread_mutex_lock(&s->lock);
    }
    while (!s->incoming && !s->active && !s->stop && !status) {
        if (alone)
            pthread_cond_wait(&s->wake, &s->lock);
        else
            status = moment_wait(s);
    }
    const bool goes_on = !status && (s->incoming || s->active);
    pthread_mutex_unlock(&s->lock);
    return goes_on;
}

/* All jobs that have not ended end with the message. */
static void jobs_fail(struct server *s, const struct oato_error *err)
{
    for (struct job *j = s->active; j; j = j->next) {
        pthread_mutex_lock(&j->lock);
        if (j->n_ended < j->n_choices)
            job_fail(j, err, true);
        pthread_mutex_unlock(&j->lock);
    }
}

static oato_status loop_open(struct server *s)
{
    struct session_args args = s->options->session;
    struct engine_stats stats;
    args.batch.before_step = before_step;
    args.batch.user = s;
    args.batch.schedule = policy_schedule;
    args.batch.restored = policy_restored;
    if (s->options->split)
        args.batch.context = (int32_t)max_i64(1, args.engine.context / args.engine.seqs);
    oato_status status =
        session_open(&s->session, &args, SESSION_SAMPLES | SESSION_TOKENIZER, &s->error);
    if (!status)
        status = policy_costs(s, &s->error);
    if (status)
        return status;
    engine_get_stats(s->session.engine, &stats);
    s->context = stats.context;
    s->longest = tokenizer_longest(s->session.tokenizer);
    s->scratch = sampler_scratch_create(tokenizer_size(s->session.tokenizer));
    if (!s->scratch)
        return oato_fail_memory(&s->error, 1 << 20, "sampling");
    if (s->options->split && args.batch.context < s->context)
        s->context = args.batch.context;
    const int64_t trained = s->session.model->shape.context_length;
    if (!args.engine.context && trained > 0 && trained < s->context)
        s->context = (int32_t)trained;
    struct oato_error why;
    if (session_template(&s->session, &args, &s->template, &why)) {
        if (args.chat_template || args.chat_template_file || args.variables) {
            s->error = why;
            return why.status;
        }
        snprintf(s->no_template, sizeof s->no_template, "%s", why.text);
    }
    return OATO_OK;
}

void *loop_run(void *server)
{
    struct server *s = server;
    oato_status status = loop_open(s);
    if (!status) {
        atomic_store(&s->state, SERVER_READY);
        text_tell("oato-serve: %s is ready, context %d tokens, %d answers at a time\n", s->model,
                  s->context, s->options->session.engine.seqs);
    }
    while (!status && loop_wait(s)) {
        struct oato_error err;
        if (!batch_step(s->session.batch, &err))
            continue;
        jobs_fail(s, &err);
        if (err.status == OATO_EDEVICE) { /* it fails for all; memory may come back */
            s->error = err;
            status = err.status;
        }
    }
    pthread_mutex_lock(&s->lock);
    s->stop = s->now = true;
    pthread_mutex_unlock(&s->lock);
    atomic_store(&s->state, SERVER_ENDED);
    if (s->session.batch) {
        jobs_take(s);
        batch_free(s->session.batch);
        s->session.batch = NULL;
        jobs_look(s, NULL, false);
    }
    return NULL;
}
