/*
 * answer_cut.h - an answer in parts, for tests: cut as it arrives in pieces.
 */
#ifndef OATO_ANSWER_CUT_H
#define OATO_ANSWER_CUT_H

#include "text/chat_internal.h"

#include <stdlib.h>
#include <string.h>

struct answer_parts {
    struct text text[2]; /* by enum chat_part */
    struct text calls;   /* members of a JSON array: ["name",{..}] */
};

static inline void parts_text(void *user, enum chat_part part, const char *s, size_t n)
{
    text_add(&((struct answer_parts *)user)->text[part], s, n);
}

/* Whatever the answer, a call has a name, and its arguments are an object on one line. */
static inline void parts_call(void *user, const char *name, const char *arguments)
{
    struct text *t = &((struct answer_parts *)user)->calls;
    const size_t n = strlen(arguments);
    if (!name[0] || n < 2 || arguments[0] != '{' || arguments[n - 1] != '}' ||
        strchr(arguments, '\n'))
        abort();
    text_printf(t, "%s[\"%s\",%s]", t->len ? "," : "", name, arguments);
}

/* The program of a chat template, the prompt, and the answer in pieces of so many bytes. Free the
 * parts. */
static inline oato_status answer_cut(struct gguf_string program, struct gguf_string prompt,
                                     struct gguf_string answer, size_t piece,
                                     struct answer_parts *p, struct oato_error *err)
{
    struct chat_reader *r;
    const struct chat_sink sink = {parts_text, parts_call, p};
    *p = (struct answer_parts){0};
    oato_status status = chat_reader_of(program, prompt, &sink, &r, err);
    for (size_t i = 0; !status && i < answer.len; i += piece)
        chat_reader_push(r, answer.data + i, answer.len - i < piece ? answer.len - i : piece);
    if (!status)
        status = chat_reader_end(r, err);
    chat_reader_free(r);
    return status;
}

static inline void answer_parts_free(struct answer_parts *p)
{
    text_free(&p->text[CHAT_SAYS]);
    text_free(&p->text[CHAT_THINKS]);
    text_free(&p->calls);
}

#endif
