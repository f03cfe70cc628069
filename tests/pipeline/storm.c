/*
 * storm.c - loaded into a program by LD_PRELOAD, it makes signals end what they can: the first try
 * of every system call that may say EINTR says so, and every thread gets a signal, whose handler
 * restarts nothing, a thousand times a second. A real signal hits a call that waits (a pipe, a
 * socket, a futex); the made ones also those that never wait here, but do on another file system.
 * At the end a line in $OATO_STORM says how many of each there were.
 */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static _Atomic long signals, calls;
static __thread long turn, own; /* of the thread that sends: 1 */

static void on_signal(int number)
{
    (void)number;
    atomic_fetch_add(&signals, 1);
}

/* True: the call is to fail. */
static int strikes(void)
{
    if (own || turn++ % 2)
        return 0;
    atomic_fetch_add(&calls, 1);
    errno = EINTR;
    return 1;
}

/* The same of a call on a descriptor; one that does not wait for it is never ended. */
static int strikes_at(int fd)
{
    return !(fcntl(fd, F_GETFL) & O_NONBLOCK) && strikes();
}

/* A definition of `name` in front of the C library's. */
#define STRUCK(type, name, strikes, parameters, ...)                                               \
    type name parameters                                                                           \
    {                                                                                              \
        static type(*next) parameters;                                                             \
        if (!next)                                                                                 \
            next = (type(*) parameters)dlsym(RTLD_NEXT, #name);                                    \
        return (strikes) ? (type)-1 : next(__VA_ARGS__);                                           \
    }

STRUCK(ssize_t, read, strikes_at(fd), (int fd, void *to, size_t n), fd, to, n)
STRUCK(ssize_t, write, strikes_at(fd), (int fd, const void *from, size_t n), fd, from, n)
STRUCK(ssize_t, pread, strikes_at(fd), (int fd, void *to, size_t n, off_t at), fd, to, n, at)
STRUCK(ssize_t, pwrite, strikes_at(fd), (int fd, const void *from, size_t n, off_t at), fd, from, n,
       at)
STRUCK(ssize_t, recv, strikes_at(fd), (int fd, void *to, size_t n, int how), fd, to, n, how)
STRUCK(ssize_t, send, strikes_at(fd), (int fd, const void *from, size_t n, int how), fd, from, n,
       how)
STRUCK(int, accept4, strikes_at(fd), (int fd, struct sockaddr *from, socklen_t *n, int how), fd,
       from, n, how)
STRUCK(int, poll, strikes(), (struct pollfd * p, nfds_t n, int ms), p, n, ms)
STRUCK(int, fsync, strikes(), (int fd), fd)
STRUCK(int, fdatasync, strikes(), (int fd), fd)
STRUCK(int, fallocate, strikes(), (int fd, int how, off_t at, off_t n), fd, how, at, n)
STRUCK(int, ftruncate, strikes(), (int fd, off_t n), fd, n)
STRUCK(int, flock, strikes(), (int fd, int how), fd, how)
STRUCK(int, rename, strikes(), (const char *from, const char *to), from, to)
STRUCK(int, shm_open, strikes(), (const char *name, int how, mode_t mode), name, how, mode)
STRUCK(int, mkostemp, strikes(), (char *name, int how), name, how)
STRUCK(int, nanosleep, strikes(), (const struct timespec *t, struct timespec *left), t, left)

int open(const char *path, int how, ...)
{
    static int (*next)(const char *, int, ...);
    va_list more;
    va_start(more, how);
    const mode_t mode = how & (O_CREAT | __O_TMPFILE) ? va_arg(more, mode_t) : 0;
    va_end(more);
    if (!next)
        next = (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, "open");
    return strikes() ? -1 : next(path, how, mode);
}

/* Waking somebody is never ended by a signal. */
long syscall(long number, ...)
{
    static long (*next)(long, ...);
    long a[6];
    va_list more;
    va_start(more, number);
    for (int i = 0; i < 6; i++)
        a[i] = va_arg(more, long);
    va_end(more);
    if (!next)
        next = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
    const int waits = (number == SYS_futex && (a[1] & FUTEX_CMD_MASK) == FUTEX_WAIT) ||
                      number == SYS_io_uring_enter || number == SYS_io_uring_setup;
    return waits && strikes() ? -1 : next(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

/* ------------------------------------------------------------------------- the signals ---- */

static void *send_signals(void *unused)
{
    (void)unused;
    own = 1;
    const pid_t self = (pid_t)syscall(SYS_gettid);
    for (;;) {
        DIR *tasks = opendir("/proc/self/task");
        for (const struct dirent *d; tasks && (d = readdir(tasks));) {
            const pid_t task = atoi(d->d_name);
            if (task && task != self)
                syscall(SYS_tgkill, getpid(), task, SIGUSR1);
        }
        if (tasks)
            closedir(tasks);
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    return NULL;
}

__attribute__((constructor)) static void begin(void)
{
    const struct sigaction a = {.sa_handler = on_signal}; /* no SA_RESTART */
    pthread_t thread;
    sigset_t all, before;
    sigaction(SIGUSR1, &a, NULL);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* the thread must not get Ctrl-C for others */
    pthread_create(&thread, NULL, send_signals, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

__attribute__((destructor)) static void end(void)
{
    const char *path = getenv("OATO_STORM");
    FILE *f = path ? fopen(path, "a") : NULL;
    if (!f)
        return;
    fprintf(f, "%ld %ld\n", atomic_load(&signals), atomic_load(&calls));
    fclose(f);
}
