/*
 * auto_kept.c - profiles and plans that are kept below the cache folder (docs/automatic-plans.md).
 * A plan has a stamp, a file of lines "NAME: VALUE" with all that it was made for; where one of
 * these is another one now the plan does not hold. All files are replaced by renaming, and a file
 * that is damaged or not ours is as good as none.
 */
#include "front/auto_internal.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

enum { LOCK_TRIES = 600, LOCK_WAIT_NS = 100000000 }; /* a minute */

oato_status plan_store_paths(struct plan_store *k, const struct here *h, uint64_t structure_hash,
                             const char *key, struct oato_error *err)
{
    struct text folder;
    char name[96];
    *k = (struct plan_store){.lock_fd = -1};
    text_init(&folder);
    text_init(&k->profile);
    text_init(&k->plan);
    text_init(&k->stamp);
    text_init(&k->lock);
    cache_folder(&folder);
    const size_t root = folder.len;
    text_printf(&folder, "/plans");
    if (!folder.failed)
        folder_make(folder.data);
    machine_file_name(&h->fingerprint.machine, name, sizeof name);
    name[strcspn(name, ".")] = 0;
    text_printf(&k->profile, "%s/%s-%016" PRIx64 ".profile.yaml", or_empty(folder.data), name,
                hash_bytes(h->what.data, h->what.len));
    text_printf(&k->plan, "%s/%016" PRIx64 "-%016" PRIx64 ".plan", or_empty(folder.data),
                structure_hash, hash_bytes(key, strlen(key)));
    text_printf(&k->stamp, "%s.stamp", or_empty(k->plan.data));
    text_printf(&k->lock, "%s/lock", or_empty(folder.data));
    const bool failed =
        folder.failed || k->profile.failed || k->plan.failed || k->stamp.failed || k->lock.failed;
    text_free(&folder);
    return failed ? oato_fail_memory(err, root + sizeof name, "the names of kept files") : OATO_OK;
}

void plan_store_free(struct plan_store *k)
{
    plan_store_unlock(k);
    text_free(&k->profile);
    text_free(&k->plan);
    text_free(&k->stamp);
    text_free(&k->lock);
}

void plan_store_lock(struct plan_store *k)
{
    const struct timespec wait = {0, LOCK_WAIT_NS};
    k->lock_fd = open(k->lock.data, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    for (int i = 0; k->lock_fd >= 0 && flock(k->lock_fd, LOCK_EX | LOCK_NB); i++) {
        if (!i)
            program_tell("waiting for another program that measures or plans on this machine");
        if (i == LOCK_TRIES || oato_interrupted)
            break; /* it only spares work */
        nanosleep(&wait, NULL);
    }
}

void plan_store_unlock(struct plan_store *k)
{
    if (k->lock_fd >= 0)
        close(k->lock_fd);
    k->lock_fd = -1;
}

/* ------------------------------------------------------------------------------- stamps --- */

static void stamp_make(const struct here *h, uint64_t neurons_hash, uint64_t plan_hash,
                       struct text *out)
{
    text_printf(out, "%ssidecar: %016" PRIx64 "\nplan: %016" PRIx64 "\n", h->what.data,
                neurons_hash, plan_hash);
}

/* The line of the text that begins with the n bytes of `name`; *length: what follows them. */
static const char *line_of(const char *text, const char *name, size_t n, size_t *length)
{
    for (const char *at = text; *at; at += strcspn(at, "\n"), at += *at == '\n')
        if (!strncmp(at, name, n)) {
            *length = strcspn(at + n, "\n");
            return at + n;
        }
    *length = 0;
    return NULL;
}

/* Whether all lines of `now` are in `then`, and no others; why: which is not. */
static bool stamp_same(const char *then, const char *now, struct text *why)
{
    for (int turn = 0; turn < 2; turn++) {
        const char *from = turn ? then : now, *in = turn ? now : then;
        for (const char *at = from; *at; at += strcspn(at, "\n"), at += *at == '\n') {
            const char *value = strstr(at, ": ");
            const size_t line = strcspn(at, "\n");
            if (!value || (size_t)(value - at) > line)
                continue; /* not ours */
            const size_t name = (size_t)(value - at), n = line - name - 2;
            size_t other = 0;
            const char *there = line_of(in, at, name + 2, &other);
            if (there && other == n && !memcmp(there, value + 2, n))
                continue;
            if (there && !turn)
                text_printf(why, "%.*s was '%.*s' and is '%.*s' now", (int)name, at, (int)other,
                            there, (int)n, value + 2);
            else
                text_printf(why, turn ? "%.*s is gone" : "%.*s is new", (int)name, at);
            return false;
        }
    }
    return true;
}

static bool file_there(const char *path, struct mapped_file *f)
{
    struct oato_error ignored;
    return !access(path, F_OK) && !file_map(path, f, &ignored);
}

bool plan_store_load(const struct plan_store *k, const struct here *h, const struct model *m,
                     uint64_t neurons_hash, struct plan *out, struct text *why)
{
    struct mapped_file plan = {0}, stamp = {0};
    struct text then, now;
    struct oato_error err;
    text_init(&then);
    text_init(&now);
    const bool there = file_there(k->plan.data, &plan);
    if (file_there(k->stamp.data, &stamp))
        text_add(&then, (const char *)stamp.data, stamp.bytes);
    if (there)
        stamp_make(h, neurons_hash, hash_bytes(plan.data, plan.bytes), &now);
    bool good = there && !then.failed && !now.failed;
    char *whose = good && then.len ? strstr(then.data, "\nplan: ") : NULL;
    const char *is = good ? strstr(now.data, "\nplan: ") : "";
    if (good &&
        (!whose || strcmp(whose, is) != 0)) { /* first: what else it says is of no use then */
        text_printf(why, "the kept plan is damaged or not whole");
        good = false;
    }
    good = good && stamp_same(then.data, now.data, why);
    if (good && (plan_load_memory(plan.data, plan.bytes, k->plan.data, out, &err) ||
                 (plan_check_model(out, m->gguf, &err) && (plan_free(out), true)))) {
        text_printf(why, "the kept plan cannot be used: %s", err.text);
        good = false;
    }
    file_unmap(&plan);
    file_unmap(&stamp);
    text_free(&then);
    text_free(&now);
    return good;
}

/* ------------------------------------------------------------------------------- memory --- */

/* Free memory changes all the time. More of it makes a better plan if there is a quarter more, and
 * something to put there: where the plan uses half of what it had, or nothing. */
static bool is_more(uint64_t now, const struct plan_device *d)
{
    const uint64_t least = (uint64_t)64 << 20;
    return now > d->budget_bytes + d->budget_bytes / 4 + least &&
           (!d->planned_bytes || d->planned_bytes > d->budget_bytes / 2);
}

static double gib(uint64_t bytes)
{
    return (double)bytes / (double)(1 << 30);
}

bool plan_store_fits(const struct plan *p, const struct here *h, struct text *why)
{
    for (int32_t d = 0; d < p->n_devices; d++) {
        const struct plan_device *v = &p->devices[d];
        int32_t i = 0;
        while (i < h->n && strcmp(h->info[i].id, v->id) != 0)
            i++;
        const uint64_t now = i < h->n ? h->info[i].free_bytes : 0;
        if (v->planned_bytes > now)
            text_printf(why, "%s has less free memory, %.2f GiB; the kept plan takes %.2f GiB",
                        v->id, gib(now), gib(v->planned_bytes));
        else if (i < h->n && is_more(here_budget(h, i), v))
            text_printf(why, "%s has more free memory, %.2f GiB; the kept plan had %.2f GiB", v->id,
                        gib(now), gib(v->budget_bytes));
        else
            continue;
        return false;
    }
    return true;
}

/* ------------------------------------------------------------------------------- saving --- */

static oato_status text_save(const char *path, const struct text *t, struct oato_error *err)
{
    struct outfile f;
    if (t->failed)
        return oato_fail_memory(err, t->len, path);
    oato_status status = outfile_open(&f, path, err);
    if (status)
        return status;
    status = outfile_write(&f, t->data, t->len, err);
    return status ? status : outfile_commit(&f, err);
}

void plan_store_save(const struct plan_store *k, const struct here *h, const struct plan *p,
                     uint64_t neurons_hash)
{
    struct oato_error err;
    struct text stamp;
    uint8_t *data = NULL;
    size_t bytes = 0;
    text_init(&stamp);
    oato_status status = plan_encode(p, &data, &bytes, &err);
    if (!status)
        stamp_make(h, neurons_hash, hash_bytes(data, bytes), &stamp);
    if (!status)
        status = plan_save(p, k->plan.data, &err);
    if (!status)
        status = text_save(k->stamp.data, &stamp, &err);
    if (status)
        warn_line(program_warn, NULL, "the plan is used but not kept: %s", err.text);
    free(data);
    text_free(&stamp);
}
