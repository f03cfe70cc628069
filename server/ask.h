/*
 * ask.h - what a request asks for: its members, checked (members.c, params.c), its grammar
 * (constraint.c), its messages and tools made into a prompt (chat.c).
 */
#ifndef OATO_SERVER_ASK_H
#define OATO_SERVER_ASK_H

#include "text/grammar.h"
#include "text/json_members.h"
#include "text/json_values.h"
#include "text/sampling.h"
#include "text/stops.h"

#include <jansson.h>
#include <time.h>

struct instance;
struct job;
struct choice;
struct dialect;

/* ----------------------------------------------------------------------------- what is asked ---
 */

/* What addresses know the same members: /completion, /v1/completions, chat, embeddings, tokens. */
enum ask_kind {
    ASK_NATIVE,
    ASK_TEXT,
    ASK_CHAT,
    ASK_EMBED,
    ASK_TOKENIZE, /* no job is made of these */
    ASK_DETOKENIZE,
    ASK_MESSAGES, /* they become chats */
    ASK_RESPONSES,
    ASK_OLLAMA,  /* they become chats, texts or embeddings, */
    ASK_OPTIONS, /* with the members of their "options" */
    ASK_INFILL,  /* it becomes /completion */
    ASK_RERANK,  /* it becomes embeddings */
    /* what stands behind the ? of an address: of any, and of some */
    ASK_QUERY,
    ASK_QUERY_MODELS,
    ASK_QUERY_RESPONSE,
    ASK_QUERY_ITEMS,
    ASK_QUERY_SLOTS,
    ASK_QUERY_SLOT
};

/* What a request asks for besides its prompts. */
struct ask {
    const struct dialect *dialect; /* in which it was asked, and is answered */
    enum ask_kind kind;
    bool base64, truncate; /* of embeddings; texts that are too long are cut */
    int32_t dimensions;    /* of embeddings, the first ones; 0: all */
    json_t *kept; /* of the request, for what its answer repeats: the dialect's; NULL: nothing */
    struct sampler_options sampling;
    struct stops stops;
    struct logit_bias *bias;       /* of sampling */
    struct dry_breakers *breakers; /* of sampling */
    struct budget budget;          /* of what its text makes us do */
    struct grammar *grammar;       /* that answers follow; NULL: none */
    const char *prompts;           /* the member that has them, for messages */
    const char *gbnf;              /* its text, if the request has one: borrowed from that */
    int32_t client;                /* number of its key, 0 without */
    int32_t most;                  /* tokens of an answer; -1: no limit */
    int32_t thinks_most;           /* of its reasoning; -1: no limit */
    const char *thinks_end;        /* what it is ended with, then: borrowed from the request */
    int32_t n;                     /* answers to each prompt */
    int32_t most_ms;               /* from the first token to the end of a line; 0 or less: any */
    int32_t slot;                  /* that remembers the text; -1: any */
    bool one_call;                 /* no second one */
    bool thinks_not;               /* the template was asked for none */
    bool stream, usage, tokens, ignore_end, echo, timings, verbose, progress;
    char id[40];
    time_t created;
};

/* ------------------------------------------------------------------- members of requests --- */

enum { ANSWERS_MAX = 128, INPUTS_MAX = 2048, PROBS_MAX = 100 }; /* of a request, of a token */

#define MEMBER_ON(kind) (1u << (kind))
/* members.c: those that requests may have, set in struct ask. */
extern const struct member members[];
/* Checks the members of a request, and sets those that stand in struct ask (NULL: nowhere). width:
 * of the model. */
oato_status request_members(const json_t *o, enum ask_kind kind, int32_t width, struct ask *ask,
                            struct oato_error *err);
/* Reads what is asked for; members that are not known are ignored. */
oato_status ask_read(const struct instance *m, const json_t *o, enum ask_kind kind,
                     const struct budget *budget, struct ask *ask, struct oato_error *err);
void ask_free(struct ask *ask);
/* constraint.c: the grammar that a request asks for, and a sampler that follows it. */
oato_status constraint_read(const json_t *o, struct ask *ask, struct oato_error *err);
oato_status constraint_begin(struct choice *c, struct oato_error *err);
/* When it is known how many answers share what the budget has left for their grammars. */
void constraints_share(struct job *j);
/* In a chat the grammar begins behind the reasoning, unless it is GBNF that has the reasoning's end
 * in it. After answer_text_read. */
oato_status constraint_think(struct choice *c, struct oato_error *err);
/* A prompt, or several: adds their answers to the job. prompt_ids_add: that of n tokens. */
oato_status prompt_ids_add(struct job *j, const int32_t *ids, size_t n, struct oato_error *err);
oato_status prompts_add(struct job *j, const json_t *prompt, struct oato_error *err);
/* OATO_EFIT for a text of so many bytes that has too many tokens whatever it says. */
oato_status text_fits(struct job *j, size_t bytes, struct oato_error *err);
/* The text of a prompt for the messages of the request (which it changes), by the template. */
oato_status chat_prompt(const struct instance *m, const json_t *o, struct budget *budget,
                        struct text *out, struct oato_error *err);
/* Adds the answers to the messages of the request. */
oato_status chat_add(struct job *j, const json_t *o, struct oato_error *err);

#endif
