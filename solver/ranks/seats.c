/*
 * seats.c - what each rank computes with, and what all work of the model would take there.
 *
 * The accelerators of a host are dealt to its ranks. What ranks divide is where the plan of one
 * process would have it, if each device had room for as much more as the rank gets less; what all
 * of them do stays on their hosts: these hold the sums, and it is little. Where accelerators sum,
 * it is on these.
 */
#include "solver/ranks/ranks_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* -------------------------------------------------------------------------------- seats --- */

static bool is_used(const struct planner_options *given, const struct profile_device *d)
{
    return !d->is_host && (!given || device_is_listed(given->devices, d->id));
}

/* The rank's number among those that share its profile's accelerators, and how many these are. */
static void sharers_count(const struct rank_options *o, int32_t rank, int32_t *number, int32_t *n)
{
    *number = *n = 0;
    for (int32_t r = 0; r < o->ranks; r++)
        if (rank_host(o, r) == rank_host(o, rank) && rank_profile(o, r) == rank_profile(o, rank)) {
            *number += r < rank;
            ++*n;
        }
}

static void seat_fill(const struct rank_options *o, const struct planner_options *given,
                      int32_t rank, struct seat *seat)
{
    const struct profile *p = seat->profile;
    int32_t number, sharers, accelerators = 0;
    sharers_count(o, rank, &number, &sharers);
    for (int32_t d = 0; d < p->n_devices; d++)
        accelerators += is_used(given, &p->devices[d]);
    const int32_t begin = number * accelerators / sharers,
                  end = (number + 1) * accelerators / sharers;
    for (int32_t d = 0, at = 0; d < p->n_devices && seat->n < SOLVER_DEVICES; d++) {
        if (!is_used(given, &p->devices[d]))
            continue;
        if (at >= begin && at < end)
            seat->device[seat->n++] = d;
        at++;
    }
}

static oato_status seat_as_planned(const struct plan *plan, int32_t rank, struct seat *seat,
                                   struct oato_error *err)
{
    for (int32_t i = 0, of_rank = 0; i < plan->n_devices; i++) {
        if (plan->devices[i].rank != rank || !of_rank++)
            continue;
        const int32_t d = profile_device_index(seat->profile, plan->devices[i].id);
        if (d < 0 || seat->n == SOLVER_DEVICES)
            return plan_device_missing(&plan->devices[i], err);
        seat->device[seat->n++] = d;
    }
    return OATO_OK;
}

static bool are_alike(const struct seat *a, const struct seat *b)
{
    if (a->profile != b->profile || a->n != b->n)
        return false;
    for (int32_t i = 0; i < a->n; i++) {
        const struct profile_device *x = &a->profile->devices[a->device[i]],
                                    *y = &b->profile->devices[b->device[i]];
        if (strcmp(or_empty(x->kind), or_empty(y->kind)) != 0 ||
            strcmp(or_empty(x->model), or_empty(y->model)) != 0 || x->free_bytes != y->free_bytes)
            return false;
    }
    return true;
}

/* A name in the list of devices that no profile has. */
static oato_status list_check(const struct rank_options *o, const char *list,
                              struct oato_error *err)
{
    for (const char *s = list; s && *s;) {
        char name[32];
        const size_t n = strcspn(s, ",");
        bool found = false;
        snprintf(name, sizeof name, "%.*s", (int)n, s);
        for (int32_t i = 0; i < o->n_profiles; i++)
            for (int32_t d = 0; d < o->profiles[i]->n_devices; d++)
                found = found || device_is_listed(name, o->profiles[i]->devices[d].id);
        if (!found)
            return oato_fail(err, OATO_EUSAGE,
                             "--devices: no profile has a device '%s'; name those of the profiles",
                             name);
        s += n + (s[n] == ',');
    }
    return OATO_OK;
}

oato_status seats_find(const struct rank_options *o, const struct planner_options *given,
                       const struct plan *plan, struct seat *seats, struct oato_error *err)
{
    if (given && list_check(o, given->devices, err))
        return err->status;
    for (int32_t r = 0; r < o->ranks; r++) {
        const struct profile *p = o->profiles[rank_profile(o, r)];
        seats[r] = (struct seat){
            .profile = p, .n = 1, .device = {(int32_t)(profile_host(p) - p->devices)}, .like = r};
        if (plan && seat_as_planned(plan, r, &seats[r], err))
            return err->status;
        if (!plan)
            seat_fill(o, given, r, &seats[r]);
        for (int32_t i = r - 1; i >= 0; i--)
            if (are_alike(&seats[i], &seats[r]))
                seats[r].like = i;
    }
    return OATO_OK;
}

uint64_t seat_budget(const struct rank_options *o, const struct planner_options *given,
                     const struct seat *seats, int32_t rank, int32_t d)
{
    const struct profile_device *device = &seats[rank].profile->devices[seats[rank].device[d]];
    double bytes = (double)device->free_bytes * 0.9;
    for (int32_t i = 0; given && i < given->n_budgets; i++)
        if (!strcmp(given->budgets[i].id, device->id))
            bytes = (double)given->budgets[i].bytes;
    return (uint64_t)(d ? bytes : bytes / ranks_of_host(o, rank_host(o, rank)));
}

/* ------------------------------------------------------------------------------- wholes --- */

/* The share of a request's work that the host does. */
static double host_share(const struct whole *w)
{
    const struct plan_request *q = &w->plan.request;
    double host_ns = 0, all_ns = 0;
    for (int32_t i = 0; i < w->plan.n_costs; i++) {
        const struct plan_cost *c = &w->plan.costs[i];
        const double ns = (double)c->ns * (c->phase == PHASE_DECODE ? q->generate : 1);
        host_ns += c->device ? 0 : ns;
        all_ns += ns;
    }
    return all_ns > 0 ? host_ns / all_ns : 1;
}

static oato_status whole_finish(struct whole *w, struct oato_error *err)
{
    const struct problem *p = w->problem;
    w->device = calloc((size_t)p->graph.n_ops + 1, sizeof *w->device);
    if (!w->device)
        return oato_fail_memory(err, (size_t)p->graph.n_ops * sizeof *w->device, "the plan");
    for (int32_t i = 0; i < p->graph.n_ops; i++)
        w->device[i] = plan_op_device(&w->plan, p->graph.ops[i].name);
    w->on_host = host_share(w);
    return OATO_OK;
}

void seat_options(const struct seat *seat, const struct planner_options *given,
                  const struct plan *cover, char devices[DEVICES_SIZE], struct planner_options *to)
{
    size_t n = 0;
    for (int32_t i = 0; i < seat->n; i++)
        n += (size_t)snprintf(devices + n, DEVICES_SIZE - n, "%s%s", i ? "," : "",
                              seat->profile->devices[seat->device[i]].id);
    *to = *given;
    to->devices = devices;
    to->cover = cover;
    to->any_ubatch = false;
    to->sparse = (struct sparse_choice){.given = true};
    to->expert_cache = 0;
    to->strict_budgets = false;
    to->n_budgets = 0;
    if (seat->n == 1)
        to->solver = "cpu";
}

/* The largest share of all work that a rank of this seat gets. */
static double largest_share(const struct rank_options *o, const struct seat *seats, int32_t like)
{
    double most = 0, all = 0;
    for (int32_t r = 0; r < o->ranks; r++) {
        all += o->share[r];
        if (seats[r].like == like)
            most = fmax(most, o->share[r]);
    }
    return all > 0 ? most / all : 1;
}

/* A device has room for all of which the rank's share, beside activations, fits; the host for
 * everything. */
static oato_status budgets_fill(const struct model *m, const struct rank_options *o,
                                const struct planner_options *given, const struct seat *seats,
                                int32_t rank, double room, struct planner_options *to,
                                struct oato_error *err)
{
    const struct seat *seat = &seats[rank];
    const double share = largest_share(o, seats, rank);
    struct problem *p = NULL;
    if (seat->n > 1 && problem_create(m, seat->profile, to, &p, err))
        return err->status;
    for (int32_t d = 0; d < seat->n; d++) {
        const double reserve = d ? (double)p->reserve[d] : 0,
                     own = (double)seat_budget(o, given, seats, rank, d) * room;
        struct device_budget *b = &to->budgets[to->n_budgets++];
        snprintf(b->id, sizeof b->id, "%s", seat->profile->devices[seat->device[d]].id);
        b->bytes = !d ? PLENTY : own <= reserve ? 0 : (uint64_t)((own - reserve) / share + reserve);
    }
    problem_free(p);
    return OATO_OK;
}

static oato_status whole_make(const struct model *m, const struct planner_options *given,
                              const struct rank_options *o, const struct seat *seats, int32_t rank,
                              double room, const struct plan *cover, struct whole *out,
                              struct oato_error *err)
{
    struct planner_options own;
    char devices[DEVICES_SIZE];
    seat_options(&seats[rank], given, cover, devices, &own);
    own.deadline_ns = ilp_share(given->deadline_ns, o->ranks);
    own.whole_only = true;
    own.by_ranks = o->ranks;
    own.joined = o->joined;
    if (budgets_fill(m, o, given, seats, rank, room, &own, err) ||
        planner_make(m, seats[rank].profile, &own, &out->plan, &out->problem, err))
        return err->status;
    return whole_finish(out, err);
}

void wholes_free(struct whole *wholes, int32_t ranks)
{
    for (int32_t r = 0; r < ranks; r++) {
        problem_free(wholes[r].problem);
        plan_free(&wholes[r].plan);
        free(wholes[r].device);
        wholes[r] = (struct whole){.problem = NULL};
    }
}

/* By their speed while all ranks of their host compute as long. */
static void shares_find(const struct seat *seats, const struct whole *wholes,
                        struct rank_options *o)
{
    for (int32_t r = 0; r < o->ranks; r++) {
        const struct plan *own = &wholes[seats[r].like].plan;
        o->slowness[r] = (double)own->objective_ns / fmax((double)wholes[0].plan.objective_ns, 1);
    }
    for (int32_t r = 0; r < o->ranks; r++) {
        const double turns = ranks_turns(o, rank_host(o, r)),
                     on_host = wholes[seats[r].like].on_host;
        o->share[r] = 1 / fmax(o->slowness[r] * (1 + on_host * (turns - 1)), 1e-6);
    }
}

oato_status wholes_make(const struct model *m, const struct planner_options *given,
                        const struct seat *seats, const double *room, struct rank_options *o,
                        struct whole *wholes, struct oato_error *err)
{
    bool accelerated = false;
    for (int32_t r = 0; r < o->ranks; r++) {
        accelerated = accelerated || seats[r].n > 1;
        o->share[r] = 1;
    }
    /* what fits into accelerators depends on the shares, and these on what fits */
    for (int pass = 0; pass < (accelerated ? 2 : 1); pass++) {
        wholes_free(wholes, o->ranks);
        for (int32_t r = 0; r < o->ranks; r++)
            if (seats[r].like == r && whole_make(m, given, o, seats, r, room[r],
                                                 r ? &wholes[0].plan : NULL, &wholes[r], err))
                return err->status;
        shares_find(seats, wholes, o);
    }
    return OATO_OK;
}
