/*
 * kept.c - what an interrupted run has measured, in a file beside the profile that it was to write:
 * a profile with the key `unfinished`, which nobody plans by. The same command takes rows from it
 * instead of timing them again, and removes it when the profile is there.
 */
#include "profiler/profiler_internal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EVERY_NS UINT64_C(30000000000) /* what a run that is killed loses at most */

uint64_t kept_run(const struct model *m, const struct profiler_options *o, const char *isa)
{
    struct text t;
    text_init(&t);
    text_printf(&t, "%s %016" PRIx64 " %s %d %s %d %d %016" PRIx64 " %s", OATO_VERSION,
                gguf_structure_hash(m->gguf), or_empty(o->devices), o->threads, dtype_name(o->kv),
                o->quick, o->sparse, o->neurons ? neurons_hash(o->neurons) : 0, isa);
    for (int32_t i = 0; i < o->n_contexts; i++)
        text_printf(&t, " %d", o->contexts[i]);
    const uint64_t hash = hash_bytes(or_empty(t.data), t.len);
    text_free(&t);
    return hash;
}

/* Passes over the operators of the device that the file has in full. */
static int passes_of(const char *unfinished, const char *id)
{
    char key[32];
    snprintf(key, sizeof key, " %s=", id);
    const char *at = strstr(unfinished, key);
    return at ? (int)strtol(at + strlen(key), NULL, 10) : 0;
}

oato_status kept_open(struct kept *k, const char *path, uint64_t run, const struct profile *p,
                      warn_fn warn, void *user, struct oato_error *err)
{
    char hash[20], why[400];
    struct mapped_file f;
    struct oato_error none;
    *k = (struct kept){.path = path, .run = run, .saved_ns = now_ns()};
    profile_init(&k->then);
    profile_init(&k->now);
    if (!path || file_map(path, &f, &none))
        return OATO_OK;
    const oato_status status =
        profile_load_memory(f.data, f.bytes, path, &k->then, NULL, NULL, &none);
    file_unmap(&f);
    snprintf(hash, sizeof hash, "%016" PRIx64, run);
    const char *unfinished = or_empty(k->then.unfinished);
    if (status || strncmp(unfinished, hash, strlen(hash)) != 0 ||
        !machine_same(&k->then.machine, &p->machine, why, sizeof why)) {
        warn_line(warn, user, "%s is of another run and is not taken up: everything is measured",
                  path);
        return OATO_OK;
    }
    for (int32_t i = 0; i < k->then.n_rows; i++) {
        struct profile_row row = k->then.rows[i];
        const char *id = k->then.devices[row.device].id;
        row.device = profile_device_index(p, id);
        if (row.device < 0)
            continue;
        k->passes[row.device] = passes_of(unfinished, id);
        if (!profile_put(&k->now, &row))
            return oato_fail_memory(err, sizeof row, "rows");
    }
    k->resumed = k->now.n_rows;
    return OATO_OK;
}

const struct profile_row *kept_row(const struct kept *k, int32_t device, const struct oato_op *op,
                                   const struct op_size *size, int pass)
{
    if (pass > 1 && pass > k->passes[device])
        return NULL;
    for (int32_t i = 0; i < k->resumed; i++)
        if (k->now.rows[i].device == device && row_is_of(&k->now.rows[i], op, size))
            return &k->now.rows[i];
    return NULL;
}

oato_status kept_add(struct kept *k, const struct passes *passes, int32_t device,
                     struct oato_error *err)
{
    for (int32_t i = 0; k->path && i < passes->pass[0].n; i++) {
        struct profile_row row = passes_middle(passes, &passes->pass[0].rows[i]);
        row.device = device;
        if (!profile_put(&k->now, &row))
            return oato_fail_memory(err, sizeof row, "rows");
    }
    return OATO_OK;
}

bool kept_due(const struct kept *k)
{
    return k->path && now_ns() - k->saved_ns > EVERY_NS;
}

oato_status kept_save(struct kept *k, const struct profile *p, struct oato_error *err)
{
    struct text done;
    struct profile out;
    oato_status status = OATO_OK;
    if (!k->path || !k->now.n_rows)
        return OATO_OK;
    text_init(&done);
    text_printf(&done, "%016" PRIx64, k->run);
    for (int32_t i = 0; i < p->n_devices; i++)
        text_printf(&done, " %s=%d", p->devices[i].id, k->passes[i]);
    out = k->now;
    out.version = PROFILE_VERSION;
    out.tool = "oato " OATO_VERSION;
    out.unfinished = done.data;
    out.machine = p->machine;
    out.devices = p->devices;
    out.n_devices = p->n_devices;
    if (done.failed)
        status = oato_fail_memory(err, done.len, "rows");
    else
        status = profile_save(&out, k->path, err);
    text_free(&done);
    k->saved_ns = now_ns();
    return status;
}

oato_status kept_interrupted(struct kept *k, const struct profile *p, struct oato_error *err)
{
    struct oato_error why;
    if (kept_save(k, p, &why))
        return oato_fail(err, OATO_NEGATIVE, "interrupted, and nothing is kept: %s", why.text);
    if (!k->now.n_rows)
        return oato_fail(err, OATO_NEGATIVE, "interrupted before anything was measured");
    return oato_fail(err, OATO_NEGATIVE,
                     "interrupted: %d rows are kept in %s; the same command goes on from there",
                     k->now.n_rows, k->path);
}

void kept_close(struct kept *k)
{
    profile_free(&k->now);
    profile_free(&k->then);
}
