/*
 * ilp_plain.c - the placement ILP in textbook form, for any instance:
 *
 *   x[u,o]     binary: unit u runs as its option o says; for each u they add up to 1
 *   r[u,d], w[u,d]   sums of the x[u,o] that read, and write, on device d; so for each phase:
 *   leave[e,d] >= w[producer,d] - r[reader,d]   the value is copied out of d
 *   enter[e,d] >= r[reader,d] - w[producer,d]   the value is copied into d
 *   direct[e,d,f] >= w[producer,d] + r[reader,f] - 1   or from d to f, if they have a direct link:
 *     then r[reader,f] does not force leave[e,d], nor w[producer,d] enter[e,f]
 *   y[d]       >= x[u,o] where o uses d         the device is used at all
 *   sum of bytes[u,o,d] x[u,o] <= capacity[d]
 *
 * leave, enter, direct and y are continuous: they have costs, so a minimum puts them at their
 * bounds.
 */
#include "solver/ilp_internal.h"

#include <stdlib.h>
#include <string.h>

struct plain {
    const struct instance *in;
    struct mip mip;
    struct ilp_clock clock;
    int *x; /* column of option o of unit u, at first[u] + o; 0 = not allowed */
    int32_t *first;
    int *leave, *enter; /* column of (edge, phase, device); 0 = free */
    int *direct;        /* of (edge, phase, from, to) */
    int used[SOLVER_DEVICES];
    double *warm; /* columns of the known placement */
};

static int *slot(int *table, int32_t edge, int phase, int32_t d)
{
    return &table[((size_t)edge * PHASE_COUNT + (size_t)phase) * SOLVER_DEVICES + (size_t)d];
}

static int *direct_slot(const struct plain *p, int32_t edge, int phase, int32_t from, int32_t to)
{
    return slot(p->direct, edge * SOLVER_DEVICES + from, phase, to);
}

static int column_of(const struct plain *p, int32_t unit, int32_t option)
{
    return p->x[p->first[unit] + option];
}

static void add_units(struct plain *p)
{
    const struct instance *in = p->in;
    for (int32_t d = 0; d < in->n_devices; d++)
        if (d != in->host && in->fixed[d].objective_ns > 0)
            p->used[d] = mip_column(&p->mip, MIP_SHARE, in->fixed[d].objective_ns);
    for (int32_t u = 0; u < in->n_units && !ilp_late(&p->clock); u++) {
        int one = mip_row(&p->mip, GLP_FX, 1, 1);
        for (int32_t o = 0; o < in->units[u].n_options; o++) {
            const struct option *option = &in->units[u].options[o];
            if (!instance_allows(in, u, o))
                continue;
            int x = mip_column(&p->mip, MIP_BINARY, option->price.objective_ns);
            p->x[p->first[u] + o] = x;
            mip_set(&p->mip, one, x, 1);
            for (int32_t d = 0; d < in->n_devices; d++) {
                if (!p->used[d] || !(option->uses >> d & 1))
                    continue;
                int row = mip_row(&p->mip, GLP_UP, 0, 0);
                mip_set(&p->mip, row, x, 1);
                mip_set(&p->mip, row, p->used[d], -1);
            }
        }
    }
    for (int32_t d = 0; d < in->n_devices; d++) {
        if (!ilp_constrained(in, d))
            continue;
        int row = mip_capacity_row(&p->mip, in->capacity[d]);
        for (int32_t u = 0; u < in->n_units; u++)
            for (int32_t o = 0; o < in->units[u].n_options; o++)
                if (column_of(p, u, o))
                    mip_set_bytes(&p->mip, row, column_of(p, u, o),
                                  in->units[u].options[o].bytes[d], in->capacity[d]);
    }
}

/* Adds factor times what the unit reads (or writes) on the device in a phase. */
static void add_sum(struct plain *p, int row, int32_t unit, int phase, int32_t d, bool reads,
                    double factor)
{
    for (int32_t o = 0; o < p->in->units[unit].n_options; o++) {
        const struct option *option = &p->in->units[unit].options[o];
        if (column_of(p, unit, o) && (reads ? option->in : option->out)[phase] == d)
            mip_set(&p->mip, row, column_of(p, unit, o), factor);
    }
}

static void add_copies(struct plain *p, int32_t edge, int phase, int32_t d)
{
    const struct instance *in = p->in;
    const struct edge *e = &in->edges[edge];
    const int64_t leave_ns = e->leave[phase][d].objective_ns;
    const int64_t enter_ns = e->n_readers ? e->enter[phase][d].objective_ns : 0;
    int leave = leave_ns > 0 ? mip_column(&p->mip, MIP_SHARE, leave_ns) : 0;
    int enter = enter_ns > 0 ? mip_column(&p->mip, MIP_SHARE, enter_ns) : 0;
    *slot(p->leave, edge, phase, d) = leave;
    *slot(p->enter, edge, phase, d) = enter;
    if (leave && e->host_reads) {
        int row = mip_row(&p->mip, GLP_UP, 0, 0);
        add_sum(p, row, e->producer, phase, d, false, 1);
        mip_set(&p->mip, row, leave, -1);
    }
    for (int32_t r = 0; r < e->n_readers; r++) {
        int32_t reader = in->readers[e->first_reader + r];
        for (int into = 0; into < 2; into++) {
            int column = into ? enter : leave;
            if (!column)
                continue;
            int row = mip_row(&p->mip, GLP_UP, 0, 0);
            add_sum(p, row, e->producer, phase, d, false, into ? -1 : 1);
            add_sum(p, row, reader, phase, d, true, into ? 1 : -1);
            for (int32_t f = 0; f < in->n_devices; f++)
                if (into ? in->direct[f][d] : in->direct[d][f])
                    add_sum(p, row, into ? e->producer : reader, phase, f, !into, -1);
            mip_set(&p->mip, row, column, -1);
        }
    }
}

static void add_direct(struct plain *p, int32_t edge, int phase, int32_t from, int32_t to)
{
    const struct edge *e = &p->in->edges[edge];
    const int64_t ns = e->direct[phase][from][to].objective_ns;
    if (ns <= 0)
        return;
    const int column = mip_column(&p->mip, MIP_SHARE, ns);
    *direct_slot(p, edge, phase, from, to) = column;
    for (int32_t r = 0; r < e->n_readers; r++) {
        const int row = mip_row(&p->mip, GLP_UP, 0, 1);
        add_sum(p, row, e->producer, phase, from, false, 1);
        add_sum(p, row, p->in->readers[e->first_reader + r], phase, to, true, 1);
        mip_set(&p->mip, row, column, -1);
    }
}

static void add_edges(struct plain *p)
{
    for (int32_t i = 0; i < p->in->n_edges && !ilp_late(&p->clock); i++)
        for (int phase = 0; phase < PHASE_COUNT; phase++)
            for (int32_t d = 0; d < p->in->n_devices; d++) {
                add_copies(p, i, phase, d);
                for (int32_t f = 0; f < p->in->n_devices; f++)
                    if (p->in->direct[d][f])
                        add_direct(p, i, phase, d, f);
            }
}

/* The values of an edge's columns for a placement. */
static void warm_copies(const struct plain *p, const int32_t *place, int32_t edge, int phase,
                        double *value)
{
    const struct instance *in = p->in;
    const struct edge *e = &in->edges[edge];
    int32_t home = instance_option(in, place, e->producer)->out[phase];
    if (e->host_reads)
        value[*slot(p->leave, edge, phase, home)] = 1;
    for (int32_t r = 0; r < e->n_readers; r++) {
        int32_t reader = in->readers[e->first_reader + r];
        int32_t d = instance_option(in, place, reader)->in[phase];
        if (d == home)
            continue;
        if (in->direct[home][d]) {
            value[*direct_slot(p, edge, phase, home, d)] = 1;
            continue;
        }
        value[*slot(p->leave, edge, phase, home)] = 1;
        value[*slot(p->enter, edge, phase, d)] = 1;
    }
}

/* The values of all columns. */
static void warm_values(const struct plain *p, const int32_t *place, double *value)
{
    const struct instance *in = p->in;
    for (int32_t u = 0; u < in->n_units; u++) {
        value[column_of(p, u, place[u])] = 1;
        for (int32_t d = 0; d < in->n_devices; d++)
            if (instance_option(in, place, u)->uses >> d & 1)
                value[p->used[d]] = 1;
    }
    for (int32_t i = 0; i < in->n_edges; i++)
        for (int phase = 0; phase < PHASE_COUNT; phase++)
            warm_copies(p, place, i, phase, value);
    value[0] = 0; /* collected what has no column */
}

struct job {
    struct plain *plain;
    const struct ilp_options *options;
    const int32_t *warm;
    int32_t *place;
    struct ilp_result *result;
    struct oato_error *err;
    oato_status status;
};

static oato_status solve(struct plain *p, const struct job *j)
{
    const struct instance *in = p->in;
    if (!mip_init(&p->mip, ilp_typical_ns(in, j->warm)))
        return oato_fail_memory(j->err, sizeof *p, "the ILP");
    add_units(p);
    add_edges(p);
    if (ilp_late(&p->clock))
        return ilp_ended(&p->clock, j->err);
    p->warm = calloc((size_t)glp_get_num_cols(p->mip.lp) + 1, sizeof *p->warm);
    if (!p->warm)
        return oato_fail_memory(j->err, sizeof *p->warm, "the ILP");
    if (j->warm)
        warm_values(p, j->warm, p->warm);
    oato_status status = mip_relax(&p->mip, &p->clock, j->result, j->err);
    if (!status && j->options->relax_only)
        status = oato_fail(j->err, OATO_NEGATIVE, "no placement was looked for");
    else if (!status)
        status = mip_search(&p->mip, j->options->gap, &p->clock, j->warm ? p->warm : NULL,
                            j->result, j->err);
    if (j->result->bound_ns && j->result->bound_ns < INT64_MAX)
        j->result->bound_ns += in->fixed[in->host].objective_ns;
    for (int32_t u = 0; u < in->n_units && !status; u++)
        for (int32_t k = 0; k < in->units[u].n_options; k++)
            if (column_of(p, u, k) && glp_mip_col_val(p->mip.lp, column_of(p, u, k)) > 0.5)
                j->place[u] = k;
    return status;
}

static void run(void *user)
{
    struct job *j = user;
    j->status = solve(j->plain, j);
    mip_free(&j->plain->mip);
}

oato_status ilp_plain(const struct instance *in, const struct ilp_options *o, const int32_t *warm,
                      int32_t *place, struct ilp_result *result, struct oato_error *err)
{
    struct plain p = {.in = in, .clock = {.deadline_ns = o->deadline_ns}};
    struct job j = {
        .plain = &p, .options = o, .warm = warm, .place = place, .result = result, .err = err};
    size_t n = 0, m = (size_t)in->n_edges * PHASE_COUNT * SOLVER_DEVICES;
    for (int32_t u = 0; u < in->n_units; u++)
        n += (size_t)in->units[u].n_options;
    p.x = calloc(n + 1, sizeof *p.x);
    p.first = calloc((size_t)in->n_units + 1, sizeof *p.first);
    p.leave = calloc(m + 1, sizeof *p.leave);
    p.enter = calloc(m + 1, sizeof *p.enter);
    p.direct = calloc(m * SOLVER_DEVICES + 1, sizeof *p.direct);
    for (int32_t u = 0; p.first && u < in->n_units; u++)
        p.first[u + 1] = p.first[u] + in->units[u].n_options;
    if (!p.x || !p.first || !p.leave || !p.enter || !p.direct) {
        j.status = oato_fail_memory(err, n * sizeof *p.x, "the ILP");
    } else if (!ilp_guarded(run, &j)) {
        p.mip.lp = NULL;
        j.status = oato_fail_memory(err, p.mip.n * sizeof *p.mip.value, "the ILP");
    }
    result->timed_out = p.clock.ended;
    mip_free(&p.mip);
    free(p.warm);
    free(p.x);
    free(p.first);
    free(p.leave);
    free(p.enter);
    free(p.direct);
    return j.status;
}
