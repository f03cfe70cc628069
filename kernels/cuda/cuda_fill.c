/*
 * cuda_fill.c - the host's side of sending a weight: rows of the model's file are brought to the
 * device's layout in a buffer, by several threads, because one alone would hold up the link.
 */
#include "kernels/cuda/cuda_device.h"

#include <sched.h>

enum {
    SHARES = 4,           /* of a piece, for each thread: they do not end all at once */
    ALONE_BYTES = 1 << 18 /* a piece as small as this is not worth waking anybody */
};

/* Rows [begin, end) of the weight to their places in the piece. */
static void fill_rows(const struct cuda_piece *p, uint64_t begin, uint64_t end)
{
    const struct weight_source *s = &p->weight->source;
    const uint64_t at = begin - p->begin;
    if (s->use == WEIGHT_COLUMNS) {
        struct oato_weight whole = p->weight->weight;
        whole.data = p->to;
        columns_prepare(s, &whole, (int64_t)begin, (int64_t)end);
    } else if (s->use != WEIGHT_VECTOR) {
        struct weight_source piece = *s;
        piece.row_begin = s->row_begin + (int64_t)p->begin;
        piece.row_end = s->row_begin + (int64_t)p->end;
        cuda_layout_rows(&piece, p->to, (int64_t)at, (int64_t)(end - p->begin));
    } else {
        for (uint64_t r = at; r < end - p->begin; r++)
            quants_row(s->dtype, weight_source_row(s, (int64_t)(p->begin + r)), s->k,
                       floats(p->to) + r * (uint64_t)s->k);
    }
}

static void fill_shares(struct cuda_crew *c)
{
    const struct cuda_piece *p = c->piece;
    for (;;) {
        const uint64_t begin = atomic_fetch_add(&c->next, c->share);
        if (begin >= p->end)
            return;
        fill_rows(p, begin, begin + c->share < p->end ? begin + c->share : p->end);
    }
}

static void *crew_main(void *arg)
{
    struct cuda_crew *c = arg;
    pthread_mutex_lock(&c->lock);
    pthread_mutex_unlock(&c->lock);
    for (;;) {
        pthread_barrier_wait(&c->begins);
        if (c->closing)
            return NULL;
        fill_shares(c);
        pthread_barrier_wait(&c->ends);
    }
}

void cuda_piece_fill(void *user)
{
    const struct cuda_piece *p = user;
    struct cuda_crew *c = &p->weight->device->crew;
    /* a refill is in no hurry: the crew may be at work for a step, and so may all cores */
    const bool refill = p->streams == &p->weight->device->refills;
    atomic_fetch_add(&p->weight->device->filled, 1);
    if (p->bytes <= ALONE_BYTES || !c->n || refill) {
        fill_rows(p, p->begin, p->end);
        return;
    }
    c->piece = p;
    c->share = (p->end - p->begin) / (uint64_t)(SHARES * (c->n + 1)) + 1;
    if (p->weight->source.use == WEIGHT_COLUMNS)
        c->share = size_align(c->share, 64); /* rows that are prepared together */
    atomic_store(&c->next, p->begin);
    pthread_barrier_wait(&c->begins);
    fill_shares(c);
    pthread_barrier_wait(&c->ends);
}

/* As many as half of the cores: the others are for what computes meanwhile. Fewer do as well. */
void cuda_crew_open(struct cuda_crew *c)
{
    cpu_set_t cores;
    int n = sched_getaffinity(0, sizeof cores, &cores) ? 1 : CPU_COUNT(&cores) / 2;
    pthread_mutex_init(&c->lock, NULL);
    pthread_mutex_lock(&c->lock);
    for (n = n < CUDA_CREW ? n : CUDA_CREW; c->n < n; c->n++) {
        if (pthread_create(&c->thread[c->n], NULL, crew_main, c))
            break;
        pthread_setname_np(c->thread[c->n], "oato-cuda-fill");
    }
    pthread_barrier_init(&c->begins, NULL, (unsigned)c->n + 1);
    pthread_barrier_init(&c->ends, NULL, (unsigned)c->n + 1);
    pthread_mutex_unlock(&c->lock);
}

void cuda_crew_close(struct cuda_crew *c)
{
    c->closing = true;
    pthread_barrier_wait(&c->begins);
    for (int i = 0; i < c->n; i++)
        pthread_join(c->thread[i], NULL);
    pthread_barrier_destroy(&c->begins);
    pthread_barrier_destroy(&c->ends);
    pthread_mutex_destroy(&c->lock);
}
