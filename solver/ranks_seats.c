/*
 * ranks_seats.c - what each rank computes with, and what all work of the model would take there.
 *
 * The accelerators of a host are dealt to its ranks. What ranks divide is where the plan of one
 * process would have it, if each device had room for as much more as the rank gets less; what all
 * of them do stays on their hosts: these hold the sums, and it is little. Where accelerators sum,
 * it is on these.
 */
#include "lowering/lowering.h"
#include "solver/ranks_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const uint64_t PLENTY = UINT64_C(1) << 46;

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

static void work_fill(struct whole *w)
{
    const struct problem *p = w->problem;
    const struct plan_request *q = &p->request;
    const double steps = request_prefill_total(q).steps;
    double host_ns = 0, all_ns = 0;
    for (int phase = 0; phase < PHASE_COUNT; phase++) {
        struct divided_work *work = w->work[phase];
        double sum = 0;
        memset(work, 0, sizeof w->work[phase]);
        for (int32_t d = 0; d < p->n_devices; d++)
            work[d].record_ns = d ? 0
                                  : p->profile->devices[p->device[d]].record_overhead_ns *
                                        (phase == PHASE_PREFILL ? steps : 1);
        for (int32_t i = 0; i < p->graph.n_ops; i++) {
            const double ns =
                op_price_ns(&p->price[i * p->n_devices + w->device[i]], (enum plan_phase)phase);
            work_add(&work[w->device[i]], ns);
            sum += ns;
        }
        for (int32_t d = 1; d < p->n_devices; d++)
            work[d].least_ns = p->profile->devices[p->device[d]].record_overhead_ns *
                               (phase == PHASE_PREFILL ? steps : 1);
        const double times = phase == PHASE_DECODE ? q->generate : 1;
        const uint64_t took = phase == PHASE_DECODE ? w->plan.decode_ns : w->plan.prefill_ns;
        w->rest_ns[phase] = (double)took - sum;
        host_ns += times * work[0].all_ns;
        all_ns += times * sum;
    }
    w->on_host = all_ns > 0 ? host_ns / all_ns : 1;
}

static oato_status whole_finish(struct whole *w, struct oato_error *err)
{
    const struct problem *p = w->problem;
    w->device = calloc((size_t)p->graph.n_ops + 1, sizeof *w->device);
    if (!w->device)
        return oato_fail_memory(err, (size_t)p->graph.n_ops * sizeof *w->device, "the plan");
    for (int32_t i = 0; i < p->graph.n_ops; i++)
        w->device[i] = plan_op_device(&w->plan, p->graph.ops[i].name);
    work_fill(w);
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
    to->sparse = PLANNER_SPARSE_OFF;
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
    double equal_ns[SOLVER_DEVICES];
    for (int32_t r = 0; r < o->ranks; r++) {
        const struct plan *own = &wholes[seats[r].like].plan;
        equal_ns[r] = 1;
        o->slowness[r] = (double)own->objective_ns / fmax((double)wholes[0].plan.objective_ns, 1);
    }
    for (int32_t r = 0; r < o->ranks; r++) {
        const double crowd = ranks_crowd(o, rank_host(o, r), equal_ns),
                     on_host = wholes[seats[r].like].on_host;
        o->share[r] = 1 / fmax(o->slowness[r] * (1 + on_host * (crowd - 1)), 1e-6);
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

/* ---------------------------------------------------------------------- as it was planned --- */

int32_t rank_first_device(const struct plan *plan, int32_t rank)
{
    int32_t first = 0;
    while (plan->devices[first].rank != rank)
        first++;
    return first;
}

void seat_take_devices(const struct plan *plan, const struct seat *seat, int32_t rank,
                       struct plan *one)
{
    one->n_devices = seat->n;
    for (int32_t d = 0; d < seat->n; d++) {
        struct plan_device *to = &one->devices[d];
        *to = plan->devices[rank_first_device(plan, rank) + d];
        snprintf(to->id, sizeof to->id, "%s", seat->profile->devices[seat->device[d]].id);
        to->rank = to->host = 0;
    }
}

/* The device of the seat on which ranks like this one have their parts of the operator; of one that
 * is not divided, as lowering has it. */
static int32_t planned_device(const struct plan *plan, const struct seat *seats, int32_t like,
                              const struct graph_op *o)
{
    bool divided = false;
    for (int32_t k = 0; k < plan->n_parts; k++) {
        const int32_t device = plan->parts[k].device, rank = plan->devices[device].rank;
        if (strcmp(plan->parts[k].op, o->name) != 0)
            continue;
        divided = true;
        if (seats[rank].like == like)
            return device - rank_first_device(plan, rank);
    }
    return !divided && plan_joins(plan) && op_weight_use(&o->op) != WEIGHT_LOOKUP;
}

/* The profile with room for the whole model. */
static oato_status profile_widen(const struct profile *p, struct arena *a, struct profile **out,
                                 struct oato_error *err)
{
    struct profile_device *d = arena_alloc(a, (size_t)p->n_devices + 1, sizeof *d);
    *out = arena_alloc(a, 1, sizeof **out);
    if (!*out || !d)
        return oato_fail_memory(err, (size_t)p->n_devices * sizeof *d, "the plan");
    memcpy(d, p->devices, (size_t)p->n_devices * sizeof *d);
    for (int32_t i = 0; i < p->n_devices; i++)
        d[i].memory_bytes = d[i].free_bytes = PLENTY;
    **out = *p;
    (*out)->devices = d;
    return OATO_OK;
}

/* The plan of one process that has all of what ranks like this one divide. */
static oato_status one_fill(const struct model *m, const struct plan *plan,
                            const struct seat *seats, int32_t rank, struct plan *one,
                            struct oato_error *err)
{
    const struct seat *seat = &seats[rank];
    struct graph g;
    *one = *plan;
    arena_init(&one->arena);
    one->n_parts = one->n_kv = one->n_costs = one->n_sums = 0;
    if (plan_apply(plan, m, &g, err))
        return err->status;
    const size_t n = (size_t)g.n_ops;
    one->devices = arena_alloc(&one->arena, (size_t)seat->n, sizeof *one->devices);
    one->parts = arena_alloc(&one->arena, n + 1, sizeof *one->parts);
    one->kv = arena_alloc(&one->arena, n + 1, sizeof *one->kv);
    if (one->devices)
        seat_take_devices(plan, seat, rank, one);
    for (int32_t d = 0; d < seat->n && one->devices; d++)
        one->devices[d].budget_bytes = PLENTY;
    for (size_t i = 0; i < n && one->parts && one->kv; i++) {
        const struct graph_op *o = &g.ops[i];
        const int32_t d = planned_device(plan, seats, rank, o);
        struct plan_part *part = &one->parts[one->n_parts++];
        *part = (struct plan_part){.op = arena_string(&one->arena, o->name),
                                   .axis = AXIS_ROWS,
                                   .end = o->op.n,
                                   .phases = (1u << PHASE_COUNT) - 1,
                                   .device = d,
                                   .home = d};
        if (!part->op)
            one->parts = NULL;
        if (o->op.kind == OP_KV_STORE)
            one->kv[one->n_kv++] =
                (struct plan_kv){.layer = o->kv_layer, .head_end = o->op.kv_heads, .device = d};
    }
    graph_free(&g);
    return one->devices && one->parts && one->kv
               ? OATO_OK
               : oato_fail_memory(err, n * sizeof *one->parts, "the plan");
}

static oato_status whole_as_planned(const struct model *m, const struct plan *plan,
                                    const struct seat *seats, int32_t rank, struct whole *w,
                                    struct oato_error *err)
{
    struct profile *wide;
    int32_t *place;
    if (one_fill(m, plan, seats, rank, &w->plan, err) ||
        profile_widen(seats[rank].profile, &w->plan.arena, &wide, err) ||
        problem_of_plan(m, wide, &w->plan, &w->problem, &place, err))
        return err->status;
    w->plan.objective_ns = (uint64_t)instance_price(&w->problem->instance, place).objective_ns;
    return simulation_predict(&w->plan, m, wide, err) ? err->status : whole_finish(w, err);
}

oato_status wholes_as_planned(const struct model *m, const struct plan *plan,
                              const struct seat *seats, struct rank_options *o,
                              struct whole *wholes, struct oato_error *err)
{
    for (int32_t r = 0; r < o->ranks; r++)
        if (seats[r].like == r && whole_as_planned(m, plan, seats, r, &wholes[r], err))
            return err->status;
    shares_find(seats, wholes, o);
    return OATO_OK;
}
