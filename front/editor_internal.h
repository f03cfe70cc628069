/*
 * editor_internal.h - shared by editor.c, which follows keys, and editor_screen.c, which draws.
 */
#ifndef OATO_EDITOR_INTERNAL_H
#define OATO_EDITOR_INTERNAL_H

#include "front/editor.h"

/* What is on the screen of a line that is being edited. */
struct screen {
    int fd;
    int width, height;
    /* What is drawn: the text from this byte on, with the cursor at that byte */
    size_t first, cursor;
    bool drawn;
};

/* Asks the terminal for its size. */
void screen_measure(struct screen *s);
/* Draws prompt and text instead of what was drawn; as much of it as fits, with the cursor at byte
 * `at`. `was` is the text that was drawn last. */
void screen_draw(struct screen *s, const char *prompt, const struct text *was,
                 const struct text *text, size_t at);
/* Draws all of it, likewise, and leaves the cursor in the line below. */
void screen_finish(struct screen *s, const char *prompt, const struct text *was,
                   const struct text *text);

#endif
