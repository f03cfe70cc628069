/*
 * test_cost.c - what must stay true of the cost model: measured sizes are exact, sizes between
 * them lie on a line, sizes outside follow the documented rules, a shape or type without points is
 * an estimate and says so, only what a device refused is said not to run there, and memory that is
 * estimated is enough.
 */
#include "solver/planning_internal.h"
#include "solver/solver.h"

#include "kernels/cuda/cuda_device.h"

// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <cmocka.h>
// clang-format on

static struct profile profile;
static struct cost_source *cost;
static const struct oato_op matrix = {.kind = OP_MUL_MAT, .dtype = DT_Q4_0, .k = 64, .n = 128};
static const struct oato_op attention = {.kind = OP_ATTENTION,
                                         .dtype = DT_F16,
                                         .k = 64,
                                         .n = 64,
                                         .heads = 4,
                                         .kv_heads = 2,
                                         .head_dim = 16};

static void put(int32_t device, const struct oato_op *op, struct op_size size, double ns,
                bool supported)
{
    struct profile_row row = {.device = device,
                              .op = *op,
                              .size = size,
                              .supported = supported,
                              .prepared_bytes = 5000,
                              .workspace_bytes = 10 * (uint64_t)size.rows,
                              .numerics = size.rows > 4 ? "u8b32" : "f32",
                              .median_ns = ns,
                              .repeats = 1};
    assert_true(profile_put(&profile, &row));
}

static int setup(void **state)
{
    (void)state;
    struct oato_error err;
    profile_init(&profile);
    profile.n_devices = 3;
    profile.devices = arena_alloc(&profile.arena, 3, sizeof *profile.devices);
    profile.links = arena_alloc(&profile.arena, 2, sizeof *profile.links);
    for (int i = 0; i < 3; i++)
        profile.devices[i] = (struct profile_device){.id = i ? i > 1 ? "sim:1" : "sim:0" : "cpu:0",
                                                     .kind = i ? "sim" : "cpu",
                                                     .is_host = !i,
                                                     .read_bytes_per_s = 1e9,
                                                     .flops_per_s = 1e10};
    profile.links[profile.n_links++] = (struct profile_link){
        .from = 0, .to = 1, .latency_ns = 1000, .bytes_per_s = 1e9, .sync_ns = 500};
    put(0, &matrix, (struct op_size){.rows = 1, .seqs = 1}, 100, true);
    put(0, &matrix, (struct op_size){.rows = 8, .seqs = 1}, 450, true);
    put(0, &matrix, (struct op_size){.rows = 512, .seqs = 1}, 20000, true);
    for (int rows = 1; rows <= 16; rows *= 16)
        for (int64_t kv = 100; kv <= 1000; kv *= 10)
            put(0, &attention, (struct op_size){.rows = rows, .seqs = 1, .kv_positions = kv * rows},
                rows * (50.0 + (double)kv), true);
    put(0, &attention, (struct op_size){.rows = 4, .seqs = 4, .kv_positions = 4000}, 3000, true);
    put(1, &matrix, (struct op_size){.rows = 1, .seqs = 1}, 10, true);
    struct oato_op other = matrix;
    other.n = 256;
    put(1, &other, (struct op_size){.rows = 1, .seqs = 1}, 0, false);
    other.dtype = DT_Q6_K;
    other.k = 256;
    put(1, &other, (struct op_size){.rows = 1, .seqs = 1}, 0, false);
    return cost_create(&profile, NULL, &cost, &err);
}

static int teardown(void **state)
{
    (void)state;
    cost_free(cost);
    profile_free(&profile);
    return 0;
}

static uint64_t workspace_of(const struct cost_source *c, int32_t device, const struct oato_op *op,
                             int32_t rows)
{
    const struct op_size size = {.rows = rows, .seqs = 1, .kv_positions = rows};
    return cost_workspace_bytes(c, device, op, &size);
}

static double ns_of(int32_t device, const struct oato_op *op, int32_t rows, int32_t seqs,
                    int64_t kv)
{
    struct op_size size = {.rows = rows, .seqs = seqs, .kv_positions = kv};
    return cost_of_op(cost, device, op, &size).ns;
}

static void measured_sizes_are_exact(void **state)
{
    (void)state;
    assert_float_equal(ns_of(0, &matrix, 1, 1, 0), 100, 1e-9);
    assert_float_equal(ns_of(0, &matrix, 8, 1, 0), 450, 1e-9);
    assert_float_equal(ns_of(0, &matrix, 512, 1, 0), 20000, 1e-9);
    assert_float_equal(ns_of(0, &attention, 1, 1, 100), 150, 1e-9);
    assert_float_equal(ns_of(0, &attention, 16, 1, 16000), 16 * 1050.0, 1e-9);
    assert_float_equal(ns_of(0, &attention, 4, 4, 4000), 3000, 1e-9);
}

static void rows_beyond_the_first_cost_what_the_device_says(void **state)
{
    (void)state;
    profile.devices[0].rows_overhead = 0.08;
    assert_float_equal(ns_of(0, &matrix, 1, 1, 0), 100, 1e-9);
    assert_float_equal(ns_of(0, &matrix, 8, 1, 0), 450 * 1.07, 1e-9);
    profile.devices[0].rows_overhead = 0;
}

static void sizes_between_lie_on_a_line(void **state)
{
    (void)state;
    assert_float_equal(ns_of(0, &matrix, 4, 1, 0), 250, 1e-9);
    assert_float_equal(ns_of(0, &matrix, 260, 1, 0), 450 + 19550 * 0.5, 1e-9);
    assert_float_equal(ns_of(0, &attention, 1, 1, 550), 600, 1e-9);
    /* the time of a row depends on its positions only, whatever the rows */
    assert_float_equal(ns_of(0, &attention, 4, 1, 4 * 550), 4 * 600.0, 1e-6);
}

static void sizes_outside_follow_the_rules(void **state)
{
    (void)state;
    assert_float_equal(ns_of(0, &matrix, 1024, 1, 0), 40000, 1e-9); /* in proportion */
    assert_float_equal(ns_of(0, &attention, 1, 1, 2000), 2100, 1e-9);
    assert_float_equal(ns_of(0, &attention, 1, 1, 50), 100, 1e-9); /* along the line */
    assert_float_equal(ns_of(1, &matrix, 3, 1, 0), 30, 1e-9);      /* a single point */
    assert_float_equal(ns_of(0, &matrix, 0, 1, 0), 0, 0);          /* nothing to do */
    assert_float_equal(ns_of(0, &attention, 4, 2, 400), ns_of(0, &attention, 4, 1, 400), 1e-9);
}

static void more_work_never_costs_less(void **state)
{
    (void)state;
    double last = 0;
    for (int32_t rows = 1; rows < 2000; rows++) {
        double ns = ns_of(0, &matrix, rows, 1, 0);
        assert_true(ns >= last);
        last = ns;
    }
    last = 0;
    for (int64_t kv = 1; kv < 5000; kv += 7) {
        double ns = ns_of(0, &attention, 1, 1, kv);
        assert_true(ns >= last && ns > 0);
        last = ns;
    }
}

/* Bytes that a product of one row moves: what a roofline of 1 GB/s takes in ns. */
static double bytes_of(const struct oato_op *op)
{
    size_t row = 0;
    assert_true(dtype_row_bytes((oato_dtype)op->dtype, op->k, &row));
    return (double)row * op->n + 4.0 * (op->k + op->n);
}

static void a_kind_without_points_is_a_marked_roofline(void **state)
{
    (void)state;
    struct oato_op other = matrix;
    other.n = 4096;
    struct op_size size = {.rows = 1, .seqs = 1};
    struct op_cost c = cost_of_op(cost, 2, &other, &size); /* nothing is timed there */
    assert_true(c.estimate && !c.from);
    assert_float_equal(c.ns, bytes_of(&other), bytes_of(&other) * 1e-6);
    size.rows = 512;
    c = cost_of_op(cost, 2, &other, &size);
    assert_true(c.ns >= 2.0 * 512 * 64 * 4096 / 1e10 * 1e9 * 0.999); /* bound by arithmetic */
}

static void what_was_not_timed_is_scaled_from_the_nearest_shape_or_type(void **state)
{
    (void)state;
    struct oato_op other = matrix;
    other.n = 4096;
    struct op_size size = {.rows = 1, .seqs = 1};
    struct op_cost c = cost_of_op(cost, 0, &other, &size);
    assert_true(c.estimate);
    assert_string_equal(c.from, "mul_mat/Q4_0/k64/n128");
    assert_float_equal(c.ns, 100 * bytes_of(&other) / bytes_of(&matrix), 1e-3);
    assert_false(cost_measured(cost, 0, &other));
    assert_true(cost_measured(cost, 0, &matrix));
    assert_int_equal(cost_prepared_bytes(cost, 0, &other, 777), 777);
    assert_int_equal(cost_prepared_bytes(cost, 0, &matrix, 777), 5000);
    other = matrix; /* more bytes, as much arithmetic */
    other.dtype = DT_Q8_0;
    c = cost_of_op(cost, 0, &other, &size);
    assert_true(c.estimate);
    assert_float_equal(c.ns, 100 * bytes_of(&other) / bytes_of(&matrix), 1e-3);
    size.rows = 512;
    assert_float_equal(cost_of_op(cost, 0, &other, &size).ns, 20000, 1e-3);
    assert_int_equal(cost_known(cost, 0, &matrix), COST_TIMED);
    assert_int_equal(cost_known(cost, 0, &other), COST_NEVER_ASKED);
    other.dtype = DT_Q4_0;
    other.n = 4096;
    assert_int_equal(cost_known(cost, 0, &other), COST_OTHER_SHAPES);
}

/* A library's class is in the plan, or the device's own kernels would run, more slowly. */
static void the_nearest_of_several_is_the_one_most_alike(void **state)
{
    (void)state;
    static const char *const keys[] = {"mul_mat/Q4_0/k4096/n4096", "mul_mat/Q8_0/k4096/n4096",
                                       "mul_mat/F16/k4096/n4096", "mul_mat/Q4_0/k4096/n512"};
    static const char *const wanted[] = {"mul_mat/Q4_K/k4096/n4096", "mul_mat/Q6_K/k4096/n4096",
                                         "mul_mat/BF16/k4096/n4096", "mul_mat/Q6_K/k4096/n640"};
    struct profile_device device = {
        .id = "cuda:0", .kind = "cuda", .read_bytes_per_s = 1e12, .flops_per_s = 1e14};
    struct profile p;
    struct cost_source *c;
    struct oato_error err;
    profile_init(&p);
    p.devices = &device;
    p.n_devices = 1;
    for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
        struct profile_row row = {.supported = true, .median_ns = 1e4, .numerics = "f16.cublas"};
        assert_true(oato_op_parse(keys[i], &row.op, &row.size));
        row.size.rows = 1;
        assert_true(profile_put(&p, &row));
    }
    assert_int_equal(cost_create(&p, NULL, &c, &err), OATO_OK);
    for (size_t i = 0; i < ARRAY_LEN(wanted); i++) {
        struct oato_op op;
        struct op_size size;
        assert_true(oato_op_parse(wanted[i], &op, &size));
        size = (struct op_size){.rows = 1, .seqs = 1};
        const struct op_cost here = cost_of_op(c, 0, &op, &size);
        assert_string_equal(here.from, keys[i]);
        assert_string_equal(here.numerics, "f16.cublas");
    }
    cost_free(c);
    profile_free(&p);
}

/* What a GPU of the library that was profiled with one type takes of others. */
static void memory_of_types_that_were_never_timed_is_enough(void **state)
{
    (void)state;
    static const struct cuda_device idle;
    struct profile p;
    struct cost_source *c = NULL;
    struct oato_error err = {.text = ""};
    int types = 0;
    if (hardware_load("h200", &p, NULL, NULL, &err) || cost_create(&p, NULL, &c, &err) || !c) {
        fail_msg("%s", err.text);
        return;
    }
    const int32_t gpu = profile_device_index(&p, "cuda:0");
    for (int type = 0; type < DT_COUNT; type++)
        for (int32_t n = 1024; n <= 16384; n *= 4) {
            struct oato_op op = {.kind = OP_MUL_MAT, .dtype = (uint16_t)type, .k = 4096, .n = n};
            const struct op_size size = {.rows = 512, .seqs = 1};
            size_t row = 0;
            if (!op_valid(&op) || type == DT_TQ1_0) /* its layout is larger by a quarter */
                continue;
            types++;
            dtype_row_bytes((oato_dtype)type, op.k, &row);
            assert_true(cost_supports(c, gpu, &op));
            assert_true(cost_prepared_bytes(c, gpu, &op, row * (uint64_t)n) >=
                        cuda_layout_bytes((oato_dtype)type, n, op.k));
            assert_true(workspace_of(c, gpu, &op, size.rows) >=
                        cuda_device_ops.workspace_bytes(&idle.far.base, &op, &size));
        }
    assert_true(types >= 3 * 20);
    cost_free(c);
    profile_free(&p);
}

static void what_a_device_lacks_is_never_said_to_run_there(void **state)
{
    (void)state;
    struct oato_op same_kind = matrix, refused = matrix, refused_kind = matrix, norm = matrix;
    same_kind.n = 4096;
    refused.n = 256;
    refused_kind.dtype = DT_Q6_K;
    refused_kind.k = 512;
    norm.kind = OP_RMS_NORM;
    norm.dtype = DT_F32;
    assert_true(cost_supports(cost, 1, &matrix));
    assert_true(cost_supports(cost, 1, &same_kind)); /* another shape of what it runs */
    assert_false(cost_supports(cost, 1, &refused));
    assert_false(cost_supports(cost, 1, &refused_kind));
    assert_int_equal(cost_known(cost, 1, &refused_kind), COST_REFUSED);
    assert_true(cost_supports(cost, 1, &norm)); /* nobody asked it: that is no refusal */
    assert_int_equal(cost_known(cost, 1, &norm), COST_NEVER_ASKED);
    assert_false(cost_lists(cost, 1, &norm)); /* but no reason to fuse it either */
    assert_true(cost_supports(cost, 0, &norm));
    assert_false(cost_lists(cost, 0, &norm));
    assert_true(cost_supports(cost, 2, &matrix));
}

/* The list of what it supports is its word for what has no row; rows say more than the list. */
static void a_device_that_was_asked_runs_what_it_said(void **state)
{
    (void)state;
    uint64_t runs[OP_KIND_COUNT] = {
        [OP_MUL_MAT] = 1u << DT_Q8_0 | 1u << DT_Q6_K, [OP_RMS_NORM] = 1u << DT_F32};
    struct oato_op op = matrix;
    const struct oato_op norm = {.kind = OP_RMS_NORM, .k = 64, .n = 64};
    const struct oato_op add = {.kind = OP_ADD, .k = 64, .n = 64};
    profile.devices[0].runs = profile.devices[1].runs = runs;
    assert_int_equal(cost_known(cost, 1, &op), COST_TIMED); /* though the list lacks it */
    op.n = 512;
    assert_int_equal(cost_known(cost, 1, &op), COST_OTHER_SHAPES);
    op.dtype = DT_Q8_0;
    assert_int_equal(cost_known(cost, 1, &op), COST_NEVER_TIMED);
    assert_true(cost_lists(cost, 1, &op));
    op.dtype = DT_Q6_K; /* one shape of which it refused */
    op.k = 256;
    assert_int_equal(cost_known(cost, 1, &op), COST_NEVER_TIMED);
    op.n = 256;
    assert_int_equal(cost_known(cost, 1, &op), COST_REFUSED);
    op.dtype = DT_Q5_0;
    assert_int_equal(cost_known(cost, 1, &op), COST_REFUSED);
    assert_int_equal(cost_known(cost, 1, &norm), COST_NEVER_TIMED);
    assert_int_equal(cost_known(cost, 1, &add), COST_REFUSED);
    assert_int_equal(cost_known(cost, 0, &add), COST_NEVER_ASKED); /* where would it run else? */
    profile.devices[0].runs = profile.devices[1].runs = NULL;
}

static void copies_cost_what_the_link_says(void **state)
{
    (void)state;
    assert_float_equal(cost_of_copy(cost, 0, 1, 2000), 3500, 1e-9);
    assert_float_equal(cost_of_copy(cost, 0, 0, 2000), 0, 0);
    assert_true(cost_of_copy(cost, 1, 0, 2000) < 0); /* no such link */
    const bool was = profile.devices[1].is_host;
    profile.devices[1].is_host = true; /* between processors */
    const double each =
        1e9 / profile.devices[0].read_bytes_per_s + 1e9 / profile.devices[1].read_bytes_per_s;
    assert_float_equal(cost_of_copy(cost, 1, 0, 2000), 2000 * each, 1e-9);
    assert_float_equal(cost_of_copy(cost, 0, 1, 2000), 3500, 1e-9);
    profile.devices[1].is_host = was;
}

static void streams_cost_what_the_host_converts(void **state)
{
    (void)state;
    assert_float_equal(cost_of_stream(cost, 0, 1, 2000), 3500, 1e-9); /* not measured: a copy */
    profile.links[0].stream_bytes_per_s = 5e8;
    assert_float_equal(cost_of_stream(cost, 0, 1, 2000), 5500, 1e-9);
    assert_float_equal(cost_of_copy(cost, 0, 1, 2000), 3500, 1e-9);
    assert_float_equal(cost_of_stream(cost, 0, 0, 2000), 0, 0);
    assert_true(cost_of_stream(cost, 1, 0, 2000) < 0);
    profile.links[0].stream_bytes_per_s = 0;
}

static void workspace_and_numerics_are_of_the_nearest_size(void **state)
{
    (void)state;
    assert_int_equal(workspace_of(cost, 0, &matrix, 8), 80);
    assert_int_equal(workspace_of(cost, 0, &matrix, 9), 5120);
    assert_int_equal(workspace_of(cost, 0, &matrix, 1024), 10240);
    struct oato_op larger = matrix;
    larger.n = 1280; /* ten times the arithmetic of the nearest */
    assert_in_range(workspace_of(cost, 0, &larger, 8), 799, 801);
    assert_true(workspace_of(cost, 2, &matrix, 8) >= 8 * 64 * 2); /* as a GPU's */
    struct op_size one = {.rows = 1, .seqs = 1}, many = {.rows = 100, .seqs = 1};
    assert_string_equal(cost_of_op(cost, 0, &matrix, &one).numerics, "f32");
    assert_string_equal(cost_of_op(cost, 0, &matrix, &many).numerics, "u8b32");
}

/* K-quants are no type of the NPU, in no fusion either. */
static void a_data_sheet_runs_all_but_what_it_denies(void **state)
{
    (void)state;
    static const uint16_t kinds[] = {OP_MUL_MAT, OP_QKV, OP_GATE_UP};
    static const struct oato_op norm = {.kind = OP_RMS_NORM, .k = 4096, .n = 4096};
    const struct op_size one = {.rows = 1, .seqs = 1};
    struct profile sheet;
    struct cost_source *c = NULL;
    struct oato_error err = {.text = ""};
    if (hardware_load("ascend910b-kunpeng920", &sheet, NULL, NULL, &err) ||
        cost_create(&sheet, NULL, &c, &err) || !c) {
        fail_msg("%s", err.text);
        return;
    }
    const int32_t npu = profile_device_index(&sheet, "ascend:0");
    for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
        struct oato_op op = {.kind = kinds[i], .dtype = DT_Q4_K, .k = 4096, .n = 4096};
        op.n2 = kinds[i] == OP_QKV ? 1024 : 0;
        assert_false(cost_supports(c, npu, &op));
        assert_true(cost_supports(c, profile_device_index(&sheet, "cpu:0"), &op));
        op.dtype = DT_Q4_0;
        assert_true(cost_supports(c, npu, &op));
        assert_true(cost_of_op(c, npu, &op, &one).estimate);
    }
    assert_true(cost_supports(c, npu, &norm));
    cost_free(c);
    profile_free(&sheet);
}

static bool runs_all(const void *user, const struct oato_op *op)
{
    (void)user;
    (void)op;
    return true;
}

static uint64_t idle_workspace(const void *device, const struct oato_op *op,
                               const struct op_size *size)
{
    return cuda_device_ops.workspace_bytes(device, op, size);
}

static enum cost_known made_known(const void *user, int32_t device, const struct oato_op *op,
                                  bool *listed)
{
    (void)device;
    *listed = true;
    return op->sparse && *(const bool *)user ? COST_REFUSED : COST_OTHER_SHAPES;
}

static struct op_cost made_op(const void *user, int32_t device, const struct oato_op *op,
                              const struct op_size *size)
{
    (void)user;
    (void)op;
    return (struct op_cost){.ns = 1000.0 * size->rows * (device + 1)};
}

static struct cost_device made_device(const void *user, int32_t device)
{
    (void)user;
    return (struct cost_device){.record_ns = 7 + device, .join_ns = {[JOIN_ADD] = 100}};
}

static double made_copy(const void *user, int32_t from, int32_t to, double bytes, bool streams)
{
    (void)user;
    return from == to ? -1 : streams ? 1 : 50 + bytes;
}

/* Another engine's costs are priced as ours are. */
static void a_price_is_composed_of_what_any_source_says(void **state)
{
    (void)state;
    bool refuses = false;
    const struct cost_source source = {.context = &refuses,
                                       .known = made_known,
                                       .op = made_op,
                                       .device = made_device,
                                       .copy = made_copy};
    struct graph_value values[3] = {{.width = 64}, {.width = 64}, {.width = 64}};
    struct graph_op ops[2] = {{.op = {.kind = OP_MUL_MAT, .dtype = DT_F32, .k = 64, .n = 64},
                               .n_in = 1,
                               .n_out = 1,
                               .out = {1}},
                              {.op = {.kind = OP_ADD, .dtype = DT_F32, .k = 64, .n = 64},
                               .in = {1, 0},
                               .n_in = 2,
                               .n_out = 1,
                               .out = {2}}};
    const struct graph g = {.ops = ops, .n_ops = 2, .values = values, .n_values = 3};
    const struct request_step two = {
        .tokens = 2, .rows = 1, .seqs = 1, .kv_positions = 3, .times = 1};
    const struct request_step prompt = {
        .tokens = 99, .rows = 1, .seqs = 1, .kv_positions = 3, .times = 1};
    struct part part = {.graph = &g, .op = ops[0].op, .device = 1, .share = 1, .active = 1};
    assert_true(part_cost(&source, &part, &two).ns == 2 * 2000 + 8);
    part.share = part.active = 0.25;
    assert_true(part_cost(&source, &part, &two).ns == 1000 + 8);
    part.bare = true;
    assert_true(part_cost(&source, &part, &two).ns == 1000);
    /* what skips reads rows here and there, at most as long as all of them take */
    part = (struct part){.graph = &g, .op = ops[0].op, .device = 1, .share = 1};
    part_silence(&part, &(struct silence){.share = 0.5}, NULL, 1);
    assert_true(part.op.sparse == SPARSE_ABOVE && part.active == 0.5 && !part.joins);
    assert_float_equal(part_cost(&source, &part, &two).ns, 4000 * 0.5 * 1.15 + 8, 1e-9);
    assert_true(part_cost(&source, &part, &two).estimate);
    refuses = true;
    assert_true(part_cost(&source, &part, &two).ns == 4000 + 8);
    part_silence(&part, &(struct silence){.share = 0.5}, NULL, 99);
    assert_true(part.active == 1);
    /* neighbours that run together save something in decode, a part of them its share */
    part = (struct part){
        .graph = &g, .index = 1, .op = ops[1].op, .share = 1, .active = 0.5, .joins = true};
    assert_true(part_cost(&source, &part, &two).ns == (2000 - 100) * 0.5 + 7);
    assert_true(part_cost(&source, &part, &prompt).ns == 99000 * 0.5 + 7);
    assert_true(copy_cost(&source, 0, 1, 1, 200) == 250 + 8);
    assert_true(copy_cost(&source, 1, 1, 0, 200) == 7);
}

/* A plan that leaves less is refused when it is loaded. The device need not be there to be asked.
 */
static void a_data_sheet_leaves_room_for_workspace(void **state)
{
    (void)state;
    static const char *const keys[] = {
        "mul_mat/Q4_K/k4096/n14336",
        "mul_mat/F16/k4096/n14336",
        "qkv/Q8_0/k4096/n4096/m1024",
        "gate_up/Q4_0/k4096/n14336",
        "gate_up/F16/k512/n96",
        "expert_gate_up/Q4_K/k2048/n768/e128/u8",
        "expert_down/Q6_K/k768/n2048/e128/u8",
        "expert_down/Q8_0/k32/n64/e8/u2",
        "attention/F16/h32/g8/d128",
        "attention/Q8_0/h64/g8/d64",
        "rms_norm/k4096",
        "rope/h32/d128/r128/p0",
    };
    static const struct cuda_device idle;
    struct profile sheet;
    struct cost_source *c = NULL;
    struct oato_error err = {.text = ""};
    if (hardware_load("rtx3060-laptop", &sheet, NULL, NULL, &err) ||
        cost_create(&sheet, NULL, &c, &err) || !c) {
        fail_msg("%s", err.text);
        return;
    }
    const int32_t gpu = profile_device_index(&sheet, "cuda:0");
    for (size_t i = 0; i < ARRAY_LEN(keys); i++)
        for (int32_t rows = 1; rows <= 1024; rows *= 8) {
            struct oato_op op;
            struct op_size size = {.rows = rows, .seqs = 1};
            assert_true(oato_op_parse(keys[i], &op, &(struct op_size){.rows = 0}));
            const uint64_t guess = workspace_of(c, gpu, &op, rows);
            const uint64_t takes = cuda_device_ops.workspace_bytes(&idle.far.base, &op, &size);
            if (guess < takes || guess > 2 * takes + 8192)
                fail_msg("%s, %d rows: %llu bytes instead of %llu", keys[i], rows,
                         (unsigned long long)guess, (unsigned long long)takes);
            const int32_t host = profile_device_index(&sheet, "cpu:0");
            assert_int_equal(workspace_of(c, host, &op, rows) > 0,
                             op_weight_use(&op) == WEIGHT_MATRIX);
        }
    /* what a device that was asked says, bounds its operators of other shapes, too */
    assert_true(profile_put_runs(&sheet, gpu, runs_all, NULL) &&
                profile_put_workspaces(&sheet, gpu, idle_workspace, &idle.far.base));
    for (size_t i = 0; i < ARRAY_LEN(keys); i++)
        for (int32_t rows = 1; rows <= 1024; rows *= 8) {
            struct oato_op op;
            struct op_size size = {.rows = rows, .seqs = 1, .kv_positions = rows};
            assert_true(oato_op_parse(keys[i], &op, &(struct op_size){.rows = 0}));
            const uint64_t bound = workspace_of(c, gpu, &op, rows);
            const uint64_t takes = cuda_device_ops.workspace_bytes(&idle.far.base, &op, &size);
            if (bound < takes || bound > 3 * takes + (64 << 10))
                fail_msg("%s, %d rows: bound of %llu bytes for %llu", keys[i], rows,
                         (unsigned long long)bound, (unsigned long long)takes);
        }
    cost_free(c);
    profile_free(&sheet);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(measured_sizes_are_exact),
        cmocka_unit_test(rows_beyond_the_first_cost_what_the_device_says),
        cmocka_unit_test(sizes_between_lie_on_a_line),
        cmocka_unit_test(sizes_outside_follow_the_rules),
        cmocka_unit_test(more_work_never_costs_less),
        cmocka_unit_test(a_kind_without_points_is_a_marked_roofline),
        cmocka_unit_test(what_was_not_timed_is_scaled_from_the_nearest_shape_or_type),
        cmocka_unit_test(the_nearest_of_several_is_the_one_most_alike),
        cmocka_unit_test(memory_of_types_that_were_never_timed_is_enough),
        cmocka_unit_test(a_device_that_was_asked_runs_what_it_said),
        cmocka_unit_test(what_a_device_lacks_is_never_said_to_run_there),
        cmocka_unit_test(a_data_sheet_runs_all_but_what_it_denies),
        cmocka_unit_test(copies_cost_what_the_link_says),
        cmocka_unit_test(streams_cost_what_the_host_converts),
        cmocka_unit_test(workspace_and_numerics_are_of_the_nearest_size),
        cmocka_unit_test(a_data_sheet_leaves_room_for_workspace),
        cmocka_unit_test(a_price_is_composed_of_what_any_source_says),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
