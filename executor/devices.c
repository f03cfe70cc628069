/*
 * devices.c - opens the devices that the options or the plan name, and binds the plan's devices to
 * them.
 */
#include "executor/executor_internal.h"

#include <stdlib.h>
#include <string.h>

static oato_status device_add(struct engine *e, const char *spec, struct device_options *options,
                              struct oato_error *err)
{
    if (e->n_devices == DEVICES_MAX)
        return oato_fail(err, OATO_EUSAGE, "more than %d devices; name fewer", DEVICES_MAX);
    struct engine_device *d = &e->device[e->n_devices];
    int index = 0; /* among its kind */
    size_t kind = strcspn(spec, ":");
    for (int i = 0; i < e->n_devices; i++)
        index +=
            strlen(e->device[i].info.kind) == kind && !strncmp(e->device[i].info.kind, spec, kind);
    oato_status status = device_open(spec, index, options, &d->device, err);
    if (status)
        return status;
    d->device->ops->info(d->device, &d->info);
    options->aside = options->aside || d->info.is_host; /* the first one is the engine's host */
    e->n_devices++;
    return OATO_OK;
}

/* Finds the devices that device `index` can copy from directly. */
static void peers_find(struct engine *e, int index)
{
    struct engine_device *d = &e->device[index];
    for (int i = 0; i < e->n_devices; i++) {
        struct oato_device *other = e->device[i].device;
        if (i != index && d->device->ops->reaches && d->device->ops->reaches(d->device, other))
            d->peers[i].device = other;
    }
}

/* The device that is to run the plan's device `id`: from "id=other" in --map, else itself. */
static oato_status map_target(const struct engine *e, const char *id, const char **target,
                              size_t *target_len, struct oato_error *err)
{
    const size_t len = strlen(id);
    *target = id;
    *target_len = len;
    for (const char *p = e->options->map; p && *p;) {
        size_t item = strcspn(p, ","), left = strcspn(p, "=");
        if (left >= item)
            return oato_fail(err, OATO_EUSAGE, "--map wants PLAN_DEVICE=DEVICE, not '%.*s'",
                             (int)item, p);
        if (left == len && !memcmp(p, id, len)) {
            *target = p + left + 1;
            *target_len = item - left - 1;
        }
        p += item + (p[item] == ',');
    }
    return OATO_OK;
}

/* The specs of the devices that the plan's devices of this rank are to run on, each once: what only
 * another device stands for is not opened. A device of the plan is opened as the plan says. */
static oato_status plan_specs(const struct engine *e, char specs[DEVICES_MAX][256], int *n,
                              struct oato_error *err)
{
    const struct plan *plan = e->plan;
    for (int i = 0; i < plan->n_devices; i++) {
        const struct plan_device *own = NULL;
        const char *target;
        size_t len;
        char spec[256];
        bool twice = false; /* ranks number their devices alike: one process has each once */
        if (!ranks_have(e, &plan->devices[i]))
            continue;
        if (map_target(e, plan->devices[i].id, &target, &len, err))
            return err->status;
        for (int j = 0; j < plan->n_devices && !own; j++)
            if (ranks_have(e, &plan->devices[j]) && strlen(plan->devices[j].id) == len &&
                !memcmp(plan->devices[j].id, target, len))
                own = &plan->devices[j];
        snprintf(spec, sizeof spec, "%.*s%s%s", (int)len, target, own && own->spec[0] ? ":" : "",
                 own ? own->spec : "");
        for (int j = 0; j < *n; j++)
            twice = twice || !strcmp(specs[j], spec);
        if (twice)
            continue;
        if (*n == DEVICES_MAX)
            return oato_fail(err, OATO_EUSAGE,
                             "the plan is for more than %d devices; name fewer with --devices and "
                             "--map",
                             DEVICES_MAX);
        snprintf(specs[(*n)++], sizeof *specs, "%s", spec);
    }
    return OATO_OK;
}

oato_status devices_open(struct engine *e, struct oato_error *err)
{
    const struct engine_options *o = e->options;
    struct device_options options = {.threads = o->threads,
                                     .isa = o->isa,
                                     .timing_only = o->timing_only,
                                     .scratch = o->prepared_cache};
    char specs[DEVICES_MAX][256];
    oato_status status = OATO_OK;
    int n = o->devices ? device_split(o->devices, specs, DEVICES_MAX, err) : 0;
    if (n < 0)
        return err->status;
    if (!o->devices && e->plan && plan_specs(e, specs, &n, err))
        return err->status;
    for (int i = 0; i < n; i++)
        options.kept_cores += device_keeps_core(specs[i]);
    for (int i = 0; i < n && !status; i++)
        status = device_add(e, specs[i], &options, err);
    e->host = -1;
    for (int i = 0; i < e->n_devices; i++)
        if (e->device[i].info.is_host && e->host < 0)
            e->host = i;
    if (!status && e->host < 0) {
        e->host = e->n_devices;
        status = device_add(e, "cpu", &options, err);
    }
    for (int i = 0; i < e->n_devices; i++) {
        e->timelines[i] = e->device[i].device->ops->timeline(e->device[i].device);
        e->device_ids[i] = e->device[i].info.id;
        peers_find(e, i);
    }
    return status;
}

static int32_t device_find(const struct engine *e, const char *id, size_t n)
{
    for (int32_t i = 0; i < e->n_devices; i++)
        if (strlen(e->device[i].info.id) == n && !memcmp(e->device[i].info.id, id, n))
            return i;
    return -1;
}

static oato_status device_bind(const struct engine *e, const char *id, int32_t *out,
                               struct oato_error *err)
{
    const char *target;
    size_t len;
    if (map_target(e, id, &target, &len, err))
        return err->status;
    *out = device_find(e, target, len);
    if (*out < 0)
        return oato_fail(err, OATO_EDEVICE,
                         "the plan uses %s, but there is no %.*s here; open it with --devices or "
                         "use --map %s=DEVICE",
                         id, (int)len, target, id);
    return OATO_OK;
}

/* Another machine is one that computes otherwise: with other kernels, or on weights that are laid
 * out otherwise. The name of a processor says neither: a model number has several instruction sets
 * under hypervisors, and many models one. An accelerator without levels is known by its name. */
static oato_status devices_differ(const struct engine *e, int32_t i, const struct engine_device *d,
                                  struct oato_error *err)
{
    static const char again[] = "run oato-plan again, or drop --strict";
    const struct plan_device *p = &e->plan->devices[i];
    const struct plan_kernels *k = plan_kernels(e->plan, i);
    const char *layout = or_empty(weight_layout(d->device));
    if (!d->info.is_host && strcmp(p->model, d->info.model) != 0)
        return oato_fail(err, OATO_EFILE, "the plan was made for %s = %s, but here it is %s; %s",
                         p->id, p->model, d->info.model, again);
    if (d->info.is_host && !k)
        return oato_fail(err, OATO_EFILE,
                         "the plan does not say for which instruction set of %s it was made, "
                         "because its profile does not; run oato-profile and oato-plan again, or "
                         "drop --strict",
                         p->id);
    if (k && strcmp(k->isa, d->info.isa) != 0)
        return oato_fail(err, OATO_EFILE,
                         "the plan was made for kernels of '%s' on %s, but here they are of '%s'; "
                         "%s",
                         k->isa, p->id, d->info.isa, again);
    if (k && strcmp(k->layout, layout) != 0)
        return oato_fail(err, OATO_EFILE,
                         "the plan was made for weights in layout '%s' on %s, but here it is '%s'; "
                         "%s",
                         k->layout, p->id, layout, again);
    return OATO_OK;
}

oato_status devices_bind(struct engine *e, int32_t *bound, struct oato_error *err)
{
    for (int32_t i = 0; i < e->plan->n_devices; i++) {
        const struct plan_device *p = &e->plan->devices[i];
        bound[i] = -1;
        if (!ranks_have(e, p))
            continue;
        const oato_status status = device_bind(e, p->id, &bound[i], err);
        if (status)
            return status;
        struct engine_device *d = &e->device[bound[i]];
        if (!strcmp(p->id, d->info.id))
            d->budget_bytes = p->budget_bytes;
        if (is_stand_in(p->model) && !is_stand_in(d->info.model) && !strcmp(p->id, d->info.id))
            return oato_fail(err, OATO_EFILE,
                             "the plan was made with the times of a %s, but here %s is %s; run "
                             "oato-profile and oato-plan",
                             p->model, p->id, d->info.model);
        if (e->options->strict && devices_differ(e, i, d, err))
            return err->status;
        if (strcmp(p->model, d->info.model) != 0)
            warn_line(e->warn, e->user,
                      "the plan was made for %s = %s, but here it is %s; run oato-plan again for "
                      "best speed",
                      p->id, p->model, d->info.model);
    }
    return OATO_OK;
}
