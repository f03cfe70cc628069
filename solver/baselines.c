/*
 * baselines.c - what other engines would do on the same machine, so that plans can state how much
 * better they are and are never worse:
 *
 *   fit         llama.cpp's rule: whole layers from the last to the first, experts last of all;
 *               priced as its scheduler runs them, too
 *   powerinfer  PowerInfer (arXiv 2312.12456, eq. 3-8): everything but FFN first, then the
 *               neurons that fire most; per layer none, or enough to pay for synchronisation
 *   flexgen     everything runs on the accelerator; weights that do not fit are streamed, a layer
 *               computing while the next one is copied (FlexGen, arXiv 2303.06865); price only
 */
#include "solver/planning_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { STREAM_TOKENS = 32 };

static int32_t first_accelerator(const struct instance *in)
{
    for (int32_t d = 0; d < in->n_devices; d++)
        if (!in->is_host[d] && in->usable[d])
            return d;
    return -1;
}

static bool of_experts(const void *problem, int32_t unit)
{
    const struct problem *p = problem;
    return p->graph.ops[p->first_op[unit]].op.kind == OP_EXPERT_GATE_UP;
}

static bool not_of_experts(const void *problem, int32_t unit)
{
    return !of_experts(problem, unit);
}

/* An FFN whose neurons or experts can be divided. */
static bool of_neurons(const struct problem *p, int32_t unit)
{
    const int kind = p->graph.ops[p->first_op[unit]].op.kind;
    return p->division[unit].groups && (kind == OP_GATE_UP || kind == OP_EXPERT_GATE_UP);
}

/* ---------------------------------------------------------------------------------- fit ---- */

/* In steps of 32 tokens or more llama.cpp's scheduler has the accelerator compute the host's
 * layers: it copies their weights there, of experts those that are used, and their whole KV, and
 * computes then: nothing overlaps, and nothing is skipped. Below 32 tokens layers run where they
 * lie. */

/* What the prompts' steps copy to run an operator of the host on d. */
static double copied_ns(const struct problem *p, int32_t op, int32_t d)
{
    const struct graph_op *o = &p->graph.ops[op];
    const double bytes = (double)problem_file_bytes(o);
    double ns = o->op.kind == OP_KV_STORE ? attend_copies_ns(p, op, d) : 0;
    for (int32_t i = 0; bytes > 0 && i < request_prefill_kinds(&p->request); i++) {
        const struct request_step s = request_prefill_kind(&p->request, i);
        const double used =
            op_has_experts(&o->op) ? op_experts_read(&o->op, s.tokens) / o->op.experts : 1;
        ns += (double)s.times *
              cost_of_copy(p->cost, p->device[p->instance.host], p->device[d], bytes * used);
    }
    return ns;
}

/* Whole units, all of whose neurons are computed. */
static struct price whole_price(const struct problem *p, const int32_t *place)
{
    const struct instance *in = &p->instance;
    const uint32_t uses = instance_uses(in, place);
    struct price sum = {0};
    for (int32_t i = 0; i < p->graph.n_ops; i++) {
        const struct op_price *o = &p->price[i * p->n_devices + place[p->unit_of[i]]];
        const struct price price = request_price(&p->request, o->prefill_ns, o->decode_ns);
        price_add(&sum, &price);
    }
    for (int32_t i = 0; i < in->n_edges; i++) {
        const struct price price = edge_price(in, &in->edges[i], place);
        price_add(&sum, &price);
    }
    for (int32_t d = 0; d < in->n_devices; d++)
        if (uses >> d & 1)
            price_add(&sum, &in->fixed[d]);
    return sum;
}

/* Whether it leaves the host in prefill: lookups stay, and what has a row or two of a step. */
static bool is_offloaded(const struct problem *p, int32_t unit, int32_t d)
{
    const struct graph_op *o = &p->graph.ops[p->first_op[unit]];
    return p->instance.units[unit].options[d].allowed && op_weight_use(&o->op) != WEIGHT_LOOKUP &&
           p->graph.values[o->out[0]].rows == ROWS_TOKENS;
}

/* Layers, and then the experts of as many as there is room for. */
static void fit_layers(const struct problem *p, const struct instance *in, int32_t d,
                       int32_t *place)
{
    uint64_t used[SOLVER_DEVICES] = {0};
    solve_cpu(in, place);
    instance_take_layers(in, not_of_experts, p, used, place);
    for (int32_t layer = 0; layer < in->n_layers && d >= 0; layer++)
        if (!instance_take_layer(in, layer, of_experts, p, d, used, place))
            break;
}

/* The same as our executor can run it. Returns how many units there are. */
static int32_t stream_rest(const struct instance *in, int32_t d, int32_t *place)
{
    int32_t n = 0;
    for (int32_t u = 0; u < in->n_units; u++)
        for (int32_t i = in->n_devices; i < in->units[u].n_options && place[u] == in->host; i++) {
            const struct option *o = &in->units[u].options[i];
            if (o->stream != d || o->filed || option_divided(o) || !instance_allows(in, u, i))
                continue;
            place[u] = i;
            n++;
        }
    return n;
}

/* The device that computes the host's layers in prefill, with what that sets aside; -1: none does.
 */
static int32_t offloads_to(const struct problem *p, struct instance *with)
{
    const struct plan_request *q = &p->request;
    const int32_t d = first_accelerator(&p->instance);
    return d >= 0 && min_i64(q->prompt, q->ubatch) >= STREAM_TOKENS &&
                   instance_with_streams(&p->instance, 1u << d, with)
               ? d
               : -1;
}

bool baseline_fit(const struct problem *p, int32_t *place)
{
    const int32_t d = first_accelerator(&p->instance);
    struct instance all = p->instance, with;
    const bool offloads = offloads_to(p, &with) >= 0;
    all.streams = offloads ? 1u << d : 0; /* first as if nothing had to be set aside */
    fit_layers(p, &all, d, place);
    if (!offloads || !stream_rest(&all, d, place))
        return instance_fits(&p->instance, place, NULL);
    fit_layers(p, &with, d, place);
    stream_rest(&with, d, place);
    return instance_fits(&with, place, NULL);
}

struct price baseline_fit_price(const struct problem *p, const int32_t *place, int32_t *scratch)
{
    const int32_t host = p->instance.host;
    struct instance with;
    double copies = 0;
    for (int32_t u = 0; u < p->instance.n_units; u++) /* decode: layers run where they lie */
        scratch[u] = place[u] < p->n_devices ? place[u] : host;
    const struct price decode = whole_price(p, scratch);
    const int32_t d = offloads_to(p, &with);
    for (int32_t i = 0; i < p->graph.n_ops && d >= 0; i++) {
        const int32_t u = p->unit_of[i];
        if ((place[u] < p->n_devices && place[u] != host) || !is_offloaded(p, u, d))
            continue;
        scratch[u] = d;
        copies += copied_ns(p, i, d);
    }
    const struct price prefill = whole_price(p, scratch);
    return request_price(&p->request, ns_add(prefill.prefill_ns, whole_ns(copies)),
                         decode.decode_ns);
}

/* --------------------------------------------------------------------------- powerinfer ---- */

/* The options of an FFN as PowerInfer sees them: groups on one device, and what fires less than
 * always elsewhere counts as lost. The least share is what pays for its synchronisation. out NULL:
 * only counts them. */
static int32_t impact_options(const struct problem *p, int32_t unit, int32_t d, int32_t base,
                              struct option *out, int32_t *which)
{
    const struct instance *in = &p->instance;
    const struct unit *u = &in->units[unit];
    const struct division *v = &p->division[unit];
    const double scale = 1e9; /* shares of all activity as whole numbers */
    int32_t n = 0;
    for (int32_t i = 0; i < u->n_options; i++) {
        const struct option *o = &u->options[i];
        const int32_t at = o->in[PHASE_DECODE];
        const bool whole = !option_divided(o) && o->stream < 0 && at == o->out[PHASE_DECODE];
        const int32_t groups = whole ? (at == d ? v->groups : 0) : o->share[d];
        if (!o->allowed || o->stream >= 0 || at != o->out[PHASE_DECODE] ||
            (whole ? at != d && at != in->host
                   : at != base || groups + o->share[in->host] != v->groups))
            continue;
        if (groups && groups < v->groups &&
            o->price.decode_ns >= u->options[in->host].price.decode_ns)
            continue; /* fewer than pay */
        if (out) {
            out[n] = *o;
            out[n].price = (struct price){
                .objective_ns = llround((v->active[v->groups] - v->active[groups]) * scale)};
            which[n] = i;
        }
        n++;
    }
    return n;
}

/* Where an FFN is read and written: where the unit before it is. */
static int32_t base_of(const struct instance *in, const int32_t *place, int32_t unit, int32_t d)
{
    return unit && instance_option(in, place, unit - 1)->out[PHASE_DECODE] == d ? d : in->host;
}

/* The neurons: an instance of their own, each FFN alone, with the memory that is left. */
static oato_status place_neurons(const struct problem *p, int32_t d, uint64_t left,
                                 struct ilp_clock *clock, int32_t *place, struct oato_error *err)
{
    const struct instance *in = &p->instance;
    struct arena a;
    struct instance sub = {.n_devices = in->n_devices, .host = in->host, .n_layers = in->n_layers};
    struct ilp_options options = {
        .gap = 1e-3, .no_search = true, .deadline_ns = clock->deadline_ns};
    struct ilp_result r = {0};
    size_t most = 0, n = (size_t)in->n_units;
    arena_init(&a);
    for (size_t u = 0; u < n; u++)
        if (of_neurons(p, (int32_t)u))
            most += (size_t)impact_options(p, (int32_t)u, d, base_of(in, place, (int32_t)u, d),
                                           NULL, NULL);
    struct option *pool = arena_alloc(&a, most + 1, sizeof *pool);
    int32_t *which = arena_alloc(&a, most + 1, sizeof *which);
    int32_t *unit = arena_alloc(&a, n + 1, sizeof *unit), *at = arena_alloc(&a, n + 1, sizeof *at);
    sub.units = arena_alloc(&a, n + 1, sizeof *sub.units);
    oato_status status = OATO_OK;
    if (!pool || !which || !unit || !at || !sub.units) {
        status = oato_fail_memory(err, most * sizeof *pool, "the neurons");
        goto out;
    }
    memcpy(sub.usable, in->usable, sizeof sub.usable);
    memcpy(sub.is_host, in->is_host, sizeof sub.is_host);
    memcpy(sub.capacity, in->capacity, sizeof sub.capacity);
    sub.capacity[d] = left;
    for (int32_t u = 0, used = 0; u < in->n_units; u++) {
        if (!of_neurons(p, u))
            continue;
        struct unit *to = &sub.units[sub.n_units];
        to->layer = in->units[u].layer;
        to->options = pool + used;
        unit[sub.n_units++] = u;
        to->n_options =
            impact_options(p, u, d, base_of(in, place, u, d), to->options, which + used);
        used += to->n_options;
    }
    if (sub.n_units)
        status = solve_ilp(&sub, &options, NULL, at, &r, err);
    for (int32_t i = 0; i < sub.n_units && !status; i++)
        place[unit[i]] = which[sub.units[i].options + at[i] - pool];
    clock->ended = clock->ended || r.timed_out;
out:
    arena_free(&a);
    return status;
}

oato_status baseline_powerinfer(const struct problem *p, struct ilp_clock *clock, int32_t *place,
                                bool *fits, struct oato_error *err)
{
    const struct instance *in = &p->instance;
    const int32_t d = first_accelerator(in);
    uint64_t left = d < 0 ? 0 : in->capacity[d];
    *fits = false;
    solve_cpu(in, place);
    if (d < 0)
        return OATO_OK;
    for (int32_t layer = -1; layer <= in->n_layers; layer++)
        for (int32_t u = 0; u < in->n_units; u++) {
            const struct option *o = &in->units[u].options[d];
            if (in->units[u].layer != layer || of_neurons(p, u) || !o->allowed ||
                o->bytes[d] > left)
                continue;
            left -= o->bytes[d];
            place[u] = d;
        }
    oato_status status = place_neurons(p, d, left, clock, place, err);
    if (status == OATO_NEGATIVE)
        return OATO_OK;
    *fits = !status && instance_fits(in, place, NULL);
    return status;
}

/* ------------------------------------------------------------------------------ flexgen ---- */

bool baseline_flexgen(const struct problem *p, struct price *out)
{
    const struct instance *in = &p->instance;
    const struct plan_request *q = &p->request;
    const int32_t d = first_accelerator(in);
    uint64_t bytes = 0;
    struct price compute = {0};
    if (d < 0)
        return false;
    for (int32_t u = 0; u < in->n_units; u++) {
        const struct option *there = &in->units[u].options[d];
        const struct option *o = there->allowed ? there : &in->units[u].options[in->host];
        price_add(&compute, &o->price);
        bytes += o->bytes[d];
    }
    double missing = bytes > in->capacity[d] ? (double)(bytes - in->capacity[d]) : 0;
    double copy =
        missing > 0 ? cost_of_stream(p->cost, p->device[in->host], p->device[d], missing) : 0;
    const double steps = request_prefill_total(q).steps;
    price_add(&compute, &in->fixed[in->host]);
    price_add(&compute, &in->fixed[d]);
    *out = request_price(q, whole_ns(fmax((double)compute.prefill_ns, copy * steps)),
                         whole_ns(fmax((double)compute.decode_ns, copy)));
    return true;
}
