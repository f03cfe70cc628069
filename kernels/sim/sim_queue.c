/*
 * sim_queue.c - the queue of a simulated device: a thread that does what was put, in order, long
 * after the caller has gone on. Arithmetic is done by the CPU's kernels with one thread, hence with
 * the CPU's bits.
 *
 * The virtual clock moves by declared costs alone, never by the time that the arithmetic takes:
 *   operator  launch + max(bytes / read rate, arithmetic / flops)
 *   copy      latency + bytes / link rate; from another simulated device: / peer rate
 *   stream    the same as a copy, by a copy engine of its own, which begins when the record is
 *             reached and the stream before it is done; who reads the weight waits for the end
 *   wait      to the clock of the awaited event, if that is later
 *   step      to the host's clock at its begin, if that is later
 * A record that has nothing to do in a step (no rows, no pages to copy) costs nothing.
 */
#include "kernels/sim/sim_internal.h"

#include <inttypes.h>
#include <string.h>

/* ------------------------------------------------------------------------------- clock ---- */

static void clock_to(struct sim_queue *q, uint64_t ns)
{
    if (ns > atomic_load_explicit(&q->clock_ns, memory_order_relaxed))
        atomic_store(&q->clock_ns, ns);
}

static void clock_add(struct sim_queue *q, double seconds)
{
    atomic_fetch_add(&q->clock_ns, (uint64_t)(seconds * 1e9 + 0.5));
}

static double copy_cost(const struct sim_spec *s, uint64_t bytes, double bytes_per_s)
{
    return s->latency_s + (double)bytes / bytes_per_s;
}

/* Bytes that one KV_COPY reads and writes. */
static double page_copy_bytes(const struct kv_cache *kv, const struct step *step)
{
    const struct dtype_info *d = dtype_info(kv->dtype);
    double position = 0, positions = 0;
    for (int32_t l = 0; l < kv->n_layers; l++)
        position += 2.0 * kv->layers[l].kv_heads * kv->layers[l].head_dim * d->block_bytes;
    for (int32_t i = 0; i < step->n_page_copies; i++)
        positions += step->page_copy[i].positions;
    return 2 * position * positions;
}

static double run_cost(const struct sim_spec *s, const struct program_record *r,
                       const struct kv_cache *kv, const struct step *step)
{
    struct op_size size = record_size(r, step);
    bool pages = r->op.kind == OP_KV_COPY && kv;
    double bytes = pages ? page_copy_bytes(kv, step) : op_bytes(&r->op, &size);
    double read_s = bytes / s->read_bytes_per_s;
    double compute_s = op_flops(&r->op, &size) / s->flops_per_s;
    return s->launch_s + (read_s > compute_s ? read_s : compute_s);
}

/* ------------------------------------------------------------------------------ records --- */

static bool wait_for_others(struct sim_queue *q, const struct program *p, uint32_t index,
                            const struct step *step)
{
    const struct program_record *r = &p->records[index];
    for (int i = 0; i < r->n_waits; i++) {
        int other = r->wait[i].device;
        uint64_t value = step->timeline_base[other] + r->wait[i].ordinal, clock_ns;
        if (!timeline_wait_unless(step->timeline[other], value, &clock_ns, &q->base.stop)) {
            if (atomic_load(&q->base.stop))
                return job_queue_fail_text(&q->base, TIMELINE_DIED,
                                           "record %" PRIu32 " was cancelled", index);
            return job_queue_fail_text(&q->base, TIMELINE_STRANDED,
                                       "record %" PRIu32 " waited for %s, which failed", index,
                                       p->device_ids ? p->device_ids[other] : "another device");
        }
        clock_to(q, clock_ns);
    }
    return true;
}

/* The kernels are given readable memory: weights through a table made for this one record. */
static void run_op(struct sim_queue *q, const struct compiled *c, const struct program_record *r,
                   const struct step *step)
{
    const struct program *p = c->program;
    struct program_record real = *r;
    struct oato_weight *weights[RECORD_WEIGHTS] = {NULL};
    for (uint32_t i = 0; i < r->n_weights; i++) {
        if (r->weight[i] == UINT32_MAX)
            continue;
        struct sim_weight *w = (struct sim_weight *)p->weights[r->weight[i]];
        if (!w->block)
            clock_to(q, w->ready_ns);
        weights[i] = &w->real;
        real.weight[i] = i;
    }
    struct cpu_context context = {
        .kernels = q->kernels,
        .arena = c->arena,
        .weights = weights,
        .kv = p->kv ? &c->kv : NULL,
        .workspace = q->workspace,
        .workspace_bytes = q->workspace_bytes,
        .rope = &q->rope,
    };
    if (!q->timing_only)
        cpu_run_alone(&context, &real, step);
    clock_add(q, run_cost(&q->spec, r, context.kv, step));
}

static void run_copy(struct sim_queue *q, const struct compiled *c, const struct program_record *r,
                     const struct step *step)
{
    const bool peer = r->kind == RECORD_PEER;
    uint8_t *host = c->program->host_arena;
    uint8_t *from = peer ? c->peer[r->peer] : r->kind == RECORD_UPLOAD ? host : c->arena;
    uint8_t *to = r->kind == RECORD_DOWNLOAD ? host : c->arena;
    uint64_t bytes = (uint64_t)record_rows(r, step) * (uint64_t)r->in_width[0] * sizeof(float);
    if (!q->timing_only)
        memcpy(to + r->out[0], from + r->in[0], bytes);
    else if (r->kind == RECORD_DOWNLOAD)
        memset(to + r->out[0], 0, bytes);
    clock_add(
        q, copy_cost(&q->spec, bytes, peer ? q->spec.peer_bytes_per_s : q->spec.link_bytes_per_s));
}

/* To the staging room, which nothing reads any more: the records before this one are done. */
static void run_stream(struct sim_queue *q, const struct program *p, const struct program_record *r)
{
    uint64_t bytes = 0, begin_ns = atomic_load(&q->clock_ns);
    for (int i = 0; i < r->n_weights; i++) {
        struct sim_weight *w = (struct sim_weight *)p->weights[r->weight[i]];
        if (!q->timing_only && w->source.prepared)
            memcpy((uint8_t *)w->real.data, w->source.prepared, w->real.bytes);
        else if (!q->timing_only)
            cpu_prepare_rows(q->kernels, &w->source, &w->real, 0, w->real.rows);
        bytes += w->stream_bytes;
    }
    if (begin_ns < q->stream_ns)
        begin_ns = q->stream_ns;
    q->stream_ns =
        begin_ns + (uint64_t)(copy_cost(&q->spec, bytes, q->spec.link_bytes_per_s) * 1e9 + 0.5);
    for (int i = 0; i < r->n_weights; i++)
        ((struct sim_weight *)p->weights[r->weight[i]])->ready_ns = q->stream_ns;
}

static bool run_record(struct sim_queue *q, const struct compiled *c, uint32_t index,
                       const struct step *step)
{
    const struct program *p = c->program;
    const struct program_record *r = &p->records[index];
    if (!wait_for_others(q, p, index, step))
        return false;
    if (atomic_load(&q->base.stop))
        return job_queue_fail_text(&q->base, TIMELINE_DIED, "record %" PRIu32 " was cancelled",
                                   index);
    if (atomic_load(&q->base.fail_after) > 0 && atomic_fetch_sub(&q->base.fail_after, 1) == 1) {
        char key[OP_KEY_SIZE] = "copy";
        if (r->kind == RECORD_RUN)
            oato_op_key(&r->op, NULL, key);
        return job_queue_fail_text(&q->base, TIMELINE_DIED,
                                   "injected failure at record %" PRIu32 " (%s)", index, key);
    }
    bool pages = r->kind == RECORD_RUN && r->op.kind == OP_KV_COPY;
    bool empty = pages ? !step->n_page_copies : !record_rows(r, step);
    step_cores_take(step);
    if (!empty && r->kind == RECORD_RUN)
        run_op(q, c, r, step);
    else if (!empty && r->kind == RECORD_STREAM)
        run_stream(q, p, r);
    else if (!empty)
        run_copy(q, c, r, step);
    step_cores_give(step);
    if (r->signal)
        timeline_signal(&q->base.timeline, step->timeline_base[c->self] + r->signal,
                        atomic_load(&q->clock_ns));
    return true;
}

/* ------------------------------------------------------------------------------- queue ---- */

static void run_job(struct job_queue *base, const struct job *job)
{
    struct sim_queue *q = (struct sim_queue *)base;
    const struct compiled *c = job->compiled;
    if (!c) {
        if (job->bytes)
            memcpy(job->to, job->from, job->bytes);
        clock_add(q, copy_cost(&q->spec, job->bytes, q->spec.link_bytes_per_s));
        if (job->signal)
            timeline_signal(&q->base.timeline, job->signal, atomic_load(&q->clock_ns));
        return;
    }
    clock_to(q, job->step->clock_ns);
    q->rope.step_serial++;
    for (uint32_t i = 0; i < c->program->n_records; i++)
        if (!run_record(q, c, i, job->step))
            return;
    /* also when the last records have no signal of their own */
    timeline_signal(&q->base.timeline, job->step->timeline_base[c->self] + c->program->n_signals,
                    atomic_load(&q->clock_ns));
}

static void start(struct job_queue *base)
{
    (void)base;
    float_state_fast(); /* as the CPU's threads, for the same bits */
}

oato_status sim_queue_open(struct sim_queue *q, struct oato_error *err)
{
    timeline_init(&q->base.timeline);
    q->base.timeline.simulated = true;
    atomic_store(&q->clock_ns, now_ns());
    q->base.start = start;
    q->base.run = run_job;
    return job_queue_open(&q->base, "oato-sim", err);
}
