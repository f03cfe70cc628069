/*
 * kept.c - the folder of models: OWNER/REPO/FILE for what was pulled, and whatever else lies there.
 * Its files are the only record: what is copied there counts, and what is deleted is gone.
 */
#include "net/net_internal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { DEPTH_MOST = 8 };

void kept_folder(struct text *out)
{
    const char *given = getenv("OATO_CACHE");
    if (given && *given)
        text_printf(out, "%s", given);
    else
        cache_folder(out);
    text_printf(out, "/models");
}

/* ------------------------------------------------------------------------------- scanning --- */

struct scan {
    struct hub_files *files;
    struct text path; /* of the folder that is read */
    size_t root;      /* bytes of the first one's, with its slash */
    uint64_t disk_bytes;
    bool failed;
};

static void scan_entry(struct scan *s, const char *name, int depth);

static void scan_folder(struct scan *s, int depth)
{
    DIR *d = opendir(s->path.data);
    for (struct dirent *e; d && !s->failed && (e = readdir(d));)
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            scan_entry(s, e->d_name, depth);
    if (d)
        closedir(d);
}

/* Links to files count as files; links to folders are not followed: what is there is elsewhere. */
static void scan_entry(struct scan *s, const char *name, int depth)
{
    const size_t len = s->path.len, n = strlen(name), end = strlen(PART_SUFFIX);
    struct stat st, to;
    text_printf(&s->path, "/%s", name);
    s->failed = s->failed || s->path.failed;
    if (!s->failed && !lstat(s->path.data, &st)) {
        s->disk_bytes += (uint64_t)st.st_blocks * 512;
        if (S_ISDIR(st.st_mode) && depth < DEPTH_MOST) {
            scan_folder(s, depth + 1);
        } else if (!stat(s->path.data, &to) && S_ISREG(to.st_mode)) {
            uint64_t bytes = (uint64_t)to.st_size, done;
            if (n > end && !strcmp(name + n - end, PART_SUFFIX)) {
                if (!part_look(s->path.data, &bytes, &done))
                    bytes = 0;
                s->path.data[s->path.len -= end] = 0;
                if (!stat(s->path.data, &to)) /* of one that is there, too */
                    goto out;
            }
            s->failed = !hub_files_add(s->files, s->path.data + s->root, bytes, "");
        }
    }
out:
    if (s->path.data)
        s->path.data[s->path.len = len] = 0;
}

/* All files below the folder of models, or of one repository there. */
static oato_status scan(struct hub_files *f, const char *repo, struct text *root,
                        uint64_t *disk_bytes, struct oato_error *err)
{
    struct scan s = {.files = f};
    memset(f, 0, sizeof *f);
    arena_init(&f->arena);
    text_init(&s.path);
    kept_folder(&s.path);
    if (repo)
        text_printf(&s.path, "/%s", repo);
    s.failed = s.path.failed;
    s.root = s.path.len + 1;
    if (!s.failed) {
        text_printf(root, "%s", s.path.data);
        scan_folder(&s, 0);
    }
    if (disk_bytes)
        *disk_bytes = s.disk_bytes;
    text_free(&s.path);
    return s.failed || root->failed ? oato_fail_memory(err, s.root, "a list of files")
                                    : hub_files_group(f, err);
}

/* ---------------------------------------------------------------------------------- list --- */

/* The bytes of OWNER/REPO at the beginning of a path; 0: it is not of a repository. */
static size_t repo_bytes(const char *path)
{
    const char *first = strchr(path, '/'), *second = first ? strchr(first + 1, '/') : NULL;
    return second ? (size_t)(second - path) : 0;
}

static bool same_repo(const char *a, const char *b)
{
    const size_t n = repo_bytes(a);
    return n && n == repo_bytes(b) && !memcmp(a, b, n);
}

static void add_name(struct text *t, const struct hub_files *f, const struct hub_model *m,
                     const char *file)
{
    const size_t repo = repo_bytes(m->stem);
    bool unique = true;
    for (size_t i = 0; repo && i < f->n_models && unique; i++)
        unique = &f->model[i] == m || !same_repo(f->model[i].stem, m->stem) ||
                 strcasecmp(f->model[i].tag, m->tag) != 0;
    if (repo)
        text_printf(t, "%.*s:%s", (int)repo, file, unique ? m->tag : strrchr(file, '/') + 1);
    else
        text_printf(t, "%s", file);
}

static const struct hub_file *first_file(const struct hub_model *m)
{
    int32_t i = 0;
    while (!m->part[i])
        i++;
    return m->part[i];
}

static oato_status describe(struct kept_models *k, const struct hub_files *f,
                            const struct hub_model *m, const char *root, struct oato_error *err)
{
    struct kept_model *x = &k->model[k->n++];
    struct text t;
    const char *file = first_file(m)->path;
    bool failed;
    *x = (struct kept_model){.bytes = m->bytes, .parts = m->parts, .whole = true};
    text_init(&t);
    add_name(&t, f, m, file);
    x->name = arena_strndup(&k->arena, or_empty(t.data), t.len);
    t.len = 0;
    text_printf(&t, "%s/%s", root, file);
    x->path = arena_strndup(&k->arena, or_empty(t.data), t.len);
    failed = !x->name || !x->path;
    for (int32_t i = 0; i < m->parts && !failed; i++) {
        struct stat st;
        uint64_t bytes = 0, done = 0;
        if (!m->part[i]) {
            x->whole = false;
            continue;
        }
        t.len = 0;
        text_printf(&t, "%s/%s", root, m->part[i]->path);
        if (!t.failed && !stat(t.data, &st)) {
            x->changed_s = st.st_mtime > x->changed_s ? st.st_mtime : x->changed_s;
            continue;
        }
        text_printf(&t, PART_SUFFIX);
        x->whole = false;
        if (!t.failed && part_look(t.data, &bytes, &done))
            x->missing += bytes - done;
        if (!t.failed && !stat(t.data, &st) && st.st_mtime > x->changed_s)
            x->changed_s = st.st_mtime;
    }
    failed = failed || t.failed;
    text_free(&t);
    return failed ? oato_fail_memory(err, strlen(root), "a list of models") : OATO_OK;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct kept_model *)a)->name, ((const struct kept_model *)b)->name);
}

/* Describes all models; they are in order of their names then. */
static oato_status describe_all(struct kept_models *k, const struct hub_files *f, const char *root,
                                struct oato_error *err)
{
    k->model = arena_alloc(&k->arena, f->n_models, sizeof *k->model);
    if (!k->model)
        return oato_fail_memory(err, f->n_models * sizeof *k->model, "a list of models");
    for (size_t i = 0; i < f->n_models; i++)
        if (describe(k, f, &f->model[i], root, err))
            return err->status;
    qsort(k->model, k->n, sizeof *k->model, by_name);
    return OATO_OK;
}

oato_status kept_list(struct kept_models *out, struct oato_error *err)
{
    struct hub_files f;
    struct text root;
    memset(out, 0, sizeof *out);
    arena_init(&out->arena);
    text_init(&root);
    oato_status status = scan(&f, NULL, &root, &out->disk_bytes, err);
    if (!status)
        status = describe_all(out, &f, root.data, err);
    hub_files_free(&f);
    text_free(&root);
    if (status)
        kept_models_free(out);
    return status;
}

void kept_models_free(struct kept_models *k)
{
    arena_free(&k->arena);
    memset(k, 0, sizeof *k);
}

/* ------------------------------------------------------------------------------- finding --- */

/* Forgets what is not complete. */
static void drop_unfinished(struct hub_files *f, const char *root)
{
    size_t n = 0;
    for (size_t i = 0; i < f->n_models; i++) {
        bool whole = true;
        for (int32_t p = 0; p < f->model[i].parts && whole; p++) {
            struct text t;
            text_init(&t);
            if (f->model[i].part[p])
                text_printf(&t, "%s/%s", root, f->model[i].part[p]->path);
            whole = t.data && !t.failed && !access(t.data, F_OK);
            text_free(&t);
        }
        if (whole)
            f->model[n++] = f->model[i];
    }
    f->n_models = n;
}

static bool is_file_name(const char *path, const char *name)
{
    const size_t n = strlen(name);
    return !strncmp(path, name, n) && (!path[n] || !strcmp(path + n, ".gguf"));
}

/* What a name means among those that are here: files (to be freed in any case) and one model. any:
 * unfinished ones, too. */
static oato_status locate(const char *name, bool any, struct hub_files *f, struct text *root,
                          const struct hub_model **out, struct oato_error *err)
{
    struct hub_name hub;
    const bool named = hub_name_parse(name, &hub);
    *out = NULL;
    oato_status status = scan(f, NULL, root, NULL, err);
    if (!status && !any)
        drop_unfinished(f, root->data);
    for (size_t i = 0; !status && i < f->n_models; i++)
        if (is_file_name(first_file(&f->model[i])->path, name))
            *out = &f->model[i];
    if (status || *out)
        return status;
    if (named) {
        hub_files_free(f);
        root->len = 0;
        status = scan(f, hub.repo, root, NULL, err);
        if (!status && !any)
            drop_unfinished(f, root->data);
    }
    if (!status && (!named || !f->n_models))
        status =
            named ? oato_fail(err, OATO_EUSAGE,
                              "%s is not here: 'oato pull %s' fetches it, 'oato ls' lists what is "
                              "here",
                              name, name)
                  : oato_fail(err, OATO_EUSAGE,
                              "%s: no such model is kept here; 'oato ls' lists them", name);
    if (status)
        return status;
    return any && !*hub.quant ? hub_choose_only(f, hub.repo, out, err)
                              : hub_choose(f, hub.repo, hub.quant, out, err);
}

oato_status kept_find(const char *name, struct text *path, struct oato_error *err)
{
    struct hub_files f;
    struct text root;
    const struct hub_model *m;
    text_init(&root);
    oato_status status = locate(name, false, &f, &root, &m, err);
    if (!status)
        text_printf(path, "%s/%s", root.data, m->part[0]->path);
    if (!status && path->failed)
        status = oato_fail_memory(err, root.len, "a file name");
    hub_files_free(&f);
    text_free(&root);
    return status;
}

/* ------------------------------------------------------------------------------- removing --- */

static oato_status remove_file(const char *path, uint64_t *freed, struct oato_error *err)
{
    struct stat st;
    if (lstat(path, &st))
        return OATO_OK;
    int fd = RETRY(open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
    const bool busy = fd >= 0 && RETRY(flock(fd, LOCK_EX | LOCK_NB)) && errno == EWOULDBLOCK;
    if (busy)
        oato_fail(err, OATO_EIO, "%s: another process is fetching it; stop that one first", path);
    else if (unlink(path))
        oato_fail(err, OATO_EIO, "%s: cannot remove: %s", path, strerror(errno));
    else
        *freed += (uint64_t)st.st_blocks * 512;
    const bool failed = busy || !lstat(path, &st);
    if (fd >= 0)
        close(fd);
    return failed ? err->status : OATO_OK;
}

/* The path in the folder that a path elsewhere on the command line means; "": it is outside. */
static oato_status path_inside(const char *name, struct text *inside, struct oato_error *err)
{
    struct text root;
    text_init(&root);
    kept_folder(&root);
    char *folder = root.failed ? NULL : realpath(root.data, NULL), *copy = strdup(name);
    char *slash = copy ? strrchr(copy, '/') : NULL, *at = NULL;
    if (slash) { /* the link itself is meant, not where it leads */
        *slash = 0;
        at = realpath(slash == copy ? "/" : copy, NULL);
    }
    const size_t n = folder ? strlen(folder) : 0;
    if (at && n && !strncmp(at, folder, n) && (!at[n] || at[n] == '/'))
        text_printf(inside, "%s%s%s", at[n] ? at + n + 1 : "", at[n] ? "/" : "", slash + 1);
    else
        oato_fail(err, OATO_EUSAGE, "%s: is not in %s, and only what is there is removed", name,
                  or_empty(root.data));
    const bool found = inside->len;
    free(folder);
    free(copy);
    free(at);
    text_free(&root);
    return found ? OATO_OK : err->status;
}

/* Folders that are now empty, below the first `keep` bytes. */
static void remove_folders(char *path, size_t keep)
{
    for (char *slash; (slash = strrchr(path, '/')) && (size_t)(slash - path) > keep;) {
        *slash = 0;
        if (rmdir(path))
            return;
    }
}

static oato_status remove_model(const struct hub_model *m, const char *root, uint64_t *freed,
                                struct oato_error *err)
{
    struct text t, folder;
    oato_status status = OATO_OK;
    text_init(&t);
    text_init(&folder);
    kept_folder(&folder);
    for (int part = 1; part >= 0; part--) /* first those that may be locked */
        for (int32_t i = 0; i < m->parts && !status; i++) {
            if (!m->part[i])
                continue;
            t.len = 0;
            text_printf(&t, "%s/%s%s", root, m->part[i]->path, part ? PART_SUFFIX : "");
            status = t.failed ? oato_fail_memory(err, t.len, "a file name")
                              : remove_file(t.data, freed, err);
        }
    if (!status && !folder.failed)
        remove_folders(t.data, folder.len);
    text_free(&t);
    text_free(&folder);
    return status;
}

oato_status kept_remove(const char *name, uint64_t *freed, struct oato_error *err)
{
    struct hub_files f;
    struct text root, inside;
    struct hub_name hub;
    const struct hub_model *m;
    oato_status status = OATO_OK;
    *freed = 0;
    text_init(&root);
    text_init(&inside);
    const bool path = name[0] == '/' || name[0] == '.' || strstr(name, "..") != NULL;
    if (path && !hub_name_parse(name, &hub))
        status = path_inside(name, &inside, err);
    if (status) {
        text_free(&inside);
        return status;
    }
    status = locate(inside.len ? inside.data : name, true, &f, &root, &m, err);
    if (!status)
        status = remove_model(m, root.data, freed, err);
    hub_files_free(&f);
    text_free(&root);
    text_free(&inside);
    return status;
}
