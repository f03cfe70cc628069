/*
 * server.h - oato-serve: one model behind HTTP, for clients of OpenAI's and llama.cpp's interfaces.
 */
#ifndef OATO_SERVER_H
#define OATO_SERVER_H

#include "executor/model_room.h"
#include "executor/session.h"

/* Of the host, for connections and their requests; the rest of memory_bytes is the models'. */
enum { SERVER_BYTES = 48 << 20 };

/* One of several models, by a name that no other one has. */
struct server_model {
    const char *name, *path;
    void *make_user; /* of session.make_plan */
};

/* What the models may use of an accelerator together. */
struct server_device {
    char id[16];
    uint64_t bytes;
};

/* Texts are borrowed until server_run returns. */
struct server_options {
    struct session_args session; /* engine.seqs: answers computed at the same time */
    /* Lists have commas between their items. */
    const char *host;           /* addresses or names to listen at */
    int32_t port;               /* 0: any that is free */
    const char *alias;          /* names of the model; NULL: that of its file */
    const char *tags;           /* words about it; NULL: none */
    const char *cors_origins;   /* whose pages may ask: "*", or "localhost", or origins */
    const char *api_key;        /* clients must send one of these; NULL: none */
    const char *api_key_file;   /* further ones, a line each; NULL: none */
    const char *policy;         /* a name of scheduler_policy_names */
    const char *slot_save_path; /* folder of /slots/{id}'s files; NULL: nothing is saved */
    const char *decision_log;   /* file for the scheduler's decisions; NULL: none */
    const char *pooling; /* of embeddings: last, mean or none; engine.embeddings asks for them */
    const char *profile; /* what restoring takes, by oato-profile --restores; NULL: unknown */
    int32_t swap_mib;    /* host memory for answers that are swapped out */
    int32_t prompt_cache_mib;  /* that the folder session.engine.prompt_cache may hold */
    int32_t n_predict;         /* tokens of an answer whose request does not say; -1: no limit */
    int32_t max_tokens;        /* that any answer may have; -1: no limit but the context */
    int32_t reasoning_most;    /* tokens of an answer's reasoning; -1: no limit */
    const char *reasoning_end; /* text that ends it then, before its mark; NULL: none */
    const char *reasoning;     /* "on", "off" or "auto"; NULL: as the template does by itself */
    int32_t queue;             /* answers that may wait for their turn */
    int32_t connections;       /* open at the same time */
    int32_t idle_s, drain_s;   /* a silent connection; running answers after a signal to end */
    bool no_slots, no_metrics, no_page; /* nothing at /slots, /metrics, / */
    bool verbose;                       /* answers tell their prompt */
    bool split;       /* engine.context is divided by engine.seqs: no answer has more positions */
    int32_t body_kib; /* of a request */
    /* Several models, loaded when they are asked for; NULL: session.model alone */
    const struct server_model *models;
    int32_t n_models;
    struct server_device devices[DEVICES_MAX];
    int32_t n_devices;
    uint64_t memory_bytes; /* of the host, for all models and the server together */
    int32_t models_max;    /* loaded at the same time; 0: as memory allows */
    int32_t models_wait_s; /* of a request, for memory that other models use */
    bool no_autoload;      /* only /models/load loads one */
};

/* Serves until a signal (interrupt_catch), then lets running answers end. Returns what
 * keeps it from starting, or OATO_EDEVICE when a device fails later. Of several ranks the first one
 * serves, and the others return when it does. */
oato_status server_run(const struct server_options *o, struct oato_error *err);

#endif
