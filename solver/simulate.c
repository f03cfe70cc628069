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

enum { STEPS_ALL = 8 }; /* so many of a kind are all run */

/* ------------------------------------------------------------------------------ the plan --- */

static oato_status find_devices(struct simulation *s, struct oato_error *err)
{
    s->host = -1;
    if (s->plan->n_devices > SOLVER_DEVICES)
        return oato_fail(err, OATO_EFILE, "the plan has %d devices, at most %d are simulated",
                         s->plan->n_devices, SOLVER_DEVICES);
    for (int32_t d = 0; d < s->plan->n_devices; d++) {
        s->device[d] = profile_device_index(s->profile, s->plan->devices[d].id);
        if (s->device[d] < 0)
            return plan_device_missing(&s->plan->devices[d], err);
        for (int32_t other = 0; other < d; other++)
            if (s->device[other] == s->device[d])
                return oato_fail(
                    err, OATO_EFILE,
                    "the plan's %s of rank %d and of rank %d are the same device in the "
                    "profile; this version simulates plans of one host",
                    s->plan->devices[d].id, s->plan->devices[other].rank, s->plan->devices[d].rank);
        if (s->host < 0 && s->profile->devices[s->device[d]].is_host)
            s->host = d;
    }
    if (s->host < 0)
        return oato_fail(err, OATO_EFILE, "none of the plan's devices is the host of the profile");
    for (int32_t d = 0; d < s->plan->n_devices; d++) {
        const int32_t host = s->device[s->host], other = s->device[d];
        if (cost_of_copy(s->cost, host, other, 0) < 0 || cost_of_copy(s->cost, other, host, 0) < 0)
            return oato_fail(err, OATO_EFILE,
                             "the profile has no links between %s and %s; profile both together",
                             s->plan->devices[s->host].id, s->plan->devices[d].id);
    }
    return OATO_OK;
}

/* The programs that the engine would run. Weights count as they lie in the model's file. */
static oato_status lower_plan(struct simulation *s, struct oato_error *err)
{
    const struct plan_request *q = &s->plan->request;
    int32_t bound[SOLVER_DEVICES];
    struct lowering_facts facts = {.n_devices = s->plan->n_devices, .host = s->host};
    for (int32_t d = 0; d < facts.n_devices; d++) {
        const struct profile_device *own = &s->profile->devices[s->device[d]];
        bound[d] = d;
        facts.id[d] = own->id;
        facts.streams[d] = true;
        facts.caches[d] = !own->is_host;
        for (int32_t from = 0; from < facts.n_devices; from++)
            facts.reaches[d][from] = cost_of_copy(s->cost, s->device[from], s->device[d], 0) >= 0;
    }
    const struct lowering_input in = {.graph = &s->graph,
                                      .placements = &s->placements,
                                      .facts = &facts,
                                      .limits = {.tokens = {q->ubatch, q->batch},
                                                 .rows = {q->batch, q->batch},
                                                 .seqs = q->batch,
                                                 .context = q->context},
                                      .kv = q->kv};
    for (int32_t i = 0; i < s->graph.n_ops; i++)
        s->graph.ops[i].op = graph_op_with_kv(&s->graph.ops[i], q->kv);
    oato_status status = placements_create(s->plan, &s->graph, bound, s->host, &s->placements, err);
    if (!status)
        sparse_place(&s->graph, s->plan->neurons, &s->placements);
    if (!status)
        status = lowered_init(&in, &s->lowered, err);
    for (int phase = 0; phase < PHASE_COUNT && !status; phase++)
        status = lower(&in, (enum plan_phase)phase, &s->lowered, err);
    return status;
}

/* ---------------------------------------------------------------------------- the request --- */

static struct request_step decode_step(const struct plan_request *q, int32_t token)
{
    struct request_step s = request_decode_step(q);
    s.kv_positions = q->batch * ((int64_t)q->prompt + token + 1);
    return s;
}

static struct simulated_step *add_step(struct simulation *s, enum plan_phase phase, int32_t number)
{
    const struct plan_request *q = &s->plan->request;
    struct simulated_step *step = &s->steps[s->n_steps++];
    *step = (struct simulated_step){.phase = phase, .number = number};
    step->size = phase == PHASE_PREFILL ? request_prefill_step(q, number) : decode_step(q, number);
    return step;
}

/* Steps [0, n) of a kind: all, or three that stand for them. */
static void add_steps(struct simulation *s, enum plan_phase phase, int32_t n, double times)
{
    const int32_t chosen[] = {0, n / 2, n - 1};
    for (int32_t i = 0; i < n && n <= STEPS_ALL; i++)
        add_step(s, phase, i)->times = times;
    for (size_t i = 0; i < ARRAY_LEN(chosen) && n > STEPS_ALL; i++) {
        struct simulated_step *step = add_step(s, phase, chosen[i]);
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

/* The last chunk of a prompt is like no other: it may be short, and wants logits. */
static oato_status list_steps(struct simulation *s, struct oato_error *err)
{
    const struct plan_request *q = &s->plan->request;
    const int32_t chunks = request_prefill_steps(q);
    s->steps = arena_alloc(&s->arena, 2 * STEPS_ALL + 1, sizeof *s->steps);
    if (!s->steps)
        return oato_fail_memory(err, sizeof *s->steps, "a simulation");
    if (chunks) {
        add_steps(s, PHASE_PREFILL, chunks - 1, q->batch);
        add_step(s, PHASE_PREFILL, chunks - 1)->times = q->batch;
    }
    s->middle = -1;
    const int32_t first = s->n_steps;
    add_steps(s, PHASE_DECODE, q->generate, 1);
    for (int32_t i = first; i < s->n_steps; i++)
        if (s->steps[i].number == q->generate / 2)
            s->middle = i;
    return OATO_OK;
}

static oato_status run_steps(struct simulation *s, struct oato_error *err)
{
    double ns[PHASE_COUNT] = {0};
    int64_t now_ns = 0;
    for (int32_t i = 0; i < s->n_steps; i++) {
        struct simulated_step *step = &s->steps[i];
        if (simulate_step(s, step, now_ns, err))
            return err->status;
        now_ns = step->end_ns;
        ns[step->phase] += (double)(step->end_ns - step->begin_ns) * step->times;
    }
    s->prefill_ns = whole_ns(ns[PHASE_PREFILL]);
    s->request_ns = ns_add(s->prefill_ns, whole_ns(ns[PHASE_DECODE]));
    if (s->middle >= 0)
        s->decode_ns = s->steps[s->middle].end_ns - s->steps[s->middle].begin_ns;
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

oato_status simulation_run(const struct plan *plan, const struct model *m,
                           const struct profile *profile, struct simulation **out,
                           struct oato_error *err)
{
    *out = NULL;
    if (plan_check_model(plan, m->gguf, err) || plan_check_neurons(plan, err) ||
        request_check_plan(plan, err))
        return err->status;
    struct simulation *s = calloc(1, sizeof *s);
    if (!s)
        return oato_fail_memory(err, sizeof *s, "a simulation");
    s->plan = plan;
    s->profile = profile;
    arena_init(&s->arena);
    if (cost_create(profile, &s->cost, err) || plan_apply(plan, m, &s->graph, err) ||
        sparse_apply_plan(&s->graph, plan, err) || find_silences(s, err) || find_devices(s, err) ||
        lower_plan(s, err) || list_steps(s, err) || run_steps(s, err)) {
        simulation_free(s);
        return err->status;
    }
    *out = s;
    return OATO_OK;
}

oato_status simulation_predict(struct plan *plan, const struct model *m,
                               const struct profile *profile, struct oato_error *err)
{
    struct simulation *s;
    const oato_status status = simulation_run(plan, m, profile, &s, err);
    if (!s)
        return status;
    plan->prefill_ns = (uint64_t)s->prefill_ns;
    if (s->middle >= 0)
        plan->decode_ns = (uint64_t)s->decode_ns;
    plan->request_ns = (uint64_t)ns_add((int64_t)plan->prefill_ns,
                                        ns_times(plan->request.generate, (int64_t)plan->decode_ns));
    simulation_free(s);
    return OATO_OK;
}

void simulation_free(struct simulation *s)
{
    if (!s)
        return;
    cost_free(s->cost);
    lowered_free(&s->lowered);
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
        const double times = phase == PHASE_DECODE ? i == s->middle : step->times;
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
            const bool copies =
                e->kind == EVENT_UPLOAD || e->kind == EVENT_DOWNLOAD || e->kind == EVENT_PEER;
            *(copies ? &load.copy_ns : &load.run_ns) += ns;
            if (e->waited_for >= 0)
                load.wait_ns[event_queue(s, &s->events[e->waited_for])] +=
                    (double)e->wait_ns * times;
        }
    }
    return load;
}
