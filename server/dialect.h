/*
 * dialect.h - the interfaces of several makers, a row each: how a request becomes one of OpenAI's,
 * and how answers and errors are written. What an answer is, is job.h's; no dialect knows another.
 */
#ifndef OATO_SERVER_DIALECT_H
#define OATO_SERVER_DIALECT_H

#include "server/http.h"

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
};

/* The events of choices in turn, for dialects whose events are of one choice each: `event` appends
 * one. last: the choice has ended; it has no text then. */
typedef void event_writer(struct job *j, struct choice *c, const struct delta *d, int32_t index,
                          bool last, struct text *out);
void events_of_choices(struct job *j, event_writer *event, struct text *out);
/* "data: EVENT" of an event in JSON, which is freed. */
void event_write(struct text *out, struct text *event);
/* {"error": ..} as OpenAI has it: dialect.error, and .failed. */
void error_json(struct text *t, unsigned status, const char *message);
void error_event(struct job *j, struct text *out);

extern const struct dialect dialect_native, dialect_text, dialect_chat;    /* answers.c */
extern const struct dialect dialect_embeddings, dialect_embeddings_native; /* embed.c */

#endif
