/*
 * model_room.h - room for a model in memory that others use: which of them go when another one is
 * to be loaded. Decided from numbers alone.
 */
#ifndef OATO_MODEL_ROOM_H
#define OATO_MODEL_ROOM_H

#include "executor/executor.h"

enum { MODELS_MOST = 256, MODELS_DEVICES = 1 + DEVICES_MAX };

/* A model that is loaded, is being loaded, or is to be. */
struct room_model {
    bool there;                    /* it has memory, or was promised it */
    bool busy;                     /* requests use it */
    uint64_t used_ns;              /* when one did last */
    uint64_t need[MODELS_DEVICES]; /* bytes of each device */
};

enum room {
    ROOM_FREE,  /* it fits beside all that are there */
    ROOM_MADE,  /* once those go that goes[] names; none of them is busy */
    ROOM_WAITS, /* as above, but some of them are busy */
    ROOM_NEVER  /* not even alone */
};
/* Room for the model `want` of n, where each device has a budget and at most `most` models may be
 * there (0: any number). goes[n]: the least recently used idle ones, then busy ones, and of these
 * only those without which it does not fit. */
enum room models_room(const struct room_model *v, int32_t n, int32_t want, const uint64_t *budget,
                      int32_t most, bool *goes);

#endif
