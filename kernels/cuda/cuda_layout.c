/*
 * cuda_layout.c - GGUF's rows to the planes of cuda_layout.h on the host, by planes_make.h.
 */
#include "kernels/cuda/cuda_layout.h"

#include "kernels/core/core_internal.h"
#include "kernels/cuda/planes_make.h"

#include <string.h>

enum { BLOCK = 32, SUPER = 256, ELEMENTS_MAX_LOG2 = 48, ROW_ALIGN = 16 };

#define FORMAT(type, ...) static const struct planes_format format_##type = __VA_ARGS__;
PLANES_OF_CODES(FORMAT)
PLANES_OF_PIECES(FORMAT)
#undef FORMAT
static const struct planes_format format_F32 = {.bits = 32}, format_F16 = {.bits = 16},
                                  format_BF16 = {.bits = 16};

#define ROW(type, ...) [DT_##type] = &format_##type,
static const struct planes_format *const formats[DT_COUNT] = {WEIGHT_TYPES(ROW)};
#undef ROW

/* ------------------------------------------------------------------------- whole rows ----- */

void cuda_layout_row(oato_dtype dtype, int64_t k, uint64_t bytes[CUDA_PLANES])
{
    const struct planes_format *f = formats[dtype];
    const uint64_t n = (uint64_t)k;
    bytes[0] = n * (uint64_t)f->bits / 8;
    bytes[1] = n * (uint64_t)f->more_bits / 8;
    bytes[2] = n / BLOCK * (uint64_t)f->scale_bytes;
    bytes[3] = n / SUPER * (uint64_t)f->super_bytes;
    for (const struct planes_piece *p = f->piece; p->bytes; p++)
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

/* A row of GGUF blocks to planes that begin with it. Inline, for a format that the compiler knows:
 * what it does not use is not there then. */
static inline __attribute__((always_inline)) void transcode_row(const struct planes_format *f,
                                                                int elements, int bytes,
                                                                const uint8_t *row, int64_t k,
                                                                uint8_t *const plane[CUDA_PLANES])
{
    const int subs = elements / BLOCK;
    uint8_t *out = plane[0], *more = plane[1], *scales = plane[2], *of_super = plane[3];
    for (int64_t done = 0; done < k; done += elements, row += bytes) {
        for (int s = 0; s < subs; s++) {
            uint32_t w[8], codes[8], above[2];
            planes_codes(f, row, s, w);
            planes_pack(f, w, codes, above);
            memcpy(out, codes, f->bits * sizeof *codes);
            memcpy(more, above, f->more_bits * sizeof *above);
            out += f->bits * sizeof *codes;
            more += f->more_bits * sizeof *above;
        }
        planes_scales(f, row, subs, scales);
        memcpy(of_super, row + f->super_at, f->super_bytes);
        scales += subs * f->scale_bytes;
        of_super += f->super_bytes;
    }
}

#define BLOCK_OF(type, number, elements, bytes)                                                    \
    enum { ELEMENTS_##type = (elements), BYTES_##type = (bytes) };
BLOCK_TYPES(BLOCK_OF)
#undef BLOCK_OF
#define TRANSCODE(type, ...)                                                                       \
    static void transcode_##type(const uint8_t *row, int64_t k, uint8_t *const plane[CUDA_PLANES]) \
    {                                                                                              \
        const struct planes_format f = __VA_ARGS__;                                                \
        transcode_row(&f, ELEMENTS_##type, BYTES_##type, row, k, plane);                           \
    }
PLANES_OF_CODES(TRANSCODE)
#undef TRANSCODE

#define ROW(type, ...) [DT_##type] = transcode_##type,
static void (*const transcodes[DT_COUNT])(const uint8_t *row, int64_t k,
                                          uint8_t *const plane[CUDA_PLANES]) = {
    PLANES_OF_CODES(ROW)};
#undef ROW

static void copy_row(oato_dtype dtype, const uint8_t *row, int64_t k, uint8_t *plane[CUDA_PLANES])
{
    for (int64_t b = 0; b < k / SUPER; b++, row += dtype_info((int)dtype)->block_bytes)
        for (const struct planes_piece *p = formats[dtype]->piece; p->bytes; p++) {
            memcpy(plane[p->plane], row + p->at, p->bytes);
            plane[p->plane] += p->bytes;
        }
}

void cuda_layout_rows(const struct weight_source *source, uint8_t *to, int64_t begin, int64_t end)
{
    const struct planes_format *f = formats[source->dtype];
    uint64_t row_bytes[CUDA_PLANES], offset[CUDA_PLANES];
    cuda_layout_row(source->dtype, source->k, row_bytes);
    cuda_layout_planes(source->dtype, source->row_end - source->row_begin, source->k, offset);
    for (int64_t r = begin; r < end; r++) {
        const uint8_t *row = weight_source_row(source, r);
        uint8_t *plane[CUDA_PLANES];
        for (int p = 0; p < CUDA_PLANES; p++)
            plane[p] = to + offset[p] + (uint64_t)r * row_bytes[p];
        if (f->codes)
            transcodes[source->dtype](row, source->k, plane);
        else if (f->piece[0].bytes)
            copy_row(source->dtype, row, source->k, plane);
        else
            memcpy(plane[0], row, row_bytes[0]);
    }
}
