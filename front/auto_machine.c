/*
 * auto_machine.c - what is here now: the machine, the devices to be used, their drivers, and the
 * memory that is free on them.
 */
#include "front/auto_internal.h"

#include <string.h>

static oato_status add_device(struct here *h, const char *spec, const struct device_options *o,
                              struct oato_error *err)
{
    struct oato_device *d;
    const size_t kind = strcspn(spec, ":");
    int index = 0; /* among its kind */
    for (int32_t i = 0; i < h->n; i++)
        index += strlen(h->info[i].kind) == kind && !strncmp(h->info[i].kind, spec, kind);
    if (device_open(spec, index, o, &d, err))
        return err->status;
    struct device_info *info = &h->info[h->n++];
    const bool simulated = d->ops->simulated;
    d->ops->info(d, info);
    d->ops->close(d);
    text_printf(&h->what, "%s: %s", info->id, info->model);
    if (info->isa[0])
        text_printf(&h->what, ", kernels %s", info->isa);
    if (info->is_host)
        text_printf(&h->what, ", %d threads", info->threads);
    if (info->driver[0])
        text_printf(&h->what, ", driver %s", info->driver);
    if (simulated)
        text_printf(&h->what, ", %s", spec);
    text_printf(&h->what, "\n");
    return OATO_OK;
}

/* The list with the host in it, which runs what no other device can. */
static oato_status devices_list(const char *given, struct here *h, struct oato_error *err)
{
    char specs[DEVICES_MAX][256];
    if (!given) {
        device_found(&h->list, program_warn, NULL);
        return h->list.failed ? oato_fail_memory(err, 64, "the list of devices") : OATO_OK;
    }
    const int n = device_split(given, specs, DEVICES_MAX, err);
    bool host = false;
    for (int i = 0; i < n; i++)
        host = host || device_is_host(specs[i]);
    text_printf(&h->list, "%s%s", n < 0 || host ? "" : "cpu,", given);
    return n < 0 ? err->status : OATO_OK;
}

oato_status here_read(const char *list, int32_t threads, struct here *h, struct oato_error *err)
{
    char specs[DEVICES_MAX][256];
    struct device_options options = {.threads = threads};
    memset(h, 0, sizeof *h);
    text_init(&h->list);
    text_init(&h->what);
    profile_init(&h->fingerprint);
    oato_status status = profiler_begin(NULL, true, &h->fingerprint, NULL, NULL, err);
    if (status)
        return status;
    const struct profile_machine *m = &h->fingerprint.machine;
    text_printf(&h->what,
                "oato: %s\nprocessor: %s, %s, %d sockets, %d cores, %d threads, %d nodes, "
                "%llu bytes of cache\n",
                OATO_VERSION, m->cpu, m->isa, m->sockets, m->cores, m->threads, m->numa_nodes,
                (unsigned long long)m->l3_bytes);
    status = devices_list(list, h, err);
    const int n = status ? 0 : device_split(h->list.data, specs, DEVICES_MAX, err);
    for (int i = 0; i < n; i++)
        options.kept_cores += device_keeps_core(specs[i]);
    for (int i = 0; i < n && !status; i++)
        status = add_device(h, specs[i], &options, err);
    if (!status && (n < 0 || h->what.failed))
        status = n < 0 ? err->status : oato_fail_memory(err, h->what.len, "the list of devices");
    return status;
}

void here_free(struct here *h)
{
    text_free(&h->list);
    text_free(&h->what);
    profile_free(&h->fingerprint);
}

void here_limit(struct here *h, const struct device_budget *budgets, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        for (int32_t d = 0; d < h->n; d++)
            if (!strcmp(h->info[d].id, budgets[i].id))
                h->info[d].free_bytes = budgets[i].bytes / 9 * 10;
}

uint64_t here_budget(const struct here *h, int32_t device)
{
    return h->info[device].free_bytes / 10 * 9;
}
