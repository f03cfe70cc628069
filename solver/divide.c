/*
 * divide.c - the ways to run a unit besides whole on one device:
 *
 *   divided    its groups (of neurons, experts or rows; the most active first) are dealt out at cut
 *              points, accelerators before the host, and the parts run at the same time: a step
 *              takes as long as the slowest, with the copies that its part needs
 *   streamed   the host keeps and decodes its share, but an accelerator runs prefill of it, copying
 *              weights over the link while the previous ones compute
 *   apart      the two operators of a unit on different devices
 *   attending  attend.c: KV with the host, and attention of prompts on an accelerator
 *
 * divide_price.c prices each.
 */
#include "solver/dividing_internal.h"

#include <math.h>
#include <string.h>

enum {
    GROUPS_MAX = UINT16_MAX,
    GRID_TWO = 32,   /* cut points between two accelerators, */
    GRID_THREE = 10, /* between those and the host, */
    GRID_ROWS = 16,  /* and in the rows of a product */
    GROUP_NEURONS = 64,
    /* Of many accelerators not all is listed, for there would be too many options: */
    FEW_CUTS = 1024, /* cut points between each of them and the host, in total, from three on */
    FEW_PAIRS = 4,   /* up to so many, all pairs; else only neighbours share a unit, */
    GRID_MANY = 6,   /* with fewer cut points between two and the host */
};

/* ------------------------------------------------------------------------------ context ---- */

static void list_kinds(struct dividing *x)
{
    const struct plan_request *q = &x->p->request;
    for (int32_t i = 0; i < request_prefill_kinds(q); i++) {
        struct request_step s = request_prefill_kind(q, i);
        int32_t k = 0;
        while (k < x->n_kinds && (x->kind[k].tokens != s.tokens || x->kind[k].rows != s.rows))
            k++;
        if (k == x->n_kinds) /* full chunks, full ones with logits, or the rest of each point */
            x->kind[x->n_kinds++] = s;
        else
            x->kind[k].times += s.times;
    }
    x->kind[x->n_kinds++] = request_decode_step(q);
}

static bool is_experts(const struct graph_op *op)
{
    return op->op.kind == OP_EXPERT_GATE_UP;
}

/* True for an operator whose only reader follows, so that both can be divided by neurons. */
bool divide_pair(const struct graph *g, int32_t i)
{
    const struct graph_op *a = &g->ops[i], *b = &g->ops[i + 1];
    int32_t readers = 0;
    if (i + 1 >= g->n_ops || b->in[0] != a->out[0] ||
        !((a->op.kind == OP_GATE_UP && b->op.kind == OP_MUL_MAT) ||
          (a->op.kind == OP_EXPERT_GATE_UP && b->op.kind == OP_EXPERT_DOWN)))
        return false;
    for (int32_t j = 0; j < g->n_ops; j++)
        for (int32_t k = 0; k < g->ops[j].n_in; k++)
            readers += g->ops[j].in[k] == a->out[0];
    return readers == 1 && a->out[0] != g->logits;
}

/* How the unit falls into groups: parts along K begin at whole blocks of the second's type. */
static void find_groups(struct dividing *x)
{
    const struct graph_op *first = &x->p->graph.ops[x->op[0]];
    if (x->n_ops == 2 && is_experts(first)) {
        x->group = 1;
        x->extent = first->op.experts;
        x->groups = x->extent;
    } else if (x->n_ops == 2) {
        int32_t block = (int32_t)dtype_info(x->p->graph.ops[x->op[1]].op.dtype)->block_elems;
        x->extent = first->op.n;
        x->group = block > GROUP_NEURONS ? block : GROUP_NEURONS;
        x->groups = x->extent / x->group;
    } else if (first->op.kind == OP_MUL_MAT && first->out[0] == x->p->graph.logits) {
        x->extent = first->op.n;
        x->group = (x->extent / GRID_ROWS + GROUP_NEURONS - 1) / GROUP_NEURONS * GROUP_NEURONS;
        x->groups = x->group ? x->extent / x->group : 0;
    }
    if (x->groups > GROUPS_MAX)
        x->groups = 0;
}

static oato_status sum_activities(struct dividing *x, struct oato_error *err)
{
    struct problem *p = (struct problem *)x->p;
    const struct graph_op *first = &p->graph.ops[x->op[0]];
    const struct activity a = activity_of(first, x->n_ops == OPS_MAX ? p->neurons : NULL, x->skips);
    for (int32_t k = 0; k < x->n_kinds; k++) {
        double *sum = arena_alloc(&p->arena, (size_t)x->groups + 1, sizeof *sum);
        if (!sum)
            return oato_fail_memory(err, (size_t)x->groups * sizeof *sum, "activities");
        for (int32_t i = 0; i < x->groups; i++)
            sum[i + 1] = sum[i] + activity_share(&a, i * x->group, (i + 1) * x->group,
                                                 x->kind[k].tokens, x->skips != NULL);
        x->active[k] = sum;
    }
    return OATO_OK;
}

/* Copies of values from one device to another. */
static double copies_ns(const struct dividing *x, const int32_t *values, int32_t n, int32_t from,
                        int32_t to, int32_t k)
{
    double ns = 0;
    for (int32_t i = 0; i < n; i++)
        ns += request_copy_ns(x->p, &x->p->graph.values[values[i]], from, to, &x->kind[k]);
    return ns;
}

/* Accelerators that do not reach each other meet in host memory. */
static double way_ns(const struct dividing *x, const int32_t *values, int32_t n, int32_t from,
                     int32_t to, int32_t k)
{
    const struct instance *in = &x->p->instance;
    if (from == to)
        return 0;
    if (in->direct[from][to])
        return copies_ns(x, values, n, from, to, k);
    return copies_ns(x, values, n, from, in->host, k) + copies_ns(x, values, n, in->host, to, k);
}

static void price_ends(struct dividing *x)
{
    const struct problem *p = x->p;
    const struct graph *g = &p->graph;
    const struct graph_op *first = &g->ops[x->op[0]], *last = &g->ops[x->op[x->n_ops - 1]];
    for (int32_t k = 0; k < x->n_kinds; k++) {
        for (int32_t d = 0; d < p->n_devices; d++) {
            struct oato_op add = {
                .kind = OP_ADD, .dtype = DT_F32, .k = last->op.n, .n = last->op.n};
            x->runs[d] = true;
            for (int32_t i = 0; i < x->n_ops; i++) {
                x->runs[d] = x->runs[d] && p->price[x->op[i] * p->n_devices + d].supported;
                x->whole[k][i][d] =
                    request_step_cost(p, g, x->op[i], &g->ops[x->op[i]].op, d, &x->kind[k]).ns;
            }
            x->merge[k][d] = request_step_cost(p, g, x->op[x->n_ops - 1], &add, d, &x->kind[k]).ns;
            for (int32_t to = 0; to < p->n_devices; to++) {
                x->enter[k][d][to] = way_ns(x, first->in, first->n_in, d, to, k);
                x->leave[k][d][to] = way_ns(x, last->out, last->n_out, d, to, k);
            }
        }
    }
}

/* A whole operator that skips. */
static struct part skipping_part(const struct dividing *x, int32_t i, int32_t d,
                                 enum sparse_mode skip)
{
    const struct problem *p = x->p;
    struct part part = {.graph = &p->graph,
                        .index = x->op[i],
                        .op = p->graph.ops[x->op[i]].op,
                        .device = p->device[d],
                        .share = 1,
                        .bare = true};
    part.op.sparse = (uint16_t)skip;
    return part;
}

/* Its times at all densities in a step of kind k. */
static void fill_densities(const struct dividing *x, struct part part, int32_t k, double *table)
{
    for (int j = 0; j <= DENSITIES; j++) {
        part.active = (double)j / DENSITIES;
        table[j] = part_cost(x->p->cost, &part, &x->kind[k]).ns;
    }
}

/* What the neurons' operators take when they skip, where that is possible or columns are read. */
static void price_densities(struct dividing *x)
{
    const struct problem *p = x->p;
    const struct graph *g = &p->graph;
    x->columns = p->neurons && dtype_info(g->ops[x->op[1]].op.dtype)->block_elems > 1;
    for (int32_t i = 0; i < x->n_ops; i++) {
        for (int32_t d = 0; d < p->n_devices; d++) {
            const struct part part = skipping_part(x, i, d, SPARSE_ABOVE);
            x->tabled[i][d] = x->skips || cost_measured(p->cost, part.device, &part.op);
            for (int32_t k = 0; k < x->n_kinds && x->tabled[i][d]; k++)
                fill_densities(x, part, k, x->sparse[k][i][d]);
        }
    }
}

/* The same where predictors list neurons before gate. */
static void price_lists(struct dividing *x)
{
    const struct problem *p = x->p;
    const struct graph_op *first = &p->graph.ops[x->op[0]];
    if (x->skips && p->sparse_given)
        x->predicted = *x->skips;
    else if (x->skips && predictor_offered(p->neurons, first->layer))
        x->predicted = (struct plan_sparse){.layer = first->layer, .predicts = 1};
    if (!x->predicted.predicts)
        return;
    x->list_work = predictor_work(&x->predicted, p->neurons, &first->op);
    for (int32_t at = 0; at < p->n_devices * x->n_kinds; at++) {
        const int32_t d = at / x->n_kinds, k = at % x->n_kinds;
        const bool lists = k == x->n_kinds - 1;
        struct part part = skipping_part(x, 0, d, lists ? SPARSE_PREDICT : SPARSE_BY_ROWS);
        fill_densities(x, part, k, x->by_list[k][d]);
        part.list = &x->predicted;
        part.neurons = p->neurons;
        if (lists)
            x->list[d] = list_cost(p->cost, &part, &x->kind[k], &x->list_by_neurons[d]).ns;
    }
}

static bool begin(struct dividing *x, const struct problem *p, int32_t unit)
{
    memset(x, 0, sizeof *x);
    x->p = p;
    x->unit = unit;
    for (int32_t i = p->first_op[unit]; i < p->graph.n_ops && x->n_ops <= OPS_MAX; i++) {
        if (p->unit_of[i] != unit)
            continue;
        if (x->n_ops == OPS_MAX || !p->graph.ops[i].n_weights)
            return false;
        x->op[x->n_ops++] = i;
        x->file_bytes += problem_file_bytes(&p->graph.ops[i]);
    }
    if (x->n_ops == OPS_MAX
            ? !divide_pair(&p->graph, x->op[0])
            : !x->n_ops || op_weight_use(&p->graph.ops[x->op[0]].op) != WEIGHT_MATRIX)
        return false;
    x->skips = plan_skips(p->sparse, p->n_sparse, p->graph.ops[x->op[0]].layer);
    list_kinds(x);
    find_groups(x);
    price_ends(x);
    if (x->n_ops == OPS_MAX && !is_experts(&p->graph.ops[x->op[0]]) && (p->neurons || x->skips)) {
        price_densities(x);
        price_lists(x);
    }
    return true;
}

/* ------------------------------------------------------------------------------ choices ---- */

/* Both ends, with and without streaming the host's share. */
static void add_shares(struct dividing *x, const uint16_t *groups)
{
    const struct problem *p = x->p;
    for (int32_t base = 0; base < p->n_devices; base++) {
        if (!groups[base])
            continue;
        divide_add(x, groups, base, -1);
        for (int32_t d = 0; d < p->n_devices; d++)
            if (groups[d] && groups[p->instance.host] && d != p->instance.host && x->n_kinds > 1 &&
                x->n_ops == 2)
                divide_add(x, groups, base, d);
    }
}

/* Those that run the unit, the host left out. */
static int32_t others(const struct dividing *x)
{
    int32_t n = 0;
    for (int32_t d = 0; d < x->p->n_devices; d++)
        n += d != x->p->instance.host && x->runs[d];
    return n;
}

/* The next device that runs the unit, in a circle; of the same model, or any. */
static int32_t next_after(const struct dividing *x, int32_t a, bool same)
{
    const struct problem *p = x->p;
    const char *model = p->profile->devices[p->device[a]].model;
    for (int32_t i = 1; i < p->n_devices; i++) {
        const int32_t b = (a + i) % p->n_devices;
        const char *other = p->profile->devices[p->device[b]].model;
        if (b != p->instance.host && x->runs[b] &&
            (!same || (model && other && !strcmp(model, other))))
            return b;
    }
    return -1;
}

static bool share_units(const struct dividing *x, int32_t a, int32_t b)
{
    return others(x) <= FEW_PAIRS || next_after(x, a, false) == b || next_after(x, b, false) == a ||
           next_after(x, a, true) == b || next_after(x, b, true) == a;
}

static void divide_between_two(struct dividing *x, int32_t a, int32_t b)
{
    const int32_t n = others(x);
    bool fine = x->p->instance.is_host[a] || x->p->instance.is_host[b];
    int32_t step = !fine    ? (x->groups + GRID_TWO - 1) / GRID_TWO
                   : n <= 2 ? 1
                            : x->groups * n / FEW_CUTS + 1;
    for (int32_t c = step; c < x->groups; c += step) {
        uint16_t groups[SOLVER_DEVICES] = {0};
        groups[a] = (uint16_t)c;
        groups[b] = (uint16_t)(x->groups - c);
        add_shares(x, groups);
    }
}

static void divide_among_three(struct dividing *x, int32_t a, int32_t b)
{
    int32_t step = x->groups / (others(x) <= FEW_PAIRS ? GRID_THREE : GRID_MANY) + 1;
    for (int32_t i = step; i < x->groups; i += step)
        for (int32_t j = step; i + j < x->groups; j += step) {
            uint16_t groups[SOLVER_DEVICES] = {0};
            groups[a] = (uint16_t)i;
            groups[b] = (uint16_t)j;
            groups[x->p->instance.host] = (uint16_t)(x->groups - i - j);
            add_shares(x, groups);
        }
}

/* Equal shares for all of a team, summed by one of them or the host; pairs have their cut points.
 */
static void divide_among_teams(struct dividing *x)
{
    const struct problem *p = x->p;
    for (int32_t i = 0; i < p->instance.n_teams; i++) {
        const struct team *t = &p->team[i];
        uint16_t groups[SOLVER_DEVICES] = {0};
        bool each = x->runs[p->instance.host];
        for (int32_t r = 0; r < t->n && each; r++) {
            groups[t->member[r]] = (uint16_t)(x->groups * (r + 1) / t->n - x->groups * r / t->n);
            each = groups[t->member[r]] && x->runs[t->member[r]];
        }
        struct option *first = x->out;
        if (each)
            divide_add(x, groups, p->instance.host, -1);
        if (each && t->n > 2)
            add_shares(x, groups);
        for (; first && first < x->out; first++)
            first->shared = true;
    }
}

static void divide(struct dividing *x)
{
    const struct problem *p = x->p;
    const int32_t n = p->n_devices, host = p->instance.host;
    for (int32_t a = 0; a < n && x->groups > 1; a++) {
        if (a == host || !x->runs[a])
            continue;
        if (x->runs[host])
            divide_between_two(x, a, host);
        for (int32_t b = a + 1; b < n; b++) {
            if (b == host || !x->runs[b] || !share_units(x, a, b))
                continue;
            divide_between_two(x, a, b);
            if (x->runs[host])
                divide_among_three(x, a, b);
        }
    }
    divide_among_teams(x);
    /* weights that a step reads for a row or two are not worth the copy */
    const bool few = p->graph.values[p->graph.ops[x->op[0]].out[0]].rows != ROWS_TOKENS;
    for (int32_t d = 0; d < n && x->n_kinds > 1 && x->runs[host] && !few; d++)
        if (d != host && !p->instance.is_host[d] && x->runs[d])
            divide_add(x, NULL, host, d);
}

/* Two operators, one here, one there. */
static void add_apart(struct dividing *x)
{
    const struct problem *p = x->p;
    for (int32_t a = 0; a < p->n_devices && x->n_ops == 2; a++) {
        for (int32_t b = 0; b < p->n_devices; b++) {
            const struct op_price *first = &p->price[x->op[0] * p->n_devices + a];
            const struct op_price *second = &p->price[x->op[1] * p->n_devices + b];
            if (a == b || !first->supported || !second->supported)
                continue;
            x->n++;
            if (!x->out)
                continue;
            struct option *o = x->out++;
            const struct graph_value *v = &p->graph.values[p->graph.ops[x->op[0]].out[0]];
            *o = (struct option){
                .stream = -1, .allowed = true, .uses = 1u << a | 1u << b, .dense = UINT32_MAX};
            option_lie(o, a, b);
            o->price = request_price(&p->request, first->prefill_ns + second->prefill_ns,
                                     first->decode_ns + second->decode_ns);
            for (enum plan_phase phase = 0; phase < PHASE_COUNT; phase++) {
                const int32_t host = p->instance.host, via = p->instance.direct[a][b] ? b : host;
                struct price leave = request_copy(p, v, a, via, phase);
                struct price enter = request_copy(p, v, via, b, phase);
                price_add(&o->price, &leave);
                if (via != b)
                    price_add(&o->price, &enter);
            }
            o->bytes[a] = first->weight_bytes;
            o->bytes[b] = second->weight_bytes;
        }
    }
}

/* With a sidecar a whole unit, too, costs only what is active. */
static void activate_whole(struct dividing *x, struct unit *u)
{
    const struct problem *p = x->p;
    for (int32_t d = 0; d < p->n_devices && x->groups && p->neurons; d++) {
        uint16_t groups[SOLVER_DEVICES] = {0};
        struct option o = {0};
        groups[d] = (uint16_t)x->groups;
        x->out = &o;
        divide_add(x, groups, d, -1);
        u->options[d].price = o.price;
        u->options[d].dense = o.dense;
        u->options[d].predicts = o.predicts;
    }
    x->out = NULL;
    x->n = 0;
}

/* A unit that was divided, for those that are like it. */
struct divided {
    struct dividing x;
    const struct option *whole;
    struct divided *next;
};

static bool same_op_prices(const struct op_price *a, const struct op_price *b, int32_t n_devices)
{
    bool same = true;
    for (int32_t d = 0; d < n_devices && same; d++)
        same = a[d].supported == b[d].supported && a[d].prefill_ns == b[d].prefill_ns &&
               a[d].decode_ns == b[d].decode_ns && a[d].weight_bytes == b[d].weight_bytes &&
               a[d].kv_bytes == b[d].kv_bytes;
    return same;
}

static bool same_operators(const struct problem *p, const struct dividing *a,
                           const struct dividing *b)
{
    const struct layer_flow *f = &p->flow[p->graph.ops[a->op[0]].layer + 1],
                            *g = &p->flow[p->graph.ops[b->op[0]].layer + 1];
    char x[OP_KEY_SIZE], y[OP_KEY_SIZE];
    bool same = a->n_ops == b->n_ops && a->file_bytes == b->file_bytes &&
                f->other_ns == g->other_ns && f->matrix_bytes == g->matrix_bytes;
    for (int32_t i = 0; i < a->n_ops && same; i++)
        same = !strcmp(oato_op_key(&p->graph.ops[a->op[i]].op, NULL, x),
                       oato_op_key(&p->graph.ops[b->op[i]].op, NULL, y)) &&
               same_op_prices(&p->price[a->op[i] * p->n_devices],
                              &p->price[b->op[i] * p->n_devices], p->n_devices) &&
               heads_alike(p, a->op[i], b->op[i]);
    return same;
}

/* Copies of inputs and outputs cost the same, too. */
static bool same_ways(const struct dividing *a, const struct dividing *b)
{
    bool same = a->n_kinds == b->n_kinds;
    for (int k = 0; k < a->n_kinds; k++)
        for (int from = 0; from < SOLVER_DEVICES; from++)
            for (int to = 0; to < SOLVER_DEVICES && same; to++)
                same = a->enter[k][from][to] == b->enter[k][from][to] &&
                       a->leave[k][from][to] == b->leave[k][from][to];
    return same;
}

/* Whole on each device: they cost and hold the same. */
static bool same_wholes(const struct option *a, const struct option *b, int32_t n_devices)
{
    bool same = true;
    for (int32_t d = 0; d < n_devices && same; d++)
        same = a[d].allowed == b[d].allowed && price_equal(&a[d].price, &b[d].price) &&
               a[d].bytes[d] == b[d].bytes[d];
    return same;
}

/* Equal layers share the options of their units: there may be ten thousands. */
static bool share_options(struct problem *p, int32_t unit, const struct dividing *x,
                          const struct option *whole)
{
    const struct divided *d = p->neurons ? NULL : p->divided;
    while (d && !(same_operators(p, x, &d->x) && same_ways(x, &d->x) &&
                  same_wholes(whole, d->whole, p->n_devices)))
        d = d->next;
    if (!d)
        return false;
    p->instance.units[unit].options = p->instance.units[d->x.unit].options;
    p->instance.units[unit].n_options = p->instance.units[d->x.unit].n_options;
    p->division[unit] = p->division[d->x.unit];
    return true;
}

static oato_status note_divided(struct problem *p, const struct dividing *x,
                                const struct option *whole, struct oato_error *err)
{
    struct divided *d = arena_alloc(&p->arena, 1, sizeof *d);
    if (!d)
        return oato_fail_memory(err, sizeof *d, "the options of a unit");
    *d = (struct divided){.x = *x, .whole = whole, .next = p->divided};
    p->divided = d;
    return OATO_OK;
}

oato_status divide_unit(struct problem *p, int32_t unit, const struct option *whole,
                        struct oato_error *err)
{
    struct unit *u = &p->instance.units[unit];
    struct dividing x;
    const bool divides = begin(&x, p, unit) && problem_counts(p, p->first_op[unit]);
    if (divides && share_options(p, unit, &x, whole))
        return OATO_OK;
    if (divides && note_divided(p, &x, whole, err))
        return err->status;
    if (divides && sum_activities(&x, err))
        return err->status;
    if (divides && !p->whole_only) {
        divide(&x);
        add_apart(&x);
    }
    const int32_t attends = divides ? 0 : attend_options(p, unit, whole, NULL),
                  teams = heads_options(p, unit, NULL);
    u->options = arena_alloc(&p->arena, (size_t)(p->n_devices + x.n + attends + teams) + 1,
                             sizeof *u->options);
    if (!u->options)
        return oato_fail_memory(err, (size_t)x.n * sizeof *u->options, "the options of a unit");
    memcpy(u->options, whole, sizeof *whole * (size_t)p->n_devices);
    u->n_options = p->n_devices + attends;
    if (!divides) {
        attend_options(p, unit, whole, u->options + p->n_devices);
        u->n_options += heads_options(p, unit, u->options + u->n_options);
        return OATO_OK;
    }
    p->division[unit] = (struct division){x.group, x.groups, x.extent, x.active[x.n_kinds - 1]};
    activate_whole(&x, u);
    if (p->whole_only)
        return OATO_OK;
    x.out = u->options + p->n_devices;
    divide(&x);
    add_apart(&x);
    u->n_options += x.n;
    for (const struct option *o = u->options + p->n_devices; o < x.out; o++)
        if (o->stream >= 0 && 2 * o->staged > p->instance.staging[o->stream])
            p->instance.staging[o->stream] = 2 * o->staged;
    u->n_options += heads_options(p, unit, x.out);
    return OATO_OK;
}

/* ------------------------------------------------------------------------- what is said ---- */

/* The share of the dense operator that a range of rows, neurons or experts is and, of it, does in a
 * phase. */
static double part_of_range(const struct problem *p, int32_t unit, int64_t begin, int64_t end,
                            enum plan_phase phase, double *share)
{
    const struct division *v = &p->division[unit];
    const int64_t extent = v->groups ? v->extent : max_i64(end, 1);
    *share += (double)(end - begin) / (double)extent;
    if (!v->groups || phase == PHASE_PREFILL)
        return (double)(end - begin) / (double)extent;
    int64_t first = begin / v->group, last = end == v->extent ? v->groups : end / v->group;
    return v->active[last] - v->active[first];
}

bool divide_op_cost(const struct problem *p, int32_t op, const struct option *o,
                    struct plan_cost *row)
{
    struct dividing x;
    const int32_t unit = p->unit_of[op], host = p->instance.host, d = row->device;
    const int32_t base = o->in[row->phase];
    const bool prefill = row->phase == PHASE_PREFILL, streams = prefill && o->stream >= 0;
    if (o->rooms)
        return attend_op_cost(p, op, o, row);
    int64_t from, to, host_from, host_to;
    divide_range(p, unit, o, d, &from, &to);
    divide_range(p, unit, o, host, &host_from, &host_to);
    const enum sparse_mode mode = streams || o->dense >> d & 1 ? SPARSE_OFF
                                  : o->predicts                ? SPARSE_PREDICT
                                                               : SPARSE_ABOVE;
    const bool any = streams ? d == o->stream || (d != host && to > from) : to > from;
    if (!any || !begin(&x, p, unit))
        return any;
    double share = 0, ns = 0, copies = 0;
    double part = to > from ? part_of_range(p, unit, from, to, row->phase, &share) : 0;
    if (streams && d == o->stream)
        part += part_of_range(p, unit, host_from, host_to, row->phase, &share);
    for (int32_t k = prefill ? 0 : x.n_kinds - 1; k < (prefill ? x.n_kinds - 1 : x.n_kinds); k++) {
        double times = prefill ? x.kind[k].times : 1;
        for (int32_t i = 0; i < x.n_ops; i++)
            if (x.op[i] == op)
                ns += !x.tabled[i][d]
                          ? x.whole[k][i][d] * part * times
                          : times * divide_op_ns(&x, k, i, d, share, part, option_divided(o), mode);
        if (op == x.op[x.n_ops - 1])
            copies += (x.enter[k][base][d] + x.leave[k][d][base]) * times;
    }
    row->ns = (uint64_t)whole_ns(ns);
    row->transfer_ns = (uint64_t)whole_ns(copies);
    row->estimate = true;
    return true;
}
