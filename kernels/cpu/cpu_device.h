/*
 * cpu_device.h - the cpu device as its files see it: cpu.c (open, close, what it is), cpu_memory.c
 * (memory, weights, KV), cpu_stream.c (weights that are read from a file at every step),
 * cpu_program.c (programs and steps).
 */
#ifndef OATO_CPU_DEVICE_H
#define OATO_CPU_DEVICE_H

#include "kernels/cpu/kernels_internal.h"
#include "kernels/job_queue.h"

struct slab; /* of cpu_memory.c */
struct cpu_weight;
struct cpu_stream; /* of cpu_stream.c */

struct cpu_device {
    struct oato_device base;
    char id[16];
    const struct cpu_kernels *kernels;
    struct cpu_pool *pool;
    struct crowd crowd;
    struct slab *slabs;
    struct cpu_weight *weights;
    struct cpu_stream *stream;         /* NULL: nothing is streamed */
    uint64_t used_bytes, budget_bytes; /* budget 0: no limit */
    int64_t clock_offset_ns;
    uint64_t waited_ns; /* waiting for other devices, on that clock */
    uint64_t step_serial;
    _Atomic int64_t fail_record; /* counted down; 0: off */
    int64_t fail_alloc;
    struct job_queue queue; /* its thread runs only when `aside` */
    bool aside;
};

static inline struct cpu_device *cpu_of(const struct oato_device *d)
{
    return (struct cpu_device *)(uintptr_t)d;
}

/* cpu_memory.c. Pages count against the budget. */
oato_status cpu_pages_take(struct cpu_device *d, uint64_t bytes, const char *what, void **out,
                           struct oato_error *err);
void cpu_pages_return(struct cpu_device *d, void *p, uint64_t bytes);
void cpu_slabs_free(struct cpu_device *d);
oato_status cpu_alloc(struct oato_device *base, uint64_t bytes, void **out, struct oato_error *err);
void cpu_free(struct oato_device *base, void *p, uint64_t bytes);
oato_status cpu_upload(struct oato_device *base, void *to, uint64_t offset, const void *from,
                       uint64_t bytes, uint64_t *value, struct oato_error *err);
oato_status cpu_download(struct oato_device *base, void *to, const void *from, uint64_t offset,
                         uint64_t bytes, uint64_t *value, struct oato_error *err);
oato_status cpu_prepare(struct oato_device *base, const struct weight_source *s,
                        struct oato_weight **out, struct oato_error *err);
/* A weight in the ring, at `at`, which is not the device's to free. */
oato_status cpu_weight_stage(struct cpu_device *d, const struct weight_source *s, const uint8_t *at,
                             struct oato_weight **out, struct oato_error *err);
void cpu_weight_free(struct oato_device *base, struct oato_weight *w);
oato_status cpu_kv_create(struct oato_device *base, const struct kv_layer_shape *layers, int n,
                          oato_dtype dtype, int32_t pages, struct kv_cache **out,
                          struct oato_error *err);
void cpu_kv_free(struct oato_device *base, struct kv_cache *kv);

/* cpu_stream.c. Weights are staged in the order in which every program uses them. */
oato_status cpu_stage(struct oato_device *base, const struct weight_source *source, void *staging,
                      uint64_t offset, struct oato_weight **out, struct oato_error *err);
/* *needs, to be freed: for each record how many of a step's pieces must have arrived; 0: it reads
 * none. NULL: nothing is streamed. The first call starts to read ahead. */
oato_status cpu_stream_compile(struct cpu_device *d, const struct program *p, uint32_t **needs,
                               struct oato_error *err);
/* Thread 0 asks for so many pieces of the step, and every thread of the step sleeps until they are
 * there: one that spins takes the processor from who reads. False: they will never be, or *stop. */
void cpu_stream_want(struct cpu_stream *s, uint32_t pieces);
bool cpu_stream_wait(struct cpu_stream *s, uint32_t pieces, const _Atomic bool *stop);
/* So many pieces of the step are no longer needed; all: the step is over. */
void cpu_stream_used(struct cpu_stream *s, uint32_t pieces);
/* Whether reading has failed, and why. s may be NULL. */
bool cpu_stream_failed(struct cpu_stream *s, struct oato_error *err);
uint64_t cpu_stream_read(struct cpu_stream *s); /* bytes that have arrived; s may be NULL */
void cpu_stream_stop(struct cpu_stream *s);     /* the ring is not written to any more */
void cpu_stream_free(struct cpu_stream *s);

/* cpu_program.c */
oato_status cpu_compile(struct oato_device *base, const struct program *p, int self,
                        struct compiled **out, struct oato_error *err);
void cpu_release(struct oato_device *base, struct compiled *c);
oato_status cpu_submit(struct oato_device *base, struct compiled *c, const struct step *step,
                       struct oato_error *err);
void cpu_run_job(struct job_queue *q, const struct job *job);
oato_status cpu_finish(struct oato_device *base, struct oato_error *err);

#endif
