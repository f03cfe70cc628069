/*
 * ov_runtime.c - one device of the library: finds it, asks what it is, and compiles text for it in
 * the way that a device of ours needs: float32 where it has that, nothing quantised that the model
 * did not, and no threads.
 */
#include "kernels/openvino/ov_parts.h"

#include <stdlib.h>
#include <string.h>

/* What it said about an operator of a kind and a type. */
struct ov_trial {
    struct ov_trial *next;
    uint16_t kind, dtype;
    bool runs;
    struct oato_error why;
};

/* A property as text; "" where there is none. */
static void property(const struct ov_runtime *rt, const char *key, char *out, size_t room)
{
    char *text = NULL;
    *out = 0;
    if (rt->library->core_get_property(rt->core, rt->device, key, &text))
        text = NULL;
    if (text) {
        snprintf(out, room, "%s", text);
        text_tame(out, strlen(out));
        rt->library->free(text);
    } else { /* its message is not for us */
        const char *message = rt->library->get_last_err_msg();
        if (message)
            rt->library->free(message);
    }
}

static bool knows(const struct ov_runtime *rt, const char *key)
{
    const size_t n = strlen(key);
    for (const char *at = rt->known; (at = strstr(at, key)); at += n)
        if ((at == rt->known || at[-1] == ' ') && (!at[n] || at[n] == ' '))
            return true;
    return false;
}

static uint64_t property_bytes(const struct ov_runtime *rt, const char *key)
{
    char text[32] = "";
    if (knows(rt, key))
        property(rt, key, text, sizeof text);
    return strtoull(text, NULL, 10);
}

void ov_runtime_memory(struct ov_runtime *rt)
{
    struct host_share share;
    host_share_read("", &share);
    const bool npu = strncmp(rt->device, "NPU", 3) == 0;
    const uint64_t all =
        property_bytes(rt, npu ? "NPU_DEVICE_TOTAL_MEM_SIZE" : "GPU_DEVICE_TOTAL_MEM_SIZE");
    const uint64_t used = npu ? property_bytes(rt, "NPU_DEVICE_ALLOC_MEM_SIZE") : 0;
    rt->memory_bytes = all ? all : share.memory_bytes;
    rt->free_bytes = rt->memory_bytes > used ? rt->memory_bytes - used : 0;
    if (rt->free_bytes > share.available_bytes) /* weights and values lie in the host's */
        rt->free_bytes = share.available_bytes;
}

oato_status ov_runtime_compile(struct ov_runtime *rt, const char *text, size_t bytes,
                               const char *constants, size_t n, ov_tensor **tensor,
                               ov_compiled_model **out, struct oato_error *err)
{
    const struct ov_library *l = rt->library;
    const struct {
        const char *key, *value;
    } wanted[] = {
        {"INFERENCE_PRECISION_HINT", strncmp(rt->device, "NPU", 3) == 0 ? "f16" : "f32"},
        {"DYNAMIC_QUANTIZATION_GROUP_SIZE", "0"},
        {"NPU_COMPILER_DYNAMIC_QUANTIZATION", "NO"},
        {"NUM_STREAMS", rt->streams},
        {"INFERENCE_NUM_THREADS", *rt->streams == '0' ? NULL : "1"},
        {"ENABLE_CPU_PINNING", *rt->streams == '0' ? NULL : "NO"},
    };
    const char *p[2 * ARRAY_LEN(wanted)] = {0};
    size_t set = 0;
    for (size_t i = 0; i < ARRAY_LEN(wanted); i++) {
        if (!wanted[i].value || !*wanted[i].value || !knows(rt, wanted[i].key))
            continue;
        p[set++] = wanted[i].key;
        p[set++] = wanted[i].value;
    }
    int64_t size = (int64_t)n;
    ov_model *model = NULL;
    ov_status status = 0;
    if (n)
        status = l->tensor_create_from_host_ptr(l->element[OV_U8], (struct ov_shape){1, &size},
                                                (void *)(uintptr_t)constants, tensor);
    if (!status)
        status = l->core_read_model_from_memory_buffer(rt->core, text, bytes, *tensor, &model);
    if (status)
        return ov_fail(l, status, rt->device, "reading the text of a function", err);
    status = l->core_compile_model(rt->core, model, rt->device, set, out, p[0], p[1], p[2], p[3],
                                   p[4], p[5], p[6], p[7], p[8], p[9], p[10], p[11]);
    l->model_free(model);
    return status ? ov_fail(l, status, rt->device, "compiling a function", err) : OATO_OK;
}

/* ------------------------------------------------------------------------------- opening -- */

/* Compiles x + x, to see that the plug-in does compile, and in which type it computes. */
static oato_status precision_ask(struct ov_runtime *rt, struct oato_error *err)
{
    struct ov_ir ir = {0};
    struct text text = {0};
    ov_tensor *none = NULL;
    ov_compiled_model *compiled = NULL;
    char *type = NULL;
    const struct ov_node x = ov_ir_input(&ir, OV_F32, 2, (const int64_t[]){1, 64});
    ov_ir_result(&ir, ov_ir_2(&ir, "Add", x, x));
    ov_ir_write(&ir, &text);
    oato_status status =
        text.failed ? oato_fail_memory(err, text.len, "the text of a function")
                    : ov_runtime_compile(rt, text.data, text.len, NULL, 0, &none, &compiled, err);
    if (!status &&
        rt->library->compiled_model_get_property(compiled, "INFERENCE_PRECISION_HINT", &type))
        status =
            oato_fail(err, OATO_EDEVICE, "%s: does not say in which type it computes", rt->device);
    if (!status) {
        snprintf(rt->precision, sizeof rt->precision, "%s", type);
        snprintf(rt->numerics, sizeof rt->numerics, "%s.openvino", rt->precision);
        rt->nmse = strcmp(rt->precision, "f32") == 0 ? 1e-9 : 1e-5;
        rt->library->free(type);
    }
    if (compiled)
        rt->library->compiled_model_free(compiled);
    ov_ir_free(&ir);
    text_free(&text);
    return status;
}

static oato_status device_ask(struct ov_runtime *rt, struct oato_error *err)
{
    char *name = NULL;
    const ov_status status =
        rt->library->core_get_property(rt->core, rt->device, "FULL_DEVICE_NAME", &name);
    if (status)
        return ov_fail(rt->library, status, rt->device,
                       "OpenVINO has no such device here, or no plug-in for it", err);
    snprintf(rt->name, sizeof rt->name, "%s", name);
    text_tame(rt->name, strlen(rt->name));
    rt->library->free(name);
    property(rt, "SUPPORTED_PROPERTIES", rt->known, sizeof rt->known);
    for (char *c = rt->known; *c; c++)
        if (*c == ',')
            *c = ' ';
    if (knows(rt, "DEVICE_ARCHITECTURE"))
        property(rt, "DEVICE_ARCHITECTURE", rt->architecture, sizeof rt->architecture);
    if (knows(rt, "NPU_DRIVER_VERSION"))
        property(rt, "NPU_DRIVER_VERSION", rt->driver, sizeof rt->driver);
    ov_runtime_memory(rt);
    rt->asks = strcmp(rt->device, "CPU") != 0;
    if (knows(rt, "NUM_STREAMS") && !rt->asks)
        snprintf(rt->streams, sizeof rt->streams, "0");
    if (!precision_ask(rt, err))
        return OATO_OK;
    if (!*rt->streams) /* a release may want a stream, and so a thread */
        return err->status;
    snprintf(rt->streams, sizeof rt->streams, "1");
    return precision_ask(rt, err);
}

static oato_status core_make(const struct ov_library **library, ov_core **core,
                             struct oato_error *err)
{
    *library = ov_library_open(err);
    if (!*library)
        return err->status;
    const ov_status status = (*library)->core_create(core);
    return status ? ov_fail(*library, status, "openvino", "starting the library", err) : OATO_OK;
}

oato_status ov_runtime_devices(struct text *out, struct oato_error *err)
{
    const struct ov_library *l;
    ov_core *core = NULL;
    struct ov_names names = {0};
    if (core_make(&l, &core, err))
        return err->status;
    const ov_status status = l->core_get_available_devices(core, &names);
    oato_status result =
        status ? ov_fail(l, status, "openvino", "listing its devices", err) : OATO_OK;
    for (size_t i = 0; !status && i < names.size; i++)
        text_printf(out, "%s%s", i ? ", " : "", names.devices[i]);
    if (!status)
        l->available_devices_free(&names);
    l->core_free(core);
    return result;
}

oato_status ov_runtime_open(const char *device, struct ov_runtime **out, struct oato_error *err)
{
    static const char *const usual[] = {"NPU", "GPU.0"};
    struct ov_runtime *rt = calloc(1, sizeof *rt);
    if (!rt)
        return oato_fail_memory(err, sizeof *rt, "a device of OpenVINO");
    oato_status status = core_make(&rt->library, &rt->core, err);
    for (size_t i = 0; !status && i < (*device ? 1 : ARRAY_LEN(usual)); i++) {
        snprintf(rt->device, sizeof rt->device, "%s", *device ? device : usual[i]);
        if (!device_ask(rt, err)) {
            *out = rt;
            return OATO_OK;
        }
    }
    if (!status && !*device)
        oato_fail(err, OATO_EDEVICE,
                  "openvino: OpenVINO finds no NPU and no GPU here; openvino:device=CPU is its "
                  "CPU, which is slower than the device cpu and there for tests");
    ov_runtime_close(rt);
    return err->status;
}

void ov_runtime_close(struct ov_runtime *rt)
{
    if (!rt)
        return;
    for (struct ov_trial *t = rt->trials, *next; t; t = next) {
        next = t->next;
        free(t);
    }
    while (rt->functions)
        ov_function_close(rt->functions);
    if (rt->core)
        rt->library->core_free(rt->core);
    free(rt);
}

/* ----------------------------------------------------------------------------- operators -- */

/* Compiles, and checks, one operator in an ordinary shape. */
static void operator_try(struct ov_runtime *rt, struct ov_trial *t)
{
    enum { TRIAL_ROWS = 16 };
    struct program_record r = {.kind = RECORD_RUN, .rows = ROWS_TOKENS};
    struct span_value values[RECORD_INPUTS + RECORD_OUTPUTS];
    struct ov_function *f = NULL;
    if (!op_example((enum op_kind)t->kind, (oato_dtype)t->dtype, &r.op))
        return;
    r.n_in = (uint8_t)(op_in_count(&r.op) == OP_ANY ? 2 : op_in_count(&r.op));
    for (int i = 0; i < r.n_in; i++) {
        const int64_t width = op_in_width(&r.op, i);
        r.in_width[i] = width == OP_ANY ? r.op.n / 2 : (int32_t)width;
        r.in[i] = (uint64_t)i << 32;
    }
    while (r.n_out < RECORD_OUTPUTS && op_out_width(&r.op, r.n_out)) {
        r.out[r.n_out] = (uint64_t)(r.n_in + r.n_out) << 32;
        r.n_out++;
    }
    r.n_weights = (uint8_t)op_weight_least(&r.op);
    const struct ov_span span = ov_span_of_record(&r, values);
    t->runs = !ov_function_open(rt, &span, TRIAL_ROWS, NULL, &f, &t->why);
    ov_function_close(f);
}

bool ov_supports(struct ov_runtime *rt, const struct oato_op *op, struct oato_error *why)
{
    struct ov_trial *t;
    if (!ov_op_known(op)) {
        if (why)
            oato_fail(why, OATO_EUSAGE, "%s: no %s here", rt->device, op_kind_name(op->kind));
        return false;
    }
    if (!rt->asks)
        return true;
    for (t = rt->trials; t && (t->kind != op->kind || t->dtype != op->dtype); t = t->next)
        ;
    if (!t) {
        t = calloc(1, sizeof *t);
        if (!t)
            return false;
        *t = (struct ov_trial){.next = rt->trials, .kind = op->kind, .dtype = op->dtype};
        rt->trials = t;
        operator_try(rt, t);
    }
    if (why)
        *why = t->why;
    return t->runs;
}
