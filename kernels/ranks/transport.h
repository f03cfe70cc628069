/*
 * transport.h - messages between ranks: what a module of kernels/ranks/ exports to open.c.
 * A module is plain C of its own, which sees nothing else of OATO. Messages of a channel are one
 * thread's at a time; two threads use two channels at once.
 */
#ifndef OATO_TRANSPORT_H
#define OATO_TRANSPORT_H

#include <stddef.h>

enum { TRANSPORT_VERSION = 3, TRANSPORT_HOST = 128 };

enum { CHANNEL_STEPS, CHANNEL_WATCH, CHANNELS };

struct transport_ops {
    int version;
    /* Joins the ranks; host: the name of this rank's host. Nonzero: failed, see `why`. */
    int (*open)(int *rank, int *ranks, char host[TRANSPORT_HOST]);
    void (*close)(void);
    /* Start a message; a handle, or -1: failed. The memory is borrowed until `test` is done with
     * it. Messages of a channel from a rank arrive in the order in which they were sent. */
    int (*send)(int channel, int to, const void *data, size_t bytes);
    int (*receive)(int channel, int from, void *data, size_t most);
    /* 1: the message is through, its handle no longer valid, and *bytes (may be NULL) its size; 0:
     * not yet; -1: failed. */
    int (*test)(int handle, size_t *bytes);
    /* The library's own sum over all ranks, in place, to compare with: MPI_Allreduce or, by_root,
     * MPI_Reduce and MPI_Bcast. Waits as long as it takes. Nonzero: failed. */
    int (*sum)(float *x, size_t n, int by_root);
    const char *(*why)(void); /* of this thread's last failure */
};

/* The symbol that a module exports. */
#define TRANSPORT_SYMBOL "oato_transport"
extern const struct transport_ops oato_transport;

#endif
