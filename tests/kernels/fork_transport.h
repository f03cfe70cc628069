/*
 * fork_transport.h - what ranks of test_collective.c share.
 */
#ifndef OATO_FORK_TRANSPORT_H
#define OATO_FORK_TRANSPORT_H

#include "kernels/ranks/transport.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

enum { FORK_RANKS = 6, FORK_BYTES = 1 << 18 };

struct fork_box { /* one message on its way from one rank to another */
    _Atomic int full;
    size_t bytes;
    char data[FORK_BYTES];
};

struct fork_world {
    int ranks, hosts;
    pid_t child[FORK_RANKS];
    bool sum_waits;     /* MPI's own sums wait for ever, */
    bool close_waits;   /* and so does leaving, on rank 0 */
    _Atomic int closed; /* ranks that have left in order */
    _Atomic size_t sent_bytes;
    struct fork_box box[CHANNELS][FORK_RANKS][FORK_RANKS];
};

/* Variables: the world's address, and the rank. */
#define FORK_WORLD "OATO_FORK_WORLD"
#define FORK_RANK  "OATO_FORK_RANK"

#endif
