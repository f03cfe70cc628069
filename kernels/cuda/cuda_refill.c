/*
 * cuda_refill.c - experts of a cache are replaced beside steps: their rows go the way of all
 * weights (cuda_stream.c), by streams and pinned buffers of their own, so that what a step streams
 * does not wait behind them. The steps before are over when the engine asks, and those after it do
 * not read the rows before the event has passed: no stream has to wait for another one.
 *
 * The event rises in a function that the driver calls behind the last copy. Whoever learns so that
 * the rows are there launches kernels only after that, which is why these see them. If a copy fails
 * the driver calls nothing: the rows never arrive, and the next step reports why.
 */
#include "kernels/cuda/cuda_device.h"

#include <inttypes.h>
#include <stdlib.h>

struct timeline *cuda_transfers(struct oato_device *base)
{
    return &cuda_of(base)->transfers;
}

static void refill_free(struct cuda_refill *f)
{
    free(f->rows.pieces);
    free(f);
}

/* Frees those that have arrived. */
static void collect(struct cuda_device *d)
{
    for (struct cuda_refill **at = &d->refilled, *f; (f = *at);) {
        if (!timeline_reached(&d->transfers, f->signal)) {
            at = &f->next;
            continue;
        }
        *at = f->next;
        refill_free(f);
    }
}

/* On the driver's thread, which may not call the driver. */
static void arrived(void *user)
{
    const struct cuda_refill *f = user;
    timeline_signal(f->transfers, f->signal, now_ns());
}

static bool can_take(const struct cuda_device *d, const struct cuda_weight *w, int64_t row,
                     const struct weight_source *s)
{
    const int64_t rows = s->row_end - s->row_begin;
    return d->refills.copy && !w->arrived && w->weight.use == WEIGHT_MATRIX &&
           s->use == WEIGHT_MATRIX && !s->prepared && weight_source_good(s) && row >= 0 &&
           rows > 0 && rows <= w->weight.rows - row && s->k == w->weight.k &&
           s->dtype == w->weight.dtype;
}

oato_status cuda_refill(struct oato_device *base, struct oato_weight *handle, int64_t row,
                        const struct weight_source *source, uint64_t begin_ns, uint64_t *value,
                        struct oato_error *err)
{
    (void)begin_ns;
    struct cuda_device *d = cuda_of(base);
    const struct cuda_weight *w = cuda_weight_of(handle);
    const int64_t rows = source->row_end - source->row_begin;
    if (!can_take(d, w, row, source))
        return oato_fail(err, OATO_EUSAGE,
                         "%s: rows %" PRId64 " to %" PRId64 " cannot be refilled with these", d->id,
                         row, row + rows);
    collect(d);
    struct cuda_refill *f = calloc(1, sizeof *f);
    if (!f)
        return oato_fail_memory(err, sizeof *f, "a refill");
    f->transfers = &d->transfers;
    f->signal = d->transfers_asked + 1;
    f->rows = (struct cuda_weight){.device = d, .source = *source, .weight = w->weight};
    f->rows.weight.rows = rows;
    if (cuda_weight_cut(d, &d->refills, &f->rows, err)) {
        refill_free(f);
        return err->status;
    }
    for (int i = 0; i < CUDA_PLANES; i++) /* not those of a matrix of so few rows */
        f->rows.plane[i] = w->plane[i] + (uint64_t)row * w->row[i];
    f->next = d->refilled;
    d->refilled = f;
    cuda_enter(d);
    cu_result result = CU_OK;
    for (uint32_t i = 0; i < f->rows.n_pieces && !result; i++)
        result = cuda_piece_send(&f->rows.pieces[i]);
    if (!result)
        result = d->cu->host_call(d->refills.copy, arrived, f);
    if (result) {
        f->signal = UINT64_MAX; /* the next one takes its number, while copies may still read it */
        return cuda_fail(d->cu, result, d->id, "replacing an expert", err);
    }
    *value = ++d->transfers_asked;
    return OATO_OK;
}

oato_status cuda_refills_open(struct cuda_device *d, struct oato_error *err)
{
    cuda_enter(d);
    return d->refills.copy ? OATO_OK : cuda_streams_open(d, &d->refills, "experts", err);
}

void cuda_refills_wait(struct cuda_device *d)
{
    if (d->refilled)
        cuda_streams_wait(d, &d->refills);
}

void cuda_refills_close(struct cuda_device *d)
{
    cuda_streams_close(d, &d->refills);
    for (struct cuda_refill *f; (f = d->refilled);) {
        d->refilled = f->next;
        refill_free(f);
    }
}
