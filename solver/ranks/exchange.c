/*
 * exchange.c - ranks on the virtual clock (simulate_step.c): what they exchange, and what their
 * parts of operators take.
 *
 * An exchange begins when the last rank that takes part is there, and ends for all at the same
 * time. Only rows gathered for rank 0 alone are left to it by the others, which go on.
 *
 * A part of an operator needs a record, however small it is, and no record takes less than the
 * shortest operator of one row. A host's operators are timed as they run, with their records: what
 * a step takes beyond them (record_overhead_ns) is that caches are colder and cores disturbed,
 * which grows with the time and not with the records. Ranks of a host that has too few cores for
 * all of them take turns, each until it waits for others: time slices are longer than that.
 */
#include "solver/ranks/ranks_internal.h"
#include "solver/simulation_internal.h"

/* ------------------------------------------------------------------------------ exchanges -- */

static int32_t ranks_here(const struct simulation *s)
{
    return s->alone ? 1 : s->n_ranks;
}

static const struct program_record *record_next(const struct stepping *x, int32_t d)
{
    const struct lowered_program *p = program_of(x, d);
    return x->next[d] < p->n_records ? &p->records[x->next[d]] : NULL;
}

static int32_t rank_of(const struct stepping *x, int32_t d)
{
    return (int32_t)(sim_rank_of(x->s, d) - x->s->rank);
}

/* The device of a rank that exchanges. */
static int32_t exchanger(const struct stepping *x, int32_t rank, enum record_kind kind)
{
    const struct sim_rank *r = &x->s->rank[rank];
    return kind == RECORD_SWAP ? r->first + r->placements.sums_on : r->host;
}

static double bytes_of(const struct stepping *x, const struct program_record *r)
{
    return (double)rows_of(x, r) * r->op.n * sizeof(float);
}

/* Since when the device waits for nothing but other ranks, in its next record; false: it waits for
 * more, or is not at one of that kind for the value. */
static bool arrives(const struct stepping *x, int32_t d, enum record_kind kind, uint32_t value,
                    struct home *since)
{
    const struct program_record *r = record_next(x, d);
    struct home reads[RECORD_WAITS];
    if (!r || r->kind != kind || r->value != value || !next_reads(x, d, reads))
        return false;
    const struct home own = {x->clock[d], x->last[d]};
    *since = own.ns < x->passed[d].ns ? x->passed[d] : own;
    for (int i = 0; i < r->n_waits; i++)
        if (reads[i].ns > since->ns)
            *since = reads[i];
    return true;
}

/* The device's record, with all that are there; and what swaps the same value behind it. */
static void takes_part(struct stepping *x, int32_t d, double ns, const struct home *last)
{
    const struct program_record *r = record_next(x, d);
    struct home reads[RECORD_WAITS + 1];
    next_reads(x, d, reads);
    reads[r->n_waits] = *last;
    const struct event e = {.kind = EVENT_EXCHANGE,
                            .device = (int16_t)d,
                            .parts = 1,
                            .op = x->s->graph.values[r->value].producer,
                            .bytes = (uint64_t)bytes_of(x, r)};
    const struct home done = event_add(x, e, ns, reads, r->n_waits + 1);
    x->has_cores[rank_of(x, d)] = -1;
    const enum record_kind kind = (enum record_kind)r->kind;
    const uint32_t value = r->value;
    next_done(x, d, done);
    for (; kind == RECORD_SWAP && (r = record_next(x, d)) && r->kind == kind && r->value == value;)
        next_done(x, d, done);
    x->swapped[d] = kind == RECORD_SWAP ? value + 1 : x->swapped[d];
}

static bool exchange_of_all(struct stepping *x, const struct program_record *r)
{
    const enum record_kind kind = (enum record_kind)r->kind;
    const uint32_t value = r->value;
    const double ns = rank_sum_ns(&x->s->options, x->s->plan, bytes_of(x, r));
    struct home last = {INT64_MIN, -1}, since;
    for (int32_t rank = 0; rank < ranks_here(x->s); rank++) {
        if (!arrives(x, exchanger(x, rank, kind), kind, value, &since))
            return false;
        last = since.ns > last.ns ? since : last;
    }
    for (int32_t rank = 0; rank < ranks_here(x->s); rank++)
        takes_part(x, exchanger(x, rank, kind), ns, &last);
    return true;
}

static bool exchange_of_two(struct stepping *x, int32_t d, const struct program_record *r)
{
    const struct rank_options *o = &x->s->options;
    const int32_t own = rank_of(x, d), peer = r->peer, other = x->s->rank[peer].host;
    const bool away = rank_host(o, own) != rank_host(o, peer);
    const double ns = rank_message_ns(o, away, bytes_of(x, r));
    const enum record_kind kind = r->kind == RECORD_SEND ? RECORD_RECEIVE : RECORD_SEND;
    struct home here, there;
    if (!arrives(x, other, kind, r->value, &there) || record_next(x, other)->peer != own ||
        !arrives(x, d, (enum record_kind)r->kind, r->value, &here))
        return false;
    const struct home last = here.ns > there.ns ? here : there;
    takes_part(x, d, ns, &last);
    takes_part(x, other, ns, &last);
    return true;
}

/* Rank 0 receives what each other rank has of the rows. */
static bool gathers(struct stepping *x, int32_t d, const struct program_record *r)
{
    const struct rank_options *o = &x->s->options;
    const double own = r->n_in ? (double)rows_of(x, r) * r->in_width[0] * sizeof(float) : 0;
    if (rank_of(x, d)) {
        struct home reads[RECORD_WAITS];
        next_reads(x, d, reads);
        const struct home sent = event_pass(x, d, reads, r->n_waits);
        x->gathered = !x->n_gathered || sent.ns > x->gathered.ns ? sent : x->gathered;
        x->gathered_bytes[rank_host(o, rank_of(x, d)) > 0] += own;
        x->n_gathered++;
        next_done(x, d, sent);
        return true;
    }
    if (x->n_gathered + 1 < ranks_here(x->s))
        return false;
    if (x->s->alone) { /* the others have as much */
        const double each = (double)o->ranks / o->hosts;
        x->gathered = (struct home){0, -1};
        x->gathered_bytes[0] = own * (each - 1);
        x->gathered_bytes[1] = own * (o->ranks - each);
    }
    /* others have heard of the step at its beginning */
    const double ns = rank_logits_ns(o, x->gathered_bytes[1], x->gathered_bytes[0]);
    takes_part(x, d, fmax(ns - rank_step_ns(o, 0, 0), 0), &x->gathered);
    x->n_gathered = 0;
    x->gathered_bytes[0] = x->gathered_bytes[1] = 0;
    return true;
}

bool exchange_run(struct stepping *x, int32_t d)
{
    const struct program_record *r = record_next(x, d);
    struct home reads[RECORD_WAITS];
    if (!rows_of(x, r)) {
        next_reads(x, d, reads);
        next_done(x, d, event_pass(x, d, reads, r->n_waits));
        return true;
    }
    if (r->kind == RECORD_SEND || r->kind == RECORD_RECEIVE)
        return exchange_of_two(x, d, r);
    return r->kind == RECORD_GATHER && r->to_first ? gathers(x, d, r) : exchange_of_all(x, r);
}

/* -------------------------------------------------------------------------- shared hosts --- */

/* As many ranks as find cores of their own at the same time. */
static int32_t ranks_at_once(const struct rank_options *o, int32_t host)
{
    double cores = 0, threads = 0;
    for (int32_t r = 0; r < o->ranks && r < SIM_RANKS; r++) {
        const struct profile *p = o->profiles[rank_profile(o, r)];
        if (rank_host(o, r) != host)
            continue;
        threads = fmax(threads, profile_host(p)->threads);
        cores = fmax(cores, p->machine.cores);
    }
    return threads > 0 ? (int32_t)fmax(cores / threads, 1) : o->ranks; /* 0: unknown */
}

int32_t ranks_turns(const struct rank_options *o, int32_t host)
{
    const int32_t n = o->ranks > SIM_RANKS ? o->ranks / o->hosts : ranks_of_host(o, host),
                  at_once = ranks_at_once(o, host);
    return (n + at_once - 1) / at_once;
}

struct home *rank_cores(struct stepping *x, int32_t d)
{
    const struct rank_options *o = &x->s->options;
    if (x->s->n_ranks < 2 || x->s->alone || d != sim_rank_of(x->s, d)->host)
        return NULL;
    const int32_t host = rank_host(o, rank_of(x, d)), n = ranks_at_once(o, host);
    if (ranks_of_host(o, host) <= n)
        return NULL;
    int32_t first = 0, *has = &x->has_cores[rank_of(x, d)];
    while (rank_host(o, first) != host)
        first++;
    if (*has < 0)
        for (int32_t i = *has = first; i < first + n; i++)
            *has = x->cores[i].ns < x->cores[*has].ns ? i : *has;
    return &x->cores[*has];
}

static void work_find(const struct stepping *x, int32_t d, struct host_work *work)
{
    const struct sim_rank *own = sim_rank_of(x->s, d);
    const struct placement *placed = own->placements.phase[x->step->phase];
    const struct request_step *q = &x->step->size;
    double all_ns = 0;
    int32_t n = 0;
    for (int32_t i = 0; i < x->s->graph.n_ops; i++) {
        const struct graph *g = &x->s->graph;
        const struct op_size row = graph_op_size(g, i, 1, 1, 1, 1),
                             all =
                                 graph_op_size(g, i, q->tokens, q->rows, q->seqs, q->kv_positions);
        bool here = false;
        for (int32_t k = 0; k < placed[i].n; k++)
            here = here || placed[i].part[k].device == d - own->first;
        if (!here)
            continue;
        const double ns = cost_of_op(own->cost, x->s->device[d], &g->ops[i].op, &row).ns;
        all_ns += cost_of_op(own->cost, x->s->device[d], &g->ops[i].op, &all).ns;
        work->least_ns = n++ ? fmin(work->least_ns, ns) : ns;
    }
    work->factor = all_ns > 0 ? 1 + n * device_of(x, d).record_ns / all_ns : 1;
}

double rank_part_ns(struct stepping *x, int32_t d, double part_ns, double share)
{
    struct host_work *work = &x->work[rank_of(x, d)];
    if (!work->factor)
        work_find(x, d, work);
    const double whole_ns = share > 0 ? part_ns / share : 0,
                 ns = (part_ns + (1 - share) * fmin(work->least_ns, whole_ns)) * work->factor;
    if (!x->s->alone || share <= 0)
        return ns;
    /* the others of its host have as much each, but together no more than the whole */
    const double turns = ranks_turns(&x->s->options, 0),
                 rest = 1 / (share * ranks_at_once(&x->s->options, 0));
    return ns * (share < 1 ? fmax(fmin(turns, rest), 1) : turns);
}
