/*
 * random_model.c - writes a model of some shape: its keys, and its tensors filled with random
 * weights of deviation 1/sqrt(k), so that activations neither vanish nor grow, and writes one file
 * or several. A tensor's random numbers depend on the seed and its name only.
 */
#include "tests/models/random_model.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

struct tensor_list {
    struct arena arena;
    struct gguf_tensor *rows; /* data: in the list's, or NULL */
    size_t n;
    uint8_t *data; /* of all rows */
    size_t data_bytes;
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

static bool ends_in(const char *name, const char *ending)
{
    const size_t n = strlen(name), m = strlen(ending);
    return n >= m && !strcmp(name + n - m, ending);
}

/* The mean of a tensor: of products 0; norms multiply, biases add, and what a state decays by in a
 * step is negative. */
static double mean_of(const struct gguf_tensor *t)
{
    if (ends_in(t->name, "ssm_a"))
        return -1;
    return t->ne[1] * t->ne[2] == 1 && ends_in(t->name, ".weight");
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
        return oato_fail(err, OATO_EIO, "%s: %.1f MB of weights, but only %.1f MB are free there",
                         path, (double)l->data_bytes * 1e-6,
                         (double)disk.f_bavail * (double)disk.f_frsize * 1e-6);
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
        struct gguf_tensor *t = &l->rows[i];
        const double deviation = t->ne[1] * t->ne[2] > 1 ? 1 / sqrt((double)t->ne[0]) : 0.1;
        t->data = l->data + at;
        random_blocks_fill(t->dtype, l->data + at, t->bytes, mean_of(t), deviation,
                           m->seed ^ hash_bytes(t->name, strlen(t->name)));
        at += t->bytes;
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
        const struct shape_spec shape = random_model_shape(m);
        shape_put_keys(&shape, m->title ? m->title : "random", w);
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
        const struct gguf_tensor *r = &l->rows[t];
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

static oato_status list_tensors(const struct random_model *m, struct tensor_list *l,
                                struct oato_error *err)
{
    const struct shape_spec shape = random_model_shape(m);
    if (shape_tensors(&shape, &l->arena, &l->rows, &l->n, err))
        return err->status;
    for (size_t i = 0; i < l->n; i++)
        if (!size_add(l->data_bytes, l->rows[i].bytes, &l->data_bytes))
            return oato_fail(err, OATO_EUSAGE, "tensor '%s' is too large", l->rows[i].name);
    return OATO_OK;
}

oato_status random_model_save(const struct random_model *m, const char *path,
                              struct oato_error *err)
{
    struct tensor_list l = {.n = 0};
    if (check_shape(m, err))
        return err->status;
    arena_init(&l.arena);
    oato_status status = list_tensors(m, &l, err);
    if (!status && !m->header_only)
        status = check_room(&l, path, err);
    if (!status && !m->header_only)
        status = fill_tensors(m, &l, err);
    if (!status)
        status = save_parts(m, &l, path, err);
    pages_free(l.data, l.data_bytes);
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
