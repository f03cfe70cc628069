/*
 * overhead.c - what submitting a step and waiting for its end costs beyond its records.
 */
#include "profiler/profiler_internal.h"

oato_status step_overhead(const struct rig *r, bool quick, double *ns, struct oato_error *err)
{
    enum { WIDTH = 64 };
    struct oato_op add = {.kind = OP_ADD, .dtype = DT_F32, .k = WIDTH, .n = WIDTH};
    struct graph_op shape = {.n_in = 2, .n_out = 1};
    struct program_record records[2];
    struct rig_step s = {0};
    void *memory = NULL;
    *ns = 0;
    if (!r->device->ops->supports(r->device, &add))
        return OATO_OK;
    struct rig_times times;
    oato_status status = rig_step_create(&(struct op_point){1, 1, 0}, 0, &s, err);
    if (!status)
        status = rig_alloc(r, 3 * WIDTH * sizeof(float), &memory, err);
    for (int i = 0; i < 2; i++) {
        records[i] = rig_record(&shape, &add, (int32_t[]){WIDTH, WIDTH});
        records[i].in[1] = WIDTH * sizeof(float);
        records[i].out[0] = 2 * WIDTH * sizeof(float);
        records[i].signal = (uint32_t)i + 1;
    }
    struct program p = {.records = records,
                        .n_records = 2,
                        .n_signals = 2,
                        .max_tokens = 1,
                        .max_rows = 1,
                        .max_seqs = 1,
                        .arena = memory};
    int32_t repeats = r->declared ? 1 : quick ? 32 : 200;
    if (!status)
        status = rig_run(r, &p, &s, &(struct rig_effort){repeats, repeats, 20000000}, &times, err);
    if (!status) {
        double whole = quantile(times.whole_ns, times.n, 0.5);
        double inner = quantile(times.inner_ns, times.n, 0.5);
        *ns = whole > 2 * inner ? whole - 2 * inner : 0;
    }
    if (memory)
        r->device->ops->free(r->device, memory, 3 * WIDTH * sizeof(float));
    rig_step_free(&s);
    return status;
}
