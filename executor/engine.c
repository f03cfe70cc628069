/*
 * engine.c - opening, stepping and closing. A step fills the step descriptor, hands it to every
 * device that has a program, the host last because it runs on the calling thread, and waits until
 * all are done. Nothing is allocated or looked up by name here once the engine is open.
 */
#include "executor/executor_internal.h"

#include <stdlib.h>
#include <string.h>

/* Steps of 256 tokens prefill as fast as steps of 512 on a CPU, and batches decode 5 to 9 % faster
 * beside the smaller arena. */
enum { DEFAULT_CONTEXT = 4096, DEFAULT_UBATCH = 256 };

static int32_t first_positive(int32_t a, int32_t b, int32_t c)
{
    return a > 0 ? a : b > 0 ? b : c;
}

static oato_status limits_set(struct engine *e, struct oato_error *err)
{
    const struct engine_options *o = e->options;
    const struct plan_request *r = e->plan ? &e->plan->request : NULL;
    if (r && (r->context < 1 || r->context > REQUEST_CONTEXT_MAX || r->batch < 1 ||
              r->batch > REQUEST_BATCH_MAX || r->ubatch < 1 || r->ubatch > REQUEST_UBATCH_MAX))
        return oato_fail(err, OATO_EFILE,
                         "the plan's context %d, batch %d and ubatch %d are not from 1 to %d, %d "
                         "and %d; run oato-plan again",
                         r->context, r->batch, r->ubatch, REQUEST_CONTEXT_MAX, REQUEST_BATCH_MAX,
                         REQUEST_UBATCH_MAX);
    e->context = first_positive(o->context, r ? r->context : 0, DEFAULT_CONTEXT);
    e->ubatch = first_positive(o->ubatch, r ? r->ubatch : 0, DEFAULT_UBATCH);
    e->max_seqs = first_positive(o->seqs, r ? r->batch : 0, 1);
    e->kv_dtype = o->kv_given ? o->kv : r ? r->kv : DT_F16;
    if (e->max_seqs > REQUEST_BATCH_MAX || e->ubatch > REQUEST_UBATCH_MAX)
        return oato_fail(err, OATO_EUSAGE,
                         "%d sequences and %d tokens per step exceed the limits of %d and %d; use "
                         "a smaller --batch or --ubatch",
                         e->max_seqs, e->ubatch, REQUEST_BATCH_MAX, REQUEST_UBATCH_MAX);
    if (e->context > REQUEST_CONTEXT_MAX)
        return oato_fail(
            err, OATO_EUSAGE,
            "a context of %d positions exceeds the limit of %d; use a smaller --context",
            e->context, REQUEST_CONTEXT_MAX);
    if (e->kv_dtype != DT_F16 && e->kv_dtype != DT_F32 && e->kv_dtype != DT_Q8_0)
        return oato_fail(err, OATO_EUSAGE, "the KV cache can be F16, Q8_0 or F32, not %s",
                         dtype_name(e->kv_dtype));
    if (e->kv_dtype == DT_Q8_0 && e->model->shape.head_dim % 32)
        return oato_fail(err, OATO_EUSAGE,
                         "--kv q8_0 needs a head size that is a multiple of 32, but this model's "
                         "is %d; use --kv f16",
                         (int)e->model->shape.head_dim);
    if (e->context > e->model->shape.context_length * (int64_t)e->max_seqs && !o->context)
        e->context = (int32_t)(e->model->shape.context_length * e->max_seqs);
    const int64_t learned = e->model->shape.positions_most * (int64_t)e->max_seqs;
    if (learned && e->context > learned && o->context)
        return oato_fail(err, OATO_EUSAGE,
                         "this model runs up to %d positions only; use --context %lld or less",
                         e->model->shape.positions_most, (long long)learned);
    if (learned && e->context > learned)
        e->context = (int32_t)learned;
    if (e->ubatch > e->context)
        e->ubatch = e->context;
    if (e->ubatch < e->max_seqs)
        e->ubatch = e->max_seqs;
    e->max_rows = first_positive(o->rows, o->embeddings ? e->ubatch : 0, e->max_seqs);
    if (e->max_rows < e->max_seqs)
        e->max_rows = e->max_seqs;
    e->max_states = e->states && e->ubatch > e->max_rows ? e->ubatch : e->max_rows;
    e->limits = (struct lowering_limits){.tokens = {e->ubatch, e->max_seqs},
                                         .rows = {e->max_rows, e->max_seqs},
                                         .states = {e->max_states, e->max_seqs},
                                         .seqs = e->max_seqs,
                                         .context = e->context};
    if (o->top_logits < 0)
        return oato_fail(err, OATO_EUSAGE, "top_logits is %d; it must be 0 or more", o->top_logits);
    /* a candidate is two floats, so from vocab/2 on the full row is no larger */
    if (o->top_logits < e->model->shape.vocab / 2 && !o->embeddings)
        e->top_logits = o->top_logits;
    return OATO_OK;
}

static oato_status step_arrays(struct engine *e, struct oato_error *err)
{
    const size_t tokens = (size_t)e->ubatch, rows = (size_t)e->max_states;
    e->ids = arena_alloc(&e->arena, tokens, sizeof *e->ids);
    e->positions = arena_alloc(&e->arena, tokens, sizeof *e->positions);
    e->seq_of = arena_alloc(&e->arena, tokens, sizeof *e->seq_of);
    e->rows = arena_alloc(&e->arena, rows, sizeof *e->rows);
    e->step_seqs = arena_alloc(&e->arena, (size_t)e->max_seqs, sizeof *e->step_seqs);
    e->row_number = arena_alloc(&e->arena, rows, sizeof *e->row_number);
    e->result = arena_alloc(&e->arena, rows, sizeof *e->result);
    if (!e->ids || !e->positions || !e->seq_of || !e->rows || !e->step_seqs || !e->row_number ||
        !e->result)
        return oato_fail_memory(err, tokens * 3 * sizeof *e->ids, "the step descriptor");
    return OATO_OK;
}

/* Up to what it takes of the devices; engine_close also after an error. NULL: memory is short. */
static struct engine *engine_begin(const struct model *m, const struct plan *plan,
                                   const struct engine_options *options, warn_fn warn, void *user,
                                   struct oato_error *err)
{
    struct engine *e = calloc(1, sizeof *e);
    if (!e) {
        oato_fail_memory(err, sizeof *e, "the engine");
        return NULL;
    }
    e->model = m;
    e->plan = plan;
    e->options = options;
    e->warn = warn;
    e->user = user;
    e->embeddings = options->embeddings;
    e->states = options->states && !options->embeddings;
    e->observe = options->observe;
    e->observe_user = options->observe_user;
    arena_init(&e->arena);
    pthread_mutex_init(&e->cores.lock, NULL);
    oato_status status = limits_set(e, err);
    if (!status)
        status = engine_load(e, err);
    if (!status)
        status = kv_pool_init(&e->pool, &e->arena, e->context, e->max_seqs, e->ubatch,
                              graph_window(&e->graph), err);
    if (!status && !options->no_prefixes)
        status = prefix_init(&e->pool.prefix, &e->arena, e->pool.pages[KV_ALL].n,
                             e->pool.pages[KV_WINDOW].n, err);
    if (!status && graph_state_bytes(&e->graph))
        status = state_pool_init(&e->pool.state, &e->arena, e->max_seqs, err);
    if (!status)
        status = step_arrays(e, err);
    if (!status)
        status = engine_lower(e, err);
    if (!status)
        status = caches_init(e, err);
    if (!status)
        status = results_prepare(e, err);
    if (!status)
        engine_size(e);
    err->status = status;
    return e;
}

oato_status engine_open(const struct model *m, const struct plan *plan,
                        const struct engine_options *options, warn_fn warn, void *user,
                        struct engine **out, struct oato_error *err)
{
    uint64_t begin_ns = now_ns();
    struct engine *e = engine_begin(m, plan, options, warn, user, err);
    *out = NULL;
    if (!e)
        return err->status;
    oato_status status = err->status;
    if (!status)
        status = engine_allocate(e, err);
    if (!status)
        seq_sizes_init(e);
    if (!status)
        status = prompts_open(e, err);
    e->options = NULL;
    e->load_ns = now_ns() - begin_ns;
    if (status)
        engine_close(e);
    else
        *out = e;
    return status;
}

oato_status engine_measure(const struct model *m, const struct plan *plan,
                           const struct engine_options *options, warn_fn warn, void *user,
                           struct engine_stats *out, struct oato_error *err)
{
    struct engine *e = engine_begin(m, plan, options, warn, user, err);
    const oato_status status = err->status;
    if (e && !status)
        engine_get_stats(e, out);
    engine_close(e);
    return status;
}

static void device_close(const struct engine *e, struct engine_device *d)
{
    if (!d->device)
        return;
    const struct device_ops *ops = d->device->ops;
    for (int phase = 0; phase < PHASE_COUNT; phase++)
        if (d->compiled[phase])
            ops->release(d->device, d->compiled[phase]);
    for (uint32_t i = 0; d->weights && i < d->lowered->n_slots; i++)
        if (d->weights[i])
            weight_free(d->device, d->weights[i]);
    if (d->kv)
        ops->kv_free(d->device, d->kv);
    if (d->arena)
        ops->free(d->device, d->arena, d->arena_bytes);
    if (d->staging)
        ops->free(d->device, d->staging, d->lowered->staging_bytes);
    ring_free(e, d);
    file_unmap(&d->prepared);
    if (d->stored.path)
        direct_close(&d->stored);
    free(d->hashes);
    free(d->prepared_path);
    free(d->weights);
    for (uint32_t i = 0; d->gathered && i < d->lowered->n_slots; i++)
        free(d->gathered[i]);
    free(d->gathered);
    free(d->kept);
    ops->close(d->device);
}

void engine_close(struct engine *e)
{
    if (!e)
        return;
    prompts_close(e);
    ranks_end(e);
    spares_free(e);                      /* before the devices: the memory may be theirs */
    for (int pass = 0; pass < 2; pass++) /* the host last: other devices may still use its memory */
        for (int i = 0; i < e->n_devices; i++)
            if ((i == e->host) == (pass == 1))
                device_close(e, &e->device[i]);
    lowered_free(&e->lowered);
    placements_free(&e->placements);
    graph_free(&e->graph);
    free(e->pool.tables);
    arena_free(&e->arena);
    free(e->kept);
    pthread_mutex_destroy(&e->cores.lock);
    free(e);
}

void engine_warnings(const struct engine *e, warn_fn warn, void *user)
{
    for (int i = 0; i < e->n_devices; i++) {
        const struct oato_device *d = e->device[i].device;
        const char *text = d->ops->warning ? d->ops->warning(d) : NULL;
        if (text)
            warn(user, text);
    }
}

/* ----------------------------------------------------------------------------------- steps */

static oato_status input_check(const struct engine *e, const struct engine_input *inputs, int32_t i,
                               struct oato_error *err)
{
    const struct engine_input *in = &inputs[i];
    oato_status status = engine_seq_check(e, in->seq, err);
    if (status)
        return status;
    if (in->logits == LOGITS_STATES && ((!e->states && !e->embeddings) || !in->prompt))
        return oato_fail(err, OATO_EUSAGE,
                         "sequence %d: this engine gives no hidden states of such an input",
                         in->seq);
    if (in->n < 1)
        return oato_fail(err, OATO_EUSAGE,
                         "sequence %d: cannot append %d tokens; at least 1 is needed", in->seq,
                         in->n);
    const int32_t most = e->model->shape.positions_most;
    if (most && e->pool.seqs[in->seq].length + in->n > most)
        return oato_fail(err, OATO_EFIT,
                         "sequence %d: this model runs up to %d positions only; shorten the text",
                         in->seq, most);
    for (int32_t j = 0; j < i; j++)
        if (inputs[j].seq == in->seq)
            return oato_fail(err, OATO_EUSAGE, "duplicate sequence %d in a step", in->seq);
    for (int32_t j = 0; j < in->n; j++)
        if (in->ids[j] < 0 || in->ids[j] >= e->model->shape.vocab)
            return oato_fail(err, OATO_EUSAGE, "token id %d is outside the vocabulary of %d",
                             in->ids[j], e->model->shape.vocab);
    return OATO_OK;
}

/* Accelerators first: they wait for the host's events, the host runs in submit. */
static oato_status step_run(struct engine *e, enum plan_phase phase, struct step *step,
                            struct oato_error *err)
{
    struct oato_device *host = e->device[e->host].device;
    const uint64_t waited_ns = host->ops->waited_ns(host);
    step->clock_ns = host->ops->clock_ns(host);
    if (step->clock_ns < e->end_ns) /* the host has waited for the whole last step */
        step->clock_ns = e->end_ns;
    for (int i = 0; i < e->n_devices; i++)
        e->bases[i] = atomic_load_explicit(&e->timelines[i]->value, memory_order_acquire);
    oato_status status = OATO_OK;
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < e->n_devices && !status; i++) {
            struct engine_device *d = &e->device[i];
            if (d->compiled[phase] && (i == e->host) == (pass == 1))
                status = d->device->ops->submit(d->device, d->compiled[phase], step, err);
        }
    }
    const uint64_t host_end_ns = host->ops->clock_ns(host); /* its part ran in submit */
    if (e->device[e->host].compiled[phase] && !status)
        e->host_busy_ns += host_end_ns - step->clock_ns - (host->ops->waited_ns(host) - waited_ns);
    if (status) /* release devices that wait for records that will not run */
        for (int i = 0; i < e->n_devices; i++)
            timeline_fail(e->timelines[i], TIMELINE_STRANDED);
    uint64_t end = step->clock_ns;
    bool cause_known = status && atomic_load(&e->timelines[e->host]->failed) == TIMELINE_DIED;
    for (int i = 0; i < e->n_devices; i++) {
        const struct device_ops *ops = e->device[i].device->ops;
        struct oato_error own;
        if (!e->device[i].compiled[phase])
            continue;
        if (ops->finish(e->device[i].device, &own)) {
            bool cause = atomic_load(&e->timelines[i]->failed) == TIMELINE_DIED;
            if (!status || (cause && !cause_known))
                *err = own;
            cause_known = cause_known || cause;
            status = err->status;
        }
        uint64_t clock = i == e->host ? host_end_ns : ops->clock_ns(e->device[i].device);
        end = clock > end ? clock : end;
    }
    e->clock_ns += end - step->clock_ns;
    e->end_ns = end;
    e->failed = status != OATO_OK;
    return status;
}

/* Runs the decode inputs first, then the prefill inputs; a single sub-step if only one phase occurs
 * or both are alike. */
static oato_status steps_run(struct engine *e, const struct engine_input *inputs, int32_t n,
                             uint32_t phases, struct oato_error *err)
{
    const uint32_t both = 1u << PHASE_DECODE | 1u << PHASE_PREFILL;
    const bool mixed = phases == both && !e->phases_alike;
    oato_status status = e->ranks ? collective_alive(e->ranks, err) : OATO_OK;
    e->n_rows = 0;
    for (int pass = mixed ? 0 : 1; pass < 2 && !status; pass++) {
        const enum plan_phase phase =
            pass == 0 || phases == 1u << PHASE_DECODE ? PHASE_DECODE : PHASE_PREFILL;
        struct step step = {0};
        step_fill(e, inputs, n, mixed ? 1u << phase : phases, &step);
        step.picks = step.picks && e->lowered.candidates[phase];
        if (!mixed || pass == 0) { /* copies shared pages before anything is stored */
            step.n_page_copies = e->pool.n_copies;
            step.page_copy = e->pool.copies;
            step.n_state_copies = e->pool.state.n_copies;
            step.state_copy = e->pool.state.copies;
        }
        status = ranks_tell(e, phase, &step, err);
        if (!status)
            status = step_run(e, phase, &step, err);
        if (!status)
            results_take(e, phase, &step, mixed && pass == 0);
        if (!status && phase == PHASE_DECODE && e->lowered.n_caches)
            status = caches_step(e, &step, err);
    }
    if (e->ranks && status) {
        e->failed = true;
        collective_leave(e->ranks, err);
    }
    return status;
}

oato_status step_follow(struct engine *e, enum plan_phase phase, struct step *step,
                        struct oato_error *err)
{
    step_bind(e, step);
    oato_status status = step_run(e, phase, step, err);
    if (!status && phase == PHASE_DECODE && e->lowered.n_caches)
        status = caches_step(e, step, err);
    if (status)
        collective_leave(e->ranks, err);
    return status;
}

/* A step with fewer is mostly what every step takes. */
enum { SPEED_TOKENS = 32 };
#define SPEED_WEIGHT 0.1 /* of one more step */

static void prefill_seen(struct engine *e, double ns)
{
    e->prefill_ns += e->prefill_ns > 0 ? SPEED_WEIGHT * (ns - e->prefill_ns) : ns;
}

oato_status engine_step(struct engine *e, const struct engine_input *inputs, int32_t n,
                        struct oato_error *err)
{
    oato_status status = OATO_OK;
    int64_t tokens = 0, rows = 0; /* rows: of logits */
    uint32_t phases = 0;
    if (e->failed)
        return oato_fail(err, OATO_EDEVICE,
                         "a device failed in an earlier step; open the engine again");
    if (n < 1 || n > e->max_seqs)
        return oato_fail(err, OATO_EUSAGE, "a step of %d sequences; 1 to %d are possible", n,
                         e->max_seqs);
    for (int32_t i = 0; i < n && !status; i++) {
        status = input_check(e, inputs, i, err);
        tokens += inputs[i].n;
        rows += input_rows(&inputs[i]) - input_states(e, &inputs[i]);
        phases |= 1u << input_phase(&inputs[i]);
    }
    if (!status && (tokens > e->ubatch || rows > e->max_rows))
        status = oato_fail(
            err, OATO_EUSAGE,
            "a step of %lld tokens and %lld rows of logits exceeds the limits of %d and %d",
            (long long)tokens, (long long)rows, e->ubatch, e->max_rows);
    if (status)
        return status;
    for (int32_t i = 0; i < n && !status; i++)
        status = kv_reserve(&e->pool, inputs[i].seq, inputs[i].n, err);
    const uint64_t begin_ns = now_ns();
    if (!status)
        status = steps_run(e, inputs, n, phases, err);
    if (status) {
        kv_rollback(&e->pool);
        return status;
    }
    kv_commit(&e->pool);
    for (int32_t i = 0; i < n; i++) {
        struct kv_seq *s = &e->pool.seqs[inputs[i].seq];
        prefix_put(&e->pool.prefix, s, inputs[i].ids, inputs[i].n,
                   input_phase(&inputs[i]) == PHASE_DECODE && !e->phases_alike);
        s->length += inputs[i].n;
    }
    for (int32_t i = 0; i < n; i++)
        state_keep(&e->pool, inputs[i].seq, inputs[i].prompt);
    if (phases == 1u << PHASE_PREFILL && tokens >= SPEED_TOKENS)
        prefill_seen(e, (double)(now_ns() - begin_ns) / (double)tokens);
    return OATO_OK;
}

oato_status
engine_feed(struct engine *e, int32_t seq, const int32_t *ids, int32_t n, enum engine_logits logits,
            void (*on_rows)(void *user, const float *logits, int32_t first, int32_t rows),
            void *user, struct oato_error *err)
{
    int32_t chunk = logits == LOGITS_ALL && e->max_rows < e->ubatch ? e->max_rows : e->ubatch;
    for (int32_t at = 0, now; at < n; at += now) {
        if (oato_interrupted)
            return oato_fail(err, OATO_NEGATIVE, "interrupted");
        now = engine_seq_piece(e, seq, n - at < chunk ? n - at : chunk, n - at);
        bool last = at + now == n;
        struct engine_input in = {
            seq, ids + at, now, logits == LOGITS_ALL || last ? logits : LOGITS_NONE, e->ubatch > 1};
        oato_status status = engine_step(e, &in, 1, err);
        if (status)
            return status;
        if (on_rows && e->n_rows)
            on_rows(user, e->result[0].data, logits == LOGITS_ALL ? at : n - 1, e->n_rows);
    }
    return OATO_OK;
}

/* ----------------------------------------------------------------------------- information */

void engine_get_stats(const struct engine *e, struct engine_stats *out)
{
    memset(out, 0, sizeof *out);
    out->vocab = e->model->shape.vocab;
    out->row_width = e->graph.values[e->graph.logits].width;
    out->states = e->states ? e->max_states : e->embeddings ? e->max_rows : 0;
    out->state_width = e->graph.values[e->states ? e->state : e->graph.logits].width;
    out->embeddings = e->embeddings;
    out->context = e->context;
    out->ubatch = e->ubatch;
    out->seqs = e->max_seqs;
    out->rows = e->max_rows;
    out->kv = e->kv_dtype;
    out->n_devices = e->n_devices;
    for (int i = 0; i < e->n_devices; i++) {
        const struct engine_device *d = &e->device[i];
        const struct device_memory memory = engine_memory(e, d);
        out->device[i] =
            (struct engine_device_stats){.info = d->info,
                                         .weight_bytes = d->lowered->weight_bytes,
                                         .kv_bytes = d->kv_bytes,
                                         .arena_bytes = d->arena_bytes,
                                         .workspace_bytes = d->lowered->workspace_bytes,
                                         .staging_bytes = memory.room,
                                         .memory_bytes = device_memory_sum(&memory),
                                         .locked_bytes = memory.locked};
    }
    out->pages = e->pool.pages[KV_ALL].n;
    out->pages_free = e->pool.pages[KV_ALL].n_free;
    out->pages_cached = kv_pages_cached(&e->pool);
    memcpy(out->candidates, e->lowered.candidates, sizeof out->candidates);
    memcpy(out->copies, e->lowered.copies, sizeof out->copies);
    memcpy(out->copy_bytes, e->lowered.copy_bytes, sizeof out->copy_bytes);
    memcpy(out->stream_bytes, e->lowered.stream_bytes, sizeof out->stream_bytes);
    stored_count(e, out);
    out->experts = e->experts;
    out->load_ns = e->load_ns;
    for (int i = 0; i < e->n_devices; i++)
        out->mapped_bytes += e->device[i].prepared.bytes;
    out->clock_ns = e->clock_ns;
    out->host_busy_ns = e->host_busy_ns;
}

void engine_dump_programs(const struct engine *e, FILE *out)
{
    static const char *const names[PHASE_COUNT] = {"prefill", "decode"};
    for (int phase = 0; phase < PHASE_COUNT; phase++) {
        for (int i = 0; i < e->n_devices; i++) {
            const struct program *p = &e->device[i].program[phase];
            if (!p->n_records)
                continue;
            fprintf(out, "# %s on %s: %u records, %u signals\n", names[phase], e->device[i].info.id,
                    p->n_records, p->n_signals);
            program_print(p, e->device[i].info.id, out);
        }
    }
}

struct oato_device *engine_borrow_device(struct engine *e, const char *id)
{
    for (int i = 0; i < e->n_devices; i++)
        if (!strcmp(e->device[i].info.id, id))
            return e->device[i].device;
    return NULL;
}
