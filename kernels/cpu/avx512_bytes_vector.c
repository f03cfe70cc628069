/*
 * avx512_bytes_vector.c - quantised matrix times up to 24 columns of bytes, class u8b32: decode,
 * alone or batched, and the tails of prompts. Memory is the limit for one and two columns, and a
 * thread reads one stream of weights once, prefetched; for more arithmetic is, and two groups of 16
 * rows share what is loaded of an input.
 *
 *   for each one or two groups
 *     for each up to 4 columns         of several passes all but the first find the groups in L2
 *       for each 32 of k
 *         for each 4 of these          unpacked to bytes, in registers
 *           for each column            a vpdpbusd per group with the input's quad, broadcast
 *         for each column              multiply-adds of the scaled integers to the results
 *
 * Offsets of the weights are the start value of the integers, where the input brings the sum that
 * they need. Integers are exact and end in the same multiply-adds, in order of k, as in
 * avx512_bytes.c: a row has the same bits whatever T.
 */
#include "kernels/cpu/avx512_dot.h"

enum {
    PREFETCH_BYTES = 6144, /* about what memory delivers during its own latency, and half again */
    ALONE_COLUMNS = 2,     /* up to so many one group at a time is the faster stream */
};

/* n bytes so far ahead of each group's w. */
AVX2_INLINE void prefetch(const uint8_t *const *w, int64_t ahead, int n, int groups)
{
    UNROLLED (g, groups)
        for (int i = 0; i < n; i += 64)
            _mm_prefetch((const char *)w[g] + ahead + i, _MM_HINT_T0);
}

/* A block of each group; prefetches its bytes `ahead`. */
AVX2_INLINE void stream_dot(const struct lanes_format *f, const uint8_t *const *w, int64_t ahead,
                            struct pass *p, int groups, int columns)
{
    const uint8_t *body[MOST_GROUPS];
    UNROLLED (g, groups)
        body[g] = w[g] + LANES * f->head;
    prefetch(w, ahead, LANES * (f->block == 32 ? f->head + f->body : f->head), groups);
    block_dot(f, w, body, f->block == 32 ? 0 : ahead, p, groups, columns);
}

/* `groups` groups from row r on, columns [c0, c0 + columns): both known to the compiler. */
AVX2_INLINE void pass_run(const struct lanes_format *f, const struct matrix_job *j, int64_t r,
                          int64_t end, int64_t c0, int groups, int columns)
{
    const int64_t block = LANES * lanes_block_bytes(f), group = j->w->k / f->block * block;
    const bool twice = groups == 2 && end - r <= LANES; /* there is no second group */
    const uint8_t *w[MOST_GROUPS];
    struct pass p;
    UNROLLED (g, groups)
        w[g] = j->w->data + (r / LANES + (twice ? 0 : g)) * group;
    UNROLLED (c, columns) {
        p.x[c] = j->packed + (uint64_t)(c0 + c) * j->pack_stride;
        UNROLLED (g, groups)
            p.acc[c][g] = _mm512_setzero_ps();
    }
    for (int64_t left = group; left > 0; left -= block) {
        /* A group ends where the next one begins: of several, where the other already is. */
        const int64_t ahead = PREFETCH_BYTES + (left > PREFETCH_BYTES ? 0 : (groups - 1) * group);
        stream_dot(f, w, ahead, &p, groups, columns);
        UNROLLED (g, groups)
            w[g] += block;
    }
    UNROLLED (c, columns)
        UNROLLED (g, groups) {
            const int64_t row = r + LANES * g;
            _mm512_mask_storeu_ps(j->y + (c0 + c) * j->y_stride + row,
                                  avx512_mask(max_i64(end - row, 0)), p.acc[c][g]);
        }
}

typedef void pass_fn(const struct matrix_job *j, int64_t r, int64_t end, int64_t c0);

/* The passes of a type, by groups and columns. */
struct type_passes {
    pass_fn *run[MOST_GROUPS + 1][PASS_COLUMNS + 1];
};

/* A function for each: of a larger one the compiler keeps too little in registers. */
#define PASS(type, groups, columns)                                                                \
    __attribute__((noinline)) static void pass_##type##_##groups##columns(                         \
        const struct matrix_job *j, int64_t r, int64_t end, int64_t c0)                            \
    {                                                                                              \
        pass_run(&lanes_##type, j, r, end, c0, groups, columns);                                   \
    }
#define PASSES(type, ...)                                                                          \
    PASS(type, 1, 1)                                                                               \
    PASS(type, 1, 2)                                                                               \
    PASS(type, 2, 2)                                                                               \
    PASS(type, 2, 3)                                                                               \
    PASS(type, 2, 4)                                                                               \
    static const struct type_passes passes_##type = {                                              \
        {{NULL},                                                                                   \
         {NULL, pass_##type##_11, pass_##type##_12},                                               \
         {NULL, NULL, pass_##type##_22, pass_##type##_23, pass_##type##_24}}};
BLOCK_TYPES(PASSES)
#undef PASSES
#undef PASS

static const struct type_passes *passes_of(oato_dtype dtype)
{
#define PASSES(type, ...)                                                                          \
    case DT_##type: return &passes_##type;
    switch ((int)dtype) {
        BLOCK_TYPES(PASSES)
    }
#undef PASSES
    return NULL;
}

void avx512_bytes_stream(const struct matrix_job *j, int64_t begin, int64_t end)
{
    const struct type_passes *passes = passes_of(j->w->dtype);
    const int64_t n = (j->T + PASS_COLUMNS - 1) / PASS_COLUMNS;
    const int groups = j->T > ALONE_COLUMNS ? 2 : 1;
    for (int64_t r = begin; r < end; r += LANES * groups) {
        if (r + LANES * groups >= end)
            avx2_prefetch_next(j, PREFETCH_BYTES);
        for (int64_t i = 0; i < n; i++) {
            const int64_t c0 = j->T * i / n;
            passes->run[groups][j->T * (i + 1) / n - c0](j, r, end, c0);
        }
    }
}
