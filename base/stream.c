/*
 * stream.c - input and output that no signal fails: what a signal ends early (EINTR) is done again.
 * stdio drops the bytes of a write that fails, so nothing can be mended behind it: its streams,
 * those of the program's start included, read and write by the functions of this file.
 */
#include "base/base.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A read may wait for ever, for a person or a pipe, so Ctrl-C ends it. */
static ssize_t fd_read(int fd, void *to, size_t bytes)
{
    ssize_t n;
    do
        n = read(fd, to, bytes);
    while (n < 0 && errno == EINTR && !oato_interrupted);
    return n;
}

size_t fd_write(int fd, const void *data, size_t bytes)
{
    size_t done = 0;
    while (done < bytes) {
        const ssize_t n = RETRY(write(fd, (const char *)data + done, bytes - done));
        if (n <= 0) {
            errno = n ? errno : EIO;
            break;
        }
        done += (size_t)n;
    }
    return done;
}

int fd_allocate(int fd, uint64_t bytes)
{
    const int failed = RETRY(fallocate(fd, 0, 0, (off_t)bytes));
    return failed && errno == EOPNOTSUPP ? RETRY(ftruncate(fd, (off_t)bytes)) : failed;
}

int temporary_make(char *name)
{
    char *x = name + strlen(name) - 6;
    int fd;
    do {
        memset(x, 'X', 6); /* the call that failed has filled them in */
        fd = mkostemp(name, O_CLOEXEC);
    } while (fd < 0 && errno == EINTR);
    return fd;
}

/* ------------------------------------------------------------------------------ streams --- */

/* The cookie of a stream; all are listed, for stream_fd. */
struct stream {
    int fd;
    FILE *file;
    struct stream *next;
};

static struct stream *streams;
static pthread_mutex_t streams_lock = PTHREAD_MUTEX_INITIALIZER;

static ssize_t stream_read(void *cookie, char *to, size_t bytes)
{
    return fd_read(((struct stream *)cookie)->fd, to, bytes);
}

static ssize_t stream_write(void *cookie, const char *data, size_t bytes)
{
    return (ssize_t)fd_write(((struct stream *)cookie)->fd, data, bytes);
}

static int stream_seek(void *cookie, off64_t *at, int whence)
{
    *at = lseek(((struct stream *)cookie)->fd, *at, whence);
    return *at < 0 ? -1 : 0;
}

static int stream_close(void *cookie)
{
    struct stream *s = cookie;
    pthread_mutex_lock(&streams_lock);
    struct stream **at = &streams;
    while (*at && *at != s)
        at = &(*at)->next;
    if (*at)
        *at = s->next;
    pthread_mutex_unlock(&streams_lock);
    const int failed = close(s->fd); /* closed in any case, also after EINTR */
    free(s);
    return failed && errno != EINTR ? -1 : 0;
}

FILE *stream_take(int fd, const char *mode)
{
    static const cookie_io_functions_t functions = {stream_read, stream_write, stream_seek,
                                                    stream_close};
    struct stream *s = calloc(1, sizeof *s);
    FILE *file = s ? fopencookie(s, mode, functions) : NULL;
    if (!file) {
        free(s);
        return NULL;
    }
    *s = (struct stream){.fd = fd, .file = file};
    pthread_mutex_lock(&streams_lock);
    s->next = streams;
    streams = s;
    pthread_mutex_unlock(&streams_lock);
    return file;
}

FILE *stream_open(const char *path, const char *mode)
{
    const int how = *mode == 'r' ? O_RDONLY : O_WRONLY | O_CREAT | O_TRUNC;
    const int fd = RETRY(open(path, how | O_CLOEXEC, 0666));
    FILE *file = fd < 0 ? NULL : stream_take(fd, mode);
    if (fd >= 0 && !file) {
        const int e = errno;
        close(fd);
        errno = e;
    }
    return file;
}

int stream_fd(FILE *file)
{
    int fd = -1;
    pthread_mutex_lock(&streams_lock);
    for (const struct stream *s = streams; s; s = s->next)
        if (s->file == file)
            fd = s->fd;
    pthread_mutex_unlock(&streams_lock);
    return fd < 0 ? fileno(file) : fd;
}

/* ------------------------------------------------------------------ descriptors 0 to 2 ---- */

/* Where memory is short the C library's own serves. */
static FILE *standard(FILE *old, int fd, int buffering)
{
    FILE *file = stream_take(fd, fd == STDIN_FILENO ? "r" : "w");
    if (!file)
        return old;
    setvbuf(file, NULL, buffering, BUFSIZ);
    return file;
}

void streams_begin(void)
{
    /* else a model or an output would become the one that is closed, be read as what the user
     * types, or be written over by what is printed */
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 && RETRY(open("/dev/null", O_RDWR)) != fd)
            _exit(OATO_EIO);
    stdin = standard(stdin, STDIN_FILENO, _IOFBF);
    stdout = standard(stdout, STDOUT_FILENO, isatty(STDOUT_FILENO) == 1 ? _IOLBF : _IOFBF);
    stderr = standard(stderr, STDERR_FILENO, _IONBF);
}
