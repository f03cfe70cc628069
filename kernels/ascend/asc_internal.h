/*
 * asc_internal.h - what the files of the ascend device's runtime tell each other; operators need
 * asc_device.h only.
 */
#ifndef OATO_ASC_INTERNAL_H
#define OATO_ASC_INTERNAL_H

#include "kernels/ascend/asc_device.h"

enum { ASC_NPUS = 64 /* of a machine */ };

/* Makes the device the calling thread's, as every thread that calls CANN must. */
static inline void asc_enter(const struct asc_device *d)
{
    if (!d->hung)
        d->api->rtSetDevice(d->index);
}

/* asc_memory.c. Memory of the NPU for far_memory, from which callers take what counts. */
extern const struct far_ops asc_memory_ops;
/* Memory that does not count, on the queue's thread; of ASC_ALIGN. */
oato_status asc_memory_take(struct asc_device *d, uint64_t bytes, const char *what, void **out,
                            struct oato_error *err);
void asc_memory_drop(struct asc_device *d, void *p);
/* Makes room for so many bytes in an area. counts: it must fit the budget; on the queue's thread it
 * does not count. *moved: its address has changed, and what was there is lost: the stream must be
 * idle. */
oato_status asc_area_grow(struct asc_device *d, struct asc_area *a, uint64_t bytes, bool counts,
                          const char *what, bool *moved, struct oato_error *err);
void asc_area_free(struct asc_device *d, struct asc_area *a);
/* Whether host memory is all from asc_host_alloc. */
bool asc_host_locked(const void *p, uint64_t bytes);
/* See struct device_ops. */
void *asc_host_alloc(struct oato_device *base, uint64_t bytes, bool must);
void asc_host_free(struct oato_device *base, void *p);

/* asc_weights.c: see struct device_ops. */
const char *asc_layout(const struct oato_device *base);
uint64_t asc_bytes(const struct oato_device *base, const struct weight_source *source);
void asc_convert(const struct oato_device *base, const struct weight_source *source, int64_t begin,
                 int64_t end, void *to);
bool asc_planes(const struct oato_device *base, const struct weight_source *source,
                struct weight_plane plane[WEIGHT_PLANES]);
void asc_together(struct oato_device *base, void (*share)(void *arg, int threads), void *arg);
/* Rows in the GGUF's own format again, exactly; from: prepared bytes on the host, of all the
 * source's rows. False: the form has lost bits. */
bool asc_restore(const struct weight_source *source, enum asc_form form, const void *from,
                 int64_t begin, int64_t end, void *to);

/* asc_emit.c. */
void asc_emit_begin(struct asc_emit *e, struct asc_device *d, struct compiled *c,
                    const struct program_record *r, const struct step *step, bool dry);
/* Destroys what the record's calls held; fails with its message if it failed. */
oato_status asc_emit_end(struct asc_emit *e, struct oato_error *err);
/* Makes rooms as large as they should have been; the stream is idle. */
oato_status asc_rooms_settle(struct asc_device *d, struct oato_error *err);
void asc_spares_free(struct asc_device *d);

/* asc_program.c: see struct device_ops. */
bool asc_supports(const struct oato_device *base, const struct oato_op *op);
const char *asc_numerics(const struct oato_device *base, const struct oato_op *op,
                         enum numerics_choice choice);
uint64_t asc_workspace_bytes(const struct oato_device *base, const struct oato_op *op,
                             const struct op_size *size);
oato_status asc_compile(struct oato_device *base, const struct program *p, int self,
                        struct compiled **out, struct oato_error *err);
void asc_release(struct oato_device *base, struct compiled *c);
/* Queue's thread: fills the step's arrays and sends them. */
oato_status asc_step_send(struct compiled *c, const struct step *step, struct oato_error *err);
/* The same: has the record computed, or copied. e: room for its calls; captures as it is. */
oato_status asc_run_record(struct compiled *c, uint32_t index, const struct step *step,
                           struct asc_emit *e, struct oato_error *err);

/* asc_queue.c */
oato_status asc_queue_open(struct asc_device *d, struct oato_error *err);
void asc_queue_close(struct asc_device *d);
/* Queue's thread: what the stream has by now brought to `from` goes to `to` before the timeline
 * rises again. There is room for it. */
void asc_queue_arrives(struct asc_device *d, void *to, const void *from, uint64_t bytes);
/* Waits, within the limit, until the stream is idle. Queue's thread, or while that is idle. */
oato_status asc_stream_finish(struct asc_device *d, asc_stream stream, const char *doing,
                              struct oato_error *err);
/* Called again and again by who waits. True: nothing has come for too long, and why_hung is set. */
bool asc_hangs(struct asc_device *d, struct patience *p, uint64_t progress);

/* asc_graph.c. All on the queue's thread but create and free. begin starts a step; run runs records
 * from index on as one graph and returns how many (0: run this one by itself). */
oato_status asc_graphs_create(struct compiled *c, struct oato_error *err);
void asc_graphs_free(struct compiled *c);
void asc_graphs_begin(struct compiled *c, const struct step *step);
uint32_t asc_graphs_run(struct compiled *c, uint32_t index, const struct step *step,
                        oato_status *status, struct oato_error *err);

/* asc_sight.c: see struct device_ops; and the number of files /dev/davinci0 and so on. */
void asc_sight(const char *root, struct device_sight *out);
int asc_nodes(const char *root);

/* asc_measure.c: see struct device_ops. Queue's thread: mark the place where the timeline will rise
 * to value; at the end of a step, give the timeline its clocks. */
bool asc_measure(struct oato_device *base, enum device_clock clock, struct oato_error *why);
void asc_measure_close(struct asc_device *d);
int asc_measure_mark(struct asc_device *d, uint64_t value);
void asc_measure_take(struct asc_device *d);

#endif
