/*
 * shape_types.c - which tensor of a file has which type: the rules of llama-quantize (llama.cpp,
 * tools/quantize) as a table. A file's type is that of most matrices; the output matrix, the values
 * of attention and the second matrix of the FFN get more bits in all or some of the layers, and
 * rows that are no whole blocks get a type with smaller ones. Rules for files of 8 experts, for
 * Falcon and for types below 3 bits, which need an importance matrix, are not here.
 */
#include "models/shape_internal.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* In which layers a rule holds. */
enum when { NEVER, ALWAYS, FIRST_2, FIRST_4, FIRST_EIGHTH, FIRST_16TH, ENDS_AND_THIRDS, GROUPED };

struct rule {
    enum when when; /* GROUPED: where at least 4 heads share their keys */
    oato_dtype dtype;
};

/* The last one has no name. Rules: the first that holds; else the plain type. */
struct mix {
    const char *name;
    oato_dtype dtype;
    uint32_t file_type; /* general.file_type */
    struct rule values[2], down[2], output;
};

static const struct mix mixes[] = {
    {.name = "F32", .dtype = DT_F32, .file_type = 0},
    {.name = "F16", .dtype = DT_F16, .file_type = 1},
    {.name = "BF16", .dtype = DT_BF16, .file_type = 32},
    {.name = "Q8_0", .dtype = DT_Q8_0, .file_type = 7},
    {.name = "Q6_K", .dtype = DT_Q6_K, .file_type = 18},
    {.name = "Q5_K_M",
     .dtype = DT_Q5_K,
     .file_type = 17,
     .values = {{ENDS_AND_THIRDS, DT_Q6_K}},
     .down = {{ENDS_AND_THIRDS, DT_Q6_K}}},
    {.name = "Q5_K_S", .dtype = DT_Q5_K, .file_type = 16},
    {.name = "Q5_0", .dtype = DT_Q5_0, .file_type = 8},
    {.name = "Q5_1", .dtype = DT_Q5_1, .file_type = 9},
    {.name = "Q4_K_M",
     .dtype = DT_Q4_K,
     .file_type = 15,
     .values = {{ENDS_AND_THIRDS, DT_Q6_K}},
     .down = {{ENDS_AND_THIRDS, DT_Q6_K}}},
    {.name = "Q4_K_S",
     .dtype = DT_Q4_K,
     .file_type = 14,
     .values = {{FIRST_4, DT_Q5_K}},
     .down = {{FIRST_EIGHTH, DT_Q5_K}}},
    {.name = "Q4_0", .dtype = DT_Q4_0, .file_type = 2},
    {.name = "Q4_1", .dtype = DT_Q4_1, .file_type = 3},
    {.name = "IQ4_NL", .dtype = DT_IQ4_NL, .file_type = 25, .values = {{GROUPED, DT_Q5_K}}},
    {.name = "IQ4_XS", .dtype = DT_IQ4_XS, .file_type = 30, .values = {{GROUPED, DT_Q5_K}}},
    {.name = "Q3_K_L",
     .dtype = DT_Q3_K,
     .file_type = 13,
     .values = {{ALWAYS, DT_Q5_K}},
     .down = {{ALWAYS, DT_Q5_K}},
     .output = {ALWAYS, DT_Q5_K}},
    {.name = "Q3_K_M",
     .dtype = DT_Q3_K,
     .file_type = 12,
     .values = {{FIRST_2, DT_Q5_K}, {ALWAYS, DT_Q4_K}},
     .down = {{FIRST_16TH, DT_Q5_K}, {ALWAYS, DT_Q4_K}},
     .output = {ALWAYS, DT_Q4_K}},
    {.name = "Q3_K_S", .dtype = DT_Q3_K, .file_type = 11},
    {.name = "Q2_K",
     .dtype = DT_Q2_K,
     .file_type = 10,
     .values = {{GROUPED, DT_Q4_K}, {ALWAYS, DT_Q3_K}},
     .down = {{ALWAYS, DT_Q3_K}},
     .output = {ALWAYS, DT_Q3_K}},
    /* experts in MXFP4, other matrices in Q8_0: the files of gpt-oss */
    {.name = "MXFP4_MOE", .dtype = DT_MXFP4, .file_type = 38},
};

/* Of files with one type for all matrices. */
static const struct {
    oato_dtype dtype;
    uint32_t file_type;
} plain_types[] = {
    {DT_F32, 0},      {DT_F16, 1},    {DT_BF16, 32},    {DT_Q4_0, 2},    {DT_Q4_1, 3},
    {DT_Q5_0, 8},     {DT_Q5_1, 9},   {DT_Q8_0, 7},     {DT_Q4_K, 14},   {DT_Q5_K, 16},
    {DT_Q6_K, 18},    {DT_Q2_K, 10},  {DT_Q3_K, 11},    {DT_IQ4_NL, 25}, {DT_IQ4_XS, 30},
    {DT_IQ1_S, 24},   {DT_IQ1_M, 31}, {DT_IQ2_XXS, 19}, {DT_IQ2_XS, 20}, {DT_IQ2_S, 28},
    {DT_IQ3_XXS, 23}, {DT_IQ3_S, 26}, {DT_TQ1_0, 36},   {DT_TQ2_0, 37},  {DT_NVFP4, 39},
    {DT_MXFP4, 38},
};

const struct mix *mix_find(const char *name)
{
    if (!strcasecmp(name, "MXFP4")) /* as files are named */
        name = "MXFP4_MOE";
    for (size_t i = 0; i < ARRAY_LEN(mixes); i++)
        if (!strcasecmp(mixes[i].name, name))
            return &mixes[i];
    return NULL;
}

const char *mix_name(const struct mix *m)
{
    return m->name;
}

oato_status mix_fail(const char *name, struct oato_error *err)
{
    struct text all;
    text_init(&all);
    for (size_t i = 0; i < ARRAY_LEN(mixes); i++)
        text_printf(&all, " %s", mixes[i].name);
    oato_fail(err, OATO_EUSAGE, "no type '%.20s' of files; there are:%s", name,
              all.data ? all.data : "");
    text_free(&all);
    return err->status;
}

uint32_t shape_file_type(const struct shape_spec *s)
{
    if (s->mix)
        return s->mix->file_type;
    for (size_t i = 0; i < ARRAY_LEN(plain_types); i++)
        if (plain_types[i].dtype == s->dtype)
            return plain_types[i].file_type;
    return 0;
}

bool shape_word_in(const char *words, const char *name)
{
    while (*words) {
        char one[GGUF_MAX_NAME + 1];
        const size_t n = strcspn(words, " ");
        snprintf(one, sizeof one, "%.*s", (int)n, words);
        if (strstr(name, one))
            return true;
        words += n + strspn(words + n, " ");
    }
    return false;
}

/* The type for rows of k elements. */
static oato_dtype row_dtype(oato_dtype wanted, int64_t k)
{
    static const oato_dtype fallback[DT_COUNT] = {
        [DT_Q2_K] = DT_Q4_0,     [DT_Q3_K] = DT_Q4_0,    [DT_IQ4_XS] = DT_IQ4_NL,
        [DT_Q4_K] = DT_Q5_0,     [DT_Q5_K] = DT_Q5_1,    [DT_Q6_K] = DT_Q8_0,
        [DT_IQ1_S] = DT_IQ4_NL,  [DT_IQ1_M] = DT_IQ4_NL, [DT_IQ2_XXS] = DT_IQ4_NL,
        [DT_IQ2_XS] = DT_IQ4_NL, [DT_IQ2_S] = DT_IQ4_NL, [DT_IQ3_XXS] = DT_IQ4_NL,
        [DT_IQ3_S] = DT_IQ4_NL,  [DT_TQ1_0] = DT_Q4_0,   [DT_TQ2_0] = DT_Q4_0};
    if (k % dtype_info((int)wanted)->block_elems && fallback[wanted])
        wanted = fallback[wanted];
    return k % dtype_info((int)wanted)->block_elems ? DT_F16 : wanted;
}

static bool ends_in(const char *name, const char *ending)
{
    const size_t n = strlen(name), m = strlen(ending);
    return n >= m && !strcmp(name + n - m, ending);
}

/* A matrix of products; quantisers leave what chooses experts and convolutions alone. */
static bool is_product(const struct gguf_tensor *t)
{
    return t->ne[1] * t->ne[2] > 1 && ends_in(t->name, ".weight") &&
           !ends_in(t->name, "ffn_gate_inp.weight") && !strstr(t->name, "conv");
}

/* The values of attention, alone or within a larger matrix. */
static bool is_values(const char *name)
{
    return ends_in(name, "attn_v.weight") || ends_in(name, "attn_qkv.weight") ||
           ends_in(name, "attn_kv_b.weight");
}

static bool holds(enum when when, int64_t i, int64_t n, const struct shape_spec *s)
{
    switch (when) {
    case NEVER: return false;
    case ALWAYS: return true;
    case FIRST_2: return i < 2;
    case FIRST_4: return i < 4;
    case FIRST_EIGHTH: return i < n / 8;
    case FIRST_16TH: return i < n / 16;
    case ENDS_AND_THIRDS: return i < n / 8 || i >= 7 * n / 8 || (i - n / 8) % 3 == 2;
    case GROUPED: return s->heads / s->kv_heads >= 4;
    }
    return false;
}

/* The i-th of n matrices of its kind. */
static oato_dtype ruled(const struct shape_spec *s, const struct rule *rules, int n_rules,
                        int64_t i, int64_t n)
{
    for (int r = 0; r < n_rules; r++)
        if (holds(rules[r].when, i, n, s))
            return rules[r].dtype;
    return s->mix->dtype;
}

/* The output matrix, or the embedding that takes its place. */
static oato_dtype output_dtype(const struct shape_spec *s, const struct gguf_tensor *t)
{
    const struct dtype_info *info = dtype_info((int)s->mix->dtype);
    if (info->block_elems == 1)
        return s->mix->dtype;
    return s->mix->dtype == DT_MXFP4 || s->mix->dtype == DT_Q8_0 || t->ne[0] % info->block_elems
               ? DT_Q8_0
               : DT_Q6_K;
}

/* values: how many matrices with values of attention come before, and how many there are. */
static oato_dtype mixed(const struct shape_spec *s, const struct gguf_tensor *t,
                        const int64_t values[2])
{
    const struct mix *m = s->mix;
    if (!strcmp(t->name, s->tied ? "token_embd.weight" : "output.weight"))
        return output_dtype(s, t);
    if (m->dtype == DT_MXFP4)
        return t->ne[2] > 1 && strstr(t->name, "_exps.") ? DT_MXFP4 : DT_Q8_0;
    if (is_values(t->name) && !shape_word_in(s->plain, t->name)) {
        const oato_dtype v = ruled(s, m->values, ARRAY_LEN(m->values), values[0], values[1]);
        return s->least_v && (v == DT_Q3_K || v == DT_Q4_K) ? s->least_v : v;
    }
    if (strstr(t->name, "ffn_down") && !shape_word_in(s->plain, t->name))
        return ruled(s, m->down, ARRAY_LEN(m->down), strtol(t->name + strlen("blk."), NULL, 10),
                     s->layers);
    return ends_in(t->name, "attn_output.weight") ? ruled(s, &m->output, 1, 0, 1) : m->dtype;
}

void shape_set_types(const struct shape_spec *s, struct gguf_tensor *const *tensors, size_t n)
{
    int64_t values[2] = {0, 0};
    for (size_t i = 0; i < n; i++)
        values[1] += is_values(tensors[i]->name);
    for (size_t i = 0; i < n; i++) {
        struct gguf_tensor *t = tensors[i];
        t->dtype =
            !is_product(t) ? DT_F32 : row_dtype(s->mix ? mixed(s, t, values) : s->dtype, t->ne[0]);
        values[0] += is_values(t->name);
    }
}
