/*
 * gguf_testing.h - GGUF files in a folder of their own, for tests of what they say.
 */
#ifndef OATO_GGUF_TESTING_H
#define OATO_GGUF_TESTING_H

#include "models/models.h"
#include "tests/folder.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* cmocka wants the four headers above first */
#include <cmocka.h>

/* A path in the test's folder; the last eight stay valid. */
static inline const char *at(const char *name)
{
    static char paths[8][160];
    static unsigned turn;
    char *p = paths[turn++ % ARRAY_LEN(paths)];
    snprintf(p, sizeof paths[0], "%s/%s", test_folder, name);
    return p;
}

static inline struct gguf *open_or_fail(const char *path)
{
    struct oato_error err;
    struct gguf *g = NULL;
    if (gguf_open(path, &g, &err))
        fail_msg("%s", err.text);
    return g;
}

static inline void save_or_fail(struct gguf_writer *w, const char *path)
{
    struct oato_error err;
    if (gguf_writer_save(w, path, &err))
        fail_msg("%s", err.text);
    gguf_writer_free(w);
}

#define FOLDER_TEST(f) cmocka_unit_test_setup_teardown(f, folder_create, folder_remove)

#endif
