/*
 * asc_load.c - finds CANN's libraries and opens them. Which library has which function changes from
 * release to release, so each one is looked up in all of them. They are opened once and never
 * closed: they have threads of their own.
 */
#include "kernels/ascend/asc_api.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { HANDLES = 8 };

const char *const asc_operator_name[ASC_OPERATOR_COUNT] = {[ASC_NO_OPERATOR] = "",
#define NAME(name, arguments) [ASC_##name] = "aclnn" #name,
                                                           ASC_OPERATORS(NAME)
#undef NAME
};

/* The first library has the runtime's functions. */
static const char *const runtimes[] = {"libascendcl.so", "libacl_rt.so"};
static const char *const others[] = {
    "libacl_rt.so",   "libnnopbase.so",          "libopapi.so",       "libopapi_math.so",
    "libopapi_nn.so", "libopapi_transformer.so", "libopapi_legacy.so"};

/* ------------------------------------------------------------------------------- finding -- */

static bool find_in(const char *folder, size_t n, const char *below, char *path)
{
    for (size_t i = 0; n && i < ARRAY_LEN(runtimes); i++) {
        const int length =
            snprintf(path, ASC_PATH_BYTES, "%.*s%s/%s", (int)n, folder, below, runtimes[i]);
        if (length < ASC_PATH_BYTES && !access(path, R_OK))
            return true;
    }
    return false;
}

bool asc_libraries_found(char *path)
{
    static const char *const named[] = {"ASCEND_TOOLKIT_HOME", "ASCEND_HOME_PATH"};
    static const char *const usual[] = {"/usr/local/Ascend/ascend-toolkit/latest",
                                        "/usr/local/Ascend/cann", "/usr/local/Ascend/latest"};
    char unasked[ASC_PATH_BYTES];
    const char *own = getenv("OATO_ASCEND"), *folders = getenv("LD_LIBRARY_PATH");
    path = path ? path : unasked;
    if (own && *own)
        return find_in(own, strlen(own), "", path) || find_in(own, strlen(own), "/lib64", path);
    for (size_t i = 0; i < ARRAY_LEN(named); i++) {
        const char *home = or_empty(getenv(named[i]));
        if (find_in(home, strlen(home), "/lib64", path))
            return true;
    }
    for (size_t n; folders && *folders; folders += n + (folders[n] == ':')) {
        n = strcspn(folders, ":");
        if (find_in(folders, n, "", path))
            return true;
    }
    for (size_t i = 0; i < ARRAY_LEN(usual); i++)
        if (find_in(usual[i], strlen(usual[i]), "/lib64", path))
            return true;
    return false;
}

/* ------------------------------------------------------------------------------- opening -- */

struct handles {
    void *handle[HANDLES];
    int n;
};

static bool open_one(struct handles *h, const char *path)
{
    void *handle = h->n < HANDLES ? dlopen(path, RTLD_LAZY | RTLD_LOCAL) : NULL;
    if (handle)
        h->handle[h->n++] = handle;
    return handle;
}

static void *find(const struct handles *h, const char *name)
{
    void *p = NULL;
    for (int i = 0; i < h->n && !p; i++)
        p = dlsym(h->handle[i], name);
    return p;
}

static oato_status open_all(const char *path, struct handles *h, struct oato_error *err)
{
    char other[ASC_PATH_BYTES];
    const int folder = (int)(strrchr(path, '/') - path);
    if (!open_one(h, path))
        return oato_fail(err, OATO_EDEVICE,
                         "ascend: cannot open CANN's library: %.300s; run \"source set_env.sh\" in "
                         "CANN's folder first",
                         dlerror());
    for (size_t i = 0; i < ARRAY_LEN(others); i++)
        if (snprintf(other, sizeof other, "%.*s/%s", folder, path, others[i]) < (int)sizeof other &&
            !access(other, R_OK))
            open_one(h, other);
    return OATO_OK;
}

oato_status asc_api_load(const char *path, struct asc_api *api, struct oato_error *err)
{
    struct handles h = {0};
    const char *missing = NULL;
    *api = (struct asc_api){0};
    snprintf(api->path, sizeof api->path, "%s", path);
    if (open_all(path, &h, err))
        return err->status;
#define OPTIONAL(result, name, arguments) *(void **)&api->name = find(&h, "acl" #name);
#define REQUIRED(result, name, arguments)                                                          \
    OPTIONAL(result, name, arguments)                                                              \
    missing = api->name || missing ? missing : "acl" #name;
    ASC_RUNTIME(REQUIRED)
    ASC_TENSORS(REQUIRED)
    ASC_RUNTIME_NEWER(OPTIONAL)
#undef OPTIONAL
#undef REQUIRED
    if (missing)
        return oato_fail(err, OATO_EDEVICE,
                         "ascend: CANN's libraries beside %s lack %s: install CANN 8.0 or newer",
                         path, missing);
#define OPERATOR(name, arguments)                                                                  \
    *(void **)&api->name = find(&h, "aclnn" #name "GetWorkspaceSize");                             \
    if (api->name)                                                                                 \
        *(void **)&api->run[ASC_##name] = find(&h, "aclnn" #name);
    ASC_OPERATORS(OPERATOR)
#undef OPERATOR
    api->stand_in = find(&h, "oato_stand_in");
    return OATO_OK;
}

void asc_api_symbols(const struct asc_api *api,
                     void (*see)(void *user, const char *symbol, bool found), void *user)
{
#define FUNCTION(result, name, arguments) see(user, "acl" #name, api && api->name);
#define OPERATOR(name, arguments)         see(user, "aclnn" #name, api &&asc_has(api, ASC_##name));
    ASC_RUNTIME(FUNCTION)
    ASC_TENSORS(FUNCTION)
    ASC_RUNTIME_NEWER(FUNCTION)
    ASC_OPERATORS(OPERATOR)
#undef FUNCTION
#undef OPERATOR
}

static struct asc_api library;
static struct oato_error why_not;
static bool usable;

static void library_open(void)
{
    char path[ASC_PATH_BYTES];
    if (!asc_libraries_found(path)) {
        oato_fail(
            &why_not, OATO_EDEVICE,
            "ascend: CANN's library, %s, is not here: install CANN's toolkit and kernels, and "
            "run \"source set_env.sh\" in its folder, or set OATO_ASCEND to the folder of its "
            "libraries (docs/npu.md)",
            runtimes[0]);
        return;
    }
    if (asc_api_load(path, &library, &why_not))
        return;
    const int error = library.Init(NULL);
    if (error && error != ASC_E_REPEATED)
        asc_fail(&library, error, "ascend", "starting CANN", &why_not);
    else
        usable = true;
}

const struct asc_api *asc_api_open(struct oato_error *err)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, library_open);
    if (usable)
        return &library;
    *err = why_not;
    return NULL;
}

/* CANN's message has lines for its own developers: times, files, threads. Kept is what fits of all
 * of it, as one line. */
oato_status asc_fail(const struct asc_api *api, int error, const char *id, const char *doing,
                     struct oato_error *err)
{
    char line[256];
    size_t n = 0;
    const char *text = or_empty(api->GetRecentErrMsg());
    for (bool space = false; *text && n + 2 < sizeof line; text++) {
        const bool blank = *text == '\n' || *text == '\r' || *text == '\t' || *text == ' ';
        if (!blank && space && n)
            line[n++] = ' ';
        space = blank;
        if (!blank)
            line[n++] = *text;
    }
    line[n] = 0;
    text_tame(line, n);
    return oato_fail(err, error == ASC_E_MEMORY ? OATO_EFIT : OATO_EDEVICE,
                     "%s: %s: %s (CANN's error %d)", id, doing, n ? line : "no reason given",
                     error);
}
