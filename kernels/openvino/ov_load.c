/*
 * ov_load.c - OpenVINO's library, opened when a device of it is first opened and never closed. It
 * finds its plugins beside itself, so nothing of the environment must be set.
 *
 * Looked for in this order: OATO_OPENVINO (a file, or a folder that has it), where ld.so looks, and
 * where packages of OpenVINO put it. Names end in the release: libopenvino_c.so.2641; the highest
 * one of a folder is taken.
 */
#include "kernels/openvino/ov_api.h"

#include <dirent.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LIBRARY "libopenvino_c.so"

static const char *const folders[] = {
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/local/lib",
    "/opt/intel/openvino/runtime/lib/intel64",
    "/opt/intel/openvino/runtime/lib/aarch64",
};

const char *const ov_type_names[OV_TYPES] = {"f32", "f16", "bf16", "i4", "u4", "i8", "u8", "i64"};
const char *const ov_type_ports[OV_TYPES] = {"FP32", "FP16", "BF16", "I4", "U4", "I8", "U8", "I64"};

static struct ov_api api;
static struct oato_error why_not; /* OATO_OK: it is open */
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* ------------------------------------------------------------------------------ the file -- */

/* The library of the highest release in a folder. */
static bool newest_of(const char *folder, char path[512])
{
    char best[64] = "";
    DIR *d = opendir(folder);
    for (const struct dirent *e; d && (e = readdir(d));) {
        const bool is = !strncmp(e->d_name, LIBRARY, sizeof LIBRARY - 1) &&
                        strlen(e->d_name) < sizeof best;
        if (is && strverscmp(e->d_name, best) > 0)
            snprintf(best, sizeof best, "%s", e->d_name);
    }
    if (d)
        closedir(d);
    return *best && snprintf(path, 512, "%s/%s", folder, best) < 512;
}

bool ov_present(char path[512])
{
    const char *asked = getenv("OATO_OPENVINO");
    if (asked && *asked)
        return newest_of(asked, path) ||
               (!access(asked, R_OK) && snprintf(path, 512, "%s", asked) < 512);
    for (size_t i = 0; i < ARRAY_LEN(folders); i++)
        if (newest_of(folders[i], path))
            return true;
    return false;
}

/* ------------------------------------------------------------------------------- opening -- */

oato_status ov_fail(const struct ov_api *a, oato_status status, struct oato_error *err,
                    const char *what, const char *device)
{
    char line[400];
    const char *said = a->get_last_err_msg();
    size_t n = 0;
    for (const char *p = or_empty(said); *p && n < sizeof line - 1; p++) {
        const bool white = (unsigned char)*p <= ' ';
        if (!white || (n && line[n - 1] != ' '))
            line[n++] = white ? ' ' : *p;
    }
    while (n && line[n - 1] == ' ')
        n--;
    line[n] = 0;
    text_tame(line, n);
    return oato_fail(err, status, "%s: OpenVINO: %s: %s", device, what,
                     n ? line : "it does not say why");
}

static void *open_file(void)
{
    const char *asked = getenv("OATO_OPENVINO");
    void *library;
    if (!asked || !*asked) { /* ld.so's own places first */
        library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
        if (library) {
            snprintf(api.path, sizeof api.path, "%s", LIBRARY);
            return library;
        }
    }
    if (!ov_present(api.path)) {
        oato_fail(&why_not, OATO_EDEVICE,
                  "openvino: no %s%s%s; install OpenVINO (pip install openvino) and set "
                  "OATO_OPENVINO to the folder that has it",
                  LIBRARY, asked && *asked ? " at " : " is found", or_empty(asked));
        return NULL;
    }
    library = dlopen(api.path, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        oato_fail(&why_not, OATO_EDEVICE, "openvino: %s cannot be opened: %s", api.path, dlerror());
    return library;
}

static oato_status find_symbols(void)
{
#define FIND(name, result, parameters)                                                             \
    if (!(*(void **)&api.name = dlsym(api.library, "ov_" #name)))                                  \
        return oato_fail(&why_not, OATO_EDEVICE,                                                   \
                         "openvino: %s has no ov_" #name "; install a newer OpenVINO", api.path);
    OV_SYMBOLS(FIND)
#undef FIND
    return OATO_OK;
}

/* A model with a parameter of each type says the numbers of types. */
static oato_status ask_types(struct ov_core *core)
{
    struct text t;
    struct ov_model *model = NULL;
    text_init(&t);
    text_printf(&t, "<?xml version=\"1.0\"?><net name=\"types\" version=\"11\"><layers>");
    for (int i = 0; i < OV_TYPES; i++)
        text_printf(&t,
                    "<layer id=\"%d\" name=\"p%d\" type=\"Parameter\" version=\"opset1\"><data "
                    "shape=\"2\" element_type=\"%s\"/><output><port id=\"0\" precision=\"%s\">"
                    "<dim>2</dim></port></output></layer><layer id=\"%d\" name=\"r%d\" "
                    "type=\"Result\" version=\"opset1\"><input><port id=\"0\"><dim>2</dim></port>"
                    "</input></layer>",
                    2 * i, i, ov_type_names[i], ov_type_ports[i], 2 * i + 1, i);
    text_printf(&t, "</layers><edges>");
    for (int i = 0; i < OV_TYPES; i++)
        text_printf(&t,
                    "<edge from-layer=\"%d\" from-port=\"0\" to-layer=\"%d\" to-port=\"0\"/>",
                    2 * i, 2 * i + 1);
    text_printf(&t, "</edges></net>");
    int failed = t.failed ||
                 api.core_read_model_from_memory_buffer(core, t.data, t.len, NULL, &model);
    for (int i = 0; !failed && i < OV_TYPES; i++) {
        struct ov_port *port = NULL;
        failed = api.model_const_input_by_index(model, (size_t)i, &port) ||
                 api.port_get_element_type(port, &api.type[i]);
        if (port)
            api.output_const_port_free(port);
    }
    if (model)
        api.model_free(model);
    text_free(&t);
    return failed ? ov_fail(&api, OATO_EDEVICE, &why_not, "reading a model", "openvino") : OATO_OK;
}

static void load(void)
{
    struct ov_core *core = NULL;
    struct ov_version version = {0};
    why_not.status = OATO_OK;
    api.library = open_file();
    if (!api.library || find_symbols())
        return;
    if (!api.get_openvino_version(&version)) {
        snprintf(api.version, sizeof api.version, "%.*s", (int)strcspn(or_empty(version.build), "-"),
                 or_empty(version.build));
        api.version_free(&version);
    }
    if (api.core_create(&core)) {
        ov_fail(&api, OATO_EDEVICE, &why_not, "starting", "openvino");
        return;
    }
    ask_types(core);
    api.core_free(core);
}

oato_status ov_load(const struct ov_api **out, struct oato_error *err)
{
    pthread_once(&once, load);
    if (why_not.status) {
        *err = why_not;
        return err->status;
    }
    *out = &api;
    return OATO_OK;
}
