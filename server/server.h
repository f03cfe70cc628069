/*
 * server.h - oato-serve: one model behind HTTP, for clients of OpenAI's and llama.cpp's interfaces.
 */
#ifndef OATO_SERVER_H
#define OATO_SERVER_H

#include "executor/session.h"

/* Texts are borrowed until server_run returns. */
struct server_options {
    struct session_args session; /* engine.seqs: answers computed at the same time */
    /* Lists have commas between their items. */
    const char *host;         /* addresses or names to listen at */
    int32_t port;             /* 0: any that is free */
    const char *alias;        /* names of the model; NULL: that of its file */
    const char *tags;         /* words about it; NULL: none */
    const char *cors_origins; /* whose pages may ask: "*", or "localhost", or origins */
    const char *api_key;      /* clients must send one of these; NULL: none */
    const char *api_key_file; /* further ones, a line each; NULL: none */
    const char *policy;       /* a name of scheduler_policy_names */
    const char *decision_log; /* file for the scheduler's decisions; NULL: none */
    const char *pooling; /* of embeddings: last, mean or none; engine.embeddings asks for them */
    const char *profile; /* what restoring takes, by oato-profile --restores; NULL: unknown */
    int32_t swap_mib;    /* host memory for answers that are swapped out */
    int32_t prompt_cache_mib; /* that the folder session.engine.prompt_cache may hold */
    int32_t n_predict;        /* tokens of an answer whose request does not say; -1: no limit */
    int32_t max_tokens;       /* that any answer may have; -1: no limit but the context */
    int32_t queue;            /* answers that may wait for their turn */
    int32_t connections;      /* open at the same time */
    int32_t idle_s, drain_s;  /* a silent connection; running answers after a signal to end */
    bool no_slots, no_metrics, no_page; /* nothing at /slots, /metrics, / */
    bool verbose;                       /* answers tell their prompt */
    bool split;       /* engine.context is divided by engine.seqs: no answer has more positions */
    int32_t body_kib; /* of a request */
};

/* Serves until a signal (interrupt_catch), then lets running answers end. Returns what
 * keeps it from starting, or OATO_EDEVICE when a device fails later. Of several ranks the first one
 * serves, and the others return when it does. */
oato_status server_run(const struct server_options *o, struct oato_error *err);

#endif
