/*
 * caches.c - a cache of experts above a finished plan: slots on an accelerator, in memory that the
 * plan leaves free, for the experts whose decode is on the host.
 *
 * Hits are predicted as those of a cache that keeps what was used last (LRU), by Che's
 * approximation (Che, Tung, Wang 2002) for choices that do not depend on each other: an expert that
 * a token chooses with probability p is there if one of the last t tokens chose it, 1 - (1 - p)^t,
 * and t is such that these add up to the slots. The engine's cache, which counts, is no worse.
 * Without a sidecar all experts are alike, and the share is that of the slots.
 *
 * Copies run beside steps, and cost twice: a slot that waits for its expert holds nothing, and the
 * host, whose time is that of reading experts, reads one more (simulate_step.c). The copies' use of
 * the link is not weighed against that of the values that cross it.
 *
 * Solvers know nothing of caches and fill accelerators. So plans are made with room set aside, too,
 * for as many slots as were asked for or, by `auto`, for some shares of all experts; that is taken
 * which is fastest on the virtual clock, and with `auto` the cache stays only where it gains.
 */
#include "solver/planning_internal.h"

#include <string.h>

enum { ROUNDS = 60, PER_MILLION = 1000000, MARGIN_MOST = 1000000, ROW_GROUP = 64 };

/* Experts [first, first + held) of a layer, which the host decodes. */
struct cacheable {
    int32_t op, first, held;
    uint64_t bytes; /* of an expert on the accelerator */
};

/* The one part of the operator that the host decodes from its memory; false: there is none, or
 * more. Experts that are in a file are not in memory to be copied. */
static bool host_part(const struct plan *plan, const struct problem *p, const struct graph_op *o,
                      int32_t *first, int32_t *held)
{
    int32_t parts = 0;
    for (int32_t i = 0; i < plan->n_parts; i++) {
        const struct plan_part *t = &plan->parts[i];
        if (!(t->phases >> PHASE_DECODE & 1) || !p->instance.is_host[t->device] ||
            t->begin == t->end || strcmp(t->op, o->name) != 0)
            continue;
        if (t->home == HOME_FILE)
            return false;
        const bool some = t->axis == AXIS_EXPERTS;
        *first = some ? (int32_t)t->begin : 0;
        *held = some ? (int32_t)(t->end - t->begin) : o->op.experts;
        parts++;
    }
    return parts == 1;
}

static const struct op_price *price_of(const struct problem *p, int32_t op, int32_t d)
{
    return &p->price[op * p->n_devices + d];
}

static uint64_t slot_bytes(const struct problem *p, int32_t op, int32_t d)
{
    return (price_of(p, op, d)->weight_bytes + price_of(p, op + 1, d)->weight_bytes) /
           (uint64_t)p->graph.ops[op].op.experts;
}

uint64_t cache_bytes(const struct problem *p, const struct plan_cache *c)
{
    for (int32_t i = 0; i + 1 < p->graph.n_ops; i++)
        if (!strcmp(p->graph.ops[i].name, c->op))
            return (uint64_t)c->slots * slot_bytes(p, i, c->device);
    return 0;
}

/* Whether the device could hold experts of the operator and its companion. */
static bool has_slots(const struct problem *p, int32_t op, int32_t d)
{
    const struct graph_op *up = &p->graph.ops[op], *down = up + 1;
    return up->op.kind == OP_EXPERT_GATE_UP && divide_pair(&p->graph, op) &&
           !(up->op.n % ROW_GROUP) && !(down->op.n % ROW_GROUP) && price_of(p, op, d)->supported &&
           price_of(p, op + 1, d)->supported;
}

static bool is_cacheable(const struct plan *plan, const struct problem *p, int32_t op, int32_t d,
                         struct cacheable *out)
{
    const struct graph_op *up = &p->graph.ops[op], *down = up + 1;
    int32_t first, held;
    if (!has_slots(p, op, d) || !host_part(plan, p, up, &out->first, &out->held) ||
        !host_part(plan, p, down, &first, &held) || first != out->first || held != out->held)
        return false;
    out->op = op;
    out->bytes = slot_bytes(p, op, d);
    return true;
}

/* The accelerator's layers whose experts can be cached; n and the bytes of one slot in each. */
static int32_t list_cacheable(const struct plan *plan, const struct problem *p, int32_t d,
                              struct cacheable *list, uint64_t *bytes)
{
    int32_t n = 0;
    *bytes = 0;
    for (int32_t i = 0; i + 1 < p->graph.n_ops; i++)
        if (is_cacheable(plan, p, i, d, &list[n]))
            *bytes += list[n++].bytes;
    return n;
}

/* The rows of the experts' products, beside what plans without slots take. */
static uint64_t rows_bytes(const struct problem *p)
{
    const uint64_t rows = (uint64_t)p->request.batch;
    uint64_t widest = 0;
    for (int32_t i = 0; i < p->graph.n_ops; i++) {
        const struct oato_op *op = &p->graph.ops[i].op;
        const uint64_t bytes = rows * 4 * (uint64_t)op->experts_used * (uint64_t)op->n;
        if (op_has_experts(op) && bytes > widest)
            widest = bytes;
    }
    return 2 * widest;
}

static uint64_t bytes_left(const struct plan *plan, const struct problem *p, int32_t d)
{
    const uint64_t used = plan->devices[d].planned_bytes,
                   work = (used ? used : p->reserve[d] - p->aside[d]) + rows_bytes(p);
    return plan->devices[d].budget_bytes > work ? plan->devices[d].budget_bytes - work : 0;
}

/* Of the layer's tokens, the share that chooses the i-th expert of the plan's order. */
static double chosen_by(const struct problem *p, const struct graph_op *o, int32_t i)
{
    const struct neurons_layer *l = p->neurons ? neurons_layer(p->neurons, o->layer) : NULL;
    return l && l->exp_freq && l->exp_order ? fmin(l->exp_freq[l->exp_order[i]], 1)
                                            : (double)o->op.experts_used / o->op.experts;
}

/* Of a token's choices, those of the cache's experts. */
static double choices_of(const struct problem *p, const struct cacheable *c)
{
    double all = 0;
    for (int32_t i = c->first; i < c->first + c->held; i++)
        all += chosen_by(p, &p->graph.ops[c->op], i);
    return all;
}

/* The share of choices that find their expert in slots that are never empty. */
static double found_in(const struct problem *p, const struct cacheable *c, int32_t slots)
{
    const struct graph_op *o = &p->graph.ops[c->op];
    const double all = choices_of(p, c);
    double low = 0, high = 1e9, hits = 0;
    for (int round = 0; round < ROUNDS; round++) {
        const double t = (low + high) / 2;
        double there = 0;
        for (int32_t i = c->first; i < c->first + c->held; i++)
            there += 1 - pow(1 - chosen_by(p, o, i), t);
        *(there < slots ? &low : &high) = t;
    }
    for (int32_t i = c->first; i < c->first + c->held; i++) {
        const double often = chosen_by(p, o, i);
        hits += often * (1 - pow(1 - often, low));
    }
    return all > 0 ? hits / all : 0;
}

/* An expert replaces another one whose count is lower by the margin, so the counts of those in the
 * cache add up to more than a cache that stays as it is would have, and what ages away pays for
 * copies: of counts that vary by chance alone, n with the variance v each, the k highest exceed
 * their mean by sqrt(k (n - k) v) at most, together. Counts of choices that halve after H tokens
 * have the variance p / (2 r), r = ln 2 / H, and age by r a token. */
double cache_copies(const struct placed_cache *c, int32_t held, double choices, int32_t tokens)
{
    const double rate = M_LN2 / CACHE_HALF_LIFE, lead = c->margin * 1e-3 + 0.5;
    const double some = (double)c->slots * (held - c->slots) / held;
    const double misses = choices * (1 - c->hits * 1e-6) * tokens;
    const double copies = sqrt(fmax(some * choices * rate / 2, 0)) / lead * tokens;
    return fmin(fmin(copies, misses), 1);
}

static double copy_ns(const struct problem *p, const struct cacheable *c, int32_t d)
{
    return cost_of_stream(p->cost, p->device[p->instance.host], p->device[d], (double)c->bytes);
}

/* Of a million choices those that find their expert in one of n caches that share a link. A copy
 * takes a step, or as long as those of all layers; meanwhile the cache has a slot less. */
static int32_t hits_of(const struct problem *p, const struct cacheable *c, int32_t n,
                       const struct plan_cache *cache, uint64_t step_ns)
{
    const double full = found_in(p, c, cache->slots);
    const struct placed_cache placed = {.slots = cache->slots,
                                        .margin = cache->margin,
                                        .hits = (int32_t)lround(full * PER_MILLION)};
    const double copies = cache_copies(&placed, c->held, choices_of(p, c), p->request.batch);
    const double steps = fmax(n * copy_ns(p, c, cache->device) / fmax((double)step_ns, 1), 1);
    const double away = fmin(copies * steps, 1);
    const double less = away > 0 ? found_in(p, c, cache->slots - 1) : 0;
    return (int32_t)lround((full + away * (less - full)) * PER_MILLION);
}

/* The copy of an expert in thousandths of what a choice saves that finds it. */
static int32_t margin_of(const struct problem *p, const struct cacheable *c, int32_t d)
{
    const int32_t host = p->instance.host, used = p->graph.ops[c->op].op.experts_used;
    const double here =
        (double)(price_of(p, c->op, host)->decode_ns + price_of(p, c->op + 1, host)->decode_ns) /
        used;
    const double there =
        (double)(price_of(p, c->op, d)->decode_ns + price_of(p, c->op + 1, d)->decode_ns) / used;
    const double copy = copy_ns(p, c, d);
    return here > there && copy > 0 ? (int32_t)fmin(1000 * copy / (here - there), MARGIN_MOST)
                                    : MARGIN_MOST;
}

/* The accelerator with the most memory left for it; -1: none. */
static int32_t best_device(const struct plan *plan, const struct problem *p, bool automatic,
                           struct cacheable *list)
{
    int32_t best = -1;
    uint64_t most = 0, bytes;
    for (int32_t d = 0; d < p->n_devices; d++) {
        const uint64_t left = bytes_left(plan, p, d);
        if (p->instance.is_host[d] || (automatic && !cost_device(p->cost, p->device[d]).refills) ||
            left < most || !list_cacheable(plan, p, d, list, &bytes))
            continue;
        best = d;
        most = left;
    }
    return best;
}

static oato_status fill_caches(struct plan *plan, const struct problem *p, int32_t d,
                               const struct cacheable *list, int32_t n, int32_t slots,
                               struct oato_error *err)
{
    plan->caches = arena_alloc(&plan->arena, (size_t)n, sizeof *plan->caches);
    for (int32_t i = 0; plan->caches && i < n; i++) {
        const int32_t some = slots < list[i].held ? slots : list[i].held;
        plan->caches[i] =
            (struct plan_cache){.op = arena_string(&plan->arena, p->graph.ops[list[i].op].name),
                                .device = d,
                                .slots = some,
                                .margin = margin_of(p, &list[i], d)};
        plan->caches[i].hits = hits_of(p, &list[i], n, &plan->caches[i], plan->decode_ns);
        plan->devices[d].planned_bytes += (uint64_t)some * list[i].bytes;
        if (!plan->caches[i].op)
            return oato_fail_memory(err, 64, "the plan");
    }
    if (!plan->caches)
        return oato_fail_memory(err, (size_t)n * sizeof *plan->caches, "the plan");
    plan->n_caches = n;
    return OATO_OK;
}

/* Takes the caches back unless the plan got faster. */
static oato_status keep_if_faster(struct plan *plan, const struct model *m, const struct problem *p,
                                  const struct plan_device *before, int32_t d, uint64_t request_ns,
                                  struct oato_error *err)
{
    if (plan->request_ns < request_ns)
        return OATO_OK;
    plan->caches = NULL;
    plan->n_caches = 0;
    plan->devices[d] = *before;
    return simulation_predict(plan, m, p->profile, err);
}

oato_status caches_add(struct plan *plan, const struct model *m, const struct problem *p,
                       int32_t slots, struct oato_error *err)
{
    const bool automatic = slots == CACHE_AUTO;
    struct cacheable *list = arena_alloc(&plan->arena, (size_t)p->graph.n_ops + 1, sizeof *list);
    if (!list)
        return oato_fail_memory(err, (size_t)p->graph.n_ops * sizeof *list, "the plan");
    const int32_t d = best_device(plan, p, automatic, list);
    if (d < 0)
        return automatic ? OATO_OK
                         : oato_fail(err, OATO_EUSAGE,
                                     "--expert-cache: the plan leaves no experts on the host that "
                                     "another device could cache; leave it out, or lower --budget");
    uint64_t bytes;
    const int32_t n = list_cacheable(plan, p, d, list, &bytes);
    const uint64_t left = bytes_left(plan, p, d), fit = bytes ? left / bytes : 0;
    if (!automatic && (uint64_t)slots > fit)
        return oato_fail(err, OATO_EFIT,
                         "--expert-cache %d takes %.1f MiB on %s, and the plan leaves %.1f MiB: at "
                         "most %d slots fit; raise --budget or ask for fewer",
                         slots, (double)slots * (double)bytes / 0x1p20, problem_device(p, d),
                         (double)left / 0x1p20, (int)fit);
    const struct plan_device before = plan->devices[d];
    const uint64_t request_ns = plan->request_ns;
    if (automatic)
        slots = (int32_t)least_bytes(fit, EXPERTS_MAX);
    if (!slots)
        return OATO_OK;
    if (fill_caches(plan, p, d, list, n, slots, err) ||
        simulation_predict(plan, m, p->profile, err))
        return err->status;
    return automatic ? keep_if_faster(plan, m, p, &before, d, request_ns, err) : OATO_OK;
}

/* ------------------------------------------------------------------------------- room for it */

/* The accelerator with the most memory that could hold experts, and the bytes of a slot in each
 * layer; -1: none. */
static int32_t room_device(const struct problem *p, bool automatic, uint64_t *slot)
{
    int32_t best = -1;
    for (int32_t d = 0; d < p->n_devices; d++) {
        uint64_t bytes = 0;
        if (p->instance.is_host[d] || (automatic && !cost_device(p->cost, p->device[d]).refills) ||
            (best >= 0 && p->instance.capacity[d] <= p->instance.capacity[best]))
            continue;
        for (int32_t i = 0; i + 1 < p->graph.n_ops; i++)
            bytes += has_slots(p, i, d) ? slot_bytes(p, i, d) : 0;
        if (!bytes)
            continue;
        best = d;
        *slot = bytes;
    }
    return best;
}

/* Makes the plan with so many bytes set aside, and keeps it in *out if it is the first or faster.
 */
static oato_status try_room(const struct model *m, const struct profile *profile,
                            const struct planner_options *o, bool first, struct plan *out,
                            struct problem **problem, struct oato_error *err)
{
    struct plan plan;
    struct problem *p;
    const oato_status status = planner_make(m, profile, o, &plan, &p, err);
    if (status)
        return status;
    const bool better = first || plan.request_ns < out->request_ns;
    if (!first && better) { /* what was proven is of plans without caches and with all the room */
        plan.bound_ns = out->bound_ns;
        plan.timed_out = plan.timed_out || out->timed_out;
    }
    plan_keep(out, problem, &plan, p, better, !first);
    return OATO_OK;
}

oato_status caches_make(const struct model *m, const struct profile *profile,
                        const struct planner_options *given, struct plan *out,
                        struct problem **problem, struct oato_error *err)
{
    static const int32_t shares[] = {0, 16, 8, 4, 2}; /* one of so many experts; 0: none */
    const bool automatic = given->expert_cache == CACHE_AUTO;
    const uint64_t end_ns = ilp_sooner(ilp_deadline(given->time_limit_s), given->deadline_ns);
    struct planner_options o = *given;
    struct problem *sizes = NULL, *made = NULL;
    struct oato_error ignored;
    uint64_t slot = 0;
    int32_t experts = 0;
    o.cache_room = true;
    oato_status status = problem_create(m, profile, &o, &sizes, err);
    if (status)
        return status;
    const int32_t d = room_device(sizes, automatic, &slot);
    for (int32_t i = 0; i < sizes->graph.n_ops; i++)
        experts =
            sizes->graph.ops[i].op.experts > experts ? sizes->graph.ops[i].op.experts : experts;
    const uint64_t most = d < 0 ? 0 : sizes->instance.capacity[d], rows = rows_bytes(sizes);
    const int32_t n = !automatic || d < 0 ? 1 : ARRAY_LEN(shares);
    for (int32_t i = 0; i < n && !status; i++) {
        const uint64_t slots = !automatic  ? (uint64_t)given->expert_cache
                               : shares[i] ? (uint64_t)(experts / shares[i])
                                           : 0,
                       room = slots ? slots * slot + rows : 0;
        if (i && (room > most || !slots || !strcmp(given->solver, "cpu")))
            continue;
        if (d >= 0)
            o.aside[d] = given->aside[d] + least_bytes(room, most);
        o.deadline_ns = ilp_share(end_ns, n - i);
        status = try_room(m, profile, &o, !i, out, &made, i ? &ignored : err);
        if (i && (status == OATO_EFIT || status == OATO_EUSAGE) && !oato_failed_memory(&ignored))
            status = OATO_OK;
        else if (i && status)
            *err = ignored;
        if (i && status) {
            plan_free(out);
            problem_free(made);
        }
    }
    problem_free(sizes);
    if (!status && !automatic)
        out->bound_ns = 0; /* of plans with that room */
    if (status || !problem)
        problem_free(status ? NULL : made);
    if (problem)
        *problem = status ? NULL : made;
    return status;
}
