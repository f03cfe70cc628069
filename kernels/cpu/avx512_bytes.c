/*
 * avx512_bytes.c - quantised matrix times columns of bytes: class u8b32. An instruction does twice
 * the products that avx512_words.c gets of one.
 *
 *   for each panel of 64 rows                            (a unit of the threads)
 *     for each up to 512 columns                         their results rest in 128 KiB of L2
 *       for each 256 of k                                weights of the panel -> int8 and scales,
 *                                                        26 KiB of L1, while the next are
 *                                                        prefetched
 *         for each about 5 columns                       their 1920 bytes stay in L1
 *           for each 2 groups of 16 rows                 10 int32 and 10 float32 accumulators in
 *                                                        registers
 *
 * 32 k of a vector of results are 8 vpdpbusd, one multiplication of the scales and two
 * multiply-adds (three with a minimum), all on the same two pipes: 73 % (67 %) of the vpdpbusd
 * peak is the limit. Eight sums barely hide the latency of vpdpbusd, ten do. Each block of a tile
 * fetches the block of the next one: asked for all at once, they stall the loads of the sums.
 * Storing the results between chunks loses nothing: a row is one chain of multiply-adds in order of
 * k, whatever T. Measured at T = 512 on a Zen 5 core: 65 % (60 %) of the peak.
 */
#include "kernels/cpu/avx512_internal.h"

enum {
    PANEL_GROUPS = MATRIX_ROWS / LANES,
    CHUNK = 256,
    TILE_GROUPS = 2,
    TILE_COLUMNS = 5,
    WIDEST_TILE = 6, /* when columns do not divide: about 5, but never 1 or 2 of many */
    COLUMN_BLOCK = 512,
};

/* 32 k of a group, ready for the tile. Scales, and scale * sum of the weights, are for 32 k, or
 * for each 16. */
struct group_block {
    int8_t quad[8][LANES][4];
    float scale[2][LANES];
    float scaled_sum[2][LANES];
    float min[2][LANES];
};

struct panel_scratch {
    struct group_block block[CHUNK / 32][PANEL_GROUPS];
    float y[COLUMN_BLOCK][MATRIX_ROWS];
};

/* ---------------------------------------------------------------------------------- panel - */

/* 32 k of a group; scale[1] and min[1] are used where 16 elements share one. */
AVX2_INLINE void unpack_32(const struct lanes_format *f, const uint8_t *body, const __m512 *scale,
                           const __m512 *min, struct group_block *to)
{
    __m512i sum[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
    __m512i low = sum[0], high = low;
    struct grid_words grid = {low, low, low};
    UNROLLED (i, 8) {
        __m512i x = avx512_quad_bytes(f, body, i, &low, &high, &grid);
        if (f->offset)
            x = _mm512_sub_epi8(x, _mm512_set1_epi8((char)f->offset));
        __m512i *s = &sum[f->sub == 16 && i >= 4];
        *s = _mm512_dpbusd_epi32(*s, _mm512_set1_epi8(1), x);
        _mm512_storeu_si512(to->quad[i], x);
    }
    UNROLLED (i, 32 / f->sub) {
        _mm512_storeu_ps(to->scale[i], scale[i]);
        _mm512_storeu_ps(to->scaled_sum[i], _mm512_mul_ps(scale[i], _mm512_cvtepi32_ps(sum[i])));
        if (f->has_min)
            _mm512_storeu_ps(to->min[i], min[i]);
    }
}

/* One block along k. */
AVX2_INLINE void unpack_block(const struct lanes_format *f, const uint8_t *w,
                              struct group_block *to)
{
    uint8_t room[SUBS_BYTES];
    const struct block_head head = block_head(f, w, room);
    const uint8_t *body = w + LANES * f->head;
    for (int b = 0; b < f->block / 32; b++, body += LANES * f->body, to += PANEL_GROUPS) {
        const int parts = 32 / f->sub;
        vec scale[2], min[2];
        UNROLLED (i, parts) {
            scale[i] = sub_scale(f, &head, parts * b + i);
            min[i] = sub_min(f, &head, parts * b + i);
        }
        unpack_32(f, body, scale, min, to);
    }
}

AVX2_INLINE void unpack_blocks(const struct lanes_format *f, const uint8_t *w, int blocks,
                               struct group_block *to)
{
    const int64_t bytes = LANES * lanes_block_bytes(f);
    for (int b = 0; b < blocks; b += f->block / 32, w += bytes)
        unpack_block(f, w, to + b * PANEL_GROUPS);
}

/* `blocks` times 32 k of a group, from w on. */
static void unpack(oato_dtype dtype, const uint8_t *w, int blocks, struct group_block *to)
{
#define UNPACK(type, ...)                                                                          \
    case DT_##type: unpack_blocks(&lanes_##type, w, blocks, to); break;
    switch ((int)dtype) {
        BLOCK_TYPES(UNPACK)
    }
#undef UNPACK
}

/* ---------------------------------------------------------------------------------- tiles - */

/* Columns of a tile: their packed inputs from the chunk on, and where their sums are. */
struct tile_columns {
    const uint8_t *x[WIDEST_TILE];  /* struct lanes_bytes */
    const float *from[WIDEST_TILE]; /* results so far */
    float *to[WIDEST_TILE];
    __mmask16 mask[TILE_GROUPS];
    uint64_t ahead; /* bytes from x to the next tile's */
    int blocks;     /* 32 of k each */
    bool first;
};

/* 2 groups x `columns` of sums. sub: elements that share a scale. */
AVX2_INLINE void tile(const struct group_block *p, const struct tile_columns *t, int columns,
                      int sub, bool has_min)
{
    __m512 acc[WIDEST_TILE][TILE_GROUPS];
    const uint8_t *x[WIDEST_TILE];
    UNROLLED (c, columns) {
        x[c] = t->x[c];
        UNROLLED (g, TILE_GROUPS)
            acc[c][g] = t->first ? _mm512_setzero_ps()
                                 : _mm512_maskz_loadu_ps(t->mask[g], t->from[c] + LANES * g);
    }
    const int64_t bytes = t->blocks * (int64_t)sizeof(struct lanes_bytes);
    for (int64_t at = 0; at < bytes; at += (int64_t)sizeof(struct lanes_bytes), p += PANEL_GROUPS) {
        UNROLLED (c, columns)
            _mm_prefetch((const char *)x[c] + at + t->ahead, _MM_HINT_T0);
        UNROLLED (part, 32 / sub) {
            __m512i sum[WIDEST_TILE][TILE_GROUPS];
            UNROLLED (c, columns)
                UNROLLED (g, TILE_GROUPS)
                    sum[c][g] = _mm512_setzero_si512();
            UNROLL
            for (int i = part * (sub / 4); i < (part + 1) * (sub / 4); i++) {
                __m512i w[TILE_GROUPS];
                UNROLLED (g, TILE_GROUPS)
                    w[g] = _mm512_loadu_si512(p[g].quad[i]);
                UNROLLED (c, columns) {
                    __m512i q = avx512_pair_at(x[c] + at + 4 * i);
                    UNROLLED (g, TILE_GROUPS)
                        sum[c][g] = _mm512_dpbusd_epi32(sum[c][g], q, w[g]);
                }
            }
            UNROLLED (c, columns) {
                const uint8_t *block = x[c] + at;
                const __m512 step = avx512_float_at(block + offsetof(struct lanes_bytes, step));
                const __m512 min = avx512_float_at(block + offsetof(struct lanes_bytes, min));
                const __m512 total = has_min ? avx512_total_at(block, part, sub) : min;
                UNROLLED (g, TILE_GROUPS) {
                    __m512 s = _mm512_mul_ps(step, _mm512_loadu_ps(p[g].scale[part]));
                    acc[c][g] = _mm512_fmadd_ps(s, _mm512_cvtepi32_ps(sum[c][g]), acc[c][g]);
                    acc[c][g] =
                        _mm512_fmadd_ps(min, _mm512_loadu_ps(p[g].scaled_sum[part]), acc[c][g]);
                    if (has_min)
                        acc[c][g] =
                            _mm512_fmadd_ps(total, _mm512_loadu_ps(p[g].min[part]), acc[c][g]);
                }
            }
        }
    }
    UNROLLED (c, columns)
        UNROLLED (g, TILE_GROUPS)
            _mm512_mask_storeu_ps(t->to[c] + LANES * g, t->mask[g], acc[c][g]);
}

/* The tile with its width known to the compiler. */
AVX2_INLINE void tile_widths(const struct group_block *p, const struct tile_columns *t, int columns,
                             int sub, bool has_min)
{
    switch (columns) {
    case 1: tile(p, t, 1, sub, has_min); break;
    case 2: tile(p, t, 2, sub, has_min); break;
    case 3: tile(p, t, 3, sub, has_min); break;
    case 4: tile(p, t, 4, sub, has_min); break;
    case 5: tile(p, t, 5, sub, has_min); break;
    default: tile(p, t, 6, sub, has_min);
    }
}

/* By the elements that share a scale, and one more where there are minima. */
static void tile_run(const struct lanes_format *f, const struct group_block *p,
                     const struct tile_columns *t, int columns)
{
    switch (f->sub + f->has_min) {
    case 16: tile_widths(p, t, columns, 16, false); break;
    case 17: tile_widths(p, t, columns, 16, true); break;
    case 32: tile_widths(p, t, columns, 32, false); break;
    default: tile_widths(p, t, columns, 32, true);
    }
}

/* One chunk of k of one panel of rows for a block of columns. */
struct panel_job {
    const struct matrix_job *j;
    const struct lanes_format *f;
    struct panel_scratch *s;
    int64_t begin, end;  /* rows */
    int64_t c0, columns; /* the block */
    int64_t k0, n;       /* the chunk */
};

static void panel_columns(const struct panel_job *x)
{
    const int64_t at = x->k0 / 32 * (int64_t)sizeof(struct lanes_bytes);
    const int64_t least = (x->columns + WIDEST_TILE - 1) / WIDEST_TILE;
    const int64_t tiles = max_i64(least, (x->columns + 1) / TILE_COLUMNS);
    const bool last = x->k0 + x->n == x->j->w->k;
    struct tile_columns t = {.blocks = (int)(x->n / 32), .first = x->k0 == 0};
    for (int64_t i = 0; i < tiles; i++) {
        const int64_t from = x->columns * i / tiles;
        const int columns = (int)(x->columns * (i + 1) / tiles - from);
        const uint64_t stride = x->j->pack_stride;
        for (int c = 0; c < columns; c++)
            t.x[c] = x->j->packed + (uint64_t)(x->c0 + from + c) * stride + at;
        t.ahead = (uint64_t)columns * stride;
        for (int g = 0; g * LANES < x->end - x->begin; g += TILE_GROUPS) {
            const int64_t row = g * LANES, left = x->end - x->begin - row;
            t.mask[0] = avx512_mask(left);
            t.mask[1] = avx512_mask(max_i64(left - LANES, 0));
            for (int c = 0; c < columns; c++) {
                t.from[c] = t.to[c] = x->s->y[from + c] + row;
                if (last)
                    t.to[c] = x->j->y + (x->c0 + from + c) * x->j->y_stride + x->begin + row;
            }
            tile_run(x->f, x->s->block[0] + g, &t, columns);
        }
    }
}

/* Groups of the panel, an even number: where there is no other, the last one stands twice. */
static void panel_unpack(const struct panel_job *x, bool last_block)
{
    const int64_t k = x->j->w->k, block_bytes = LANES * lanes_block_bytes(x->f);
    const int64_t stride = k / x->f->block * block_bytes;
    const int64_t groups = (x->end - x->begin + LANES - 1) / LANES;
    int64_t next = min_i64(CHUNK, k - x->k0 - x->n), jump = 0;
    if (!next && last_block) { /* the panel behind this one begins with: */
        next = min_i64(CHUNK, k);
        jump = (PANEL_GROUPS - 1) * stride;
    }
    for (int64_t g = 0; g < (groups + 1) / 2 * 2; g++) {
        const uint8_t *w = x->j->w->data + (x->begin / LANES + min_i64(g, groups - 1)) * stride +
                           x->k0 / x->f->block * block_bytes;
        const uint8_t *after = w + x->n / x->f->block * block_bytes + jump;
        for (int64_t i = 0; i < next / x->f->block * block_bytes; i += 64)
            _mm_prefetch((const char *)after + i, _MM_HINT_T1);
        unpack(x->f->dtype, w, (int)(x->n / 32), &x->s->block[0][g]);
    }
}

/* Up to so many columns are faster without a panel. On a Zen 4 core Q4_0 gains 9 %, Q8_0 and Q4_K 5
 * % at 24 columns, and types with more bits to put together lose 5 to 8 %. */
static int64_t stream_columns(const struct lanes_format *f)
{
    const bool plain = f->body >= 16 && !f->high && f->sub == 32 && !f->values;
    return f->grid ? AVX512_STREAM_GRID : plain ? AVX512_STREAM_MOST : AVX512_STREAM;
}

static void matrix_rows(const struct matrix_job *j, int64_t begin, int64_t end, uint8_t *scratch)
{
    const int64_t k = j->w->k, blocks = (j->T + COLUMN_BLOCK - 1) / COLUMN_BLOCK;
    struct panel_job x = {.j = j, .s = (struct panel_scratch *)scratch};
    x.f = lanes_format_of(j->w->dtype);
    if (j->T <= stream_columns(x.f)) {
        avx512_bytes_stream(j, begin, end);
        return;
    }
    for (x.begin = begin; x.begin < end; x.begin += MATRIX_ROWS) {
        x.end = min_i64(end, x.begin + MATRIX_ROWS);
        for (int64_t i = 0; i < blocks; i++) {
            x.c0 = j->T * i / blocks;
            x.columns = j->T * (i + 1) / blocks - x.c0;
            for (x.k0 = 0; x.k0 < k; x.k0 += CHUNK) {
                x.n = min_i64(CHUNK, k - x.k0);
                panel_unpack(&x, i + 1 == blocks);
                panel_columns(&x);
            }
        }
    }
}

const struct matrix_class avx512_bytes = {
    .numerics = "u8b32",
    .pack_bytes = lanes_bytes_pack_bytes,
    .pack = lanes_bytes_pack,
    .scratch_bytes = sizeof(struct panel_scratch),
    .rows = matrix_rows,
    .listed = avx512_bytes_listed,
};
