/*
 * text.h - text into tokens and back: a model's tokenizer, its chat template, and the parts of its
 * answers. Knows no device.
 *
 * tokenizer_create and chat_template_find read them from a GGUF file.
 */
#ifndef OATO_TEXT_H
#define OATO_TEXT_H

#include "models/models.h"

/* ----------------------------------------------------------------------- texts from outside --- */

/* Texts that people and programs write may begin with a byte-order mark of UTF-8, which is left
 * out, and end lines by "\r\n" or "\r"; those of UTF-16 and UTF-32 are refused (OATO_EFILE). */
enum text_ends {
    TEXT_LINES, /* every end of a line becomes "\n" */
    TEXT_EXACT, /* bytes are what is asked for: ends stay as they are */
};
/* Text of a whole file, or of standard input for "-"; empty on failure. */
oato_status text_read_file(const char *path, enum text_ends ends, struct text *out,
                           struct oato_error *err);
/* Lines of a stream, one after the other, as soon as each has ended. */
struct text_lines {
    FILE *from;
    const char *name; /* for messages */
    int64_t n;        /* lines read; 0 at first */
    bool cr;          /* the last line ended so */
};
/* The next line, without its end, in place of what `out` held. OATO_NEGATIVE: there is none. */
oato_status text_read_line(struct text_lines *l, struct text *out, struct oato_error *err);

/* --------------------------------------------------------------------------- tokenizer ---- */

struct tokenizer;

/* Reads tokenizer.ggml.* and copies what it needs. The error names an unknown pre-tokeniser. */
oato_status tokenizer_create(const struct gguf *g, struct tokenizer **out, struct oato_error *err);
void tokenizer_free(struct tokenizer *t);

enum tokenize_flags {
    TOKENIZE_ADD_BOS = 1,       /* in front, if the model asks for it and the text has none */
    TOKENIZE_PARSE_SPECIAL = 2, /* control tokens written in the text become their ids */
    TOKENIZE_ADD_EOS = 4,       /* behind, likewise; never where the text is to be continued */
    TOKENIZE_ADD_SPECIAL = TOKENIZE_ADD_BOS | TOKENIZE_ADD_EOS,  /* of a text that is complete */
    TOKENIZE_PROMPT = TOKENIZE_ADD_BOS | TOKENIZE_PARSE_SPECIAL, /* of one to be continued */
};
/* The n bytes of text may be anything. *ids is malloc'ed (free it) and holds *count tokens. */
oato_status tokenizer_encode(const struct tokenizer *t, const char *text, size_t n, int flags,
                             int32_t **ids, size_t *count, struct oato_error *err);
/* The same, with its work and memory taken from a budget; NULL: from none. */
oato_status tokenizer_encode_within(const struct tokenizer *t, const char *text, size_t n,
                                    int flags, struct budget *budget, int32_t **ids, size_t *count,
                                    struct oato_error *err);
/* The text begins with the BOS that these flags would put in front: it gets no second one, and
 * whoever wrote the text by hand may want to know. */
bool tokenizer_begins(const struct tokenizer *t, const char *text, size_t n, int flags);
/* The most bytes of a text that one token may stand for; 0 where there is no such limit. */
size_t tokenizer_longest(const struct tokenizer *t);
/* Decoded bytes of one token (byte tokens and spaces resolved), borrowed from the tokenizer.
 * Control tokens give "" unless special is set. False for an id outside the vocabulary. */
bool tokenizer_piece(const struct tokenizer *t, int32_t id, bool special, const char **bytes,
                     size_t *n);
/* Appends the text of ids; SentencePiece drops the space that encode put in front when
 * strip_prefix is set. */
void tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t count,
                      bool strip_prefix, struct text *out);
int32_t tokenizer_size(const struct tokenizer *t);
int32_t tokenizer_bos(const struct tokenizer *t);             /* -1 when there is none */
bool tokenizer_is_end(const struct tokenizer *t, int32_t id); /* EOS, EOT, end of message */

/* Holds back the bytes of an incomplete UTF-8 character; invalid bytes pass through. */
struct utf8_stream {
    char held[4];
    int n_held;
};
/* Appends to out what can be printed now. */
void utf8_stream_push(struct utf8_stream *s, const char *bytes, size_t n, struct text *out);
void utf8_stream_flush(struct utf8_stream *s, struct text *out);

/* Where the next piece of a text begins: behind so many characters and the first bytes of another.
 */
struct utf8_place {
    size_t chars, n_begun;
    char begun[4];
};
/* Goes on behind a piece, and returns where it began, in characters; one that begins inside a
 * character is there where that is. */
size_t utf8_place_take(struct utf8_place *at, const char *bytes, size_t n);

/* ----------------------------------------------------------------------- chat templates --- */

struct chat_message {
    const char *role; /* "system", "user", "assistant" */
    const char *content;
    size_t bytes; /* of content, which may be anything */
};

/* The model's Jinja program (tokenizer.chat_template), or a named format: chatml, llama3, .. */
struct chat_template;

/* The model's own; of a `name` (of n bytes) that is not NULL that format, or if a space, a line
 * break or a brace is in it, that program. from: the file whose text `name` is, always a program,
 * for messages (OATO_EFILE); NULL: the command line (OATO_EUSAGE). A model's own that cannot be
 * parsed is replaced by the format that it is recognised as, if there is one; then
 * chat_template_warning has a line that says so, else "". The error lists the names and points to
 * --chat-template. The result does not refer to g. */
oato_status chat_template_find(const struct gguf *g, const char *name, size_t n, const char *from,
                               struct chat_template **out, struct oato_error *err);
void chat_template_free(struct chat_template *c);
const char *chat_template_name(
    const struct chat_template *c); /* "of the model": its program; "as given": another one */
/* Its program in Jinja, of *n bytes, borrowed; of a named format its name. */
const char *chat_template_text(const struct chat_template *c, size_t *n);
/* A program of Jinja, which may show tools and have variables; else a named format. */
bool chat_template_is_program(const struct chat_template *c);
const char *chat_template_warning(const struct chat_template *c);
/* Whether the program has this word in it: a role, or a member of messages, that it knows. */
bool chat_template_mentions(const struct chat_template *c, const char *word);
/* Further variables that the program sees, members of a JSON object: {"enable_thinking": false}.
 * Named formats have no variables: an error. */
oato_status chat_template_variables(struct chat_template *c, const char *json,
                                    struct oato_error *err);
/* The prompt text for the messages, with the opening of an assistant message when add_assistant,
 * without the begin-of-text token that tokenizer_encode adds. The model's program is bound in time,
 * nesting, memory and output; what it refuses (OATO_EFILE) is told in its words. variables: a JSON
 * object whose members it sees last (messages and tools may be among them); NULL: those above. */
oato_status chat_template_apply(const struct chat_template *c, const struct chat_message *m,
                                size_t n, bool add_assistant, const char *variables,
                                struct text *out, struct oato_error *err);
/* The same, with its work and memory taken from a budget; NULL: from none. */
oato_status chat_template_apply_within(const struct chat_template *c, const struct chat_message *m,
                                       size_t n, bool add_assistant, const char *variables,
                                       struct budget *budget, struct text *out,
                                       struct oato_error *err);

/* ------------------------------------------------------------------------------- filling in --- */

enum { FILL_IN_MARKS = 5 };
/* The tokens of a model that makes what stands between two texts; -1: it has no such one. */
struct fill_in {
    int32_t mark[FILL_IN_MARKS]; /* prefix, suffix, middle, repository, file */
};
/* As the file names them, or by the texts that models are known to have. False: it does not fill
 * in. */
bool fill_in_find(const struct tokenizer *t, const struct gguf *g, struct fill_in *out);

struct fill_in_parts {
    struct gguf_string prefix, begun, suffix; /* begun: of the middle, what is there already */
    const struct fill_in_file {
        struct gguf_string name, text;
    } * files;
    size_t n_files;
    size_t most; /* tokens; what is more is missing at the beginning of the files */
};
/* *ids, *n of malloc (free them after an error, too): the prompt, with the BOS that the model asks
 * for. budget: as tokenizer_encode_within has it. */
oato_status fill_in_prompt(const struct tokenizer *t, const struct fill_in *f,
                           const struct fill_in_parts *p, struct budget *budget, int32_t **ids,
                           size_t *n, struct oato_error *err);

/* ----------------------------------------------------------------------- parts of answers --- */

enum chat_part { CHAT_SAYS, CHAT_THINKS };

/* Gets the parts of an answer in their order. Functions are not NULL. */
struct chat_sink {
    /* A piece of what is said, or of the reasoning before it. */
    void (*text)(void *user, enum chat_part part, const char *s, size_t n);
    /* A call of a function begins. Its arguments follow in pieces, then its end, in front of
     * anything else; name: of UTF-8, with no zero byte. */
    void (*call)(void *user, const char *name);
    void (*arguments)(void *user, const char *s, size_t n);
    /* whole: its arguments are a JSON object, on one line. Otherwise the answer was cut within
     * them, or they are as the model wrote them from the byte on that is no JSON. */
    void (*call_end)(void *user, bool whole);
    void *user;
};

/* How calls are looked for. */
enum chat_form {
    CHAT_FORM_OWN,     /* as the template tells; if that shows none, there are none */
    CHAT_FORM_GENERIC, /* <tool_call>{"name": .., "arguments": {..}}</tool_call> */
};

/* Cuts an answer into its parts while it arrives: reasoning (<think>, Harmony's channels, ..), what
 * is said, and calls of functions (Hermes, Qwen, Harmony, Mistral, GLM, Kimi, DeepSeek, MiniMax,
 * Gemma 4, LFM2, .. ). The model's chat template tells which marks it uses; marks, and white space
 * beside them, belong to no part. What looks like a call and cannot be read is said, up to the
 * beginning of its arguments. */
struct chat_reader;
/* prompt: the text that chat_template_apply made for the answer, whose end may open the reasoning.
 * The reader keeps none of the arguments but *sink. */
oato_status chat_reader_open(const struct chat_template *c, enum chat_form form, const char *prompt,
                             size_t n, const struct chat_sink *sink, struct chat_reader **out,
                             struct oato_error *err);
/* Does the text so far end in reasoning, and the marks around that; NULL: the model has none. */
bool chat_reader_thinks(const struct chat_reader *r, const char **begin, const char **end);
/* The next piece of the answer's text, control tokens included. */
void chat_reader_push(struct chat_reader *r, const char *text, size_t n);
/* The end of the answer: hands out what was held back. cut: it is not the model's own, so that the
 * beginning of a mark, or of a call whose arguments did not begin, is none of the parts. An error:
 * memory was short, and parts may be missing. */
oato_status chat_reader_end(struct chat_reader *r, bool cut, struct oato_error *err);
void chat_reader_free(struct chat_reader *r);

#endif
