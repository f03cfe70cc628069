/*
 * reader.c - reads a file piece by piece into one buffer, past the page cache where the file system
 * allows it (O_DIRECT), so that a file much larger than the memory pushes nothing out of it.
 *
 * io_uring keeps several reads on their way, into a buffer that is registered once. Where a kernel
 * or a sandbox has no io_uring, a read is done by the call that starts it, one after the other; the
 * caller sees no difference. The system calls are made directly: it takes three of them.
 */
#include "base/base.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#if defined(__has_include)
#if __has_include(<linux/io_uring.h>) && defined(SYS_io_uring_setup)
#include <linux/io_uring.h>
#define HAVE_URING 1
#endif
#endif
#ifndef HAVE_URING
#define HAVE_URING 0
#endif

/* ------------------------------------------------------------------------------- files ---- */

/* Some file systems take O_DIRECT when a file is opened and refuse to read. */
static bool reads_directly(int fd)
{
    void *block = aligned_alloc(READ_ALIGN, READ_ALIGN);
    const bool good = block && RETRY(pread(fd, block, READ_ALIGN, 0)) >= 0;
    free(block);
    return good;
}

oato_status direct_open(const char *path, struct direct_file *out, struct oato_error *err)
{
    struct stat st;
    *out = (struct direct_file){.direct = true};
    out->fd = RETRY(open(path, O_RDONLY | O_CLOEXEC | O_DIRECT));
    if (out->fd >= 0 && !reads_directly(out->fd)) {
        close(out->fd);
        out->fd = -1;
    }
    if (out->fd < 0) {
        out->fd = RETRY(open(path, O_RDONLY | O_CLOEXEC));
        out->direct = false;
    }
    if (out->fd < 0 || fstat(out->fd, &st)) {
        oato_fail(err, OATO_EIO, "%s: %s", path, strerror(errno));
        direct_close(out);
        return OATO_EIO;
    }
    out->bytes = (uint64_t)st.st_size;
    out->path = strdup(path);
    if (out->path)
        return OATO_OK;
    direct_close(out);
    return oato_fail_memory(err, strlen(path), "the name of a file");
}

/* One without a name, past the page cache if that is possible. */
static int scratch_open(const char *folder, bool *direct)
{
    const int how = O_RDWR | O_CLOEXEC;
    *direct = true;
    int fd = RETRY(open(folder, O_TMPFILE | O_DIRECT | how, 0600));
    if (fd >= 0 && !reads_directly(fd)) {
        close(fd);
        fd = -1;
    }
    if (fd >= 0)
        return fd;
    *direct = false;
    fd = RETRY(open(folder, O_TMPFILE | how, 0600));
    char name[PATH_MAX];
    if (fd >= 0 || snprintf(name, sizeof name, "%s/kv-XXXXXX", folder) >= (int)sizeof name)
        return fd;
    fd = temporary_make(name); /* a file system without O_TMPFILE */
    if (fd >= 0)
        unlink(name);
    return fd;
}

oato_status direct_scratch(const char *folder, uint64_t bytes, struct direct_file *out,
                           struct oato_error *err)
{
    struct text path;
    text_init(&path);
    if (folder)
        text_printf(&path, "%s", folder);
    else
        cache_folder(&path);
    *out = (struct direct_file){.fd = -1, .bytes = bytes};
    if (path.failed)
        return oato_fail_memory(err, 0, "the name of a folder");
    out->path = path.data; /* direct_close frees it */
    out->fd = scratch_open(out->path, &out->direct);
    if (out->fd >= 0 && !fd_allocate(out->fd, bytes))
        return OATO_OK;
    oato_fail(err, OATO_EIO,
              "making a file of %.1f MiB in %s: %s; make room, or name another folder",
              (double)bytes / (1 << 20), out->path, strerror(errno));
    direct_close(out);
    return OATO_EIO;
}

void direct_close(struct direct_file *f)
{
    if (f->fd >= 0)
        close(f->fd);
    free(f->path);
    *f = (struct direct_file){.fd = -1};
}

/* ------------------------------------------------------------------------------- reads ---- */

struct reading {
    const struct direct_file *file;
    uint64_t offset;
    uint8_t *to;
    size_t bytes;
    uint64_t tag;
    bool busy;
};

struct reader {
    uint8_t *buffer;
    size_t buffer_bytes;
    int depth, on_way;
    struct reading *reads; /* depth */
    int *done, n_done;     /* reads that the starting call did: their numbers */
    int ring;              /* file descriptor; -1: there is no io_uring */
    bool registered;       /* the buffer is */
#if HAVE_URING
    uint8_t *rings; /* both queues */
    size_t rings_bytes, entries_bytes;
    struct io_uring_sqe *entries;
    struct io_uring_cqe *completions;
    _Atomic unsigned *sq_tail, *cq_head, *cq_tail;
    unsigned *sq_array, sq_mask, cq_mask;
#endif
};

static oato_status cut_off(const struct reading *r, struct oato_error *err)
{
    return oato_fail(err, OATO_EFILE, "%s: was truncated while in use; delete it and start again",
                     r->file->path);
}

/* The rest of a read, of which `have` bytes are there. */
static oato_status read_rest(const struct reading *r, size_t have, struct oato_error *err)
{
    while (have < r->bytes) {
        /* only the end of the file makes a direct read end between blocks, and none may begin there
         */
        if (r->file->direct && have % READ_ALIGN)
            return cut_off(r, err);
        const ssize_t n =
            RETRY(pread(r->file->fd, r->to + have, r->bytes - have, (off_t)(r->offset + have)));
        if (n < 0)
            return oato_fail(err, OATO_EIO, "%s: cannot read %zu bytes at %" PRIu64 ": %s",
                             r->file->path, r->bytes - have, r->offset + have, strerror(errno));
        if (!n)
            return cut_off(r, err);
        have += (size_t)n;
    }
    if (!r->file->direct) /* it is read again in a whole pass over the file, not before */
        posix_fadvise(r->file->fd, (off_t)r->offset, (off_t)r->bytes, POSIX_FADV_DONTNEED);
    return OATO_OK;
}

#if HAVE_URING

enum { REGISTERED_MOST = 1 << 30 }; /* bytes of one registered piece of the buffer */

/* The kernel takes a ring apart some time after it is closed, even after the process has ended, and
 * its buffers would stay in memory for so long. Nothing is on its way. */
static void ring_close(struct reader *r)
{
    if (r->registered)
        syscall(SYS_io_uring_register, r->ring, IORING_UNREGISTER_BUFFERS, NULL, 0u);
    r->registered = false;
    if (r->rings)
        munmap(r->rings, r->rings_bytes);
    if (r->entries)
        munmap(r->entries, r->entries_bytes);
    if (r->ring >= 0)
        close(r->ring);
    r->rings = NULL;
    r->entries = NULL;
    r->ring = -1;
}

static void *ring_map(const struct reader *r, size_t bytes, off_t what)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, r->ring, what);
    return p == MAP_FAILED ? NULL : p;
}

static void ring_open(struct reader *r)
{
    struct io_uring_params p = {0};
    r->ring = (int)RETRY(syscall(SYS_io_uring_setup, (unsigned)r->depth, &p));
    if (r->ring < 0)
        return;
    const size_t sq = p.sq_off.array + p.sq_entries * sizeof(unsigned);
    const size_t cq = p.cq_off.cqes + p.cq_entries * sizeof(struct io_uring_cqe);
    r->rings_bytes = sq > cq ? sq : cq;
    r->entries_bytes = p.sq_entries * sizeof *r->entries;
    if (p.features & IORING_FEAT_SINGLE_MMAP)
        r->rings = ring_map(r, r->rings_bytes, IORING_OFF_SQ_RING);
    if (r->rings)
        r->entries = ring_map(r, r->entries_bytes, IORING_OFF_SQES);
    if (!r->entries) {
        ring_close(r);
        return;
    }
    r->sq_tail = (_Atomic unsigned *)(void *)(r->rings + p.sq_off.tail);
    r->sq_array = (unsigned *)(void *)(r->rings + p.sq_off.array);
    r->sq_mask = *(unsigned *)(void *)(r->rings + p.sq_off.ring_mask);
    r->cq_head = (_Atomic unsigned *)(void *)(r->rings + p.cq_off.head);
    r->cq_tail = (_Atomic unsigned *)(void *)(r->rings + p.cq_off.tail);
    r->cq_mask = *(unsigned *)(void *)(r->rings + p.cq_off.ring_mask);
    r->completions = (struct io_uring_cqe *)(void *)(r->rings + p.cq_off.cqes);
}

/* May be refused (RLIMIT_MEMLOCK): then the kernel pins the pages of each read. */
static void buffer_register(struct reader *r)
{
    const size_t n = (r->buffer_bytes + REGISTERED_MOST - 1) / REGISTERED_MOST;
    struct iovec *v = calloc(n + 1, sizeof *v);
    for (size_t i = 0; v && i < n; i++) {
        const size_t begin = i * REGISTERED_MOST, left = r->buffer_bytes - begin;
        v[i].iov_base = r->buffer + begin;
        v[i].iov_len = left < REGISTERED_MOST ? left : REGISTERED_MOST;
    }
    r->registered =
        v && n &&
        !RETRY(syscall(SYS_io_uring_register, r->ring, IORING_REGISTER_BUFFERS, v, (unsigned)n));
    free(v);
}

static bool ring_start(struct reader *r, int number)
{
    const struct reading *x = &r->reads[number];
    const unsigned tail = atomic_load_explicit(r->sq_tail, memory_order_relaxed);
    const size_t begin = (size_t)(x->to - r->buffer), piece = begin / REGISTERED_MOST;
    const bool fixed = r->registered && piece == (begin + x->bytes - 1) / REGISTERED_MOST;
    r->entries[tail & r->sq_mask] =
        (struct io_uring_sqe){.opcode = fixed ? IORING_OP_READ_FIXED : IORING_OP_READ,
                              .fd = x->file->fd,
                              .off = x->offset,
                              .addr = (uint64_t)(uintptr_t)x->to,
                              .len = (unsigned)x->bytes,
                              .buf_index = (uint16_t)(fixed ? piece : 0),
                              .user_data = (uint64_t)number};
    r->sq_array[tail & r->sq_mask] = tail & r->sq_mask;
    atomic_store_explicit(r->sq_tail, tail + 1, memory_order_release);
    long n;
    do
        n = syscall(SYS_io_uring_enter, r->ring, 1u, 0u, 0u, NULL, 0ul);
    while (n < 0 && (errno == EINTR || errno == EAGAIN || errno == EBUSY));
    if (n != 1)
        atomic_store_explicit(r->sq_tail, tail, memory_order_release);
    return n == 1;
}

/* The number of a read that is done; *have: bytes, or a negative error. */
static int ring_wait(struct reader *r, int32_t *have)
{
    const unsigned head = atomic_load_explicit(r->cq_head, memory_order_relaxed);
    while (atomic_load_explicit(r->cq_tail, memory_order_acquire) == head)
        syscall(SYS_io_uring_enter, r->ring, 0u, 1u, IORING_ENTER_GETEVENTS, NULL, 0ul);
    const struct io_uring_cqe *c = &r->completions[head & r->cq_mask];
    const int number = (int)c->user_data;
    *have = c->res;
    atomic_store_explicit(r->cq_head, head + 1, memory_order_release);
    return number;
}

#else

static void ring_close(struct reader *r)
{
    r->ring = -1;
}
static void ring_open(struct reader *r)
{
    r->ring = -1;
}
static void buffer_register(struct reader *r)
{
    r->registered = false;
}
static bool ring_start(struct reader *r, int number)
{
    (void)r;
    (void)number;
    return false;
}
static int ring_wait(struct reader *r, int32_t *have)
{
    (void)r;
    *have = 0;
    return 0;
}

#endif

oato_status reader_create(void *buffer, size_t bytes, int depth, bool plain, struct reader **out,
                          struct oato_error *err)
{
    struct reader *r = calloc(1, sizeof *r);
    *out = NULL;
    if (!r)
        return oato_fail_memory(err, sizeof *r, "reading ahead");
    *r = (struct reader){.buffer = buffer, .buffer_bytes = bytes, .depth = depth, .ring = -1};
    r->reads = calloc((size_t)depth, sizeof *r->reads);
    r->done = calloc((size_t)depth, sizeof *r->done);
    if (!r->reads || !r->done) {
        reader_free(r);
        return oato_fail_memory(err, (size_t)depth * sizeof *r->reads, "reading ahead");
    }
    if (!plain)
        ring_open(r);
    if (r->ring >= 0)
        buffer_register(r);
    *out = r;
    return OATO_OK;
}

bool reader_overlaps(const struct reader *r)
{
    return r->ring >= 0;
}

bool reader_start(struct reader *r, const struct direct_file *f, uint64_t offset, void *to,
                  size_t bytes, uint64_t tag)
{
    int number = 0;
    while (number < r->depth && r->reads[number].busy)
        number++;
    if (number == r->depth)
        return false;
    r->reads[number] = (struct reading){f, offset, to, bytes, tag, true};
    r->on_way++;
    if (r->ring < 0 || !ring_start(r, number))
        r->done[r->n_done++] = number; /* read when it is waited for */
    return true;
}

oato_status reader_wait(struct reader *r, uint64_t *tag, struct oato_error *err)
{
    int32_t have = 0;
    const int number = r->n_done ? r->done[0] : ring_wait(r, &have);
    if (r->n_done)
        memmove(r->done, r->done + 1, (size_t)--r->n_done * sizeof *r->done);
    struct reading *x = &r->reads[number];
    x->busy = false;
    r->on_way--;
    *tag = x->tag;
    return read_rest(x, have > 0 ? (size_t)have : 0, err);
}

int reader_on_way(const struct reader *r)
{
    return r->on_way;
}

void reader_free(struct reader *r)
{
    if (!r)
        return;
    while (r->on_way > r->n_done) { /* the kernel still writes to the buffer */
        int32_t have;
        ring_wait(r, &have);
        r->on_way--;
    }
    ring_close(r);
    free(r->reads);
    free(r->done);
    free(r);
}
