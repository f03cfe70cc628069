/*
 * test_memory.c - what a plan states is never less than what the engine allocates, nor more by
 * 2 % where all was profiled: for every instruction set that runs here, models of several kinds,
 * placements, ranks and steps, by the engine's own account; and the least budget for which there is
 * a plan is one with which the engine runs.
 */
#include "executor/executor.h"
#include "kernels/device.h"
#include "solver/solver.h"
#include "tests/executor/harness.h"
#include "tests/pipeline/together.h"

// clang-format off
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <unistd.h>
#include <cmocka.h>
// clang-format on

#define MIB ((uint64_t)1 << 20)
#define SIM "vram=64MiB,read=900GB/s,flops=80T,link=25GB/s,latency=1us"

enum { DEVICES_MOST = 3, CHECKS = 6 };

static const char *isa_now;

/* What devices take of the system, but for the address space of the host's weights. */
static uint64_t pages;
enum { SLABS = 128 << 20 };
/* NOLINTBEGIN(bugprone-reserved-identifier): the linker's names */
void *__real_pages_alloc(size_t bytes);
void __real_pages_free(void *p, size_t bytes);
void *__wrap_pages_alloc(size_t bytes);
void __wrap_pages_free(void *p, size_t bytes);

void *__wrap_pages_alloc(size_t bytes)
{
    pages += bytes < SLABS ? bytes : 0;
    return __real_pages_alloc(bytes);
}

void __wrap_pages_free(void *p, size_t bytes)
{
    pages -= p && bytes < SLABS ? bytes : 0;
    __real_pages_free(p, bytes);
}
/* NOLINTEND(bugprone-reserved-identifier) */

static char folder[] = "/tmp/test_memory.XXXXXX";

/* ------------------------------------------------------------------------------- profiles -- */

static void put(struct profile *p, const struct oato_device *d, int32_t device,
                const struct oato_op *op, const struct op_size *size)
{
    uint64_t prepared = 0;
    for (int i = 0; i < op_weight_least(op); i++) {
        int64_t rows, k;
        if (op_weight_shape(op, i, &rows, &k))
            prepared +=
                weight_bytes_of(d, op_weight_dtype(op, i), rows, k, op_weight_use_at(op, i));
    }
    const double ns = 1000 + op_bytes(op, size) / (device ? 100 : 10) + op_flops(op, size) / 100;
    const struct profile_row row = {.device = device,
                                    .op = *op,
                                    .size = *size,
                                    .supported = d->ops->supports(d, op),
                                    .prepared_bytes = prepared,
                                    .workspace_bytes = d->ops->workspace_bytes(d, op, size),
                                    .numerics = "f32",
                                    .median_ns = ns,
                                    .p10_ns = ns,
                                    .p90_ns = ns,
                                    .repeats = 3};
    assert_true(profile_put(p, &row));
}

/* At the sizes that oato-profile --quick has. */
static void put_op(struct profile *p, const struct oato_device *d, int32_t device,
                   const struct graph_op *o, oato_dtype kv)
{
    static const int32_t rows[] = {1, 8, 64, 512};
    const struct oato_op op = graph_op_with_kv(o, kv);
    for (size_t i = 0; i < ARRAY_LEN(rows); i++)
        for (int64_t depth = 64; depth <= 512; depth *= 8) {
            struct op_size size = {.rows = rows[i], .seqs = 1};
            if (op.kind == OP_ATTENTION)
                size.kv_positions = depth * rows[i];
            if (depth == 64 || op.kind == OP_ATTENTION)
                put(p, d, device, &op, &size);
        }
}

/* What the profiler would record of these devices for the model, with made up times. */
static void profile_of(const struct model *m, int sims, bool storage, oato_dtype kv,
                       struct profile *p)
{
    struct oato_error err;
    const struct graph *g = &m->graph;
    profile_init(p);
    p->version = PROFILE_VERSION;
    p->tool = "test";
    p->date = "2026-01-01";
    p->devices = arena_alloc(&p->arena, DEVICES_MOST, sizeof *p->devices);
    p->links = arena_alloc(&p->arena, 2 * DEVICES_MOST, sizeof *p->links);
    assert_true(p->devices && p->links);
    const int32_t n = graph_matches(g, NULL, 0);
    struct graph_match *matches = calloc((size_t)n + 1, sizeof *matches);
    assert_non_null(matches);
    assert_int_equal(graph_matches(g, matches, n), n);
    for (int32_t i = 0; i <= sims; i++) {
        const struct device_options options = {.threads = 1, .isa = isa_now};
        struct oato_device *d;
        struct device_info info;
        if (device_open(i ? "sim:" SIM : "cpu", i ? i - 1 : 0, &options, &d, &err))
            fail_msg("%s", err.text);
        d->ops->info(d, &info);
        p->devices[p->n_devices++] =
            (struct profile_device){.id = profile_string(p, info.id),
                                    .kind = i ? "sim" : "cpu",
                                    .model = profile_string(p, info.model),
                                    .spec = i ? SIM : "",
                                    .memory_bytes = info.memory_bytes,
                                    .free_bytes = i ? 64 * MIB : 1024 * MIB,
                                    .threads = 1,
                                    .is_host = !i,
                                    .read_bytes_per_s = i ? 1e11 : 1e10,
                                    .flops_per_s = 1e11};
        for (int way = 0; way < 2 && i; way++)
            p->links[p->n_links++] = (struct profile_link){
                .from = way ? i : 0, .to = way ? 0 : i, .latency_ns = 1000, .bytes_per_s = 5e9};
        for (int32_t o = 0; o < g->n_ops; o++)
            put_op(p, d, i, &g->ops[o], kv);
        for (int32_t o = 0; o < n; o++) {
            const struct graph_op fused = graph_fused(g, matches[o]);
            put_op(p, d, i, &fused, kv);
        }
        d->ops->close(d);
    }
    free(matches);
    const struct profile_storage rate = {.depth = 4,
                                         .bytes = 1 << 20,
                                         .bytes_per_s = 1e9,
                                         .p10_bytes_per_s = 1e9,
                                         .p90_bytes_per_s = 1e9,
                                         .passes = 3};
    if (storage)
        assert_true(profile_put_storage(p, &rate, 1));
}

/* ------------------------------------------------------------------------------ one case --- */

struct memory_case {
    const char *name;
    struct random_model model;
    oato_dtype profiled; /* the type of the model that the profile is of; its width is another one,
                            too, unless it is the model's */
    int sims;
    bool storage;
    const char *solver;
    int32_t context, ubatch, batch;
    oato_dtype kv;
    uint64_t sim_budget; /* 0: all of it */
    int32_t expert_cache;
};

static struct model *model_of(const struct random_model *r)
{
    struct oato_error err;
    struct model *m;
    if (random_model_open(r, &m, &err))
        fail_msg("%s", err.text);
    return m;
}

static struct planner_options options_of(const struct memory_case *c, uint64_t budget)
{
    struct planner_options o;
    planner_options_init(&o);
    o.solver = c->solver;
    o.request.prompt = 32;
    o.request.generate = 8;
    o.request.context = c->context;
    o.request.ubatch = c->ubatch;
    o.request.batch = c->batch;
    o.request.kv = c->kv;
    o.expert_cache = c->expert_cache;
    o.time_limit_s = 2;
    o.budgets[o.n_budgets++] = (struct device_budget){.id = "cpu:0", .bytes = budget};
    if (c->sims && c->sim_budget)
        o.budgets[o.n_budgets++] = (struct device_budget){.id = "sim:0", .bytes = c->sim_budget};
    return o;
}

static bool plan_at(const struct memory_case *c, const struct model *m, const struct profile *p,
                    uint64_t budget, struct plan *plan)
{
    struct oato_error err;
    const struct planner_options o = options_of(c, budget);
    const oato_status status = planner_make(m, p, &o, plan, NULL, &err);
    if (status && status != OATO_EFIT)
        fail_msg("%s, %s: %s", isa_now, c->name, err.text);
    return !status;
}

/* What plans state may be more than what is allocated by so much, where the profile is of the very
 * model and has steps of that size; where it has not, what layouts and kernels take is bounded, not
 * known. */
static const double STATED_MOST = 1.02;

static void check_stated(const struct memory_case *c, const struct plan *plan, int32_t rank,
                         const struct engine_stats *stats)
{
    for (int32_t d = 0, own = 0; d < plan->n_devices; d++) {
        if (plan->devices[d].rank != rank)
            continue;
        const struct engine_device_stats *s = &stats->device[own++];
        const uint64_t stated = plan->devices[d].planned_bytes;
        const bool known = c->profiled == c->model.dtype && (c->ubatch == 64 || c->ubatch == 512);
        if (stated && (s->memory_bytes > stated ||
                       (known && (double)stated > STATED_MOST * (double)s->memory_bytes)))
            fail_msg("%s, %s: %s takes %" PRIu64 " bytes, of which weights %" PRIu64 ", KV %" PRIu64
                     ", activations %" PRIu64 ", workspace %" PRIu64 ", staging %" PRIu64
                     "; the plan states %" PRIu64,
                     isa_now, c->name, s->info.id, s->memory_bytes, s->weight_bytes, s->kv_bytes,
                     s->arena_bytes, s->workspace_bytes, s->staging_bytes, stated);
    }
}

static void nothing(void *user, const char *text)
{
    (void)user;
    (void)text;
}

/* The engine takes no more than the plan states, and runs a prompt and a token. */
static void runs(const struct memory_case *c, const struct model *m, const struct plan *plan)
{
    struct oato_error err;
    struct engine *e;
    struct engine_stats stats;
    const struct engine_options options = {
        .isa = isa_now, .threads = 1, .prepared_cache = c->storage ? folder : NULL};
    pages = 0;
    if (engine_open(m, plan, &options, nothing, NULL, &e, &err))
        fail_msg("%s, %s, budget %llu, stated %llu: %s", isa_now, c->name,
                 (unsigned long long)plan->devices[0].budget_bytes,
                 (unsigned long long)plan->devices[0].planned_bytes, err.text);
    engine_get_stats(e, &stats);
    check_stated(c, plan, 0, &stats);
    /* simulated devices take whole pages of the host's, which are not theirs to state */
    const uint64_t beside = stats.device[0].memory_bytes - stats.device[0].weight_bytes;
    if (!c->sims &&
        (pages > beside ||
         (double)(beside - pages) > (STATED_MOST - 1) * (double)stats.device[0].memory_bytes))
        fail_msg("%s, %s: %llu bytes are taken beside weights, and %llu stated", isa_now, c->name,
                 (unsigned long long)pages, (unsigned long long)beside);
    int32_t seq, ids[20];
    fill_ids(ids, 20, m->shape.vocab, 3);
    if (engine_seq_create(e, &seq, &err) ||
        engine_feed(e, seq, ids, 20, LOGITS_LAST, NULL, NULL, &err) ||
        engine_feed(e, seq, ids, 1, LOGITS_LAST, NULL, NULL, &err))
        fail_msg("%s, %s: %s", isa_now, c->name, err.text);
    engine_close(e);
}

static void check_case(const struct memory_case *c)
{
    struct random_model other = c->model;
    other.dtype = c->profiled;
    if (c->profiled != c->model.dtype) {
        other.width = 256;
        other.ffn = 512;
        other.head_dim = 64;
    }
    struct model *m = model_of(&c->model), *of = model_of(&other);
    struct profile p;
    struct plan plan;
    profile_of(of, c->sims, c->storage, c->kv, &p);
    assert_true(plan_at(c, m, &p, 512 * MIB, &plan));
    assert_int_equal(plan.n_caches > 0, c->expert_cache > 0);
    runs(c, m, &plan);
    uint64_t fits = plan.devices[0].planned_bytes, below = 0;
    plan_free(&plan);
    while (fits - below > 4096) { /* the least one, to a page */
        const uint64_t middle = below + (fits - below) / 2;
        const bool fit = plan_at(c, m, &p, middle, &plan);
        if (fit && !c->storage && (fits - below) < 512 * 1024) /* close to it every plan counts */
            runs(c, m, &plan);
        if (fit)
            plan_free(&plan);
        *(fit ? &fits : &below) = middle;
    }
    assert_true(plan_at(c, m, &p, fits, &plan));
    runs(c, m, &plan);
    plan_free(&plan);
    profile_free(&p);
    model_close(of);
    model_close(m);
}

/* Ranks with parts of every layer, and with layers of their own. */
static void check_ranks(const struct memory_case *c)
{
    struct model *m = model_of(&c->model);
    struct profile p;
    profile_of(m, c->sims, false, c->kv, &p);
    for (int split = SPLIT_TENSOR; split <= SPLIT_LAYERS; split++) {
        struct oato_error err;
        struct plan plan;
        struct engine_stats stats[FORK_RANKS];
        const struct planner_options o = options_of(c, 512 * MIB);
        const struct rank_options ranks = {.split = (enum rank_split)split,
                                           .ranks = 2,
                                           .hosts = 2,
                                           .profiles = {&p},
                                           .n_profiles = 1,
                                           .bytes_per_s = 1e10,
                                           .network_given = true,
                                           .wire = DT_F32};
        const struct engine_options each = {.isa = isa_now, .threads = 1};
        if (ranks_plan(m, &o, &ranks, NULL, &plan, &err))
            fail_msg("%s, %s: %s", isa_now, c->name, err.text);
        together_run(m, &plan, &each, 20, stats);
        for (int32_t r = 0; r < 2; r++)
            check_stated(c, &plan, r, &stats[r]);
        plan_free(&plan);
    }
    profile_free(&p);
    model_close(m);
}

/* --------------------------------------------------------------------------------- cases --- */

static struct random_model shape_of(const char *architecture, oato_dtype dtype)
{
    struct random_model r = random_model_default();
    r.architecture = architecture;
    r.layers = 3;
    r.width = 512;
    r.ffn = 768;
    r.heads = 8;
    r.kv_heads = 4;
    r.vocab = 515; /* rows that are no whole groups */
    r.context = 2048;
    r.dtype = dtype;
    r.tokenizer = false;
    if (!strcmp(architecture, "lfm2"))
        r.keys = "attention.head_count_kv=0,4,0 shortconv.l_cache=3";
    if (!strcmp(architecture, "qwen3moe")) {
        r.experts = 8;
        r.experts_used = 2;
        r.ffn = 256;
    }
    return r;
}

static void check_all(const char *isa)
{
    const struct memory_case cases[] = {
        {"dense, steps of one size", shape_of("llama", DT_Q4_0), DT_Q4_0, 0, false, "cpu", 256, 64,
         1, DT_F16, 0, 0},
        {"dense, many sequences", shape_of("llama", DT_Q8_0), DT_Q8_0, 0, false, "cpu", 2048, 512,
         6, DT_Q8_0, 0, 0},
        {"a profile of other shapes and types", shape_of("llama", DT_Q8_0), DT_Q4_0, 0, false,
         "cpu", 512, 100, 2, DT_F16, 0, 0},
        {"a type with a codebook that was not profiled", shape_of("llama", DT_IQ3_XXS), DT_F16, 0,
         false, "cpu", 256, 32, 1, DT_F16, 0, 0},
        {"experts", shape_of("qwen3moe", DT_Q4_K), DT_Q4_K, 0, false, "cpu", 256, 64, 1, DT_F16, 0,
         0},
        {"experts, other types", shape_of("qwen3moe", DT_F16), DT_Q5_K, 0, false, "cpu", 256, 64, 2,
         DT_F32, 0, 0},
        {"states", shape_of("lfm2", DT_Q8_0), DT_Q8_0, 0, false, "cpu", 256, 64, 2, DT_F16, 0, 0},
        {"windows", shape_of("gemma3", DT_Q4_0), DT_Q4_0, 0, false, "cpu", 1024, 64, 2, DT_F16, 0,
         0},
        {"two devices", shape_of("llama", DT_Q4_0), DT_Q4_0, 1, false, "affinity", 256, 64, 1,
         DT_F16, 2 * MIB, 0},
        {"three devices, several sequences", shape_of("llama", DT_Q8_0), DT_Q8_0, 2, false,
         "affinity", 512, 64, 3, DT_F16, 3 * MIB, 0},
        {"two devices, experts of a type that was not profiled", shape_of("qwen3moe", DT_Q8_0),
         DT_Q4_0, 1, false, "affinity", 256, 64, 1, DT_F16, 3 * MIB, 0},
        {"streaming", shape_of("llama", DT_Q8_0), DT_Q8_0, 0, true, "cpu", 256, 64, 1, DT_F16, 0,
         0},
        {"streaming, a profile of other shapes", shape_of("llama", DT_Q8_0), DT_Q4_0, 0, true,
         "cpu", 192, 16, 2, DT_F16, 0, 0},
        {"streaming experts, and KV in a file", shape_of("qwen3moe", DT_Q8_0), DT_Q8_0, 0, true,
         "cpu", 2048, 64, 1, DT_F16, 0, 0},
        {"prompts over KV of the host", shape_of("llama", DT_Q4_0), DT_Q4_0, 1, false, "auto", 2048,
         64, 1, DT_F16, 8 * MIB, 0},
        {"streaming to a device", shape_of("llama", DT_Q4_0), DT_Q4_0, 1, true, "auto", 256, 32, 1,
         DT_F16, 2 * MIB, 0},
    };
    const struct memory_case ranks[] = {
        {"ranks", shape_of("llama", DT_Q4_0), DT_Q4_0, 0, false, "auto", 256, 64, 1, DT_F16, 0, 0},
        {"ranks with a device each", shape_of("llama", DT_Q8_0), DT_Q8_0, 1, false, "auto", 256, 64,
         1, DT_F16, 8 * MIB, 0},
        {"ranks, experts", shape_of("qwen3moe", DT_Q4_0), DT_Q4_0, 0, false, "auto", 256, 64, 1,
         DT_F16, 0, 0},
    };
    isa_now = isa;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        check_case(&cases[i]);
    for (size_t i = 0; i < ARRAY_LEN(ranks); i++)
        check_ranks(&ranks[i]);
}

static bool runs_here(const char *isa)
{
    struct oato_error err;
    struct oato_device *d;
    const struct device_options options = {.threads = 1, .isa = isa};
    if (device_open("cpu", 0, &options, &d, &err)) {
        print_message("%s: %s\n", isa, err.text);
        return false;
    }
    d->ops->close(d);
    return true;
}

/* What plans count for a type that nobody timed. */
static void no_layout_is_roomier(const char *spec, const char *isa)
{
    struct oato_error err;
    struct oato_device *d;
    const struct device_options options = {.threads = 1, .isa = isa};
    if (device_open(spec, 0, &options, &d, &err))
        return;
    for (int type = 0; type < DT_COUNT; type++)
        for (int64_t rows = 1; rows < 600; rows += 47) {
            const struct oato_op op = {.kind = OP_MUL_MAT, .dtype = type, .k = 1024, .n = 64};
            const oato_dtype t = (oato_dtype)type;
            if (dtype_is_weight(t) && d->ops->supports(d, &op))
                assert_in_range(weight_bytes_of(d, t, rows, op.k, WEIGHT_MATRIX), 1,
                                op_matrix_bytes_most(t, rows, op.k));
        }
    d->ops->close(d);
}

static void a_gpus_layout_is_no_roomier(void **state)
{
    (void)state;
    no_layout_is_roomier("cuda:0", NULL); /* an emulated one, if any */
}

static void plans_state_enough_on(const char *isa)
{
    if (!runs_here(isa))
        skip();
    no_layout_is_roomier("cpu", isa);
    check_all(isa);
}

#define ON(isa)                                                                                    \
    static void plans_state_enough_on_##isa(void **state)                                          \
    {                                                                                              \
        (void)state;                                                                               \
        plans_state_enough_on(#isa);                                                               \
    }
ON(ref)
ON(avx2)
ON(avxvnni)
ON(avx512)
ON(amx)
ON(neon)
#undef ON

static int setup(void **state)
{
    (void)state;
    return !mkdtemp(folder);
}

static int teardown(void **state)
{
    (void)state;
    char command[64];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command); /* NOLINT(cert-env33-c): of a test */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_gpus_layout_is_no_roomier),
        cmocka_unit_test(plans_state_enough_on_ref),
        cmocka_unit_test(plans_state_enough_on_avx2),
        cmocka_unit_test(plans_state_enough_on_avxvnni),
        cmocka_unit_test(plans_state_enough_on_avx512),
        cmocka_unit_test(plans_state_enough_on_amx),
        cmocka_unit_test(plans_state_enough_on_neon),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
