/*
 * lanes_prepare.c - from the rows of a GGUF to the layout of lanes_layout.c, eight rows at a time:
 * their blocks become vectors of 32 integers, are packed as the layout wants them and turned by a
 * transpose of dwords (words for the 16-bit floats), so that every store is a whole vector.
 *
 * Loop nest: groups of L rows; blocks along k, so that L streams of the file are read and one is
 * written; eight rows; 32 k. Integers live in registers and on the stack, nothing else is touched
 * twice. About 0.2 instructions a byte of the file: the page cache and fresh memory are the limit.
 * Rows beyond the matrix are zeros: their pointers stay at a block of zeros.
 */
#include "kernels/core/quants_bits.h"
#include "kernels/cpu/lanes_rows.h"

#include <string.h>

enum { ROWS = 8, ZERO_BYTES = 512 /* more than a block of any type */ };

static const uint8_t zeros[ZERO_BYTES];

/* ------------------------------------------------------------- the integers of GGUF blocks */

/* Elements 0..15 are low nibbles, 16..31 high ones. */
static __m256i nibbles_16(const uint8_t *p)
{
    const __m256i shift = _mm256_setr_epi32(0, 0, 0, 0, 4, 4, 4, 4);
    __m256i x = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)p));
    return _mm256_and_si256(_mm256_srlv_epi32(x, shift), _mm256_set1_epi8(15));
}

/* 32 nibbles, the low (shift 0) or high (4) ones of 32 bytes. */
static __m256i nibbles_32(const uint8_t *p, int shift)
{
    __m256i x = _mm256_loadu_si256((const __m256i *)p);
    return _mm256_and_si256(_mm256_srl_epi16(x, _mm_cvtsi32_si128(shift)), _mm256_set1_epi8(15));
}

/* 16 in byte i where bit i of the four bytes at p is set. */
static __m256i fifth_bits(const uint8_t *p)
{
    const __m256i bytes = _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2,
                                           2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3);
    const __m256i bit = _mm256_set1_epi64x((int64_t)0x8040201008040201);
    int32_t high;
    memcpy(&high, p, sizeof high);
    __m256i x = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32(high), bytes), bit);
    return _mm256_and_si256(_mm256_cmpeq_epi8(x, bit), _mm256_set1_epi8(16));
}

/* Bits `bit` and up of 32 bytes, those in `mask`, as bits 4 and up. */
static __m256i high_bits(const uint8_t *p, int bit, int mask)
{
    __m256i x = _mm256_loadu_si256((const __m256i *)p);
    x = _mm256_srl_epi16(x, _mm_cvtsi32_si128(bit));
    return _mm256_slli_epi16(_mm256_and_si256(x, _mm256_set1_epi8((char)mask)), 4);
}

/* Part i of 4 are bits 2i, 2i + 1 of 32 bytes. */
static __m256i bit_pairs(const uint8_t *p, int i)
{
    __m256i x = _mm256_loadu_si256((const __m256i *)p);
    return _mm256_and_si256(_mm256_srl_epi16(x, _mm_cvtsi32_si128(2 * i)), _mm256_set1_epi8(3));
}

/* Elements 32 part .. of the blocks at `at`, plus the format's offset. */
typedef void values_fn(const struct lanes_format *f, const uint8_t *const at[ROWS], int part,
                       __m256i q[ROWS]);

/* A function for eight rows of one that has it for the block at p. */
#define VALUES(name)                                                                               \
    static void values_##name(const struct lanes_format *f, const uint8_t *const at[ROWS],         \
                              int part, __m256i q[ROWS])                                           \
    {                                                                                              \
        for (int r = 0; r < ROWS; r++)                                                             \
            q[r] = name(f, at[r], part);                                                           \
    }

/* Blocks of 32: behind the head fifth bits, where the format has them, and nibbles or bytes. */
AVX2_INLINE __m256i of_32(const struct lanes_format *f, const uint8_t *p, int part)
{
    (void)part;
    p += f->head;
    return f->body == LANES_BYTES ? _mm256_loadu_si256((const __m256i *)p)
           : f->high              ? _mm256_or_si256(nibbles_16(p + 4), fifth_bits(p))
                                  : nibbles_16(p);
}
VALUES(of_32)

/* Sub-blocks 2i and 2i + 1 are the low and high nibbles of the i-th 32 bytes. */
AVX2_INLINE __m256i k45(const struct lanes_format *f, const uint8_t *p, int part)
{
    const __m256i q = nibbles_32(p + 16 + (f->high ? 32 : 0) + part / 2 * 32, part % 2 * 4);
    return f->high ? _mm256_or_si256(q, high_bits(p + 16, part, 1)) : q;
}
VALUES(k45)

/* Halves of 128 elements: low nibbles of 64 bytes, then their high ones; bit pairs of 32 bytes. */
AVX2_INLINE __m256i q6_k(const struct lanes_format *f, const uint8_t *p, int part)
{
    (void)f;
    const int half = part / 4, quarter = part % 4;
    return _mm256_or_si256(nibbles_32(p + half * 64 + quarter % 2 * 32, quarter / 2 * 4),
                           high_bits(p + 128 + half * 32, quarter * 2, 3));
}
VALUES(q6_k)

/* Q2_K, TQ2_0: pairs of bits; Q3_K: and a third bit. */
AVX2_INLINE __m256i pairs(const struct lanes_format *f, const uint8_t *p, int part)
{
    return bit_pairs(p + (f->dtype == DT_Q2_K ? 16 : 0) + part / 4 * 32, part % 4);
}
VALUES(pairs)

AVX2_INLINE __m256i q3_k(const struct lanes_format *f, const uint8_t *p, int part)
{
    (void)f;
    return _mm256_or_si256(bit_pairs(p + 32 + part / 4 * 32, part % 4),
                           _mm256_srli_epi16(high_bits(p, part, 1), 2));
}
VALUES(q3_k)

AVX2_INLINE __m256i iq4_xs(const struct lanes_format *f, const uint8_t *p, int part)
{
    (void)f;
    return nibbles_16(p + 8 + 16 * part);
}
VALUES(iq4_xs)

/* Sub-blocks of 16: the low nibbles of eight bytes, then the high ones. */
AVX2_INLINE __m256i nvfp4(const struct lanes_format *f, const uint8_t *p, int part)
{
    const __m256i shift = _mm256_setr_epi32(0, 0, 4, 4, 0, 0, 4, 4);
    const __m128i x = _mm_loadu_si128((const __m128i *)(p + f->head + 16 * part));
    const __m256i twice = _mm256_permute4x64_epi64(_mm256_castsi128_si256(x), 0x50);
    return _mm256_and_si256(_mm256_srlv_epi32(twice, shift), _mm256_set1_epi8(15));
}
VALUES(nvfp4)

AVX2_INLINE __m256i tq1(const struct lanes_format *f, const uint8_t *p, int part)
{
    (void)f;
    uint8_t digits[32];
    for (int i = 0; i < 32; i++)
        digits[i] = bits_tq1(p, 32 * part + i);
    return _mm256_loadu_si256((const __m256i *)digits);
}
VALUES(tq1)
#undef VALUES

static values_fn *const values_of[DT_COUNT] = {
    [DT_Q4_0] = values_of_32,    [DT_Q4_1] = values_of_32,  [DT_Q5_0] = values_of_32,
    [DT_Q5_1] = values_of_32,    [DT_Q8_0] = values_of_32,  [DT_Q4_K] = values_k45,
    [DT_Q5_K] = values_k45,      [DT_Q6_K] = values_q6_k,   [DT_IQ4_NL] = values_of_32,
    [DT_IQ4_XS] = values_iq4_xs, [DT_MXFP4] = values_of_32, [DT_Q2_K] = values_pairs,
    [DT_Q3_K] = values_q3_k,     [DT_NVFP4] = values_nvfp4, [DT_TQ1_0] = values_tq1,
    [DT_TQ2_0] = values_pairs,
};

/* ---------------------------------------------------------------------------- transposes -- */

static void store(uint8_t *to, __m256i x)
{
    _mm256_storeu_si256((__m256i *)to, x);
}

/* Dword j of the eight rows to out + j * stride. */
AVX2_INLINE void put_dwords(__m256i x[ROWS], uint8_t *out, int64_t stride)
{
    lanes_dwords_turn(x);
    UNROLLED (j, ROWS)
        store(out + j * stride, x[j]);
}

/* In each half: word i of eight rows becomes row i of eight words. */
static void turn_words(__m256i x[ROWS])
{
    __m256i pair[8], four[8];
    for (int i = 0; i < 4; i++) {
        pair[i] = _mm256_unpacklo_epi16(x[2 * i], x[2 * i + 1]);     /* words 0..3 */
        pair[4 + i] = _mm256_unpackhi_epi16(x[2 * i], x[2 * i + 1]); /* 4..7 */
    }
    for (int i = 0; i < 8; i += 2) {
        four[i] = _mm256_unpacklo_epi32(pair[i], pair[i + 1]);
        four[i + 1] = _mm256_unpackhi_epi32(pair[i], pair[i + 1]);
    }
    for (int i = 0; i < 4; i++) { /* words 2i, 2i + 1 of rows 0..3 and of rows 4..7 */
        const __m256i *f = four + i / 2 * 4 + i % 2;
        x[2 * i] = _mm256_unpacklo_epi64(f[0], f[2]);
        x[2 * i + 1] = _mm256_unpackhi_epi64(f[0], f[2]);
    }
}

/* Byte j of eight rows of n, a multiple of 4, to out + j * stride. */
static void put_sub_bytes(const __m128i x[ROWS], int n, uint8_t *out, int64_t stride)
{
    __m128i a[8], b[8];
    for (int i = 0; i < 4; i++) { /* rows i and i + 4 side by side, then i, i + 2, .. */
        a[2 * i] = _mm_unpacklo_epi8(x[i], x[i + 4]);
        a[2 * i + 1] = _mm_unpackhi_epi8(x[i], x[i + 4]);
    }
    for (int i = 0; i < 2; i++) {
        for (int half = 0; half < 2; half++) {
            b[4 * i + 2 * half] = _mm_unpacklo_epi8(a[2 * i + half], a[2 * i + 4 + half]);
            b[4 * i + 2 * half + 1] = _mm_unpackhi_epi8(a[2 * i + half], a[2 * i + 4 + half]);
        }
    }
    for (int i = 0; i < n / 4; i++) { /* bytes 4i .. 4i + 3 of all rows */
        __m128i two[2] = {_mm_unpacklo_epi8(b[i], b[4 + i]), _mm_unpackhi_epi8(b[i], b[4 + i])};
        for (int j = 0; j < 2; j++) {
            _mm_storel_epi64((__m128i *)(out + (4 * i + 2 * j) * stride), two[j]);
            _mm_storel_epi64((__m128i *)(out + (4 * i + 2 * j + 1) * stride),
                             _mm_unpackhi_epi64(two[j], two[j]));
        }
    }
}

/* --------------------------------------------------------------------- pieces of a block -- */

/* Elements 0 2 4 6 1 3 5 7 of each 8 become the nibbles of a dword from the lowest on. */
static void put_nibbles(const __m256i q[ROWS], uint8_t *out, int64_t stride)
{
    const __m256i order = _mm256_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15, 0,
                                           2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15);
    __m256i x[ROWS];
    __m256 two[4]; /* rows 2i, 2i + 1: dwords 0 1 0 1 | 2 3 2 3 */
    for (int r = 0; r < ROWS; r++) {
        x[r] = _mm256_and_si256(_mm256_shuffle_epi8(q[r], order), _mm256_set1_epi8(15));
        x[r] = _mm256_maddubs_epi16(x[r], _mm256_set1_epi16(0x1001)); /* even + 16 * odd */
    }
    for (int i = 0; i < 4; i++)
        two[i] = _mm256_castsi256_ps(_mm256_packus_epi16(x[2 * i], x[2 * i + 1]));
    for (int j = 0; j < 2; j++) { /* dwords j and j + 2 */
        __m256 rows[2];
        for (int i = 0; i < 2; i++)
            rows[i] = j ? _mm256_shuffle_ps(two[2 * i], two[2 * i + 1], 0xdd)
                        : _mm256_shuffle_ps(two[2 * i], two[2 * i + 1], 0x88);
        store(out + j * stride,
              _mm256_castps_si256(_mm256_permute2f128_ps(rows[0], rows[1], 0x20)));
        store(out + (j + 2) * stride,
              _mm256_castps_si256(_mm256_permute2f128_ps(rows[0], rows[1], 0x31)));
    }
}

static void put_bytes(const __m256i q[ROWS], uint8_t *out, int64_t stride)
{
    const __m256i quads = _mm256_setr_epi8(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15, 0,
                                           4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15);
    __m256i x[ROWS];
    UNROLLED (r, ROWS)
        x[r] = _mm256_shuffle_epi8(q[r], quads);
    put_dwords(x, out, stride);
}

/* Which byte has each bit of a plane: in the low or high 16 elements (0x80: in the other), and
 * whether bit 5 is wanted or bit 4 (see put_plane). */
struct plane_order {
    uint8_t low[32], high[32], fifth[32];
};

static void plane_order_of(int bits, int plane, struct plane_order *o)
{
    for (int i = 0; i < 32 / bits; i++) {
        const int element = plane * 32 / bits + i, pair = element / 2;
        for (int b = 0; b < bits; b++) {
            const int at = lanes_plane_bit(pair, bits) + b + element % 2 * 16;
            o->low[at] = (uint8_t)(element < 16 ? element : 0x80);
            o->high[at] = (uint8_t)(element < 16 ? 0x80 : element - 16);
            o->fifth[at] = (uint8_t)(b ? 0x80 : 0);
        }
    }
}

/* A plane of bits 4 - shift and up. */
static void put_plane(const struct plane_order *o, const __m256i q[ROWS], int shift, uint8_t *out)
{
    const __m128i by = _mm_cvtsi32_si128(3 + shift), by_less = _mm_cvtsi32_si128(2 + shift);
    const __m256i low = _mm256_loadu_si256((const __m256i *)o->low);
    const __m256i high = _mm256_loadu_si256((const __m256i *)o->high);
    const __m256i fifth = _mm256_loadu_si256((const __m256i *)o->fifth);
    for (int r = 0; r < ROWS; r++) {
        __m256i first = _mm256_permute2x128_si256(q[r], q[r], 0x00);
        __m256i second = _mm256_permute2x128_si256(q[r], q[r], 0x11);
        __m256i x =
            _mm256_or_si256(_mm256_shuffle_epi8(first, low), _mm256_shuffle_epi8(second, high));
        x = _mm256_blendv_epi8(_mm256_sll_epi16(x, by), _mm256_sll_epi16(x, by_less), fifth);
        const int plane = _mm256_movemask_epi8(x);
        memcpy(out + 4 * r, &plane, sizeof plane);
    }
}

/* Scales of the sixteen sub-blocks of a Q3_K block: low nibbles in eight bytes, pairs of bits in
 * four, 32 too much. */
static __m128i q3_k_scales(const uint8_t *p)
{
    uint32_t w[3];
    memcpy(w, p, sizeof w);
    const uint32_t four = 0x0f0f0f0f, top = 0x30303030;
    const __m128i x = _mm_setr_epi32(
        (int)((w[0] & four) | (w[2] << 4 & top)), (int)((w[1] & four) | (w[2] << 2 & top)),
        (int)((w[0] >> 4 & four) | (w[2] & top)), (int)((w[1] >> 4 & four) | (w[2] >> 2 & top)));
    return _mm_sub_epi8(x, _mm_set1_epi8(32));
}

static __m128i iq4_xs_scales(const uint8_t *block)
{
    int8_t scale[8];
    for (int i = 0; i < 8; i++)
        scale[i] = bits_iq4_xs_scale(block, i);
    return _mm_loadl_epi64((const __m128i *)scale);
}

/* What the sub-blocks of a block of 256 have. */
static __m128i sub_scales(const struct lanes_format *f, const uint8_t *block)
{
    return f->dtype == DT_Q3_K     ? q3_k_scales(block + f->sub_at)
           : f->dtype == DT_IQ4_XS ? iq4_xs_scales(block)
                                   : _mm_loadu_si128((const __m128i *)(block + f->sub_at));
}

/* What stands in front of the blocks' weights, for rows `lane` and up. */
static void put_heads(const struct lanes_format *f, const uint8_t *const at[ROWS], uint8_t *out,
                      int lane, int lanes)
{
    uint8_t *scale = out + 2 * lane, *sub = out + 2 * lanes + lane;
    if (f->dtype == DT_MXFP4) {
        for (int r = 0; r < ROWS; r++)
            out[lane + r] = at[r][0];
        return;
    }
    for (int r = 0; f->dtype == DT_NVFP4 && r < ROWS; r++)
        for (int s = 0; s < 4; s++) /* this byte is 0, and only this one no number */
            out[s * lanes + lane + r] = at[r][s] == 0x7f ? 0 : at[r][s];
    if (f->dtype == DT_NVFP4)
        return;
    for (int r = 0; r < ROWS; r++)
        memcpy(scale + 2 * r, at[r] + f->d_at, 2);
    if (f->has_min) {
        for (int r = 0; r < ROWS; r++)
            memcpy(scale + 2 * lanes + 2 * r, at[r] + f->d_at + 2, 2);
        sub += 2 * lanes;
    }
    if (f->block != 256 || f->head == 2)
        return;
    __m128i x[ROWS];
    for (int r = 0; r < ROWS; r++)
        x[r] = sub_scales(f, at[r]);
    put_sub_bytes(x, f->head - (f->has_min ? 4 : 2), sub, lanes);
}

/* ------------------------------------------------------------------------------ codebooks - */

/* The bits of a byte, those of eight elements, to bits 0, 4 .. 28 for elements 0 2 4 6 1 3 5 7. */
static uint32_t signs_spread(uint8_t signs)
{
    static const uint8_t element[8] = {0, 2, 4, 6, 1, 3, 5, 7};
    uint32_t x = 0;
    for (int i = 0; i < 8; i++)
        x |= (uint32_t)(signs >> element[i] & 1) << 4 * i;
    return x;
}

/* To the base of 3, the lowest digit first. */
static int number_of_digits(int word, int digits)
{
    int number = 0;
    for (int i = digits - 1; i >= 0; i--)
        number = number * 3 + (word >> 2 * i & 3);
    return number;
}

/* A row's share of 32 elements, number `part` of a block. */
static void put_codes(const struct lanes_format *f, const struct quants_codes *c, int part,
                      const uint32_t spread[256], uint8_t *body, int lane, int lanes)
{
    const int groups = 32 / f->group;
    const uint16_t *index = c->index + part * groups;
    const uint8_t *bits = c->high + part * 4;
    uint32_t signs = 0;
    uint8_t high[3] = {0};
    for (int n = 0; n < groups; n++) {
        uint8_t *low = body + (n / 2 * lanes + lane) * 2 + n % 2, *more = &high[n * f->high / 8];
        *low = (uint8_t)index[n];
        if (lanes_grid_has_signs(f)) {
            if (f->high)
                *more = (uint8_t)(*more | index[n] >> 8 << n * f->high % 8);
            continue;
        }
        const uint16_t word = quants_iq1_grid[index[n]];
        const int three = number_of_digits(word >> 10, 3);
        *low = (uint8_t)number_of_digits(word, 5);
        high[n / 2] = (uint8_t)(high[n / 2] | ((three & 7) | (bits[n] & 8)) << n % 2 * 4);
        high[2] = (uint8_t)(high[2] | three >> 3 << 2 * n);
    }
    for (int j = 0; j < 4; j++)
        signs |= spread[bits[j]] << j;
    for (int n = 0; lanes_grid_signs_even(f) && n < 4; n++)
        signs = (signs & ~(UINT32_C(1) << (28 + n))) | (uint32_t)(index[n] >> 8) << (28 + n);
    if (lanes_grid_has_signs(f))
        memcpy(body + lanes_grid_signs_at(f) * lanes + 4 * lane, &signs, sizeof signs);
    for (int i = 0; i < groups * f->high / 8; i++)
        body[(lanes_grid_high_at(f) + i) * lanes + lane] = high[i];
}

/* A row's share of a block. */
static void put_grid_block(const struct lanes_format *f, const uint8_t *block,
                           const uint32_t spread[256], uint8_t *out, int lane, int lanes)
{
    struct quants_codes c;
    quants_codes_read(f->dtype, block, &c);
    memcpy(out + 2 * lane, &c.d, 2);
    const int step = f->sub / 16;
    for (int s = 0; s < f->head - 2; s++)
        out[(2 + s) * lanes + lane] =
            (uint8_t)(c.scale[2 * s * step] | c.scale[(2 * s + 1) * step] << 4);
    for (int part = 0; part < 8; part++)
        put_codes(f, &c, part, spread, out + lanes * (f->head + part * f->body), lane, lanes);
}

/* ---------------------------------------------------------------------------------- rows -- */

/* The rows of a group: where each is read, and the bytes it goes on by (0: none is there). */
struct group {
    const uint8_t *at[LANES_MAX];
    int64_t on[LANES_MAX];
};

/* The planes of a format: of pairs of low bits, of high bits. */
struct planes {
    struct plane_order low[2], high[2];
};

static void put_quantised(int lanes, const struct lanes_format *f, const struct planes *planes,
                          struct group *g, int64_t k, uint8_t *out)
{
    values_fn *const values = values_of[f->dtype];
    const int64_t stride = 4 * lanes;
    const int low = f->body / 4 - f->high; /* bits */
    for (int64_t b = 0; b < k / f->block; b++) {
        for (int lane = 0; lane < lanes; lane += ROWS) {
            const uint8_t *const *at = g->at + lane;
            uint8_t *body = out + lanes * f->head + 4 * lane;
            put_heads(f, at, out, lane, lanes);
            for (int part = 0; part < f->block / 32; part++, body += lanes * f->body) {
                __m256i q[ROWS];
                values(f, at, part, q);
                if (low == 8)
                    put_bytes(q, body, stride);
                if (low == 4)
                    put_nibbles(q, body, stride);
                for (int i = 0; low == 2 && i < 2; i++)
                    put_plane(&planes->low[i], q, 4, body + i * stride);
                for (int i = 0; i < f->high; i++)
                    put_plane(&planes->high[i], q, 4 - low, body + (low + i) * stride);
            }
        }
        for (int lane = 0; lane < lanes; lane++)
            g->at[lane] += g->on[lane];
        out += lanes * lanes_block_bytes(f);
    }
}

static void put_codebook(int lanes, const struct lanes_format *f, const uint32_t spread[256],
                         struct group *g, int64_t k, uint8_t *out)
{
    for (int64_t b = 0; b < k / f->block; b++, out += lanes * lanes_block_bytes(f)) {
        for (int lane = 0; lane < lanes; lane++) {
            put_grid_block(f, g->at[lane], spread, out, lane, lanes);
            g->at[lane] += g->on[lane];
        }
    }
}

/* Words k .. k + 7 of rows r and r + 8, or k .. k + 15 of eight rows. */
static void put_words(int lanes, struct group *g, int64_t k, uint8_t *out)
{
    const int step = lanes == 16 ? 8 : 16;
    int64_t i = 0;
    for (; i + step <= k; i += step, out += 2 * lanes * step) {
        __m256i x[ROWS];
        for (int r = 0; r < ROWS; r++)
            x[r] = lanes == 16 ? _mm256_loadu2_m128i((const __m128i *)g->at[r + 8],
                                                     (const __m128i *)g->at[r])
                               : _mm256_loadu_si256((const __m256i *)g->at[r]);
        turn_words(x);
        for (int j = 0; j < 8; j++) {
            if (lanes == 16)
                store(out + 32 * j, x[j]);
            else
                _mm256_storeu2_m128i((__m128i *)(out + 16 * (j + 8)), (__m128i *)(out + 16 * j),
                                     x[j]);
        }
        for (int r = 0; r < lanes; r++)
            g->at[r] += g->on[r] * step;
    }
    for (; i < k; i++) {
        for (int r = 0; r < lanes; r++, out += 2) {
            memcpy(out, g->at[r], 2);
            g->at[r] += g->on[r];
        }
    }
}

static void put_floats(int lanes, struct group *g, int64_t k, uint8_t *out)
{
    int64_t i = 0;
    for (; i + 8 <= k; i += 8, out += 32 * lanes) {
        for (int lane = 0; lane < lanes; lane += ROWS) {
            __m256i x[ROWS];
            UNROLLED (r, ROWS)
                x[r] = _mm256_loadu_si256((const __m256i *)g->at[lane + r]);
            put_dwords(x, out + 4 * lane, 4 * lanes);
        }
        for (int r = 0; r < lanes; r++)
            g->at[r] += g->on[r] * 8;
    }
    for (; i < k; i++) {
        for (int r = 0; r < lanes; r++, out += 4) {
            memcpy(out, g->at[r], 4);
            g->at[r] += g->on[r];
        }
    }
}

void lanes_matrix_prepare(int lanes, const struct weight_source *s, struct oato_weight *w,
                          int64_t begin, int64_t end)
{
    const struct lanes_format *f = lanes_format_of(s->dtype);
    const struct dtype_info *type = dtype_info((int)s->dtype);
    const uint64_t group_bytes = lanes_matrix_bytes(lanes, s->dtype, lanes, s->k);
    struct planes planes;
    for (int i = 0; i < 2; i++)
        plane_order_of(2, i, &planes.low[i]);
    for (int i = 0; f && !f->grid && i < f->high; i++)
        plane_order_of(f->high, i, &planes.high[i]);
    uint32_t spread[256];
    for (int i = 0; f && f->grid && i < 256; i++)
        spread[i] = signs_spread((uint8_t)i);
    for (int64_t first = begin; first < end; first += lanes) {
        uint8_t *out = (uint8_t *)w->data + (uint64_t)(first / lanes) * group_bytes;
        struct group g;
        for (int lane = 0; lane < LANES_MAX; lane++) {
            const bool there = lane < lanes && first + lane < end;
            g.at[lane] = there ? weight_source_row(s, first + lane) : zeros;
            g.on[lane] = there ? type->block_bytes : 0;
        }
        if (f && f->grid)
            put_codebook(lanes, f, spread, &g, s->k, out);
        else if (f)
            put_quantised(lanes, f, &planes, &g, s->k, out);
        else if (s->dtype == DT_F32)
            put_floats(lanes, &g, s->k, out);
        else
            put_words(lanes, &g, s->k, out);
    }
}
