/*
 * test_neuron_clock.c - neuron plans on a simulated machine: an accelerator with room for a fifth
 * of the neurons, and a processor a thirteenth as fast, which is simulated, too, so that its clock
 * tells no real time. The weights are planted: neurons fire as often as the sidecar says. Against
 * plans that have as many neurons on the accelerator, chosen without regard to how often they fire
 * or by PowerInfer's knapsack (the most active ones of the whole model), ours takes more of the
 * load, and is faster in prediction and on the devices' clocks.
 */
#include "executor/executor.h"
#include "solver/solver.h"
#include "tests/executor/harness.h"
#include "tests/solver/plant_law.h"
#include "tests/solver/power_law.h"

// clang-format off
#include <math.h>
#include <stdlib.h>
#include <unistd.h>
#include <cmocka.h>
// clang-format on

enum { LAYERS = 6, NEURONS = 4096, GROUP = 64, GROUPS = NEURONS / GROUP, WIDTH = 256 };
enum { GROUP_BYTES = 3 * GROUP * WIDTH / 32 * 18 }; /* Q4_0 */
enum { TOKENS = 24, HOST = 0, FAST = 1, SLOW = 2, DEVICES = 3 };

/* A thousandth of an RTX 4090, and of the memory of a desktop. */
static const double rate[DEVICES] = {1e4, 1000e6, 76e6};
static const char *const spec[DEVICES] = {
    "", "vram=64MiB,read=1000MB/s,flops=1T,link=25MB/s,latency=1260us,launch=10us,peer=25MB/s",
    "vram=64MiB,read=76MB/s,flops=1T,link=25MB/s,latency=1260us,launch=10us,peer=25MB/s"};
static const double launch_ns = 10e3, latency_ns = 1260e3, link_bytes = 25e6;
static const int active_percent[] = {5, 10, 20, 40, 70, 100};

/* ----------------------------------------------------------------------- model and machine -- */

static struct model *planted_model(struct neurons *n)
{
    struct oato_error err;
    struct model *m = NULL;
    struct gguf *g = NULL;
    char path[64];
    struct random_model shape = random_model_default();
    struct power_law law = power_law_default();
    shape.layers = LAYERS;
    shape.width = WIDTH;
    shape.ffn = NEURONS;
    shape.heads = 4;
    shape.kv_heads = 2;
    shape.vocab = 320;
    shape.dtype = DT_Q4_0;
    shape.tokenizer = false;
    shape.keys = "feed_forward_activation=relu";
    law.spread = 0.8;
    snprintf(path, sizeof path, "neuron_clock.%d.gguf", (int)getpid());
    oato_status status = random_model_save(&shape, path, &err);
    if (!status)
        status = gguf_open(path, &g, &err);
    if (!status)
        status = power_law_neurons(g, &law, n, &err);
    gguf_close(g);
    if (!status)
        status = plant_law(path, n, 0, &err);
    if (!status)
        status = model_open(path, &m, &err);
    unlink(path);
    if (status)
        fail_msg("%s", err.text);
    return m;
}

static void add_row(struct profile *p, int32_t device, const struct oato_op *op, int32_t active)
{
    const struct op_size size = {.rows = 1, .seqs = 1, .active = active};
    const double ns = op_bytes(op, &size) / rate[device] * 1e9 + launch_ns;
    const struct profile_row row = {.device = device,
                                    .op = *op,
                                    .size = size,
                                    .supported = true,
                                    .numerics = "s8b32",
                                    .median_ns = ns,
                                    .p10_ns = ns,
                                    .p90_ns = ns,
                                    .repeats = 1};
    assert_true(profile_put(p, &row));
}

/* As oato-profile would measure it; a host that is too slow to be given anything. */
static void machine(struct profile *p)
{
    profile_init(p);
    p->devices = arena_alloc(&p->arena, DEVICES, sizeof *p->devices);
    p->links = arena_alloc(&p->arena, (size_t)DEVICES * DEVICES, sizeof *p->links);
    assert_true(p->devices && p->links);
    static const char *const ids[] = {"cpu:0", "sim:0", "sim:1"};
    for (int32_t d = 0; d < DEVICES; d++) {
        p->devices[p->n_devices++] = (struct profile_device){.id = ids[d],
                                                             .kind = d ? "sim" : "cpu",
                                                             .model = "",
                                                             .spec = spec[d],
                                                             .is_host = d == HOST,
                                                             .memory_bytes = 1 << 30,
                                                             .free_bytes = 1 << 30,
                                                             .read_bytes_per_s = rate[d],
                                                             .flops_per_s = 1e12,
                                                             .record_overhead_ns = 0,
                                                             .data_sheet = true};
        for (int32_t other = 0; other < DEVICES; other++)
            if (other != d)
                p->links[p->n_links++] = (struct profile_link){
                    .from = other, .to = d, .latency_ns = latency_ns, .bytes_per_s = link_bytes};
    }
    for (int32_t d = FAST; d <= SLOW; d++)
        for (size_t i = 0; i < ARRAY_LEN(active_percent); i++) {
            struct oato_op up = {.kind = OP_GATE_UP,
                                 .dtype = DT_Q4_0,
                                 .k = WIDTH,
                                 .n = NEURONS,
                                 .sparse = SPARSE_ABOVE};
            struct oato_op down = {.kind = OP_MUL_MAT,
                                   .dtype = DT_Q4_0,
                                   .k = NEURONS,
                                   .n = WIDTH,
                                   .sparse = SPARSE_ABOVE};
            add_row(p, d, &up, NEURONS * active_percent[i] / 100);
            add_row(p, d, &down, NEURONS * active_percent[i] / 100);
        }
}

/* ---------------------------------------------------------------------------------- plans --- */

static bool is_neurons(const char *op)
{
    return strstr(op, "ffn_gate") || strstr(op, "ffn_down");
}

static int32_t layer_of(const char *op)
{
    return (int32_t)strtol(op + strlen("blk."), NULL, 10);
}

/* How many groups of each layer a plan has on the accelerator. */
static void groups_of(const struct plan *p, int32_t groups[LAYERS])
{
    memset(groups, 0, LAYERS * sizeof *groups);
    for (int32_t i = 0; i < p->n_parts; i++) {
        const struct plan_part *t = &p->parts[i];
        const bool first = is_neurons(t->op) && !strstr(t->op, "ffn_down");
        if (first && t->device == FAST && t->phases >> PHASE_DECODE & 1)
            groups[layer_of(t->op)] += (int32_t)(t->end - t->begin) / GROUP;
    }
}

/* Bytes of the weights that a plan has on the accelerator, beside those of neurons. */
static uint64_t other_bytes(const struct plan *p, const struct graph *g)
{
    uint64_t bytes = 0;
    for (int32_t i = 0; i < p->n_parts; i++)
        for (int32_t k = 0; k < g->n_ops; k++)
            for (int w = 0; w < g->ops[k].n_weights && !strcmp(g->ops[k].name, p->parts[i].op); w++)
                if (p->parts[i].device == FAST && !is_neurons(p->parts[i].op) &&
                    g->ops[k].weight[w])
                    bytes += g->ops[k].weight[w]->bytes *
                             (uint64_t)(p->parts[i].end - p->parts[i].begin) /
                             (uint64_t)g->ops[k].op.n;
    return bytes;
}

/* The plan as PowerInfer's: everything but neurons on the accelerator, and of these so many groups
 * of each layer's order. */
static void divide_by(struct plan *p, const struct graph *g, const int32_t groups[LAYERS])
{
    struct plan_part *parts = arena_alloc(&p->arena, 2 * (size_t)g->n_ops, sizeof *parts);
    assert_non_null(parts);
    p->parts = parts;
    p->n_parts = 0;
    for (int32_t i = 0; i < g->n_ops; i++) {
        const struct graph_op *o = &g->ops[i];
        const bool neurons = is_neurons(o->name), down = o->op.kind == OP_MUL_MAT;
        const int64_t cut = neurons ? (int64_t)groups[o->layer] * GROUP : o->op.n;
        const bool divided = neurons && cut && cut < NEURONS;
        for (int32_t d = FAST; d <= SLOW; d++) {
            struct plan_part part = {.op = o->name, .phases = 3, .device = d, .home = d};
            part.axis = down && divided ? AXIS_K : AXIS_ROWS;
            part.begin = d == FAST ? 0 : divided ? cut : cut ? o->op.n : 0;
            part.end = divided ? (d == FAST ? cut : NEURONS) : d == FAST && !cut ? 0 : o->op.n;
            if (part.begin < part.end)
                parts[p->n_parts++] = part;
        }
    }
    for (int32_t i = 0; i < p->n_kv; i++)
        p->kv[i].device = FAST;
    for (int32_t i = 0; i < p->n_sparse; i++)
        p->sparse[i].dense = 0;
}

/* PowerInfer's choice of `total` groups: those that fire most, whatever their layer. */
static void knapsack(const struct neurons *n, int32_t total, int32_t groups[LAYERS])
{
    memset(groups, 0, LAYERS * sizeof *groups);
    for (; total > 0; total--) {
        double most = -1;
        int32_t best = 0;
        for (int32_t l = 0; l < LAYERS; l++) {
            double sum = 0;
            for (int i = 0; i < GROUP && groups[l] < GROUPS; i++)
                sum += (double)n->layers[l].ffn_freq[n->layers[l].ffn_order[groups[l] * GROUP + i]];
            if (groups[l] < GROUPS && sum > most) {
                most = sum;
                best = l;
            }
        }
        groups[best]++;
    }
}

/* The share of all activations that the accelerator computes. */
static double load_of(const struct plan *p)
{
    int32_t groups[LAYERS];
    double there = 0, all = 0;
    groups_of(p, groups);
    for (int32_t l = 0; l < LAYERS; l++)
        for (int32_t i = 0; i < NEURONS; i++) {
            const struct neurons_layer *of = &p->neurons->layers[l];
            all += (double)of->ffn_freq[of->ffn_order[i]];
            there += i < groups[l] * GROUP ? (double)of->ffn_freq[of->ffn_order[i]] : 0;
        }
    return there / all;
}

/* --------------------------------------------------------------------------------- clocks --- */

static double predicted_ms(struct plan *p, const struct model *m, const struct profile *machine_of)
{
    struct oato_error err;
    if (simulation_predict(p, m, machine_of, &err))
        fail_msg("%s", err.text);
    return (double)p->decode_ns * 1e-6;
}

/* A step of decode, on average. */
static double clock_ms(const struct model *m, const struct plan *p)
{
    struct oato_error err;
    struct engine_stats before, after;
    int32_t ids[TOKENS], seq;
    fill_ids(ids, TOKENS, m->shape.vocab, 6);
    struct engine *e = open_engine(m, p, (struct engine_options){.ubatch = TOKENS});
    if (engine_seq_create(e, &seq, &err))
        fail_msg("%s", err.text);
    engine_get_stats(e, &before);
    for (int i = 0; i < TOKENS; i++) {
        const struct engine_input in = {seq, &ids[i], 1, LOGITS_LAST, false};
        if (engine_step(e, &in, 1, &err))
            fail_msg("%s", err.text);
    }
    engine_get_stats(e, &after);
    engine_close(e);
    return (double)(after.clock_ns - before.clock_ns) * 1e-6 / TOKENS;
}

struct result {
    double load, predicted, clock;
};

static struct result result_of(const char *name, struct plan *p, const struct model *m,
                               const struct profile *machine_of)
{
    const struct result r = {load_of(p), predicted_ms(p, m, machine_of), clock_ms(m, p)};
    print_message("%-16s load %5.1f %%, predicted %7.3f ms, on the clocks %7.3f ms (%+.1f %%)\n",
                  name, r.load * 100, r.predicted, r.clock, (r.predicted / r.clock - 1) * 100);
    assert_true(fabs(r.predicted / r.clock - 1) < 0.1);
    return r;
}

static void neuron_plans_use_the_accelerator(void **state)
{
    (void)state;
    struct oato_error err;
    struct profile p;
    struct neurons counted;
    struct plan plan;
    struct model *m = planted_model(&counted);
    int32_t ours[LAYERS], groups[LAYERS], total = 0;
    machine(&p);
    struct planner_options o;
    planner_options_init(&o);
    o.request = (struct plan_request){.prompt = 1,
                                      .generate = TOKENS,
                                      .context = 64,
                                      .batch = 1,
                                      .ubatch = TOKENS,
                                      .kv = DT_F16,
                                      .objective = OBJECTIVE_TIME_PER_TOKEN};
    /* everything but the neurons, and a fifth of these */
    o.budgets[o.n_budgets++] = (struct device_budget){"sim:0", (uint64_t)(5.4 * 0x1p20)};
    o.gap = 1e-3;
    o.neurons = &counted;
    if (planner_make(m, &p, &o, &plan, NULL, &err))
        fail_msg("%s", err.text);
    struct graph g;
    if (plan_apply(&plan, m, &g, &err))
        fail_msg("%s", err.text);
    groups_of(&plan, ours);
    for (int32_t l = 0; l < LAYERS; l++)
        total += ours[l];
    print_message("%d of %d groups on the accelerator, skipping in %d layers\n", total,
                  LAYERS * GROUPS, plan.n_sparse);
    const struct result neurons = result_of("neuron plan", &plan, m, &p);

    uint64_t bytes = total * GROUP_BYTES + other_bytes(&plan, &g);
    memset(groups, 0, sizeof groups);
    divide_by(&plan, &g, groups);
    total = (int32_t)((bytes - other_bytes(&plan, &g) + GROUP_BYTES - 1) / GROUP_BYTES);
    knapsack(&counted, total, groups);
    divide_by(&plan, &g, groups);
    const struct result by_frequency = result_of("knapsack", &plan, m, &p);

    for (int32_t l = 0, left = total; l < LAYERS; left -= groups[l++])
        groups[l] = left / (LAYERS - l);
    divide_by(&plan, &g, groups);
    for (int32_t l = 0; l < LAYERS; l++) {
        int32_t *order = arena_alloc(&counted.arena, NEURONS, sizeof *order);
        for (int32_t i = 0; i < NEURONS; i++)
            order[i] = i;
        counted.layers[l].ffn_order = order;
    }
    plan.neurons_hash = neurons_hash(&counted);
    const struct result any = result_of("frequency-free", &plan, m, &p);

    assert_true(any.load < 0.25 && neurons.load >= 0.7);
    assert_true(neurons.predicted < by_frequency.predicted && neurons.clock < by_frequency.clock);
    assert_true(neurons.predicted < any.predicted && neurons.clock < any.clock);
    graph_free(&g);
    plan_free(&plan);
    neurons_free(&counted);
    profile_free(&p);
    model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(neuron_plans_use_the_accelerator),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
