/*
 * harness.c - see harness.h. Everything fails the running test instead of returning errors.
 */
#include "tests/executor/harness.h"

#include "kernels/device.h"

#include <stdlib.h>
#include <string.h>

/* Further keys of those that need some. */
static const char *keys_of(const char *architecture)
{
    static const struct {
        const char *architecture, *keys;
    } known[] = {
        {"lfm2", "attention.head_count_kv=0,2,0 shortconv.l_cache=3"},
        {"qwen35", "full_attention_interval=3 ssm.conv_kernel=4 ssm.inner_size=128 "
                   "ssm.state_size=32 ssm.time_step_rank=4 ssm.group_count=2"},
        {"granitehybrid", "attention.head_count_kv=0,2,0 ssm.conv_kernel=4 ssm.inner_size=256 "
                          "ssm.state_size=16 ssm.time_step_rank=64 ssm.group_count=2"},
        {"mamba", "ssm.conv_kernel=4 ssm.inner_size=256 ssm.state_size=16 ssm.time_step_rank=8"},
    };
    for (size_t i = 0; i < ARRAY_LEN(known); i++)
        if (!strcmp(known[i].architecture, architecture))
            return known[i].keys;
    return NULL;
}

struct model *tiny_model_with(const char *architecture, const char *keys, oato_dtype dtype,
                              uint64_t seed)
{
    struct oato_error err;
    struct model *m = NULL;
    struct random_model shape = random_model_default();
    shape.architecture = architecture;
    shape.keys = keys;
    shape.layers = 3;
    shape.width = 256;
    shape.ffn = 512;
    shape.heads = 4;
    shape.kv_heads = 2;
    if (!strcmp(architecture, "qwen3") || !strcmp(architecture, "qwen3moe"))
        shape.head_dim = 96; /* heads together wider than the model */
    if (!strcmp(architecture, "qwen3moe")) {
        shape.experts = 8;
        shape.experts_used = 3;
        shape.ffn = dtype == DT_Q4_K ? 256 : 160; /* also rows that are no multiple of 64 */
    }
    shape.vocab = 320;
    shape.dtype = dtype;
    shape.seed = seed;
    shape.tokenizer = true;
    if (random_model_open(&shape, &m, &err))
        fail_msg("%s", err.text);
    return m;
}

struct model *tiny_model_of(const char *architecture, oato_dtype dtype, uint64_t seed)
{
    return tiny_model_with(architecture, keys_of(architecture), dtype, seed);
}

struct model *tiny_model(oato_dtype dtype, uint64_t seed)
{
    return tiny_model_of("llama", dtype, seed);
}

struct model *relu_model(oato_dtype dtype)
{
    struct model *m = tiny_model(dtype, 7);
    for (int32_t i = 0; i < m->graph.n_ops; i++)
        if (m->graph.ops[i].op.kind == OP_SWIGLU)
            m->graph.ops[i].op.activation = ACT_RELU;
    return m;
}

static struct gguf_tensor *random_tensor(struct arena *a, oato_dtype dtype, int64_t k, int64_t n,
                                         struct random *r)
{
    struct gguf_tensor *t = arena_alloc(a, 1, sizeof *t);
    size_t row;
    assert_non_null(t);
    assert_true(dtype_row_bytes(dtype, k, &row));
    *t = (struct gguf_tensor){.name = "guess",
                              .dtype = dtype,
                              .n_dims = n > 1 ? 2 : 1,
                              .ne = {k, n, 1, 1},
                              .bytes = row * (size_t)n};
    uint8_t *data = arena_alloc(a, 1, t->bytes);
    assert_non_null(data);
    for (size_t i = 0; i < t->bytes; i++)
        data[i] = (uint8_t)random_below(r, 256);
    for (size_t i = 0; dtype == DT_Q8_0 && i < t->bytes; i += 34)
        memcpy(data + i, &(uint16_t){0x2000}, 2); /* a scale of 2^-7 */
    for (int64_t i = 0; dtype == DT_F32 && i < k; i++)
        ((float *)(void *)data)[i] = 0.01f * (float)((int)random_below(r, 200) - 100);
    t->data = data;
    return t;
}

void add_predictors(struct neurons *n, const struct model *m)
{
    enum { RANK = 32 };
    struct random r = {5};
    for (int32_t i = 0; i + 1 < n->n_layers; i++) {
        struct neurons_predictor *p = arena_alloc(&n->arena, 1, sizeof *p);
        assert_non_null(p);
        p->down = random_tensor(&n->arena, DT_Q8_0, m->shape.width, RANK, &r);
        p->up = random_tensor(&n->arena, DT_Q8_0, RANK, m->shape.ffn_width, &r);
        p->bias = random_tensor(&n->arena, DT_F32, m->shape.ffn_width, 1, &r);
        n->layers[i].predictor = p;
    }
}

void predictors_init(struct neurons *n, const struct model *m)
{
    neurons_init(n);
    n->n_layers = m->graph.n_layers;
    n->layers = arena_alloc(&n->arena, (size_t)n->n_layers, sizeof *n->layers);
    assert_non_null(n->layers);
    add_predictors(n, m);
}

void predictors_limit(struct neurons *n, float threshold)
{
    for (int32_t i = 0; i + 1 < n->n_layers; i++)
        ((struct neurons_predictor *)(uintptr_t)n->layers[i].predictor)->threshold = threshold;
}

void fill_ids(int32_t *ids, int32_t n, int32_t vocab, uint64_t seed)
{
    struct random r = {seed};
    for (int32_t i = 0; i < n; i++)
        ids[i] = (int32_t)random_below(&r, (uint32_t)vocab);
}

void plan_begin(struct plan *p, const struct model *m, int sims, const char *sim_spec)
{
    plan_init(p);
    p->tool = "test";
    p->model_name = "tiny";
    p->solver = "test";
    p->numerics[0] = p->numerics[1] = "f32";
    p->structure_hash = gguf_structure_hash(m->gguf);
    p->n_devices = sims + 1;
    p->devices = arena_alloc(&p->arena, (size_t)p->n_devices, sizeof *p->devices);
    for (int i = 0; i < p->n_devices; i++) {
        struct plan_device *d = &p->devices[i];
        snprintf(d->kind, sizeof d->kind, "%s", i ? "sim" : "cpu");
        d->is_host = !i;
        snprintf(d->id, sizeof d->id, "%.3s:%d", i ? "sim" : "cpu", i ? (i - 1) % 100 : 0);
        snprintf(d->spec, sizeof d->spec, "%s", i ? sim_spec : "");
    }
    p->request = (struct plan_request){
        .prompt = 64, .generate = 16, .context = 512, .batch = 1, .ubatch = 64, .kv = DT_F16};
}

void plan_fuse_all(struct plan *p, const struct model *m, struct graph *fused)
{
    struct graph_match taken[256];
    struct oato_error err;
    assert_true(graph_matches(&m->graph, NULL, 0) <= (int32_t)ARRAY_LEN(taken));
    p->n_fusions = graph_cover(&m->graph, NULL, NULL, taken);
    p->fusions = arena_alloc(&p->arena, (size_t)p->n_fusions, sizeof *p->fusions);
    for (int32_t i = 0; i < p->n_fusions; i++)
        p->fusions[i] = (struct plan_fusion){op_fusions[taken[i].fusion].name,
                                             m->graph.ops[taken[i].first].name};
    if (graph_fuse(&m->graph, taken, p->n_fusions, fused, &err))
        fail_msg("%s", err.text);
    p->parts = arena_alloc(&p->arena, (size_t)fused->n_ops * 8, sizeof *p->parts);
    p->kv = arena_alloc(&p->arena, 8 * (size_t)fused->n_layers, sizeof *p->kv); /* or heads */
}

void plan_add_part(struct plan *p, const char *op, int64_t begin, int64_t end, int32_t device)
{
    p->parts[p->n_parts++] = (struct plan_part){.op = op,
                                                .axis = AXIS_ROWS,
                                                .begin = begin,
                                                .end = end,
                                                .phases = 3,
                                                .device = device,
                                                .home = device};
}

void plan_add_moving(struct plan *p, const char *op, int64_t n)
{
    for (int32_t phase = 0; phase < PHASE_COUNT; phase++) {
        plan_add_part(p, op, 0, n, phase);
        p->parts[p->n_parts - 1].phases = 1u << phase;
    }
}

void plan_place_randomly(struct plan *p, const struct graph *fused, struct random *r)
{
    int32_t n = p->n_devices;
    for (int32_t i = 0; i < fused->n_ops; i++) {
        const struct graph_op *o = &fused->ops[i];
        int32_t device = (int32_t)random_below(r, (uint32_t)n);
        if (o->op.kind == OP_KV_STORE)
            p->kv[p->n_kv++] = (struct plan_kv){o->kv_layer, 0, o->op.kv_heads, device};
        else if (o->op.kind == OP_ATTENTION)
            device = p->kv[p->n_kv - 1].device;
        bool splits = o->op.kind == OP_MUL_MAT || o->op.kind == OP_GATE_UP;
        if (!splits || random_below(r, 2)) {
            plan_add_part(p, o->name, 0, o->op.n, device);
            continue;
        }
        for (int64_t begin = 0, end; begin < o->op.n; begin = end) {
            end = begin + 64 * (1 + random_below(r, 4));
            end = end < o->op.n ? end : o->op.n;
            if (o->op.n - begin > 64 * 5 && p->n_parts % 3 == 0)
                end = o->op.n - 64;
            plan_add_part(p, o->name, begin, end, (int32_t)random_below(r, (uint32_t)n));
        }
    }
}

void plan_on_gpu(struct plan *p, const struct graph *g, bool streams)
{
    p->n_parts = p->n_kv = 0;
    for (int32_t i = 0; i < g->n_ops; i++) {
        const struct graph_op *o = &g->ops[i];
        if (o->op.kind == OP_KV_STORE)
            p->kv[p->n_kv++] = (struct plan_kv){o->kv_layer, 0, o->op.kv_heads, 1};
        plan_add_part(p, o->name, 0, o->op.n, 1);
        if (streams && op_weight_use(&o->op) == WEIGHT_MATRIX)
            p->parts[p->n_parts - 1].home = 0;
    }
}

bool gpu_is_there(void)
{
    struct oato_error err;
    struct oato_device *d;
    if (device_open("cuda", 0, NULL, &d, &err))
        return false;
    d->ops->close(d);
    return true;
}

void plan_begin_gpu(struct plan *p, const struct model *m, struct graph *fused)
{
    plan_begin(p, m, 1, "");
    snprintf(p->devices[1].kind, sizeof p->devices[1].kind, "cuda");
    snprintf(p->devices[1].id, sizeof p->devices[1].id, "cuda:0");
    plan_fuse_all(p, m, fused);
}

struct sparse_choice sparse_of(const char *text)
{
    struct sparse_choice choice;
    struct oato_error err;
    if (sparse_parse(text ? text : "auto", &choice, &err))
        fail_msg("%s", err.text);
    return choice;
}

struct engine *open_engine(const struct model *m, const struct plan *p,
                           struct engine_options options)
{
    struct engine *e;
    struct oato_error err;
    if (engine_open(m, p, &options, NULL, NULL, &e, &err))
        fail_msg("%s", err.text);
    return e;
}

struct gather {
    float *to;
    size_t vocab;
};

static void gather_rows(void *user, const float *logits, int32_t first, int32_t rows)
{
    struct gather *g = user;
    memcpy(g->to + (size_t)first * g->vocab, logits, (size_t)rows * g->vocab * sizeof(float));
}

float *logits_of(struct engine *e, const int32_t *ids, int32_t n)
{
    struct engine_stats stats;
    struct oato_error err;
    int32_t seq;
    engine_get_stats(e, &stats);
    struct gather g = {calloc((size_t)n * (size_t)stats.vocab, sizeof(float)), (size_t)stats.vocab};
    if (engine_seq_create(e, &seq, &err) ||
        engine_feed(e, seq, ids, n, LOGITS_ALL, gather_rows, &g, &err))
        fail_msg("%s", err.text);
    engine_seq_free(e, seq);
    return g.to;
}

void assert_same_bits(const float *a, const float *b, size_t n)
{
    const uint32_t *x = (const void *)a, *y = (const void *)b;
    for (size_t i = 0; i < n; i++)
        if (x[i] != y[i])
            fail_msg("element %zu: %.9g and %.9g", i, (double)a[i], (double)b[i]);
}

void assert_candidates(const float *candidates, int32_t n, const float *row, int32_t vocab)
{
    for (int32_t i = 0; i < n; i++) {
        const int32_t id = (int32_t)candidates[i];
        int32_t before = 0;
        for (int32_t j = 0; j < vocab; j++)
            before += row[j] > row[id] || (j < id && row[j] == row[id]);
        assert_int_equal(before, i);
        assert_same_bits(&candidates[n + i], &row[id], 1);
    }
}

void expect_refused(const struct model *m, const struct plan *p,
                    const struct engine_options *options, oato_status status, const char *what)
{
    struct engine *e;
    struct oato_error err;
    assert_int_equal(engine_open(m, p, options, NULL, NULL, &e, &err), status);
    if (!strstr(err.text, what) || strchr(err.text, '\n'))
        fail_msg("%s", err.text);
}

double nmse(const float *a, const float *b, size_t n)
{
    double difference = 0, power = 0;
    for (size_t i = 0; i < n; i++) {
        difference += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        power += (double)b[i] * (double)b[i];
    }
    return difference / power;
}
