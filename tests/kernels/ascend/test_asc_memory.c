/*
 * test_asc_memory.c - memory of the device ascend on the strict stand-in, which the host cannot
 * read, within its budget; copies, at once and in the queue's order; quantised weights that come
 * back bit by bit; and what a chip lacks.
 */
#include "tests/kernels/ascend/asc_test.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

/* ------------------------------------------------------------------------------- memory --- */

/* The signal that ends a child which reads *address; 0 when it lives. */
static int signal_of_reading(const void *address)
{
    pid_t child = fork();
    assert_true(child >= 0);
    if (!child) {
        signal(SIGSEGV, SIG_DFL);
        _exit(*(const volatile char *)address == 0 ? 0 : 1);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

static void its_memory_is_its_own(void **state)
{
    struct oato_device *d = opened("", 8 << 20);
    struct device_info before, after;
    struct oato_error err;
    void *memory, *more;
    char here[100], back[100] = "";
    (void)state;
    memset(here, 'x', sizeof here);
    d->ops->info(d, &before);
    assert_int_equal(before.memory_bytes, 8 << 20);
    assert_int_equal(d->ops->alloc(d, 2000000, &memory, &err), OATO_OK);
    d->ops->info(d, &after);
    assert_int_equal(before.free_bytes - after.free_bytes, 2000000);
    assert_int_equal(d->ops->alloc(d, 6000000, &more, &err), OATO_EFIT);
    one_line(&err, OATO_EFIT, "ascend:0: 5.7 MiB");
    assert_int_equal(signal_of_reading(memory), SIGSEGV);
    assert_int_equal(d->ops->download(d, back, memory, 1999900, 100, NULL, &err), OATO_OK);
    for (size_t i = 0; i < sizeof back; i++)
        assert_int_equal(back[i], 0); /* as on other devices */
    assert_int_equal(d->ops->upload(d, memory, 1999900, here, 100, NULL, &err), OATO_OK);
    uint64_t value = 0;
    assert_int_equal(d->ops->download(d, back, memory, 1999900, 50, &value, &err), OATO_OK);
    assert_int_equal(d->ops->download(d, back + 50, memory, 1999950, 50, NULL, &err), OATO_OK);
    assert_true(timeline_wait(d->ops->timeline(d), value, NULL));
    assert_memory_equal(here, back, sizeof here);
    assert_int_equal(d->ops->upload(d, memory, 1999901, here, 100, NULL, &err), OATO_EUSAGE);
    assert_int_equal(d->ops->download(d, back, here, 0, 1, NULL, &err), OATO_EUSAGE);
    d->ops->free(d, memory, 2000000);
    assert_int_equal(d->ops->inject_error(d, "alloc=1", &err), OATO_OK);
    assert_int_equal(d->ops->alloc(d, 10, &memory, &err), OATO_EFIT);
    assert_int_equal(d->ops->alloc(d, 10, &memory, &err), OATO_OK);
    closed(d); /* whatever was not freed goes, too */
}

/* What is small shares an allocation of CANN's; the smallest gap that has room is taken. */
static void small_memory_fits_best(void **state)
{
    enum { N = 6 };
    static const uint64_t bytes[N] = {4096, 64, 1024, 64, 256, 64};
    struct oato_device *d = opened("", 0);
    struct oato_error err;
    void *p[N], *again;
    (void)state;
    for (int i = 0; i < N; i++)
        assert_int_equal(d->ops->alloc(d, bytes[i], &p[i], &err), OATO_OK);
    for (int i = 0; i < N; i += 2)
        d->ops->free(d, p[i], bytes[i]);
    assert_int_equal(d->ops->alloc(d, 200, &again, &err), OATO_OK);
    assert_ptr_equal(again, p[4]);
    d->ops->free(d, again, 200);
    assert_int_equal(d->ops->alloc(d, 700, &again, &err), OATO_OK);
    assert_ptr_equal(again, p[2]);
    d->ops->free(d, p[1], bytes[1]); /* neighbours become one gap */
    assert_int_equal(d->ops->alloc(d, 4100, &again, &err), OATO_OK);
    assert_ptr_equal(again, p[0]);
    closed(d);
}

static void its_real_memory_has_an_end(void **state)
{
    struct oato_device *d = opened("STAND_MEMORY=64M", 0);
    struct oato_error err;
    void *p, *q;
    (void)state;
    assert_int_equal(d->ops->alloc(d, 40 << 20, &p, &err), OATO_OK);
    assert_int_equal(d->ops->alloc(d, 30 << 20, &q, &err), OATO_EFIT);
    one_line(&err, OATO_EFIT, "ascend:0: 30.0 MiB");
    d->ops->free(d, p, 40 << 20);
    assert_int_equal(d->ops->alloc(d, 30 << 20, &q, &err), OATO_OK);
    closed(d);
    /* no room for a chunk, but for what is asked */
    d = opened("STAND_FAIL=aclrtMalloc:1:207001", 0);
    assert_int_equal(d->ops->alloc(d, 1000, &p, &err), OATO_OK);
    d->ops->free(d, p, 1000);
    closed(d);
    d = opened("STAND_FAIL=aclrtMalloc:1:207001", 0); /* another program has it */
    assert_int_equal(d->ops->alloc(d, 1 << 20, &p, &err), OATO_EFIT);
    one_line(&err, OATO_EFIT, "of the NPU's");
    closed(d);
}

/* An area keeps its address where the chip can do that. */
static void areas_grow(void **state)
{
    static const char *const settings[] = {"", "STAND_FAIL=aclrtReserveMemAddress:*:207000"};
    (void)state;
    for (int moves = 0; moves < 2; moves++) {
        struct oato_device *base = opened(settings[moves], 0);
        struct asc_device *d = asc_of(base);
        struct asc_area area = {0};
        struct oato_error err;
        bool moved;
        assert_int_equal(asc_area_grow(d, &area, 100, true, "a test", &moved, &err), OATO_OK);
        assert_false(moved);
        const uint8_t *at = area.base;
        assert_int_equal(asc_area_grow(d, &area, 30 << 20, false, "a test", &moved, &err), OATO_OK);
        assert_true(area.bytes >= 30 << 20);
        assert_int_equal(moved, moves);
        assert_true(moved || area.base == at);
        assert_int_equal(d->api->rtMemset(area.base, area.bytes, 1, area.bytes), 0);
        asc_area_free(d, &area);
        closed(base);
    }
}

static void quantised_weights_come_back(void **state)
{
    enum { K = 96, N = 70 };
    static const oato_dtype types[] = {DT_F32, DT_F16, DT_BF16, DT_Q8_0, DT_Q4_0};
    struct oato_device *d = opened("", 0);
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(types); i++) {
        struct weight_source s = {
            .dtype = types[i], .k = K, .n = N, .row_begin = 3, .row_end = 67, .use = WEIGHT_MATRIX};
        struct oato_weight *w;
        struct oato_error err;
        size_t row;
        assert_true(dtype_row_bytes(types[i], K, &row));
        uint8_t *rows = malloc(row * N), *back = malloc(row * N);
        for (size_t b = 0; b < row * N; b++) /* no NaNs as floats, any bits as blocks */
            rows[b] = (uint8_t)((b * 2654435761u >> 13) & (types[i] < DT_Q4_0 ? 0x3f : 0xff));
        s.data = rows;
        assert_int_equal(weight_prepare(d, &s, &w, &err), OATO_OK);
        uint8_t *prepared = malloc(w->bytes);
        assert_int_equal(w->bytes, weight_bytes(d, &s));
        assert_int_equal(d->ops->download(d, prepared, w->data, 0, w->bytes, NULL, &err), OATO_OK);
        const enum asc_form form = asc_form_of(asc_of(d), types[i], WEIGHT_MATRIX);
        assert_true(asc_restore(&s, form, prepared, 0, 64, back));
        assert_memory_equal(back, rows + 3 * row, 64 * row);
        weight_free(d, w);
        free(prepared);
        free(back);
        free(rows);
    }
    closed(d);
}

static void what_a_chip_lacks_is_not_resident(void **state)
{
    struct oato_device *d = opened("STAND_CHIP=310P3", 0);
    struct oato_op op;
    (void)state;
    for (oato_dtype t = 0; t < DT_COUNT; t++) {
        const bool has = t == DT_F32 || t == DT_F16;
        if (!op_example(OP_MUL_MAT, t, &op))
            continue;
        assert_int_equal(d->ops->supports(d, &op), has);
        assert_int_equal(weight_bytes_of(d, t, 64, 256, WEIGHT_MATRIX) > 0, has);
    }
    closed(d);
    d = opened("", 0);
    for (oato_dtype t = 0; t < DT_COUNT; t++)
        if (op_example(OP_MUL_MAT, t, &op))
            assert_int_equal(d->ops->supports(d, &op), t == DT_F32 || t == DT_F16 || t == DT_BF16 ||
                                                           t == DT_Q8_0 || t == DT_Q4_0);
    closed(d);
}

/* Whether an operator runs here does not depend on how much memory there is. */
static void support_needs_no_memory(void **state)
{
    struct oato_device *full = opened("", 0);
    bool runs[OP_KIND_COUNT][DT_COUNT] = {{false}};
    struct oato_op op;
    (void)state;
    for (int k = 0; k < OP_KIND_COUNT; k++)
        for (oato_dtype t = 0; t < DT_COUNT; t++)
            runs[k][t] = op_example((enum op_kind)k, t, &op) && full->ops->supports(full, &op);
    closed(full);
    struct oato_device *little = opened("STAND_MEMORY=2M", 0);
    for (int k = 0; k < OP_KIND_COUNT; k++)
        for (oato_dtype t = 0; t < DT_COUNT; t++)
            if (op_example((enum op_kind)k, t, &op) &&
                little->ops->supports(little, &op) != runs[k][t])
                fail_msg("%s of %s", op_kind_name(k), dtype_name(t));
    closed(little);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(its_memory_is_its_own),
        cmocka_unit_test(small_memory_fits_best),
        cmocka_unit_test(its_real_memory_has_an_end),
        cmocka_unit_test(areas_grow),
        cmocka_unit_test(quantised_weights_come_back),
        cmocka_unit_test(what_a_chip_lacks_is_not_resident),
        cmocka_unit_test(support_needs_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
