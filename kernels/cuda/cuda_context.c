/*
 * cuda_context.c - what all files ask of an open GPU: its context in the calling thread, its
 * kernels and their launch, events.
 */
#include "kernels/cuda/cuda_record.h"

void cuda_enter(const struct cuda_device *d)
{
    d->cu->context_set(d->context);
}

cu_result cuda_kernel(const struct cuda_device *d, const char *name, cu_function *out)
{
    cu_result result = CU_ERROR_NOT_FOUND;
    for (int i = 0; i < CUDA_MODULES && result == CU_ERROR_NOT_FOUND; i++)
        result = d->cu->module_function(out, d->module[i], name);
    return result;
}

cu_result cuda_events_create(const struct cuda_device *d, cu_event *event, int n, unsigned flags)
{
    cu_result result = CU_OK;
    for (int i = 0; i < n && !result; i++)
        result = d->cu->event_create(&event[i], flags);
    return result;
}

void cuda_events_destroy(const struct cuda_device *d, cu_event *event, int n)
{
    for (int i = 0; i < n; i++) {
        if (event[i])
            d->cu->event_destroy(event[i]);
        event[i] = NULL;
    }
}

cu_result launch_start(const struct launch *l, cu_function kernel, struct grid grid,
                       uint32_t threads, uint32_t shared_bytes, void *argument)
{
    const struct cuda_driver *cu = l->d->cu;
    struct cuda_queue *q = &l->d->queue;
    void *arguments[] = {argument};
    struct cu_launch_attribute overlap = {.id = CU_LAUNCH_OVERLAPS, .value.overlaps = 1};
    const struct cu_launch how = {.grid_x = grid.x,
                                  .grid_y = grid.y,
                                  .grid_z = grid.z,
                                  .block_x = threads,
                                  .block_y = 1,
                                  .block_z = 1,
                                  .shared_bytes = shared_bytes,
                                  .stream = q->stream,
                                  .attributes = &overlap,
                                  .n_attributes = 1};
    if (q->chain == CHAIN_FOLLOWS)
        return cu->launch_as(&how, kernel, arguments, NULL);
    if (q->chain == CHAIN_BEGINS)
        q->chain = CHAIN_FOLLOWS;
    return cu->launch(kernel, grid.x, grid.y, grid.z, threads, 1, 1, shared_bytes, q->stream,
                      arguments, NULL);
}
