/*
 * ov_device.c - what Intel's OpenVINO runs on: an NPU, a GPU, or, for tests, its own kernels for
 * the CPU. Its memory is the host's, but not for the host; weights are GGUF's own numbers, in
 * tensors that functions take as inputs (ov_weights.c), so one function serves all layers of a
 * shape.
 *
 * Attention, KV, states, experts and rotary positions stay on the host. The library is opened when
 * a device is, never to look whether there is one.
 */
#include "kernels/openvino/ov_device.h"
#include "kernels/sight.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { PCI_INTEL = 0x8086, SIGHTS = 64 };

#define QUEUE_SPIN_NS ((uint64_t)50 * 1000) /* the host's work between two copies of a step */

static const char unverified[] = "unverified on hardware";

/* ------------------------------------------------------------------------------- opening -- */

/* NPUs of Intel on the bus that a driver runs. */
static int npus_seen(void)
{
    struct pci_sight s[SIGHTS];
    const int all = (int)min_i64(pci_accelerators("", s, SIGHTS), SIGHTS);
    int n = 0;
    for (int i = 0; i < all; i++)
        n += s[i].vendor == PCI_INTEL && !strcmp(s[i].driver, "intel_vpu");
    return n > 0;
}

/* GPUs are used only if they are named: a machine with an Intel GPU may lack its runtime. */
static int openvino_probe(void)
{
    return npus_seen() && ov_library_found(NULL);
}

static void openvino_absence(char line[320])
{
    if (ov_library_found(NULL))
        snprintf(line, 320,
                 "no NPU is here; openvino:device=GPU (%s) and, for tests, openvino:device=CPU can "
                 "be named (docs/npu.md)",
                 unverified);
    else
        snprintf(line, 320,
                 "OpenVINO is not here: pip install openvino, and set OATO_OPENVINO to its folder "
                 "libs (docs/npu.md; NPU and GPU: %s)",
                 unverified);
}

/* "device=NPU". "": any accelerator. */
static oato_status spec_read(const char *spec, char name[16], struct oato_error *err)
{
    static const char *const known[] = {"CPU", "GPU", "NPU"};
    const char *value = spec + 7;
    name[0] = 0;
    if (!*spec)
        return OATO_OK;
    for (size_t i = 0; !strncmp(spec, "device=", 7) && i < ARRAY_LEN(known); i++) {
        const bool numbered =
            value[3] == '.' && value[4] && strspn(value + 4, "0123456789") == strlen(value + 4);
        if (strncmp(value, known[i], 3) != 0 || (value[3] && !numbered) || strlen(value) > 15)
            continue;
        snprintf(name, 16, "%s", value);
        return OATO_OK;
    }
    return oato_fail(err, OATO_EUSAGE,
                     "openvino: unknown setting '%.100s'; write device=NPU, device=GPU (or GPU.1) "
                     "or, for tests, device=CPU",
                     spec);
}

static bool is_cpu(const struct ov_device *d)
{
    return !strcmp(d->runtime->device, "CPU");
}

/* A driver waits for the others. */
static bool openvino_keeps_core(const char *spec)
{
    return strstr(spec, "device=CPU");
}

/* It lies in the host's memory, which the host needs half of. */
static void memory_find(struct ov_device *d, uint64_t budget)
{
    d->memory_bytes = d->runtime->memory_bytes / 2;
    d->memory.capacity = d->runtime->free_bytes / 2;
    if (budget && budget < d->memory.capacity)
        d->memory.capacity = budget;
}

static oato_status openvino_open(int index, const char *spec, const struct device_options *options,
                                 struct oato_device **out, struct oato_error *err)
{
    char name[16];
    if (spec_read(spec, name, err))
        return err->status;
    struct ov_device *d = calloc(1, sizeof *d);
    if (!d)
        return oato_fail_memory(err, sizeof *d, "an openvino device");
    d->base.ops = &openvino_device_ops;
    snprintf(d->id, sizeof d->id, "openvino:%d", index);
    d->memory.id = d->queue.id = d->id;
    d->memory.more = "give it a larger budget";
    if (ov_runtime_open(name, &d->runtime, err))
        goto fail;
    snprintf(d->model, sizeof d->model, "%.60s by OpenVINO (%.15s)", d->runtime->name,
             d->runtime->device);
    memory_find(d, options ? options->budget_bytes : 0);
    timeline_init(&d->queue.timeline);
    d->queue.run = ov_run_job;
    d->queue.spin_ns = QUEUE_SPIN_NS;
    if (job_queue_open(&d->queue, "oato-openvino", err))
        goto fail;
    *out = &d->base;
    return OATO_OK;

fail:
    ov_runtime_close(d->runtime);
    free(d);
    return err->status;
}

static void openvino_close(struct oato_device *base)
{
    struct ov_device *d = ov_of(base);
    if (!d)
        return;
    while (d->programs)
        ov_release(base, d->programs);
    job_queue_close(&d->queue);
    weights_close(base);
    ov_runtime_close(d->runtime);
    while (d->memory.blocks)
        far_memory_free(&d->memory, d->memory.blocks);
    free(d);
}

static void openvino_info(const struct oato_device *base, struct device_info *out)
{
    const struct ov_device *d = ov_of(base);
    *out = (struct device_info){
        .kind = "openvino",
        .memory_bytes = d->memory_bytes,
        .free_bytes = d->memory.capacity - d->memory.used,
        .note = is_cpu(d) ? NULL : unverified,
        .spans = true,
    };
    _Static_assert(sizeof ov_rows < sizeof out->rows, "a zero ends the list");
    memcpy(out->rows, ov_rows, sizeof ov_rows);
    snprintf(out->id, sizeof out->id, "%s", d->id);
    snprintf(out->model, sizeof out->model, "%s", d->model);
    snprintf(out->driver, sizeof out->driver, "%s", d->runtime->driver);
}

static const char *openvino_warning(const struct oato_device *base)
{
    return !is_cpu(ov_of(base))
               ? "openvino: no results of an NPU or a GPU are known: its numbers and its speed are "
                 "unverified on hardware (docs/npu.md)"
               : "openvino: device=CPU is for tests: it is slower than the device cpu";
}

/* ------------------------------------------------------------------------------- pricing -- */

static bool openvino_supports(const struct oato_device *base, const struct oato_op *op)
{
    struct oato_error why;
    return ov_supports(ov_of(base)->runtime, op, &why);
}

/* The library's own class whatever the choice: it gives a row other bits in other companies. */
static const char *openvino_numerics(const struct oato_device *base, const struct oato_op *op,
                                     enum numerics_choice choice)
{
    (void)op, (void)choice;
    return ov_of(base)->runtime->numerics;
}

static uint64_t openvino_workspace_bytes(const struct oato_device *base, const struct oato_op *op,
                                         const struct op_size *size)
{
    (void)base;
    return ov_temporary_bytes(op, ov_rows[ov_bucket(size->rows)]);
}

/* ------------------------------------------------------------------------------- weights -- */

static const char *openvino_layout(const struct oato_device *base)
{
    (void)base;
    return ov_layout();
}

static uint64_t openvino_bytes(const struct oato_device *base, const struct weight_source *source)
{
    (void)base;
    return ov_bytes(source);
}

static void openvino_convert(const struct oato_device *base, const struct weight_source *source,
                             int64_t begin, int64_t end, void *to)
{
    (void)base;
    ov_convert_rows(source, begin, end, to);
}

/* -------------------------------------------------------------------------------- memory -- */

static oato_status openvino_alloc(struct oato_device *base, uint64_t bytes, void **out,
                                  struct oato_error *err)
{
    struct far_block *b;
    if (far_memory_alloc(&ov_of(base)->memory, bytes, "buffers", &b, err))
        return err->status;
    *out = b->address;
    return OATO_OK;
}

static void openvino_free(struct oato_device *base, void *p, uint64_t bytes)
{
    struct ov_device *d = ov_of(base);
    uint8_t *real;
    if (!p)
        return;
    job_queue_drain(&d->queue, NULL);
    far_memory_free(&d->memory, far_memory_find(&d->memory, p, 0, bytes, &real));
}

static void *openvino_reach(const struct oato_device *base, const void *p, uint64_t offset,
                            uint64_t bytes)
{
    uint8_t *real;
    return far_memory_find(&ov_of(base)->memory, p, offset, bytes, &real) ? real : NULL;
}

/* A copy between host memory and `bytes` at far + offset. */
static oato_status copy(struct oato_device *base, struct job job, const void *far, uint64_t offset,
                        uint64_t *value, struct oato_error *err)
{
    struct ov_device *d = ov_of(base);
    void *real = openvino_reach(base, far, offset, job.bytes);
    if (!real)
        return oato_fail(err, OATO_EUSAGE,
                         "%s: %" PRIu64 " bytes at offset %" PRIu64 " are outside its memory",
                         d->id, job.bytes, offset);
    if (job.download)
        job.from = real;
    else
        job.to = real;
    return job_queue_copy(&d->queue, &job, value, err);
}

static oato_status openvino_upload(struct oato_device *base, void *to, uint64_t offset,
                                   const void *from, uint64_t bytes, uint64_t *value,
                                   struct oato_error *err)
{
    const struct job job = {.from = from, .bytes = bytes};
    return copy(base, job, to, offset, value, err);
}

static oato_status openvino_download(struct oato_device *base, void *to, const void *from,
                                     uint64_t offset, uint64_t bytes, uint64_t *value,
                                     struct oato_error *err)
{
    const struct job job = {.to = to, .bytes = bytes, .download = true};
    return copy(base, job, from, offset, value, err);
}

/* ----------------------------------------------------------------------------- the table -- */

static oato_status openvino_submit(struct oato_device *base, struct compiled *c,
                                   const struct step *step, struct oato_error *err)
{
    return job_queue_step(&ov_of(base)->queue, c, c->program, c->self, step, err);
}

static oato_status openvino_finish(struct oato_device *base, struct oato_error *err)
{
    return job_queue_drain(&ov_of(base)->queue, err);
}

static struct timeline *openvino_timeline(struct oato_device *base)
{
    return &ov_of(base)->queue.timeline;
}

static uint64_t openvino_clock_ns(const struct oato_device *base)
{
    (void)base;
    return now_ns();
}

static oato_status openvino_inject_error(struct oato_device *base, const char *what,
                                         struct oato_error *err)
{
    struct ov_device *d = ov_of(base);
    return inject_error(d->id, what, &d->queue.fail_after, &d->memory.fail_after, err);
}

const struct device_ops openvino_device_ops = {
    .kind = "openvino",
    .if_named = true,
    .keeps_core = openvino_keeps_core,
    .probe = openvino_probe,
    .absence = openvino_absence,
    .open = openvino_open,
    .close = openvino_close,
    .info = openvino_info,
    .supports = openvino_supports,
    .numerics = openvino_numerics,
    .workspace_bytes = openvino_workspace_bytes,
    .alloc = openvino_alloc,
    .free = openvino_free,
    .upload = openvino_upload,
    .download = openvino_download,
    .layout = openvino_layout,
    .bytes = openvino_bytes,
    .convert = openvino_convert,
    .reach = openvino_reach,
    .compile = ov_compile,
    .release = ov_release,
    .submit = openvino_submit,
    .finish = openvino_finish,
    .timeline = openvino_timeline,
    .clock_ns = openvino_clock_ns,
    .inject_error = openvino_inject_error,
    .warning = openvino_warning,
};
