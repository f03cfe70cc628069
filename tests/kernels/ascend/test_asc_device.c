/*
 * test_asc_device.c - the device ascend on the strict stand-in: programs that compute what the cpu
 * device does, beside it and as graphs; and failures of all kinds that end in one line, leave
 * nobody waiting, and leave nothing behind. test_asc_memory.c has its memory.
 */
#include "tests/kernels/ascend/asc_test.h"
#include "tests/kernels/device_rig.h"

enum { WIDTH = 64 };

static struct timeline fake; /* of device 0, beside which the rig's runs */

/* ------------------------------------------------------------------------------ programs -- */

static void put(struct rig *g)
{
    rig_put(g, "rms_norm/k64", 1, (int[]){0}, 1, (int[]){1}, (int[]){rig_vector(g, WIDTH, 1)});
    rig_put(g, "mul_mat/F32/k64/n64", 1, (int[]){1}, 1, (int[]){2},
            (int[]){rig_f32_matrix(g, WIDTH, WIDTH, 2)});
    rig_put(g, "add/k64", 2, (int[]){2, 0}, 1, (int[]){3}, NULL)->signal = 1;
}

/* Its values are float32: the rig knows no others. */
static struct rig *plain_rig(void)
{
    struct rig *g = rig_create(SPEC, 1);
    memset(asc_of(g->d)->values, 0, sizeof asc_of(g->d)->values);
    return g;
}

/* A norm of value 0, a product of that, and the sum of both as value 3. */
static struct rig *create(const char *spec)
{
    struct rig *g = rig_create(spec, 1);
    struct oato_op op;
    if (g->d->ops->values)
        for (int k = 0; k < OP_KIND_COUNT;
             k++) /* of float32 alone: the rig knows no other values */
            asc_of(g->d)->values[k] = (struct value_types){{0}, {0}};
    assert_true(op_example(OP_ADD, DT_F32, &op));
    put(g);
    rig_compile(g, NULL);
    return g;
}

/* Of one sequence from its first position on. */
static struct step step_of(int32_t rows)
{
    static const int32_t zeros[RIG_TOKENS];
    static struct step_seq seq[RIG_TOKENS + 1];
    seq[rows] = (struct step_seq){.query_len = rows, .kv_len = rows};
    return (struct step){.n_tokens = rows,
                         .n_seqs = 1,
                         .token_id = zeros,
                         .token_position = zeros,
                         .token_seq = zeros,
                         .seq = &seq[rows]};
}

static void run(struct rig *g, const float *in, int32_t rows, float *to)
{
    const struct step step = step_of(rows);
    rig_write(g, 0, in, (size_t)rows * WIDTH * sizeof *in);
    rig_step_beside(g, &fake, &step);
    rig_read(g, 3, to, (size_t)rows * WIDTH * sizeof *to);
}

static void check_alike(const float *got, const float *expected, int32_t rows)
{
    double error = 0, square = 0;
    for (int32_t i = 0; i < rows * WIDTH; i++) {
        const double e = (double)got[i] - (double)expected[i];
        error += e * e;
        square += (double)expected[i] * (double)expected[i];
    }
    if (!(error <= 1e-9 * square))
        fail_msg("%d rows: NMSE %g", rows, error / square);
}

/* Each size often enough to be captured, and again: with other values. */
static void compare(const char *setting)
{
    static const int32_t rows[] = {1, 5, 1, 1, 1, RIG_TOKENS, 1, 5};
    float in[RIG_TOKENS * WIDTH], a[RIG_TOKENS * WIDTH], b[RIG_TOKENS * WIDTH];
    stand_anew(setting);
    struct rig *own = create(SPEC), *cpu = create("cpu");
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        rig_random(in, ARRAY_LEN(in), 7 + (uint32_t)i);
        run(cpu, in, rows[i], a);
        run(own, in, rows[i], b);
        check_alike(b, a, rows[i]);
    }
    rig_free(own);
    rig_free(cpu);
    stand_content();
}

static void a_program_computes_what_the_cpu_does(void **state)
{
    (void)state;
    compare("");
    compare("STAND_ORDER=random");
    compare("STAND_FAIL=aclmdlRICaptureBegin:*:207000"); /* this CANN does not capture */
    compare("STAND_FAIL=aclrtReserveMemAddress:*:207000");
}

/* It is a graph of CANN's that runs from the second step of a size on. */
static void decode_is_captured(void **state)
{
    float in[WIDTH] = {1}, out[WIDTH];
    (void)state;
    stand_anew("STAND_FAIL=aclmdlRIExecuteAsync:2:507899");
    struct rig *g = create(SPEC);
    struct oato_error err;
    run(g, in, 1, out);
    run(g, in, 1, out);
    const struct step step = step_of(1);
    rig_submit_beside(g, &fake, &step);
    assert_int_equal(g->d->ops->finish(g->d, &err), OATO_EDEVICE);
    one_line(&err, OATO_EDEVICE, "running a graph");
    rig_free(g);
}

/* Up to the NPU, and down again; the host makes what the NPU waits for and reads what it signals.
 */
static void values_go_between_devices_by_events(void **state)
{
    float in[2 * WIDTH], out[2 * WIDTH], expected[2 * WIDTH] = {0};
    const struct step step = step_of(2);
    (void)state;
    stand_anew("");
    struct rig *g[2] = {rig_create("cpu", 0), plain_rig()};
    rig_put(g[0], "scale/k64", 1, (int[]){0}, 1, (int[]){1}, NULL)->signal = 1;
    g[0]->records[0].op.scale = 2;
    struct program_record *last = rig_put(g[0], "add/k64", 2, (int[]){0, 2}, 1, (int[]){3}, NULL);
    rig_wait(last, 1, 2);
    last->signal = 2;
    rig_wait(rig_put_copy(g[1], RECORD_UPLOAD, WIDTH, 1, 0), 0, 1);
    rig_put(g[1], "add/k64", 2, (int[]){0, 0}, 1, (int[]){1}, NULL)->signal = 1;
    rig_put_copy(g[1], RECORD_DOWNLOAD, WIDTH, 1, 2)->signal = 2;
    rig_compile(g[0], NULL);
    rig_compile(g[1], g[0]);
    for (uint32_t i = 0; i < 20; i++) {
        struct step s = step;
        rig_random(in, ARRAY_LEN(in), i);
        rig_write(g[0], 0, in, sizeof in);
        rig_step(g, 2, &s);
        rig_read(g[0], 3, out, sizeof out);
        for (size_t e = 0; e < ARRAY_LEN(in); e++)
            expected[e] = 5 * in[e];
        check_alike(out, expected, 2);
    }
    rig_free(g[1]);
    rig_free(g[0]);
    stand_content();
}

/* A 310P has 1,023 events. */
static void events_are_used_again(void **state)
{
    float in[WIDTH] = {1}, out[WIDTH];
    (void)state;
    stand_anew("STAND_CHIP=310P3");
    struct rig *g = plain_rig();
    for (uint32_t i = 0; i < 4; i++)
        rig_put(g, "add/k64", 2, (int[]){0, 0}, 1, (int[]){3}, NULL)->signal = 1 + i;
    rig_compile(g, NULL);
    for (int i = 0; i < 250; i++)
        run(g, in, 1, out);
    assert_true(out[0] == 2);
    rig_free(g);
    stand_content();
}

/* More copies to the host in a step than are on their way at a time, with signals and without. */
static void every_copy_arrives(void **state)
{
    enum { COPIES = 600 };
    static struct program_record many[COPIES];
    float in[WIDTH];
    const struct step step = step_of(1);
    struct oato_error err;
    (void)state;
    for (uint32_t signals = 0; signals < 2; signals++) {
        stand_anew("");
        struct rig *g = plain_rig();
        rig_put_copy(g, RECORD_DOWNLOAD, WIDTH, 0, 0)->signal = 1;
        rig_compile(g, NULL);
        g->d->ops->release(g->d, g->c);
        for (uint32_t i = 0; i < COPIES; i++) {
            many[i] = g->records[0];
            many[i].out[0] = (uint64_t)i * sizeof in;
            many[i].signal = signals ? i + 1 : 0;
        }
        g->p.records = many;
        g->p.n_records = COPIES;
        g->p.n_signals = signals ? COPIES : 0;
        rig_random(in, WIDTH, 5);
        rig_write(g, 0, in, sizeof in);
        if (g->d->ops->compile(g->d, &g->p, 1, &g->c, &err))
            fail_msg("%s", err.text);
        rig_submit_beside(g, &fake, &step);
        if (g->d->ops->finish(g->d, &err))
            fail_msg("%s", err.text);
        for (uint32_t i = 0; i < COPIES; i++)
            assert_memory_equal((uint8_t *)g->host_arena + many[i].out[0], in, sizeof in);
        rig_free(g);
        stand_content();
    }
}

static void clocks_are_the_npus(void **state)
{
    float in[WIDTH] = {1}, out[WIDTH];
    (void)state;
    stand_anew("");
    struct rig *g = create(SPEC);
    struct oato_error why = {0};
    struct timeline *t = g->d->ops->timeline(g->d);
    uint64_t clock[3] = {0};
    assert_true(g->d->ops->measure(g->d, CLOCK_PASSES, &why));
    for (int i = 0; i < 3; i++) {
        run(g, in, 1, out);
        assert_true(timeline_wait(t, g->bases[1], &clock[i]));
        assert_true(!i || clock[i] >= clock[i - 1]);
        assert_true(clock[i] < UINT64_C(1000000000)); /* no host's time */
    }
    assert_false(g->d->ops->measure(g->d, CLOCK_WORKS, &why));
    one_line(&why, OATO_EUSAGE, "gaps");
    assert_true(g->d->ops->measure(g->d, CLOCK_USUAL, NULL));
    rig_free(g);
    stand_content();
}

static void what_it_cannot_run_is_refused(void **state)
{
    struct oato_error err;
    (void)state;
    stand_anew("");
    struct rig *g = rig_create(SPEC, 1);
    rig_put(g, "active/k64", 1, (int[]){0}, 1, (int[]){1}, NULL)->signal = 1;
    assert_int_equal(g->d->ops->compile(g->d, rig_program(g), 1, &g->c, &err), OATO_EUSAGE);
    one_line(&err, OATO_EUSAGE, "ascend:0: record 0: cannot run active/k64");
    rig_free(g);
    stand_content();
}

/* --------------------------------------------------------------------------- failures ----- */

static void step_fails(const char *setting, const char *what)
{
    const struct step step = step_of(2);
    struct oato_error err;
    void *p;
    stand_anew(setting);
    struct rig *g = create(SPEC);
    rig_submit_beside(g, &fake, &step);
    assert_int_equal(g->d->ops->finish(g->d, &err), OATO_EDEVICE);
    one_line(&err, OATO_EDEVICE, "ascend:0: ");
    one_line(&err, OATO_EDEVICE, what);
    assert_false(timeline_wait(g->d->ops->timeline(g->d), g->bases[1] + 100, NULL));
    g->d->ops->alloc(g->d, 4 << 20, &p, &err); /* whatever it says, it says it */
    rig_free(g);
}

static void an_npu_that_dies_is_one_line(void **state)
{
    (void)state;
    step_fails("STAND_DIE=aclnnMm:1", "507015");
    step_fails("STAND_DIE=aclnnAdd:1:507899", "507899");
    step_fails("STAND_FAIL=aclnnMm:1:561003", "aclnnMm");
    step_fails("STAND_FAIL=aclnnMmGetWorkspaceSize:5:161002", "aclnnMm");
    step_fails("STAND_FAIL=aclrtRecordEvent:1:507899", "signalling");
}

static void an_npu_that_hangs_is_left(void **state)
{
    (void)state;
    setenv("OATO_ASCEND_STEP_LIMIT", "0.2", 1);
    step_fails("STAND_HANG=aclnnMm:1", "at the same work for 0.2 s");
    setenv("OATO_ASCEND_STEP_LIMIT", "soon", 1);
    struct oato_device *d;
    struct oato_error err;
    stand_anew("");
    assert_int_equal(device_open(SPEC, 0, NULL, &d, &err), OATO_EUSAGE);
    one_line(&err, OATO_EUSAGE, "OATO_ASCEND_STEP_LIMIT");
    unsetenv("OATO_ASCEND_STEP_LIMIT");
}

static void an_injected_record_kills_the_device(void **state)
{
    float in[WIDTH] = {1}, out[WIDTH];
    const struct step step = step_of(1);
    struct oato_error err;
    (void)state;
    stand_anew("");
    struct rig *g = create(SPEC);
    assert_int_equal(g->d->ops->inject_error(g->d, "record=5", &err), OATO_OK);
    run(g, in, 1, out);
    rig_submit_beside(g, &fake, &step);
    assert_int_equal(g->d->ops->finish(g->d, &err), OATO_EDEVICE);
    one_line(&err, OATO_EDEVICE, "ascend:0: injected failure at record 1");
    rig_free(g);
    stand_content();
}

static void the_failure_of_another_device_is_passed_on(void **state)
{
    struct timeline dead;
    const struct step step = step_of(1);
    struct oato_error err;
    (void)state;
    timeline_init(&dead);
    stand_anew("");
    struct rig *g = rig_create(SPEC, 1);
    rig_wait(rig_put_copy(g, RECORD_UPLOAD, WIDTH, 0, 0), 0, 1);
    rig_compile(g, NULL);
    rig_submit_beside(g, &dead, &step);
    timeline_fail(&dead, TIMELINE_DIED);
    assert_int_equal(g->d->ops->finish(g->d, &err), OATO_EDEVICE);
    one_line(&err, OATO_EDEVICE, "record 0 waited for");
    rig_free(g);
    stand_content();
}

static void it_can_be_closed_while_it_waits(void **state)
{
    const struct step step = step_of(1);
    (void)state;
    stand_anew("");
    struct rig *g = rig_create(SPEC, 1);
    rig_wait(rig_put_copy(g, RECORD_UPLOAD, WIDTH, 0, 0), 0, 1);
    rig_compile(g, NULL);
    rig_submit_beside(g, &fake, &step);
    rig_free(g);
    stand_content();
}

static void what_it_says_of_itself(void **state)
{
    struct oato_device *d = opened("STAND_CHIP=310P3", 0);
    struct device_info info;
    struct oato_op op;
    (void)state;
    d->ops->info(d, &info);
    assert_string_equal(info.kind, "ascend");
    assert_string_equal(info.model, "stand-in for Ascend310P3");
    assert_non_null(strstr(info.note, "no NPU"));
    assert_true(!info.is_host && info.free_bytes <= info.memory_bytes);
    assert_non_null(strstr(d->ops->warning(d), "stand-in"));
    assert_true(op_example(OP_MUL_MAT, DT_F16, &op));
    assert_string_equal(d->ops->numerics(d, &op, NUMERICS_DECODE), "f16.cann");
    assert_string_equal(d->ops->numerics(d, &op, NUMERICS_LIBRARY), "f16.cann");
    closed(d);
    struct oato_error err;
    assert_int_equal(device_open("ascend:7", 0, NULL, &d, &err), OATO_EUSAGE);
    one_line(&err, OATO_EUSAGE, "ascend:7 is not here: CANN finds 1 NPU");
    assert_int_equal(device_open("npu", 0, NULL, &d, &err), OATO_OK);
    assert_string_equal(d->ops->kind, "ascend");
    d->ops->close(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_program_computes_what_the_cpu_does),
        cmocka_unit_test(decode_is_captured),
        cmocka_unit_test(values_go_between_devices_by_events),
        cmocka_unit_test(events_are_used_again),
        cmocka_unit_test(every_copy_arrives),
        cmocka_unit_test(clocks_are_the_npus),
        cmocka_unit_test(what_it_cannot_run_is_refused),
        cmocka_unit_test(an_npu_that_dies_is_one_line),
        cmocka_unit_test(an_npu_that_hangs_is_left),
        cmocka_unit_test(an_injected_record_kills_the_device),
        cmocka_unit_test(the_failure_of_another_device_is_passed_on),
        cmocka_unit_test(it_can_be_closed_while_it_waits),
        cmocka_unit_test(what_it_says_of_itself),
    };
    timeline_init(&fake);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
