/*
 * overhead.c - the cost of submitting a step and waiting for its end beyond its records, and of
 * launching one record.
 */
#include "profiler/profiler_internal.h"

enum {
    WIDTH = 64,
    RECORDS_MOST = 64,
    LAUNCH_ROWS = 32, /* more than of steps whose records a device keeps as one launch */
};

/* A step of n small records; times->n is 0 where they are not supported. */
static oato_status time_small(const struct rig *r, uint32_t n, int32_t rows, int32_t repeats,
                              struct rig_times *times, struct oato_error *err)
{
    const struct program_record small = rig_addition(WIDTH, rows);
    const uint64_t bytes = rig_addition_bytes(WIDTH, rows);
    const struct rig_effort effort = {repeats, repeats, 20000000};
    const struct op_point at = {rows, 1, 0, 0};
    struct program_record records[RECORDS_MOST];
    struct program p = {0};
    times->n = 0;
    if (!r->device->ops->supports(r->device, &small.op))
        return OATO_OK;
    if (rig_alloc(r, bytes, &p.arena, err))
        return err->status;
    for (uint32_t i = 0; i < n; i++)
        records[i] = small;
    const oato_status status = rig_time(r, &p, records, n, &at, &effort, times, err);
    r->device->ops->free(r->device, p.arena, bytes);
    return status;
}

oato_status step_overhead(const struct rig *r, bool quick, double *ns, struct oato_error *err)
{
    struct rig_times times;
    *ns = 0;
    oato_status status = time_small(r, 2, 1, r->declared ? 1 : quick ? 32 : 200, &times, err);
    if (!status && times.n) {
        double whole = quantile(times.whole_ns, times.n, 0.5);
        double inner = quantile(times.inner_ns, times.n, 0.5);
        *ns = whole > 2 * inner ? whole - 2 * inner : 0;
    }
    return status;
}

oato_status launch_time(const struct rig *r, bool quick, double *ns, struct oato_error *err)
{
    struct rig_times times;
    *ns = 0;
    oato_status status = time_small(r, RECORDS_MOST, LAUNCH_ROWS, quick ? 8 : 50, &times, err);
    if (!status && times.n)
        *ns = quantile(times.inner_ns, times.n, 0.5) / (RECORDS_MOST - 1);
    return status;
}
