/*
 * cuda_open.c - a GPU is opened and closed: what it must be, its kernels, its queue and streams.
 * Kernels are compiled for several generations of GPUs into images that are part of the program; a
 * build without a CUDA compiler has empty ones, and says so.
 */
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/cuda_image.h"

#include <stdlib.h>
#include <string.h>

enum {
    CAPABILITY_LEAST = 75,
    OVERLAP_CAPABILITY = 90, /* of the GPU, and what kernels are compiled for: device_code.cuh */
    OVERLAP_DRIVER = 12030,  /* older ones let kernels of a stream overlap, but do not capture it */
};

/* cmake/cuda.cmake makes them; the first byte of an image that was not made is 0. */
extern const unsigned char cuda_image_rows[], cuda_image_matvec[], cuda_image_matrix[],
    cuda_image_attention[], cuda_image_attention_tile[], cuda_image_sample[], cuda_image_sparse[],
    cuda_image_batch[], cuda_image_measure[], cuda_image_state[], cuda_image_route[],
    cuda_image_columns[], cuda_image_batch_float[], cuda_image_planes_make[];
static const unsigned char *const images[CUDA_MODULES] = {
    cuda_image_rows,           cuda_image_matvec,     cuda_image_matrix, cuda_image_attention,
    cuda_image_attention_tile, cuda_image_sample,     cuda_image_sparse, cuda_image_batch,
    cuda_image_measure,        cuda_image_state,      cuda_image_route,  cuda_image_columns,
    cuda_image_batch_float,    cuda_image_planes_make};

/* A kernel of each image; all of an image are compiled alike. */
static const char *const kernels[CUDA_MODULES] = {
    "rms_norm", "pack_q8",       "matrix_Q8_0", "attention_merge", "attention_tile_merge",
    "top_k",    "active_list",   "batch_Q8_0",  "measure_mark",    "conv",
    "route",    "columns_merge", "batch_F16",   "planes_Q8_0"};

/* False when the environment says VARIABLE=0. */
static bool wanted(const char *variable)
{
    const char *value = getenv(variable);
    return !value || strcmp(value, "0") != 0;
}

/* ------------------------------------------------------------------------------- opening -- */

/* The GPU's properties; fails on one that is too old for the kernels. */
static oato_status look_at(struct cuda_device *d, struct oato_error *err)
{
    int n = 0, major = 0, minor = 0;
    size_t bytes = 0;
    cu_result result = d->cu->device_count(&n);
    if (!result && d->index >= n)
        return oato_fail(err, OATO_EDEVICE, "%s: no such GPU; there %s %d GPU%s here", d->far.id,
                         n == 1 ? "is" : "are", n, n == 1 ? "" : "s");
    const struct cuda_driver *cu = d->cu;
    if (result || (result = cu->device_get(&d->ordinal, d->index)) ||
        (result = cu->device_name(d->name, sizeof d->name, d->ordinal)) ||
        (result = cu->device_attribute(&major, CU_ATTRIBUTE_MAJOR, d->ordinal)) ||
        (result = cu->device_attribute(&minor, CU_ATTRIBUTE_MINOR, d->ordinal)) ||
        (result =
             cu->device_attribute(&d->multiprocessors, CU_ATTRIBUTE_MULTIPROCESSORS, d->ordinal)) ||
        (result = cu->device_attribute(&d->l2_bytes, CU_ATTRIBUTE_L2_BYTES, d->ordinal)) ||
        (result = cu->device_memory(&bytes, d->ordinal)))
        return cuda_fail(cu, result, d->far.id, "looking at the GPU", err);
    d->capability = major * 10 + minor;
    d->memory_bytes = bytes;
    if (d->capability < CAPABILITY_LEAST)
        return oato_fail(err, OATO_EDEVICE,
                         "%s: %s has compute capability %d.%d; %d.%d or newer is needed", d->far.id,
                         d->name, major, minor, CAPABILITY_LEAST / 10, CAPABILITY_LEAST % 10);
    return OATO_OK;
}

static oato_status load_kernels(struct cuda_device *d, struct oato_error *err)
{
    for (int i = 0; i < CUDA_MODULES; i++) {
        const cu_result result = cuda_image_load(d->cu, images[i], d->capability, &d->module[i]);
        if (result && !images[i][0])
            return oato_fail(err, OATO_EDEVICE,
                             "%s: this build has no CUDA kernels: it was made without a "
                             "CUDA compiler; run scripts/setup or install the CUDA toolkit, and "
                             "build again",
                             d->far.id);
        /* only the driver of a version that is no older compiles PTX */
        if (result == CU_ERROR_PTX_TOO_NEW)
            return oato_fail(err, OATO_EDEVICE,
                             "%s: this build has machine code for %s, not for %s (sm_%d), and the "
                             "driver, of CUDA %d.%d, compiles no PTX of CUDA " OATO_CUDA_VERSION
                             ": install a newer driver, or build with "
                             "-DOATO_CUDA_ARCHITECTURES=%d",
                             d->far.id, OATO_CUDA_BUILT, d->name, d->capability,
                             d->cu->version / 1000, d->cu->version % 1000 / 10, d->capability);
        if (result == CU_ERROR_NO_BINARY_FOR_GPU)
            return oato_fail(err, OATO_EDEVICE,
                             "%s: this build has kernels for %s, not for %s (sm_%d): build with "
                             "-DOATO_CUDA_ARCHITECTURES=%d",
                             d->far.id, OATO_CUDA_BUILT, d->name, d->capability, d->capability);
        if (result)
            return cuda_fail(d->cu, result, d->far.id, "loading kernels", err);
    }
    return OATO_OK;
}

/* Whether all kernels wait for the one before them, so that they may begin earlier. Code of older
 * generations, which a newer GPU runs from PTX, has no waits. */
static bool kernels_wait(const struct cuda_device *d)
{
    for (int i = 0; i < CUDA_MODULES; i++) {
        cu_function kernel;
        int compiled_for = 0;
        if (d->cu->module_function(&kernel, d->module[i], kernels[i]) ||
            d->cu->function_get(&compiled_for, CU_FUNCTION_PTX_VERSION, kernel) ||
            compiled_for < OVERLAP_CAPABILITY)
            return false;
    }
    return true;
}

oato_status cuda_open(int index, const char *spec, const struct device_options *options,
                      struct oato_device **out, struct oato_error *err)
{
    if (spec && *spec)
        return oato_fail(err, OATO_EUSAGE, "cuda: unknown setting '%s'; write cuda or cuda:N",
                         spec);
    const struct cuda_driver *cu = cuda_driver_open(err);
    if (!cu)
        return err->status;
    struct cuda_device *d = calloc(1, sizeof *d);
    if (!d)
        return oato_fail_memory(err, sizeof *d, "a cuda device");
    far_name(&d->far, &cuda_device_ops, index);
    d->cu = cu;
    d->index = index;
    d->budget_bytes = options ? options->budget_bytes : 0;
    if (patience_limit("OATO_CUDA_STEP_LIMIT", &d->limit_ns, err) || look_at(d, err))
        goto no_context;
    cu_result result = cu->context_retain(&d->context, d->ordinal);
    if (result) {
        cuda_fail(cu, result, d->far.id, "opening the GPU", err);
        goto no_context;
    }
    cuda_enter(d);
    d->far.memory.ops = &cuda_memory;
    d->far.memory.more = "raise its budget";
    d->far.memory.capacity = d->budget_bytes ? d->budget_bytes : d->memory_bytes;
    d->graphs = wanted("OATO_CUDA_GRAPHS");
    d->keeps = wanted("OATO_CUDA_KEEP");
    d->unpacker.declined = !wanted("OATO_CUDA_UNPACK");
    if (load_kernels(d, err))
        goto fail;
    d->overlaps = d->capability >= OVERLAP_CAPABILITY && cu->version >= OVERLAP_DRIVER &&
                  wanted("OATO_CUDA_OVERLAP") && kernels_wait(d);
    if (weights_open(&d->far.base, err))
        goto fail;
    if (cuda_queue_open(&d->queue, d, err)) {
        weights_close(&d->far.base);
        goto fail;
    }
    *out = &d->far.base;
    return OATO_OK;

fail:
    for (int i = 0; i < CUDA_MODULES; i++)
        if (d->module[i])
            cu->module_unload(d->module[i]);
    cu->context_release(d->ordinal);
no_context:
    free(d);
    return err->status;
}

/* ------------------------------------------------------------------------------- closing -- */

/* What was made last goes first: nothing may use a stream, or memory, that is gone. */
void cuda_close(struct oato_device *base)
{
    struct cuda_device *d = cuda_of(base);
    if (!d)
        return;
    cuda_limit_close(d);
    program_closes("%s ends its step and releases programs", d->far.id);
    job_queue_cancel(&d->far.queue);
    while (d->programs) /* their graphs are of the queue's stream, */
        cuda_release(base, d->programs);
    program_closes("%s closes cuBLAS and NCCL", d->far.id);
    cuda_blas_close(d); /* and so is the library's handle */
    cuda_nccl_close(d);
    program_closes("%s closes its streams", d->far.id);
    cuda_queue_close(&d->queue);
    weights_close(base);
    cuda_enter(d);
    cuda_unpacker_close(d);
    cuda_measure_close(d);
    program_closes("%s frees its memory", d->far.id);
    far_memory_close(&d->far.memory);
    for (int i = 0; i < CUDA_MODULES; i++)
        d->cu->module_unload(d->module[i]);
    program_closes("%s releases its context", d->far.id);
    d->cu->context_release(d->ordinal);
    program_closes(NULL);
    free(d);
}
