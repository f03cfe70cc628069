/*
 * asc_device.c - Huawei's Ascend NPUs, through CANN's runtime and its operators: what the device
 * says of itself, opening, and its table. Values between operators are F16 where a row of
 * asc_kinds.c says so; KV lies on the NPU; what no row has stays on other devices by plan.
 *
 * Never run on an NPU: that is said wherever the device is named.
 */
#include "kernels/ascend/asc_internal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const char unverified[] = "unverified on hardware";
static const char requantise[] = "requantise=Q8_0";
static const char no_hardware[] = "no NPU: results are right or wrong, times mean nothing";

/* aclrtGetSocName; the last row fits all. Chips that are not known get what all have. */
static const struct asc_chip chips[] = {
    {.name = "Ascend910B",
     .quantised = true,
     .bf16 = true,
     .f32 = true,
     .fused = true,
     .gelu = true,
     .hbm = true,
     .maps = true},
    {.name = "Ascend910_93",
     .quantised = true,
     .bf16 = true,
     .f32 = true,
     .fused = true,
     .gelu = true,
     .hbm = true,
     .maps = true},
    {.name = "Ascend910", .gelu = true, .hbm = true},
    {.name = "Ascend310P", .gelu = true},
    {.name = ""}, /* 310B */
};

/* ------------------------------------------------------------------------------- sights -- */

/* Files say whether there can be one; only then CANN is asked, which takes long to open. */
static int ascend_probe(void)
{
    const char *own = getenv("OATO_ASCEND");
    const int nodes = asc_nodes("");
    struct oato_error ignored;
    uint32_t n = 0;
    if ((!nodes && !(own && *own)) || !asc_libraries_found(NULL))
        return 0;
    const struct asc_api *api = asc_api_open(&ignored);
    if (!api) /* what is plugged in is listed, with the reason */
        return nodes;
    return api->rtGetDeviceCount(&n) ? nodes : (int)min_i64(n, ASC_NPUS);
}

static void ascend_absence(char line[320])
{
    const char *own = getenv("OATO_ASCEND");
    const bool found = asc_libraries_found(NULL);
    struct oato_error why;
    if (found && own && *own && !asc_api_open(&why)) { /* probe has tried */
        const char id[] = "ascend: ";                  /* with which the line begins anyway */
        snprintf(line, 320, "%.319s",
                 why.text + (strncmp(why.text, id, strlen(id)) ? 0 : strlen(id)));
    } else if (found) {
        snprintf(line, 320, "CANN is here, but no NPU (/dev/davinci0; docs/npu.md; %s)",
                 unverified);
    } else if (own && *own) {
        snprintf(line, 320,
                 "OATO_ASCEND is '%.160s', which has no libascendcl.so (docs/npu.md; %s)", own,
                 unverified);
    } else {
        snprintf(line, 320,
                 "CANN is not here: source its set_env.sh, or set OATO_ASCEND to the folder of its "
                 "libraries (docs/npu.md; %s)",
                 unverified);
    }
}

struct seer {
    symbol_fn *see;
    void *user;
    const struct asc_api *api;
};

static void see_symbol(void *user, const char *symbol, bool found)
{
    const struct seer *s = user;
    s->see(s->user, "CANN", symbol, found);
}

static void ascend_symbols(symbol_fn *see, void *user)
{
    struct oato_error ignored;
    struct seer s = {see, user, NULL};
    if (asc_libraries_found(NULL))
        s.api = asc_api_open(&ignored);
    asc_api_symbols(s.api, see_symbol, &s);
}

/* ------------------------------------------------------------------------------ opening -- */

static oato_status index_check(const struct asc_api *api, int index, struct oato_error *err)
{
    uint32_t n = 0;
    const int error = api->rtGetDeviceCount(&n);
    if (error)
        return asc_fail(api, error, "ascend", "counting its NPUs", err);
    if (index < 0 || (uint32_t)index >= n || index >= ASC_NPUS)
        return oato_fail(err, OATO_EUSAGE, "ascend:%d is not here: CANN finds %" PRIu32 " NPU%s",
                         index, n, n == 1 ? "" : "s");
    return OATO_OK;
}

static oato_status chip_find(struct asc_device *d, struct oato_error *err)
{
    size_t free_bytes = 0, total = 0;
    int error = d->api->rtSetDevice(d->index);
    if (error)
        return asc_fail(d->api, error, d->far.id, "taking the NPU", err);
    const char *name = or_empty(d->api->rtGetSocName());
    d->chip = chips;
    while (strncmp(name, d->chip->name, strlen(d->chip->name)) != 0)
        d->chip++;
    if (d->api->stand_in)
        snprintf(d->model, sizeof d->model, "stand-in for %.40s", name);
    else
        snprintf(d->model, sizeof d->model, "Huawei %.40s", name);
    text_tame(d->model, strlen(d->model));
    error = d->api->rtGetMemInfo(d->chip->hbm ? ASC_HBM : ASC_DDR, &free_bytes, &total);
    if (error || !total)
        return asc_fail(d->api, error, d->far.id, "asking for its memory", err);
    d->memory_bytes = total;
    int32_t version[3] = {0};
    if (d->api->rtGetVersion && !d->api->rtGetVersion(&version[0], &version[1], &version[2]))
        snprintf(d->driver, sizeof d->driver, "ACL %d.%d.%d", version[0], version[1], version[2]);
    return OATO_OK;
}

/* How many devices of this process are open on each NPU: the last one lets it go. */
static int opened[ASC_NPUS];
static pthread_mutex_t opened_lock = PTHREAD_MUTEX_INITIALIZER;

static void npu_take(const struct asc_device *d)
{
    pthread_mutex_lock(&opened_lock);
    opened[d->index]++;
    pthread_mutex_unlock(&opened_lock);
}

static void npu_give(struct asc_device *d)
{
    pthread_mutex_lock(&opened_lock);
    if (!--opened[d->index] && !d->hung) {
        asc_enter(d);
        d->api->rtResetDevice(d->index);
    }
    pthread_mutex_unlock(&opened_lock);
}

static void ascend_close(struct oato_device *base);

static oato_status ascend_open(int index, const char *spec, const struct device_options *options,
                               struct oato_device **out, struct oato_error *err)
{
    const struct asc_api *api = NULL;
    bool moved;
    if (*spec && strcmp(spec, requantise) != 0)
        return oato_fail(err, OATO_EUSAGE, "ascend: unknown setting '%.100s'; known: %s", spec,
                         requantise);
    if (!(api = asc_api_open(err)) || index_check(api, index, err))
        return err->status;
    struct asc_device *d = calloc(1, sizeof *d);
    if (!d)
        return oato_fail_memory(err, sizeof *d, "an ascend device");
    d->api = api;
    d->index = index;
    d->requantises = *spec;
    far_name(&d->far, &ascend_device_ops, index);
    d->far.memory.ops = &asc_memory_ops;
    d->far.memory.more = "give it a larger budget";
    pthread_mutex_init(&d->pools.lock, NULL);
    for (int k = 0; k < OP_KIND_COUNT; k++)
        d->values[k] = asc_kinds[k].values;
    npu_take(d);
    if (patience_limit("OATO_ASCEND_STEP_LIMIT", &d->limit_ns, err) || chip_find(d, err))
        goto fail;
    d->far.memory.capacity = d->memory_bytes;
    if (options && options->budget_bytes && options->budget_bytes < d->memory_bytes)
        d->far.memory.capacity = options->budget_bytes;
    if (asc_area_grow(d, &d->rooms, 1, true, "temporaries", &moved, err) || asc_queue_open(d, err))
        goto fail;
    *out = &d->far.base;
    return OATO_OK;

fail:
    asc_area_free(d, &d->rooms);
    npu_give(d);
    pthread_mutex_destroy(&d->pools.lock);
    free(d);
    return err->status;
}

static void ascend_close(struct oato_device *base)
{
    struct asc_device *d = asc_of(base);
    if (!d)
        return;
    while (d->programs)
        asc_release(base, d->programs);
    asc_queue_close(d);
    asc_measure_close(d);
    weights_close(base);
    if (d->has_crew)
        crew_close(&d->crew);
    asc_spares_free(d);
    asc_area_free(d, &d->rooms);
    asc_area_free(d, &d->workspace);
    far_memory_close(&d->far.memory);
    npu_give(d);
    pthread_mutex_destroy(&d->pools.lock);
    free(d);
}

/* --------------------------------------------------------------------------------- what -- */

static void ascend_info(const struct oato_device *base, struct device_info *out)
{
    const struct asc_device *d = asc_of(base);
    size_t free_bytes = 0, total = 0;
    *out = (struct device_info){.kind = "ascend",
                                .memory_bytes = d->far.memory.capacity,
                                .note = d->api->stand_in ? no_hardware : unverified};
    snprintf(out->id, sizeof out->id, "%s", d->far.id);
    snprintf(out->model, sizeof out->model, "%s", d->model);
    snprintf(out->driver, sizeof out->driver, "%s", d->driver);
    asc_enter(d);
    if (!d->hung && !d->api->rtGetMemInfo(d->chip->hbm ? ASC_HBM : ASC_DDR, &free_bytes, &total))
        out->free_bytes = free_bytes;
    const uint64_t left = d->far.memory.capacity - d->far.memory.used;
    out->free_bytes = left < out->free_bytes ? left : out->free_bytes;
}

static const char *ascend_warning(const struct oato_device *base)
{
    struct asc_device *d = asc_of(base);
    const double *sum = d->requantised;
    int n = d->api->stand_in
                ? snprintf(d->warning, sizeof d->warning,
                           "%s is a %s: nothing that is measured on it is a time of an NPU",
                           d->far.id, d->model)
                : snprintf(d->warning, sizeof d->warning,
                           "%s: no results of an NPU are known: its numbers and its speed are "
                           "unverified on hardware (docs/npu.md)",
                           d->far.id);
    if (sum[0] > 0)
        snprintf(d->warning + n, sizeof d->warning - (size_t)n,
                 "; weights became Q8_0 with an error (NMSE) of %.2g", sum[1] / sum[0]);
    return d->warning;
}

static const struct value_types *ascend_values(const struct oato_device *base)
{
    return asc_of(base)->values;
}

/* ----------------------------------------------------------------------------- the table -- */

static oato_status ascend_submit(struct oato_device *base, struct compiled *c,
                                 const struct step *step, struct oato_error *err)
{
    return job_queue_step(&asc_of(base)->far.queue, c, c->program, c->self, step, err);
}

static bool ascend_keeps_core(const char *spec)
{
    (void)spec;
    return true;
}

const struct device_ops ascend_device_ops = {
    .kind = "ascend",
    .keeps_core = ascend_keeps_core,
    .if_named = true,
    .probe = ascend_probe,
    .absence = ascend_absence,
    .sight = asc_sight,
    .symbols = ascend_symbols,
    .open = ascend_open,
    .close = ascend_close,
    .info = ascend_info,
    .supports = asc_supports,
    .numerics = asc_numerics,
    .values = ascend_values,
    .workspace_bytes = asc_workspace_bytes,
    .alloc = far_alloc,
    .free = far_free,
    .host_alloc = asc_host_alloc,
    .host_free = asc_host_free,
    .upload = far_upload,
    .download = far_download,
    .layout = asc_layout,
    .bytes = asc_bytes,
    .convert = asc_convert,
    .place = far_place,
    .unplace = far_free,
    .together = asc_together,
    .planes = asc_planes,
    .weight_align = ASC_ALIGN,
    .kv_create = asc_kv_create,
    .kv_free = far_kv_free,
    .kv_layout = asc_kv_layout,
    .compile = asc_compile,
    .release = asc_release,
    .submit = ascend_submit,
    .finish = far_finish,
    .timeline = far_timeline,
    .clock_ns = far_clock_ns,
    .measure = asc_measure,
    .warning = ascend_warning,
    .inject_error = far_inject_error,
};
