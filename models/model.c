/*
 * model.c - opens a GGUF as a model: finds the architecture's recipe, builds the operator graph and
 * refuses files with tensors that the graph would silently leave out.
 */
#include "models/recipe_internal.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_LAYERS = 1024, OPS_A_LAYER = 48, OPS_OUTSIDE = 16 };

/* Tensors that files carry but generating does not need; cls.output is the head of a reranker. */
static bool harmless(const char *name)
{
    size_t n = strlen(name);
    static const char *const endings[] = {".attn_rot_embd",        ".rotary_emb.inv_freq",
                                          ".attn_rot_embd.weight", ".input_scale",
                                          "cls.output.weight",     "cls.output.bias"};
    for (size_t i = 0; i < ARRAY_LEN(endings); i++) {
        size_t m = strlen(endings[i]);
        if (n >= m && !strcmp(name + n - m, endings[i]))
            return true;
    }
    return false;
}

/* Of a block that predicts further tokens, or of its own head. */
static bool predicts(struct graph_builder *b, const char *name)
{
    const int32_t blocks = build_int(b, "block_count", -1, 1, MAX_LAYERS, -1);
    int64_t block;
    char digits[8];
    if (strncmp(name, "blk.", 4) != 0)
        return false;
    snprintf(digits, sizeof digits, "%.*s", (int)strcspn(name + 4, "."), name + 4);
    return parse_i64(digits, b->graph->n_layers, blocks - 1, &block);
}

static void check_all_used(struct graph_builder *b)
{
    for (size_t i = 0; i < gguf_tensor_count(b->gguf) && !build_failed(b); i++) {
        const char *name = gguf_tensor_at(b->gguf, i)->name;
        if (!b->used[i] && !harmless(name) && !build_ignores(b, name) && !predicts(b, name))
            oato_fail(b->err, OATO_EFILE,
                      "%s: unknown tensor %s for architecture %s; a newer oato may be needed",
                      gguf_path(b->gguf), name, b->shape->architecture);
    }
}

/* Weights that products, lookups and norms cannot read (integers, double) are refused here, so
 * that everything behind a graph may rely on the types. */
static void check_dtypes(struct graph_builder *b)
{
    const struct graph *g = b->graph;
    for (int32_t i = 0; i < g->n_ops && !build_failed(b); i++) {
        const struct gguf_tensor *t = g->ops[i].weight[0];
        if (!t || dtype_is_weight(t->dtype))
            continue;
        oato_fail(b->err, OATO_EFILE, "%s: tensor %s has type %s, which no operator supports",
                  gguf_path(b->gguf), t->name, dtype_name(t->dtype));
    }
}

/* Who samples a token reads its logit. Fewer tokens than rows are common: tables are padded. */
static void check_vocabulary(struct graph_builder *b)
{
    const struct gguf_value *tokens = gguf_find(b->gguf, "tokenizer.ggml.tokens");
    if (!build_failed(b) && tokens && tokens->count > (uint64_t)b->shape->vocab)
        oato_fail(b->err, OATO_EFILE,
                  "%s: the tokenizer has %llu tokens, but the model computes logits of %d: "
                  "convert the model again",
                  gguf_path(b->gguf), (unsigned long long)tokens->count, b->shape->vocab);
}

static oato_status unknown_architecture(const struct model *m, struct gguf_string name,
                                        struct oato_error *err)
{
    char word[41];
    snprintf(word, sizeof word, "%.*s", (int)min_i64((int64_t)name.len, 40), name.data);
    const char *has = recipe_missing(word);
    return oato_fail(
        err, OATO_EFILE,
        "%s: architecture '%s' is not supported%s%s; docs/architectures.md lists the %d "
        "that are",
        gguf_path(m->gguf), word, has ? ": it has " : "", has ? has : "", recipe_count());
}

/* Blocks that predict further tokens: one can be run. */
static void check_mtp(struct graph_builder *b, const struct recipe *r, int32_t blocks)
{
    if (build_failed(b) || b->mtp != MTP_ALONE || (r->mtp && blocks == 1))
        return;
    if (!blocks)
        oato_fail(b->err, OATO_EFILE, "%s: has no block that predicts further tokens (MTP)",
                  gguf_path(b->gguf));
    else if (!r->mtp)
        oato_fail(b->err, OATO_EFILE, "%s: MTP of architecture %s is not supported; leave it out",
                  gguf_path(b->gguf), r->name);
    else
        oato_fail(b->err, OATO_EFILE, "%s: has %d blocks of MTP; only one is supported",
                  gguf_path(b->gguf), blocks);
}

/* How layers are made of blocks: one after the other, the last ones for further tokens; or all of
 * them several times; or a slot for each run of two stacks, as block_count says. */
static void read_layers(struct graph_builder *b, const struct recipe *r)
{
    const int32_t blocks = build_int(b, "block_count", -1, 1, MAX_LAYERS, -1);
    if (build_failed(b))
        return;
    const int32_t predicting = build_int(b, "nextn_predict_layers", -1, 0, blocks - 1, 0);
    b->shape->n_layers = blocks - predicting;
    check_mtp(b, r, predicting);
    if (b->mtp == MTP_BESIDE && !(r->mtp && predicting == 1))
        b->mtp = MTP_NONE;
    if (r->loops == LOOPS_OF_ALL) {
        b->stack = b->shape->n_layers;
        b->shape->n_layers *= build_int(b, "num_loops", -1, 1, MAX_LAYERS / blocks, 1);
    }
    if (r->loops != LOOPS_OF_STACKS)
        return;
    const int32_t low = build_int(b, "hrm.l_cycles", -1, 1, blocks, -1);
    const int32_t high = build_int(b, "hrm.h_cycles", -1, 1, blocks, -1);
    const int32_t stack = build_int(b, "hrm.layers_per_stack", -1, 1, blocks, -1);
    if (!build_failed(b) && (int64_t)stack * high * (low + 1) != blocks)
        oato_fail(b->err, OATO_EFILE, "%s: %d blocks are not %d cycles of %d + 1 stacks of %d",
                  gguf_path(b->gguf), blocks, high, low, stack);
    b->stack = stack;
    b->low_cycles = low;
}

static oato_status build(struct model *m, enum mtp mtp, const char *activation,
                         model_absent_fn *absent, void *context, struct oato_error *err)
{
    struct graph_builder b = {.gguf = m->gguf,
                              .mtp = mtp,
                              .activation = activation,
                              .shape = &m->shape,
                              .graph = &m->graph,
                              .absent = absent,
                              .absent_context = context,
                              .err = err};
    static const struct gguf_key_type keys[] = {
        {"general.architecture", GGUF_WANT_STRING},
        {"general.name", GGUF_WANT_STRING},
        {"tokenizer.ggml.tokens", GGUF_WANT_STRINGS},
    };
    struct gguf_string name;
    err->status = OATO_OK;
    if (gguf_check_keys(m->gguf, gguf_path(m->gguf), keys, ARRAY_LEN(keys), err))
        return err->status;
    if (!gguf_get_string(m->gguf, "general.architecture", &name))
        return oato_fail(err, OATO_EFILE, "%s: key general.architecture is missing",
                         gguf_path(m->gguf));
    const struct recipe *recipe = recipe_find(name.data, name.len);
    if (!recipe)
        return unknown_architecture(m, name, err);
    m->shape.architecture = recipe->name;
    b.ignored = gguf_powerinfer(m->gguf) ? "fc1. fc2." : recipe->ignored;
    read_layers(&b, recipe);
    m->shape.context_length = build_int(&b, "context_length", -1, 1, INT32_MAX, -1);
    if (build_failed(&b))
        return err->status;
    struct graph *g = &m->graph;
    g->n_layers = m->shape.n_layers;
    b.ops_cap = b.values_cap = (g->n_layers + (b.mtp != MTP_NONE)) * OPS_A_LAYER + OPS_OUTSIDE;
    g->ops = arena_alloc(&g->arena, (size_t)b.ops_cap, sizeof *g->ops);
    g->values = arena_alloc(&g->arena, (size_t)b.values_cap, sizeof *g->values);
    b.used = calloc(gguf_tensor_count(m->gguf) + 1, sizeof *b.used);
    if (!g->ops || !g->values || !b.used) {
        free(b.used);
        return oato_fail_memory(err, (size_t)b.ops_cap * sizeof *g->ops, "the operator graph");
    }
    arch_build(&b, recipe);
    check_all_used(&b);
    check_dtypes(&b);
    check_vocabulary(&b);
    free(b.used);
    return err->status;
}

oato_status model_from_gguf_as(struct gguf *g, const struct model_choice *choice,
                               struct model **out, struct oato_error *err)
{
    struct model *m = calloc(1, sizeof *m);
    *out = NULL;
    if (!m) {
        gguf_close(g);
        return oato_fail_memory(err, sizeof *m, "a model");
    }
    m->gguf = g;
    arena_init(&m->graph.arena);
    oato_status status =
        build(m, choice->mtp ? MTP_ALONE : MTP_NONE, choice->ffn_activation, NULL, NULL, err);
    if (status)
        model_close(m);
    else
        *out = m;
    return status;
}

oato_status model_from_gguf(struct gguf *g, struct model **out, struct oato_error *err)
{
    return model_from_gguf_as(g, &(struct model_choice){0}, out, err);
}

oato_status model_list_tensors(struct gguf *g, model_absent_fn *absent, void *context,
                               struct oato_error *err)
{
    struct model m = {.gguf = g};
    arena_init(&m.graph.arena);
    build(&m, MTP_BESIDE, NULL, absent, context, err);
    graph_free(&m.graph);
    return err->status;
}

oato_status model_open(const char *path, struct model **out, struct oato_error *err)
{
    return model_open_as(path, &(struct model_choice){0}, out, err);
}

oato_status model_open_as(const char *path, const struct model_choice *choice, struct model **out,
                          struct oato_error *err)
{
    struct gguf *g;
    *out = NULL;
    oato_status status = gguf_open(path, &g, err);
    return status ? status : model_from_gguf_as(g, choice, out, err);
}

void model_close(struct model *m)
{
    if (!m)
        return;
    graph_free(&m->graph);
    gguf_close(m->gguf);
    free(m);
}
