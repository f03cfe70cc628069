/*
 * pretokenize_cuts.c - what our tokenizers make of texts, for the Python oracle.
 *
 * usage: oato-cuts pre NAME FILE...     a line each: the offsets at which pre-tokenizer NAME cuts
 *        oato-cuts ids MODEL FILE...    a line each: the tokens, without BOS and EOS
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "text/tokens_internal.h"

/* A file that holds nothing but the name of the pre-tokenizer. */
static oato_status named_file(const char *name, struct gguf **g, struct oato_error *err)
{
    char path[] = "/tmp/oato-cuts-XXXXXX";
    struct gguf_writer *w = gguf_writer_create();
    int fd = mkstemp(path);
    if (!w || fd < 0) {
        gguf_writer_free(w);
        return oato_fail(err, OATO_EIO, "no temporary file");
    }
    close(fd);
    gguf_writer_string(w, "general.architecture", "llama");
    gguf_writer_string(w, "tokenizer.ggml.pre", name);
    oato_status s = gguf_writer_save(w, path, err);
    if (s == OATO_OK)
        s = gguf_open(path, g, err);
    unlink(path);
    gguf_writer_free(w);
    return s;
}

static oato_status cuts_print(const struct pretokenizer *p, const struct mapped_file *f,
                              struct oato_error *err)
{
    struct pretokenize_work w = {0};
    oato_status s = pretokenize(p, &w, (const char *)f->data, f->bytes, err);
    for (size_t i = 0; s == OATO_OK && i < w.spans.n; i++)
        printf("%u ", w.spans.ends[i]);
    pretokenize_work_free(&w);
    return s;
}

static oato_status ids_print(const struct tokenizer *t, const struct mapped_file *f,
                             struct oato_error *err)
{
    int32_t *ids = NULL;
    size_t n = 0;
    oato_status s = tokenizer_encode(t, (const char *)f->data, f->bytes, 0, &ids, &n, err);
    for (size_t i = 0; s == OATO_OK && i < n; i++)
        printf("%d ", ids[i]);
    free(ids);
    return s;
}

int main(int argc, char **argv)
{
    const bool pre = argc > 3 && strcmp(argv[1], "pre") == 0;
    if (!pre && !(argc > 3 && strcmp(argv[1], "ids") == 0)) {
        fprintf(stderr, "usage: oato-cuts pre NAME FILE... | ids MODEL FILE...\n");
        return 2;
    }
    struct oato_error err = {0};
    struct pretokenizer *p = NULL;
    struct tokenizer *t = NULL;
    struct pretokenizer_traits traits;
    struct gguf *g = NULL;
    oato_status s = pre ? named_file(argv[2], &g, &err) : gguf_open(argv[2], &g, &err);
    if (s == OATO_OK)
        s = pre ? pretokenizer_create(g, &p, &traits, &err) : tokenizer_create(g, &t, &err);
    for (int i = 3; s == OATO_OK && i < argc; i++) {
        struct mapped_file f;
        s = file_map(argv[i], &f, &err);
        if (s != OATO_OK)
            break;
        s = pre ? cuts_print(p, &f, &err) : ids_print(t, &f, &err);
        putchar('\n');
        file_unmap(&f);
    }
    if (s != OATO_OK)
        fprintf(stderr, "oato-cuts: %s\n", err.text);
    tokenizer_free(t);
    pretokenizer_free(p);
    gguf_close(g);
    return s == OATO_OK ? 0 : 1;
}
