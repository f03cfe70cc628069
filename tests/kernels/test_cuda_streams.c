/*
 * test_cuda_streams.c - weights that stay in host memory and are copied to a CUDA device when they
 * are used: the bits of resident ones, whatever form they are kept in and however many pieces they
 * take, in an order that no copy breaks, in memory that is counted. And the host's arena, which is
 * page-locked while programs use it.
 */
#include "tests/kernels/device_rig.h"

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/cuda_layout.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N = 64, MATRIX = N * N * 4, MATRICES = 5, ALREADY_REGISTERED = 712 };

static float matrices[MATRICES][N * N];

static struct weight_source source_of(int i)
{
    return (struct weight_source){
        .data = matrices[i], .dtype = DT_F32, .k = N, .n = N, .row_end = N, .use = WEIGHT_MATRIX};
}

static void *alloc(const struct rig *g, uint64_t bytes)
{
    struct oato_error err;
    void *p = NULL;
    if (g->d->ops->alloc(g->d, bytes, &p, &err))
        fail_msg("%s", err.text);
    return p;
}

static void give_back(const struct rig *g, void *p, uint64_t bytes)
{
    g->d->ops->finish(g->d, NULL);
    g->d->ops->free(g->d, p, bytes);
}

/* For a copy that is kept: hosts that have little memory left keep none. */
static bool has_room(const struct rig *g, uint64_t bytes)
{
    void *p = g->d->ops->host_alloc(g->d, bytes, false);
    if (p)
        g->d->ops->host_free(g->d, p);
    return p;
}

static void read_back(const struct rig *g, void *to, const void *from, uint64_t bytes)
{
    struct oato_error err;
    if (g->d->ops->download(g->d, to, from, 0, bytes, NULL, &err))
        fail_msg("%s", err.text);
}

/* The only record streams the weight; the step is over when it is there. */
static void stream_alone(struct rig *g, int weight)
{
    struct step step = {.n_tokens = 1, .n_seqs = 1};
    rig_put_stream(g, weight)->signal = 1;
    rig_compile(g, NULL);
    rig_step(&g, 1, &step);
}

static void close_rig(struct rig *g, void *staging, uint64_t bytes)
{
    g->d->ops->release(g->d, g->c);
    g->c = NULL;
    for (uint32_t i = 0; i < g->p.n_weights; i++)
        weight_free(g->d, g->weights[i]);
    g->p.n_weights = 0;
    give_back(g, staging, bytes);
    rig_free(g);
}

/* ---------------------------------------------------------------------------------- bytes -- */

/* The planes one after the other, without what lies between them, which nobody writes. */
static uint64_t close_planes(oato_dtype dtype, int64_t rows, int64_t k, uint8_t *bytes)
{
    uint64_t row[CUDA_PLANES], offset[CUDA_PLANES], end = 0;
    cuda_layout_row(dtype, k, row);
    cuda_layout_planes(dtype, rows, k, offset);
    for (int p = 0; p < CUDA_PLANES; p++) {
        memmove(bytes + end, bytes + offset[p], (uint64_t)rows * row[p]);
        end += (uint64_t)rows * row[p];
    }
    return end;
}

/* Rows [1, rows] of a tensor that is 256 columns wider, resident, streamed from a copy that is kept
 * and from the file's rows: each time what cuda_layout_rows makes of them at once. */
static void check_bytes(oato_dtype dtype, int64_t rows, int64_t k)
{
    size_t row = 0, wide = 0;
    assert_true(dtype_row_bytes(dtype, k, &row) && dtype_row_bytes(dtype, k + 256, &wide));
    const uint64_t bytes = cuda_layout_bytes(dtype, rows, k);
    const size_t file_floats = wide * (size_t)(rows + 2) / sizeof(float) + 1;
    float *numbers = malloc(file_floats * sizeof *numbers);
    uint8_t *file = (uint8_t *)numbers, *expected = calloc(1, bytes), *got = malloc(bytes);
    assert_true(file && expected && got);
    rig_random(numbers, file_floats, (uint32_t)rows);
    struct weight_source s = {.data = file + (wide - row),
                              .dtype = dtype,
                              .k = k,
                              .n = rows + 2,
                              .row_begin = 1,
                              .row_end = rows + 1,
                              .row_stride = wide,
                              .use = WEIGHT_MATRIX};
    cuda_layout_rows(&s, expected, 0, rows);
    const uint64_t used = close_planes(dtype, rows, k, expected);
    for (int way = 0; way < 3; way++) {
        setenv("OATO_CUDA_KEEP", way == 1 ? "1" : "0", 1);
        struct rig *g = rig_create("cuda", 0);
        struct oato_error err;
        void *staging = alloc(g, bytes + 512);
        const uint8_t *at = (const uint8_t *)staging + 256;
        if (way) {
            const struct device_weight *w =
                device_weight_of(g->weights[rig_stage(g, &s, staging, 256)]);
            const bool blocks = dtype_info((int)dtype)->block_elems > 1;
            assert_int_equal(w->unpacked, blocks);
            assert_int_equal(w->kept != NULL, way == 1 && has_room(g, bytes));
            stream_alone(g, 0);
        } else {
            if (weight_prepare(g->d, &s, &g->weights[g->p.n_weights++], &err))
                fail_msg("%s", err.text);
            at = g->weights[0]->data;
        }
        read_back(g, got, at, bytes);
        assert_int_equal(close_planes(dtype, rows, k, got), used);
        if (memcmp(got, expected, used) != 0)
            fail_msg("%s of %d rows, way %d: other bytes", dtype_name(dtype), (int)rows, way);
        close_rig(g, staging, bytes + 512);
    }
    unsetenv("OATO_CUDA_KEEP");
    free(got);
    free(expected);
    free(numbers);
}

/* Where the host copied rows as fast as the link took them, with time to spare. */
static void copies_are_kept_where_the_host_is_the_limit(void **state)
{
    (void)state;
    static uint8_t file[N * N / 32 * 34];
    const struct weight_source s = {
        .data = file, .dtype = DT_Q8_0, .k = N, .n = N, .row_end = N, .use = WEIGHT_MATRIX};
    struct rig *g = rig_create("cuda", 0);
    struct weight_store *store = g->d->weights;
    void *staging = alloc(g, 3 * MATRIX);
    for (int i = 0; i < 3; i++) {
        store->send_ns = i ? 100 : 0; /* 0: nothing is known */
        store->copy_ns = i == 1 ? 80 : 40;
        const int w = rig_stage(g, &s, staging, (uint64_t)i * MATRIX);
        assert_int_equal(device_weight_of(g->weights[w])->kept != NULL,
                         i < 2 && has_room(g, MATRIX));
    }
    close_rig(g, staging, 3 * MATRIX);
}

/* A kernel that gives other bytes than the host is not used; here none gives any. */
static void a_gpu_that_makes_other_planes_has_the_host_make_them(void **state)
{
    (void)state;
    static uint8_t file[N * N / 32 * 34];
    const struct weight_source s = {
        .data = file, .dtype = DT_Q8_0, .k = N, .n = N, .row_end = N, .use = WEIGHT_MATRIX};
    struct oato_error err;
    if (!getenv("OATO_CUDA_DRIVER"))
        skip();
    setenv("OATO_CUDA_ON_CPU_COMPUTES", "0", 1);
    struct rig *g = rig_create("cuda", 0);
    assert_int_equal(weight_prepare(g->d, &s, &g->weights[g->p.n_weights++], &err), OATO_OK);
    assert_false(device_weight_of(g->weights[0])->unpacked);
    assert_non_null(strstr(g->d->ops->warning(g->d), "makes other planes of Q8_0"));
    rig_free(g);
    unsetenv("OATO_CUDA_ON_CPU_COMPUTES");
}

/* More than all the buffers hold, so that each is filled again. */
static void weights_of_many_pieces_arrive_whole(void **state)
{
    (void)state;
    const int64_t many = (LANE_BUFFERS + 1) * (int64_t)LANE_BUFFER_BYTES;
    check_bytes(DT_Q6_K, 3, 256);
    check_bytes(DT_Q6_K, many / 210, 256);
    check_bytes(DT_Q4_0, many / 576 + 1, 1024);
    check_bytes(DT_F32, many / 4096 + 7, 1024);
}

static void vectors_are_converted(void **state)
{
    (void)state;
    enum { K = 300000 }; /* a piece that the crew fills */
    uint16_t *half = malloc(K * sizeof *half);
    float *got = malloc(K * sizeof *got);
    assert_true(half && got);
    for (int i = 0; i < K; i++)
        half[i] = f32_to_f16((float)(i % 2047) - 1000);
    struct rig *g = rig_create("cuda", 0);
    void *staging = alloc(g, K * sizeof *got);
    const struct weight_source s = {
        .data = half, .dtype = DT_F16, .k = K, .n = 1, .row_end = 1, .use = WEIGHT_VECTOR};
    stream_alone(g, rig_stage(g, &s, staging, 0));
    read_back(g, got, staging, K * sizeof *got);
    for (int i = 0; i < K; i++)
        assert_true(got[i] == (float)(i % 2047) - 1000);
    close_rig(g, staging, K * sizeof *got);
    free(got);
    free(half);
}

/* What a rotation turns by is computed when the program is compiled, before anything streams. */
static void rotations_know_divisors_that_are_streamed(void **state)
{
    (void)state;
    enum { PAIRS = 16 };
    static float x[2][2 * PAIRS], divisors[PAIRS];
    const int32_t position[] = {0, 5}, sequence[] = {0, 0};
    const struct weight_source s = {
        .data = divisors, .dtype = DT_F32, .k = PAIRS, .n = 1, .row_end = 1, .use = WEIGHT_VECTOR};
    float got[2][2][2 * PAIRS];
    rig_random(x[0], 2 * 2 * PAIRS, 3);
    for (int i = 0; i < PAIRS; i++)
        divisors[i] = 1 + (float)i;
    for (int streams = 0; streams < 2; streams++) {
        struct rig *g = rig_create("cuda", 0);
        struct oato_error err;
        void *staging = alloc(g, sizeof divisors);
        int w = 0;
        if (streams)
            rig_put_stream(g, rig_stage(g, &s, staging, 0));
        else if (weight_prepare(g->d, &s, &g->weights[g->p.n_weights++], &err))
            fail_msg("%s", err.text);
        rig_put(g, "rope/h1/d32/r32/p0", 1, (int[]){0}, 1, (int[]){1}, &w)->signal = 1;
        rig_compile(g, NULL);
        rig_write(g, 0, x[0], sizeof x);
        struct step step = {
            .n_tokens = 2, .n_seqs = 1, .token_position = position, .token_seq = sequence};
        rig_step(&g, 1, &step);
        rig_read(g, 1, got[streams][0], sizeof got[streams]);
        close_rig(g, staging, sizeof divisors);
    }
    assert_memory_equal(got[0], got[1], sizeof got[0]);
    assert_memory_not_equal(got[0][1], x[1], sizeof x[1]);
}

/* ---------------------------------------------------------------------------------- order -- */

static struct program_record *put_product(struct rig *g, int from, int weight)
{
    return rig_put(g, "mul_mat/F32/k64/n64", 1, (int[]){from}, 1, (int[]){from + 1}, &weight);
}

/* Value MATRICES = the product of all matrices and value 0, all of them resident. */
static void expected_product(const float *x, float *y)
{
    struct rig *g = rig_create("cuda", 0);
    struct oato_error err;
    for (int i = 0; i < MATRICES; i++) {
        const struct weight_source s = source_of(i);
        if (weight_prepare(g->d, &s, &g->weights[g->p.n_weights++], &err))
            fail_msg("%s", err.text);
        put_product(g, i, i)->signal = (uint32_t)i + 1;
    }
    rig_compile(g, NULL);
    rig_write(g, 0, x, N * sizeof *x);
    struct step step = {.n_tokens = 1, .n_seqs = 1};
    rig_step(&g, 1, &step);
    rig_read(g, MATRICES, y, N * sizeof *y);
    rig_free(g);
}

/* The matrices take turns in two buffers: each is streamed to where the one before the last lies,
 * and read only when it has arrived, in steps that queue up. */
static void streamed_weights_take_turns(void **state)
{
    (void)state;
    enum { STEPS = 40 };
    static float x[N], expected[N], got[N];
    const struct step step = {.n_tokens = 1, .n_seqs = 1};
    struct timeline host;
    struct oato_error err;
    timeline_init(&host);
    for (int i = 0; i < MATRICES; i++) {
        rig_random(matrices[i], N * N, (uint32_t)i + 1);
        for (int j = 0; j < N * N; j++)
            matrices[i][j] *= 0.25f; /* products neither grow nor vanish */
    }
    rig_random(x, N, 7);
    expected_product(x, expected);
    struct rig *g = rig_create("cuda:0", 1);
    void *staging = alloc(g, 2 * (uint64_t)MATRIX);
    for (int i = 0; i < MATRICES; i++) {
        const struct weight_source s = source_of(i);
        rig_stage(g, &s, staging, (uint64_t)(i % 2) * MATRIX);
    }
    rig_put_stream(g, 0);
    rig_put_stream(g, 1);
    for (int i = 0; i < MATRICES; i++) {
        put_product(g, i, i);
        if (i + 2 < MATRICES)
            rig_put_stream(g, i + 2);
    }
    g->records[g->p.n_records - 1].signal = 1;
    rig_compile(g, NULL);
    rig_write(g, 0, x, sizeof x);
    for (int i = 0; i < STEPS; i++) {
        rig_submit_beside(g, &host, &step);
        if (i % 8 < 6)
            continue;
        if (g->d->ops->finish(g->d, &err))
            fail_msg("%s", err.text);
        rig_read(g, MATRICES, got, sizeof got);
        assert_memory_equal(got, expected, sizeof got);
        memset(got, 0, sizeof got);
        rig_write(g, MATRICES, got, sizeof got);
    }
    close_rig(g, staging, 2 * (uint64_t)MATRIX);
}

static void what_nobody_reads_in_a_step_is_not_streamed(void **state)
{
    (void)state;
    static float got[N * N];
    struct rig *g = rig_create("cuda", 0);
    void *staging = alloc(g, MATRIX);
    rig_random(matrices[0], N * N, 1);
    const struct weight_source s = source_of(0);
    rig_put_stream(g, rig_stage(g, &s, staging, 0))->rows = ROWS_LOGITS;
    g->records[0].signal = 1;
    rig_compile(g, NULL);
    struct step step = {.n_tokens = 1, .n_seqs = 1};
    rig_step(&g, 1, &step);
    read_back(g, got, staging, MATRIX);
    for (int i = 0; i < N * N; i++)
        assert_true(got[i] == 0);
    step.n_rows = 1;
    rig_step(&g, 1, &step);
    read_back(g, got, staging, MATRIX);
    assert_memory_equal(got, matrices[0], MATRIX);
    close_rig(g, staging, MATRIX);
}

/* ------------------------------------------------------------------------------- refusals -- */

static void only_what_was_staged_is_streamed(void **state)
{
    (void)state;
    struct compiled *c;
    struct oato_error err;
    struct oato_weight *none;
    struct rig *g = rig_create("cuda", 0);
    struct weight_source s = source_of(0);
    void *staging = alloc(g, MATRIX);
    assert_int_equal(weight_stage(g->d, &s, staging, 4, &none, &err), OATO_EUSAGE);
    assert_non_null(strstr(err.text, "a multiple of 256"));
    s.row_stride = 4; /* less than a row */
    assert_int_equal(weight_stage(g->d, &s, staging, 0, &none, &err), OATO_EUSAGE);
    rig_put_stream(g, rig_f32_matrix(g, N, N, 1));
    assert_int_equal(g->d->ops->compile(g->d, rig_program(g), 0, &c, &err), OATO_EUSAGE);
    assert_non_null(strstr(err.text, "weight 0 is streamed but already resident"));
    close_rig(g, staging, MATRIX);
}

static void staging_is_counted_and_streaming_takes_no_more(void **state)
{
    (void)state;
    const struct device_options options = {.budget_bytes = 2 * (uint64_t)MATRIX};
    struct oato_device *d;
    struct oato_error err;
    struct oato_weight *w[3];
    struct device_info before, after;
    void *staging, *more;
    if (device_open("cuda", 0, &options, &d, &err))
        fail_msg("%s", err.text);
    assert_int_equal(d->ops->alloc(d, 2 * (uint64_t)MATRIX, &staging, &err), OATO_OK);
    assert_int_equal(d->ops->alloc(d, 1, &more, &err), OATO_EFIT);
    d->ops->info(d, &before);
    for (int i = 0; i < 3; i++) {
        const struct weight_source s = source_of(i);
        assert_int_equal(weight_stage(d, &s, staging, (uint64_t)(i % 2) * MATRIX, &w[i], &err),
                         OATO_OK);
    }
    d->ops->info(d, &after);
    assert_int_equal(before.free_bytes, after.free_bytes);
    for (int i = 0; i < 3; i++)
        weight_free(d, w[i]);
    d->ops->free(d, staging, 2 * (uint64_t)MATRIX);
    d->ops->info(d, &after);
    assert_int_equal(after.free_bytes, 2 * (uint64_t)MATRIX);
    d->ops->close(d);
}

/* ------------------------------------------------------------------------------- failures -- */

/* The stream fails, or the GPU does while a weight is on its way: the step fails, and all that was
 * put is over before memory goes. */
static void a_failure_ends_what_is_on_its_way(void **state)
{
    (void)state;
    const int emulated = getenv("OATO_CUDA_DRIVER") != NULL;
    for (int dies = 0; dies <= emulated; dies++) {
        if (dies)
            setenv("OATO_CUDA_ON_CPU_FAIL", "launch=1", 1);
        struct rig *g = rig_create("cuda:0", 1);
        unsetenv("OATO_CUDA_ON_CPU_FAIL");
        const struct weight_source s = source_of(0);
        const struct step step = {.n_tokens = 1, .n_seqs = 1};
        struct timeline host;
        struct oato_error err;
        void *staging = alloc(g, MATRIX);
        timeline_init(&host);
        const int w = rig_stage(g, &s, staging, 0);
        for (int i = 0; i < 4; i++) {
            rig_put_stream(g, w);
            put_product(g, i, w);
        }
        g->records[7].signal = 1;
        rig_compile(g, NULL);
        if (!dies)
            assert_int_equal(g->d->ops->inject_error(g->d, "record=7", &err), OATO_OK);
        rig_submit_beside(g, &host, &step);
        assert_int_equal(g->d->ops->finish(g->d, &err), OATO_EDEVICE);
        assert_non_null(strstr(err.text, dies ? "ILLEGAL_ADDRESS" : "injected"));
        assert_int_equal(atomic_load(&g->d->ops->timeline(g->d)->failed), TIMELINE_DIED);
        close_rig(g, staging, MATRIX);
    }
}

/* A device that is closed while a step waits; nothing of it may go on. */
static void closing_gives_up_a_step_that_streams(void **state)
{
    (void)state;
    struct rig *g = rig_create("cuda:0", 1);
    struct timeline host;
    const struct step step = {.n_tokens = 1, .n_seqs = 1};
    const struct weight_source s = source_of(0);
    void *staging = alloc(g, MATRIX);
    timeline_init(&host);
    rig_put_stream(g, rig_stage(g, &s, staging, 0));
    rig_wait(put_product(g, 0, 0), 0, 1); /* for ever */
    rig_compile(g, NULL);
    rig_submit_beside(g, &host, &step);
    close_rig(g, staging, MATRIX);
}

/* ----------------------------------------------------------------------------- host arena -- */

static struct rig *copies_beside(struct rig *cpu)
{
    struct rig *g = rig_create("cuda:0", 1);
    rig_put_copy(g, RECORD_UPLOAD, N, 0, 0);
    rig_put(g, "add/k64", 2, (int[]){0, 0}, 1, (int[]){1}, NULL);
    rig_put_copy(g, RECORD_DOWNLOAD, N, 1, 1)->signal = 1;
    rig_compile(g, cpu);
    return g;
}

static bool is_pinned(const void *p)
{
    struct oato_error err;
    const struct cuda_driver *cu = cuda_driver_open(&err);
    void *page = (void *)(uintptr_t)p;
    const cu_result result = cu->host_register(page, 4096, CU_HOST_PORTABLE);
    if (!result)
        cu->host_unregister(page);
    return result == ALREADY_REGISTERED;
}

static void the_hosts_arena_is_pinned_while_a_program_uses_it(void **state)
{
    (void)state;
    const int emulated = getenv("OATO_CUDA_DRIVER") != NULL;
    for (int refused = 0; refused <= emulated; refused++) {
        struct rig *cpu = rig_create("cpu", 0), *g[2];
        const uint8_t *second = (const uint8_t *)cpu->p.arena + 4096;
        struct timeline host;
        float x[N], y[N];
        if (refused)
            setenv("OATO_CUDA_ON_CPU_FAIL", "register=1", 1);
        timeline_init(&host);
        g[0] = copies_beside(cpu);
        unsetenv("OATO_CUDA_ON_CPU_FAIL");
        cuda_enter(cuda_of(g[0]->d));
        assert_int_equal(is_pinned(second), !refused);
        g[1] = copies_beside(cpu);
        for (int i = 0; i < 2; i++) {
            const struct step step = {.n_tokens = 1, .n_seqs = 1};
            rig_random(x, N, (uint32_t)i);
            rig_write(cpu, 0, x, sizeof x);
            rig_step_beside(g[i], &host, &step);
            rig_read(cpu, 1, y, sizeof y);
            for (int j = 0; j < N; j++)
                assert_true(y[j] == 2 * x[j]);
        }
        struct oato_device *open = rig_open("cuda"); /* whose context outlives the others */
        rig_free(g[0]);
        cuda_enter(cuda_of(open));
        assert_true(is_pinned(second)); /* the second is asked for again where it was refused */
        rig_free(g[1]);
        cuda_enter(cuda_of(open));
        assert_false(is_pinned(second));
        open->ops->close(open);
        rig_free(cpu);
    }
}

/* ----------------------------------------------------------------------------- kept or not - */

static struct cuda_driver whole;

/* The buffers, but no weight. */
static cu_result only_buffers(void **p, size_t bytes, unsigned flags)
{
    const bool weight = flags == CU_HOST_PORTABLE && bytes != LANE_BUFFER_BYTES;
    return weight ? CU_ERROR_OUT_OF_MEMORY : whole.host_alloc(p, bytes, flags);
}

/* Host memory for no converted weight: they are converted whenever they are streamed. */
static int keep_none(void **state)
{
    (void)state;
    struct cuda_driver *driver = (struct cuda_driver *)(uintptr_t)cuda_driver_open(NULL);
    whole = *driver;
    driver->host_alloc = only_buffers;
    return 0;
}

int main(void)
{
    struct oato_error err;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(weights_of_many_pieces_arrive_whole),
        cmocka_unit_test(copies_are_kept_where_the_host_is_the_limit),
        cmocka_unit_test(a_gpu_that_makes_other_planes_has_the_host_make_them),
        cmocka_unit_test(vectors_are_converted),
        cmocka_unit_test(rotations_know_divisors_that_are_streamed),
        cmocka_unit_test(streamed_weights_take_turns),
        cmocka_unit_test(what_nobody_reads_in_a_step_is_not_streamed),
        cmocka_unit_test(only_what_was_staged_is_streamed),
        cmocka_unit_test(staging_is_counted_and_streaming_takes_no_more),
        cmocka_unit_test(a_failure_ends_what_is_on_its_way),
        cmocka_unit_test(closing_gives_up_a_step_that_streams),
        cmocka_unit_test(the_hosts_arena_is_pinned_while_a_program_uses_it),
    };
    if (!cuda_driver_open(&err)) {
        printf("skipped: %s\n", err.text);
        return 77;
    }
    const int failed = cmocka_run_group_tests_name("kept converted", tests, NULL, NULL);
    return failed ? failed : cmocka_run_group_tests_name("converted anew", tests, keep_none, NULL);
}
