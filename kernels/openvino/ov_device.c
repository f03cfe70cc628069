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
    d->far.memory.capacity = d->runtime->free_bytes / 2;
    if (budget && budget < d->far.memory.capacity)
        d->far.memory.capacity = budget;
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
    far_name(&d->far, &openvino_device_ops, index);
    d->far.memory.more = "give it a larger budget";
    if (ov_runtime_open(name, &d->runtime, err))
        goto fail;
    snprintf(d->model, sizeof d->model, "%.60s by OpenVINO (%.15s)", d->runtime->name,
             d->runtime->device);
    memory_find(d, options ? options->budget_bytes : 0);
    d->far.queue.run = ov_run_job;
    d->far.queue.spin_ns = QUEUE_SPIN_NS;
    if (job_queue_open(&d->far.queue, "oato-openvino", err))
        goto fail;
    *out = &d->far.base;
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
    job_queue_close(&d->far.queue);
    weights_close(base);
    ov_runtime_close(d->runtime);
    far_memory_close(&d->far.memory);
    free(d);
}

static void openvino_info(const struct oato_device *base, struct device_info *out)
{
    const struct ov_device *d = ov_of(base);
    *out = (struct device_info){
        .kind = "openvino",
        .memory_bytes = d->memory_bytes,
        .free_bytes = d->far.memory.capacity - d->far.memory.used,
        .note = is_cpu(d) ? NULL : unverified,
        .spans = true,
    };
    _Static_assert(sizeof ov_rows < sizeof out->rows, "a zero ends the list");
    memcpy(out->rows, ov_rows, sizeof ov_rows);
    snprintf(out->id, sizeof out->id, "%s", d->far.id);
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

/* ----------------------------------------------------------------------------- the table -- */

static oato_status openvino_submit(struct oato_device *base, struct compiled *c,
                                   const struct step *step, struct oato_error *err)
{
    return job_queue_step(&ov_of(base)->far.queue, c, c->program, c->self, step, err);
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
    .alloc = far_alloc,
    .free = far_free,
    .upload = far_upload,
    .download = far_download,
    .layout = openvino_layout,
    .bytes = openvino_bytes,
    .convert = openvino_convert,
    .reach = far_reach,
    .compile = ov_compile,
    .release = ov_release,
    .submit = openvino_submit,
    .finish = far_finish,
    .timeline = far_timeline,
    .clock_ns = far_clock_ns,
    .inject_error = far_inject_error,
    .warning = openvino_warning,
};
