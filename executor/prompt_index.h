/*
 * prompt_index.h - the files of a prompt cache's folder, in memory: which pieces there are, how
 * large they are, when each was last used, and so which go first. Other servers may use the folder
 * at the same time. One thread at a time, but for what is said below.
 */
#ifndef OATO_PROMPT_INDEX_H
#define OATO_PROMPT_INDEX_H

#include "executor/prompt_file.h"

struct prompt_entry {
    uint64_t key;
    enum prompt_part part;
    uint64_t bytes; /* of the file */
    int64_t used;   /* when last, in ns since 1970; the file's time of modification keeps it */
    bool here;      /* false: still to be written; then it does not count */
    bool touched;   /* the file does not know yet when it was used */
    bool seen;      /* of a scan */
    struct prompt_entry *next;
};

struct prompt_index {
    char *folder;
    uint64_t most, bytes; /* of all files that are here */
    struct prompt_entry **buckets;
    size_t n_buckets, n;
};

/* The name of a piece's file, with the folder, appended. */
void prompt_index_path(const struct prompt_index *x, uint64_t key, enum prompt_part part,
                       struct text *out);
/* NULL: there is none. */
struct prompt_entry *prompt_index_find(const struct prompt_index *x, uint64_t key,
                                       enum prompt_part part);
/* One that is still to be written. NULL: memory is short. */
struct prompt_entry *prompt_index_add(struct prompt_index *x, uint64_t key, enum prompt_part part,
                                      int64_t used);
void prompt_index_here(struct prompt_index *x, struct prompt_entry *e, uint64_t bytes);
/* Forgets it; the file stays. */
void prompt_index_remove(struct prompt_index *x, struct prompt_entry *e);
/* Forgets files, the longest unused first, until so many more bytes have room, and appends their
 * names, a line each, to `gone`, for the caller to remove. False: those that are left were used
 * after `used`, or the bytes never have room. */
bool prompt_index_room(struct prompt_index *x, uint64_t bytes, int64_t used, struct text *gone);
void prompt_index_free(struct prompt_index *x);

/* What a folder holds. */
struct prompt_scan {
    struct prompt_found {
        uint64_t key, bytes;
        enum prompt_part part;
        int64_t used;
    } * found;
    size_t n, cap;
};
/* Any thread. tidy: also removes what a writer that was killed has left. False: it cannot be read.
 */
bool prompt_scan_make(const char *folder, bool tidy, struct prompt_scan *out);
/* Takes over what a scan has found: other servers' files are new, and those that are gone are
 * forgotten. Frees the scan. True: there was any such. */
bool prompt_index_merge(struct prompt_index *x, struct prompt_scan *scan);

#endif
