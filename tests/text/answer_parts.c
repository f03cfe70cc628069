/*
 * answer_parts.c - cuts answers for tests: answer-parts TEMPLATE < LINES
 *
 * Standard input has pairs of lines, in which \n and \\ stand for a newline and a backslash: the
 * prompt and the answer. For every pair prints one JSON object: what is thought and said, and the
 * calls. The answer is pushed in pieces of 3 bytes.
 */
#include "tests/text/answer_cut.h"

#include <stdlib.h>
#include <string.h>

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

int main(int argc, char **argv)
{
    struct oato_error err = {0};
    struct mapped_file f;
    struct text prompt, answer;
    text_init(&prompt);
    text_init(&answer);
    oato_status status = argc == 2 ? file_map(argv[1], &f, &err) : OATO_EUSAGE;
    while (!status && line_read(&prompt) && line_read(&answer)) {
        struct answer_parts p;
        struct text line = {0};
        status = answer_cut((struct gguf_string){(const char *)f.data, f.bytes},
                            (struct gguf_string){prompt.data, prompt.len},
                            (struct gguf_string){answer.data, answer.len}, 3, false, &p, &err);
        json_open(&line, NULL, '{');
        json_add(&line, JSON("thinks", (const char *)p.text[CHAT_THINKS].data),
                 JSON("says", (const char *)p.text[CHAT_SAYS].data));
        json_key(&line, "calls");
        text_printf(&line, "[%s]", p.calls.len ? p.calls.data : "");
        json_close(&line, '}');
        puts(line.data);
        answer_parts_free(&p);
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
