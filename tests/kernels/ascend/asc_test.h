/*
 * asc_test.h - for tests of the ascend device: the stand-in, set up anew between tests, and what it
 * has counted.
 */
#ifndef OATO_TESTS_ASC_TEST_H
#define OATO_TESTS_ASC_TEST_H

#include "kernels/ascend/asc_internal.h"

#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* A function of the stand-in, which the device has opened. */
static inline void *stand_function(const char *name)
{
    void *library = dlopen(OATO_STAND_IN "/libascendcl.so", RTLD_NOW | RTLD_NOLOAD);
    void *p = library ? dlsym(library, name) : NULL;
    assert_non_null(p);
    if (library)
        dlclose(library);
    return p;
}

/* A new stand-in, set up by "STAND_CHIP=310P3 STAND_MEMORY=64M"; no device may be open. */
static inline void stand_anew(const char *setting)
{
    static const char *const all[] = {"STAND_CHIP", "STAND_DEVICES", "STAND_MEMORY", "STAND_ORDER",
                                      "STAND_FAIL", "STAND_DIE",     "STAND_HANG"};
    struct oato_error err;
    char text[256];
    setenv("OATO_ASCEND", OATO_STAND_IN, 1);
    const struct asc_api *api = asc_api_open(&err);
    if (!api)
        fail_msg("%s", err.text);
    for (size_t i = 0; i < ARRAY_LEN(all); i++)
        unsetenv(all[i]);
    snprintf(text, sizeof text, "%s", setting);
    for (char *rest = NULL, *one = strtok_r(text, " ", &rest); one;
         one = strtok_r(NULL, " ", &rest)) {
        char *value = strchr(one, '=');
        *value++ = 0;
        setenv(one, value, 1);
    }
    void (*reset)(void);
    *(void **)&reset = stand_function("stand_reset");
    reset();
    assert_int_equal(api->Init(NULL), 0);
}

static inline int64_t stand_count(const char *function, const char *rule)
{
    int64_t (*count)(const char *rule);
    *(void **)&count = stand_function(function);
    return count(rule);
}

/* All is given back, and no rule was broken. */
static inline void stand_content(void)
{
    int64_t (*leaks)(void);
    *(void **)&leaks = stand_function("stand_leaks");
    assert_int_equal(leaks(), 0);
    assert_int_equal(stand_count("stand_broken", NULL), 0);
}

static inline void one_line(const struct oato_error *err, oato_status status, const char *what)
{
    assert_int_equal(err->status, status);
    if (!strstr(err->text, what) || strchr(err->text, '\n'))
        fail_msg("not one line about '%s': %s", what, err->text);
}

#define SPEC "ascend:0"

static inline struct oato_device *opened(const char *setting, uint64_t budget)
{
    const struct device_options options = {.budget_bytes = budget};
    struct oato_device *d;
    struct oato_error err;
    stand_anew(setting);
    if (device_open(SPEC, 0, &options, &d, &err))
        fail_msg("%s", err.text);
    return d;
}

static inline void closed(struct oato_device *d)
{
    d->ops->close(d);
    stand_content();
}

#endif
