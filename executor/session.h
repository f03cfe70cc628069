/*
 * session.h - a model that is ready to answer: plan, model, tokenizer, sidecar, engine and batch,
 * opened in the order of the cheapest check first. What programs that answer share; they print
 * nothing themselves but warnings and progress, through program_warn and a progress line.
 */
#ifndef OATO_SESSION_H
#define OATO_SESSION_H

#include "executor/batch.h"

struct session_args;

/* Makes a plan for a model that is open and these arguments. `failed` NULL: the first one; else it
 * is why the engine did not open by the last one: does not fit any more, or a device failed. False:
 * there is none, and everything runs on the CPU, or *err says why nothing does. */
typedef bool plan_maker(void *user, const struct session_args *a, const struct model *m,
                        const struct oato_error *failed, struct plan *out, struct oato_error *err);

/* What to open. Texts are borrowed until session_open returns. */
struct session_args {
    const char *model;         /* a GGUF file */
    const char *plan;          /* a file; NULL: as make_plan makes one */
    plan_maker *make_plan;     /* NULL: everything on the CPU. Not asked where there are ranks */
    void *make_user;           /* its first argument, borrowed */
    bool dry_run;              /* stop before the engine is opened */
    const char *neurons;       /* NULL: MODEL.neurons.gguf, if the plan or --sparse needs one */
    const char *chat_template; /* a named format, or a program in Jinja; NULL: the model's own */
    const char *chat_template_file; /* the program is in this file; NULL: in none */
    const char *variables;          /* JSON for the model's own template; NULL: none */
    struct model_choice choice;
    struct engine_options engine;    /* threads, top_logits, neurons and on_load are set here */
    struct sampler_options sampling; /* what is open in it (text/sampling.h) the model decides */
    int32_t candidates; /* that steps give at least, as far as they can, for requests that sample
                           with other options than `sampling` */
    /* context 0: that of the engine, or where engine.context is 0 what the model was trained for */
    struct batch_options batch;
    bool dump_program; /* print the programs to stdout instead of opening tokenizer and batch */
    struct collective *ranks; /* that session_join has joined, passed on to the session; or NULL */
};

struct session {
    struct model *model;
    struct tokenizer *tokenizer; /* NULL unless asked for */
    struct plan plan;
    bool has_plan;
    struct neurons neurons;   /* that the plan follows, if any */
    struct collective *ranks; /* that mpirun has started: just this one, or those of the plan */
    struct engine *engine;
    struct batch *batch; /* only with SESSION_SAMPLES */
    /* Those of the arguments, and what the model's file recommends where they leave it open */
    struct sampler_options sampling;
    bool done;        /* with dump_program or dry_run, and on ranks other than 0: that was all */
    bool alone, runs; /* the plan is for one process: rank 0 runs, and others wait for its end */
};

enum session_needs {
    SESSION_TOKENIZER = 1,
    SESSION_SAMPLES = 2,    /* a batch, whose requests sample */
    SESSION_CANDIDATES = 4, /* steps may give candidates (LOGITS_PICKS); so with SAMPLES */
};
/* Joins the ranks that mpirun has started. session_open does it itself, unless only some ranks do
 * something else before; args->ranks tells which this one is. */
oato_status session_join(struct session_args *a, struct oato_error *err);
/* On ranks other than 0 it returns when rank 0 has closed its session. What fails on one rank fails
 * on all; the message is then on rank 0, empty on others. After an error *s is empty. */
oato_status session_open(struct session *s, const struct session_args *a, unsigned needs,
                         struct oato_error *err);
/* What such a session's engine would take of each device (engine_measure): nothing is loaded. Makes
 * the plan, if the arguments ask for one. For one process only. */
oato_status session_measure(const struct session_args *a, unsigned needs, struct engine_stats *out,
                            struct oato_error *err);
/* Prints the engine's warnings, ends what the batch still has, and empties *s. */
void session_close(struct session *s);
/* Whether session_open may succeed, as far as names and the headers of files tell: devices are not
 * opened, weights not read, nothing is printed. For programs that tell others of it first. */
oato_status session_check(const struct session_args *a, struct oato_error *err);
/* The chat template that the arguments ask for; a warning that comes with it is printed. */
oato_status session_template(const struct session *s, const struct session_args *a,
                             struct chat_template **out, struct oato_error *err);

/* Appends, as a JSON object, which device has what of the model, and what the plan predicts for
 * each kind of request that it is for. name: the model's there. */
oato_status session_describe(const struct session *s, const char *name, struct text *t,
                             struct oato_error *err);

/* A sampler with the session's options; NULL: memory is short. */
struct sampler *session_sampler(const struct session *s);

/* ---------------------------------------------------------------------- text of answers --- */

/* Turns the tokens of an answer into text: whole UTF-8 characters, cut into what is said, thought
 * and called where there is a reader. Zeros and `tokenizer` and `sink` make an empty one. */
struct answer_text {
    const struct tokenizer *tokenizer; /* borrowed */
    struct chat_reader *reader;        /* owned; NULL: all text is said */
    struct chat_sink sink;
    struct utf8_stream utf8;
    /* The text before the reader has a look at it: may hold some of it back, and pass on less.
     * NULL: nobody. Appends to `out` what goes on; last: nothing follows. */
    void (*filter)(void *user, const char *s, size_t n, bool last, struct text *out);
};
/* Opens the reader for the answer to this prompt of a chat template, with calls in this form. */
oato_status answer_text_read(struct answer_text *t, const struct chat_template *c,
                             enum chat_form form, const struct text *prompt,
                             struct oato_error *err);
/* The text of one more token. False: memory was short. */
bool answer_text_push(struct answer_text *t, int32_t id);
/* The end; cut: the model did not end the answer, so an incomplete character or mark is dropped.
 * False: memory was short, and text may be missing. */
bool answer_text_end(struct answer_text *t, bool cut);
void answer_text_free(struct answer_text *t);

#endif
