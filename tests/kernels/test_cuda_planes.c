/*
 * test_cuda_planes.c - the GPU makes of GGUF's blocks the planes that the host makes of them, byte
 * for byte, for every type, and writes nothing else. On the emulated GPU of tests/cuda_on_cpu/.
 */
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/cuda_layout.h"
#include "tests/kernels/cuda_rig.h"

#define TYPE(name, ...) DT_##name,
static const oato_dtype types[] = {BLOCK_TYPES(TYPE)};
#undef TYPE

/* Rows [begin, end) of a matrix are sent into the planes of all of it. */
static void compare(oato_dtype dtype, int64_t rows, int64_t k, int64_t begin, int64_t end)
{
    const struct dtype_info *t = dtype_info((int)dtype);
    const uint64_t bytes = cuda_layout_bytes(dtype, rows, k);
    uint64_t row[CUDA_PLANES], offset[CUDA_PLANES];
    size_t row_bytes = 0;
    assert_true(bytes && dtype_row_bytes(dtype, k, &row_bytes));
    uint8_t *data = test_malloc((size_t)rows * row_bytes), *expected = test_malloc(bytes),
            *got = test_malloc(bytes);
    random_elements(dtype, data, rows * k);
    memset(expected, 0xa5, bytes); /* stays where nothing is written */
    const struct weight_source s = {
        .data = data, .dtype = dtype, .k = k, .n = rows, .row_end = rows};
    cuda_layout_rows(&s, expected, begin, end);

    const uint64_t sent = (uint64_t)(end - begin) * row_bytes;
    const cu_address from = device_copy(data + (uint64_t)begin * row_bytes, sent);
    const cu_address to = device_alloc(bytes);
    struct cuda_planes_args a = {.from = (const uint8_t *)(uintptr_t)from,
                                 .blocks = (end - begin) * (k / t->block_elems)};
    char name[32];
    cuda_layout_row(dtype, k, row);
    cuda_layout_planes(dtype, rows, k, offset);
    for (int p = 0; p < CUDA_PLANES; p++)
        a.plane[p] = (uint8_t *)(uintptr_t)to + offset[p] + (uint64_t)begin * row[p];
    snprintf(name, sizeof name, "planes_%s", dtype_name(dtype));
    DO(cu->fill(to, 0xa5, bytes, stream));
    launch(name, cuda_planes_grid(a.blocks, t->block_elems), PLANES_THREADS, 0, &a);
    take_back(got, to, bytes);
    DO(cu->memory_free(from));
    for (uint64_t i = 0; i < bytes; i++)
        if (got[i] != expected[i])
            fail_msg("%s, rows %lld to %lld of %lld x %lld: byte %llu is %02x, not %02x",
                     dtype_name(dtype), (long long)begin, (long long)end, (long long)rows,
                     (long long)k, (unsigned long long)i, got[i], expected[i]);
    test_free(data);
    test_free(expected);
    test_free(got);
}

static void planes_are_those_of_the_host(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(types); i++) {
        const int64_t least = dtype_info((int)types[i])->block_elems;
        compare(types[i], 1, least, 0, 1);
        for (int times = 0; times < 3; times++) {
            const int64_t rows = random_in(1, 24), begin = random_in(0, rows - 1);
            compare(types[i], rows, least * random_in(1, 1280 / least), begin,
                    random_in(begin + 1, rows));
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {DEVICE_TEST(planes_are_those_of_the_host)};
    open_driver();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
