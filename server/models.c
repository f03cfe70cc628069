/*
 * models.c - the models that are served. Where there are several, a thread loads the one that has
 * been waited for longest, when model_room.h says that there is room or who makes room by going;
 * loading itself is done by the model's engine thread. A request that was prepared waits here, its
 * connection suspended, until its model is there; from then on it keeps the model loaded.
 */
#include "server/server_internal.h"

#include <malloc.h>
#include <stdlib.h>
#include <string.h>

enum {
    LOOK_NS = 50000000,      /* how often those who wait are looked at */
    PATIENCE_NS = 1000000000 /* of who waits for a busy model to go */
};
#define RETRY_NS ((uint64_t)10 * 1000000000) /* between two tries to load a model that failed */

/* ------------------------------------------------------------------------- the list of them --- */

/* What the host and the accelerators have for models. */
static void budgets_set(struct server *s)
{
    struct models *all = &s->models;
    const struct server_options *o = s->options;
    const uint64_t own = (host_value("", "/proc/self/status", "VmRSS") << 10) + SERVER_BYTES;
    all->budget[0] = o->memory_bytes > own ? o->memory_bytes - own : 0;
    for (int32_t i = 0; i < o->n_devices; i++) {
        snprintf(all->device[i + 1], sizeof all->device[0], "%s", o->devices[i].id);
        all->budget[i + 1] = o->devices[i].bytes;
    }
}

oato_status models_open(struct server *s, struct oato_error *err)
{
    struct models *all = &s->models;
    const struct server_options *o = s->options;
    oato_status status = OATO_OK;
    pthread_mutex_init(&all->lock, NULL);
    pthread_cond_init(&all->wake, NULL);
    turns_init(&all->turns);
    all->waiting_end = &all->waiting;
    all->alone = !o->models;
    budgets_set(s);
    for (int32_t i = 0; i < (o->models ? o->n_models : 1) && !status; i++) {
        status = instance_create(s, o->models ? &o->models[i] : NULL, &all->of[i], err);
        all->n += !status;
    }
    return status;
}

static bool is_named(const struct instance *m, const char *name)
{
    static const char *const ends[] = {"", ".gguf", ":latest"};
    const size_t own = strlen(m->name);
    bool is = false;
    for (size_t i = 0; i < ARRAY_LEN(ends); i++)
        is = is || (!strncmp(name, m->name, own) && !strcmp(name + own, ends[i]));
    for (const char *const *alias = m->aliases.item; alias && *alias; alias++)
        is = is || !strcmp(name, *alias);
    return is;
}

struct instance *models_named(struct server *s, const char *name)
{
    for (int32_t i = 0; i < s->models.n; i++)
        if (is_named(s->models.of[i], name))
            return s->models.of[i];
    return NULL;
}

/* ------------------------------------------------------------------------------- requests --- */

/* With the lock. */
static bool failed_lately(const struct instance *m)
{
    return m->failed_ns && now_ns() - m->failed_ns < RETRY_NS;
}

static bool is_open(const struct instance *m)
{
    return atomic_load(&m->state) == INSTANCE_READY && !m->closed && !m->leaves;
}

static void take(struct exchange *x, struct instance *m)
{
    x->instance = m;
    x->taken = true;
    m->users++;
    m->used_ns = now_ns();
}

static enum MHD_Result reply_failed(struct exchange *x, const struct instance *m)
{
    return reply_error(x, MHD_HTTP_INTERNAL_SERVER_ERROR, "%s cannot be loaded: %s", m->name,
                       m->failure.text);
}

/* The model that the request names; NULL, and there is a reply. The body stays. */
static struct instance *model_of(struct exchange *x, enum MHD_Result *result)
{
    struct oato_error err;
    const char *name = json_string_value(json_object_get(x->query, "model"));
    if (x->preparing == PREPARING && x->body.len) {
        const json_t *o = x->json ? x->json : body_parse(x, &err);
        if (!o || request_members(o, ASK_QUERY, 0, NULL, &err)) {
            *result = reply_failure(x, &err);
            return NULL;
        }
        const bool ollama = x->route->dialect == &dialect_ollama;
        const json_t *said = json_given(o, ollama && !json_given(o, "model") ? "name" : "model");
        name = json_is_string(said) ? json_string_value(said) : name;
    }
    struct models *all = &x->server->models;
    struct instance *m = name ? models_named(x->server, name) : all->n == 1 ? all->of[0] : NULL;
    if (m)
        return m;
    if (!name && x->route->answer == route_props)
        *result = models_props(x);
    else if (!name)
        *result = reply_error(x, MHD_HTTP_BAD_REQUEST,
                              "model is missing from the request; /v1/models lists all");
    else
        *result = reply_error(x, MHD_HTTP_NOT_FOUND,
                              "the model '%.200s' does not exist; /v1/models lists all", name);
    return NULL;
}

enum models_take models_take(struct exchange *x, enum MHD_Result *result)
{
    struct models *all = &x->server->models;
    if (all->alone || x->route->loading || x->taken)
        return MODEL_TAKEN;
    struct instance *m = model_of(x, result);
    if (!m)
        return MODEL_REFUSED;
    const json_t *asked = json_object_get(x->query, "autoload");
    const bool loads =
        asked ? json_is_true(asked) : x->method != METHOD_GET && !x->server->options->no_autoload;
    enum models_take taking = MODEL_REFUSED;
    pthread_mutex_lock(&all->lock);
    const bool there = atomic_load(&m->state) != INSTANCE_UNLOADED || m->asked_ns;
    if (all->stop) {
        *result = reply_ending(x);
    } else if (is_open(m)) {
        take(x, m);
        taking = MODEL_TAKEN;
    } else if (failed_lately(m)) {
        *result = reply_failed(x, m);
    } else if (!loads && !there) {
        *result =
            reply_error(x, MHD_HTTP_BAD_REQUEST, "model is not loaded; POST /models/load loads it");
    } else if (all->n_waiting >= x->server->options->queue) {
        *result = reply_error(x, MHD_HTTP_SERVICE_UNAVAILABLE,
                              "too many requests wait for their models; try again later");
    } else {
        json_decref(x->json); /* what waits is its text, of which there is so much at most */
        x->json = NULL;
        x->instance = m;
        x->awaits_ns = now_ns();
        x->next = NULL;
        *all->waiting_end = x;
        all->waiting_end = &x->next;
        all->n_waiting++;
        pthread_cond_signal(&all->wake);
        taking = MODEL_AWAITED;
    }
    pthread_mutex_unlock(&all->lock);
    return taking;
}

void models_leave(struct exchange *x)
{
    struct models *all = &x->server->models;
    if (!x->taken)
        return;
    pthread_mutex_lock(&all->lock);
    x->taken = false;
    x->instance->users--;
    x->instance->used_ns = now_ns();
    pthread_cond_signal(&all->wake);
    pthread_mutex_unlock(&all->lock);
}

void models_wake(struct server *s)
{
    pthread_mutex_lock(&s->models.lock);
    pthread_cond_signal(&s->models.wake);
    pthread_mutex_unlock(&s->models.lock);
}

/* ------------------------------------------------------------- what loads and unloads them --- */

/* The rest with the lock, by the thread that loads. */

static void fail(struct instance *m, const struct oato_error *err)
{
    m->failure = *err;
    m->failed_ns = now_ns();
    m->asked_ns = 0;
}

/* Frees those whose engine thread has ended, without the lock for as long as that takes. */
static void models_reap(struct models *all)
{
    for (int32_t i = 0; i < all->n; i++) {
        struct instance *m = all->of[i];
        struct oato_error err;
        if (atomic_load(&m->state) != INSTANCE_ENDED || m->users)
            continue;
        pthread_mutex_unlock(&all->lock);
        instance_join(m, &err);
        instance_unload(m);
        malloc_trim(0);
        const bool failed = err.status && err.status != OATO_NEGATIVE;
        text_tell("oato-serve: %s %sis unloaded%s%s\n", m->name, failed ? "has failed and " : "",
                  failed ? ": " : "", failed ? err.text : "");
        pthread_mutex_lock(&all->lock);
        if (failed)
            fail(m, &err);
        m->leaves = m->closed = false;
        atomic_store(&m->state, INSTANCE_UNLOADED);
    }
}

/* Whether it waits for others to go, so that there is an end to waiting. */
static bool lacks_room(const struct instance *m)
{
    const int state = atomic_load(&m->state);
    return state != INSTANCE_LOADING || (m->measured && !m->granted);
}

/* True: the request does not wait any more. */
static bool waiting_end(struct server *s, struct exchange *x)
{
    struct instance *m = x->instance;
    const int32_t seconds = s->options->models_wait_s;
    if (client_went(x->connection)) {
        prepare_end(x, MHD_NO);
    } else if (s->models.stop) {
        prepare_end(x, reply_ending(x));
    } else if (is_open(m)) {
        take(x, m);
        prepare_again(x);
    } else if (failed_lately(m)) {
        prepare_end(x, reply_failed(x, m));
    } else if (lacks_room(m) && now_ns() - x->awaits_ns > (uint64_t)seconds * 1000000000) {
        prepare_end(x, reply_error(x, MHD_HTTP_SERVICE_UNAVAILABLE,
                                   "%s cannot be loaded soon: other models are busy; try again "
                                   "later",
                                   m->name));
    } else {
        return false;
    }
    return true;
}

static void waiting_look(struct server *s)
{
    struct models *all = &s->models;
    struct exchange **at = &all->waiting;
    while (*at) {
        struct exchange *x = *at, *next = x->next; /* x is somebody else's then */
        if (waiting_end(s, x)) {
            *at = next;
            all->n_waiting--;
        } else {
            at = &x->next;
        }
    }
    all->waiting_end = at;
}

/* Since when it is waited for; 0: it is not. */
static uint64_t asked_ns(const struct models *all, const struct instance *m)
{
    uint64_t ns = m->asked_ns;
    for (const struct exchange *x = all->waiting; x; x = x->next)
        if (x->instance == m && (!ns || x->awaits_ns < ns))
            ns = x->awaits_ns;
    return ns;
}

/* Loads the model, or makes room for it. */
static void model_next(struct server *s, int32_t want, uint64_t since_ns)
{
    struct models *all = &s->models;
    struct instance *m = all->of[want];
    struct room_model view[MODELS_MOST];
    struct oato_error err = {0};
    bool goes[MODELS_MOST];
    if (atomic_load(&m->state) == INSTANCE_UNLOADED) {
        if (instance_start(m, &err))
            fail(m, &err);
        return;
    }
    if (!m->measured)
        return;
    for (int32_t i = 0; i < all->n; i++) {
        const struct instance *v = all->of[i];
        const int state = atomic_load(&v->state);
        view[i] = (struct room_model){
            state != INSTANCE_UNLOADED && v->granted, v->users > 0, v->used_ns, {0}};
        memcpy(view[i].need, v->need, sizeof v->need);
    }
    const enum room room =
        models_room(view, all->n, want, all->budget, s->options->models_max, goes);
    if (room == ROOM_FREE) {
        m->used_ns = now_ns();
        instance_grant(m);
    } else if (room == ROOM_NEVER) {
        oato_fail(&err, OATO_EFIT,
                  "it needs %.1f MiB of memory, and models may use %.1f MiB; allow more with "
                  "--memory, or use a smaller --context",
                  (double)m->need[0] / 0x1p20, (double)all->budget[0] / 0x1p20);
        fail(m, &err);
        instance_stop(m, true);
    }
    for (int32_t i = 0; i < all->n; i++) {
        all->of[i]->leaves |= goes[i] && room == ROOM_MADE;
        all->of[i]->closed = goes[i] && now_ns() - since_ns > PATIENCE_NS;
    }
}

/* The model that has been waited for longest: one at a time is loaded. False: nobody waits. */
static bool models_next(struct server *s)
{
    struct models *all = &s->models;
    uint64_t first_ns = 0;
    int32_t first = -1;
    bool loading = false;
    for (int32_t i = 0; i < all->n; i++) {
        struct instance *m = all->of[i];
        const int state = atomic_load(&m->state);
        const uint64_t ns = asked_ns(all, m);
        m->closed = false;
        if (state == INSTANCE_READY)
            m->asked_ns = m->failed_ns = 0;
        loading = loading || (state == INSTANCE_LOADING && m->granted);
        if ((state == INSTANCE_UNLOADED || state == INSTANCE_LOADING) && ns &&
            (first < 0 || ns < first_ns)) {
            first = i;
            first_ns = ns;
        }
        if (state == INSTANCE_LOADING && !m->granted && (!ns || m->leaves))
            instance_stop(m, true); /* nobody waits any more */
        if (state == INSTANCE_READY && m->leaves && !m->users)
            instance_stop(m, false);
    }
    if (first >= 0 && !loading)
        model_next(s, first, first_ns);
    return first >= 0 || all->waiting;
}

static void *models_run(void *server)
{
    struct server *s = server;
    struct models *all = &s->models;
    pthread_mutex_lock(&all->lock);
    while (!all->stop) {
        models_reap(all);
        waiting_look(s);
        const bool waits = models_next(s);
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += LOOK_NS;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        if (waits)
            pthread_cond_timedwait(&all->wake, &all->lock, &until);
        else
            pthread_cond_wait(&all->wake, &all->lock);
    }
    waiting_look(s);
    pthread_mutex_unlock(&all->lock);
    return NULL;
}

/* -------------------------------------------------------------------- beginning and ending --- */

oato_status models_start(struct server *s, struct oato_error *err)
{
    struct models *all = &s->models;
    if (all->alone)
        return instance_start(all->of[0], err);
    all->of[0]->asked_ns = all->n == 1 && !s->options->no_autoload ? now_ns() : 0;
    all->runs = !pthread_create(&all->thread, NULL, models_run, s);
    return all->runs ? OATO_OK : oato_fail(err, OATO_EIO, "cannot start the thread that loads");
}

bool models_ended(struct server *s)
{
    return s->models.alone && atomic_load(&s->models.of[0]->state) == INSTANCE_ENDED;
}

bool models_idle(struct server *s)
{
    bool idle = true;
    for (int32_t i = 0; i < s->models.n; i++)
        idle = idle &&
               (!s->models.of[i]->runs || atomic_load(&s->models.of[i]->state) == INSTANCE_ENDED);
    return idle;
}

void models_stop(struct server *s, bool now)
{
    struct models *all = &s->models;
    pthread_mutex_lock(&all->lock);
    all->stop = true;
    pthread_cond_signal(&all->wake);
    pthread_mutex_unlock(&all->lock);
    if (all->runs)
        pthread_join(all->thread, NULL);
    all->runs = false;
    for (int32_t i = 0; i < all->n; i++)
        instance_stop(all->of[i], now);
}

oato_status models_join(struct server *s, struct oato_error *err)
{
    oato_status status = OATO_OK;
    struct oato_error own;
    for (int32_t i = 0; i < s->models.n; i++)
        if (instance_join(s->models.of[i], &own) && s->models.alone) {
            status = own.status;
            *err = own;
        }
    return status;
}

oato_status models_close(struct server *s, struct oato_error *err)
{
    struct models *all = &s->models;
    oato_status status = OATO_OK;
    for (int32_t i = 0; i < all->n; i++)
        status = instance_free(all->of[i], err) ? err->status : status;
    turns_destroy(&all->turns);
    pthread_cond_destroy(&all->wake);
    pthread_mutex_destroy(&all->lock);
    return status;
}
