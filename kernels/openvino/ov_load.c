/*
 * ov_load.c - finds OpenVINO's library and opens it. It is opened once and never closed: its
 * plug-ins have threads of their own, which outlive a dlclose.
 */
#include "kernels/openvino/ov_load.h"

#include <dirent.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define LIBRARY_NAME "libopenvino_c.so"

const char *const ov_element_name[OV_ELEMENT_COUNT] = {
#define NAME(name, text) [OV_##name] = #text,
    OV_ELEMENTS(NAME)
#undef NAME
};

/* ------------------------------------------------------------------------------- finding -- */

/* The library in a folder: releases number it, libopenvino_c.so.2641, and the highest is taken. */
static bool find_in(const char *folder, size_t n, char *path)
{
    char where[OV_PATH_BYTES], best[64] = "";
    long highest = -1;
    snprintf(where, sizeof where, "%.*s", (int)n, folder);
    DIR *d = n ? opendir(where) : NULL;
    if (!d)
        return false;
    for (const struct dirent *e; (e = readdir(d));) {
        const char *number = e->d_name + strlen(LIBRARY_NAME);
        if (strncmp(e->d_name, LIBRARY_NAME, strlen(LIBRARY_NAME)) != 0 ||
            strlen(e->d_name) >= sizeof best)
            continue;
        const long release = *number == '.' ? strtol(number + 1, NULL, 10) : 0;
        if (release > highest)
            snprintf(best, sizeof best, "%s", e->d_name);
        highest = max_i64(highest, release);
    }
    closedir(d);
    return highest >= 0 && snprintf(path, OV_PATH_BYTES, "%s/%s", where, best) < OV_PATH_BYTES;
}

/* The folder itself, and where packages have the library below the one that people name. */
static bool find_below(const char *folder, char *path)
{
    static const char *const below[] = {"", "/libs", "/runtime/lib/intel64", "/lib/intel64",
                                        "/openvino/libs"};
    char where[OV_PATH_BYTES];
    for (size_t i = 0; i < ARRAY_LEN(below); i++) {
        const int n = snprintf(where, sizeof where, "%s%s", folder, below[i]);
        if (n < OV_PATH_BYTES && find_in(where, (size_t)n, path))
            return true;
    }
    return false;
}

bool ov_library_found(char *path)
{
    static const char *const usual[] = {"/usr/lib/x86_64-linux-gnu",
                                        "/usr/lib/aarch64-linux-gnu",
                                        "/usr/local/lib",
                                        "/usr/lib64",
                                        "/usr/lib",
                                        "/opt/intel/openvino/runtime/lib/intel64"};
    char unasked[OV_PATH_BYTES];
    const char *own = getenv("OATO_OPENVINO"), *folders = getenv("LD_LIBRARY_PATH");
    struct stat s;
    path = path ? path : unasked;
    if (own && *own) {
        if (stat(own, &s) == 0 && S_ISDIR(s.st_mode))
            return find_below(own, path);
        return snprintf(path, OV_PATH_BYTES, "%s", own) < OV_PATH_BYTES && !access(own, R_OK);
    }
    for (size_t n; folders && *folders; folders += n + (folders[n] == ':')) {
        n = strcspn(folders, ":");
        if (find_in(folders, n, path))
            return true;
    }
    for (size_t i = 0; i < ARRAY_LEN(usual); i++)
        if (find_in(usual[i], strlen(usual[i]), path))
            return true;
    return false;
}

/* ------------------------------------------------------------------------------- opening -- */

/* Where in its source the library was: "Exception from ..", "Check '..' failed at ..". */
static bool is_place(const char *line, size_t n)
{
    return n && line[n - 1] == ':' &&
           (!strncmp(line, "Exception", 9) || !strncmp(line, "Check", 5));
}

oato_status ov_fail(const struct ov_library *l, ov_status status, const char *id, const char *doing,
                    struct oato_error *err)
{
    char line[256];
    size_t n = 0;
    const char *text = l->get_last_err_msg();
    for (const char *at = or_empty(text), *next; *at; at = next) {
        const size_t length = strcspn(at, "\n");
        next = at + length + (at[length] == '\n');
        const size_t some = is_place(at, length) ? 0 : length;
        if (!some || n + 2 >= sizeof line)
            continue;
        n += (size_t)snprintf(line + n, sizeof line - n, "%s%.*s", n ? " " : "", (int)some, at);
        n = n < sizeof line ? n : sizeof line - 1;
    }
    line[n] = 0;
    text_tame(line, n);
    for (char *c = line; *c; c++)
        *c = *c == '\t' ? ' ' : *c;
    if (text)
        l->free(text);
    return oato_fail(err, OATO_EDEVICE, "%s: %s: %s (OpenVINO's status %d)", id, doing,
                     n ? line : "no reason given", (int)status);
}

/* One Parameter of the type. */
static const char type_text[] =
    "<net name=\"t\" version=\"11\"><layers>"
    "<layer id=\"0\" name=\"p\" type=\"Parameter\" version=\"opset1\">"
    "<data shape=\"2\" element_type=\"%s\"/>"
    "<output><port id=\"0\" precision=\"FP32\"/></output></layer>"
    "<layer id=\"1\" name=\"r\" type=\"Result\" version=\"opset1\">"
    "<input><port id=\"0\"/></input></layer></layers>"
    "<edges><edge from-layer=\"0\" from-port=\"0\" to-layer=\"1\" to-port=\"0\"/></edges></net>";

/* Asks what number the library gives an element type; -1: it does not know the type. */
static int32_t element_number(const struct ov_library *l, const ov_core *core, const char *name)
{
    char text[sizeof type_text + 8];
    int32_t number = -1;
    ov_model *model = NULL;
    ov_port *port = NULL;
    const int n = snprintf(text, sizeof text, type_text, name);
    if (l->core_read_model_from_memory_buffer(core, text, (size_t)n, NULL, &model))
        return -1;
    if (l->model_const_input_by_index(model, 0, &port) || l->port_get_element_type(port, &number))
        number = -1;
    if (port)
        l->output_const_port_free(port);
    l->model_free(model);
    return number;
}

static oato_status elements_ask(struct ov_library *l, struct oato_error *err)
{
    ov_core *core = NULL;
    const ov_status status = l->core_create(&core);
    if (status)
        return ov_fail(l, status, "openvino", "starting the library", err);
    for (int i = 0; i < OV_ELEMENT_COUNT; i++)
        if ((l->element[i] = element_number(l, core, ov_element_name[i])) < 0 && i == OV_F32) {
            l->core_free(core);
            return ov_fail(l, -1, "openvino", "the library reads no model", err);
        }
    l->core_free(core);
    return OATO_OK;
}

oato_status ov_library_load(const char *path, struct ov_library *out, struct oato_error *err)
{
    struct ov_version version = {0};
    *out = (struct ov_library){.handle = dlopen(path, RTLD_NOW | RTLD_LOCAL)};
    if (!out->handle)
        return oato_fail(err, OATO_EDEVICE, "openvino: cannot open its library: %s", dlerror());
    snprintf(out->path, sizeof out->path, "%s", path);
#define LOAD(result, name, arguments)                                                              \
    if (!(*(void **)&out->name = dlsym(out->handle, "ov_" #name)))                                 \
        return oato_fail(err, OATO_EDEVICE,                                                        \
                         "openvino: %s lacks ov_%s: install OpenVINO 2023.1 or newer", path,       \
                         #name);
    OV_FUNCTIONS(LOAD)
#undef LOAD
    if (!out->get_openvino_version(&version)) {
        snprintf(out->version, sizeof out->version, "%s", version.build);
        out->version_free(&version);
    }
    return elements_ask(out, err);
}

static struct ov_library library;
static struct oato_error why_not;
static bool usable;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void load_once(void)
{
    char path[OV_PATH_BYTES];
    const bool found = ov_library_found(path);
    usable = !ov_library_load(found ? path : LIBRARY_NAME, &library, &why_not);
    if (!found && !usable && !library.handle)
        oato_fail(&why_not, OATO_EDEVICE,
                  "openvino: no " LIBRARY_NAME " found: install OpenVINO's runtime, or set "
                  "OATO_OPENVINO to that file or its folder");
}

const struct ov_library *ov_library_open(struct oato_error *err)
{
    pthread_once(&once, load_once);
    if (usable)
        return &library;
    *err = why_not;
    return NULL;
}
