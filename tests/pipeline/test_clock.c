/*
 * test_clock.c - the simulation of a plan against the engine that runs it: on simulated devices so
 * slow that what the processor really takes is lost in their declared costs, the devices' clocks
 * must show what was simulated, wherever the parts are, whatever is streamed, in a chunk or more,
 * record by record or in spans.
 * The same for plans of 2 and 4 ranks, forks of this process of which each has such a device; their
 * network takes no time.
 */
#include "executor/executor.h"
#include "solver/solver.h"
#include "tests/executor/harness.h"
#include "tests/pipeline/together.h"

// clang-format off
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <cmocka.h>
// clang-format on

enum { PLANS = 24, PROMPT = 150, CHUNK = 70, UNIT = 128, PARTS = 512 };
enum { PREFILL = 1u << PHASE_PREFILL, DECODE = 1u << PHASE_DECODE, BOTH = PREFILL | DECODE };

/* Hundreds of milliseconds for what takes the processor one. */
static const double flops = 2e6, link_bytes = 1e5, latency_ns = 50e6, peer_bytes = 3e5;
#define SPEC "vram=64MiB,read=1000TB/s,flops=2M,link=100KB/s,latency=50ms,launch=0s"
static const char spec[] = SPEC, spec_that_reaches[] = SPEC ",peer=300KB/s",
                  spec_of_spans[] = SPEC ",spans=on,rows=1+16+64,unit=200ms";
static const int32_t span_rows[] = {1, 16, 64};
static const double unit_ns = 200e6;

static struct model *wide_model(uint64_t seed, int32_t kv_heads)
{
    struct oato_error err;
    struct model *m = NULL;
    struct random_model shape = random_model_default();
    shape.layers = 4;
    shape.width = 256;
    shape.ffn = 1024;
    shape.heads = 4;
    shape.kv_heads = kv_heads;
    shape.vocab = 320;
    shape.dtype = DT_F32;
    shape.seed = seed;
    shape.tokenizer = false;
    if (random_model_open(&shape, &m, &err))
        fail_msg("%s", err.text);
    return m;
}

/* The machine as it is declared; a host that takes no time. */
static void machine(struct profile *p, const struct plan *plan, int32_t devices)
{
    profile_init(p);
    p->devices = arena_alloc(&p->arena, (size_t)devices, sizeof *p->devices);
    const size_t n = (size_t)devices;
    p->links = arena_alloc(&p->arena, n * n, sizeof *p->links);
    assert_true(p->devices && p->links);
    for (int32_t d = 0; d < devices; d++) {
        p->devices[p->n_devices++] = (struct profile_device){.id = plan->devices[d].id,
                                                             .kind = plan->devices[d].kind,
                                                             .model = "",
                                                             .spec = "",
                                                             .is_host = !d,
                                                             .read_bytes_per_s = 1e15,
                                                             .flops_per_s = d ? flops : 1e15,
                                                             .data_sheet = true};
        if (!strcmp(plan->devices[d].spec, spec_of_spans)) {
            struct profile_device *own = &p->devices[d];
            own->spans = true;
            own->unit_overhead_ns = unit_ns;
            memcpy(own->rows, span_rows, sizeof span_rows);
        }
        for (int way = 0; way < 2 && d; way++)
            p->links[p->n_links++] = (struct profile_link){.from = way ? d : 0,
                                                           .to = way ? 0 : d,
                                                           .latency_ns = latency_ns,
                                                           .bytes_per_s = link_bytes};
        for (int32_t other = 1; other < devices && d; other++)
            if (other != d && !strcmp(plan->devices[d].spec, spec_that_reaches))
                p->links[p->n_links++] = (struct profile_link){
                    .from = other, .to = d, .latency_ns = latency_ns, .bytes_per_s = peer_bytes};
    }
}

/* ------------------------------------------------------------------------------ placements -- */

static void put(struct plan *p, const char *op, enum op_axis axis, int64_t begin, int64_t end,
                uint32_t phases, int32_t device, int32_t home)
{
    assert_true(p->n_parts < PARTS);
    p->parts[p->n_parts++] = (struct plan_part){.op = op,
                                                .axis = axis,
                                                .begin = begin,
                                                .end = end,
                                                .phases = phases,
                                                .device = device,
                                                .home = home};
}

/* Kept there, or with the host's share of it streamed for prefill. */
static void put_part(struct plan *p, const char *op, enum op_axis axis, int64_t begin, int64_t end,
                     int32_t device, int32_t stream)
{
    const bool streams = !device && stream;
    if (streams)
        put(p, op, axis, begin, end, PREFILL, stream, 0);
    put(p, op, axis, begin, end, streams ? DECODE : BOTH, device, device);
}

static void room(struct plan *p, const struct graph *g)
{
    p->parts = arena_alloc(&p->arena, PARTS, sizeof *p->parts);
    p->kv = arena_alloc(&p->arena, (size_t)g->n_layers * (size_t)p->n_devices, sizeof *p->kv);
    assert_true(p->parts && p->kv);
}

/* Layers divided equally between the devices beside the host, attention by heads; what sums is on
 * one of them, or on the host. */
static void divide(struct plan *p, const struct graph *g, int32_t base)
{
    const int32_t n = p->n_devices - 1;
    room(p, g);
    for (int32_t i = 0; i < g->n_ops; i++) {
        const struct graph_op *o = &g->ops[i];
        const int made_by = i ? g->ops[g->values[o->in[0]].producer].op.kind : OP_NONE;
        const bool heads = o->op.kind == OP_QKV || o->op.kind == OP_ROPE || o->kv_layer >= 0;
        const bool summed =
            o->op.kind == OP_MUL_MAT && (made_by == OP_ATTENTION || made_by == OP_GATE_UP);
        const enum op_axis axis = heads ? AXIS_HEADS : summed ? AXIS_K : AXIS_ROWS;
        const bool whole = !heads && !summed && o->op.kind != OP_GATE_UP;
        const int64_t extent = op_axis_extent(&o->op, axis);
        for (int32_t d = 1; d <= n && !whole; d++) {
            const int64_t begin = extent * (d - 1) / n, end = extent * d / n;
            put(p, o->name, axis, begin, end, BOTH, d, d);
            if (o->op.kind == OP_KV_STORE)
                p->kv[p->n_kv++] = (struct plan_kv){o->kv_layer, (int32_t)begin, (int32_t)end, d};
        }
        if (whole)
            put(p, o->name, axis, 0, extent, BOTH, base, base);
    }
}

static void place(struct plan *p, const struct graph *g, struct random *r)
{
    const uint32_t n = (uint32_t)p->n_devices;
    room(p, g);
    for (int32_t i = 0; i < g->n_ops; i++) {
        const struct graph_op *o = &g->ops[i];
        const bool streams = o->op.kind == OP_MUL_MAT || o->op.kind == OP_QKV ||
                             o->op.kind == OP_ATTENTION; /* its KV */
        const int32_t stream = random_below(r, 2) ? 1 + (int32_t)random_below(r, n - 1) : 0;
        int32_t device = (int32_t)random_below(r, n);
        if (o->op.kind == OP_KV_STORE)
            p->kv[p->n_kv++] = (struct plan_kv){o->kv_layer, 0, o->op.kv_heads, device};
        if (o->op.kind == OP_ATTENTION)
            device = p->kv[p->n_kv - 1].device;
        if (o->op.kind != OP_GATE_UP) {
            put_part(p, o->name, AXIS_ROWS, 0, o->op.n, device, streams ? stream : 0);
            continue;
        }
        for (int64_t begin = 0, end; begin < o->op.n; begin = end) {
            end = begin + UNIT * (1 + random_below(r, 6));
            end = end > o->op.n ? o->op.n : end;
            device = (int32_t)random_below(r, n);
            put_part(p, o->name, AXIS_ROWS, begin, end, device, stream);
            put_part(p, g->ops[i + 1].name, AXIS_K, begin, end, device, stream);
        }
        i++; /* what follows is the other half */
    }
}

/* ---------------------------------------------------------------------------------- clocks -- */

static uint64_t clock_of(const struct engine *e)
{
    struct engine_stats stats;
    engine_get_stats(e, &stats);
    return stats.clock_ns;
}

static void run(const struct model *m, const struct plan *p, bool timing_only,
                double ns[PHASE_COUNT])
{
    struct oato_error err;
    int32_t ids[PROMPT + 1], seq;
    fill_ids(ids, PROMPT + 1, m->shape.vocab, 6);
    struct engine *e = open_engine(m, p, (struct engine_options){.timing_only = timing_only});
    if (engine_seq_create(e, &seq, &err) ||
        engine_feed(e, seq, ids, PROMPT, LOGITS_LAST, NULL, NULL, &err))
        fail_msg("%s", err.text);
    const uint64_t prefill = clock_of(e);
    const struct engine_input in = {seq, &ids[PROMPT], 1, LOGITS_LAST, false};
    if (engine_step(e, &in, 1, &err))
        fail_msg("%s", err.text);
    ns[PHASE_PREFILL] = (double)prefill;
    ns[PHASE_DECODE] = (double)(clock_of(e) - prefill);
    engine_close(e);
}

/* All ranks have the same machine. */
static void simulate(const struct model *m, const struct plan *p, double ns[PHASE_COUNT])
{
    static const char *const names[PHASE_COUNT] = {"prefill", "decode"};
    struct oato_error err;
    struct simulation *s;
    struct profile machine_of;
    struct text t;
    machine(&machine_of, p, p->n_devices / plan_ranks(p));
    const struct rank_options same = {
        .profiles = {&machine_of}, .n_profiles = 1, .bytes_per_s = 1e15, .network_given = true};
    if (simulation_run(p, m, &same, &s, &err))
        fail_msg("%s", err.text);
    text_init(&t);
    report_simulation(s, true, &t);
    json_t *j = json_loadb(t.data, t.len, 0, NULL);
    for (int phase = 0; phase < PHASE_COUNT; phase++)
        ns[phase] =
            json_number_value(json_object_get(json_object_get(j, names[phase]), "simulated_ns"));
    json_decref(j);
    text_free(&t);
    simulation_free(s);
    profile_free(&machine_of);
}

/* Runs the plan, of the i-th case. Returns by how much the simulation is off. */
static double plan_compare(const struct model *m, struct plan *p, int i)
{
    double real[PHASE_COUNT], simulated[PHASE_COUNT], worst = 0;
    run(m, p, i % 4 >= 2, real);
    simulate(m, p, simulated);
    for (int phase = 0; phase < PHASE_COUNT; phase++) {
        const double off = simulated[phase] / real[phase] - 1;
        worst = fmax(worst, fabs(off));
        if (fabs(off) > 0.03)
            fail_msg("plan %d, %s: simulated %.1f ms, on the devices' clocks %.1f ms", i,
                     phase ? "decode" : "prefill", simulated[phase] * 1e-6, real[phase] * 1e-6);
    }
    return worst;
}

static void plan_start(struct plan *p, const struct model *m, struct graph *fused, int32_t sims,
                       int i)
{
    plan_begin(p, m, sims, i % 3 ? spec_that_reaches : spec);
    plan_fuse_all(p, m, fused);
    p->request.prompt = PROMPT;
    p->request.generate = 1;
    p->request.ubatch = i % 2 ? CHUNK : PROMPT;
}

static void the_clocks_show_layers_that_are_divided_by_heads(void **state)
{
    (void)state;
    struct model *m = wide_model(3, 4);
    for (int i = 0; i < 8; i++) {
        struct plan p;
        struct graph fused;
        plan_start(&p, m, &fused, i & 1 ? 4 : 2, i);
        divide(&p, &fused, i / 2 % 3);
        plan_compare(m, &p, i);
        graph_free(&fused);
        plan_free(&p);
    }
    model_close(m);
}

static void the_clocks_of_the_devices_show_what_was_simulated(void **state)
{
    (void)state;
    struct random r = random_of_run();
    struct model *m = wide_model(3, 2);
    double worst = 0;
    for (int i = 0; i < PLANS; i++) {
        struct plan p;
        struct graph fused;
        plan_start(&p, m, &fused, 1 + i % 2, i);
        place(&p, &fused, &r);
        worst = fmax(worst, plan_compare(m, &p, i));
        graph_free(&fused);
        plan_free(&p);
    }
    print_message("at most %.2f %% off\n", worst * 100);
    model_close(m);
}

/* Functions of spans: what they take is counted in calls and steps of rows, whether attention is on
 * the device, too (0, 1: at random; 2: divided by heads) or on the host (3). */
static void the_clocks_show_spans_and_rows_in_steps(void **state)
{
    (void)state;
    struct random r = random_of_run();
    struct model *m = wide_model(3, 2);
    for (int i = 0; i < 4; i++) {
        struct plan p;
        struct graph g;
        plan_begin(&p, m, i == 2 ? 2 : 1, spec_of_spans);
        plan_fuse_all(&p, m, &g);
        p.request.prompt = PROMPT;
        p.request.generate = 1;
        p.request.ubatch = i % 2 ? CHUNK : PROMPT;
        if (i < 2)
            place(&p, &g, &r);
        else if (i == 2)
            divide(&p, &g, 0);
        else
            room(&p, &g);
        for (int32_t k = 0; k < g.n_ops && i == 3; k++) {
            const struct oato_op *op = &g.ops[k].op;
            const int32_t device = op_spans(op);
            put(&p, g.ops[k].name, AXIS_ROWS, 0, op->n, BOTH, device, device);
            if (op->kind == OP_KV_STORE)
                p.kv[p.n_kv++] = (struct plan_kv){g.ops[k].kv_layer, 0, op->kv_heads, 0};
        }
        plan_compare(m, &p, i);
        graph_free(&g);
        plan_free(&p);
    }
    model_close(m);
}

/* ----------------------------------------------------------------------------------- ranks -- */

/* A device on which everything is, and how it is declared. */
static void division(struct profile *p)
{
    static const struct profile_link links[] = {{.from = 0, .to = 1, .bytes_per_s = 1e15},
                                                {.from = 1, .to = 0, .bytes_per_s = 1e15}};
    profile_init(p);
    p->devices = arena_alloc(&p->arena, 2, sizeof *p->devices);
    p->links = arena_alloc(&p->arena, 2, sizeof links);
    assert_true(p->devices && p->links);
    for (int32_t d = 0; d < 2; d++)
        p->devices[p->n_devices++] = (struct profile_device){.id = d ? "sim:0" : "cpu:0",
                                                             .kind = d ? "sim" : "cpu",
                                                             .model = "",
                                                             .spec = d ? spec : "",
                                                             .is_host = !d,
                                                             .read_bytes_per_s = d ? 1e12 : 1e6,
                                                             .flops_per_s = d ? 1e12 : 1e6,
                                                             .memory_bytes = UINT64_C(1) << 28,
                                                             .free_bytes = UINT64_C(1) << 28,
                                                             .data_sheet = true};
    memcpy(p->links, links, sizeof links);
    p->n_links = 2;
}

/* Where ranks divide every layer equally, all take as long; where each has layers of its own, a
 * step takes as long as all of them together. */
static void ranks_compare(const struct model *m, const struct profile *profile,
                          enum rank_split split, int32_t n)
{
    struct rank_options ranks = {.split = split,
                                 .ranks = n,
                                 .hosts = n,
                                 .profiles = {profile},
                                 .n_profiles = 1,
                                 .bytes_per_s = 1e15,
                                 .network_given = true,
                                 .wire = DT_F32};
    struct oato_error err;
    struct plan plan;
    struct planner_options o;
    double longest = 0, sum = 0, simulated[PHASE_COUNT];
    planner_options_init(&o);
    o.request.prompt = o.request.ubatch = PROMPT;
    o.request.generate = 1;
    o.request.context = 4 * PROMPT;
    if (ranks_plan(m, &o, &ranks, NULL, &plan, &err))
        fail_msg("%s", err.text);
    assert_int_equal(plan.n_devices, 2 * n);
    struct engine_stats stats[FORK_RANKS];
    const struct engine_options each = {.ubatch = PROMPT, .threads = 1};
    together_run(m, &plan, &each, PROMPT, stats);
    for (int32_t r = 0; r < n; r++) {
        longest = fmax(longest, (double)stats[r].clock_ns);
        sum += (double)stats[r].clock_ns;
    }
    simulate(m, &plan, simulated);
    const double real = split == SPLIT_TENSOR ? longest : sum,
                 off = (simulated[PHASE_PREFILL] + simulated[PHASE_DECODE]) / real - 1;
    print_message("%d ranks, %s: %.1f ms, simulated %.2f %% off\n", n,
                  split == SPLIT_TENSOR ? "parts of layers" : "layers", real * 1e-6, off * 100);
    assert_true(fabs(off) < 0.03);
    plan_free(&plan);
}

static void the_clocks_of_all_ranks_show_what_was_simulated(void **state)
{
    (void)state;
    struct model *m = wide_model(3, 4);
    struct profile p;
    division(&p);
    for (int32_t n = 2; n <= 4; n *= 2)
        for (int split = SPLIT_TENSOR; split <= SPLIT_LAYERS; split++)
            ranks_compare(m, &p, (enum rank_split)split, n);
    profile_free(&p);
    model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_clocks_of_all_ranks_show_what_was_simulated),
        cmocka_unit_test(the_clocks_of_the_devices_show_what_was_simulated),
        cmocka_unit_test(the_clocks_show_spans_and_rows_in_steps),
        cmocka_unit_test(the_clocks_show_layers_that_are_divided_by_heads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
