/*
 * avx2_vector.h - quantised matrix times up to 8 columns of bytes, class u8b32, for avx2.c and
 * avxvnni.c: decode, alone or batched, and the tails of prompts. A thread reads weights once, in
 * one stream where memory is the limit, prefetched.
 *
 *   for each group of 8 rows
 *     for each up to 4 columns         of two passes the second finds the group in L1 or L2
 *       for each 32 of k
 *         for each 4 of these          unpacked to bytes, in registers
 *           for each column            multiplied with the input's quad, broadcast
 *         for each column              multiply-adds of the scaled integers to the results
 *
 * Without VNNI products are pairs added in 16 bits (vpmaddubsw), as many as fit: eight quads of 4
 * unsigned bits do where the sum starts at -2^15. Weights of 8 bits are multiplied with the halves
 * of the input's bytes, of 4 bits each, and neither sum of eight overflows. Offsets of the weights
 * are taken from the integers, by the sum that the input brings. Integers are exact and end in the
 * same multiply-adds, in order of k, as in avx2_matrix.h: a row has the same bits whatever T.
 */
#ifndef OATO_AVX2_VECTOR_H
#define OATO_AVX2_VECTOR_H

#include "kernels/cpu/avx2_quads.h"

enum {
    PREFETCH_BYTES = 8192, /* twice what memory delivers during its own latency */
    PASS_COLUMNS = 4,
    HALVES = 8, /* blocks of 32 k */
};

#ifndef __AVXVNNI__
/* The low and high 4 bits of each byte of an input, for HALVES blocks: so far ahead of their use
 * that they are in the cache when single quads of what was stored as vectors are loaded. */
struct input_halves {
    _Alignas(64) uint8_t q[HALVES][2][32];
};

static void halves_fill(struct input_halves *h, const uint8_t *x, int64_t blocks)
{
    const __m256i mask = _mm256_set1_epi8(15);
    for (int64_t b = 0; b < blocks; b++, x += sizeof(struct lanes_bytes)) {
        const __m256i q = avx2_vector_at(x, 0);
        const __m256i high = _mm256_and_si256(_mm256_srli_epi16(q, 4), mask);
        _mm256_store_si256((__m256i *)h->q[b][0], _mm256_and_si256(q, mask));
        _mm256_store_si256((__m256i *)h->q[b][1], high);
    }
}
#endif

/* Where the columns of a pass are, and their results so far. */
struct pass {
#ifndef __AVXVNNI__
    struct input_halves half[PASS_COLUMNS]; /* for weights of 8 bits, of some blocks of 32 k */
    int at;                                 /* the block at hand */
#endif
    const uint8_t *x[PASS_COLUMNS]; /* struct lanes_bytes of the 32 k at hand */
    int64_t left;                   /* blocks from there to the end */
    __m256 acc[PASS_COLUMNS];
};

/* The sum of a column's products with a group, as far as it is. */
struct dot {
    __m256i n;
#ifndef __AVXVNNI__
    __m256i words[2]; /* not in n yet; of 8 bits, what is to count once and 16 times */
#endif
};

/* Without this gcc turns the chain of exact additions into a tree, whose leaves are more than there
 * are registers. */
AVX2_INLINE void keep_chain(__m256i *sum)
{
    __asm__("" : "+x"(*sum));
}

/* The weights' own sum: so far, and of a lane's four bytes or two words in the end. */
AVX2_INLINE __m256i weights_add(const struct lanes_format *f, __m256i sum, __m256i w, bool first)
{
    if (lanes_sums_fit_bytes(f))
        return first ? w : _mm256_add_epi8(sum, w);
    const __m256i ones = _mm256_set1_epi8(1);
#ifdef __AVXVNNI__
    return _mm256_dpbusd_avx_epi32(first ? _mm256_setzero_si256() : sum, ones, w);
#else
    w = _mm256_maddubs_epi16(ones, w);
    return first ? w : _mm256_add_epi16(sum, w);
#endif
}

AVX2_INLINE __m256i weights_total(const struct lanes_format *f, __m256i sum)
{
    const bool bytes = lanes_sums_fit_bytes(f), is_unsigned = bytes && f->sub == 32;
    const __m256i start = _mm256_set1_epi32(lanes_offset_in_sums(f) ? -32 * f->offset : 0);
    const __m256i ones = _mm256_set1_epi8(1);
#ifdef __AVXVNNI__
    if (!bytes)
        return sum;
    return is_unsigned ? _mm256_dpbusd_avx_epi32(start, sum, ones)
                       : _mm256_dpbusd_avx_epi32(start, ones, sum);
#else
    if (bytes)
        sum = is_unsigned ? _mm256_maddubs_epi16(sum, ones) : _mm256_maddubs_epi16(ones, sum);
    sum = _mm256_madd_epi16(sum, _mm256_set1_epi16(1));
    return lanes_offset_in_sums(f) ? _mm256_add_epi32(sum, start) : sum;
#endif
}

/* What the weights' offset makes of the products, and more. */
AVX2_INLINE __m256i offset_start(const struct lanes_format *f, const uint8_t *x, int more)
{
    __m256i start = _mm256_set1_epi32(more);
    if (!lanes_offset_in_sums(f))
        return start;
    const __m256i total = avx2_quad_at(x + offsetof(struct lanes_bytes, total));
    return _mm256_sub_epi32(start, _mm256_slli_epi32(total, f->offset == 1   ? 0
                                                            : f->offset == 8 ? 3
                                                                             : 4));
}

#ifdef __AVXVNNI__
/* Quad i of the block, number `at` of those that share a scale. */
AVX2_INLINE void dot_quad(const struct lanes_format *f, const struct pass *p, int c, int i, int at,
                          __m256i w, struct dot *d)
{
    const __m256i start = at ? d->n : offset_start(f, p->x[c], 0);
    d->n = _mm256_dpbusd_avx_epi32(start, avx2_quad_at(p->x[c] + 4 * i), w);
}

AVX2_INLINE __m256i dot_end(const struct lanes_format *f, const struct pass *p, int c,
                            const struct dot *d)
{
    (void)f;
    (void)p;
    (void)c;
    return d->n;
}
#else
AVX2_INLINE bool is_wide(const struct lanes_format *f)
{
    return f->body == LANES_BYTES || f->largest > 31;
}

AVX2_INLINE int weight_largest(const struct lanes_format *f)
{
    if (f->values)
        return f->largest;
    return f->offset && !lanes_offset_in_sums(f) ? f->offset : (1 << f->body / 4) - 1;
}

/* Quads whose products fit in 16 bits, and where they start. */
AVX2_INLINE int quads_fit(const struct lanes_format *f)
{
    const int limit = f->values || (f->offset && !lanes_offset_in_sums(f)) ? 32767 : 65535;
    const int fit = limit / (2 * 255 * weight_largest(f)), most = f->sub / 4;
    return fit >= 8 && most == 8 ? 8 : fit >= 4 ? 4 : 2;
}

AVX2_INLINE int words_start(const struct lanes_format *f)
{
    return 2 * 255 * weight_largest(f) * quads_fit(f) > 32767 ? -32768 : 0;
}

AVX2_INLINE void dot_quad(const struct lanes_format *f, const struct pass *p, int c, int i, int at,
                          __m256i w, struct dot *d)
{
    if (is_wide(f)) {
        UNROLLED (h, 2) {
            const __m256i n = _mm256_maddubs_epi16(avx2_quad_at(p->half[c].q[p->at][h] + 4 * i), w);
            d->words[h] = at ? _mm256_add_epi16(d->words[h], n) : n;
            keep_chain(&d->words[h]);
        }
        return;
    }
    const int fit = quads_fit(f), start = words_start(f);
    const __m256i n = _mm256_maddubs_epi16(avx2_quad_at(p->x[c] + 4 * i), w);
    if (at % fit)
        d->words[0] = _mm256_add_epi16(d->words[0], n);
    else
        d->words[0] = start ? _mm256_add_epi16(n, _mm256_set1_epi16((int16_t)start)) : n;
    keep_chain(&d->words[0]);
    if (at % fit == fit - 1) {
        const __m256i sum = _mm256_madd_epi16(d->words[0], _mm256_set1_epi16(1));
        d->n = at < fit ? sum : _mm256_add_epi32(d->n, sum);
    }
}

AVX2_INLINE __m256i dot_end(const struct lanes_format *f, const struct pass *p, int c,
                            const struct dot *d)
{
    if (is_wide(f))
        return _mm256_add_epi32(_mm256_madd_epi16(d->words[0], _mm256_set1_epi16(1)),
                                _mm256_madd_epi16(d->words[1], _mm256_set1_epi16(16)));
    const int from_start = -words_start(f) * 2 * (f->sub / 4 / quads_fit(f));
    if (!lanes_offset_in_sums(f) && !from_start)
        return d->n;
    return _mm256_add_epi32(d->n, offset_start(f, p->x[c], from_start));
}
#endif

/* n bytes so far behind p. */
AVX2_INLINE void prefetch(const uint8_t *p, int n)
{
    for (int i = 0; i < n; i += 64)
        _mm_prefetch((const char *)p + PREFETCH_BYTES + i, _MM_HINT_T0);
}

/* The elements of 32 that share scale (and min) number `part`. */
AVX2_INLINE void part_dot(const struct lanes_format *f, const uint8_t *body, int part, __m256 scale,
                          __m256 min, struct pass *p, int columns, struct grid_words *grid)
{
    const int quads = f->sub / 4;
    __m256i weights = _mm256_setzero_si256();
    struct dot dot[PASS_COLUMNS];
    UNROLLED (at, quads) {
        const int i = part * quads + at;
        __m256i w = avx2_quad_bytes(f, body, i, grid);
        if (f->offset && !lanes_offset_in_sums(f))
            w = _mm256_sub_epi8(w, _mm256_set1_epi8((char)f->offset));
        weights = weights_add(f, weights, w, at == 0);
        UNROLLED (c, columns)
            dot_quad(f, p, c, i, at, w, &dot[c]);
    }
    const __m256 sum = _mm256_mul_ps(scale, _mm256_cvtepi32_ps(weights_total(f, weights)));
    UNROLLED (c, columns) {
        const struct lanes_bytes *x = (const struct lanes_bytes *)p->x[c];
        const __m256 n = _mm256_cvtepi32_ps(dot_end(f, p, c, &dot[c]));
        __m256 acc = p->acc[c];
        acc = _mm256_fmadd_ps(_mm256_mul_ps(_mm256_set1_ps(x->step), scale), n, acc);
        acc = _mm256_fmadd_ps(_mm256_set1_ps(x->min), sum, acc);
        if (f->has_min) {
            const float total = f->sub == 32 ? x->sum : lanes_bytes_half(x, part);
            acc = _mm256_fmadd_ps(_mm256_set1_ps(total), min, acc);
        }
        p->acc[c] = acc;
    }
}

/* Before the 32 k from p->x on. */
AVX2_INLINE void pass_enter(const struct lanes_format *f, struct pass *p, int columns)
{
#ifdef __AVXVNNI__
    (void)f;
    (void)p;
    (void)columns;
#else
    if (!is_wide(f) || ++p->at < HALVES)
        return;
    p->at = 0;
    for (int c = 0; c < columns; c++)
        halves_fill(&p->half[c], p->x[c], min_i64(HALVES, p->left));
#endif
}

AVX2_INLINE void block_dot(const struct lanes_format *f, const uint8_t *w, struct pass *p,
                           int columns)
{
    uint8_t room[SUBS_BYTES];
    const struct block_head head = block_head(f, w, room);
    const uint8_t *body = w + LANES * f->head;
    prefetch(w, LANES * (f->block == 32 ? f->head + f->body : f->head));
    for (int s = 0; s < f->block / 32; s++, body += LANES * f->body) {
        if (f->block != 32)
            prefetch(body, LANES * f->body);
        pass_enter(f, p, columns);
        struct grid_words grid; /* of both parts */
        UNROLLED (part, 32 / f->sub) {
            const int i = s * (32 / f->sub) + part;
            part_dot(f, body, part, sub_scale(f, &head, i), sub_min(f, &head, i), p, columns,
                     &grid);
        }
        p->left--;
        UNROLLED (c, columns)
            p->x[c] += sizeof(struct lanes_bytes);
    }
}

/* The group from row r on, columns [c0, c0 + columns), known to the compiler. */
AVX2_INLINE void pass_run(const struct lanes_format *f, const struct matrix_job *j, int64_t r,
                          int64_t end, int64_t c0, int columns)
{
    const int64_t block = LANES * lanes_block_bytes(f), blocks = j->w->k / f->block;
    const uint8_t *w = j->w->data + r / LANES * blocks * block;
    struct pass p;
    p.left = j->w->k / 32;
#ifndef __AVXVNNI__
    p.at = HALVES - 1;
#endif
    UNROLLED (c, columns) {
        p.x[c] = j->packed + (uint64_t)(c0 + c) * j->pack_stride;
        p.acc[c] = _mm256_setzero_ps();
    }
    for (int64_t i = 0; i < blocks; i++, w += block)
        block_dot(f, w, &p, columns);
    UNROLLED (c, columns)
        _mm256_maskstore_ps(j->y + (c0 + c) * j->y_stride + r, avx2_mask(end - r), p.acc[c]);
}

AVX2_INLINE void passes(const struct lanes_format *f, const struct matrix_job *j, int64_t begin,
                        int64_t end)
{
    const int64_t n = (j->T + PASS_COLUMNS - 1) / PASS_COLUMNS;
    for (int64_t r = begin; r < end; r += LANES) {
        if (r + LANES >= end)
            avx2_prefetch_next(j, PREFETCH_BYTES);
        for (int64_t i = 0; i < n; i++) {
            const int64_t c0 = j->T * i / n;
            switch (j->T * (i + 1) / n - c0) {
            case 1: pass_run(f, j, r, end, c0, 1); break;
            case 2: pass_run(f, j, r, end, c0, 2); break;
            case 3: pass_run(f, j, r, end, c0, 3); break;
            default: pass_run(f, j, r, end, c0, 4);
            }
        }
    }
}

static void matrix_stream(const struct matrix_job *j, int64_t begin, int64_t end)
{
#define PASSES(type, ...)                                                                          \
    case DT_##type: passes(&lanes_##type, j, begin, end); break;
    switch ((int)j->w->dtype) {
        BLOCK_TYPES(PASSES)
    }
#undef PASSES
}

#endif
