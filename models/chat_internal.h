/*
 * chat_internal.h - the named prompt formats (chat_formats.c), to which chat_template.c turns when
 * one is asked for or the model's own program cannot be parsed.
 */
#ifndef OATO_MODELS_CHAT_INTERNAL_H
#define OATO_MODELS_CHAT_INTERNAL_H

#include "models/models.h"

enum { CHAT_MARKS = 3 };

/* Where the system message goes. */
enum system_place { SYSTEM_ALONE, SYSTEM_IN_FIRST_USER, SYSTEM_IN_LAST_USER };

struct chat_format {
    const char *name;
    const char *marks[CHAT_MARKS + 1]; /* the model's program contains them all ... */
    const char *program;               /* in Jinja, as the model's own */
    const char *absent;                /* ... and not this */
    const char *system;                /* the system message when there is none, or NULL */
    enum system_place place;
};

/* NULL: there is no such row. */
const struct chat_format *chat_format_named(const char *name);
/* The row whose marks the program contains; NULL: none. */
const struct chat_format *chat_format_recognise(struct gguf_string program);
/* All names, separated by ", ", each once. */
void chat_format_names(struct text *out);
/* Refuses messages that the format cannot render. */
oato_status chat_format_check(const struct chat_format *c, const struct chat_message *m, size_t n,
                              struct oato_error *err);

#endif
