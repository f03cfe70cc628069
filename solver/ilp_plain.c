/*
 * ilp_plain.c - the placement ILP as one would write it down, for instances of any form:
 *
 *   x[u,d]     binary: unit u runs on device d; for each u they add up to 1
 *   leave[e,d] >= x[producer,d] - x[reader,d]   the value is copied out of d
 *   enter[e,d] >= x[reader,d] - x[producer,d]   the value is copied into d
 *   y[d]       >= x[u,d]                        the device is used at all
 *   sum of bytes[u,d] x[u,d] <= capacity[d]
 *
 * leave, enter and y are continuous: they have costs, so a minimum puts them at their bounds.
 */
#include "solver/ilp_internal.h"

#include <stdlib.h>
#include <string.h>

struct plain {
    const struct instance *in;
    struct mip mip;
    int *x;             /* column of (unit, device); 0 = not allowed */
    int *leave, *enter; /* column of (edge, device); 0 = free */
    int used[SOLVER_DEVICES];
};

static int *slot(int *table, int32_t i, int32_t d)
{
    return &table[(size_t)i * SOLVER_DEVICES + (size_t)d];
}

static void add_units(struct plain *p)
{
    const struct instance *in = p->in;
    for (int32_t d = 0; d < in->n_devices; d++)
        if (d != in->host && in->fixed[d].objective_ns > 0)
            p->used[d] = mip_column(&p->mip, MIP_SHARE, in->fixed[d].objective_ns);
    for (int32_t u = 0; u < in->n_units; u++) {
        int one = mip_row(&p->mip, GLP_FX, 1, 1);
        for (int32_t d = 0; d < in->n_devices; d++) {
            if (!instance_allows(in, u, d))
                continue;
            int x = mip_column(&p->mip, MIP_BINARY, in->units[u].price[d].objective_ns);
            *slot(p->x, u, d) = x;
            mip_set(&p->mip, one, x, 1);
            if (p->used[d]) {
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
            if (*slot(p->x, u, d))
                mip_set_bytes(&p->mip, row, *slot(p->x, u, d), in->units[u].bytes[d],
                              in->capacity[d]);
    }
}

/* column >= plus - minus; a column 0 stands for a variable that is always 0. */
static void add_cut(struct plain *p, int column, int plus, int minus)
{
    if (!plus)
        return;
    int row = mip_row(&p->mip, GLP_UP, 0, 0);
    mip_set(&p->mip, row, plus, 1);
    if (minus)
        mip_set(&p->mip, row, minus, -1);
    mip_set(&p->mip, row, column, -1);
}

static void add_edges(struct plain *p)
{
    const struct instance *in = p->in;
    for (int32_t i = 0; i < in->n_edges; i++) {
        const struct edge *e = &in->edges[i];
        for (int32_t d = 0; d < in->n_devices; d++) {
            int from = *slot(p->x, e->producer, d);
            int leave = e->leave[d].objective_ns > 0 && from
                            ? mip_column(&p->mip, MIP_SHARE, e->leave[d].objective_ns)
                            : 0;
            int enter = e->enter[d].objective_ns > 0 && e->n_readers
                            ? mip_column(&p->mip, MIP_SHARE, e->enter[d].objective_ns)
                            : 0;
            *slot(p->leave, i, d) = leave;
            *slot(p->enter, i, d) = enter;
            if (leave && e->host_reads)
                add_cut(p, leave, from, 0);
            for (int32_t r = 0; r < e->n_readers; r++) {
                int to = *slot(p->x, in->readers[e->first_reader + r], d);
                if (leave)
                    add_cut(p, leave, from, to);
                if (enter)
                    add_cut(p, enter, to, from);
            }
        }
    }
}

/* The values of all columns for a placement. */
static void warm_values(const struct plain *p, const int32_t *place, double *value)
{
    const struct instance *in = p->in;
    for (int32_t u = 0; u < in->n_units; u++) {
        value[*slot(p->x, u, place[u])] = 1;
        value[p->used[place[u]]] = 1;
    }
    for (int32_t i = 0; i < in->n_edges; i++) {
        const struct edge *e = &in->edges[i];
        int32_t home = place[e->producer];
        if (e->host_reads)
            value[*slot(p->leave, i, home)] = 1;
        for (int32_t r = 0; r < e->n_readers; r++) {
            int32_t d = place[in->readers[e->first_reader + r]];
            if (d == home)
                continue;
            value[*slot(p->leave, i, home)] = 1;
            value[*slot(p->enter, i, d)] = 1;
        }
    }
    value[0] = 0; /* collected what has no column */
}

oato_status ilp_plain(const struct instance *in, const struct ilp_options *o, const int32_t *warm,
                      int32_t *place, struct ilp_result *result, struct oato_error *err)
{
    oato_status status = OATO_OK;
    struct plain p = {.in = in};
    size_t n = (size_t)in->n_units * SOLVER_DEVICES, m = (size_t)in->n_edges * SOLVER_DEVICES;
    double *value = NULL;
    p.x = calloc(n + 1, sizeof *p.x);
    p.leave = calloc(m + 1, sizeof *p.leave);
    p.enter = calloc(m + 1, sizeof *p.enter);
    if (!mip_init(&p.mip, ilp_typical_ns(in, warm)) || !p.x || !p.leave || !p.enter) {
        status = oato_fail_memory(err, n * sizeof *p.x, "the ILP");
        goto out;
    }
    add_units(&p);
    add_edges(&p);
    value = calloc((size_t)glp_get_num_cols(p.mip.lp) + 1, sizeof *value);
    if (!value) {
        status = oato_fail_memory(err, n * sizeof *value, "the ILP");
        goto out;
    }
    if (warm)
        warm_values(&p, warm, value);
    status = mip_relax(&p.mip, o, result, err);
    if (!status)
        status = mip_search(&p.mip, o, warm ? value : NULL, result, err);
    result->bound_ns += in->fixed[in->host].objective_ns;
    if (status)
        goto out;
    for (int32_t u = 0; u < in->n_units; u++)
        for (int32_t d = 0; d < in->n_devices; d++)
            if (*slot(p.x, u, d) && glp_mip_col_val(p.mip.lp, *slot(p.x, u, d)) > 0.5)
                place[u] = d;
out:
    mip_free(&p.mip);
    free(value);
    free(p.x);
    free(p.leave);
    free(p.enter);
    return status;
}
