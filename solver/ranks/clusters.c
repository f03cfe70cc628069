/*
 * clusters.c - clusters that are not here: so many hosts with so many devices of one kind, as a
 * curve of cost against size. Where all devices divide each layer, the simulated clock runs the
 * programs of the one that has the largest share of each operator that the cuts of cut.c give; the
 * others are never later, so what it exchanges waits for nobody. In a pipeline, where each device
 * has layers of its own, it runs the programs of all. Sums of as many devices as nobody has
 * measured are estimated (sums.c).
 */
#include "solver/ranks/ranks_internal.h"
#include "solver/report/report_internal.h"
#include "solver/simulation_internal.h"

#include <math.h>
#include <string.h>

enum { TWO = 2, SIZES_MAX = 64 }; /* TWO: ranks that the cuts are made for, to see what is cut */

struct pricing {
    const struct cluster_options *o;
    const struct model *m;
    const struct profile *profile;
    struct plan plan; /* all of it on the host */
    struct problem *p;
    struct dealing cuts;
    struct arena arena; /* of the cuts */
    struct rank_options two;
    const struct profile_device *host, *device; /* device: the kind; the host itself, or remote */
    bool remote;
    struct oato_error *err;
};

struct cluster_size {
    struct rank_options ranks;
    uint64_t bytes; /* of each device */
    bool fits;
    double ns[SUM_HOST_WAYS][PHASE_COUNT], pipeline_ns[PHASE_COUNT];
    double moved_ns[SUM_HOST_WAYS]; /* of a decode step: exchanges, and copies for them */
};

/* ------------------------------------------------------------------------- plans ----------- */

/* An empty placement on `ranks` ranks, each with a host and the device. */
static oato_status placement_begin(const struct pricing *x, int32_t ranks, struct plan *to)
{
    const size_t each = x->remote ? 2 : 1, n = (size_t)x->p->graph.n_ops;
    *to = x->plan;
    arena_init(&to->arena);
    to->n_devices = to->n_parts = to->n_kv = to->n_costs = to->n_sums = 0;
    to->devices = arena_alloc(&to->arena, each * (size_t)ranks, sizeof *to->devices);
    to->parts = arena_alloc(&to->arena, 2 * n + 1, sizeof *to->parts);
    to->fusions = arena_alloc(&to->arena, (size_t)x->plan.n_fusions + 1, sizeof *to->fusions);
    if (!to->devices || !to->parts || !to->fusions)
        return oato_fail_memory(x->err, n * sizeof *to->parts, "a cluster");
    for (int32_t i = 0; i < to->n_fusions; i++)
        to->fusions[i] = x->plan.fusions[i];
    for (int32_t r = 0; r < ranks; r++)
        for (size_t d = 0; d < each; d++) {
            struct plan_device *own = &to->devices[to->n_devices++];
            plan_device_fill(d ? x->device : x->host, own);
            own->rank = own->host = r;
        }
    return OATO_OK;
}

static void part_put(const struct pricing *x, struct plan *to, const struct graph_op *o,
                     enum op_axis axis, int64_t begin, int64_t end, int32_t rank)
{
    const bool lookup = op_weight_use(&o->op) == WEIGHT_LOOKUP;
    const int32_t device = x->remote ? 2 * rank + !lookup : rank;
    if (begin < end)
        to->parts[to->n_parts++] = (struct plan_part){.op = o->name,
                                                      .axis = axis,
                                                      .begin = begin,
                                                      .end = end,
                                                      .phases = (1u << PHASE_COUNT) - 1,
                                                      .device = device,
                                                      .home = device};
}

/* Of the device that has most of the operator. */
static int64_t largest_part(const struct cut_op *c, int32_t devices)
{
    const int32_t extent = c->cut[TWO], unit = c->cut[TWO + 1], units = extent / unit;
    const int64_t most = (int64_t)((units + devices - 1) / devices) * unit;
    return (most < extent ? most : extent) * c->each;
}

/* Rank 0 is that device, rank 1 all others. A single device has everything. */
static oato_status plan_divided(const struct pricing *x, const struct rank_options *o,
                                struct plan *to)
{
    const struct graph *g = &x->p->graph;
    if (placement_begin(x, o->ranks > 1 ? TWO : 1, to))
        return x->err->status;
    for (int32_t i = 0; i < g->n_ops; i++) {
        const struct cut_op *c = &x->cuts.op[i];
        if (o->ranks == 1)
            part_put(x, to, &g->ops[i], AXIS_ROWS, 0, g->ops[i].op.n, 0);
        if (o->ranks == 1 || !c->cut)
            continue;
        const int64_t most = largest_part(c, o->ranks);
        part_put(x, to, &g->ops[i], c->axis, 0, most, 0);
        part_put(x, to, &g->ops[i], c->axis, most, begin_of(c, TWO), 1);
    }
    return OATO_OK;
}

/* As many as plans can have devices for, with their hosts. */
static int32_t stages_most(const struct pricing *x)
{
    const int32_t layers = x->m->graph.n_layers, most = PLAN_DEVICES_MAX / (x->remote ? 2 : 1);
    return layers > most ? most : layers > 1 ? layers : 1;
}

/* Equally many layers for each, as far as they can be cut; returns the number of stages. */
static int32_t cut_evenly(const struct graph *g, int32_t stages, int32_t cut[SIM_RANKS + 1])
{
    int32_t n = 0;
    cut[0] = INT32_MIN;
    for (int32_t r = 1; r < stages; r++) {
        int32_t at = (int32_t)((int64_t)r * g->n_layers / stages);
        while (at < g->n_layers && !layers_can_be_cut(g, at))
            at++;
        if (at > cut[n] && at < g->n_layers)
            cut[++n] = at;
    }
    cut[n + 1] = INT32_MAX;
    return n + 1;
}

static oato_status plan_pipeline(const struct pricing *x, int32_t devices, struct plan *to)
{
    const struct graph *g = &x->m->graph;
    struct graph fused;
    int32_t cut[SIM_RANKS + 1];
    const int32_t most = stages_most(x),
                  stages = cut_evenly(g, devices < most ? devices : most, cut);
    if (placement_begin(x, stages, to))
        return x->err->status;
    fusions_cut(g, cut, stages, to);
    if (plan_apply(to, x->m, &fused, x->err))
        return x->err->status;
    oato_status status = OATO_OK;
    for (int32_t i = 0, r = 0; i < fused.n_ops && !status; i++) {
        struct graph_op o = fused.ops[i];
        o.name = arena_string(&to->arena, o.name);
        if (!o.name)
            status = oato_fail_memory(x->err, 64, "a cluster");
        while (o.layer >= cut[r + 1])
            r++;
        part_put(x, to, &o, AXIS_ROWS, 0, o.op.n, r);
    }
    graph_free(&fused);
    return status;
}

/* ------------------------------------------------------------------------------ sizes ------ */

static oato_status price_way(const struct pricing *x, struct cluster_size *s,
                             const struct plan *placed, enum sum_way way)
{
    struct simulation *sim;
    struct sum_choice choice = {UINT64_MAX, way, way ? DT_F32 : s->ranks.wire};
    struct plan plan = *placed;
    plan.n_sums = 1;
    plan.sums = &choice;
    if (simulation_of_rank(&plan, x->m, &s->ranks, true, &sim, x->err))
        return x->err->status;
    s->ns[way][PHASE_PREFILL] = (double)sim->prefill_ns;
    s->ns[way][PHASE_DECODE] = (double)sim->decode_ns;
    const struct simulated_step *decode = &sim->steps[sim->middle < 0 ? 0 : sim->middle];
    for (int32_t i = decode->first; i < decode->first + decode->n; i++) {
        const struct event *e = &sim->events[i];
        const bool moves =
            e->kind == EVENT_EXCHANGE || e->kind == EVENT_UPLOAD || e->kind == EVENT_DOWNLOAD;
        s->moved_ns[way] += moves && s->ranks.ranks > 1 ? (double)(e->end_ns - e->begin_ns) : 0;
    }
    simulation_free(sim);
    return OATO_OK;
}

static oato_status price_divided(const struct pricing *x, struct cluster_size *s)
{
    const double own = x->remote ? 1 : (double)s->ranks.ranks / s->ranks.hosts;
    struct device_memory need[2 * TWO] = {{.weights = 0}};
    struct plan plan;
    oato_status status = plan_divided(x, &s->ranks, &plan);
    if (!status)
        status = memory_of_rank(&plan, x->m, x->profile, 0, need, x->err);
    for (int way = 0; way < SUM_HOST_WAYS && !status; way++)
        status = price_way(x, s, &plan, (enum sum_way)way);
    s->bytes = device_memory_sum(&need[x->remote]);
    s->fits = (double)s->bytes <= (double)x->device->free_bytes * 0.9 / own;
    arena_free(&plan.arena);
    return status;
}

static oato_status price_pipeline(const struct pricing *x, struct cluster_size *s)
{
    const int32_t each = s->ranks.ranks / s->ranks.hosts;
    struct rank_options o = s->ranks;
    struct simulation *sim = NULL;
    struct plan plan;
    oato_status status = plan_pipeline(x, o.ranks, &plan);
    o.ranks = status ? 1 : plan_ranks(&plan);
    o.hosts = (o.ranks + each - 1) / each;
    for (int32_t d = 0; d < plan.n_devices; d++)
        plan.devices[d].host = rank_host(&o, plan.devices[d].rank);
    if (!status)
        status = simulation_of_rank(&plan, x->m, &o, false, &sim, x->err);
    s->pipeline_ns[PHASE_PREFILL] = sim ? (double)sim->prefill_ns : 0;
    s->pipeline_ns[PHASE_DECODE] = sim ? (double)sim->decode_ns : 0;
    simulation_free(sim);
    arena_free(&plan.arena);
    return status;
}

static oato_status size_price(const struct pricing *x, int32_t hosts, int32_t each,
                              struct cluster_size *s)
{
    *s = (struct cluster_size){.ranks = x->o->network};
    s->ranks.hosts = hosts;
    s->ranks.ranks = hosts * each;
    return price_divided(x, s) ? x->err->status : price_pipeline(x, s);
}

/* One device, the devices of one host, then twice as many hosts each time. */
static oato_status list_sizes(const struct pricing *x, struct cluster_size sizes[SIZES_MAX], int *n)
{
    const int32_t each = x->o->per_host, most = x->o->hosts;
    oato_status status = size_price(x, 1, 1, &sizes[(*n)++]);
    if (each > 1 && !status)
        status = size_price(x, 1, each, &sizes[(*n)++]);
    for (int32_t hosts = 2; hosts / 2 < most && !status; hosts *= 2)
        status = size_price(x, hosts < most ? hosts : most, each, &sizes[(*n)++]);
    return status;
}

/* ----------------------------------------------------------------------------- report ------ */

static enum sum_way best_way(const struct cluster_size *s)
{
    int best = SUM_TREE;
    for (int way = 0; way < SUM_HOST_WAYS; way++)
        if (s->ns[way][PHASE_DECODE] < s->ns[best][PHASE_DECODE])
            best = way;
    return (enum sum_way)best;
}

static double share_of_sums(const struct cluster_size *s)
{
    const enum sum_way way = best_way(s);
    return s->ns[way][PHASE_DECODE] > 0 ? s->moved_ns[way] / s->ns[way][PHASE_DECODE] : 0;
}

static double device_ns(const struct pricing *x, const struct cluster_size *s)
{
    return s->ranks.ranks * s->ns[best_way(s)][PHASE_DECODE] / x->p->request.batch;
}

static void json_sizes(const struct pricing *x, const struct cluster_size *sizes, int n,
                       struct text *out)
{
    json_open(out, NULL, '{');
    json_add(out, JSON("device", x->device->id), JSON("per_host", x->o->per_host),
             json_bool("simulated", true), JSON("bytes_per_s", sizes->ranks.bytes_per_s),
             JSON("latency_ns", sizes->ranks.latency_ns),
             JSON("wire", dtype_name(sizes->ranks.wire)));
    json_open(out, "sizes", '[');
    for (int i = 0; i < n; i++) {
        const struct cluster_size *s = &sizes[i];
        json_open(out, NULL, '{');
        json_add(out, JSON("hosts", s->ranks.hosts), JSON("devices", s->ranks.ranks),
                 JSON("bytes_each", s->bytes), json_bool("fits", s->fits),
                 JSON("communication", share_of_sums(s)),
                 JSON("device_ns_per_token", (uint64_t)device_ns(x, s)));
        for (int way = 0; way < SUM_HOST_WAYS; way++)
            json_add_object(out, sum_way_name[way],
                            JSON("prefill_ns", (uint64_t)s->ns[way][PHASE_PREFILL]),
                            JSON("decode_ns", (uint64_t)s->ns[way][PHASE_DECODE]));
        json_add_object(out, "pipeline",
                        JSON("prefill_ns", (uint64_t)s->pipeline_ns[PHASE_PREFILL]),
                        JSON("decode_ns", (uint64_t)s->pipeline_ns[PHASE_DECODE]));
        json_close(out, '}');
    }
    json_close(out, ']');
    json_close(out, '}');
    text_printf(out, "\n");
}

static void text_sizes(const struct pricing *x, const struct cluster_size *sizes, int n,
                       struct text *out)
{
    const struct plan_request *q = &x->p->request;
    const struct rank_options *o = &sizes->ranks;
    bool fit = true;
    text_printf(out,
                "simulated: %d x %s on each host, %.1f MB/s and %.1f us between hosts, "
                "sums in %s; %d sequence%s of %d + %d tokens\n",
                x->o->per_host, x->device->id, o->bytes_per_s / 1e6, o->latency_ns / 1e3,
                dtype_name(o->wire), q->batch, q->batch == 1 ? "" : "s", q->prompt, q->generate);
    text_printf(out, "%24s %-29s %-39s\n", "", "first token, ms", "tokens/s");
    text_printf(out, "%5s %7s %10s %9s %9s %9s %9s %9s %9s %9s %6s %9s\n", "hosts", "devices",
                "MiB each", "tree", "allreduce", "reduce", "tree", "allreduce", "reduce",
                "pipeline", "sums", "device-ms");
    for (int i = 0; i < n; i++) {
        const struct cluster_size *s = &sizes[i];
        fit = fit && s->fits;
        text_printf(out, "%5d %7d %9.1f%c", s->ranks.hosts, s->ranks.ranks,
                    as_mib((double)s->bytes), s->fits ? ' ' : '*');
        for (int way = 0; way < SUM_HOST_WAYS; way++)
            text_printf(out, " %9.1f", as_ms(s->ns[way][PHASE_PREFILL]));
        for (int way = 0; way < SUM_HOST_WAYS; way++)
            text_printf(out, " %9.2f", tokens_per_s(q->batch, (uint64_t)s->ns[way][PHASE_DECODE]));
        text_printf(out, " %9.2f %5.1f%% %9.2f\n",
                    tokens_per_s(q->batch, (uint64_t)s->pipeline_ns[PHASE_DECODE]),
                    100 * share_of_sums(s), as_ms(device_ns(x, s)));
    }
    text_printf(out, "sums: their share of a decode step; device-ms: time of all devices for a "
                     "token; both with the fastest sums\n");
    if (!fit)
        text_printf(out, "* more than 90 %% of the device's free memory\n");
}

/* ----------------------------------------------------------------------------- set-up ------ */

/* The named device, else the first accelerator, else the host. */
static oato_status find_device(const struct profile *profile, const char *id, int32_t *device,
                               int32_t *host, struct oato_error *err)
{
    *device = *host = -1;
    for (int32_t d = 0; d < profile->n_devices; d++) {
        const struct profile_device *own = &profile->devices[d];
        if (own->is_host && *host < 0)
            *host = d;
        if (id ? !strcmp(id, own->id) : !own->is_host && *device < 0)
            *device = d;
    }
    if (*host < 0)
        return oato_fail(err, OATO_EFILE, "the profile has no host");
    if (id && *device < 0)
        return oato_fail(err, OATO_EUSAGE,
                         "--devices: the profile has no '%.40s'; name one of its devices", id);
    *device = *device < 0 ? *host : *device;
    return OATO_OK;
}

static oato_status set_up(struct pricing *x, const struct planner_options *given)
{
    const struct profile *profile = x->profile;
    struct planner_options o = *given;
    char devices[DEVICES_SIZE];
    int32_t device, host;
    if (find_device(profile, given->devices, &device, &host, x->err))
        return x->err->status;
    x->remote = device != host;
    x->host = &profile->devices[host];
    x->device = &profile->devices[device];
    snprintf(devices, sizeof devices, "%s%s%s", x->host->id, x->remote ? "," : "",
             x->remote ? x->device->id : "");
    o.devices = devices;
    o.whole_only = true;
    o.by_ranks = TWO;
    o.any_ubatch = o.any_kv = false;
    o.sparse = (struct sparse_choice){.given = true};
    o.expert_cache = 0;
    o.solver = "cpu";
    o.n_budgets = 1;
    o.budgets[0].bytes = PLENTY;
    snprintf(o.budgets[0].id, sizeof o.budgets[0].id, "%s", x->host->id);
    if (planner_make(x->m, profile, &o, &x->plan, &x->p, x->err))
        return x->err->status;
    for (int32_t i = 0; i < x->p->graph.n_ops; i++)
        if (!cost_supports(x->p->cost, device, &x->p->graph.ops[i].op))
            return oato_fail(x->err, OATO_EFILE, "%s cannot run %s; choose another of --devices",
                             x->device->id, x->p->graph.ops[i].name);
    x->two = (struct rank_options){.ranks = TWO, .hosts = TWO, .share = {1, 1}};
    x->cuts = (struct dealing){.g = &x->p->graph, .o = &x->two, .arena = &x->arena, .err = x->err};
    if (!dealing_room(&x->cuts, &x->arena))
        return oato_fail_memory(x->err, (size_t)x->p->graph.n_ops, "a cluster");
    x->err->status = OATO_OK;
    return dealing_cut(&x->cuts);
}

oato_status report_cluster(const struct model *m, const struct profile *profile,
                           const struct planner_options *given, const struct cluster_options *o,
                           bool json, struct text *out, struct oato_error *err)
{
    struct cluster_options own = *o;
    struct cluster_size sizes[SIZES_MAX];
    struct pricing x = {.o = &own, .m = m, .profile = profile, .err = err};
    int n = 0;
    own.network.profiles[0] = profile;
    own.network.n_profiles = 1;
    rank_network(&own.network);
    plan_init(&x.plan);
    arena_init(&x.arena);
    oato_status status = set_up(&x, given);
    if (!status)
        status = list_sizes(&x, sizes, &n);
    if (!status)
        (json ? json_sizes : text_sizes)(&x, sizes, n, out);
    plan_free(&x.plan);
    problem_free(x.p);
    arena_free(&x.arena);
    return status;
}
