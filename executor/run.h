/*
 * run.h - between the files of oato-run: the parsed command line, and what every verb needs first:
 * a model, its tokenizer, a plan and an open engine.
 */
#ifndef OATO_RUN_H
#define OATO_RUN_H

#include "executor/executor.h"

enum { PROMPTS_MAX = 64 };

struct run_args {
    const char *model, *plan, *file, *output, *ids, *system, *chat_template;
    const char *prompts[PROMPTS_MAX];
    int32_t n_prompts;
    int32_t n_predict;                       /* -1: until the end of text or of the context */
    int32_t repeat;                          /* bench */
    int32_t prefill, generate, batch, depth; /* bench; -1: as the plan says, or a default */
    bool chat, json, dump_program, only_ids, no_special, ignore_end, hide_prompt;
    struct sampler_options sampling;
    struct engine_options engine;
};

/* A model that is ready to answer. */
struct session {
    struct model *model;
    struct tokenizer *tokenizer; /* NULL unless asked for */
    struct plan plan;
    bool has_plan;
    struct engine *engine;
};

enum session_needs {
    SESSION_TOKENIZER = 1,
    SESSION_SAMPLES = 2, /* rows of logits are only sampled from: candidates of them will do */
};
oato_status session_open(struct session *s, const struct run_args *a, unsigned needs,
                         struct oato_error *err);
void session_close(struct session *s);

/* Verbs; they print to stdout and, for timings and progress, to stderr. */
oato_status run_generate(const struct run_args *a, struct oato_error *err);
oato_status run_chat(const struct run_args *a, struct oato_error *err);
oato_status run_bench(const struct run_args *a, struct oato_error *err);
oato_status run_perplexity(const struct run_args *a, struct oato_error *err);
oato_status run_logits(const struct run_args *a, struct oato_error *err);
oato_status run_tokenize(const struct run_args *a, struct oato_error *err);

/* Text of a whole file, or of standard input for "-"; empty on failure. */
oato_status text_read_file(const char *path, struct text *out, struct oato_error *err);

/* ------------------------------------------------------------- answering (run_answer.c) --- */

/* One sequence that is being answered. */
struct answer {
    int32_t seq;
    int32_t *ids; /* prompt, borrowed until the prompt has been fed */
    size_t n_ids, fed;
    struct sampler *sampler;
    struct utf8_stream utf8;
    struct text text; /* what may be printed */
    int32_t next;     /* sampled, not fed yet; -1: none */
    int32_t n_generated;
    bool done;
};

struct answer_times {
    uint64_t prompt_tokens, prompt_ns, generated, decode_ns, decode_steps;
};

/* Feeds all prompts together in steps of at most ubatch tokens and samples each one's first token.
 */
oato_status answers_prefill(struct session *s, const struct run_args *a, struct answer *answers,
                            int32_t n, struct answer_times *times, struct oato_error *err);
/* One decode step for all that are not done: feeds `next`, samples again. */
oato_status answers_step(struct session *s, const struct run_args *a, struct answer *answers,
                         int32_t n, struct answer_times *times, struct oato_error *err);
void answer_times_print(const struct answer_times *t, const struct session *s);

#endif
