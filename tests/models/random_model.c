/*
 * random_model.c - lists the tensors of a model of a given architecture and shape, fills them with
 * random weights of deviation 1/sqrt(k), so that activations neither vanish nor grow, and writes
 * one file or several. A tensor's random numbers depend on the seed and its name only.
 */
#include "tests/models/random_model.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

struct tensor_row {
    char name[GGUF_MAX_NAME + 1];
    oato_dtype dtype;
    int32_t n_dims;
    int64_t ne[3];
    double mean, deviation;
    size_t bytes;
    uint8_t *data; /* NULL: header only */
};

struct tensor_list {
    struct tensor_row *rows;
    size_t n, cap;
    uint8_t *data; /* of all rows */
    size_t data_bytes;
};

/* What can be made, with the number that general.file_type has for it in llama.cpp (llama.h), so
 * that its tools print the right name. A row with more_bits is a mix, named apart from its type. */
static const struct {
    const char *mix;
    oato_dtype dtype;
    bool more_bits;
    uint32_t file_type;
} types[] = {
    {NULL, DT_F32, false, 0},    {NULL, DT_F16, false, 1},      {NULL, DT_BF16, false, 32},
    {NULL, DT_Q4_0, false, 2},   {NULL, DT_Q4_1, false, 3},     {NULL, DT_Q5_0, false, 8},
    {NULL, DT_Q5_1, false, 9},   {NULL, DT_Q8_0, false, 7},     {NULL, DT_Q4_K, false, 14},
    {NULL, DT_Q5_K, false, 16},  {NULL, DT_Q6_K, false, 18},    {NULL, DT_Q2_K, false, 10},
    {NULL, DT_Q3_K, false, 11},  {NULL, DT_IQ4_NL, false, 25},  {NULL, DT_IQ4_XS, false, 30},
    {NULL, DT_MXFP4, false, 38}, {"Q4_K_M", DT_Q4_K, true, 15}, {"Q5_K_M", DT_Q5_K, true, 17},
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
} shapes[] = {
    {"1b", "llama", 16, 2048, 8192, 32, 8, 64, 49152, 8192, 0, 0, true},
    {"8b", "llama", 32, 4096, 14336, 32, 8, 128, 128256, 8192, 0, 0, false},
    {"70b", "llama", 80, 8192, 28672, 64, 8, 128, 128256, 8192, 0, 0, false},
    {"qwq-32b", "qwen2", 64, 5120, 27648, 40, 8, 128, 152064, 40960, 0, 0, false},
    {"qwen3-8b", "qwen3", 36, 4096, 12288, 32, 8, 128, 151936, 40960, 0, 0, false},
    {"qwen3-30b-a3b", "qwen3moe", 48, 2048, 768, 32, 4, 128, 151936, 40960, 128, 8, false},
    {"qwen3-235b-a22b", "qwen3moe", 94, 4096, 1536, 64, 4, 128, 151936, 40960, 128, 8, false},
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

/* What the architectures add to llama's tensors. */
static const struct family {
    const char *name;
    bool qkv_bias, head_norms, experts;
} families[] = {
    {.name = "llama"},
    {.name = "qwen2", .qkv_bias = true},
    {.name = "qwen3", .head_norms = true},
    {.name = "qwen3moe", .head_norms = true, .experts = true},
};

static const struct family *family_of(const struct random_model *m)
{
    for (size_t i = 0; i < ARRAY_LEN(families); i++)
        if (!strcmp(families[i].name, m->architecture))
            return &families[i];
    return NULL;
}

static int64_t head_dim(const struct random_model *m)
{
    return m->head_dim ? m->head_dim : m->width / m->heads;
}

static oato_status check_experts(const struct random_model *m, struct oato_error *err)
{
    bool takes = family_of(m)->experts;
    if (takes ? m->experts >= 1 && m->experts <= 4096 && m->experts_used >= 1 &&
                    m->experts_used <= m->experts
              : !m->experts && !m->experts_used)
        return OATO_OK;
    if (!takes)
        return oato_fail(err, OATO_EUSAGE, "architecture '%s' has no experts; qwen3moe has",
                         m->architecture);
    return oato_fail(err, OATO_EUSAGE,
                     "%lld experts, %lld used: 1 to 4096 are possible, and no more used than there "
                     "are",
                     (long long)m->experts, (long long)m->experts_used);
}

static oato_status check_shape(const struct random_model *m, struct oato_error *err)
{
    const int64_t most = INT32_MAX;
    if (!family_of(m))
        return oato_fail(err, OATO_EUSAGE,
                         "architecture '%s': llama, qwen2, qwen3 and qwen3moe can be made",
                         m->architecture);
    if (m->layers < 1 || m->width < 1 || m->ffn < 1 || m->heads < 1 || m->kv_heads < 1 ||
        m->vocab < 1 || m->context < 1 || m->layers > 4096 || m->width > most || m->ffn > most ||
        m->heads > most || m->vocab > most || m->context > most)
        return oato_fail(err, OATO_EUSAGE, "every count is 1 to 2147483647, layers at most 4096");
    if ((m->head_dim ? m->head_dim % 2 || m->head_dim < 0 : m->width % (2 * m->heads)) ||
        m->heads % m->kv_heads || head_dim(m) > most / m->heads)
        return oato_fail(
            err, OATO_EUSAGE,
            "width %lld, heads %lld, kv heads %lld: the width must be an even multiple "
            "of the heads (or a head's even dimension be given) and the heads a multiple of the kv "
            "heads",
            (long long)m->width, (long long)m->heads, (long long)m->kv_heads);
    if (check_experts(m, err))
        return err->status;
    if (m->tokenizer && m->vocab < RANDOM_VOCAB_LEAST)
        return oato_fail(
            err, OATO_EUSAGE,
            "a vocabulary of %lld: at least %d hold every byte; or leave the tokenizer "
            "out (--no-tokenizer)",
            (long long)m->vocab, RANDOM_VOCAB_LEAST);
    return OATO_OK;
}

/* The type for rows of k elements: k-quants fall back as llama-quantize does. */
static oato_dtype row_dtype(oato_dtype wanted, int64_t k)
{
    static const oato_dtype fallback[DT_COUNT] = {
        [DT_Q2_K] = DT_Q4_0, [DT_Q3_K] = DT_Q4_0, [DT_IQ4_XS] = DT_IQ4_NL,
        [DT_Q4_K] = DT_Q5_0, [DT_Q5_K] = DT_Q5_1, [DT_Q6_K] = DT_Q8_0};
    if (k % dtype_info((int)wanted)->block_elems && fallback[wanted])
        wanted = fallback[wanted];
    return k % dtype_info((int)wanted)->block_elems ? DT_F16 : wanted;
}

static struct tensor_row *add(struct tensor_list *l, int64_t layer, const char *name)
{
    struct tensor_row *t = &l->rows[l->n++];
    if (layer < 0)
        snprintf(t->name, sizeof t->name, "%s", name);
    else
        snprintf(t->name, sizeof t->name, "blk.%d.%s", (int)layer, name);
    return t;
}

/* llama-quantize's rule for Q4_K_M and Q5_K_M: the output matrix, and the values and the second FFN
 * matrix of the first and last eighth of the layers and of every third one between. */
static bool gets_more_bits(const struct random_model *m, int64_t layer, const char *name)
{
    const int64_t n = m->layers;
    if (layer < 0)
        return !strcmp(name, m->tied ? "token_embd.weight" : "output.weight");
    if (strcmp(name, "attn_v.weight") != 0 && strcmp(name, "ffn_down.weight") != 0 &&
        strcmp(name, "ffn_down_exps.weight") != 0)
        return false;
    return layer < n / 8 || layer >= 7 * n / 8 || (layer - n / 8) % 3 == 2;
}

static struct tensor_row *add_matrix(struct tensor_list *l, const struct random_model *m,
                                     int64_t layer, const char *name, int64_t k, int64_t n)
{
    struct tensor_row *t = add(l, layer, name);
    bool more = m->more_bits && gets_more_bits(m, layer, name);
    t->dtype = row_dtype(more ? DT_Q6_K : m->dtype, k);
    t->n_dims = 2;
    t->ne[0] = k;
    t->ne[1] = n;
    t->ne[2] = 1;
    t->deviation = 1 / sqrt((double)k);
    return t;
}

static void add_experts(struct tensor_list *l, const struct random_model *m, int64_t layer,
                        const char *name, int64_t k, int64_t n)
{
    struct tensor_row *t = add_matrix(l, m, layer, name, k, n);
    t->n_dims = 3;
    t->ne[2] = m->experts;
}

static void add_vector(struct tensor_list *l, int64_t layer, const char *name, int64_t n,
                       double mean)
{
    struct tensor_row *t = add(l, layer, name);
    t->dtype = DT_F32;
    t->n_dims = 1;
    t->ne[0] = n;
    t->ne[1] = t->ne[2] = 1;
    t->mean = mean;
    t->deviation = 0.1;
}

static void add_ffn(struct tensor_list *l, const struct random_model *m, int64_t i)
{
    add_vector(l, i, "ffn_norm.weight", m->width, 1);
    if (!family_of(m)->experts) {
        add_matrix(l, m, i, "ffn_gate.weight", m->width, m->ffn);
        add_matrix(l, m, i, "ffn_up.weight", m->width, m->ffn);
        add_matrix(l, m, i, "ffn_down.weight", m->ffn, m->width);
        return;
    }
    /* quantisers leave what chooses the experts alone */
    add_matrix(l, m, i, "ffn_gate_inp.weight", m->width, m->experts)->dtype = DT_F32;
    add_experts(l, m, i, "ffn_gate_exps.weight", m->width, m->ffn);
    add_experts(l, m, i, "ffn_up_exps.weight", m->width, m->ffn);
    add_experts(l, m, i, "ffn_down_exps.weight", m->ffn, m->width);
}

static void add_layer(struct tensor_list *l, const struct random_model *m, int64_t i)
{
    const struct family *f = family_of(m);
    int64_t q = head_dim(m) * m->heads, kv = head_dim(m) * m->kv_heads;
    add_vector(l, i, "attn_norm.weight", m->width, 1);
    add_matrix(l, m, i, "attn_q.weight", m->width, q);
    add_matrix(l, m, i, "attn_k.weight", m->width, kv);
    add_matrix(l, m, i, "attn_v.weight", m->width, kv);
    if (f->qkv_bias) {
        add_vector(l, i, "attn_q.bias", q, 0);
        add_vector(l, i, "attn_k.bias", kv, 0);
        add_vector(l, i, "attn_v.bias", kv, 0);
    }
    if (f->head_norms) {
        add_vector(l, i, "attn_q_norm.weight", head_dim(m), 1);
        add_vector(l, i, "attn_k_norm.weight", head_dim(m), 1);
    }
    add_matrix(l, m, i, "attn_output.weight", q, m->width);
    add_ffn(l, m, i);
}

static oato_status list_tensors(const struct random_model *m, struct tensor_list *l,
                                struct oato_error *err)
{
    l->cap = (size_t)m->layers * 12 + 3; /* the most of a layer; embedding, norm, output */
    l->rows = calloc(l->cap, sizeof *l->rows);
    if (!l->rows)
        return oato_fail_memory(err, l->cap * sizeof *l->rows, "the list of tensors");
    add_matrix(l, m, -1, "token_embd.weight", m->width, m->vocab);
    for (int64_t i = 0; i < m->layers; i++)
        add_layer(l, m, i);
    add_vector(l, -1, "output_norm.weight", m->width, 1);
    if (!m->tied)
        add_matrix(l, m, -1, "output.weight", m->width, m->vocab);
    for (size_t i = 0; i < l->n; i++) {
        struct tensor_row *t = &l->rows[i];
        if (!dtype_row_bytes(t->dtype, t->ne[0], &t->bytes) ||
            !size_mul(t->bytes, (size_t)t->ne[1], &t->bytes) ||
            !size_mul(t->bytes, (size_t)t->ne[2], &t->bytes) ||
            !size_add(l->data_bytes, t->bytes, &l->data_bytes))
            return oato_fail(err, OATO_EUSAGE, "tensor '%s' is too large", t->name);
    }
    return OATO_OK;
}

/* Before any work: the file must have room where it goes. */
static oato_status check_room(const struct tensor_list *l, const char *path, struct oato_error *err)
{
    const char *slash = strrchr(path, '/');
    struct text folder;
    struct statvfs disk;
    text_init(&folder);
    text_printf(&folder, "%.*s", slash ? (int)(slash - path) + 1 : 1, slash ? path : ".");
    bool known = !folder.failed && !statvfs(folder.data, &disk);
    text_free(&folder);
    if (known && l->data_bytes / disk.f_frsize >= disk.f_bavail)
        return oato_fail(err, OATO_EIO, "%s: %.1f GB of weights, %.1f GB are free there", path,
                         (double)l->data_bytes * 1e-9,
                         (double)disk.f_bavail * (double)disk.f_frsize * 1e-9);
    return OATO_OK; /* a folder that is not there is the writer's to report */
}

static oato_status fill_tensors(const struct random_model *m, struct tensor_list *l,
                                struct oato_error *err)
{
    size_t at = 0;
    l->data = pages_alloc(l->data_bytes);
    if (!l->data)
        return oato_fail_memory(err, l->data_bytes, "the weights");
    for (size_t i = 0; i < l->n; i++) {
        struct tensor_row *t = &l->rows[i];
        t->data = l->data + at;
        at += t->bytes;
        random_blocks_fill(t->dtype, t->data, t->bytes, t->mean, t->deviation,
                           m->seed ^ hash_bytes(t->name, strlen(t->name)));
    }
    return OATO_OK;
}

static void put_u32(struct gguf_writer *w, const char *architecture, const char *key, int64_t v)
{
    char full[128];
    uint32_t u = (uint32_t)v;
    snprintf(full, sizeof full, "%s.%s", architecture, key);
    gguf_writer_scalar(w, full, GGUF_U32, &u);
}

static void put_f32(struct gguf_writer *w, const char *architecture, const char *key, float v)
{
    char full[128];
    snprintf(full, sizeof full, "%s.%s", architecture, key);
    gguf_writer_scalar(w, full, GGUF_F32, &v);
}

static void add_metadata(struct gguf_writer *w, const struct random_model *m)
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
    if (head_dim(m) * m->heads != m->width) {
        put_u32(w, a, "attention.key_length", head_dim(m));
        put_u32(w, a, "attention.value_length", head_dim(m));
    }
    put_u32(w, a, "rope.dimension_count", head_dim(m));
    gguf_writer_scalar(w, "general.quantization_version", GGUF_U32, &(uint32_t){2});
    if (m->tokenizer)
        random_vocab_add(w, m->vocab);
    else /* llama.cpp wants to be told that there is none */
        gguf_writer_string(w, "tokenizer.ggml.model", "none");
}

/* Part i of m->parts, with its share of the tensors. */
static oato_status save_part(const struct random_model *m, const struct tensor_list *l, int64_t i,
                             const char *path, struct oato_error *err)
{
    struct gguf_writer *w = gguf_writer_create();
    if (!w)
        return oato_fail_memory(err, 0, "a writer");
    size_t parts = (size_t)m->parts, part = (size_t)i;
    if (part == 0)
        add_metadata(w, m);
    if (parts > 1) {
        uint16_t no = (uint16_t)part, count = (uint16_t)parts;
        int32_t total = (int32_t)l->n;
        gguf_writer_scalar(w, "split.no", GGUF_U16, &no);
        gguf_writer_scalar(w, "split.count", GGUF_U16, &count);
        gguf_writer_scalar(w, "split.tensors.count", GGUF_I32, &total);
    }
    for (size_t t = l->n * part / parts; t < l->n * (part + 1) / parts; t++) {
        const struct tensor_row *r = &l->rows[t];
        gguf_writer_tensor(w, r->name, r->dtype, r->n_dims, r->ne, r->data);
    }
    oato_status status = gguf_writer_save(w, path, err);
    gguf_writer_free(w);
    return status;
}

static oato_status save_parts(const struct random_model *m, const struct tensor_list *l,
                              const char *path, struct oato_error *err)
{
    size_t stem = strlen(path);
    if (stem > 5 && !strcmp(path + stem - 5, ".gguf"))
        stem -= 5;
    if (m->parts < 1 || m->parts > UINT16_MAX || (size_t)m->parts > l->n)
        return oato_fail(err, OATO_EUSAGE, "%lld files for %zu tensors", (long long)m->parts, l->n);
    if (m->parts == 1)
        return save_part(m, l, 0, path, err);
    oato_status status = OATO_OK;
    for (int64_t i = 0; i < m->parts && !status; i++) {
        struct text name;
        text_init(&name);
        text_printf(&name, "%.*s-%05d-of-%05d.gguf", (int)stem, path, (int)i + 1, (int)m->parts);
        status = name.failed ? oato_fail_memory(err, stem, "a file name")
                             : save_part(m, l, i, name.data, err);
        text_free(&name);
    }
    return status;
}

oato_status random_model_save(const struct random_model *m, const char *path,
                              struct oato_error *err)
{
    struct tensor_list l = {0};
    if (check_shape(m, err))
        return err->status;
    oato_status status = list_tensors(m, &l, err);
    if (!status && !m->header_only)
        status = check_room(&l, path, err);
    if (!status && !m->header_only)
        status = fill_tensors(m, &l, err);
    if (!status)
        status = save_parts(m, &l, path, err);
    pages_free(l.data, l.data_bytes);
    free(l.rows);
    return status;
}

oato_status random_model_open(const struct random_model *m, struct model **out,
                              struct oato_error *err)
{
    char path[] = "/tmp/oato-test-XXXXXX";
    int fd = mkstemp(path);
    *out = NULL;
    if (fd < 0)
        return oato_fail(err, OATO_EIO, "%s: %s", path, strerror(errno));
    close(fd);
    oato_status status = random_model_save(m, path, err);
    if (!status)
        status = model_open(path, out, err);
    unlink(path);
    return status;
}
