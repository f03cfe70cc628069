/*
 * loop.c - the engine thread. It opens the session, takes jobs from the queue before every step,
 * cancels those whose client went, and sleeps while there is nothing to do. No lock is held during
 * a step.
 */
#include "server/server_internal.h"

#include <errno.h>

/* How often waiting connections are looked at, and whether prompts to be kept were written. */
enum { LOOK_NS = 100000000, WRITE_NS = 10000000 };

/* Those of them that no batch has yet. Of a request that is alone one place less than there are,
 * which whoever comes next finds free; and as many as fill a quarter of the places where others
 * are there: with more, steps would take half as long again for all. */
static void job_add_choices(struct instance *m, struct batch *b, struct job *j)
{
    struct oato_error err = {0};
    const int32_t seqs = m->options->session.engine.seqs;
    const bool alone = m->active == j && !j->next;
    const int32_t spare = seqs >= 4; /* of few places one is too much */
    const int32_t most = alone ? seqs - spare : (seqs + 3) / 4;
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
        if (!m->now && !batch_add(b, &r, &c->id, &err))
            continue;
        pthread_mutex_lock(&j->lock);
        if (err.status)
            job_fail(j, &err, false);
        pthread_mutex_unlock(&j->lock);
        choice_end(c, BATCH_CANCELLED);
    }
}

static void jobs_take(struct instance *m)
{
    pthread_mutex_lock(&m->lock);
    struct job *incoming = m->incoming;
    m->incoming = NULL;
    m->incoming_end = &m->incoming;
    pthread_mutex_unlock(&m->lock);
    struct job **end = &m->active;
    while (*end)
        end = &(*end)->next;
    *end = incoming;
}

/* Cancels what nobody waits for; lets go of what has ended. */
static void jobs_look(struct instance *m, struct batch *b, bool closely)
{
    for (struct job **at = &m->active; *at;) {
        struct job *j = *at;
        pthread_mutex_lock(&j->lock);
        const bool ended = j->n_ended == j->n_choices;
        if (!ended && closely && j->suspended && client_went(j->connection)) {
            j->cancelled = true;
            job_wake(j);
        }
        if (!ended && m->now)
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

bool loop_turn(void *instance, void (*work)(void *arg), void *arg)
{
    struct instance *m = instance;
    struct turn t = {.work = work, .arg = arg};
    pthread_mutex_lock(&m->lock);
    *m->turns_end = &t;
    m->turns_end = &t.next;
    pthread_cond_signal(&m->wake);
    while (!t.done && !m->no_turns)
        pthread_cond_wait(&m->turned, &m->lock);
    pthread_mutex_unlock(&m->lock);
    return t.done;
}

/* With the lock, which it gives up meanwhile. */
static void turns_take(struct instance *m)
{
    for (struct turn *t; (t = m->turns) != NULL;) {
        pthread_mutex_unlock(&m->lock);
        t->work(t->arg);
        pthread_mutex_lock(&m->lock);
        m->turns = t->next;
        if (!m->turns)
            m->turns_end = &m->turns;
        t->done = true;
        pthread_cond_broadcast(&m->turned);
    }
}

static void before_step(void *user, struct batch *b)
{
    struct instance *m = user;
    const uint64_t now = now_ns();
    const bool closely = now - m->looked_ns >= LOOK_NS;
    m->looked_ns = closely ? now : m->looked_ns;
    jobs_take(m);
    jobs_look(m, b, closely);
    for (struct job *j = m->active; j; j = j->next)
        job_add_choices(m, b, j);
    pthread_mutex_lock(&m->lock);
    turns_take(m);
    m->counts.n_busy = batch_requests(b);
    batch_get_times(b, &m->counts.times);
    m->counts.policy = m->policy;
    pthread_mutex_unlock(&m->lock);
}

/* A moment without work: whether other ranks have stopped meanwhile. Called with the lock held. */
static oato_status moment_wait(struct instance *m, int64_t ns)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += ns;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    if (pthread_cond_timedwait(&m->wake, &m->lock, &until) != ETIMEDOUT)
        return OATO_OK;
    pthread_mutex_unlock(&m->lock);
    const oato_status status = collective_alive(m->session.ranks, &m->error);
    pthread_mutex_lock(&m->lock);
    return status;
}

/* False: the thread is to end. */
static bool loop_wait(struct instance *m)
{
    const bool alone = collective_ranks(m->session.ranks) == 1;
    oato_status status = OATO_OK;
    pthread_mutex_lock(&m->lock);
    if (!m->incoming && !m->active) {
        pthread_mutex_unlock(&m->lock);
        seen_take(m, NULL, 0);
        pthread_mutex_lock(&m->lock);
    }
    while (!m->incoming && !m->active && !m->stop && !status) {
        pthread_mutex_unlock(&m->lock);
        const enum engine_keeping keeping = batch_keep(m->session.batch);
        pthread_mutex_lock(&m->lock);
        turns_take(m);
        if (keeping == KEEP_MORE || m->incoming || m->stop)
            continue;
        if (alone && keeping == KEEP_DONE)
            pthread_cond_wait(&m->wake, &m->lock);
        else
            status = moment_wait(m, keeping == KEEP_FULL ? WRITE_NS : LOOK_NS);
    }
    const bool goes_on = !status && (m->incoming || m->active);
    pthread_mutex_unlock(&m->lock);
    return goes_on;
}

/* All jobs that have not ended end with the message. */
static void jobs_fail(struct instance *m, const struct oato_error *err)
{
    for (struct job *j = m->active; j; j = j->next) {
        pthread_mutex_lock(&j->lock);
        if (j->n_ended < j->n_choices)
            job_fail(j, err, true);
        pthread_mutex_unlock(&j->lock);
    }
}

/* Of several models: once its size is known it waits until there is room. OATO_NEGATIVE: it is not
 * to be loaded after all. */
static oato_status loop_admit(struct instance *m)
{
    if (m->server->models.alone)
        return OATO_OK;
    oato_status status = m->measured ? OATO_OK : instance_measure(m, &m->error);
    pthread_mutex_lock(&m->lock);
    while (!status && !m->granted && !m->stop)
        pthread_cond_wait(&m->wake, &m->lock);
    if (!status && m->stop)
        status = m->error.status = OATO_NEGATIVE;
    pthread_mutex_unlock(&m->lock);
    return status;
}

static oato_status loop_open(struct instance *m)
{
    struct session_args args = m->options->session;
    struct engine_stats stats;
    args.batch.before_step = before_step;
    args.batch.user = m;
    args.batch.schedule = policy_schedule;
    args.batch.restored = policy_restored;
    if (m->options->split)
        args.batch.context = (int32_t)max_i64(1, args.engine.context / args.engine.seqs);
    oato_status status =
        session_open(&m->session, &args, SESSION_SAMPLES | SESSION_TOKENIZER, &m->error);
    if (!status)
        status = policy_costs(m, &m->error);
    if (!status)
        status = session_describe(&m->session, m->name, &m->plan, &m->error);
    if (status)
        return status;
    engine_get_stats(m->session.engine, &stats);
    m->context = stats.context;
    m->states = stats.states > 0;
    for (int i = 0; i < stats.n_devices; i++)
        if (strncmp(stats.device[i].info.id, "cpu", 3) != 0)
            m->away_bytes += stats.device[i].memory_bytes;
    m->longest = tokenizer_longest(m->session.tokenizer);
    m->scratch = sampler_scratch_create(tokenizer_size(m->session.tokenizer));
    if (!m->scratch)
        return oato_fail_memory(&m->error, 1 << 20, "sampling");
    if (m->options->split && args.batch.context < m->context)
        m->context = args.batch.context;
    const int64_t trained = m->session.model->shape.context_length;
    if (!args.engine.context && trained > 0 && trained < m->context)
        m->context = (int32_t)trained;
    struct oato_error why;
    if (session_template(&m->session, &args, &m->template, &why)) {
        if (args.chat_template || args.chat_template_file || args.variables) {
            m->error = why;
            return why.status;
        }
        snprintf(m->no_template, sizeof m->no_template, "%s", why.text);
    }
    return OATO_OK;
}

void *loop_run(void *instance)
{
    struct instance *m = instance;
    oato_status status = loop_admit(m);
    if (!status)
        status = loop_open(m);
    if (!status) {
        m->error = (struct oato_error){0}; /* what was only warned of */
        atomic_store(&m->state, INSTANCE_READY);
        models_wake(m->server);
        text_tell("oato-serve: %s is ready, context %d tokens, %d answers at a time\n", m->name,
                  m->context, m->options->session.engine.seqs);
    }
    while (!status && loop_wait(m)) {
        struct oato_error err;
        turn_take(&m->server->models.turns);
        const oato_status step = batch_step(m->session.batch, &err);
        turn_give(&m->server->models.turns);
        if (!step)
            continue;
        jobs_fail(m, &err);
        if (err.status == OATO_EDEVICE) { /* it fails for all; memory may come back */
            m->error = err;
            status = err.status;
        }
    }
    pthread_mutex_lock(&m->lock);
    m->stop = m->now = m->no_turns = true;
    pthread_cond_broadcast(&m->turned);
    pthread_mutex_unlock(&m->lock);
    atomic_store(&m->state, INSTANCE_ENDED);
    if (m->session.batch) {
        jobs_take(m);
        batch_free(m->session.batch);
        m->session.batch = NULL;
        jobs_look(m, NULL, false);
    }
    models_wake(m->server);
    return NULL;
}
