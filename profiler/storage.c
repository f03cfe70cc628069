/*
 * storage.c - the rate at which a file is read from its beginning to its end, as weights are that
 * do not fit into memory: a file of random bytes in the folder of prepared weights, written for the
 * purpose, read past the page cache with few and with several reads on their way.
 */
#include "profiler/profiler_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    FILE_BYTES = 256 << 20, /* more than the cache of a disk */
    QUICK_BYTES = 32 << 20,
    BLOCK = 1 << 20, /* largest read; the file is a number of them */
    DEPTH = 8,
    SAMPLES = 4096,
};
#define ROW_NS   1000000000
#define QUICK_NS 60000000

/* As the device reads ahead, and how it gets there. */
static const struct profile_storage rows[] = {
    {.depth = 1, .bytes = READ_ALIGN},
    {.depth = 1, .bytes = BLOCK},
    {.depth = 2, .bytes = BLOCK},
    {.depth = DEPTH, .bytes = BLOCK},
};

static void fill_randomly(uint64_t *block, uint64_t seed)
{
    uint64_t x = seed * 2654435769u + 1;
    for (size_t i = 0; i < BLOCK / sizeof *block; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        block[i] = x;
    }
}

/* Writes and syncs the file; 0, or errno. */
static int file_write(int fd, void *block, uint64_t bytes)
{
    for (uint64_t at = 0; at < bytes; at += BLOCK) {
        fill_randomly(block, at / BLOCK + 1);
        const ssize_t n = pwrite(fd, block, BLOCK, (off_t)at);
        if (n != BLOCK)
            return n < 0 ? errno : ENOSPC;
        if (oato_interrupted)
            return EINTR;
    }
    if (fdatasync(fd))
        return errno;
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    return 0;
}

/* One row: reads round and round for the time. */
static oato_status row_measure(const struct direct_file *f, uint8_t *buffer, uint64_t ns,
                               struct profile_storage *row, struct oato_error *err)
{
    double *took = malloc(SAMPLES * sizeof *took);
    uint64_t begun[DEPTH] = {0}, asked = 0, done = 0, tag;
    struct reader *r;
    if (!took)
        return oato_fail_memory(err, SAMPLES * sizeof *took, "times of reads");
    oato_status status = reader_create(buffer, (size_t)DEPTH * BLOCK, row->depth, false, &r, err);
    const uint64_t begin = now_ns();
    uint64_t last = begin;
    while (!status && (last - begin < ns || done < DEPTH) && !oato_interrupted) {
        for (; asked - done < (uint64_t)row->depth; asked++) {
            begun[asked % DEPTH] = now_ns();
            if (!reader_start(r, f, asked * row->bytes % (f->bytes - f->bytes % row->bytes),
                              buffer + asked % DEPTH * BLOCK, row->bytes, asked))
                break;
        }
        status = reader_wait(r, &tag, err);
        last = now_ns();
        if (!status && done < SAMPLES)
            took[done] = (double)(last - begun[tag % DEPTH]);
        done += !status;
    }
    if (!status && done) {
        row->direct = f->direct;
        row->bytes_per_s = (double)(done * row->bytes) * 1e9 / (double)(last - begin);
        row->latency_ns =
            readable_ns(quantile(took, (int32_t)(done < SAMPLES ? done : SAMPLES), 0.5));
    }
    reader_free(r);
    free(took);
    return status;
}

static oato_status rows_measure(struct profile *p, const char *path, uint8_t *buffer, bool quick,
                                struct oato_error *err)
{
    struct profile_storage measured[ARRAY_LEN(rows)];
    struct direct_file f;
    oato_status status = direct_open(path, &f, err);
    if (status)
        return status;
    for (size_t i = 0; i < ARRAY_LEN(rows) && !status; i++) {
        measured[i] = rows[i];
        status = row_measure(&f, buffer, quick ? QUICK_NS : ROW_NS, &measured[i], err);
        measured[i].bytes_per_s = (double)(int64_t)measured[i].bytes_per_s;
        if (!status && oato_interrupted)
            status = oato_fail(err, OATO_NEGATIVE, "interrupted");
    }
    direct_close(&f);
    if (!status && !profile_put_storage(p, measured, ARRAY_LEN(rows)))
        status = oato_fail_memory(err, sizeof measured, "a profile");
    return status;
}

oato_status storage_measure(struct profile *p, const char *folder, bool quick, warn_fn warn,
                            void *user, struct oato_error *err)
{
    struct text path;
    text_init(&path);
    if (folder)
        text_printf(&path, "%s", folder);
    else
        cache_folder(&path);
    text_printf(&path, "/oato-storage-XXXXXX");
    uint8_t *buffer = pages_alloc((size_t)DEPTH * BLOCK);
    if (path.failed || !buffer) {
        pages_free(buffer, (size_t)DEPTH * BLOCK);
        text_free(&path);
        return oato_fail_memory(err, (size_t)DEPTH * BLOCK, "reading storage");
    }
    oato_status status = OATO_OK;
    const int fd = mkstemp(path.data);
    int failed = fd < 0 ? errno : file_write(fd, buffer, quick ? QUICK_BYTES : FILE_BYTES);
    if (failed && !oato_interrupted)
        warn_line(warn, user,
                  "%s: %s: storage is not measured, and plans stream nothing from it; name another "
                  "folder with --storage",
                  path.data, strerror(failed));
    if (!failed)
        status = rows_measure(p, path.data, buffer, quick, err);
    else if (oato_interrupted)
        status = oato_fail(err, OATO_NEGATIVE, "interrupted");
    if (fd >= 0) {
        close(fd);
        unlink(path.data);
    }
    pages_free(buffer, (size_t)DEPTH * BLOCK);
    text_free(&path);
    return status;
}
