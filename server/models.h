/*
 * models.h - the models that are served: one that is loaded at the start, or several of which those
 * are loaded that requests ask for, within budgets of memory. model_room.h decides which of them go
 * for others.
 */
#ifndef OATO_SERVER_MODELS_H
#define OATO_SERVER_MODELS_H

#include "executor/turns.h"
#include "server/instance.h"

struct exchange;

struct models {
    struct instance *of[MODELS_MOST];
    int32_t n;
    bool alone; /* one model that every name means, loaded as long as the server runs */
    char device[MODELS_DEVICES][16]; /* the host first, as "" */
    pthread_t thread;                /* loads and unloads: not where one is alone */
    bool runs;
    /* under lock */
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool stop;
    struct exchange *waiting, **waiting_end; /* for a model, in order */
    int32_t n_waiting;
    uint64_t budget[MODELS_DEVICES];
    struct turns turns; /* of engine threads, a step each */
};

/* Makes the instances of the server's options, and starts what loads them; the list is never empty
 * then. */
oato_status models_open(struct server *s, struct oato_error *err);
oato_status models_start(struct server *s, struct oato_error *err);
/* Whether the one model has ended that is alone. */
bool models_ended(struct server *s);
/* Loads no more, and refuses what waits. Then engine threads end when they have nothing left, or
 * now. */
void models_stop(struct server *s, bool now);
/* Whether all of them have ended. */
bool models_idle(struct server *s);
/* The error of the model that is alone, if it ended by one. */
oato_status models_join(struct server *s, struct oato_error *err);
oato_status models_close(struct server *s, struct oato_error *err);

/* The model of that name: its own, which may have ".gguf" or ":latest" behind it, or an alias.
 * NULL: there is none. */
struct instance *models_named(struct server *s, const char *name);

/* By a thread that prepares: finds the model of a request, which is x->instance then, and keeps it
 * loaded until models_leave. */
enum models_take {
    MODEL_TAKEN,
    MODEL_REFUSED, /* there is a reply, *result */
    MODEL_AWAITED  /* x is not the caller's any more: it comes back to its lane, or is answered */
};
enum models_take models_take(struct exchange *x, enum MHD_Result *result);
void models_leave(struct exchange *x);
/* Something has changed: the engine thread of a model has loaded it, ended, or knows its size. */
void models_wake(struct server *s);

/* One of several goes when nobody uses it any more; one that is alone stays. */
void models_unload(struct instance *m);

enum MHD_Result route_models(struct exchange *x);
enum MHD_Result route_model(struct exchange *x);
/* Where several are served: /props that names none, as llama.cpp's router has it; POST /models/load
 * and /models/unload. */
enum MHD_Result models_props(struct exchange *x);
enum MHD_Result route_load(struct exchange *x);
enum MHD_Result route_unload(struct exchange *x);

#endif
