/*
 * run.h - shared by oato-run's files: the parsed command line, and what every verb needs first: a
 * model, its tokenizer, a plan and an open engine.
 */
#ifndef OATO_RUN_H
#define OATO_RUN_H

#include "executor/session.h"
#include "front/auto.h"
#include "front/front.h"
#include "text/grammar.h"

enum { PROMPTS_MAX = 64, BIASES_MAX = 256 };

struct run_args {
    struct session_args open;
    struct auto_plan plans; /* where open.plan is none */
    const char *hf;         /* the name of a hub's model, in place of open.model */
    const char *file, *output, *compare, *ids, *system;
    const char *grammar, *grammar_file, *schema, *schema_file; /* at most one */
    struct logit_bias bias[BIASES_MAX];                        /* open.sampling.n_bias of them */
    const char *prompts[PROMPTS_MAX];
    int32_t n_prompts;
    int32_t n_predict;                       /* -1: until the end of text or of the context */
    int32_t repeat;                          /* bench */
    int32_t prefill, generate, batch, depth; /* bench; -1: the plan's, or a default */
    bool chat, json, only_ids, no_special, ignore_end, hide_prompt;
    bool help, version, list_devices;
};

/* Verbs; they print to stdout and, for timings and progress, to stderr. */
oato_status run_generate(const struct run_args *a, struct oato_error *err);
oato_status run_chat(const struct run_args *a, struct oato_error *err);
oato_status run_bench(const struct run_args *a, struct oato_error *err);
oato_status run_perplexity(const struct run_args *a, struct oato_error *err);
oato_status run_logits(const struct run_args *a, struct oato_error *err);
oato_status run_tokenize(const struct run_args *a, struct oato_error *err);

/* run_compare.c: perplexity --compare, of a text of at least one window; ids may be changed. */
oato_status compare_text(struct session *s, const struct run_args *a, int32_t *ids, size_t n_ids,
                         struct oato_error *err);

/* run_eval.c: warns of a text by hand that begins with the BOS that tokenizing with these flags
 * adds. */
void bos_warn(const struct tokenizer *t, const struct run_args *a, const char *text, size_t n,
              int flags);

/* ---------------------------------------------------------- constraints (run_constraint.c) --- */

/* What answers must follow; grammar NULL: nothing. */
struct constraint {
    const struct run_args *args; /* borrowed */
    struct grammar *grammar;
    struct grammar_vocab *vocab; /* made when it is first needed */
    struct budget budget;        /* what compiling it left */
};
/* Compiles what the options ask for. */
oato_status constraint_open(struct constraint *c, const struct run_args *a, struct oato_error *err);
/* Constrains the sampler to an answer from its beginning; OATO_EUSAGE where a bias is of no token.
 * *state (freed first; the caller's to
 * free) is what it follows then; NULL without a grammar. */
oato_status constraint_begin(struct constraint *c, const struct tokenizer *t,
                             struct sampler *sampler, struct grammar_state **state,
                             struct oato_error *err);
void constraint_close(struct constraint *c);

/* ------------------------------------------------------------- answering (run_answer.c) --- */

/* One sequence that is being answered. */
struct answer {
    int32_t *ids; /* the prompt; borrowed while it is answered */
    int32_t n_ids;
    struct sampler *sampler;
    struct grammar_state *allowed; /* NULL: anything */
    int32_t *out;                  /* receives the generated ids; NULL: not needed */
    int32_t n_out;
    struct text text;      /* what is said; with calls of functions, if they are not kept apart */
    struct text thought;   /* the reasoning before it */
    struct text calls;     /* members of a JSON array */
    struct text arguments; /* of the call that is arriving, if they are kept apart */
    bool calls_apart;
    size_t printed, printed_thought;
    struct answer_text told;
    struct progress reading; /* of the prompt */
    uint64_t id;             /* in the session's batch */
    bool done;
    enum batch_end why;
    /* of answer_ask */
    const struct session *session;
    bool ignore_end;
};

/* Fails where memory was short, or where what it must follow cannot be followed any further. */
oato_status answer_check(const struct answer *x, struct oato_error *err);
/* Prints what is new of its text, then checks it; at a terminal that of its reasoning, too, dimmed
 * where there are styles. */
oato_status answer_print(struct answer *x, struct oato_error *err);
/* Opens the reader for the answer to this prompt of a chat template. */
oato_status answer_read(struct answer *x, const struct chat_template *c, const struct text *prompt,
                        struct oato_error *err);
/* What the last answer left; text, reasoning and calls may be used again. */
void answer_free(struct answer *x);
/* Adds x to the session's batch, on a new sequence (seq -1) or the given one; generated text is
 * appended to x->text. */
oato_status answer_ask(struct session *s, const struct run_args *a, struct answer *x, int32_t seq,
                       struct oato_error *err);
/* Says on stderr why an answer ends early, if its limit (at a terminal) or the context cut it;
 * `more` can be done about a full context. */
void answer_end_tell(const struct answer *x, const struct run_args *a, const char *more);
/* Speeds, and the seed that answers the same again. */
void answer_times_print(const struct session *s);

#endif
