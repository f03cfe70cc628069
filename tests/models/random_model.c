/*
 * random_model.c - writes the keys of a model, lets its architecture list the tensors that it needs
 * for them, fills these with random weights of deviation 1/sqrt(k), so that activations neither
 * vanish nor grow, and writes one file or several. A tensor's random numbers depend on the seed and
 * its name only.
 */
#include "tests/models/random_model.h"
#include "models/models_internal.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

struct tensor_row {
    struct gguf_tensor t; /* data: in the list's, or NULL */
    double mean, deviation;
};

struct tensor_list {
    const struct random_model *model;
    struct arena arena;
    struct tensor_row **rows;
    size_t n, cap;
    uint8_t *data; /* of all rows */
    size_t data_bytes;
    struct oato_error *err;
};

static oato_status check_shape(const struct random_model *m, struct oato_error *err)
{
    const int64_t most = INT32_MAX;
    if (m->layers < 1 || m->width < 1 || m->ffn < 1 || m->heads < 1 || m->kv_heads < 1 ||
        m->vocab < 1 || m->context < 1 || m->layers > 4096 || m->width > most || m->ffn > most ||
        m->heads > most || m->vocab > most || m->context > most)
        return oato_fail(err, OATO_EUSAGE, "every count is 1 to 2147483647, layers at most 4096");
    if ((m->head_dim ? m->head_dim % 2 || m->head_dim < 0 : m->width % (2 * m->heads)) ||
        m->heads % m->kv_heads || random_model_head_dim(m) > most / m->heads)
        return oato_fail(
            err, OATO_EUSAGE,
            "width %lld, heads %lld, kv heads %lld: the width must be an even multiple "
            "of the heads (or a head's even dimension be given) and the heads a multiple of the kv "
            "heads",
            (long long)m->width, (long long)m->heads, (long long)m->kv_heads);
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
        [DT_Q2_K] = DT_Q4_0,     [DT_Q3_K] = DT_Q4_0,    [DT_IQ4_XS] = DT_IQ4_NL,
        [DT_Q4_K] = DT_Q5_0,     [DT_Q5_K] = DT_Q5_1,    [DT_Q6_K] = DT_Q8_0,
        [DT_IQ1_S] = DT_IQ4_NL,  [DT_IQ1_M] = DT_IQ4_NL, [DT_IQ2_XXS] = DT_IQ4_NL,
        [DT_IQ2_XS] = DT_IQ4_NL, [DT_IQ2_S] = DT_IQ4_NL, [DT_IQ3_XXS] = DT_IQ4_NL,
        [DT_IQ3_S] = DT_IQ4_NL,  [DT_TQ1_0] = DT_Q4_0,   [DT_TQ2_0] = DT_Q4_0};
    if (k % dtype_info((int)wanted)->block_elems && fallback[wanted])
        wanted = fallback[wanted];
    return k % dtype_info((int)wanted)->block_elems ? DT_F16 : wanted;
}

/* llama-quantize's rule for Q4_K_M and Q5_K_M: the output matrix, and the values and the second FFN
 * matrix of the first and last eighth of the layers and of every third one between. */
static bool gets_more_bits(const struct random_model *m, const char *name)
{
    const long n = (long)m->layers;
    const char *part = name;
    if (strncmp(name, "blk.", 4) != 0)
        return !strcmp(name, m->tied ? "token_embd.weight" : "output.weight");
    const long layer = strtol(name + 4, (char **)&part, 10);
    if (strcmp(part, ".attn_v.weight") != 0 && strcmp(part, ".ffn_down.weight") != 0 &&
        strcmp(part, ".ffn_down_exps.weight") != 0)
        return false;
    return layer < n / 8 || layer >= 7 * n / 8 || (layer - n / 8) % 3 == 2;
}

static bool ends_in(const char *name, const char *ending)
{
    const size_t n = strlen(name), m = strlen(ending);
    return n >= m && !strcmp(name + n - m, ending);
}

/* A matrix of products; quantisers leave what chooses experts and convolutions alone. */
static bool is_product(const char *name, const int64_t ne[3])
{
    return ne[1] * ne[2] > 1 && ends_in(name, ".weight") && !ends_in(name, "ffn_gate_inp.weight") &&
           !strstr(name, "conv");
}

/* The mean of what is no product: norms multiply, biases add, and what a state decays by in a step
 * is negative. */
static double mean_of(const char *name, const int64_t ne[3])
{
    if (ends_in(name, "ssm_a"))
        return -1;
    return ne[1] * ne[2] == 1 && ends_in(name, ".weight");
}

/* Optional tensors are there when a word of `optional` is part of their name. */
static bool is_wanted(const struct random_model *m, const char *name)
{
    if (!strcmp(name, "output.weight"))
        return !m->tied;
    for (const char *word = m->optional; word && *word;) {
        char one[GGUF_MAX_NAME + 1];
        const size_t n = strcspn(word, " ");
        snprintf(one, sizeof one, "%.*s", (int)n, word);
        if (strstr(name, one))
            return true;
        word += n + strspn(word + n, " ");
    }
    return false;
}

/* The row of a tensor that is new. */
static struct tensor_row *list_row(struct tensor_list *l, const char *name, const int64_t ne[3])
{
    const struct random_model *m = l->model;
    struct tensor_row *r = arena_alloc(&l->arena, 1, sizeof *r);
    char *copy = arena_strndup(&l->arena, name, strlen(name));
    void *rows = array_room(l->rows, l->n, &l->cap, sizeof(struct tensor_row *));
    if (rows)
        l->rows = rows;
    if (!r || !copy || !rows)
        return NULL;
    const bool product = is_product(name, ne);
    const bool more = m->more_bits && gets_more_bits(m, name);
    r->t = (struct gguf_tensor){.name = copy,
                                .dtype =
                                    product ? row_dtype(more ? DT_Q6_K : m->dtype, ne[0]) : DT_F32,
                                .n_dims = ne[2] > 1   ? 3
                                          : ne[1] > 1 ? 2
                                                      : 1,
                                .ne = {ne[0], ne[1], ne[2], 1}};
    r->mean = product ? 0 : mean_of(name, ne);
    r->deviation = ne[1] * ne[2] > 1 ? 1 / sqrt((double)ne[0]) : 0.1;
    l->rows[l->n++] = r;
    return r;
}

static const struct gguf_tensor *list_tensor(void *context, const char *name, const int64_t ne[3],
                                             bool optional)
{
    struct tensor_list *l = context;
    if (optional && !is_wanted(l->model, name))
        return NULL;
    for (size_t i = 0; i < l->n; i++)
        if (!strcmp(l->rows[i]->t.name, name))
            return &l->rows[i]->t;
    struct tensor_row *r = list_row(l, name, ne);
    if (!r)
        oato_fail_memory(l->err, sizeof *r, "the list of tensors");
    else if (!dtype_row_bytes(r->t.dtype, ne[0], &r->t.bytes) ||
             !size_mul(r->t.bytes, (size_t)ne[1], &r->t.bytes) ||
             !size_mul(r->t.bytes, (size_t)ne[2], &r->t.bytes) ||
             !size_add(l->data_bytes, r->t.bytes, &l->data_bytes))
        oato_fail(l->err, OATO_EUSAGE, "tensor '%s' is too large", name);
    return l->err->status ? NULL : &r->t;
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
        struct tensor_row *r = l->rows[i];
        r->t.data = l->data + at;
        random_blocks_fill(r->t.dtype, l->data + at, r->t.bytes, r->mean, r->deviation,
                           m->seed ^ hash_bytes(r->t.name, strlen(r->t.name)));
        at += r->t.bytes;
    }
    return OATO_OK;
}

static void add_tokenizer(const struct random_model *m, struct gguf_writer *w)
{
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
    if (part == 0) {
        random_model_keys(m, w);
        add_tokenizer(m, w);
    }
    if (parts > 1) {
        uint16_t no = (uint16_t)part, count = (uint16_t)parts;
        int32_t total = (int32_t)l->n;
        gguf_writer_scalar(w, "split.no", GGUF_U16, &no);
        gguf_writer_scalar(w, "split.count", GGUF_U16, &count);
        gguf_writer_scalar(w, "split.tensors.count", GGUF_I32, &total);
    }
    for (size_t t = l->n * part / parts; t < l->n * (part + 1) / parts; t++) {
        const struct gguf_tensor *r = &l->rows[t]->t;
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

/* A name of its own in the folder for temporary files, to be removed. */
static oato_status temporary(char path[32], struct oato_error *err)
{
    snprintf(path, 32, "/tmp/oato-test-XXXXXX");
    int fd = mkstemp(path);
    if (fd < 0)
        return oato_fail(err, OATO_EIO, "%s: %s", path, strerror(errno));
    close(fd);
    return OATO_OK;
}

/* A shape that the architecture refuses is the caller's mistake. */
static oato_status list_tensors(struct tensor_list *l, struct oato_error *err)
{
    char path[32];
    struct gguf *keys = NULL;
    if (temporary(path, err))
        return err->status;
    struct gguf_writer *w = gguf_writer_create();
    if (!w)
        oato_fail_memory(err, 0, "a writer");
    else
        random_model_keys(l->model, w);
    oato_status status = w ? gguf_writer_save(w, path, err) : err->status;
    gguf_writer_free(w);
    if (!status)
        status = gguf_open(path, &keys, err);
    unlink(path);
    if (!status)
        status = model_list_tensors(keys, list_tensor, l, err);
    gguf_close(keys);
    if (status == OATO_EFILE)
        status = err->status = OATO_EUSAGE;
    return status;
}

oato_status random_model_save(const struct random_model *m, const char *path,
                              struct oato_error *err)
{
    struct tensor_list l = {.model = m, .err = err};
    if (check_shape(m, err))
        return err->status;
    arena_init(&l.arena);
    oato_status status = list_tensors(&l, err);
    if (!status && !m->header_only)
        status = check_room(&l, path, err);
    if (!status && !m->header_only)
        status = fill_tensors(m, &l, err);
    if (!status)
        status = save_parts(m, &l, path, err);
    pages_free(l.data, l.data_bytes);
    free(l.rows);
    arena_free(&l.arena);
    return status;
}

oato_status random_model_open(const struct random_model *m, struct model **out,
                              struct oato_error *err)
{
    char path[32];
    *out = NULL;
    oato_status status = temporary(path, err);
    if (status)
        return status;
    status = random_model_save(m, path, err);
    if (!status)
        status = model_open(path, out, err);
    unlink(path);
    return status;
}
