/*
 * storage.c - the rate at which a file is read from its beginning to its end, as weights are that
 * do not fit into memory: a file of random bytes in the folder of prepared weights, written for the
 * purpose, read past the page cache with one and with several reads on their way.
 *
 * Storage that others use, too, gives half its rate in one minute and all of it in the next. So it
 * is read now and then for as long as the profile takes, and the rows are medians. Behind a virtual
 * machine's disk it may also be slow for the first few hundred MiB after a rest, so that the rate
 * of weights is that of the whole file, read as a step reads them.
 */
#include "profiler/profiler_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    FILE_BYTES = 1 << 30, /* about what streams in a step; more than the cache of a disk */
    QUICK_BYTES = 64 << 20,
    READS_MOST = 4096, /* whose latency counts, of one pass */
    PASSES_LEAST = 3,  /* however short the profile is */
    PASSES_MOST = 64,  /* the last ones count */
    PASSES_AGAIN = 6,  /* more, where some have twice the rate of others */
    PAUSE_SHARE = 20,  /* of the time at most one part is spent reading */
    QUICK_SHARE = 10,
};
#define ROW_NS         200000000
#define QUICK_NS       80000000
#define AGAIN_NS       UINT64_C(10000000000)
#define QUICK_AGAIN_NS UINT64_C(500000000)
#define BUFFER         ((size_t)READS_AHEAD * READ_CHUNK)

/* As the device reads ahead, and how it gets there. */
static const struct profile_storage rows[] = {
    {.depth = 1, .bytes = READ_ALIGN},
    {.depth = 1, .bytes = READ_CHUNK},
    {.depth = READS_AHEAD, .bytes = READ_CHUNK},
};

struct storage_meter {
    struct direct_file file;
    uint8_t *buffer;
    bool quick;
    uint64_t due_ns; /* of the next pass */
    int32_t passes;
    double rate[ARRAY_LEN(rows)][PASSES_MOST], latency[ARRAY_LEN(rows)][PASSES_MOST];
};

static void fill_randomly(uint64_t *block, uint64_t seed)
{
    uint64_t x = seed * 2654435769u + 1;
    for (size_t i = 0; i < READ_CHUNK / sizeof *block; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        block[i] = x;
    }
}

/* Writes and syncs the file; 0, or errno. */
static int file_write(int fd, void *block, uint64_t bytes)
{
    for (uint64_t at = 0; at < bytes; at += READ_CHUNK) {
        fill_randomly(block, at / READ_CHUNK + 1);
        const ssize_t n = RETRY(pwrite(fd, block, READ_CHUNK, (off_t)at));
        if (n != READ_CHUNK)
            return n < 0 ? errno : ENOSPC;
        if (oato_interrupted)
            return EINTR;
    }
    if (RETRY(fdatasync(fd)))
        return errno;
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    return 0;
}

/* One row: reads round and round for the time; as weights are read, the whole file. The first
 * reads, which begin together, only fill the queue: those on their way at the end are not counted
 * either.
 */
static oato_status row_measure(const struct storage_meter *m, const struct profile_storage *row,
                               double *rate, double *latency, struct oato_error *err)
{
    const uint64_t ns = m->quick ? QUICK_NS : ROW_NS;
    const uint64_t end = m->file.bytes - m->file.bytes % row->bytes;
    const uint64_t first = (uint64_t)row->depth;
    const uint64_t least =
        row->depth > 1 && end > 2 * first * row->bytes ? end / row->bytes : 2 * first;
    double *took = malloc(READS_MOST * sizeof *took);
    uint64_t begun[READS_AHEAD] = {0}, asked = 0, done = 0, tag;
    struct reader *r;
    if (!took)
        return oato_fail_memory(err, READS_MOST * sizeof *took, "times of reads");
    oato_status status = reader_create(m->buffer, BUFFER, row->depth, false, &r, err);
    const uint64_t begin = now_ns();
    uint64_t last = begin, full = begin;
    while (!status && (last - begin < ns || done < least) && !oato_interrupted) {
        for (; asked - done < (uint64_t)row->depth; asked++) {
            begun[asked % READS_AHEAD] = now_ns();
            if (!reader_start(r, &m->file, asked * row->bytes % end,
                              m->buffer + asked % READS_AHEAD * READ_CHUNK, row->bytes, asked))
                break;
        }
        status = reader_wait(r, &tag, err);
        last = now_ns();
        if (!status && done < READS_MOST)
            took[done] = (double)(last - begun[tag % READS_AHEAD]);
        done += !status;
        full = done == first ? last : full;
    }
    if (!status && done > first) {
        *rate = (double)((done - first) * row->bytes) * 1e9 / (double)(last - full);
        *latency = quantile(took, (int32_t)(done < READS_MOST ? done : READS_MOST), 0.5);
    }
    reader_free(r);
    free(took);
    return status;
}

static oato_status pass_measure(struct storage_meter *m, struct oato_error *err)
{
    const int32_t at = m->passes % PASSES_MOST;
    const uint64_t begin_ns = now_ns();
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        if (row_measure(m, &rows[i], &m->rate[i][at], &m->latency[i][at], err))
            return err->status;
        if (oato_interrupted)
            return oato_fail(err, OATO_NEGATIVE, "interrupted");
    }
    m->passes++;
    m->due_ns = now_ns() + (now_ns() - begin_ns) * (m->quick ? QUICK_SHARE : PAUSE_SHARE);
    return OATO_OK;
}

oato_status storage_now_and_then(struct storage_meter *m, struct oato_error *err)
{
    return m && now_ns() >= m->due_ns ? pass_measure(m, err) : OATO_OK;
}

/* Whether something is read twice as fast in one second as in another. */
static bool contradicts(struct storage_meter *m)
{
    const int32_t n = m->passes < PASSES_MOST ? m->passes : PASSES_MOST;
    bool any = false;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++)
        any = any || times_disagree(quantile(m->rate[i], n, 0.1), quantile(m->rate[i], n, 0.9));
    return any;
}

oato_status storage_put(struct storage_meter *m, struct profile *p, struct oato_error *err)
{
    struct profile_storage measured[ARRAY_LEN(rows)];
    if (!m)
        return OATO_OK;
    while (m->passes < PASSES_LEAST)
        if (pass_measure(m, err))
            return err->status;
    const uint64_t end_ns = now_ns() + (m->quick ? QUICK_AGAIN_NS : AGAIN_NS);
    for (int i = 0; i < PASSES_AGAIN && now_ns() < end_ns && contradicts(m); i++)
        if (pass_measure(m, err))
            return err->status;
    const int32_t n = m->passes < PASSES_MOST ? m->passes : PASSES_MOST;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        measured[i] = rows[i];
        measured[i].direct = m->file.direct;
        measured[i].bytes_per_s = floor(quantile(m->rate[i], n, 0.5));
        measured[i].p10_bytes_per_s = floor(quantile(m->rate[i], n, 0.1));
        measured[i].p90_bytes_per_s = floor(quantile(m->rate[i], n, 0.9));
        measured[i].contradicts =
            times_disagree(measured[i].p10_bytes_per_s, measured[i].p90_bytes_per_s);
        measured[i].passes = n;
        measured[i].latency_ns = readable_ns(quantile(m->latency[i], n, 0.5));
    }
    return profile_put_storage(p, measured, ARRAY_LEN(rows))
               ? OATO_OK
               : oato_fail_memory(err, sizeof measured, "a profile");
}

void storage_end(struct storage_meter *m)
{
    if (!m)
        return;
    direct_close(&m->file);
    pages_free(m->buffer, BUFFER);
    free(m);
}

/* The file, which has no name any more once it is open. */
static oato_status file_make(struct storage_meter *m, char *path, warn_fn warn, void *user,
                             struct oato_error *err)
{
    const int fd = temporary_make(path);
    const int failed =
        fd < 0 ? errno : file_write(fd, m->buffer, m->quick ? QUICK_BYTES : FILE_BYTES);
    oato_status status = OATO_OK;
    if (oato_interrupted)
        status = oato_fail(err, OATO_NEGATIVE, "interrupted");
    else if (!failed)
        status = direct_open(path, &m->file, err);
    else
        warn_line(warn, user,
                  "%s: %s: storage is not measured, and plans stream nothing from it; name another "
                  "folder with --storage",
                  path, strerror(failed));
    if (fd >= 0) {
        close(fd);
        unlink(path);
    }
    return status;
}

oato_status storage_begin(const char *folder, bool quick, struct storage_meter **out, warn_fn warn,
                          void *user, struct oato_error *err)
{
    struct storage_meter *m = calloc(1, sizeof *m);
    struct text path;
    text_init(&path);
    if (folder)
        text_printf(&path, "%s", folder);
    else
        cache_folder(&path);
    text_printf(&path, "/oato-storage-XXXXXX");
    *out = NULL;
    if (!m) {
        text_free(&path);
        return oato_fail_memory(err, sizeof *m, "reading storage");
    }
    *m = (struct storage_meter){.file.fd = -1, .quick = quick, .buffer = pages_alloc(BUFFER)};
    oato_status status = m->buffer && !path.failed
                             ? file_make(m, path.data, warn, user, err)
                             : oato_fail_memory(err, BUFFER, "reading storage");
    text_free(&path);
    if (status || m->file.fd < 0) {
        storage_end(m);
        m = NULL;
    }
    *out = m;
    return status;
}
