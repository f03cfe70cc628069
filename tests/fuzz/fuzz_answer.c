/*
 * fuzz_answer.c - whatever a model answers, and however it arrives, its parts are the same; the
 * arguments of a call are an object on one line.
 */
#include "tests/text/answer_cut.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void cut(struct gguf_string program, struct gguf_string answer, size_t piece, bool is_cut,
                struct answer_parts *parts)
{
    struct oato_error err;
    if (answer_cut(program, program, answer, piece, is_cut, parts, &err))
        abort();
}

static void check_same(const struct text *a, const struct text *b)
{
    if (a->len != b->len || (a->len && memcmp(a->data, b->data, a->len)))
        abort();
}

/* The program, a newline, the answer. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    const char *text = (const char *)data, *line = bytes ? memchr(text, '\n', bytes) : NULL;
    struct answer_parts one, two;
    if (!line)
        return 0;
    const struct gguf_string program = {text, (size_t)(line - text)};
    const struct gguf_string answer = {line + 1, bytes - program.len - 1};
    for (int is_cut = 0; is_cut < 2; is_cut++) {
        cut(program, answer, 1, is_cut, &one);
        cut(program, answer, bytes, is_cut, &two);
        check_same(&one.calls, &two.calls);
        check_same(&one.text[CHAT_SAYS], &two.text[CHAT_SAYS]);
        check_same(&one.text[CHAT_THINKS], &two.text[CHAT_THINKS]);
        answer_parts_free(&one);
        answer_parts_free(&two);
    }
    return 0;
}
