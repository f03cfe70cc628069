/*
 * sums.c - how long sums of all ranks take (kernels/ranks/collective.h), by each way to make them
 * and of each size that the model's steps have, messages between the first and the last host, and
 * what a step exchanges beside its sums. All ranks make the same calls; rank 0 keeps the times.
 *
 * Whoever else uses the network or the cores disturbs for seconds, so all rows are measured several
 * times, one after the other, and the median counts.
 */
#include "profiler/profiler_internal.h"

#include <math.h>
#include <stdlib.h>

enum {
    TOKENS_MOST = 512, /* of a step; sizes are powers of two up to it */
    LOGITS_MOST = 8,   /* rows of them */
    HEAD_BYTES = 512,  /* of the message that begins a step (executor/ranks.c) */
    WARM = 3,
    PASSES = 5, /* whose median counts; each is a mean */
    ROWS = 80,
};
#define BATCH_NS 20e6

struct row {
    struct profile_sum sum;
    int32_t calls;
    double ns[PASSES];
};

struct measuring {
    struct collective *ranks;
    struct swaps swaps;
    float *own, *sum;
    struct row row[ROWS];
    int32_t n;
};

/* As a step begins and ends; each rank has as much of what rank 0 gathers. */
static oato_status step_exchange(const struct measuring *m, const struct profile_sum *s,
                                 struct oato_error *err)
{
    const int32_t ranks = s->ranks, rank = collective_rank(m->ranks);
    const int64_t all = (int64_t)(s->bytes / sizeof(float));
    const int32_t own = (int32_t)(all * (rank + 1) / ranks - all * rank / ranks);
    const oato_status status = collective_broadcast(m->ranks, m->sum, HEAD_BYTES, WAITS_EVER, err);
    return status ? status
                  : collective_gather(m->ranks, m->own, own, m->sum, (int32_t)all, 1, true, err);
}

static oato_status call(const struct measuring *m, const struct profile_sum *s,
                        struct oato_error *err)
{
    switch (s->what) {
    case EXCHANGE_MESSAGE: return collective_ping(m->ranks, m->sum, s->bytes, err);
    case EXCHANGE_STEP: return step_exchange(m, s, err);
    case EXCHANGE_SUM: break;
    }
    return collective_reduce(m->ranks, m->own, m->sum, s->bytes / sizeof(float), s->wire, err);
}

/* So many calls, one behind the other; *ns: of each. */
static oato_status batch(const struct measuring *m, const struct profile_sum *s, int32_t calls,
                         double *ns, struct oato_error *err)
{
    const struct sum_choice choice = {UINT64_MAX, s->way, s->wire};
    if (s->way == SUM_ACCELERATORS)
        return swaps_time(&m->swaps, s->bytes, calls, ns, err);
    oato_status status = collective_choose(m->ranks, &choice, 1, err);
    const uint64_t begin_ns = now_ns();
    for (int32_t i = 0; i < calls && !status; i++)
        status = call(m, s, err);
    *ns = (double)(now_ns() - begin_ns) / calls / (s->what == EXCHANGE_MESSAGE ? 2 : 1);
    if (!status && oato_interrupted)
        status = oato_fail(err, OATO_NEGATIVE, "interrupted");
    return status;
}

static oato_status row_measure(const struct measuring *m, struct row *r, int pass,
                               struct oato_error *err)
{
    oato_status status = OATO_OK;
    if (!pass) {
        double ns;
        status = batch(m, &r->sum, WARM, &ns, err);
        r->calls = status ? 1 : (int32_t)fmin(fmax(BATCH_NS / ns, 3), 100);
        if (!status)
            status = collective_broadcast(m->ranks, &r->calls, sizeof r->calls, WAITS_EVER, err);
    }
    return status ? status : batch(m, &r->sum, r->calls, &r->ns[pass], err);
}

static void row_add(struct measuring *m, const struct profile_sum *s)
{
    m->row[m->n++].sum = *s;
}

static void rows_list(struct measuring *m, int32_t width, int32_t vocab, int32_t hosts, bool quick)
{
    static const oato_dtype wires[] = {DT_F16, DT_Q8_0};
    struct profile_sum s = {.ranks = collective_ranks(m->ranks), .hosts = hosts};
    for (int32_t tokens = 1; tokens <= TOKENS_MOST; tokens *= quick ? 8 : 2) {
        s.bytes = (uint64_t)width * (uint64_t)tokens * sizeof(float);
        for (int way = 0; way < (m->swaps.device ? SUM_WAYS : SUM_HOST_WAYS); way++) {
            s.way = (enum sum_way)way;
            row_add(m, &s);
        }
        s.way = SUM_TREE;
        for (size_t i = 0; i < ARRAY_LEN(wires) && hosts > 1; i++) {
            s.wire = wires[i];
            if (sum_wire_ok(s.wire, width))
                row_add(m, &s);
        }
        s.wire = DT_F32;
        s.what = EXCHANGE_MESSAGE;
        if (hosts > 1)
            row_add(m, &s);
        s.what = EXCHANGE_SUM;
    }
    s.what = EXCHANGE_STEP;
    s.bytes = CANDIDATES_BYTES * (uint64_t)s.ranks;
    row_add(m, &s);
    for (int32_t rows = 1; rows <= LOGITS_MOST; rows *= LOGITS_MOST) {
        s.bytes = (uint64_t)vocab * (uint64_t)rows * sizeof(float);
        row_add(m, &s);
    }
}

static oato_status rows_measure(struct measuring *m, struct oato_error *err)
{
    oato_status status = OATO_OK;
    for (int pass = 0; pass < PASSES; pass++)
        for (int32_t i = 0; i < m->n && !status; i++)
            status = row_measure(m, &m->row[i], pass, err);
    return status;
}

static oato_status rows_put(struct measuring *m, struct profile *p, struct oato_error *err)
{
    struct profile_sum sums[ROWS];
    for (int32_t i = 0; i < m->n; i++) {
        sums[i] = m->row[i].sum;
        sums[i].median_ns = readable_ns(quantile(m->row[i].ns, PASSES, 0.5));
    }
    return profile_put_sums(p, sums, m->n) ? OATO_OK
                                           : oato_fail_memory(err, sizeof sums, "a profile");
}

oato_status sums_measure(struct profile *p, const struct model *model, struct collective *ranks,
                         const struct profiler_options *o, warn_fn warn, void *user,
                         struct oato_error *err)
{
    int32_t host[RANKS_MAX];
    const size_t hidden = (size_t)model->shape.width * TOKENS_MOST;
    const size_t logits = (size_t)model->shape.vocab * LOGITS_MOST;
    const size_t most = hidden > logits ? hidden : logits;
    const int32_t hosts = collective_hosts(ranks, host);
    struct measuring m = {.ranks = ranks};
    float *own = calloc(2 * most, sizeof *own);
    oato_status status = collective_group(ranks, host, err);
    if (!status)
        status = collective_agree(
            ranks, own ? OATO_OK : oato_fail_memory(err, 2 * most * sizeof *own, "sums"), err);
    m.own = own;
    m.sum = own ? own + most : NULL;
    if (!status)
        status = swaps_open(ranks, o->devices, model->shape.width, TOKENS_MOST, &m.swaps, warn,
                            user, err);
    rows_list(&m, model->shape.width, model->shape.vocab, hosts, o->quick);
    if (!status && (status = rows_measure(&m, err)))
        collective_leave(ranks, err);
    if (!status && !collective_rank(ranks))
        status = rows_put(&m, p, err);
    swaps_close(&m.swaps);
    free(own);
    return status;
}
