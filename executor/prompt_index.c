/*
 * prompt_index.c - see prompt_index.h. Names tell key and part ("00d1e4c0ffee1234.page"), so that
 * a folder is known without reading any file.
 */
#include "executor/prompt_index.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { KEY_DIGITS = 16, BUCKETS_LEAST = 256 };

void prompt_index_path(const struct prompt_index *x, uint64_t key, enum prompt_part part,
                       struct text *out)
{
    text_printf(out, "%s/%016llx.%s", x->folder, (unsigned long long)key, prompt_part_names[part]);
}

/* ------------------------------------------------------------------------------- entries - */

static struct prompt_entry **bucket_of(const struct prompt_index *x, uint64_t key,
                                       enum prompt_part part)
{
    return &x->buckets[(key + (uint64_t)part) & (x->n_buckets - 1)];
}

struct prompt_entry *prompt_index_find(const struct prompt_index *x, uint64_t key,
                                       enum prompt_part part)
{
    struct prompt_entry *e = x->n_buckets ? *bucket_of(x, key, part) : NULL;
    while (e && (e->key != key || e->part != part))
        e = e->next;
    return e;
}

static bool buckets_grow(struct prompt_index *x)
{
    struct prompt_index more = {.n_buckets = x->n_buckets ? 2 * x->n_buckets : BUCKETS_LEAST};
    more.buckets = calloc(more.n_buckets, sizeof *more.buckets);
    if (!more.buckets)
        return false;
    for (size_t i = 0; i < x->n_buckets; i++)
        for (struct prompt_entry *e = x->buckets[i], *next; e; e = next) {
            struct prompt_entry **to = bucket_of(&more, e->key, e->part);
            next = e->next;
            e->next = *to;
            *to = e;
        }
    free(x->buckets);
    x->buckets = more.buckets;
    x->n_buckets = more.n_buckets;
    return true;
}

struct prompt_entry *prompt_index_add(struct prompt_index *x, uint64_t key, enum prompt_part part,
                                      int64_t used)
{
    if (x->n >= x->n_buckets && !buckets_grow(x))
        return NULL;
    struct prompt_entry *e = calloc(1, sizeof *e), **to = bucket_of(x, key, part);
    if (!e)
        return NULL;
    *e = (struct prompt_entry){.key = key, .part = part, .used = used, .seen = true, .next = *to};
    *to = e;
    x->n++;
    return e;
}

void prompt_index_here(struct prompt_index *x, struct prompt_entry *e, uint64_t bytes)
{
    e->here = true;
    e->bytes = bytes;
    x->bytes += bytes;
}

void prompt_index_remove(struct prompt_index *x, struct prompt_entry *e)
{
    struct prompt_entry **at = bucket_of(x, e->key, e->part);
    while (*at != e)
        at = &(*at)->next;
    *at = e->next;
    x->bytes -= e->here ? e->bytes : 0;
    x->n--;
    free(e);
}

void prompt_index_free(struct prompt_index *x)
{
    for (size_t i = 0; i < x->n_buckets; i++)
        while (x->buckets[i])
            prompt_index_remove(x, x->buckets[i]);
    free(x->buckets);
    free(x->folder);
    *x = (struct prompt_index){0};
}

static struct prompt_entry *longest_unused(const struct prompt_index *x)
{
    struct prompt_entry *least = NULL;
    for (size_t i = 0; i < x->n_buckets; i++)
        for (struct prompt_entry *e = x->buckets[i]; e; e = e->next)
            if (e->here && (!least || e->used < least->used))
                least = e;
    return least;
}

bool prompt_index_room(struct prompt_index *x, uint64_t bytes, int64_t used, struct text *gone)
{
    while (bytes > x->most || x->bytes > x->most - bytes) {
        struct prompt_entry *e = bytes > x->most ? NULL : longest_unused(x);
        if (!e || e->used >= used)
            return false;
        prompt_index_path(x, e->key, e->part, gone);
        text_printf(gone, "\n");
        prompt_index_remove(x, e);
    }
    return true;
}

/* -------------------------------------------------------------------------------- folders - */

/* The length of the name if it is a piece's, or begins as one's. */
static size_t name_parse(const char *name, uint64_t *key, enum prompt_part *part)
{
    char *end;
    if (strspn(name, "0123456789abcdef") != KEY_DIGITS || name[KEY_DIGITS] != '.')
        return 0;
    *key = strtoull(name, &end, 16);
    for (int i = 0; i < PROMPT_PARTS; i++) {
        const size_t n = strlen(prompt_part_names[i]);
        *part = (enum prompt_part)i;
        if (!strncmp(end + 1, prompt_part_names[i], n) && (!end[1 + n] || end[1 + n] == '.'))
            return KEY_DIGITS + 1 + n;
    }
    return 0;
}

/* A piece that was being written (outfile_open): whoever still writes it holds its lock. */
static void part_remove(int folder, const char *name)
{
    const int fd = RETRY(openat(folder, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
    if (fd < 0)
        return;
    if (!RETRY(flock(fd, LOCK_EX | LOCK_NB)))
        unlinkat(folder, name, 0);
    close(fd);
}

bool prompt_scan_make(const char *folder, bool tidy, struct prompt_scan *out)
{
    *out = (struct prompt_scan){0};
    DIR *d = opendir(folder);
    bool good = d != NULL;
    for (const struct dirent *e; good && (e = readdir(d)) != NULL;) {
        struct prompt_found f;
        struct stat st;
        const size_t n = name_parse(e->d_name, &f.key, &f.part);
        if (n && e->d_name[n] && tidy)
            part_remove(dirfd(d), e->d_name);
        if (!n || e->d_name[n] || fstatat(dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW) ||
            !S_ISREG(st.st_mode))
            continue;
        struct prompt_found *found = array_room(out->found, out->n, &out->cap, sizeof *found);
        good = found != NULL;
        if (!good)
            break;
        out->found = found;
        f.bytes = (uint64_t)st.st_size;
        f.used = (int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec;
        found[out->n++] = f;
    }
    if (d)
        closedir(d);
    if (!good) {
        free(out->found);
        *out = (struct prompt_scan){0};
    }
    return good;
}

bool prompt_index_merge(struct prompt_index *x, struct prompt_scan *scan)
{
    bool others = false;
    for (size_t i = 0; i < x->n_buckets; i++)
        for (struct prompt_entry *e = x->buckets[i]; e; e = e->next)
            e->seen = !e->here;
    for (size_t i = 0; i < scan->n; i++) {
        const struct prompt_found *f = &scan->found[i];
        struct prompt_entry *e = prompt_index_find(x, f->key, f->part);
        others = others || !e;
        if (!e)
            e = prompt_index_add(x, f->key, f->part, f->used);
        if (!e)
            break;
        e->seen = true;
        e->used = e->used > f->used ? e->used : f->used;
        x->bytes -= e->here ? e->bytes : 0;
        prompt_index_here(x, e, f->bytes);
    }
    for (size_t i = 0; i < x->n_buckets; i++)
        for (struct prompt_entry *e = x->buckets[i], *next; e; e = next) {
            next = e->next;
            others = others || !e->seen;
            if (!e->seen)
                prompt_index_remove(x, e);
        }
    free(scan->found);
    *scan = (struct prompt_scan){0};
    return others;
}
