/*
 * connections.h - the connections of a server of HTTP: accepted at several addresses (listen.c),
 * and what each has sent, read in front of the library that answers (peers.c). One server a
 * process.
 */
#ifndef OATO_CONNECTIONS_H
#define OATO_CONNECTIONS_H

#include "net/head.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>

/* --------------------------------------------------------------------- listeners (listen.c) - */

enum { HOSTS_MAX = 8 };

struct listeners {
    int32_t most;    /* connections that are open; others wait in the backlog */
    int32_t idle_s;  /* a client that confirms nothing for so long is gone */
    atomic_int open; /* connections: whoever closes one counts it down */
    /* Takes a connection, whose descriptor is its own then. False: it could not, and closed it. */
    bool (*take)(void *user, int fd, const struct sockaddr *from, socklen_t n);
    void *user;
    /* of listen.c */
    int fd[HOSTS_MAX];
    int32_t n;
    bool accepting; /* the thread runs */
    atomic_bool closing;
    pthread_t thread;
};

/* Listens at every host of the list, which ends with NULL: addresses or names; nothing is accepted
 * yet. Port "0" becomes the one that was found. */
oato_status listeners_open(struct listeners *l, const char *const *hosts, char port[16],
                           struct oato_error *err);
/* Accepts connections, in a thread that calls peers_sweep, too. */
oato_status listeners_start(struct listeners *l, struct oato_error *err);
/* Sleeps; a signal ends it. */
void pause_ns(int64_t ns);
/* Takes no more connections; those that are open stay. More than once. */
void listeners_close(struct listeners *l);

/* -------------------------------------------------------------------------- peers (peers.c) - */

/* A connection. Functions that take one do nothing for NULL, which is one that was refused. */
struct peer;

/* After listeners_open, before the first connection. What has not sent a request, or a good part of
 * one, for idle_s is closed. refuse: appends the response, head and body, to what is wrong
 * (head.status). */
oato_status peers_open(int32_t idle_s, void (*refuse)(const struct head *h, struct text *out),
                       struct oato_error *err);
/* Closes connections that take too long. */
void peers_sweep(void);
/* recv for whoever answers: what a connection has sent, as head.h has it. What is wrong never gets
 * there; it is answered here, once the requests before it are. */
ssize_t peers_recv(int fd, void *to, size_t n, int flags);
/* A connection begins; NULL: it is refused, and shut down. */
struct peer *peer_add(int fd);
void peer_remove(struct peer *p);
/* A request arrives (more of it), or has arrived; its answer begins; it is answered. */
void peer_await(struct peer *p, bool more);
void peer_answers(struct peer *p);
void peer_answered(struct peer *p);
/* Whether its client is gone. One that only sends no more waits for its answer. */
bool peer_went(struct peer *p);

#endif
