/*
 * cuda_driver.c - finds NVIDIA's driver library at run time. It is opened once and never closed:
 * its threads outlive a dlclose.
 */
#include "kernels/cuda/cuda_driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum {
    /* Drivers load machine code that a compiler of their major version or an older one made. */
    DRIVER_OLDEST = OATO_CUDA_MAJOR * 1000,
    DRIVER_RELEASE = OATO_CUDA_MAJOR == 12 ? 525 : 580, /* NVIDIA's name of the first of them */
    LIBRARY_OLDEST = 12,
};

static struct cuda_driver driver;
static struct oato_error why_not;
static bool found, usable;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static const char *driver_name(void)
{
    const char *name = getenv("OATO_CUDA_DRIVER");
    return name && *name ? name : "libcuda.so.1";
}

void cuda_driver_symbols(void (*see)(void *user, const char *library, const char *symbol,
                                     bool found),
                         void *user)
{
    void *library = dlopen(driver_name(), RTLD_NOW | RTLD_LOCAL);
#define SEE(member, symbol, arguments)                                                             \
    see(user, "libcuda", symbol, library != NULL && dlsym(library, symbol) != NULL);
    CUDA_DRIVER_FUNCTIONS(SEE)
#undef SEE
}

static oato_status load(struct oato_error *err)
{
    const char *name = driver_name();
    void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return oato_fail(err, OATO_EDEVICE, "cuda: no NVIDIA driver found: %s", dlerror());
    found = true;
#define LOAD(member, symbol, arguments)                                                            \
    if (!(*(void **)&driver.member = dlsym(library, symbol)))                                      \
        return oato_fail(err, OATO_EDEVICE, "cuda: %s lacks %s: install a newer NVIDIA driver",    \
                         name, symbol);
    CUDA_DRIVER_FUNCTIONS(LOAD)
#undef LOAD
    driver.driver_version(&driver.version);
    if (driver.version < DRIVER_OLDEST)
        return oato_fail(err, OATO_EDEVICE,
                         "cuda: the NVIDIA driver is for CUDA %d.%d; this build needs one for "
                         "CUDA %d.0 or newer (R%d): install it, or build with the toolkit of CUDA "
                         "%d",
                         driver.version / 1000, driver.version % 1000 / 10, OATO_CUDA_MAJOR,
                         DRIVER_RELEASE, driver.version / 1000);
    cu_result result = driver.init(0);
    if (result == CU_ERROR_NO_DEVICE)
        return oato_fail(err, OATO_EDEVICE, "cuda: the NVIDIA driver finds no GPU");
    if (result)
        return cuda_fail(&driver, result, "cuda", "initialising the driver", err);
    return OATO_OK;
}

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
/* NOLINTBEGIN(bugprone-macro-parentheses, misc-unused-parameters): definitions */
#define DO_NOTHING(member, symbol, arguments)                                                      \
    static cu_result none_##member arguments                                                       \
    {                                                                                              \
        return CU_ERROR_LAUNCH_TIMEOUT;                                                            \
    }
CUDA_DRIVER_FUNCTIONS(DO_NOTHING)
#undef DO_NOTHING
/* NOLINTEND(bugprone-macro-parentheses, misc-unused-parameters) */
#pragma GCC diagnostic pop

static cu_result hung_name(cu_result result, const char **text)
{
    *text = result == CU_ERROR_LAUNCH_TIMEOUT ? "no answer" : NULL;
    return CU_OK;
}

static cu_result hung_text(cu_result result, const char **text)
{
    *text = result == CU_ERROR_LAUNCH_TIMEOUT ? "the GPU hangs and is left as it is" : NULL;
    return CU_OK;
}

const struct cuda_driver *cuda_driver_none(void)
{
#define MEMBER(member, symbol, arguments) .member = none_##member,
    static struct cuda_driver none = {CUDA_DRIVER_FUNCTIONS(MEMBER).version = 0};
#undef MEMBER
    none.error_name = hung_name;
    none.error_text = hung_text;
    return &none;
}

static void load_once(void)
{
    usable = load(&why_not) == OATO_OK;
}

const struct cuda_driver *cuda_driver_open(struct oato_error *err)
{
    pthread_once(&once, load_once);
    if (usable)
        return &driver;
    if (err)
        *err = why_not;
    return NULL;
}

bool cuda_driver_found(void)
{
    pthread_once(&once, load_once);
    return found;
}

oato_status cuda_fail(const struct cuda_driver *cu, cu_result result, const char *id,
                      const char *doing, struct oato_error *err)
{
    const char *name = NULL, *text = NULL;
    cu->error_name(result, &name);
    cu->error_text(result, &text);
    return oato_fail(err, result == CU_ERROR_OUT_OF_MEMORY ? OATO_EFIT : OATO_EDEVICE,
                     "%s: %s: %s (%s)", id, doing, name ? name : "unknown error",
                     text ? text : "no text");
}

/* The library may be in no list of the loader: toolkits bring it in folders of theirs. */
void *cuda_library_open(const struct cuda_library *l, int driver_version, struct oato_error *err)
{
    static const char *const folders[] = {"", "/usr/local/cuda/lib64/",
                                          "/usr/local/cuda/extras/CUPTI/lib64/",
                                          "/usr/local/cuda/lib/"};
    const char *name = getenv(l->variable);
    void *library = NULL;
    char path[96];
    if (name && *name) {
        library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
        if (!library)
            oato_fail(err, OATO_EDEVICE, "%s: %s", l->title, dlerror());
        return library;
    }
    /* an older one works with a newer driver, not the other way round */
    const int last = l->only ? l->only : LIBRARY_OLDEST - l->unnumbered;
    for (int major = l->only ? l->only : driver_version / 1000; major >= last && !library;
         major--) {
        for (size_t i = 0; i < ARRAY_LEN(folders) && !library; i++) {
            snprintf(path, sizeof path, "%s%s.%d", folders[i], l->file, major);
            if (l->unnumbered && major < LIBRARY_OLDEST)
                *strrchr(path, '.') = 0;
            library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        }
    }
    if (!library)
        oato_fail(err, OATO_EDEVICE,
                  "%s is not installed: install the CUDA toolkit, or set %s to the path of %s",
                  l->title, l->variable, l->file);
    return library;
}
