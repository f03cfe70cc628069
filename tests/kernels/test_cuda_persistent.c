/*
 * test_cuda_persistent.c - the persistent kernel gives the bytes that kernels launched one by one
 * give: every operator of a decode step, all types of weights and of KV, one token and several,
 * grids smaller and larger than the blocks that are resident. On the emulated GPU of
 * tests/cuda_on_cpu/ (OATO_CUDA_DRIVER) and, labelled gpu, on a real one; without any it is
 * skipped.
 */
#include "tests/kernels/cuda_case.h"
#include "tests/kernels/cuda_counts.h"

enum { STEPS = 3 }; /* the first is launched one by one, the second makes the list */

/* n floats that lie at `at` in the arena. */
struct input {
    const float *x;
    uint64_t at, n;
};

/* Of the program's output, `bytes` from `from` on in the arena, after steps on a device. Each has
 * another input, so that what an earlier one left in the workspace is not what this one needs. */
static void run_steps(struct oato_device *d, struct program *p, const struct step *step,
                      const struct input *in, uint64_t from, uint8_t *out, uint64_t bytes)
{
    struct oato_error err;
    uint8_t *garbage = test_malloc(bytes);
    float *x = test_malloc((in->n + 1) * sizeof *x);
    memset(garbage, 0xa5, bytes);
    struct compiled *c = compile(d, p);
    for (int i = 0; i < STEPS; i++) {
        for (uint64_t e = 0; e < in->n; e++)
            x[e] = in->x[(e + (uint64_t)i * 37) % in->n];
        upload(d, p->arena, in->at, x, in->n * sizeof *x);
        upload(d, p->arena, from, garbage, bytes);
        run(d, c, step);
    }
    d->ops->release(d, c);
    test_free(x);
    if (d->ops->download(d, out, p->arena, from, bytes, NULL, &err))
        fail_msg("%s", err.text);
    test_free(garbage);
}

/* Both ways; lists must have been launched in the second. */
static void compare_ways(const char *what, const uint8_t *launched, const uint8_t *listed,
                         uint64_t bytes)
{
    if (list_launches != STEPS - 1)
        fail_msg("%s: %d lists launched, not %d", what, list_launches, STEPS - 1);
    for (uint64_t i = 0; i < bytes; i++)
        if (launched[i] != listed[i])
            fail_msg("%s: byte %d differs", what, (int)i);
    list_launches = 0;
}

/* The record twice, which makes a span: the second time it reads and writes the same. */
static uint8_t *outputs_of(struct oato_device *d, const struct test_case *c,
                           const struct step *step, uint64_t *bytes)
{
    struct case_program x;
    case_begin(d, c, &x);
    struct program_record r[2] = {x.record, x.record};
    r[0].signal = 0;
    x.program.records = r;
    x.program.n_records = 2;
    *bytes = x.bytes - r[0].out[0];
    uint8_t *out = test_malloc(*bytes);
    const struct input in = {c->in[0], 0, c->n_in ? (uint64_t)c->T * (uint64_t)c->in_width[0] : 0};
    run_steps(d, &x.program, step, &in, r[0].out[0], out, *bytes);
    case_end(d, c, &x);
    return out;
}

static void check_case(const struct test_case *c)
{
    char key[OP_KEY_SIZE];
    struct step step = plain_step(c->T);
    uint64_t bytes;
    uint8_t *launched = outputs_of(device[0], c, &step, &bytes);
    assert_int_equal(list_launches, 0);
    uint8_t *listed = outputs_of(device[1], c, &step, &bytes);
    compare_ways(oato_op_key(&c->op, NULL, key), launched, listed, bytes);
    test_free(launched);
    test_free(listed);
}

static void check_key(const char *key, int32_t T, const int32_t widths[3])
{
    struct test_case c = case_of(key, T);
    for (int i = 0; i < 3 && widths[i]; i++)
        give_input(&c, widths[i]);
    give_weights(&c);
    check_case(&c);
    free_case(&c);
}

/* ------------------------------------------------------------------------------ products -- */

static void products_have_the_same_bits(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(matrix_types); i++)
        for (int32_t T = 1; T <= 6; T += 5) {
            char key[OP_KEY_SIZE];
            const char *type = dtype_name(matrix_types[i]);
            snprintf(key, sizeof key, "mul_mat/%s/k512/n%d", type, (int)random_in(30, 300));
            check_key(key, T, (int32_t[3]){512});
            snprintf(key, sizeof key, "qkv/%s/k256/n%d/m%d", type, (int)random_in(30, 90),
                     (int)random_in(15, 30));
            check_key(key, T, (int32_t[3]){256});
            snprintf(key, sizeof key, "gate_up/%s/k768/n%d", type, (int)random_in(15, 140));
            check_key(key, T, (int32_t[3]){768});
            snprintf(key, sizeof key, "mul_mat/%s/k4096/n%d", type, (int)random_in(30, 70));
            check_key(key, T, (int32_t[3]){4096}); /* rows shared by warps */
        }
}

static void experts_have_the_same_bits(void **state)
{
    (void)state;
    enum { USED = 3, EXPERTS = 8, K = 256 };
    for (size_t i = 0; i < ARRAY_LEN(matrix_types); i++)
        for (int down = 0; down < 2; down++) {
            char key[OP_KEY_SIZE];
            snprintf(key, sizeof key, "%s/%s/k%d/n70/e%d/u%d",
                     op_kind_name(down ? OP_EXPERT_DOWN : OP_EXPERT_GATE_UP),
                     dtype_name(matrix_types[i]), K, EXPERTS, USED);
            struct test_case c = case_of(key, 2);
            give_input(&c, down ? USED * K : K);
            give_input(&c, 2 * USED);
            for (int t = 0; t < 2; t++)
                for (int u = 0; u < USED; u++)
                    c.in[1][t * 2 * USED + u] = (float)((t + 2 * u) % EXPERTS);
            give_weights(&c);
            check_case(&c);
            free_case(&c);
        }
}

/* ---------------------------------------------------------------------------- row by row -- */

static void rows_have_the_same_bits(void **state)
{
    (void)state;
    for (int32_t T = 1; T <= 11; T += 5) {
        check_key("rms_norm/k576", T, (int32_t[3]){576});
        check_key("add_norm/k200", T, (int32_t[3]){200, 200});
        check_key("head_norm/h9/d64", T, (int32_t[3]){576});
        check_key("bias/k333", T, (int32_t[3]){333});
        check_key("add/k5000", T, (int32_t[3]){5000, 5000});
        check_key("scale/k333", T, (int32_t[3]){333});
        check_key("swiglu/k1000", T, (int32_t[3]){1000, 1000});
        check_key("select/k77", T, (int32_t[3]){77});
        check_key("merge/n300", T, (int32_t[3]){100, 7, 193});
        check_key("merge_sum/k600/n200", T, (int32_t[3]){200, 200, 200});
        check_key("rope/h3/d64/r64/p0", T, (int32_t[3]){192});
        check_key("rope/h2/d80/r20/p1", T, (int32_t[3]){160});
        check_key("route/e67/u6", T, (int32_t[3]){67});
    }
    for (size_t i = 0; i < ARRAY_LEN(matrix_types); i++) {
        char key[OP_KEY_SIZE];
        snprintf(key, sizeof key, "embed/%s/k256/n70", dtype_name(matrix_types[i]));
        check_key(key, 3, (int32_t[3]){0});
    }
}

static void candidates_have_the_same_bits(void **state)
{
    (void)state;
    for (int32_t T = 1; T <= 3; T += 2) {
        check_key("top_k/k49152/n80", T, (int32_t[3]){49152});
        check_key("top_k/k5000/n2", T, (int32_t[3]){5000});
    }
}

/* ----------------------------------------------------------------------------- attention -- */

enum { HEADS = 6, KV_HEADS = 2, POSITIONS_MOST = 640, TOKENS = 2 };

/* Of a layer: q and k turned, k and v stored, attention; and what stands in the way of joining
 * them. */
struct attending {
    oato_dtype dtype;
    int32_t head_dim, positions;
    bool apart;
};

static struct program_record kv_record(enum op_kind kind, const struct attending *x, int32_t heads)
{
    struct program_record r = {
        .op = {.kind = (uint16_t)kind, .dtype = (uint16_t)x->dtype, .scale = 0.125f},
        .n_in = 1,
        .n_out = 1,
        .kv_layer = kind == OP_ROPE ? -1 : 0,
        .in_width = {heads * x->head_dim}};
    r.op.k = r.op.n = heads * x->head_dim;
    r.op.heads = heads;
    r.op.kv_heads = kind == OP_ROPE ? 0 : KV_HEADS;
    r.op.head_dim = x->head_dim;
    if (kind == OP_ROPE) {
        r.op.rope_dims = x->head_dim;
        r.op.rope_base = 10000;
        r.op.rope_scale = 1;
        r.op.scale = 0;
    }
    return r;
}

static void attend(struct oato_device *d, const struct attending *x, const float *values,
                   uint8_t *out, uint64_t out_bytes)
{
    struct oato_error err;
    enum { PAGES = POSITIONS_MOST / KV_PAGE_POSITIONS };
    const struct kv_layer_shape layer = {KV_HEADS, x->head_dim};
    const uint64_t row = sizeof(float) * (uint64_t)x->head_dim;
    const uint64_t kv_bytes = POSITIONS_MOST * KV_HEADS * row, q_bytes = TOKENS * HEADS * row;
    uint8_t *arena = at(d, 2 * kv_bytes + 2 * q_bytes + kv_bytes + q_bytes);
    const uint64_t k_at = 0, v_at = kv_bytes, q_at = 2 * kv_bytes, turned_k_at = q_at + q_bytes;
    const uint64_t turned_q_at = turned_k_at + kv_bytes, y_at = turned_q_at + q_bytes;
    upload(d, arena, 0, values, 2 * kv_bytes + q_bytes);
    struct kv_cache *kv = NULL;
    if (d->ops->kv_create(d, &layer, 1, x->dtype, PAGES, &kv, &err))
        fail_msg("%s", err.text);
    static int32_t position[POSITIONS_MOST], pages[PAGES];
    static const int32_t zeros[POSITIONS_MOST];
    for (int i = 0; i < POSITIONS_MOST; i++)
        position[i] = i;
    for (int i = 0; i < PAGES; i++)
        pages[i] = (i * 3 + 1) % PAGES;
    struct step_seq seq = {.query_len = x->positions, .kv_len = x->positions, .pages = pages};
    struct step step = {.n_tokens = x->positions,
                        .n_seqs = 1,
                        .token_id = zeros,
                        .token_position = position,
                        .token_seq = zeros,
                        .seq = &seq};
    struct program_record r[5];
    r[0] = kv_record(OP_KV_STORE, x, KV_HEADS);
    r[0].n_in = 2;
    r[0].n_out = 0;
    r[0].in[0] = k_at;
    r[0].in[1] = v_at;
    r[0].in_width[1] = r[0].in_width[0];
    r[0].signal = 1;
    struct program p = {.records = r,
                        .n_records = 1,
                        .n_signals = 1,
                        .max_tokens = POSITIONS_MOST,
                        .max_rows = 1,
                        .max_seqs = 1,
                        .arena = arena,
                        .kv = kv};
    run_program(d, &p, &step);

    int n = 0;
    r[n] = kv_record(OP_ROPE, x, HEADS);
    r[n].in[0] = q_at;
    r[n++].out[0] = turned_q_at;
    r[n] = kv_record(OP_ROPE, x, KV_HEADS);
    r[n].in[0] = k_at;
    r[n++].out[0] = turned_k_at;
    if (x->apart) {
        r[n] = (struct program_record){.op = {.kind = OP_ADD, .k = 32, .n = 32},
                                       .n_in = 2,
                                       .n_out = 1,
                                       .kv_layer = -1,
                                       .in_width = {32, 32},
                                       .in = {v_at, v_at}};
        r[n++].out[0] = y_at;
    }
    r[n] = kv_record(OP_KV_STORE, x, KV_HEADS);
    r[n].n_in = 2;
    r[n].n_out = 0;
    r[n].in[0] = turned_k_at;
    r[n].in[1] = v_at;
    r[n].in_width[1] = r[n].in_width[0];
    n++;
    r[n] = kv_record(OP_ATTENTION, x, HEADS);
    r[n].in[0] = turned_q_at;
    r[n].out[0] = y_at;
    r[n].signal = 1;
    const struct op_size size = {.rows = TOKENS, .seqs = 1};
    p.n_records = (uint32_t)n + 1;
    p.max_tokens = TOKENS;
    p.workspace_bytes = d->ops->workspace_bytes(d, &r[n].op, &size);
    seq.query_len = step.n_tokens = TOKENS;
    step.token_position = position + x->positions - TOKENS;
    assert_int_equal(out_bytes, q_bytes);
    const struct input in = {values + q_at / sizeof(float), q_at, q_bytes / sizeof(float)};
    run_steps(d, &p, &step, &in, y_at, out, out_bytes);
    d->ops->kv_free(d, kv);
    d->ops->free(d, arena, 2 * kv_bytes + 2 * q_bytes + kv_bytes + q_bytes);
}

static void attention_has_the_same_bits(void **state)
{
    (void)state;
    static const struct attending cases[] = {
        {DT_F16, 64, 2, false},    {DT_F16, 64, 600, false},  {DT_Q8_0, 64, 300, false},
        {DT_F32, 128, 257, false}, {DT_F16, 256, 520, false}, {DT_Q8_0, 96, 640, true},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        const struct attending *x = &cases[i];
        const size_t q = (size_t)TOKENS * HEADS * (size_t)x->head_dim;
        const size_t n = 2 * (size_t)POSITIONS_MOST * KV_HEADS * (size_t)x->head_dim + q;
        float *values = test_malloc(n * sizeof *values);
        uint8_t *launched = test_malloc(q * sizeof(float)),
                *listed = test_malloc(q * sizeof(float));
        char what[64];
        random_floats(values, (int64_t)n);
        attend(device[0], x, values, launched, q * sizeof(float));
        attend(device[1], x, values, listed, q * sizeof(float));
        snprintf(what, sizeof what, "attention %zu", i);
        compare_ways(what, launched, listed, q * sizeof(float));
        test_free(values);
        test_free(launched);
        test_free(listed);
    }
}

/* One that launches kernels one by one, and one that has the persistent kernel. */
static int open_both(void)
{
    struct oato_error err;
    if (!cuda_driver_open(&err)) {
        printf("skipped: %s\n", err.text);
        return 77;
    }
    for (int i = 0; i < 2; i++) {
        setenv("OATO_CUDA_DECODE", i ? "persistent" : "launches", 1);
        if (device_open("cuda", 0, NULL, &device[i], &err)) {
            fprintf(stderr, "%s\n", err.text);
            return 1;
        }
    }
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_have_the_same_bits),
        cmocka_unit_test(experts_have_the_same_bits),
        cmocka_unit_test(rows_have_the_same_bits),
        cmocka_unit_test(candidates_have_the_same_bits),
        cmocka_unit_test(attention_has_the_same_bits),
    };
    const int cannot = open_both();
    if (cannot)
        return cannot;
    seed_init();
    count_begin();
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    count_end();
    devices_close();
    return failed;
}
