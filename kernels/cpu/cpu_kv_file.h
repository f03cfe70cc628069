/*
 * cpu_kv_file.h - KV that stays in a file and passes through rooms in memory at every step
 * (cpu_kv_file.c). Not for other rooms of the house.
 */
#ifndef OATO_CPU_KV_FILE_H
#define OATO_CPU_KV_FILE_H

#include "kernels/core/core_internal.h"

struct kv_file; /* of a cache with layers in a file; NULL: it has none, all functions take that */

/* Makes the file in a folder (NULL: that of files that can be made again), which no name leads to
 * and whose room is taken now. The id and the cache are borrowed, its data is set. */
oato_status kv_file_open(const struct kv_cache *kv, const char *id, const char *folder,
                         struct kv_file **out, struct oato_error *err);
/* Of a record: how many of a step's layers must be there when it begins, and how many have been
 * used when it ends; 0: as many as before. */
struct kv_use {
    uint32_t needs, used;
};
/* *uses, to be freed, for each record. NULL: nothing is in a file. */
oato_status kv_file_compile(struct kv_file *f, const struct program *p, struct kv_use **uses,
                            struct oato_error *err);
/* A step begins: its pages' earlier positions are read layer by layer, and written again where it
 * adds some. */
void kv_file_begin(struct kv_file *f, const struct step *step);
/* Waits for so many layers of the step. False: they will never be there, or *stop. */
bool kv_file_wait(struct kv_file *f, uint32_t layers, const _Atomic bool *stop);
/* So many of the step's layers have their new positions, and nothing reads them any more. */
void kv_file_used(struct kv_file *f, uint32_t layers);
bool kv_file_failed(struct kv_file *f, struct oato_error *err);
uint64_t kv_file_read(const struct kv_file *f); /* bytes so far */
void kv_file_close(struct kv_file *f);

#endif
