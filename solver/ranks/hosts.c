/*
 * hosts.c - which hosts are worth using. One host alone has no sums to wait for and uses its
 * accelerators, too; a slow host, or a slow network, can cost more than it gives. So the fastest
 * hosts are planned for, one more each time, and the best of these plans is taken.
 */
#include "solver/ranks/ranks_internal.h"

#include <string.h>

/* ---------------------------------------------------------------------------- the choice --- */

struct choosing {
    const struct model *m;
    struct planner_options timed; /* for the next plan */
    const struct rank_options *all;
    int32_t order[SOLVER_DEVICES]; /* profiles by speed, the fastest first */
    struct plan *best;
    struct host_choice *choice;
    bool found;
    struct oato_error *err;
};

static void order_find(struct choosing *x, const double *slowness)
{
    for (int32_t n = 0; n < x->all->n_profiles; n++) {
        int32_t at = n;
        for (; at && slowness[n] < slowness[x->order[at - 1]]; at--)
            x->order[at] = x->order[at - 1];
        x->order[at] = n;
    }
}

/* Keeps the plan if it is the best so far; frees it otherwise. */
static void consider(struct choosing *x, struct plan *plan, const bool *used,
                     const struct rank_prices *prices)
{
    if (x->found && ranks_objective(plan) >= ranks_objective(x->best)) {
        plan_free(plan);
        return;
    }
    if (x->found)
        plan_free(x->best);
    *x->best = *plan;
    x->found = true;
    x->choice->prices = *prices;
    memcpy(x->choice->used, used, sizeof x->choice->used);
}

static void with_host(struct choosing *x, int32_t profile, const struct plan *plan)
{
    struct host_with *h = &x->choice->with[profile];
    h->fits = plan;
    h->prefill_ns = plan ? plan->prefill_ns : 0;
    h->decode_ns = plan ? plan->decode_ns : 0;
}

/* One host alone, with all its devices. A plan that does not fit is no error here. */
static oato_status try_one(struct choosing *x, int32_t profile)
{
    struct plan plan;
    const struct rank_prices none = {.priced = false};
    bool used[SOLVER_DEVICES] = {false};
    used[profile] = true;
    if (planner_make(x->m, x->all->profiles[profile], &x->timed, &plan, NULL, x->err))
        return x->err->status == OATO_EFIT ? OATO_OK : x->err->status;
    if (x->all->n_profiles > 1)
        plan.bound_ns = 0; /* of this host's plans alone */
    with_host(x, profile, &plan);
    consider(x, &plan, used, &none);
    return OATO_OK;
}

/* The n fastest hosts, in the order in which they were given. */
static oato_status try_fastest(struct choosing *x, int32_t n)
{
    struct rank_options o = *x->all;
    struct rank_prices prices;
    struct plan plan;
    bool used[SOLVER_DEVICES] = {false};
    for (int32_t i = 0; i < n; i++)
        used[x->order[i]] = true;
    o.n_profiles = 0;
    o.ranks = o.hosts = n;
    for (int32_t i = 0; i < x->all->n_profiles; i++)
        if (used[i])
            o.profiles[o.n_profiles++] = x->all->profiles[i];
    if (ranks_plan(x->m, &x->timed, &o, &prices, &plan, x->err)) {
        with_host(x, x->order[n - 1], NULL);
        return x->err->status == OATO_EFIT ? OATO_OK : x->err->status;
    }
    with_host(x, x->order[n - 1], &plan);
    consider(x, &plan, used, &prices);
    return OATO_OK;
}

static bool has_accelerator(const struct profile *p)
{
    bool has = false;
    for (int32_t d = 0; d < p->n_devices; d++)
        has = has || !p->devices[d].is_host;
    return has;
}

oato_status ranks_alone(const struct model *m, const struct planner_options *given,
                        const struct rank_options *options, int32_t *profile, struct plan *out,
                        struct oato_error *err)
{
    oato_status status = OATO_EFIT;
    for (int32_t i = 0; i < options->n_profiles; i++) {
        const struct planner_options timed = ranks_timed(given, options->n_profiles - i);
        struct plan plan;
        if (planner_make(m, options->profiles[i], &timed, &plan, NULL, err)) {
            if (err->status == OATO_EFIT && !oato_failed_memory(err))
                continue;
            if (!status)
                plan_free(out);
            return err->status;
        }
        const bool better = status || ranks_objective(&plan) < ranks_objective(out);
        plan_keep(out, NULL, &plan, NULL, better, !status);
        if (better)
            *profile = i;
        status = OATO_OK;
    }
    return status;
}

oato_status ranks_make(const struct model *m, const struct planner_options *given,
                       const struct rank_options *options, struct host_choice *choice,
                       struct plan *out, struct oato_error *err)
{
    const struct planner_options timed = ranks_timed(given, 1), half = ranks_timed(&timed, 2);
    struct plan alone;
    struct oato_error ignored;
    int32_t profile = 0;
    *choice = (struct host_choice){.n = 0};
    const oato_status status = ranks_plan(m, &half, options, &choice->prices, out, err);
    if ((status && (status != OATO_EFIT || oato_failed_memory(err))) ||
        ranks_alone(m, &timed, options, &profile, &alone, &ignored))
        return status;
    const double ranks_ns = status ? INFINITY : (double)ranks_objective(out);
    choice->alone = ranks_ns / (double)ranks_objective(&alone);
    choice->used[profile] = true;
    if (!(choice->alone > 1) || options->split != SPLIT_AUTO) {
        plan_free(&alone);
        return status;
    }
    plan_keep(out, NULL, &alone, NULL, true, !status);
    out->bound_ns = 0; /* of this host's plans alone: ranks may be faster */
    choice->prices.priced = false;
    return OATO_OK;
}

oato_status ranks_choose(const struct model *m, const struct planner_options *given,
                         const struct rank_options *options, struct host_choice *choice,
                         struct plan *out, struct oato_error *err)
{
    const struct planner_options timed = ranks_timed(given, 1);
    struct choosing x = {.m = m, .all = options, .best = out, .choice = choice, .err = err};
    double slowness[SOLVER_DEVICES];
    int32_t left = 2 * options->n_profiles; /* plans to make, at most */
    *choice = (struct host_choice){.n = options->n_profiles};
    x.timed = ranks_timed(&timed, left);
    if (ranks_slowness(m, &x.timed, options, slowness, err))
        return err->status;
    order_find(&x, slowness);
    oato_status status = OATO_OK;
    for (int32_t i = 0; i < options->n_profiles && !status; i++) {
        x.timed = ranks_timed(&timed, --left);
        if (!i || has_accelerator(options->profiles[x.order[i]]))
            status = try_one(&x, x.order[i]);
    }
    for (int32_t n = 2; n <= options->n_profiles && !status; n++) {
        x.timed = ranks_timed(&timed, --left > 0 ? left : 1);
        status = try_fastest(&x, n);
    }
    if (status && x.found)
        plan_free(out);
    return status ? status : x.found ? OATO_OK : err->status;
}
