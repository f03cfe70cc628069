/*
 * op_set.c - what is to be timed: the distinct operators of a model's graph and of every fused
 * pattern that matches in it, and the sizes (tokens, sequences, context, active neurons) of each.
 * Operators with the same key are one case; their tensors are kept, as sources of weights to rotate
 * over.
 */
#include "profiler/profiler_internal.h"

#include "lowering/lowering.h"

#include <stdlib.h>
#include <string.h>

/* Tokens of a step: decode, small batches, chunks of a prompt. */
static const int32_t rows_full[] = {1, 2, 4, 8, 32, 128, 512};
static const int32_t rows_quick[] = {1, 8, 128, 512};
/* Itself, by lists, by rows, and what makes these lists in two ways. */
enum { OPS_OF_ONE = 3 + LIST_OPS };
/* Steps rarely want the logits of more rows: the sequences of a batch. */
enum { LOGITS_ROWS_MAX = 32 };
static const int32_t contexts_full[] = {64, 512, 2048, 4096};
static const int32_t contexts_quick[] = {64, 512, 2048};
/* Batches of equal sequences, one token each. */
static const int32_t batches[] = {4, 32};
static const int32_t batch_contexts[] = {512, 2048};

static struct op_case *find_case(const struct op_set *s, const struct oato_op *op)
{
    for (int32_t i = 0; i < s->n; i++)
        if (oato_op_same(&s->cases[i].op, op))
            return &s->cases[i];
    return NULL;
}

/* sources: how many operators there may be of the case, at most. */
static struct op_case *add_case(const struct graph_op *o, const struct oato_op *op, int32_t sources,
                                struct op_set *s)
{
    struct op_case *c = &s->cases[s->n];
    c->op = *op;
    c->shape = *o;
    c->logits_only = true;
    c->weights = arena_alloc(&s->arena, (size_t)sources, sizeof *c->weights);
    for (int32_t j = 0; j < o->n_in; j++)
        c->in_width[j] = (int32_t)op_in_width(op, j);
    for (int32_t j = 0; j < o->n_out; j++)
        c->out_width[j] = op_out_width(op, j);
    s->n += c->weights != NULL;
    return c->weights ? c : NULL;
}

/* Its case, perhaps a new one; NULL: memory is short. */
static struct op_case *collect(const struct graph_op *o, const struct oato_op *op, int32_t sources,
                               struct op_set *s)
{
    struct op_case *c = find_case(s, op);
    if (!c)
        c = add_case(o, op, sources, s);
    if (!c)
        return NULL;
    if (o->n_weights != c->shape.n_weights) /* a norm without its bias: timed with it */
        return c;
    for (int32_t j = 0; j < c->n_weights; j++)
        if (!memcmp(c->weights[j], o->weight, sizeof o->weight))
            return c;
    memcpy(c->weights[c->n_weights++], o->weight, sizeof o->weight);
    return c;
}

/* Adds an operator, plain or fused, that stands in the graph. */
static bool collect_op(const struct graph *g, const struct graph_op *o, oato_dtype kv,
                       struct op_set *s)
{
    const struct oato_op op = graph_op_with_kv(o, kv);
    struct op_case *c = collect(o, &op, g->n_ops, s);
    if (c && (!o->n_out || g->values[o->out[0]].rows == ROWS_TOKENS))
        c->logits_only = false;
    return c;
}

/* Adds an operator of a record that makes a list of neurons. */
static bool collect_made(const struct oato_op *op, const struct gguf_tensor *weight,
                         int32_t sources, struct op_set *s)
{
    struct graph_op o = {.op = *op, .n_in = 1, .n_out = 1, .n_weights = weight != NULL};
    const struct op_case *before = find_case(s, op);
    o.weight[0] = weight;
    struct op_case *c = collect(&o, op, sources, s);
    if (c && !before) {
        c->logits_only = false;
        c->decode_only = true;
    }
    return c;
}

/* The records that make the lists of a layer for `listed`. */
static bool collect_list(const struct graph *g, const struct graph_op *listed,
                         const struct neurons *n, struct op_set *s)
{
    const struct neurons_predictor *p = n ? neurons_predictor(n, listed->layer) : NULL;
    struct oato_op ops[LIST_OPS];
    bool fits = true;
    if (!p)
        return true;
    list_ops(p, &listed->op, ops);
    const struct gguf_tensor *const weight[LIST_OPS] = {p->down, NULL, p->up, p->bias};
    for (int i = 0; i < LIST_OPS && fits; i++)
        fits = collect_made(&ops[i], weight[i], g->n_ops, s);
    return fits;
}

/* What computes neurons by lists, or without one by the same rows, and what makes the lists. */
static bool collect_listed(const struct graph *g, const struct graph_op *listed,
                           const struct neurons *n, struct op_set *s)
{
    struct graph_op by_list = *listed, by_rows = *listed;
    by_list.op.sparse = SPARSE_PREDICT;
    by_list.n_in = 2;
    by_rows.op.sparse = SPARSE_BY_ROWS;
    return collect_op(g, &by_list, DT_F16, s) && collect_op(g, &by_rows, DT_F16, s) &&
           collect_list(g, listed, n, s);
}

static bool collect_guesses(const struct graph *fused, bool asked, const struct neurons *n,
                            struct op_set *s)
{
    bool fits = true;
    for (int32_t i = 0; i < fused->n_ops && fits; i++) {
        const struct graph_op *neurons = sparse_neurons(fused, &fused->ops[i], true);
        const struct graph_op *listed = neurons ? sparse_listed(fused, neurons) : NULL;
        if (listed && (asked || (n && neurons_predictor(n, listed->layer))))
            fits = collect_listed(fused, listed, n, s);
    }
    return fits;
}

oato_status op_set_collect(const struct graph *g, oato_dtype kv, struct op_set *out,
                           struct oato_error *err)
{
    memset(out, 0, sizeof *out);
    arena_init(&out->arena);
    int32_t n = graph_matches(g, NULL, 0), cap = g->n_ops + n;
    struct graph_match *m = arena_alloc(&out->arena, (size_t)n, sizeof *m);
    out->cases = arena_alloc(&out->arena, (size_t)cap, sizeof *out->cases);
    bool fits = m && out->cases;
    for (int32_t i = 0; fits && i < g->n_ops; i++)
        fits = collect_op(g, &g->ops[i], kv, out);
    if (fits)
        graph_matches(g, m, n);
    for (int32_t i = 0; fits && i < n; i++) {
        struct graph_op fused = graph_fused(g, m[i]);
        fits = collect_op(g, &fused, kv, out);
    }
    if (!fits) {
        op_set_free(out);
        return oato_fail_memory(err, (size_t)cap * sizeof *out->cases, "the list of operators");
    }
    return OATO_OK;
}

/* Products that can skip inputs near zero (oato-plan --sparse input=S), which fusions hide. */
static bool collect_inputs(const struct graph *g, struct op_set *s)
{
    bool fits = true;
    for (int32_t i = 0; i < g->n_ops && fits; i++) {
        struct graph_op o = g->ops[i];
        o.op.sparse = SPARSE_ABOVE;
        if (sparse_takes_inputs(&o))
            fits = collect_op(g, &o, DT_F16, s);
    }
    return fits;
}

oato_status op_set_add_sparse(const struct graph *g, bool asked, const struct neurons *n,
                              struct op_set *s, struct oato_error *err)
{
    const struct sparse_choice choice = {.mode = asked ? SPARSE_ABOVE : SPARSE_EXACT};
    struct graph fused;
    struct arena a;
    arena_init(&a);
    struct graph_match *taken =
        arena_alloc(&a, (size_t)graph_matches(g, NULL, 0) + 1, sizeof *taken);
    oato_status status = taken
                             ? graph_fuse(g, taken, graph_cover(g, NULL, NULL, taken), &fused, err)
                             : oato_fail_memory(err, sizeof *taken, "the list of operators");
    arena_free(&a);
    if (status)
        return status;
    status = sparse_apply(&fused, &choice, NULL, err);
    struct op_case *cases =
        arena_alloc(&s->arena, (size_t)s->n + OPS_OF_ONE * (size_t)fused.n_ops + (size_t)g->n_ops,
                    sizeof *s->cases);
    bool fits = cases;
    if (fits) {
        memcpy(cases, s->cases, (size_t)s->n * sizeof *cases);
        s->cases = cases;
    }
    for (int32_t i = 0; i < fused.n_ops && fits && !status; i++)
        if (fused.ops[i].op.sparse)
            fits = collect_op(&fused, &fused.ops[i], DT_F16, s);
    if (fits && !status)
        fits = collect_guesses(&fused, asked, n, s);
    graph_free(&fused);
    const int32_t before = s->n;
    if (fits && asked)
        fits = collect_inputs(g, s);
    if (!fits)
        return oato_fail_memory(err, sizeof *cases, "the list of operators");
    return status == OATO_EUSAGE && (!asked || s->n > before) ? OATO_OK : status;
}

oato_status op_set_add_converts(const struct graph *g, struct op_set *s, struct oato_error *err)
{
    struct op_case *cases =
        arena_alloc(&s->arena, (size_t)s->n + 2 * (size_t)g->n_values, sizeof *cases);
    bool fits = cases;
    if (fits)
        memcpy(cases, s->cases, (size_t)s->n * sizeof *cases);
    s->cases = fits ? cases : s->cases;
    for (int32_t v = 0; v < g->n_values && fits; v++)
        for (int back = 0; back < 2 && fits; back++) {
            const int32_t width = g->values[v].width;
            struct graph_op o = {
                .op = {.kind = OP_CONVERT, .dtype = back ? DT_F32 : DT_F16, .k = width, .n = width},
                .n_in = 1,
                .n_out = 1};
            struct op_case *c = collect(&o, &o.op, 1, s);
            fits = c;
            if (c && g->values[v].rows == ROWS_TOKENS)
                c->logits_only = false;
        }
    return fits ? OATO_OK : oato_fail_memory(err, sizeof *cases, "the list of operators");
}

void op_set_free(struct op_set *s)
{
    arena_free(&s->arena);
    memset(s, 0, sizeof *s);
}

struct op_size op_point_size(const struct oato_op *op, const struct op_point *at)
{
    struct op_size size = {.rows = at->rows, .seqs = 1};
    if (op_has_seqs(op->kind))
        size.seqs = at->seqs;
    size.active = at->active;
    if (op->kind == OP_ATTENTION) {
        /* the last of q tokens reads all n positions, the one before one less, ... */
        int64_t q = at->rows / at->seqs, n = at->context;
        size.kv_positions = at->seqs * (q * (n - q) + q * (q + 1) / 2);
    }
    return size;
}

int32_t op_point_positions(const struct op_point *at)
{
    return (int32_t)max_i64(at->context, at->rows / at->seqs);
}

int32_t op_point_pages(const struct op_point *at)
{
    return kv_pages_of(op_point_positions(at));
}

static void add_point(struct op_point *out, int32_t *n, int32_t rows, int32_t seqs, int32_t context)
{
    const struct op_point p = {.rows = rows, .seqs = seqs, .context = context};
    if (*n < POINTS_MAX && (!*n || memcmp(&out[*n - 1], &p, sizeof p) != 0))
        out[(*n)++] = p;
}

/* Attention of T tokens: the first chunk of a prompt (nothing before it), then longer contexts. */
static void attention_points(const struct profiler_options *o, int32_t rows, int32_t longest,
                             struct op_point *out, int32_t *n)
{
    const int32_t *contexts = o->quick ? contexts_quick : contexts_full;
    int32_t n_contexts = o->quick ? ARRAY_LEN(contexts_quick) : ARRAY_LEN(contexts_full);
    if (o->n_contexts) {
        contexts = o->contexts;
        n_contexts = o->n_contexts;
    }
    if (!o->n_contexts && rows > contexts[0])
        add_point(out, n, rows, 1, rows);
    int32_t before = *n;
    for (int32_t i = 0; i < n_contexts; i++)
        if (contexts[i] >= rows && contexts[i] <= longest)
            add_point(out, n, rows, 1, contexts[i]);
    if (*n == before && rows <= longest) /* a model with a short context */
        add_point(out, n, rows, 1, longest);
}

/* Few tokens at several shares of active neurons; prompts need them all, and have no lists. */
static int32_t sparse_points(const struct oato_op *op, bool quick, int32_t longest,
                             struct op_point *out)
{
    static const int percent_full[] = {5, 10, 20, 40, 70, 100}, percent_quick[] = {10, 40, 100};
    static const int32_t tokens[] = {1, 4, NUMERICS_DECODE_ROWS, 128, 512};
    const int *percent = quick ? percent_quick : percent_full;
    const int n_percent = quick ? ARRAY_LEN(percent_quick) : ARRAY_LEN(percent_full);
    const int64_t all = op_neurons(op);
    int32_t n = 0;
    for (size_t i = 0; i < ARRAY_LEN(tokens); i++)
        for (int j = tokens[i] <= NUMERICS_DECODE_ROWS ? 0 : n_percent - 1;
             j < n_percent && tokens[i] <= longest; j++) {
            if (op->sparse == (tokens[i] > NUMERICS_DECODE_ROWS ? SPARSE_PREDICT : SPARSE_BY_ROWS))
                continue;
            if (quick && (tokens[i] == 4 || tokens[i] == 512))
                continue;
            out[n++] = (struct op_point){.rows = tokens[i],
                                         .seqs = 1,
                                         .active = (int32_t)max_i64(all * percent[j] / 100, 1)};
        }
    return n;
}

int32_t op_points(const struct op_case *c, const struct profiler_options *o, int64_t context_length,
                  struct op_point *out)
{
    const int32_t longest = (int32_t)min_i64(context_length, 1 << 24);
    const int32_t *rows = o->quick ? rows_quick : rows_full;
    int32_t n_rows = o->quick ? ARRAY_LEN(rows_quick) : ARRAY_LEN(rows_full), n = 0;
    bool attention = c->op.kind == OP_ATTENTION, state = op_state_floats(&c->op);
    if (c->op.sparse)
        return sparse_points(&c->op, o->quick, longest, out);
    for (int32_t i = 0; i < n_rows; i++) {
        if (rows[i] > longest || (c->decode_only && rows[i] > NUMERICS_DECODE_ROWS) ||
            (c->logits_only && rows[i] > LOGITS_ROWS_MAX))
            continue;
        if (attention)
            attention_points(o, rows[i], longest, out, &n);
        else /* a state was there before the first token */
            add_point(out, &n, rows[i], 1, state ? rows[i] + 1 : 0);
    }
    for (size_t i = 0; state && !o->quick && i < ARRAY_LEN(batches); i++)
        add_point(out, &n, batches[i], batches[i], 2);
    for (size_t i = 0; attention && !o->quick && i < ARRAY_LEN(batches); i++)
        for (size_t j = 0; j < ARRAY_LEN(batch_contexts); j++)
            if (batch_contexts[j] <= longest)
                add_point(out, &n, batches[i], batches[i], batch_contexts[j]);
    return n;
}

int32_t op_points_of_rows(const struct op_case *c, const int32_t rows[DEVICE_ROWS],
                          struct op_point *out)
{
    int32_t n = 0;
    for (int i = 0; i < DEVICE_ROWS && rows[i]; i++)
        if (!n || (!(c->decode_only && rows[i] > NUMERICS_DECODE_ROWS) &&
                   !(c->logits_only && rows[i] > LOGITS_ROWS_MAX)))
            add_point(out, &n, rows[i], 1, 0);
    return n;
}
