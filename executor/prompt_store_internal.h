/*
 * prompt_store_internal.h - shared by prompt_store.c, which opens the folder and writes, and
 * prompt_read.c, which reads.
 *
 * Invariant: what the index says is here was written by rename, so a file is a whole piece or was
 * damaged later, which its hashes tell. Data belongs to one at a time: to who asked for room, to
 * the queue, to the read whose next piece it is. Files are touched without the lock, and only by
 * the two threads.
 */
#ifndef OATO_PROMPT_STORE_INTERNAL_H
#define OATO_PROMPT_STORE_INTERNAL_H

#include "executor/prompt_index.h"
#include "executor/prompt_store.h"

#include <pthread.h>
#include <time.h>

#define PROMPT_NS_BYTE 2.0 /* of reading, before anything was read: 500 MB/s */

enum { PROMPT_SPARES = 8 }; /* rooms of each part that are kept */

struct waiting {
    struct waiting *next;
    uint64_t key;
    enum prompt_part part;
    int64_t used;
    void *data;
    int32_t n, ids[];
};

struct prompt_read {
    struct prompt_store *store;
    struct prompt_read *next;
    struct prompt_piece *pieces;
    void **data; /* parallel to the pieces: read and not used yet */
    int32_t *ids;
    int32_t n_pieces, n_read, n_used;
    uint64_t ahead;          /* bytes that were read and not used */
    bool failed, busy, gone; /* busy: the thread reads for it; gone: its owner wants it no more */
};

struct prompt_store {
    struct prompt_store_options o;
    uint64_t origin; /* key of the empty text */
    pthread_t writer, reader;
    int n_threads;
    pthread_mutex_t
        *lock; /* of all that follows: &lock_room, so that who only looks has a const store */
    pthread_mutex_t lock_room;
    pthread_cond_t write, read, was_read;
    bool stop;
    uint64_t stop_ns; /* when to stop in any case */
    struct prompt_index index;
    struct waiting *first, **last;
    uint64_t removed; /* entries that the reader has taken out, whose files are gone */
    bool touched;     /* files are to be told when they were used */
    struct prompt_read *reads;
    void *spare[PROMPT_PARTS][PROMPT_SPARES];
    int n_spare[PROMPT_PARTS];
    uint64_t paused_ns; /* until then nothing is written */
    double ns_byte;
    bool warned_read, warned_write;
    struct prompt_store_stats stats;
};

static inline void store_lock(const struct prompt_store *s)
{
    pthread_mutex_lock(s->lock);
}

static inline void store_unlock(const struct prompt_store *s)
{
    pthread_mutex_unlock(s->lock);
}

/* A line for whoever opened the store, unless there was one of that kind. */
void store_warn(struct prompt_store *s, bool *warned, const char *file, const char *what,
                const char *so);
/* With the lock. Room for the data of a part; NULL: memory is short. Back; NULL is ignored. */
void *data_take(struct prompt_store *s, enum prompt_part part);
void data_give(struct prompt_store *s, enum prompt_part part, void *data);
/* The record that the file of a piece holds. */
struct prompt_record record_of(const struct prompt_store *s, enum prompt_part part,
                               const int32_t *ids, int32_t n);
struct timespec time_after(uint64_t ns);
void *reader_run(void *store); /* prompt_read.c: the thread that reads */

#endif
