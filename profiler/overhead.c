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
    struct oato_op add = {.kind = OP_ADD, .dtype = DT_F32, .k = WIDTH, .n = WIDTH};
    struct graph_op shape = {.n_in = 2, .n_out = 1};
    struct program_record records[RECORDS_MOST];
    struct rig_step s = {0};
    void *memory = NULL;
    const uint64_t value = (uint64_t)rows * WIDTH * sizeof(float);
    times->n = 0;
    if (!r->device->ops->supports(r->device, &add))
        return OATO_OK;
    oato_status status = rig_step_create(&(struct op_point){rows, 1, 0}, 0, &s, err);
    if (!status)
        status = rig_alloc(r, 3 * value, &memory, err);
    for (uint32_t i = 0; i < n; i++) {
        records[i] = rig_record(&shape, &add, (int32_t[]){WIDTH, WIDTH});
        records[i].in[1] = value;
        records[i].out[0] = 2 * value;
        records[i].signal = i == 0 ? 1 : i == n - 1 ? 2 : 0;
    }
    struct program p = {.records = records,
                        .n_records = n,
                        .n_signals = 2,
                        .max_tokens = rows,
                        .max_rows = rows,
                        .max_seqs = 1,
                        .arena = memory};
    if (!status)
        status = rig_run(r, &p, &s, &(struct rig_effort){repeats, repeats, 20000000}, times, err);
    if (memory)
        r->device->ops->free(r->device, memory, 3 * value);
    rig_step_free(&s);
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
