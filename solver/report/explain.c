/*
 * explain.c - why an operator is where it is: what it and its copies cost on each device if
 * everything else stays, the memory it takes and the time that saves, and what would have to change
 * for it to move. With a model and a profile this is priced again; a plan alone has its records.
 */
#include "solver/planning_internal.h"
#include "solver/report/report_internal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* One unit, or all that a team divides of a layer, on another device, all else as placed. */
struct move {
    bool allowed, fits;
    int64_t delta_ns;        /* of the request */
    int64_t own_ns, here_ns; /* of what moves, there and here */
    uint64_t bytes, missing; /* missing: beyond the budget when it does not fit */
};

struct explain {
    const struct plan *plan;
    const struct model *model;
    struct problem *problem;
    int32_t *place;
    uint64_t used[SOLVER_DEVICES];
    int64_t objective_ns;
    bool json;
    struct text *out;
};

enum { MOVED_MOST = 32 }; /* units of a layer's attention */

/* Whether a team divides the layer of both, which then move together. */
static bool moves_with(const struct explain *x, int32_t unit, int32_t other)
{
    const struct instance *in = &x->problem->instance;
    const int32_t team = instance_option(in, x->place, unit)->team;
    return other == unit || (team && in->units[other].layer == in->units[unit].layer &&
                             instance_option(in, x->place, other)->team == team);
}

static struct move price_move(const struct explain *x, int32_t unit, int32_t d)
{
    const struct instance *in = &x->problem->instance;
    struct move m = {.allowed = true};
    int32_t moved[MOVED_MOST], before[MOVED_MOST], n = 0;
    uint64_t here = 0;
    for (int32_t u = 0; u < in->n_units; u++) {
        const struct option *there = &in->units[u].options[d];
        if (!moves_with(x, unit, u) || n == MOVED_MOST)
            continue;
        m.allowed = m.allowed && there->allowed;
        m.bytes += there->bytes[d];
        m.own_ns += there->price.objective_ns;
        here += instance_option(in, x->place, u)->bytes[d];
        m.here_ns += instance_option(in, x->place, u)->price.objective_ns;
        moved[n++] = u;
    }
    if (!m.allowed)
        return m;
    for (int32_t i = 0; i < n; i++) {
        before[i] = x->place[moved[i]];
        x->place[moved[i]] = d;
    }
    m.delta_ns = instance_price(in, x->place).objective_ns - x->objective_ns;
    for (int32_t i = 0; i < n; i++)
        x->place[moved[i]] = before[i];
    m.allowed = m.delta_ns < NEVER_NS / 2; /* other layers that read its KV would stay */
    uint64_t need = x->problem->reserve[d] + x->used[d] - here + m.bytes;
    m.fits = need <= x->problem->budget[d];
    m.missing = m.fits ? 0 : need - x->problem->budget[d];
    return m;
}

/* The best device to leave for, or to have come from: the least delta among the others. */
static int32_t best_other(const struct explain *x, int32_t unit, struct move *best)
{
    int32_t found = -1;
    for (int32_t d = 0; d < x->problem->n_devices; d++) {
        if (d == x->place[unit])
            continue;
        struct move m = price_move(x, unit, d);
        if (!m.allowed || (found >= 0 && m.delta_ns >= best->delta_ns))
            continue;
        *best = m;
        found = d;
    }
    return found;
}

/* The operator of the unit that keeps all of it from d; NULL: none does. */
static const char *refused_of(const struct problem *p, int32_t unit, int32_t d)
{
    for (int32_t i = p->first_op[unit]; i < p->graph.n_ops; i++)
        if (p->unit_of[i] == unit && !p->price[i * p->n_devices + d].supported)
            return p->graph.ops[i].name;
    return NULL;
}

/* What would have to change for the unit to be on d instead. */
static void change_text(const struct explain *x, int32_t unit, int32_t d, const struct move *m,
                        char *text, size_t n)
{
    const char *id = problem_device(x->problem, d);
    double ms = as_ms((double)llabs(m->delta_ns));
    int64_t copies_ns = m->delta_ns - (m->own_ns - m->here_ns);
    const char *refused = refused_of(x->problem, unit, d);
    if (!m->allowed && m->delta_ns)
        snprintf(text, n, "its heads are divided with those of another layer, which would stay");
    else if (!m->allowed)
        snprintf(text, n, "%s does not run %s%s", id, refused ? refused : "it",
                 refused ? ", says the profile" : "");
    else if (m->delta_ns < 0 && !m->fits)
        snprintf(text, n, "would save %.3f ms, but %s needs %.1f MiB more than its budget", ms, id,
                 as_mib((double)m->missing));
    else if (m->delta_ns < 0)
        snprintf(text, n, "would save %.3f ms and fits: running oato-plan again may move it", ms);
    else if (m->own_ns > m->delta_ns)
        snprintf(
            text, n,
            "would cost %.3f ms more (copies %+.3f ms); it would move if it ran there in %.3f ms "
            "instead of %.3f ms",
            ms, as_ms((double)copies_ns), as_ms((double)(m->own_ns - m->delta_ns)),
            as_ms((double)m->own_ns));
    else
        snprintf(text, n,
                 "would cost %.3f ms more (copies %+.3f ms); moving it alone would not pay "
                 "even if it ran there in no time",
                 ms, as_ms((double)copies_ns));
}

/* Marginal benefit of being where it is against the best alternative, per MiB it takes. */
static double benefit_per_mib(const struct explain *x, int32_t unit, double *benefit_ms)
{
    struct move best;
    *benefit_ms = 0;
    if (best_other(x, unit, &best) < 0)
        return 0;
    const struct instance *in = &x->problem->instance;
    uint64_t bytes = 0;
    for (int32_t u = 0; u < in->n_units; u++)
        for (int32_t d = 0; d < in->n_devices && moves_with(x, unit, u); d++)
            if (x->place[u] < in->n_devices || d != in->host) /* a division: besides the host's */
                bytes += instance_option(in, x->place, u)->bytes[d];
    *benefit_ms = as_ms((double)best.delta_ns);
    return bytes ? *benefit_ms / as_mib((double)bytes) : 0;
}

/* Where an operator's unit is: "cuda:0", "cuda:0 62 % + cpu:0 38 %", "cpu:0, prefill on cuda:0". */
static void where_text(const struct explain *x, int32_t op, struct text *out)
{
    const struct problem *p = x->problem;
    const int32_t unit = p->unit_of[op];
    const struct option *o = instance_option(&p->instance, x->place, unit);
    const bool divided = option_divided(o) || o->team;
    if (!divided)
        text_printf(out, "%s%s", problem_device(p, problem_op_device(p, op, o, PHASE_DECODE)),
                    p->stored && p->stored[op] ? ", weights in the file" : "");
    for (int32_t d = 0; d < p->n_devices && divided; d++) {
        const double share = option_share(p, op, o, d);
        if (share > 0)
            text_printf(out, "%s%s %.0f %%", out->len ? " + " : "", problem_device(p, d),
                        share * 100);
    }
    if (o->rooms)
        text_printf(out, ", prompts on %s", problem_device(p, o->stream));
    else if (o->stream >= 0 && !o->filed)
        text_printf(out, ", prefill of the %s share on %s", problem_device(p, p->instance.host),
                    problem_device(p, o->stream));
}

/* What one operator of a unit takes: its share, as placed, or all of it on device `whole`. */
static uint64_t own_bytes(const struct explain *x, int32_t op, int32_t whole)
{
    const struct problem *p = x->problem;
    const int32_t unit = p->unit_of[op];
    const struct option *o = instance_option(&p->instance, x->place, unit);
    const struct op_price *price = &p->price[op * p->n_devices];
    double bytes = 0;
    if (whole >= 0)
        return price[whole].weight_bytes + price[whole].kv_bytes;
    for (int32_t d = 0; d < p->n_devices; d++)
        bytes += (double)(price[d].weight_bytes + price[d].kv_bytes) * option_share(p, op, o, d);
    return (uint64_t)bytes;
}

/* ------------------------------------------------------------------------- one operator ---- */

static void companions(const struct explain *x, int32_t op, struct text *out)
{
    const struct problem *p = x->problem;
    for (int32_t i = 0; i < p->graph.n_ops; i++)
        if (i != op && p->unit_of[i] == p->unit_of[op])
            text_printf(out, "%s%s", out->len ? ", " : "", p->graph.ops[i].name);
}

/* Why an operator is placed as one with others. */
static const char *what_is_shared(const struct problem *p, int32_t op)
{
    if (!p->division[p->unit_of[op]].groups)
        return "a layer's KV";
    return p->graph.ops[op].op.experts ? "experts" : "neurons";
}

static void json_estimate(const struct explain *x, int32_t op, int32_t d)
{
    struct text why;
    text_init(&why);
    estimate_text(x->problem, op, d, &why);
    json_add(x->out, JSON("estimated_because", or_empty(why.data)));
    text_free_part(&why, x->out);
}

/* A device as the operator's place, now or instead. */
static void device_text(const struct explain *x, int32_t op, int32_t d)
{
    const struct problem *p = x->problem;
    struct text *out = x->out;
    const int32_t unit = p->unit_of[op];
    const bool here = d == x->place[unit];
    const struct op_price *price = &p->price[op * p->n_devices + d];
    const struct move m = price_move(x, unit, d);
    const char *id = problem_device(p, d);
    char change[256] = "";
    if (!here)
        change_text(x, unit, d, &m, change, sizeof change);
    if (x->json) {
        json_open(out, NULL, '{');
        json_add(out, JSON("device", id), JSON("here", here), JSON("supported", m.allowed));
        if (m.allowed && price->estimate)
            json_estimate(x, op, d);
        if (m.allowed)
            json_add(out, JSON("prefill_ns", price->prefill_ns),
                     JSON("decode_ns", price->decode_ns), JSON("estimate", price->estimate),
                     json_bool("contradicts", op_contradicts(p, op, d)),
                     JSON("bytes", own_bytes(x, op, d)), JSON("unit_bytes", m.bytes),
                     JSON("fits", m.fits), JSON("change_ns", (double)m.delta_ns));
        json_add(out, JSON("what_would_have_to_change", change));
        json_close(out, '}');
    } else if (m.allowed) {
        text_printf(out, "  %-8s %10.3f %10.4f%c %9.2f  %s\n", id, as_ms((double)price->prefill_ns),
                    as_ms((double)price->decode_ns), price->estimate ? '~' : ' ',
                    as_mib((double)own_bytes(x, op, d)), here ? "here" : change);
    } else {
        text_printf(out, "  %-8s %10s %10s  %9s  %s\n", id, "-", "-", "-", here ? "here" : change);
    }
}

static void copies_text(const struct explain *x, int32_t op)
{
    const struct problem *p = x->problem;
    const struct instance *in = &p->instance;
    int32_t unit = p->unit_of[op];
    struct price in_ns = {0}, out_ns = {0};
    for (int32_t i = 0; i < in->n_edges; i++) {
        struct price price = edge_price(in, &in->edges[i], x->place);
        bool reads = false;
        for (int32_t r = 0; r < in->edges[i].n_readers; r++)
            reads = reads || in->readers[in->edges[i].first_reader + r] == unit;
        struct price *to = in->edges[i].producer == unit ? &out_ns : &in_ns;
        if (in->edges[i].producer != unit && !reads)
            continue;
        price_add(to, &price);
    }
    if (x->json)
        json_add(x->out, JSON("copies_of_inputs_ns", in_ns.objective_ns),
                 JSON("copies_of_outputs_ns", out_ns.objective_ns));
    else
        text_printf(x->out,
                    "  copies now: inputs %.3f ms, outputs %.3f ms of the request (shared by all "
                    "that read them)\n",
                    as_ms((double)in_ns.objective_ns), as_ms((double)out_ns.objective_ns));
}

/* What each device saves by running the operator together with those before it. */
static void joins_text(const struct explain *x, int32_t op)
{
    const struct problem *p = x->problem;
    const int32_t tokens = request_decode_step(&p->request).tokens;
    if (x->json)
        json_open(x->out, "joins", '[');
    for (int32_t d = 0; d < p->n_devices; d++) {
        int32_t first;
        const double ns = cost_of_join(p->cost, p->device[d], &p->graph, op, tokens, &first);
        if (ns <= 0)
            continue;
        const char *name = op_join_names[graph_join(&p->graph, op, &first)];
        const char *with = p->graph.ops[first].name;
        if (x->json)
            json_add_object(x->out, NULL, JSON("device", problem_device(p, d)), JSON("join", name),
                            JSON("from", with), JSON("saves_ns", ns));
        else
            text_printf(x->out, "  joined on %s (%s, from %s on): saves %.4f ms of a decode step\n",
                        problem_device(p, d), name, with, as_ms(ns));
    }
    if (x->json)
        json_close(x->out, ']');
}

/* Which of the devices that compute neurons of the operator skip silent ones. */
static void sparse_text(const struct explain *x, int32_t op)
{
    const struct problem *p = x->problem;
    const struct plan_sparse *s = plan_skips(p->sparse, p->n_sparse, p->graph.ops[op].layer);
    const int32_t first = p->first_op[p->unit_of[op]];
    const uint32_t uses = instance_option(&p->instance, x->place, p->unit_of[op])->uses;
    if (!s || !divide_pair(&p->graph, first))
        return;
    for (int32_t d = 0; d < p->n_devices; d++)
        if (uses >> d & 1)
            text_printf(x->out, "  %s %s silent neurons%s\n", problem_device(p, d),
                        s->dense >> d & 1 ? "computes" : "skips",
                        s->predicts ? ", found by the layer's predictor" : "");
    if (s->threshold > 0)
        text_printf(x->out, "  silent: activations of at most %g\n", (double)s->threshold);
}

/* A cache is named by its layer's expert_gate_up, and has the experts of what follows it, too. */
static void op_cache_text(const struct explain *x, int32_t op)
{
    const struct graph *g = &x->problem->graph;
    const int32_t first = op && divide_pair(g, op - 1) ? op - 1 : op;
    for (int32_t i = 0; i < x->plan->n_caches; i++)
        if (!strcmp(x->plan->caches[i].op, g->ops[first].name))
            cache_text(x->plan, x->problem, &x->plan->caches[i], "  ", x->json, x->out);
}

static uint64_t unit_bytes(const struct explain *x, int32_t op)
{
    const struct problem *p = x->problem;
    const struct option *o = instance_option(&p->instance, x->place, p->unit_of[op]);
    uint64_t bytes = 0;
    for (int32_t d = 0; d < p->n_devices; d++)
        bytes += o->bytes[d];
    return bytes;
}

static void explain_op(const struct explain *x, int32_t op)
{
    const struct problem *p = x->problem;
    const struct graph_op *o = &p->graph.ops[op];
    struct text *out = x->out, together, where;
    char key[OP_KEY_SIZE];
    double benefit_ms, per_mib = benefit_per_mib(x, p->unit_of[op], &benefit_ms);
    text_init(&together);
    text_init(&where);
    companions(x, op, &together);
    where_text(x, op, &where);
    oato_op_key(&o->op, NULL, key);
    if (x->json) {
        json_open(out, NULL, '{');
        json_add(out, JSON("op", o->name), JSON("key", key), JSON("device", where.data));
        json_open(out, "tensors", '[');
        for (int w = 0; w < o->n_weights; w++)
            if (o->weight[w])
                json_add(out, JSON(NULL, o->weight[w]->name));
        json_close(out, ']');
        json_add(out, JSON("together_with", together.data), JSON("benefit_ns", benefit_ms * 1e6),
                 JSON("benefit_ns_per_mib", per_mib * 1e6));
        copies_text(x, op);
        joins_text(x, op);
        op_cache_text(x, op);
        json_open(out, "devices", '[');
        for (int32_t d = 0; d < p->n_devices; d++)
            device_text(x, op, d);
        json_close(out, ']');
        json_close(out, '}');
    } else {
        text_printf(out, "%s (%s) is on %s\n", o->name, key, where.data);
        if (together.len)
            text_printf(out, "  placed as one with %s: they share %s, and take %.2f MiB together\n",
                        together.data, what_is_shared(p, op), as_mib((double)unit_bytes(x, op)));
        if (instance_option(&p->instance, x->place, p->unit_of[op])->team)
            text_printf(out,
                        "  divided by heads with its layer's attention, from q, k and v to the "
                        "sum: all of that is what would be elsewhere\n");
        else if (p->instance.n_teams && o->kv_layer >= 0 && !heads_divide(p, op))
            text_printf(out, "  its heads cannot be divided between accelerators: %s\n",
                        op_divides(&o->op, AXIS_HEADS)
                            ? "there are too few, or other operators stand between them"
                            : "all of the layer's share one of K and V");
        text_printf(out, "  %-8s %10s %10s  %9s\n", "device", "prefill ms", "decode ms", "MiB");
        for (int32_t d = 0; d < p->n_devices; d++)
            device_text(x, op, d);
        copies_text(x, op);
        if (benefit_ms > 0)
            text_printf(out, "  being here saves %.3f ms of the request", benefit_ms);
        if (benefit_ms > 0 && per_mib > 0)
            text_printf(out, ", %.4f ms per MiB", per_mib);
        text_printf(out, "%s", benefit_ms > 0 ? "\n" : "");
        sparse_text(x, op);
        op_cache_text(x, op);
        joins_text(x, op);
        for (int32_t d = 0; d < p->n_devices; d++)
            if (p->price[op * p->n_devices + d].supported &&
                p->price[op * p->n_devices + d].estimate) {
                text_printf(out, "  ~ estimate: ");
                estimate_text(p, op, d, out);
                text_printf(out, "\n");
            }
        for (int32_t d = 0; d < p->n_devices; d++)
            if (op_contradicts(p, op, d))
                text_printf(out,
                            "  ! on %s it was faster than the device's rate of reading memory "
                            "allows, when measured again, too\n",
                            problem_device(p, d));
    }
    text_free_part(&together, out);
    text_free_part(&where, out);
}

/* ------------------------------------------------------------------------------- tables ---- */

static void line_of(const struct explain *x, int32_t op)
{
    const struct problem *p = x->problem;
    const int32_t unit = p->unit_of[op];
    const struct option *o = instance_option(&p->instance, x->place, unit);
    const bool whole = x->place[unit] < p->n_devices;
    const struct op_price *there =
        &p->price[op * p->n_devices + (whole ? o->in[PHASE_DECODE] : p->instance.host)];
    /* of parts at the same time: all of the unit */
    const int64_t prefill_ns = whole ? there->prefill_ns : o->price.prefill_ns;
    const int64_t decode_ns = whole ? there->decode_ns : o->price.decode_ns;
    double benefit_ms, per_mib = benefit_per_mib(x, unit, &benefit_ms);
    struct text where;
    text_init(&where);
    where_text(x, op, &where);
    text_printf(x->out, "%-28s %-8s", p->graph.ops[op].name, where.data);
    /* what is of the whole unit, or of all that a team divides, is told once, so that columns add
     * up */
    bool leads = op == p->first_op[unit];
    const bool first = leads;
    for (int32_t u = 0; u < unit && leads; u++)
        leads = !moves_with(x, unit, u);
    if (whole || first)
        text_printf(x->out, " %10.3f %10.4f%c", as_ms((double)prefill_ns), as_ms((double)decode_ns),
                    !whole || there->estimate ? '~' : ' ');
    else
        text_printf(x->out, " %10s %10s ", "-", "-");
    text_printf(x->out, " %9.2f", as_mib((double)own_bytes(x, op, -1)));
    if (leads)
        text_printf(x->out, " %11.3f %12.4f\n", benefit_ms, per_mib);
    else
        text_printf(x->out, " %11s %12s\n", "-", "-");
    text_free_part(&where, x->out);
}

static bool op_has_tensor(const struct graph_op *op, const char *name)
{
    for (int i = 0; i < op->n_weights; i++)
        if (op->weight[i] && !strcmp(op->weight[i]->name, name))
            return true;
    return false;
}

/* Does operator i of the fused graph stand for the one of this name in the unfused graph? */
static bool op_has_member(const struct explain *x, int32_t op, const char *name)
{
    const struct graph *g = &x->model->graph;
    int32_t i = 0;
    for (int32_t j = 0; j <= op && i < g->n_ops; j++) {
        int32_t members = 1;
        for (int32_t f = 0; f < op_fusion_count; f++)
            if (op_fusions[f].fused == (enum op_kind)x->problem->graph.ops[j].op.kind)
                members = op_fusions[f].n_members;
        for (int32_t k = 0; j == op && k < members && i + k < g->n_ops; k++)
            if (!strcmp(g->ops[i + k].name, name))
                return true;
        i += members;
    }
    return false;
}

static oato_status unknown_name(const struct explain *x, const char *name, struct oato_error *err)
{
    const struct plan *p = x->plan;
    const char **names = calloc((size_t)p->n_parts + 1, sizeof *names);
    const char *near = NULL;
    for (int32_t i = 0; names && i < p->n_parts; i++)
        names[i] = p->parts[i].op;
    if (names)
        near = nearest_name(name, names, (size_t)p->n_parts);
    oato_fail(err, OATO_EUSAGE, "no operator, layer or tensor is called '%.80s'%s%s%s", name,
              near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
    free(names);
    return err->status;
}

static void caches_text(const struct explain *x, const char *name)
{
    for (int32_t i = 0; i < x->plan->n_caches && !x->json; i++) {
        const struct plan_cache *c = &x->plan->caches[i];
        if (name && !name_within(c->op, name))
            continue;
        text_printf(x->out, "%s: ", c->op);
        cache_text(x->plan, x->problem, c, "", x->json, x->out);
    }
}

static oato_status explain_priced(const struct explain *x, const char *name, struct oato_error *err)
{
    const struct graph *g = &x->problem->graph;
    int32_t found = 0;
    for (int32_t i = 0; name && i < g->n_ops; i++) {
        if (strcmp(g->ops[i].name, name) != 0 && !op_has_tensor(&g->ops[i], name) &&
            !op_has_member(x, i, name))
            continue;
        explain_op(x, i);
        found++;
    }
    for (int32_t i = 0; !found && i < g->n_ops; i++)
        found -= !name || name_within(g->ops[i].name, name);
    if (!found)
        return unknown_name(x, name, err);
    if (found > 0)
        return OATO_OK;
    if (!x->json)
        text_printf(x->out, "%-28s %-8s %10s %10s  %9s %11s %12s\n", "operator", "device",
                    "prefill ms", "decode ms", "MiB", "saves ms", "ms per MiB");
    for (int32_t i = 0; i < g->n_ops; i++) {
        if (name && !name_within(g->ops[i].name, name))
            continue;
        if (x->json)
            explain_op(x, i);
        else
            line_of(x, i);
    }
    caches_text(x, name);
    if (!x->json) {
        untimed_text(x->plan, x->problem, x->out);
        doubts_text(x->problem, x->out);
        compile_text(x->problem, x->out);
    }
    return OATO_OK;
}

/* Without model and profile: what the plan recorded. */
static oato_status explain_recorded(const struct explain *x, const char *name,
                                    struct oato_error *err)
{
    const struct plan *p = x->plan;
    struct text *out = x->out;
    const int width = device_width(p);
    bool found = false;
    if (!x->json)
        text_printf(out, "%-28s %-*s %-8s %12s %12s\n", "operator", width, "device", "phase",
                    "predicted ms", "copies ms");
    for (int32_t i = 0; i < p->n_costs; i++) {
        const struct plan_cost *c = &p->costs[i];
        if (name && !name_within(c->op, name))
            continue;
        found = true;
        const char *phase = c->phase == PHASE_DECODE ? "decode" : "prefill";
        const struct device_name device = device_name(p, c->device);
        if (x->json)
            json_add_object(out, NULL, JSON("op", c->op), JSON("phase", phase),
                            JSON("device", device.text), JSON("ns", c->ns),
                            JSON("copies_ns", c->transfer_ns), JSON("estimate", c->estimate));
        else
            text_printf(out, "%-28s %-*s %-8s %12.4f%c %11.4f\n", c->op, width, device.text, phase,
                        as_ms((double)c->ns), c->estimate ? '~' : ' ',
                        as_ms((double)c->transfer_ns));
    }
    if (!found && name)
        return unknown_name(x, name, err);
    caches_text(x, name);
    if (!x->json && plan_ranks(p) == 1)
        text_printf(out, "with -m MODEL.gguf and -p PROFILE this says what the alternatives "
                         "cost\n");
    return OATO_OK;
}

oato_status report_explain(const struct plan *p, const struct model *m,
                           const struct profile *profile, const char *name, bool json,
                           struct text *out, struct oato_error *err)
{
    struct explain x = {.plan = p, .model = m, .json = json, .out = out};
    oato_status status;
    if (json)
        json_open(out, NULL, '[');
    if (m && profile) {
        status = problem_of_plan(m, profile, p, &x.problem, &x.place, err);
        if (status)
            return status;
        instance_fits(&x.problem->instance, x.place, x.used);
        x.objective_ns = instance_price(&x.problem->instance, x.place).objective_ns;
        status = explain_priced(&x, name, err);
        problem_free(x.problem);
    } else {
        status = explain_recorded(&x, name, err);
    }
    if (json)
        text_printf(out, "]\n");
    return status ? status : text_status(out, err);
}
