/*
 * test_cuda_layout.c - matrices in the layout of a CUDA device, read back with the device's own
 * functions, have exactly the weights of their GGUF rows, for every type, any number of rows, any
 * piece of them and any columns; and no byte is written outside of a row's place.
 */
#include "kernels/cuda/cuda_layout.h"
#include "tests/kernels/cuda_unpack.h"
#include "tests/kernels/test_cpu.h"

/* Bytes in each plane of 32 elements, of 256 in the last, as cuda_layout.h has them. */
static const struct {
    oato_dtype dtype;
    int bytes[CUDA_PLANES];
} planes[] = {
    {DT_F32, {128}},
    {DT_F16, {64}},
    {DT_BF16, {64}},
    {DT_Q4_0, {16, 0, 2}},
    {DT_Q4_1, {16, 0, 4}},
    {DT_Q5_0, {16, 4, 2}},
    {DT_Q5_1, {16, 4, 4}},
    {DT_Q8_0, {32, 0, 2}},
    {DT_Q2_K, {8, 0, 2, 4}},
    {DT_Q3_K, {8, 4, 2, 2}},
    {DT_Q4_K, {16, 0, 2, 4}},
    {DT_Q5_K, {16, 4, 2, 4}},
    {DT_Q6_K, {16, 8, 2, 2}},
    {DT_IQ4_NL, {16, 0, 2}},
    {DT_IQ4_XS, {16, 0, 1, 2}},
    {DT_MXFP4, {16, 0, 1}},
    {DT_NVFP4, {16, 0, 2}},
    {DT_TQ1_0, {8, 0, 0, 2}},
    {DT_TQ2_0, {8, 0, 0, 2}},
    {DT_IQ1_S, {4, 2, 0, 2}},
    {DT_IQ1_M, {4, 2, 0, 8}},
    {DT_IQ2_XXS, {8, 0, 0, 2}},
    {DT_IQ2_XS, {8, 0, 0, 10}},
    {DT_IQ2_S, {4, 4, 0, 18}},
    {DT_IQ3_XXS, {8, 4, 0, 2}},
    {DT_IQ3_S, {8, 4, 0, 14}},
};

static struct cuda_matrix matrix_at(const uint8_t *data, oato_dtype dtype, int64_t rows, int64_t k)
{
    struct cuda_matrix w = {.rows = (int32_t)rows, .k = (int32_t)k, .dtype = (int32_t)dtype};
    uint64_t offset[CUDA_PLANES];
    cuda_layout_planes(dtype, rows, k, offset);
    for (int p = 0; p < CUDA_PLANES; p++)
        w.plane[p] = data + offset[p];
    return w;
}

/* The row of the matrix as the device reads it. */
static void read_row(const struct cuda_matrix *w, int64_t row, float *out)
{
    struct unpacked u;
    for (int64_t b = 0; b < w->k / 32; b++, out += 32) {
        assert_true(cuda_unpack(w, row * (w->k / 32) + b, &u));
        for (int e = 0; e < 32; e++)
            out[e] = u.d[e] * (float)u.code[e] + u.m[e];
    }
}

/* Rows [first, first + rows) of GGUF data against the matrix. */
static void assert_rows(const struct cuda_matrix *w, const uint8_t *data, uint64_t stride,
                        int64_t first)
{
    const oato_dtype dtype = (oato_dtype)w->dtype;
    float *wanted = test_malloc((size_t)w->k * sizeof *wanted);
    float *got = test_malloc((size_t)w->k * sizeof *got);
    size_t row_bytes;
    assert_true(dtype_row_bytes(dtype, w->k, &row_bytes));
    for (int64_t r = 0; r < w->rows; r++) {
        const uint8_t *row = data + (uint64_t)(first + r) * stride;
        if (dtype_info((int)dtype)->block_elems == 1) {
            assert_memory_equal(w->plane[0] + (size_t)r * row_bytes, row, row_bytes);
            continue;
        }
        quants_row(dtype, row, w->k, wanted);
        read_row(w, r, got);
        for (int64_t i = 0; i < w->k; i++)
            if (got[i] != wanted[i])
                fail_msg("%s row %lld element %lld: %.9g, not %.9g", dtype_name(dtype),
                         (long long)r, (long long)i, (double)got[i], (double)wanted[i]);
    }
    test_free(wanted);
    test_free(got);
}

/* What kernels fetch ahead is what they read. */
static void kernels_know_the_planes(void **state)
{
    (void)state;
    for (size_t t = 0; t < ARRAY_LEN(planes); t++)
        for (int p = 0; p < CUDA_PLANES; p++)
            assert_int_equal(cuda_plane_bytes((int)planes[t].dtype, p),
                             planes[t].bytes[p] * (p == CUDA_PLANES - 1 ? 1 : 8));
}

static void every_type_keeps_its_weights(void **state)
{
    (void)state;
    for (size_t t = 0; t < ARRAY_LEN(planes); t++) {
        const oato_dtype dtype = planes[t].dtype;
        const int64_t k = 256 * random_in(1, 5), n = random_in(1, 40);
        const int64_t begin = random_in(0, n - 1), end = random_in(begin + 1, n);
        size_t row_bytes;
        assert_true(dtype_row_bytes(dtype, k, &row_bytes));
        uint8_t *data = test_malloc((size_t)n * row_bytes);
        random_elements(dtype, data, n * k);
        struct weight_source s = {
            .data = data, .dtype = dtype, .k = k, .n = n, .row_begin = begin, .row_end = end};
        const uint64_t bytes = cuda_layout_bytes(dtype, end - begin, k);
        assert_true(bytes > 0);
        uint8_t *to = pages_alloc(bytes);
        const int64_t middle = random_in(0, end - begin); /* in any order */
        cuda_layout_rows(&s, to, middle, end - begin);
        cuda_layout_rows(&s, to, 0, middle);
        const struct cuda_matrix w = matrix_at(to, dtype, end - begin, k);
        assert_rows(&w, data, row_bytes, begin);
        pages_free(to, bytes);
        test_free(data);
    }
}

static void some_columns_of_a_wider_matrix_are_a_matrix(void **state)
{
    (void)state;
    for (size_t t = 0; t < ARRAY_LEN(planes); t++) {
        const oato_dtype dtype = planes[t].dtype;
        const int64_t wide = 1024, n = 7;
        const int64_t first = 256 * random_in(0, 2), k = 256 * random_in(1, 4 - first / 256);
        size_t stride, before;
        assert_true(dtype_row_bytes(dtype, wide, &stride));
        assert_true(dtype_row_bytes(dtype, first, &before));
        uint8_t *data = test_malloc((size_t)n * stride);
        random_elements(dtype, data, n * wide);
        struct weight_source s = {.data = data + before,
                                  .dtype = dtype,
                                  .k = k,
                                  .n = n,
                                  .row_begin = 2,
                                  .row_end = n,
                                  .row_stride = stride};
        const uint64_t bytes = cuda_layout_bytes(dtype, n - 2, k);
        uint8_t *to = pages_alloc(bytes);
        cuda_layout_rows(&s, to, 0, n - 2);
        const struct cuda_matrix w = matrix_at(to, dtype, n - 2, k);
        assert_rows(&w, data + before, stride, 2);
        pages_free(to, bytes);
        test_free(data);
    }
}

/* Any finite f16, and for MXFP4 and NVFP4 any byte, as scale: none is rounded, subnormal ones
 * neither. */
static void any_scale_is_exact(void **state)
{
    (void)state;
    static const int scales_at[DT_COUNT] = {
        [DT_Q2_K] = 80, [DT_Q3_K] = 108, [DT_Q6_K] = 208, [DT_TQ1_0] = 52, [DT_TQ2_0] = 64};
    for (size_t t = 0; t < ARRAY_LEN(planes); t++) {
        const oato_dtype dtype = planes[t].dtype;
        const struct dtype_info *d = dtype_info((int)dtype);
        const bool two = planes[t].bytes[2] == 4 || planes[t].bytes[3] == 4;
        if (d->block_elems == 1)
            continue;
        const int64_t k = 256 * 256; /* MXFP4 has all its bytes several times */
        size_t row_bytes;
        assert_true(dtype_row_bytes(dtype, k, &row_bytes));
        uint8_t *data = test_malloc(row_bytes);
        random_elements(dtype, data, k);
        for (int64_t b = 0; b < k / d->block_elems; b++) {
            uint8_t *block = data + b * d->block_bytes;
            uint16_t half[2];
            for (int i = 0; i < 2; i++)
                do
                    half[i] = (uint16_t)random_u64();
                while ((half[i] & 0x7c00) == 0x7c00);
            if (dtype == DT_MXFP4)
                block[0] = (uint8_t)b;
            for (int i = 0; i < 4 && dtype == DT_IQ1_M; i++) /* a nibble in each of four words */
                block[49 + 2 * i] = (uint8_t)((block[49 + 2 * i] & 15) | (half[0] >> 4 * i) << 4);
            if (dtype != DT_MXFP4 && dtype != DT_NVFP4 && dtype != DT_IQ1_M)
                memcpy(block + scales_at[dtype], half, two ? 4 : 2);
        }
        struct weight_source s = {.data = data, .dtype = dtype, .k = k, .n = 1, .row_end = 1};
        const uint64_t bytes = cuda_layout_bytes(dtype, 1, k);
        uint8_t *to = pages_alloc(bytes);
        cuda_layout_rows(&s, to, 0, 1);
        const struct cuda_matrix w = matrix_at(to, dtype, 1, k);
        assert_rows(&w, data, row_bytes, 0);
        pages_free(to, bytes);
        test_free(data);
    }
}

/* Bytes are written if two different fillings are the same afterwards. */
static void a_row_is_written_to_its_place_alone(void **state)
{
    (void)state;
    for (size_t t = 0; t < ARRAY_LEN(planes); t++) {
        const oato_dtype dtype = planes[t].dtype;
        const int64_t k = 256 * random_in(1, 3), n = random_in(3, 20);
        const int64_t begin = random_in(0, n), end = random_in(begin, n);
        size_t row_bytes;
        assert_true(dtype_row_bytes(dtype, k, &row_bytes));
        uint8_t *data = test_malloc((size_t)n * row_bytes);
        random_elements(dtype, data, n * k);
        struct weight_source s = {.data = data, .dtype = dtype, .k = k, .n = n, .row_end = n};
        const uint64_t bytes = cuda_layout_bytes(dtype, n, k);
        uint8_t *once = test_malloc(bytes), *again = test_malloc(bytes);
        bool *wanted = test_calloc(bytes, sizeof *wanted);
        memset(once, 0x55, bytes);
        memset(again, 0xaa, bytes);
        cuda_layout_rows(&s, once, begin, end);
        cuda_layout_rows(&s, again, begin, end);
        uint64_t offset[CUDA_PLANES], at = 0;
        cuda_layout_planes(dtype, n, k, offset);
        for (int p = 0; p < CUDA_PLANES; p++) {
            const uint64_t row = (uint64_t)(k / (p == 3 ? 256 : 32) * planes[t].bytes[p]);
            assert_int_equal(offset[p], at);
            for (uint64_t i = (uint64_t)begin * row; i < (uint64_t)end * row; i++)
                wanted[at + i] = true;
            at = size_align(at + (uint64_t)n * row, 256);
        }
        assert_int_equal(bytes, at);
        for (uint64_t i = 0; i < bytes; i++)
            if ((once[i] == again[i]) != wanted[i])
                fail_msg("%s: byte %llu of %llu is %s", dtype_name(dtype), (unsigned long long)i,
                         (unsigned long long)bytes, wanted[i] ? "not written" : "written");
        test_free(data);
        test_free(once);
        test_free(again);
        test_free(wanted);
    }
}

static bool is_common(int dtype)
{
    for (size_t i = 0; i < ARRAY_LEN(matrix_types); i++)
        if ((int)matrix_types[i] == dtype)
            return true;
    return false;
}

static void what_cannot_be_laid_out_has_no_bytes(void **state)
{
    (void)state;
    for (int dtype = 0; dtype <= DT_COUNT; dtype++)
        assert_int_equal(cuda_layout_bytes((oato_dtype)dtype, 4, 256) > 0, is_common(dtype));
    assert_int_equal(cuda_layout_bytes(DT_I8, 4, 256), 0);
    assert_int_equal(cuda_layout_bytes(DT_Q4_K, 4, 32), 0);
    assert_int_equal(cuda_layout_bytes(DT_Q4_0, 4, 48), 0);
    assert_int_equal(cuda_layout_bytes(DT_Q4_0, 0, 32), 0);
    assert_int_equal(cuda_layout_bytes(DT_Q4_0, 4, 0), 0);
    assert_int_equal(cuda_layout_bytes(DT_Q4_0, -1, 32), 0);
    assert_int_equal(cuda_layout_bytes(DT_Q4_0, (int64_t)INT32_MAX + 1, 32), 0);
    assert_int_equal(cuda_layout_bytes(DT_F32, INT32_MAX, INT32_MAX - 3), 0);
    assert_int_equal(cuda_layout_bytes(DT_F16, 4, 12), 0);
    assert_int_equal(cuda_layout_bytes(DT_F16, 16, 8), 256);
    assert_int_equal(cuda_layout_bytes(DT_F32, 4, 6), 0);
    assert_int_equal(cuda_layout_bytes(DT_F32, 17, 4), 512);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kernels_know_the_planes),
        cmocka_unit_test(every_type_keeps_its_weights),
        cmocka_unit_test(some_columns_of_a_wider_matrix_are_a_matrix),
        cmocka_unit_test(any_scale_is_exact),
        cmocka_unit_test(a_row_is_written_to_its_place_alone),
        cmocka_unit_test(what_cannot_be_laid_out_has_no_bytes),
    };
    seed_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
