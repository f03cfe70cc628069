/*
 * planner.c - runs the solvers over a problem and fills the plan. The baselines are always priced;
 * `auto` and `ilp` start from the best of them, so neither is ever slower. A plan depends on its
 * inputs only, not on the time of day or on addresses.
 */
#include "solver/planning_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LARGE_GAP 1e-3 /* at which searches of large problems end */

enum { SMALL_UNITS = 64, CANDIDATES = 8, FIT_TRIES = 8 };

struct candidate {
    const char *name; /* of the baseline, as the plan records it */
    bool fits;
    int32_t *place;
    int64_t objective_ns;
    int64_t theirs_ns; /* of another engine that runs it in its own way; 0: none does */
};

enum { C_CPU, C_LAYERS, C_FIT, C_POWERINFER, C_SINGLE, C_AFFINITY, C_ILP, C_ROOMY };

static oato_status try_heuristics(struct problem *p, struct candidate *c, struct ilp_clock *clock,
                                  struct oato_error *err)
{
    const struct instance *in = &p->instance;
    c[C_CPU].fits = solve_cpu(in, c[C_CPU].place);
    c[C_LAYERS].fits = solve_layers(in, c[C_LAYERS].place);
    c[C_FIT].fits = baseline_fit(p, c[C_FIT].place);
    c[C_FIT].theirs_ns = baseline_fit_price(p, c[C_FIT].place, c[C_ILP].place).objective_ns;
    for (int i = C_SINGLE; i <= C_AFFINITY; i++) {
        oato_status status = /* the rounds of the iterated one come last, and stay */
            solve_affinity(in, i == C_SINGLE, clock, c[i].place, p->rounds, &p->n_rounds, err);
        if (status && status != OATO_NEGATIVE)
            return status;
        c[i].fits = !status;
    }
    if (baseline_powerinfer(p, clock, c[C_POWERINFER].place, &c[C_POWERINFER].fits, err))
        return err->status;
    for (int i = 0; i < C_ILP; i++)
        if (c[i].fits)
            c[i].objective_ns = instance_price(in, c[i].place).objective_ns;
    return OATO_OK;
}

static int best_of(const struct candidate *c, int n)
{
    int best = -1;
    for (int i = 0; i < n; i++)
        if (c[i].fits && (best < 0 || c[i].objective_ns < c[best].objective_ns))
            best = i;
    return best;
}

/* What the model takes at least, and the devices offer, without reserves. */
static void need_and_offer(const struct problem *p, uint64_t *need, uint64_t *kv, uint64_t *offer)
{
    const struct instance *in = &p->instance;
    *need = *kv = *offer = 0;
    for (int32_t u = 0; u < in->n_units; u++) {
        uint64_t least = UINT64_MAX;
        for (int32_t d = 0; d < p->n_devices; d++)
            if (in->units[u].options[d].allowed && in->units[u].options[d].bytes[d] < least)
                least = in->units[u].options[d].bytes[d];
        *need += least == UINT64_MAX ? 0 : least;
    }
    for (int32_t i = 0; i < p->graph.n_ops; i++)
        *kv += p->stored && p->stored[i] ? 0 : p->price[i * p->n_devices].kv_bytes;
    for (int32_t d = 0; d < p->n_devices; d++)
        *offer += in->usable[d] ? in->capacity[d] : 0;
}

/* A line for people: what is missing, and what would help. */
static oato_status does_not_fit(const struct problem *p, struct oato_error *err)
{
    uint64_t need, kv, offer;
    char text[256] = "";
    size_t n = 0;
    need_and_offer(p, &need, &kv, &offer);
    for (int32_t d = 0; d < p->n_devices && n < sizeof text; d++)
        n += (size_t)snprintf(text + n, sizeof text - n, "%s%s %.1f MiB", d ? ", " : "",
                              problem_device(p, d), (double)p->instance.capacity[d] / 0x1p20);
    if (need <= offer)
        return oato_fail(err, OATO_EFIT,
                         "%.1f MiB of weights and KV fit into %s in total, but not operator by "
                         "operator; raise --budget by about the largest operator",
                         (double)need / 0x1p20, text);
    double missing = (double)(need - offer) / 0x1p20;
    return oato_fail(
        err, OATO_EFIT,
        "weights (%.1f MiB) and KV of %d positions (%.1f MiB) do not fit: %.1f MiB are "
        "missing (available beside activations: %s); raise --budget, lower --context or choose "
        "smaller weights%s",
        (double)(need - kv) / 0x1p20, p->request.context, (double)kv / 0x1p20, missing, text,
        profile_storage_rate(p->profile) > 0
            ? ""
            : ", or let oato-profile measure storage, to stream weights");
}

static void fill_baselines(struct plan *plan, const struct candidate *c)
{
    for (int i = 0; i < C_ILP; i++)
        if (c[i].fits)
            plan->baselines[plan->n_baselines++] = (struct plan_baseline){
                c[i].name, (uint64_t)(c[i].theirs_ns ? c[i].theirs_ns : c[i].objective_ns)};
}

/* States that no plan is faster than that; the plan itself is one. */
static void plan_bound(struct plan *plan, int64_t bound_ns)
{
    plan->bound_ns = (uint64_t)max_i64(min_i64(bound_ns, (int64_t)plan->objective_ns), 0);
}

static oato_status fill_plan(struct plan *plan, const struct model *m, const struct problem *p,
                             const struct candidate *all, const struct candidate *chosen,
                             const struct ilp_result *ilp, struct oato_error *err)
{
    oato_status status = plan_of_placement(m, p, chosen->place, CANDIDATES, plan, err);
    if (status)
        return status;
    fill_baselines(plan, all);
    plan->solver = chosen == &all[C_SINGLE] ? "affinity" : chosen->name;
    plan_bound(plan, ilp->bound_ns);
    plan->timed_out = ilp->timed_out;
    status = simulation_predict(plan, m, p->profile, err);
    if (status)
        plan_free(plan);
    return status;
}

/* ------------------------------------------------------------------------------- solving --- */

double search_gap(const struct planner_options *o, const struct problem *p)
{
    const bool exact = p->instance.n_units <= SMALL_UNITS && !p->stored;
    return o->gap >= 0 ? o->gap : exact ? 0 : LARGE_GAP;
}

enum { FEW_WALKS = 3 };

/* The ILP, from the best of the others on: it is never worse. `quick`: it proves nothing. */
static oato_status run_ilp(struct problem *p, const struct planner_options *o, bool quick,
                           struct candidate *c, struct ilp_result *result, struct oato_error *err)
{
    struct ilp_options options = {
        .gap = search_gap(o, p), .deadline_ns = o->deadline_ns, .enough_ns = o->enough_ns};
    if (quick)
        options = (struct ilp_options){.gap = fmax(options.gap, LARGE_GAP),
                                       .deadline_ns = ilp_share(o->deadline_ns, 3),
                                       .no_search = true,
                                       .walks = FEW_WALKS};
    const int warm = best_of(c, C_ROOMY);
    const int32_t *from = warm < 0 ? NULL : c[warm].place;
    const oato_status status =
        search_placement(p, &options, from, c[C_ILP].place, c[C_ROOMY].place, result, err);
    c[C_ILP].fits = !status;
    c[C_ILP].objective_ns = result->objective_ns;
    c[C_ROOMY].fits = !status && result->roomy_ns;
    c[C_ROOMY].objective_ns = result->roomy_ns;
    return status == OATO_NEGATIVE ? OATO_OK : status;
}

static const struct solver_row {
    const char *name;
    int candidate; /* -1: the best of all */
} solver_rows[] = {{"auto", -1},
                   {"ilp", C_ILP},
                   {"affinity", C_AFFINITY},
                   {"powerinfer", C_POWERINFER},
                   {"fit", C_FIT},
                   {"layers", C_LAYERS},
                   {"cpu", C_CPU}};

static oato_status find_solver(const struct planner_options *o, int *candidate,
                               struct oato_error *err)
{
    const char *names[ARRAY_LEN(solver_rows)];
    for (size_t i = 0; i < ARRAY_LEN(solver_rows); i++) {
        names[i] = solver_rows[i].name;
        if (strcmp(o->solver, names[i]) != 0)
            continue;
        *candidate = solver_rows[i].candidate;
        if (!o->single_shot)
            return OATO_OK;
        if (*candidate != C_AFFINITY)
            return oato_fail(err, OATO_EUSAGE, "--single-shot goes with --solver affinity");
        *candidate = C_SINGLE;
        return OATO_OK;
    }
    const char *near = nearest_name(o->solver, names, ARRAY_LEN(names));
    return oato_fail(err, OATO_EUSAGE,
                     "unknown solver '%.40s'%s%s%s; known: auto, ilp, affinity, powerinfer, fit, "
                     "layers, cpu",
                     o->solver, near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
}

/* The plan states what its programs take; of ranks that divide layers that is known only when they
 * are divided. more[d]: how much it is beyond what solvers counted. */
static oato_status fill_memory(struct plan *plan, const struct model *m, struct problem *p,
                               uint64_t *more, struct oato_error *err)
{
    const oato_status status = memory_of_plan(plan, m, p, err);
    for (int32_t d = 0; d < plan->n_devices && !status; d++) {
        struct plan_device *own = &plan->devices[d];
        const uint64_t counted = own->planned_bytes;
        own->planned_bytes = memory_stated(&p->memory[d], own->budget_bytes);
        more[d] = own->planned_bytes > counted ? own->planned_bytes - counted : 0;
    }
    return status;
}

bool planner_may_store(const struct planner_options *o, const struct profile *profile)
{
    return !o->resident_only && profile_storage_rate(profile) > 0;
}

/* The heuristics where weights and KV may be read from a file: a rule chooses which if everything
 * is the host's, and what a placement puts elsewhere leaves room for more of them. */
static oato_status try_storage(struct problem *p, const struct planner_options *o, bool searches,
                               struct candidate *c, struct ilp_clock *clock, struct oato_error *err)
{
    struct storage_rule rule;
    struct ilp_result found = {0};
    bool *stored;
    oato_status status = storage_open(p, err);
    if (!status)
        status = storage_rule_begin(p, &rule, err);
    stored = p->stored;
    p->stored = NULL; /* by that rule nothing is open */
    if (!status)
        status = try_heuristics(p, c, clock, err);
    if (!status && searches)
        status = run_ilp(p, o, true, c, &found, err);
    p->stored = stored;
    if (status)
        return status;
    storage_rule_end(p, &rule, NULL);
    for (int i = 0; i < C_ROOMY && !status; i++) {
        if (!c[i].fits)
            continue;
        storage_rule_end(p, &rule, c[i].place);
        status = storage_refine(p, c[i].place, &c[i].fits, err);
        c[i].objective_ns = instance_price(&p->instance, c[i].place).objective_ns;
        storage_unset(p);
    }
    return status;
}

static oato_status settle(struct problem *p, int32_t *place, struct oato_error *err)
{
    instance_settle(&p->instance, place);
    problem_stream(p, place);
    p->planned = instance_price(&p->instance, place);
    return p->stored ? storage_settle(p, place, err) : OATO_OK;
}

static int64_t predicted_ns(const struct plan *plan)
{
    return request_price(&plan->request, (int64_t)plan->prefill_ns, (int64_t)plan->decode_ns)
        .objective_ns;
}

/* The chosen one, or where the ILP found it in rooms of other sizes the one from before, if that is
 * faster on the clock. */
static oato_status fill_faster(struct plan *plan, const struct model *m, struct problem *p,
                               const struct candidate *c, int chosen, const struct ilp_result *ilp,
                               struct oato_error *err)
{
    const struct problem was = *p;
    struct plan other;
    oato_status status = settle(p, c[chosen].place, err);
    if (!status)
        status = fill_plan(plan, m, p, c, &c[chosen], ilp, err);
    if (status || chosen != C_ILP || !c[C_ROOMY].fits ||
        c[C_ROOMY].objective_ns == c[C_ILP].objective_ns)
        return status;
    for (int now = C_ROOMY;; now = C_ILP) {
        p->instance = was.instance;
        memcpy(p->reserve, was.reserve, sizeof p->reserve);
        p->ring_bytes = was.ring_bytes;
        status = settle(p, c[now].place, err);
        if (now == C_ILP || status)
            break;
        status = fill_plan(&other, m, p, c, &c[C_ROOMY], ilp, err);
        if (status)
            break;
        const bool faster = predicted_ns(&other) < predicted_ns(plan);
        plan_free(faster ? plan : &other);
        if (faster) {
            *plan = other;
            return OATO_OK;
        }
    }
    if (status)
        plan_free(plan);
    return status;
}

/* What is known after plans were made, also where none was. */
struct made {
    uint64_t more[SOLVER_DEVICES]; /* what the plan's programs take beyond what solvers counted */
    int64_t bound_ns;              /* no plan is faster; 0: unknown, INT64_MAX: none fits */
    bool may_store;                /* unless it reads from a file */
};

/* With `stored`, what does not fit is streamed from a file; without, all weights are resident. */
static oato_status make(const struct model *m, const struct profile *profile,
                        const struct planner_options *o, bool stored, struct plan *out,
                        struct problem **problem, struct made *made, struct oato_error *err)
{
    struct problem *p = NULL;
    struct candidate c[CANDIDATES] = {
        {.name = "cpu"},           {.name = "layers"},   {.name = "fit"}, {.name = "powerinfer"},
        {.name = "affinity-once"}, {.name = "affinity"}, {.name = "ilp"}, {.name = "ilp"}};
    struct ilp_result ilp = {0};
    struct ilp_clock clock = {0};
    int chosen = -1;
    *made = (struct made){.may_store = false};
    if (problem)
        *problem = NULL;
    oato_status status = find_solver(o, &chosen, err);
    if (!status)
        status = problem_create(m, profile, o, &p, err);
    if (status && no_plan(status, err))
        made->bound_ns = INT64_MAX;
    if (status)
        return status;
    for (int i = 0; i < CANDIDATES && !status; i++) {
        c[i].place = arena_alloc(&p->arena, (size_t)p->instance.n_units + 1, sizeof *c[i].place);
        if (!c[i].place)
            status = oato_fail_memory(err, sizeof *c[i].place, "a placement");
    }
    const bool searches = chosen < 0 || chosen == C_ILP;
    made->may_store =
        !status && !stored && searches && planner_may_store(o, profile) && storage_may_help(p);
    clock.deadline_ns = ilp_share(o->deadline_ns, 3); /* what comes after has the rest */
    if (!status)
        status = stored ? try_storage(p, o, searches, c, &clock, err)
                        : try_heuristics(p, c, &clock, err);
    if (!status && searches)
        status = run_ilp(p, o, false, c, &ilp, err);
    made->bound_ns = ilp.bound_ns;
    ilp.timed_out = ilp.timed_out || clock.ended;
    if (status)
        goto out;
    if (chosen < 0) /* the ILP is never worse; it is named unless it found nothing better */
        chosen = best_of(c, C_ROOMY);
    if (chosen < 0 || !c[chosen].fits) {
        status = o->enough_ns && ilp.bound_ns != INT64_MAX
                     ? oato_fail(err, OATO_NEGATIVE, "no plan is fast enough")
                     : does_not_fit(p, err);
        goto out;
    }
    status = fill_faster(out, m, p, c, chosen, &ilp, err);
    if (!status && ((o->expert_cache && (status = caches_add(out, m, p, o->expert_cache, err))) ||
                    (!o->by_ranks && (status = fill_memory(out, m, p, made->more, err)))))
        plan_free(out);
out:
    if (!status && problem)
        *problem = p;
    else
        problem_free(p);
    return status;
}

/* The same with more room set aside until the plan's programs fit: how much they take beside
 * weights and KV depends on the placement. Where nothing fits, with less. The bound stays that of
 * the first problem: other placements may do without what was set aside for these. */
static oato_status make_to_fit(const struct model *m, const struct profile *profile,
                               const struct planner_options *o, bool stored, struct plan *out,
                               struct problem **problem, struct made *made, struct oato_error *err)
{
    struct planner_options now = *o;
    bool timed_out = false;
    *made = (struct made){.may_store = false};
    for (int i = 0;; i++) {
        const struct plan_device *over = NULL;
        const struct made first = *made;
        if (i + 1 == FIT_TRIES && !strcmp(o->solver, "auto"))
            now.solver = "affinity"; /* other placements than those that took too much */
        now.deadline_ns = o->by_ranks ? o->deadline_ns : ilp_most(o->deadline_ns);
        const oato_status status = make(m, profile, &now, stored, out, problem, made, err);
        if (i) {
            made->bound_ns = first.bound_ns;
            made->may_store = first.may_store;
        }
        if (status == OATO_EFIT && !now.tight && !oato_failed_memory(err) && !o->by_ranks) {
            now.tight = true;
            memcpy(now.aside, o->aside, sizeof now.aside);
            i = -1;
            continue;
        }
        if (status || o->by_ranks)
            return status;
        plan_bound(out, made->bound_ns);
        out->timed_out = timed_out = timed_out || out->timed_out;
        for (int32_t d = 0; d < out->n_devices; d++) {
            const struct plan_device *own = &out->devices[d];
            if (own->planned_bytes <= own->budget_bytes || !own->budget_bytes)
                continue; /* or it only takes results */
            /* with this much aside the same placement is refused, and soon others like it */
            const uint64_t lacks = own->planned_bytes - own->budget_bytes;
            const uint64_t least =
                made->more[d] > now.aside[d] ? made->more[d] : now.aside[d] + lacks;
            now.aside[d] = least + (i ? lacks << i : 0);
            over = own;
        }
        if (!over)
            return OATO_OK;
        const oato_status last =
            i + 1 < FIT_TRIES
                ? OATO_OK
                : oato_fail(err, OATO_EFIT,
                            "%s: weights, KV, activations and workspace take %.1f MiB, and %.1f "
                            "MiB may be used; raise --budget, or lower --ubatch or --context",
                            over->id, (double)over->planned_bytes / 0x1p20,
                            (double)over->budget_bytes / 0x1p20);
        plan_free(out);
        if (problem)
            problem_free(*problem);
        if (last)
            return last;
    }
}

void plan_keep(struct plan *out, struct problem **problem, struct plan *other,
               struct problem *others, bool better, bool known)
{
    if (known || !better) {
        plan_free(better ? out : other);
        problem_free(!better ? others : problem ? *problem : NULL);
    }
    if (better)
        *out = *other;
    if (better && problem)
        *problem = others;
}

bool planner_weighs_library(const struct plan *plan, const struct profile *profile)
{
    enum { NEARLY = 16 };
    for (int32_t i = 0; i < profile->n_rows; i++) {
        const struct profile_row *r = &profile->rows[i];
        if (!(r->own_ns > 0) ||
            (plan && !plan_classes_have(plan->numerics[PHASE_PREFILL], r->numerics)))
            continue;
        if (!plan)
            return true;
        for (int32_t d = 0; d < plan->n_devices; d++) {
            const struct plan_device *own = &plan->devices[d];
            if (profile_device_index(profile, own->id) == r->device && own->planned_bytes &&
                own->planned_bytes > own->budget_bytes / NEARLY * (NEARLY - 1))
                return true;
        }
    }
    return false;
}

/* Takes the other plan if none is there (known) or that is worse, and frees one of them. */
static void take_better(struct plan *out, struct problem **problem, struct plan *other,
                        struct problem *others, bool known)
{
    const bool timed_out = other->timed_out || (known && out->timed_out);
    plan_keep(out, problem, other, others, !known || other->objective_ns < out->objective_ns,
              known);
    out->timed_out = timed_out;
}

/* All in memory first: that is the faster problem and mostly the only one. *bound_ns: no plan is
 * faster, in memory or from a file; also where there is none. */
static oato_status make_best(const struct model *m, const struct profile *profile,
                             const struct planner_options *o, struct plan *out,
                             struct problem **problem, int64_t *bound_ns, struct oato_error *err)
{
    struct made made, filed;
    struct plan plan;
    struct problem *own = NULL;
    struct oato_error failed;
    oato_status status = make_to_fit(m, profile, o, false, out, problem, &made, err);
    const bool unfit = status == OATO_EFIT;
    *bound_ns = made.bound_ns;
    if ((status && !no_plan(status, err)) ||
        !(unfit ? planner_may_store(o, profile) : made.may_store))
        return status;
    const oato_status second =
        make_to_fit(m, profile, o, true, &plan, problem ? &own : NULL, &filed, &failed);
    *bound_ns = min_i64(made.bound_ns, filed.bound_ns);
    if (!second) {
        take_better(out, problem, &plan, own, !status);
        status = OATO_OK;
    } else if (unfit || !no_plan(second, &failed)) {
        if (!status) {
            plan_free(out);
            problem_free(problem ? *problem : NULL);
        }
        *err = failed;
        return second;
    }
    if (!status)
        plan_bound(out, *bound_ns);
    return status;
}

/* The same without libraries: what they set aside may hold weights. */
oato_status plan_at_width(const struct model *m, const struct profile *profile,
                          const struct planner_options *o, struct plan *out,
                          struct problem **problem, struct oato_error *err)
{
    struct planner_options other = *o;
    struct plan plan;
    struct problem *own = NULL;
    struct oato_error ignored;
    int64_t bound_ns, own_ns;
    const oato_status status = make_best(m, profile, o, out, problem, &bound_ns, err);
    other.own_kernels = true;
    if (o->own_kernels || o->by_ranks ||
        (status && (status != OATO_EFIT || oato_failed_memory(err))) ||
        !planner_weighs_library(status ? NULL : out, profile))
        return status;
    const oato_status second =
        make_best(m, profile, &other, &plan, problem ? &own : NULL, &own_ns, &ignored);
    if (second && status)
        return status;
    if (!second)
        take_better(out, problem, &plan, own, !status);
    plan_bound(out, min_i64(bound_ns, own_ns));
    return OATO_OK;
}
