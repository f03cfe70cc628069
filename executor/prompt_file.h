/*
 * prompt_file.h - a piece of a prompt's memory in a file: what one page of KV, or the state behind
 * it, holds, and the tokens that it was computed from. The format is docs/prompt-format.md.
 */
#ifndef OATO_PROMPT_FILE_H
#define OATO_PROMPT_FILE_H

#include "base/base.h"

/* What belongs to the end of a text of whole pages: its last page of layers without a window, the
 * one of layers with a window, and the recurrent state behind it. The first two number as enum
 * kv_kind does. */
enum prompt_part { PROMPT_PAGE, PROMPT_WINDOW, PROMPT_STATE, PROMPT_PARTS };
extern const char *const prompt_part_names[PROMPT_PARTS];

/* Whose it is. Two engines with the same one give the same tokens the same bytes. */
struct prompt_identity {
    uint64_t structure, content; /* hashes of the model */
    uint64_t engine;             /* of layers, types, arithmetic and placement (engine_identity) */
};

/* A record: a header, tokens [first, n) of the text, the data. A text begins at token 0, but tokens
 * before `first` are those of earlier records in the same file. */
struct prompt_record {
    enum prompt_part part;
    int32_t first, n;   /* n: a multiple of the positions of a page */
    const int32_t *ids; /* of the text, n of them */
    uint64_t bytes;     /* of the data */
};

uint64_t prompt_record_bytes(const struct prompt_record *r); /* with header and tokens */
/* Appends the record. */
oato_status prompt_record_write(struct outfile *f, const struct prompt_identity *who,
                                const struct prompt_record *r, const void *data,
                                struct oato_error *err);
/* Reads exactly this record, at an offset of the file, into `data`. OATO_EFILE: there is another
 * one or it is damaged, and err says what is wrong without naming the file. OATO_EIO: the file
 * cannot be read. In both cases `data` is not to be used. */
oato_status prompt_record_read(int fd, uint64_t offset, const struct prompt_identity *who,
                               const struct prompt_record *r, void *data, struct oato_error *err);
/* What the record at an offset says of itself: part, first, n and bytes are set, ids are not.
 * OATO_EFILE as above; also when it is not of `who`. */
oato_status prompt_record_head(int fd, uint64_t offset, const struct prompt_identity *who,
                               struct prompt_record *r, struct oato_error *err);
/* Tokens [first, n) of that record, which must be read as a whole afterwards: nothing is checked
 * here. */
oato_status prompt_record_ids(int fd, uint64_t offset, const struct prompt_record *r, int32_t *ids,
                              struct oato_error *err);
/* Opens a file to write records into, for its owner alone, because it tells what somebody asked.
 * OATO_EIO: it cannot be made, or something else than a file has that name: a link would lead out
 * of the folder, and a pipe waits for a reader. */
oato_status prompt_file_open(struct outfile *f, const char *path, struct oato_error *err);
/* NULL, or why a file is not trusted: hashes detect damage, not intent. */
const char *prompt_file_owner(int fd);

#endif
