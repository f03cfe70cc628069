/*
 * random_shapes.c - the shapes and types that random models can have, and their keys.
 */
#include "tests/models/random_model.h"

#include <stdlib.h>
#include <string.h>

/* What can be made, with the number that general.file_type has for it in llama.cpp (llama.h), so
 * that its tools print the right name. A row with more_bits is a mix, named apart from its type. */
static const struct {
    const char *mix;
    oato_dtype dtype;
    bool more_bits;
    uint32_t file_type;
} types[] = {
    {NULL, DT_F32, false, 0},      {NULL, DT_F16, false, 1},     {NULL, DT_BF16, false, 32},
    {NULL, DT_Q4_0, false, 2},     {NULL, DT_Q4_1, false, 3},    {NULL, DT_Q5_0, false, 8},
    {NULL, DT_Q5_1, false, 9},     {NULL, DT_Q8_0, false, 7},    {NULL, DT_Q4_K, false, 14},
    {NULL, DT_Q5_K, false, 16},    {NULL, DT_Q6_K, false, 18},   {NULL, DT_Q2_K, false, 10},
    {NULL, DT_Q3_K, false, 11},    {NULL, DT_IQ4_NL, false, 25}, {NULL, DT_IQ4_XS, false, 30},
    {NULL, DT_IQ1_S, false, 24},   {NULL, DT_IQ1_M, false, 31},  {NULL, DT_IQ2_XXS, false, 19},
    {NULL, DT_IQ2_XS, false, 20},  {NULL, DT_IQ2_S, false, 28},  {NULL, DT_IQ3_XXS, false, 23},
    {NULL, DT_IQ3_S, false, 26},   {NULL, DT_TQ1_0, false, 36},  {NULL, DT_TQ2_0, false, 37},
    {NULL, DT_NVFP4, false, 39},   {NULL, DT_MXFP4, false, 38},  {"Q4_K_M", DT_Q4_K, true, 15},
    {"Q5_K_M", DT_Q5_K, true, 17},
};

bool random_model_set_type(struct random_model *m, const char *name)
{
    oato_dtype dtype = DT_COUNT;
    bool known = dtype_parse(name, &dtype);
    for (size_t i = 0; i < ARRAY_LEN(types); i++) {
        if (types[i].mix ? strcmp(types[i].mix, name) != 0 : !known || types[i].dtype != dtype)
            continue;
        m->dtype = types[i].dtype;
        m->more_bits = types[i].more_bits;
        return true;
    }
    return false;
}

/* Sizes as the makers' configurations have them, 1b apart, which is nobody's. */
static const struct {
    const char *name, *architecture;
    int64_t layers, width, ffn, heads, kv_heads, head_dim, vocab, context, experts, experts_used;
    bool tied;
    const char *keys, *optional;
} shapes[] = {
    {"1b", "llama", 16, 2048, 8192, 32, 8, 64, 49152, 8192, 0, 0, true, NULL, NULL},
    {"8b", "llama", 32, 4096, 14336, 32, 8, 128, 128256, 8192, 0, 0, false, NULL, NULL},
    {"70b", "llama", 80, 8192, 28672, 64, 8, 128, 128256, 8192, 0, 0, false, NULL, NULL},
    {"qwq-32b", "qwen2", 64, 5120, 27648, 40, 8, 128, 152064, 40960, 0, 0, false, NULL, NULL},
    {"qwen3-8b", "qwen3", 36, 4096, 12288, 32, 8, 128, 151936, 40960, 0, 0, false, NULL, NULL},
    {"qwen3-30b-a3b", "qwen3moe", 48, 2048, 768, 32, 4, 128, 151936, 40960, 128, 8, false, NULL,
     NULL},
    {"qwen3-235b-a22b", "qwen3moe", 94, 4096, 1536, 64, 4, 128, 151936, 40960, 128, 8, false, NULL,
     NULL},
    {"gemma3-1b", "gemma3", 26, 1152, 6912, 4, 1, 256, 262144, 32768, 0, 0, true,
     "rope.freq_base=1000000.0 attention.sliding_window=512", NULL},
    {"gpt-oss-20b", "gpt-oss", 24, 2880, 2880, 64, 8, 64, 201088, 131072, 32, 4, false,
     "rope.freq_base=150000.0 attention.sliding_window=128 rope.scaling.type=yarn "
     "rope.scaling.factor=32.0 rope.scaling.original_context_length=4096",
     "attn_q.bias attn_k.bias attn_v.bias attn_output.bias attn_sinks inp.bias exps.bias"},
    {"deepseek-v2-lite", "deepseek2", 27, 2048, 1408, 16, 1, 576, 102400, 163840, 64, 6, false,
     "attention.kv_lora_rank=512 attention.value_length=512 attention.key_length_mla=192 "
     "attention.value_length_mla=128 rope.dimension_count=64 feed_forward_length=10944 "
     "leading_dense_block_count=1 expert_shared_count=2 expert_weights_scale=1.0 "
     "expert_gating_func=1",
     NULL},
    {"qwen35-35b-a3b", "qwen35moe", 40, 2048, 512, 16, 2, 256, 248320, 262144, 256, 8, false,
     "rope.freq_base=10000000.0 rope.dimension_count=64 rope.dimension_sections=11,11,10,0 "
     "ssm.conv_kernel=4 ssm.state_size=128 ssm.group_count=16 ssm.time_step_rank=32 "
     "ssm.inner_size=4096 full_attention_interval=4 expert_shared_feed_forward_length=512",
     NULL},
};

bool random_model_set_shape(struct random_model *m, const char *name)
{
    for (size_t i = 0; i < ARRAY_LEN(shapes); i++) {
        if (strcmp(shapes[i].name, name) != 0)
            continue;
        m->architecture = shapes[i].architecture;
        m->layers = shapes[i].layers;
        m->width = shapes[i].width;
        m->ffn = shapes[i].ffn;
        m->heads = shapes[i].heads;
        m->kv_heads = shapes[i].kv_heads;
        m->head_dim = shapes[i].head_dim;
        m->vocab = shapes[i].vocab;
        m->context = shapes[i].context;
        m->experts = shapes[i].experts;
        m->experts_used = shapes[i].experts_used;
        m->tied = shapes[i].tied;
        m->keys = shapes[i].keys;
        m->optional = shapes[i].optional;
        return true;
    }
    return false;
}

struct random_model random_model_default(void)
{
    return (struct random_model){.architecture = "llama",
                                 .layers = 2,
                                 .width = 64,
                                 .ffn = 128,
                                 .heads = 4,
                                 .kv_heads = 2,
                                 .vocab = 512,
                                 .context = 512,
                                 .dtype = DT_F32,
                                 .seed = 1,
                                 .tokenizer = true,
                                 .parts = 1};
}

int64_t random_model_head_dim(const struct random_model *m)
{
    return m->head_dim ? m->head_dim : m->width / m->heads;
}

enum { KEY_SIZE = 128 };

static const char *full_key(char full[KEY_SIZE], const char *architecture, const char *key)
{
    snprintf(full, KEY_SIZE, "%.24s.%.96s", architecture, key);
    return full;
}

static void put_u32(struct gguf_writer *w, const char *architecture, const char *key, int64_t v)
{
    char full[KEY_SIZE];
    uint32_t u = (uint32_t)v;
    gguf_writer_scalar(w, full_key(full, architecture, key), GGUF_U32, &u);
}

static void put_f32(struct gguf_writer *w, const char *architecture, const char *key, float v)
{
    char full[KEY_SIZE];
    gguf_writer_scalar(w, full_key(full, architecture, key), GGUF_F32, &v);
}

/* "1,0,0": integers of the layers; "true,false": bools. */
static void put_list(struct gguf_writer *w, const char *architecture, const char *key,
                     const char *list)
{
    char full[KEY_SIZE];
    const bool bools = *list == 't' || *list == 'f';
    int32_t v[256];
    uint8_t flag[ARRAY_LEN(v)];
    uint64_t n = 0;
    for (const char *at = list; *at && n < ARRAY_LEN(v); n++) {
        flag[n] = *at == 't';
        v[n] = bools ? 0 : (int32_t)strtol(at, NULL, 10);
        at += strcspn(at, ",");
        at += *at == ',';
    }
    gguf_writer_array(w, full_key(full, architecture, key), bools ? GGUF_BOOL : GGUF_I32,
                      bools ? (const void *)flag : v, n);
}

/* "KEY=VALUE" of m->keys: lists have commas, numbers with a dot are float32, other words strings
 * but for "true". */
static void put_words(struct gguf_writer *w, const char *architecture, const char *words)
{
    char word[1024];
    for (const char *at = words; at && *at; at += strspn(at, " ")) {
        const size_t n = strcspn(at, " ");
        snprintf(word, sizeof word, "%.*s", (int)n, at);
        at += n;
        char *value = strchr(word, '=');
        if (!value)
            continue;
        *value++ = 0;
        char full[KEY_SIZE];
        if (!strcmp(value, "true"))
            gguf_writer_scalar(w, full_key(full, architecture, word), GGUF_BOOL, &(bool){true});
        else if (strchr(value, ','))
            put_list(w, architecture, word, value);
        else if (*value >= 'a' && *value <= 'z')
            gguf_writer_string(w, full_key(full, architecture, word), value);
        else if (strchr(value, '.'))
            put_f32(w, architecture, word, strtof(value, NULL));
        else
            put_u32(w, architecture, word, strtoll(value, NULL, 10));
    }
}

void random_model_keys(const struct random_model *m, struct gguf_writer *w)
{
    const char *a = m->architecture;
    gguf_writer_string(w, "general.architecture", a);
    gguf_writer_string(w, "general.type", "model");
    gguf_writer_string(w, "general.name", "random");
    for (size_t i = 0; i < ARRAY_LEN(types); i++)
        if (types[i].dtype == m->dtype && types[i].more_bits == m->more_bits)
            gguf_writer_scalar(w, "general.file_type", GGUF_U32, &types[i].file_type);
    put_u32(w, a, "block_count", m->layers);
    put_u32(w, a, "context_length", m->context);
    put_u32(w, a, "embedding_length", m->width);
    put_u32(w, a, "feed_forward_length", m->experts ? m->ffn * m->experts_used : m->ffn);
    if (m->experts) {
        put_u32(w, a, "expert_count", m->experts);
        put_u32(w, a, "expert_used_count", m->experts_used);
        put_u32(w, a, "expert_feed_forward_length", m->ffn);
    }
    put_u32(w, a, "attention.head_count", m->heads);
    put_u32(w, a, "attention.head_count_kv", m->kv_heads);
    put_f32(w, a, "rope.freq_base", 10000.0f);
    put_f32(w, a, "attention.layer_norm_rms_epsilon", 1e-5f);
    put_u32(w, a, "vocab_size", m->vocab);
    if (random_model_head_dim(m) * m->heads != m->width) {
        put_u32(w, a, "attention.key_length", random_model_head_dim(m));
        put_u32(w, a, "attention.value_length", random_model_head_dim(m));
    }
    put_u32(w, a, "rope.dimension_count", random_model_head_dim(m));
    put_words(w, a, m->keys);
    gguf_writer_scalar(w, "general.quantization_version", GGUF_U32, &(uint32_t){2});
}
