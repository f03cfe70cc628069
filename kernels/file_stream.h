/*
 * file_stream.h - weights of a device that stay in a file and pass through a ring in the host's
 * memory at every step (file_stream.c). Shared by devices; not for other rooms.
 */
#ifndef OATO_FILE_STREAM_H
#define OATO_FILE_STREAM_H

#include "kernels/device.h"

struct file_stream; /* of a device; NULL: nothing is streamed from a file */

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
/* One thread asks for so many weights of the step, and whoever reads them sleeps until they are
 * there: a thread that spins takes the processor from who reads. False: they will never be, or
 * *stop. */
void file_stream_want(struct file_stream *s, uint32_t weights);
bool file_stream_wait(struct file_stream *s, uint32_t weights, const _Atomic bool *stop);
/* Of a weight of several slices the step needs those whose byte is not 0. Before
 * file_stream_chosen, which says that the choice is made for the step's first so many weights:
 * until then nothing is read from a weight with slices on. */
void file_stream_choose(struct file_stream *s, const struct oato_weight *w, const uint8_t *slices);
void file_stream_chosen(struct file_stream *s, uint32_t weights);
bool file_stream_is_chosen(struct file_stream *s, uint32_t weights);
/* Whether they are there; does not wait. */
bool file_stream_arrived(struct file_stream *s, uint32_t weights);
/* So many weights of the step are no longer needed; all: its last ones. From one thread at a time,
 * perhaps when the next step has begun. */
void file_stream_used(struct file_stream *s, uint32_t weights);
/* Whether reading has failed, and why. s may be NULL. */
bool file_stream_failed(struct file_stream *s, struct oato_error *err);
/* The ring and its bytes, once something is compiled; NULL: nothing is streamed. s may be NULL. */
void *file_stream_ring(const struct file_stream *s, uint64_t *bytes);
uint64_t file_stream_read(const struct file_stream *s); /* bytes that have arrived; s may be NULL */
void file_stream_stop(struct file_stream *s);           /* the ring is not written to any more */
void file_stream_free(struct file_stream *s);

#endif
