/*
 * names.c - what a model is called, and which file of a repository is meant by it. The rules are
 * those of llama.cpp's -hf; where it would take the first of several that fit, the caller gets a
 * list to choose from instead, for a wrong guess costs gigabytes.
 */
#include "net/net_internal.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define SUFFIX ".gguf"

bool is_url(const char *text)
{
    return !strncasecmp(text, "http://", 7) || !strncasecmp(text, "https://", 8);
}

/* One word of a name: what the hub allows, and nothing that means something to a file system. */
static bool is_word(const char *s, size_t n)
{
    if (!n || n > HUB_WORD || *s == '.' || *s == '-')
        return false;
    for (size_t i = 0; i < n; i++)
        if (!isalnum((unsigned char)s[i]) && !strchr("._-", s[i]))
            return false;
    return true;
}

/* A path that stays in the folder that it is relative to, and can be shown. */
static bool is_inside(const char *path)
{
    const size_t n = strlen(path);
    if (!n || n > PATH_BYTES || path[n - 1] == '/')
        return false;
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)path[i] < ' ' || path[i] == 0x7f || path[i] == '\\' ||
            ((!i || path[i - 1] == '/') && (path[i] == '/' || path[i] == '.')))
            return false;
    return true;
}

bool hub_name_parse(const char *text, struct hub_name *out)
{
    const size_t repo = strcspn(text, ":"), owner = strcspn(text, "/");
    const char *quant = text[repo] ? text + repo + 1 : "";
    if (owner >= repo || !is_word(text, owner) || !is_word(text + owner + 1, repo - owner - 1) ||
        strlen(quant) > HUB_QUANT || (text[repo] && !is_inside(quant)))
        return false;
    memset(out, 0, sizeof *out);
    memcpy(out->repo, text, repo);
    memcpy(out->quant, quant, strlen(quant));
    return true;
}

/* -------------------------------------------------------------------------------- files --- */

void hub_files_free(struct hub_files *f)
{
    arena_free(&f->arena);
    free(f->file);
    memset(f, 0, sizeof *f);
}

bool hub_files_add(struct hub_files *f, const char *path, uint64_t bytes, const char *sum)
{
    enum { MOST = 1 << 20 };
    if (!is_inside(path) || f->n == MOST)
        return true;
    struct hub_file *room = array_room(f->file, f->n, &f->cap, sizeof *room);
    if (!room)
        return false;
    f->file = room;
    struct hub_file *x = &f->file[f->n];
    *x = (struct hub_file){.path = arena_strndup(&f->arena, path, strlen(path)), .bytes = bytes};
    if (!x->path)
        return false;
    const size_t digits = strspn(sum, "0123456789abcdef");
    if (!sum[digits] && (digits == 40 || digits == 64))
        memcpy(x->sum, sum, digits);
    f->n++;
    return true;
}

/* Cuts "-00001-of-00003" off a stem; no and count are 1 where there is none. */
static size_t cut_split(const char *stem, size_t n, int32_t *no, int32_t *count)
{
    enum { NUMBERS = 15 };
    const char *s = stem + n - NUMBERS;
    *no = *count = 1;
    if (n <= NUMBERS || s[0] != '-' || memcmp(s + 6, "-of-", 4) != 0)
        return n;
    for (int i = 1; i < NUMBERS; i += i == 5 ? 5 : 1)
        if (!isdigit((unsigned char)s[i]))
            return n;
    *no = atoi(s + 1);
    *count = atoi(s + 10);
    return n - NUMBERS;
}

static size_t file_stem(const char *path, int32_t *no, int32_t *count)
{
    return cut_split(path, strlen(path) - strlen(SUFFIX), no, count);
}

static bool has_suffix(const char *path)
{
    const size_t n = strlen(path), end = strlen(SUFFIX);
    return n > end && !strcmp(path + n - end, SUFFIX);
}

static const char *base_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* Files beside a model that are of its format: projectors, importance matrices, drafters, and the
 * sidecars that are made here. */
static bool is_model_file(const char *path)
{
    static const char *const others[] = {"mmproj",  "imatrix", "mtp-",     "eagle3-",
                                         "dflash-", "dspark-", ".neurons."};
    for (size_t i = 0; i < ARRAY_LEN(others); i++)
        if (strstr(base_of(path), others[i]))
            return false;
    return has_suffix(path);
}

static int by_path(const void *a, const void *b)
{
    return strcmp(((const struct hub_file *)a)->path, ((const struct hub_file *)b)->path);
}

static const struct hub_file *find_file(const struct hub_files *f, const char *path)
{
    const struct hub_file key = {.path = path};
    return f->n ? bsearch(&key, f->file, f->n, sizeof key, by_path) : NULL;
}

/* "llama-Q4_K_M" -> "Q4_K_M"; the whole name when there is nothing to cut off. */
static const char *tag_of(const char *stem)
{
    const char *base = base_of(stem), *tag = base;
    for (const char *s = base; *s; s++)
        if ((*s == '-' || *s == '.') && s[1])
            tag = s + 1;
    return tag;
}

static oato_status add_model(struct hub_files *f, const char *path, size_t stem, int32_t count,
                             struct oato_error *err)
{
    struct hub_model *m = &f->model[f->n_models++];
    const struct hub_file **part = arena_alloc(&f->arena, (size_t)count, sizeof(void *));
    m->parts = count;
    m->part = part;
    m->stem = arena_strndup(&f->arena, path, stem);
    if (!part || !m->stem)
        return oato_fail_memory(err, (size_t)count * sizeof(void *), "a list of files");
    m->tag = tag_of(m->stem);
    for (int32_t i = 0; i < count; i++) {
        struct text name;
        text_init(&name);
        if (count > 1)
            text_printf(&name, "%s-%05d-of-%05d" SUFFIX, m->stem, i + 1, count);
        part[i] = find_file(f, count > 1 ? or_empty(name.data) : path);
        m->bytes += part[i] ? part[i]->bytes : 0;
        const bool failed = name.failed;
        text_free(&name);
        if (failed)
            return oato_fail_memory(err, stem, "a file name");
    }
    return OATO_OK;
}

oato_status hub_files_group(struct hub_files *f, struct oato_error *err)
{
    enum { PARTS_MOST = 4096 }; /* of a model; a name that says more is that of one file */
    const char *last = NULL;
    size_t last_stem = 0;
    int32_t last_count = 0;
    if (f->n)
        qsort(f->file, f->n, sizeof *f->file, by_path);
    f->n_models = 0;
    f->model = arena_alloc(&f->arena, f->n, sizeof *f->model);
    if (!f->model)
        return oato_fail_memory(err, f->n * sizeof *f->model, "a list of files");
    for (size_t i = 0; i < f->n; i++) {
        const char *path = f->file[i].path;
        int32_t no, count;
        if (!is_model_file(path))
            continue;
        size_t stem = file_stem(path, &no, &count);
        if (count > PARTS_MOST || no < 1 || no > count) {
            stem = strlen(path) - strlen(SUFFIX);
            no = count = 1;
        }
        /* the first part that is there stands for all */
        if (count > 1 && last && count == last_count && stem == last_stem &&
            !memcmp(last, path, stem))
            continue;
        last = path;
        last_stem = stem;
        last_count = count;
        if (add_model(f, path, stem, count, err))
            return err->status;
    }
    return OATO_OK;
}

/* ------------------------------------------------------------------------------- choosing --- */

/* Whether the path has the quantisation as a word: one that a dot or a dash ends. */
static bool names_quant(const struct hub_model *m, const char *quant)
{
    const size_t n = strlen(quant);
    for (const char *s = m->stem; (s = strcasestr(s, quant)); s++)
        if ((s == m->stem || !isalnum((unsigned char)s[-1])) &&
            (!s[n] || s[n] == '-' || s[n] == '.'))
            return true;
    return false;
}

static bool names_file(const struct hub_model *m, const char *name)
{
    for (int32_t i = 0; i < m->parts; i++)
        if (m->part[i] &&
            (!strcmp(m->part[i]->path, name) || !strcmp(base_of(m->part[i]->path), name)))
            return true;
    return !strcmp(m->stem, name);
}

/* How many are meant; *out is the last. Those whose name ends so come before those that only have
 * it in the middle. */
static size_t find_quant(const struct hub_files *f, const char *quant, const struct hub_model **out)
{
    size_t files = 0, ends = 0, all = 0;
    const struct hub_model *file = NULL, *end = NULL, *any = NULL;
    for (size_t i = 0; i < f->n_models; i++) {
        const struct hub_model *m = &f->model[i];
        if (names_file(m, quant)) {
            file = m;
            files++;
        }
        if (!names_quant(m, quant))
            continue;
        any = m;
        all++;
        if (!strcasecmp(m->tag, quant)) {
            end = m;
            ends++;
        }
    }
    *out = files ? file : ends ? end : any;
    return files ? files : ends ? ends : all;
}

/* The quantisations that there are, or the files where these do not tell them apart. */
static void list_models(const struct hub_files *f, struct text *to)
{
    enum { SHOWN = 300 };
    bool distinct = true;
    for (size_t i = 0; i < f->n_models && i < 64; i++)
        for (size_t j = 0; j < i; j++)
            distinct = distinct && strcasecmp(f->model[i].tag, f->model[j].tag) != 0;
    for (size_t i = 0; i < f->n_models; i++) {
        if (to->len > SHOWN) {
            text_printf(to, " and %zu more", f->n_models - i);
            break;
        }
        const struct hub_model *m = &f->model[i];
        text_printf(to, "%s%s", i ? ", " : "", distinct ? m->tag : base_of(m->stem));
    }
    if (!f->n_models)
        text_printf(to, "no GGUF model");
}

static oato_status fail_choice(const struct hub_files *f, const char *where, const char *quant,
                               size_t n, struct oato_error *err)
{
    struct text list;
    text_init(&list);
    list_models(f, &list);
    if (n)
        oato_fail(err, OATO_EUSAGE,
                  "%s has %zu models%s%s; name one as %s:QUANT or %s:FILE.gguf: %s", where, n,
                  *quant ? " of " : "", quant, where, where, or_empty(list.data));
    else
        oato_fail(err, OATO_EUSAGE, "%s has %s%s%s: there is %s", where,
                  *quant ? "no '" : "no model", quant, *quant ? "'" : "", or_empty(list.data));
    text_free(&list);
    return err->status;
}

oato_status hub_choose(const struct hub_files *f, const char *where, const char *quant,
                       const struct hub_model **out, struct oato_error *err)
{
    static const char *const usual[] = {"Q4_K_M", "Q8_0"};
    const struct hub_model *m = f->model;
    size_t n = 0;
    if (*quant) {
        n = find_quant(f, quant, out);
        return n == 1 ? OATO_OK : fail_choice(f, where, quant, n, err);
    }
    for (size_t i = 0; i < ARRAY_LEN(usual); i++) {
        n = find_quant(f, usual[i], &m);
        if (n > 1)
            return fail_choice(f, where, usual[i], n, err);
        if (n)
            break;
    }
    if (!f->n_models)
        return fail_choice(f, where, quant, 0, err);
    *out = n ? m : f->model;
    return OATO_OK;
}

oato_status hub_choose_only(const struct hub_files *f, const char *where,
                            const struct hub_model **out, struct oato_error *err)
{
    *out = f->model;
    return f->n_models == 1 ? OATO_OK : fail_choice(f, where, "", f->n_models, err);
}

oato_status hub_model_whole(const struct hub_model *m, const char *where, struct oato_error *err)
{
    for (int32_t i = 0; i < m->parts; i++)
        if (!m->part[i])
            return oato_fail(err, OATO_EUSAGE, "%s: part %d of %d of %s is missing there", where,
                             i + 1, m->parts, base_of(m->stem));
    return OATO_OK;
}
