/*
 * random_planfmt.c - random profiles and plans. Numbers are drawn from all magnitudes, because
 * writing and reading numbers back exactly is what the tests are after; texts have what YAML finds
 * hard: quotes, colons, digits in front, words that mean truth.
 */
#include "random_planfmt.h"

#include <dirent.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

uint64_t rng_next(struct rng *r)
{
    uint64_t z = r->state += 0x9e3779b97f4a7c15u; /* splitmix64 */
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

int64_t rng_range(struct rng *r, int64_t lo, int64_t hi)
{
    return lo + (int64_t)(rng_next(r) % ((uint64_t)(hi - lo) + 1));
}

uint64_t test_seed(void)
{
    const char *s = getenv("OATO_TEST_SEED");
    uint64_t seed = s ? strtoull(s, NULL, 10) : now_ns();
    printf("OATO_TEST_SEED=%llu\n", (unsigned long long)seed);
    return seed;
}

/* Zero, whole numbers, or anything finite from 1e-30 to 1e30 with all its digits. */
static double any_f64(struct rng *r)
{
    double unit = (double)(rng_next(r) >> 11) * 0x1p-53;
    switch (rng_range(r, 0, 3)) {
    case 0: return 0;
    case 1: return (double)rng_range(r, 0, 1000000000000);
    case 2: return unit * 1e6;
    default: return (1 + unit) * pow(10, (double)rng_range(r, -30, 30));
    }
}

/* What is left out of a file when it is 0. */
static double perhaps_f64(struct rng *r)
{
    return rng_range(r, 0, 1) ? any_f64(r) : 0;
}

static struct profile_link any_link(struct rng *r, int32_t from, int32_t to)
{
    const double pageable = perhaps_f64(r);
    return (struct profile_link){.from = from,
                                 .to = to,
                                 .latency_ns = any_f64(r),
                                 .bytes_per_s = 1 + any_f64(r),
                                 .sync_ns = any_f64(r),
                                 .pageable_latency_ns = pageable > 0 ? any_f64(r) : 0,
                                 .pageable_bytes_per_s = pageable,
                                 .both_bytes_per_s = perhaps_f64(r),
                                 .stream_bytes_per_s = perhaps_f64(r)};
}

static uint64_t any_u64(struct rng *r)
{
    return rng_next(r) >> rng_range(r, 0, 63);
}

static const char *any_text(struct rng *r)
{
    static const char *const texts[] = {"",
                                        "quick",
                                        "AMD EPYC 9755 128-Core",
                                        "true",
                                        "No",
                                        "~",
                                        "null",
                                        "123",
                                        "1e5",
                                        "0x10",
                                        "2026-11-21",
                                        "a: b",
                                        "- x",
                                        "# no comment",
                                        "say \"hi\"",
                                        "it's",
                                        "two\nlines",
                                        "tab\there",
                                        " space in front",
                                        "space behind ",
                                        "{a, b}",
                                        "[1]",
                                        "*alias",
                                        "&anchor",
                                        "!tag",
                                        "%x",
                                        "@x",
                                        "\xc3\xa4\xe2\x82\xac",
                                        "back\\slash",
                                        "?",
                                        ":",
                                        "-",
                                        "avx2 avx512"};
    return texts[rng_range(r, 0, (int64_t)ARRAY_LEN(texts) - 1)];
}

static oato_dtype any_dtype(struct rng *r)
{
    static const oato_dtype types[] = {DT_F32, DT_F16, DT_Q4_0, DT_Q4_1, DT_Q8_0, DT_Q6_K, DT_BF16};
    return types[rng_range(r, 0, (int64_t)ARRAY_LEN(types) - 1)];
}

/* An operator as its key would give it back. */
static void any_op(struct rng *r, struct oato_op *op, struct op_size *size)
{
    char key[OP_KEY_SIZE];
    long long k = rng_range(r, 1, 200) * 32, n = rng_range(r, 1, 200000), t = rng_range(r, 1, 600);
    const char *type = dtype_name(any_dtype(r));
    switch (rng_range(r, 0, 4)) {
    case 0: snprintf(key, sizeof key, "rms_norm/k%lld/t%lld", k, t); break;
    case 1: snprintf(key, sizeof key, "qkv/%s/k%lld/n%lld/m%lld/t%lld", type, k, n, k, t); break;
    case 2:
        snprintf(key, sizeof key, "attention/F16/h%lld/g3/d64/t%lld/s1/kv%lld", k / 32, t, t * n);
        break;
    default: snprintf(key, sizeof key, "mul_mat/%s/k%lld/n%lld/t%lld", type, k, n, t); break;
    }
    if (!oato_op_parse(key, op, size))
        abort();
}

/* Most kinds, with some of their types. */
static bool some(const void *rng, const struct oato_op *op)
{
    return rng_range((struct rng *)rng, 0, 3) && op->kind != OP_SSM;
}

static uint64_t any_bytes(const void *rng, const struct oato_op *op, const struct op_size *size)
{
    return (uint64_t)rng_range((struct rng *)rng, 1, 99) * (uint64_t)size->rows * (uint64_t)op->n;
}

void random_profile(struct rng *r, int32_t n_rows, struct profile *out)
{
    static const char *const ids[] = {"cpu:0", "sim:0", "sim:1", "cuda:12"};
    static const char *const kinds[] = {"cpu", "sim", "sim", "cuda"};
    static const char *const classes[] = {"f32", "u8b32", "f32+u8b32", ""};
    profile_init(out);
    out->tool = "oato 0.1.0";
    out->date = any_text(r);
    out->notes = any_text(r);
    out->machine = (struct profile_machine){.cpu = any_text(r),
                                            .isa = any_text(r),
                                            .kernel_isa = "avx2",
                                            .sockets = (int32_t)rng_range(r, 0, 8),
                                            .cores = (int32_t)rng_range(r, 0, INT32_MAX),
                                            .threads = (int32_t)rng_range(r, 0, 999),
                                            .numa_nodes = 1,
                                            .memory_bytes = any_u64(r),
                                            .l1d_bytes = any_u64(r),
                                            .l2_bytes = any_u64(r),
                                            .l3_bytes = any_u64(r)};
    out->n_devices = (int32_t)rng_range(r, 1, 4);
    out->devices = arena_alloc(&out->arena, 4, sizeof *out->devices);
    out->links = arena_alloc(&out->arena, 16, sizeof *out->links);
    for (int32_t i = 0; i < out->n_devices; i++) {
        out->devices[i] = (struct profile_device){.id = ids[i],
                                                  .kind = kinds[i],
                                                  .model = any_text(r),
                                                  .spec = i ? "vram=64MiB,read=900GB/s" : "",
                                                  .isa = i ? "" : "avx2",
                                                  .layout = i ? "" : "lanes8.5",
                                                  .memory_bytes = any_u64(r),
                                                  .free_bytes = any_u64(r),
                                                  .threads = (int32_t)rng_range(r, 0, 256),
                                                  .is_host = !i,
                                                  .read_bytes_per_s = any_f64(r),
                                                  .flops_per_s = any_f64(r),
                                                  .record_overhead_ns = any_f64(r),
                                                  .rows_overhead = perhaps_f64(r),
                                                  .step_overhead_ns = any_f64(r),
                                                  .launch_ns = perhaps_f64(r)};
        for (int j = 0; j < JOIN_COUNT; j++)
            out->devices[i].join_ns[j] = perhaps_f64(r);
        out->devices[i].keeps = rng_range(r, 0, 1);
        out->devices[i].spans = rng_range(r, 0, 1);
        out->devices[i].compile_cached = rng_range(r, 0, 1);
        for (int j = 0, n = (int)rng_range(r, 0, DEVICE_ROWS), rows = 0; j < n; j++)
            out->devices[i].rows[j] = rows += (int)rng_range(r, 1, 100);
        out->devices[i].unit_overhead_ns = perhaps_f64(r);
        out->devices[i].compile_s = perhaps_f64(r);
        out->devices[i].library_bytes = (uint64_t)rng_range(r, 0, 1) * 65536;
        if (rng_range(r, 0, 1) && !profile_put_runs(out, i, some, r))
            abort();
        if (out->devices[i].runs && rng_range(r, 0, 1) &&
            !profile_put_workspaces(out, i, any_bytes, r))
            abort();
        struct value_types values[OP_KIND_COUNT];
        for (size_t j = 0; j < sizeof values; j++)
            ((uint8_t *)values)[j] = rng_range(r, 0, 1) ? DT_F16 : DT_F32;
        if (out->devices[i].runs && rng_range(r, 0, 1) && !profile_put_values(out, i, values))
            abort();
        for (int32_t j = 0; j < i; j++) {
            out->links[out->n_links++] = any_link(r, i, j);
            out->links[out->n_links++] = any_link(r, j, i);
        }
    }
    while (out->n_rows < n_rows) {
        struct profile_row row = {.device = (int32_t)rng_range(r, 0, out->n_devices - 1),
                                  .supported = rng_range(r, 0, 9) != 0,
                                  .numerics = ""};
        any_op(r, &row.op, &row.size);
        if (row.supported) {
            row.numerics = classes[rng_range(r, 0, 3)];
            row.prepared_bytes = any_u64(r);
            row.workspace_bytes = any_u64(r);
            row.median_ns = any_f64(r);
            row.p10_ns = any_f64(r);
            row.own_ns = any_f64(r);
            row.p90_ns = any_f64(r);
            row.repeats = (int32_t)rng_range(r, 0, INT32_MAX);
            row.disturbed = rng_range(r, 0, 3) == 0;
        }
        if (!profile_put(out, &row))
            abort();
    }
    struct profile_storage storage[3];
    const int32_t n_storage = (int32_t)rng_range(r, 0, 3);
    for (int32_t i = 0; i < n_storage; i++)
        storage[i] = (struct profile_storage){.depth = (int32_t)rng_range(r, 1, 64),
                                              .bytes = (uint64_t)rng_range(r, 1, 1 << 24),
                                              .direct = rng_range(r, 0, 1),
                                              .bytes_per_s = 1 + any_f64(r),
                                              .p10_bytes_per_s = any_f64(r),
                                              .p90_bytes_per_s = any_f64(r),
                                              .passes = (int32_t)rng_range(r, 0, 64),
                                              .latency_ns = any_f64(r)};
    if (!profile_put_storage(out, storage, n_storage))
        abort();
    static const oato_dtype wires[] = {DT_F32, DT_F16, DT_Q8_0};
    struct profile_sum sums[4];
    const int32_t n_sums = (int32_t)rng_range(r, 0, 4);
    for (int32_t i = 0; i < n_sums; i++) {
        sums[i] = (struct profile_sum){.ranks = (int32_t)rng_range(r, 2, 9),
                                       .hosts = (int32_t)rng_range(r, 1, 2),
                                       .what = (enum profile_exchange)rng_range(r, 0, 2),
                                       .wire = wires[rng_range(r, 0, 2)],
                                       .bytes = (uint64_t)rng_range(r, 1, 1 << 24),
                                       .median_ns = 1 + any_f64(r)};
        if (!sums[i].what)
            sums[i].way = (enum sum_way)rng_range(r, 0, SUM_WAYS - 1);
    }
    if (!profile_put_sums(out, sums, n_sums))
        abort();
}

static const char *any_name(struct rng *r, struct arena *a)
{
    char s[64];
    int n = snprintf(s, sizeof s, "blk.%lld.attn_%lld", (long long)rng_range(r, 0, 9),
                     (long long)rng_range(r, 0, 5));
    return arena_strndup(a, s, (size_t)n);
}

static void any_choices(struct rng *r, struct plan *out)
{
    out->choices = arena_alloc(&out->arena, 2, sizeof *out->choices);
    out->n_choices = out->choices ? (int32_t)rng_range(r, 0, 2) : 0;
    for (int32_t i = 0; i < out->n_choices; i++)
        out->choices[i] = (struct plan_choice){any_name(r, &out->arena), rng_range(r, 0, 1)};
    out->alternatives = arena_alloc(&out->arena, 2, sizeof *out->alternatives);
    out->n_alternatives = out->alternatives ? (int32_t)rng_range(r, 0, 2) : 0;
    for (int32_t i = 0; i < out->n_alternatives; i++)
        out->alternatives[i] = (struct plan_alternative){
            any_name(r, &out->arena), i ? "" : "why", (uint64_t)rng_range(r, 0, 1 << 30),
            (uint64_t)rng_range(r, 0, 1 << 30), (uint64_t)rng_range(r, 0, 1 << 30)};
}

void random_plan(struct rng *r, int32_t n_parts, struct plan *out)
{
    plan_init(out);
    struct arena *a = &out->arena;
    out->tool = "oato 0.1.0";
    out->model_name = "SmolLM2 135M \xc3\xa4";
    out->structure_hash = rng_next(r);
    out->content_hash = rng_range(r, 0, 1) ? rng_next(r) : 0;
    out->profile_hash = rng_next(r);
    out->n_devices = (int32_t)rng_range(r, 1, 3);
    out->n_parts = n_parts;
    out->n_kv = n_parts / 3;
    out->n_fusions = n_parts / 4;
    out->n_costs = n_parts;
    out->n_baselines = n_parts ? 2 : 0;
    out->devices = arena_alloc(a, 3, sizeof *out->devices);
    out->parts = arena_alloc(a, (size_t)n_parts, sizeof *out->parts);
    out->kv = arena_alloc(a, (size_t)out->n_kv, sizeof *out->kv);
    out->fusions = arena_alloc(a, (size_t)out->n_fusions, sizeof *out->fusions);
    out->costs = arena_alloc(a, (size_t)out->n_costs, sizeof *out->costs);
    out->baselines = arena_alloc(a, 2, sizeof *out->baselines);
    for (int32_t i = 0; i < out->n_devices; i++) {
        struct plan_device *d = &out->devices[i];
        snprintf(d->id, sizeof d->id, i ? "sim:%d" : "cpu:%d", i ? i - 1 : 0);
        snprintf(d->kind, sizeof d->kind, i ? "sim" : "cpu");
        d->is_host = !i;
        snprintf(d->model, sizeof d->model, "model %d", i);
        snprintf(d->spec, sizeof d->spec, "%s", i ? "vram=1GiB" : "");
        d->budget_bytes = any_u64(r);
        d->planned_bytes = any_u64(r);
    }
    int32_t last = out->n_devices - 1;
    for (int32_t i = 0; i < n_parts; i++) {
        int64_t begin = rng_range(r, 0, 100) * 64;
        out->parts[i] = (struct plan_part){.op = any_name(r, a),
                                           .axis = (enum op_axis)rng_range(r, 0, AXIS_COUNT - 1),
                                           .begin = begin,
                                           .end = begin + rng_range(r, 0, INT64_MAX / 2),
                                           .phases = (uint32_t)rng_range(r, 1, 3),
                                           .device = (int32_t)rng_range(r, 0, last),
                                           .home = (int32_t)rng_range(r, HOME_FILE, last)};
        out->costs[i] = (struct plan_cost){.op = any_name(r, a),
                                           .phase = (enum plan_phase)rng_range(r, 0, 1),
                                           .device = (int32_t)rng_range(r, 0, last),
                                           .ns = any_u64(r),
                                           .transfer_ns = any_u64(r),
                                           .estimate = rng_range(r, 0, 1)};
    }
    for (int32_t i = 0; i < out->n_kv; i++)
        out->kv[i] = (struct plan_kv){i, 0, (int32_t)rng_range(r, 1, 64), last};
    for (int32_t i = 0; i < out->n_fusions; i++)
        out->fusions[i] = (struct plan_fusion){"qkv", any_name(r, a)};
    for (int32_t i = 0; i < out->n_baselines; i++)
        out->baselines[i] = (struct plan_baseline){i ? "layers" : "cpu", any_u64(r)};
    out->request = (struct plan_request){.prompt = (int32_t)rng_range(r, 0, INT32_MAX),
                                         .generate = 128,
                                         .context = 4096,
                                         .batch = 1,
                                         .ubatch = 512,
                                         .kv = rng_range(r, 0, 1) ? DT_F16 : DT_F32,
                                         .deterministic = rng_range(r, 0, 1),
                                         .objective = rng_range(r, 0, OBJECTIVE_COUNT - 1)};
    out->numerics[PHASE_PREFILL] = "f32+u8b32";
    out->numerics[PHASE_DECODE] = "u8b32";
    out->prefill_ns = any_u64(r);
    out->decode_ns = any_u64(r);
    out->request_ns = any_u64(r);
    out->solver = "ilp";
    out->objective_ns = any_u64(r);
    out->bound_ns = any_u64(r);
    out->timed_out = rng_range(r, 0, 1);
    out->neurons_hash = rng_range(r, 0, 3) ? 0 : rng_next(r) | 1;
    out->n_caches = (int32_t)rng_range(r, 0, 2);
    out->caches = arena_alloc(a, 2, sizeof *out->caches);
    for (int32_t i = 0; i < out->n_caches; i++)
        out->caches[i] = (struct plan_cache){.op = any_name(r, a),
                                             .device = (int32_t)rng_range(r, 0, last),
                                             .slots = (int32_t)rng_range(r, 1, 4096),
                                             .margin = (int32_t)rng_range(r, 0, INT32_MAX),
                                             .hits = (int32_t)rng_range(r, 0, 1000000)};
    out->sparse = arena_alloc(&out->arena, 4, sizeof *out->sparse);
    out->n_sparse = out->sparse && rng_range(r, 0, 1) ? (int32_t)rng_range(r, 1, 4) : 0;
    for (int32_t i = 0; i < out->n_sparse; i++)
        out->sparse[i] = (struct plan_sparse){
            3 * i + (int32_t)rng_range(r, 0, 2), rng_range(r, 0, 1) ? 0 : 0.25f * (float)i,
            (uint32_t)i & ((1u << out->n_devices) - 1), (uint32_t)rng_range(r, 0, 1)};
    out->sums = arena_alloc(&out->arena, 3, sizeof *out->sums);
    out->n_sums = out->sums && rng_range(r, 0, 1) ? (int32_t)rng_range(r, 1, 3) : 0;
    const bool wired = rng_range(r, 0, 1);
    for (int32_t i = 0; i < out->n_sums; i++)
        out->sums[i] =
            (struct sum_choice){(uint64_t)i * 1000 + (uint64_t)rng_range(r, 0, 999),
                                wired ? SUM_TREE : (enum sum_way)rng_range(r, 0, SUM_HOST_WAYS - 1),
                                wired ? DT_Q8_0 : DT_F32};
    out->kernels = arena_alloc(&out->arena, (size_t)out->n_devices, sizeof *out->kernels);
    out->n_kernels = out->kernels && rng_range(r, 0, 1) ? out->n_devices : 0;
    for (int32_t i = 0; i < out->n_kernels; i++)
        out->kernels[i] =
            (struct plan_kernels){i, any_name(r, &out->arena), i % 2 ? "" : "lanes16.4"};
    out->inputs = arena_alloc(&out->arena, 3, sizeof *out->inputs);
    out->n_inputs = out->inputs && rng_range(r, 0, 1) ? (int32_t)rng_range(r, 1, 3) : 0;
    for (int32_t i = 0; i < out->n_inputs; i++)
        out->inputs[i] = (struct plan_input){any_name(r, &out->arena), (float)rng_range(r, 0, 9),
                                             (float)rng_range(r, 0, 4) / 4};
    for (int32_t i = 0; i < out->n_sparse; i++)
        if (out->sparse[i].predicts)
            out->sparse[i].threshold = 0;
    out->request.n_points = rng_range(r, 0, 1) ? (int32_t)rng_range(r, 1, REQUEST_POINTS_MAX) : 0;
    uint32_t left = POINTS_WEIGHT;
    for (int32_t i = 0; i < out->request.n_points; i++) {
        const uint32_t weight = i + 1 < out->request.n_points ? left / 3 : left;
        out->request.points[i] = (struct plan_point){(int32_t)rng_range(r, 0, INT32_MAX),
                                                     (int32_t)rng_range(r, 0, INT32_MAX),
                                                     (int32_t)rng_range(r, 0, INT32_MAX),
                                                     weight,
                                                     any_u64(r),
                                                     any_u64(r)};
        left -= weight;
    }
    any_choices(r, out);
}

char *read_whole(const char *path, size_t *bytes)
{
    struct mapped_file f;
    struct oato_error err;
    *bytes = 0;
    if (file_map(path, &f, &err))
        return NULL;
    char *copy = malloc(f.bytes + 1);
    if (copy) {
        if (f.bytes)
            memcpy(copy, f.data, f.bytes);
        copy[f.bytes] = 0;
        *bytes = f.bytes;
    }
    file_unmap(&f);
    return copy;
}

static char scratch[256];

const char *scratch_path(const char *name)
{
    static char path[512];
    if (!scratch[0]) {
        const char *tmp = getenv("TMPDIR");
        snprintf(scratch, sizeof scratch, "%s/oato-planfmt-XXXXXX", tmp && *tmp ? tmp : "/tmp");
        if (!mkdtemp(scratch))
            abort();
    }
    snprintf(path, sizeof path, "%s/%s", scratch, name);
    return path;
}

/* Visits the files; removes them when asked to. */
static int scratch_walk(bool clean)
{
    int n = 0;
    DIR *dir = scratch[0] ? opendir(scratch) : NULL;
    for (struct dirent *e; dir && (e = readdir(dir));) {
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, ".."))
            continue;
        n++;
        if (clean)
            unlink(scratch_path(e->d_name));
    }
    if (dir)
        closedir(dir);
    return n;
}

int scratch_files(void)
{
    return scratch_walk(false);
}

void scratch_clean(void)
{
    scratch_walk(true);
    if (scratch[0])
        rmdir(scratch);
    scratch[0] = 0;
}
