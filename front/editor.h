/*
 * editor.h - a line from a terminal, edited with the keys that people know from shells. A pasted
 * text of many lines is one line of it (bracketed paste), and stays where it belongs when the
 * window changes its size.
 */
#ifndef OATO_EDITOR_H
#define OATO_EDITOR_H

#include "base/base.h"

struct editor;

enum edited {
    EDITED_LINE,
    EDITED_END,       /* Ctrl-D in an empty line, the terminal is gone, or SIGTERM came */
    EDITED_INTERRUPT, /* Ctrl-C; what was typed is dropped */
};

/* Reads standard input and draws on the descriptor `to`. NULL: one of them is no terminal, or one
 * on which nothing can be redrawn; or memory is short. */
struct editor *editor_open(int to);
void editor_free(struct editor *e);
/* The next line, without its end, instead of what is in *line. The terminal is as it was before
 * whenever this does not run. */
enum edited editor_read(struct editor *e, const char *prompt, struct text *line);

#endif
