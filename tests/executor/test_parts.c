/*
 * test_parts.c - what a plan may do with parts beyond rows of one device: products divided along K
 * at the places where their input was, experts and heads divided between devices, other parts in
 * each phase, and weights that stay with the host and are streamed. Wherever the parts run the bits
 * are those of the same plan with all of it on the CPU; nothing is copied or kept twice; what does
 * not fit is told before anything is loaded; a step allocates nothing.
 */
#include "tests/executor/allocations.h"
#include "tests/executor/harness.h"
#include "tests/pace.h"

#include <math.h>
#include <stdlib.h>
#include <unistd.h>

enum {
    PROMPT = 70,
    ANSWER = 8,
    BOTH = 3,
    PREFILL = 1 << PHASE_PREFILL,
    DECODE = 1 << PHASE_DECODE
};

/* ---------------------------------------------------------------------------------- models */

enum { EXPERTS = 8, EXPERTS_USED = 3 };

/* Feed-forward of 1024 neurons: three places to cut even where blocks have 256 elements. Or of
 * experts, with rows that are no multiple of 64 where blocks allow it. */
static struct model *wide_model(oato_dtype dtype, bool experts, uint64_t seed)
{
    struct oato_error err;
    struct model *m = NULL;
    struct random_model shape = random_model_default();
    shape.layers = 3;
    shape.width = 256;
    shape.ffn = 1024;
    if (experts) {
        shape.architecture = "qwen3moe";
        shape.experts = EXPERTS;
        shape.experts_used = EXPERTS_USED;
        shape.ffn = dtype_info(dtype)->block_elems > 32 ? 256 : 160;
    }
    shape.heads = 4;
    shape.kv_heads = 2;
    shape.vocab = 320;
    shape.dtype = dtype;
    shape.seed = seed;
    shape.tokenizer = false;
    if (random_model_open(&shape, &m, &err))
        fail_msg("%s", err.text);
    return m;
}

/* Layers 2 and 3 attend to the keys and values of layers 0 and 1, whose heads differ in size. */
static struct model *sharing_model(oato_dtype dtype, uint64_t seed)
{
    struct oato_error err;
    struct model *m = NULL;
    struct random_model shape = random_model_default();
    shape.architecture = "gemma4";
    shape.layers = 4;
    shape.width = 256;
    shape.ffn = 1024;
    shape.head_dim = 96;
    shape.vocab = 320;
    shape.dtype = dtype;
    shape.seed = seed;
    shape.tokenizer = false;
    shape.keys =
        "attention.sliding_window=40 attention.sliding_window_pattern=true,false,true,false "
        "attention.key_length_swa=64 attention.value_length_swa=64 "
        "rope.dimension_count_swa=64 attention.shared_kv_layers=2 "
        "embedding_length_per_layer_input=32";
    if (random_model_open(&shape, &m, &err))
        fail_msg("%s", err.text);
    return m;
}

/* ---------------------------------------------------------------------------------- plans */

static void put(struct plan *p, const char *op, enum op_axis axis, int64_t begin, int64_t end,
                uint32_t phases, int32_t device, int32_t home)
{
    p->parts[p->n_parts++] = (struct plan_part){.op = op,
                                                .axis = axis,
                                                .begin = begin,
                                                .end = end,
                                                .phases = phases,
                                                .device = device,
                                                .home = home};
}

/* All of an operator: resident, or streamed in prefill and on the host in decode, or streamed in
 * both phases. */
static void put_whole(struct plan *p, const struct graph_op *o, struct random *r, bool matrices)
{
    const int32_t device = (int32_t)random_below(r, (uint32_t)p->n_devices);
    const uint32_t way = matrices && device ? random_below(r, 3) : 0;
    if (way == 0)
        put(p, o->name, AXIS_ROWS, 0, o->op.n, BOTH, device, device);
    if (way == 1) {
        put(p, o->name, AXIS_ROWS, 0, o->op.n, PREFILL, device, 0);
        put(p, o->name, AXIS_ROWS, 0, o->op.n, DECODE, 0, 0);
    }
    if (way == 2)
        put(p, o->name, AXIS_ROWS, 0, o->op.n, BOTH, device, 0);
}

/* Along what the two operators of a feed-forward block are cut, and how far that reaches. */
struct cut_axes {
    enum op_axis up, down;
    int64_t extent, unit;
};

static struct cut_axes cut_axes(const struct graph_op *gate_up, const struct graph_op *down)
{
    const int64_t block = dtype_info(down->op.dtype)->block_elems;
    if (gate_up->op.kind == OP_EXPERT_GATE_UP)
        return (struct cut_axes){AXIS_EXPERTS, AXIS_EXPERTS, gate_up->op.experts, 1};
    return (struct cut_axes){AXIS_ROWS, AXIS_K, gate_up->op.n, block > 128 ? block : 128};
}

/* A feed-forward block cut at random neurons or experts; parts of the host are streamed in prefill
 * now and then, and a part of `down` may be elsewhere than the part that makes its input. */
static void put_divided(struct plan *p, const struct graph_op *gate_up, const struct graph_op *down,
                        struct random *r)
{
    const struct cut_axes cut = cut_axes(gate_up, down);
    const bool streams = random_below(r, 2), crosses = random_below(r, 3) == 0;
    for (int64_t begin = 0, end; begin < cut.extent; begin = end) {
        const int32_t n = p->n_devices, device = (int32_t)random_below(r, (uint32_t)n);
        const int32_t accelerator = 1 + (int32_t)random_below(r, (uint32_t)n - 1);
        const int32_t other = crosses ? (int32_t)random_below(r, (uint32_t)n) : device;
        end = begin + cut.unit * (1 + random_below(r, 3));
        if (end > cut.extent || p->n_parts % 4 == 0 || cut.extent - end < 2 * cut.unit)
            end = cut.extent;
        const struct {
            const struct graph_op *op;
            enum op_axis axis;
            int32_t device;
        } half[] = {{gate_up, cut.up, device}, {down, cut.down, other}};
        for (int i = 0; i < 2; i++) {
            const bool split = streams && !half[i].device;
            if (split)
                put(p, half[i].op->name, half[i].axis, begin, end, PREFILL, accelerator, 0);
            put(p, half[i].op->name, half[i].axis, begin, end, split ? DECODE : BOTH,
                half[i].device, half[i].device);
        }
    }
}

/* Prefill whole on one device, decode cut between the host and others. */
static void put_apart(struct plan *p, const struct graph_op *gate_up, const struct graph_op *down)
{
    const int32_t n = p->n_devices, first = n - 1;
    const struct cut_axes a = cut_axes(gate_up, down);
    const int64_t cut = a.unit > 1 ? 256 : 3;
    put(p, gate_up->name, AXIS_ROWS, 0, gate_up->op.n, PREFILL, first, first);
    put(p, down->name, AXIS_ROWS, 0, down->op.n, PREFILL, first, 0);
    put(p, gate_up->name, a.up, 0, cut, DECODE, n > 2 ? 1 : 0, n > 2 ? 1 : 0);
    put(p, gate_up->name, a.up, cut, a.extent, DECODE, 0, 0);
    put(p, down->name, a.down, 0, cut, DECODE, 0, 0);
    put(p, down->name, a.down, cut, a.extent, DECODE, first, first);
}

/* The KV of a layer, on one device or a head on each of two. */
static void put_kv(struct plan *p, const struct graph_op *o, struct random *r)
{
    const int32_t heads = o->op.kv_heads, apart = (int32_t)random_below(r, 2);
    for (int32_t head = 0; head < heads; head += apart ? 1 : heads) {
        const int32_t device = (int32_t)random_below(r, (uint32_t)p->n_devices);
        const int32_t end = apart ? head + 1 : heads;
        p->kv[p->n_kv++] = (struct plan_kv){o->kv_layer, head, end, device};
        put(p, o->name, AXIS_HEADS, head, end, BOTH, device, device);
    }
}

/* Attention goes where the KV of its heads is. */
static void put_attention(struct plan *p, const struct graph_op *o)
{
    for (int32_t i = 0; i < p->n_kv; i++)
        if (p->kv[i].layer == o->kv_layer)
            put(p, o->name, AXIS_HEADS, p->kv[i].head_begin, p->kv[i].head_end, BOTH,
                p->kv[i].device, p->kv[i].device);
}

static void place_randomly(struct plan *p, const struct graph *g, struct random *r)
{
    for (int32_t i = 0; i < g->n_ops; i++) {
        const struct graph_op *o = &g->ops[i];
        const bool ffn = o->op.kind == OP_GATE_UP || o->op.kind == OP_EXPERT_GATE_UP;
        if (ffn && random_below(r, 4)) {
            assert_int_equal(g->ops[i + 1].in[0], o->out[0]);
            if (random_below(r, 4))
                put_divided(p, o, &g->ops[i + 1], r);
            else
                put_apart(p, o, &g->ops[i + 1]);
            i++;
        } else if (o->op.kind == OP_KV_STORE) {
            put_kv(p, o, r);
        } else if (o->op.kind == OP_ATTENTION) {
            put_attention(p, o);
        } else {
            put_whole(p, o, r, op_weight_use(&o->op) == WEIGHT_MATRIX);
        }
    }
}

/* -------------------------------------------------------------------------------- counting */

/* The parts of an operator in a phase; without any it is whole on the host. */
static int parts_of(const struct plan *p, const struct graph_op *o, int phase,
                    struct plan_part out[8])
{
    int n = 0;
    for (int32_t i = 0; i < p->n_parts; i++)
        if (!strcmp(p->parts[i].op, o->name) && p->parts[i].phases & 1u << phase)
            out[n++] = p->parts[i];
    if (!n)
        out[n++] = (struct plan_part){.end = o->op.n};
    return n;
}

/* Whether this part of an operator reads of its k-th input only what the same range made. */
static bool reads_range(const struct graph_op *o, const struct plan_part *p, int32_t k)
{
    const bool experts = p->axis == AXIS_EXPERTS && o->op.kind == OP_EXPERT_DOWN && k == 0;
    return (experts && p->end - p->begin < o->op.experts) || p->axis == AXIS_K;
}

static bool reads_slice(const struct graph_op *o, const struct plan_part *p)
{
    return p->axis == AXIS_HEADS && p->end - p->begin < o->op.kv_heads;
}

/* (part of a value, other device that reads it). Of a value in row parts a part along K reads one,
 * and experts what the same ones made; heads read their columns; everybody else reads all. */
static int32_t count_copies(const struct plan *p, const struct graph *g, int phase)
{
    int32_t copies = 0;
    for (int32_t i = 0; i < g->n_ops; i++) {
        struct plan_part made[8], reader[8];
        const int n_made = parts_of(p, &g->ops[i], phase, made);
        for (int32_t v = 0; v < g->ops[i].n_out; v++)
            for (int m = 0; m < n_made; m++) {
                const int32_t value = g->ops[i].out[v];
                bool reads[DEVICES_MAX] = {value == g->logits};
                for (int32_t o = 0; o < g->n_ops; o++) {
                    const int n = parts_of(p, &g->ops[o], phase, reader);
                    for (int32_t k = 0; k < g->ops[o].n_in; k++)
                        for (int j = 0; g->ops[o].in[k] == value && j < n; j++)
                            if (reads_slice(&g->ops[o], &reader[j]))
                                copies += reader[j].device != made[m].device;
                            else if (!reads_range(&g->ops[o], &reader[j], k) ||
                                     reader[j].begin == made[m].begin)
                                reads[reader[j].device] = true;
                }
                for (int32_t d = 0; d < p->n_devices; d++)
                    copies += reads[d] && d != made[m].device;
            }
    }
    return copies;
}

/* ------------------------------------------------------------------------------------ runs */

/* Logits of every token of a prompt and of the ANSWER tokens that are most likely after it. */
static float *answer_of(struct engine *e, int32_t vocab, int32_t tokens[ANSWER])
{
    int32_t ids[PROMPT], seq;
    struct oato_error err;
    fill_ids(ids, PROMPT, vocab, 5);
    float *prompt = logits_of(e, ids, PROMPT);
    float *all = realloc(prompt, (size_t)(PROMPT + ANSWER) * (size_t)vocab * sizeof *all);
    assert_non_null(all);
    if (engine_seq_create(e, &seq, &err) ||
        engine_feed(e, seq, ids, PROMPT, LOGITS_LAST, NULL, NULL, &err))
        fail_msg("%s", err.text);
    for (int32_t t = 0; t < ANSWER; t++) {
        const float *row = engine_logits(e, 0);
        int32_t best = 0;
        for (int32_t i = 1; i < vocab; i++)
            best = row[i] > row[best] ? i : best;
        tokens[t] = best;
        struct engine_input in = {seq, &best, 1, LOGITS_LAST, false};
        allocations = 0;
        allocations_count = true;
        oato_status status = engine_step(e, &in, 1, &err);
        allocations_count = false;
        if (status)
            fail_msg("%s", err.text);
        assert_int_equal(allocations, 0);
        memcpy(all + (size_t)(PROMPT + t) * (size_t)vocab, engine_logits(e, 0),
               (size_t)vocab * sizeof *all);
    }
    engine_seq_free(e, seq);
    return all;
}

static void any_parts_give_the_bits_of_the_same_plan_on_the_cpu(void **state)
{
    (void)state;
    struct random r = random_of_run();
    static const oato_dtype types[] = {DT_F32, DT_Q4_1, DT_Q4_K, DT_Q8_0, DT_F16, DT_MXFP4};
    for (int round = (int)pace_first(5); round < 42; round += (int)pace_step(5)) {
        const bool experts = round >= 18 && round < 36;
        const uint64_t seed = random_below(&r, 1000);
        struct model *m = round < 36 ? wide_model(types[round % 6], experts, seed)
                                     : sharing_model(types[round % 6], seed);
        const int32_t vocab = m->shape.vocab;
        const size_t n = (size_t)(PROMPT + ANSWER) * (size_t)vocab;
        int32_t tokens[3][ANSWER];
        struct engine_options options = {.threads = 1 + round % 2, .rows = 64, .ubatch = 48};
        struct plan p;
        struct graph fused;
        struct engine_stats stats;
        plan_begin(&p, m, 1 + round % 3, "vram=64MiB");
        plan_fuse_all(&p, m, &fused);
        place_randomly(&p, &fused, &r);
        struct engine *e = open_engine(m, &p, options);
        float *got = answer_of(e, vocab, tokens[0]);
        engine_get_stats(e, &stats);
        for (int phase = 0; phase < PHASE_COUNT; phase++)
            assert_int_equal(stats.copies[phase], count_copies(&p, &fused, phase));
        engine_close(e);

        options.devices = "cpu";
        options.map = "sim:0=cpu:0,sim:1=cpu:0,sim:2=cpu:0";
        e = open_engine(m, &p, options);
        float *expected = answer_of(e, vocab, tokens[1]);
        engine_get_stats(e, &stats);
        assert_int_equal(stats.copies[PHASE_PREFILL] + stats.copies[PHASE_DECODE], 0);
        assert_int_equal(stats.stream_bytes[PHASE_PREFILL], 0);
        engine_close(e);
        assert_same_bits(got, expected, n);
        assert_memory_equal(tokens[0], tokens[1], sizeof tokens[0]);
        free(expected);

        /* without any parts, which add in another order */
        options.devices = options.map = NULL;
        e = open_engine(m, NULL, options);
        expected = answer_of(e, vocab, tokens[2]);
        engine_close(e);
        /* a router's choice may tip where two experts are as good as equal, and so may attention
         * with scores that are not divided by the root of a head's size */
        int apart = 0;
        for (size_t at = 0; at < (size_t)PROMPT * (size_t)vocab; at += (size_t)vocab)
            apart += !(nmse(got + at, expected + at, (size_t)vocab) < 1e-3);
        if (apart > (round >= 18 ? PROMPT / 10 : 0))
            fail_msg("round %d: %d of %d rows differ", round, apart, PROMPT);
        free(expected);
        free(got);
        graph_free(&fused);
        plan_free(&p);
        model_close(m);
    }
}

/* ---------------------------------------------------------------------------------- memory */

/* Prefill on sim:0, decode with half of each feed-forward block on the host. */
static void plan_streams(struct plan *p, const struct graph *g)
{
    for (int32_t i = 0; i < g->n_ops; i++) {
        const struct graph_op *o = &g->ops[i], *down = o + 1;
        if (o->op.kind == OP_QKV) {
            put(p, o->name, AXIS_ROWS, 0, o->op.n, PREFILL, 1, 0);
            put(p, o->name, AXIS_ROWS, 0, o->op.n, DECODE, 0, 0);
        }
        if (o->op.kind != OP_GATE_UP)
            continue;
        for (int half = 0; half < 2; half++) {
            const int64_t begin = half * 512, end = begin + 512;
            put(p, o->name, AXIS_ROWS, begin, end, half ? PREFILL : BOTH, 1, half ? 0 : 1);
            put(p, down->name, AXIS_K, begin, end, half ? PREFILL : BOTH, 1, half ? 0 : 1);
            if (half) {
                put(p, o->name, AXIS_ROWS, begin, end, DECODE, 0, 0);
                put(p, down->name, AXIS_K, begin, end, DECODE, 0, 0);
            }
        }
    }
}

static void nothing_is_kept_twice_and_staging_counts(void **state)
{
    (void)state;
    struct model *m = wide_model(DT_F32, false, 3);
    struct plan p;
    struct graph fused;
    struct engine *e;
    struct oato_error err;
    struct engine_stats stats;
    struct engine_options options = {0};
    enum { ROW = 256 * 4, HALF = 512 * ROW, GATE_UP = 2 * HALF, LAYERS = 3 };
    plan_begin(&p, m, 1, "vram=64MiB");
    plan_fuse_all(&p, m, &fused);
    plan_streams(&p, &fused);

    e = open_engine(m, NULL, options);
    engine_get_stats(e, &stats);
    const uint64_t all = stats.device[0].weight_bytes;
    assert_int_equal(stats.device[0].staging_bytes, 0);
    engine_close(e);

    e = open_engine(m, &p, options);
    engine_get_stats(e, &stats);
    engine_close(e);
    const struct engine_device_stats *sim = &stats.device[1];
    assert_int_equal(sim->weight_bytes, LAYERS * 3 * HALF);
    assert_int_equal(stats.device[0].weight_bytes + sim->weight_bytes, all);
    assert_int_equal(sim->staging_bytes, 2 * GATE_UP); /* more than q, k and v: 512 rows */
    assert_int_equal(stats.stream_bytes[PHASE_PREFILL], LAYERS * (512 * ROW + 3 * HALF));
    assert_int_equal(stats.stream_bytes[PHASE_DECODE], 0);
    /* a plan's budget without room for the staging buffers */
    p.devices[1].budget_bytes = sim->weight_bytes + sim->kv_bytes + sim->arena_bytes +
                                sim->workspace_bytes + sim->staging_bytes;
    engine_close(open_engine(m, &p, options));
    p.devices[1].budget_bytes -= 1;
    assert_int_equal(engine_open(m, &p, &options, NULL, NULL, &e, &err), OATO_EFIT);
    assert_null(e);
    assert_non_null(strstr(err.text, "sim:0: needs"));
    assert_non_null(strstr(err.text, "staging 2.0"));
    assert_non_null(strstr(err.text, "MiB are missing"));
    graph_free(&fused);
    plan_free(&p);
    model_close(m);
}

/* Experts 0 to 2 on sim:0, the others on the host but for prefill. */
static void experts_lie_where_they_are_needed(void **state)
{
    (void)state;
    struct model *m = wide_model(DT_F32, true, 5);
    struct plan p;
    struct graph fused;
    struct engine_stats whole, stats;
    struct engine_options options = {0};
    enum { MATRIX = 256 * 160 * 4, EXPERT = 3 * MATRIX, HERE = 3, LAYERS = 3 };
    plan_begin(&p, m, 1, "vram=64MiB");
    plan_fuse_all(&p, m, &fused);
    for (int32_t i = 0; i < fused.n_ops; i++) {
        const struct graph_op *o = &fused.ops[i];
        if (o->op.kind != OP_EXPERT_GATE_UP && o->op.kind != OP_EXPERT_DOWN)
            continue;
        put(&p, o->name, AXIS_EXPERTS, 0, HERE, BOTH, 1, 1);
        put(&p, o->name, AXIS_EXPERTS, HERE, EXPERTS, PREFILL, 1, 0);
        put(&p, o->name, AXIS_EXPERTS, HERE, EXPERTS, DECODE, 0, 0);
    }
    struct engine *e = open_engine(m, NULL, options);
    engine_get_stats(e, &whole);
    engine_close(e);
    e = open_engine(m, &p, options);
    engine_get_stats(e, &stats);
    engine_close(e);
    assert_int_equal(stats.device[1].weight_bytes, LAYERS * HERE * EXPERT);
    assert_int_equal(stats.device[0].weight_bytes + stats.device[1].weight_bytes,
                     whole.device[0].weight_bytes);
    assert_int_equal(stats.device[1].staging_bytes, 2 * 2 * (EXPERTS - HERE) * MATRIX);
    assert_int_equal(stats.stream_bytes[PHASE_PREFILL], LAYERS * (EXPERTS - HERE) * EXPERT);
    assert_int_equal(stats.stream_bytes[PHASE_DECODE], 0);
    /* x and the choice go there, sums come back: in prefill two of them, but nothing between */
    assert_int_equal(stats.copies[PHASE_PREFILL], LAYERS * 4);
    assert_int_equal(stats.copies[PHASE_DECODE], LAYERS * 3);
    graph_free(&fused);
    plan_free(&p);
    model_close(m);
}

/* The clock of a step with streams is less than that of its parts one after the other. */
static void streams_run_beside_what_computes(void **state)
{
    (void)state;
    struct model *m = wide_model(DT_F32, false, 4);
    uint64_t ns[2];
    int32_t ids[64], seq;
    fill_ids(ids, 64, m->shape.vocab, 6);
    for (int slow = 0; slow < 2; slow++) {
        struct plan p;
        struct graph fused;
        struct engine_stats stats;
        struct oato_error err;
        /* a layer streams 2 MiB in 2 s and computes for 2.3, or for 0.02; that the CPU takes some
         * real milliseconds for its part is lost in these */
        plan_begin(&p, m, 1,
                   slow ? "vram=64MiB,link=1MB/s,latency=0,launch=0,flops=50M,read=1TB/s"
                        : "vram=64MiB,link=1MB/s,latency=0,launch=0,flops=5G,read=1TB/s");
        plan_fuse_all(&p, m, &fused);
        plan_streams(&p, &fused);
        struct engine *e = open_engine(m, &p, (struct engine_options){.ubatch = 64});
        if (engine_seq_create(e, &seq, &err) ||
            engine_feed(e, seq, ids, 64, LOGITS_LAST, NULL, NULL, &err))
            fail_msg("%s", err.text);
        engine_get_stats(e, &stats);
        ns[slow] = stats.clock_ns;
        engine_close(e);
        graph_free(&fused);
        plan_free(&p);
    }
    const double link_ns = 3 * 2 * 0x1p20 / 1e6 * 1e9;
    const double compute_ns = 3 * 2.0 * 64 * 256 * (512 + 3 * 1024) / 50e6 * 1e9;
    print_message("streaming %.1f ms, computing %.1f ms: %.1f ms together, %.1f ms when the "
                  "device is fast\n",
                  link_ns * 1e-6, compute_ns * 1e-6, (double)ns[1] * 1e-6, (double)ns[0] * 1e-6);
    assert_true((double)ns[0] > link_ns);
    assert_true((double)ns[1] > compute_ns && (double)ns[1] < 0.8 * (link_ns + compute_ns));
    model_close(m);
}

static const struct engine_options with_sim = {.devices = "cpu,sim:vram=64MiB"};

/* Heads stored on one device and read on another, a KV section that says otherwise than the parts,
 * and ranks, which one process runs all. */
static void kv_and_ranks_are_where_the_plan_says(void **state)
{
    (void)state;
    struct model *m = wide_model(DT_F32, false, 3);
    struct plan p;
    struct graph fused;
    plan_begin(&p, m, 1, "vram=64MiB");
    plan_fuse_all(&p, m, &fused);
    for (int32_t i = 0; i < fused.n_ops; i++) {
        const struct graph_op *o = &fused.ops[i];
        if (o->kv_layer != 0)
            continue;
        put(&p, o->name, AXIS_HEADS, 0, 1, BOTH, 1, 1);
        put(&p, o->name, AXIS_HEADS, 1, 2, BOTH, 0, 0);
    }
    p.kv[p.n_kv++] = (struct plan_kv){0, 0, 1, 1};
    p.kv[p.n_kv++] = (struct plan_kv){0, 1, 2, 0};
    engine_close(open_engine(m, &p, (struct engine_options){0}));
    p.kv[0].device = 0;
    expect_refused(m, &p, &with_sim, OATO_EFILE,
                   "keeps KV heads 0 to 1 of layer 0 on cpu:0, but blk.0.kv_store");
    p.n_kv = 0;
    for (int i = 2; i < 4; i++)
        p.parts[i].device = p.parts[i].home = 3 - i; /* of attention */
    engine_close(open_engine(m, &p, (struct engine_options){0}));
    p.parts[2].end = p.parts[3].begin = 0;
    p.parts[3].device = p.parts[3].home = 1;
    expect_refused(m, &p, &with_sim, OATO_EFILE, "that does not hold its layer's KV cache");
    p.n_parts = 0;
    p.devices[1] = p.devices[0];
    p.devices[1].rank = 1;
    struct engine *both = open_engine(m, &p, (struct engine_options){0});
    struct engine_stats stats;
    engine_get_stats(both, &stats);
    assert_int_equal(stats.n_devices, 1);
    engine_close(both);
    graph_free(&fused);
    plan_free(&p);
    model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_parts_give_the_bits_of_the_same_plan_on_the_cpu),
        cmocka_unit_test(nothing_is_kept_twice_and_staging_counts),
        cmocka_unit_test(experts_lie_where_they_are_needed),
        cmocka_unit_test(streams_run_beside_what_computes),
        cmocka_unit_test(kv_and_ranks_are_where_the_plan_says),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
