/*
 * test_cpu_attention.c - attention over shuffled pages: close to a double evaluation for every
 * instruction set, head size and cache type; the same bits in any chunk, beside any other
 * sequence, and on any number of threads, also where a long context is split among them.
 * --bench [LEVEL|all [MODEL|all [KV type|all [THREADS]]]] times the kernels instead
 * (bench_attention.c).
 */
#include "tests/kernels/bench_cpu.h"
#include "tests/kernels/test_cpu.h"

enum { SEQS = 3, POSITIONS = 900, PAGES = SEQS * (POSITIONS / 64 + 1) };
/* Queries are made for so many positions, more than a step computes of a sequence, and serve again
 * behind them. */
enum { QUERIES = 211 };

/* Sequences with a full cache, of which a step computes some tokens at the end. */
struct rig {
    struct guarded g;
    struct cpu_context c;
    struct kv_cache kv;
    struct kv_layer_shape shape;
    uint64_t layer_offset;
    struct oato_op op;
    int32_t pages[SEQS][POSITIONS / 64 + 1];
    int64_t length[SEQS];
    float *q;                /* [SEQS][QUERIES][k] */
    float *sinks;            /* of each head; NULL: none */
    double *stored[SEQS][2]; /* K and V as they can be read, [head][position][dimension]; NULL: not
                                needed yet */
};

/* Values as wide as K, of another width, or the first dimensions of K. */
struct form {
    int32_t v_dim, v_in_k;
};

static void rig_init(struct rig *x, const struct cpu_kernels *k, oato_dtype dtype, int32_t head_dim,
                     struct form form, int32_t kv_heads, int32_t group)
{
    memset(x, 0, sizeof *x);
    guarded_init(&x->g);
    x->op = (struct oato_op){.kind = OP_ATTENTION,
                             .dtype = (uint16_t)dtype,
                             .heads = kv_heads * group,
                             .kv_heads = kv_heads,
                             .head_dim = head_dim,
                             .v_dim = form.v_dim,
                             .v_in_k = form.v_in_k,
                             .scale = 1 / sqrtf((float)head_dim)};
    x->op.k = x->op.heads * head_dim;
    x->op.n = x->op.heads * op_v_dim(&x->op);
    x->shape = (struct kv_layer_shape){
        .kv_heads = kv_heads, .head_dim = head_dim, .v_dim = form.v_dim, .v_in_k = form.v_in_k};
    x->kv = (struct kv_cache){.n_layers = 1,
                              .pages = PAGES,
                              .dtype = dtype,
                              .layers = &x->shape,
                              .layer_offset = &x->layer_offset};
    assert_true(kv_cache_layout(&x->kv, &x->kv.bytes));
    x->kv.data = guarded_alloc(&x->g, x->kv.bytes);
    memset(x->kv.data, 0xff, x->kv.bytes); /* NaN wherever nothing was stored */
    int32_t order[PAGES];
    for (int32_t i = 0; i < PAGES; i++)
        order[i] = i;
    for (int32_t i = PAGES - 1; i > 0; i--) {
        int32_t j = (int32_t)random_in(0, i), t = order[i];
        order[i] = order[j];
        order[j] = t;
    }
    memcpy(x->pages, order, sizeof x->pages);
    x->q = test_malloc((size_t)SEQS * QUERIES * (size_t)x->op.k * sizeof *x->q);
    random_floats(x->q, (int64_t)SEQS * QUERIES * x->op.k);
    for (int64_t i = 0; i < (int64_t)SEQS * QUERIES * x->op.k; i++)
        x->q[i] *= 2; /* peaks in the softmax */
    x->c = (struct cpu_context){.kernels = k, .arena = x->g.base, .kv = &x->kv};
}

/* What was read of a sequence holds no longer. */
static void stored_forget(struct rig *x, int seq)
{
    for (int which = 0; which < 2; which++) {
        free(x->stored[seq][which]);
        x->stored[seq][which] = NULL;
    }
}

static void rig_free(struct rig *x)
{
    for (int s = 0; s < SEQS; s++)
        stored_forget(x, s);
    test_free(x->q);
    guarded_free(&x->g);
}

/* Dimension e of a position's K (which 0) or V: its bytes and, in Q8_0, behind those of its block,
 * the scale of 32 dimensions. */
static uint8_t *element_at(const struct rig *x, int seq, int which, int64_t position, int32_t h,
                           int32_t e, uint8_t **scale)
{
    const int64_t page = x->pages[seq][position / 64], slot = position % 64;
    const int64_t bytes = x->kv.dtype == DT_F32 ? 4 : x->kv.dtype == DT_F16 ? 2 : 1;
    if (x->op.v_in_k)
        which = 0;
    const int64_t d = which ? op_v_dim(&x->op) : x->op.head_dim;
    uint8_t *block = kv_block(&x->kv, 0, page, which, h);
    *scale = block + 64 * d + 2 * (e / 32 * 64 + slot);
    return block + (which ? slot * d + e : e * 64 + slot) * bytes;
}

static void put(const struct rig *x, uint8_t *at, uint8_t *scale, float v)
{
    if (x->kv.dtype == DT_Q8_0) {
        /* all elements of a block of 32 have the scale that the last one leaves */
        *(int8_t *)at = (int8_t)lrintf(fminf(fmaxf(v * 30, -127), 127));
        put_half(scale, 0.02f + 0.01f * fabsf(v));
    } else if (x->kv.dtype == DT_F32) {
        memcpy(at, &v, sizeof v);
    } else {
        put_half(at, v);
    }
}

static void fill(struct rig *x, int seq, int64_t length)
{
    x->length[seq] = length;
    stored_forget(x, seq);
    for (int64_t p = 0; p < length; p++) {
        for (int32_t h = 0; h < x->op.kv_heads; h++) {
            for (int which = 0; which < (x->op.v_in_k ? 1 : 2); which++) {
                for (int32_t e = 0; e < (which ? op_v_dim(&x->op) : x->op.head_dim); e++) {
                    uint8_t *scale, *at = element_at(x, seq, which, p, h, e, &scale);
                    put(x, at, scale, random_float());
                }
            }
        }
    }
}

static double kv_value(const struct rig *x, int seq, int which, int64_t position, int32_t h,
                       int32_t e)
{
    uint8_t *scale;
    const uint8_t *at = element_at(x, seq, which, position, h, e, &scale);
    if (x->kv.dtype == DT_F32)
        return (double)const_floats(at)[0];
    uint16_t half;
    memcpy(&half, x->kv.dtype == DT_Q8_0 ? scale : at, sizeof half);
    return (x->kv.dtype == DT_Q8_0 ? *(const int8_t *)at : 1) * (double)f16_to_f32(half);
}

/* K (which 0) or V of a head, position after position. */
static const double *stored(struct rig *x, int seq, int which, int32_t h)
{
    const int32_t d = which ? op_v_dim(&x->op) : x->op.head_dim;
    const int64_t length = x->length[seq];
    double *at = x->stored[seq][which];
    if (!at) {
        at = x->stored[seq][which] =
            malloc((size_t)(x->op.kv_heads * length * d) * sizeof *at); /* fill frees it, too */
        assert_non_null(at);
        for (int32_t head = 0; head < x->op.kv_heads; head++)
            for (int64_t p = 0; p < length; p++)
                for (int32_t e = 0; e < d; e++)
                    at[(head * length + p) * d + e] = kv_value(x, seq, which, p, head, e);
    }
    return at + h * length * d;
}

static const float *query(const struct rig *x, int seq, int64_t position)
{
    return x->q + ((int64_t)seq * QUERIES + position % QUERIES) * x->op.k;
}

/* ALiBi's: a head's power of 2^(-alibi / N), N being the largest power of two within the number of
 * heads; those behind N have the powers between. */
static double slope_of(const struct oato_op *op, int32_t head)
{
    const int32_t h = op->first + head;
    const double n = pow(2, floor(log2(op->alibi_heads))), alibi = (double)op->alibi;
    return h < n ? pow(2, -alibi * (h + 1) / n) : pow(2, -alibi / 2 * (2 * (h - n) + 1) / n);
}

/* Softmax over all positions in the window at once, in double. */
static void exact(struct rig *x, int seq, int64_t position, double *out)
{
    const int32_t d = x->op.head_dim, values = op_v_dim(&x->op);
    const int32_t group = x->op.heads / x->op.kv_heads;
    const float *q = query(x, seq, position);
    const int64_t first = !x->op.window   ? 0
                          : x->op.chunked ? position - position % x->op.window
                                          : max_i64(0, position + 1 - x->op.window);
    const double cap = (double)x->op.soft_cap;
    double *p = test_malloc((size_t)(position + 1) * sizeof *p);
    for (int32_t h = 0; h < x->op.heads; h++, q += d, out += values) {
        double top = -INFINITY, sum = 0;
        const double *keys = stored(x, seq, 0, h / group), *v = stored(x, seq, 1, h / group);
        const double slope = x->op.alibi != 0 ? slope_of(&x->op, h) : 0;
        for (int64_t i = first; i <= position; i++) {
            p[i] = 0;
            for (int32_t e = 0; e < d; e++)
                p[i] += (double)q[e] * keys[i * d + e];
            p[i] *= (double)x->op.scale;
            p[i] = cap > 0 ? cap * tanh(p[i] / cap) : p[i];
            p[i] -= slope * (double)(position - i);
            top = p[i] > top ? p[i] : top;
        }
        memset(out, 0, (size_t)values * sizeof *out);
        for (int64_t i = first; i <= position; i++) {
            sum += p[i] = exp(p[i] - top);
            for (int32_t e = 0; e < values; e++)
                out[e] += p[i] * v[i * values + e];
        }
        if (x->sinks)
            sum += exp((double)x->sinks[h] - top);
        for (int32_t e = 0; e < values; e++)
            out[e] /= sum;
    }
    test_free(p);
}

struct piece {
    int seq;
    int64_t begin, n; /* positions of the tokens computed */
};

/* Computes the pieces in one step; row after row in the result (freed by the caller). */
static float *attend(struct rig *x, const struct piece *pieces, int n, int threads)
{
    static int32_t positions[4096], seqs[4096];
    struct step_seq seq[SEQS];
    int32_t tokens = 0;
    int64_t kv_positions = 0;
    for (int i = 0; i < n; i++) {
        seq[i] = (struct step_seq){.query_begin = tokens,
                                   .query_len = (int32_t)pieces[i].n,
                                   .kv_len = pieces[i].begin + pieces[i].n,
                                   .pages = x->pages[pieces[i].seq]};
        for (int64_t p = 0; p < pieces[i].n; p++, tokens++) {
            positions[tokens] = (int32_t)(pieces[i].begin + p);
            seqs[tokens] = i;
            kv_positions += pieces[i].begin + p + 1;
        }
    }
    struct step step = {.n_tokens = tokens,
                        .n_seqs = n,
                        .token_position = positions,
                        .token_seq = seqs,
                        .seq = seq};
    const size_t row = (size_t)x->op.n * sizeof(float), q_row = (size_t)x->op.k * sizeof(float);
    struct guarded g;
    struct cpu_context c = x->c;
    guarded_init(&g);
    struct program_record r = record_of(x->op);
    r.kv_layer = 0;
    r.in[0] = guarded_offset(&g, q_row * (size_t)tokens);
    r.out[0] = guarded_offset(&g, row * (size_t)tokens);
    for (int i = 0; i < n; i++)
        for (int64_t p = 0; p < pieces[i].n; p++)
            memcpy(g.base + r.in[0] + q_row * (size_t)(seq[i].query_begin + p),
                   query(x, pieces[i].seq, pieces[i].begin + p), q_row);
    c.arena = g.base;
    struct oato_weight sinks = {.use = WEIGHT_VECTOR, .data = (const uint8_t *)x->sinks};
    struct oato_weight *table[] = {&sinks};
    c.weights = table;
    r.n_weights = x->sinks != NULL;
    r.weight[0] = 0;
    record_run(&c, &r, &step, kv_positions, threads);
    float *out = test_malloc(row * (size_t)tokens);
    memcpy(out, g.base + r.out[0], row * (size_t)tokens);
    guarded_free(&g);
    return out;
}

static void check_rig(struct rig *rig)
{
    struct rig x = *rig;
    const size_t row = (size_t)x.op.n * sizeof(float);
    for (int s = 0; s < SEQS; s++)
        fill(&x, s, s ? random_in(1, 200) : random_in(520, 700));
    const int64_t length = x.length[0], tail = 37;
    struct piece all[SEQS] = {
        {0, length - tail, tail}, {1, 0, x.length[1]}, {2, x.length[2] - 1, 1}};
    float *together = attend(&x, all, SEQS, 1);

    double *wanted = test_malloc((size_t)x.op.n * sizeof *wanted);
    for (int64_t i = 0; i < tail; i += 12) {
        exact(&x, 0, length - tail + i, wanted);
        assert_close(together + i * x.op.n, wanted, x.op.n, 4e-11);
    }
    exact(&x, 2, x.length[2] - 1, wanted);
    assert_close(together + (tail + x.length[1]) * x.op.n, wanted, x.op.n, 4e-11);
    test_free(wanted);

    for (int threads = 2; threads <= 3; threads++) {
        float *again = attend(&x, all, SEQS, threads);
        assert_memory_equal(again, together, row * (size_t)(tail + x.length[1] + 1));
        test_free(again);
    }
    /* alone, in chunks; single tokens split the context among the threads */
    for (int64_t i = 0, n; i < tail; i += n) {
        n = min_i64(tail - i, i % 2 ? random_in(1, 9) : 1);
        struct piece one = {0, length - tail + i, n};
        float *alone = attend(&x, &one, 1, 1 + (int)(i % 3));
        assert_memory_equal(alone, together + i * x.op.n, row * (size_t)n);
        test_free(alone);
    }
    /* two single tokens in one step */
    struct piece two[2] = {{0, length - 1, 1}, {2, x.length[2] - 1, 1}};
    float *pair = attend(&x, two, 2, 3);
    assert_memory_equal(pair, together + (tail - 1) * x.op.n, row);
    assert_memory_equal(pair + x.op.n, together + (tail + x.length[1]) * x.op.n, row);
    test_free(pair);
    test_free(together);
    rig_free(&x);
}

static void check_form(const struct cpu_kernels *k, oato_dtype dtype, int32_t head_dim,
                       struct form form, int32_t window, float soft_cap, float alibi)
{
    struct rig x;
    rig_init(&x, k, dtype, head_dim, form, (int32_t)random_in(1, 3), (int32_t)random_in(1, 5));
    x.op.window = window;
    x.op.soft_cap = soft_cap;
    x.op.alibi = alibi;
    x.op.first = (int32_t)random_in(0, 5); /* some of more heads */
    x.op.alibi_heads = x.op.first + x.op.heads + (int32_t)random_in(0, 5);
    check_rig(&x);
}

static void check(const struct cpu_kernels *k, oato_dtype dtype, int32_t head_dim, int32_t window,
                  float soft_cap, float alibi)
{
    check_form(k, dtype, head_dim, (struct form){0, 0}, window, soft_cap, alibi);
}

/* Small ones, some like the largest score, and one that leaves nothing to the values. */
static void a_sink_is_a_score_without_a_value(void **state)
{
    (void)state;
    for (size_t i = 0; i < 2 * ARRAY_LEN(isas); i++) {
        const struct cpu_kernels *k = kernels_named(isas[i / 2]);
        float sinks[15];
        struct rig x;
        if (!k)
            continue;
        rig_init(&x, k, i % 2 ? DT_F16 : DT_F32, 64, (struct form){0, 0}, 3,
                 (int32_t)random_in(1, 5));
        x.op.window = i % 2 ? 130 : 0;
        x.op.chunked = i % 4 == 1;
        for (int h = 0; h < 15; h++)
            sinks[h] = 4 * random_float();
        sinks[2] = 1000;
        x.sinks = sinks;
        check_rig(&x);
    }
}

static void attention_is_close_to_double_and_bits_depend_on_the_token_alone(void **state)
{
    (void)state;
    static const int32_t head_dims[] = {64, 128, 96, 40, 8, 20, 256};
    for (size_t i = 0; i < ARRAY_LEN(isas); i++) {
        const struct cpu_kernels *k = kernels_named(isas[i]);
        for (size_t d = random_first(3); k && d < ARRAY_LEN(head_dims); d += pace_step(3)) {
            check(k, DT_F16, head_dims[d], 0, 0, 0);
            check(k, DT_F32, head_dims[d], 0, 0, 0);
            if (head_dims[d] % 32 == 0)
                check(k, DT_Q8_0, head_dims[d], 0, 0, 0);
        }
    }
}

static void values_may_be_of_another_width_or_lie_in_keys(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(isas); i++) {
        const struct cpu_kernels *k = kernels_named(isas[i]);
        for (int dtype = 0; k && dtype < 3; dtype++) {
            const oato_dtype type = (oato_dtype[]){DT_F16, DT_F32, DT_Q8_0}[dtype];
            check_form(k, type, 96, (struct form){64, 0}, 0, 0, 0);
            check_form(k, type, 64, (struct form){96, 0}, 70, 0, 0);
            check_form(k, type, 96, (struct form){0, 64}, 0, 0, 0);
            if (type != DT_Q8_0)
                check_form(k, type, 44, (struct form){0, 38}, 0, 0, 0);
        }
        if (k && !pace_is_slow()) {
            check_form(k, DT_F16, 576, (struct form){0, 512}, 0, 0, 0);
            check_form(k, DT_Q8_0, 192, (struct form){128, 0}, 0, 0, 0);
        }
    }
}

/* Windows that begin in, at the border of, and far behind the first segment. */
static void attention_stays_in_its_window(void **state)
{
    (void)state;
    static const int32_t windows[] = {1, 2, 63, 64, 65, 128, 256, 300};
    for (size_t i = 0; i < ARRAY_LEN(isas); i++) {
        const struct cpu_kernels *k = kernels_named(isas[i]);
        for (size_t w = random_first(3); k && w < ARRAY_LEN(windows); w += pace_step(3)) {
            check(k, DT_F16, 64, windows[w], 0, 0);
            check(k, DT_F32, 40, (int32_t)random_in(1, 600), 0.5f, 0);
        }
        if (k)
            check(k, DT_Q8_0, 32, 0, 2, 0);
    }
}

static void distance_weighs_by_slopes(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(isas); i++) {
        const struct cpu_kernels *k = kernels_named(isas[i]);
        for (int round = 0; k && round < pace_rounds(3, 3); round++) {
            check(k, DT_F16, 64, 0, 0, 8);
            check(k, DT_F32, 40, (int32_t)random_in(1, 600), 0.5f, 4);
            check(k, DT_Q8_0, 32, 0, 0, 8);
        }
    }
}

static void a_group_may_be_larger_than_a_pass(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(isas); i++) {
        const struct cpu_kernels *k = kernels_named(isas[i]);
        if (!k)
            continue;
        struct rig x;
        rig_init(&x, k, DT_F16, 16, (struct form){0, 12}, 1, 71);
        fill(&x, 0, 600);
        struct piece last = {0, 599, 1}, both = {0, 598, 2};
        float *one = attend(&x, &last, 1, 2), *two = attend(&x, &both, 1, 2);
        double *wanted = test_malloc((size_t)x.op.n * sizeof *wanted);
        exact(&x, 0, 599, wanted);
        assert_close(one, wanted, x.op.n, 4e-11);
        assert_memory_equal(one, two + x.op.n, (size_t)x.op.n * sizeof *one);
        test_free(wanted);
        test_free(one);
        test_free(two);
        rig_free(&x);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attention_is_close_to_double_and_bits_depend_on_the_token_alone),
        cmocka_unit_test(values_may_be_of_another_width_or_lie_in_keys),
        cmocka_unit_test(attention_stays_in_its_window),
        cmocka_unit_test(distance_weighs_by_slopes),
        cmocka_unit_test(a_sink_is_a_score_without_a_value),
        cmocka_unit_test(a_group_may_be_larger_than_a_pass),
    };
    seed_init();
    if (argc > 1 && !strcmp(argv[1], "--bench")) {
        bench_attention(argc > 2 ? argv[2] : NULL, argc > 3 ? argv[3] : NULL,
                        argc > 4 ? argv[4] : NULL, argc > 5 ? atoi(argv[5]) : 0);
        return 0;
    }
    return levels_report(cmocka_run_group_tests(tests, NULL, NULL));
}
