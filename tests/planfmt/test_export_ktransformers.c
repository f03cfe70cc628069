/*
 * test_export_ktransformers.c - the rules, read by libyaml and applied to every module of the model
 * as ktransformers does (the first rule whose pattern is found in the name and whose class is the
 * module's), must put every matrix and layer where the plan has it, or say that they can't.
 */
#include "placed_plan.h"

#include <regex.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

#include <cmocka.h>

enum { LAYERS = PLACED_LAYERS, CPU = PLACED_CPU, RULES = 64 };
static const char *const names[PLACED_DEVICES] = {"cuda:0", "cpu", "cuda:1"};
static struct model *model;

static int setup(void **state)
{
    (void)state;
    model = placed_model("llama", false);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    model_close(model);
    scratch_clean();
    return 0;
}

/* ---------------------------------------------------------------------- the rules, as read --- */

struct rules {
    yaml_document_t doc;
    yaml_node_t *rule[RULES];
    regex_t pattern[RULES];
    int n;
};

static yaml_node_t *get(struct rules *r, yaml_node_t *map, const char *key)
{
    if (!map || map->type != YAML_MAPPING_NODE)
        return NULL;
    for (yaml_node_pair_t *p = map->data.mapping.pairs.start; p < map->data.mapping.pairs.top;
         p++) {
        const yaml_node_t *k = yaml_document_get_node(&r->doc, p->key);
        if (!strcmp((const char *)k->data.scalar.value, key))
            return yaml_document_get_node(&r->doc, p->value);
    }
    return NULL;
}

static const char *text_of(const yaml_node_t *n)
{
    return n && n->type == YAML_SCALAR_NODE ? (const char *)n->data.scalar.value : NULL;
}

/* rule.replace.kwargs.key */
static const char *keyword(struct rules *r, int rule, const char *key)
{
    return text_of(get(r, get(r, get(r, r->rule[rule], "replace"), "kwargs"), key));
}

static void read_rules(struct rules *r, const struct text *t)
{
    yaml_parser_t parser;
    assert_true(yaml_parser_initialize(&parser));
    yaml_parser_set_input_string(&parser, (const unsigned char *)t->data, t->len);
    if (!yaml_parser_load(&parser, &r->doc))
        fail_msg("no YAML: %s in line %zu of %s", parser.problem, parser.problem_mark.line,
                 t->data);
    yaml_parser_delete(&parser);
    yaml_node_t *root = yaml_document_get_root_node(&r->doc);
    assert_true(root && root->type == YAML_SEQUENCE_NODE);
    r->n = 0;
    for (yaml_node_item_t *i = root->data.sequence.items.start; i < root->data.sequence.items.top;
         i++) {
        assert_true(r->n < RULES);
        r->rule[r->n] = yaml_document_get_node(&r->doc, *i);
        const char *name = text_of(get(r, get(r, r->rule[r->n], "match"), "name"));
        assert_non_null(name);
        assert_non_null(text_of(get(r, get(r, r->rule[r->n], "replace"), "class")));
        assert_int_equal(regcomp(&r->pattern[r->n++], name, REG_EXTENDED | REG_NOSUB), 0);
    }
}

static void free_rules(struct rules *r)
{
    for (int i = 0; i < r->n; i++)
        regfree(&r->pattern[i]);
    yaml_document_delete(&r->doc);
}

static const char *class_of(const char *module)
{
    const size_t n = strlen(module);
    if (!strcmp(module, "lm_head") || (n > 5 && !strcmp(module + n - 5, "_proj")))
        return "torch.nn.Linear";
    return strstr(module, "rotary_emb") ? "ktransformers.models.modeling_llama.LlamaRotaryEmbedding"
                                        : "other";
}

static int rule_of(struct rules *r, const char *module)
{
    for (int i = 0; i < r->n; i++) {
        const char *class = text_of(get(r, get(r, r->rule[i], "match"), "class"));
        if (class && strcmp(class, class_of(module)) != 0)
            continue;
        if (!regexec(&r->pattern[i], module, 0, NULL, 0))
            return i;
    }
    fail_msg("no rule for %s", module);
    return -1;
}

/* Where a module runs, its two devices being the same. */
static const char *device_of(struct rules *r, const char *module)
{
    const int rule = rule_of(r, module);
    const char *device = keyword(r, rule, "generate_device");
    assert_non_null(device);
    assert_string_equal(device, keyword(r, rule, "prefill_device"));
    return device;
}

static const char *device_in_layer(struct rules *r, int layer, const char *module)
{
    char name[64];
    snprintf(name, sizeof name, "model.layers.%d.%s", layer, module);
    return device_of(r, name);
}

/* ------------------------------------------------------------------------------------ tests --- */

static const struct {
    const char *tensor, *module;
} matrices[] = {{"attn_q", "self_attn.q_proj"}, {"attn_k", "self_attn.k_proj"},
                {"attn_v", "self_attn.v_proj"}, {"attn_output", "self_attn.o_proj"},
                {"ffn_gate", "mlp.gate_proj"},  {"ffn_up", "mlp.up_proj"},
                {"ffn_down", "mlp.down_proj"}};

static const char *planned(const struct placed *x, const char *tensor)
{
    const struct gguf_tensor *t = gguf_tensor(model->gguf, tensor);
    assert_non_null(t);
    return names[x->tensor[t - gguf_tensor_at(model->gguf, 0)]];
}

static void export_to(const struct placed *x, struct rules *r, struct text *lost)
{
    struct oato_error err = {.text = ""};
    struct export_options o = {.target = EXPORT_KTRANSFORMERS};
    struct text file;
    text_init(&file);
    text_init(lost);
    if (plan_export(&x->plan, model, &o, &file, lost, &err))
        fail_msg("%s", err.text);
    read_rules(r, &file);
    text_free(&file);
}

/* "attn_q.weight of layers 1 4 is planned on cuda:1; ..." names layer and tensor. */
static bool says_lost(const struct text *lost, const char *tensor, int layer, const char *device)
{
    char start[64], number[16], where[32];
    snprintf(start, sizeof start, "%s.weight of layers ", tensor);
    snprintf(number, sizeof number, " %d ", layer);
    snprintf(where, sizeof where, " is planned on %s;", device);
    for (const char *line = lost->data; line && *line; line = strchr(line, '\n') + 1) {
        char copy[512];
        snprintf(copy, sizeof copy, "%.*s", (int)strcspn(line, "\n"), line);
        if (!strncmp(copy, start, strlen(start)) && strstr(copy, number) && strstr(copy, where))
            return true;
    }
    return false;
}

/* The layer's device, and that all which is no matrix is there. */
static const char *check_layer(struct rules *r, int layer)
{
    static const char *const others[] = {"self_attn", "self_attn.rotary_emb", "mlp",
                                         "input_layernorm", "post_attention_layernorm"};
    const char *device = device_in_layer(r, layer, "self_attn");
    for (size_t i = 0; i < ARRAY_LEN(others); i++)
        assert_string_equal(device_in_layer(r, layer, others[i]), device);
    assert_true(strcmp(device, "cpu") != 0);
    return device;
}

/* transfer_map moves the hidden state to where each layer is, from cuda:0 on. */
static void check_transfers(struct rules *r)
{
    const char *at = "cuda:0";
    yaml_node_t *map =
        get(r, get(r, get(r, r->rule[rule_of(r, "model")], "replace"), "kwargs"), "transfer_map");
    for (int i = 0; i < LAYERS; i++) {
        char number[16];
        snprintf(number, sizeof number, "%d", i);
        const char *to = text_of(get(r, map, number));
        at = to ? to : at;
        assert_string_equal(at, device_in_layer(r, i, "self_attn"));
    }
    assert_string_equal(device_of(r, "model.norm"), at);
}

static uint64_t seed = 1;

static uint64_t next_random(void)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return seed >> 33;
}

static int32_t layer_gpu[LAYERS + 2];
static int scattered; /* of 16 operators so many go anywhere */
static bool to_cpu;   /* of the others, every other matrix goes to the CPU */

static int32_t by_layer(const struct graph_op *op)
{
    if ((int)(next_random() % 16) < scattered)
        return (int32_t)(next_random() % PLACED_DEVICES);
    if (to_cpu && op->op.kind == OP_MUL_MAT && next_random() % 2)
        return CPU;
    return layer_gpu[op->layer + 1];
}

static void any_plan_is_told_or_its_loss_is_listed(void **state)
{
    (void)state;
    int told = 0, listed = 0;
    for (int round = 0; round < 200; round++) {
        struct placed x;
        struct rules r;
        struct text lost;
        scattered = round % 5 * 2;
        to_cpu = round % 2;
        for (int i = 0, gpu = 0; i < LAYERS + 2; i++) {
            gpu = gpu || !(next_random() % 10);
            layer_gpu[i] = gpu ? 2 : 0;
        }
        plan_placed(&x, model, by_layer);
        x.plan.request.batch = 1;
        x.plan.request.kv = DT_F16;
        export_to(&x, &r, &lost);
        for (int i = 0; i < LAYERS; i++) {
            const char *home = check_layer(&r, i);
            for (size_t m = 0; m < ARRAY_LEN(matrices); m++) {
                char tensor[64], module[64];
                snprintf(tensor, sizeof tensor, "blk.%d.%s.weight", i, matrices[m].tensor);
                snprintf(module, sizeof module, "model.layers.%d.%s", i, matrices[m].module);
                const char *want = planned(&x, tensor), *is = device_of(&r, module);
                const int rule = rule_of(&r, module);
                const bool same = !strcmp(want, is);
                if (!same &&
                    (strcmp(is, home) != 0 || !says_lost(&lost, matrices[m].tensor, i, want)))
                    fail_msg("%s on %s, not %s, and nothing said: %s", tensor, is, want, lost.data);
                told += same;
                listed += !same;
                if (!strcmp(is, "cpu")) { /* and the result comes back to the layer */
                    assert_string_equal(keyword(&r, rule, "generate_op"), "KLinearCPUInfer");
                    assert_string_equal(keyword(&r, rule, "out_device"), home);
                } else {
                    assert_string_equal(keyword(&r, rule, "generate_op"), "KLinearMarlin");
                }
            }
            if (!scattered && !to_cpu) /* layers in ascending order are told exactly */
                assert_string_equal(home, names[layer_gpu[i + 1]]);
        }
        check_transfers(&r);
        assert_string_equal(device_of(&r, "model.embed_tokens"), "cpu");
        if (!strcmp(planned(&x, "output.weight"), "cpu"))
            assert_string_equal(device_of(&r, "lm_head"), "cpu");
        else
            assert_string_equal(device_of(&r, "lm_head"), device_of(&r, "model.norm"));
        free_rules(&r);
        text_free(&lost);
        plan_free(&x.plan);
    }
    printf("matrices: %d as planned, %d listed\n", told, listed);
    assert_true(told > 8 * listed && listed > 0);
}

static int32_t all_on_first(const struct graph_op *op)
{
    (void)op;
    return 0;
}

static int32_t all_on_cpu(const struct graph_op *op)
{
    (void)op;
    return CPU;
}

static void one_gpu_needs_no_transfers_and_loses_nothing(void **state)
{
    (void)state;
    struct placed x;
    struct rules r;
    struct text lost;
    plan_placed(&x, model, all_on_first);
    x.plan.request.batch = 1;
    x.plan.request.kv = DT_F16;
    export_to(&x, &r, &lost);
    assert_int_equal(lost.len, 0);
    assert_null(get(&r, get(&r, get(&r, r.rule[rule_of(&r, "model")], "replace"), "kwargs"),
                    "transfer_map"));
    free_rules(&r);
    text_free(&lost);
    x.plan.request.batch = 2;
    x.plan.request.kv = DT_Q8_0;
    export_to(&x, &r, &lost);
    assert_non_null(strstr(lost.data, "KV of type Q8_0"));
    assert_non_null(strstr(lost.data, "2 sequences"));
    free_rules(&r);
    text_free(&lost);
    plan_free(&x.plan);
}

static int32_t experts_by_layer(const struct graph_op *op)
{
    const int32_t gpu = op->layer < 5 ? 0 : 2;
    return strstr(op->name, "exps") && op->layer % 3 ? CPU : gpu;
}

/* Experts are one module of a layer: all on the CPU, or all on the layer's GPU. */
static void experts_stay_where_they_were_planned(void **state)
{
    (void)state;
    struct oato_error err = {.text = ""};
    struct export_options o = {.target = EXPORT_KTRANSFORMERS};
    struct model *m = placed_model("qwen3moe", false);
    struct placed x;
    struct rules r;
    struct text file, lost;
    text_init(&file);
    text_init(&lost);
    plan_placed(&x, m, experts_by_layer);
    x.plan.request.batch = 1;
    x.plan.request.kv = DT_F16;
    if (plan_export(&x.plan, m, &o, &file, &lost, &err))
        fail_msg("%s", err.text);
    assert_int_equal(lost.len, 0);
    read_rules(&r, &file);
    for (int i = 0; i < LAYERS; i++) {
        const char *home = i < 5 ? "cuda:0" : "cuda:1";
        char name[64];
        snprintf(name, sizeof name, "model.layers.%d.mlp.experts", i);
        const int rule = rule_of(&r, name);
        assert_string_equal(keyword(&r, rule, "generate_device"), i % 3 ? "cpu" : home);
        assert_string_equal(keyword(&r, rule, "generate_op"),
                            i % 3 ? "KExpertsCPU" : "KExpertsMarlin");
        assert_string_equal(keyword(&r, rule, "prefill_device"), home);
        assert_string_equal(keyword(&r, rule, "out_device"), home);
        assert_string_equal(text_of(get(&r, r.rule[rule], "recursive")), "False");
        assert_string_equal(device_in_layer(&r, i, "mlp.gate"), home);
        assert_string_equal(device_in_layer(&r, i, "self_attn.q_proj"), home);
    }
    free_rules(&r);
    text_free(&file);
    text_free(&lost);
    plan_free(&x.plan);
    model_close(m);
}

static void expect_refused(const struct placed *x, const struct model *m, const char *words)
{
    struct oato_error err = {.text = ""};
    const struct export_name name = {"cpu:0", "it's"};
    struct export_options o = {
        .target = EXPORT_KTRANSFORMERS, .names = &name, .n_names = !strcmp(words, "the host cpu")};
    struct text file, lost;
    text_init(&file);
    text_init(&lost);
    assert_int_equal(plan_export(&x->plan, m, &o, &file, &lost, &err), OATO_EUSAGE);
    if (!strstr(err.text, words))
        fail_msg("no '%s' in: %s", words, err.text);
    text_free(&file);
    text_free(&lost);
}

static void what_does_not_run_there_is_refused(void **state)
{
    (void)state;
    struct placed x;
    plan_placed(&x, model, all_on_cpu);
    expect_refused(&x, model, "uses no GPU");
    plan_free(&x.plan);
    plan_placed(&x, model, all_on_first);
    expect_refused(&x, model, "the host cpu");
    snprintf(x.plan.devices[0].id, sizeof x.plan.devices[0].id, "sim:0");
    snprintf(x.plan.devices[0].kind, sizeof x.plan.devices[0].kind, "sim");
    expect_refused(&x, model, "ktransformers has no name for sim:0");
    plan_free(&x.plan);
    struct model *qwen2 = placed_model("qwen2", false);
    plan_placed(&x, qwen2, all_on_first);
    expect_refused(&x, qwen2, "architecture 'qwen2'; known: llama, qwen3moe");
    plan_free(&x.plan);
    model_close(qwen2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_plan_is_told_or_its_loss_is_listed),
        cmocka_unit_test(one_gpu_needs_no_transfers_and_loses_nothing),
        cmocka_unit_test(experts_stay_where_they_were_planned),
        cmocka_unit_test(what_does_not_run_there_is_refused),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
