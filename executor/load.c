/*
 * load.c - from a model and a plan to devices that are ready: opens the devices, binds the plan's
 * to them, fuses the graph, decides where every operator and every layer's KV goes, and then, when
 * the programs are known, checks that everything fits before it prepares a single weight.
 */
#include "executor/executor_internal.h"

#include <stdlib.h>
#include <string.h>

#define MIB            (1024.0 * 1024.0)
#define PREFETCH_BYTES ((uint64_t)64 << 20) /* of the model are read ahead of the preparation */
#define ARENA_SLACK    256 /* vector kernels may read past the last row of a buffer */

/* ------------------------------------------------------------------------------- devices */

static oato_status device_add(struct engine *e, const char *spec,
                              const struct device_options *options, struct oato_error *err)
{
    if (e->n_devices == DEVICES_MAX)
        return oato_fail(err, OATO_EUSAGE, "more than %d devices", DEVICES_MAX);
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
    e->n_devices++;
    return OATO_OK;
}

/* The devices whose memory device `index` copies from itself. */
static void peers_find(struct engine *e, int index)
{
    struct engine_device *d = &e->device[index];
    for (int i = 0; i < e->n_devices; i++) {
        struct oato_device *other = e->device[i].device;
        if (i != index && d->device->ops->reaches && d->device->ops->reaches(d->device, other))
            d->peers[i].device = other;
    }
}

static oato_status devices_open(struct engine *e, const struct engine_options *o,
                                struct oato_error *err)
{
    struct device_options options = {
        .threads = o->threads, .isa = o->isa, .timing_only = o->timing_only};
    oato_status status = OATO_OK;
    if (o->devices) {
        char specs[DEVICES_MAX][256];
        int n = device_split(o->devices, specs, DEVICES_MAX, err);
        if (n < 0)
            return err->status;
        for (int i = 0; i < n; i++)
            options.kept_cores += device_keeps_core(specs[i]);
        for (int i = 0; i < n && !status; i++)
            status = device_add(e, specs[i], &options, err);
    } else if (e->plan) {
        for (int32_t i = 0; i < e->plan->n_devices; i++)
            options.kept_cores += device_keeps_core(e->plan->devices[i].kind);
        for (int32_t i = 0; i < e->plan->n_devices && !status; i++) {
            const struct plan_device *p = &e->plan->devices[i];
            char spec[256];
            snprintf(spec, sizeof spec, "%s%s%s", p->kind, p->spec[0] ? ":" : "", p->spec);
            status = device_add(e, spec, &options, err);
        }
    }
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

/* The device that stands for `id` of the plan: by "a=b" in map, else the one of the same id. */
static oato_status device_bind(const struct engine *e, const char *id, const char *map,
                               int32_t *out, struct oato_error *err)
{
    const char *target = id;
    size_t len = strlen(id), target_len = len;
    for (const char *p = map; p && *p;) {
        size_t item = strcspn(p, ","), left = strcspn(p, "=");
        if (left >= item)
            return oato_fail(err, OATO_EUSAGE, "--map wants PLAN_DEVICE=DEVICE, not '%.*s'",
                             (int)item, p);
        if (left == len && !memcmp(p, id, len)) {
            target = p + left + 1;
            target_len = item - left - 1;
        }
        p += item + (p[item] == ',');
    }
    *out = device_find(e, target, target_len);
    if (*out < 0)
        return oato_fail(err, OATO_EDEVICE,
                         "the plan uses %s, but there is no %.*s here; open it with --devices or "
                         "say --map %s=DEVICE",
                         id, (int)target_len, target, id);
    return OATO_OK;
}

static oato_status devices_bind(struct engine *e, const struct engine_options *o, warn_fn warn,
                                void *user, int32_t *bound, struct oato_error *err)
{
    for (int32_t i = 0; i < e->plan->n_devices; i++) {
        const struct plan_device *p = &e->plan->devices[i];
        oato_status status = device_bind(e, p->id, o->map, &bound[i], err);
        if (status)
            return status;
        struct engine_device *d = &e->device[bound[i]];
        if (!strcmp(p->id, d->info.id))
            d->budget_bytes = p->budget_bytes;
        if (!strcmp(p->model, d->info.model))
            continue;
        if (o->strict)
            return oato_fail(err, OATO_EFILE,
                             "the plan was made for %s = %s, here it is %s; plan again, or run "
                             "without --strict",
                             p->id, p->model, d->info.model);
        char text[320];
        snprintf(text, sizeof text, "the plan was made for %s = %s, here it is %s", p->id, p->model,
                 d->info.model);
        if (warn)
            warn(user, text);
    }
    return OATO_OK;
}

/* ---------------------------------------------------------------------------- placements */

/* Without a plan: every match that the host runs. */
static bool device_fuses(void *user, const struct graph *g, struct graph_match m)
{
    const struct oato_device *d = user;
    struct graph_op fused = graph_fused(g, m);
    return d->ops->supports(d, &fused.op);
}

static oato_status fuse_all(struct engine *e, struct oato_error *err)
{
    const struct graph *g = &e->model->graph;
    const size_t all = (size_t)graph_matches(g, NULL, 0);
    struct graph_match *m = calloc(all + 1, sizeof *m);
    if (!m)
        return oato_fail_memory(err, all * sizeof *m, "fusions");
    int32_t n = graph_cover(g, device_fuses, e->device[e->host].device, m);
    oato_status status = graph_fuse(g, m, n, &e->graph, err);
    free(m);
    return status;
}

static int32_t op_find(const struct graph *g, const char *name, int32_t hint)
{
    for (int32_t i = 0; i < g->n_ops; i++) {
        int32_t at = (hint + i) % g->n_ops;
        if (!strcmp(g->ops[at].name, name))
            return at;
    }
    return -1;
}

static oato_status place_default(struct engine *e, struct oato_error *err)
{
    for (int phase = 0; phase < PHASE_COUNT; phase++) {
        e->place[phase] = calloc((size_t)e->graph.n_ops, sizeof **e->place);
        if (!e->place[phase])
            return oato_fail_memory(err, (size_t)e->graph.n_ops * sizeof **e->place, "placements");
    }
    return OATO_OK;
}

static oato_status place_parts(struct engine *e, const int32_t *bound, struct oato_error *err)
{
    int32_t at = 0;
    for (int32_t i = 0; i < e->plan->n_parts; i++) {
        const struct plan_part *p = &e->plan->parts[i];
        at = op_find(&e->graph, p->op, at);
        if (at < 0)
            return oato_fail(err, OATO_EFILE, "the plan names operator %s, which the model lacks",
                             p->op);
        const int32_t device = bound[p->device], home = bound[p->home];
        const struct device_ops *ops = e->device[device].device->ops;
        if (home != device && (home != e->host || !ops->stage))
            return oato_fail(err, OATO_EFILE,
                             "part %d of the plan (%s) streams its weight from %s to %s: that is "
                             "possible only from the host to a device with memory of its own",
                             i, p->op, e->device[home].info.id, e->device[device].info.id);
        for (int phase = 0; phase < PHASE_COUNT; phase++) {
            struct placement *place = &e->place[phase][at];
            if (!(p->phases & 1u << phase) || p->begin == p->end)
                continue;
            if (place->n == PARTS_MAX)
                return oato_fail(err, OATO_EFILE, "operator %s has more than %d parts", p->op,
                                 PARTS_MAX);
            int j = place->n++; /* by begin, so that parts concatenate, or are summed in order */
            for (; j > 0 && place->part[j - 1].begin > p->begin; j--)
                place->part[j] = place->part[j - 1];
            place->part[j] = (struct placed_part){.device = device,
                                                  .begin = (int32_t)p->begin,
                                                  .end = (int32_t)p->end,
                                                  .streamed = home != device};
            place->axis = p->axis;
        }
    }
    return OATO_OK;
}

/* The device of a layer's KV is where its attention runs; both phases must agree. */
static oato_status place_kv(struct engine *e, struct oato_error *err)
{
    int32_t layers = e->graph.n_layers;
    for (int d = 0; d < e->n_devices; d++) {
        e->device[d].kv_shapes = calloc((size_t)layers, sizeof *e->device[d].kv_shapes);
        e->device[d].kv_slot = malloc((size_t)layers * sizeof *e->device[d].kv_slot);
        if (!e->device[d].kv_shapes || !e->device[d].kv_slot)
            return oato_fail_memory(err, (size_t)layers * sizeof(struct kv_layer_shape),
                                    "KV slots");
        for (int32_t i = 0; i < layers; i++)
            e->device[d].kv_slot[i] = -1;
    }
    for (int32_t i = 0; i < e->graph.n_ops; i++) {
        const struct graph_op *o = &e->graph.ops[i];
        if (o->kv_layer < 0)
            continue;
        struct engine_device *d = &e->device[e->place[0][i].part[0].device];
        if (o->op.kind == OP_KV_STORE) {
            d->kv_slot[o->kv_layer] = d->n_kv;
            d->kv_shapes[d->n_kv++] = (struct kv_layer_shape){o->op.kv_heads, o->op.head_dim};
        }
        if (d->kv_slot[o->kv_layer] < 0 ||
            e->place[0][i].part[0].device != e->place[1][i].part[0].device)
            return oato_fail(err, OATO_EFILE,
                             "the plan puts %s on another device than the KV of its layer",
                             o->name);
    }
    return OATO_OK;
}

/* The classes that the plan names, if any may be of a library: devices open those when asked. */
static const char *library_classes(const struct engine *e, enum plan_phase phase)
{
    const char *classes = e->plan ? e->plan->numerics[phase] : NULL;
    return classes && strchr(classes, '.') ? classes : NULL;
}

enum numerics_choice engine_numerics(const struct engine *e, int32_t device,
                                     const struct oato_op *op, enum plan_phase phase,
                                     enum row_class rows)
{
    const struct oato_device *d = e->device[device].device;
    if (phase != PHASE_PREFILL || rows != ROWS_TOKENS || e->deterministic)
        return NUMERICS_DECODE;
    const char *classes = library_classes(e, phase);
    return classes && plan_classes_have(classes, d->ops->numerics(d, op, NUMERICS_LIBRARY))
               ? NUMERICS_LIBRARY
               : NUMERICS_PREFILL;
}

/* Whether an operator is computed in that class somewhere in prefill, by a library. */
static bool library_computes(const struct engine *e, const char *class)
{
    for (int32_t i = 0; i < e->graph.n_ops; i++) {
        const struct placement *p = &e->place[PHASE_PREFILL][i];
        for (int j = 0; j < p->n; j++) {
            const struct oato_device *d = e->device[p->part[j].device].device;
            if (!strcmp(d->ops->numerics(d, &e->graph.ops[i].op, NUMERICS_LIBRARY), class))
                return true;
        }
    }
    return false;
}

/* A plan that counts on a library which is not here runs as well, at other speed. */
static void check_libraries(const struct engine *e, warn_fn warn, void *user)
{
    const char *classes = library_classes(e, PHASE_PREFILL);
    char class[32], text[160];
    for (const char *s = classes; s && *s; s += strcspn(s, "+"), s += *s == '+') {
        snprintf(class, sizeof class, "%.*s", (int)strcspn(s, "+"), s);
        if (!strchr(class, '.') || library_computes(e, class))
            continue;
        snprintf(text, sizeof text,
                 "the plan's %s is not to be had here: the device's own kernels compute it", class);
        if (warn)
            warn(user, text);
    }
}

/* One class in all phases: the same operator may not compute with different arithmetic. */
static oato_status check_deterministic(const struct engine *e, struct oato_error *err)
{
    for (int32_t i = 0; i < e->graph.n_ops; i++) {
        const char *class = NULL;
        struct oato_op op = graph_op_with_kv(&e->graph.ops[i], e->kv_dtype);
        for (int phase = 0; phase < PHASE_COUNT; phase++) {
            const struct placement *p = &e->place[phase][i];
            for (int j = 0; j < p->n; j++) {
                const struct oato_device *d = e->device[p->part[j].device].device;
                const char *c = d->ops->numerics(d, &op, NUMERICS_DECODE);
                if (class && strcmp(class, c) != 0)
                    return oato_fail(err, OATO_EFILE,
                                     "--deterministic: %s would be computed as %s and as %s; plan "
                                     "with --deterministic too",
                                     e->graph.ops[i].name, class, c);
                class = c;
            }
        }
    }
    return OATO_OK;
}

oato_status engine_load(struct engine *e, const struct engine_options *o, warn_fn warn, void *user,
                        struct oato_error *err)
{
    int32_t bound[DEVICES_MAX] = {0};
    oato_status status = OATO_OK;
    if (e->plan && e->plan->n_devices > DEVICES_MAX)
        return oato_fail(err, OATO_EFILE, "the plan has %d devices, this build runs %d",
                         e->plan->n_devices, DEVICES_MAX);
    if (gguf_header_only(e->model->gguf))
        return oato_fail(err, OATO_EFILE,
                         "%s: has no weights (header only), it can be planned "
                         "for but not run",
                         gguf_path(e->model->gguf));
    if (e->plan && e->plan->neurons_hash)
        return oato_fail(err, OATO_EFILE,
                         "the plan was made with a neurons sidecar, in whose order of neurons and "
                         "experts this version cannot run; plan again without --neurons");
    if (e->plan)
        status = plan_check_model(e->plan, e->model->gguf, err);
    if (!status)
        status = devices_open(e, o, err);
    if (!status && e->plan)
        status = devices_bind(e, o, warn, user, bound, err);
    if (!status)
        status = e->plan ? plan_apply(e->plan, e->model, &e->graph, err) : fuse_all(e, err);
    if (!status)
        status = place_default(e, err);
    if (!status && e->plan)
        status = place_parts(e, bound, err);
    if (status)
        return status;
    for (int phase = 0; phase < PHASE_COUNT; phase++)
        for (int32_t i = 0; i < e->graph.n_ops; i++)
            if (!e->place[phase][i].n) {
                e->place[phase][i].n = 1;
                e->place[phase][i].part[0].device = e->host;
                e->place[phase][i].part[0].end = e->graph.ops[i].op.n;
            }
    status = place_kv(e, err);
    e->deterministic = o->deterministic || (e->plan && e->plan->request.deterministic);
    if (!status && e->deterministic)
        return check_deterministic(e, err);
    if (!status)
        check_libraries(e, warn, user);
    return status;
}

/* -------------------------------------------------------------------------------- memory */

static bool same_part(const struct weight_slot *a, const struct weight_slot *b)
{
    return a->tensor == b->tensor && a->use == b->use && a->begin == b->begin && a->end == b->end &&
           a->col_begin == b->col_begin && a->col_end == b->col_end;
}

uint32_t engine_weight_slot(struct engine_device *d, const struct weight_slot *wanted)
{
    for (uint32_t i = 0; i < d->n_slots; i++) {
        const struct weight_slot *s = &d->slots[i];
        if (same_part(s, wanted) && !s->streamed && !wanted->streamed)
            return i;
    }
    if (d->n_slots == d->slots_cap) {
        uint32_t cap = d->slots_cap ? d->slots_cap * 2 : 64;
        struct weight_slot *s = realloc(d->slots, cap * sizeof *s);
        if (!s)
            return UINT32_MAX;
        d->slots = s;
        d->slots_cap = cap;
    }
    struct weight_slot *s = &d->slots[d->n_slots];
    *s = *wanted;
    s->bytes = d->device->ops->prepared_bytes(d->device, s->tensor->dtype, s->end - s->begin,
                                              s->col_end - s->col_begin, s->use);
    if (!s->streamed)
        d->weight_bytes += s->bytes;
    return d->n_slots++;
}

struct weight_source engine_weight_source(const struct weight_slot *s)
{
    const struct gguf_tensor *t = s->tensor;
    size_t left = 0, row = 0;
    dtype_row_bytes(t->dtype, s->col_begin, &left);
    dtype_row_bytes(t->dtype, t->ne[0], &row);
    return (struct weight_source){
        .data = t->data + left,
        .dtype = t->dtype,
        .k = s->col_end - s->col_begin,
        .n = t->ne[1] * t->ne[2], /* experts are one matrix */
        .row_begin = s->begin,
        .row_end = s->end,
        .row_stride = s->col_end - s->col_begin < t->ne[0] ? row : 0,
        .use = s->use,
        .file = t->file,
        .prepared = s->prepared,
    };
}

static oato_status check_fits(const struct engine *e, const struct engine_device *d,
                              struct oato_error *err)
{
    const uint64_t staging = d->staging_bytes;
    uint64_t need = d->weight_bytes + staging + d->kv_bytes + d->arena_bytes + d->workspace_bytes;
    uint64_t have = d->info.free_bytes;
    if (d->budget_bytes && d->budget_bytes < have)
        have = d->budget_bytes;
    if (need <= have)
        return OATO_OK;
    return oato_fail(err, OATO_EFIT,
                     "%s: needs %.1f MiB (weights %.1f, staging %.1f, KV %.1f, activations %.1f, "
                     "workspace %.1f) "
                     "and may use %.1f MiB: %.1f MiB are missing; plan with a smaller --budget, or "
                     "use a smaller --context (now %d)",
                     d->info.id, (double)need / MIB, (double)d->weight_bytes / MIB,
                     (double)staging / MIB, (double)d->kv_bytes / MIB, (double)d->arena_bytes / MIB,
                     (double)d->workspace_bytes / MIB, (double)have / MIB,
                     (double)(need - have) / MIB, e->context);
}

/* Has the files of the slots from *ahead on read in the background until `limit` bytes are under
 * way; *ahead and *bytes tell what was asked for so far. */
static void weights_prefetch(const struct engine_device *d, uint32_t *ahead, uint64_t *bytes,
                             uint64_t limit)
{
    for (size_t row; *ahead < d->n_slots && *bytes < limit; (*ahead)++) {
        const struct weight_slot *s = &d->slots[*ahead];
        const struct gguf_tensor *t = s->tensor;
        if (!t->file || s->use == WEIGHT_LOOKUP || s->prepared || s->streamed ||
            !dtype_row_bytes(t->dtype, t->ne[0], &row))
            continue;
        const size_t offset = (size_t)((const uint8_t *)t->data - t->file->data);
        file_prefetch(t->file, offset + (size_t)s->begin * row, (size_t)(s->end - s->begin) * row);
        *bytes += (uint64_t)(s->end - s->begin) * row;
    }
}

static oato_status weights_prepare(struct engine_device *d, const struct engine_options *o,
                                   void *user, struct oato_error *err)
{
    d->weights = calloc(d->n_slots ? d->n_slots : 1, sizeof(void *));
    if (!d->weights)
        return oato_fail_memory(err, d->n_slots * sizeof(void *), "the table of weights");
    uint32_t ahead = 0;
    uint64_t asked = 0, prepared = 0;
    for (uint32_t i = 0; i < d->n_slots; i++) {
        const struct weight_slot *s = &d->slots[i];
        if (s->streamed)
            continue;
        weights_prefetch(d, &ahead, &asked, prepared + PREFETCH_BYTES);
        if (o->on_load)
            o->on_load(user, d->info.id, prepared, d->weight_bytes);
        prepared += s->bytes;
        const struct weight_source source = engine_weight_source(s);
        oato_status status = d->device->ops->prepare(d->device, &source, &d->weights[i], err);
        if (status)
            return oato_fail_at(err, "%s: loading %s", d->info.id, s->tensor->name);
    }
    return OATO_OK;
}

/* What the host has prepared of the same part, when the device takes that layout; else NULL: the
 * device converts what lies in the model's file, so that nothing is kept twice. */
static const void *host_prepared(const struct engine *e, const struct engine_device *d,
                                 const struct weight_slot *s)
{
    const struct engine_device *host = &e->device[e->host];
    const struct device_ops *from = host->device->ops, *to = d->device->ops;
    const char *has = from->layout && from->weight_data ? from->layout(host->device) : NULL;
    const char *takes = to->layout ? to->layout(d->device) : NULL;
    for (uint32_t i = 0; has && takes && !strcmp(has, takes) && i < host->n_slots; i++)
        if (!host->slots[i].streamed && same_part(&host->slots[i], s))
            return from->weight_data(host->device, host->weights[i]);
    return NULL;
}

/* Once the host's weights are there. */
static oato_status weights_stage(const struct engine *e, struct engine_device *d,
                                 struct oato_error *err)
{
    for (uint32_t i = 0; i < d->n_slots; i++) {
        const struct weight_slot *s = &d->slots[i];
        if (!s->streamed)
            continue;
        struct weight_source source = engine_weight_source(s);
        source.prepared = host_prepared(e, d, s);
        oato_status status = d->device->ops->stage(d->device, &source, d->staging,
                                                   s->staging_offset, &d->weights[i], err);
        if (status)
            return oato_fail_at(err, "%s: streaming %s", d->info.id, s->tensor->name);
    }
    return OATO_OK;
}

static oato_status device_allocate(struct engine *e, int32_t index, const struct engine_options *o,
                                   warn_fn warn, void *user, struct oato_error *err)
{
    struct engine_device *d = &e->device[index];
    const struct device_ops *ops = d->device->ops;
    const bool keeps =
        o->prepared_cache && ops->weight_data && ops->layout && ops->layout(d->device);
    if (keeps)
        prepared_map(e, d, o->prepared_cache, warn, user);
    oato_status status = weights_prepare(d, o, user, err);
    if (!status && keeps && !d->prepared.data)
        prepared_save(e, d, o->prepared_cache, warn, user);
    if (!status && d->n_kv)
        status = ops->kv_create(d->device, d->kv_shapes, d->n_kv, e->kv_dtype, e->pool.n_pages,
                                &d->kv, err);
    if (!status)
        status = ops->alloc(d->device, d->arena_bytes, &d->arena, err);
    if (!status && d->staging_bytes)
        status = ops->alloc(d->device, d->staging_bytes, &d->staging, err);
    return status;
}

oato_status engine_allocate(struct engine *e, const struct engine_options *o, warn_fn warn,
                            void *user, struct oato_error *err)
{
    oato_status status = OATO_OK;
    for (int32_t i = 0; i < e->n_devices && !status; i++) {
        struct engine_device *d = &e->device[i];
        size_t row;
        for (int32_t j = 0; j < d->n_kv; j++)
            if (dtype_row_bytes(e->kv_dtype,
                                (int64_t)d->kv_shapes[j].kv_heads * d->kv_shapes[j].head_dim, &row))
                d->kv_bytes += 2 * (uint64_t)row * KV_PAGE_POSITIONS * (uint64_t)e->pool.n_pages;
        d->arena_bytes += ARENA_SLACK;
        status = check_fits(e, d, err);
    }
    for (int32_t i = 0; i < e->n_devices && !status; i++)
        status = device_allocate(e, i, o, warn, user, err);
    for (int32_t i = 0; i < e->n_devices && !status; i++)
        status = weights_stage(e, &e->device[i], err);
    for (int32_t i = 0; i < e->n_devices && !status; i++) {
        struct engine_device *d = &e->device[i];
        for (int32_t j = 0; j < e->n_devices; j++) {
            d->peers[j].arena = e->device[j].arena;
            d->peers[j].arena_bytes = e->device[j].arena_bytes;
        }
        for (int phase = 0; phase < PHASE_COUNT && !status; phase++) {
            struct engine_program *p = &d->phase[phase];
            if (!p->program.n_records)
                continue;
            p->program.device_ids = e->device_ids;
            p->program.weights = d->weights;
            p->program.n_weights = d->n_slots;
            p->program.arena = d->arena;
            p->program.host_arena = e->device[e->host].arena;
            p->program.host_arena_bytes = e->device[e->host].arena_bytes;
            p->program.peers = d->peers;
            p->program.workspace_bytes = d->workspace_bytes;
            p->program.kv = d->kv;
            status = d->device->ops->compile(d->device, &p->program, i, &p->compiled, err);
        }
    }
    return status;
}
