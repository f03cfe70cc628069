/*
 * instance.h - one model that is served: its session, the queue of its jobs, and the engine thread
 * (loop.c) that owns session, batch and samplers.
 */
#ifndef OATO_SERVER_INSTANCE_H
#define OATO_SERVER_INSTANCE_H

#include "base/list.h"
#include "executor/restore.h"
#include "executor/scheduler.h"
#include "executor/text_slots.h"
#include "server/job.h"
#include "server/server.h"

#include <stdatomic.h>
#include <sys/stat.h>

struct server;

/* ---------------------------------------------------------------- what happened in it so far ---
 */

/* What deciding took. */
struct policy_times {
    uint64_t decide_ns, predict_ns; /* predict_ns: of decide_ns, for costs of restoring */
};

struct server_counts {
    uint64_t prompt_tokens, cached_tokens, answer_tokens, requests, cancelled;
    size_t longest; /* prompt and answer */
    int32_t n_busy; /* answers that the batch has */
    struct batch_times times;
    struct policy_times policy;
};

enum { SEEN_MAX = 256, SEEN_NS = 50000000 };

/* The requests of the batch, as of a step ago: page.c. */
struct seen {
    struct seen_request {
        uint64_t id;
        int32_t prompt, generated, pages;
    } running[SEEN_MAX];
    int32_t n_running, n_waiting, n_swapped;
    int64_t generated; /* tokens of answers that have not ended */
    int32_t pages, pages_free, pages_cached;
};

/* Work for the engine thread between two steps. */
struct turn {
    void (*work)(void *arg);
    void *arg;
    bool done;
    struct turn *next;
};

/* ------------------------------------------------------------------------------ the instance ---
 */

/* ENDED: the engine thread; of several models it is unloaded then. */
enum instance_state { INSTANCE_UNLOADED, INSTANCE_LOADING, INSTANCE_READY, INSTANCE_ENDED };

struct instance {
    struct server *server;
    struct server_options own; /* with this model's path */
    const struct server_options *options;
    struct session
        session; /* of the engine thread; model, tokenizer and sampling are only read by others */
    struct chat_template *template; /* NULL: no_template says why */
    char no_template[512];
    struct text_slots *slots; /* a slot for each answer at a time; NULL: nothing is remembered */
    int32_t context;          /* most positions of one request */
    bool states;              /* it gives hidden states, and so embeddings */
    uint64_t away_bytes;      /* of memory on devices that are not the host */
    struct text plan;         /* what /plan tells; written when the model is loaded */
    char name[128];           /* in answers */
    struct list aliases, tags;
    atomic_int state;      /* enum instance_state */
    atomic_bool stop, now; /* the engine thread ends: when nothing is left, or at once */
    bool runs;             /* its thread was started */
    pthread_t thread;
    size_t longest;                  /* bytes of a token at most; 0: no limit */
    struct sampler_scratch *scratch; /* of all samplers: the engine thread picks */
    enum pooling { POOLING_LAST, POOLING_MEAN, POOLING_NONE } pooling;
    struct scheduler *scheduler;
    struct restore_predictor *costs;
    int32_t beside;              /* answers that ran beside another one at the last decision */
    FILE *decisions;             /* its log; NULL: none */
    struct grammar_vocab *vocab; /* made when it is first needed, under vocab_lock */
    pthread_mutex_t vocab_lock;
    /* under lock */
    pthread_mutex_t lock;
    pthread_cond_t wake; /* of the engine thread */
    struct job *incoming, **incoming_end;
    struct turn *turns, **turns_end;
    bool no_turns;         /* the engine thread takes none any more */
    pthread_cond_t turned; /* one is done */
    int32_t n_live;        /* places of the queue that answers have which have not ended */
    struct server_counts counts;
    struct seen seen;
    /* of the engine thread */
    struct job *active;
    uint64_t looked_ns, seen_ns;
    int32_t n_seen, running_seen; /* requests at that time */
    struct policy_times policy;
    struct oato_error error;
    /* Of several models: under the lock of struct models, but for `granted`, which is under ours */
    bool measured, granted;        /* its size is known; it may be loaded */
    struct stat file;              /* whose size it is: another one may have its name later */
    uint64_t need[MODELS_DEVICES]; /* bytes */
    int32_t users;                 /* requests that keep it loaded */
    uint64_t used_ns, asked_ns;    /* last; by /models/load, and 0 once it is there */
    bool leaves;                   /* it goes when nobody uses it */
    bool closed;                   /* new requests wait, for others have waited for long */
    struct oato_error failure;     /* why it could not be loaded last, */
    uint64_t failed_ns;            /* and when; 0: it could */
};

/* Makes one and checks what its options say; nothing is loaded yet. The server is borrowed. model
 * NULL: that of the server's options. After an error *out is NULL. */
oato_status instance_create(struct server *s, const struct server_model *model,
                            struct instance **out, struct oato_error *err);
/* Starts its engine thread, which loads the model. */
oato_status instance_start(struct instance *m, struct oato_error *err);
/* Its engine thread ends when no answer is left, or at once. Any thread, more than once. */
void instance_stop(struct instance *m, bool now);
/* Waits for the engine thread; *err is why it ended, if that was an error. */
oato_status instance_join(struct instance *m, struct oato_error *err);
/* After instance_join: frees what was loaded; it can be started again. Nobody may have a job of it.
 */
void instance_unload(struct instance *m);
/* By its engine thread: what it will need of each device, before anything is loaded. */
oato_status instance_measure(struct instance *m, struct oato_error *err);
/* It may be loaded now. */
void instance_grant(struct instance *m);
/* After instance_join, or where there was no start; nobody may have a job of it. Or NULL. An error:
 * the log of decisions could not be written. */
oato_status instance_free(struct instance *m, struct oato_error *err);

/* Hands a job with all its answers to the engine thread. False: the queue is full. */
bool loop_submit(struct job *j);
/* The engine thread; returns when told to stop or when the engine fails. */
void *loop_run(void *instance);

/* Has the engine thread call work(arg) between two steps, and waits for it (text_file.h:
 * engine_turn). False: it has ended. */
bool loop_turn(void *instance, void (*work)(void *arg), void *arg);
/* slots.c: a choice has ended; its text is remembered. */
void slot_note(struct choice *c);
oato_status slots_open(struct instance *m, struct oato_error *err);

/* Takes a new copy now and then, and when other requests wait or run. */
void seen_take(struct instance *m, struct batch_view *v, int32_t n);

/* Makes the scheduler of --policy, when the keys are known. */
oato_status policy_open(struct instance *m, struct oato_error *err);
/* What restoring takes, once the session is open. */
oato_status policy_costs(struct instance *m, struct oato_error *err);
/* engine_predictor: by what restoring took, if that is known; user is the instance. */
double policy_compute(void *user, int32_t tokens);
/* batch_options.schedule and .restored; user is the instance. */
void policy_schedule(void *user, struct batch_view *v, int32_t n, const struct batch_room *room);
void policy_restored(void *user, const struct batch_restored *r);
/* OATO_EIO when the log of decisions could not be written. */
oato_status policy_close(struct instance *m, struct oato_error *err);

#endif
