/*
 * cuda_blas.c - products by NVIDIA's cuBLAS. The library is opened once for the process and never
 * closed; each device has a handle in its primary context, which is the one that the CUDA runtime
 * inside the library uses, too. The handle works on the queue's stream and in the end of the
 * device's workspace, so that a product allocates nothing, and the same product gives the same bits
 * each time (cuBLAS documentation, "Results Reproducibility" and "cublasSetWorkspace").
 */
#include "kernels/cuda/cuda_device.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>

enum {
    BLAS_OLDEST = 120000, /* 12.0.0: what the driver's oldest version brings */
    /* As NVIDIA recommends: for Hopper and later generations, and for older ones. */
    WORKSPACE_BYTES = 32 << 20,
    WORKSPACE_BYTES_OLDER = 4 << 20,
    HALVES_BYTES = 128 << 20, /* a matrix of an 8B model at once */
    HOPPER = 90,
};

/* ------------------------------------------------------------------------------ library --- */

static struct cuda_blas_library library;
static bool opened;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void *find_library(void)
{
    static const struct cuda_library blas = {"cuBLAS", "libcublas.so", "OATO_CUDA_BLAS", false, 0};
    const char *name = getenv(blas.variable), *driver_name = getenv("OATO_CUDA_DRIVER");
    const struct cuda_driver *cu = cuda_driver_open(NULL);
    struct oato_error ignored;
    if (!cu || (driver_name && *driver_name && (!name || !*name)))
        return NULL;
    return cuda_library_open(&blas, cu->version, &ignored);
}

static void open_library(void)
{
    void *found = find_library();
    if (!found)
        return;
#define LOAD(member, symbol, arguments)                                                            \
    if (!(*(void **)&library.member = dlsym(found, symbol)))                                       \
        return;
    CUDA_BLAS_FUNCTIONS(LOAD)
    LOAD(text, CUDA_BLAS_TEXT, )
#undef LOAD
    opened = true;
}

/* ------------------------------------------------------------------------------- device --- */

/* The handle, made and set up; false: the library refuses, or is too old. */
static bool make_handle(struct cuda_device *d)
{
    struct cuda_blas *b = &d->blas;
    int version;
    cuda_enter(d);
    if (library.create(&b->handle)) {
        b->handle = NULL;
        return false;
    }
    return !library.get_version(b->handle, &version) && version >= BLAS_OLDEST &&
           !library.set_stream(b->handle, d->queue.stream);
}

bool cuda_blas_found(void)
{
    pthread_once(&once, open_library);
    return opened;
}

bool cuda_blas_usable(struct cuda_device *d)
{
    struct cuda_blas *b = &d->blas;
    if (b->asked)
        return b->library != NULL;
    b->asked = true;
    b->halves_bytes = HALVES_BYTES;
    pthread_once(&once, open_library);
    if (opened && make_handle(d))
        b->library = &library;
    else
        cuda_blas_close(d);
    return b->library != NULL;
}

void cuda_blas_close(struct cuda_device *d)
{
    if (!d->blas.handle)
        return;
    cuda_enter(d);
    if (!d->hung)
        library.destroy(d->blas.handle);
    d->blas.handle = NULL;
    d->blas.library = NULL;
}

uint64_t cuda_blas_workspace_bytes(const struct cuda_device *d)
{
    return d->capability >= HOPPER ? WORKSPACE_BYTES : WORKSPACE_BYTES_OLDER;
}

/* ----------------------------------------------------------------------------- products --- */

/* The handle's workspace, which moves when a program makes the device's grow. */
static blas_status place_workspace(struct cuda_device *d)
{
    struct cuda_blas *b = &d->blas;
    const uint64_t bytes = cuda_blas_workspace_bytes(d);
    const cu_address at =
        ((cu_address)(uintptr_t)d->workspace->address + d->workspace->bytes - bytes) /
        BLAS_WORKSPACE_ALIGN * BLAS_WORKSPACE_ALIGN;
    if (at == b->workspace)
        return BLAS_OK;
    const blas_status status = b->library->set_workspace(b->handle, (void *)(uintptr_t)at, bytes);
    b->workspace = status ? 0 : at;
    return status;
}

/* Our rows are its columns: y, of `columns` rows of w->rows floats, is its matrix of w->rows x
 * columns, and so is x one of k x columns; w is the transpose of one of k x rows. The sums of
 * products of halves are float32 whatever math mode it has. */
cu_result cuda_blas_product(struct cuda_device *d, const struct cuda_matrix *w, const uint8_t *x,
                            uint64_t x_stride, int32_t columns, float *y, int32_t y_stride)
{
    static const float zero = 0;
    struct cuda_blas *b = &d->blas;
    const bool halves = w->dtype == DT_F16;
    const blas_type type = halves ? BLAS_R_16F : BLAS_R_16BF;
    const float factor = halves ? CUDA_HALF_UP : 1;
    b->failure = place_workspace(d);
    if (!b->failure)
        b->failure = b->library->multiply(b->handle, BLAS_TRANSPOSED, BLAS_AS_IT_IS, w->rows,
                                          columns, w->k, &factor, w->plane[0], type, w->k, x, type,
                                          (int)(x_stride / sizeof(uint16_t)), &zero, y, BLAS_R_32F,
                                          y_stride, BLAS_COMPUTE_32F, BLAS_ALGORITHM_DEFAULT);
    return b->failure ? CUDA_BLAS_FAILED : CU_OK;
}

oato_status cuda_blas_fail(const struct cuda_device *d, const char *doing, struct oato_error *err)
{
    return oato_fail(err, OATO_EDEVICE, "%s: %s: cuBLAS: %s; OATO_CUDA_BLAS=off does without it",
                     d->far.id, doing, d->blas.library->text(d->blas.failure));
}
