/*
 * recipes.c - the architectures, a row each; recipe_internal.h says what a choice means.
 * docs/adding-an-architecture.md shows how a row is made, docs/architectures.md how they compare
 * with llama.cpp.
 */
#include "models/recipe_internal.h"

#include <string.h>

static const struct recipe recipes[] = {
    {"llama", .pairing = ROPE_ADJACENT, .ffn_factors = true, .experts = EXPERTS_NORMALISED,
     .experts_optional = true, .expert_factors = true},
    {"qwen2", .pairing = ROPE_HALVES, .qkv_biases = true},
    {"qwen3", .pairing = ROPE_HALVES, .qk_norm = QK_HEADS, .ffn_factors = true},
    {"qwen3moe", .pairing = ROPE_HALVES, .qk_norm = QK_HEADS, .experts = EXPERTS_NORMALISED,
     .ffn_of_all_experts = true, .expert_factors = true},
    {"qwen", .pairing = ROPE_HALVES, .half_ffn = true},
    {"qwen2vl", .pairing = ROPE_HALVES, .ignored = "output.bias"},
    {"qwen3vl", .pairing = ROPE_HALVES, .qk_norm = QK_HEADS},
    {"qwen3tts", .pairing = ROPE_HALVES, .qk_norm = QK_HEADS},
    {"mistral3", .pairing = ROPE_ADJACENT, .ffn_factors = true, .experts = EXPERTS_NORMALISED,
     .experts_optional = true, .expert_factors = true},
    {"minicpm", .pairing = ROPE_ADJACENT, .factors = FACTORS_BY_KEY, .experts = EXPERTS_NORMALISED,
     .experts_optional = true},
    {"granite", .pairing = ROPE_ADJACENT, .rope_if_finetuned = true, .factors = FACTORS_BY_KEY,
     .experts = EXPERTS_NORMALISED, .experts_optional = true, .shared_experts = true},
    {"granitemoe", .pairing = ROPE_ADJACENT, .factors = FACTORS_BY_KEY,
     .experts = EXPERTS_NORMALISED, .experts_optional = true, .shared_experts = true},
    {"smollm3", .pairing = ROPE_ADJACENT, .no_rope_every = 4},
    {"seed_oss", .pairing = ROPE_HALVES, .ffn_norm = "post_attention_norm"},
    {"ernie4_5", .pairing = ROPE_ADJACENT, .ignored = "attn_output.bias"},
    {"glm4", .pairing = ROPE_ADJACENT, .sections_are_halves = true, .norms = NORMS_AROUND,
     .up_holds_gate = true},
    {"chatglm", .pairing = ROPE_ADJACENT, .up_holds_gate = true},
    {"hunyuan-dense", .pairing = ROPE_HALVES, .qk_norm = QK_ROTATED_HEADS},
    {"hunyuan_vl", .pairing = ROPE_HALVES, .qk_norm = QK_ROTATED_HEADS},
    {"olmoe", .pairing = ROPE_HALVES, .qk_norm = QK_WHOLE, .experts = EXPERTS_PLAIN},
    {"deepseek", .pairing = ROPE_ADJACENT, .experts = EXPERTS_PLAIN, .shared_experts = true,
     .dense_first = true},
    {"minicpm3", .pairing = ROPE_HALVES, .latent = true, .factors = FACTORS_MINICPM3},
    {"bailingmoe", .pairing = ROPE_ADJACENT, .experts = EXPERTS_BY_KEY, .shared_experts = true},
    {"gemma", .pairing = ROPE_HALVES, .activation = ACT_GELU, .factors = FACTORS_ROOT},
    {"gemma2", .pairing = ROPE_HALVES, .window_every = 2, .soft_caps = true, .norms = NORMS_AROUND,
     .activation = ACT_GELU, .factors = FACTORS_ROOT},
    {"gemma3", .pairing = ROPE_HALVES, .window_every = 6, .norms = NORMS_AROUND,
     .qk_norm = QK_HEADS, .activation = ACT_GELU, .factors = FACTORS_ROOT},
    {"olmo2", .pairing = ROPE_HALVES, .window_every = 4, .norms = NORMS_AFTER, .qk_norm = QK_WHOLE},
    {"exaone4", .pairing = ROPE_HALVES, .window_every = 4, .window_layers = 64,
     .rope_in_windows = true, .norms = NORMS_AFTER, .qk_norm = QK_HEADS},
    {"lfm2", .pairing = ROPE_HALVES, .window_every = 1, .qk_norm = QK_HEADS, .mixer = MIXER_CONV,
     .final_norm = "token_embd_norm"},
    {"qwen35", .pairing = ROPE_HALVES, .ffn_norm = "post_attention_norm", .qk_norm = QK_HEADS,
     .mixer = MIXER_DELTA, .mixer_layers = MIXER_BY_INTERVAL, .q_holds_gate = true,
     .ffn_factors = true},
    {"mamba2", .mixer = MIXER_MAMBA2, .mixer_layers = MIXER_EVERYWHERE,
     .blocks = BLOCKS_WITHOUT_FFN},
    {"mamba", .mixer = MIXER_MAMBA, .mixer_layers = MIXER_EVERYWHERE, .blocks = BLOCKS_WITHOUT_FFN},
    {"nemotron_h", .no_rope = true, .mixer = MIXER_MAMBA2, .blocks = BLOCKS_ONE, .ungated = true,
     .activation = ACT_RELU_SQUARED, .ffn_factors = true},
    {"granitehybrid", .pairing = ROPE_ADJACENT, .rope_if_finetuned = true, .mixer = MIXER_MAMBA2,
     .factors = FACTORS_BY_KEY, .experts = EXPERTS_NORMALISED, .experts_optional = true,
     .shared_experts = true},
    {"falcon-h1", .pairing = ROPE_HALVES, .ffn_norm = "ffn_norm", .mixer = MIXER_MAMBA2,
     .mixer_layers = MIXER_BESIDE, .ignored = "rope_freqs.weight attn_output.bias"},
    {"jamba", .no_rope = true, .mixer = MIXER_MAMBA, .mixer_norms = true, .experts = EXPERTS_PLAIN,
     .experts_optional = true},
    {"internlm2", .pairing = ROPE_ADJACENT},
    {"exaone", .pairing = ROPE_HALVES},
    {"deci", .pairing = ROPE_ADJACENT},
    {"maincoder", .pairing = ROPE_ADJACENT, .qk_norm = QK_ROTATED_HEADS},
    {"openelm", .pairing = ROPE_HALVES, .qk_norm = QK_HEADS, .qkv_factors_unused = true},
    {"cogvlm", .pairing = ROPE_HALVES, .qkv_factors_unused = true,
     .ignored = "rope_freqs.weight vis_"},
    {"pangu-embedded", .pairing = ROPE_HALVES, .ignored = "rope_freqs.weight"},
    {"plamo", .pairing = ROPE_HALVES, .parallel = PARALLEL_ALWAYS},
    {"xverse", .pairing = ROPE_ADJACENT},
    {"arcee", .pairing = ROPE_ADJACENT, .ungated = true, .activation = ACT_RELU_SQUARED},
    {"phi2", .pairing = ROPE_HALVES, .norm = NORM_CENTRED, .parallel = PARALLEL_ALWAYS,
     .ungated = true, .activation = ACT_GELU},
    {"falcon", .pairing = ROPE_HALVES, .norm = NORM_CENTRED, .parallel = PARALLEL_ALWAYS,
     .ungated = true, .activation = ACT_GELU},
    {"gptneox", .pairing = ROPE_HALVES, .norm = NORM_CENTRED, .parallel = PARALLEL_BY_KEY,
     .ungated = true, .activation = ACT_GELU},
    {"starcoder2", .pairing = ROPE_HALVES, .norm = NORM_CENTRED, .ungated = true,
     .activation = ACT_GELU},
    {"codeshell", .pairing = ROPE_HALVES, .norm = NORM_CENTRED, .ungated = true,
     .activation = ACT_GELU},
    {"pockettts", .pairing = ROPE_ADJACENT, .norm = NORM_CENTRED, .ungated = true,
     .activation = ACT_GELU},
    {"jais2", .pairing = ROPE_HALVES, .norm = NORM_CENTRED, .ungated = true,
     .activation = ACT_RELU_SQUARED},
    {"nemotron", .pairing = ROPE_HALVES, .norm = NORM_CENTRED, .ungated = true,
     .activation = ACT_RELU_SQUARED},
    {"orion", .pairing = ROPE_HALVES, .norm = NORM_CENTRED},
    {"stablelm", .pairing = ROPE_HALVES, .norm = NORM_CENTRED, .qk_norm = QK_HEADS,
     .head_norm = NORM_CENTRED | NORM_OWN_HEADS, .qk_norm_if_held = true,
     .parallel = PARALLEL_ONE_NORM},
    {"command-r", .pairing = ROPE_ADJACENT, .norm = NORM_CENTRED, .qk_norm = QK_HEADS,
     .head_norm = NORM_CENTRED | NORM_OWN_HEADS, .qk_norm_if_held = true,
     .parallel = PARALLEL_ALWAYS, .factors = FACTORS_LOGITS},
    {"cohere2", .pairing = ROPE_ADJACENT, .window_every = 4, .rope_in_windows = true,
     .norm = NORM_CENTRED, .parallel = PARALLEL_ALWAYS, .ffn_factors = true,
     .factors = FACTORS_LOGITS},
    {"olmo", .pairing = ROPE_ADJACENT, .norm = NORM_CENTRED | NORM_PLAIN, .clamp_qkv = true},
    {"nanbeige", .pairing = ROPE_ADJACENT, .ffn_factors = true},
};

const struct recipe *recipe_find(const char *name, size_t n)
{
    for (size_t i = 0; i < ARRAY_LEN(recipes); i++)
        if (strlen(recipes[i].name) == n && !memcmp(recipes[i].name, name, n))
            return &recipes[i];
    return NULL;
}

void recipe_list(struct text *out)
{
    for (size_t i = 0; i < ARRAY_LEN(recipes); i++)
        text_printf(out, "%s%s", i ? ", " : "", recipes[i].name);
}
