/*
 * test_missing_keys.c - a key that a file lacks means what it means to llama.cpp, whose value it is
 * that published files rely on, and a key that an architecture does not have changes nothing. Here
 * are the values that differ from one architecture to another; tests/oracle holds all keys to
 * llama.cpp's logits.
 */
#include "tests/models/random_model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static oato_status open_with(const char *architecture, int64_t layers, const char *keys,
                             struct model **model, struct oato_error *err)
{
    struct random_model m = random_model_default();
    m.architecture = architecture;
    m.layers = layers;
    m.keys = keys;
    m.header_only = true;
    m.tokenizer = false;
    m.experts = strstr(architecture, "moe") || strstr(architecture, "gpt-oss") ? 4 : 0;
    m.experts_used = m.experts ? 2 : 0;
    return random_model_open(&m, model, err);
}

static const struct oato_op *op_named(const struct graph *g, const char *name)
{
    for (int32_t i = 0; i < g->n_ops; i++)
        if (!strcmp(g->ops[i].name, name))
            return &g->ops[i].op;
    return NULL;
}

enum what { BASE, ROPE_SCALE, MAGNITUDE, WINDOW, SCALE, CAP };

static double field(const struct oato_op *op, enum what what)
{
    switch (what) {
    case BASE: return (double)op->rope_base;
    case ROPE_SCALE: return (double)op->rope_scale;
    case MAGNITUDE: return (double)op->rope_magnitude;
    case WINDOW: return op->window;
    case SCALE: return (double)op->scale;
    case CAP: return (double)op->soft_cap;
    }
    return -1;
}

static void missing_and_unread_keys_mean_what_they_mean_to_llama_cpp(void **state)
{
    (void)state;
    static const struct {
        const char *architecture;
        int64_t layers;
        const char *keys, *op;
        enum what what;
        double value;
    } rows[] = {
        /* Positions in layers with a window; blk.5 of Gemma 3 has none. */
        {"gemma3", 6, "attention.sliding_window=8 rope.freq_base=1000000.0", "blk.0.rope_q", BASE,
         10000},
        {"gemma3", 6, "attention.sliding_window=8 rope.freq_base=1000000.0", "blk.5.rope_q", BASE,
         1e6},
        {"gemma3", 6, "rope.freq_base=1000000.0", "blk.0.rope_q", BASE, 1e6}, /* no windows */
        {"gemma3", 6, "attention.sliding_window=8 rope.scaling.factor=4.0", "blk.0.rope_q",
         ROPE_SCALE, 1},
        {"gemma3", 6, "attention.sliding_window=8 rope.scaling.factor=4.0", "blk.5.rope_q",
         ROPE_SCALE, 0.25},
        {"gemma3", 6, "attention.sliding_window=8 rope.scaling.attn_factor=2.0", "blk.0.rope_q",
         MAGNITUDE, 2},
        {"plamo3", 2, "attention.sliding_window=8 rope.freq_base=1000000.0", "blk.0.rope_q", BASE,
         10000},
        {"gemma2", 2, "rope.freq_base=1000000.0", "blk.0.rope_q", BASE, 1e6},
        {"gemma2", 2, "rope.freq_base_swa=5000.0", "blk.0.rope_q", BASE, 5000},
        {"olmo2", 2, "attention.sliding_window=8 rope.freq_base_swa=5000.0", "blk.0.rope_q", BASE,
         10000},
        {"cohere2", 2,
         "attention.sliding_window=8 logit_scale=1.0 rope.freq_base_swa=5000.0 "
         "attention.layer_norm_epsilon=0.00001",
         "blk.0.rope_q", BASE, 10000},
        {"cogvlm", 2, "rope.freq_base=5000.0 rope.scaling.factor=4.0", "blk.0.rope_q", BASE, 10000},
        {"cogvlm", 2, "rope.freq_base=5000.0 rope.scaling.factor=4.0", "blk.0.rope_q", ROPE_SCALE,
         1},
        /* Windows, and layers that lack one */
        {"gemma2", 2, NULL, "blk.0.attention", WINDOW, 4096},
        {"gemma2", 2, NULL, "blk.1.attention", WINDOW, 0},
        {"gemma3", 6, NULL, "blk.0.attention", WINDOW, 0},
        {"gemma3", 6, "attention.sliding_window=8 attention.sliding_window_pattern=1",
         "blk.0.attention", WINDOW, 0},
        {"gemma3", 6, "attention.sliding_window=8 attention.sliding_window_pattern=0",
         "blk.5.attention", WINDOW, 8},
        {"exaone4", 64, NULL, "blk.0.attention", WINDOW, 4096},
        {"exaone4", 2, "attention.sliding_window=8", "blk.0.attention", WINDOW, 0},
        {"llama", 2, "attention.sliding_window=8", "blk.0.attention", WINDOW, 0},
        /* Scaling of positions without its type, and under its old name */
        {"llama", 2, "rope.scaling.factor=4.0", "blk.0.rope_q", ROPE_SCALE, 0.25},
        {"llama", 2, "rope.scale_linear=2.0", "blk.0.rope_q", ROPE_SCALE, 0.5},
        {"llama", 2, "rope.scaling.type=none rope.scaling.factor=4.0", "blk.0.rope_q", ROPE_SCALE,
         1},
        /* Constant factors */
        {"minicpm", 4, NULL, "token_embd", SCALE, 12},
        {"minicpm", 4, NULL, "blk.0.attn_factor", SCALE, 0.7},
        {"minicpm", 4, "embedding_scale=3.0", "token_embd", SCALE, 3},
        {"minicpm", 4, "embedding_scale=0.0", "token_embd", SCALE, 0},
        {"gemma", 2, "embedding_scale=3.0", "token_embd", SCALE, 8}, /* root of the width */
        {"hrm_text", 4, "hrm.l_cycles=1 hrm.h_cycles=1 hrm.layers_per_stack=2 embedding_scale=3.0",
         "token_embd", SCALE, 3},
        /* What scores are multiplied by: a head has 16 elements */
        {"gemma3", 6, "attention.scale=0.5", "blk.0.attention", SCALE, 0.25},
        {"gemma3", 62, "attention.key_length=64 attention.value_length=64", "blk.0.attention",
         SCALE, 0.25},
        {"gemma2", 2, NULL, "blk.0.attention", CAP, 50},
        {"gemma2", 2, NULL, "output_cap", SCALE, 30},
        {"gemma3", 6, "final_logit_softcapping=20.0", "output_cap", SCALE, 20},
        {"deepseek2", 2,
         "attention.kv_lora_rank=32 attention.q_lora_rank=24 rope.dimension_count=8 "
         "expert_count=4 expert_used_count=2 expert_feed_forward_length=32 "
         "attention.temperature_scale=0.1 attention.temperature_length=64",
         "blk.0.temper_q", SCALE, 1},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct oato_error err = {0};
        struct model *model = NULL;
        if (open_with(rows[i].architecture, rows[i].layers, rows[i].keys, &model, &err))
            fail_msg("%s, %s: %s", rows[i].architecture, rows[i].keys, err.text);
        const struct oato_op *op = op_named(&model->graph, rows[i].op);
        if (!op) {
            fail_msg("%s, %s: no operator %s", rows[i].architecture, rows[i].keys, rows[i].op);
            continue;
        }
        const double value = field(op, rows[i].what);
        if (value < rows[i].value * 0.9999 || value > rows[i].value * 1.0001)
            fail_msg("%s, %s: %s is %g, not %g", rows[i].architecture, rows[i].keys, rows[i].op,
                     value, rows[i].value);
        model_close(model);
    }
}

static void keys_without_which_numbers_would_be_guessed_are_demanded(void **state)
{
    (void)state;
    static const struct {
        const char *architecture, *keys, *says;
    } rows[] = {
        {"cohere2", "attention.layer_norm_epsilon=0.00001 logit_scale=1.0",
         "cohere2.attention.sliding_window is missing"},
        {"cohere2", "attention.layer_norm_epsilon=0.00001 attention.sliding_window=8",
         "cohere2.logit_scale is missing"},
        {"granite", NULL, "granite.logit_scale is missing"},
        {"spark2_5", "attention.sliding_window=8", "sliding_window_pattern is missing"},
        {"cohere2",
         "attention.layer_norm_epsilon=0.00001 attention.sliding_window=0 logit_scale=1.0",
         "sliding_window is 0"},
        {"llama", "rope.scaling.attn_factor=0.0", "rope.scaling.attn_factor is not a number from"},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct oato_error err = {0};
        struct model *model = NULL;
        assert_int_not_equal(open_with(rows[i].architecture, 2, rows[i].keys, &model, &err), 0);
        assert_null(model);
        if (!strstr(err.text, rows[i].says) || strchr(err.text, '\n'))
            fail_msg("'%s' does not say '%s'", err.text, rows[i].says);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(missing_and_unread_keys_mean_what_they_mean_to_llama_cpp),
        cmocka_unit_test(keys_without_which_numbers_would_be_guessed_are_demanded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
