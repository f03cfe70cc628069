/*
 * prompt_store.h - the prompt cache that lasts: pieces of prompts' memory (prompt_file.h) in a
 * folder, bounded, the longest unused go first. Two threads of its own write and read the files, so
 * that whoever computes only copies. A piece is found by a hash of its text and used only if the
 * file has that very text; what cannot be read is as if it were not there, and what cannot be
 * written is not kept: neither makes a request fail. Servers may share a folder.
 *
 * Functions may be called from any thread, but those on a read by one at a time.
 */
#ifndef OATO_PROMPT_STORE_H
#define OATO_PROMPT_STORE_H

#include "executor/prompt_file.h"

struct prompt_store; /* opaque */

struct prompt_store_options {
    const char *folder;  /* made if it is missing; copied */
    uint64_t most_bytes; /* of all files in it, also those of other models */
    struct prompt_identity who;
    uint64_t bytes[PROMPT_PARTS]; /* of the data of each part */
    int32_t page;                 /* tokens of one page */
    warn_fn warn;                 /* gets at most one line about reading and one about writing, */
    void *user;                   /* from any thread */
};

/* OATO_EIO: nothing can be written in the folder. Removes what a writer that was killed has left
 * there, and the longest unused files of a folder that holds too much. */
oato_status prompt_store_open(const struct prompt_store_options *o, struct prompt_store **out,
                              struct oato_error *err);
/* Writes what is waiting, for at most 10 seconds. All reads must have been ended. */
void prompt_store_close(struct prompt_store *s);

/* The key of a text that goes on with a page of these tokens behind the one of that key; 0: at the
 * beginning. */
uint64_t prompt_store_key(const struct prompt_store *s, uint64_t before, const int32_t *ids);

/* ------------------------------------------------------------------------------- writing - */

/* False: for now nothing is taken, because writing failed. */
bool prompt_store_writes(const struct prompt_store *s);
/* Whether the piece is there or about to be written; then `used`, a time of prompt_store_now, says
 * when it was last used. */
bool prompt_store_use(struct prompt_store *s, uint64_t key, enum prompt_part part, int64_t used);
/* Nanoseconds since 1970. Of the pages of a text used at the same time each gets one less than the
 * page before it, so that texts are forgotten from their ends. */
int64_t prompt_store_now(void);
/* Room for the data of such a part. NULL: as much as may wait is waiting. */
void *prompt_store_room(struct prompt_store *s, enum prompt_part part);
/* Has that room written: the piece that ends the text of n ids, which are copied. */
void prompt_store_put(struct prompt_store *s, uint64_t key, enum prompt_part part,
                      const int32_t *ids, int32_t n, int64_t used, void *data);
/* Gives the room back unwritten. */
void prompt_store_drop(struct prompt_store *s, enum prompt_part part, void *data);

/* ------------------------------------------------------------------------------- reading - */

/* Whether the piece can be read. */
bool prompt_store_has(const struct prompt_store *s, uint64_t key, enum prompt_part part);
/* Nanoseconds that reading is expected to take, by what reading has taken so far. */
double prompt_store_read_ns(const struct prompt_store *s, uint64_t bytes, int32_t pieces);
/* Reading was not worth it: the expectation slowly gets better, so that it is tried again. */
void prompt_store_doubt(struct prompt_store *s);

struct prompt_piece {
    uint64_t key;
    enum prompt_part part;
    int32_t n; /* tokens of its text */
};
struct prompt_read;
/* Reads pieces of a text of n ids, in order, ahead of their use; all is copied. NULL: memory is
 * short. */
struct prompt_read *prompt_store_read(struct prompt_store *s, const int32_t *ids, int32_t n,
                                      const struct prompt_piece *pieces, int32_t n_pieces);
enum prompt_reading {
    PROMPT_WAIT, /* the next one is still being read */
    PROMPT_NEXT, /* *data is the next one's, until prompt_read_used */
    PROMPT_END   /* all were used, or the next one cannot be read */
};
enum prompt_reading prompt_read_next(struct prompt_read *r, void **data);
void prompt_read_used(struct prompt_read *r);
/* Returns when the next piece is there, at the end, or after so many nanoseconds. */
void prompt_read_wait(struct prompt_read *r, uint64_t most_ns);
void prompt_read_end(struct prompt_read *r);
/* Counts a read that spared so many tokens. */
void prompt_store_count(struct prompt_store *s, int32_t tokens);

/* --------------------------------------------------------------------------- information - */

struct prompt_store_stats {
    uint64_t bytes, most_bytes;                        /* of the folder's files */
    uint64_t pieces;                                   /* in it, of any model */
    uint64_t waiting_bytes;                            /* of pieces to be written */
    uint64_t written, written_bytes, read, read_bytes; /* pieces so far */
    uint64_t used, tokens; /* reads that spared something, and the tokens */
    uint64_t evicted;      /* pieces that made room for others */
    uint64_t failed;       /* pieces that could not be read or written */
    double read_bytes_per_s;
};
void prompt_store_get_stats(const struct prompt_store *s, struct prompt_store_stats *out);

#endif
