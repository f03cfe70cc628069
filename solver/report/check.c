/*
 * check.c - verdicts: does a plan still hold under a profile (as fast as predicted, within memory,
 * near today's best plan). Meant for CI: a table for people, JSON for programs, and the exit status
 * for scripts.
 *
 * A time is judged by the medians of the profile, and by how far apart its measurements are: the
 * distance between the plan's time with the medians and with the 10th percentiles of all rows.
 * Where that is more than the change that was asked for, medians on one side of the limit prove
 * nothing, and the verdict is that the profile is too noisy to tell.
 */
#include "solver/ranks/ranks_internal.h"
#include "solver/report/report_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* -------------------------------------------------------------------------------- check ---- */

/* In rising order of weight: of several checks the last one counts. */
enum judgement { FINE, TOO_NOISY, NOT_FINE };

struct verdict {
    struct text *out;
    bool json;
    enum judgement worst;
};

/* More than this share of a limit is no dispersion: whatever single runs took, half of them take
 * longer than that. */
#define DISPERSION_MOST 0.5

static const char *const judgement_words[] = {
    [FINE] = "fine", [TOO_NOISY] = "TOO NOISY TO TELL", [NOT_FINE] = "NOT FINE"};
static const char *const judgement_values[] = {
    [FINE] = "fine", [TOO_NOISY] = "too noisy to tell", [NOT_FINE] = "not fine"};

/* One line of the table. */
static void tell(struct verdict *v, const char *what, enum judgement is, const char *unit,
                 double value, double limit)
{
    v->worst = is > v->worst ? is : v->worst;
    if (v->json)
        json_add_object(v->out, NULL, JSON("what", what), json_bool("good", is == FINE),
                        JSON("verdict", judgement_values[is]), JSON("unit", unit),
                        JSON("value", value), JSON("limit", limit));
    else
        text_printf(v->out, "%-44s %12.3f %12.3f %-4s %s\n", what, value, limit, unit,
                    judgement_words[is]);
}

static void judge(struct verdict *v, const char *what, bool good, const char *unit, double value,
                  double limit)
{
    tell(v, what, good ? FINE : NOT_FINE, unit, value, limit);
}

/* A time against another one, which it may exceed by the share max_slower. */
static void judge_time(struct verdict *v, const char *what, double now_ns, double then_ns,
                       double max_slower, double dispersion_ns)
{
    const double asked_ns = then_ns * max_slower, limit_ns = then_ns + asked_ns;
    enum judgement is = now_ns <= limit_ns ? FINE : NOT_FINE;
    if (dispersion_ns > asked_ns && fabs(now_ns - limit_ns) <= dispersion_ns &&
        now_ns <= limit_ns * (1 + DISPERSION_MOST))
        is = TOO_NOISY;
    tell(v, what, is, "ms", as_ms(now_ns), as_ms(limit_ns));
}

static void judge_memory(struct verdict *v, const struct problem *p)
{
    for (int32_t d = 0; d < p->n_devices; d++) {
        const uint64_t need = device_memory_sum(&p->memory[d]);
        char what[64];
        snprintf(what, sizeof what, "memory of %s", problem_device(p, d));
        judge(v, what, need <= p->budget[d], "MiB", as_mib((double)need),
              as_mib((double)p->budget[d]));
    }
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

static void tell_dispersion(struct verdict *v, double ns)
{
    if (v->json) {
        json_close(v->out, ']');
        json_add(v->out, JSON("dispersion_ns", ns));
    } else if (ns > 0) {
        text_printf(v->out,
                    "dispersion of the profile: with the 10th percentiles of its rows the plan "
                    "takes %.3f ms less than with their medians\n",
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
    char what[64];
    snprintf(what, sizeof what, "%s, against what the plan promised",
             objective_names[plan->request.objective]);
    judge_time(v, what, now_ns, (double)plan->objective_ns, max_slower, dispersion_ns);
}

/* status: of looking for the best plan; that there is none is a verdict. */
static oato_status judge_best(struct verdict *v, const struct plan *plan, oato_status status,
                              double now_ns, int64_t best_ns, double max_slower,
                              double dispersion_ns, const struct oato_error *err)
{
    char what[64];
    if (status == OATO_EFIT && !oato_failed_memory(err)) {
        judge(v, "some plan fits this machine", false, "", 0, 0);
        return OATO_OK;
    }
    snprintf(what, sizeof what, "%s, against the best plan of today",
             objective_names[plan->request.objective]);
    if (!status)
        judge_time(v, what, now_ns, (double)best_ns, max_slower, dispersion_ns);
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
    judge_memory(v, p);
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
        snprintf(what, sizeof what, "memory of %s", device_name(&now, d).text);
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
        json_add(out, json_bool("good", v.worst == FINE),
                 JSON("verdict", judgement_values[v.worst]));
        json_close(out, '}');
        text_printf(out, "\n");
    }
    if (!status)
        status = text_status(out, err);
    if (!status && v.worst == NOT_FINE)
        status = oato_fail(err, OATO_NEGATIVE, "the plan no longer holds; run oato-plan again");
    else if (!status && v.worst == TOO_NOISY)
        status = oato_fail(err, OATO_UNSURE,
                           "too noisy to tell: the profile's measurements vary by %.1f %% of the "
                           "plan's time; run oato-profile again when the machine is quiet, or "
                           "accept more with --max-slower",
                           100 * dispersion_ns / (double)p->objective_ns);
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
