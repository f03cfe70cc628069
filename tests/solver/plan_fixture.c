/*
 * plan_fixture.c - a profile computed from rooflines: cpu:0 reads 10 GB/s and does 100 GFLOP/s,
 * sim:0 is some times faster but does not look up embeddings; every run costs a microsecond more.
 */
#include "tests/solver/plan_fixture.h"

#include <string.h>

struct maker {
    struct profile *profile;
    const struct fixture_options *options;
    double factor;
    bool ok;
};

static void put(struct maker *k, int32_t device, const struct oato_op *op,
                const struct op_size *size)
{
    double speed = device ? k->options->sim_speed : 1;
    double memory_ns = op_bytes(op, size) / 10, compute_ns = op_flops(op, size) / 100;
    double activations_ns = size->rows * ((double)op->k + op->n) * 4 / 10;
    double ns = 1000 + ((memory_ns > compute_ns ? memory_ns : compute_ns) + activations_ns) / speed;
    uint64_t weights = 0;
    for (int i = 0; i < op_weight_least(op); i++) {
        int64_t n, width;
        size_t row;
        if (op_weight_shape(op, i, &n, &width) &&
            dtype_row_bytes((oato_dtype)op->dtype, width, &row))
            weights += (uint64_t)n * row;
    }
    if (op->kind == OP_EMBED)
        weights = 0; /* looked up in the file */
    struct profile_row row = {.device = device,
                              .op = *op,
                              .size = *size,
                              .supported = !(device && op->kind == OP_EMBED),
                              .prepared_bytes = weights,
                              .workspace_bytes = (uint64_t)size->rows * 64,
                              .numerics =
                                  size->rows > 1 && op->kind == OP_MUL_MAT ? "u8b32" : "f32",
                              .median_ns = ns * k->factor,
                              .p10_ns = ns * k->factor,
                              .p90_ns = ns * k->factor,
                              .repeats = 3};
    k->ok = k->ok && profile_put(k->profile, &row);
}

static void put_sizes(struct maker *k, const struct oato_op *op)
{
    static const int32_t rows[] = {1, 8, 512};
    for (int32_t d = 0; d < k->profile->n_devices; d++)
        for (size_t i = 0; i < ARRAY_LEN(rows); i++)
            for (int64_t kv = 128; kv <= 4096; kv *= 32) {
                struct op_size size = {.rows = rows[i], .seqs = 1};
                if (op->kind == OP_ATTENTION)
                    size.kv_positions = kv * rows[i];
                if (kv == 128 || op->kind == OP_ATTENTION)
                    put(k, d, op, &size);
            }
}

static void put_graph(struct maker *k, const struct graph *g)
{
    for (int32_t i = 0; i < g->n_ops; i++) {
        k->factor = k->options->scale;
        for (int kv = 0; kv < 2; kv++) {
            struct oato_op op = graph_op_with_kv(&g->ops[i], kv ? DT_F32 : DT_F16);
            if (op.kind != OP_ATTENTION || !k->options->skip_attention)
                put_sizes(k, &op);
        }
    }
    struct graph_match m[256];
    int32_t n = graph_matches(g, m, ARRAY_LEN(m));
    for (int32_t i = 0; k->options->fused_factor > 0 && i < n && i < (int32_t)ARRAY_LEN(m); i++) {
        struct oato_op op = graph_fused(g, m[i]).op;
        k->factor = k->options->scale * k->options->fused_factor;
        put_sizes(k, &op);
    }
}

bool fixture_profile(const struct model *m, const struct fixture_options *o, struct profile *out)
{
    profile_init(out);
    int32_t devices = o->sim_speed > 0 ? 2 : 1;
    out->version = PROFILE_VERSION;
    out->tool = "fixture";
    out->date = "2026-01-01";
    out->notes = "made up";
    out->devices = arena_alloc(&out->arena, 2, sizeof *out->devices);
    out->links = arena_alloc(&out->arena, 2, sizeof *out->links);
    if (!out->devices || !out->links)
        return false;
    out->n_devices = devices;
    out->devices[0] = (struct profile_device){.id = "cpu:0",
                                              .kind = "cpu",
                                              .model = "a processor",
                                              .memory_bytes = 8ull << 30,
                                              .free_bytes = 4ull << 30,
                                              .is_host = true,
                                              .read_bytes_per_s = 1e10,
                                              .flops_per_s = 1e11,
                                              .record_overhead_ns = 100,
                                              .step_overhead_ns = 2000};
    out->devices[1] = (struct profile_device){.id = "sim:0",
                                              .kind = "sim",
                                              .model = "simulated",
                                              .spec = "vram=64MiB",
                                              .memory_bytes = 64 << 20,
                                              .free_bytes = 64 << 20,
                                              .read_bytes_per_s = 1e10 * o->sim_speed,
                                              .flops_per_s = 1e11 * o->sim_speed,
                                              .record_overhead_ns = 500,
                                              .step_overhead_ns = 5000};
    for (int32_t i = 0; i < 2; i++)
        out->links[i] = (struct profile_link){.from = i,
                                              .to = 1 - i,
                                              .latency_ns = o->link_latency_ns,
                                              .bytes_per_s = 5e9,
                                              .sync_ns = 500};
    out->n_links = devices == 2 ? 2 : 0;
    struct maker k = {.profile = out, .options = o, .ok = true};
    put_graph(&k, &m->graph);
    return k.ok;
}
