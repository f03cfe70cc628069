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

/* chat_json.c: a value of JSON, as models write it, made strict byte by byte. */
enum { LOOSE_DEPTH = 64, LOOSE_ARGUMENTS = 'a' };

struct span {
    size_t at, n;
};

struct loose {
    enum loose_now {
        LOOSE_VALUE, /* a value is next */
        LOOSE_KEY,
        LOOSE_COLON,
        LOOSE_NEXT, /* a comma or a closing bracket is next */
        LOOSE_STRING,
        LOOSE_ESCAPE, /* behind a backslash of a string */
        LOOSE_QUOTE,  /* within the quote that is a token */
        LOOSE_NUMBER,
        LOOSE_WORD,
        LOOSE_NAME, /* a key without quotes */
        LOOSE_DONE, /* the value is whole */
        LOOSE_BAD   /* it is none: the rest goes on as it is */
    } now;
    struct text *out; /* borrowed; the owner may exchange it between tokens */
    struct text word; /* of a number, word or character that is not whole yet */
    char closes[LOOSE_DEPTH], escape[5], quote;
    int32_t depth, members; /* open brackets; values that ended one level deep */
    size_t matched, n_escape, token;
    bool comma, may_close, is_key;
    struct span key, value; /* in `out`: the last one a level deep, the key without its quotes */
};
/* All zeros, or used before. */
void loose_begin(struct loose *l, struct text *out);
void loose_put(struct loose *l, char c);
/* An opening bracket in place of a value; LOOSE_ARGUMENTS: those of a call in Python, f( .. ). */
void loose_open(struct loose *l, char bracket);
/* Whether the next byte is in a string. */
bool loose_in_string(const struct loose *l);
void loose_free(struct loose *l);
bool chat_name_char(char c);

/* The calls between `begin` and `end` (chat_calls.c), as they arrive. Zeros are an empty one. */
struct chat_calls {
    const struct call_format *f;
    const struct chat_sink *to;
    enum {
        CALLS_START, /* in front of the mark that names begin with */
        CALLS_NEXT,  /* in front of a call */
        CALLS_NAME,
        CALLS_NAMED,     /* just behind a name */
        CALLS_SEEK,      /* somewhere behind it */
        CALLS_OBJECT,    /* in an object that has name and arguments */
        CALLS_ARGUMENTS, /* in arguments */
        CALLS_TAG,       /* in front of a tag */
        CALLS_KEY,
        CALLS_BETWEEN, /* a key and its value */
        CALLS_VALUE,
        CALLS_OVER, /* the rest says nothing */
        CALLS_NONE, /* it cannot be read */
    } now;
    struct loose json;
    struct text raw;             /* all of it, until a call was told */
    struct text held;            /* a name or what is between tags, so far */
    struct text object;          /* of CALLS_OBJECT, without arguments that were told; or a key */
    struct text piece;           /* arguments that are not told yet */
    struct span name, arguments; /* in `object` */
    size_t marked, ended;        /* bytes of the mark that is awaited, of `end` */
    int32_t told;                /* calls that were */
    bool list, open, done, string, comma; /* open: the last call has not ended; done: the
                                             arguments of this object were told */
};
void chat_calls_begin(struct chat_calls *k, const struct call_format *f,
                      const struct chat_sink *to);
/* Takes up to n bytes and returns how many: fewer when they end what is between (*over), with the
 * mark that does. */
size_t chat_calls_push(struct chat_calls *k, const char *s, size_t n, bool *over);
/* Nothing follows: what is between has ended, or with `cut` the answer has. False: nothing is
 * called, and `raw` is text. */
bool chat_calls_end(struct chat_calls *k, bool cut);
bool chat_calls_failed(const struct chat_calls *k); /* memory was short */
void chat_calls_free(struct chat_calls *k);

/* chat_reader_open of a program in Jinja. */
oato_status chat_reader_of(struct gguf_string program, enum chat_form form,
                           struct gguf_string prompt, const struct chat_sink *sink,
                           struct chat_reader **out, struct oato_error *err);

#endif
