/*
 * request.c - what an operator and a copy cost over a whole request: each sequence's prompt in
 * chunks of ubatch tokens, then decode steps of one token per sequence, priced at the middle of
 * the generation (costs are close to linear in the KV positions, so the middle is the mean). Of
 * several points each counts by its weight, so that every price is one of the mean request: prompts
 * by the weight alone, a step of decode by how many of them a point makes, too. Prices are sums,
 * and remain so; nothing above knows of points. Prices come out in whole nanoseconds, which
 * everything above works on.
 */
#include "solver/planning_internal.h"

#include <assert.h>
#include <math.h>
#include <string.h>

double request_weight(const struct plan_request *q, int32_t i)
{
    return request_point(q, i).weight / (double)POINTS_WEIGHT;
}

double request_generated(const struct plan_request *q)
{
    double sum = 0;
    for (int32_t i = 0; i < request_points(q); i++)
        sum += request_weight(q, i) * request_point(q, i).generate;
    return sum;
}

/* Steps of decode of a point, or one, if only their time counts. */
static double steps_of(const struct plan_request *q, int32_t i)
{
    const int32_t generate = request_point(q, i).generate;
    return request_weight(q, i) *
           (q->objective == OBJECTIVE_TIME_PER_TOKEN ? generate > 0 : generate);
}

double request_decode_share(const struct plan_request *q, int32_t point)
{
    double all = 0;
    for (int32_t i = 0; i < request_points(q); i++)
        all += steps_of(q, i);
    return all > 0 ? steps_of(q, point) / all : request_weight(q, point);
}

int32_t request_prefill_steps(const struct plan_request *q, int32_t point)
{
    const int32_t prompt = request_point(q, point).prompt;
    return prompt / q->ubatch + (prompt % q->ubatch > 0);
}

struct request_step request_prefill_step(const struct plan_request *q, int32_t point, int32_t chunk)
{
    const struct plan_point at = request_point(q, point);
    const int64_t begin = (int64_t)chunk * q->ubatch,
                  tokens = min_i64(q->ubatch, at.prompt - begin);
    return (struct request_step){
        .tokens = (int32_t)tokens,
        .rows = begin + tokens == at.prompt, /* logits of the last token only */
        .seqs = 1,
        .kv_positions = tokens * (at.depth + begin) + tokens * (tokens + 1) / 2,
        .times = request_weight(q, point) * q->batch,
    };
}

enum { RUNS = 64 }; /* of a prompt's chunks that are priced as one */

/* How many kinds the chunks of a prompt are priced as. */
static int32_t point_kinds(const struct plan_request *q, int32_t point)
{
    const int32_t steps = request_prefill_steps(q, point);
    return steps <= RUNS ? steps : RUNS + 1;
}

int32_t request_prefill_kinds(const struct plan_request *q)
{
    int32_t n = 0;
    for (int32_t i = 0; i < request_points(q); i++)
        n += point_kinds(q, i);
    return n;
}

struct request_step request_prefill_kind(const struct plan_request *q, int32_t kind)
{
    int32_t point = 0;
    assert(kind < request_prefill_kinds(q));
    for (; kind >= point_kinds(q, point); point++)
        kind -= point_kinds(q, point);
    const int64_t steps = request_prefill_steps(q, point), like = steps - 1;
    if (steps <= RUNS || kind == RUNS) /* the last chunk is like no other */
        return request_prefill_step(q, point, steps <= RUNS ? kind : (int32_t)like);
    const int64_t begin = like * kind / RUNS, end = like * (kind + 1) / RUNS;
    struct request_step s = request_prefill_step(q, point, (int32_t)begin);
    const struct request_step last = request_prefill_step(q, point, (int32_t)end - 1);
    s.kv_positions += (last.kv_positions - s.kv_positions) / 2;
    s.times *= (double)(end - begin);
    return s;
}

struct request_step request_decode_at(const struct plan_request *q, int64_t position)
{
    return (struct request_step){
        .tokens = q->batch,
        .rows = q->batch,
        .seqs = q->batch,
        .kv_positions = q->batch * (position + 1),
        .times = request_generated(q),
    };
}

/* The position in the middle of a point's generation. */
static int64_t middle_of(const struct plan_request *q, int32_t point)
{
    const struct plan_point at = request_point(q, point);
    return (int64_t)at.depth + at.prompt + at.generate / 2;
}

struct request_step request_decode_point(const struct plan_request *q, int32_t point)
{
    return request_decode_at(q, middle_of(q, point));
}

struct request_step request_decode_step(const struct plan_request *q)
{
    double positions = 0;
    for (int32_t i = 0; i < request_points(q); i++)
        positions += request_decode_share(q, i) * (double)middle_of(q, i);
    return request_decode_at(q, llround(positions));
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
    for (int32_t i = 0; i < request_points(q); i++) {
        const double times = request_weight(q, i) * q->batch;
        const int32_t prompt = request_point(q, i).prompt;
        sum.steps += times * request_prefill_steps(q, i);
        sum.tokens += times * prompt;
        sum.rows += times * (prompt > 0);
    }
    return sum;
}

int64_t request_latency(const struct plan_request *q, int64_t prefill_ns, int64_t decode_ns)
{
    return ns_add(prefill_ns, q->n_points > 1 ? whole_ns(request_generated(q) * (double)decode_ns)
                                              : ns_times(q->generate, decode_ns));
}

struct price request_price(const struct plan_request *q, int64_t prefill_ns, int64_t decode_ns)
{
    const int64_t objective_ns = q->objective == OBJECTIVE_TTFT ? prefill_ns
                                 : q->objective == OBJECTIVE_TIME_PER_TOKEN
                                     ? decode_ns
                                     : request_latency(q, prefill_ns, decode_ns);
    return (struct price){objective_ns, prefill_ns, decode_ns};
}

/* Whether a span may begin behind the operator, though nothing comes from another device: what can
 * be in one follows what cannot. */
static bool ends_span(const struct graph *g, int32_t index)
{
    return !op_spans(&g->ops[index].op) && index + 1 < g->n_ops && op_spans(&g->ops[index + 1].op);
}

static struct op_cost step_cost(const struct problem *p, const struct graph *g, int32_t index,
                                const struct oato_op *op, int32_t d, double share,
                                const struct request_step *s)
{
    const bool same = op->kind == g->ops[index].op.kind;
    struct part part = {
        .graph = g,
        .index = index,
        .op = *op,
        .device = p->device[d],
        .share = share,
        .active = share,
        .joins = same && share >= 1}; /* where the neighbours are elsewhere, copies cost more */
    if (same && p->silent)
        part_silence(&part, &p->silent[index], p->neurons, s->tokens);
    struct op_cost r = part_cost(p->cost, &part, s);
    if (ends_span(g, index)) {
        const int32_t next = g->ops[index + 1].out[0];
        const bool logits = g->values[next].rows == ROWS_LOGITS;
        r.ns += unit_cost(p->cost, p->device[d], logits ? s->rows : s->tokens);
    }
    return r;
}

struct op_cost request_step_cost(const struct problem *p, const struct graph *g, int32_t index,
                                 const struct oato_op *op, int32_t d, const struct request_step *s)
{
    return step_cost(p, g, index, op, d, 1, s);
}

/* Whether the device runs it in a class that no other device has: where its values are F16. Such
 * operators would have to be there whole and in both phases, so a deterministic plan has none. */
static bool is_apart(const struct problem *p, int32_t d, const struct oato_op *op)
{
    return p->request.deterministic &&
           value_types_halve(cost_device(p->cost, p->device[d]).values, op);
}

static struct op_price op_price(const struct problem *p, const struct graph *g, int32_t index,
                                const struct oato_op *op, int32_t d, double share)
{
    const bool promises = !p->request.deterministic || !cost_device(p->cost, p->device[d]).no_class;
    struct op_price r = {.supported = promises && cost_supports(p->cost, p->device[d], op) &&
                                      !is_apart(p, d, op)};
    if (!r.supported)
        return r;
    double prefill_ns = 0;
    for (int32_t i = 0; i < request_prefill_kinds(&p->request); i++) {
        struct request_step s = request_prefill_kind(&p->request, i);
        struct op_cost c = step_cost(p, g, index, op, d, share, &s);
        prefill_ns += c.ns * s.times;
        r.estimate = r.estimate || c.estimate;
        if (c.numerics)
            r.numerics[PHASE_PREFILL] = c.numerics;
    }
    double decode_ns = 0;
    for (int32_t i = 0; i < request_points(&p->request); i++) {
        const struct request_step s = request_decode_point(&p->request, i);
        const struct op_cost c = step_cost(p, g, index, op, d, share, &s);
        decode_ns += c.ns * request_decode_share(&p->request, i);
        r.estimate = r.estimate || c.estimate;
        r.numerics[PHASE_DECODE] = c.numerics;
    }
    const char **const numerics = r.numerics;
    if (p->request.deterministic && numerics[PHASE_DECODE] && numerics[PHASE_PREFILL] &&
        strcmp(numerics[PHASE_DECODE], numerics[PHASE_PREFILL]) != 0) {
        numerics[PHASE_PREFILL] = numerics[PHASE_DECODE];
        r.estimate = true; /* the profile has prefill's times of the fast class only */
    }
    r.prefill_ns = whole_ns(prefill_ns);
    r.decode_ns = whole_ns(decode_ns);
    return r;
}

struct op_price request_op(const struct problem *p, const struct graph *g, int32_t index,
                           const struct oato_op *op, int32_t d)
{
    return op_price(p, g, index, op, d, 1);
}

struct op_price request_share(const struct problem *p, int32_t index, int32_t d, double share)
{
    return op_price(p, &p->graph, index, &p->graph.ops[index].op, d, share);
}

/* Links carry float32: what it takes to convert a value on the device that made or reads it. */
static double convert_ns(const struct problem *p, int32_t d, const struct graph_value *v, bool made,
                         int32_t rows)
{
    const struct graph *g = &p->graph;
    const struct cost_device device = cost_device(p->cost, p->device[d]);
    const struct oato_op op = {
        .kind = OP_CONVERT, .dtype = made ? DT_F32 : DT_F16, .k = v->width, .n = v->width};
    const struct op_size size = {.rows = rows, .seqs = 1};
    bool half = made && value_type_out(device.values, &g->ops[v->producer].op, 0) == DT_F16;
    for (int32_t i = v->producer + 1; i < g->n_ops && device.values && !made; i++)
        for (int j = 0; j < g->ops[i].n_in; j++)
            half = half || (g->values[g->ops[i].in[j]].producer == v->producer &&
                            value_type_in(device.values, &g->ops[i].op, j) == DT_F16);
    return half ? cost_of_op(p->cost, p->device[d], &op, &size).ns + device.record_ns : 0;
}

double request_copy_ns(const struct problem *p, const struct graph_value *v, int32_t from,
                       int32_t to, const struct request_step *s)
{
    const int32_t worker = to == p->instance.host ? from : to;
    const int32_t rows = v->rows == ROWS_LOGITS ? s->rows : s->tokens;
    if (from == to || !rows)
        return 0;
    return copy_cost(p->cost, p->device[from], p->device[to], p->device[worker],
                     4.0 * rows * v->width) +
           convert_ns(p, from, v, true, rows) + convert_ns(p, to, v, false, rows) +
           unit_cost(p->cost, p->device[to], rows); /* with what arrives a span begins */
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
        prefill_ns += request_copy_ns(p, v, from, to, &s) * s.times;
    }
    return request_price(&p->request, whole_ns(prefill_ns), 0);
}

struct price request_fixed(const struct problem *p, int32_t d)
{
    double step_ns = cost_device(p->cost, p->device[d]).step_ns;
    const double steps = request_prefill_total(&p->request).steps;
    return request_price(&p->request, whole_ns(step_ns * steps), whole_ns(step_ns));
}

uint64_t problem_file_bytes(const struct graph_op *op)
{
    uint64_t sum = 0;
    for (int i = 0; i < op->n_weights; i++)
        if (op->weight[i] && (!i || op->weight[i] != op->weight[i - 1])) /* gate and up in one */
            sum += op->weight[i]->bytes;
    return sum;
}
