/*
 * far_device.h - a device with a queue and a memory of its own, as far as such devices are alike:
 * functions for its struct device_ops. For the folders of kernels/, not for other rooms.
 */
#ifndef OATO_CORE_FAR_DEVICE_H
#define OATO_CORE_FAR_DEVICE_H

#include "kernels/core/far_memory.h"

/* Such a device's structure starts with this. */
struct far_device {
    struct oato_device base;
    char id[16];
    struct job_queue queue;
    struct far_memory memory;
};

static inline struct far_device *far_of(const struct oato_device *d)
{
    return (struct far_device *)(uintptr_t)d;
}
/* The device of a queue or of a memory. */
static inline struct far_device *far_of_queue(const struct job_queue *q)
{
    return (struct far_device *)(uintptr_t)((const char *)q - offsetof(struct far_device, queue));
}
static inline struct far_device *far_of_memory(const struct far_memory *m)
{
    return (struct far_device *)(uintptr_t)((const char *)m - offsetof(struct far_device, memory));
}

/* Names a device that is zeros, as the index-th of its kind. */
void far_name(struct far_device *d, const struct device_ops *ops, int index);
/* What compiling begins with: far_memory_check, and whether the device has a function for every
 * kind of record, and runs every operator, of the program. */
oato_status far_check(struct far_device *d, const struct program *p, int self, uint8_t **arena,
                      struct oato_error *err);

/* As in struct device_ops. far_place: for weights, unplaced by far_free. */
oato_status far_alloc(struct oato_device *d, uint64_t bytes, void **out, struct oato_error *err);
void far_free(struct oato_device *d, void *p, uint64_t bytes);
oato_status far_upload(struct oato_device *d, void *to, uint64_t offset, const void *from,
                       uint64_t bytes, uint64_t *value, struct oato_error *err);
oato_status far_download(struct oato_device *d, void *to, const void *from, uint64_t offset,
                         uint64_t bytes, uint64_t *value, struct oato_error *err);
oato_status far_place(struct oato_device *d, uint64_t bytes, const void *there, void **out,
                      struct oato_error *err);
void *far_reach(const struct oato_device *d, const void *p, uint64_t offset, uint64_t bytes);
oato_status far_kv_create(struct oato_device *d, const struct kv_layer_shape *layers, int n,
                          oato_dtype dtype, int32_t pages, struct kv_cache **out,
                          struct oato_error *err);
void far_kv_free(struct oato_device *d, struct kv_cache *kv);
oato_status far_finish(struct oato_device *d, struct oato_error *err);
struct timeline *far_timeline(struct oato_device *d);
uint64_t far_clock_ns(const struct oato_device *d);
uint64_t far_stored_read(const struct oato_device *d);
oato_status far_inject_error(struct oato_device *d, const char *what, struct oato_error *err);

#endif
