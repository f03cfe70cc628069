/*
 * amx.c - the amx table: avx512 for everything but matrix products of class `bf16`, which it adds
 * for prefill. Weights (of every type, F32 and F16 too) and inputs are rounded to bfloat16, nearest
 * even, and multiplied in tiles; sums are float32.
 *
 *   for each panel of up to 128 rows
 *     for each 4096 of k                                 weights of the panel -> bfloat16 tiles, at
 *                                                        most 1 MiB, half of an L2
 *       for each 2 blocks of up to 16 columns            their inputs: from L3 once, then from L2,
 *                                                        the next blocks' being prefetched there
 *         for each 2 groups of 16 rows                   2 x 2 tiles of sums in registers
 *           for each 32 of k                             4 loads of tiles, 4 products of tiles
 *
 * A product of tiles takes 16 cycles, a load 8: with 2 x 2 sums loads hide behind the products as
 * long as caches give 64 bytes a cycle (if L2 gives 48, three quarters of the peak are the limit).
 * 128 rows ask 8 bytes a cycle of L3 for inputs that L2 does not hold. Unpacking a tile of weights
 * is about 200 instructions, at T = 512 a fifth of its 32 products. These are figures of the
 * design, from the instructions' published costs: nothing here has been measured on a processor
 * with AMX. (A Zen 5 core unpacks a tile in 15 to 18 ns, F32 in 29.)
 *
 * A single block of columns goes over 4 groups at a time, so that its sums are four tiles too: two
 * would wait for each other. Blocks are equally high, as few as hold T columns; the last one may
 * repeat columns of the one before it, in the same 2 x 2. Thus one configuration serves an operator
 * and nothing is read or written beyond T columns.
 *
 * Bits: a result is a chain over the tiles of 32 k in order, whatever T, block or chunk; between
 * chunks it rests in y as the float32 that it is. Nothing is rounded that the tile would not round.
 */
#include "kernels/cpu/amx_tiles.h"
#include "kernels/cpu/avx512_internal.h"

enum {
    STEP = 32,    /* k of a tile of bfloat16 pairs */
    CHUNK = 4096, /* k of a panel */
    PANEL_ROWS = 128,
    QUAD = MATRIX_ROWS / LANES, /* groups */
};

/* Tiles of a block of sums 0 .. 3, inputs 4 and 5, weights 6 and 7. */
#define CONFIG(r)                                                                                  \
    {                                                                                              \
        .palette = 1, .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64},                               \
        .rows = {r, r, r, r, r, r, 16, 16},                                                        \
    }

/* By columns of a block. Constant, so that there is no store that could come late. */
static const struct amx_config configs[AMX_ROWS + 1] = {
    {.palette = 0}, CONFIG(1),  CONFIG(2),  CONFIG(3),  CONFIG(4),  CONFIG(5),
    CONFIG(6),      CONFIG(7),  CONFIG(8),  CONFIG(9),  CONFIG(10), CONFIG(11),
    CONFIG(12),     CONFIG(13), CONFIG(14), CONFIG(15), CONFIG(16),
};

static int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* Columns of each block. */
static int64_t block_columns(int64_t T)
{
    return T > 0 ? ceil_div(T, ceil_div(T, AMX_ROWS)) : 0;
}

/* ---------------------------------------------------------------------------------- inputs - */

/* k bfloat16, zeros to a multiple of STEP. */
static uint64_t amx_pack_bytes(int64_t k)
{
    /* An odd number of lines: columns begin in different sets of the caches. */
    return size_align((size_t)(2 * ceil_div(k, STEP) * STEP), 64) | 64;
}

static void amx_pack(int64_t k, const float *x, uint8_t *out)
{
    for (int64_t i = 0; i < k; i += STEP, out += AMX_ROW_BYTES) {
        const __m512 low = _mm512_maskz_loadu_ps(avx512_mask(k - i), x + i);
        const __mmask16 rest = k - i > 16 ? avx512_mask(k - i - 16) : 0;
        _mm512_storeu_si512(out, amx_round(_mm512_maskz_loadu_ps(rest, x + i + 16), low));
    }
}

/* --------------------------------------------------------------------------------- weights - */

/* Byte i of each lane's quad. */
AVX2_INLINE __m512 quad_element(__m512i quads, int i, bool is_signed)
{
    const unsigned bit = (unsigned)(8 * i);
    __m512i x = quads;
    if (is_signed) {
        x = i < 3 ? _mm512_slli_epi32(x, 24 - bit) : x;
        return _mm512_cvtepi32_ps(_mm512_srai_epi32(x, 24));
    }
    x = i ? _mm512_srli_epi32(x, bit) : x;
    return _mm512_cvtepi32_ps(i < 3 ? _mm512_and_si512(x, _mm512_set1_epi32(0xff)) : x);
}

/* One row of a tile of weights: for each of 16 rows the pair of its elements k and k + 1. */
AVX2_INLINE void put_pair(__m512 first, __m512 second, uint8_t *out)
{
    const __m512i both = amx_round(second, first);
    const __m512i order =
        _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                         21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    _mm512_storeu_si512(out, _mm512_permutexvar_epi16(order, both));
}

/* 32 k of a group: each integer times scale plus start. Where 16 elements share a scale the
 * second of the two is for the last 16 k. */
AVX2_INLINE void unpack_tile(const struct lanes_format *f, const uint8_t *body, const __m512 *scale,
                             const __m512 *start, uint8_t *out)
{
    const bool is_signed = f->body == LANES_BYTES || f->values;
    __m512i x = _mm512_setzero_si512(), high = x;
    struct grid_words grid = {x, x, x};
    UNROLLED (i, 8) {
        const int s = f->sub == 16 ? i / 4 : 0;
        const __m512i quads = avx512_quad_bytes(f, body, i, &x, &high, &grid);
        UNROLLED (h, 2) { /* bytes 0 and 2 are a pair, 1 and 3 the one after the next */
            const __m512 first = quad_element(quads, h, is_signed);
            const __m512 second = quad_element(quads, h + 2, is_signed);
            put_pair(_mm512_fmadd_ps(first, scale[s], start[s]),
                     _mm512_fmadd_ps(second, scale[s], start[s]),
                     out + AMX_ROW_BYTES * (i / 2 * 4 + i % 2 + 2 * h));
        }
    }
}

/* What puts the integers' offset right. */
AVX2_INLINE __m512 start_of(const struct lanes_format *f, __m512 scale)
{
    return _mm512_mul_ps(scale, _mm512_set1_ps((float)-f->offset));
}

enum { AHEAD = 4096 }; /* bytes; groups follow each other in memory */

AVX2_INLINE void prefetch_block(const uint8_t *w, int64_t bytes)
{
    for (int64_t i = 0; i < bytes; i += 64)
        _mm_prefetch((const char *)w + AHEAD + i, _MM_HINT_T0);
}

/* Blocks along k, `tiles` times 32; tiles lie `stride` bytes apart. */
AVX2_INLINE void unpack_blocks(const struct lanes_format *f, const uint8_t *w, int64_t tiles,
                               uint8_t *out, int64_t stride)
{
    const int head = LANES * f->head, body = LANES * f->body, parts = 32 / f->sub;
    const int in_block = f->block / 32;
    for (int64_t i = 0; i < tiles; i += in_block, w += head + in_block * body) {
        uint8_t room[SUBS_BYTES];
        const struct block_head h = block_head(f, w, room);
        prefetch_block(w, head + in_block * body);
        for (int b = 0; b < in_block; b++, out += stride) {
            vec scale[2], start[2];
            for (int p = 0; p < parts; p++) {
                scale[p] = sub_scale(f, &h, parts * b + p);
                start[p] = f->has_min ? sub_min(f, &h, parts * b + p) : start_of(f, scale[p]);
            }
            unpack_tile(f, w + head + b * body, scale, start, out);
        }
    }
}

/* n of k, the last tile filled with zeros. */
AVX2_INLINE void unpack_float(oato_dtype dtype, const uint8_t *w, int64_t n, uint8_t *out,
                              int64_t stride)
{
    const int bytes = LANES * (dtype == DT_F32 ? 4 : 2);
    const __m512 zero = _mm512_setzero_ps();
    for (int64_t i = 0; i < n; i += STEP, out += stride) {
        prefetch_block(w, STEP * bytes);
        for (int64_t p = 0; p < 16; p++, w += 2 * bytes) {
            const int64_t left = n - i - 2 * p;
            put_pair(left > 0 ? vec_load_float(dtype, w) : zero,
                     left > 1 ? vec_load_float(dtype, w + bytes) : zero, out + AMX_ROW_BYTES * p);
        }
    }
}

/* n of k of the group at w. */
static void unpack(oato_dtype dtype, const uint8_t *w, int64_t n, uint8_t *out, int64_t stride)
{
#define FLOATS(type, ...)                                                                          \
    case DT_##type:                                                                                \
        unpack_float(DT_##type, w, n, out, stride);                                                \
        break;
#define BLOCKS(type, ...)                                                                          \
    case DT_##type: unpack_blocks(&lanes_##type, w, n / STEP, out, stride); break;
    switch ((int)dtype) {
        FLOAT_TYPES(FLOATS) BLOCK_TYPES(BLOCKS)
    }
#undef FLOATS
#undef BLOCKS
}

/* ------------------------------------------------------------------------------------ tiles - */

/* One panel and chunk of k. */
struct panel {
    const struct matrix_job *j;
    int64_t begin, end; /* rows */
    int64_t k0, steps;
    int64_t columns; /* of a block */
    const uint8_t *tiles;
    float (*stage)[AMX_ROWS * LANES]; /* four */
};

/* Where a tile of sums comes from and goes to: y itself, or, when it has fewer than 16 rows of the
 * weight, a stage from which these are copied. */
struct sums {
    float *at, *y;
    int64_t stride; /* bytes, of at */
    int64_t rows;   /* of the weight, none or less if they are all beyond the end */
};

/* Two groups side by side, step after step. */
static uint8_t *tiles_of(const struct panel *p, int64_t group)
{
    return (uint8_t *)p->tiles + (group / 2 * p->steps * 2 + group % 2) * AMX_TILE_BYTES;
}

static const uint8_t *inputs_of(const struct panel *p, int64_t column)
{
    return p->j->packed + (uint64_t)column * p->j->pack_stride + 2 * p->k0;
}

static void stage_copy(const struct panel *p, const struct sums *s, bool to_y)
{
    const __mmask16 mask = s->rows > 0 ? avx512_mask(s->rows) : 0;
    for (int64_t c = 0; c < p->columns; c++) {
        float *stage = s->at + c * LANES, *y = s->y + c * p->j->y_stride;
        if (to_y)
            _mm512_mask_storeu_ps(y, mask, _mm512_loadu_ps(stage));
        else
            _mm512_storeu_ps(stage, _mm512_maskz_loadu_ps(mask, y));
    }
}

static struct sums sums_of(const struct panel *p, int64_t column, int64_t group, int tile)
{
    const int64_t row = p->begin + group * LANES;
    struct sums s = {.y = p->j->y + column * p->j->y_stride + row, .rows = p->end - row};
    s.at = s.y;
    s.stride = p->j->y_stride * (int64_t)sizeof(float);
    if (s.rows < LANES) {
        s.at = p->stage[tile];
        s.stride = LANES * sizeof(float);
        if (p->k0)
            stage_copy(p, &s, false);
    }
    return s;
}

static void sums_begin(const struct panel *p, const struct sums s[4])
{
    if (p->k0) {
        AMX_LOAD(0, s[0].at, s[0].stride);
        AMX_LOAD(1, s[1].at, s[1].stride);
        AMX_LOAD(2, s[2].at, s[2].stride);
        AMX_LOAD(3, s[3].at, s[3].stride);
    } else {
        AMX_ZERO(0);
        AMX_ZERO(1);
        AMX_ZERO(2);
        AMX_ZERO(3);
    }
}

static void sums_end(const struct panel *p, const struct sums s[4])
{
    AMX_STORE(0, s[0].at, s[0].stride);
    AMX_STORE(1, s[1].at, s[1].stride);
    AMX_STORE(2, s[2].at, s[2].stride);
    AMX_STORE(3, s[3].at, s[3].stride);
    for (int i = 0; i < 4; i++)
        if (s[i].rows < LANES)
            stage_copy(p, &s[i], true);
}

/* Groups g and g + 1, the blocks of columns c and d. Meanwhile `ahead` rows of inputs from `next`
 * on are fetched. */
static void tiles_2x2(const struct panel *p, int64_t g, int64_t c, int64_t d, const uint8_t *next,
                      int64_t ahead)
{
    const struct sums s[4] = {sums_of(p, c, g, 0), sums_of(p, c, g + 1, 1), sums_of(p, d, g, 2),
                              sums_of(p, d, g + 1, 3)};
    const uint8_t *w = tiles_of(p, g), *x = inputs_of(p, c), *z = inputs_of(p, d);
    const int64_t stride = (int64_t)p->j->pack_stride;
    sums_begin(p, s);
    for (int64_t i = 0; i < p->steps; i++, w += 2 * AMX_TILE_BYTES) {
        AMX_LOAD(6, w, AMX_ROW_BYTES);
        AMX_LOAD(4, x + i * AMX_ROW_BYTES, stride);
        AMX_LOAD(7, w + AMX_TILE_BYTES, AMX_ROW_BYTES);
        AMX_DOT_BF16(0, 4, 6);
        AMX_LOAD(5, z + i * AMX_ROW_BYTES, stride);
        AMX_DOT_BF16(1, 4, 7);
        AMX_DOT_BF16(2, 5, 6);
        AMX_DOT_BF16(3, 5, 7);
        for (int64_t r = 0; r < ahead; r++)
            _mm_prefetch((const char *)next + r * stride + i * AMX_ROW_BYTES, _MM_HINT_T1);
    }
    sums_end(p, s);
}

/* Groups g .. g + 3, the block of columns c. */
static void tiles_1x4(const struct panel *p, int64_t g, int64_t c)
{
    const struct sums s[4] = {sums_of(p, c, g, 0), sums_of(p, c, g + 1, 1), sums_of(p, c, g + 2, 2),
                              sums_of(p, c, g + 3, 3)};
    const uint8_t *w = tiles_of(p, g), *v = tiles_of(p, g + 2), *x = inputs_of(p, c);
    const int64_t stride = (int64_t)p->j->pack_stride;
    sums_begin(p, s);
    for (int64_t i = 0; i < p->steps; i++, w += 2 * AMX_TILE_BYTES, v += 2 * AMX_TILE_BYTES) {
        AMX_LOAD(4, x + i * AMX_ROW_BYTES, stride);
        AMX_LOAD(6, w, AMX_ROW_BYTES);
        AMX_LOAD(7, w + AMX_TILE_BYTES, AMX_ROW_BYTES);
        AMX_DOT_BF16(0, 4, 6);
        AMX_DOT_BF16(1, 4, 7);
        AMX_LOAD(6, v, AMX_ROW_BYTES);
        AMX_LOAD(7, v + AMX_TILE_BYTES, AMX_ROW_BYTES);
        AMX_DOT_BF16(2, 4, 6);
        AMX_DOT_BF16(3, 4, 7);
    }
    sums_end(p, s);
}

/* All columns of the panel. An odd number of blocks begins with the single one, so that the last,
 * which may repeat columns, is the second of two: both are read before either is stored. */
static void panel_columns(const struct panel *p)
{
    const int64_t T = p->j->T, blocks = ceil_div(T, p->columns);
    const int64_t groups = ceil_div(p->end - p->begin, MATRIX_ROWS) * QUAD;
    int64_t b = blocks % 2;
    for (int64_t g = 0; b && g < groups; g += QUAD)
        tiles_1x4(p, g, 0);
    for (; b < blocks; b += 2) {
        const int64_t c = b * p->columns, d = min_i64(c + p->columns, T - p->columns);
        const int64_t next = d + p->columns, pairs = groups / 2;
        const int64_t ahead = min_i64(2 * p->columns, T - next);
        for (int64_t i = 0; i < pairs; i++) { /* each fetches its share */
            const int64_t from = ahead * i / pairs, to = ahead * (i + 1) / pairs;
            tiles_2x2(p, 2 * i, c, d, inputs_of(p, next + from), to - from);
        }
    }
}

static void panel_unpack(const struct panel *p, int64_t n)
{
    const struct oato_weight *w = p->j->w;
    const uint64_t group_bytes = lanes_matrix_bytes(LANES, w->dtype, LANES, w->k);
    const uint64_t k0_bytes = lanes_matrix_bytes(LANES, w->dtype, LANES, p->k0);
    const int64_t groups = ceil_div(p->end - p->begin, MATRIX_ROWS) * QUAD;
    for (int64_t g = 0; g < groups; g++) {
        const int64_t row = p->begin + g * LANES;
        uint8_t *out = tiles_of(p, g);
        if (row < p->end)
            unpack(w->dtype, w->data + (uint64_t)(row / LANES) * group_bytes + k0_bytes, n, out,
                   2 * AMX_TILE_BYTES);
        for (int64_t i = 0; row >= p->end && i < p->steps; i++)
            memset(out + i * 2 * AMX_TILE_BYTES, 0, AMX_TILE_BYTES);
    }
}

static uint64_t amx_scratch(oato_dtype dtype, int64_t k)
{
    (void)dtype;
    return (uint64_t)(4 * AMX_TILE_BYTES +
                      PANEL_ROWS * 2 * min_i64(CHUNK, ceil_div(k, STEP) * STEP));
}

static void amx_rows(const struct matrix_job *j, int64_t begin, int64_t end, uint8_t *scratch)
{
    const int64_t k = j->w->k;
    struct panel p = {
        .j = j, .columns = block_columns(j->T), .tiles = scratch + 4 * AMX_TILE_BYTES};
    p.stage = (float(*)[AMX_ROWS * LANES]) scratch;
    for (int64_t r = begin; r < end && j->T > 0; r += PANEL_ROWS) {
        p.begin = r;
        p.end = min_i64(end, r + PANEL_ROWS);
        for (p.k0 = 0; p.k0 < k; p.k0 += CHUNK) {
            const int64_t n = min_i64(CHUNK, k - p.k0);
            p.steps = ceil_div(n, STEP);
            panel_unpack(&p, n);
            panel_columns(&p);
        }
    }
}

static void amx_enter(int64_t T)
{
    if (T > 0)
        amx_configure(&configs[block_columns(T)]);
}

static const struct matrix_class matrix_bf16 = {
    .numerics = "bf16",
    .pack_bytes = amx_pack_bytes,
    .pack = amx_pack,
    .scratch_bytes_of = amx_scratch,
    .enter = amx_enter,
    .rows = amx_rows,
    .leave = amx_release,
    .panel_rows = PANEL_ROWS,
};

static const struct matrix_class *matrix_of(oato_dtype dtype, enum numerics_choice choice)
{
    return choice == NUMERICS_DECODE ? avx512_decode(dtype) : &matrix_bf16;
}

#ifdef OATO_AMX_EMULATED
#define cpu_kernels_amx cpu_kernels_amx_emulated
extern const struct cpu_kernels cpu_kernels_amx_emulated;
#endif

const struct cpu_kernels cpu_kernels_amx = {
    .name = AMX_LEVEL,
    .layout = &lanes16_layout,
    .matrix = matrix_of,
    .attention = &avx512_attention,
    .rows = &avx2_rows,
    .state = &avx512_state,
    .columns = &avx512_columns,
};
