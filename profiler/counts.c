/*
 * counts.c - adds up what an engine shows of a model's values: how often each neuron of a
 * feed-forward block fires, how often each expert is chosen, and how large the activations and the
 * inputs of matrices are.
 *
 * A feed-forward block is known by its ffn_down: what that reads was made by an activation. A
 * neuron fires when the magnitude of its activation is above the layer's threshold, which is 0 for
 * activations with exact zeros. Factors between the two (ffn.act.scales) change no zeros.
 */
#include "profiler/counting_internal.h"

#include <math.h>
#include <string.h>

/* -------------------------------------------------------------------------------- finding */

/* The operator that made a value, factors left out. */
static int32_t maker_of(const struct graph *g, int32_t value)
{
    int32_t op = g->values[value].producer;
    while (op >= 0 && g->ops[op].op.kind == OP_SCALE)
        op = g->values[g->ops[op].in[0]].producer;
    return op;
}

/* Magnitudes of that name, new ones if there are none. Tables have room for all. */
static int32_t magnitude_named(struct counts *c, const char *name, int32_t known)
{
    for (int32_t i = 0; i < c->n_names; i++)
        if (!strcmp(c->names[i].name, name))
            return c->names[i].magnitude;
    struct magnitude_name *m = &c->names[c->n_names++];
    snprintf(m->name, sizeof m->name, "%s", name);
    m->magnitude = known >= 0 ? known : c->n_magnitudes++;
    return m->magnitude;
}

/* The activation that a down product reads; none where experts or other blocks made it. */
static void find_ffn(struct counts *c, const struct graph_op *down, int32_t layer)
{
    const struct graph *g = &c->model->graph;
    const int32_t index = maker_of(g, down->in[0]);
    if (index < 0 || (g->ops[index].op.kind != OP_SWIGLU && g->ops[index].op.kind != OP_ACTIVATE))
        return;
    const struct oato_op *op = &g->ops[index].op;
    char name[GGUF_MAX_NAME + 1];
    int32_t i = 0;
    while (i < c->n_ffns && c->ffns[i].layer != layer)
        i++;
    if (i == c->n_ffns) {
        snprintf(name, sizeof name, "blk.%d.ffn_act", layer);
        c->ffns[c->n_ffns++] = (struct ffn_count){
            .layer = layer, .n = op->n, .magnitude = magnitude_named(c, name, -1)};
        c->has_zeros = activation_has_zeros((enum activation)op->activation);
        c->activation = activation_name((enum activation)op->activation);
    }
    c->ffns[i].runs++;
    c->ops[index].ffn = i;
}

/* The choice of experts that a down product of experts reads. */
static void find_experts(struct counts *c, const struct graph_op *down, int32_t layer)
{
    const int32_t index = c->model->graph.values[down->in[1]].producer;
    int32_t i = 0;
    while (i < c->n_experts && c->experts[i].layer != layer)
        i++;
    if (i == c->n_experts)
        c->experts[c->n_experts++] = (struct expert_count){
            .layer = layer, .n = down->op.experts, .used = down->op.experts_used};
    c->experts[i].runs++;
    c->ops[index].experts = i;
}

/* The input of a matrix; of those that read the same value the first one counts it. */
static void find_input(struct counts *c, int32_t index, int32_t *of_value)
{
    const struct graph_op *o = &c->model->graph.ops[index];
    const char *tensor = o->weight[0]->name, *end = strstr(tensor, ".weight");
    char name[GGUF_MAX_NAME + 1];
    if (strncmp(tensor, "blk.", 4) != 0 || !end ||
        snprintf(name, sizeof name, "%.*s.in", (int)(end - tensor), tensor) >=
            (int)sizeof name - (int)sizeof "_quantiles")
        return;
    const int32_t known = of_value[o->in[0]];
    of_value[o->in[0]] = magnitude_named(c, name, known);
    if (known < 0)
        c->ops[index].input = of_value[o->in[0]];
}

static void find_all(struct counts *c, int32_t *of_value)
{
    const struct graph *g = &c->model->graph;
    for (int32_t i = 0; i < g->n_values; i++)
        of_value[i] = -1;
    for (int32_t i = 0; i < g->n_ops; i++)
        c->ops[i] = (struct op_count){-1, -1, -1};
    for (int32_t i = 0; i < g->n_ops; i++) {
        const struct graph_op *o = &g->ops[i];
        if (o->n_weights < 1 || !o->weight[0])
            continue;
        const int64_t dense = neurons_layer_of(o->weight[0]->name, "ffn_down.weight"),
                      experts = neurons_layer_of(o->weight[0]->name, "ffn_down_exps.weight");
        if (o->op.kind == OP_MUL_MAT)
            find_input(c, i, of_value);
        if (o->op.kind == OP_MUL_MAT && dense >= 0)
            find_ffn(c, o, (int32_t)dense);
        if (o->op.kind == OP_EXPERT_DOWN && experts >= 0)
            find_experts(c, o, (int32_t)experts);
    }
}

static bool allocate_counts(struct counts *c)
{
    bool ok = true;
    int32_t widest = 1;
    for (int32_t i = 0; i < c->n_ffns; i++) {
        struct ffn_count *f = &c->ffns[i];
        f->fires = arena_alloc(&c->arena, (size_t)f->n, sizeof *f->fires);
        widest = f->n > widest ? f->n : widest;
        ok = ok && f->fires;
    }
    for (int32_t i = 0; i < c->n_experts; i++) {
        c->experts[i].chosen = arena_alloc(&c->arena, (size_t)c->experts[i].n, sizeof(uint32_t));
        ok = ok && c->experts[i].chosen;
    }
    for (int32_t i = 0; i < c->n_magnitudes; i++) {
        c->magnitudes[i].bins = arena_alloc(&c->arena, NEURONS_BINS, sizeof(int64_t));
        ok = ok && c->magnitudes[i].bins;
    }
    c->row = arena_alloc(&c->arena, (size_t)widest, sizeof *c->row);
    return ok && c->row;
}

oato_status counts_init(struct counts *c, const struct model *m, struct oato_error *err)
{
    memset(c, 0, sizeof *c);
    arena_init(&c->arena);
    c->model = m;
    c->bad_op = -1;
    const size_t ops = (size_t)m->graph.n_ops + 1, values = (size_t)m->graph.n_values + 1;
    int32_t *of_value = arena_alloc(&c->arena, values, sizeof *of_value);
    c->ops = arena_alloc(&c->arena, ops, sizeof *c->ops);
    c->ffns = arena_alloc(&c->arena, ops, sizeof *c->ffns);
    c->experts = arena_alloc(&c->arena, ops, sizeof *c->experts);
    c->magnitudes = arena_alloc(&c->arena, 2 * ops, sizeof *c->magnitudes);
    c->names = arena_alloc(&c->arena, 2 * ops, sizeof *c->names);
    if (!of_value || !c->ops || !c->ffns || !c->experts || !c->magnitudes || !c->names)
        return oato_fail_memory(err, ops * sizeof *c->names, "what is counted");
    find_all(c, of_value);
    if (!c->n_ffns && !c->n_experts)
        return oato_fail(err, OATO_EFILE,
                         "%s: has no feed-forward blocks or experts whose activity can be counted",
                         gguf_path(m->gguf));
    return allocate_counts(c) ? OATO_OK
                              : oato_fail_memory(err, (size_t)c->n_magnitudes * NEURONS_BINS * 8,
                                                 "what is counted");
}

void counts_free(struct counts *c)
{
    arena_free(&c->arena);
    memset(c, 0, sizeof *c);
}

/* ------------------------------------------------------------------------------- counting */

/* False when one is not finite. */
static bool bins_add(int64_t *bins, const float *x, int64_t n)
{
    bool finite = true;
    for (int64_t i = 0; i < n; i++) {
        const int32_t bin = neurons_bin(x[i]);
        if (bin < NEURONS_BINS)
            bins[bin]++;
        else
            finite = false;
    }
    return finite;
}

static bool count_ffn(struct counts *c, const struct oato_op *op, struct ffn_count *f, int32_t rows,
                      const float *gate)
{
    bool finite = true;
    for (int32_t r = 0; r < rows; r++, gate += f->n) {
        for (int32_t i = 0; i < f->n; i++)
            c->row[i] = activation_of((enum activation)op->activation, op->scale, gate[i]);
        finite = bins_add(c->magnitudes[f->magnitude].bins, c->row, f->n) && finite;
        for (int32_t i = 0; i < f->n; i++)
            f->fires[i] += fabsf(c->row[i]) > f->threshold;
    }
    f->rows += (uint64_t)rows;
    return finite;
}

/* A choice is ids, then their weights; an expert that only fills the choice up has the weight 0. */
static void count_experts(struct expert_count *e, int32_t rows, const float *choice)
{
    for (int32_t r = 0; r < rows; r++, choice += (ptrdiff_t)2 * e->used)
        for (int32_t i = 0; i < e->used; i++)
            if (choice[i] >= 0 && choice[i] < (float)e->n && choice[e->used + i] != 0)
                e->chosen[(int32_t)choice[i]]++;
    e->rows += (uint64_t)rows;
}

void counts_observe(void *user, int32_t op, int32_t rows, const float *const *in, float *const *out)
{
    struct counts *c = user;
    const struct op_count *o = &c->ops[op];
    const struct graph_op *g = &c->model->graph.ops[op];
    bool finite = true;
    if (c->paused)
        return;
    if (o->ffn >= 0)
        finite = count_ffn(c, &g->op, &c->ffns[o->ffn], rows, in[0]);
    if (o->experts >= 0 && !c->only_activations)
        count_experts(&c->experts[o->experts], rows, out[0]);
    if (o->input >= 0 && !c->only_activations)
        finite = bins_add(c->magnitudes[o->input].bins, in[0], (int64_t)rows * g->op.k);
    if (!finite && c->bad_op < 0)
        c->bad_op = op;
}

void counts_set_thresholds(struct counts *c, double level)
{
    for (int32_t i = 0; i < c->n_ffns; i++) {
        struct ffn_count *f = &c->ffns[i];
        int64_t *bins = c->magnitudes[f->magnitude].bins;
        f->threshold = neurons_quantile(bins, level);
        memset(bins, 0, NEURONS_BINS * sizeof *bins);
        memset(f->fires, 0, (size_t)f->n * sizeof *f->fires);
        f->rows = 0;
    }
}

/* ------------------------------------------------------------------------ to and from files */

static float *frequencies(struct arena *a, const uint32_t *counts, int32_t n, uint64_t rows)
{
    float *freq = arena_alloc(a, (size_t)n, sizeof *freq);
    for (int32_t i = 0; freq && i < n; i++)
        freq[i] = rows ? (float)((double)counts[i] / (double)rows) : 0;
    return freq;
}

/* A float32 has enough digits for the counts of as many tokens as calibrate takes. */
static void from_frequencies(const float *freq, int32_t n, uint64_t rows, uint32_t *counts)
{
    for (int32_t i = 0; i < n; i++)
        counts[i] = (uint32_t)llrint((double)freq[i] * (double)rows);
}

static int32_t layers_of(const struct counts *c)
{
    int32_t last = -1;
    for (int32_t i = 0; i < c->n_ffns; i++)
        last = c->ffns[i].layer > last ? c->ffns[i].layer : last;
    for (int32_t i = 0; i < c->n_experts; i++)
        last = c->experts[i].layer > last ? c->experts[i].layer : last;
    return last + 1;
}

static bool export_layers(const struct counts *c, struct neurons *out)
{
    bool ok = true;
    for (int32_t i = 0; i < c->n_ffns; i++) {
        const struct ffn_count *f = &c->ffns[i];
        struct neurons_layer *l = &out->layers[f->layer];
        l->n_ff = f->n;
        l->ffn_threshold = f->threshold;
        l->ffn_freq = frequencies(&out->arena, f->fires, f->n, f->rows);
        ok = ok && l->ffn_freq;
    }
    for (int32_t i = 0; i < c->n_experts; i++) {
        const struct expert_count *e = &c->experts[i];
        struct neurons_layer *l = &out->layers[e->layer];
        l->n_experts = e->n;
        l->exp_freq = frequencies(&out->arena, e->chosen, e->n, e->rows);
        ok = ok && l->exp_freq;
    }
    return ok;
}

static bool export_magnitudes(const struct counts *c, bool counts, struct neurons *out)
{
    for (int32_t i = 0; i < c->n_names; i++) {
        const int64_t *bins = c->magnitudes[c->names[i].magnitude].bins;
        float *q = arena_alloc(&out->arena, NEURONS_QUANTILES, sizeof *q);
        if (!q)
            return false;
        for (int32_t j = 0; j < NEURONS_QUANTILES; j++)
            q[j] = neurons_quantile(bins, j / (NEURONS_QUANTILES - 1.0));
        out->magnitudes[i] = (struct neurons_magnitudes){
            .name = c->names[i].name, .quantiles = q, .counts = counts ? bins : NULL};
    }
    out->n_magnitudes = c->n_names;
    return true;
}

oato_status counts_export(const struct counts *c, bool counts, struct neurons *out,
                          struct oato_error *err)
{
    out->n_layers = layers_of(c);
    out->activation = c->n_ffns ? c->activation : "";
    out->source = "counted";
    out->layers = arena_alloc(&out->arena, (size_t)out->n_layers, sizeof *out->layers);
    out->magnitudes = arena_alloc(&out->arena, (size_t)c->n_names + 1, sizeof *out->magnitudes);
    return out->layers && out->magnitudes && export_layers(c, out) &&
                   export_magnitudes(c, counts, out)
               ? OATO_OK
               : oato_fail_memory(err, (size_t)out->n_layers * sizeof *out->layers,
                                  "a neurons sidecar");
}

oato_status counts_import(struct counts *c, const struct neurons *n, struct oato_error *err)
{
    static const char missing[] =
        "the unfinished neurons sidecar lacks counts of this model: count "
        "again with --replace";
    for (int32_t i = 0; i < c->n_ffns; i++) {
        struct ffn_count *f = &c->ffns[i];
        const struct neurons_layer *l = neurons_layer(n, f->layer);
        if (!l || !l->ffn_freq || l->n_ff != f->n)
            return oato_fail(err, OATO_EFILE, "%s", missing);
        f->rows = n->tokens * (uint64_t)f->runs;
        f->threshold = l->ffn_threshold;
        from_frequencies(l->ffn_freq, f->n, f->rows, f->fires);
    }
    for (int32_t i = 0; i < c->n_experts; i++) {
        struct expert_count *e = &c->experts[i];
        const struct neurons_layer *l = neurons_layer(n, e->layer);
        if (!l || !l->exp_freq || l->n_experts != e->n)
            return oato_fail(err, OATO_EFILE, "%s", missing);
        e->rows = n->tokens * (uint64_t)e->runs;
        from_frequencies(l->exp_freq, e->n, e->rows, e->chosen);
    }
    for (int32_t i = 0; i < c->n_names; i++) {
        const struct neurons_magnitudes *m = neurons_magnitudes(n, c->names[i].name);
        if (!m || !m->counts)
            return oato_fail(err, OATO_EFILE, "%s", missing);
        memcpy(c->magnitudes[c->names[i].magnitude].bins, m->counts,
               NEURONS_BINS * sizeof *m->counts);
    }
    return OATO_OK;
}
