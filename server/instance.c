/*
 * instance.c - the life of one model that is served: made, loaded by its engine thread (loop.c),
 * ended when that has nothing left or is told to stop.
 */
#include "server/server_internal.h"

#include <stdlib.h>
#include <string.h>

/* The model's name: the first alias by the alphabet, as llama.cpp has it. */
static void name_set(struct instance *m)
{
    const char *path = m->options->session.model, *slash = strrchr(path, '/');
    const char *name = slash ? slash + 1 : path;
    const char *const *aliases = m->aliases.item;
    for (int32_t i = 0; aliases && aliases[i]; i++)
        name = i && strcmp(name, aliases[i]) < 0 ? name : aliases[i];
    snprintf(m->name, sizeof m->name, "%s", name);
}

oato_status instance_create(struct server *s, struct instance **out, struct oato_error *err)
{
    struct instance *m = *out = calloc(1, sizeof *m);
    if (!m)
        return oato_fail_memory(err, sizeof *m, "a model");
    m->server = s;
    m->options = s->options;
    m->incoming_end = &m->incoming;
    text_init(&m->plan);
    pthread_mutex_init(&m->lock, NULL);
    pthread_mutex_init(&m->vocab_lock, NULL);
    pthread_cond_init(&m->wake, NULL);
    oato_status status = list_read(&m->aliases, s->options->alias, "--alias", err);
    if (!status)
        status = list_read(&m->tags, s->options->tags, "--tags", err);
    name_set(m);
    if (!status)
        status = policy_open(m, err);
    if (status) {
        struct oato_error ignored;
        instance_free(m, &ignored);
        *out = NULL;
    }
    return status;
}

oato_status instance_start(struct instance *m, struct oato_error *err)
{
    m->runs = !pthread_create(&m->thread, NULL, loop_run, m);
    return m->runs ? OATO_OK : oato_fail(err, OATO_EIO, "cannot start the engine thread");
}

void instance_stop(struct instance *m, bool now)
{
    pthread_mutex_lock(&m->lock);
    m->stop = true;
    m->now = now;
    pthread_cond_signal(&m->wake);
    pthread_mutex_unlock(&m->lock);
}

oato_status instance_join(struct instance *m, struct oato_error *err)
{
    if (m->runs)
        pthread_join(m->thread, NULL);
    m->runs = false;
    *err = m->error;
    return m->error.status;
}

oato_status instance_free(struct instance *m, struct oato_error *err)
{
    if (!m)
        return OATO_OK;
    grammar_vocab_free(m->vocab);
    sampler_scratch_free(m->scratch);
    session_close(&m->session);
    const oato_status status = policy_close(m, err);
    chat_template_free(m->template);
    text_free(&m->plan);
    list_free(&m->aliases);
    list_free(&m->tags);
    pthread_cond_destroy(&m->wake);
    pthread_mutex_destroy(&m->lock);
    pthread_mutex_destroy(&m->vocab_lock);
    free(m);
    return status;
}
