/*
 * outfile.c - files that are written whole or not at all: written beside the target under a
 * temporary name, synced, renamed. A reader never sees half a file, a failed write leaves the old
 * one, and an input of the program or somebody's model is never replaced.
 *
 * The temporary name is the target's own with a suffix, so that a process that is killed leaves at
 * most one such file, which the next writer takes over. Who writes it holds a lock on it; a second
 * writer at the same time takes a random name.
 */
#include "base/base.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* -------------------------------------------------------------- what must not be replaced --- */

enum { KEPT_MAX = 16 };

static struct {
    dev_t device;
    ino_t inode;
} kept[KEPT_MAX];
static int n_kept;

void outfile_keep(const char *path)
{
    struct stat st;
    if (!path || n_kept == KEPT_MAX || stat(path, &st) || !S_ISREG(st.st_mode))
        return;
    kept[n_kept].device = st.st_dev;
    kept[n_kept++].inode = st.st_ino;
}

static bool is_kept(const struct stat *st)
{
    for (int i = 0; i < n_kept; i++)
        if (kept[i].device == st->st_dev && kept[i].inode == st->st_ino)
            return true;
    return false;
}

/* The one magic that base knows: a model is gigabytes that somebody fetched. */
static bool is_gguf(const char *path)
{
    char magic[4] = "";
    int fd = RETRY(open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (fd < 0)
        return false;
    const ssize_t n = RETRY(read(fd, magic, sizeof magic));
    close(fd);
    return n == (ssize_t)sizeof magic && !memcmp(magic, "GGUF", sizeof magic);
}

static oato_status check_kept(const char *path, const struct stat *st, struct oato_error *err)
{
    return is_kept(st) ? oato_fail(err, OATO_EUSAGE,
                                   "%s: is an input of this command and is not overwritten; name "
                                   "another output",
                                   path)
                       : OATO_OK;
}

static oato_status check_model(const char *path, struct oato_error *err)
{
    struct stat st;
    return !stat(path, &st) && S_ISREG(st.st_mode) && is_gguf(path)
               ? oato_fail(err, OATO_EUSAGE,
                           "%s: is a GGUF file and is not overwritten; name another "
                           "output, or remove it first",
                           path)
               : OATO_OK;
}

/* -------------------------------------------------------------------------------- writing --- */

static oato_status write_failed(struct outfile *f, struct oato_error *err)
{
    oato_status status = errno == ENOMEM ? oato_fail_memory(err, BUFSIZ, f->path)
                                         : oato_fail(err, OATO_EIO, "%s: cannot write: %s", f->path,
                                                     strerror(errno ? errno : EIO));
    outfile_abort(f);
    return status;
}

static bool is_stdout(const struct stat *st)
{
    struct stat out;
    return !fstat(STDOUT_FILENO, &out) && out.st_dev == st->st_dev && out.st_ino == st->st_ino;
}

/* True when fd is a file of ours alone, and still the one of this name. */
static bool is_own(int fd, const char *name)
{
    struct stat st, named;
    return !fstat(fd, &st) && !lstat(name, &named) && st.st_dev == named.st_dev &&
           st.st_ino == named.st_ino && S_ISREG(st.st_mode) && st.st_nlink == 1 &&
           st.st_uid == geteuid();
}

/* Opens the temporary file; its name then is in f->temporary. -1 with errno on failure. */
static int temporary_open(struct outfile *f, size_t bytes)
{
    snprintf(f->temporary, bytes, "%s.oato-part", f->target);
    int fd = RETRY(open(f->temporary, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK,
                        S_IRUSR | S_IWUSR));
    if (fd >= 0) {
        if (!RETRY(flock(fd, LOCK_EX | LOCK_NB)) && is_own(fd, f->temporary) &&
            !RETRY(ftruncate(fd, 0)))
            return fd;
        close(fd);
    }
    snprintf(f->temporary, bytes, "%s.XXXXXX", f->target);
    fd = temporary_make(f->temporary);
    if (fd >= 0)
        RETRY(flock(fd, LOCK_EX | LOCK_NB)); /* so that nobody takes it for one that was left */
    return fd;
}

static oato_status descriptor_take(struct outfile *f, int fd, struct oato_error *err)
{
    f->stream = stream_take(fd, "w");
    if (f->stream)
        return OATO_OK;
    const int e = errno;
    close(fd);
    errno = e;
    return write_failed(f, err);
}

/* Devices, FIFOs, and whatever standard output is. */
static oato_status open_through(struct outfile *f, const struct stat *st, struct oato_error *err)
{
    fflush(stdout);
    int fd = is_stdout(st) ? fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 0)
                           : RETRY(open(f->path, O_WRONLY | O_CLOEXEC));
    return fd < 0 ? write_failed(f, err) : descriptor_take(f, fd, err);
}

/* st: what is to be replaced; NULL: nothing is there. */
static oato_status open_beside(struct outfile *f, const struct stat *st, struct oato_error *err)
{
    f->target = st ? realpath(f->path, NULL) : strdup(f->path);
    const size_t bytes = f->target ? strlen(f->target) + 16 : 0;
    f->temporary = f->target ? calloc(bytes, 1) : NULL;
    if (!f->temporary) {
        outfile_abort(f);
        return oato_fail_memory(err, bytes, "a file name");
    }
    int fd = temporary_open(f, bytes);
    if (fd < 0) {
        oato_fail(err, OATO_EIO, "%s: cannot create: %s", f->path, strerror(errno));
        f->temporary[0] = 0;
        outfile_abort(f);
        return err->status;
    }
    const mode_t mask = umask(0);
    umask(mask);
    fchmod(fd, st ? st->st_mode & 0777 : 0666 & ~mask);
    return descriptor_take(f, fd, err);
}

oato_status outfile_open_over(struct outfile *f, const char *path, struct oato_error *err)
{
    struct stat st, link;
    memset(f, 0, sizeof *f);
    const bool there = !stat(path, &st);
    if (there && S_ISDIR(st.st_mode))
        return oato_fail(err, OATO_EIO, "%s: is a directory", path);
    if (there && check_kept(path, &st, err))
        return err->status;
    if (!there && !lstat(path, &link))
        return oato_fail(err, OATO_EIO,
                         "%s: is a dangling symbolic link; remove it or create its target", path);
    f->path = strdup(path);
    if (!f->path)
        return oato_fail_memory(err, strlen(path), "a file name");
    if (there && (!S_ISREG(st.st_mode) || is_stdout(&st)))
        return open_through(f, &st, err);
    return open_beside(f, there ? &st : NULL, err);
}

oato_status outfile_open(struct outfile *f, const char *path, struct oato_error *err)
{
    memset(f, 0, sizeof *f);
    oato_status status = outfile_open_over(f, path, err);
    if (!status && check_model(path, err)) {
        outfile_abort(f);
        status = err->status;
    }
    return status;
}

oato_status outfile_check(const char *path, struct oato_error *err)
{
    struct stat st;
    struct outfile f;
    if (!stat(path, &st) && !S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode))
        return OATO_OK; /* opening a pipe waits for its reader */
    if (outfile_open(&f, path, err))
        return err->status;
    outfile_abort(&f);
    return OATO_OK;
}

oato_status outfile_write(struct outfile *f, const void *data, size_t bytes, struct oato_error *err)
{
    if (bytes && fwrite(data, 1, bytes, f->stream) != bytes)
        return write_failed(f, err);
    return OATO_OK;
}

void folder_sync(const char *path)
{
    char *copy = strdup(path);
    if (!copy)
        return;
    int fd = RETRY(open(dirname(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (fd >= 0) {
        RETRY(fsync(fd));
        close(fd);
    }
    free(copy);
}

static oato_status commit(struct outfile *f, bool sync, struct oato_error *err)
{
    errno = 0;
    if (ferror(f->stream) || fflush(f->stream))
        return write_failed(f, err);
    if (f->target) {
        /* renamed before the lock ends with the stream: the next writer must not take it over */
        if ((sync && RETRY(fsync(stream_fd(f->stream)))) || RETRY(rename(f->temporary, f->target)))
            return write_failed(f, err);
        f->temporary[0] = 0; /* it has its name now: abort must not remove it */
        if (sync)
            folder_sync(f->target);
    }
    FILE *stream = f->stream;
    f->stream = NULL;
    if (fclose(stream))
        return write_failed(f, err);
    outfile_abort(f);
    return OATO_OK;
}

oato_status outfile_commit(struct outfile *f, struct oato_error *err)
{
    return commit(f, true, err);
}

oato_status outfile_commit_unsynced(struct outfile *f, struct oato_error *err)
{
    return commit(f, false, err);
}

void outfile_abort(struct outfile *f)
{
    if (f->temporary && f->temporary[0])
        unlink(f->temporary); /* before the lock ends with the stream */
    if (f->stream)
        fclose(f->stream);
    free(f->temporary);
    free(f->target);
    free(f->path);
    memset(f, 0, sizeof *f);
}

oato_status stdout_check(struct oato_error *err)
{
    errno = 0; /* a write that failed earlier has left the stream's mark alone */
    if (fflush(stdout) || ferror(stdout))
        return oato_fail(err, OATO_EIO, "standard output: %s", strerror(errno ? errno : EIO));
    return OATO_OK;
}

/* ----------------------------------------------------------------------------- folders ---- */

void folder_make(const char *path)
{
    char *copy = strdup(path);
    for (char *at = copy; at && (at = strchr(at + 1, '/')); *at = '/') {
        *at = 0;
        mkdir(copy, 0700);
    }
    if (copy)
        mkdir(copy, 0700);
    free(copy);
}

void cache_folder(struct text *out)
{
    const char *home = getenv("HOME"), *caches = getenv("XDG_CACHE_HOME");
    if (caches && *caches)
        text_printf(out, "%s/oato", caches);
    else
        text_printf(out, "%s/.cache/oato", or_empty(home));
    if (!out->failed)
        folder_make(out->data);
}
