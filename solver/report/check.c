/*
 * check.c - verdicts: does a plan still hold under a profile (as fast as predicted, within memory,
 * near today's best plan), and how do two plans differ. Both are meant for CI:
 * a table for people, JSON for programs, and the exit status for scripts.
 */
#include "solver/ranks/ranks_internal.h"
#include "solver/report/report_internal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* -------------------------------------------------------------------------------- check ---- */

struct verdict {
    struct text *out;
    bool json, bad;
};

/* One line of the table. */
static void judge(struct verdict *v, const char *what, bool good, const char *unit, double value,
                  double limit)
{
    v->bad = v->bad || !good;
    if (v->json)
        json_add_object(v->out, NULL, JSON("what", what), JSON("good", good), JSON("unit", unit),
                        JSON("value", value), JSON("limit", limit));
    else
        text_printf(v->out, "%-44s %12.3f %12.3f %-4s %s\n", what, value, limit, unit,
                    good ? "fine" : "NOT FINE");
}

static oato_status judge_memory(struct verdict *v, const struct plan *plan, const struct model *m,
                                const struct problem *p, const int32_t *place,
                                struct oato_error *err)
{
    uint64_t need[SOLVER_DEVICES];
    problem_memory(p, place, need);
    for (int32_t i = 0; i < plan->n_caches; i++)
        need[plan->caches[i].device] += cache_bytes(p, &plan->caches[i]);
    if (memory_of_plan(plan, m, p, need, err))
        return err->status;
    for (int32_t d = 0; d < p->n_devices; d++) {
        char what[64];
        snprintf(what, sizeof what, "memory of %s", problem_device(p, d));
        judge(v, what, need[d] <= p->budget[d], "MiB", as_mib((double)need[d]),
              as_mib((double)p->budget[d]));
    }
    return OATO_OK;
}

static bool runs_everywhere(const struct problem *p, const int32_t *place)
{
    for (int32_t u = 0; u < p->instance.n_units; u++)
        if (!instance_option(&p->instance, place, u)->allowed)
            return false;
    return true;
}

/* The best plan for the same request, devices and memory, to a fifth of what may be lost: a search
 * to the last percent could take minutes and change no verdict. */
static oato_status best_now(const struct model *m, const struct profile *profile,
                            const struct problem *p, double max_slower, double time_limit_s,
                            int64_t *objective_ns, struct oato_error *err)
{
    struct planner_options o;
    struct plan best;
    char devices[DEVICES_SIZE];
    problem_options(p, &o, devices);
    o.time_limit_s = time_limit_s;
    o.gap = max_slower / 5 > o.gap ? max_slower / 5 : o.gap;
    oato_status status = planner_make(m, profile, &o, &best, NULL, err);
    if (status)
        return status;
    *objective_ns = (int64_t)best.objective_ns;
    plan_free(&best);
    return OATO_OK;
}

static int64_t price_of(const struct problem *p, const int32_t *place)
{
    return instance_price(&p->instance, place).objective_ns;
}

/* The profile with each row at its p10: what the machine has been seen to do for the very operators
 * that the medians stand for. Borrows all but the rows. */
static oato_status profile_at_p10(const struct profile *profile, struct profile *fast,
                                  struct oato_error *err)
{
    *fast = *profile;
    fast->rows = calloc((size_t)profile->n_rows + 1, sizeof *fast->rows);
    if (!fast->rows)
        return oato_fail_memory(err, (size_t)profile->n_rows * sizeof *fast->rows, "a profile");
    for (int32_t i = 0; i < profile->n_rows; i++) {
        fast->rows[i] = profile->rows[i];
        if (fast->rows[i].p10_ns > 0 && fast->rows[i].p10_ns < fast->rows[i].median_ns)
            fast->rows[i].median_ns = fast->rows[i].p10_ns;
    }
    return OATO_OK;
}

static oato_status price_at_p10(const struct model *m, const struct profile *profile,
                                const struct plan *plan, int64_t *objective_ns,
                                struct oato_error *err)
{
    struct profile fast;
    struct problem *p;
    int32_t *place;
    if (profile_at_p10(profile, &fast, err))
        return err->status;
    const oato_status status = problem_of_plan(m, &fast, plan, &p, &place, err);
    if (!status) {
        *objective_ns = price_of(p, place);
        problem_free(p);
    }
    free(fast.rows);
    return status;
}

/* The dispersion that was measured excuses as much above every limit. */
static void tell_dispersion(struct verdict *v, double ns)
{
    if (v->json) {
        json_close(v->out, ']');
        json_add(v->out, JSON("dispersion_ns", ns));
    } else if (ns > 0) {
        text_printf(v->out, "limits on times include %.3f ms for the profile's dispersion\n",
                    as_ms(ns));
    }
}

/* A device that is gone is a verdict. */
static bool devices_are_there(struct verdict *v, const struct plan *plan,
                              const struct profile *profile)
{
    bool all = true;
    for (int32_t d = 0; d < plan->n_devices; d++) {
        char what[64];
        if (profile_device_index(profile, plan->devices[d].id) >= 0)
            continue;
        snprintf(what, sizeof what, "the profile has %s", plan->devices[d].id);
        judge(v, what, false, "", 0, 0);
        all = false;
    }
    return all;
}

static void judge_promise(struct verdict *v, const struct plan *plan, double now_ns,
                          double max_slower, double dispersion_ns)
{
    const double limit = (double)plan->objective_ns * (1 + max_slower) + dispersion_ns;
    char what[64];
    snprintf(what, sizeof what, "%s, against what the plan promised",
             objective_names[plan->request.objective]);
    judge(v, what, now_ns <= limit, "ms", as_ms(now_ns), as_ms(limit));
}

/* status: of looking for the best plan; that there is none is a verdict. */
static oato_status judge_best(struct verdict *v, const struct plan *plan, oato_status status,
                              double now_ns, int64_t best_ns, double max_slower,
                              double dispersion_ns, const struct oato_error *err)
{
    const double limit = (double)best_ns * (1 + max_slower) + dispersion_ns;
    char what[64];
    if (status == OATO_EFIT && !oato_failed_memory(err)) {
        judge(v, "some plan fits this machine", false, "", 0, 0);
        return OATO_OK;
    }
    snprintf(what, sizeof what, "%s, against the best plan of today",
             objective_names[plan->request.objective]);
    if (!status)
        judge(v, what, now_ns <= limit, "ms", as_ms(now_ns), as_ms(limit));
    return status;
}

static oato_status judge_plan(struct verdict *v, const struct plan *plan, const struct model *m,
                              const struct profile *profile, double max_slower, double time_limit_s,
                              double *dispersion_ns, struct oato_error *err)
{
    int64_t fast_ns = 0;
    struct problem *p;
    int32_t *place;
    if (!devices_are_there(v, plan, profile))
        return OATO_OK;
    oato_status status = problem_of_plan(m, profile, plan, &p, &place, err);
    if (status)
        return status;
    if (!runs_everywhere(p, place)) {
        judge(v, "every operator runs on its device", false, "", 0, 0);
        goto out;
    }
    double now = (double)price_of(p, place);
    status = price_at_p10(m, profile, plan, &fast_ns, err);
    if (status)
        goto out;
    *dispersion_ns = now - (double)fast_ns;
    status = judge_memory(v, plan, m, p, place, err);
    if (status)
        goto out;
    judge_promise(v, plan, now, max_slower, *dispersion_ns);
    int64_t best_ns = 0;
    status = best_now(m, profile, p, max_slower, time_limit_s, &best_ns, err);
    status = judge_best(v, plan, status, now, best_ns, max_slower, *dispersion_ns, err);
out:
    problem_free(p);
    return status;
}

/* ------------------------------------------------------------------------- several ranks --- */

/* The objective of the same plan with each row of the profiles at its p10. */
static oato_status ranks_at_p10(const struct plan *plan, const struct model *m,
                                const struct rank_options *ranks, int64_t *objective_ns,
                                struct oato_error *err)
{
    struct profile fast[SOLVER_DEVICES];
    struct rank_options o = *ranks;
    int32_t n = 0;
    for (; n < o.n_profiles && profile_at_p10(ranks->profiles[n], &fast[n], err) == OATO_OK; n++)
        o.profiles[n] = &fast[n];
    struct plan now;
    plan_init(&now);
    oato_status status = n < o.n_profiles ? err->status : ranks_price(plan, m, &o, &now, err);
    if (!status) {
        *objective_ns = (int64_t)now.objective_ns;
        plan_free(&now);
    }
    while (n)
        free(fast[--n].rows);
    return status;
}

/* The plan's devices and what it may use of them, which is not more than what is free now. */
static void ranks_devices(const struct plan *plan, const struct rank_options *ranks,
                          struct planner_options *o, char devices[DEVICES_SIZE])
{
    size_t n = 0;
    devices[0] = 0;
    for (int32_t d = 0; d < plan->n_devices; d++) {
        const struct plan_device *own = &plan->devices[d];
        const struct profile *p = ranks->profiles[rank_profile(ranks, own->rank)];
        const int32_t index = profile_device_index(p, own->id);
        if (index < 0 || o->n_budgets == SOLVER_DEVICES ||
            device_is_listed(n ? devices : "", own->id))
            continue;
        const struct profile_device *now = &p->devices[index];
        const int32_t share = now->is_host ? ranks_of_host(ranks, own->host) : 1;
        struct device_budget *b = &o->budgets[o->n_budgets++];
        snprintf(b->id, sizeof b->id, "%s", own->id);
        b->bytes = least_bytes(own->budget_bytes * (uint64_t)share, now->free_bytes);
        n += (size_t)snprintf(devices + n, DEVICES_SIZE - n, "%s%s", n ? "," : "", own->id);
    }
    o->devices = devices;
}

/* The best plan for as many ranks on as many hosts. */
static oato_status best_for_ranks(const struct plan *plan, const struct model *m,
                                  const struct rank_options *ranks, int64_t *objective_ns,
                                  struct oato_error *err)
{
    struct rank_options o = *ranks;
    struct planner_options options;
    struct plan best;
    char devices[DEVICES_SIZE];
    planner_options_init(&options);
    options.request = plan->request;
    ranks_as_planned(plan, &o);
    ranks_devices(plan, &o, &options, devices);
    const oato_status status = ranks_plan(m, &options, &o, NULL, &best, err);
    if (status)
        return status;
    *objective_ns = (int64_t)best.objective_ns;
    plan_free(&best);
    return OATO_OK;
}

static oato_status judge_ranks(struct verdict *v, const struct plan *plan, const struct model *m,
                               const struct rank_options *ranks, double max_slower,
                               double *dispersion_ns, struct oato_error *err)
{
    int64_t fast_ns = 0, best_ns = 0;
    struct plan now;
    oato_status status = ranks_price(plan, m, ranks, &now, err);
    if (status)
        return status;
    for (int32_t d = 0; d < now.n_devices; d++) {
        const struct plan_device *own = &now.devices[d];
        char what[80];
        snprintf(what, sizeof what, "memory of %s", device_name(plan, d).text);
        judge(v, what, own->planned_bytes <= own->budget_bytes, "MiB",
              as_mib((double)own->planned_bytes), as_mib((double)own->budget_bytes));
    }
    status = ranks_at_p10(plan, m, ranks, &fast_ns, err);
    if (!status) {
        *dispersion_ns = (double)now.objective_ns - (double)fast_ns;
        judge_promise(v, plan, (double)now.objective_ns, max_slower, *dispersion_ns);
        status = best_for_ranks(plan, m, ranks, &best_ns, err);
        status = judge_best(v, plan, status, (double)now.objective_ns, best_ns, max_slower,
                            *dispersion_ns, err);
    }
    plan_free(&now);
    return status;
}

/* ------------------------------------------------------------------------------- verdicts --- */

static oato_status report_verdicts(const struct plan *p, const struct model *m,
                                   const struct profile *profile, const struct rank_options *ranks,
                                   double max_slower, double time_limit_s, bool json,
                                   struct text *out, struct oato_error *err)
{
    struct verdict v = {.out = out, .json = json};
    double dispersion_ns = 0;
    oato_status status = OATO_OK;
    if (m) {
        struct graph g;
        status = plan_check_model(p, m->gguf, err);
        if (!status)
            status = plan_apply(p, m, &g, err);
        if (status)
            return status;
        graph_free(&g);
    }
    if (json) {
        json_open(out, NULL, '{');
        json_open(out, "checks", '[');
    } else if (profile || ranks) {
        text_printf(out, "%-44s %12s %12s\n", "check", "is", "limit");
    }
    if (m && ranks)
        status = judge_ranks(&v, p, m, ranks, max_slower, &dispersion_ns, err);
    else if (m && profile)
        status = judge_plan(&v, p, m, profile, max_slower, time_limit_s, &dispersion_ns, err);
    tell_dispersion(&v, dispersion_ns);
    if (json) {
        json_add(out, json_bool("good", !v.bad));
        json_close(out, '}');
        text_printf(out, "\n");
    }
    if (!status)
        status = text_status(out, err);
    if (!status && v.bad)
        status = oato_fail(err, OATO_NEGATIVE, "the plan no longer holds; run oato-plan again");
    return status;
}

oato_status report_check(const struct plan *p, const struct model *m, const struct profile *profile,
                         double max_slower, double time_limit_s, bool json, struct text *out,
                         struct oato_error *err)
{
    return report_verdicts(p, m, profile, NULL, max_slower, time_limit_s, json, out, err);
}

oato_status report_check_ranks(const struct plan *p, const struct model *m,
                               const struct rank_options *ranks, double max_slower, bool json,
                               struct text *out, struct oato_error *err)
{
    return report_verdicts(p, m, NULL, ranks, max_slower, 0, json, out, err);
}

/* --------------------------------------------------------------------------------- diff ---- */

enum { WHERE_SIZE = 160 };

/* A plan's parts by operator: plans of large models have tens of thousands. */
struct parts_by_op {
    const struct plan *plan;
    const struct plan_part **sorted; /* by operator, then as in the plan */
};

static int by_op(const void *a, const void *b)
{
    const struct plan_part *x = *(const struct plan_part *const *)a;
    const struct plan_part *y = *(const struct plan_part *const *)b;
    const int order = strcmp(x->op, y->op);
    return order ? order : (x > y) - (x < y);
}

static bool sort_parts(const struct plan *p, struct parts_by_op *out)
{
    out->plan = p;
    out->sorted = calloc((size_t)p->n_parts + 1, sizeof(void *));
    for (int32_t i = 0; out->sorted && i < p->n_parts; i++)
        out->sorted[i] = &p->parts[i];
    if (out->sorted)
        qsort(out->sorted, (size_t)p->n_parts, sizeof(void *), by_op);
    return out->sorted;
}

/* The operator's parts are those from here on that have its name; NULL: it has none. */
static const struct plan_part *const *find_parts(const struct parts_by_op *x, const char *op)
{
    int32_t lo = 0, hi = x->plan->n_parts;
    while (lo < hi) {
        const int32_t middle = lo + (hi - lo) / 2;
        if (strcmp(x->sorted[middle]->op, op) < 0)
            lo = middle + 1;
        else
            hi = middle;
    }
    return lo < x->plan->n_parts && !strcmp(x->sorted[lo]->op, op) ? x->sorted + lo : NULL;
}

/* "cuda:0", "cuda:0 0-8192 + cpu:0 8192-14336", "cpu:0, prefill on cuda:0"; "-": nowhere. */
static void where(const struct parts_by_op *x, const char *op, char out[WHERE_SIZE])
{
    const struct plan *p = x->plan;
    const struct plan_part *const *part = find_parts(x, op), *const *end = part;
    const struct plan_part *const *all = x->sorted + p->n_parts;
    size_t n = 0;
    int32_t parts = 0, streams = -1;
    for (; end && end < all && !strcmp((*end)->op, op); end++)
        parts += (*end)->phases >> PHASE_DECODE & 1;
    snprintf(out, WHERE_SIZE, "-");
    for (; part < end && n < WHERE_SIZE; part++) {
        const struct plan_part *t = *part;
        if (!(t->phases >> PHASE_DECODE & 1)) {
            streams = t->device;
            continue;
        }
        n += (size_t)snprintf(out + n, WHERE_SIZE - n, "%s%s", n ? " + " : "",
                              device_name(p, t->device).text);
        if (parts > 1 && n < WHERE_SIZE)
            n += (size_t)snprintf(out + n, WHERE_SIZE - n, " %" PRId64 "-%" PRId64, t->begin,
                                  t->end);
    }
    if (streams >= 0 && n < WHERE_SIZE)
        snprintf(out + n, WHERE_SIZE - n, ", prefill on %s", device_name(p, streams).text);
}

/* Operators of `a` that are elsewhere (or nowhere) in `b`; once more, from the other side, for
 * those that only b has. */
static int32_t diff_moves(const struct parts_by_op *a, const struct parts_by_op *b, bool only_b,
                          bool json, struct text *out)
{
    const struct parts_by_op *walk = only_b ? b : a;
    int32_t moves = 0;
    for (int32_t i = 0; i < walk->plan->n_parts; i++) {
        const char *op = walk->plan->parts[i].op;
        char from[WHERE_SIZE], to[WHERE_SIZE];
        if (*find_parts(walk, op) != &walk->plan->parts[i] || (only_b && find_parts(a, op)))
            continue;
        where(a, op, from);
        where(b, op, to);
        if (!strcmp(from, to))
            continue;
        moves++;
        if (json)
            json_add_object(out, NULL, JSON("op", op), JSON("from", from), JSON("to", to));
        else
            text_printf(out, "%-28s %s -> %s\n", op, from, to);
    }
    return moves;
}

static void diff_predictions(const struct plan *a, const struct plan *b, bool json,
                             struct text *out)
{
    const struct {
        const char *name;
        uint64_t a, b;
    } rows[] = {{"prefill_ns", a->prefill_ns, b->prefill_ns},
                {"decode_ns", a->decode_ns, b->decode_ns},
                {"request_ns", a->request_ns, b->request_ns}};
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        if (json)
            json_add_object(out, rows[i].name, JSON("a", rows[i].a), JSON("b", rows[i].b));
        else if (rows[i].a != rows[i].b)
            text_printf(out, "predicted %.*s %.4f ms -> %.4f ms (%+.2f %%)\n",
                        (int)(strlen(rows[i].name) - 3), rows[i].name, as_ms((double)rows[i].a),
                        as_ms((double)rows[i].b),
                        percent_more((double)rows[i].b, (double)rows[i].a));
    }
}

/* What else differs, a word each. */
static void diff_others(const struct plan *a, const struct plan *b, bool json, struct text *out)
{
    bool devices = a->n_devices != b->n_devices, budgets = false;
    for (int32_t i = 0; !devices && i < a->n_devices; i++) {
        devices = strcmp(a->devices[i].id, b->devices[i].id) != 0;
        budgets = budgets || a->devices[i].budget_bytes != b->devices[i].budget_bytes;
    }
    bool fusions = a->n_fusions != b->n_fusions;
    for (int32_t i = 0; !fusions && i < a->n_fusions; i++)
        fusions = strcmp(a->fusions[i].name, b->fusions[i].name) != 0 ||
                  strcmp(a->fusions[i].op, b->fusions[i].op) != 0;
    bool caches = a->n_caches != b->n_caches;
    for (int32_t i = 0; !caches && i < a->n_caches; i++)
        caches = strcmp(a->caches[i].op, b->caches[i].op) != 0 ||
                 a->caches[i].device != b->caches[i].device ||
                 a->caches[i].slots != b->caches[i].slots;
    bool sparse = a->n_sparse != b->n_sparse;
    for (int32_t i = 0; !sparse && i < a->n_sparse; i++)
        sparse = a->sparse[i].layer != b->sparse[i].layer ||
                 a->sparse[i].threshold != b->sparse[i].threshold ||
                 a->sparse[i].dense != b->sparse[i].dense ||
                 a->sparse[i].predicts != b->sparse[i].predicts;
    bool inputs = a->n_inputs != b->n_inputs;
    for (int32_t i = 0; !inputs && i < a->n_inputs; i++)
        inputs = strcmp(a->inputs[i].tensor, b->inputs[i].tensor) != 0 ||
                 a->inputs[i].threshold != b->inputs[i].threshold;
    const struct plan_request *q = &a->request, *r = &b->request;
    const struct {
        const char *name;
        bool differ;
    } rows[] = {{"model", a->structure_hash != b->structure_hash},
                {"profile", a->profile_hash != b->profile_hash},
                {"neurons", a->neurons_hash != b->neurons_hash},
                {"sparse layers", sparse},
                {"inputs to skip", inputs},
                {"request", q->prompt != r->prompt || q->generate != r->generate ||
                                q->context != r->context || q->batch != r->batch ||
                                q->ubatch != r->ubatch || q->kv != r->kv ||
                                q->deterministic != r->deterministic},
                {"objective", q->objective != r->objective},
                {"devices", devices},
                {"budgets", budgets},
                {"fusions", fusions},
                {"caches", caches},
                {"solver", strcmp(a->solver, b->solver) != 0}};
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        if (rows[i].differ && json)
            json_add(out, JSON(NULL, rows[i].name));
        else if (rows[i].differ)
            text_printf(out, "different %s\n", rows[i].name);
    }
}

static oato_status same_bytes(const struct plan *a, const struct plan *b, bool *same,
                              struct oato_error *err)
{
    uint8_t *x = NULL, *y = NULL;
    size_t nx, ny;
    oato_status status = plan_encode(a, &x, &nx, err);
    if (!status)
        status = plan_encode(b, &y, &ny, err);
    if (!status)
        *same = nx == ny && !memcmp(x, y, nx);
    free(x);
    free(y);
    return status;
}

oato_status report_diff(const struct plan *a, const struct plan *b, bool json, bool *same,
                        struct text *out, struct oato_error *err)
{
    struct parts_by_op of_a = {0}, of_b = {0};
    oato_status status = same_bytes(a, b, same, err);
    if (status)
        return status;
    if (!sort_parts(a, &of_a) || !sort_parts(b, &of_b)) {
        status = oato_fail_memory(err, (size_t)a->n_parts * sizeof(void *), "a comparison");
        goto out;
    }
    if (json) {
        json_open(out, NULL, '{');
        json_add(out, JSON("same", *same));
        json_open(out, "different", '[');
        diff_others(a, b, true, out);
        json_close(out, ']');
        json_open(out, "moves", '[');
        diff_moves(&of_a, &of_b, false, true, out);
        diff_moves(&of_a, &of_b, true, true, out);
        json_close(out, ']');
        diff_predictions(a, b, true, out);
        json_close(out, '}');
        text_printf(out, "\n");
    } else if (!*same) {
        diff_others(a, b, false, out);
        int32_t moves = diff_moves(&of_a, &of_b, false, false, out);
        moves += diff_moves(&of_a, &of_b, true, false, out);
        text_printf(out, "%d operators move\n", moves);
        diff_predictions(a, b, false, out);
    }
    status = text_status(out, err);
out:
    free(of_a.sorted);
    free(of_b.sorted);
    return status;
}
