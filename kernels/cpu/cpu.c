/*
 * cpu.c - the host processor as a device: opening it, what it says of itself, and its table of
 * functions. Kernels are chosen by dispatch.c, threads live in pool.c.
 */
#include "kernels/cpu/cpu_device.h"

#include <stdlib.h>
#include <string.h>

#define SPIN_NS 500000 /* a token is sampled and said meanwhile */

static int cpu_probe(void)
{
    return 1;
}

static int free_cores(const struct device_options *options)
{
    const int64_t usable = min_i64(cpu_physical_cores(), host_processors());
    const int64_t free = usable - (options ? options->kept_cores : 0);
    return (int)max_i64(min_i64(free, CPU_THREADS_MAX), 1);
}

static oato_status cpu_open(int index, const char *spec, const struct device_options *options,
                            struct oato_device **out, struct oato_error *err)
{
    if (spec && *spec)
        return oato_fail(
            err, OATO_EUSAGE,
            "cpu: unknown setting '%s'; write just cpu, and set threads with --threads", spec);
    int threads = options ? options->threads : 0;
    if (threads < 0 || threads > CPU_THREADS_MAX)
        return oato_fail(err, OATO_EUSAGE,
                         "cpu: %d threads is out of range; use 1 to %d, or 0 for one per core",
                         threads, CPU_THREADS_MAX);
    struct cpu_device *d = calloc(1, sizeof *d);
    if (!d)
        return oato_fail_memory(err, sizeof *d, "the cpu device");
    d->base.ops = &cpu_device_ops;
    snprintf(d->id, sizeof d->id, "cpu:%d", index);
    d->budget_bytes = options ? options->budget_bytes : 0;
    d->scratch = options ? options->scratch : NULL;
    timeline_init(&d->queue.timeline);
    d->queue.id = d->id;
    d->queue.run = cpu_run_job;
    d->queue.spin_ns = SPIN_NS;
    oato_status status = cpu_kernels_select(options ? options->isa : NULL, &d->kernels, err);
    if (!status)
        status = cpu_pool_create(threads ? threads : free_cores(options), &d->pool, err);
    d->aside = options && options->aside;
    if (!status && d->aside)
        status = job_queue_open(&d->queue, "oato-cpu", err);
    if (status) {
        cpu_pool_free(d->pool);
        free(d);
        return status;
    }
    crowd_init(&d->crowd, cpu_pool_threads(d->pool));
    *out = &d->base;
    return OATO_OK;
}

static void cpu_close(struct oato_device *base)
{
    struct cpu_device *d = cpu_of(base);
    if (!d)
        return;
    if (d->aside)
        job_queue_close(&d->queue);
    cpu_pool_free(d->pool);
    weights_close(base);
    cpu_pages_return(d, d->workspace, d->workspace_bytes);
    cpu_slabs_free(d);
    free(d);
}

/* "model name : AMD EPYC 9755" of /proc/cpuinfo. */
static void cpu_model_name(char *out, size_t n)
{
    snprintf(out, n, "unknown processor");
    FILE *f = stream_open("/proc/cpuinfo", "r");
    char line[256];
    while (f && fgets(line, sizeof line, f)) {
        const char *colon = strchr(line, ':');
        if (!strncmp(line, "model name", 10) && colon && colon[1]) {
            line[strcspn(line, "\n")] = 0;
            snprintf(out, n, "%s", colon + 2);
            break;
        }
    }
    if (f)
        fclose(f);
}

static void cpu_info(const struct oato_device *base, struct device_info *out)
{
    const struct cpu_device *d = cpu_of(base);
    struct host_share host;
    host_share_read("", &host);
    memset(out, 0, sizeof *out);
    snprintf(out->id, sizeof out->id, "%s", d->id);
    snprintf(out->kind, sizeof out->kind, "cpu");
    snprintf(out->isa, sizeof out->isa, "%s", cpu_kernels_name(d->kernels));
    cpu_model_name(out->model, sizeof out->model);
    out->memory_bytes = host.memory_bytes;
    out->free_bytes = host.available_bytes;
    if (d->budget_bytes) {
        uint64_t left = d->budget_bytes - d->used_bytes;
        out->memory_bytes = d->budget_bytes;
        out->free_bytes = left < out->free_bytes ? left : out->free_bytes;
    }
    out->threads = cpu_pool_threads(d->pool);
    out->is_host = true;
}

static bool supports(const struct oato_device *d, const struct oato_op *op)
{
    (void)d;
    return cpu_supports(op);
}

static const char *numerics(const struct oato_device *d, const struct oato_op *op,
                            enum numerics_choice choice)
{
    return cpu_numerics(cpu_of(d)->kernels, op, choice);
}

static uint64_t bytes(const struct oato_device *d, const struct weight_source *source)
{
    return source->use == WEIGHT_LOOKUP ? 0 /* stays in the file */
                                        : cpu_source_bytes(cpu_of(d)->kernels, source);
}

static void convert(const struct oato_device *d, const struct weight_source *source, int64_t begin,
                    int64_t end, void *to)
{
    cpu_convert_rows(cpu_of(d)->kernels, source, begin, end, to);
}

/* All its memory is the host's. */
static void *reach(const struct oato_device *d, const void *p, uint64_t offset, uint64_t n)
{
    (void)d, (void)n;
    return (uint8_t *)(uintptr_t)p + offset;
}

static uint64_t workspace_bytes(const struct oato_device *d, const struct oato_op *op,
                                const struct op_size *size)
{
    return cpu_workspace_bytes(cpu_of(d)->kernels, op, size, cpu_pool_threads(cpu_of(d)->pool));
}

static const char *layout(const struct oato_device *d)
{
    return cpu_of(d)->kernels->layout->id;
}

static struct timeline *cpu_timeline(struct oato_device *d)
{
    return &cpu_of(d)->queue.timeline;
}

static uint64_t cpu_clock_ns(const struct oato_device *d)
{
    return now_ns() + (uint64_t)cpu_of(d)->clock_offset_ns;
}

static uint64_t cpu_waited_ns(const struct oato_device *d)
{
    return cpu_of(d)->waited_ns;
}

static uint64_t cpu_stored_read(const struct oato_device *d)
{
    return file_stream_read(weights_file(d)) + kv_file_read(cpu_of(d)->kv_file);
}

static oato_status cpu_inject_error(struct oato_device *base, const char *what,
                                    struct oato_error *err)
{
    struct cpu_device *d = cpu_of(base);
    return inject_error(d->id, what, &d->fail_record, &d->fail_alloc, err);
}

const struct device_ops cpu_device_ops = {
    .kind = "cpu",
    .probe = cpu_probe,
    .open = cpu_open,
    .close = cpu_close,
    .info = cpu_info,
    .supports = supports,
    .numerics = numerics,
    .workspace_bytes = workspace_bytes,
    .alloc = cpu_alloc,
    .free = cpu_free,
    .upload = cpu_upload,
    .download = cpu_download,
    .layout = layout,
    .bytes = bytes,
    .convert = convert,
    .place = cpu_weight_place,
    .unplace = cpu_weight_unplace,
    .reach = reach,
    .together = cpu_together,
    .streams = true,
    .kv_create = cpu_kv_create,
    .kv_free = cpu_kv_free,
    .compile = cpu_compile,
    .release = cpu_release,
    .submit = cpu_submit,
    .finish = cpu_finish,
    .timeline = cpu_timeline,
    .clock_ns = cpu_clock_ns,
    .waited_ns = cpu_waited_ns,
    .stored_read = cpu_stored_read,
    .inject_error = cpu_inject_error,
};
