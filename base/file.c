/*
 * file.c - reading by mapping. Somebody may cut a file short while it is mapped; touching what is
 * gone then ends the process by SIGBUS. The mains install a handler that says which file it was,
 * so every mapping is entered in a table that the handler can read.
 */
#include "base/pages.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Linux maps 64 KiB around a page that is touched, and from 6.18 on the whole folio, which ends at
 * multiples of this; all of it must go with the page. */
#define FAULT_AROUND_BYTES ((size_t)2 << 20)

/* ------------------------------------------------------------ files that become shorter --- */

enum { MAPPINGS_MAX = 1024, NAME_BYTES = 256 };

/* The handler may run at any time in any thread: it takes no lock, and a row counts once its
 * address is there, which is written last. Mappings beyond the table end as the system likes. */
static struct mapping {
    _Atomic(const uint8_t *) data; /* NULL: the row is free */
    size_t bytes;
    char *name; /* as it may be printed */
    int fd;
    _Atomic bool once; /* FILE_ONCE */
} mappings[MAPPINGS_MAX];
static pthread_mutex_t mappings_lock = PTHREAD_MUTEX_INITIALIZER;
static const char *program_name;

/* NULL: memory of the caller, or a mapping beyond the table. */
static struct mapping *mapping_of(const struct mapped_file *f)
{
    for (struct mapping *m = mappings; f->data && m < mappings + MAPPINGS_MAX; m++)
        if (atomic_load(&m->data) == f->data)
            return m;
    return NULL;
}

/* Takes the descriptor. */
static void mapping_add(const struct mapped_file *f, int fd, const char *path)
{
    char *name = strdup(path);
    if (!name) {
        close(fd);
        return;
    }
    text_tame(name, strlen(name));
    pthread_mutex_lock(&mappings_lock);
    struct mapping *m = mappings;
    while (m < mappings + MAPPINGS_MAX && atomic_load(&m->data))
        m++;
    if (m < mappings + MAPPINGS_MAX) {
        m->bytes = f->bytes;
        m->name = name;
        m->fd = fd;
        atomic_store(&m->once, false);
        atomic_store(&m->data, f->data);
        name = NULL;
    }
    pthread_mutex_unlock(&mappings_lock);
    if (name)
        close(fd);
    free(name);
}

static void mapping_remove(const struct mapped_file *f)
{
    pthread_mutex_lock(&mappings_lock);
    struct mapping *m = mapping_of(f);
    if (m) {
        atomic_store(&m->data, NULL);
        close(m->fd);
        free(m->name);
    }
    pthread_mutex_unlock(&mappings_lock);
}

static void say(const char *s)
{
    fd_write(STDERR_FILENO, s, strlen(s));
}

/* Only what a signal handler may call. */
static void on_bus_error(int sig, siginfo_t *info, void *context)
{
    (void)context;
    static atomic_flag told = ATOMIC_FLAG_INIT;
    const uintptr_t at = (uintptr_t)info->si_addr;
    for (const struct mapping *m = mappings; m < mappings + MAPPINGS_MAX; m++) {
        const uintptr_t begin = (uintptr_t)atomic_load(&m->data);
        if (!begin || at < begin || at - begin >= m->bytes)
            continue;
        if (atomic_flag_test_and_set(&told)) /* another thread says it, and ends the program */
            for (;;)
                pause();
        say(program_name);
        say(": ");
        say(m->name);
        say(": was truncated or became unreadable while in use; start again once it is complete\n");
        _exit(OATO_EFILE);
    }
    signal(sig, SIG_DFL);
    raise(sig);
}

void program_begin(const char *name)
{
    program_name = name;
    streams_begin();
    signal(SIGXFSZ,
           SIG_IGN); /* writing then fails with EFBIG, which is reported like a full disk */
    struct sigaction a = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO};
    sigaction(SIGBUS, &a, NULL);
}

void program_warn(void *user, const char *text)
{
    (void)user;
    progress_clear();
    text_tell("%s: warning: %s\n", program_name, text);
}

void program_tell(const char *fmt, ...)
{
    char line[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    progress_clear();
    text_tell("%s: %s\n", program_name, line);
}

void program_abort(const struct oato_error *err)
{
    fflush(stdout);
    progress_clear();
    if (err->text[0])
        text_tell("%s: %s\n", program_name, err->text);
    _exit((int)err->status);
}

/* --------------------------------------------------------------------------- mapped files --- */

oato_status file_map(const char *path, struct mapped_file *out, struct oato_error *err)
{
    memset(out, 0, sizeof *out);
    /* O_NONBLOCK: opening a FIFO, which is refused below, would wait for a writer */
    int fd = RETRY(open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (fd < 0)
        return oato_fail(err, OATO_EIO, "%s: %s", path, strerror(errno));
    struct stat st;
    oato_status status = OATO_OK;
    if (fstat(fd, &st)) {
        status = oato_fail(err, OATO_EIO, "%s: %s", path, strerror(errno));
    } else if (!S_ISREG(st.st_mode)) {
        status = oato_fail(err, OATO_EIO, "%s: not a regular file", path);
    } else if (st.st_size > 0) {
        void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (p == MAP_FAILED) {
            status = oato_fail(err, errno == ENOMEM ? OATO_EFIT : OATO_EIO,
                               "%s: cannot map %lld bytes: %s", path, (long long)st.st_size,
                               strerror(errno));
        } else {
            out->data = p;
            out->bytes = (size_t)st.st_size;
            mapping_add(out, fd, path);
            fd = -1;
        }
    }
    if (!status) {
        out->owner = st.st_uid;
        out->mode = st.st_mode & 07777;
    }
    if (fd >= 0)
        close(fd);
    return status;
}

void file_unmap(struct mapped_file *f)
{
    if (f->data) {
        mapping_remove(f);
        munmap((void *)f->data, f->bytes);
    }
    memset(f, 0, sizeof *f);
}

/* madvise of [offset, offset + bytes), its addresses rounded to `align` outwards, inside the
 * file. */
static void file_advise(const struct mapped_file *f, size_t offset, size_t bytes, size_t align,
                        int advice)
{
    if (!f->data || offset >= f->bytes || !bytes)
        return;
    const size_t left = f->bytes - offset;
    const uintptr_t first = (uintptr_t)f->data, last = first + f->bytes;
    uintptr_t begin = (first + offset) & ~(align - 1);
    uintptr_t end = size_align(first + offset + (bytes < left ? bytes : left), align);
    begin = begin > first ? begin : first;
    end = end < last ? end : last;
    madvise((void *)begin, end - begin, advice);
}

void file_release(const struct mapped_file *f, size_t offset, size_t bytes)
{
    const struct mapping *m = mapping_of(f);
    if (!m)
        return;
    file_advise(f, offset, bytes, FAULT_AROUND_BYTES, MADV_DONTNEED);
    if (!atomic_load(&m->once))
        return;
    /* of a folio that is still mapped in part nothing leaves the cache: what the last call left
     * goes now */
    const size_t begin = offset & ~(FAULT_AROUND_BYTES - 1);
    posix_fadvise(m->fd, (off_t)begin, (off_t)(offset - begin + bytes), POSIX_FADV_DONTNEED);
}

void file_use(const struct mapped_file *f, enum file_use use)
{
    struct mapping *m = mapping_of(f);
    if (!m)
        return;
    atomic_store(&m->once, use == FILE_ONCE);
    file_advise(f, 0, f->bytes, 1, use == FILE_USUAL ? MADV_NORMAL : MADV_RANDOM);
}

void file_prefetch(const struct mapped_file *f, size_t offset, size_t bytes)
{
    file_advise(f, offset, bytes, (size_t)sysconf(_SC_PAGESIZE), MADV_WILLNEED);
}
