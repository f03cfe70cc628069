/*
 * answer_parts.c - cuts answers for tests: answer-parts TEMPLATE < LINES
 *
 * Standard input has pairs of lines, in which \n and \\ stand for a newline and a backslash: the
 * prompt and the answer. For every pair prints one JSON object: what is thought and said, and the
 * calls. The answer is pushed in pieces of 3 bytes.
 */
#include "models/chat_internal.h"

#include <stdlib.h>
#include <string.h>

struct parts {
    struct text part[2], calls;
};

static void on_text(void *user, enum chat_part part, const char *s, size_t n)
{
    text_add(&((struct parts *)user)->part[part], s, n);
}

static void on_call(void *user, const char *name, const char *arguments)
{
    struct text *t = &((struct parts *)user)->calls;
    text_printf(t, "%s[\"%s\",%s]", t->len ? "," : "", name, arguments);
}

/* The next line with \n and \\ in place of what they stand for. */
static bool line_read(struct text *out)
{
    int c;
    out->len = 0;
    while ((c = getchar()) != EOF && c != '\n') {
        const bool escape = c == '\\';
        c = escape ? getchar() : c;
        const char byte = (char)(escape && c == 'n' ? '\n' : c);
        text_add(out, &byte, 1);
    }
    return c != EOF;
}

static oato_status cut(struct gguf_string program, const struct text *prompt,
                       const struct text *answer, struct parts *p, struct oato_error *err)
{
    struct chat_reader *r;
    const struct chat_sink sink = {on_text, on_call, p};
    const struct gguf_string before = {prompt->data, prompt->len};
    oato_status status = chat_reader_of(program, before, &sink, &r, err);
    for (size_t i = 0; !status && i < answer->len; i += 3)
        chat_reader_push(r, answer->data + i, answer->len - i < 3 ? answer->len - i : 3);
    if (!status)
        status = chat_reader_end(r, err);
    chat_reader_free(r);
    return status;
}

int main(int argc, char **argv)
{
    struct oato_error err = {0};
    struct mapped_file f;
    struct text prompt, answer;
    text_init(&prompt);
    text_init(&answer);
    oato_status status = argc == 2 ? file_map(argv[1], &f, &err) : OATO_EUSAGE;
    while (!status && line_read(&prompt) && line_read(&answer)) {
        struct parts p = {0};
        struct text line = {0};
        status =
            cut((struct gguf_string){(const char *)f.data, f.bytes}, &prompt, &answer, &p, &err);
        json_open(&line, NULL, '{');
        json_add(&line, JSON("thinks", (const char *)p.part[CHAT_THINKS].data),
                 JSON("says", (const char *)p.part[CHAT_SAYS].data));
        json_key(&line, "calls");
        text_printf(&line, "[%s]", p.calls.len ? p.calls.data : "");
        json_close(&line, '}');
        puts(line.data);
        text_free(&p.part[CHAT_THINKS]);
        text_free(&p.part[CHAT_SAYS]);
        text_free(&p.calls);
        text_free(&line);
    }
    if (status)
        fprintf(stderr, "answer-parts: %s\n", err.text);
    else
        file_unmap(&f);
    text_free(&prompt);
    text_free(&answer);
    return (int)status;
}
