/*
 * cpu_device.h - the cpu device as its files see it: cpu.c (open, close, what it is), cpu_memory.c
 * (memory, weights, KV), cpu_program.c (programs and steps).
 */
#ifndef OATO_CPU_DEVICE_H
#define OATO_CPU_DEVICE_H

#include "kernels/core/weights.h"
#include "kernels/cpu/cpu_kv_file.h"
#include "kernels/cpu/kernels_internal.h"
#include "kernels/job_queue.h"

struct slab; /* of cpu_memory.c */

struct cpu_device {
    struct oato_device base;
    char id[16];
    const struct cpu_kernels *kernels;
    struct cpu_pool *pool;
    struct crowd crowd;
    struct slab *slabs;
    struct file_stream *stream;        /* NULL: nothing is streamed */
    struct kv_file *kv_file;           /* NULL: all KV is in memory */
    const char *scratch;               /* its folder; NULL: cache_folder's */
    uint64_t used_bytes, budget_bytes; /* budget 0: no limit */
    uint8_t *workspace;                /* one for all programs: they never run at the same time */
    uint64_t workspace_bytes;
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
oato_status cpu_weight_place(struct oato_device *base, uint64_t bytes, const void *there,
                             void **out, struct oato_error *err);
void cpu_weight_unplace(struct oato_device *base, void *p, uint64_t bytes);
void cpu_together(struct oato_device *base, void (*share)(void *arg, int threads), void *arg);
oato_status cpu_kv_create(struct oato_device *base, const struct kv_layer_shape *layers, int n,
                          oato_dtype dtype, int32_t pages, struct kv_cache **out,
                          struct oato_error *err);
void cpu_kv_free(struct oato_device *base, struct kv_cache *kv);

/* cpu_program.c */
oato_status cpu_compile(struct oato_device *base, const struct program *p, int self,
                        struct compiled **out, struct oato_error *err);
void cpu_release(struct oato_device *base, struct compiled *c);
oato_status cpu_submit(struct oato_device *base, struct compiled *c, const struct step *step,
                       struct oato_error *err);
void cpu_run_job(struct job_queue *q, const struct job *job);
oato_status cpu_finish(struct oato_device *base, struct oato_error *err);

#endif
