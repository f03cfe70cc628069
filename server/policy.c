/*
 * policy.c - connects the scheduler (scheduler.h) with the batch: who a client is, and where
 * decisions are logged.
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
    struct server *s = user;
    scheduler_run(s->scheduler, v, n, room);
}

static oato_status policy_find(const char *name, enum scheduler_policy *out, struct oato_error *err)
{
    struct text names;
    for (int p = 0; p < POLICY_COUNT; p++) {
        *out = (enum scheduler_policy)p;
        if (!strcmp(name, scheduler_policy_names[p]))
            return OATO_OK;
    }
    text_init(&names);
    for (int p = 0; p < POLICY_COUNT; p++)
        text_printf(&names, "%s%s", p ? ", " : "", scheduler_policy_names[p]);
    oato_fail(err, OATO_EUSAGE, "unknown --policy %.40s; choose one of %.200s", name,
              or_empty(names.data));
    text_free(&names);
    return err->status;
}

oato_status policy_open(struct server *s, struct oato_error *err)
{
    const struct server_options *o = s->options;
    struct scheduler_options options = {.client = client_of, .clients = 1, .user = s};
    if (policy_find(o->policy, &options.policy, err))
        return err->status;
    while (s->keys && s->keys[options.clients - 1])
        options.clients++;
    if (o->decision_log && !(s->decisions = fopen(o->decision_log, "w")))
        return oato_fail(err, OATO_EIO, "%s: %s", o->decision_log, strerror(errno));
    options.log = s->decisions;
    s->scheduler = scheduler_create(&options);
    return s->scheduler ? OATO_OK : oato_fail_memory(err, 1 << 16, "the scheduler");
}

oato_status policy_close(struct server *s, struct oato_error *err)
{
    scheduler_free(s->scheduler);
    if (s->decisions && fclose(s->decisions))
        return oato_fail(err, OATO_EIO, "%s: %s", s->options->decision_log, strerror(errno));
    return OATO_OK;
}
