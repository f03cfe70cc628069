/*
 * instance.c - the life of one model that is served: made, loaded by its engine thread (loop.c),
 * ended when that has nothing left or is told to stop, unloaded, and perhaps loaded again.
 */
#include "server/server_internal.h"

#include <stdlib.h>
#include <string.h>

/* Of the host, beside what the engine takes: the tokenizer and the templates (SmolLM2's 49152
 * tokens take 14 MB), and for each answer what its sampler looks at. */
enum { TOKEN_BYTES = 320, SAMPLER_BYTES = 16, OTHER_BYTES = 8 << 20 };

/* The model's name: the first alias by the alphabet, as llama.cpp has it. */
static void name_set(struct instance *m, const struct server_model *model)
{
    const char *path = m->options->session.model, *slash = strrchr(path, '/');
    const char *name = model ? model->name : slash ? slash + 1 : path;
    const char *const *aliases = m->aliases.item;
    for (int32_t i = 0; aliases && aliases[i]; i++)
        name = i && strcmp(name, aliases[i]) < 0 ? name : aliases[i];
    snprintf(m->name, sizeof m->name, "%s", name);
}

oato_status instance_create(struct server *s, const struct server_model *model,
                            struct instance **out, struct oato_error *err)
{
    struct instance *m = *out = calloc(1, sizeof *m);
    if (!m)
        return oato_fail_memory(err, sizeof *m, "a model");
    m->server = s;
    m->own = *s->options;
    m->options = &m->own;
    if (model) {
        m->own.session.model = model->path;
        m->own.session.make_user = model->make_user;
    }
    m->incoming_end = &m->incoming;
    text_init(&m->plan);
    pthread_mutex_init(&m->lock, NULL);
    pthread_mutex_init(&m->vocab_lock, NULL);
    pthread_cond_init(&m->wake, NULL);
    pthread_cond_init(&m->turned, NULL);
    m->turns_end = &m->turns;
    oato_status status = list_read(&m->aliases, s->options->alias, "--alias", err);
    if (!status)
        status = list_read(&m->tags, s->options->tags, "--tags", err);
    name_set(m, model);
    if (!status)
        status = policy_open(m, err);
    if (!status)
        status = slots_open(m, err);
    if (status) {
        struct oato_error ignored;
        instance_free(m, &ignored);
        *out = NULL;
    }
    return status;
}

/* Whether the file is still the one that was measured, which from now on is that one. */
static bool file_stays(struct instance *m)
{
    struct stat now = {0};
    (void)!stat(m->options->session.model, &now);
    const bool stays = now.st_dev == m->file.st_dev && now.st_ino == m->file.st_ino &&
                       now.st_size == m->file.st_size &&
                       now.st_mtim.tv_sec == m->file.st_mtim.tv_sec &&
                       now.st_mtim.tv_nsec == m->file.st_mtim.tv_nsec;
    m->file = now;
    return stays;
}

oato_status instance_start(struct instance *m, struct oato_error *err)
{
    m->measured = file_stays(m) && m->measured;
    m->stop = m->now = m->granted = false;
    m->error = (struct oato_error){0};
    atomic_store(&m->state, INSTANCE_LOADING);
    m->runs = !pthread_create(&m->thread, NULL, loop_run, m);
    if (!m->runs)
        atomic_store(&m->state, INSTANCE_UNLOADED);
    return m->runs ? OATO_OK : oato_fail(err, OATO_EIO, "cannot start the engine thread");
}

/* The place of a device among those that are counted; one that the budgets do not name has what was
 * free there when it was seen first. With the lock of struct models. */
static int32_t device_of(struct models *all, const struct device_info *info)
{
    int32_t i = 0;
    while (!info->is_host && ++i < MODELS_DEVICES && all->device[i][0])
        if (!strcmp(all->device[i], info->id))
            return i;
    if (i && i < MODELS_DEVICES) {
        snprintf(all->device[i], sizeof all->device[i], "%s", info->id);
        all->budget[i] = info->free_bytes / 10 * 9;
    }
    return i < MODELS_DEVICES ? i : 0;
}

oato_status instance_measure(struct instance *m, struct oato_error *err)
{
    const struct server_options *o = m->options;
    struct models *all = &m->server->models;
    struct engine_stats stats;
    if (session_measure(&o->session, SESSION_SAMPLES | SESSION_TOKENIZER, &stats, err))
        return err->status;
    const uint64_t vocab = (uint64_t)stats.vocab, seqs = (uint64_t)stats.seqs;
    pthread_mutex_lock(&all->lock);
    m->need[0] =
        vocab * (TOKEN_BYTES + seqs * SAMPLER_BYTES) + OTHER_BYTES + ((uint64_t)o->swap_mib << 20);
    for (int32_t i = 0; i < stats.n_devices; i++) {
        const struct engine_device_stats *d = &stats.device[i];
        m->need[device_of(all, &d->info)] += d->memory_bytes;
        m->need[0] += d->locked_bytes;
    }
    m->measured = true;
    pthread_cond_signal(&all->wake);
    pthread_mutex_unlock(&all->lock);
    return OATO_OK;
}

void instance_grant(struct instance *m)
{
    pthread_mutex_lock(&m->lock);
    m->granted = true;
    pthread_cond_signal(&m->wake);
    pthread_mutex_unlock(&m->lock);
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

void instance_unload(struct instance *m)
{
    grammar_vocab_free(m->vocab);
    m->vocab = NULL;
    sampler_scratch_free(m->scratch);
    m->scratch = NULL;
    restore_free(m->costs);
    m->costs = NULL;
    session_close(&m->session);
    chat_template_free(m->template);
    m->template = NULL;
    text_free(&m->plan);
    text_init(&m->plan);
    m->away_bytes = 0;
    m->granted = false;
}

oato_status instance_free(struct instance *m, struct oato_error *err)
{
    if (!m)
        return OATO_OK;
    instance_unload(m);
    const oato_status status = policy_close(m, err);
    list_free(&m->aliases);
    list_free(&m->tags);
    text_slots_free(m->slots);
    pthread_cond_destroy(&m->turned);
    pthread_cond_destroy(&m->wake);
    pthread_mutex_destroy(&m->lock);
    pthread_mutex_destroy(&m->vocab_lock);
    free(m);
    return status;
}
