/*
 * test_op.c - an operator's key has one spelling, says all that decides the cost and is read back
 * to the same operator; shapes and costs are what a person computes by hand.
 */
#include "kernels/op.h"

#include <inttypes.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

static const char *const known_keys[] = {
    "embed/Q8_0/k576/n49152/t1",
    "rms_norm/k576/t1",
    "mul_mat/Q4_0/k4096/n14336/t1",
    "bias/k576/t3",
    "rope/h9/d64/r64/p0/t1",
    "kv_store/F16/g3/d64/t1",
    "attention/F16/h9/g3/d64/t1/s1/kv512",
    "add/k576/t1",
    "swiglu/k1536/t512",
    "select/k576/t1",
    "qkv/Q4_1/k576/n576/m192/t1",
    "gate_up/Q4_K/k576/n1536/t8",
    "gate_up/Q4_0/k576/n1536/z1/t1",
    "gate_up/Q4_0/k576/n1536/z1/t4/a154",
    "mul_mat/F16/k1536/n576/z1/t1",
    "add_norm/k576/t1",
    "merge/n576/t1",
    "merge_sum/k1152/n576/t1",
    "slice/k576/n64/t2",
    "kv_copy/t1",
    "head_norm/h32/d128/t1",
    "route/e128/u8/t1",
    "expert_gate_up/Q4_0/k2048/n768/e128/u8/t1",
    "expert_gate_up/IQ2_S/k2048/n768/e128/u8/y18/t1",
    "expert_down/Q4_K/k768/n2048/e128/u8/t512",
    "top_k/k128256/n80/t1",
    "conv/k2048/s2/t4/s1",
    "delta/h32/g16/d128/c0/t512/s1",
    "ssm/h64/g8/d64/s128/c0/t4/s4",
    "ssm/h1536/g1/d1/s16/c1",
    "mul_mat/BF16/k64/n64",
    "kv_copy",
    "kv_store/F16/g1/d576/c512/x64/t1",
    "kv_store/Q8_0/g16/d96/v64/x32/t1",
    "attention/F16/h128/g1/d576/c512/t1/s1/kv4096",
    "attention/F32/h8/g2/d192/v128/t1/s1/kv4096",
    "head_mul_mat/Q8_0/k128/n512/h16/d192/t1",
    "mul_mat_t/Q4_0/k4096/n1024/t1",
};

static void known_keys_are_read_and_written_alike(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(known_keys); i++) {
        struct oato_op op;
        struct op_size size;
        char key[OP_KEY_SIZE];
        assert_true(oato_op_parse(known_keys[i], &op, &size));
        assert_string_equal(oato_op_key(&op, size.rows ? &size : NULL, key), known_keys[i]);
    }
}

static void a_key_names_each_field_once(void **state)
{
    (void)state;
    struct oato_op op;
    struct op_size size;
    assert_true(oato_op_parse("qkv/Q4_1/k576/n512/m192/t7", &op, &size));
    assert_int_equal(op.kind, OP_QKV);
    assert_int_equal(op.dtype, DT_Q4_1);
    assert_int_equal(op.k, 576);
    assert_int_equal(op.n, 512);
    assert_int_equal(op.n2, 192);
    assert_int_equal(size.rows, 7);
    assert_true(oato_op_parse("attention/F32/h9/g3/d64/t4/s2/kv1000", &op, &size));
    assert_int_equal(op.k, 576);
    assert_int_equal(op.n, 576);
    assert_int_equal(op.kv_heads, 3);
    assert_int_equal(size.seqs, 2);
    assert_int_equal(size.kv_positions, 1000);
    assert_true(oato_op_parse("kv_store/F16/g3/d64", &op, &size));
    assert_int_equal(op.k, 192);
    assert_int_equal(op.n, 192);
    assert_int_equal(size.rows, 0);
    assert_true(oato_op_parse("kv_store/F16/g1/d576/c512/x64", &op, &size));
    assert_true(op_valid(&op) && op_in_width(&op, 0) == 512 && op_in_width(&op, 1) == 64);
    assert_true(op_kv_bytes(&op, DT_F16) == 2 * 576 && op_kv_bytes(&op, DT_Q8_0) == 18 * 34);
    assert_false(op_divides(&op, AXIS_HEADS));
    assert_true(oato_op_parse("kv_store/F16/g16/d96/v64/x32", &op, &size));
    assert_true(op_valid(&op) && op_in_width(&op, 0) == 16 * 128 && op_in_width(&op, 1) == 32);
    assert_true(op_kv_bytes(&op, DT_F16) == 2 * 16 * 160);
    assert_true(oato_op_parse("attention/F16/h128/g1/d576/c512", &op, &size));
    assert_true(op_valid(&op) && op.k == 128 * 576 && op.n == 128 * 512);
    assert_true(oato_op_parse("head_mul_mat/Q8_0/k128/n512/h16/d192", &op, &size));
    assert_true(op_valid(&op) && op_in_width(&op, 0) == 16 * 192);
    assert_true(op_out_width(&op, 0) == 16 * 576);
    assert_true(oato_op_parse("merge/n100/t1", &op, &size));
    assert_int_equal(op.k, 100);
    assert_true(oato_op_parse("head_norm/h4/d128", &op, &size));
    assert_int_equal(op.n, 512);
    assert_true(oato_op_parse("route/e128/u8/t1", &op, &size));
    assert_int_equal(op.k, 128);
    assert_int_equal(op.n, 16);
    assert_true(oato_op_parse("expert_down/Q4_0/k768/n2048/e128/u8", &op, &size));
    assert_int_equal(op.k, 768);
    assert_int_equal(op.n, 2048);
    assert_int_equal(op.experts, 128);
    assert_int_equal(op.experts_used, 8);
}

/* Profiles ask devices by them what they support. */
static void every_kind_has_an_example_of_each_of_its_types(void **state)
{
    (void)state;
    struct oato_op op, other;
    struct op_size size;
    char key[OP_KEY_SIZE];
    for (int kind = OP_NONE + 1; kind < OP_KIND_COUNT; kind++) {
        int types = 0;
        for (int type = 0; type < DT_COUNT; type++) {
            if (!op_example((enum op_kind)kind, (oato_dtype)type, &op))
                continue;
            types++;
            assert_true(op_valid(&op) && op.kind == kind && op.dtype == type);
            assert_true(oato_op_parse(oato_op_key(&op, NULL, key), &other, &size));
            assert_true(oato_op_same(&op, &other));
        }
        const bool products = op_weight_use(&op) == WEIGHT_MATRIX;
        if (types < 1 || (products && types < 10))
            fail_msg("%s: %d types", op_kind_name(kind), types);
    }
    assert_false(op_example(OP_ADD, DT_F16, &op) || op_example(OP_ATTENTION, DT_Q4_0, &op));
    assert_false(op_example(OP_MUL_MAT, DT_I32, &op) || op_example(OP_NONE, DT_F32, &op));
    assert_true(op_example(OP_HEAD_MUL_MAT, DT_Q4_K, &op));
}

static int32_t random_int(int32_t most)
{
    return 1 + (int32_t)(random() % most);
}

#define TYPE(type, ...) DT_##type,
static const oato_dtype dtypes[] = {WEIGHT_TYPES(TYPE)};
#undef TYPE

/* An operator as models and lowering make them. */
static struct oato_op random_op(void)
{
    struct oato_op op = {.kind = (uint16_t)(OP_NONE + random_int(OP_KIND_COUNT - 1))};
    bool norm = op.kind == OP_HEAD_NORM;
    bool heads = op.kind == OP_ROPE || op.kind == OP_ATTENTION || norm;
    const int form = (int)(random() % 3); /* of K and V */
    op.k = random_int(1 << 20);
    op.n = op.k;
    switch (op.kind) {
    case OP_QKV: op.n2 = random_int(1 << 16); /* fallthrough */
    case OP_EMBED:
    case OP_MUL_MAT:
    case OP_GATE_UP:
        op.dtype = (uint16_t)dtypes[(size_t)random() % ARRAY_LEN(dtypes)];
        op.n = random_int(1 << 20);
        break;
    case OP_KV_COPY: op.k = op.n = 0; break;
    case OP_GATE:
        op.heads = random_int(64);
        op.k = op.n = op.heads * random_int(1 << 12);
        break;
    case OP_TOP_K: op.n = 2 * random_int(op.k); break;
    case OP_EXPERT_GATE_UP:
    case OP_EXPERT_DOWN:
        op.dtype = (uint16_t)dtypes[(size_t)random() % ARRAY_LEN(dtypes)];
        op.n = random_int(1 << 20);
        op.single = op.kind == OP_EXPERT_GATE_UP && random() % 2; /* fallthrough */
    case OP_EXPERT_SUM:
    case OP_ROUTE:
        op.experts = random_int(1 << 10);
        op.experts_used = random_int(op.experts);
        if (op.kind == OP_ROUTE) {
            op.route_share = (int32_t)(random() % 3);
            op.k = op.experts * (op.route_share ? op.route_share : 1);
            op.n = 2 * op.experts_used;
        }
        break;
    case OP_CONV: op.state = random_int(100); break;
    case OP_DELTA:
    case OP_SSM:
        op.heads = random_int(128);
        op.kv_heads = random_int(128);
        op.head_dim = random_int(256);
        op.per_channel = (int32_t)(random() % 2);
        op.state = op.kind == OP_SSM ? random_int(256) : 0;
        op.n = op.heads * op.head_dim;
        op.k = op.kind == OP_SSM ? op.n + 2 * op.kv_heads * op.state
                                 : op.n + 2 * op.kv_heads * op.head_dim;
        break;
    case OP_HEAD_NORM:
    case OP_ROPE:
    case OP_KV_STORE:
    case OP_ATTENTION:
        op.head_dim = 2 * random_int(256);
        op.heads = heads ? random_int(128) : 0;
        op.kv_heads = op.kind == OP_ROPE || norm ? 0 : random_int(128);
        op.k = op.n = (heads ? op.heads : op.kv_heads) * op.head_dim;
        if (op.kind == OP_ROPE) {
            op.rope_dims = random_int(op.head_dim);
            op.rope_pairing = (int32_t)(random() % 2);
        } else if (!norm) {
            op.dtype = random() % 2 ? DT_F16 : DT_F32;
            op.v_dim = form == 1 ? random_int(512) : 0;
            op.v_in_k = form == 2 ? random_int(op.head_dim) : 0;
            op.k_tail = form && op.kind == OP_KV_STORE ? random_int(op.head_dim) : 0;
            if (form && op.kind == OP_ATTENTION)
                op.n = op.heads * (op.v_dim + op.v_in_k);
        }
        break;
    case OP_ACTIVE: op.n = op.k + 1; break;
    case OP_HEAD_MUL_MAT:
        op.dtype = (uint16_t)dtypes[(size_t)random() % ARRAY_LEN(dtypes)];
        op.n = random_int(1 << 10);
        op.k = random_int(1 << 10);
        op.heads = random_int(128);
        op.head_dim = op.k + random_int(100);
        break;
    default: break;
    }
    return op;
}

static void random_operators_survive_the_round_trip(void **state)
{
    (void)state;
    unsigned seed = (unsigned)time(NULL);
    print_message("seed %u\n", seed);
    srandom(seed);
    for (int i = 0; i < 20000; i++) {
        struct oato_op op = random_op(), back;
        struct op_size size = {.rows = random_int(1 << 20), .seqs = 1}, size_back;
        char key[OP_KEY_SIZE], again[OP_KEY_SIZE];
        bool sized = random() % 4;
        if (op.kind == OP_ATTENTION) {
            size.seqs = random_int(256);
            size.kv_positions = (int64_t)random() * random_int(100);
        } else if (op_state_floats(&op)) {
            size.seqs = random_int(256);
        }
        oato_op_key(&op, sized ? &size : NULL, key);
        assert_true(oato_op_parse(key, &back, &size_back));
        assert_memory_equal(&op, &back, sizeof op);
        if (sized)
            assert_memory_equal(&size, &size_back, sizeof size);
        else
            assert_int_equal(size_back.rows, 0);
        assert_string_equal(oato_op_key(&back, sized ? &size_back : NULL, again), key);
        assert_true(oato_op_same(&op, &back));
        struct oato_op other = random_op();
        bool same = !strcmp(oato_op_key(&op, NULL, key), oato_op_key(&other, NULL, again));
        assert_int_equal(oato_op_same(&op, &other), same);
    }
}

static void what_does_not_cost_is_not_in_the_key(void **state)
{
    (void)state;
    struct oato_op a = {.kind = OP_ROPE, .heads = 9, .head_dim = 64, .rope_dims = 64}, b = a;
    a.rope_base = 10000;
    b.rope_base = 500000;
    b.eps = b.scale = b.rope_scale = 1;
    assert_true(oato_op_same(&a, &b));
    b.rope_pairing = ROPE_HALVES;
    assert_false(oato_op_same(&a, &b));
    b = a;
    b.kind = 77;
    assert_false(oato_op_same(&a, &b));
    assert_false(oato_op_same(&b, &b));
}

static void what_is_no_key_is_refused(void **state)
{
    static const char *const bad[] = {
        "",
        "/",
        "mul_mat",
        "mul_mat/",
        "mul_mat/Q4_0",
        "mul_mat/Q4_0/k4096",
        "mul_mat/Q9_0/k4096/n1/t1",
        "mul_mat/k4096/n1/t1",
        "mul_mat/Q4_0/n1/k4096/t1",
        "mul_mat/Q4_0/k4096/n1/t",
        "mul_mat/Q4_0/k4096/n1/t0",
        "mul_mat/Q4_0/k4096/n1/t1/",
        "mul_mat/Q4_0/k4096/n1/t1 ",
        "mul_mat/Q4_0/k04096/n1/t1",
        "mul_mat/Q4_0/k+4096/n1/t1",
        "mul_mat/Q4_0/k-1/n1/t1",
        "mul_mat/Q4_0/k0/n1/t1",
        "mul_mat/Q4_0/k2147483648/n1/t1",
        "mul_mat/Q4_0/k99999999999999999999999/n1/t1",
        "mul_mat/Q4_0/k1/n1/s1/kv1",
        "rope/h9/d64/r64/p2/t1",
        "rope/h65536/d65536/r64/p0/t1",
        "attention/F16/h9/g3/d64/t1",
        "attention/F16/h9/g3/d64/t1/s0/kv1",
        "attention/F16/h9/g3/d64/t1/s1",
        "attention/F16/h9/g3/d64/s1/kv1",
        "route/e8/u9",
        "route/e65537/u1",
        "expert_gate_up/Q4_0/k64/n64/e8",
        "expert_down/Q4_0/k64/n64/e8/u9",
        "expert_gate_up/Q4_0/k64/n1073741824/e8/u2",
        "a_kind_that_nobody_knows/k1",
        "rms_norm/F32/k576/t1",
        "gate_up/Q4_0/k576/n1536/t1/a10",
        "gate_up/Q4_0/k576/n1536/z1/t1/a0",
        "gate_up/Q4_0/k576/n1536/z1/t1/a1537",
        "mul_mat/Q4_0/k576/n1536/z1/t1/a577",
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct oato_op op;
        struct op_size size;
        if (oato_op_parse(bad[i], &op, &size))
            fail_msg("'%s' was taken for a key", bad[i]);
    }
}

static void the_longest_key_stays_inside_its_buffer(void **state)
{
    (void)state;
    struct oato_op op = {.kind = OP_ATTENTION,
                         .dtype = DT_BF16,
                         .heads = INT32_MIN,
                         .kv_heads = INT32_MIN,
                         .head_dim = INT32_MIN};
    struct op_size size = {.rows = INT32_MIN, .seqs = INT32_MAX, .kv_positions = INT64_MIN};
    char key[OP_KEY_SIZE + 1];
    key[OP_KEY_SIZE] = '#';
    oato_op_key(&op, &size, key);
    assert_true(strlen(key) < OP_KEY_SIZE);
    assert_int_equal(key[OP_KEY_SIZE], '#');
    op.kind = 99;
    assert_string_equal(oato_op_key(&op, NULL, key), "?");
}

static void names_of_kinds_are_unique(void **state)
{
    (void)state;
    for (int i = OP_NONE + 1; i < OP_KIND_COUNT; i++) {
        enum op_kind kind;
        assert_true(op_kind_parse(op_kind_name(i), &kind));
        assert_int_equal(kind, i);
    }
    assert_string_equal(op_kind_name(OP_NONE), "?");
    assert_string_equal(op_kind_name(-1), "?");
}

static struct oato_op parsed(const char *key, struct op_size *size)
{
    struct oato_op op;
    if (!oato_op_parse(key, &op, size))
        fail_msg("no key: %s", key);
    return op;
}

static void check_shape(const char *key, int i, int64_t n, int64_t k)
{
    struct op_size size;
    struct oato_op op = parsed(key, &size);
    int64_t rows = -1, elements = -1;
    assert_true(i < op_weight_count(&op));
    assert_true(op_weight_shape(&op, i, &rows, &elements));
    assert_int_equal(rows, n);
    assert_int_equal(elements, k);
}

static void weights_have_the_shapes_of_the_file(void **state)
{
    (void)state;
    check_shape("embed/Q8_0/k576/n49152", 0, 49152, 576);
    check_shape("mul_mat/Q4_0/k576/n1536", 0, 1536, 576);
    check_shape("qkv/Q4_0/k576/n512/m192", 0, 512, 576);
    check_shape("qkv/Q4_0/k576/n512/m192", 2, 192, 576);
    check_shape("gate_up/Q4_0/k576/n1536", 1, 1536, 576);
    check_shape("rms_norm/k576", 0, 1, 576);
    check_shape("add_norm/k576", 0, 1, 576);
    check_shape("bias/k576", 0, 1, 576);
    check_shape("rope/h9/d64/r48/p1", 0, 1, 24);
    check_shape("head_norm/h9/d64", 0, 1, 64);
    check_shape("expert_gate_up/Q4_0/k2048/n768/e128/u8", 1, 128 * 768, 2048);
    check_shape("expert_down/Q4_0/k768/n2048/e128/u8", 0, 128 * 2048, 768);
    struct op_size size;
    struct oato_op op = parsed("add/k576", &size);
    int64_t n, k;
    assert_int_equal(op_weight_count(&op), 0);
    assert_false(op_weight_shape(&op, 0, &n, &k));
    assert_false(op_weight_shape(&op, -1, &n, &k));
}

static void outputs_have_the_widths_of_the_definition(void **state)
{
    (void)state;
    struct op_size size;
    struct oato_op op = parsed("qkv/Q4_0/k576/n512/m192", &size);
    assert_int_equal(op_out_width(&op, 0), 512);
    assert_int_equal(op_out_width(&op, 2), 192);
    assert_int_equal(op_out_width(&op, 3), 0);
    op = parsed("embed/Q8_0/k576/n49152", &size);
    assert_int_equal(op_out_width(&op, 0), 576);
    op = parsed("add_norm/k576", &size);
    assert_int_equal(op_out_width(&op, 1), 576);
    op = parsed("kv_store/F16/g3/d64", &size);
    assert_int_equal(op_out_width(&op, 0), 0);
    op = parsed("route/e128/u8", &size);
    assert_int_equal(op_out_width(&op, 0), 16);
    op = parsed("top_k/k1000/n80", &size);
    assert_int_equal(op_out_width(&op, 0), 80);
    op = parsed("expert_gate_up/Q4_0/k2048/n768/e128/u8", &size);
    assert_int_equal(op_out_width(&op, 0), 8 * 768);
    assert_int_equal(op_out_width(&op, 1), 0);
    op = parsed("expert_down/Q4_0/k768/n2048/e128/u8", &size);
    assert_int_equal(op_out_width(&op, 0), 2048);
    op = parsed("attention/F16/h9/g3/d64", &size);
    assert_int_equal(op_out_width(&op, 0), 576);
    assert_int_equal(op_out_width(&op, 1), 0);
}

static void costs_are_those_of_the_definition(void **state)
{
    static const struct {
        const char *key;
        double flops, bytes;
    } row[] = {
        {"mul_mat/Q4_0/k64/n100/t3", 3 * 2 * 64 * 100, 100 * 2 * 18},
        {"qkv/F32/k64/n64/m32/t2", 2 * 2 * 64 * 128, 128 * 64 * 4},
        {"gate_up/Q8_0/k32/n10/t1", 4 * 32 * 10 + 50, 2 * 10 * 34},
        {"embed/Q8_0/k64/n1000/t5", 5 * 64, 5 * 2 * 34},
        {"rms_norm/k64/t2", 2 * 4 * 64, 256},
        {"add_norm/k64/t2", 2 * 5 * 64, 256},
        {"bias/k64/t2", 2 * 64, 256},
        {"add/k64/t2", 2 * 64, 0},
        {"swiglu/k64/t2", 2 * 5 * 64, 0},
        {"rope/h2/d64/r32/p0/t3", 3 * 3 * 2 * 32, 0},
        {"kv_store/F16/g3/d64/t2", 2 * 2 * 3 * 64, 2 * 2 * 3 * 64 * 2},
        {"select/k64/t2", 0, 0},
        {"merge/n64/t2", 0, 0},
        {"merge_sum/k192/n64/t2", 2 * 2 * 64, 0},
        {"slice/k192/n64/t2", 0, 0},
        {"kv_copy/t1", 0, 0},
        {"head_norm/h2/d64/t3", 3 * 4 * 128, 256},
        {"route/e16/u4/t2", 2 * 5 * 16, 0},
        {"top_k/k1000/n80/t2", 2 * 1000, 0},
        /* of 16 experts one token reads 4, two 4 + 12/4, three one quarter of the rest more */
        {"expert_gate_up/Q4_0/k64/n10/e16/u4/t1", 4 * (4 * 64 * 10 + 50), 4 * 2 * 10 * 36},
        {"expert_gate_up/Q4_0/k64/n10/e16/u4/y8/t1", 4 * (4 * 64 * 10 + 50), 4 * 10 * (36 + 68)},
        {"expert_gate_up/Q4_0/k64/n10/e16/u4/t2", 8 * (4 * 64 * 10 + 50), 7 * 2 * 10 * 36},
        {"expert_down/F32/k64/n10/e16/u4/t3", 12 * (2 * 64 * 10 + 20), 9.25 * 10 * 256},
        {"expert_down/F32/k64/n10/e4/u4/t3", 12 * (2 * 64 * 10 + 20), 4 * 10 * 256},
        /* one token reads all positions; 4 tokens from an empty cache share 4 positions; 2 x 1
         * tokens of two sequences share nothing; 2 tokens after 10 read 11 + 12 of the same 12 */
        {"attention/F16/h9/g3/d64/t1/s1/kv512", 4 * 9 * 64 * 512, 512 * 2 * 3 * 64 * 2},
        {"attention/F32/h2/g1/d64/t4/s1/kv10", 4 * 2 * 64 * 10, 4 * 2 * 64 * 4},
        {"attention/F32/h2/g1/d64/t2/s2/kv30", 4 * 2 * 64 * 30, 30 * 2 * 64 * 4},
        {"attention/F32/h2/g1/d64/t2/s1/kv23", 4 * 2 * 64 * 23, 12 * 2 * 64 * 4},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(row); i++) {
        struct op_size size;
        struct oato_op op = parsed(row[i].key, &size);
        if (op_flops(&op, &size) != row[i].flops || op_bytes(&op, &size) != row[i].bytes)
            fail_msg("%s: %g operations, %g bytes", row[i].key, op_flops(&op, &size),
                     op_bytes(&op, &size));
    }
    struct op_size some;
    struct oato_op up = parsed("gate_up/Q8_0/k32/n10/z1/t1", &some);
    some.active = 5; /* all of gate, half of up */
    assert_true(op_bytes(&up, &some) == 1.5 * 10 * 34 && op_flops(&up, &some) == 3 * 32 * 10 + 50);
    struct oato_op down = parsed("mul_mat/Q8_0/k64/n100/z1/t1", &some);
    some.active = 16;
    assert_true(op_bytes(&down, &some) == 100 * 2 * 34 / 4.0);
    struct op_size none = {0};
    struct oato_op op = parsed("attention/F32/h2/g1/d64", &none);
    assert_true(op_bytes(&op, &none) == 0);
    op.kind = 99;
    assert_true(op_bytes(&op, &none) == 0 && op_flops(&op, &none) == 0);
}

static void experts_read_rise_from_those_of_a_token_to_all(void **state)
{
    (void)state;
    struct op_size size;
    struct oato_op op = parsed("expert_down/Q4_0/k768/n2048/e128/u8", &size);
    double before = 0;
    assert_true(op_experts_read(&op, 0) == 0);
    for (int32_t t = 1; t <= 300; t++) {
        double expected = 128, read = op_experts_read(&op, t);
        for (int32_t i = 0; i < t; i++)
            expected *= 1 - 8.0 / 128;
        assert_true(fabs(read - (128 - expected)) < 1e-9);
        assert_true(read > before && read <= 128);
        before = read;
    }
    assert_true(op_experts_read(&op, INT32_MAX) == 128);
    /* a quarter of the experts: of everything a quarter */
    const struct oato_op all = op;
    size.rows = 5;
    op.expert_first = 64;
    op.experts_held = 32;
    assert_true(op_experts_read(&op, 5) * 4 == op_experts_read(&all, 5));
    assert_true(op_bytes(&op, &size) * 4 == op_bytes(&all, &size));
    assert_true(op_flops(&op, &size) * 4 == op_flops(&all, &size));
    int64_t n, k;
    assert_true(op_weight_shape(&op, 0, &n, &k));
    assert_int_equal(n, 32 * 2048);
    assert_int_equal(k, 768);
    op = parsed("mul_mat/Q4_0/k768/n2048", &size);
    assert_true(op_experts_read(&op, 1) == 0);
}

static void fusions_are_made_of_graph_operators(void **state)
{
    (void)state;
    assert_int_equal(op_fusion_count, 3);
    for (int i = 0; i < op_fusion_count; i++) {
        const struct op_fusion *f = &op_fusions[i];
        assert_string_equal(f->name, op_kind_name((int)f->fused));
        assert_in_range(f->n_members, 2, ARRAY_LEN(f->member));
        for (int m = 0; m < f->n_members; m++)
            assert_in_range(f->member[m], OP_EMBED, OP_SELECT);
    }
}

/* Each word is read back, and nothing else is. */
static void words_of_sparsity_are_read(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        struct sparse_choice is;
    } good[] = {{"auto", {.given = false}},
                {"off", {true, SPARSE_OFF, 0, false, 0}},
                {"dense", {true, SPARSE_DENSE, 0, false, 0}},
                {"exact", {true, SPARSE_EXACT, 0, false, 0}},
                {"predict", {true, SPARSE_PREDICT, 0, false, 0}},
                {"above=2", {true, SPARSE_ABOVE, 2, false, 0}},
                {"threshold=0.5", {true, SPARSE_THRESHOLD, 0.5f, false, 0}},
                {"input=0.25", {true, SPARSE_OFF, 0, true, 0.25f}},
                {"above=2,input=0.25", {true, SPARSE_ABOVE, 2, true, 0.25f}}};
    static const char *const bad[] = {
        "",           "fast",          "sign",        "sign=0.5",
        "exact=1",    "above",         "above=-1",    "threshold=1",
        "input=1",    "threshold=nan", "input=0.1,",  "auto,input=0.1",
        ",input=0.1", "input=0.1,off", "exact,exact", "by_rows"};
    struct oato_error err;
    struct sparse_choice c;
    for (size_t i = 0; i < ARRAY_LEN(good); i++) {
        const struct sparse_choice is = good[i].is;
        assert_int_equal(sparse_parse(good[i].text, &c, &err), OATO_OK);
        assert_true(c.given == is.given && c.mode == is.mode && c.threshold == is.threshold &&
                    c.skips_inputs == is.skips_inputs && c.input == is.input);
        const char *word = sparse_mode_name(c.mode);
        assert_true(!c.given || c.skips_inputs || !strncmp(good[i].text, word, strlen(word)));
    }
    assert_null(sparse_mode_name(SPARSE_BY_ROWS));
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        assert_int_equal(sparse_parse(bad[i], &c, &err), OATO_EUSAGE);
        assert_non_null(strstr(err.text, "--sparse wants auto, off"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_keys_are_read_and_written_alike),
        cmocka_unit_test(a_key_names_each_field_once),
        cmocka_unit_test(every_kind_has_an_example_of_each_of_its_types),
        cmocka_unit_test(random_operators_survive_the_round_trip),
        cmocka_unit_test(what_does_not_cost_is_not_in_the_key),
        cmocka_unit_test(what_is_no_key_is_refused),
        cmocka_unit_test(the_longest_key_stays_inside_its_buffer),
        cmocka_unit_test(names_of_kinds_are_unique),
        cmocka_unit_test(weights_have_the_shapes_of_the_file),
        cmocka_unit_test(outputs_have_the_widths_of_the_definition),
        cmocka_unit_test(costs_are_those_of_the_definition),
        cmocka_unit_test(experts_read_rise_from_those_of_a_token_to_all),
        cmocka_unit_test(fusions_are_made_of_graph_operators),
        cmocka_unit_test(words_of_sparsity_are_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
