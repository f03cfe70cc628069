/*
 * measure.c - one profiling run: opens the devices, finds or makes their entries in the profile,
 * measures rates, links and operators, and puts the rows in. Entries of a device whose declared
 * properties changed are dropped; everything else in the profile is kept.
 */
#include "profiler/measuring_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { NOTES_MAX = 2000 };
#define QUICK " (quick)" /* in notes, behind a model that was measured so */

/* ---------------------------------------------------------------------- the profile's head - */

oato_status profiler_begin(const char *path, bool replace, struct profile *p, warn_fn warn,
                           void *user, struct oato_error *err)
{
    const bool extends = path && !replace && !access(path, F_OK);
    struct profile here;
    char why[400];
    oato_status status = OATO_OK;
    profile_init(p);
    profile_init(&here);
    if (extends)
        status = profile_load(path, p, warn, user, err);
    if (!status)
        status = machine_read(extends ? &here : p, err);
    if (!status && extends && !machine_same(&p->machine, &here.machine, why, sizeof why))
        status = oato_fail(err, OATO_EFILE,
                           "%s was measured on another machine: %s; --replace starts it anew, "
                           "-o names another file",
                           path, why);
    profile_free(&here);
    if (status)
        profile_free(p);
    return status;
}

static bool set_string(struct profile *p, const char **where, const char *s)
{
    if (*where && !strcmp(*where, s))
        return true;
    *where = profile_string(p, s);
    return *where;
}

/* Date, tool and the models that rows were measured for. */
static bool write_head(struct run *r)
{
    struct profile *p = r->p;
    char date[16], entry[200];
    time_t now = time(NULL);
    struct tm tm;
    struct gguf_string name = {"a model without a name", 22};
    gmtime_r(&now, &tm);
    strftime(date, sizeof date, "%Y-%m-%d", &tm);
    gguf_get_string(r->m->gguf, "general.name", &name);
    size_t n = name.len < 120 ? name.len : 120;
    for (size_t i = 0; i < n; i++) /* the file is UTF-8; a name cut or damaged would not be */
        if ((unsigned char)name.data[i] < 0x20 || (unsigned char)name.data[i] > 0x7e)
            n = i;
    snprintf(entry, sizeof entry, "%.*s%s", (int)n, name.data, r->o->quick ? QUICK : "");
    p->version = PROFILE_VERSION;
    char all[NOTES_MAX + 204];
    snprintf(all, sizeof all, "%.*s", NOTES_MAX, or_empty(p->notes));
    char *at = strstr(all, entry), *rough = at ? at + strlen(entry) : NULL;
    if (!at)
        snprintf(all + strlen(all), sizeof entry + 2, "%s%s", all[0] ? "; " : "", entry);
    else if (!strncmp(rough, QUICK, strlen(QUICK))) /* measured in full since */
        memmove(rough, rough + strlen(QUICK), strlen(rough + strlen(QUICK)) + 1);
    if (strlen(all) <= NOTES_MAX && !set_string(p, &p->notes, all))
        return false;
    return set_string(p, &p->tool, "oato " OATO_VERSION) && set_string(p, &p->date, date);
}

/* ------------------------------------------------------------------------- device entries -- */

/* What stands behind "kind:" or "kind:3:". */
static const char *spec_options(const char *spec)
{
    const char *at = spec + strcspn(spec, ":");
    at += *at == ':';
    size_t digits = strspn(at, "0123456789");
    if (digits && (at[digits] == ':' || at[digits] == ',' || !at[digits]))
        at += digits + (at[digits] != 0);
    return at;
}

static void drop_rows(struct profile *p, int32_t device)
{
    int32_t kept = 0;
    for (int32_t i = 0; i < p->n_rows; i++)
        if (p->rows[i].device != device)
            p->rows[kept++] = p->rows[i];
    p->n_rows = kept;
}

/* The host's rows took long and belong to its threads and kernels: they are not mixed or lost. */
static oato_status check_host(const struct run *r, const struct profile_device *d,
                              const struct device_info *info, struct oato_error *err)
{
    const char *isa = or_empty(r->p->machine.kernel_isa);
    if (d->threads != info->threads)
        return oato_fail(err, OATO_EUSAGE,
                         "%s was profiled with %d threads, this run has %d; use --threads %d, "
                         "--replace or another -o",
                         info->id, d->threads, info->threads, d->threads);
    if (strcmp(isa, info->isa) != 0)
        return oato_fail(err, OATO_EUSAGE,
                         "%s was profiled with kernels of '%s', this run has '%s'; set "
                         "OATO_CPU_ISA=%s, or use --replace or another -o",
                         info->id, isa, info->isa, isa);
    return OATO_OK;
}

/* Whether the entry is of a device opened so. */
static bool same_device(const struct rig *rig, const struct profile_device *d, const char *spec)
{
    return !strcmp(or_empty(d->model), rig->info.model) && !strcmp(or_empty(d->spec), spec);
}

/* The entry of an open device: found again, or made. */
static oato_status enter_device(struct run *r, struct rig *rig, const char *spec,
                                struct oato_error *err)
{
    struct profile *p = r->p;
    const struct device_info *info = &rig->info;
    int32_t i = profile_device_index(p, info->id);
    if (!profile_may_have(info->model))
        return oato_fail(err, OATO_EDEVICE,
                         "%s is a %s: its times are no hardware's and are not measured; leave it "
                         "out of --devices",
                         info->id, info->model);
    if (i >= 0 && p->devices[i].is_host && check_host(r, &p->devices[i], info, err))
        return err->status;
    if (i >= 0 && !same_device(rig, &p->devices[i], spec)) {
        warn_line(r->warn, r->user, "%s was profiled as '%s %s': its old rows are dropped",
                  info->id, or_empty(p->devices[i].model), or_empty(p->devices[i].spec));
        drop_rows(p, i);
    }
    if (i < 0) {
        struct profile_device *grown =
            arena_alloc(&p->arena, (size_t)p->n_devices + 1, sizeof *grown);
        if (!grown)
            return oato_fail_memory(err, sizeof *grown, "the profile");
        if (p->n_devices)
            memcpy(grown, p->devices, (size_t)p->n_devices * sizeof *grown);
        p->devices = grown;
        i = p->n_devices++;
    }
    struct profile_device *d = &p->devices[i];
    rig->index = i;
    if (!device_describe(p, rig) || !set_string(p, &d->isa, info->isa) ||
        !set_string(p, &d->layout, or_empty(weight_layout(rig->device))) ||
        !set_string(p, &d->id, info->id) || !set_string(p, &d->kind, info->kind) ||
        !set_string(p, &d->model, info->model) || !set_string(p, &d->spec, spec) ||
        (info->is_host && !set_string(p, &p->machine.kernel_isa, info->isa)))
        return oato_fail_memory(err, sizeof *info, "the profile");
    return OATO_OK;
}

static uint64_t model_bytes(const struct gguf *g)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < gguf_tensor_count(g); i++)
        bytes += gguf_tensor_at(g, i)->bytes;
    return bytes;
}

static oato_status open_devices(struct run *r, struct oato_error *err)
{
    char specs[DEVICES_MAX][256];
    struct device_options options = {.threads = r->o->threads};
    const uint64_t model = model_bytes(r->m->gguf);
    uint64_t cache = r->p->machine.l3_bytes ? r->p->machine.l3_bytes : r->p->machine.l2_bytes;
    int n = device_split(r->o->devices ? r->o->devices : "cpu", specs, DEVICES_MAX, err);
    if (n < 0)
        return err->status;
    for (int i = 0; i < n; i++)
        options.kept_cores += device_keeps_core(specs[i]);
    for (int i = 0; i < n; i++) {
        size_t kind = strcspn(specs[i], ":");
        int index = 0;
        for (int j = 0; j < i; j++)
            index += !strncmp(specs[j], specs[i], kind) && strcspn(specs[j], ":") == kind;
        struct rig *rig = &r->rig[r->n_rigs];
        const uint64_t before = rss_bytes();
        oato_status status = device_open(specs[i], index, &options, &rig->device, err);
        if (status)
            return status;
        r->n_rigs++;
        rig->device->ops->info(rig->device, &rig->info);
        rig->declared = rig->info.read_bytes_per_s > 0 && rig->info.flops_per_s > 0;
        rig->cache_bytes = rig->info.cache_bytes ? rig->info.cache_bytes
                           : cache               ? cache
                                                 : 32u << 20;
        rig->model_bytes = model;
        rig->made_up = r->made_up;
        for (int j = 0; j < i; j++)
            if (!strcmp(r->rig[j].info.id, rig->info.id))
                return oato_fail(err, OATO_EUSAGE, "device %s is named twice in '%s'", rig->info.id,
                                 r->o->devices);
        status = library_measure(rig, before, err);
        if (!status)
            status = enter_device(r, rig, spec_options(specs[i]), err);
        if (status)
            return status;
    }
    return OATO_OK;
}

/* A header-only model has no weights: small numbers, normal in every element type. */
static oato_status make_up_weights(struct run *r, struct oato_error *err)
{
    const struct gguf *g = r->m->gguf;
    if (!gguf_header_only(g))
        return OATO_OK;
    for (size_t i = 0; i < gguf_tensor_count(g); i++)
        if (gguf_tensor_at(g, i)->bytes > r->made_up_bytes)
            r->made_up_bytes = gguf_tensor_at(g, i)->bytes;
    r->made_up = pages_alloc(r->made_up_bytes);
    if (!r->made_up)
        return oato_fail_memory(err, r->made_up_bytes, "made-up weights");
    for (size_t i = 0; i < r->made_up_bytes; i++)
        r->made_up[i] = (uint8_t)(0x28 + (i * 2654435761u >> 13) % 8);
    return OATO_OK;
}

/* ------------------------------------------------------------------------- what is measured - */

static oato_status measure_rates(struct run *r, struct rig *rig, struct oato_error *err)
{
    struct profile_device *d = &r->p->devices[rig->index];
    bool quick = r->o->quick;
    oato_status status = OATO_OK;
    d->read_bytes_per_s = rig->info.read_bytes_per_s;
    d->flops_per_s = rig->info.flops_per_s;
    if (!rig->declared) {
        run_clock(r, rig, CLOCK_WORKS);
        status = device_rates(rig, quick, &d->flops_per_s, &d->read_bytes_per_s, err);
        run_clock(r, rig, CLOCK_USUAL);
    }
    if (!status && rig->info.is_host)
        status =
            host_read_rate(rig->info.threads, rig->cache_bytes, quick, &d->read_bytes_per_s, err);
    if (!status)
        status = step_overhead(rig, quick, &d->step_overhead_ns, err);
    d->library_bytes = rig->library_bytes;
    d->unit_overhead_ns = rig->unit_ns = 0;
    rig->compile_s = rig->info.spans && !rig->declared ? &d->compile_s : NULL;
    if (!status && rig->info.spans)
        status = unit_overhead(rig, quick, &rig->unit_ns, err);
    d->unit_overhead_ns = rig->unit_ns = readable_ns(rig->unit_ns);
    d->launch_ns = 0;
    if (!status && rig_is_hardware(rig)) {
        run_clock(r, rig, CLOCK_PASSES);
        status = launch_time(rig, quick, &d->launch_ns, err);
        run_clock(r, rig, CLOCK_USUAL);
    }
    d->read_bytes_per_s = round(d->read_bytes_per_s);
    d->flops_per_s = round(d->flops_per_s);
    d->step_overhead_ns = readable_ns(d->step_overhead_ns);
    d->launch_ns = readable_ns(d->launch_ns);
    return status;
}

/* Ways between devices none of which is the host, once those to it are known. */
static oato_status measure_peers(struct run *r, struct oato_error *err)
{
    oato_status status = OATO_OK;
    for (int i = 0; i < r->n_rigs; i++)
        for (int j = 0; j < r->n_rigs && !status; j++)
            if (i != j && !r->rig[i].info.is_host && !r->rig[j].info.is_host)
                status = links_measure_peer(r->p, &r->rig[i], &r->rig[j], r->o->quick, err);
    return status;
}

/* The model's operators, and what devices of this run need beside them. */
static oato_status collect_cases(struct run *r, struct oato_error *err)
{
    const struct graph *g = &r->m->graph;
    bool typed = false;
    for (int i = 0; i < r->n_rigs; i++)
        typed = typed || device_values(r->rig[i].device);
    oato_status status = op_set_collect(g, r->o->kv, &r->set, err);
    if (!status)
        status = op_set_add_sparse(g, r->o->sparse, r->o->neurons, &r->set, err);
    return status || !typed ? status : op_set_add_converts(g, &r->set, err);
}

/* Whether a device of the profile has rows of the operator, at any size. */
static bool has_rows(const struct profile *p, int32_t device, const struct oato_op *op)
{
    char key[OP_KEY_SIZE], other[OP_KEY_SIZE];
    oato_op_key(op, NULL, key);
    for (int32_t i = 0; i < p->n_rows; i++) {
        const struct profile_row *row = &p->rows[i];
        if (row->device == device && row->op.kind == op->kind && row->op.n == op->n &&
            !strcmp(oato_op_key(&row->op, NULL, other), key))
            return true;
    }
    return false;
}

static oato_status measure_device(struct run *r, struct rig *rig, struct oato_error *err)
{
    const int left = r->n_rigs - (int)(rig - r->rig);
    const uint64_t begin_ns = now_ns();
    progress_update(&r->progress, r->done, "memory and links");
    r->cut = false;
    for (int32_t i = 0; i < r->set.n; i++)
        r->had[i] = has_rows(r->p, rig->index, &r->set.cases[i].op);
    oato_status status = measure_rates(r, rig, err);
    r->late_ns = r->end_ns > begin_ns ? begin_ns + (r->end_ns - begin_ns) / (uint64_t)left
                                      : r->end_ns; /* each gets a share of what is left */
    if (!status)
        status = links_measure(r->p, rig, r->o->quick, err);
    if (!status)
        status = measure_operators(r, rig, err);
    if (!status)
        warn_if_busy(r, rig);
    return status;
}

/* Per device: rates, links, whole layers; and a point, on the machines of docs/hardware that were
 * measured so. */
#define DEVICE_SECONDS 2.0
#define POINT_SECONDS  0.06

oato_status profiler_missing(const struct profile *p, const struct model *m,
                             const struct profiler_options *o, const char *const *ids, int32_t n,
                             double *seconds, struct oato_error *err)
{
    struct op_set set = {.n = 0};
    struct op_point points[POINTS_MAX];
    oato_status status = op_set_collect(&m->graph, o->kv, &set, err);
    if (!status)
        status = op_set_add_sparse(&m->graph, o->sparse, o->neurons, &set, err);
    *seconds = 0;
    for (int32_t d = 0; d < n && !status; d++) {
        const int32_t device = profile_device_index(p, ids[d]);
        int32_t lacks = 0;
        for (int32_t i = 0; i < set.n; i++)
            if (device < 0 || !has_rows(p, device, &set.cases[i].op))
                lacks += op_points(&set.cases[i], o, m->shape.context_length, points);
        *seconds += lacks ? DEVICE_SECONDS + lacks * POINT_SECONDS : 0;
    }
    op_set_free(&set);
    if (o->seconds > 0 && *seconds > o->seconds)
        *seconds = o->seconds;
    return status;
}

oato_status profiler_measure(struct profile *p, const struct model *m,
                             const struct profiler_options *o, warn_fn warn, void *user,
                             struct profiler_report *report, struct oato_error *err)
{
    struct run r = {.p = p, .m = m, .o = o, .warn = warn, .user = user, .report = report};
    uint64_t begin = now_ns();
    int32_t rows_before, points = 0, passes = 0;
    struct op_point ignored[POINTS_MAX];
    memset(report, 0, sizeof *report);
    oato_status status = make_up_weights(&r, err);
    if (!status)
        status = open_devices(&r, err);
    rows_before = p->n_rows;
    if (!status)
        status = kept_open(&r.kept, o->partial, kept_run(m, o, or_empty(p->machine.kernel_isa)), p,
                           warn, user, err);
    if (!status)
        status = storage_begin(o->storage, o->quick, &r.storage, warn, user, err);
    if (!status)
        status = collect_cases(&r, err);
    r.end_ns = o->seconds > 0 ? begin + (uint64_t)(o->seconds * 1e9) : 0;
    r.had = status ? NULL : calloc((size_t)r.set.n + 1, sizeof *r.had);
    if (!status && !r.had)
        status = oato_fail_memory(err, (size_t)r.set.n, "the list of operators");
    for (int32_t i = 0; i < r.set.n && !status; i++)
        points += op_points(&r.set.cases[i], o, m->shape.context_length, ignored);
    for (int i = 0; i < r.n_rigs; i++)
        passes += least_passes(&r, &r.rig[i]);
    progress_begin(&r.progress, "measuring", (double)points * passes);
    for (int i = 0; i < r.n_rigs && !status; i++)
        status = measure_device(&r, &r.rig[i], err);
    if (!status)
        status = measure_peers(&r, err);
    progress_update(&r.progress, r.done, "storage");
    if (!status)
        status = storage_put(r.storage, p, err);
    storage_end(r.storage);
    progress_end(&r.progress);
    if (!status && !write_head(&r))
        status = oato_fail_memory(err, NOTES_MAX, "the profile");
    if (status == OATO_NEGATIVE && o->partial)
        status = kept_interrupted(&r.kept, p, err);
    kept_close(&r.kept);
    report->rows_kept = rows_before - report->rows_replaced;
    report->seconds = (double)(now_ns() - begin) * 1e-9;
    op_set_free(&r.set);
    free(r.had);
    for (int i = 0; i < r.n_rigs; i++)
        r.rig[i].device->ops->close(r.rig[i].device);
    pages_free(r.made_up, r.made_up_bytes);
    return status;
}
