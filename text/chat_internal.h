/*
 * chat_internal.h - the named prompt formats (chat_formats.c), to which chat_template.c turns when
 * one is asked for or the model's own program cannot be parsed; and the marks by which
 * chat_answer.c cuts answers.
 */
#ifndef OATO_MODELS_CHAT_INTERNAL_H
#define OATO_MODELS_CHAT_INTERNAL_H

#include "text/text.h"

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

/* ------------------------------------------------------------------------------ answers ---- */

enum { CHAT_DROPS = 6 };

/* How a model calls functions. Texts that are NULL are not there. */
struct call_format {
    const char *needle;      /* in programs that use the format; NULL: `begin` is */
    const char *begin, *end; /* around one call or more; without `end` the next `begin` ends them */
    const char *name;        /* in front of the name, if that does not begin what is between */
    /* Tags of arguments: key CITY key_end .. value Paris value_end. Without value the value follows
     * key_end. Without key arguments are a JSON object. */
    const char *key, *key_end, *value, *value_end;
    const char *drops[CHAT_DROPS + 1]; /* what stands around calls and says nothing */
    bool bare;                         /* an answer that begins with `begin` is a call, all of it */
};

/* Tells `to` the calls in `body`, what is between begin and end; false: there is none, or it cannot
 * be read. */
bool chat_calls_read(const struct call_format *f, struct gguf_string body,
                     const struct chat_sink *to);

/* chat_reader_open of a program in Jinja. */
oato_status chat_reader_of(struct gguf_string program, struct gguf_string prompt,
                           const struct chat_sink *sink, struct chat_reader **out,
                           struct oato_error *err);

#endif
