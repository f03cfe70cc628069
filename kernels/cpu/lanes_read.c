/*
 * lanes_read.c - a row out of the layout of lanes_layout.c again, for the lookups of a token
 * embedding that is the output matrix too: then its rows in the file need not stay in memory. The
 * GGUF's block is put together from its integers and read as any row is, so that a looked-up row
 * has the same bits wherever it was kept.
 */
#include "kernels/cpu/lanes_internal.h"

#include <string.h>

/* Elements that are put together before they are read, and their bytes at most. */
enum { ELEMENTS = 256, ELEMENTS_BYTES = 8 * 34 };

/* A row's share of a block of the layout. */
struct row_block {
    uint8_t head[4], sub[16]; /* scale and minimum; scales and minima of sub-blocks */
    uint8_t q[256];           /* integers plus the format's offset, or numbers of values */
};

static void head_read(const struct lanes_format *f, const uint8_t *p, int lane, int lanes,
                      struct row_block *b)
{
    if (f->head == 1) {
        b->head[0] = p[lane];
        return;
    }
    for (int s = 0; f->dtype == DT_NVFP4 && s < 4; s++)
        b->head[s] = p[s * lanes + lane];
    if (f->dtype == DT_NVFP4)
        return;
    memcpy(b->head, p + 2 * lane, 2);
    p += 2 * lanes;
    if (f->has_min) {
        memcpy(b->head + 2, p + 2 * lane, 2);
        p += 2 * lanes;
    }
    const int n = f->head - (f->has_min ? 4 : 2);
    for (int s = 0; s < n && s < (int)sizeof b->sub; s++)
        b->sub[s] = p[s * lanes + lane];
}

static uint32_t dword_at(const uint8_t *p, int index)
{
    uint32_t x;
    memcpy(&x, p + 4 * (size_t)index, sizeof x);
    return x;
}

/* The bits of element e of 32 in the planes from vector `plane` on. */
static uint32_t plane_bits(const uint8_t *body, int plane, int bits, int e, int lane, int lanes)
{
    const int pair = e / 2, bit = lanes_plane_bit(pair, bits) + e % 2 * 16;
    const uint32_t x = dword_at(body, (plane + pair * bits / 16) * lanes + lane) >> bit;
    return x & ((1u << bits) - 1);
}

/* The low four bits of 32 integers: a dword has those of 8. */
static void nibbles_read(const uint8_t *body, int lane, int lanes, uint8_t *q)
{
    for (int at = 0; at < 4; at++, q += 8) {
        const uint32_t x = dword_at(body, at * lanes + lane);
        q[0] = x & 15;
        q[2] = x >> 4 & 15;
        q[4] = x >> 8 & 15;
        q[6] = x >> 12 & 15;
        q[1] = x >> 16 & 15;
        q[3] = x >> 20 & 15;
        q[5] = x >> 24 & 15;
        q[7] = (uint8_t)(x >> 28);
    }
}

/* The 32 integers at `body`. */
static void values_read(const struct lanes_format *f, const uint8_t *body, int lane, int lanes,
                        uint8_t *q)
{
    static const uint8_t quads[8] = {0, 4, 1, 5, 2, 6, 3, 7};
    const int low = f->body / 4 - f->high; /* bits */
    if (low == 4)
        nibbles_read(body, lane, lanes, q);
    for (int at = 0; low == 8 && at < 32; at++)
        q[at / 8 * 8 + quads[at % 8]] = body[4 * (at / 4 * lanes + lane) + at % 4];
    for (int e = 0; low < 4 && e < 32; e++)
        q[e] = (uint8_t)plane_bits(body, 0, low, e, lane, lanes);
    for (int e = 0; f->high && e < 32; e++)
        q[e] = (uint8_t)(q[e] | plane_bits(body, low, f->high, e, lane, lanes) << low);
}

static void put_nibbles_16(const uint8_t *q, uint8_t *out)
{
    for (int i = 0; i < 16; i++)
        out[i] = (uint8_t)((q[i] & 15) | q[i + 16] << 4);
}

/* Blocks of 32: scale, minimum, fifth bits, nibbles or bytes. */
static void block_32(const struct lanes_format *f, const struct row_block *b, uint8_t *out)
{
    memcpy(out, b->head, (size_t)f->head);
    out += f->head;
    if (f->body == LANES_BYTES) {
        memcpy(out, b->q, 32);
        return;
    }
    if (f->high) {
        uint32_t high = 0;
        for (int i = 0; i < 32; i++)
            high |= (uint32_t)(b->q[i] >> 4) << i;
        memcpy(out, &high, sizeof high);
        out += sizeof high;
    }
    put_nibbles_16(b->q, out);
}

/* Q4_K, Q5_K */
static void block_k45(const struct lanes_format *f, const struct row_block *b, uint8_t *out)
{
    memcpy(out, b->head, 4);
    memcpy(out + 4, b->sub, 12);
    uint8_t *low = out + 16;
    if (f->high) {
        memset(low, 0, 32);
        for (int i = 0; i < 256; i++)
            low[i % 32] = (uint8_t)(low[i % 32] | b->q[i] >> 4 << i / 32);
        low += 32;
    }
    for (int i = 0; i < 128; i++) {
        const uint8_t *q = b->q + i / 32 * 64 + i % 32;
        low[i] = (uint8_t)((q[0] & 15) | q[32] << 4);
    }
}

static void block_q6_k(const struct lanes_format *f, const struct row_block *b, uint8_t *out)
{
    (void)f;
    memset(out, 0, 192);
    for (int i = 0; i < 256; i++) {
        const int half = i / 128, j = i % 128;
        uint8_t *low = out + half * 64 + j % 64, *high = out + 128 + half * 32 + j % 32;
        *low = (uint8_t)(*low | (b->q[i] & 15) << j / 64 * 4);
        *high = (uint8_t)(*high | b->q[i] >> 4 << j / 32 * 2);
    }
    memcpy(out + 192, b->sub, 16);
    memcpy(out + 208, b->head, 2);
}

static void block_nvfp4(const struct lanes_format *f, const struct row_block *b, uint8_t *out)
{
    (void)f;
    memcpy(out, b->head, 4);
    for (int i = 0; i < 32; i++) {
        const uint8_t *q = b->q + i / 8 * 16 + i % 8;
        out[4 + i] = (uint8_t)(q[0] | q[8] << 4);
    }
}

/* Bits 2j, 2j + 1 of 32 bytes are elements 32j and on of 128. */
static void put_bit_pairs(const struct row_block *b, uint8_t *out)
{
    memset(out, 0, 64);
    for (int i = 0; i < 256; i++) {
        uint8_t *to = out + i / 128 * 32 + i % 32;
        *to = (uint8_t)(*to | (b->q[i] & 3) << i % 128 / 32 * 2);
    }
}

static void block_q2_k(const struct lanes_format *f, const struct row_block *b, uint8_t *out)
{
    (void)f;
    memcpy(out, b->sub, 16);
    put_bit_pairs(b, out + 16);
    memcpy(out + 80, b->head, 4);
}

static void block_tq2(const struct lanes_format *f, const struct row_block *b, uint8_t *out)
{
    (void)f;
    put_bit_pairs(b, out);
    memcpy(out + 64, b->head, 2);
}

static void block_q3_k(const struct lanes_format *f, const struct row_block *b, uint8_t *out)
{
    (void)f;
    memset(out, 0, 108);
    for (int i = 0; i < 256; i++)
        out[i % 32] = (uint8_t)(out[i % 32] | b->q[i] >> 2 << i / 32);
    put_bit_pairs(b, out + 32);
    for (int i = 0; i < 16; i++) {
        const int scale = (int8_t)b->sub[i] + 32;
        uint8_t *low = out + 96 + i % 8, *high = out + 104 + i % 4;
        *low = (uint8_t)(*low | (scale & 15) << i / 8 * 4);
        *high = (uint8_t)(*high | scale >> 4 << i / 4 * 2);
    }
    memcpy(out + 108, b->head, 2);
}

static void block_iq4_xs(const struct lanes_format *f, const struct row_block *b, uint8_t *out)
{
    (void)f;
    memset(out, 0, 8);
    memcpy(out, b->head, 2);
    for (int i = 0; i < 8; i++) {
        const int scale = (int8_t)b->sub[i] + 32;
        uint8_t *low = out + 4 + i / 2, *high = out + 2 + i / 4;
        *low = (uint8_t)(*low | (scale & 15) << i % 2 * 4);
        *high = (uint8_t)(*high | scale >> 4 << i % 4 * 2);
        put_nibbles_16(b->q + 32 * i, out + 8 + 16 * i);
    }
}

/* The GGUF's block; of TQ1_0 one of TQ2_0, which has the same weights. */
static void (*const block_of[DT_COUNT])(const struct lanes_format *f, const struct row_block *b,
                                        uint8_t *out) = {
    [DT_Q4_0] = block_32,       [DT_Q4_1] = block_32,     [DT_Q5_0] = block_32,
    [DT_Q5_1] = block_32,       [DT_Q8_0] = block_32,     [DT_Q4_K] = block_k45,
    [DT_Q5_K] = block_k45,      [DT_Q6_K] = block_q6_k,   [DT_IQ4_NL] = block_32,
    [DT_IQ4_XS] = block_iq4_xs, [DT_MXFP4] = block_32,    [DT_Q2_K] = block_q2_k,
    [DT_Q3_K] = block_q3_k,     [DT_NVFP4] = block_nvfp4, [DT_TQ1_0] = block_tq2,
    [DT_TQ2_0] = block_tq2,
};

/* The eighth signs are those that make the number of negative ones even. */
static uint32_t signs_completed(uint32_t kept)
{
    uint32_t odd = kept &= 0x0fffffff;
    odd ^= odd << 16;
    odd ^= odd << 8;
    odd ^= odd << 4;
    return kept | (odd & 0xf0000000);
}

/* The parts of a block with a codebook. */
static void codes_read(const struct lanes_format *f, const uint8_t *p, int lane, int lanes,
                       struct quants_codes *c)
{
    static const uint8_t nibble[8] = {0, 4, 1, 5, 2, 6, 3, 7}; /* of element i */
    const int groups = 32 / f->group, step = f->sub / 16;
    memcpy(&c->d, p + 2 * lane, 2);
    for (int s = 0; s < 16; s++) /* s / step in nibbles */
        c->scale[s] = p[(2 + s / step / 2) * lanes + lane] >> s / step % 2 * 4 & 15;
    for (int part = 0; part < 8; part++) {
        const uint8_t *body = p + lanes * (f->head + part * f->body);
        const uint8_t *high = body + lanes * lanes_grid_high_at(f);
        uint32_t signs =
            lanes_grid_has_signs(f) ? dword_at(body + lanes * lanes_grid_signs_at(f), lane) : 0;
        for (int n = 0; n < groups; n++) {
            const int low = body[(n / 2 * lanes + lane) * 2 + n % 2];
            int more = 0;
            if (lanes_grid_has_signs(f)) {
                if (f->high)
                    more = high[n * f->high / 8 * lanes + lane] >> n * f->high % 8;
                else if (lanes_grid_signs_even(f))
                    more = (int)(signs >> (28 + n) & 1);
                more &= (1 << (f->index_bits - 8)) - 1;
                c->index[part * groups + n] = (uint16_t)(low | more << 8);
                continue;
            }
            const int nibble_of = high[n / 2 * lanes + lane] >> n % 2 * 4;
            more = (nibble_of & 7) | (high[2 * lanes + lane] >> 2 * n & 3) << 3;
            c->index[part * groups + n] = quants_iq1_index(
                (uint16_t)(quants_trits_grid[low] | quants_trits_grid[more] << 10));
            c->high[part * 4 + n] = nibble_of & 8 ? 0xff : 0;
        }
        if (lanes_grid_signs_even(f))
            signs = signs_completed(signs);
        for (int i = 0; lanes_grid_has_signs(f) && i < 32; i++) {
            uint8_t *to = &c->high[part * 4 + i / 8];
            const uint32_t bit = signs >> (4 * nibble[i % 8] + i / 8) & 1;
            *to = (uint8_t)((i % 8 ? *to : 0) | bit << i % 8);
        }
    }
}

static void codebook_row(int lanes, const struct lanes_format *f, const uint8_t *p, int lane,
                         int64_t k, float *out)
{
    struct quants_codes c;
    for (int64_t at = 0; at < k; at += f->block, p += lanes * lanes_block_bytes(f)) {
        codes_read(f, p, lane, lanes, &c);
        quants_codes_row(f->dtype, &c, out + at);
    }
}

static void float_row(int lanes, const struct oato_weight *w, const uint8_t *group, int lane,
                      float *out)
{
    const size_t size = (size_t)dtype_info((int)w->dtype)->block_bytes;
    for (int64_t i = 0; i < w->k; i++)
        quants_row(w->dtype, group + (size_t)(i * lanes + lane) * size, 1, out + i);
}

static void matrix_row(int lanes, const struct oato_weight *w, int64_t row, float *out)
{
    const struct lanes_format *f = lanes_format_of(w->dtype);
    const int lane = (int)(row % lanes);
    const uint8_t *p =
        w->data + (uint64_t)(row / lanes) * lanes_matrix_bytes(lanes, w->dtype, lanes, w->k);
    if (!f) {
        float_row(lanes, w, p, lane, out);
        return;
    }
    if (f->grid) {
        codebook_row(lanes, f, p, lane, w->k, out);
        return;
    }
    const oato_dtype as = w->dtype == DT_TQ1_0 ? DT_TQ2_0 : w->dtype;
    const size_t bytes = (size_t)dtype_info((int)as)->block_bytes;
    struct row_block b = {0};
    uint8_t blocks[ELEMENTS_BYTES];
    for (int64_t at = 0, n; at < w->k; at += n) {
        uint8_t *block = blocks;
        n = min_i64(ELEMENTS, w->k - at);
        for (int64_t e = 0; e < n; e += f->block, block += bytes) {
            const uint8_t *body = p + lanes * f->head;
            head_read(f, p, lane, lanes, &b);
            for (int i = 0; i < f->block; i += 32, body += lanes * f->body)
                values_read(f, body, lane, lanes, b.q + i);
            block_of[w->dtype](f, &b, block);
            p += lanes * lanes_block_bytes(f);
        }
        quants_row(as, blocks, n, out + at);
    }
}

const struct matrix_layout lanes8_layout = {.id = "lanes8.5",
                                            .lanes = 8,
                                            .bytes = lanes_matrix_bytes,
                                            .prepare = lanes_matrix_prepare,
                                            .row = matrix_row,
                                            .rows_stride = lanes_rows_stride,
                                            .rows_prepare = lanes8_rows_prepare,
                                            .rows_panel = lanes_rows_panel};
const struct matrix_layout lanes16_layout = {.id = "lanes16.4",
                                             .lanes = 16,
                                             .bytes = lanes_matrix_bytes,
                                             .prepare = lanes_matrix_prepare,
                                             .row = matrix_row,
                                             .rows_stride = lanes_rows_stride,
                                             .rows_prepare = lanes16_rows_prepare,
                                             .rows_panel = lanes_rows_panel};
