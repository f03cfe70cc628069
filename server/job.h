/*
 * job.h - the answers of a request (job.c): made by a thread that prepares it, filled by the engine
 * thread, sent by an HTTP thread. How they are written: answers.c, logprobs.c, embed.c and the
 * dialects.
 */
#ifndef OATO_SERVER_JOB_H
#define OATO_SERVER_JOB_H

#include "executor/session.h"
#include "server/ask.h"

#include <microhttpd.h>
#include <pthread.h>

/* A call of a tool. */
struct call {
    char *name;
    struct text arguments; /* so far */
    bool ended;            /* nothing of it follows */
    bool whole;            /* its arguments are complete: no limit has cut them */
};

/* So many tokens of the prompt were in the KV cache at that time. */
struct prompt_progress {
    int32_t fed;
    uint64_t ns;
};

/* Why an answer ended; endings.c has what its client is told. */
enum ending {
    ENDING_STOP,      /* the model ended it */
    ENDING_WORD,      /* a stop word */
    ENDING_CALLS,     /* the model ended it, and it calls tools */
    ENDING_LIMIT,     /* its most tokens */
    ENDING_CONTEXT,   /* the context is full */
    ENDING_REQUEST,   /* error: what was asked for cannot be done */
    ENDING_MEMORY,    /* error: memory is short */
    ENDING_ENGINE,    /* error: a step failed */
    ENDING_DEVICE,    /* error: a device or a rank is lost */
    ENDING_SHUTDOWN,  /* error: the server ends */
    ENDING_CANCELLED, /* error: cut by anything else */
};

/* A part of an answer, in the order in which they came: its text begins at `from` of all its kind
 * says, or it is call number `from`. */
struct part {
    enum part_kind { PART_THINKS, PART_SAYS, PART_CALL } kind;
    size_t from;
};

/* One answer. What the engine thread writes is under the job's lock. */
struct choice {
    struct job *job;
    int32_t *ids, n_ids; /* the prompt */
    struct text prompt;  /* its text, where answers repeat it */
    struct sampler *sampler;
    struct grammar_state *follows; /* of the sampler; NULL: no grammar */
    struct thinking *thinking;     /* in front of it; NULL: not there */
    struct answer_text told;
    struct stop_filter stop;
    struct text says, thinks;
    struct call *calls;
    struct part *parts;
    int32_t *tokens;
    struct token_prob *probs;  /* per_token of each token: itself, then the most likely ones */
    struct token_prob *scores; /* of the prompt: per_token of each token but the first; NULL: not
                                  asked for, or another answer has them */
    int32_t n_scored;          /* tokens that have theirs */
    size_t n_ends;             /* 1: probs has the token that ended the answer, too */
    size_t n_calls, n_tokens, n_probs, per_token, calls_cap, tokens_cap, probs_cap;
    size_t n_parts, parts_cap, n_thought; /* n_thought: tokens of reasoning */
    bool ended, failed;                   /* failed: memory was short */
    bool beyond;                          /* a call that is arriving is one too many */
    bool late;                            /* it took longer than it may */
    enum batch_end why;
    uint64_t asked_ns, begun_ns, first_ns, last_ns;
    uint64_t swap_ns; /* that the last swapping out took */
    int32_t cached;   /* tokens of the prompt that were there already */
    struct prompt_progress *progress;
    size_t n_progress, progress_cap;
    float *rows; /* of embeddings: a pooled one, or n_rows */
    size_t n_rows;
    uint64_t id; /* in the batch; 0: not there */
    /* of an HTTP thread: what a stream has sent */
    size_t sent_says, sent_thinks, sent_tokens, sent_progress;
    size_t sent_calls,
        sent_arguments;          /* calls that were begun, bytes of the last one's arguments */
    size_t sent_parts, n_events; /* parts that are sent whole */
    struct utf8_place place;
    bool begun, sent_end, sent_call; /* sent_call: the last call that was begun is whole */
    bool part_begun;                 /* the one behind sent_parts */
};

/* The answers that a request waits for. Freed by the second of its two owners. */
struct job {
    struct instance *instance;
    struct ask ask;
    struct choice **choices;
    int32_t n_choices, n_ended;
    int32_t n_added; /* of the engine thread: choices that the batch has or had */
    pthread_mutex_t lock;
    int32_t owners;
    bool cancelled;                    /* the client went */
    bool suspended;                    /* its connection waits for job_wake */
    struct MHD_Connection *connection; /* NULL once it is closed */
    struct oato_error error;           /* status 0: none */
    enum ending ending;                /* of the error */
    size_t n_unfit;                    /* tokens of a prompt that does not fit */
    struct job *next;                  /* in the list of the engine thread */
    struct text out;                   /* of an HTTP thread: what a stream is about to send */
    size_t out_sent;
    bool out_last;
};

/* NULL when memory is short; then *ask is still the caller's. */
struct job *job_create(struct instance *m, const struct ask *ask);
/* Adds an answer to a prompt, whose ids are taken over even on failure. Before loop_submit. */
oato_status job_add(struct job *j, int32_t *ids, int32_t n_ids, struct oato_error *err);
void job_release(struct job *j);
/* With the job's lock: lets its connection go on, if it waits. */
void job_wake(struct job *j);
/* Callbacks of the batch; user is a choice. */
void choice_begin(void *user, int32_t cached);
void choice_fed(void *user, int32_t fed);
bool choice_token(void *user, int32_t id);
void choice_end(void *user, enum batch_end why);
void choice_score(void *user, const float *row); /* batch_request.on_row */

/* endings.c. What an answer that has ended tells: both NULL where it is an error. */
enum ending choice_ending(const struct choice *c);
const char *ending_finish(enum ending e);
const char *ending_stop_type(enum ending e);
const char *ending_stop_reason(enum ending e); /* Anthropic's */
/* Numbers in a whole answer: of vectors and log probabilities, which take most of the time that
 * writing it takes. */
size_t job_numbers(const struct job *j);
unsigned job_status(const struct job *j); /* of HTTP, once its answers have ended */
/* With the job's lock: it ends as an error, unless it has one already. step: of a step of the
 * engine, which is never the client's fault. job_cut: it did not fail, but is cut short. */
void job_fail(struct job *j, const struct oato_error *err, bool step);
void job_fail_memory(struct job *j, size_t bytes);
void job_cut(struct job *j, bool shutdown);
extern const char *const pooling_names[]; /* by enum pooling: embed.c */
/* embed.c: batch_request.on_row. */
void choice_row(void *user, const float *row);
/* Numbers that are kept of an input to be embedded: its vector's, or those of each token. */
size_t embedding_numbers(const struct choice *c);
/* Of a pooled embedding, once: gives what is asked of it length 1, and returns how many of its
 * rows' numbers that are. */
int32_t embedding_take(struct choice *c);
/* That, as a list or in base64. */
void embedding_add(struct text *t, const char *key, struct choice *c);
int64_t inputs_tokens(const struct job *j); /* of all inputs together */

/* ------------------------------------------------------------------------ answers (answers.c) */

/* The build's name in answers and /props; llama.cpp's begin with b, which its tests look for. */
#define SERVER_BUILD "b-oato-" OATO_VERSION

/* What a stream has not sent yet, or all. */
struct delta {
    const char *says, *thinks;
    size_t n_says, n_thinks;
    const int32_t *tokens;
    size_t n_tokens;
    const struct prompt_progress *progress; /* of the prompt: an event of its own */
};
/* Calls are not in it: call_next. */
struct delta delta_of(const struct choice *c);
void delta_sent(struct choice *c);

/* What a stream has not sent yet of one call. */
struct call_piece {
    size_t index;
    const char *name; /* the call begins; NULL: it has begun before */
    const char *arguments;
    size_t n;
    bool ended; /* nothing of it follows */
};
/* Takes the next one, which then counts as sent. False: there is none. */
bool call_next(struct choice *c, struct call_piece *p);
bool calls_are_new(const struct choice *c);

/* Text of a token, a control character's too, borrowed; "": there is no such token. */
struct gguf_string token_bytes(const struct instance *m, int32_t id);
/* That, as a list of numbers; and the settings that answers repeat. */
void token_bytes_add(struct text *t, const struct instance *m, const char *key, int32_t id);
void settings_add(struct text *t, const struct ask *ask, const char *key);

/* logprobs.c. Of n tokens from `first` on, each with the most likely ones. */
void probs_add(struct text *t, const char *key, const struct choice *c, size_t first, size_t n);
/* That as a value; without log probabilities, or for n 0, an empty list. */
json_t *probs_value(const struct choice *c, size_t first, size_t n);
/* "logprobs" of a choice, as the interface has it; null: not asked for. prompt: the choice whose
 * prompt's come first; NULL: none. */
void logprobs_add(struct text *t, struct choice *c, const struct choice *prompt, size_t first,
                  size_t n);

#endif
