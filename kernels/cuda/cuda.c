/*
 * cuda.c - an NVIDIA GPU as a device: its table of functions, and those of them that only tell
 * something of it or of its queue. cuda_open.c opens it.
 */
#include "kernels/cuda/cuda_device.h"

#include <string.h>

static int probe(void)
{
    int n = 0;
    const struct cuda_driver *cu = cuda_driver_open(NULL);
    return cu && !cu->device_count(&n) ? n : 0;
}

/* The kernel's driver, where its file is shown, and what the library beside it speaks. */
static void driver_name(const struct cuda_driver *cu, char *out, size_t bytes)
{
    char version[24] = "";
    FILE *f = stream_open("/sys/module/nvidia/version", "r");
    if (f && fgets(version, sizeof version, f))
        version[strcspn(version, "\n")] = 0;
    if (f)
        fclose(f);
    snprintf(out, bytes, "%s%sCUDA %d.%d", version, version[0] ? ", " : "", cu->version / 1000,
             cu->version % 1000 / 10);
}

static void info(const struct oato_device *base, struct device_info *out)
{
    const struct cuda_device *d = cuda_of(base);
    size_t free_bytes = 0, total = 0;
    *out = (struct device_info){.kind = "cuda",
                                .memory_bytes = d->memory_bytes,
                                .keeps = d->keeps,
                                .cache_bytes = (uint64_t)d->l2_bytes};
    snprintf(out->id, sizeof out->id, "%s", d->far.id);
    snprintf(out->model, sizeof out->model, "%s", d->name);
    snprintf(out->isa, sizeof out->isa, "sm_%d", d->capability);
    driver_name(d->cu, out->driver, sizeof out->driver);
    cuda_enter(d);
    if (!d->cu->memory_info(&free_bytes, &total))
        out->free_bytes = free_bytes;
    if (d->budget_bytes) {
        const uint64_t left = d->far.memory.capacity - d->far.memory.used;
        out->memory_bytes = d->budget_bytes;
        out->free_bytes = left < out->free_bytes ? left : out->free_bytes;
    }
}

/* That access is enabled already, by whoever opened these GPUs before, is as good. */
static bool reaches(struct oato_device *base, struct oato_device *other)
{
    const struct cuda_device *d = cuda_of(base), *o = cuda_of(other);
    int can = 0;
    if (other->ops != &cuda_device_ops || d->cu->peer_can(&can, d->ordinal, o->ordinal) || !can)
        return false;
    cuda_enter(d);
    const cu_result result = d->cu->peer_enable(o->context, 0);
    return !result || result == CU_ERROR_PEER_ACCESS_ALREADY_ENABLED;
}

static const char *warning(const struct oato_device *base)
{
    const char *text = cuda_of(base)->warning;
    return *text ? text : NULL;
}

/* cuda_layout.h: another id with every change of the planes. */
static const char *layout(const struct oato_device *base)
{
    (void)base;
    return "cuda1";
}

static oato_status submit(struct oato_device *base, struct compiled *c, const struct step *step,
                          struct oato_error *err)
{
    return job_queue_step(&cuda_of(base)->far.queue, c, c->program, c->self, step, err);
}

static bool keeps_core(const char *spec)
{
    (void)spec;
    return true;
}

const struct device_ops cuda_device_ops = {
    .kind = "cuda",
    .keeps_core = keeps_core,
    .probe = probe,
    .sight = cuda_sight,
    .symbols = cuda_driver_symbols,
    .open = cuda_open,
    .close = cuda_close,
    .info = info,
    .supports = cuda_supports,
    .numerics = cuda_numerics,
    .joins = cuda_joins,
    .workspace_bytes = cuda_workspace_bytes,
    .alloc = far_alloc,
    .free = far_free,
    .host_alloc = cuda_host_alloc,
    .host_free = cuda_host_free,
    .upload = far_upload,
    .download = far_download,
    .layout = layout,
    .bytes = cuda_bytes,
    .convert = cuda_convert,
    .place = far_place,
    .unplace = far_free,
    .streams = true,
    .planes = cuda_planes,
    .lanes = &cuda_lanes,
    .weight_align = CUDA_PLANE_ALIGN,
    .kv_create = far_kv_create,
    .kv_free = far_kv_free,
    .compile = cuda_compile,
    .release = cuda_release,
    .submit = submit,
    .finish = far_finish,
    .join = cuda_join_ranks,
    .reaches = reaches,
    .timeline = far_timeline,
    .clock_ns = far_clock_ns,
    .measure = cuda_measure,
    .stored_read = far_stored_read,
    .read_rate = cuda_read_rate,
    .both_rates = cuda_both_rates,
    .warning = warning,
    .inject_error = far_inject_error,
};
