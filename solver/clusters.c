/*
 * clusters.c - clusters that are not here: so many hosts with so many devices of one kind, as a
 * curve of cost against size. A device has the largest share of each operator that the cuts of
 * ranks_cut.c give, at the price of the profile; sums of all devices are priced by formula
 * (rank_sums.c), an accelerator's also with its copies to the host and back. Nothing is planned:
 * oato-run divides a model between processors only, and between no more than 8 of them.
 */
#include "solver/ranks_internal.h"
#include "solver/report/report_internal.h"

#include <math.h>
#include <string.h>

enum { TWO = 2, SIZES_MAX = 64 }; /* TWO: ranks that the cuts are made for, to see what is cut */

struct pricing {
    const struct cluster_options *o;
    struct problem *p;
    struct dealing cuts;
    struct arena arena; /* of the cuts */
    struct rank_options two;
    int32_t device, host; /* of the problem */
    bool remote;          /* the device is no host: sums pass its link twice */
};

struct cluster_size {
    struct rank_options ranks;
    uint64_t bytes; /* of each device */
    bool fits;
    double work_ns[PHASE_COUNT], sums_ns[SUM_HOST_WAYS][PHASE_COUNT], pipeline_ns[PHASE_COUNT];
};

/* Of the device that has most of the operator. */
static double largest_share(const struct cut_op *c, int32_t devices)
{
    if (!c->cut || devices == 1)
        return 1;
    const int32_t extent = c->cut[TWO], unit = c->cut[TWO + 1], units = extent / unit;
    const int32_t most = (units + devices - 1) / devices;
    return fmin((double)most * unit / extent, 1);
}

/* Of the device that has most of it; or, where that is longer, of all processes that share its
 * host's cores, as ranks.c prices plans. */
static double share_ns(const struct pricing *x, const struct cluster_size *s,
                       const struct cut_op *c, const struct divided_work *w, double ns)
{
    const struct profile *profile = x->p->profile;
    const struct profile_device *d = &profile->devices[x->p->device[x->device]];
    const double cores = fmax(profile->machine.cores, d->threads);
    const double each = (double)s->ranks.ranks / s->ranks.hosts;
    const double alone = work_ns(w, ns, largest_share(c, s->ranks.ranks));
    if (x->remote || d->threads <= 0)
        return alone;
    const double host = c->cut ? largest_share(c, s->ranks.hosts) : each;
    const double owners = c->cut ? fmin(each, host * c->cut[TWO] / c->cut[TWO + 1]) : each;
    const double turns = ceil(owners / fmax(floor(cores / d->threads), 1));
    return fmax(alone, turns * work_ns(w, ns, host / owners));
}

static double there_and_back(const struct pricing *x, double bytes)
{
    const int32_t host = x->p->device[x->host], device = x->p->device[x->device];
    return x->remote ? cost_of_copy(x->p->cost, device, host, bytes) +
                           cost_of_copy(x->p->cost, host, device, bytes)
                     : 0;
}

static double row_bytes(const struct pricing *x)
{
    const struct graph *g = &x->p->graph;
    return g->values[g->ops[0].out[0]].width * sizeof(float);
}

/* ------------------------------------------------------------------------- division -------- */

static double op_ns(const struct pricing *x, int32_t op, int phase)
{
    return op_price_ns(&x->p->price[op * x->p->n_devices + x->device], (enum plan_phase)phase);
}

static void price_work(const struct pricing *x, struct cluster_size *s)
{
    const struct problem *p = x->p;
    const struct plan_request *q = &p->request;
    const struct profile_device *d = &p->profile->devices[p->device[x->device]];
    const struct price step = request_fixed(p, x->device);
    struct divided_work work[PHASE_COUNT] = {0};
    double bytes = (double)p->reserve[x->device];
    const double steps = request_prefill_total(q).steps;
    for (int phase = 0; phase < PHASE_COUNT; phase++) {
        const double records_ns = d->record_overhead_ns * (phase == PHASE_PREFILL ? steps : 1);
        work[phase].record_ns = x->remote ? 0 : records_ns;
        for (int32_t i = 0; i < p->graph.n_ops; i++)
            work_add(&work[phase], op_ns(x, i, phase));
        if (x->remote)
            work[phase].least_ns = records_ns;
    }
    for (int32_t i = 0; i < p->graph.n_ops; i++) {
        const struct op_price *price = &p->price[i * p->n_devices + x->device];
        const double share = largest_share(&x->cuts.op[i], s->ranks.ranks);
        bytes += share * (double)(price->weight_bytes + price->kv_bytes);
        for (int phase = 0; phase < PHASE_COUNT; phase++)
            s->work_ns[phase] += share_ns(x, s, &x->cuts.op[i], &work[phase], op_ns(x, i, phase));
    }
    /* ids of tokens there, candidates back */
    const double copies =
        there_and_back(x, CANDIDATES_BYTES) / 2 + there_and_back(x, sizeof(int32_t)) / 2;
    s->work_ns[PHASE_PREFILL] += (double)step.prefill_ns + steps * copies;
    s->work_ns[PHASE_DECODE] += (double)step.decode_ns + copies;
    const double own = x->remote ? 1 : (double)s->ranks.ranks / s->ranks.hosts;
    s->bytes = (uint64_t)bytes;
    s->fits = bytes <= (double)d->free_bytes * 0.9 / own;
}

static double sums_ns(const struct pricing *x, const struct cluster_size *s, enum sum_way way,
                      const struct request_step *step)
{
    const struct rank_options *o = &s->ranks;
    const double bytes[2] = {row_bytes(x) * step->tokens, row_bytes(x) * step->rows};
    const double picks = CANDIDATES_BYTES * (double)step->rows, own = (double)o->ranks / o->hosts;
    double ns = 0;
    if (o->ranks == 1)
        return 0;
    for (int last = 0; last < 2; last++)
        ns += x->cuts.n_sums[last] *
              (rank_sum_formula_ns(o, way, bytes[last]) + there_and_back(x, bytes[last]));
    return ns + rank_step_ns(o, picks * (o->ranks - own), picks * (own - 1));
}

static void price_sums(const struct pricing *x, struct cluster_size *s)
{
    const struct plan_request *q = &x->p->request;
    const struct request_step decode = request_decode_step(q);
    for (int way = 0; way < SUM_HOST_WAYS; way++) {
        for (int32_t i = 0; i < request_prefill_steps(q); i++) {
            const struct request_step step = request_prefill_step(q, i);
            s->sums_ns[way][PHASE_PREFILL] +=
                (double)step.times * sums_ns(x, s, (enum sum_way)way, &step);
        }
        s->sums_ns[way][PHASE_DECODE] = sums_ns(x, s, (enum sum_way)way, &decode);
    }
}

/* ------------------------------------------------------------------------- a pipeline ------ */

/* Every device has some of the layers: alone is one device that has all of them. */
static void price_pipeline(const struct pricing *x, struct cluster_size *s,
                           const struct cluster_size *alone)
{
    const struct plan_request *q = &x->p->request;
    const struct rank_options *o = &s->ranks;
    const int32_t layers = x->p->graph.n_layers > 0 ? x->p->graph.n_layers : 1;
    const int32_t stages = o->ranks < layers ? o->ranks : layers, each = o->ranks / o->hosts;
    const int32_t away = (stages + each - 1) / each - 1, here = stages - 1 - away;
    const int32_t most = (layers + stages - 1) / stages; /* layers of one device */
    const struct prefill_total prompt = request_prefill_total(q);
    const double chunks = fmax(prompt.steps, 1);
    for (int phase = 0; phase < PHASE_COUNT; phase++) {
        const bool prefill = phase == PHASE_PREFILL;
        const double bytes = row_bytes(x) * (prefill ? prompt.tokens / chunks : q->batch);
        const double pass = alone->work_ns[phase] / (prefill ? chunks : 1);
        const double slowest = pass * most / layers;
        const double ns =
            pass + away * rank_message_ns(o, true, bytes) +
            here * rank_message_ns(o, false, bytes) + (stages - 1) * there_and_back(x, bytes) +
            (away ? rank_message_ns(o, true, (double)CANDIDATES_BYTES * q->batch) : 0);
        s->pipeline_ns[phase] = ns + (prefill ? (chunks - 1) * slowest : 0);
    }
}

/* ------------------------------------------------------------------------------ sizes ------ */

static struct cluster_size size_of(const struct pricing *x, int32_t hosts, int32_t each,
                                   const struct cluster_size *alone)
{
    struct cluster_size s = {.ranks = x->o->network};
    s.ranks.hosts = hosts;
    s.ranks.ranks = hosts * each;
    price_work(x, &s);
    price_sums(x, &s);
    price_pipeline(x, &s, alone ? alone : &s);
    return s;
}

/* One device, the devices of one host, then twice as many hosts each time. */
static int list_sizes(const struct pricing *x, struct cluster_size sizes[SIZES_MAX])
{
    int n = 0;
    sizes[n++] = size_of(x, 1, 1, NULL);
    if (x->o->per_host > 1)
        sizes[n++] = size_of(x, 1, x->o->per_host, sizes);
    for (int32_t hosts = 2; hosts < x->o->hosts; hosts *= 2)
        sizes[n++] = size_of(x, hosts, x->o->per_host, sizes);
    if (x->o->hosts > 1)
        sizes[n++] = size_of(x, x->o->hosts, x->o->per_host, sizes);
    return n;
}

/* ----------------------------------------------------------------------------- report ------ */

static double total(const struct cluster_size *s, enum sum_way way, enum plan_phase phase)
{
    return s->work_ns[phase] + s->sums_ns[way][phase];
}

static enum sum_way best_way(const struct cluster_size *s)
{
    int best = SUM_TREE;
    for (int way = 0; way < SUM_HOST_WAYS; way++)
        if (s->sums_ns[way][PHASE_DECODE] < s->sums_ns[best][PHASE_DECODE])
            best = way;
    return (enum sum_way)best;
}

static double share_of_sums(const struct cluster_size *s)
{
    const enum sum_way way = best_way(s);
    return s->sums_ns[way][PHASE_DECODE] / total(s, way, PHASE_DECODE);
}

static double device_ns(const struct pricing *x, const struct cluster_size *s)
{
    return s->ranks.ranks * total(s, best_way(s), PHASE_DECODE) / x->p->request.batch;
}

static void json_sizes(const struct pricing *x, const struct cluster_size *sizes, int n,
                       struct text *out)
{
    json_open(out, NULL, '{');
    json_add(out, JSON("device", problem_device(x->p, x->device)), JSON("per_host", x->o->per_host),
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
            json_add_object(
                out, sum_way_name[way],
                JSON("prefill_ns", (uint64_t)total(s, (enum sum_way)way, PHASE_PREFILL)),
                JSON("decode_ns", (uint64_t)total(s, (enum sum_way)way, PHASE_DECODE)));
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
                "simulated, by formula: %d x %s on each host, %.1f MB/s and %.1f us between hosts, "
                "sums in %s; %d sequence%s of %d + %d tokens\n",
                x->o->per_host, problem_device(x->p, x->device), o->bytes_per_s / 1e6,
                o->latency_ns / 1e3, dtype_name(o->wire), q->batch, q->batch == 1 ? "" : "s",
                q->prompt, q->generate);
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
            text_printf(out, " %9.1f", as_ms(total(s, (enum sum_way)way, PHASE_PREFILL)));
        for (int way = 0; way < SUM_HOST_WAYS; way++)
            text_printf(
                out, " %9.2f",
                tokens_per_s(q->batch, (uint64_t)total(s, (enum sum_way)way, PHASE_DECODE)));
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

static oato_status set_up(struct pricing *x, const struct model *m, const struct profile *profile,
                          const struct planner_options *given, struct oato_error *err)
{
    struct planner_options o = *given;
    struct rank_options *two = &x->two;
    char devices[DEVICES_SIZE];
    int32_t device, host;
    if (find_device(profile, given->devices, &device, &host, err))
        return err->status;
    x->remote = device != host;
    snprintf(devices, sizeof devices, "%s%s%s", profile->devices[host].id, x->remote ? "," : "",
             x->remote ? profile->devices[device].id : "");
    o.devices = devices;
    o.whole_only = true;
    o.by_ranks = TWO;
    o.sparse = (struct sparse_choice){.given = true};
    if (problem_create(m, profile, &o, &x->p, err))
        return err->status;
    x->host = x->p->instance.host;
    x->device = x->remote ? 1 - x->host : x->host;
    for (int32_t i = 0; i < x->p->graph.n_ops; i++)
        if (!x->p->price[i * x->p->n_devices + x->device].supported)
            return oato_fail(err, OATO_EFILE, "%s cannot run %s; choose another of --devices",
                             problem_device(x->p, x->device), x->p->graph.ops[i].name);
    *two = (struct rank_options){.ranks = TWO, .hosts = TWO, .share = {1, 1}};
    x->cuts = (struct dealing){.g = &x->p->graph, .o = two, .arena = &x->arena, .err = err};
    if (!dealing_room(&x->cuts, &x->arena))
        return oato_fail_memory(err, (size_t)x->p->graph.n_ops, "a cluster");
    err->status = OATO_OK;
    return dealing_cut(&x->cuts);
}

oato_status report_cluster(const struct model *m, const struct profile *profile,
                           const struct planner_options *given, const struct cluster_options *o,
                           bool json, struct text *out, struct oato_error *err)
{
    struct cluster_options own = *o;
    struct cluster_size sizes[SIZES_MAX];
    struct pricing x = {.o = &own};
    own.network.profiles[0] = profile;
    own.network.n_profiles = 1;
    rank_network(&own.network);
    arena_init(&x.arena);
    const oato_status status = set_up(&x, m, profile, given, err);
    if (!status) {
        const int n = list_sizes(&x, sizes);
        (json ? json_sizes : text_sizes)(&x, sizes, n, out);
    }
    problem_free(x.p);
    arena_free(&x.arena);
    return status;
}
