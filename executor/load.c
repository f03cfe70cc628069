/*
 * load.c - from a model and a plan to devices that are ready: opens them, fuses the graph, lowers
 * it with facts from the devices, checks that everything fits before preparing any weight, and
 * binds the programs to memory.
 */
#include "executor/executor_internal.h"

#include <stdlib.h>
#include <string.h>

#define MIB            (1024.0 * 1024.0)
#define PREFETCH_BYTES ((uint64_t)64 << 20) /* of the model to read ahead of preparation */

/* ---------------------------------------------------------------------------- placements */

struct fusing {
    const struct oato_device *host;
    const struct sparse_choice *choice;
};

/* Without a plan: fuses every match that the host supports and that may skip what is chosen. */
static bool device_fuses(void *user, const struct graph *g, struct graph_match m)
{
    const struct fusing *f = user;
    struct graph_op fused = graph_fused(g, m);
    return sparse_fuses(f->choice, (enum op_kind)fused.op.kind) &&
           f->host->ops->supports(f->host, &fused.op);
}

/* Fused, operators hide the values between them. */
static bool nothing_fuses(void *user, const struct graph *g, struct graph_match m)
{
    (void)user;
    (void)g;
    (void)m;
    return false;
}

/* The numerics classes that the plan names for prefill, if any of them may be a library's: devices
 * open a library only when asked for its class. */
static const char *library_classes(const struct engine *e)
{
    const char *classes = e->plan ? e->plan->numerics[PHASE_PREFILL] : NULL;
    return classes && strchr(classes, '.') ? classes : NULL;
}

/* Prefill uses the fast class except for the few rows of logits, and a library where the plan says
 * so. */
static enum numerics_choice op_numerics(const void *user, int32_t device, const struct oato_op *op,
                                        enum plan_phase phase, enum row_class rows)
{
    const struct engine *e = user;
    const struct oato_device *d = e->device[device].device;
    if (phase != PHASE_PREFILL || rows != ROWS_TOKENS || e->deterministic)
        return NUMERICS_DECODE;
    const char *classes = library_classes(e);
    return classes && plan_classes_have(classes, d->ops->numerics(d, op, NUMERICS_LIBRARY))
               ? NUMERICS_LIBRARY
               : NUMERICS_PREFILL;
}

/* Whether a device computes any prefill operator in that library class. */
static bool library_computes(const struct engine *e, const char *class)
{
    for (int32_t i = 0; i < e->graph.n_ops; i++) {
        const struct placement *p = &e->placements.phase[PHASE_PREFILL][i];
        for (int j = 0; j < p->n; j++) {
            if (p->part[j].device < 0)
                continue;
            const struct oato_device *d = e->device[p->part[j].device].device;
            if (!strcmp(d->ops->numerics(d, &e->graph.ops[i].op, NUMERICS_LIBRARY), class))
                return true;
        }
    }
    return false;
}

/* A plan that expects a library which is not available here still runs, at a different speed. */
static void check_libraries(const struct engine *e)
{
    const char *classes = library_classes(e);
    char class[32];
    for (const char *s = classes; s && *s; s += strcspn(s, "+"), s += *s == '+') {
        snprintf(class, sizeof class, "%.*s", (int)strcspn(s, "+"), s);
        if (strchr(class, '.') && !library_computes(e, class))
            warn_line(
                e->warn, e->user,
                "%s, which the plan uses, is not available here; using the device's own kernels",
                class);
    }
}

/* With --deterministic an operator must have the same numerics class on all devices and in all
 * phases. */
static oato_status check_deterministic(const struct engine *e, struct oato_error *err)
{
    for (int32_t i = 0; i < e->graph.n_ops; i++) {
        const char *class = NULL;
        struct oato_op op = graph_op_with_kv(&e->graph.ops[i], e->kv_dtype);
        for (int phase = 0; phase < PHASE_COUNT; phase++) {
            const struct placement *p = &e->placements.phase[phase][i];
            for (int j = 0; j < p->n; j++) {
                if (p->part[j].device < 0)
                    continue;
                const struct oato_device *d = e->device[p->part[j].device].device;
                const char *c = d->ops->numerics(d, &op, NUMERICS_DECODE);
                if (strchr(c, '.'))
                    return oato_fail(err, OATO_EFILE,
                                     "--deterministic: %s would be computed as %s on %s, which "
                                     "promises no bits; run oato-plan with --deterministic too",
                                     e->graph.ops[i].name, c, e->device[p->part[j].device].info.id);
                if (class && strcmp(class, c) != 0)
                    return oato_fail(err, OATO_EFILE,
                                     "--deterministic: %s would be computed both as %s and as %s; "
                                     "run oato-plan with --deterministic too",
                                     e->graph.ops[i].name, class, c);
                class = c;
            }
        }
    }
    return OATO_OK;
}

/* The graph as the plan or the host fuses it, with what is skipped. */
static oato_status graph_cut(struct engine *e, const struct sparse_choice *choice,
                             struct oato_error *err)
{
    struct fusing fusing = {.choice = choice};
    oato_status status = OATO_OK;
    if (e->plan) {
        status = plan_apply(e->plan, e->model, &e->graph, err);
    } else {
        fusing.host = e->device[e->host].device;
        status = graph_fuse_all(&e->model->graph, e->observe ? nothing_fuses : device_fuses,
                                &fusing, &e->graph, err);
    }
    for (int32_t i = 0; i < e->graph.n_ops && !status && e->plan; i++)
        if (!sparse_fuses(choice, (enum op_kind)e->graph.ops[i].op.kind))
            status = oato_fail(err, OATO_EUSAGE,
                               "--sparse input: the plan has joined products in %s, which would "
                               "each skip inputs of their own; plan with this option or leave "
                               "--plan out",
                               e->graph.ops[i].name);
    if (status)
        return status;
    if (choice->given)
        return sparse_apply(&e->graph, choice, e->options->neurons, err);
    return e->plan ? sparse_apply_plan(&e->graph, e->plan, err) : OATO_OK;
}

static bool neurons_guessed(const struct engine *e)
{
    bool guessed = false;
    for (int32_t i = 0; i < e->graph.n_ops; i++)
        guessed = guessed || e->graph.ops[i].op.sparse == SPARSE_PREDICT;
    return guessed;
}

oato_status engine_load(struct engine *e, struct oato_error *err)
{
    int32_t bound[DEVICES_MAX] = {0};
    oato_status status = OATO_OK;
    const struct sparse_choice *choice = &e->options->sparse;
    if (e->plan && e->plan->n_devices > DEVICES_MAX)
        return oato_fail(err, OATO_EFILE, "the plan has %d devices, but this build runs at most %d",
                         e->plan->n_devices, DEVICES_MAX);
    if (gguf_header_only(e->model->gguf))
        return oato_fail(err, OATO_EFILE,
                         "%s: has no weights (header only): it can be planned for, but not run",
                         gguf_path(e->model->gguf));
    if (e->plan && e->observe)
        return oato_fail(err, OATO_EUSAGE, "values are seen without a plan only; leave it out");
    if (e->plan)
        status = plan_check_model(e->plan, e->model->gguf, err);
    if (!status && e->plan)
        status = plan_check_neurons(e->plan, err);
    if (!status)
        status = ranks_check(e, err);
    if (!status)
        status = devices_open(e, err);
    if (!status && e->plan)
        status = devices_bind(e, bound, err);
    if (!status)
        status = graph_cut(e, choice, err);
    if (!status)
        status = placements_create(e->plan, &e->graph, bound, e->host, &e->placements, err);
    if (!status)
        sparse_place(&e->graph, e->plan && !choice->given ? e->plan->neurons : e->options->neurons,
                     &e->placements);
    if (!status)
        status = states_choose(e, err);
    if (status)
        return status;
    e->deterministic = e->options->deterministic || (e->plan && e->plan->request.deterministic);
    if (e->deterministic && neurons_guessed(e))
        return oato_fail(err, OATO_EUSAGE,
                         "--deterministic: with --sparse %s only decode skips neurons, so prompts "
                         "have other bits; use --sparse exact",
                         choice->given ? sparse_mode_name(choice->mode) : "as in the plan");
    if (e->deterministic)
        return check_deterministic(e, err);
    check_libraries(e);
    return OATO_OK;
}

/* ------------------------------------------------------------------------------ lowering */

static bool op_supported(const void *user, int32_t device, const struct oato_op *op)
{
    const struct engine *e = user;
    const struct oato_device *d = e->device[device].device;
    return d->ops->supports(d, op);
}

static uint64_t slot_bytes(const void *user, int32_t device, const struct weight_slot *s)
{
    const struct engine *e = user;
    const struct oato_device *d = e->device[device].device;
    const int64_t rows = s->end - s->begin, k = s->col_end - s->col_begin;
    const struct weight_source source = {.dtype = s->tensor->dtype,
                                         .k = k,
                                         .n = rows,
                                         .row_end = rows,
                                         .use = s->use,
                                         .list = s->members};
    return weight_bytes(d, &source);
}

static uint64_t op_workspace(const void *user, int32_t device, const struct oato_op *op,
                             const struct op_size *size)
{
    const struct engine *e = user;
    const struct oato_device *d = e->device[device].device;
    return d->ops->workspace_bytes(d, op, size);
}

oato_status engine_lower(struct engine *e, struct oato_error *err)
{
    struct lowering_facts facts = {.n_devices = e->n_devices,
                                   .host = e->host,
                                   .user = e,
                                   .supports = op_supported,
                                   .numerics = op_numerics,
                                   .weight_bytes = slot_bytes,
                                   .workspace_bytes = op_workspace};
    for (int to = 0; to < e->n_devices; to++) {
        facts.id[to] = e->device[to].info.id;
        facts.values[to] = device_values(e->device[to].device);
        facts.streams[to] = e->device[to].device->ops->streams;
        facts.rows[to] = e->device[to].info.spans ? e->device[to].info.rows : NULL;
        facts.caches[to] = caches_possible(e, &e->device[to]);
        for (int from = 0; from < e->n_devices; from++)
            facts.reaches[to][from] = e->device[to].peers[from].device;
        e->device[to].lowered = &e->lowered.device[to];
    }
    const struct lowering_input in = {.graph = &e->graph,
                                      .n_spare = e->spare_ops,
                                      .placements = &e->placements,
                                      .facts = &facts,
                                      .limits = e->limits,
                                      .state = e->state,
                                      .kv = e->kv_dtype,
                                      .top_logits = e->top_logits};
    oato_status status = lowered_init(&in, &e->lowered, err);
    for (int phase = 0; phase < PHASE_COUNT && !status; phase++)
        status = lower(&in, (enum plan_phase)phase, &e->lowered, err);
    return status;
}

/* True for the same operator with the same arithmetic; offsets of values may differ. */
static bool records_alike(const struct oato_device *d, const struct program_record *a,
                          const struct program_record *b)
{
    if (a->kind != b->kind || a->graph_op != b->graph_op || a->part != b->part ||
        a->value != b->value || a->op.kind != b->op.kind)
        return false;
    return a->kind != RECORD_RUN || a->numerics == b->numerics ||
           !strcmp(d->ops->numerics(d, &a->op, (enum numerics_choice)a->numerics),
                   d->ops->numerics(d, &b->op, (enum numerics_choice)b->numerics));
}

/* How operators are split changes their bits, too. */
static bool placements_alike(const struct placement *a, const struct placement *b)
{
    if (a->n != b->n || a->axis != b->axis)
        return false;
    for (int i = 0; i < a->n; i++)
        if (a->part[i].device != b->part[i].device || a->part[i].begin != b->part[i].begin ||
            a->part[i].end != b->part[i].end)
            return false;
    return true;
}

bool engine_phases_alike(const struct engine *e)
{
    for (int32_t i = 0; i < e->n_devices; i++) {
        const struct lowered_program *a = &e->lowered.device[i].phase[PHASE_PREFILL];
        const struct lowered_program *b = &e->lowered.device[i].phase[PHASE_DECODE];
        if (a->n_records != b->n_records)
            return false;
        for (uint32_t r = 0; r < a->n_records; r++)
            if (!records_alike(e->device[i].device, &a->records[r], &b->records[r]))
                return false;
    }
    for (int32_t i = 0; i < e->graph.n_ops; i++)
        if (!placements_alike(&e->placements.phase[PHASE_PREFILL][i],
                              &e->placements.phase[PHASE_DECODE][i]))
            return false;
    return true;
}

/* -------------------------------------------------------------------------------- memory */

struct device_memory engine_memory(const struct engine *e, const struct engine_device *d)
{
    struct memory_limits limits = {.host = e->host,
                                   .pages = e->pool.pages[KV_ALL].n,
                                   .window_pages = e->pool.pages[KV_WINDOW].n,
                                   .kv = e->kv_dtype,
                                   .kept_bytes = e->kept_bytes};
    for (int32_t i = 0; i < e->n_devices; i++)
        limits.keeps[i] = e->device[i].info.keeps;
    return lowered_memory(&e->lowered, (int32_t)(d - e->device), &limits);
}

static oato_status check_fits(const struct engine *e, const struct engine_device *d,
                              struct oato_error *err)
{
    const struct device_memory m = engine_memory(e, d);
    const uint64_t need = device_memory_sum(&m), spare = d->info.free_bytes / 10 * 9;
    const bool budget = d->budget_bytes && d->budget_bytes < d->info.free_bytes;
    const uint64_t have = budget ? d->budget_bytes : d->info.free_bytes;
    if (need <= have)
        return OATO_OK;
    char way_out[320];
    if (budget || !e->plan)
        snprintf(way_out, sizeof way_out,
                 "plan with a smaller --budget, or use a smaller --context (now %d)", e->context);
    else /* others have taken it since it was planned */
        snprintf(way_out, sizeof way_out,
                 "stop what else uses it, or plan again: oato-plan %.160s --budget %s=%.0fMiB, and "
                 "the options of this plan",
                 gguf_path(e->model->gguf), d->info.id, (double)(spare >> 20));
    return oato_fail(err, OATO_EFIT,
                     "%s: needs %.1f MiB (weights %.1f, staging %.1f, KV %.1f, activations %.1f, "
                     "workspace %.1f) and may use %.1f MiB%s: %.1f MiB are missing; %s",
                     d->info.id, (double)need / MIB, (double)m.weights / MIB, (double)m.room / MIB,
                     (double)m.kv / MIB, (double)m.work / MIB, (double)m.workspace / MIB,
                     (double)have / MIB, budget ? "" : ", which are free now",
                     (double)(need - have) / MIB, way_out);
}

/* Reads the weights of the slots from *ahead on in the background until `limit` bytes are
 * requested; *ahead and *bytes are what was requested so far. */
static void weights_prefetch(const struct engine_device *d, uint32_t *ahead, uint64_t *bytes,
                             uint64_t limit)
{
    const struct lowered_device *low = d->lowered;
    for (; *ahead < low->n_slots && *bytes < limit; (*ahead)++) {
        const struct weight_slot *s = &low->slots[*ahead];
        if (s->use != WEIGHT_LOOKUP && !d->kept[*ahead] && !s->streamed && !s->spare)
            *bytes += slot_prefetch(s);
    }
}

static oato_status weights_prepare(const struct engine *e, struct engine_device *d,
                                   struct oato_error *err)
{
    const struct lowered_device *low = d->lowered;
    uint32_t ahead = 0;
    uint64_t asked = 0, prepared = 0;
    for (uint32_t i = 0; i < low->n_slots; i++) {
        const struct weight_slot *s = &low->slots[i];
        if (s->streamed || s->spare)
            continue;
        if (oato_interrupted)
            return oato_fail(err, OATO_NEGATIVE, "interrupted");
        weights_prefetch(d, &ahead, &asked, prepared + PREFETCH_BYTES);
        if (e->options->on_load)
            e->options->on_load(e->user, d->info.id, prepared, low->weight_bytes);
        prepared += s->bytes;
        struct weight_source source;
        void *gathered;
        oato_status status = slot_source(s, d->kept[i], &source, &gathered, err);
        if (!status)
            status = weight_prepare(d->device, &source, &d->weights[i], err);
        free(gathered);
        if (status)
            return oato_fail_at(err, "%s: loading %s", d->info.id, s->tensor->name);
    }
    return OATO_OK;
}

/* The host's prepared bytes of the same part, if the device uses the same layout; else NULL: the
 * device converts from the model's file, so that nothing is in memory twice. */
static const void *host_prepared(const struct engine *e, const struct engine_device *d,
                                 const struct weight_slot *s)
{
    const struct engine_device *host = &e->device[e->host];
    const char *has = weight_layout(host->device), *takes = weight_layout(d->device);
    const struct weight_slot *slots = host->lowered->slots;
    for (uint32_t i = 0; has && takes && !strcmp(has, takes) && i < host->lowered->n_slots; i++)
        if (!slots[i].streamed && !slots[i].spare && weight_slot_same(&slots[i], s))
            return weight_data(host->device, host->weights[i]);
    return NULL;
}

/* Must run after the host's weights are prepared. */
static oato_status weights_stage(const struct engine *e, struct engine_device *d,
                                 struct oato_error *err)
{
    for (uint32_t i = 0; i < d->lowered->n_slots; i++) {
        const struct weight_slot *s = &d->lowered->slots[i];
        if (!s->streamed)
            continue;
        struct weight_source source;
        const void *kept = s->stored ? d->kept[i] : host_prepared(e, d, s);
        oato_status status = slot_source(s, kept, &source, &d->gathered[i], err);
        if (s->stored) {
            source.stored.file = &d->stored;
            source.stored.offset = (uint64_t)((const uint8_t *)kept - d->prepared.data);
            source.stored.hash = d->hashes[i];
            source.stored.ring = d->ring;
            source.stored.ring_offset = s->ring_offset;
            source.stored.slices = d->info.is_host ? slot_slices(d, s) : 0;
        }
        if (!status)
            status = weight_stage(d->device, &source, d->staging, s->staging_offset, &d->weights[i],
                                  err);
        if (status)
            return oato_fail_at(err, "%s: streaming %s", d->info.id, s->tensor->name);
    }
    return OATO_OK;
}

/* The file that weights are streamed from is there, made now if it was not. */
static oato_status stored_open(const struct engine *e, struct engine_device *d,
                               struct oato_error *err)
{
    oato_status status = OATO_OK;
    if (!d->prepared.data)
        status = prepared_save(e, d, err);
    if (!status && !d->prepared.data)
        prepared_map(e, d, true);
    if (!status && !d->prepared.data)
        status = oato_fail(err, OATO_EIO,
                           "the file of prepared weights, from which some are streamed, cannot be "
                           "used; name another folder with --prepared-cache");
    return status ? status : direct_open(d->prepared_path, &d->stored, err);
}

uint64_t stored_bytes(const struct lowered_device *low)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < low->n_slots; i++)
        bytes += low->slots[i].stored ? low->slots[i].bytes : 0;
    return bytes;
}

void stored_count(const struct engine *e, struct engine_stats *out)
{
    for (int32_t i = 0; i < e->n_devices; i++) {
        const struct engine_device *d = &e->device[i];
        out->stored_bytes += stored_bytes(d->lowered);
        if (d->device->ops->stored_read)
            out->stored_read_bytes += d->device->ops->stored_read(d->device);
    }
}

static oato_status device_allocate(const struct engine *e, struct engine_device *d,
                                   struct oato_error *err)
{
    const struct device_ops *ops = d->device->ops;
    const struct engine_device *host = &e->device[e->host];
    const bool stored = stored_bytes(d->lowered);
    const bool keeps =
        ((e->options->prepared_cache && d->info.is_host) || stored) && weight_layout(d->device);
    const size_t n = (size_t)d->lowered->n_slots + 1;
    d->weights = calloc(n, sizeof(void *));
    d->kept = calloc(n, sizeof(void *));
    d->gathered = calloc(n, sizeof(void *));
    d->hashes = calloc(n, sizeof *d->hashes);
    if (!d->weights || !d->kept || !d->gathered || !d->hashes)
        return oato_fail_memory(err, n * sizeof(void *), "the table of weights");
    if (stored && (!keeps || !ops->stored_read))
        return oato_fail(err, OATO_EFILE,
                         "%s: the plan streams weights from a file to it, which it cannot do; run "
                         "oato-plan again without it (--devices) or with a larger --budget",
                         d->info.id);
    if (keeps)
        prepared_map(e, d, false);
    if (stored && stored_open(e, d, err))
        return err->status;
    weight_reserve(d->device, d->lowered->weight_bytes, d->lowered->n_slots);
    struct oato_error unkept; /* no failure: *err stays as it is */
    oato_status status = weights_prepare(e, d, err);
    if (!status && keeps && !d->prepared.data && prepared_save(e, d, &unkept))
        warn_line(e->warn, e->user, "%s: the prepared weights are not kept", unkept.text);
    if (!status && d->lowered->n_kv)
        status = ops->kv_create(d->device, d->lowered->kv_shapes, d->lowered->n_kv, e->kv_dtype,
                                e->pool.pages[KV_ALL].n, &d->kv, err);
    if (!status)
        status = ops->alloc(d->device, d->arena_bytes, &d->arena, err);
    if (!status && d->lowered->staging_bytes)
        status = ops->alloc(d->device, d->lowered->staging_bytes, &d->staging, err);
    if (!status && d->lowered->ring_bytes)
        status = host->device->ops->alloc(host->device, d->lowered->ring_bytes, &d->ring, err);
    return status;
}

void ring_free(const struct engine *e, struct engine_device *d)
{
    if (d->ring) {
        struct oato_device *host = e->device[e->host].device;
        host->ops->free(host, d->ring, d->lowered->ring_bytes);
    }
}

/* Binds lowering's programs to the memory that the device and the engine allocated for them. */
static oato_status programs_bind(struct engine *e, int32_t index, struct oato_error *err)
{
    struct engine_device *d = &e->device[index];
    const struct engine_device *host = &e->device[e->host];
    oato_status status = OATO_OK;
    for (int32_t j = 0; j < e->n_devices; j++) {
        d->peers[j].arena = e->device[j].arena;
        d->peers[j].arena_bytes = e->device[j].arena_bytes;
    }
    for (int phase = 0; phase < PHASE_COUNT && !status; phase++) {
        const struct lowered_program *p = &d->lowered->phase[phase];
        d->program[phase] = (struct program){
            .records = p->records,
            .n_records = p->n_records,
            .spans = p->spans,
            .n_spans = p->n_spans,
            .span_values = p->span_values,
            .n_span_values = p->n_span_values,
            .n_signals = p->n_signals,
            .max_tokens = e->limits.tokens[phase],
            .max_rows = e->limits.rows[phase],
            .max_states = e->limits.states[phase],
            .max_seqs = e->limits.seqs,
            .weights = d->weights,
            .n_weights = d->lowered->n_slots,
            .n_caches = e->lowered.n_caches,
            .arena = d->arena,
            .host_arena = host->arena,
            .host_arena_bytes = host->arena_bytes,
            .peers = d->peers,
            .workspace_bytes = d->lowered->workspace_bytes,
            .kv = d->kv,
            .host_kv = host->kv,
            .ranks = e->ranks,
            .device_ids = e->device_ids,
        };
        if (p->n_records)
            status = d->device->ops->compile(d->device, &d->program[phase], index,
                                             &d->compiled[phase], err);
    }
    return status;
}

void engine_size(struct engine *e)
{
    for (int32_t i = 0; i < e->n_devices; i++) {
        struct engine_device *d = &e->device[i];
        for (int32_t j = 0; j < d->lowered->n_kv; j++) {
            struct kv_layer_shape *s = &e->lowered.device[i].kv_shapes[j];
            s->pages = e->pool.pages[s->window ? KV_WINDOW : KV_ALL].n;
            e->kv_filed = e->kv_filed || s->filed;
        }
        d->kv_bytes = engine_memory(e, d).kv;
        d->arena_bytes = d->lowered->arena_bytes + ARENA_SLACK;
    }
}

oato_status engine_allocate(struct engine *e, struct oato_error *err)
{
    oato_status status = OATO_OK;
    for (int32_t i = 0; i < e->n_devices && !status; i++) {
        struct engine_device *d = &e->device[i];
        d->device->ops->info(d->device, &d->info); /* libraries may have taken memory */
        status = check_fits(e, d, err);
    }
    for (int32_t i = 0; i < e->n_devices && !status; i++)
        status = device_allocate(e, &e->device[i], err);
    for (int32_t i = 0; i < e->n_devices && !status; i++)
        status = weights_stage(e, &e->device[i], err);
    for (int32_t i = 0; i < e->n_devices && !status; i++)
        status = programs_bind(e, i, err);
    return status;
}
