/*
 * policy.c - connects the scheduler (scheduler.h) with the batch: who a client is, what it would
 * take to bring an answer back (executor/restore.h; what is seen corrects it), and where decisions
 * are logged.
 */
#include "server/server_internal.h"

#include <errno.h>
#include <string.h>

static int32_t client_of(void *user, const struct batch_view *v)
{
    const struct choice *c = v->user;
    (void)user;
    return c->job->ask.client;
}

void policy_schedule(void *user, struct batch_view *v, int32_t n, const struct batch_room *room)
{
    struct instance *m = user;
    m->beside = -1;
    for (int32_t i = 0; i < n; i++)
        m->beside += v[i].state == BATCH_RUNNING;
    const uint64_t begin_ns = now_ns();
    scheduler_run(m->scheduler, v, n, room);
    m->policy.decide_ns += now_ns() - begin_ns;
    seen_take(m, v, n);
}

static struct restore_cost cost_of(void *user, struct batch_view *v)
{
    struct instance *m = user;
    const uint64_t begin_ns = now_ns();
    batch_view_measure(v);
    const struct restore_cost cost = {
        (uint64_t)restore_predict(m->costs, RESTORE_COPY, (double)v->bytes, v->extents),
        (uint64_t)restore_predict(m->costs, RESTORE_COMPUTE, v->fed, m->beside)};
    m->policy.predict_ns += now_ns() - begin_ns;
    return cost;
}

void policy_restored(void *user, const struct batch_restored *r)
{
    struct instance *m = user;
    struct choice *c = r->user;
    if (r->what == RESTORE_SWAP_OUT)
        c->swap_ns = r->ns;
    else if (r->what == RESTORE_SWAP_IN)
        restore_seen(m->costs, RESTORE_COPY, (double)r->bytes, r->extents,
                     (double)(r->ns + c->swap_ns));
    else
        restore_seen(m->costs, RESTORE_COMPUTE, r->tokens, m->beside, (double)r->ns);
}

double policy_compute(void *user, int32_t tokens)
{
    const struct instance *m = user;
    const struct restore_quality q = restore_quality(m->costs, RESTORE_COMPUTE);
    return q.points || q.seen ? restore_predict(m->costs, RESTORE_COMPUTE, tokens, 0) : 0;
}

oato_status policy_costs(struct instance *m, struct oato_error *err)
{
    const char *path = m->options->profile;
    struct profile profile;
    struct text devices;
    oato_status status = OATO_OK;
    profile_init(&profile);
    text_init(&devices);
    if (path)
        status = profile_load(path, &profile, program_warn, NULL, err);
    engine_kv_devices(m->session.engine, &devices);
    if (!status) {
        m->costs =
            restore_create(path ? &profile : NULL, gguf_structure_hash(m->session.model->gguf),
                           or_empty(devices.data));
        if (!m->costs || devices.failed)
            status = oato_fail_memory(err, 1 << 16, "the costs of restoring");
        else if (path && !restore_quality(m->costs, RESTORE_COMPUTE).points)
            warn_line(program_warn, NULL,
                      "%s has no restores of this model on %s; measure them with oato-profile "
                      "--restores%s",
                      path, or_empty(devices.data), m->options->session.plan ? " --plan" : "");
    }
    if (!status)
        engine_predict(m->session.engine, policy_compute, m);
    text_free(&devices);
    profile_free(&profile);
    return status;
}

oato_status policy_open(struct instance *m, struct oato_error *err)
{
    const struct server_options *o = m->options;
    int policy, pooling;
    if (list_find("policy", o->policy, scheduler_policy_names, &policy, err) ||
        list_find("pooling", o->pooling, pooling_names, &pooling, err))
        return err->status;
    m->pooling = (enum pooling)pooling;
    struct scheduler_options options = {.client = client_of,
                                        .clients = 1,
                                        .cost = cost_of,
                                        .swap_bytes = (uint64_t)o->swap_mib << 20,
                                        .user = m};
    options.policy = (enum scheduler_policy)policy;
    while (m->server->keys.item && m->server->keys.item[options.clients - 1])
        options.clients++;
    if (o->decision_log && outfile_check(o->decision_log, err))
        return err->status;
    if (o->decision_log && !(m->decisions = stream_open(o->decision_log, "w")))
        return oato_fail(err, OATO_EIO, "%s: %s", o->decision_log, strerror(errno));
    options.log = m->decisions;
    m->scheduler = scheduler_create(&options);
    return m->scheduler ? OATO_OK : oato_fail_memory(err, 1 << 16, "the scheduler");
}

oato_status policy_close(struct instance *m, struct oato_error *err)
{
    scheduler_free(m->scheduler);
    if (m->decisions && fclose(m->decisions))
        return oato_fail(err, OATO_EIO, "%s: %s", m->options->decision_log, strerror(errno));
    return OATO_OK;
}
