/*
 * chat_lines.c - what the user types: a line, a pasted text, or several lines between marks of
 * three quotes. On a terminal that cannot redraw, and from a pipe, lines are read as they come.
 */
#include "front/chat.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define QUOTES "\"\"\""

bool chat_interrupt(const struct chat *c)
{
    if (!c->terminal || oato_interrupted != SIGINT)
        return false;
    oato_interrupted = 0;
    interrupt_catch();
    return true;
}

static enum edited line_plain(struct chat *c, const char *prompt, struct text *line)
{
    if (c->terminal) {
        fputs(prompt, stdout);
        fflush(stdout);
    }
    line->len = 0;
    c->refused = text_read_line(&c->lines, line, &c->why);
    if (!c->refused)
        return EDITED_LINE;
    clearerr(stdin);
    return chat_interrupt(c) ? EDITED_INTERRUPT : EDITED_END;
}

static enum edited line_read(struct chat *c, const char *prompt, struct text *line)
{
    return c->editor ? editor_read(c->editor, prompt, line) : line_plain(c, prompt, line);
}

static bool ends_with_quotes(const struct text *t)
{
    return t->len >= 3 && !memcmp(t->data + t->len - 3, QUOTES, 3);
}

/* Reads on to the line that ends with the mark; what is typed so far is behind the first one. */
static enum edited block_read(struct chat *c)
{
    struct text line;
    enum edited how = EDITED_LINE;
    text_init(&line);
    while (!ends_with_quotes(&c->typed)) {
        how = line_read(c, ". ", &line);
        if (how != EDITED_LINE)
            break;
        text_add(&c->typed, "\n", 1);
        text_add(&c->typed, or_empty(line.data), line.len);
    }
    if (how == EDITED_LINE)
        c->typed.len -= 3;
    text_free(&line);
    return how == EDITED_END && c->typed.len ? EDITED_LINE : how;
}

static void trim(struct text *t)
{
    size_t begin = 0;
    while (t->len && t->data[t->len - 1] == '\n')
        t->len--;
    while (begin < t->len && t->data[begin] == '\n')
        begin++;
    t->len -= begin;
    memmove(t->data, t->data + begin, t->len);
    t->data[t->len] = 0;
}

bool chat_line(struct chat *c)
{
    bool warned = false;
    for (;;) {
        enum edited how = line_read(c, "> ", &c->typed);
        if (how == EDITED_LINE && c->typed.len >= 3 && !memcmp(c->typed.data, QUOTES, 3)) {
            c->typed.len -= 3;
            memmove(c->typed.data, c->typed.data + 3, c->typed.len);
            how = block_read(c);
        }
        if (how == EDITED_LINE) {
            text_add(&c->typed, "", 0);
            trim(&c->typed);
            return true;
        }
        if (how == EDITED_END || warned || oato_interrupted) {
            if (how == EDITED_INTERRUPT) /* the end is that of a program that Ctrl-C ended */
                raise(SIGINT);
            return false;
        }
        warned = true;
        fputs("(Ctrl-C again, Ctrl-D or /bye ends the conversation)\n", stderr);
    }
}
