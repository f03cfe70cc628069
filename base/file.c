/*
 * file.c - reading by mapping, writing by temporary name + fsync + rename: a reader never sees
 * half a file and a failed write leaves the old one.
 */
#include "base/base.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Linux maps 64 KiB around a page that is touched, and from 6.18 on the whole folio, which ends at
 * multiples of this; all of it must go with the page. */
#define FAULT_AROUND_BYTES ((size_t)2 << 20)

oato_status file_map(const char *path, struct mapped_file *out, struct oato_error *err)
{
    memset(out, 0, sizeof *out);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
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
            status = oato_fail(err, OATO_EIO, "%s: cannot map: %s", path, strerror(errno));
        } else {
            out->data = p;
            out->bytes = (size_t)st.st_size;
        }
    }
    close(fd);
    return status;
}

void file_unmap(struct mapped_file *f)
{
    if (f->data)
        munmap((void *)f->data, f->bytes);
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
    file_advise(f, offset, bytes, FAULT_AROUND_BYTES, MADV_DONTNEED);
}

void file_prefetch(const struct mapped_file *f, size_t offset, size_t bytes)
{
    file_advise(f, offset, bytes, (size_t)sysconf(_SC_PAGESIZE), MADV_WILLNEED);
}

static oato_status write_failed(struct outfile *f, struct oato_error *err)
{
    oato_status status =
        oato_fail(err, OATO_EIO, "%s: cannot write: %s", f->path, strerror(errno ? errno : EIO));
    outfile_abort(f);
    return status;
}

oato_status outfile_open(struct outfile *f, const char *path, struct oato_error *err)
{
    memset(f, 0, sizeof *f);
    struct stat st;
    if (!stat(path, &st) && S_ISDIR(st.st_mode))
        return oato_fail(err, OATO_EIO, "%s: is a directory", path);
    size_t bytes = strlen(path) + 16;
    f->path = strdup(path);
    f->temporary = calloc(bytes, 1);
    if (!f->path || !f->temporary) {
        outfile_abort(f);
        return oato_fail_memory(err, bytes, "a file name");
    }
    snprintf(f->temporary, bytes, "%s.XXXXXX", path);
    int fd = mkostemp(f->temporary, O_CLOEXEC);
    if (fd < 0) {
        oato_fail(err, OATO_EIO, "%s: cannot create: %s", path, strerror(errno));
        f->temporary[0] = 0;
        outfile_abort(f);
        return err->status;
    }
    mode_t mask = umask(0);
    umask(mask);
    fchmod(fd, 0666 & ~mask);
    f->stream = fdopen(fd, "wb");
    if (!f->stream) {
        close(fd);
        return write_failed(f, err);
    }
    return OATO_OK;
}

oato_status outfile_write(struct outfile *f, const void *data, size_t bytes, struct oato_error *err)
{
    if (bytes && fwrite(data, 1, bytes, f->stream) != bytes)
        return write_failed(f, err);
    return OATO_OK;
}

static void sync_directory(const char *path)
{
    char *copy = strdup(path);
    if (!copy)
        return;
    int fd = open(dirname(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) {
        fsync(fd);
        close(fd);
    }
    free(copy);
}

oato_status outfile_commit(struct outfile *f, struct oato_error *err)
{
    errno = 0;
    if (ferror(f->stream) || fflush(f->stream) || fsync(fileno(f->stream)))
        return write_failed(f, err);
    FILE *stream = f->stream;
    f->stream = NULL;
    if (fclose(stream) || rename(f->temporary, f->path))
        return write_failed(f, err);
    f->temporary[0] = 0; /* it has its name now: abort must not remove it */
    sync_directory(f->path);
    outfile_abort(f);
    return OATO_OK;
}

void outfile_abort(struct outfile *f)
{
    if (f->stream)
        fclose(f->stream);
    if (f->temporary && f->temporary[0])
        unlink(f->temporary);
    free(f->temporary);
    free(f->path);
    memset(f, 0, sizeof *f);
}
