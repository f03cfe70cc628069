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

struct plain {
    const struct instance *in;
    const struct ilp_options *options;
    const int32_t *start;
    int32_t *place;
    struct ilp_result *result;
    struct arena arena;
    struct mip mip;
    struct ilp_clock clock;
    int *x; /* column of option o of unit u, at first[u] + o; 0 = not allowed */
    int32_t *first;
    int used[SOLVER_DEVICES];
    /* the row that is being made, 1-based, as GLPK wants it */
    int n_row, *row_column;
    double *row_value;
};

static void put(struct plain *p, int column, double value)
{
    if (value == 0)
        return;
    p->row_column[++p->n_row] = column;
    p->row_value[p->n_row] = value;
}

static void end_row(struct plain *p, int kind, double lo, double hi)
{
    glp_set_mat_row(p->mip.lp, mip_row(&p->mip, kind, lo, hi), p->n_row, p->row_column,
                    p->row_value);
    p->n_row = 0;
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
        for (int32_t o = 0; o < in->units[u].n_options; o++) {
            if (!instance_allows(in, u, o))
                continue;
            int x = mip_column(&p->mip, MIP_BINARY, in->units[u].options[o].price.objective_ns);
            p->x[p->first[u] + o] = x;
            put(p, x, 1);
        }
        end_row(p, GLP_FX, 1, 1);
        for (int32_t o = 0; o < in->units[u].n_options; o++)
            for (int32_t d = 0; d < in->n_devices && column_of(p, u, o); d++) {
                if (!p->used[d] || !(in->units[u].options[o].uses >> d & 1))
                    continue;
                put(p, column_of(p, u, o), 1);
                put(p, p->used[d], -1);
                end_row(p, GLP_UP, 0, 0);
            }
    }
    for (int32_t d = 0; d < in->n_devices; d++) {
        if (!ilp_constrained(in, d))
            continue;
        for (int32_t u = 0; u < in->n_units; u++)
            for (int32_t o = 0; o < in->units[u].n_options; o++)
                if (column_of(p, u, o))
                    put(p, column_of(p, u, o),
                        mip_bytes(in->units[u].options[o].bytes[d], in->capacity[d]));
        end_row(p, GLP_UP, 0, mip_capacity(in->capacity[d]));
    }
}

/* Adds factor times what the unit reads (or writes) on the device in a phase. */
static void add_sum(struct plain *p, int32_t unit, int phase, int32_t d, bool reads, double factor)
{
    for (int32_t o = 0; o < p->in->units[unit].n_options; o++) {
        const struct option *option = &p->in->units[unit].options[o];
        if (column_of(p, unit, o) && (reads ? option->in : option->out)[phase] == d)
            put(p, column_of(p, unit, o), factor);
    }
}

static void add_copies(struct plain *p, const struct edge *e, int phase, int32_t d)
{
    const struct instance *in = p->in;
    const int64_t leave_ns = e->leave[phase][d].objective_ns;
    const int64_t enter_ns = e->n_readers ? e->enter[phase][d].objective_ns : 0;
    int leave = leave_ns > 0 ? mip_column(&p->mip, MIP_SHARE, leave_ns) : 0;
    int enter = enter_ns > 0 ? mip_column(&p->mip, MIP_SHARE, enter_ns) : 0;
    if (leave && e->host_reads) {
        add_sum(p, e->producer, phase, d, false, 1);
        put(p, leave, -1);
        end_row(p, GLP_UP, 0, 0);
    }
    for (int32_t r = 0; r < e->n_readers; r++) {
        int32_t reader = in->readers[e->first_reader + r];
        for (int into = 0; into < 2; into++) {
            int column = into ? enter : leave;
            if (!column)
                continue;
            add_sum(p, e->producer, phase, d, false, into ? -1 : 1);
            add_sum(p, reader, phase, d, true, into ? 1 : -1);
            for (int32_t f = 0; f < in->n_devices; f++)
                if (into ? in->direct[f][d] : in->direct[d][f])
                    add_sum(p, into ? e->producer : reader, phase, f, !into, -1);
            put(p, column, -1);
            end_row(p, GLP_UP, 0, 0);
        }
    }
}

static void add_direct(struct plain *p, const struct edge *e, int phase, int32_t from, int32_t to)
{
    const int64_t ns = e->direct[phase][from][to].objective_ns;
    if (ns <= 0)
        return;
    const int column = mip_column(&p->mip, MIP_SHARE, ns);
    for (int32_t r = 0; r < e->n_readers; r++) {
        add_sum(p, e->producer, phase, from, false, 1);
        add_sum(p, p->in->readers[e->first_reader + r], phase, to, true, 1);
        put(p, column, -1);
        end_row(p, GLP_UP, 0, 1);
    }
}

static void add_edges(struct plain *p)
{
    for (int32_t i = 0; i < p->in->n_edges && !ilp_late(&p->clock); i++)
        for (int phase = 0; phase < PHASE_COUNT; phase++)
            for (int32_t d = 0; d < p->in->n_devices; d++) {
                add_copies(p, &p->in->edges[i], phase, d);
                for (int32_t f = 0; f < p->in->n_devices; f++)
                    if (p->in->direct[d][f])
                        add_direct(p, &p->in->edges[i], phase, d, f);
            }
}

static oato_status solve(void *user, struct oato_error *err)
{
    struct plain *p = user;
    const struct instance *in = p->in;
    double *start = NULL;
    mip_init(&p->mip, ilp_typical_ns(in, p->start));
    add_units(p);
    add_edges(p);
    if (ilp_late(&p->clock))
        return ilp_ended(&p->clock, err);
    if (p->start) {
        start = arena_alloc(&p->arena, (size_t)glp_get_num_cols(p->mip.lp) + 1, sizeof *start);
        for (int32_t u = 0; start && u < in->n_units; u++)
            start[column_of(p, u, p->start[u])] = 1;
        if (!start || !mip_complete(&p->mip, &p->arena, start))
            return oato_fail_memory(err, p->arena.used_bytes, "the ILP");
    }
    oato_status status = mip_relax(&p->mip, &p->clock, p->result, err);
    if (!status && p->options->relax_only)
        status = oato_fail(err, OATO_NEGATIVE, "no placement was looked for");
    else if (!status)
        status = mip_search(&p->mip, p->options->gap, &p->clock, start, p->result, err);
    if (p->result->bound_ns && p->result->bound_ns < INT64_MAX)
        p->result->bound_ns += in->fixed[in->host].objective_ns;
    for (int32_t u = 0; u < in->n_units && !status; u++)
        for (int32_t k = 0; k < in->units[u].n_options; k++)
            if (column_of(p, u, k) && glp_mip_col_val(p->mip.lp, column_of(p, u, k)) > 0.5)
                p->place[u] = k;
    return status;
}

static bool plain_alloc(struct plain *p)
{
    size_t options = 0;
    arena_init(&p->arena);
    p->first = arena_alloc(&p->arena, (size_t)p->in->n_units + 1, sizeof *p->first);
    for (int32_t u = 0; p->first && u < p->in->n_units; u++) {
        p->first[u] = (int32_t)options;
        options += (size_t)p->in->units[u].n_options;
    }
    p->x = arena_alloc(&p->arena, options + 1, sizeof *p->x);
    p->row_column = arena_alloc(&p->arena, options + 3, sizeof *p->row_column);
    p->row_value = arena_alloc(&p->arena, options + 3, sizeof *p->row_value);
    return p->first && p->x && p->row_column && p->row_value;
}

oato_status ilp_plain(const struct instance *in, const struct ilp_options *o, const int32_t *warm,
                      int32_t *place, struct ilp_result *result, struct oato_error *err)
{
    struct plain p = {.in = in,
                      .options = o,
                      .start = warm,
                      .place = place,
                      .result = result,
                      .clock = {.deadline_ns = o->deadline_ns}};
    const oato_status status = plain_alloc(&p)
                                   ? ilp_guarded(solve, &p, &p.mip, err)
                                   : oato_fail_memory(err, p.arena.used_bytes, "the ILP");
    result->timed_out = p.clock.ended;
    arena_free(&p.arena);
    return status;
}
