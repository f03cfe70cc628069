/*
 * fuzz_profile.c - whatever the text, the profile reader refuses it or gives a profile that can be
 * written, and reading that gives the same text and hash again. Workloads are read by the same
 * reader.
 */
#include "planfmt/planfmt_internal.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void ignore(void *user, const char *text)
{
    *(size_t *)user += strlen(text);
}

static void print(const struct profile *p, struct text *out)
{
    struct oato_error err;
    text_init(out);
    if (profile_print(p, out, &err))
        abort(); /* what was read must be writable */
}

static void read_workload(const uint8_t *data, size_t bytes)
{
    struct oato_error err = {.text = ""};
    struct workload w;
    const oato_status status = workload_load_memory(data, bytes, "fuzz", &w, &err);
    if (status ? status != OATO_EFILE || !err.text[0] : w.n < 1 || w.n > REQUEST_POINTS_MAX)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    read_workload(data, bytes);
    struct oato_error err = {.text = ""};
    struct profile p, q;
    struct text one, two;
    size_t warned = 0;
    oato_status status = profile_load_memory(data, bytes, "fuzz", &p, ignore, &warned, &err);
    if (status) {
        if (status != OATO_EFILE || err.status != OATO_EFILE || !err.text[0] || p.arena.blocks)
            abort();
        return 0;
    }
    print(&p, &one);
    if (profile_load_memory(one.data, one.len, "fuzz", &q, NULL, NULL, &err))
        abort();
    print(&q, &two);
    if (one.len != two.len || memcmp(one.data, two.data, one.len) != 0 ||
        profile_hash(&p) != profile_hash(&q))
        abort();
    text_free(&one);
    text_free(&two);
    profile_free(&p);
    profile_free(&q);
    return 0;
}
