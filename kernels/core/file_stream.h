/*
 * file_stream.h - what of a device stays in a file and passes through the host's memory at every
 * step: weights, through a ring, or the KV of layers, through rooms (file_stream.c). Shared by
 * devices; not for other rooms.
 */
#ifndef OATO_FILE_STREAM_H
#define OATO_FILE_STREAM_H

#include "kernels/core/core_internal.h"

struct file_stream; /* of a device, pieces of one sort; NULL: nothing is streamed from a file */

/* Adds a weight of `bytes` prepared bytes at source->stored, which will lie at ring + offset. In
 * the order in which every program uses them; *s is made by the first. The id is borrowed.
 * OATO_EDEVICE for a source without a file or places that are no multiples of READ_ALIGN. */
oato_status file_stream_add(struct file_stream **s, const char *id, const struct oato_weight *w,
                            uint64_t bytes, const struct weight_source *source, void *ring,
                            uint64_t offset, struct oato_error *err);
/* *needs, to be freed: for each record of this kind, which read what is streamed, how many of a
 * step's weights must have arrived; 0: it reads none. NULL: nothing is streamed. The first call
 * starts to read ahead. */
oato_status file_stream_compile(struct file_stream *s, const struct program *p,
                                enum record_kind kind, uint32_t **needs, struct oato_error *err);
/* A step begins, which uses all of them. s may be NULL. */
void file_stream_begin(struct file_stream *s);

/* The KV of the cache's layers in a file, NULL if there are none. The file is made in a folder
 * (NULL: that of files that can be made again); no name leads to it, and its room is taken now. The
 * id and the cache are borrowed, its data is set. A piece is a layer. */
oato_status file_stream_kv_open(const struct kv_cache *kv, const char *id, const char *folder,
                                struct file_stream **out, struct oato_error *err);
/* Of a record: how many of a step's layers must be there when it begins, and how many have been
 * used when it ends; 0: as many as before. */
struct kv_use {
    uint32_t needs, used;
};
/* *uses, to be freed, for each record. NULL: nothing is in a file. */
oato_status file_stream_kv_compile(struct file_stream *s, const struct program *p,
                                   struct kv_use **uses, struct oato_error *err);
/* Instead of file_stream_begin: the pages with earlier positions are read layer by layer, and
 * written again where the step adds some. */
void file_stream_kv_begin(struct file_stream *s, const struct step *step);

/* One thread asks for so many pieces of the step, and whoever reads them sleeps until they are
 * there: a thread that spins takes the processor from who reads. False: they will never be, or
 * *stop. */
void file_stream_want(struct file_stream *s, uint32_t pieces);
bool file_stream_wait(struct file_stream *s, uint32_t pieces, const _Atomic bool *stop);
/* Of a weight of several slices the step needs those whose byte is not 0. Before
 * file_stream_chosen, which says that the choice is made for the step's first so many weights:
 * until then nothing is read from a weight with slices on. */
void file_stream_choose(struct file_stream *s, const struct oato_weight *w, const uint8_t *slices);
void file_stream_chosen(struct file_stream *s, uint32_t weights);
bool file_stream_is_chosen(struct file_stream *s, uint32_t weights);
/* Whether they are there; does not wait. */
bool file_stream_arrived(struct file_stream *s, uint32_t pieces);
/* So many pieces of the step are no longer needed, and KV has its new positions; all: its last
 * ones. From one thread at a time, perhaps when the next step has begun. */
void file_stream_used(struct file_stream *s, uint32_t pieces);
/* Whether reading or writing has failed, and why. s may be NULL. */
bool file_stream_failed(struct file_stream *s, struct oato_error *err);
/* The ring and its bytes, once something is compiled; NULL: nothing is streamed. s may be NULL. */
void *file_stream_ring(const struct file_stream *s, uint64_t *bytes);
uint64_t file_stream_read(const struct file_stream *s); /* bytes that have arrived; s may be NULL */
void file_stream_stop(struct file_stream *s);           /* the ring is not written to any more */
void file_stream_free(struct file_stream *s);

#endif
