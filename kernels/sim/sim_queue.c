/*
 * sim_queue.c - the queue of a simulated device: a thread that does what was put, in order, long
 * after the caller has gone on. Arithmetic is done by the CPU's kernels with one thread, hence with
 * the CPU's bits.
 *
 * The virtual clock moves by declared costs alone, never by the time that the arithmetic takes:
 *
 * - operator: launch + max(bytes / read rate, arithmetic / flops); where neurons are skipped, of
 *   those that some row has active. In a span, in place of launches, unit once a call; rows there
 *   as in steps of `rows`.
 * - copy: latency + bytes / link rate; from another simulated device / peer rate.
 * - stream: the same as a copy, by a copy engine of its own, which begins when the record is
 *   reached and the stream before it is done; who reads the weight or KV waits for the end. What
 *   comes from a file begins when it is there: storage is real, and so is that wait.
 * - refill: the same engine, from when it was asked for.
 * - wait: to the clock of the awaited event, if that is later.
 * - step: to the host's clock at its begin, if that is later.
 *
 * A record that has nothing to do in a step (no rows, no pages to copy) costs nothing.
 */
#include "kernels/sim/sim_internal.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* ------------------------------------------------------------------------------- clock ---- */

static void clock_to(struct sim_device *s, uint64_t ns)
{
    if (ns > atomic_load_explicit(&s->clock_ns, memory_order_relaxed))
        atomic_store(&s->clock_ns, ns);
}

static void clock_add(struct sim_device *s, double seconds)
{
    atomic_fetch_add(&s->clock_ns, (uint64_t)(seconds * 1e9 + 0.5));
}

static double copy_cost(const struct sim_spec *s, uint64_t bytes, double bytes_per_s)
{
    return s->latency_s + (double)bytes / bytes_per_s;
}

/* Bytes that one KV_COPY reads and writes. */
static double page_copy_bytes(const struct kv_cache *kv, const struct step *step)
{
    double position[2] = {0}, bytes = 0, states = 0;
    for (int32_t l = 0; l < kv->n_layers; l++) {
        states += (double)kv->layers[l].state * sizeof(float);
        if (!kv->layers[l].staged)
            position[kv->layers[l].window > 0] += (double)kv_page_bytes(kv, l) / KV_PAGE_POSITIONS;
    }
    for (int32_t i = 0; i < step->n_page_copies; i++)
        bytes += position[step->page_copy[i].window] * step->page_copy[i].positions;
    return 2 * (bytes + states * step->n_state_copies);
}

/* Of what an operator with a cache of experts is expected to read and compute: what it did, by the
 * choice of the step's tokens. */
static void cached_shares(const struct program_record *r, const struct step *step,
                          const float *choice, double *read, double *computed)
{
    const struct oato_op *op = &r->op;
    const int32_t T = record_rows(r, step), used = op->experts_used;
    const int32_t *slot = step->cached[r->cache];
    uint8_t seen[EXPERTS_MAX] = {0};
    int32_t pairs = 0, experts = 0;
    for (int32_t p = 0; p < T * used; p++) {
        const int32_t e = (int32_t)choice[p / used * 2 * used + p % used];
        if (e < op->expert_first || e >= op->expert_first + op_experts_held(op) ||
            (slot[e] >= 0) != (op->expert_slots > 0))
            continue;
        pairs++;
        experts += !seen[e];
        seen[e] = 1;
    }
    *read = experts / op_experts_read(op, T);
    *computed = (double)pairs / T / used * op->experts / op_experts_held(op);
}

/* Neurons that a record did not skip in every row, at most; values: its list, its input or, of a
 * GATE_UP, its output. */
static int32_t active_neurons(const struct program_record *r, int32_t rows, const float *values)
{
    const int32_t n = op_neurons(&r->op);
    const bool listed = r->op.sparse == SPARSE_PREDICT, gates = r->op.kind == OP_GATE_UP;
    int64_t active = 0;
    for (int32_t row = 0; row < rows && listed; row++)
        active += (int64_t)values[(size_t)row * (size_t)(n + 1)];
    for (int32_t i = 0; i < n && !listed; i++) {
        bool any = false;
        for (int32_t row = 0; row < rows && !any; row++)
            any =
                fabsf(values[(size_t)row * (size_t)n + (size_t)i]) > (gates ? 0 : r->op.threshold);
        active += any;
    }
    return active < 1 ? 1 : active < n ? (int32_t)active : n;
}

static double rows_cost(const struct sim_spec *s, const struct oato_op *op, int32_t rows)
{
    const struct op_size size = {.rows = rows, .seqs = 1};
    const double read_s = op_bytes(op, &size) / s->read_bytes_per_s,
                 compute_s = op_flops(op, &size) / s->flops_per_s;
    return rows ? fmax(read_s, compute_s) : 0;
}

/* Of a record in a span. */
static double unit_cost(const struct sim_spec *s, const struct program_record *r,
                        enum unit_place place, const struct step *step)
{
    const struct row_steps t = row_steps(s->rows, record_rows(r, step));
    return (place == UNIT_BEGINS ? s->unit_s * row_calls(t) : 0) +
           t.whole * rows_cost(s, &r->op, t.largest) + rows_cost(s, &r->op, t.rest);
}

/* choice: of experts, where a cache has some of them; neurons: NULL, or as active_neurons has them.
 */
static double run_cost(const struct sim_spec *s, const struct program_record *r,
                       const struct kv_cache *kv, const struct step *step, const float *choice,
                       const float *neurons)
{
    struct op_size size = record_size(r, step);
    if (neurons)
        size.active = active_neurons(r, size.rows, neurons);
    bool pages = r->op.kind == OP_KV_COPY && kv;
    double bytes = pages ? page_copy_bytes(kv, step) : op_bytes(&r->op, &size);
    double read = 1, computed = 1;
    if (r->op.expert_slots && choice)
        cached_shares(r, step, choice, &read, &computed);
    double read_s = bytes * read / s->read_bytes_per_s;
    double compute_s = op_flops(&r->op, &size) * computed / s->flops_per_s;
    return s->launch_s + (read_s > compute_s ? read_s : compute_s);
}

/* ------------------------------------------------------------------------------ records --- */

/* The kernels are given readable memory: weights through a table made for this one record. */
static void run_op(struct sim_device *s, const struct compiled *c, const struct program_record *r,
                   const struct step *step)
{
    const struct program *p = c->program;
    const enum unit_place place = c->units ? c->units[r - p->records] : UNIT_NONE;
    const bool widens = s->spec.halves && sim_values_bytes(p, r) && !s->timing_only;
    struct program_record real = widens ? sim_values_widen(r, step, c->arena, s->wide) : *r;
    const bool shared = s->spec.kv_rows && op_has_kv(&r->op) && !s->timing_only;
    struct oato_weight *weights[RECORD_WEIGHTS] = {NULL};
    for (uint32_t i = 0; i < r->n_weights; i++) {
        if (r->weight[i] == UINT32_MAX)
            continue;
        clock_to(s, c->ready_ns[r->weight[i]]);
        weights[i] = weight_real(p->weights[r->weight[i]]);
        real.weight[i] = i;
    }
    if (op_has_kv(&r->op) && c->kv_ready_ns)
        clock_to(s, c->kv_ready_ns[r->kv_layer]);
    struct cpu_context context = {
        .kernels = s->kernels,
        .arena = widens ? s->wide : c->arena,
        .weights = weights,
        .kv = shared  ? &c->shared
              : p->kv ? &c->kv
                      : NULL,
        .workspace = s->workspace ? s->workspace->real : NULL,
        .workspace_bytes = s->workspace ? s->workspace->bytes : 0,
        .rope = &s->rope,
    };
    if (shared)
        sim_kv_convert(&c->kv, &c->shared, r->kv_layer, step, true, false);
    if (!s->timing_only)
        cpu_run_alone(&context, &real, step);
    if (shared && r->op.kind == OP_KV_STORE)
        sim_kv_convert(&c->shared, &c->kv, r->kv_layer, step, false, true);
    if (widens)
        sim_values_round(r, &real, step, c->arena, s->wide);
    const void *choice = s->timing_only || !r->op.expert_slots ? NULL : context.arena + real.in[1];
    const bool listed = r->op.sparse == SPARSE_PREDICT, gates = r->op.kind == OP_GATE_UP;
    const bool skips =
        !s->timing_only && (listed || (r->op.sparse == SPARSE_ABOVE && r->op.threshold >= 0));
    const void *neurons = context.arena + (listed ? real.in[1] : gates ? real.out[0] : real.in[0]);
    clock_add(s, place ? unit_cost(&s->spec, r, place, step)
                       : run_cost(&s->spec, r, context.kv, step, choice, skips ? neurons : NULL));
}

static void run_copy(struct sim_device *s, const struct compiled *c, const struct program_record *r,
                     const struct step *step)
{
    const bool peer = record_is_peer(r->kind);
    uint8_t *other = peer ? c->peer[r->peer] : c->program->host_arena;
    const bool leaves = r->kind == RECORD_DOWNLOAD || r->kind == RECORD_PUSH;
    const uint8_t *from = leaves ? c->arena : other;
    uint8_t *to = leaves ? other : c->arena;
    uint64_t bytes = (uint64_t)record_rows(r, step) * (uint64_t)r->in_width[0] * sizeof(float);
    if (!s->timing_only)
        memcpy(to + r->out[0], from + r->in[0], bytes);
    else if (r->kind == RECORD_DOWNLOAD)
        memset(to + r->out[0], 0, bytes);
    clock_add(
        s, copy_cost(&s->spec, bytes, peer ? s->spec.peer_bytes_per_s : s->spec.link_bytes_per_s));
}

/* Waits until what the record copies has arrived from the file. */
static bool wait_for_file(struct sim_device *s, uint32_t needs)
{
    struct file_stream *file = weights_file(&s->far.base);
    const uint64_t begin_ns = now_ns();
    struct oato_error err;
    file_stream_want(file, needs);
    if (file_stream_wait(file, needs, &s->far.queue.stop)) {
        clock_add(s, (double)(now_ns() - begin_ns) * 1e-9);
        return true;
    }
    if (file_stream_failed(file, &err))
        return job_queue_fail(&s->far.queue, TIMELINE_DIED, &err);
    return job_queue_fail_text(&s->far.queue, TIMELINE_DIED, "a step was cancelled");
}

/* History of a layer of the host to its room; returns how many bytes. */
static uint64_t copy_history(const struct sim_device *s, const struct compiled *c,
                             const struct program_record *r, const struct step *step)
{
    const struct kv_cache *from = c->program->host_kv, *to = &c->kv;
    const uint64_t page = kv_page_bytes(to, r->kv_layer);
    uint64_t bytes = 0;
    for (struct kv_history h = {0}; kv_history_next(to, r->kv_layer, step, &h);) {
        const uint64_t n = page * (uint64_t)h.n;
        uint8_t *there = kv_block(to, r->kv_layer, h.page, 0, 0);
        const uint8_t *here = kv_block(from, r->kv_from, h.page, 0, 0);
        if (s->spec.kv_rows && !s->timing_only)
            sim_kv_rows.from_shared(to, r->kv_layer, h.n, there, here);
        else if (!s->timing_only)
            memcpy(there, here, n);
        bytes += n;
    }
    return bytes;
}

/* To a staging room, which nothing reads any more: the records before this one are done. */
static void run_stream(struct sim_device *s, const struct compiled *c,
                       const struct program_record *r, const struct step *step)
{
    const struct program *p = c->program;
    const bool history = record_is_history(r);
    uint64_t bytes = history ? copy_history(s, c, r, step) : 0,
             begin_ns = atomic_load(&s->clock_ns);
    if (history && !bytes)
        return;
    bytes += weights_stream_here(p, r, !s->timing_only);
    if (begin_ns < s->stream_ns)
        begin_ns = s->stream_ns;
    s->stream_ns =
        begin_ns + (uint64_t)(copy_cost(&s->spec, bytes, s->spec.link_bytes_per_s) * 1e9 + 0.5);
    for (int i = 0; i < r->n_weights; i++)
        c->ready_ns[r->weight[i]] = s->stream_ns;
    if (history)
        c->kv_ready_ns[r->kv_layer] = s->stream_ns;
}

static bool run_record(struct sim_device *s, const struct compiled *c, uint32_t index,
                       const struct step *step)
{
    const struct program *p = c->program;
    const struct program_record *r = &p->records[index];
    uint64_t awaited_ns = 0;
    if (!job_queue_await(&s->far.queue, p, index, step, &awaited_ns) ||
        job_queue_injects(&s->far.queue, p, index))
        return false;
    clock_to(s, awaited_ns);
    bool pages = r->kind == RECORD_RUN && r->op.kind == OP_KV_COPY;
    bool empty = pages ? !step->n_page_copies && !step->n_state_copies : !record_rows(r, step);
    const uint32_t needs = c->needs ? c->needs[index] : 0;
    if (needs && !wait_for_file(s, needs))
        return false;
    step_cores_take(step);
    if (!empty && r->kind == RECORD_RUN)
        run_op(s, c, r, step);
    else if (!empty && r->kind == RECORD_STREAM)
        run_stream(s, c, r, step);
    else if (!empty)
        run_copy(s, c, r, step);
    step_cores_give(step);
    if (needs)
        file_stream_used(weights_file(&s->far.base), needs);
    if (r->signal)
        timeline_signal(&s->far.queue.timeline, step->timeline_base[c->self] + r->signal,
                        atomic_load(&s->clock_ns));
    return true;
}

/* ------------------------------------------------------------------------------- queue ---- */

/* The steps before it are done, so nothing reads the old bytes. */
static void run_beside(struct sim_device *s, const struct job *job)
{
    const uint64_t begin_ns = job->begin_ns > s->stream_ns ? job->begin_ns : s->stream_ns;
    if (!s->timing_only)
        memcpy(job->to, job->from, job->bytes);
    s->stream_ns =
        begin_ns +
        (uint64_t)(copy_cost(&s->spec, job->bytes, s->spec.link_bytes_per_s) * 1e9 + 0.5);
    timeline_signal(weight_transfers(&s->far.base), job->signal, s->stream_ns);
}

static void run_job(struct job_queue *base, const struct job *job)
{
    struct sim_device *s = (struct sim_device *)far_of_queue(base);
    const struct compiled *c = job->compiled;
    if (job->beside) {
        run_beside(s, job);
        return;
    }
    if (!c) {
        if (job->bytes)
            memcpy(job->to, job->from, job->bytes);
        clock_add(s, copy_cost(&s->spec, job->bytes, s->spec.link_bytes_per_s));
        if (job->signal)
            timeline_signal(&s->far.queue.timeline, job->signal, atomic_load(&s->clock_ns));
        return;
    }
    clock_to(s, job->step->clock_ns);
    s->rope.step_serial++;
    file_stream_begin(weights_file(&s->far.base));
    for (uint32_t i = 0; i < c->program->n_records; i++)
        if (!run_record(s, c, i, job->step))
            return;
    /* also when the last records have no signal of their own */
    timeline_signal(&s->far.queue.timeline,
                    job->step->timeline_base[c->self] + c->program->n_signals,
                    atomic_load(&s->clock_ns));
}

static void start(struct job_queue *base)
{
    (void)base;
    float_state_fast(); /* as the CPU's threads, for the same bits */
}

oato_status sim_queue_open(struct sim_device *s, struct oato_error *err)
{
    s->far.queue.timeline.simulated = true;
    atomic_store(&s->clock_ns, now_ns());
    s->far.queue.start = start;
    s->far.queue.run = run_job;
    return job_queue_open(&s->far.queue, "oato-sim", err);
}
