/*
 * test_sim.c - the simulated device computes the CPU's bits in memory that nobody else can read,
 * within its budget, behind the caller's back, on a clock made of declared costs; and it fails
 * without leaving anybody waiting.
 */
#include "tests/kernels/device_rig.h"

#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

/* --------------------------------------------------------------------------- memory ------- */

/* The signal that ends a child which reads *address; 0 when it lives. */
static int signal_of_reading(const void *address)
{
    pid_t child = fork();
    assert_true(child >= 0);
    if (!child) {
        signal(SIGSEGV, SIG_DFL); /* sanitizers have a handler of their own */
        _exit(*(const volatile char *)address == 0 ? 0 : 1);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

static void its_memory_cannot_be_read_by_others(void **state)
{
    (void)state;
    struct oato_device *d = rig_open("sim:vram=4MiB");
    struct oato_error err;
    void *memory;
    char here[100], back[100] = "";
    memset(here, 'x', sizeof here);
    assert_int_equal(signal_of_reading(here), 0);
    assert_int_equal(d->ops->alloc(d, 10000, &memory, &err), OATO_OK);
    assert_int_equal(d->ops->upload(d, memory, 9900, here, 100, NULL, &err), OATO_OK);
    assert_int_equal(signal_of_reading(memory), SIGSEGV);
    assert_int_equal(signal_of_reading((char *)memory + 9999), SIGSEGV);
    /* in two pieces, one behind the caller's back */
    uint64_t value = 0;
    assert_int_equal(d->ops->download(d, back, memory, 9900, 50, &value, &err), OATO_OK);
    assert_int_equal(d->ops->download(d, back + 50, (char *)memory + 900, 9050, 50, NULL, &err),
                     OATO_OK);
    assert_true(timeline_wait(d->ops->timeline(d), value, NULL));
    assert_memory_equal(here, back, sizeof here);
    assert_int_equal(d->ops->upload(d, memory, 9901, here, 100, NULL, &err), OATO_EUSAGE);
    assert_int_equal(d->ops->download(d, back, here, 0, 1, NULL, &err), OATO_EUSAGE);
    d->ops->free(d, memory, 10000);
    assert_int_equal(d->ops->download(d, back, memory, 0, 1, NULL, &err), OATO_EUSAGE);
    d->ops->free(d, NULL, 0);
    d->ops->close(d);
}

static uint64_t free_bytes(const struct oato_device *d)
{
    struct device_info info;
    d->ops->info(d, &info);
    return info.free_bytes;
}

static void the_budget_holds_for_everything(void **state)
{
    (void)state;
    enum { MIB = 1 << 20, K = 256, ROWS = 1024 };
    struct oato_device *d = rig_open("sim:vram=3MiB");
    struct oato_error err;
    void *a, *b;
    assert_int_equal(d->ops->alloc(d, 5 * MIB / 2, &a, &err), OATO_OK);
    assert_int_equal(free_bytes(d), MIB / 2);
    assert_int_equal(d->ops->alloc(d, 2 * MIB, &b, &err), OATO_EFIT);
    assert_non_null(strstr(err.text, "2.5 of 3.0 MiB are in use, 2 MiB are missing"));

    static float matrix[ROWS * K] = {0};
    struct weight_source source = {
        .data = matrix, .dtype = DT_F32, .k = K, .n = ROWS, .row_end = ROWS, .use = WEIGHT_MATRIX};
    struct oato_weight *w;
    assert_int_equal(weight_prepare(d, &source, &w, &err), OATO_EFIT);
    assert_non_null(strstr(err.text, "missing"));
    struct weight_source wrong = source;
    wrong.row_end = ROWS + 1;
    assert_int_equal(weight_prepare(d, &wrong, &w, &err), OATO_EUSAGE);
    wrong = source;
    wrong.dtype = DT_I64;
    assert_int_equal(weight_prepare(d, &wrong, &w, &err), OATO_EUSAGE);
    const struct kv_layer_shape layer = {.kv_heads = 4, .head_dim = 64};
    struct kv_cache *kv;
    assert_int_equal(d->ops->kv_create(d, &layer, 1, DT_F16, 16, &kv, &err), OATO_EFIT);
    assert_int_equal(d->ops->kv_create(d, &layer, 1, DT_Q4_0, 16, &kv, &err), OATO_EFIT);
    assert_int_equal(d->ops->kv_create(d, &layer, 1, DT_F32, INT32_MAX, &kv, &err), OATO_EFIT);
    assert_int_equal(free_bytes(d), MIB / 2);

    d->ops->free(d, a, 5 * MIB / 2);
    assert_int_equal(weight_prepare(d, &source, &w, &err), OATO_OK);
    assert_int_equal(free_bytes(d), 3 * MIB - weight_bytes_of(d, DT_F32, ROWS, K, WEIGHT_MATRIX));
    assert_int_equal(d->ops->kv_create(d, &layer, 1, DT_F16, 16, &kv, &err), OATO_OK);
    weight_free(d, w);
    d->ops->kv_free(d, kv);
    weight_free(d, NULL);
    d->ops->kv_free(d, NULL);
    assert_int_equal(free_bytes(d), 3 * MIB);
    d->ops->close(d); /* whatever was not freed goes too */

    const struct device_options options = {.budget_bytes = MIB};
    assert_int_equal(device_open("sim:vram=2MiB", 0, &options, &d, &err), OATO_OK);
    assert_int_equal(free_bytes(d), MIB);
    assert_int_equal(d->ops->alloc(d, MIB, &a, &err), OATO_OK);
    assert_int_equal(d->ops->alloc(d, 1, &a, &err), OATO_EFIT);
    d->ops->close(d);
    assert_int_equal(device_open("sim:vram=40", 0, NULL, &d, &err), OATO_EUSAGE);
    assert_non_null(strstr(err.text, "40 bytes; give a unit"));
    assert_int_equal(device_open("sim:vram=0", 0, NULL, &d, &err), OATO_OK);
    assert_int_equal(d->ops->alloc(d, 1, &a, &err), OATO_EFIT);
    d->ops->close(d);
}

static void it_says_what_was_declared(void **state)
{
    (void)state;
    struct oato_device *d =
        rig_open("sim:2:launch=3us,vram=64MiB,read=900GB/s,flops=80T,link=25GB/s,latency=10us");
    struct device_info info;
    d->ops->info(d, &info);
    assert_string_equal(info.id, "sim:2");
    assert_string_equal(info.kind, "sim");
    assert_false(info.is_host);
    assert_int_equal(info.memory_bytes, 64 << 20);
    assert_true(info.read_bytes_per_s == 900e9 && info.flops_per_s == 80e12);
    assert_true(info.link_bytes_per_s == 25e9);
    assert_true(info.link_latency_s > 9.99e-6 && info.link_latency_s < 10.01e-6);
    assert_true(info.launch_s > 2.99e-6 && info.launch_s < 3.01e-6);
    struct oato_op op = {.kind = OP_MUL_MAT, .dtype = DT_Q4_0, .k = 64, .n = 64};
    struct oato_device *cpu = rig_open("cpu");
    assert_true(d->ops->supports(d, &op));
    assert_string_equal(d->ops->numerics(d, &op, NUMERICS_DECODE),
                        cpu->ops->numerics(cpu, &op, NUMERICS_DECODE));
    cpu->ops->close(cpu);
    d->ops->close(d);
    assert_true(sim_device_ops.probe() >= 1);
}

/* ---------------------------------------------------------------------------- results ----- */

static void a_layer_has_the_bits_of_the_cpu(void **state)
{
    (void)state;
    static float expected[RIG_LOGITS], got[RIG_LOGITS];
    for (int prompt = 1; prompt <= RIG_TOKENS; prompt += 3) {
        rig_run_layer("cpu", prompt, expected);
        rig_run_layer("sim:vram=8MiB", prompt, got);
        assert_memory_equal(expected, got, sizeof got);
        rig_run_layer("sim:vram=8MiB,kv=rows", prompt, got);
        assert_memory_equal(expected, got, sizeof got);
        for (int i = 0; i < RIG_VOCABULARY; i++) /* of the prompt's first row */
            assert_true(expected[i] != 0 && fabsf(expected[i]) < 1e6f);
    }
}

/* y = W norm(x) + b, W divided between the devices: the host's part runs while the other's does,
 * and each waits for what the other made. */
static void two_devices_that_wait_for_each_other_agree_with_one(void **state)
{
    (void)state;
    enum { STEPS = 200 };
    struct rig *cpu = rig_create("cpu", 0), *sim = rig_create("sim:vram=8MiB", 1);
    struct rig *both[] = {cpu, sim};
    /* alone on the host: values 0 -> 1 -> 2 -> 3 */
    struct rig *alone = rig_create("cpu", 0);
    rig_put(alone, "rms_norm/k64", 1, (int[]){0}, 1, (int[]){1}, (int[]){rig_vector(alone, 64, 1)});
    rig_put(alone, "mul_mat/Q8_0/k64/n128", 1, (int[]){1}, 1, (int[]){2},
            (int[]){rig_matrix(alone, 64, 128, 0, 128, 2)});
    rig_put(alone, "bias/k128", 1, (int[]){2}, 1, (int[]){3}, (int[]){rig_vector(alone, 128, 3)})
        ->signal = 1;
    /* rows 0..63 on the host, 64..127 on the other, merged on the other, bias on the host */
    struct program_record *r;
    r = rig_put(cpu, "rms_norm/k64", 1, (int[]){0}, 1, (int[]){1}, (int[]){rig_vector(cpu, 64, 1)});
    r->signal = 1;
    r = rig_put_copy(sim, RECORD_UPLOAD, 64, 1, 1);
    rig_wait(r, 0, 1);
    rig_put(sim, "mul_mat/Q8_0/k64/n64", 1, (int[]){1}, 1, (int[]){2},
            (int[]){rig_matrix(sim, 64, 128, 64, 128, 2)});
    r = rig_put(cpu, "mul_mat/Q8_0/k64/n64", 1, (int[]){1}, 1, (int[]){2},
                (int[]){rig_matrix(cpu, 64, 128, 0, 64, 2)});
    r->signal = 2;
    r = rig_put_copy(sim, RECORD_UPLOAD, 64, 2, 3);
    rig_wait(r, 0, 2);
    rig_put(sim, "merge/n128", 2, (int[]){3, 2}, 1, (int[]){4}, NULL);
    r = rig_put_copy(sim, RECORD_DOWNLOAD, 128, 4, 4);
    r->signal = 1;
    r = rig_put(cpu, "bias/k128", 1, (int[]){4}, 1, (int[]){3}, (int[]){rig_vector(cpu, 128, 3)});
    rig_wait(r, 1, 1);
    r->signal = 3;
    rig_compile(alone, NULL);
    rig_compile(cpu, NULL);
    rig_compile(sim, cpu);

    static float x[RIG_TOKENS * 64], expected[RIG_TOKENS * 128], got[RIG_TOKENS * 128];
    for (int i = 0; i < STEPS; i++) {
        rig_random(x, ARRAY_LEN(x), (uint32_t)i);
        struct step step = {.n_tokens = 1 + i % RIG_TOKENS, .n_seqs = 1};
        size_t bytes = (size_t)step.n_tokens * 128 * sizeof(float);
        rig_write(alone, 0, x, sizeof x);
        rig_write(cpu, 0, x, sizeof x);
        rig_step(&alone, 1, &step);
        rig_step(both, 2, &step);
        rig_read(alone, 3, expected, bytes);
        rig_read(cpu, 3, got, bytes);
        assert_memory_equal(expected, got, bytes);
    }
    rig_free(sim);
    rig_free(alone);
    rig_free(cpu);
}

static void devices_that_reach_each_other_agree_with_one(void **state)
{
    (void)state;
    struct rig *g[] = {rig_create("sim:0:vram=8MiB,peer=1GB/s", 0),
                       rig_create("sim:1:vram=8MiB,peer=1GB/s", 1)};
    struct rig *alone = rig_create("sim:vram=8MiB", 0), *cpu = rig_create("cpu", 0);
    assert_false(alone->d->ops->reaches(alone->d, g[0]->d)); /* without a rate there is no way */
    assert_false(g[0]->d->ops->reaches(g[0]->d, g[0]->d));
    assert_false(g[0]->d->ops->reaches(g[0]->d, cpu->d));
    rig_run_peers(g, alone);
    rig_free(g[0]);
    rig_free(g[1]);
    rig_free(alone);
    rig_free(cpu);
}

static void what_is_out_of_reach_is_refused(void **state)
{
    (void)state;
    struct rig *near = rig_create("sim:0:vram=8MiB", 0), *far = rig_create("sim:1:vram=8MiB", 1);
    struct oato_error err;
    rig_put_peer(near, far, 64, 0, 0)->signal = 1;
    assert_int_equal(near->d->ops->compile(near->d, rig_program(near), 0, &near->c, &err),
                     OATO_EUSAGE);
    assert_non_null(strstr(err.text, "not reachable"));
    struct rig *cpu = rig_create("cpu", 0);
    rig_put_peer(cpu, far, 64, 0, 0)->signal = 1;
    assert_int_equal(cpu->d->ops->compile(cpu->d, rig_program(cpu), 0, &cpu->c, &err),
                     OATO_EDEVICE);
    assert_non_null(strstr(err.text, "cannot copy from other devices"));
    rig_free(cpu);
    rig_free(near);
    rig_free(far);
}

/* ------------------------------------------------------------------------------ clock ----- */

static struct timeline fake; /* of a device that the test plays */

/* Round rates, so that a byte and an operation take a nanosecond each. */
#define SPEEDS "sim:vram=8MiB,read=1GB/s,flops=1G,link=1GB/s,latency=10us,launch=2us"

/* Three rows take one call for 4, nine take two for 4 and one for 1. */
static void a_span_pays_for_its_calls_and_rows_in_steps(void **state)
{
    (void)state;
    struct rig *sim = rig_create(SPEEDS ",spans=on,rows=1+4,unit=5us", 1);
    static const struct program_span span = {.begin = 0, .end = 2, .n_in = 1, .n_out = 1};
    const int matrix = rig_f32_matrix(sim, 64, 64, 5);
    uint64_t at = now_ns() + 3600ull * 1000000000;
    struct span_value own[2];
    rig_put(sim, "mul_mat/F32/k64/n64", 1, (int[]){0}, 1, (int[]){1}, &matrix);
    rig_put(sim, "add/k64", 2, (int[]){1, 1}, 1, (int[]){2}, NULL);
    rig_put(sim, "top_k/k64/n4", 1, (int[]){2}, 1, (int[]){3}, NULL)->signal = 1;
    own[0] = (struct span_value){sim->records[0].in[0], 64, ROWS_TOKENS, DT_F32};
    own[1] = (struct span_value){sim->records[1].out[0], 64, ROWS_TOKENS, DT_F32};
    sim->p.spans = &span;
    sim->p.n_spans = 1;
    sim->p.span_values = own;
    sim->p.n_span_values = 2;
    rig_compile(sim, NULL);
    static const struct {
        int32_t rows, calls, product_rows, rows_in_all;
    } steps[] = {{1, 1, 1, 1}, {3, 1, 4, 4}, {8, 2, 4, 8}};
    for (size_t i = 0; i < ARRAY_LEN(steps); i++, at += 1000000000) {
        const int32_t T = steps[i].rows;
        rig_step_beside(sim, &fake, &(struct step){.n_tokens = T, .n_seqs = 1, .clock_ns = at});
        const uint64_t product = steps[i].product_rows > 1 ? 2ull * 64 * 64 * 4 : 4ull * 64 * 64;
        const uint64_t expected = (uint64_t)steps[i].calls * (5000 + product) +
                                  64ull * (uint64_t)(steps[i].rows_in_all + T) + 2000;
        assert_int_equal(sim->d->ops->clock_ns(sim->d) - at, expected);
    }
    rig_free(sim);
    struct oato_device *d;
    struct oato_error err;
    static const char *const bad[] = {
        "sim:rows=4+1", "sim:rows=", "sim:rows=0", "sim:spans=yes", "sim:rows=1+2+3+4+5+6+7+8+9",
        "sim:class=f32"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        assert_int_equal(device_open(bad[i], 0, &(struct device_options){0}, &d, &err),
                         OATO_EUSAGE);
        assert_non_null(strstr(err.text, "must be"));
    }
}

static void the_clock_is_the_sum_of_declared_costs(void **state)
{
    (void)state;
    struct rig *sim = rig_create(SPEEDS, 1);
    struct program_record *r;
    const uint64_t far = now_ns() + 3600ull * 1000000000, later = far + 100000000;
    uint64_t expected[6], at = far;

    r = rig_put_copy(sim, RECORD_UPLOAD, 64, 0, 0);
    rig_wait(r, 0, 1);
    r->signal = 1;
    expected[1] = at += 10000 + 3 * 64 * 4;
    rig_put(sim, "mul_mat/F32/k64/n128", 1, (int[]){0}, 1, (int[]){1},
            (int[]){rig_f32_matrix(sim, 64, 128, 5)})
        ->signal = 2;
    expected[2] = at += 2000 + 3 * 2 * 64 * 128; /* arithmetic takes longer than reading */
    rig_put(sim, "rms_norm/k128", 1, (int[]){1}, 1, (int[]){2}, (int[]){rig_vector(sim, 128, 6)})
        ->signal = 3;
    expected[3] = at + 2000 + 3 * 4 * 128;
    r = rig_put_copy(sim, RECORD_DOWNLOAD, 128, 2, 2);
    rig_wait(r, 0, 2);
    r->signal = 4;
    expected[4] = later + 10000 + 3 * 128 * 4;
    r = rig_put(sim, "add/k128", 2, (int[]){1, 2}, 1, (int[]){3}, NULL);
    r->rows = ROWS_LOGITS; /* none in this step: nothing to do */
    r->signal = 5;
    expected[5] = at = expected[4];
    rig_compile(sim, NULL);

    timeline_init(&fake);
    timeline_signal(&fake, 1, far);
    timeline_signal(&fake, 2, later);
    struct step step = {.n_tokens = 3, .n_seqs = 1};
    rig_step_beside(sim, &fake, &step);
    for (uint64_t i = 1; i <= 5; i++) {
        uint64_t clock_ns = 0;
        assert_true(timeline_wait(sim->d->ops->timeline(sim->d), i, &clock_ns));
        assert_int_equal(clock_ns, expected[i]);
    }
    assert_int_equal(sim->d->ops->clock_ns(sim->d), at);

    /* a step that the host begins later begins later here; one with less to read costs less */
    step = (struct step){.n_tokens = 1, .n_seqs = 1, .n_rows = 1, .clock_ns = later + 1000000000};
    rig_step_beside(sim, &fake, &step);
    at = later + 1000000000;
    at += 10000 + 64 * 4;
    at += 2000 + 64 * 128 * 4; /* now reading takes longer */
    at += 2000 + 4 * 128 + 10000 + 128 * 4 + 2000 + 128;
    assert_int_equal(sim->d->ops->clock_ns(sim->d), at);

    /* copies outside programs */
    struct oato_error err;
    float x[100] = {0};
    assert_int_equal(sim->d->ops->upload(sim->d, sim->p.arena, 0, x, sizeof x, NULL, &err),
                     OATO_OK);
    assert_int_equal(sim->d->ops->clock_ns(sim->d), at + 10000 + sizeof x);
    rig_free(sim);
}

static void copies_between_devices_cost_what_is_declared(void **state)
{
    (void)state;
    struct rig *from = rig_create(SPEEDS, 0), *sim = rig_create("sim:1:vram=8MiB,link=1GB/s,"
                                                                "latency=10us,peer=4GB/s",
                                                                1);
    rig_put_peer(sim, from, 64, 0, 0)->signal = 1;
    rig_compile(sim, NULL);
    const struct step step = {.n_tokens = 3, .n_seqs = 1};
    const uint64_t before = sim->d->ops->clock_ns(sim->d);
    rig_step_beside(sim, &fake, &step);
    assert_int_equal(sim->d->ops->clock_ns(sim->d) - before, 10000 + 3 * 64 * 4 / 4);
    rig_free(from);
    rig_free(sim);
}

static void copying_pages_costs_reading_and_writing_them(void **state)
{
    (void)state;
    struct rig *sim = rig_create(SPEEDS, 1);
    const struct kv_layer_shape layers[] = {{.kv_heads = 2, .head_dim = 32},
                                            {.kv_heads = 1, .head_dim = 32}};
    rig_put(sim, "kv_copy", 0, NULL, 0, NULL, NULL)->signal = 1;
    rig_put(sim, "rms_norm/k64", 1, (int[]){0}, 1, (int[]){1}, (int[]){rig_vector(sim, 64, 1)});
    rig_kv(sim, layers, 2, DT_F16, 4);
    rig_compile(sim, NULL);
    const struct step_page_copy copies[] = {{0, 1, 64, false}, {2, 3, 6, false}};
    struct step step = {.n_tokens = 1, .n_seqs = 1, .n_page_copies = 2, .page_copy = copies};
    uint64_t before = sim->d->ops->clock_ns(sim->d);
    rig_step_beside(sim, &fake, &step);
    assert_int_equal(sim->d->ops->clock_ns(sim->d) - before,
                     2000 + 2 * 70 * (2 * 3 * 32 * 2) + 2000 + 256);
    before = sim->d->ops->clock_ns(sim->d);
    step.n_page_copies = 0;
    rig_step_beside(sim, &fake, &step);
    assert_int_equal(sim->d->ops->clock_ns(sim->d) - before, 2000 + 256);
    rig_free(sim);
}

/* ---------------------------------------------------------------------------- failure ----- */

/* A program of three norms, of which the second waits for fake#1. */
static struct rig *norms_create(void)
{
    struct rig *sim = rig_create(SPEEDS, 1);
    for (int i = 0; i < 3; i++)
        rig_put(sim, "rms_norm/k64", 1, (int[]){i}, 1, (int[]){i + 1},
                (int[]){rig_vector(sim, 64, 1)})
            ->signal = (uint32_t)i + 1;
    rig_wait(&sim->records[1], 0, 1);
    rig_compile(sim, NULL);
    timeline_init(&fake);
    return sim;
}

static const struct step one_token = {.n_tokens = 1, .n_seqs = 1};

static void submit_returns_before_the_work_is_done(void **state)
{
    (void)state;
    struct rig *sim = norms_create();
    struct timeline *t = sim->d->ops->timeline(sim->d);
    struct step step = one_token;
    rig_submit_beside(sim, &fake, &step);
    assert_true(timeline_wait(t, 1, NULL));
    assert_int_equal(atomic_load(&t->value), 1);
    timeline_signal(&fake, 1, 0);
    struct oato_error err;
    assert_int_equal(sim->d->ops->finish(sim->d, &err), OATO_OK);
    assert_int_equal(atomic_load(&t->value), 3);
    rig_free(sim);
}

static void an_injected_record_kills_the_device(void **state)
{
    (void)state;
    struct rig *sim = norms_create();
    const struct device_ops *ops = sim->d->ops;
    struct oato_error err;
    struct step step = one_token;
    char x = 0;
    assert_int_equal(ops->inject_error(sim->d, "fire", &err), OATO_EUSAGE);
    assert_int_equal(ops->inject_error(sim->d, "record=0", &err), OATO_EUSAGE);
    assert_int_equal(ops->inject_error(sim->d, "record=5", &err), OATO_OK);
    timeline_signal(&fake, 1, 0);
    rig_step_beside(sim, &fake, &step);
    rig_submit_beside(sim, &fake, &step);
    assert_int_equal(ops->finish(sim->d, &err), OATO_EDEVICE);
    assert_non_null(strstr(err.text, "sim:1: injected failure at record 1 (rms_norm/k64)"));
    assert_false(timeline_wait(ops->timeline(sim->d), 6, NULL));
    err.text[0] = 0;
    assert_int_equal(ops->submit(sim->d, sim->c, rig_step_begin(sim, &fake, &step), &err),
                     OATO_EDEVICE);
    assert_non_null(strstr(err.text, "injected"));
    assert_int_equal(ops->upload(sim->d, sim->p.arena, 0, &x, 1, NULL, &err), OATO_EDEVICE);
    rig_free(sim);
}

static void an_injected_allocation_fails_once(void **state)
{
    (void)state;
    struct oato_device *d = rig_open("sim:vram=1MiB");
    struct oato_error err;
    void *p;
    assert_int_equal(d->ops->inject_error(d, "alloc=2", &err), OATO_OK);
    assert_int_equal(d->ops->alloc(d, 10, &p, &err), OATO_OK);
    assert_int_equal(d->ops->alloc(d, 10, &p, &err), OATO_EFIT);
    assert_non_null(strstr(err.text, "injected"));
    assert_int_equal(d->ops->alloc(d, 10, &p, &err), OATO_OK);
    d->ops->close(d);
}

static void the_failure_of_another_device_is_passed_on(void **state)
{
    (void)state;
    struct rig *sim = norms_create();
    struct oato_error err;
    struct step step = one_token;
    rig_submit_beside(sim, &fake, &step);
    timeline_fail(&fake, TIMELINE_DIED);
    assert_int_equal(sim->d->ops->finish(sim->d, &err), OATO_EDEVICE);
    assert_non_null(strstr(err.text, "record 1 waited for"));
    assert_false(timeline_wait(sim->d->ops->timeline(sim->d), 3, NULL));
    rig_free(sim);
}

static void it_can_be_closed_while_it_waits(void **state)
{
    (void)state;
    struct step step = one_token;
    for (int release_first = 0; release_first < 2; release_first++) {
        struct rig *sim = norms_create();
        struct oato_error err;
        rig_submit_beside(sim, &fake, &step);
        rig_submit_beside(sim, &fake, &step); /* and one that has not begun */
        if (release_first) {
            sim->d->ops->release(sim->d, sim->c);
            sim->c = NULL;
            assert_int_equal(sim->d->ops->finish(sim->d, &err), OATO_EDEVICE);
            assert_non_null(strstr(err.text, "cancelled"));
        }
        sim->d->ops->close(sim->d);
        sim->d = NULL;
        rig_free(sim);
    }
}

static void more_steps_than_the_queue_holds_are_run_in_order(void **state)
{
    (void)state;
    struct rig *sim = norms_create();
    struct oato_error err;
    struct step step = one_token;
    timeline_signal(&fake, 1, 0);
    enum { STEPS = 300 };
    for (int i = 0; i < STEPS; i++)
        rig_submit_beside(sim, &fake, &step);
    assert_int_equal(sim->d->ops->finish(sim->d, &err), OATO_OK);
    assert_int_equal(atomic_load(&sim->d->ops->timeline(sim->d)->value), 3 * STEPS);
    rig_free(sim);
}

static void programs_and_steps_that_do_not_fit_are_refused(void **state)
{
    (void)state;
    struct rig *sim = norms_create();
    const struct device_ops *ops = sim->d->ops;
    struct oato_error err;
    struct compiled *c;
    struct program p = sim->p;
    float here[4];
    p.arena = here;
    assert_int_equal(ops->compile(sim->d, &p, 1, &c, &err), OATO_EUSAGE);
    assert_non_null(strstr(err.text, "not in this device's memory"));
    p = sim->p;
    p.max_tokens = 1 << 20;
    assert_int_equal(ops->compile(sim->d, &p, 1, &c, &err), OATO_EUSAGE);
    assert_non_null(strstr(err.text, "record 0: value at offset"));
    p = sim->p;
    p.workspace_bytes = 1 << 30;
    assert_int_equal(ops->compile(sim->d, &p, 1, &c, &err), OATO_EFIT);
    assert_non_null(strstr(err.text, "workspace"));

    struct step step = {.n_tokens = RIG_TOKENS + 1};
    assert_int_equal(ops->submit(sim->d, sim->c, rig_step_begin(sim, &fake, &step), &err),
                     OATO_EUSAGE);
    step.n_tokens = 1;
    timeline_signal(&fake, 1, 0);
    rig_submit_beside(sim, &fake, &step);
    assert_int_equal(ops->finish(sim->d, &err), OATO_OK);
    sim->bases[1]--; /* the event is there already */
    assert_int_equal(ops->submit(sim->d, sim->c, rig_step_begin(sim, &fake, &step), &err),
                     OATO_EUSAGE);
    assert_non_null(strstr(err.text, "in use"));
    rig_free(sim);

    sim = rig_create(SPEEDS, 1);
    const struct kv_layer_shape layer = {.kv_heads = 1, .head_dim = 64};
    rig_put(sim, "kv_store/F16/g1/d64", 2, (int[]){0, 1}, 0, NULL, NULL)->kv_layer = 0;
    rig_kv(sim, &layer, 1, DT_F32, 1); /* not F16 */
    assert_int_equal(ops->compile(sim->d, rig_program(sim), 1, &c, &err), OATO_EUSAGE);
    assert_non_null(strstr(err.text, "does not fit KV layer 0"));
    sim->records[0].op.head_dim = 100000;
    sim->records[0].in_width[0] = sim->records[0].in_width[1] = 100000;
    sim->p.max_tokens = 0;
    assert_int_equal(ops->compile(sim->d, rig_program(sim), 1, &c, &err), OATO_EUSAGE);
    assert_non_null(strstr(err.text, "no device runs kv_store"));
    rig_free(sim);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(its_memory_cannot_be_read_by_others),
        cmocka_unit_test(the_budget_holds_for_everything),
        cmocka_unit_test(it_says_what_was_declared),
        cmocka_unit_test(a_layer_has_the_bits_of_the_cpu),
        cmocka_unit_test(two_devices_that_wait_for_each_other_agree_with_one),
        cmocka_unit_test(devices_that_reach_each_other_agree_with_one),
        cmocka_unit_test(what_is_out_of_reach_is_refused),
        cmocka_unit_test(the_clock_is_the_sum_of_declared_costs),
        cmocka_unit_test(a_span_pays_for_its_calls_and_rows_in_steps),
        cmocka_unit_test(copies_between_devices_cost_what_is_declared),
        cmocka_unit_test(copying_pages_costs_reading_and_writing_them),
        cmocka_unit_test(submit_returns_before_the_work_is_done),
        cmocka_unit_test(an_injected_record_kills_the_device),
        cmocka_unit_test(an_injected_allocation_fails_once),
        cmocka_unit_test(the_failure_of_another_device_is_passed_on),
        cmocka_unit_test(it_can_be_closed_while_it_waits),
        cmocka_unit_test(more_steps_than_the_queue_holds_are_run_in_order),
        cmocka_unit_test(programs_and_steps_that_do_not_fit_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
