/*
 * heads.c - a layer's attention divided by KV heads between equal accelerators, a team: each makes
 * q, k and v of its heads, stores and attends to these, and multiplies them with its columns of the
 * output product, which one of them sums. Cuts are those that ranks have (ranks/cut.c), in equal
 * shares. What cannot be cut so, such as the one latent head of MLA, has no such options.
 *
 * A value that lies divided on a team lies at an *end* of its own, behind the devices: units of a
 * chain, each with an option to be divided, read where the one before wrote, for nothing. To enter
 * a team costs a copy to each of its devices. What one of a chain makes the next one of it reads
 * there, so a layer's attention is divided from q, k and v to the sum, or not at all.
 */
#include "solver/ranks/ranks_internal.h"

#include <math.h>
#include <string.h>

/* -------------------------------------------------------------------------------- teams ---- */

static bool same_text(const char *a, const char *b)
{
    return a && b && !strcmp(a, b);
}

/* Whether both are the same device twice, though what was measured of them may differ. */
static bool equal_devices(const struct problem *p, int32_t a, int32_t b)
{
    const struct profile_device *x = &p->profile->devices[p->device[a]],
                                *y = &p->profile->devices[p->device[b]];
    bool same =
        !x->is_host && !y->is_host && same_text(x->kind, y->kind) && same_text(x->model, y->model);
    for (int32_t i = 0; i < p->graph.n_ops && same; i++)
        same = p->price[i * p->n_devices + a].supported == p->price[i * p->n_devices + b].supported;
    return same;
}

/* Whether all of so many have a part of the operator's attention. */
static bool is_cut(const struct problem *p, const struct cut_op *c, int32_t n, int32_t op)
{
    const struct graph *g = &p->graph;
    bool each = c->cut && g->ops[op].out[0] != g->logits;
    for (int32_t r = 0; r < n && each; r++)
        each = c->cut[r + 1] > c->cut[r];
    return each && !divide_pair(g, op) && !(op && divide_pair(g, op - 1));
}

/* The attention of every layer, cut for so many, and which values are read by columns: of these, a
 * part reads those that the same device has made. */
static oato_status cuts_make(struct problem *p, struct team *t, struct oato_error *err)
{
    struct rank_options equal = {.ranks = t->n};
    struct dealing x = {.g = &p->graph, .o = &equal, .arena = &p->arena, .err = err};
    bool *columns = arena_alloc(&p->arena, (size_t)p->graph.n_values + 1, sizeof *columns);
    for (int32_t r = 0; r < t->n; r++)
        equal.share[r] = 1;
    if (!columns || !dealing_room(&x, &p->arena))
        return oato_fail_memory(err, (size_t)p->graph.n_ops * sizeof *x.op, "teams");
    err->status = OATO_OK;
    if (dealing_cut(&x))
        return err->status;
    for (int32_t i = 0; i < p->graph.n_ops; i++) {
        const struct graph_op *o = &p->graph.ops[i];
        if (!is_cut(p, &x.op[i], t->n, i))
            x.op[i].cut = NULL;
        for (int32_t j = 0; x.op[i].cut && j < o->n_in; j++)
            columns[o->in[j]] = columns[o->in[j]] || op_reads_columns(&o->op, x.op[i].axis);
    }
    t->cut = x.op;
    t->columns = columns;
    return OATO_OK;
}

/* The teams of some equal devices: all of them, up to the parts of an operator, and blocks of
 * powers of two. Beyond nine devices not all have a number. */
static oato_status teams_of(struct problem *p, const int32_t *member, int32_t n,
                            struct oato_error *err)
{
    for (int32_t size = n < PARTS_MAX ? n : PARTS_MAX; size > 1;) {
        struct team of = {.n = size};
        if (cuts_make(p, &of, err))
            return err->status;
        for (int32_t at = 0; at + size <= n; at += size) {
            struct instance *in = &p->instance;
            if (instance_ends(in) == SOLVER_DEVICES)
                return OATO_OK;
            struct team *t = &p->team[in->n_teams];
            *t = of;
            memcpy(t->member, member + at, (size_t)size * sizeof *member);
            for (int32_t i = 0; i < size; i++)
                in->team[in->n_teams] |= 1u << t->member[i];
            in->n_teams++;
        }
        int32_t less = 1;
        while (2 * less < size)
            less *= 2;
        size = less;
    }
    return OATO_OK;
}

static bool is_team(const struct problem *p, int32_t end)
{
    return end >= p->n_devices;
}

static const struct team *team_at(const struct problem *p, int32_t end)
{
    return &p->team[end - p->n_devices];
}

/* The cut of an operator of attention; NULL: the team does not divide it. */
static const struct cut_op *cut_of(const struct team *t, int32_t op)
{
    return t->cut[op].cut ? &t->cut[op] : NULL;
}

/* Whether each of the team can be reached from the device, or the device from each, over direct
 * links. */
static bool all_direct(const struct problem *p, const struct team *t, int32_t d, bool from)
{
    bool all = !p->instance.is_host[d];
    for (int32_t i = 0; i < t->n && all; i++) {
        const int32_t m = t->member[i];
        all = m == d || (from ? p->instance.direct[d][m] : p->instance.direct[m][d]);
    }
    return all;
}

oato_status teams_find(struct problem *p, struct oato_error *err)
{
    struct instance *in = &p->instance;
    bool known[SOLVER_DEVICES] = {false};
    oato_status status = OATO_OK;
    for (int32_t a = 0; a < p->n_devices && !status; a++) {
        int32_t member[SOLVER_DEVICES], n = 0;
        const bool may = !p->whole_only && !p->by_ranks && p->layer_begin == p->layer_end;
        for (int32_t b = a; b < p->n_devices && may && !known[a]; b++)
            if (p->budget[b] && equal_devices(p, a, b)) {
                known[b] = b > a;
                member[n++] = b;
            }
        status = teams_of(p, member, n, err);
    }
    for (int32_t e = p->n_devices; e < instance_ends(in); e++)
        for (int32_t d = 0; d < p->n_devices; d++) {
            in->direct[d][e] = all_direct(p, team_at(p, e), d, true);
            in->direct[e][d] = all_direct(p, team_at(p, e), d, false);
        }
    return status;
}

/* -------------------------------------------------------------------------------- edges ---- */

struct price team_copy(const struct problem *p, int32_t value, int32_t from, int32_t to,
                       enum plan_phase phase)
{
    const struct graph_value *v = &p->graph.values[value];
    const int32_t d = is_team(p, from) ? to : from;
    const struct team *t = team_at(p, is_team(p, from) ? from : to);
    struct graph_value part = *v;
    struct price sum = {0};
    if (t->columns[value])
        return (struct price){.objective_ns = NEVER_NS};
    /* each of the team fetches its own copy meanwhile; what comes together does so one by one */
    const int32_t last = is_team(p, from) && d != p->instance.host ? t->n : 1;
    for (int32_t i = 0, n = 0; i < t->n && n < last; i++) {
        const int32_t m = t->member[i];
        if (m == d)
            continue;
        part.width = is_team(p, from) ? (v->width + t->n - 1) / t->n : v->width;
        const struct price one =
            request_copy(p, &part, is_team(p, from) ? m : d, is_team(p, from) ? d : m, phase);
        price_add(&sum, &one);
        n++;
    }
    return sum;
}

/* ------------------------------------------------------------------------------- options --- */

/* The share of a cut operator that the r-th of the team has. */
static double share_at(const struct team *t, const struct cut_op *c, int32_t r)
{
    return (double)(c->cut[r + 1] - c->cut[r]) / c->cut[t->n];
}

/* The operators of the unit, and whether the team can divide all of them; summed: the last one is
 * a product whose parts are added. */
static bool unit_divides(const struct problem *p, const struct team *t, int32_t unit, bool *summed)
{
    bool all = true, any = false;
    *summed = false;
    for (int32_t i = p->first_op[unit]; i < p->graph.n_ops && all; i++) {
        if (p->unit_of[i] != unit)
            continue;
        const struct cut_op *c = cut_of(t, i);
        all = c && p->price[i * p->n_devices + t->member[0]].supported;
        *summed = all && c->axis == AXIS_K;
        any = true;
    }
    return all && any;
}

/* What it takes to bring all parts of the operator's output to `base`, and to add them. */
static struct price sum_price(const struct problem *p, const struct team *t, int32_t op,
                              int32_t base)
{
    const struct graph *g = &p->graph;
    const struct graph_value *v = &g->values[g->ops[op].out[0]];
    const struct oato_op add = {
        .kind = OP_ADD, .dtype = DT_F32, .k = g->ops[op].op.n, .n = g->ops[op].op.n};
    const double record = cost_device(p->cost, p->device[base]).record_ns;
    const int32_t host = p->instance.host;
    struct price sum = {0};
    /* all leave at the same time; from the host to `base` they come one after the other */
    const int32_t other = t->member[t->member[0] == base];
    const bool direct = p->instance.direct[other][base];
    for (enum plan_phase phase = 0; phase < PHASE_COUNT; phase++) {
        const struct price leave = request_copy(p, v, other, direct ? base : host, phase);
        price_add(&sum, &leave);
        for (int32_t i = 1; i < t->n && !direct && base != host; i++) {
            const struct price enter = request_copy(p, v, host, base, phase);
            price_add(&sum, &enter);
        }
    }
    const struct op_price one = request_op(p, g, op, &add, base);
    const double steps = request_prefill_total(&p->request).steps;
    const int32_t more = t->n - 1;
    const struct price added = request_price(
        &p->request, (int64_t)((double)one.prefill_ns * more - record * steps * (more - 1)),
        (int64_t)((double)one.decode_ns * more - record * (more - 1)));
    price_add(&sum, &added);
    return sum;
}

/* The option of the unit to be divided by the team, its sums, if any, made on `base`. */
static struct option option_of(const struct problem *p, int32_t unit, int32_t end, int32_t base,
                               bool summed)
{
    const struct team *t = team_at(p, end);
    struct option o = {.stream = -1,
                       .allowed = true,
                       .team = (int16_t)end,
                       .dense = UINT32_MAX,
                       .uses = p->instance.team[end - p->n_devices]};
    int64_t prefill = 0, decode = 0;
    option_lie(&o, end, summed ? base : end);
    for (int32_t i = p->first_op[unit]; i < p->graph.n_ops; i++) {
        if (p->unit_of[i] != unit)
            continue;
        const struct cut_op *c = cut_of(t, i);
        const struct op_price *price = &p->price[i * p->n_devices];
        int64_t most[PHASE_COUNT] = {0};
        for (int32_t r = 0; r < t->n; r++) {
            const int32_t d = t->member[r], before = t->member[r ? r - 1 : 0];
            const double share = share_at(t, c, r);
            o.bytes[d] +=
                (uint64_t)ceil((double)(price[d].weight_bytes + price[d].kv_bytes) * share);
            if (r && share == share_at(t, c, r - 1) &&
                price[d].prefill_ns == price[before].prefill_ns &&
                price[d].decode_ns == price[before].decode_ns)
                continue; /* as the one before */
            const struct op_price part = request_share(p, i, d, share);
            most[PHASE_PREFILL] = max_i64(most[PHASE_PREFILL], part.prefill_ns);
            most[PHASE_DECODE] = max_i64(most[PHASE_DECODE], part.decode_ns);
        }
        prefill += most[PHASE_PREFILL];
        decode += most[PHASE_DECODE];
    }
    o.price = request_price(&p->request, prefill, decode);
    if (summed) {
        const struct price sum = sum_price(p, t, p->first_op[unit], base);
        price_add(&o.price, &sum);
    }
    return o;
}

bool heads_divide(const struct problem *p, int32_t op)
{
    bool divide = false;
    for (int32_t i = 0; i < p->instance.n_teams; i++)
        divide = divide || cut_of(&p->team[i], op);
    return divide;
}

bool heads_alike(const struct problem *p, int32_t a, int32_t b)
{
    bool same = true;
    for (int32_t i = 0; i < p->instance.n_teams && same; i++) {
        const struct cut_op *x = cut_of(&p->team[i], a), *y = cut_of(&p->team[i], b);
        same = !x == !y && (!x || (x->axis == y->axis && x->each == y->each));
        for (int32_t r = 0; x && same && r <= p->team[i].n; r++)
            same = x->cut[r] == y->cut[r];
    }
    return same;
}

int32_t heads_options(const struct problem *p, int32_t unit, struct option *out)
{
    int32_t n = 0;
    for (int32_t end = p->n_devices; end < instance_ends(&p->instance); end++) {
        const struct team *t = team_at(p, end);
        bool summed;
        if (!unit_divides(p, t, unit, &summed))
            continue;
        for (int32_t i = 0; i < (summed ? t->n + 1 : 1); i++, n++)
            if (out)
                out[n] =
                    option_of(p, unit, end, i < t->n ? t->member[i] : p->instance.host, summed);
    }
    return n;
}

/* ------------------------------------------------------------------------- what is said ---- */

enum op_axis heads_range(const struct problem *p, int32_t op, const struct option *o, int32_t d,
                         int64_t *begin, int64_t *end)
{
    const struct team *t = team_at(p, o->team);
    const struct cut_op *c = cut_of(t, op);
    *begin = *end = 0;
    for (int32_t r = 0; r < t->n; r++)
        if (t->member[r] == d) {
            *begin = begin_of(c, r);
            *end = begin_of(c, r + 1);
        }
    return c->axis;
}

bool heads_op_cost(const struct problem *p, int32_t op, const struct option *o,
                   struct plan_cost *row)
{
    const struct team *t = team_at(p, o->team);
    const struct cut_op *c = cut_of(t, op);
    const bool decode = row->phase == PHASE_DECODE;
    for (int32_t r = 0; r < t->n; r++) {
        if (t->member[r] != row->device)
            continue;
        const struct op_price part = request_share(p, op, row->device, share_at(t, c, r));
        row->ns = (uint64_t)(decode ? part.decode_ns : part.prefill_ns);
        row->estimate = true;
        if (c->axis == AXIS_K && !r) {
            const struct price sum = sum_price(p, t, op, o->out[row->phase]);
            row->transfer_ns = (uint64_t)(decode ? sum.decode_ns : sum.prefill_ns);
        }
        return true;
    }
    return false;
}

/* Whether the plan has the operator on the team, as it would divide it. */
static bool is_planned(const struct problem *p, const struct plan *plan, int32_t op,
                       const struct option *o)
{
    int32_t parts = 0, same = 0;
    for (int32_t k = 0; k < plan->n_parts; k++) {
        const struct plan_part *x = &plan->parts[k];
        int64_t begin, end;
        if (x->begin == x->end || strcmp(x->op, p->graph.ops[op].name) != 0)
            continue;
        const enum op_axis axis = heads_range(p, op, o, x->device, &begin, &end);
        parts++;
        same += x->axis == axis && x->begin == begin && x->end == end && x->home == x->device;
    }
    return parts == same && same == team_at(p, o->team)->n;
}

int32_t heads_of_plan(const struct problem *p, const struct plan *plan, int32_t unit)
{
    const struct unit *u = &p->instance.units[unit];
    for (int32_t k = p->n_devices; k < u->n_options; k++) {
        bool planned = u->options[k].team;
        for (int32_t i = p->first_op[unit]; i < p->graph.n_ops && planned; i++)
            planned = p->unit_of[i] != unit || is_planned(p, plan, i, &u->options[k]);
        if (planned)
            return k;
    }
    return -1;
}
