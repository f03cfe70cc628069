/*
 * sums.c - how long sums of all ranks take (kernels/collective.h), by each way to make them and of
 * each size that the model's steps have, and messages between the first and the last host. All
 * ranks make the same calls; rank 0 keeps the times.
 */
#include "profiler/profiler_internal.h"

#include <math.h>
#include <stdlib.h>

enum {
    TOKENS_MOST = 512, /* of a step; sizes are powers of two up to it */
    WARM = 3,
    BATCHES = 5, /* whose median counts; each is a mean */
    ROWS = 64,
};
#define BATCH_NS 20e6

struct measuring {
    struct collective *ranks;
    const float *own;
    float *sum;
    struct profile_sum row[ROWS];
    int32_t n;
};

static oato_status call(const struct measuring *m, const struct profile_sum *s,
                        struct oato_error *err)
{
    return s->message ? collective_ping(m->ranks, m->sum, s->bytes, err)
                      : collective_reduce(m->ranks, m->own, m->sum, s->bytes / sizeof(float),
                                          s->wire, err);
}

/* So many calls, one behind the other; *ns: of each. */
static oato_status batch(const struct measuring *m, const struct profile_sum *s, int32_t calls,
                         double *ns, struct oato_error *err)
{
    const uint64_t begin_ns = now_ns();
    oato_status status = OATO_OK;
    for (int32_t i = 0; i < calls && !status; i++)
        status = call(m, s, err);
    *ns = (double)(now_ns() - begin_ns) / calls / (s->message ? 2 : 1);
    if (!status && oato_interrupted)
        status = oato_fail(err, OATO_NEGATIVE, "interrupted");
    return status;
}

static oato_status row_measure(struct measuring *m, struct profile_sum s, bool quick,
                               struct oato_error *err)
{
    double ns[BATCHES];
    const struct sum_choice choice = {UINT64_MAX, s.way, s.wire};
    oato_status status = collective_choose(m->ranks, &choice, 1, err);
    if (!status)
        status = batch(m, &s, WARM, ns, err);
    int32_t calls = status ? 1 : (int32_t)fmin(fmax(BATCH_NS / (quick ? 10 : 1) / ns[0], 3), 100);
    if (!status)
        status = collective_broadcast(m->ranks, &calls, sizeof calls, WAITS_EVER, err);
    for (int i = 0; i < BATCHES && !status; i++)
        status = batch(m, &s, calls, &ns[i], err);
    if (status)
        return status;
    s.median_ns = readable_ns(quantile(ns, BATCHES, 0.5));
    m->row[m->n++] = s;
    return OATO_OK;
}

static oato_status rows_measure(struct measuring *m, int32_t width, int32_t hosts, bool quick,
                                struct oato_error *err)
{
    static const oato_dtype wires[] = {DT_F32, DT_F16, DT_Q8_0};
    struct profile_sum s = {.ranks = collective_ranks(m->ranks), .hosts = hosts};
    oato_status status = OATO_OK;
    for (int32_t tokens = 1; tokens <= TOKENS_MOST && !status; tokens *= quick ? 8 : 2) {
        s.bytes = (uint64_t)width * (uint64_t)tokens * sizeof(float);
        for (int way = 0; way < SUM_WAYS && !status; way++) {
            s.way = (enum sum_way)way;
            status = row_measure(m, s, quick, err);
        }
        s.way = SUM_TREE;
        for (size_t i = 1; i < ARRAY_LEN(wires) && hosts > 1 && !status; i++) {
            s.wire = wires[i];
            if (sum_wire_ok(s.wire, width))
                status = row_measure(m, s, quick, err);
        }
        s.wire = DT_F32;
        s.message = true;
        if (hosts > 1 && !status)
            status = row_measure(m, s, quick, err);
        s.message = false;
    }
    return status;
}

oato_status sums_measure(struct profile *p, const struct model *model, struct collective *ranks,
                         bool quick, struct oato_error *err)
{
    int32_t host[RANKS_MAX];
    const size_t most = (size_t)model->shape.width * TOKENS_MOST;
    const int32_t hosts = collective_hosts(ranks, host);
    struct measuring m = {.ranks = ranks};
    float *own = calloc(2 * most, sizeof *own);
    oato_status status = collective_group(ranks, host, err);
    if (!status)
        status = collective_agree(
            ranks, own ? OATO_OK : oato_fail_memory(err, 2 * most * sizeof *own, "sums"), err);
    m.own = own;
    m.sum = own ? own + most : NULL;
    if (!status && (status = rows_measure(&m, model->shape.width, hosts, quick, err)))
        collective_leave(ranks, err);
    if (!status && !collective_rank(ranks) && !profile_put_sums(p, m.row, m.n))
        status = oato_fail_memory(err, sizeof m.row, "a profile");
    free(own);
    return status;
}
