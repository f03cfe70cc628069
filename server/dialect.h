/*
 * dialect.h - the interfaces of several makers, a row each: how a request becomes one of OpenAI's,
 * and how answers and errors are written. What an answer is, is job.h's; no dialect knows another.
 */
#ifndef OATO_SERVER_DIALECT_H
#define OATO_SERVER_DIALECT_H

#include "server/http.h"
#include "text/chat_messages.h"

struct dialect {
    enum ask_kind kind;
    /* Makes of x->json, whose members it takes or refuses by name, a request of the kind as OpenAI
     * has it, in its place. What the answer repeats goes into x->kept. NULL: it is one. */
    oato_status (*request)(struct exchange *x, struct oato_error *err);
    /* The whole answer, once all choices have ended. */
    void (*whole)(struct job *j, struct text *out);
    /* Appends what is new to a stream. With the job's lock. */
    void (*events)(struct job *j, struct text *out);
    /* Appends what ends a stream, behind the last event or the error; NULL: nothing does. */
    const char *done;
    /* Appends the event of a stream that its error ends. */
    void (*failed)(struct job *j, struct text *out);
    /* The body of an error. */
    void (*error)(struct text *t, unsigned status, const char *message);
    const char *stream_type; /* Content-Type of a stream */
    const char *id_header;   /* that numbers requests, as the body of an error does; NULL: none */
    const char *too_long;    /* before "N tokens > M maximum" of a prompt; NULL: OpenAI's form */
};

/* ---------------------------------------------------------------------------- requests --- */

/* fim.c: dialect.request of /v1/completions. */
oato_status fim_suffix(struct exchange *x, struct oato_error *err);
/* Whether the model fills in. */
bool fim_is_known(const struct instance *m);
/* Sets the "prompt" of the request, for texts before and behind what is wanted. Of a model that
 * does not fill in x->unsupported is set. */
oato_status fim_prompt(struct exchange *x, json_t *request, const json_t *prefix,
                       const json_t *suffix, struct oato_error *err);

/* ollama.c: a time as Ollama writes it. */
json_t *ollama_time(time_t seconds);
/* ollama_models.c: whether the model's template knows of reasoning. */
bool ollama_thinks(const struct instance *m);

/* ---------------------------------------------------------------- answers (dialect.c) --- */

/* Random ones, for the names of an answer and its parts. */
const char *job_digits(const struct job *j);
/* All there is of a part so far. */
struct part_view {
    enum part_kind kind;
    const char *name; /* of a call */
    const char *text; /* arguments of a call */
    size_t n;
    bool whole; /* a call whose arguments no limit has cut; true of other parts */
};
struct part_view part_at(const struct choice *c, size_t index);
/* What a stream has not sent yet of one part. */
struct part_piece {
    size_t index;
    struct part_view part;
    const char *text; /* that is new */
    size_t n;
    bool begins, ends;
};
/* Takes the next one, which then counts as sent. False: there is none. */
bool part_next(struct choice *c, struct part_piece *p);
/* Arguments of a call as an object: the model may call with what is none, which is then the member
 * `otherwise` of one. */
json_t *arguments_value(const char *s, size_t n, const char *otherwise);
/* Answers with a value, which is freed. */
enum MHD_Result reply_value(struct exchange *x, json_t *value);
/* Appends an event of a stream, which is freed, with its "type" as its name. */
void value_event(struct text *out, json_t *event);

/* The events of choices in turn, for dialects whose events are of one choice each: `event` appends
 * one. last: the choice has ended; it has no text then. */
typedef void event_writer(struct job *j, struct choice *c, const struct delta *d, int32_t index,
                          bool last, struct text *out);
void events_of_choices(struct job *j, event_writer *event, struct text *out);
/* "data: EVENT" of an event in JSON, which is freed. */
void event_write(struct text *out, struct text *event);
/* {"error": ..} as OpenAI has it: dialect.error, and .failed. */
void error_json(struct text *t, unsigned status, const char *message);
const char *error_type(unsigned status); /* of it */
void error_event(struct job *j, struct text *out);
/* Of llama.cpp's answers: dialect.whole, and .events. */
void native_whole(struct job *j, struct text *t);
void native_events(struct job *j, struct text *out);
#define NATIVE_DIALECT(of)                                                                         \
    {                                                                                              \
        .kind = ASK_NATIVE, .request = (of), .whole = native_whole, .events = native_events,       \
        .failed = error_event, .error = error_json, .stream_type = "text/event-stream"             \
    }

extern const struct dialect dialect_native, dialect_text, dialect_chat;    /* answers.c */
extern const struct dialect dialect_embeddings, dialect_embeddings_native; /* embed.c */
extern const struct dialect dialect_messages, dialect_messages_count;      /* anthropic.c */
extern const struct dialect dialect_responses;                             /* responses.c */
extern const struct dialect dialect_infill;                                /* fim.c */
extern const struct dialect dialect_rerank;                                /* rerank.c */
extern const struct dialect dialect_ollama, dialect_ollama_embed;          /* ollama.c */

#endif
