/*
 * fuzz_answer.c - whatever a model answers, and however it arrives, its parts are the same; the
 * arguments of a call are an object on one line.
 */
#include "models/chat_internal.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void on_text(void *user, enum chat_part part, const char *s, size_t n)
{
    text_add(&((struct text *)user)[part], s, n);
}

static void on_call(void *user, const char *name, const char *arguments)
{
    const size_t n = strlen(arguments);
    if (!name[0] || n < 2 || arguments[0] != '{' || arguments[n - 1] != '}' ||
        strchr(arguments, '\n'))
        abort();
    text_printf(&((struct text *)user)[2], "%s%s;", name, arguments);
}

static void cut(struct gguf_string program, const char *answer, size_t n, size_t piece,
                struct text parts[3])
{
    struct oato_error err;
    struct chat_reader *r;
    const struct chat_sink sink = {on_text, on_call, parts};
    for (int i = 0; i < 3; i++)
        text_init(&parts[i]);
    if (chat_reader_of(program, program, &sink, &r, &err))
        abort();
    for (size_t i = 0; i < n; i += piece)
        chat_reader_push(r, answer + i, n - i < piece ? n - i : piece);
    if (chat_reader_end(r, &err))
        abort();
    chat_reader_free(r);
}

/* The program, a newline, the answer. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    const char *text = (const char *)data, *line = bytes ? memchr(text, '\n', bytes) : NULL;
    struct text one[3], two[3];
    if (!line)
        return 0;
    const struct gguf_string program = {text, (size_t)(line - text)};
    cut(program, line + 1, bytes - program.len - 1, 1, one);
    cut(program, line + 1, bytes - program.len - 1, bytes, two);
    for (int i = 0; i < 3; i++) {
        if (one[i].len != two[i].len ||
            (one[i].len && memcmp(one[i].data, two[i].data, one[i].len)))
            abort();
        text_free(&one[i]);
        text_free(&two[i]);
    }
    return 0;
}
