/*
 * pretokenize_cuts.c - prints where a pre-tokeniser cuts a text, for the Python oracle.
 *
 * usage: oato-cuts NAME FILE    one line: the byte offsets at which the pieces of FILE end
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "models/tokenizer_internal.h"

/* A file that holds nothing but the name of the pre-tokeniser. */
static struct gguf *file_of(const char *name, struct oato_error *err)
{
    char path[] = "/tmp/oato-cuts-XXXXXX";
    struct gguf_writer *w = gguf_writer_create();
    struct gguf *g = NULL;
    int fd = mkstemp(path);
    if (!w || fd < 0) {
        (void)oato_fail(err, OATO_EIO, "no temporary file");
        gguf_writer_free(w);
        return NULL;
    }
    close(fd);
    gguf_writer_string(w, "general.architecture", "llama");
    gguf_writer_string(w, "tokenizer.ggml.pre", name);
    if (gguf_writer_save(w, path, err) == OATO_OK)
        (void)gguf_open(path, &g, err);
    unlink(path);
    gguf_writer_free(w);
    return g;
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "usage: oato-cuts NAME FILE\n");
        return 2;
    }
    struct oato_error err = {0};
    struct pretokenizer *p = NULL;
    struct pretokenizer_traits traits;
    struct pretokenize_work w = {0};
    struct mapped_file f = {0};
    struct gguf *g = file_of(argv[1], &err);
    bool ok = g && pretokenizer_create(g, &p, &traits, &err) == OATO_OK &&
              file_map(argv[2], &f, &err) == OATO_OK &&
              pretokenize(p, &w, (const char *)f.data, f.bytes, &err) == OATO_OK;
    for (size_t i = 0; ok && i < w.spans.n; i++)
        printf("%u%c", w.spans.ends[i], i + 1 < w.spans.n ? ' ' : '\n');
    if (!ok)
        fprintf(stderr, "oato-cuts: %s\n", err.text);
    pretokenize_work_free(&w);
    pretokenizer_free(p);
    file_unmap(&f);
    gguf_close(g);
    return ok ? 0 : 1;
}
