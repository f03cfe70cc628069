/*
 * llama_line.h - a command line of llama-server, read by llama.cpp's rules: written down from its
 * documentation of -ngl, -ts and -ot, they know nothing of planfmt/export.c.
 */
#ifndef OATO_LLAMA_LINE_H
#define OATO_LLAMA_LINE_H

#include "base/base.h"

enum { LINE_WORDS = 64 };

struct line { /* a command line, as a shell hands it over */
    char text[1 << 16];
    char *word[LINE_WORDS];
    int n;
};

void line_split(struct line *l, const char *command);
/* The word behind an option, NULL: it is not there. */
char *line_value(const struct line *l, const char *option);
/* Where the engine puts a layer and its KV, of PLACED_LAYERS, and a tensor. */
const char *line_layer(const struct line *l, int layer);
const char *line_tensor(const struct line *l, const char *name);

#endif
