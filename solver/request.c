/*
 * request.c - what an operator and a copy cost over a whole request: each sequence's prompt in
 * chunks of ubatch tokens, then decode steps of one token per sequence, priced at the middle of
 * the generation (costs are close to linear in the KV positions, so the middle is the mean).
 * Prices come out in whole nanoseconds, which everything above works on.
 */
#include "solver/planning_internal.h"

#include <math.h>
#include <string.h>

int32_t request_prefill_steps(const struct plan_request *q)
{
    return q->prompt / q->ubatch + (q->prompt % q->ubatch > 0);
}

struct request_step request_prefill_step(const struct plan_request *q, int32_t chunk)
{
    int64_t begin = (int64_t)chunk * q->ubatch, tokens = min_i64(q->ubatch, q->prompt - begin);
    return (struct request_step){
        .tokens = (int32_t)tokens,
        .rows = begin + tokens == q->prompt, /* logits of the last token only */
        .seqs = 1,
        .kv_positions = tokens * begin + tokens * (tokens + 1) / 2,
        .times = q->batch,
    };
}

enum { RUNS = 64 }; /* of chunks that are priced as one */

int32_t request_prefill_kinds(const struct plan_request *q)
{
    const int32_t steps = request_prefill_steps(q);
    return steps <= RUNS ? steps : RUNS + 1;
}

struct request_step request_prefill_kind(const struct plan_request *q, int32_t kind)
{
    const int64_t steps = request_prefill_steps(q), like = steps - 1;
    if (steps <= RUNS || kind == RUNS) /* the last chunk is like no other */
        return request_prefill_step(q, steps <= RUNS ? kind : (int32_t)like);
    const int64_t begin = like * kind / RUNS, end = like * (kind + 1) / RUNS;
    struct request_step s = request_prefill_step(q, (int32_t)begin);
    const struct request_step last = request_prefill_step(q, (int32_t)end - 1);
    s.kv_positions += (last.kv_positions - s.kv_positions) / 2;
    s.times *= end - begin;
    return s;
}

struct request_step request_decode_step(const struct plan_request *q)
{
    int64_t position = (int64_t)q->prompt + q->generate / 2;
    return (struct request_step){
        .tokens = q->batch,
        .rows = q->batch,
        .seqs = q->batch,
        .kv_positions = q->batch * (position + 1),
        .times = q->generate,
    };
}

int32_t request_max_tokens(const struct plan_request *q)
{
    return q->ubatch > q->batch ? q->ubatch : q->batch;
}

int64_t request_kv_positions(const struct plan_request *q, int32_t window)
{
    int64_t pages = kv_pages_of(q->context) + q->batch - 1; /* as kv_pool_init has it */
    if (window)
        pages = min_i64(pages, kv_window_pages(window, q->batch, request_max_tokens(q)));
    return pages * KV_PAGE_POSITIONS;
}

struct prefill_total request_prefill_total(const struct plan_request *q)
{
    struct prefill_total sum = {0};
    for (int32_t i = 0; i < request_prefill_steps(q); i++) {
        const struct request_step s = request_prefill_step(q, i);
        sum.steps += (double)s.times;
        sum.tokens += (double)s.times * s.tokens;
        sum.rows += (double)s.times * s.rows;
    }
    return sum;
}

struct price request_price(const struct plan_request *q, int64_t prefill_ns, int64_t decode_ns)
{
    const int64_t objective_ns = q->objective == OBJECTIVE_TTFT ? prefill_ns
                                 : q->objective == OBJECTIVE_TIME_PER_TOKEN
                                     ? decode_ns
                                     : ns_add(prefill_ns, ns_times(q->generate, decode_ns));
    return (struct price){objective_ns, prefill_ns, decode_ns};
}

struct op_cost request_step_cost(const struct problem *p, const struct graph *g, int32_t index,
                                 const struct oato_op *op, int32_t d, const struct request_step *s)
{
    const bool same = op->kind == g->ops[index].op.kind;
    struct part part = {.graph = g,
                        .index = index,
                        .op = *op,
                        .device = p->device[d],
                        .share = 1,
                        .active = 1,
                        .joins = same}; /* where the neighbours are elsewhere, copies cost more */
    if (same && p->silent)
        part_silence(&part, &p->silent[index], p->neurons, s->tokens);
    return part_cost(p->cost, &part, s);
}

struct op_price request_op(const struct problem *p, const struct graph *g, int32_t index,
                           const struct oato_op *op, int32_t d)
{
    struct op_price r = {.supported = cost_supports(p->cost, p->device[d], op)};
    if (!r.supported)
        return r;
    double prefill_ns = 0;
    for (int32_t i = 0; i < request_prefill_kinds(&p->request); i++) {
        struct request_step s = request_prefill_kind(&p->request, i);
        struct op_cost c = request_step_cost(p, g, index, op, d, &s);
        prefill_ns += c.ns * (double)s.times;
        r.estimate = r.estimate || c.estimate;
        if (c.numerics)
            r.numerics[PHASE_PREFILL] = c.numerics;
    }
    struct request_step s = request_decode_step(&p->request);
    struct op_cost c = request_step_cost(p, g, index, op, d, &s);
    r.estimate = r.estimate || c.estimate;
    r.numerics[PHASE_DECODE] = c.numerics;
    if (p->request.deterministic && c.numerics && r.numerics[PHASE_PREFILL] &&
        strcmp(c.numerics, r.numerics[PHASE_PREFILL]) != 0) {
        r.numerics[PHASE_PREFILL] = c.numerics;
        r.estimate = true; /* the profile has prefill's times of the fast class only */
    }
    r.prefill_ns = whole_ns(prefill_ns);
    r.decode_ns = whole_ns(c.ns);
    return r;
}

double request_copy_ns(const struct problem *p, const struct graph_value *v, int32_t from,
                       int32_t to, const struct request_step *s)
{
    const int32_t worker = p->instance.is_host[to] ? from : to;
    const int32_t rows = v->rows == ROWS_LOGITS ? s->rows : s->tokens;
    if (p->instance.is_host[worker] || !rows)
        return 0;
    return copy_cost(p->cost, p->device[from], p->device[to], p->device[worker],
                     4.0 * rows * v->width);
}

struct price request_copy(const struct problem *p, const struct graph_value *v, int32_t from,
                          int32_t to, enum plan_phase phase)
{
    if (phase == PHASE_DECODE) {
        struct request_step s = request_decode_step(&p->request);
        return request_price(&p->request, 0, whole_ns(request_copy_ns(p, v, from, to, &s)));
    }
    double prefill_ns = 0;
    for (int32_t i = 0; i < request_prefill_kinds(&p->request); i++) {
        struct request_step s = request_prefill_kind(&p->request, i);
        prefill_ns += request_copy_ns(p, v, from, to, &s) * (double)s.times;
    }
    return request_price(&p->request, whole_ns(prefill_ns), 0);
}

struct price request_fixed(const struct problem *p, int32_t d)
{
    double step_ns = cost_device(p->cost, p->device[d]).step_ns;
    int64_t steps = (int64_t)request_prefill_steps(&p->request) * p->request.batch;
    return request_price(&p->request, whole_ns(step_ns * (double)steps), whole_ns(step_ns));
}

uint64_t problem_file_bytes(const struct graph_op *op)
{
    uint64_t sum = 0;
    for (int i = 0; i < op->n_weights; i++)
        if (op->weight[i] && (!i || op->weight[i] != op->weight[i - 1])) /* gate and up in one */
            sum += op->weight[i]->bytes;
    return sum;
}
