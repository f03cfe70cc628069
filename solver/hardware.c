/*
 * hardware.c - machines by name: what if this model ran on that one?
 */
#include "solver/hardware.h"

#include "solver/solver.h"

#include <string.h>

enum { NAMES_MAX = 64 };

oato_status hardware_load(const char *name, struct profile *out, warn_fn warn, void *user,
                          struct oato_error *err)
{
    const char *names[NAMES_MAX];
    struct text all;
    int n = 0;
    if (strchr(name, '='))
        return hardware_describe(name, out, warn, user, err);
    for (; n < NAMES_MAX && hardware_files[n].name; n++) {
        const struct embedded_file *f = &hardware_files[n];
        names[n] = f->name;
        if (!strcmp(f->name, name))
            return profile_load_memory(f->data, f->bytes, f->name, out, warn, user, err);
    }
    text_init(&all);
    for (int i = 0; i < n; i++)
        text_printf(&all, "%s%s", i ? ", " : "", names[i]);
    const char *near = nearest_name(name, names, (size_t)n);
    oato_fail(err, OATO_EUSAGE,
              "no machine '%.40s' in the library%s%s%s; it has: %s; or describe one, as "
              "'cuda=24GiB,1008GB/s,165T;cpu=16,60GB/s'",
              name, near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "",
              all.data ? all.data : "none");
    text_free(&all);
    return err->status;
}
