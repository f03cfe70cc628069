/*
 * avx512.c - the avx512 table: matrix products on 16 interleaved rows with VNNI. What is too small
 * for wider vectors to pay is shared with avx2. Class and bits are those of avx2.
 */
#include "kernels/cpu/avx512_internal.h"

const struct matrix_class *avx512_decode(oato_dtype dtype)
{
    return lanes_format_of(dtype) ? &avx512_bytes : &avx512_float;
}

static const struct matrix_class *matrix_of(oato_dtype dtype, enum numerics_choice choice)
{
    return choice == NUMERICS_PREFILL && !lanes_format_of(dtype) ? &avx512_words
                                                                 : avx512_decode(dtype);
}

const struct cpu_kernels cpu_kernels_avx512 = {
    .name = "avx512",
    .layout = &lanes16_layout,
    .matrix = matrix_of,
    .attention = &avx512_attention,
    .rows = &avx2_rows,
    .state = &avx512_state,
    .columns = &avx512_columns,
};
