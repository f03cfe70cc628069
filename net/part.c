/*
 * part.c - a file that is being fetched. It lies beside its target as TARGET.part and has its full
 * size from the beginning, so that a full disk shows before the first byte is fetched. Behind the
 * data is a note of what is there: segments that are filled from their beginnings on. The note is
 * written behind the data that it tells of; what a kill leaves out of it is fetched again, and what
 * a power failure made of it the checksum finds.
 *
 * The process that fetches holds a lock on the file. The file gets its name by a rename at the end;
 * whoever waited for the lock then finds the target.
 */
#include "net/net_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

enum { SEGMENTS = 64, SEGMENT_LEAST = 1 << 20, SUM_BYTES = 72 };

static const char magic[8] = {'O', 'A', 'T', 'O', 'p', 'a', 'r', '1'};

/* The note: head, done[n], foot; the foot ends the file. */
struct note_head {
    uint64_t segment_bytes, n;
    char sum[SUM_BYTES];
};
struct note_foot {
    uint64_t hash; /* of head and done */
    uint64_t bytes;
    char magic[sizeof magic];
};

static size_t note_bytes(size_t n)
{
    return sizeof(struct note_head) + n * sizeof(uint64_t) + sizeof(struct note_foot);
}

static bool read_at(int fd, uint64_t offset, void *to, size_t bytes)
{
    return RETRY(pread(fd, to, bytes, (off_t)offset)) == (ssize_t)bytes;
}

/* The whole note, and *bytes of the data before it; NULL: there is none. */
static uint8_t *note_read(int fd, uint64_t *bytes)
{
    struct stat st;
    struct note_foot foot;
    if (fstat(fd, &st) || st.st_size < (off_t)note_bytes(0) ||
        !read_at(fd, (uint64_t)st.st_size - sizeof foot, &foot, sizeof foot) ||
        memcmp(foot.magic, magic, sizeof magic) != 0 || foot.bytes > (uint64_t)st.st_size)
        return NULL;
    const uint64_t size = (uint64_t)st.st_size - foot.bytes;
    if (size < note_bytes(0) || size > note_bytes(2 * SEGMENTS) ||
        (size - note_bytes(0)) % sizeof(uint64_t))
        return NULL;
    uint8_t *note = malloc(size);
    const size_t hashed = size - sizeof foot, n = (size - note_bytes(0)) / sizeof(uint64_t);
    struct note_head head;
    if (note && read_at(fd, foot.bytes, note, size) && hash_bytes(note, hashed) == foot.hash) {
        memcpy(&head, note, sizeof head);
        if (head.n == n && !head.sum[SUM_BYTES - 1]) {
            *bytes = foot.bytes;
            return note;
        }
    }
    free(note);
    return NULL;
}

bool part_look(const char *path, uint64_t *bytes, uint64_t *done)
{
    int fd = RETRY(open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
    uint8_t *note = fd < 0 ? NULL : note_read(fd, bytes);
    struct note_head head;
    *done = 0;
    if (note) {
        memcpy(&head, note, sizeof head);
        for (size_t i = 0; i < head.n; i++) {
            uint64_t d;
            memcpy(&d, note + sizeof head + i * sizeof d, sizeof d);
            *done += d;
        }
    }
    const bool found = note;
    if (fd >= 0)
        close(fd);
    free(note);
    return found;
}

/* ------------------------------------------------------------------------------- opening --- */

static bool is_complete(const struct fetch *f)
{
    struct stat st;
    return !stat(f->path, &st) && S_ISREG(st.st_mode) && (uint64_t)st.st_size == f->bytes;
}

/* Locked, and still the file of that name: -1 after Ctrl-C, -2 with errno. */
static int lock_file(struct part *p, const struct fetch *f)
{
    bool told = false;
    while (!oato_interrupted) {
        int fd = RETRY(open(p->path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666));
        struct stat st, named;
        if (fd < 0)
            return -2;
        /* a file system without locks is taken as it is */
        if (!RETRY(flock(fd, LOCK_EX | LOCK_NB)) || errno != EWOULDBLOCK) {
            if (!fstat(fd, &st) && !lstat(p->path, &named) && st.st_ino == named.st_ino &&
                st.st_dev == named.st_dev && S_ISREG(st.st_mode))
                return fd;
        } else if (!told) {
            warn_line(f->options->warn, f->options->user,
                      "another process is fetching %s; waiting for it", f->name);
            told = true;
        }
        close(fd);
        if (told)
            net_wait("waiting", 0.2);
    }
    return -1;
}

/* Whether an earlier try at the same file is there. */
static bool take_note(struct part *p)
{
    uint64_t bytes;
    struct note_head head;
    struct stat st;
    if (!fstat(p->fd, &st) && (uint64_t)st.st_size == p->bytes) {
        /* ended between its last byte and its name: the checksum says whether it is complete */
        for (size_t i = 0; i < p->n_segments; i++)
            p->done[i] = part_segment_bytes(p, i);
        return p->bytes;
    }
    uint8_t *note = note_read(p->fd, &bytes);
    if (!note)
        return false;
    memcpy(&head, note, sizeof head);
    const bool same = bytes == p->bytes && head.n == p->n_segments &&
                      head.segment_bytes == p->segment_bytes && !strcmp(head.sum, p->sum);
    for (size_t i = 0; same && i < p->n_segments; i++) {
        memcpy(&p->done[i], note + sizeof head + i * sizeof *p->done, sizeof *p->done);
        if (p->done[i] > part_segment_bytes(p, i))
            p->done[i] = 0;
    }
    free(note);
    return same;
}

static oato_status write_failed(const struct part *p, struct oato_error *err)
{
    struct statvfs fs;
    const int e = errno ? errno : EIO;
    if (e == ENOSPC && !fstatvfs(p->fd, &fs))
        return oato_fail(err, OATO_EIO,
                         "%s: cannot write: %s (%.2f GB of it are to come, %.2f GB are "
                         "free): make room, or set OATO_CACHE",
                         p->path, strerror(e), (double)(p->bytes - part_done(p)) * 1e-9,
                         (double)fs.f_bavail * (double)fs.f_frsize * 1e-9);
    return oato_fail(err, OATO_EIO, "%s: cannot write: %s", p->path, strerror(e));
}

static oato_status reserve(struct part *p, struct oato_error *err)
{
    errno = 0;
    return fd_allocate(p->fd, p->bytes + note_bytes(p->n_segments)) ? write_failed(p, err)
                                                                    : OATO_OK;
}

oato_status part_open(struct part *p, const struct fetch *f, bool *complete, struct oato_error *err)
{
    struct text path;
    uint64_t bytes, done;
    memset(p, 0, sizeof *p);
    p->fd = -1;
    p->target = f->path;
    p->bytes = f->bytes;
    p->segment_bytes = (f->bytes / SEGMENTS / SEGMENT_LEAST + 1) * SEGMENT_LEAST;
    p->n_segments = (size_t)((f->bytes + p->segment_bytes - 1) / p->segment_bytes);
    p->done = calloc(p->n_segments + 1, sizeof *p->done);
    snprintf(p->sum, sizeof p->sum, "%s", f->sum);
    text_init(&path);
    text_printf(&path, "%s" PART_SUFFIX, f->path);
    p->path = path.data;
    *complete = false;
    if (path.failed || !p->done) {
        part_close(p, false);
        return oato_fail_memory(err, p->n_segments * sizeof *p->done, "a download");
    }
    const int fd = lock_file(p, f);
    if (fd < 0) {
        fd == -1 ? net_stopped(err)
                 : oato_fail(err, OATO_EIO, "%s: cannot create: %s", p->path, strerror(errno));
        part_close(p, false);
        return err->status;
    }
    p->fd = fd;
    *complete = is_complete(f);
    if (*complete) {
        part_close(p, true);
        return OATO_OK;
    }
    p->fresh = !take_note(p);
    if (p->fresh) {
        if (part_look(p->path, &bytes, &done) && done)
            warn_line(f->options->warn, f->options->user,
                      "%s is not what it was at the last try; fetching it from the beginning",
                      f->name);
        part_reset(p);
    }
    if (reserve(p, err)) {
        part_close(p, p->fresh);
        return err->status;
    }
    return OATO_OK;
}

void part_reset(struct part *p)
{
    memset(p->done, 0, p->n_segments * sizeof *p->done);
    if (RETRY(ftruncate(p->fd, 0)))
        p->fresh = true; /* its size is set again, and the checksum sees everything */
}

/* --------------------------------------------------------------------------------- data ---- */

uint64_t part_segment_bytes(const struct part *p, size_t i)
{
    const uint64_t begin = i * p->segment_bytes, left = p->bytes - begin;
    return left < p->segment_bytes ? left : p->segment_bytes;
}

uint64_t part_done(const struct part *p)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < p->n_segments; i++)
        sum += p->done[i];
    return sum;
}

/* All of it at an offset, without moving a file position. */
static bool write_at(int fd, uint64_t offset, const void *data, size_t bytes)
{
    const uint8_t *from = data;
    errno = 0;
    while (bytes) {
        const ssize_t n = RETRY(pwrite(fd, from, bytes, (off_t)offset));
        if (n <= 0)
            return false;
        from += n;
        offset += (uint64_t)n;
        bytes -= (size_t)n;
    }
    return true;
}

oato_status part_write(struct part *p, size_t segment, const void *data, size_t bytes,
                       struct oato_error *err)
{
    if (!write_at(p->fd, segment * p->segment_bytes + p->done[segment], data, bytes))
        return write_failed(p, err);
    p->done[segment] += bytes;
    return OATO_OK;
}

oato_status part_note(struct part *p, struct oato_error *err)
{
    const size_t size = note_bytes(p->n_segments), data = p->n_segments * sizeof *p->done;
    struct note_head head = {.segment_bytes = p->segment_bytes, .n = p->n_segments};
    struct note_foot foot = {.bytes = p->bytes};
    uint8_t *note = malloc(size);
    if (!note)
        return oato_fail_memory(err, size, "a note");
    memcpy(head.sum, p->sum, sizeof p->sum);
    memcpy(note, &head, sizeof head);
    memcpy(note + sizeof head, p->done, data);
    foot.hash = hash_bytes(note, sizeof head + data);
    memcpy(foot.magic, magic, sizeof magic);
    memcpy(note + sizeof head + data, &foot, sizeof foot);
    const bool ok = write_at(p->fd, p->bytes, note, size);
    free(note);
    return ok ? OATO_OK : write_failed(p, err);
}

oato_status part_finish(struct part *p, struct oato_error *err)
{
    errno = 0;
    if (RETRY(ftruncate(p->fd, (off_t)p->bytes)) || RETRY(fsync(p->fd)) ||
        RETRY(rename(p->path, p->target)))
        return write_failed(p, err);
    folder_sync(p->target);
    return OATO_OK;
}

void part_close(struct part *p, bool remove)
{
    if (p->fd >= 0 && remove)
        unlink(p->path); /* before the lock ends */
    if (p->fd >= 0)
        close(p->fd);
    free(p->path);
    free(p->done);
    memset(p, 0, sizeof *p);
    p->fd = -1;
}
