/*
 * text_file.h - one text's memory in a file: the pieces of its whole pages that an engine holds, as
 * records (prompt_file.h) one behind the other, to be put back into an engine later. For whoever
 * names what is kept himself; engine_options.prompt_cache does it unasked.
 */
#ifndef OATO_TEXT_FILE_H
#define OATO_TEXT_FILE_H

#include "executor/executor.h"

/* Calls work(arg) on the engine's thread, between two steps, and returns behind it. False: the
 * engine is gone, and nothing was called. */
typedef bool engine_turn(void *user, void (*work)(void *arg), void *arg);

/* Makes the folder of such files, and fails (OATO_EIO) unless files can be created in it; who:
 * wants that, for the message. */
oato_status text_folder_use(const char *path, const char *who, struct oato_error *err);

struct text_file {
    struct engine *engine;
    engine_turn *turn; /* for each piece: steps go on between two of them */
    void *user;
};

/* Writes what there is in memory of n ids; *tokens: how many of them a prompt can begin with then,
 * *bytes: of the file. OATO_NEGATIVE: there is nothing, and the file is not touched. OATO_EUSAGE:
 * this engine keeps no prompts. */
oato_status text_file_save(const struct text_file *t, const int32_t *ids, int32_t n,
                           const char *path, int32_t *tokens, uint64_t *bytes,
                           struct oato_error *err);
/* Puts a file's pieces into memory, as if they had been computed. *ids: its tokens, *n of them,
 * malloc'ed. OATO_EFILE: it is damaged, or another model's or engine's; OATO_EFIT: there is no
 * room. What was read before stays. */
oato_status text_file_load(const struct text_file *t, const char *path, int32_t **ids, int32_t *n,
                           int32_t *tokens, uint64_t *bytes, struct oato_error *err);
/* On the engine's thread: no later prompt begins with what is in memory of the text. */
void engine_forget(struct engine *e, const int32_t *ids, int32_t n);

#endif
