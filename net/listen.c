/*
 * listen.c - where connections come from: a listener at each address, and the thread that hands on
 * what it accepts. libmicrohttpd could listen itself, but its threads and MHD_quiesce_daemon both
 * take a listener out of the same epoll set, and the one that comes second ends the process
 * (0.9.75, "Failed to remove listen FD from epoll set").
 */
#include "net/connections.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum {
    OTHER_FILES = 256, /* of the process, besides connections */
    BACKLOG = 511,
    FULL_NS = 10000000, /* until a place is looked for again */
    SWEEP_MS = 500      /* how often connections are looked at that take too long */
};

/* -1, and err says why. */
static int listen_at(const struct addrinfo *at, const char *host, const char *port,
                     struct oato_error *err)
{
    const int one = 1;
    const int listener = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    const bool v6 = at->ai_family == AF_INET6; /* another host may be the same port's IPv4 */
    if (listener >= 0 && !setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) &&
        (!v6 || !setsockopt(listener, IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof one)) &&
        !bind(listener, at->ai_addr, at->ai_addrlen) && !listen(listener, BACKLOG))
        return listener;
    oato_fail(err, OATO_EIO, "cannot listen at %s, port %s: %s", host, port, strerror(errno));
    if (listener >= 0)
        close(listener);
    return -1;
}

/* As many open files as connections need, where the system's hard limit allows it. */
static void files_allow(int32_t connections)
{
    struct rlimit limit;
    const rlim_t wanted = (rlim_t)connections + OTHER_FILES;
    if (getrlimit(RLIMIT_NOFILE, &limit) || limit.rlim_cur >= wanted)
        return;
    limit.rlim_cur = limit.rlim_max < wanted ? limit.rlim_max : wanted;
    setrlimit(RLIMIT_NOFILE, &limit); /* without it there are fewer connections */
}

/* The port that was found for --port 0. */
static void port_read(int listener, char port[16])
{
    struct sockaddr_storage at;
    socklen_t n = sizeof at;
    if (!getsockname(listener, (struct sockaddr *)&at, &n))
        getnameinfo((struct sockaddr *)&at, n, NULL, 0, port, 16, NI_NUMERICSERV);
}

/* Port 0 becomes the one that was found. */
static oato_status host_open(struct listeners *l, const char *host, char port[16],
                             struct oato_error *err)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM,
                                   .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    struct addrinfo *at = NULL;
    const int found = getaddrinfo(host, port, &hints, &at);
    if (found)
        return oato_fail(err, OATO_EUSAGE, "--host %s: %s; give addresses or names", host,
                         gai_strerror(found));
    const int listener = listen_at(at, host, port, err);
    freeaddrinfo(at);
    if (listener < 0)
        return err->status;
    l->fd[l->n++] = listener;
    port_read(listener, port);
    return OATO_OK;
}

/* A client whose machine or network is gone says nothing any more: what it does not confirm within
 * idle_s, or of looks at it while it is silent, ends its connection. */
static void lost_are_found(const struct listeners *l, int fd)
{
    const int on = 1, looks = 3, every_s = (l->idle_s + 2) / 3, most_ms = l->idle_s * 1000;
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &every_s, sizeof every_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &every_s, sizeof every_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &looks, sizeof looks);
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &most_ms, sizeof most_ms);
}

void pause_ns(int64_t ns)
{
    const struct timespec t = {ns / 1000000000, ns % 1000000000};
    nanosleep(&t, NULL);
}

/* Whoever connects while all places are taken waits in the backlog. */
static void connection_take(struct listeners *l, int listener)
{
    struct sockaddr_storage from;
    socklen_t n = sizeof from;
    if (atomic_load(&l->open) >= l->most) {
        pause_ns(FULL_NS);
        return;
    }
    const int fd =
        RETRY(accept4(listener, (struct sockaddr *)&from, &n, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (fd >= 0) {
        lost_are_found(l, fd);
        atomic_fetch_add(&l->open, 1);
        if (!l->take(l->user, fd, (struct sockaddr *)&from, n))
            atomic_fetch_sub(&l->open, 1);
    } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
        pause_ns(FULL_NS); /* another connection may end meanwhile */
    }
}

/* ------------------------------------------------------------------------------- accepting --- */

static void *accept_all(void *arg)
{
    struct listeners *l = arg;
    struct pollfd p[HOSTS_MAX];
    for (int32_t i = 0; i < l->n; i++)
        p[i] = (struct pollfd){.fd = l->fd[i], .events = POLLIN};
    for (uint64_t swept = now_ns(); !atomic_load(&l->closing);) {
        const int ready = poll(p, (nfds_t)l->n, SWEEP_MS);
        for (int32_t i = 0; i < l->n && ready > 0; i++)
            if (p[i].revents)
                connection_take(l, p[i].fd);
        if (now_ns() - swept < SWEEP_MS * UINT64_C(1000000))
            continue;
        peers_sweep();
        swept = now_ns();
    }
    return NULL;
}

oato_status listeners_open(struct listeners *l, const char *const *hosts, char port[16],
                           struct oato_error *err)
{
    int32_t n = 0;
    oato_status status = OATO_OK;
    while (hosts[n])
        n++;
    if (n > HOSTS_MAX)
        return oato_fail(err, OATO_EUSAGE, "--host has %d addresses; at most %d are allowed", n,
                         HOSTS_MAX);
    files_allow(l->most);
    for (int32_t i = 0; i < n && !status; i++)
        status = host_open(l, hosts[i], port, err);
    return status;
}

oato_status listeners_start(struct listeners *l, struct oato_error *err)
{
    l->accepting = !pthread_create(&l->thread, NULL, accept_all, l);
    return l->accepting
               ? OATO_OK
               : oato_fail(err, OATO_EIO, "cannot start the thread that accepts connections");
}

void listeners_close(struct listeners *l)
{
    atomic_store(&l->closing, true);
    for (int32_t i = 0; i < l->n; i++)
        shutdown(l->fd[i], SHUT_RDWR); /* which wakes the thread */
    if (l->accepting)
        pthread_join(l->thread, NULL);
    l->accepting = false;
    while (l->n)
        close(l->fd[--l->n]);
}
