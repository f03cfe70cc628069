/*
 * test_cuda_experts.c - the products of chosen experts on a CUDA device: token by token for decode,
 * and grouped by expert for prefill, against the reference kernels of the CPU and, bit by bit,
 * against the same matrices by themselves; of experts in a cache those that are there, also while
 * others are on their way. Runs on the emulated GPU of tests/cuda_on_cpu/
 * (OATO_CUDA_DRIVER) and, labelled gpu, on a real one; without any it is skipped.
 */
#include "tests/kernels/cuda_case.h"
#include "tests/kernels/cuda_counts.h"
#include "tests/kernels/device_rig.h"

#include "kernels/cuda/cuda_device.h"

#include <sched.h>

enum { K = 256, N = 70 }; /* of one expert's matrix */

/* How tokens choose: `used` of the experts [lo, hi), of which [first, first + held) are held here
 * (held 0: all). */
struct choosing {
    int32_t experts, used, T, lo, hi, first, held;
};

static void give_choice(struct test_case *c, int32_t lo, int32_t hi)
{
    const int32_t used = c->op.experts_used;
    give_input(c, 2 * used); /* weights stay as random as they are */
    for (int32_t t = 0; t < c->T; t++) {
        float *row = c->in[1] + (int64_t)t * 2 * used;
        int32_t id = lo;
        for (int32_t i = 0; i < used; i++, id++) {
            id = (int32_t)random_in(id, hi - used + i);
            row[i] = (float)id;
        }
    }
}

static struct test_case expert_case(enum op_kind kind, oato_dtype dtype, const struct choosing *x,
                                    enum numerics_choice numerics)
{
    char key[OP_KEY_SIZE];
    snprintf(key, sizeof key, "%s/%s/k%d/n%d/e%d/u%d", op_kind_name(kind), dtype_name(dtype), K, N,
             (int)x->experts, (int)x->used);
    struct test_case c = case_of(key, x->T);
    c.numerics = numerics;
    c.op.expert_first = x->first;
    c.op.experts_held = x->held;
    give_input(&c, kind == OP_EXPERT_DOWN ? x->used * K : K);
    give_choice(&c, x->lo, x->hi);
    give_weights(&c);
    drop_weights(&c);
    return c;
}

/* Weights of what the operator has become. */
static void again_weights(struct test_case *c)
{
    free_case(&(struct test_case){.weight = {c->weight[0], c->weight[1], c->weight[2], c->weight[3],
                                             c->weight[4], c->weight[5]},
                                  .n_weights = c->n_weights});
    c->n_weights = 0;
    give_weights(c);
}

/* Gate and up as halves of a tensor: these are two, of which halves are read. */
static void one_tensor(struct test_case *c)
{
    c->op.one_tensor = 1;
    again_weights(c);
}

/* Rows of pairs whose experts are elsewhere stay as they were: zero on both devices. */
static void compare_experts(oato_dtype dtype, const struct choosing *x,
                            enum numerics_choice numerics)
{
    for (int down = 0; down < 2; down++) {
        struct step step = plain_step(x->T);
        struct test_case c =
            expert_case(down ? OP_EXPERT_DOWN : OP_EXPERT_GATE_UP, dtype, x, numerics);
        c.op.weighs_input = (int32_t)random_in(0, 1);
        c.op.activation = random_in(0, 1) ? ACT_CLAMPED_SILU : ACT_SILU;
        c.op.scale = 0.5f;
        c.op.single = !down && random_in(0, 2) == 0;
        if (c.op.single)
            c.op.activation = ACT_RELU_SQUARED;
        else if (!down && random_in(0, 1))
            one_tensor(&c);
        compare(&c, &step, 1e-10);
        free_case(&c);
    }
}

static void experts_compute_alike(void **state)
{
    (void)state;
    for (size_t i = random_first(3); i < ARRAY_LEN(matrix_types); i += pace_step(3)) {
        const int32_t T = (int32_t)random_in(1, 6);
        for (int n = 0; n < NUMERICS_CHOICES; n++) {
            compare_experts(matrix_types[i], &(struct choosing){8, 3, T, 0, 8, 0, 0}, n);
            compare_experts(matrix_types[i], &(struct choosing){8, 3, T, 0, 8, 2, 5}, n);
        }
    }
}

/* Gate and up of any two quantised types. */
static void gate_and_up_may_differ_in_type(void **state)
{
    (void)state;
    const struct choosing x = {8, 3, 5, 0, 8, 0, 0}, some = {8, 3, 20, 0, 8, 2, 5};
    for (size_t i = random_first(3); i < ARRAY_LEN(matrix_types); i += pace_step(3)) {
        const oato_dtype gate = matrix_types[i];
        const oato_dtype up = matrix_types[(i + 5) % ARRAY_LEN(matrix_types)];
        for (int n = 0; n < NUMERICS_CHOICES; n++) {
            const struct choosing *how = n ? &some : &x;
            struct step step = plain_step(how->T);
            struct test_case c = expert_case(OP_EXPERT_GATE_UP, gate, how, n);
            c.op.up_dtype = (int32_t)up;
            if (op_valid(&c.op)) {
                again_weights(&c);
                compare(&c, &step, 1e-10);
            }
            free_case(&c);
        }
    }
}

static void grouped_experts_compute_alike(void **state)
{
    (void)state;
    static const struct choosing choices[] = {
        {8, 1, 1, 0, 8, 0, 0},    {8, 2, 70, 0, 8, 0, 0},
        {24, 8, 33, 0, 24, 0, 0}, {4, 1, 130, 2, 3, 0, 0}, /* all the same one: three tiles */
        {8, 2, 64, 4, 6, 0, 0},                            /* two full tiles */
        {12, 3, 40, 2, 9, 4, 3},                           /* some elsewhere, some nobody's */
        {8, 2, 20, 0, 3, 4, 4},   {8, 8, 9, 0, 8, 7, 1},   /* none of those held; one of them */
    };
    for (size_t i = random_first(3); i < ARRAY_LEN(matrix_types); i += pace_step(3))
        for (size_t x = 0; x < ARRAY_LEN(choices); x++)
            if (matrix_types[i] != DT_F32)
                compare_experts(matrix_types[i], &choices[x], NUMERICS_PREFILL);
}

/* More experts and pairs than a block that lists them has threads. */
static void many_experts_are_listed(void **state)
{
    (void)state;
    const struct choosing all = {400, 8, 60, 0, 400, 0, 0}, some = {400, 8, 60, 0, 400, 90, 290};
    const struct choosing few = {400, 8, 60, 100, 109, 90, 290};
    compare_experts(DT_Q8_0, &all, NUMERICS_PREFILL);
    compare_experts(DT_Q8_0, &some, NUMERICS_PREFILL);
    compare_experts(DT_Q8_0, &few, NUMERICS_PREFILL);
}

static float *run_alone(const struct test_case *c)
{
    struct step step = plain_step(c->T);
    float *out = test_calloc((size_t)c->T * (size_t)c->out_width[0], sizeof *out);
    run_case(device[1], c, &step, &out);
    return out;
}

/* Tokens [begin, begin + n) of the case give the bits that they have among all. */
static void check_tokens(const struct test_case *c, const float *all, int32_t begin, int32_t n)
{
    struct test_case some = *c;
    some.T = n;
    for (int i = 0; i < c->n_in; i++)
        some.in[i] = c->in[i] + (int64_t)begin * c->in_width[i];
    float *out = run_alone(&some);
    assert_memory_equal(out, all + (int64_t)begin * c->out_width[0],
                        (size_t)n * (size_t)c->out_width[0] * sizeof *out);
    test_free(out);
}

static void bits_do_not_depend_on_other_tokens(void **state)
{
    (void)state;
    for (size_t i = random_first(2); i < ARRAY_LEN(matrix_types); i += pace_step(2)) {
        for (int how = 0; how < 4; how++) {
            const struct choosing x = {6, 2, 70, 0, 6, how / 2, how / 2 ? 4 : 0};
            struct test_case c =
                expert_case(how % 2 ? OP_EXPERT_DOWN : OP_EXPERT_GATE_UP, matrix_types[i], &x,
                            i % 3 ? NUMERICS_PREFILL : NUMERICS_DECODE);
            float *all = run_alone(&c);
            check_tokens(&c, all, 0, 1);
            check_tokens(&c, all, 33, 3);
            check_tokens(&c, all, 69, 1);
            test_free(all);
            free_case(&c);
        }
    }
}

/* What each token gives with the matrices of `expert` by themselves, as other operators. */
static void check_product(const struct test_case *c, const float *got, int32_t expert)
{
    char key[OP_KEY_SIZE];
    const int matrices = op_weight_least(&c->op);
    snprintf(key, sizeof key, "%s/%s/k%d/n%d", matrices > 1 ? "gate_up" : "mul_mat",
             dtype_name((oato_dtype)c->op.dtype), K, N);
    struct test_case one = case_of(key, c->T);
    one.numerics = c->numerics;
    one.n_in = 1;
    one.n_weights = matrices;
    one.in[0] = c->in[0];
    one.in_width[0] = K;
    for (int i = 0; i < matrices; i++) {
        one.weight[i] = c->weight[i];
        one.weight[i].row_begin = (int64_t)expert * N;
        one.weight[i].row_end = (int64_t)(expert + 1) * N;
    }
    float *expected = run_alone(&one);
    for (int32_t t = 0; t < c->T; t++)
        if (c->in[1][2 * (int64_t)t] == (float)expert)
            assert_memory_equal(got + (int64_t)t * N, expected + (int64_t)t * N, N * sizeof *got);
    test_free(expected);
}

static void an_expert_has_the_bits_of_its_matrices(void **state)
{
    (void)state;
    const struct choosing x = {3, 1, 90, 0, 3, 0, 0};
    for (size_t i = random_first(3); i < ARRAY_LEN(matrix_types); i += pace_step(3)) {
        for (int down = 0; down < 2 && matrix_types[i] != DT_F32; down++) {
            struct test_case c = expert_case(down ? OP_EXPERT_DOWN : OP_EXPERT_GATE_UP,
                                             matrix_types[i], &x, NUMERICS_PREFILL);
            for (int32_t t = 0; t < c.T; t++)
                c.in[1][2 * (int64_t)t + 1] = 1; /* the weight */
            memset(c.absent + op_weight_least(&c.op), 1, RECORD_WEIGHTS - 2);
            float *got = run_alone(&c);
            for (int32_t e = 0; e < x.experts; e++)
                check_product(&c, got, e);
            test_free(got);
            free_case(&c);
        }
    }
}

static void grouped_experts_say_their_class(void **state)
{
    (void)state;
    static const struct {
        oato_dtype dtype;
        const char *decode, *prefill;
    } classes[] = {{DT_F32, "f32", "f32"},
                   {DT_F16, "f32", "f16"},
                   {DT_Q4_K, "a8b32", "a8b32s"},
                   {DT_MXFP4, "a8b32", "a8b32s"}};
    for (size_t i = 0; i < ARRAY_LEN(classes); i++) {
        for (int kind = OP_EXPERT_GATE_UP; kind <= OP_EXPERT_DOWN; kind++) {
            char key[OP_KEY_SIZE];
            snprintf(key, sizeof key, "%s/%s/k256/n64/e4/u2", op_kind_name((uint16_t)kind),
                     dtype_name(classes[i].dtype));
            const struct test_case c = case_of(key, 1);
            const struct device_ops *ops = device[1]->ops;
            assert_string_equal(ops->numerics(device[1], &c.op, NUMERICS_DECODE),
                                classes[i].decode);
            assert_string_equal(ops->numerics(device[1], &c.op, NUMERICS_PREFILL),
                                classes[i].prefill);
        }
    }
}

/* -------------------------------------------------------------------------------- caches -- */

enum { SLOTS = 3, CACHED = 8 };

/* Of experts 2 .. 6 the slots hold 5, 2 and 6; 3 and 4 are nowhere. */
static const int32_t expert_in[SLOTS] = {5, 2, 6};
static const int32_t slot_of[CACHED] = {-1, -1, 1, -1, -1, 0, 2, -1};
static const int32_t *const tables[1] = {slot_of};

/* The case with slots of its own matrices, which lie behind each other in the order of `experts`;
 * `rows` has room for the rows of all. */
static struct test_case in_slots(const struct test_case *whole, const int32_t *experts,
                                 int32_t *rows)
{
    struct test_case c = *whole;
    c.op.expert_slots = SLOTS;
    if (c.op.kind == OP_EXPERT_DOWN)
        c.out_width[0] = c.op.experts_used * N;
    for (int i = 0; i < SLOTS * N; i++)
        rows[i] = (experts[i / N] - c.op.expert_first) * N + i % N;
    for (int w = 0; w < op_weight_least(&c.op); w++) {
        c.weight[w].list = rows;
        c.weight[w].n = c.weight[w].row_end = SLOTS * N;
    }
    return c;
}

static float *run_in_slots(const struct test_case *c)
{
    struct step step = plain_step(c->T);
    float *out = test_calloc((size_t)c->T * (size_t)c->out_width[0], sizeof *out);
    step.cached = tables;
    run_case(device[1], c, &step, &out);
    return out;
}

/* Pairs whose expert is there have the bits that they have among all experts. */
static void experts_in_slots_compute_alike(void **state)
{
    (void)state;
    const struct choosing x = {CACHED, 3, 5, 0, CACHED, 2, 5};
    int32_t rows[SLOTS * N];
    for (size_t i = random_first(3); i < ARRAY_LEN(matrix_types); i += pace_step(3)) {
        for (int how = 0; how < 4; how++) {
            const enum numerics_choice numerics = how / 2 ? NUMERICS_PREFILL : NUMERICS_DECODE;
            struct test_case c = expert_case(how % 2 ? OP_EXPERT_DOWN : OP_EXPERT_GATE_UP,
                                             matrix_types[i], &x, numerics);
            const struct test_case cached = in_slots(&c, expert_in, rows);
            struct step step = plain_step(c.T);
            step.cached = tables;
            compare(&cached, &step, 1e-10);
            if (c.op.kind == OP_EXPERT_GATE_UP) {
                float *all = run_alone(&c), *some = run_in_slots(&cached);
                for (int p = 0; p < c.T * x.used; p++)
                    if (slot_of[(int)c.in[1][p / x.used * 2 * x.used + p % x.used]] >= 0)
                        assert_memory_equal(some + (size_t)p * N, all + (size_t)p * N,
                                            N * sizeof *all);
                test_free(all);
                test_free(some);
            }
            free_case(&c);
        }
    }
}

static atomic_bool gate_open;

static void wait_at_gate(void *user)
{
    (void)user;
    while (!atomic_load(&gate_open))
        sched_yield();
}

static void read_out(const struct case_program *x, float *out, size_t bytes)
{
    struct oato_error err;
    if (device[1]->ops->download(device[1], out, x->arena, x->record.out[0], bytes, NULL, &err))
        fail_msg("%s", err.text);
}

/* While rows of a slot are held up, steps that read other slots go on and are right; once the event
 * has passed, the slot holds its new expert. */
static void steps_run_beside_a_refill(oato_dtype dtype)
{
    const struct choosing x = {CACHED, 3, 5, 0, CACHED, 2, 5};
    static const int32_t after_in[SLOTS] = {5, 4, 6},
                         without[CACHED] = {-1, -1, -1, -1, -1, 0, 2, -1};
    static const int32_t after[CACHED] = {-1, -1, -1, -1, 1, 0, 2, -1};
    const int32_t *table[1] = {slot_of};
    const struct device_ops *ops = device[1]->ops;
    struct cuda_device *d = cuda_of(device[1]);
    int32_t rows[2][SLOTS * N];
    struct oato_error err;
    struct case_program p, fresh;
    uint64_t value[2] = {0};
    struct test_case c = expert_case(OP_EXPERT_GATE_UP, dtype, &x, NUMERICS_DECODE);
    struct test_case cached = in_slots(&c, expert_in, rows[0]);
    const struct test_case later = in_slots(&c, after_in, rows[1]);
    const size_t bytes = width_bytes(&cached, cached.out_width[0]);
    float *got = test_malloc(bytes), *expected = test_malloc(bytes);
    struct step step = plain_step(cached.T);
    step.cached = table;
    case_begin(device[1], &cached, &p);
    struct compiled *compiled = compile(device[1], &p.program);
    run(device[1], compiled, &step);

    atomic_store(&gate_open, false);
    cuda_enter(d);
    assert_int_equal(
        d->cu->host_call((cu_stream)(void *)d->far.base.weights->refills.fill, wait_at_gate, NULL),
        0);
    for (int w = 0; w < 2; w++) {
        struct weight_source s = c.weight[w];
        s.row_begin = 2 * N; /* expert 4 */
        s.row_end = 3 * N;
        if (weight_refill(device[1], p.weights[w], N, &s, 0, &value[w], &err))
            fail_msg("%s", err.text);
    }
    table[0] = without;
    for (int i = 0; i < 3; i++)
        run(device[1], compiled, &step);
    read_out(&p, got, bytes);
    assert_false(timeline_reached(weight_transfers(device[1]), value[0]));
    atomic_store(&gate_open, true);
    assert_true(timeline_wait(weight_transfers(device[1]), value[1], NULL));
    case_begin(device[1], &later, &fresh);
    for (int i = 0; i < 2; i++) { /* without, then with the new expert */
        run_program(device[1], &fresh.program, &step);
        read_out(&fresh, expected, bytes);
        if (i) {
            run(device[1], compiled, &step);
            read_out(&p, got, bytes);
        }
        for (int pair = 0; pair < c.T * x.used; pair++)
            if (table[0][(int)c.in[1][pair / x.used * 2 * x.used + pair % x.used]] >= 0)
                assert_memory_equal(got + (size_t)pair * N, expected + (size_t)pair * N,
                                    N * sizeof *got);
        table[0] = after;
    }
    case_end(device[1], &later, &fresh);
    ops->release(device[1], compiled);
    case_end(device[1], &cached, &p);
    test_free(got);
    test_free(expected);
    free_case(&c);
}

static void a_refill_is_ordered_by_its_event(void **state)
{
    (void)state;
    steps_run_beside_a_refill(DT_Q4_K);
    steps_run_beside_a_refill(DT_F16);
    steps_run_beside_a_refill(DT_MXFP4);
}

static cu_result cannot_call(cu_stream on, cu_host_function function, void *user)
{
    (void)on, (void)function, (void)user;
    return CU_ERROR_UNKNOWN;
}

/* Its copies may still read it: the next refill, which gets its number, must not free it. */
static void a_failed_refill_stays_until_the_end(void **state)
{
    (void)state;
    const struct choosing x = {CACHED, 3, 5, 0, CACHED, 2, 5};
    const struct device_ops *ops = device[1]->ops;
    struct cuda_device *d = cuda_of(device[1]);
    int32_t rows[SLOTS * N];
    struct oato_error err;
    struct case_program p;
    uint64_t value = 0;
    struct test_case c = expert_case(OP_EXPERT_GATE_UP, DT_Q8_0, &x, NUMERICS_DECODE);
    const struct test_case cached = in_slots(&c, expert_in, rows);
    case_begin(device[1], &cached, &p);
    struct compiled *compiled = compile(device[1], &p.program);
    struct weight_source s = c.weight[0];
    s.row_end = N;

    const struct cuda_driver *whole = d->cu;
    struct cuda_driver broken = *whole;
    broken.host_call = cannot_call;
    d->cu = &broken;
    assert_int_equal(weight_refill(device[1], p.weights[0], 0, &s, 0, &value, &err), OATO_EDEVICE);
    d->cu = whole;
    const struct weight_refilled *failed = d->far.base.weights->refilled;
    for (int i = 0; i < 2; i++) {
        if (weight_refill(device[1], p.weights[0], 0, &s, 0, &value, &err))
            fail_msg("%s", err.text);
        assert_true(timeline_wait(weight_transfers(device[1]), value, NULL));
    }
    const struct weight_refilled *f = d->far.base.weights->refilled;
    while (f && f != failed)
        f = f->next;
    assert_ptr_equal(f, failed);
    ops->release(device[1], compiled);
    case_end(device[1], &cached, &p);
    free_case(&c);
}

static void impossible_refills_are_refused(void **state)
{
    (void)state;
    const struct choosing x = {CACHED, 3, 5, 0, CACHED, 2, 5};
    const struct device_ops *ops = device[1]->ops;
    int32_t rows[SLOTS * N];
    struct oato_error err;
    struct case_program p;
    uint64_t value;
    struct test_case c = expert_case(OP_EXPERT_GATE_UP, DT_Q8_0, &x, NUMERICS_DECODE);
    const struct test_case cached = in_slots(&c, expert_in, rows);
    case_begin(device[1], &cached, &p);
    struct compiled *compiled = compile(device[1], &p.program);
    struct weight_source s = c.weight[0];
    s.row_end = N;
    assert_int_equal(weight_refill(device[1], p.weights[0], 2 * N + 1, &s, 0, &value, &err),
                     OATO_EUSAGE);
    assert_non_null(strstr(err.text, "rows 141 to 211 cannot be refilled"));
    s.dtype = DT_F16;
    assert_int_equal(weight_refill(device[1], p.weights[0], N, &s, 0, &value, &err), OATO_EUSAGE);
    ops->release(device[1], compiled);
    case_end(device[1], &cached, &p);
    free_case(&c);
}

/* ------------------------------------------------------------------------------- graphs --- */

enum { EXPERTS = 8, USED = 3, TOKENS = 5, WIDTH = 64 };

/* x, choice -> gate and up -> down, of experts [2, 8) */
static struct rig *experts_rig(void)
{
    struct rig *g = rig_create("cuda:0", 0);
    const int rows = EXPERTS * WIDTH, begin = 2 * WIDTH;
    const int gate = rig_matrix(g, WIDTH, rows, begin, rows, 1);
    const int up = rig_matrix(g, WIDTH, rows, begin, rows, 2);
    const int down = rig_matrix(g, WIDTH, rows, begin, rows, 3);
    struct program_record *r[2];
    r[0] = rig_put(g, "expert_gate_up/Q8_0/k64/n64/e8/u3", 2, (int[]){0, 1}, 1, (int[]){2},
                   (int[]){gate, up});
    r[1] = rig_put(g, "expert_down/Q8_0/k64/n64/e8/u3", 2, (int[]){2, 1}, 1, (int[]){3}, &down);
    for (int i = 0; i < 2; i++) {
        r[i]->op.expert_first = 2;
        r[i]->op.experts_held = EXPERTS - 2;
        r[i]->numerics = NUMERICS_PREFILL;
        r[i]->in_width[0] = i ? USED * WIDTH : WIDTH;
        r[i]->in_width[1] = 2 * USED;
        r[i]->signal = i;
    }
    rig_compile(g, NULL);
    return g;
}

static void give_and_run(struct rig *g, const struct test_case *c, float *out)
{
    struct step step = {.n_tokens = TOKENS, .n_seqs = 1};
    rig_write(g, 0, c->in[0], TOKENS * WIDTH * sizeof(float));
    rig_write(g, 1, c->in[1], (size_t)TOKENS * 2 * USED * sizeof(float));
    rig_step(&g, 1, &step);
    rig_read(g, 3, out, TOKENS * WIDTH * sizeof(float));
}

/* A captured step's grids serve every choice of a step of its size. */
static void captured_steps_follow_their_choices(void **state)
{
    (void)state;
    enum { STEPS = 5 };
    struct rig *kept = experts_rig();
    count_begin();
    for (int i = 0; i < STEPS; i++) {
        float got[TOKENS * WIDTH], expected[TOKENS * WIDTH];
        struct test_case c = case_of("expert_gate_up/Q8_0/k64/n64/e8/u3", TOKENS);
        give_input(&c, WIDTH);
        give_choice(&c, 0, i % 2 ? USED + 1 : EXPERTS);
        give_and_run(kept, &c, got);
        struct rig *fresh = experts_rig(); /* its first step is launched kernel by kernel */
        give_and_run(fresh, &c, expected);
        assert_memory_equal(got, expected, sizeof got);
        rig_free(fresh);
        free_case(&c);
    }
    assert_int_equal(graph_launches, STEPS - 1);
    count_end();
    rig_free(kept);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(experts_compute_alike),
        cmocka_unit_test(gate_and_up_may_differ_in_type),
        cmocka_unit_test(grouped_experts_compute_alike),
        cmocka_unit_test(many_experts_are_listed),
        cmocka_unit_test(bits_do_not_depend_on_other_tokens),
        cmocka_unit_test(an_expert_has_the_bits_of_its_matrices),
        cmocka_unit_test(grouped_experts_say_their_class),
        cmocka_unit_test(experts_in_slots_compute_alike),
        cmocka_unit_test(a_refill_is_ordered_by_its_event),
        cmocka_unit_test(a_failed_refill_stays_until_the_end),
        cmocka_unit_test(impossible_refills_are_refused),
        cmocka_unit_test(captured_steps_follow_their_choices),
    };
    RUN_ON_DEVICES(tests);
}
