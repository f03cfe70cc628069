/*
 * test_cuda_ops.c - every operator of a CUDA device against the reference kernels of the CPU, on
 * the same random data: all types of weights and of KV, odd shapes, one row and many; those of
 * experts are in test_cuda_experts.c. Runs on the emulated GPU of tests/cuda_on_cpu/
 * (OATO_CUDA_DRIVER) and, labelled gpu, on a real one; without any it is skipped.
 */
#include "tests/kernels/cuda_case.h"

/* The key's operator with random weights and inputs of these widths (0: no more). */
static void check_class(const char *key, int32_t T, enum numerics_choice numerics,
                        const int32_t widths[3], double limit)
{
    struct test_case c = case_of(key, T);
    struct step step = plain_step(T);
    c.numerics = numerics;
    c.op.first = (c.op.k - c.op.n) / 2; /* of a slice; no part of a key */
    for (int i = 0; i < 3 && widths[i]; i++)
        give_input(&c, widths[i]);
    give_weights(&c);
    compare(&c, &step, limit);
    free_case(&c);
}

static void check_key(const char *key, int32_t T, const int32_t widths[3], double limit)
{
    check_class(key, T, NUMERICS_DECODE, widths, limit);
}

/* ------------------------------------------------------------------------------ products -- */

static void products_of_every_type(void **state)
{
    (void)state;
    static const int32_t rows[NUMERICS_CHOICES][3] = {{1, 3, 9}, {1, 17, 70}};
    for (size_t i = random_first(2); i < ARRAY_LEN(matrix_types); i += pace_step(2)) {
        const char *type = dtype_name(matrix_types[i]);
        for (int n = 0; n < NUMERICS_CHOICES; n++) {
            for (int t = 0; t < 3; t++) {
                char key[OP_KEY_SIZE];
                snprintf(key, sizeof key, "mul_mat/%s/k512/n%d", type, (int)random_in(30, 70));
                check_class(key, rows[n][t], n, (int32_t[3]){512}, 1e-10);
                snprintf(key, sizeof key, "qkv/%s/k256/n%d/m%d", type, (int)random_in(30, 90),
                         (int)random_in(15, 30));
                check_class(key, rows[n][t], n, (int32_t[3]){256}, 1e-10);
                snprintf(key, sizeof key, "gate_up/%s/k768/n%d", type, (int)random_in(15, 40));
                check_class(key, rows[n][t], n, (int32_t[3]){768}, 1e-10);
            }
        }
    }
}

/* A program that finds no memory for its workspace takes none from those before it. */
static void a_workspace_that_cannot_grow_stays(void **state)
{
    (void)state;
    struct oato_device *d = device[1];
    struct test_case small = case_of("mul_mat/Q4_0/k256/n33", 2);
    struct test_case large = case_of("mul_mat/Q4_0/k8192/n33", ROWS_MOST);
    struct case_program x, y;
    struct compiled *refused;
    struct oato_error err;
    float out[2][2 * 33];
    const struct step step = plain_step(2);
    give_input(&small, 256);
    give_input(&large, 8192);
    give_weights(&small);
    give_weights(&large);
    case_begin(d, &small, &x);
    case_begin(d, &large, &y);
    struct compiled *kept = compile(d, &x.program);
    for (int i = 0; i < 2; i++) {
        run(d, kept, &step);
        if (d->ops->download(d, out[i], x.arena, x.record.out[0], sizeof out[i], NULL, &err) ||
            (!i && d->ops->inject_error(d, "alloc=1", &err)))
            fail_msg("%s", err.text);
        if (!i) {
            assert_int_equal(d->ops->compile(d, &y.program, 0, &refused, &err), OATO_EFIT);
            assert_non_null(strstr(err.text, "for workspace"));
        }
    }
    assert_memory_equal(out[0], out[1], sizeof out[0]);
    d->ops->release(d, kept);
    case_end(d, &small, &x);
    case_end(d, &large, &y);
    free_case(&small);
    free_case(&large);
}

/* Numbers that are none must not be needed: a row of zeros has no scale. */
static void a_row_of_zeros_gives_zeros(void **state)
{
    (void)state;
    struct test_case c = case_of("mul_mat/Q4_0/k64/n33", 2);
    struct step step = plain_step(2);
    float out[2 * 33] = {0}, *outs[RECORD_OUTPUTS] = {out};
    give_input(&c, 64);
    memset(c.in[0], 0, 64 * sizeof(float));
    give_weights(&c);
    run_case(device[1], &c, &step, outs);
    for (int i = 0; i < 33; i++)
        assert_true(out[i] == 0);
    assert_true(out[33] != 0);
    free_case(&c);
}

/* Products of few long rows, each of which several warps share. */
static void few_rows_are_shared_by_warps(void **state)
{
    static const oato_dtype types[] = {DT_F32, DT_F16, DT_Q4_0, DT_Q6_K};
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(types); i++) {
        const char *type = dtype_name(types[i]);
        for (int32_t k = 2048; k <= 4096; k += 1024)
            for (int32_t T = 1; T <= 5; T += 2) {
                char key[OP_KEY_SIZE];
                snprintf(key, sizeof key, "mul_mat/%s/k%d/n%d", type, k, (int)random_in(30, 70));
                check_key(key, T, (int32_t[3]){k}, 1e-10);
                snprintf(key, sizeof key, "qkv/%s/k%d/n33/m7", type, k);
                check_key(key, T, (int32_t[3]){k}, 1e-10);
                snprintf(key, sizeof key, "gate_up/%s/k%d/n19", type, k);
                check_key(key, T, (int32_t[3]){k}, 1e-10);
            }
    }
}

/* Rows of the case have the bits that they have alone: all, or of many the first, the last and one
 * between. */
static void check_bits(const struct test_case *c)
{
    const struct step step = plain_step(c->T), single = plain_step(1);
    float *outs[RECORD_OUTPUTS] = {NULL}, *lone[RECORD_OUTPUTS] = {NULL};
    for (int i = 0; i < c->n_out; i++) {
        outs[i] = test_malloc((size_t)(c->T * c->out_width[i]) * sizeof(float));
        lone[i] = test_malloc((size_t)c->out_width[i] * sizeof(float));
    }
    run_case(device[1], c, &step, outs);
    for (int32_t t = 0; t < c->T; t++) {
        struct test_case one = *c;
        if (c->T > 7 && t != 0 && t != c->T / 2 && t != c->T - 1)
            continue;
        one.T = 1;
        one.in[0] = c->in[0] + (size_t)t * (size_t)c->in_width[0];
        run_case(device[1], &one, &single, lone);
        for (int i = 0; i < c->n_out; i++)
            assert_memory_equal(lone[i], outs[i] + (size_t)t * (size_t)c->out_width[i],
                                (size_t)c->out_width[i] * sizeof(float));
    }
    for (int i = 0; i < c->n_out; i++) {
        test_free(outs[i]);
        test_free(lone[i]);
    }
}

/* A row has the same bits alone and among others, as many as there are kernels for, whether or not
 * warps share it. */
static void bits_do_not_depend_on_other_rows(void **state)
{
    (void)state;
    static const char *const shapes[] = {"mul_mat/%s/k%d/n37", "qkv/%s/k%d/n35/m5",
                                         "gate_up/%s/k%d/n19"};
    static const struct {
        int32_t rows, k, classes;
    } cases[] = {{7, 256, NUMERICS_CHOICES},
                 {7, 4096, NUMERICS_CHOICES},
                 {3, 4096, 1},
                 {16, 768, 1},
                 {21, 4096, 1}};
    for (size_t i = random_first(3); i < ARRAY_LEN(matrix_types); i += pace_step(3))
        for (size_t n = 0; n < ARRAY_LEN(cases); n++)
            for (int numerics = 0; numerics < cases[n].classes; numerics++) {
                char key[OP_KEY_SIZE];
                snprintf(key, sizeof key, shapes[(i + n) % ARRAY_LEN(shapes)],
                         dtype_name(matrix_types[i]), cases[n].k);
                struct test_case c = case_of(key, cases[n].rows);
                c.numerics = numerics;
                give_input(&c, cases[n].k);
                give_weights(&c);
                check_bits(&c);
                free_case(&c);
            }
}

static void rows_of_every_type_are_looked_up(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(matrix_types); i++) {
        char key[OP_KEY_SIZE];
        snprintf(key, sizeof key, "embed/%s/k256/n%d", dtype_name(matrix_types[i]), ROWS_MOST / 10);
        struct test_case c = case_of(key, 9);
        struct step step = plain_step(9);
        give_weights(&c);
        compare(&c, &step, 0); /* every bit */
        c.op.scale = 3.5f;
        compare(&c, &step, 1e-14);
        int32_t position[9];
        for (int t = 0; t < 9; t++)
            position[t] = (int32_t)random_in(0, c.op.n + 5); /* behind the last row: the last row */
        step.token_position = position;
        c.op.by_position = 3; /* of position 0: the third row */
        compare(&c, &step, 1e-14);
        free_case(&c);
    }
}

/* Of SWIGLU and ACTIVATE, and inside products, where only the first of each kind is. */
static void activations_are_alike(void **state)
{
    (void)state;
    static const struct {
        const char *key;
        int32_t width[3];
    } rows[] = {
        {"swiglu/k1000", {1000, 1000}}, {"activate/k333", {333}}, {"gate_up/Q4_0/k256/n19", {256}}};
    for (int a = 0; a < ACT_COUNT; a++) {
        for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
            struct test_case c = case_of(rows[i].key, 3);
            struct step step = plain_step(3);
            c.op.activation = a;
            c.op.scale = 3;
            for (int in = 0; rows[i].width[in]; in++)
                give_input(&c, rows[i].width[in]);
            if (c.op.kind == OP_GATE_UP)
                give_weights(&c);
            compare(&c, &step, 1e-9);
            free_case(&c);
        }
    }
    struct test_case c = case_of("scale/k333", 3); /* by a constant */
    struct step step = plain_step(3);
    c.op.scale = 0.3f;
    give_input(&c, 333);
    compare(&c, &step, 0);
    free_case(&c);
}

/* ---------------------------------------------------------------------------- row by row -- */

static void rows_are_computed_alike(void **state)
{
    (void)state;
    static const int32_t rows[] = {1, 3, 17};
    for (size_t t = 0; t < ARRAY_LEN(rows); t++) {
        const int32_t T = rows[t];
        check_key("rms_norm/k576", T, (int32_t[3]){576}, 1e-12);
        check_key("add_norm/k200", T, (int32_t[3]){200, 200}, 1e-12);
        check_key("head_norm/h9/d64", T, (int32_t[3]){576}, 1e-12);
        check_key("bias/k333", T, (int32_t[3]){333}, 0);
        check_key("add/k333", T, (int32_t[3]){333, 333}, 0);
        check_key("scale/k333", T, (int32_t[3]){333}, 0);
        check_key("swiglu/k1000", T, (int32_t[3]){1000, 1000}, 1e-12);
        check_key("select/k77", T, (int32_t[3]){77}, 0);
        check_key("merge/n300", T, (int32_t[3]){100, 7, 193}, 0);
        check_key("merge_sum/k600/n200", T, (int32_t[3]){200, 200, 200}, 0);
        check_key("slice/k300/n77", T, (int32_t[3]){300}, 0);
    }
}

/* LayerNorm, norms without weights and with biases, of rows and of heads. */
static void norms_of_every_kind_are_alike(void **state)
{
    (void)state;
    static const struct {
        const char *key;
        int inputs;
        int32_t width, norm;
    } rows[] = {
        {"rms_norm/k576", 1, 576, NORM_CENTRED},
        {"rms_norm/k333", 1, 333, NORM_CENTRED | NORM_BIASED},
        {"rms_norm/k9000", 1, 9000, NORM_CENTRED | NORM_PLAIN},
        {"rms_norm/k64", 1, 64, NORM_BIASED},
        {"rms_norm/k2050", 1, 2050, NORM_PLAIN},
        {"add_norm/k200", 2, 200, NORM_CENTRED | NORM_BIASED},
        {"add_norm/k2500", 2, 2500, NORM_CENTRED},
        {"head_norm/h9/d64", 1, 576, NORM_CENTRED | NORM_OWN_HEADS},
        {"head_norm/h3/d80", 1, 240, NORM_PLAIN},
        {"head_norm/h3/d80", 1, 240, NORM_HEAD_GAINS},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        for (int32_t T = 1; T <= 3; T += 2) {
            struct test_case c = case_of(rows[i].key, T);
            struct step step = plain_step(T);
            c.op.norm = rows[i].norm;
            for (int in = 0; in < rows[i].inputs; in++)
                give_input(&c, rows[i].width);
            for (int64_t e = 0; e < (int64_t)T * rows[i].width; e++)
                c.in[0][e] += 1.5f;
            give_weights(&c);
            compare(&c, &step, 1e-12);
            free_case(&c);
        }
    }
}

static void factors_are_alike(void **state)
{
    (void)state;
    struct test_case c = case_of("scale/k333", 5);
    struct step step = plain_step(5);
    static const int32_t position[] = {0, 99, 100, 8192, 1 << 20};
    give_input(&c, 333);
    step.token_position = position;
    c.op.scale = 0.5f;
    c.op.temperature = 0.1f;
    c.op.temperature_step = 100;
    c.op.temperature_offset = 1;
    compare(&c, &step, 1e-13);
    c.op.temperature = 0;
    c.op.divides = 1;
    give_weights(&c);
    compare(&c, &step, 1e-13);
    free_case(&c);
}

static void positions_rotate_alike(void **state)
{
    (void)state;
    static const char *const keys[] = {"rope/h3/d64/r64/p0", "rope/h5/d64/r64/p1",
                                       "rope/h2/d80/r20/p1", "rope/h2/d80/r20/p0"};
    for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
        for (int divided = 0; divided < 2; divided++) {
            struct test_case c = case_of(keys[i], 6);
            struct step step = plain_step(6);
            int32_t position[6];
            float divisors[32];
            c.op.rope_scale = i % 2 ? 1 : 0.25f;
            if (i == 2) { /* YaRN */
                c.op.rope_scale = 0.25f;
                c.op.rope_low = 2;
                c.op.rope_high = 7.5f;
                c.op.rope_magnitude = 1.2f;
            }
            give_input(&c, c.op.heads * c.op.head_dim);
            for (int p = 0; p < 32; p++)
                divisors[p] = 1 + (float)random_in(0, 70) / 10;
            if (divided) {
                const int32_t pairs = c.op.rope_dims / 2;
                c.n_weights = 1;
                c.weight[0] = (struct weight_source){.data = divisors,
                                                     .dtype = DT_F32,
                                                     .k = pairs,
                                                     .n = 1,
                                                     .row_end = 1,
                                                     .use = WEIGHT_VECTOR};
            }
            for (int t = 0; t < 6; t++)
                position[t] = (int32_t)random_in(0, t ? 1 << 20 : 8);
            step.token_position = position;
            compare(&c, &step, 1e-12);
            c.n_weights = 0;
            free_case(&c);
        }
    }
}

static void gates_are_alike(void **state)
{
    (void)state;
    check_key("gate/k333/h1", 3, (int32_t[3]){333, 1}, 1e-12);
    check_key("gate/k640/h10", 3, (int32_t[3]){640, 10}, 1e-12);
    check_key("gate/k333/h333", 3, (int32_t[3]){333, 333}, 1e-12);
}

static void tokens_choose_the_same_experts(void **state)
{
    (void)state;
    for (int score = 0; score < ROUTE_SCORE_COUNT; score++) {
        for (int groups = 0; groups < 2; groups++) {
            struct test_case c = case_of("route/e72/u6", 21);
            struct step step = plain_step(21);
            c.op.route_norm = groups;
            c.op.route_score = score;
            c.op.scale = 2.5f;
            c.op.route_groups = groups ? 9 : 0;
            c.op.route_groups_used = groups ? 2 : 0;
            give_input(&c, 72);
            give_weights(&c);
            for (int e = 0; e < 72; e++) /* an order of the experts */
                ((float *)(uintptr_t)c.weight[1].data)[e] = (float)(e * 29 % 72);
            c.absent[1] = score == 0;
            compare(&c, &step, 1e-11);
            free_case(&c);
        }
    }
    for (int norm = 0; norm < 2; norm++) {
        struct test_case c = case_of("route/e67/u6", 21);
        struct step step = plain_step(21);
        c.op.route_norm = norm;
        c.op.scale = norm ? 0 : 2.5f;
        give_input(&c, 67);
        c.in[0][5] = c.in[0][9] = c.in[0][60] = 20; /* equal ones: the lower ids */
        compare(&c, &step, 1e-12);
        free_case(&c);
        c = case_of("route/e33/u6/x2", 21);
        c.op.route_norm = norm;
        give_input(&c, 66);
        compare(&c, &step, 1e-12);
        free_case(&c);
    }
}

/* ----------------------------------------------------------------------------- attention -- */

/* Two sequences in shuffled pages are stored, some pages copied, and the last tokens attend. */
struct context {
    oato_dtype dtype;
    int32_t heads, kv_heads, head_dim;
    int32_t length[2], queries; /* of each sequence */
};

static void attend(struct oato_device *d, const struct context *x, const float *k, const float *v,
                   const float *q, float *out)
{
    struct oato_error err;
    struct kv_cache *kv = NULL;
    const struct kv_layer_shape layers[] = {{.kv_heads = 1, .head_dim = 32},
                                            {.kv_heads = x->kv_heads, .head_dim = x->head_dim}};
    enum { PAGES = 2 * ROWS_MOST / KV_PAGE_POSITIONS + 4 };
    if (d->ops->kv_create(d, layers, 2, x->dtype, PAGES, &kv, &err))
        fail_msg("%s", err.text);
    int32_t pages[2][PAGES], position[2 * ROWS_MOST], sequence[2 * ROWS_MOST], next = PAGES;
    for (int s = 0; s < 2; s++)
        for (int p = 0; p * KV_PAGE_POSITIONS < x->length[s]; p++)
            pages[s][p] = --next;
    const int32_t all = x->length[0] + x->length[1], width = x->kv_heads * x->head_dim;
    const int32_t q_width = x->heads * x->head_dim;
    const uint64_t kv_bytes = size_align((uint64_t)all * (uint64_t)width * sizeof(float), 64);
    const uint64_t q_bytes = size_align((uint64_t)all * (uint64_t)q_width * sizeof(float), 64);
    uint8_t *arena = at(d, 2 * kv_bytes + 2 * q_bytes);
    if (d->ops->upload(d, arena, 0, k, (uint64_t)all * (uint64_t)width * 4, NULL, &err) ||
        d->ops->upload(d, arena, kv_bytes, v, (uint64_t)all * (uint64_t)width * 4, NULL, &err) ||
        d->ops->upload(d, arena, 2 * kv_bytes, q,
                       (uint64_t)(2 * x->queries) * (uint64_t)q_width * 4, NULL, &err))
        fail_msg("%s", err.text);

    struct program_record r = {
        .op = {.kind = OP_KV_STORE, .dtype = (uint16_t)x->dtype, .k = width, .n = width},
        .n_in = 2,
        .kv_layer = 1,
        .in_width = {width, width},
        .in = {0, kv_bytes},
        .signal = 1};
    r.op.kv_heads = x->kv_heads;
    r.op.head_dim = x->head_dim;
    struct program p = {.records = &r,
                        .n_records = 1,
                        .n_signals = 1,
                        .max_tokens = all,
                        .max_rows = 1,
                        .max_seqs = 2,
                        .arena = arena,
                        .kv = kv};
    struct step_seq seqs[2];
    int32_t t = 0;
    for (int s = 0; s < 2; s++) {
        seqs[s] = (struct step_seq){
            .query_begin = t, .query_len = x->length[s], .kv_len = x->length[s], .pages = pages[s]};
        for (int i = 0; i < x->length[s]; i++, t++) {
            position[t] = i;
            sequence[t] = s;
        }
    }
    struct step step = {.n_tokens = all,
                        .n_seqs = 2,
                        .token_id = position,
                        .token_position = position,
                        .token_seq = sequence,
                        .seq = seqs};
    run_program(d, &p, &step);

    /* the first page of the second sequence is another one from now on */
    struct step_page_copy copy = {.from = pages[1][0], .to = 0, .positions = KV_PAGE_POSITIONS};
    r = (struct program_record){.op = {.kind = OP_KV_COPY}, .kv_layer = -1, .signal = 1};
    step.n_page_copies = 1;
    step.page_copy = &copy;
    run_program(d, &p, &step);
    pages[1][0] = 0;

    r = (struct program_record){.op = {.kind = OP_ATTENTION, .dtype = (uint16_t)x->dtype},
                                .n_in = 1,
                                .n_out = 1,
                                .kv_layer = 1,
                                .in_width = {q_width},
                                .in = {2 * kv_bytes},
                                .out = {2 * kv_bytes + q_bytes},
                                .signal = 1};
    r.op.k = r.op.n = q_width;
    r.op.heads = x->heads;
    r.op.kv_heads = x->kv_heads;
    r.op.head_dim = x->head_dim;
    r.op.scale = 1 / sqrtf((float)x->head_dim);
    for (int s = 0, i = 0; s < 2; s++) {
        seqs[s].query_begin = s * x->queries;
        seqs[s].query_len = x->queries;
        for (int n = 0; n < x->queries; n++, i++) {
            position[i] = x->length[s] - x->queries + n;
            sequence[i] = s;
        }
    }
    step = (struct step){.n_tokens = 2 * x->queries,
                         .n_seqs = 2,
                         .token_id = position,
                         .token_position = position,
                         .token_seq = sequence,
                         .seq = seqs};
    const struct op_size size = {.rows = 2 * x->queries, .seqs = 2};
    p.max_tokens = 2 * x->queries;
    p.workspace_bytes = d->ops->workspace_bytes(d, &r.op, &size);
    run_program(d, &p, &step);
    if (d->ops->download(d, out, arena, r.out[0],
                         (uint64_t)(2 * x->queries) * (uint64_t)q_width * 4, NULL, &err))
        fail_msg("%s", err.text);
    d->ops->free(d, arena, 2 * kv_bytes + 2 * q_bytes);
    d->ops->kv_free(d, kv);
}

static void attention_is_computed_alike(void **state)
{
    (void)state;
    static const struct context contexts[] = {
        {DT_F16, 4, 2, 64, {5, 64}, 1},     {DT_F16, 9, 3, 64, {300, 65}, 1},
        {DT_F32, 3, 3, 32, {257, 512}, 2},  {DT_Q8_0, 8, 1, 64, {600, 100}, 1},
        {DT_F16, 2, 1, 128, {100, 70}, 30}, {DT_Q8_0, 6, 2, 96, {270, 90}, 12},
        {DT_F16, 6, 1, 40, {70, 300}, 3},
    };
    for (size_t i = 0; i < ARRAY_LEN(contexts); i++) {
        const struct context *x = &contexts[i];
        const int64_t all = x->length[0] + x->length[1];
        const int64_t width = (int64_t)x->kv_heads * x->head_dim;
        const int64_t n = 2 * (int64_t)x->queries * x->heads * x->head_dim;
        float *k = test_malloc((size_t)(all * width) * sizeof *k);
        float *v = test_malloc((size_t)(all * width) * sizeof *v);
        float *q = test_malloc((size_t)n * sizeof *q);
        float *expected = test_calloc((size_t)n, sizeof *q),
              *got = test_calloc((size_t)n, sizeof *q);
        random_floats(k, all * width);
        random_floats(v, all * width);
        random_floats(q, n);
        attend(device[0], x, k, v, q, expected);
        attend(device[1], x, k, v, q, got);
        const double e = error_of(got, expected, n);
        if (!(e < 1e-10))
            fail_msg("context %zu: NMSE %.3g", i, e);
        test_free(k);
        test_free(v);
        test_free(q);
        test_free(expected);
        test_free(got);
    }
}

/* A token's attention is divided among blocks when it is alone and not when it is one of many. */
static void divided_attention_has_the_same_bits(void **state)
{
    (void)state;
    struct context x = {DT_F16, 4, 2, 64, {640, 600}, 20};
    enum { WIDTH = 2 * 64, Q = 4 * 64 };
    float *k = test_malloc(1240 * WIDTH * sizeof *k), *v = test_malloc(1240 * WIDTH * sizeof *v);
    float *q = test_malloc(40 * Q * sizeof *q), *last = test_malloc(2 * Q * sizeof *q);
    float *many = test_calloc(40 * Q, sizeof *q), *one = test_calloc(2 * Q, sizeof *q);
    random_floats(k, 1240 * WIDTH);
    random_floats(v, 1240 * WIDTH);
    random_floats(q, 40 * Q);
    memcpy(last, q + 19 * Q, Q * sizeof *q);
    memcpy(last + Q, q + 39 * Q, Q * sizeof *q);
    attend(device[1], &x, k, v, q, many);
    x.queries = 1;
    attend(device[1], &x, k, v, last, one);
    assert_memory_equal(one, many + 19 * Q, Q * sizeof *q);
    assert_memory_equal(one + Q, many + 39 * Q, Q * sizeof *q);
    test_free(k);
    test_free(v);
    test_free(q);
    test_free(last);
    test_free(many);
    test_free(one);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_of_every_type),
        cmocka_unit_test(a_workspace_that_cannot_grow_stays),
        cmocka_unit_test(a_row_of_zeros_gives_zeros),
        cmocka_unit_test(few_rows_are_shared_by_warps),
        cmocka_unit_test(bits_do_not_depend_on_other_rows),
        cmocka_unit_test(rows_of_every_type_are_looked_up),
        cmocka_unit_test(activations_are_alike),
        cmocka_unit_test(rows_are_computed_alike),
        cmocka_unit_test(norms_of_every_kind_are_alike),
        cmocka_unit_test(factors_are_alike),
        cmocka_unit_test(positions_rotate_alike),
        cmocka_unit_test(gates_are_alike),
        cmocka_unit_test(tokens_choose_the_same_experts),
        cmocka_unit_test(attention_is_computed_alike),
        cmocka_unit_test(divided_attention_has_the_same_bits),
    };
    RUN_ON_DEVICES(tests);
}
