/*
 * peers.c - connections: what each has sent, since when something is awaited from it, and whether
 * its client is still there. libmicrohttpd has no hook in front of its parser, but reads by recv:
 * the server's, which the linker finds first, is peers_recv.
 */
#include "net/connections.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

enum { FILES_MOST = 1 << 20, READ_BYTES = 16 << 10 };
#define LINGER_NS UINT64_C(2000000000) /* for a client to read what was wrong */
#define HALF_NS   UINT64_C(100000000)  /* until a client that sends no more is asked */

struct peer {
    int fd;
    _Atomic uint64_t until_ns; /* when what it is to send must be there; 0: nothing is */
    struct head head;          /* what it has sent */
    struct text passed;        /* what of it goes on, from `sent` on */
    size_t sent;
    int32_t answered; /* of head.requests */
    bool told;        /* what is wrong in the head */
    bool answers;     /* an answer has begun */
    uint64_t half_ns; /* when its client was first seen to send no more; 0: not yet */
    bool asked;       /* whether it is still there */
    struct peer *next, **at;
};

/* By descriptor: recv is told no more. */
static struct peer *_Atomic *peer_at;
static size_t peers_most;
static uint64_t idle_ns;
static void (*refusal)(const struct head *h, struct text *out);

static struct peer *first_peer;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of the list */

oato_status peers_open(int32_t idle_s, void (*refuse)(const struct head *h, struct text *out),
                       struct oato_error *err)
{
    struct rlimit limit = {.rlim_cur = FILES_MOST};
    getrlimit(RLIMIT_NOFILE, &limit);
    idle_ns = (uint64_t)idle_s * 1000000000;
    refusal = refuse;
    peers_most = limit.rlim_cur < FILES_MOST ? (size_t)limit.rlim_cur : FILES_MOST;
    peer_at = calloc(peers_most, sizeof *peer_at);
    return peer_at ? OATO_OK : oato_fail_memory(err, peers_most * sizeof *peer_at, "connections");
}

struct peer *peer_add(int fd)
{
    struct peer *p = (size_t)fd < peers_most ? calloc(1, sizeof *p) : NULL;
    if (!p) {
        shutdown(fd, SHUT_RDWR);
        return NULL;
    }
    p->fd = fd;
    p->until_ns = now_ns() + idle_ns;
    text_init(&p->head.line);
    text_init(&p->head.whole);
    text_init(&p->passed);
    pthread_mutex_lock(&lock);
    p->next = first_peer;
    p->at = &first_peer;
    if (p->next)
        p->next->at = &p->next;
    first_peer = p;
    pthread_mutex_unlock(&lock);
    atomic_store(&peer_at[fd], p);
    return p;
}

void peer_remove(struct peer *p)
{
    if (!p)
        return;
    atomic_store(&peer_at[p->fd], NULL);
    pthread_mutex_lock(&lock);
    *p->at = p->next;
    if (p->next)
        p->next->at = p->at;
    pthread_mutex_unlock(&lock);
    head_free(&p->head);
    text_free(&p->passed);
    free(p);
}

void peer_await(struct peer *p, bool more)
{
    if (p)
        atomic_store(&p->until_ns, more ? now_ns() + idle_ns : 0);
}

/* libmicrohttpd closes connections that are silent. One that drips is not, so what has not sent a
 * request, or a good part of one, in the same time is closed, too. */
void peers_sweep(void)
{
    const uint64_t now = now_ns();
    pthread_mutex_lock(&lock);
    for (struct peer *p = first_peer; p; p = p->next) {
        const uint64_t until = atomic_load(&p->until_ns);
        if (until && now > until)
            shutdown(p->fd, SHUT_RDWR);
    }
    pthread_mutex_unlock(&lock);
}

/* ------------------------------------------------------------------------ what is wrong ------ */

/* Says what is wrong, if nothing before it is still to be answered, and sends no more. */
static void wrong_tell(struct peer *p)
{
    const struct head *h = &p->head;
    struct text whole;
    if (p->told || h->requests - h->in_body > p->answered)
        return;
    text_init(&whole);
    refusal(h, &whole);
    if (!whole.failed)
        (void)!send(p->fd, whole.data, whole.len, MSG_NOSIGNAL | MSG_DONTWAIT);
    text_free(&whole);
    shutdown(p->fd, SHUT_WR); /* what it still sends is read, or its end would cut the answer */
    atomic_store(&p->until_ns, now_ns() + LINGER_NS);
    p->told = true;
}

static bool sends_no_more(const struct peer *p)
{
    char byte;
    return !recvfrom(p->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT, NULL, NULL);
}

void peer_answers(struct peer *p)
{
    if (p)
        p->answers = true;
}

void peer_answered(struct peer *p)
{
    if (!p)
        return;
    p->answers = false;
    p->answered++;
    if (p->head.status)
        wrong_tell(p);
    else if (p->head.requests == p->answered && sends_no_more(p)) /* libmicrohttpd may miss it */
        shutdown(p->fd, SHUT_WR);
}

/* Whether a request has arrived as a whole and is not answered yet. */
static bool is_owed(const struct peer *p)
{
    const struct head *h = &p->head;
    return (h->at == HEAD_START || h->at == HEAD_OVER) && h->requests > p->answered;
}

/* As many bytes as fit: with fewer libmicrohttpd takes the socket for empty. */
ssize_t peers_recv(int fd, void *to, size_t n, int flags)
{
    struct peer *p =
        fd >= 0 && (size_t)fd < peers_most && peer_at ? atomic_load(&peer_at[fd]) : NULL;
    if (!p)
        return recvfrom(fd, to, n, flags, NULL, NULL);
    for (size_t done = 0;;) {
        char bytes[READ_BYTES];
        const size_t take =
            (size_t)min_i64((int64_t)(n - done), (int64_t)(p->passed.len - p->sent));
        if (take)
            memcpy((char *)to + done, p->passed.data + p->sent, take);
        done += take;
        p->sent += take;
        if (done == n)
            return (ssize_t)done;
        p->passed.len = p->sent = 0;
        const ssize_t got = recvfrom(fd, bytes, sizeof bytes, flags, NULL, NULL);
        if (!got && !done && is_owed(p)) { /* libmicrohttpd would close without the answer */
            errno = EAGAIN;
            return -1;
        }
        if (got <= 0)
            return done ? (ssize_t)done : got;
        head_read(&p->head, bytes, (size_t)got, &p->passed);
        if (p->head.status)
            wrong_tell(p);
    }
}

/* ------------------------------------------------------------------ is somebody there? ------- */

/* A client that has closed its connection and one that only sends no more look alike until
 * something is sent, so after a moment one is: an interim answer, which a client skips. It resets
 * the connection if there is none. HTTP/1.0 has no such answers. */
bool peer_went(struct peer *p)
{
    static const char interim[] = "HTTP/1.1 100 Continue\r\n\r\n";
    struct tcp_info info = {0};
    socklen_t bytes = sizeof info;
    if (!p || getsockopt(p->fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) ||
        info.tcpi_state == TCP_CLOSE)
        return true;
    if (info.tcpi_state != TCP_CLOSE_WAIT || p->answers || p->head.old)
        return false;
    p->half_ns = p->half_ns ? p->half_ns : now_ns();
    if (!p->asked && now_ns() - p->half_ns > HALF_NS) {
        p->asked = true;
        (void)!send(p->fd, interim, sizeof interim - 1, MSG_NOSIGNAL | MSG_DONTWAIT);
    }
    return false;
}
