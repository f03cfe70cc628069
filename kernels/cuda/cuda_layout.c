/*
 * cuda_layout.c - GGUF's rows to the planes of cuda_layout.h: one row of the table for each type
 * says which planes it has and where a GGUF block has what goes there. A function takes the codes
 * apart, one byte each; scales are copied, or taken apart by another one. Packing the codes again
 * is common to all. Of types with a codebook pieces of a block go to the planes as they are.
 */
#include "kernels/cuda/cuda_layout.h"

#include "kernels/core/core_internal.h"

#include <string.h>

enum { BLOCK = 32, SUPER = 256, ELEMENTS_MAX_LOG2 = 48, ROW_ALIGN = 16 };

/* Bytes of a GGUF block that are copied to a plane. */
struct piece {
    uint8_t plane, at, bytes;
};
enum { PIECES_MOST = 6 }; /* the last one is empty */

struct format {
    void (*codes)(const uint8_t *block, uint8_t *out);  /* NULL: rows are kept as they are or */
    void (*scales)(const uint8_t *block, uint8_t *out); /* NULL: they are copied */
    int32_t codes_at, scales_at, super_at;              /* in a GGUF block */
    int32_t bits, more_bits;                            /* of an element in planes 0 and 1 */
    int32_t scale_bytes, super_bytes; /* of 32 elements in plane 2, of 256 in plane 3 */
    uint8_t flip;                     /* what makes two's complement of a code */
    bool looked_up;                   /* the order of 4-bit codes, see the header */
    struct piece piece[PIECES_MOST];  /* in which blocks of 256 are copied */
};

/* ------------------------------------------------------------ a GGUF block taken apart ---- */

static void codes_of_nibbles(const uint8_t *q, uint8_t *out)
{
    for (int i = 0; i < 16; i++) {
        out[i] = q[i] & 15;
        out[i + 16] = q[i] >> 4;
    }
}

static void codes_of_fifths(const uint8_t *p, uint8_t *out)
{
    uint32_t high;
    memcpy(&high, p, sizeof high);
    codes_of_nibbles(p + 4, out);
    for (int i = 0; i < BLOCK; i += 4) { /* the product puts bit j into byte j */
        uint32_t four;
        memcpy(&four, out + i, sizeof four);
        four |= ((high >> i & 15) * 0x00204081 & 0x01010101) << 4;
        memcpy(out + i, &four, sizeof four);
    }
}

static void codes_of_bytes(const uint8_t *q, uint8_t *out)
{
    memcpy(out, q, BLOCK);
}

/* Sub-blocks 2i and 2i + 1 are the low and high nibbles of the i-th 32 bytes. */
static void codes_of_k_nibbles(const uint8_t *q, uint8_t *out)
{
    for (int s = 0; s < SUPER / BLOCK; s++)
        for (int i = 0; i < BLOCK; i++)
            out[s * BLOCK + i] = q[s / 2 * BLOCK + i] >> s % 2 * 4 & 15;
}

static void codes_q5_k(const uint8_t *p, uint8_t *out)
{
    codes_of_k_nibbles(p + 48, out);
    for (int s = 0; s < SUPER / BLOCK; s++)
        for (int i = 0; i < BLOCK; i++)
            out[s * BLOCK + i] |= (uint8_t)((p[16 + i] >> s & 1) << 4);
}

static void codes_q6_k(const uint8_t *p, uint8_t *out)
{
    for (int s = 0; s < SUPER / BLOCK; s++) {
        const uint8_t *q = p + s / 4 * 64 + s % 2 * BLOCK, *high = p + 128 + s / 4 * BLOCK;
        for (int i = 0; i < BLOCK; i++)
            out[s * BLOCK + i] =
                (uint8_t)((q[i] >> s % 4 / 2 * 4 & 15) | (high[i] >> s % 4 * 2 & 3) << 4);
    }
}

static void codes_of_pairs(const uint8_t *q, uint8_t *out)
{
    for (int s = 0; s < SUPER / BLOCK; s++)
        for (int i = 0; i < BLOCK; i++)
            out[s * BLOCK + i] = q[s / 4 * BLOCK + i] >> s % 4 * 2 & 3;
}

static void codes_q3_k(const uint8_t *p, uint8_t *out)
{
    codes_of_pairs(p + 32, out);
    for (int s = 0; s < SUPER / BLOCK; s++)
        for (int i = 0; i < BLOCK; i++)
            out[s * BLOCK + i] |= (uint8_t)((p[i] >> s & 1) << 2);
}

static void codes_iq4_xs(const uint8_t *p, uint8_t *out)
{
    for (int s = 0; s < SUPER / BLOCK; s++)
        codes_of_nibbles(p + s * 16, out + s * BLOCK);
}

static void codes_tq1_0(const uint8_t *p, uint8_t *out)
{
    for (int i = 0; i < SUPER; i++)
        out[i] = (uint8_t)quants_tq1_value(p, i);
}

static void codes_nvfp4(const uint8_t *q, uint8_t *out)
{
    for (int i = 0; i < 32; i++) {
        out[i / 8 * 16 + i % 8] = q[i] & 15;
        out[i / 8 * 16 + i % 8 + 8] = q[i] >> 4;
    }
}

static void scales_k45(const uint8_t *p, uint8_t *out)
{
    uint8_t scale[8], min[8];
    quants_k_scales(p + 4, scale, min);
    for (int s = 0; s < 8; s++) {
        out[2 * s] = scale[s];
        out[2 * s + 1] = min[s];
    }
}

static void scales_q3_k(const uint8_t *p, uint8_t *out)
{
    quants_q3_k_scales(p, (int8_t *)out);
}

static void scales_iq4_xs(const uint8_t *p, uint8_t *out)
{
    quants_iq4_xs_scales(p, (int8_t *)out);
}

/* e4m3 without a sign; what would be none is 0. */
static void scales_nvfp4(const uint8_t *p, uint8_t *out)
{
    for (int s = 0; s < 4; s++)
        out[s] = p[s] == 0x7f ? 0 : p[s];
}

static const struct format
    format_F32 = {.bits = 32},
    format_F16 = {.bits = 16}, format_BF16 = {.bits = 16},
    format_Q4_0 = {codes_of_nibbles, .codes_at = 2, .bits = 4, .scale_bytes = 2, .flip = 8},
    format_Q4_1 = {codes_of_nibbles, .codes_at = 4, .bits = 4, .scale_bytes = 4},
    format_Q5_0 = {codes_of_fifths, .codes_at = 2,    .bits = 4,
                   .more_bits = 1,  .scale_bytes = 2, .flip = 16},
    format_Q5_1 = {codes_of_fifths, .codes_at = 4, .bits = 4, .more_bits = 1, .scale_bytes = 4},
    format_Q8_0 = {codes_of_bytes, .codes_at = 2, .bits = 8, .scale_bytes = 2},
    format_Q2_K = {codes_of_pairs, .codes_at = 16,   .super_at = 80,
                   .bits = 2,      .scale_bytes = 2, .super_bytes = 4},
    format_Q3_K = {codes_q3_k,     scales_q3_k,      .super_at = 108,  .bits = 2,
                   .more_bits = 1, .scale_bytes = 2, .super_bytes = 2, .flip = 4},
    format_Q4_K = {codes_of_k_nibbles, scales_k45,       .codes_at = 16,
                   .bits = 4,          .scale_bytes = 2, .super_bytes = 4},
    format_Q5_K = {codes_q5_k,     scales_k45,       .bits = 4,
                   .more_bits = 1, .scale_bytes = 2, .super_bytes = 4},
    format_Q6_K = {codes_q6_k,     .scales_at = 192, .super_at = 208,  .bits = 4,
                   .more_bits = 2, .scale_bytes = 2, .super_bytes = 2, .flip = 32},
    format_IQ4_NL = {codes_of_nibbles, .codes_at = 2, .bits = 4, .scale_bytes = 2,
                     .looked_up = true},
    format_IQ4_XS = {codes_iq4_xs,     scales_iq4_xs,    .codes_at = 8,    .bits = 4,
                     .scale_bytes = 1, .super_bytes = 2, .looked_up = true},
    format_MXFP4 = {codes_of_nibbles, .codes_at = 1, .bits = 4, .scale_bytes = 1,
                    .looked_up = true},
    format_NVFP4 = {codes_nvfp4, .scales = scales_nvfp4, .codes_at = 4,
                    .bits = 4,   .scale_bytes = 2,       .looked_up = true},
    format_TQ1_0 = {codes_tq1_0, .super_at = 52, .bits = 2, .super_bytes = 2},
    format_TQ2_0 = {codes_of_pairs, .super_at = 64, .bits = 2, .super_bytes = 2},
    format_IQ1_S = {.piece = {{0, 2, 32}, {1, 34, 16}, {3, 0, 2}}},
    format_IQ1_M = {.piece = {{0, 0, 32}, {1, 32, 16}, {3, 48, 8}}},
    format_IQ2_XXS = {.piece = {{0, 2, 64}, {3, 0, 2}}},
    format_IQ2_XS = {.piece = {{0, 2, 64}, {3, 0, 2}, {3, 66, 8}}},
    format_IQ2_S = {.piece = {{0, 2, 32}, {1, 34, 32}, {3, 0, 2}, {3, 66, 16}}},
    format_IQ3_XXS = {.piece = {{0, 2, 64}, {1, 66, 32}, {3, 0, 2}}},
    format_IQ3_S = {.piece = {{0, 2, 64}, {1, 74, 32}, {3, 0, 2}, {3, 66, 8}, {3, 106, 4}}};

#define ROW(type, ...) [DT_##type] = &format_##type,
static const struct format *const formats[DT_COUNT] = {WEIGHT_TYPES(ROW)};
#undef ROW

/* ------------------------------------------------------------------- codes packed again --- */

static void pack_nibbles(const uint8_t codes[BLOCK], uint8_t *out)
{
    for (int i = 0; i < 16; i++)
        out[i] = (uint8_t)((codes[i] & 15) | codes[i + 16] << 4);
}

static uint32_t nibbles_of_four(const uint8_t *codes)
{
    uint32_t four;
    memcpy(&four, codes, sizeof four);
    four = (four | four >> 4) & 0x00ff00ff;
    return (four | four >> 8) & 0xffff;
}

static void pack_neighbours(const uint8_t codes[BLOCK], uint8_t *out)
{
    for (int i = 0; i < 16; i += 4) {
        const uint32_t word = nibbles_of_four(codes + i) | nibbles_of_four(codes + i + 16) << 16;
        memcpy(out + i, &word, sizeof word);
    }
}

/* One or two bits of each code, from `shift` on. Four codes are handled as one integer. */
static void pack_bits(const uint8_t codes[BLOCK], int shift, int bits, uint8_t *out)
{
    const uint32_t mask = bits == 1 ? 0x01010101 : 0x03030303;
    const int per_word = 8 / bits;
    for (int w = 0; w < bits; w++, out += sizeof(uint32_t)) {
        uint32_t word = 0;
        for (int i = 0; i < per_word; i++) {
            uint32_t four;
            memcpy(&four, codes + (w * per_word + i) * 4, sizeof four);
            word |= (four >> shift & mask) << i * bits;
        }
        memcpy(out, &word, sizeof word);
    }
}

static void pack_codes(const struct format *f, uint8_t codes[BLOCK], uint8_t *out, uint8_t *more)
{
    const uint8_t flip = f->flip;
    for (int i = 0; flip && i < BLOCK; i++)
        codes[i] ^= flip;
    if (f->bits == 8)
        memcpy(out, codes, BLOCK);
    else if (f->bits == 2)
        pack_bits(codes, 0, 2, out);
    else if (f->looked_up)
        pack_neighbours(codes, out);
    else
        pack_nibbles(codes, out);
    if (f->more_bits)
        pack_bits(codes, f->bits, f->more_bits, more);
}

/* ------------------------------------------------------------------------- whole rows ----- */

void cuda_layout_row(oato_dtype dtype, int64_t k, uint64_t bytes[CUDA_PLANES])
{
    const struct format *f = formats[dtype];
    const uint64_t n = (uint64_t)k;
    bytes[0] = n * (uint64_t)f->bits / 8;
    bytes[1] = n * (uint64_t)f->more_bits / 8;
    bytes[2] = n / BLOCK * (uint64_t)f->scale_bytes;
    bytes[3] = n / SUPER * (uint64_t)f->super_bytes;
    for (const struct piece *p = f->piece; p->bytes; p++)
        bytes[p->plane] += n / SUPER * p->bytes;
}

uint64_t cuda_layout_planes(oato_dtype dtype, int64_t rows, int64_t k, uint64_t offset[CUDA_PLANES])
{
    uint64_t bytes[CUDA_PLANES], end = 0;
    cuda_layout_row(dtype, rows * k, bytes);
    for (int p = 0; p < CUDA_PLANES; p++) {
        offset[p] = end;
        end = size_align(end + bytes[p], CUDA_PLANE_ALIGN);
    }
    return end;
}

uint64_t cuda_layout_bytes(oato_dtype dtype, int64_t rows, int64_t k)
{
    size_t row_bytes;
    if (!quants_known(dtype) || !formats[dtype] || rows <= 0 || k <= 0 || rows > INT32_MAX ||
        k > INT32_MAX || rows > ((int64_t)1 << ELEMENTS_MAX_LOG2) / k ||
        !dtype_row_bytes(dtype, k, &row_bytes) ||
        (dtype_info((int)dtype)->block_elems == 1 && row_bytes % ROW_ALIGN))
        return 0;
    uint64_t offset[CUDA_PLANES];
    return cuda_layout_planes(dtype, rows, k, offset);
}

/* 0, 1, 2, 4 or 16 bytes: a call of memcpy for each block would take a third of the time of all. */
static inline void copy_few(uint8_t *to, const uint8_t *from, int32_t bytes)
{
    switch (bytes) {
    case 0: break;
    case 1: *to = *from; break;
    case 2: memcpy(to, from, 2); break;
    case 4: memcpy(to, from, 4); break;
    default: memcpy(to, from, 16);
    }
}

/* A row of GGUF blocks to planes that begin with it. */
static void transcode_row(oato_dtype dtype, const uint8_t *row, int64_t k,
                          uint8_t *plane[CUDA_PLANES])
{
    const struct format *f = formats[dtype];
    const struct dtype_info *d = dtype_info((int)dtype);
    uint8_t *out = plane[0], *more = plane[1], *scales = plane[2], *of_super = plane[3];
    for (int64_t done = 0; done < k; done += d->block_elems, row += d->block_bytes) {
        _Alignas(64) uint8_t codes[SUPER];
        f->codes(row + f->codes_at, codes);
        for (int i = 0; i < d->block_elems; i += BLOCK) {
            pack_codes(f, codes + i, out, more);
            out += f->bits * BLOCK / 8;
            more += f->more_bits * BLOCK / 8;
        }
        const int32_t scale_bytes = d->block_elems / BLOCK * f->scale_bytes;
        if (f->scales)
            f->scales(row, scales);
        else
            copy_few(scales, row + f->scales_at, scale_bytes);
        copy_few(of_super, row + f->super_at, f->super_bytes);
        scales += scale_bytes;
        of_super += f->super_bytes;
    }
}

static void copy_row(oato_dtype dtype, const uint8_t *row, int64_t k, uint8_t *plane[CUDA_PLANES])
{
    for (int64_t b = 0; b < k / SUPER; b++, row += dtype_info((int)dtype)->block_bytes)
        for (const struct piece *p = formats[dtype]->piece; p->bytes; p++) {
            memcpy(plane[p->plane], row + p->at, p->bytes);
            plane[p->plane] += p->bytes;
        }
}

void cuda_layout_rows(const struct weight_source *source, uint8_t *to, int64_t begin, int64_t end)
{
    const struct format *f = formats[source->dtype];
    uint64_t row_bytes[CUDA_PLANES], offset[CUDA_PLANES];
    cuda_layout_row(source->dtype, source->k, row_bytes);
    cuda_layout_planes(source->dtype, source->row_end - source->row_begin, source->k, offset);
    for (int64_t r = begin; r < end; r++) {
        const uint8_t *row = weight_source_row(source, r);
        uint8_t *plane[CUDA_PLANES];
        for (int p = 0; p < CUDA_PLANES; p++)
            plane[p] = to + offset[p] + (uint64_t)r * row_bytes[p];
        if (f->codes)
            transcode_row(source->dtype, row, source->k, plane);
        else if (f->piece[0].bytes)
            copy_row(source->dtype, row, source->k, plane);
        else
            memcpy(plane[0], row, row_bytes[0]);
    }
}
