/*
 * test_graph.c - architectures build the graph of their equations: which operators, over which
 * tensors and values; files whose keys and tensors disagree are refused with one line that says so.
 */
#include "tests/models/random_model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static char folder[64], path[128];

static int setup(void **state)
{
    (void)state;
    strcpy(folder, "/tmp/oato-graph-XXXXXX");
    if (!mkdtemp(folder))
        return 1;
    snprintf(path, sizeof path, "%s/model.gguf", folder);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    unlink(path);
    return rmdir(folder);
}

static struct random_model shape_of(const char *architecture)
{
    struct random_model m = random_model_default();
    m.architecture = architecture;
    m.header_only = true;
    m.tokenizer = false;
    m.head_dim = 32; /* 4 heads of 32 are wider than the model */
    if (!strcmp(architecture, "qwen3moe")) {
        m.experts = 16;
        m.experts_used = 4;
    }
    if (!strcmp(architecture, "gemma4"))
        m.keys = "attention.sliding_window=8 attention.sliding_window_pattern=true,false "
                 "attention.key_length_swa=16 attention.value_length_swa=16 "
                 "rope.dimension_count_swa=16";
    return m;
}

static struct model *made(const struct random_model *m)
{
    struct oato_error err = {0};
    struct model *model = NULL;
    if (random_model_save(m, path, &err) || model_open(path, &model, &err))
        fail_msg("%s", err.text);
    return model;
}

static const struct graph_op *op_named(const struct graph *g, const char *name)
{
    for (int32_t i = 0; i < g->n_ops; i++)
        if (!strcmp(g->ops[i].name, name))
            return &g->ops[i];
    fail_msg("no operator %s", name);
    return NULL;
}

/* The operators of layer 1 in order, as one line. */
static void layer_is(const struct graph *g, const char *expected)
{
    struct text t;
    text_init(&t);
    for (int32_t i = 0; i < g->n_ops; i++)
        if (g->ops[i].layer == 1)
            text_printf(&t, "%s%s", t.len ? " " : "", op_kind_name(g->ops[i].op.kind));
    assert_non_null(t.data);
    assert_string_equal(t.data, expected);
    text_free(&t);
}

static void qwen3_norms_the_heads_before_it_turns_them(void **state)
{
    (void)state;
    struct random_model m = shape_of("qwen3");
    struct model *model = made(&m);
    const struct graph *g = &model->graph;
    layer_is(g, "rms_norm mul_mat mul_mat mul_mat head_norm head_norm rope rope kv_store attention "
                "mul_mat add rms_norm mul_mat mul_mat swiglu mul_mat add");
    const struct graph_op *q = op_named(g, "blk.1.attn_q"), *qn = op_named(g, "blk.1.attn_q_norm");
    const struct graph_op *kn = op_named(g, "blk.1.attn_k_norm"),
                          *rope = op_named(g, "blk.1.rope_k");
    assert_int_equal(q->op.n, 4 * 32);
    assert_int_equal(qn->in[0], q->out[0]);
    assert_int_equal(qn->op.heads, 4);
    assert_int_equal(kn->op.heads, 2);
    assert_int_equal(kn->op.head_dim, 32);
    assert_string_equal(kn->weight[0]->name, "blk.1.attn_k_norm.weight");
    assert_int_equal(rope->in[0], kn->out[0]);
    assert_int_equal(rope->op.rope_pairing, ROPE_HALVES);
    assert_int_equal(model->shape.head_dim, 32);
    assert_int_equal(model->shape.experts, 0);
    model_close(model);
}

static void qwen3moe_routes_each_token_to_its_experts(void **state)
{
    (void)state;
    struct random_model m = shape_of("qwen3moe");
    struct model *model = made(&m);
    const struct graph *g = &model->graph;
    layer_is(g, "rms_norm mul_mat mul_mat mul_mat head_norm head_norm rope rope kv_store attention "
                "mul_mat add rms_norm mul_mat route expert_gate_up expert_down add");
    const struct graph_op *norm = op_named(g, "blk.1.ffn_norm");
    const struct graph_op *logits = op_named(g, "blk.1.ffn_gate_inp");
    const struct graph_op *route = op_named(g, "blk.1.ffn_route");
    const struct graph_op *up = op_named(g, "blk.1.ffn_gate_up_exps");
    const struct graph_op *down = op_named(g, "blk.1.ffn_down_exps");
    assert_int_equal(logits->op.n, 16);
    assert_int_equal(route->in[0], logits->out[0]);
    assert_int_equal(route->op.route_norm, 1);
    assert_int_equal(g->values[route->out[0]].width, 8);
    assert_int_equal(up->in[0], norm->out[0]);
    assert_int_equal(up->in[1], route->out[0]);
    assert_int_equal(up->n_weights, 2);
    assert_string_equal(up->weight[0]->name, "blk.1.ffn_gate_exps.weight");
    assert_string_equal(up->weight[1]->name, "blk.1.ffn_up_exps.weight");
    assert_int_equal(g->values[up->out[0]].width, 4 * 128);
    assert_int_equal(down->in[0], up->out[0]);
    assert_int_equal(down->in[1], route->out[0]);
    assert_int_equal(down->op.k, 128);
    assert_int_equal(g->values[down->out[0]].width, 64);
    for (int i = 0; i < 2; i++) {
        int64_t n, k;
        const struct gguf_tensor *t = up->weight[i];
        assert_true(op_weight_shape(&up->op, i, &n, &k));
        assert_int_equal(n, t->ne[1] * t->ne[2]);
        assert_int_equal(k, t->ne[0]);
    }
    assert_int_equal(model->shape.experts, 16);
    assert_int_equal(model->shape.experts_used, 4);
    assert_int_equal(model->shape.ffn_width, 128);
    model_close(model);
}

/* Layers 3 to 5 have no keys and values: they read those of the last layer before of their kind. */
static void gemma4_shares_keys_and_values(void **state)
{
    (void)state;
    static const int32_t read[] = {0, 1, 2, 1, 1, 2};
    struct random_model m = shape_of("gemma4");
    m.layers = ARRAY_LEN(read);
    m.keys = "attention.sliding_window=8 attention.shared_kv_layers=3 rope.dimension_count_swa=16 "
             "attention.sliding_window_pattern=true,true,false,true,true,false "
             "attention.key_length_swa=16 attention.value_length_swa=16 "
             "embedding_length_per_layer_input=8";
    struct model *model = made(&m);
    const struct graph *g = &model->graph;
    int32_t stores = 0;
    for (int32_t i = 0; i < g->n_ops; i++) {
        const struct graph_op *o = &g->ops[i];
        stores += o->op.kind == OP_KV_STORE;
        if (o->op.kind != OP_ATTENTION)
            continue;
        assert_int_equal(o->kv_layer, read[o->layer]);
        assert_int_equal(o->op.window, read[o->layer] == 2 ? 0 : 8);
        assert_int_equal(o->op.head_dim, read[o->layer] == 2 ? 32 : 16);
    }
    assert_int_equal(stores, 3);
    assert_int_equal(graph_kv_bytes(g, DT_F16), (2 * 16 + 32) * 2 * 2 * sizeof(uint16_t));
    assert_int_equal(op_named(g, "blk.5.layer_embd")->op.first, 5 * 8);
    model_close(model);
}

static void patterns_still_match_between_norms_and_experts(void **state)
{
    (void)state;
    static const struct {
        const char *architecture;
        int qkv, gate_up, add_norm;
    } rows[] = {{"llama", 2, 2, 3}, {"qwen3", 2, 2, 3}, {"qwen3moe", 2, 0, 3}};
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct random_model m = shape_of(rows[i].architecture);
        struct model *model = made(&m);
        struct graph_match match[16];
        int found[OP_KIND_COUNT] = {0};
        int32_t n = graph_matches(&model->graph, match, ARRAY_LEN(match));
        assert_in_range(n, 1, ARRAY_LEN(match));
        for (int32_t j = 0; j < n; j++)
            found[op_fusions[match[j].fusion].fused]++;
        assert_int_equal(found[OP_QKV], rows[i].qkv);
        assert_int_equal(found[OP_GATE_UP], rows[i].gate_up);
        assert_int_equal(found[OP_ADD_NORM], rows[i].add_norm);
        model_close(model);
    }
}

/* In each of two layers: three products and two behind their norms, the one behind attention, two
 * additions, a store; and the logits behind the last norm. */
static void neighbours_that_a_device_may_join(void **state)
{
    (void)state;
    static const int apart[JOIN_COUNT] = {11, 2, 4, 2}, fused[JOIN_COUNT] = {5, 2, 1, 2};
    struct random_model m = shape_of("llama");
    struct model *model = made(&m);
    struct graph_match match[16];
    struct oato_error err;
    struct graph cover;
    const int32_t n = graph_cover(&model->graph, NULL, NULL, match);
    assert_int_equal(graph_fuse(&model->graph, match, n, &cover, &err), OATO_OK);
    for (int which = 0; which < 2; which++) {
        const struct graph *g = which ? &cover : &model->graph;
        int found[JOIN_COUNT + 1] = {0};
        for (int32_t i = 0, first; i < g->n_ops; i++)
            found[graph_join(g, i, &first)]++;
        assert_memory_equal(found, which ? fused : apart, sizeof apart);
    }
    graph_free(&cover);
    model_close(model);
}

/* Named shapes are those of real models: parameters in all, and of them in experts. */
static void named_shapes_have_the_size_of_their_names(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        double parameters;
    } rows[] = {{"1b", 1.07e9},
                {"8b", 8.03e9},
                {"70b", 70.6e9},
                {"qwq-32b", 32.8e9},
                {"qwen3-8b", 8.19e9},
                {"qwen3-30b-a3b", 30.5e9},
                {"qwen3-235b-a22b", 235.1e9}};
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct random_model m = random_model_default();
        assert_true(random_model_set_shape(&m, rows[i].name));
        m.header_only = true;
        m.tokenizer = false;
        struct model *model = made(&m);
        double sum = 0;
        for (size_t t = 0; t < gguf_tensor_count(model->gguf); t++) {
            const int64_t *ne = gguf_tensor_at(model->gguf, t)->ne;
            sum += (double)ne[0] * (double)ne[1] * (double)ne[2];
        }
        if (sum < 0.995 * rows[i].parameters || sum > 1.005 * rows[i].parameters)
            fail_msg("%s has %.4g parameters", rows[i].name, sum);
        model_close(model);
    }
    struct random_model m = random_model_default();
    assert_false(random_model_set_shape(&m, "9b"));
}

/* Writes the model again with one key set to another number, without one tensor (or NULL), or with
 * one tensor of another type (DT_COUNT: as it is). */
static void change(const char *key, uint32_t value, const char *tensor, oato_dtype dtype)
{
    struct oato_error err = {0};
    struct gguf *g = NULL;
    if (gguf_open(path, &g, &err))
        fail_msg("%s", err.text);
    struct gguf_writer *w = gguf_writer_create();
    assert_non_null(w);
    gguf_writer_copy_kv(w, g);
    if (key)
        gguf_writer_scalar(w, key, GGUF_U32, &value);
    for (size_t i = 0; i < gguf_tensor_count(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        bool named = tensor && !strcmp(t->name, tensor);
        if (!named || dtype != DT_COUNT)
            gguf_writer_tensor(w, t->name, named ? dtype : t->dtype, t->n_dims, t->ne, NULL);
    }
    oato_status status = gguf_writer_save(w, path, &err);
    gguf_writer_free(w);
    gguf_close(g);
    if (status)
        fail_msg("%s", err.text);
}

static void keys_and_tensors_that_disagree_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *architecture, *key;
        uint32_t value;
        const char *tensor;
        oato_dtype dtype;
        const char *says;
    } rows[] = {
        {"qwen3moe", "qwen3moe.expert_count", 8, NULL, 0, "ffn_gate_inp.weight is 64 x 16"},
        {"qwen3moe", "qwen3moe.expert_count", 0, NULL, 0, "expert_count is 0; allowed: 1 to"},
        {"qwen3moe", "qwen3moe.expert_used_count", 17, NULL, 0, "allowed: 1 to 16"},
        {"qwen3moe", "qwen3moe.expert_used_count", 0, NULL, 0, "allowed: 1 to 16"},
        {"qwen3moe", "qwen3moe.expert_feed_forward_length", 64, NULL, 0,
         "ffn_gate_exps.weight is 64 x 128 x 16, but the model's keys require 64 x 64 x 16"},
        {"qwen3moe", "qwen3moe.expert_group_count", 3, NULL, 0, "groups of"},
        {"qwen3moe", "qwen3moe.attention.key_length", 16, NULL, 0, "inconsistent attention"},
        {"qwen3moe", NULL, 0, "blk.1.ffn_up_exps.weight", DT_COUNT,
         "ffn_up_exps.weight is missing"},
        {"qwen3moe", NULL, 0, "blk.1.ffn_up_exps.weight", DT_F16, "both are quantised: F32, F16"},
        {"qwen3moe", NULL, 0, "blk.0.attn_k_norm.weight", DT_COUNT,
         "attn_k_norm.weight is missing"},
        {"qwen3", NULL, 0, "blk.0.attn_q_norm.weight", DT_COUNT, "attn_q_norm.weight is missing"},
        {"llama", "llama.expert_count", 8, NULL, 0, "llama.expert_used_count is missing"},
        {"gemma4", "gemma4.attention.shared_kv_layers", 1, NULL, 0,
         "leaves layer 1 no layer without a window to share"},
        {"gemma4", "gemma4.attention.shared_kv_layers", 2, NULL, 0, "is 2; allowed: 0 to 1"},
        {"gemma4", "gemma4.attention.key_length_swa", 8, NULL, 0, "inconsistent attention"},
        {"gemma4", NULL, 0, "rope_freqs.weight", DT_COUNT, "rope_freqs.weight is missing"},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct random_model m = shape_of(rows[i].architecture);
        struct oato_error err = {0};
        struct model *model = NULL;
        if (random_model_save(&m, path, &err))
            fail_msg("%s", err.text);
        change(rows[i].key, rows[i].value, rows[i].tensor, rows[i].dtype);
        assert_int_equal(model_open(path, &model, &err), OATO_EFILE);
        assert_null(model);
        if (!strstr(err.text, rows[i].says) || strchr(err.text, '\n'))
            fail_msg("'%s' does not say '%s'", err.text, rows[i].says);
    }
}

/* Files made before the key existed give the neurons of all experts of a token. */
static void without_its_key_the_width_of_an_expert_is_its_share(void **state)
{
    (void)state;
    struct random_model m = shape_of("qwen3moe");
    model_close(made(&m));
    change("qwen3moe.expert_feed_forward_length", 0, NULL, DT_COUNT);
    struct oato_error err = {0};
    struct model *model = NULL;
    if (model_open(path, &model, &err))
        fail_msg("%s", err.text);
    assert_int_equal(model->shape.ffn_width, 128);
    model_close(model);
}

static void blocks_that_predict_further_tokens_are_left_out(void **state)
{
    struct random_model m = shape_of("llama");
    (void)state;
    m.layers = 4;
    m.keys = "nextn_predict_layers=1";
    struct model *model = made(&m);
    assert_int_equal(model->shape.n_layers, 3);
    model_close(model);
}

/* Its block is one more layer behind those of the model, with KV and logits of its own; the
 * embedding serves both, the model's output only where the block has none. */
static void a_block_that_predicts_one_more_token_is_there_when_asked_for(void **state)
{
    struct random_model m = shape_of("glm4moe");
    struct oato_error err;
    (void)state;
    m.layers = 3;
    m.experts = 4;
    m.experts_used = 2;
    m.keys = "nextn_predict_layers=1 leading_dense_block_count=1 expert_shared_count=1 "
             "expert_gating_func=2 feed_forward_length=128";
    struct model *without = made(&m), *with = NULL;
    if (model_open_as(path, &(struct model_choice){.mtp = true}, &with, &err))
        fail_msg("%s", err.text);
    const struct graph *g = &with->graph;
    assert_int_equal(with->shape.n_layers, 2);
    assert_int_equal(without->graph.ops[without->graph.n_ops - 1].layer, 2);
    assert_string_equal(g->ops[g->n_ops - 1].name, "blk.2.nextn.shared_head_head");
    assert_string_equal(g->ops[g->n_ops - 1].weight[0]->name, "output.weight");
    assert_int_equal(g->logits, g->ops[g->n_ops - 1].out[0]);
    assert_int_equal(graph_kv_bytes(g, DT_F16) * 2, graph_kv_bytes(&without->graph, DT_F16) * 3);
    model_close(with);
    model_close(without);
    m.keys = "leading_dense_block_count=1 expert_shared_count=1 expert_gating_func=2 "
             "feed_forward_length=128";
    model_close(made(&m));
    assert_int_equal(model_open_as(path, &(struct model_choice){.mtp = true}, &with, &err),
                     OATO_EFILE);
    assert_non_null(strstr(err.text, "no block"));
}

/* The architecture's, unless the file names another; what the user asks for counts most. */
static void activations_are_the_files_or_the_users(void **state)
{
    (void)state;
    static const struct {
        const char *architecture, *op, *keys, *asked;
        int activation; /* -1: refused */
        const char *says;
    } rows[] = {
        {"llama", "blk.1.ffn_swiglu", NULL, NULL, ACT_SILU, NULL},
        {"llama", "blk.1.ffn_swiglu", "feed_forward_activation=relu", NULL, ACT_RELU, NULL},
        {"llama", "blk.1.ffn_swiglu", "hidden_activation=gelu_pytorch_tanh", NULL, ACT_GELU, NULL},
        {"llama", "blk.1.ffn_swiglu", "feed_forward_activation=relu", "silu", ACT_SILU, NULL},
        {"gemma", "blk.0.ffn_swiglu", NULL, "relu", ACT_RELU, NULL},
        {"qwen3moe", "blk.1.ffn_gate_up_exps", NULL, "relu", ACT_RELU, NULL},
        {"falcon", "blk.1.ffn_activation",
         "feed_forward_activation=relu2 attention.layer_norm_epsilon=0.00001", NULL,
         ACT_RELU_SQUARED, NULL},
        {"llama", NULL, "feed_forward_activation=relux", NULL, -1, "unknown activation 'relux'"},
        {"llama", NULL, NULL, "rel", -1, "unknown activation 'rel'; known: silu"},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct random_model m = shape_of(rows[i].architecture);
        struct oato_error err = {0};
        struct model *model = NULL;
        m.head_dim = 0;
        m.keys = rows[i].keys;
        const struct model_choice choice = {.ffn_activation = rows[i].asked};
        oato_status status = random_model_save(&m, path, &err); /* it builds the graph, too */
        if (!status)
            status = model_open_as(path, &choice, &model, &err);
        if (rows[i].activation < 0) {
            assert_int_equal(status, OATO_EUSAGE); /* of the file: by who made it */
            assert_non_null(strstr(err.text, rows[i].says));
            continue;
        }
        if (status || !model) {
            fail_msg("%s", err.text);
            return;
        }
        assert_int_equal(op_named(&model->graph, rows[i].op)->op.activation, rows[i].activation);
        model_close(model);
    }
}

int main(void)
{
#define FILE_TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        FILE_TEST(blocks_that_predict_further_tokens_are_left_out),
        FILE_TEST(a_block_that_predicts_one_more_token_is_there_when_asked_for),
        FILE_TEST(qwen3_norms_the_heads_before_it_turns_them),
        FILE_TEST(qwen3moe_routes_each_token_to_its_experts),
        FILE_TEST(gemma4_shares_keys_and_values),
        FILE_TEST(patterns_still_match_between_norms_and_experts),
        FILE_TEST(neighbours_that_a_device_may_join),
        FILE_TEST(named_shapes_have_the_size_of_their_names),
        FILE_TEST(keys_and_tensors_that_disagree_are_refused),
        FILE_TEST(activations_are_the_files_or_the_users),
        FILE_TEST(without_its_key_the_width_of_an_expert_is_its_share),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
