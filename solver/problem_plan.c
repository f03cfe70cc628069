/*
 * problem_plan.c - turns a plan back into a problem and a placement, so that an old plan can be
 * priced with a new profile.
 */
#include "solver/planning_internal.h"

#include <inttypes.h>
#include <string.h>

void plan_device_fill(const struct profile_device *from, struct plan_device *to)
{
    snprintf(to->id, sizeof to->id, "%s", from->id);
    snprintf(to->kind, sizeof to->kind, "%s", or_empty(from->kind));
    snprintf(to->model, sizeof to->model, "%s", or_empty(from->model));
    snprintf(to->spec, sizeof to->spec, "%s", or_empty(from->spec));
    to->is_host = from->is_host;
}

oato_status plan_device_missing(const struct plan_device *d, struct oato_error *err)
{
    return oato_fail(
        err, OATO_EFILE,
        "the plan's device %s is not in the profile; give the profile that it was made "
        "with, or run oato-plan again",
        d->id);
}

static oato_status devices_of_plan(struct problem *p, const struct plan *plan,
                                   struct oato_error *err)
{
    for (int32_t i = 0; i < plan->n_devices; i++) {
        const struct plan_device *d = &plan->devices[i];
        int32_t index = profile_device_index(p->profile, d->id);
        if (index < 0)
            return plan_device_missing(d, err);
        if (problem_add_device(p, index, err))
            return err->status;
        uint64_t free_bytes = p->profile->devices[index].free_bytes;
        p->budget[i] = d->budget_bytes < free_bytes ? d->budget_bytes : free_bytes;
    }
    return OATO_OK;
}

int32_t plan_op_device(const struct plan *plan, const char *op)
{
    int32_t device = -1;
    for (int32_t k = 0; k < plan->n_parts; k++) {
        const struct plan_part *t = &plan->parts[k];
        if (t->phases >> PHASE_DECODE & 1 && t->begin < t->end && !strcmp(t->op, op))
            device = t->device;
    }
    return device;
}

/* Of a unit's extent, what each device has in each phase. */
typedef int64_t shares[PHASE_COUNT][SOLVER_DEVICES];

static void shares_of_plan(const struct problem *p, const struct plan *plan, int32_t unit,
                           shares planned)
{
    const struct graph_op *op = &p->graph.ops[p->first_op[unit]];
    memset(planned, 0, sizeof(shares));
    for (int32_t k = 0; k < plan->n_parts; k++) {
        const struct plan_part *t = &plan->parts[k];
        const bool all_rows = t->axis == AXIS_ROWS && t->end - t->begin == op->op.n;
        const bool all = all_rows && p->division[unit].groups; /* of experts, too */
        for (int phase = 0; phase < PHASE_COUNT && !strcmp(t->op, op->name); phase++)
            if (t->phases >> phase & 1)
                planned[phase][t->device] += all ? p->division[unit].extent : t->end - t->begin;
    }
}

static bool has_shares(const struct problem *p, int32_t unit, const struct option *o,
                       const shares planned)
{
    shares wanted = {{0}};
    for (int32_t d = 0; d < p->n_devices; d++) {
        int64_t begin, end;
        divide_range(p, unit, o, d, &begin, &end);
        wanted[PHASE_DECODE][d] += end - begin;
        bool streamed = o->stream >= 0 && d == p->instance.host;
        wanted[PHASE_PREFILL][streamed ? o->stream : d] += end - begin;
    }
    return !memcmp(planned, wanted, sizeof wanted);
}

/* The option that does as the plan says; -1: there is none. A unit of several operators that is not
 * divided is where its last one is. */
static int32_t option_of_plan(const struct problem *p, const struct plan *plan, int32_t unit)
{
    const struct unit *u = &p->instance.units[unit];
    const struct graph *g = &p->graph;
    int32_t first = plan_op_device(plan, g->ops[p->first_op[unit]].name), last = first;
    for (int32_t i = p->first_op[unit]; i < g->n_ops; i++)
        if (p->unit_of[i] == unit)
            last = plan_op_device(plan, g->ops[i].name);
    if (last < 0)
        return p->instance.host;
    const int32_t filed = p->stored ? storage_option(p, unit, last, p->stored) : last;
    if (filed != last) /* -1: the plan says what no option does */
        return filed;
    const int32_t attends = attend_of_plan(p, plan, unit);
    if (attends >= 0)
        return attends;
    const int32_t divided = heads_of_plan(p, plan, unit);
    if (divided >= 0)
        return divided;
    if (p->whole_only || u->n_options == p->n_devices || u->options[p->n_devices].rooms)
        return last;
    shares planned;
    shares_of_plan(p, plan, unit, planned);
    for (int32_t i = 0; i < u->n_options; i++) {
        const struct option *o = &u->options[i];
        if (first != last
                ? o->in[PHASE_DECODE] == first && o->out[PHASE_DECODE] == last
                : o->in[PHASE_DECODE] == o->out[PHASE_DECODE] && has_shares(p, unit, o, planned))
            return i;
    }
    return -1;
}

static oato_status place_of_plan(const struct problem *p, const struct plan *plan, int32_t *place,
                                 struct oato_error *err)
{
    for (int32_t u = 0; u < p->instance.n_units; u++) {
        place[u] = option_of_plan(p, plan, u);
        if (place[u] < 0)
            return oato_fail(err, OATO_EFILE,
                             "%s is split between devices in a way that this version cannot "
                             "price; run oato-plan again",
                             p->graph.ops[p->first_op[u]].name);
    }
    instance_settle(&p->instance, place);
    return OATO_OK;
}

bool plan_is_stored(const struct plan *plan)
{
    for (int32_t k = 0; k < plan->n_parts; k++)
        if (plan->parts[k].home == HOME_FILE)
            return true;
    return false;
}

/* The operators whose weights are in a file. */
static oato_status stored_of_plan(struct problem *p, const struct plan *plan,
                                  struct oato_error *err)
{
    if (!plan_is_stored(plan))
        return OATO_OK;
    if (!(cost_storage_rate(p->cost) > 0))
        return oato_fail(
            err, OATO_EFILE,
            "the plan streams weights or KV from a file, but the profile has no rates of "
            "storage; run oato-profile again");
    if (storage_open(p, err))
        return err->status;
    for (int32_t k = 0; k < plan->n_parts; k++)
        for (int32_t i = 0; i < p->graph.n_ops && plan->parts[k].home == HOME_FILE; i++)
            if (!strcmp(p->graph.ops[i].name, plan->parts[k].op))
                p->stored[i] = true;
    return OATO_OK;
}

oato_status request_check_plan(const struct plan *plan, struct oato_error *err)
{
    if (!request_check(&plan->request, err))
        return OATO_OK;
    oato_fail_at(err, "the plan cannot be used, run oato-plan again");
    return err->status = OATO_EFILE;
}

oato_status problem_of_plan(const struct model *m, const struct profile *profile,
                            const struct plan *plan, struct problem **out, int32_t **place,
                            struct oato_error *err)
{
    struct problem *p;
    *out = NULL;
    if (plan_check_model(plan, m->gguf, err) || plan_check_neurons(plan, err) ||
        request_check_plan(plan, err) ||
        problem_begin(profile, &plan->request, plan->numerics[PHASE_PREFILL], &p, err))
        return err->status;
    p->neurons = plan->neurons;
    p->sparse = plan->sparse;
    p->n_sparse = plan->n_sparse;
    p->sparse_given = true;
    p->choice.given = !plan->n_sparse; /* plans like it skip nothing, either */
    p->inputs = plan->inputs;
    p->n_inputs = plan->n_inputs;
    if (devices_of_plan(p, plan, err) || problem_check_devices(p, err) ||
        plan_apply(plan, m, &p->graph, err) || problem_price(p, err)) {
        problem_free(p);
        if (err->status == OATO_EUSAGE) /* what is wrong was not on the command line */
            err->status = OATO_EFILE;
        return err->status;
    }
    if (stored_of_plan(p, plan, err)) {
        problem_free(p);
        return err->status;
    }
    p->fusions = plan->fusions;
    p->n_fusions = plan->n_fusions;
    *place = arena_alloc(&p->arena, (size_t)p->instance.n_units + 1, sizeof **place);
    const oato_status status = *place ? place_of_plan(p, plan, *place, err)
                                      : oato_fail_memory(err, sizeof **place, "a placement");
    if (status) {
        problem_free(p);
        return status;
    }
    problem_stream(p, *place);
    if ((p->stored && storage_settle(p, *place, err)) || memory_of_plan(plan, m, p, err)) {
        problem_free(p);
        return err->status;
    }
    *out = p;
    return OATO_OK;
}
