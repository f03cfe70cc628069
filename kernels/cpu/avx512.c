/*
 * avx512.c - the avx512 table: matrix products on 16 interleaved rows with VNNI. What is too small
 * for wider vectors to pay is shared with avx2. Class and bits are those of avx2.
 */
#include "kernels/cpu/avx512_internal.h"

uint64_t avx512_matrix_bytes(oato_dtype dtype, int64_t rows, int64_t k)
{
    return lanes_matrix_bytes(AVX512_LANES, dtype, rows, k);
}

void avx512_matrix_prepare(const struct weight_source *s, struct oato_weight *w, int64_t begin,
                           int64_t end)
{
    lanes_matrix_prepare(AVX512_LANES, s, w, begin, end);
}

bool avx512_matrix_row(const struct oato_weight *w, int64_t row, float *out)
{
    return lanes_matrix_row(AVX512_LANES, w, row, out);
}

static uint64_t stream_scratch(oato_dtype dtype, int64_t k)
{
    (void)k;
    return lanes_format_of(dtype) ? avx512_bytes_scratch() : 0;
}

static void stream_rows(const struct matrix_job *j, int64_t begin, int64_t end, uint8_t *scratch)
{
    if (lanes_format_of(j->w->dtype))
        avx512_bytes_rows(j, begin, end, scratch);
    else
        avx512_matrix_float(j, begin, end);
}

const struct matrix_class avx512_decode = {
    .numerics = lanes_bytes_numerics,
    .pack_bytes = lanes_bytes_pack_bytes,
    .pack = lanes_bytes_pack,
    .scratch_bytes = stream_scratch,
    .rows = stream_rows,
};

static const char *prefill_numerics(oato_dtype dtype)
{
    return lanes_format_of(dtype) ? lanes_bytes_numerics(dtype) : "i14b32";
}

static uint64_t prefill_pack_bytes(oato_dtype dtype, int64_t k)
{
    return lanes_format_of(dtype) ? lanes_bytes_pack_bytes(dtype, k) : lanes_words_pack_bytes(k);
}

static void prefill_pack(oato_dtype dtype, int64_t k, const float *x, uint8_t *out)
{
    if (lanes_format_of(dtype))
        lanes_bytes_pack(dtype, k, x, out);
    else
        lanes_words_pack(k, x, out);
}

static uint64_t prefill_scratch(oato_dtype dtype, int64_t k)
{
    (void)k;
    return lanes_format_of(dtype) ? avx512_bytes_scratch() : avx512_words_scratch();
}

static void prefill_rows(const struct matrix_job *j, int64_t begin, int64_t end, uint8_t *scratch)
{
    if (lanes_format_of(j->w->dtype))
        avx512_bytes_rows(j, begin, end, scratch);
    else
        avx512_words_rows(j, begin, end, scratch);
}

static const struct matrix_class matrix_prefill = {
    .numerics = prefill_numerics,
    .pack_bytes = prefill_pack_bytes,
    .pack = prefill_pack,
    .scratch_bytes = prefill_scratch,
    .rows = prefill_rows,
};

const struct cpu_kernels cpu_kernels_avx512 = {
    .name = "avx512",
    .layout = "lanes16.2",
    .matrix = {&avx512_decode, &matrix_prefill},
    .matrix_bytes = avx512_matrix_bytes,
    .matrix_prepare = avx512_matrix_prepare,
    .matrix_row = avx512_matrix_row,
    .attention_scratch_bytes = avx512_attention_scratch,
    .attention = avx512_attention,
    .attention_merge = avx512_attention_merge,
    .rms_norm = avx2_rms_norm,
    .add = avx2_add,
    .swiglu = avx2_swiglu,
    .to_f16 = avx2_to_f16,
};
