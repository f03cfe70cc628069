/*
 * chat_internal.h - the named prompt formats (chat_formats.c), to which chat_template.c turns when
 * one is asked for or the model's own program cannot be parsed.
 */
#ifndef OATO_MODELS_CHAT_INTERNAL_H
#define OATO_MODELS_CHAT_INTERNAL_H

#include "models/models.h"

struct chat_format; /* a row of the table */

/* NULL: there is no such row. */
const struct chat_format *chat_format_named(const char *name);
/* The row whose marks the program contains; NULL: none. */
const struct chat_format *chat_format_recognise(struct gguf_string program);
const char *chat_format_name(const struct chat_format *c);
/* All names, separated by ", ", each once. */
void chat_format_names(struct text *out);
oato_status chat_format_apply(const struct chat_format *c, const struct chat_message *m, size_t n,
                              bool add_assistant, struct text *out, struct oato_error *err);

#endif
