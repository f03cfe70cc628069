/*
 * simulate.c - the whole request of a plan on a virtual clock: chunks of the prompt, then steps of
 * decode, lowered as the engine would and run by simulate_step.c. It gives a plan's predictions,
 * and is the independent check of the solver's prices: the costs of operators and copies come from
 * the same profile, but overlap, waiting and what streaming hides come out of the queues, not of a
 * formula.
 *
 * Long requests repeat themselves: of many steps of a kind only the first, the middle and the last
 * are run, and the others are interpolated (costs are close to linear in the KV positions).
 */
#include "solver/simulation_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS_ALL = 8 }; /* so many of a kind are all run */

/* ------------------------------------------------------------------------------ the plan --- */

/* The link of each device to the host of its rank. */
static oato_status links_check(const struct simulation *s, const struct sim_rank *r,
                               struct oato_error *err)
{
    const int32_t host = s->device[r->host];
    for (int32_t d = r->first; d < r->first + r->n_devices; d++)
        if (cost_of_copy(r->cost, host, s->device[d], 0) < 0 ||
            cost_of_copy(r->cost, s->device[d], host, 0) < 0)
            return oato_fail(err, OATO_EFILE,
                             "the profile has no links between %s and %s; profile both together",
                             s->plan->devices[r->host].id, s->plan->devices[d].id);
    return OATO_OK;
}

/* The programs that the rank's engine would run. Weights count as they lie in the model's file;
 * ranks send each other candidates of logits, as many as plans say. */
static oato_status rank_lower(struct simulation *s, int32_t rank, struct oato_error *err)
{
    struct sim_rank *r = &s->rank[rank];
    struct lowering_facts facts = {.n_devices = 0};
    int32_t bound[SIM_DEVICES];
    while (s->plan->devices[r->first].rank != rank)
        r->first++;
    r->profile = s->options.profiles[rank_profile(&s->options, rank)];
    if (cost_create(r->profile, s->plan->numerics[PHASE_PREFILL], &r->cost, err) ||
        rank_facts(s->plan, r->profile, r->cost, rank, &facts, s->device + r->first, bound, err))
        return err->status;
    r->n_devices = facts.n_devices;
    r->host = r->first + facts.host;
    return links_check(s, r, err) ? err->status
                                  : lower_plan(s->plan, &s->graph, &facts, bound,
                                               s->n_ranks > 1 ? CANDIDATES_BYTES / 8 : 0,
                                               &r->placements, &r->lowered, err);
}

/* Each part as its rank has it, and what all ranks run as the first has it. */
static oato_status placements_join(struct simulation *s, struct oato_error *err)
{
    const size_t n = (size_t)s->graph.n_ops;
    for (int phase = 0; phase < PHASE_COUNT; phase++) {
        struct placement *all = s->placements.phase[phase] = calloc(n + 1, sizeof *all);
        if (!all)
            return oato_fail_memory(err, n * sizeof *all, "placements");
        memcpy(all, s->rank->placements.phase[phase], n * sizeof *all);
        for (int32_t r = 1; r < s->n_ranks && !s->alone; r++)
            for (size_t i = 0; i < n; i++) {
                const struct placement *own = &s->rank[r].placements.phase[phase][i];
                for (int32_t k = 0; k < own->n && !own->part->everywhere; k++)
                    if (own->part[k].device >= 0) {
                        all[i].part[k] = own->part[k];
                        all[i].part[k].device += s->rank[r].first;
                    }
            }
    }
    return OATO_OK;
}

static oato_status ranks_lower(struct simulation *s, struct oato_error *err)
{
    s->n_ranks = plan_ranks(s->plan);
    if (s->plan->n_devices < 1 || s->plan->n_devices > SIM_DEVICES)
        return oato_fail(err, OATO_EFILE, "the plan has %d devices; 1 to %d are simulated",
                         s->plan->n_devices, SIM_DEVICES);
    s->rank = arena_alloc(&s->arena, (size_t)s->n_ranks, sizeof *s->rank);
    if (!s->rank)
        return oato_fail_memory(err, (size_t)s->n_ranks * sizeof *s->rank, "a simulation");
    for (int32_t r = 0; r < s->n_ranks; r++)
        s->rank[r].placements.wire = DT_F32;
    for (int32_t r = 0; r < (s->alone ? 1 : s->n_ranks); r++)
        if (rank_lower(s, r, err))
            return err->status;
    s->host = s->rank->host;
    return placements_join(s, err);
}

/* ---------------------------------------------------------------------------- the request --- */

static struct simulated_step *add_step(struct simulation *s, enum plan_phase phase, int32_t point,
                                       int32_t number)
{
    const struct plan_request *q = &s->plan->request;
    const struct plan_point at = request_point(q, point);
    struct simulated_step *step = &s->steps[s->n_steps++];
    *step = (struct simulated_step){.phase = phase, .point = point, .number = number};
    if (phase == PHASE_PREFILL)
        step->size = request_prefill_step(q, point, number);
    else
        step->size = request_decode_at(q, (int64_t)at.depth + at.prompt + number);
    return step;
}

/* Steps [from, n) of a kind: all, or three that stand for them. */
static void add_steps(struct simulation *s, enum plan_phase phase, int32_t point, int32_t from,
                      int32_t n, double times)
{
    const int32_t chosen[] = {from, (from + n) / 2, n - 1};
    for (int32_t i = from; i < n && n - from <= STEPS_ALL; i++)
        add_step(s, phase, point, i)->times = times;
    for (size_t i = 0; i < ARRAY_LEN(chosen) && n - from > STEPS_ALL; i++) {
        struct simulated_step *step = add_step(s, phase, point, chosen[i]);
        step->times = times;
        for (int side = -1; side <= 1; side += 2) { /* a share of those up to the next one */
            const size_t other = i + (size_t)side;
            if (other >= ARRAY_LEN(chosen))
                continue;
            const int32_t distance = abs(chosen[other] - chosen[i]);
            step->times += times * (distance - 1) / 2;
        }
    }
}

/* The last chunk of a prompt is like no other: it may be short, and wants logits. Nor are the first
 * ones where ranks follow each other: rank 0 does not wait for the others yet. A step of decode is
 * predicted for ranks also where none is asked for. */
static void list_point(struct simulation *s, int32_t point, int32_t filling)
{
    const struct plan_request *q = &s->plan->request;
    const struct plan_point at = request_point(q, point);
    const int32_t chunks = request_prefill_steps(q, point), begin = s->n_steps;
    if (chunks) {
        const int32_t first = filling < chunks - 1 ? filling : chunks - 1;
        for (int32_t i = 0; i < first; i++)
            add_step(s, PHASE_PREFILL, point, i)->times = q->batch;
        add_steps(s, PHASE_PREFILL, point, first, chunks - 1, q->batch);
        add_step(s, PHASE_PREFILL, point, chunks - 1)->times = q->batch;
    }
    for (int32_t i = begin; i < s->n_steps; i++)
        s->steps[i].predicts = s->steps[i].times * request_weight(q, point);
    const int32_t first = s->n_steps;
    add_steps(s, PHASE_DECODE, point, 0, at.generate, 1);
    if (!at.generate && s->n_ranks > 1)
        add_step(s, PHASE_DECODE, point, 0);
    for (int32_t i = first; i < s->n_steps; i++)
        if (s->steps[i].number == at.generate / 2) {
            s->steps[i].predicts = request_decode_share(q, point);
            s->middle = s->steps[i].predicts > 0 || s->middle < 0 ? i : s->middle;
        }
}

static oato_status list_steps(struct simulation *s, struct oato_error *err)
{
    const int32_t filling = plan_has_stages(s->plan) ? s->n_ranks : 0,
                  points = request_points(&s->plan->request);
    const size_t most = (size_t)points * (2 * STEPS_ALL + 2 + (size_t)filling);
    s->steps = arena_alloc(&s->arena, most, sizeof *s->steps);
    if (!s->steps)
        return oato_fail_memory(err, most * sizeof *s->steps, "a simulation");
    s->middle = -1;
    for (int32_t i = 0; i < points; i++)
        list_point(s, i, filling);
    return OATO_OK;
}

static oato_status run_steps(struct simulation *s, struct oato_error *err)
{
    double predicted_ns[PHASE_COUNT] = {0}, decode_ns = 0, prompt_ns[REQUEST_POINTS_MAX] = {0};
    for (int32_t i = 0; i < s->n_steps; i++) {
        struct simulated_step *step = &s->steps[i];
        if (simulate_step(s, step, err))
            return err->status;
        const double ns = (double)(step->end_ns - step->begin_ns);
        predicted_ns[step->phase] += ns * step->predicts;
        if (step->phase == PHASE_PREFILL)
            prompt_ns[step->point] += ns * step->times;
        else
            decode_ns += ns * step->times * request_weight(&s->plan->request, step->point);
        if (step->phase == PHASE_DECODE &&
            step->number == request_point(&s->plan->request, step->point).generate / 2)
            s->point[step->point].decode_ns = step->end_ns - step->begin_ns;
    }
    for (int32_t i = 0; i < request_points(&s->plan->request); i++)
        s->point[i].prefill_ns = whole_ns(prompt_ns[i]);
    s->prefill_ns = whole_ns(predicted_ns[PHASE_PREFILL]);
    s->request_ns = ns_add(s->prefill_ns, whole_ns(decode_ns));
    s->decode_ns = whole_ns(predicted_ns[PHASE_DECODE]);
    return OATO_OK;
}

static oato_status find_silences(struct simulation *s, struct oato_error *err)
{
    const struct plan *p = s->plan;
    const struct skipping skipping = {p->sparse, p->n_sparse, p->inputs, p->n_inputs, p->neurons};
    const size_t n = (size_t)s->graph.n_ops;
    s->silent = arena_alloc(&s->arena, n + 1, sizeof *s->silent);
    if (!s->silent)
        return oato_fail_memory(err, n * sizeof *s->silent, "a simulation");
    sparse_silences(&s->graph, &skipping, s->silent);
    return OATO_OK;
}

oato_status simulation_of_rank(const struct plan *plan, const struct model *m,
                               const struct rank_options *ranks, bool alone,
                               struct simulation **out, struct oato_error *err)
{
    *out = NULL;
    if (plan_check_model(plan, m->gguf, err) || plan_check_neurons(plan, err) ||
        request_check_plan(plan, err))
        return err->status;
    struct simulation *s = calloc(1, sizeof *s);
    if (!s)
        return oato_fail_memory(err, sizeof *s, "a simulation");
    s->plan = plan;
    s->alone = alone;
    s->options = *ranks;
    arena_init(&s->placements.arena);
    arena_init(&s->arena);
    if (plan_apply(plan, m, &s->graph, err) || sparse_apply_plan(&s->graph, plan, err) ||
        find_silences(s, err) || ranks_lower(s, err) || list_steps(s, err) || run_steps(s, err)) {
        simulation_free(s);
        return err->status;
    }
    *out = s;
    return OATO_OK;
}

oato_status simulation_run(const struct plan *plan, const struct model *m,
                           const struct rank_options *ranks, struct simulation **out,
                           struct oato_error *err)
{
    struct rank_options o = *ranks;
    ranks_as_planned(plan, &o);
    rank_network(&o);
    return simulation_of_rank(plan, m, &o, false, out, err);
}

oato_status simulation_predict(struct plan *plan, const struct model *m,
                               const struct profile *profile, struct oato_error *err)
{
    struct simulation *s;
    const oato_status status = simulation_run(
        plan, m, &(struct rank_options){.profiles = {profile}, .n_profiles = 1}, &s, err);
    if (!s)
        return status;
    simulation_tell(s, plan);
    simulation_free(s);
    return OATO_OK;
}

void simulation_tell(const struct simulation *s, struct plan *plan)
{
    plan->prefill_ns = (uint64_t)s->prefill_ns;
    if (s->middle >= 0)
        plan->decode_ns = (uint64_t)s->decode_ns;
    plan->request_ns = (uint64_t)request_latency(&plan->request, (int64_t)plan->prefill_ns,
                                                 (int64_t)plan->decode_ns);
    for (int32_t i = 0; i < plan->request.n_points; i++) {
        plan->request.points[i].prefill_ns = (uint64_t)s->point[i].prefill_ns;
        plan->request.points[i].decode_ns = (uint64_t)s->point[i].decode_ns;
    }
}

void simulation_free(struct simulation *s)
{
    if (!s)
        return;
    for (int32_t r = 0; r < s->n_ranks && s->rank; r++) {
        cost_free(s->rank[r].cost);
        lowered_free(&s->rank[r].lowered);
        placements_free(&s->rank[r].placements);
    }
    placements_free(&s->placements);
    graph_free(&s->graph);
    arena_free(&s->arena);
    free(s->events);
    free(s);
}

/* ----------------------------------------------------------------------------- its sums ---- */

struct sim_load simulation_load(const struct simulation *s, enum plan_phase phase, int32_t device)
{
    struct sim_load load = {0};
    for (int32_t i = 0; i < s->n_steps; i++) {
        const struct simulated_step *step = &s->steps[i];
        const double times = step->predicts;
        if (step->phase != phase || times <= 0)
            continue;
        load.span_ns += (double)(step->end_ns - step->begin_ns) * times;
        for (int32_t k = step->first; k < step->first + step->n; k++) {
            const struct event *e = &s->events[k];
            const double ns = (double)(e->end_ns - e->begin_ns) * times;
            if (e->device != device)
                continue;
            if (e->kind == EVENT_STREAM) {
                load.stream_ns += ns;
                continue;
            }
            const bool copies = e->kind == EVENT_UPLOAD || e->kind == EVENT_DOWNLOAD ||
                                e->kind == EVENT_PEER || e->kind == EVENT_EXCHANGE;
            *(copies ? &load.copy_ns : &load.run_ns) += ns;
            if (e->waited_for >= 0)
                load.wait_ns[event_queue(s, &s->events[e->waited_for])] +=
                    (double)e->wait_ns * times;
        }
    }
    return load;
}
