/*
 * sums.c - what a sum of all ranks costs, and the way to make it: by what oato-profile --links
 * measured for as many ranks on as many hosts; else by a formula from the latency and rate of
 * messages between hosts, which are given, measured, or those of Ethernet.
 */
#include "solver/planning_internal.h"

enum { POINTS = 64 };

/* The MPI's own sums have an order of their own, so they must be clearly faster than the tree. */
#define CLEARLY 0.9
/* Until somebody measures: of the accelerators' exchange, and the rate of their links to each
 * other.
 */
#define DIRECT_NS          20e3
#define DIRECT_BYTES_PER_S 10e9
/* Ranks of one host share memory: time to hand over a sum and back, and rate of doing so. */
#define SHARED_NS          6e3
#define SHARED_BYTES_PER_S 2e9

struct points {
    double bytes[POINTS], ns[POINTS]; /* rising bytes */
    int n;
};

static void point_add(struct points *x, const struct profile_sum *s)
{
    int at = x->n;
    if (x->n == POINTS)
        return;
    for (; at && x->bytes[at - 1] > (double)s->bytes; at--) {
        x->bytes[at] = x->bytes[at - 1];
        x->ns[at] = x->ns[at - 1];
    }
    x->bytes[at] = (double)s->bytes;
    x->ns[at] = s->median_ns;
    x->n++;
}

/* Of the first profile that has some of these ranks and hosts. */
static struct points points_of(const struct rank_options *o, const struct profile_sum *like)
{
    struct points x = {.n = 0};
    for (int p = 0; p < o->n_profiles && !x.n; p++)
        for (int32_t i = 0; i < o->profiles[p]->n_sums; i++) {
            const struct profile_sum *s = &o->profiles[p]->sums[i];
            if (s->what == like->what && s->way == like->way && s->wire == like->wire &&
                s->ranks == like->ranks && s->hosts == like->hosts)
                point_add(&x, s);
        }
    return x;
}

static struct points sums_of(const struct rank_options *o, enum sum_way way)
{
    return points_of(o, &(struct profile_sum){.ranks = o->ranks,
                                              .hosts = o->hosts,
                                              .what = EXCHANGE_SUM,
                                              .way = way,
                                              .wire = o->wire});
}

static struct points steps_of(const struct rank_options *o)
{
    return points_of(
        o, &(struct profile_sum){
               .ranks = o->ranks, .hosts = o->hosts, .what = EXCHANGE_STEP, .wire = DT_F32});
}

/* While as many ranks were there; else while others were. */
static struct points messages_of(const struct rank_options *o)
{
    struct profile_sum like = {
        .ranks = o->ranks, .hosts = o->hosts, .what = EXCHANGE_MESSAGE, .wire = DT_F32};
    struct points x = points_of(o, &like);
    for (int p = 0; p < o->n_profiles && !x.n; p++)
        for (int32_t i = 0; i < o->profiles[p]->n_sums && !x.n; i++)
            if (o->profiles[p]->sums[i].what == EXCHANGE_MESSAGE) {
                like = o->profiles[p]->sums[i];
                x = points_of(o, &like);
            }
    return x;
}

/* On the line through neighbouring points; below the first one its time. */
static double line_at(const struct points *x, double bytes)
{
    int i = 1;
    while (i + 1 < x->n && bytes > x->bytes[i])
        i++;
    if (bytes <= x->bytes[0] || x->bytes[i] <= x->bytes[i - 1])
        return x->ns[0];
    const double slope = (x->ns[i] - x->ns[i - 1]) / (x->bytes[i] - x->bytes[i - 1]);
    return x->ns[i - 1] + fmax(slope, 0) * (bytes - x->bytes[i - 1]);
}

void rank_network(struct rank_options *o)
{
    const struct points x = messages_of(o);
    if (o->network_given || x.n < 2 || x.ns[x.n - 1] <= x.ns[0])
        return;
    o->bytes_per_s = (x.bytes[x.n - 1] - x.bytes[0]) / (x.ns[x.n - 1] - x.ns[0]) * 1e9;
    o->latency_ns = fmax(x.ns[0] - x.bytes[0] / o->bytes_per_s * 1e9, 0);
}

double rank_message_ns(const struct rank_options *o, bool between_hosts, double bytes)
{
    return between_hosts ? o->latency_ns + bytes / o->bytes_per_s * 1e9
                         : SHARED_NS + bytes / SHARED_BYTES_PER_S * 1e9;
}

static double wire_bytes(const struct rank_options *o, double bytes)
{
    const struct dtype_info *d = dtype_info(o->wire);
    return bytes / sizeof(float) / d->block_elems * d->block_bytes;
}

/* Two hosts exchange; of more the first receives all, one after the other, and then answers all. */
static double formula_ns(const struct rank_options *o, double bytes)
{
    const double wire = wire_bytes(o, bytes);
    double ns = 0;
    if (o->hosts == 2)
        ns += rank_message_ns(o, true, wire);
    else if (o->hosts > 2)
        ns += 2 * rank_message_ns(o, true, (o->hosts - 1) * wire);
    if (o->ranks > o->hosts)
        ns += rank_message_ns(o, false, bytes);
    return ns;
}

static int rounds_of(int32_t n)
{
    int rounds = 0;
    while (rounds < 31 && INT32_C(1) << rounds < n)
        rounds++;
    return rounds;
}

/* MPI_Allreduce by slot doubles the distance in each round, so that all ranks of a host send over
 * its link; or, where that is faster, pieces go round a ring, of which each host sends one at a
 * time. */
static double allreduce_ns(const struct rank_options *o, double bytes)
{
    const double wire = wire_bytes(o, bytes), per_host = (double)o->ranks / o->hosts;
    const int away = rounds_of(o->hosts), here = rounds_of(o->ranks) - away;
    const double doubling =
        here * rank_message_ns(o, false, bytes) + away * rank_message_ns(o, true, per_host * wire);
    const double local = rank_message_ns(o, false, bytes / o->ranks);
    const double hop =
        o->hosts > 1 ? fmax(rank_message_ns(o, true, wire / o->ranks), local) : local;
    return fmin(doubling, 2.0 * (o->ranks - 1) * hop);
}

static double way_formula_ns(const struct rank_options *o, enum sum_way way, double bytes)
{
    const int away = rounds_of(o->hosts), here = rounds_of(o->ranks / o->hosts);
    switch (way) {
    case SUM_ALLREDUCE: return allreduce_ns(o, bytes);
    case SUM_REDUCE: /* both are binomial trees */
        return 2 * (away * rank_message_ns(o, true, wire_bytes(o, bytes)) +
                    here * rank_message_ns(o, false, bytes));
    case SUM_ACCELERATORS: /* each has the summands of all others sent to it */
        return DIRECT_NS + (o->hosts > 1 ? rank_message_ns(o, true, (o->ranks - 1) * bytes)
                                         : (o->ranks - 1) * bytes / DIRECT_BYTES_PER_S * 1e9);
    case SUM_TREE:
    case SUM_WAYS: break;
    }
    return formula_ns(o, bytes);
}

double rank_step_ns(const struct rank_options *o, double remote_bytes, double local_bytes)
{
    double ns = 0;
    if (o->hosts > 1)
        ns += o->latency_ns;
    if (remote_bytes > 0)
        ns += rank_message_ns(o, true, remote_bytes);
    if (local_bytes > 0)
        ns += rank_message_ns(o, false, local_bytes);
    return ns;
}

static bool is_measured(const struct rank_options *o, const struct points *x)
{
    return !o->network_given && x->n > 1;
}

double rank_logits_ns(const struct rank_options *o, double remote_bytes, double local_bytes)
{
    const struct points x = steps_of(o);
    const double sent = remote_bytes + local_bytes;
    return is_measured(o, &x) && sent > 0
               ? line_at(&x, sent * o->ranks / (o->ranks - 1)) /* rank 0 sends nothing */
               : rank_step_ns(o, remote_bytes, local_bytes);
}

double rank_sum_ns(const struct rank_options *o, const struct plan *plan, double bytes)
{
    enum sum_way way = SUM_TREE;
    for (int32_t i = 0; i < plan->n_sums; i++) {
        way = plan->sums[i].way;
        if (bytes <= (double)plan->sums[i].bytes)
            break;
    }
    const struct points x = sums_of(o, way);
    if (is_measured(o, &x))
        return line_at(&x, bytes);
    return way_formula_ns(o, way, bytes);
}

oato_status rank_sums_choose(const struct rank_options *o, struct plan *plan,
                             struct oato_error *err)
{
    struct points way[SUM_WAYS];
    for (int w = 0; w < SUM_WAYS; w++)
        way[w] = sums_of(o, (enum sum_way)w);
    const struct points *tree = &way[SUM_TREE];
    plan->sums = arena_alloc(&plan->arena, SUM_CHOICES, sizeof *plan->sums);
    if (!plan->sums)
        return oato_fail_memory(err, SUM_CHOICES * sizeof *plan->sums, "the plan");
    plan->n_sums = o->joined;
    plan->sums[0] = (struct sum_choice){UINT64_MAX, SUM_ACCELERATORS, DT_F32};
    for (int i = 0;
         i < tree->n && !o->joined && is_measured(o, tree) && !plan->request.deterministic; i++) {
        struct sum_choice c = {(uint64_t)tree->bytes[i], SUM_TREE, o->wire};
        double best = tree->ns[i] * CLEARLY;
        for (int w = SUM_TREE + 1; w < SUM_HOST_WAYS; w++)
            if (way[w].n > 1 && line_at(&way[w], tree->bytes[i]) < best) {
                best = line_at(&way[w], tree->bytes[i]);
                c.way = (enum sum_way)w;
            }
        if (plan->n_sums && plan->sums[plan->n_sums - 1].way == c.way)
            plan->sums[plan->n_sums - 1].bytes = c.bytes;
        else if (plan->n_sums < SUM_CHOICES)
            plan->sums[plan->n_sums++] = c;
    }
    if (plan->n_sums < 2 && (!plan->n_sums || !plan->sums[0].way)) { /* the tree only */
        plan->n_sums = o->wire != DT_F32 && o->hosts > 1;
        plan->sums[0] = (struct sum_choice){UINT64_MAX, SUM_TREE, o->wire};
    }
    return OATO_OK;
}

bool rank_sums_measured(const struct rank_options *o, enum sum_way way)
{
    const struct points x = sums_of(o, way);
    return is_measured(o, &x);
}
