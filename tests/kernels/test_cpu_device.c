/*
 * test_cpu_device.c - the cpu as a device: memory within its budget, weights prepared by all
 * threads, programs whose records wait for and raise events, failures that come back as a status
 * and leave nobody waiting. Run it under the thread sanitizer too.
 */
#include "kernels/cpu/cpu_device.h"
#include "tests/kernels/test_cpu.h"

#include <pthread.h>

static struct oato_device *open_cpu(int threads, const char *isa, uint64_t budget_bytes)
{
    struct oato_device *d;
    struct oato_error err;
    struct device_options o = {.threads = threads, .isa = isa, .budget_bytes = budget_bytes};
    if (cpu_device_ops.open(0, "", &o, &d, &err))
        fail_msg("%s", err.text);
    return d;
}

/* A program of n layers: norm, product, sum; record 0 waits for device 1, the last one signals. */
enum { WIDTH = 64, LAYERS = 12, TOKENS = 4, VALUE = TOKENS * WIDTH * 4 };

struct layers {
    struct oato_device *d;
    const struct device_ops *ops;
    struct program_record records[3 * LAYERS + 2];
    struct program p;
    struct oato_weight *weights[2];
    struct compiled *c;
    struct timeline other;
    struct timeline *timelines[2];
    uint64_t bases[2];
    useconds_t late_us; /* after which device 1 raises its event */
    struct simple_step s;
    float *arena, host[2 * TOKENS * WIDTH];
};

static void layers_init(struct layers *x, struct oato_device *d)
{
    static float matrix[WIDTH * WIDTH], vector[WIDTH];
    struct oato_error err;
    memset(x, 0, sizeof *x);
    x->d = d;
    x->ops = d->ops;
    x->late_us = 500;
    for (int i = 0; i < WIDTH * WIDTH; i++)
        matrix[i] = sinf((float)i) / 8;
    for (int i = 0; i < WIDTH; i++)
        vector[i] = 1;
    struct weight_source m = {.data = matrix, .k = WIDTH, .n = WIDTH, .row_end = WIDTH};
    struct weight_source v = {
        .data = vector, .k = WIDTH, .n = 1, .row_end = 1, .use = WEIGHT_VECTOR};
    assert_int_equal(weight_prepare(d, &m, &x->weights[0], &err), OATO_OK);
    assert_int_equal(weight_prepare(d, &v, &x->weights[1], &err), OATO_OK);
    uint32_t n = 0;
    struct program_record *r = &x->records[n++];
    *r = record_of((struct oato_op){.kind = OP_NONE});
    r->n_in = r->n_out = 1;
    r->kind = RECORD_UPLOAD; /* value 0 comes from the host once device 1 has made it */
    r->in_width[0] = WIDTH;
    r->n_waits = 1;
    r->wait[0] = (struct record_wait){.device = 1, .ordinal = 1};
    for (int l = 0; l < LAYERS; l++) {
        static const enum op_kind kinds[] = {OP_RMS_NORM, OP_MUL_MAT, OP_ADD};
        for (int i = 0; i < 3; i++) {
            r = &x->records[n++];
            *r = record_of(
                (struct oato_op){.kind = (uint16_t)kinds[i], .k = WIDTH, .n = WIDTH, .eps = 1e-5f});
            r->n_in = i == 2 ? 2 : 1;
            r->n_out = 1;
            r->n_weights = i < 2;
            r->weight[0] = i == 0 ? 1 : i == 1 ? 0 : UINT32_MAX;
            r->in[0] = i * VALUE; /* 0 -> 1 -> 2; 2 + 0 -> 0 */
            r->in[1] = 0;
            r->in_width[0] = r->in_width[1] = WIDTH;
            r->out[0] = i == 2 ? 0 : (uint64_t)(i + 1) * VALUE;
            r->signal = n; /* each raises the event */
        }
    }
    r = &x->records[n++];
    *r = record_of((struct oato_op){.kind = OP_NONE});
    r->kind = RECORD_DOWNLOAD;
    r->n_in = r->n_out = 1;
    r->in_width[0] = WIDTH;
    r->out[0] = VALUE;
    r->signal = n;
    void *arena;
    assert_int_equal(x->ops->alloc(d, 3 * VALUE, &arena, &err), OATO_OK);
    x->arena = arena;
    x->p = (struct program){.records = x->records,
                            .n_records = n,
                            .n_signals = n,
                            .max_tokens = TOKENS,
                            .max_rows = TOKENS,
                            .max_seqs = 1,
                            .weights = x->weights,
                            .n_weights = 2,
                            .arena = arena,
                            .host_arena = x->host};
    if (x->ops->compile(d, &x->p, 0, &x->c, &err))
        fail_msg("%s", err.text);
    simple_step(&x->s, TOKENS);
    timeline_init(&x->other);
    x->timelines[0] = x->ops->timeline(d);
    x->timelines[1] = &x->other;
    x->s.step.timeline = x->timelines;
    x->s.step.timeline_base = x->bases;
    for (int i = 0; i < TOKENS * WIDTH; i++)
        x->host[i] = (float)(i % 17) - 8;
}

static void layers_free(struct layers *x)
{
    x->ops->release(x->d, x->c);
    weight_free(x->d, x->weights[0]);
    weight_free(x->d, x->weights[1]);
    x->ops->free(x->d, x->arena, 3 * VALUE);
    x->ops->close(x->d);
}

static void *raise_later(void *arg)
{
    struct layers *x = arg;
    usleep(x->late_us);
    timeline_signal(&x->other, x->bases[1] + 1, 0);
    return NULL;
}

static oato_status step_once(struct layers *x, struct oato_error *err)
{
    pthread_t other;
    x->bases[0] = atomic_load(&x->timelines[0]->value);
    x->bases[1] = atomic_load(&x->other.value);
    pthread_create(&other, NULL, raise_later, x);
    oato_status status = x->ops->submit(x->d, x->c, &x->s.step, err);
    pthread_join(other, NULL);
    return status;
}

static void steps_give_the_same_bits_on_any_number_of_threads(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(isas); i++) {
        float first[TOKENS * WIDTH];
        if (!kernels_named(isas[i]))
            continue;
        for (int threads = 1; threads <= 4; threads++) {
            struct layers x;
            struct oato_error err;
            layers_init(&x, open_cpu(threads, isas[i], 0));
            for (int repeat = 0; repeat < 5; repeat++) {
                uint64_t clock = x.ops->clock_ns(x.d);
                assert_int_equal(step_once(&x, &err), OATO_OK);
                assert_int_equal(atomic_load(&x.timelines[0]->value), x.bases[0] + x.p.n_signals);
                assert_true(x.ops->clock_ns(x.d) > clock);
                const float *y = x.host + TOKENS * WIDTH;
                if (threads == 1 && repeat == 0)
                    memcpy(first, y, sizeof first);
                assert_memory_equal(first, y, sizeof first);
                assert_true(isfinite(y[5]) && y[5] != 0);
            }
            assert_int_equal(x.ops->finish(x.d, &err), OATO_OK);
            layers_free(&x);
        }
    }
}

/* What a step takes beside a device 1 that is always done: the median of the last of `steps`. */
static double step_median_ns(int threads, int steps)
{
    enum { LAST = 9 };
    struct layers x;
    struct oato_error err;
    double ns[LAST] = {0};
    layers_init(&x, open_cpu(threads, "ref", 0));
    for (int i = 0; i < steps; i++) {
        const uint64_t begin = now_ns();
        x.bases[0] = atomic_load(&x.timelines[0]->value);
        timeline_signal(&x.other, x.bases[1] + 1, 0);
        assert_int_equal(x.ops->submit(x.d, x.c, &x.s.step, &err), OATO_OK);
        ns[i % LAST] = (double)(now_ns() - begin);
    }
    layers_free(&x);
    for (int i = 0; i < LAST; i++)
        for (int j = i; j > 0 && ns[j] < ns[j - 1]; j--) {
            const double swap = ns[j];
            ns[j] = ns[j - 1];
            ns[j - 1] = swap;
        }
    return ns[LAST / 2];
}

static void threads_that_have_no_core_hold_up_nobody_for_long(void **state)
{
    (void)state;
    const int many = 8 * host_processors();
    bool good = false;
    /* tried again, for a hypervisor may have our cores, unseen */
    for (int tries = 0; tries < 10 && !good; tries++) {
        const double one = step_median_ns(1, 40), crowd = step_median_ns(many, 120);
        print_message("a step of 1 thread %.0f us, of %d threads %.0f us\n", one / 1e3, many,
                      crowd / 1e3);
        good = crowd < 10 * one + 1e6;
    }
    assert_true(good);
}

/* Kernels whose additions go on only while nobody holds them. */
static pthread_mutex_t held = PTHREAD_MUTEX_INITIALIZER;

static void held_add(float *y, const float *a, const float *b, int64_t n)
{
    pthread_mutex_lock(&held);
    pthread_mutex_unlock(&held);
    cpu_kernels_ref.rows->add(y, a, b, n);
}

static void *step_on_time(void *arg)
{
    struct layers *x = arg;
    struct oato_error err;
    timeline_signal(&x->other, x->bases[1] + 1, 0);
    return x->ops->submit(x->d, x->c, &x->s.step, &err) ? x : NULL;
}

static void devices_of_two_engines_run_side_by_side(void **state)
{
    (void)state;
    static struct layers slow, quick; /* with timelines of 64 KiB */
    static struct cpu_kernels kernels;
    static struct row_kernels rows;
    struct oato_error err;
    struct step_cores cores[2] = {{PTHREAD_MUTEX_INITIALIZER}, {PTHREAD_MUTEX_INITIALIZER}};
    struct oato_device *d = open_cpu(1, "ref", 0);
    kernels = *cpu_of(d)->kernels;
    rows = *kernels.rows;
    rows.add = held_add;
    kernels.rows = &rows;
    cpu_of(d)->kernels = &kernels;
    layers_init(&slow, d);
    layers_init(&quick, open_cpu(1, "ref", 0));
    for (int simulated = 0; simulated < 2; simulated++) { /* a device of each of them */
        pthread_t thread;
        void *failed;
        slow.s.step.cores = simulated ? &cores[0] : NULL;
        quick.s.step.cores = simulated ? &cores[1] : NULL;
        slow.bases[0] = atomic_load(&slow.timelines[0]->value);
        slow.bases[1] = atomic_load(&slow.other.value);
        pthread_mutex_lock(&held);
        assert_int_equal(pthread_create(&thread, NULL, step_on_time, &slow), 0);
        while (!timeline_reached(slow.timelines[0], slow.bases[0] + 2))
            usleep(100); /* until its first addition */
        for (int i = 0; i < 5; i++)
            assert_int_equal(step_once(&quick, &err), OATO_OK);
        assert_false(timeline_reached(slow.timelines[0], slow.bases[0] + slow.p.n_signals));
        pthread_mutex_unlock(&held);
        pthread_join(thread, &failed);
        assert_null(failed);
    }
    layers_free(&slow);
    layers_free(&quick);
}

/* A host device beside another one: submitted first, it waits for what comes later. */
static void a_device_aside_does_not_hold_up_its_submitter(void **state)
{
    (void)state;
    static struct layers x;
    struct oato_error err;
    struct oato_device *d;
    const struct device_options o = {.threads = 2, .isa = "ref", .aside = true};
    assert_int_equal(cpu_device_ops.open(1, "", &o, &d, &err), OATO_OK);
    layers_init(&x, d);
    for (int i = 0; i < 5; i++) {
        x.bases[0] = atomic_load(&x.timelines[0]->value);
        x.bases[1] = atomic_load(&x.other.value);
        assert_int_equal(x.ops->submit(d, x.c, &x.s.step, &err), OATO_OK);
        timeline_signal(&x.other, x.bases[1] + 1, 0);
        assert_int_equal(x.ops->finish(d, &err), OATO_OK);
        assert_true(timeline_reached(x.timelines[0], x.bases[0] + x.p.n_signals));
    }
    x.bases[0] = atomic_load(&x.timelines[0]->value);
    assert_int_equal(x.ops->submit(d, x.c, &x.s.step, &err), OATO_OK);
    timeline_fail(&x.other, TIMELINE_DIED);
    assert_int_equal(x.ops->finish(d, &err), OATO_EDEVICE);
    assert_non_null(strstr(err.text, "waits for"));
    assert_int_equal(x.ops->submit(d, x.c, &x.s.step, &err), OATO_EDEVICE);
    layers_free(&x);
}

/* Waiting for a simulated device does not count as this device's time; for a real one it does. */
static void the_clock_leaves_out_waiting_for_simulations(void **state)
{
    (void)state;
    struct step_cores cores = {PTHREAD_MUTEX_INITIALIZER};
    for (int simulated = 0; simulated < 2; simulated++) {
        struct layers x;
        struct oato_error err;
        layers_init(&x, open_cpu(2, "ref", 0));
        x.late_us = 30000;
        x.timelines[1]->simulated = simulated;
        x.s.step.cores = simulated ? &cores : NULL;
        uint64_t clock = x.ops->clock_ns(x.d), real = now_ns();
        for (int i = 0; i < 4; i++)
            assert_int_equal(step_once(&x, &err), OATO_OK);
        clock = x.ops->clock_ns(x.d) - clock;
        real = now_ns() - real;
        assert_true(real >= 120000000);
        if (simulated)
            assert_true(clock + 30000000 < real); /* however busy the machine is */
        else
            assert_true(clock >= 120000000);
        layers_free(&x);
    }
}

static void a_failed_device_fails_the_step_that_waits_for_it(void **state)
{
    (void)state;
    for (int threads = 1; threads <= 3; threads++) {
        struct layers x;
        struct oato_error err;
        layers_init(&x, open_cpu(threads, NULL, 0));
        timeline_fail(&x.other, TIMELINE_DIED);
        assert_int_equal(x.ops->submit(x.d, x.c, &x.s.step, &err), OATO_EDEVICE);
        assert_non_null(strstr(err.text, "waits for"));
        assert_int_equal(x.ops->submit(x.d, x.c, &x.s.step, &err), OATO_EDEVICE);
        assert_int_equal(x.ops->finish(x.d, &err), OATO_EDEVICE);
        layers_free(&x);
    }
}

static void an_injected_failure_stops_at_its_record(void **state)
{
    (void)state;
    struct layers x;
    struct oato_error err;
    layers_init(&x, open_cpu(2, NULL, 0));
    assert_int_equal(x.ops->inject_error(x.d, "nonsense", &err), OATO_EUSAGE);
    assert_int_equal(x.ops->inject_error(x.d, "record=x", &err), OATO_EUSAGE);
    char what[32];
    snprintf(what, sizeof what, "record=%u", (unsigned)x.p.n_records + 7);
    assert_int_equal(x.ops->inject_error(x.d, what, &err), OATO_OK);
    assert_int_equal(step_once(&x, &err), OATO_OK);
    assert_int_equal(step_once(&x, &err), OATO_EDEVICE);
    assert_non_null(strstr(err.text, "record 6"));
    assert_int_equal(atomic_load(&x.timelines[0]->value), x.bases[0] + 6);
    assert_true(atomic_load(&x.timelines[0]->failed));
    layers_free(&x);
}

static void memory_stays_within_the_budget(void **state)
{
    (void)state;
    struct oato_device *d = open_cpu(2, "ref", 1 << 20);
    const struct device_ops *ops = d->ops;
    struct oato_error err;
    struct device_info info;
    void *p, *q;
    ops->info(d, &info);
    assert_int_equal(info.memory_bytes, 1 << 20);
    assert_true(info.is_host);
    assert_int_equal(info.threads, 2);
    assert_string_equal(info.id, "cpu:0");
    assert_string_equal(info.isa, "ref");
    assert_int_equal(ops->alloc(d, 700 << 10, &p, &err), OATO_OK);
    assert_int_equal(ops->alloc(d, 400 << 10, &q, &err), OATO_EFIT);
    assert_non_null(strstr(err.text, "budget"));
    ops->info(d, &info);
    assert_int_equal(info.free_bytes, (1 << 20) - (700 << 10));
    static float data[256 * 1024 / 4];
    struct weight_source s = {.data = data, .k = 1024, .n = 64, .row_end = 64};
    struct oato_weight *w;
    assert_int_equal(weight_prepare(d, &s, &w, &err), OATO_OK);
    struct oato_weight *second;
    assert_int_equal(weight_prepare(d, &s, &second, &err), OATO_EFIT);
    weight_free(d, w);
    ops->free(d, p, 700 << 10);
    struct kv_layer_shape shape = {.kv_heads = 4, .head_dim = 64};
    struct kv_cache *kv;
    assert_int_equal(ops->kv_create(d, &shape, 1, DT_F32, 64, &kv, &err), OATO_EFIT);
    assert_int_equal(ops->kv_create(d, &shape, 1, DT_Q4_0, 1, &kv, &err), OATO_EFIT);
    assert_int_equal(ops->inject_error(d, "alloc=2", &err), OATO_OK);
    assert_int_equal(ops->kv_create(d, &shape, 1, DT_F16, 4, &kv, &err), OATO_OK);
    assert_int_equal(ops->alloc(d, 64, &p, &err), OATO_EFIT);
    assert_non_null(strstr(err.text, "injected"));
    ops->kv_free(d, kv);
    ops->kv_free(d, NULL);
    weight_free(d, NULL);
    ops->free(d, NULL, 0);
    ops->info(d, &info);
    assert_int_equal(info.free_bytes, 1 << 20);
    ops->close(d);
}

/* Bits of a weight do not depend on how many threads prepared it; what is left in the file is
 * readable still. */
static void weights_are_prepared_alike_by_all_threads(void **state)
{
    (void)state;
    enum { N = 3000, K = 512 };
    struct mapped_file file;
    struct oato_error err;
    char path[] = "/tmp/oato-test-weights-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    size_t row;
    dtype_row_bytes(DT_Q4_K, K, &row);
    uint8_t *data = test_malloc(row * N);
    random_elements(DT_Q4_K, data, (int64_t)N * K);
    assert_int_equal(write(fd, data, row * N), row * N);
    close(fd);
    assert_int_equal(file_map(path, &file, &err), OATO_OK);
    unlink(path);
    struct oato_device *d[2] = {open_cpu(1, NULL, 0), open_cpu(3, NULL, 0)};
    struct weight_source s = {.data = file.data,
                              .dtype = DT_Q4_K,
                              .k = K,
                              .n = N,
                              .row_begin = 64,
                              .row_end = N,
                              .file = &file};
    struct oato_weight *w[2];
    for (int i = 0; i < 2; i++)
        assert_int_equal(weight_prepare(d[i], &s, &w[i], &err), OATO_OK);
    assert_int_equal(w[0]->bytes, weight_bytes_of(d[0], DT_Q4_K, N - 64, K, WEIGHT_MATRIX));
    assert_memory_equal(w[0]->data, w[1]->data, w[0]->bytes);
    assert_memory_equal(file.data, data, row * N);
    for (int i = 0; i < 2; i++)
        weight_free(d[i], w[i]);
    /* rows that are looked up stay where they are */
    s.use = WEIGHT_LOOKUP;
    assert_int_equal(weight_prepare(d[1], &s, &w[1], &err), OATO_OK);
    assert_ptr_equal(w[1]->data, file.data + 64 * row);
    assert_int_equal(weight_bytes_of(d[1], DT_Q4_K, N, K, WEIGHT_LOOKUP), 0);
    weight_free(d[1], w[1]);
    s.use = WEIGHT_LOOKUP;
    s.k = 100;
    assert_int_equal(weight_prepare(d[0], &s, &w[0], &err), OATO_EUSAGE);
    d[0]->ops->close(d[0]);
    d[1]->ops->close(d[1]);
    file_unmap(&file);
    test_free(data);
}

static void wrong_programs_and_options_are_refused(void **state)
{
    (void)state;
    struct oato_error err;
    struct oato_device *d;
    struct device_options many = {.threads = 100000};
    assert_int_equal(cpu_device_ops.open(0, "vram=1", NULL, &d, &err), OATO_EUSAGE);
    assert_int_equal(cpu_device_ops.open(0, "", &many, &d, &err), OATO_EUSAGE);
    struct device_options isa = {.isa = "sse9"};
    assert_int_equal(cpu_device_ops.open(0, "", &isa, &d, &err), OATO_EUSAGE);
    assert_true(cpu_device_ops.probe() >= 1);
    assert_true(cpu_physical_cores() >= 1);

    struct layers x;
    struct compiled *c;
    layers_init(&x, open_cpu(1, NULL, 0));
    x.p.n_signals = TIMELINE_RING;
    assert_int_equal(x.ops->compile(x.d, &x.p, 0, &c, &err), OATO_EUSAGE);
    x.p.n_signals = x.p.n_records;
    struct program_record *r = &x.records[2];
    r->weight[0] = 9;
    assert_int_equal(x.ops->compile(x.d, &x.p, 0, &c, &err), OATO_EUSAGE);
    assert_non_null(strstr(err.text, "weight 9"));
    r->weight[0] = 0;
    r->in_width[0]++; /* what is true of any device is checked for this one, too */
    assert_int_equal(x.ops->compile(x.d, &x.p, 0, &c, &err), OATO_EUSAGE);
    assert_non_null(strstr(err.text, "inputs of width"));
    r->in_width[0]--;
    r->op.dtype = DT_I8;
    assert_int_equal(x.ops->compile(x.d, &x.p, 0, &c, &err), OATO_EUSAGE);
    assert_non_null(strstr(err.text, "no device runs mul_mat/I8"));
    r->op = (struct oato_op){.kind = OP_KV_STORE, .dtype = DT_F16, .kv_heads = 1, .head_dim = 64};
    r->n_in = 2;
    r->n_out = r->n_weights = 0;
    r->in_width[0] = r->in_width[1] = 64;
    assert_int_equal(x.ops->compile(x.d, &x.p, 0, &c, &err), OATO_EUSAGE);
    assert_non_null(strstr(err.text, "KV layer"));
    r->op = (struct oato_op){.kind = OP_ROPE, .n = 64, .heads = 1, .head_dim = 64, .rope_dims = 64};
    r->n_in = r->n_out = 1;
    /* of the table of angles; the workspace is there */
    assert_int_equal(x.ops->inject_error(x.d, "alloc=1", &err), OATO_OK);
    assert_int_equal(x.ops->compile(x.d, &x.p, 0, &c, &err), OATO_EFIT);
    layers_free(&x);
}

static void transfers_are_done_when_they_return(void **state)
{
    (void)state;
    struct oato_device *d = open_cpu(1, NULL, 0);
    struct oato_error err;
    void *p;
    uint64_t value = 99;
    char text[] = "0123456789", back[8] = "";
    assert_int_equal(d->ops->alloc(d, 64, &p, &err), OATO_OK);
    assert_int_equal(d->ops->upload(d, p, 3, text, 10, &value, &err), OATO_OK);
    assert_int_equal(value, 0);
    assert_int_equal(d->ops->download(d, back, p, 5, 4, NULL, &err), OATO_OK);
    assert_string_equal(back, "2345");
    d->ops->free(d, p, 64);
    struct oato_op op = {.kind = OP_MUL_MAT, .dtype = DT_Q4_0, .k = 64, .n = 64};
    struct op_size size = {.rows = 1, .seqs = 1};
    assert_true(d->ops->supports(d, &op));
    assert_true(d->ops->workspace_bytes(d, &op, &size) > 0);
    assert_non_null(d->ops->numerics(d, &op, NUMERICS_DECODE));
    d->ops->close(d);
    cpu_device_ops.close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_give_the_same_bits_on_any_number_of_threads),
        cmocka_unit_test(the_clock_leaves_out_waiting_for_simulations),
        cmocka_unit_test(a_failed_device_fails_the_step_that_waits_for_it),
        cmocka_unit_test(an_injected_failure_stops_at_its_record),
        cmocka_unit_test(memory_stays_within_the_budget),
        cmocka_unit_test(weights_are_prepared_alike_by_all_threads),
        cmocka_unit_test(threads_that_have_no_core_hold_up_nobody_for_long),
        cmocka_unit_test(devices_of_two_engines_run_side_by_side),
        cmocka_unit_test(a_device_aside_does_not_hold_up_its_submitter),
        cmocka_unit_test(wrong_programs_and_options_are_refused),
        cmocka_unit_test(transfers_are_done_when_they_return),
    };
    seed_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
