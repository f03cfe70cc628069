/*
 * model_files.c - the models that --models names (auto.h); what a folder has is found as
 * llama.cpp's router finds it.
 */
#include "front/auto.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char suffix[] = ".gguf";
static const char first[] = "-00001-of-";

/* Whether it is a model of its own, from its name. */
static bool is_model(const char *name)
{
    const size_t n = strlen(name);
    const char *part = strstr(name, "-of-");
    const bool later = part && part - name >= 6 && part[-6] == '-' &&
                       strspn(part - 5, "0123456789") == 5 &&
                       strncmp(part - 6, first, strlen(first)) != 0;
    const char *const neurons = ".neurons.gguf";
    return n >= sizeof suffix && !strcmp(name + n - strlen(suffix), suffix) && !later &&
           !strstr(name, "mmproj") && strncmp(name, "mtp-", 4) != 0 &&
           (n < strlen(neurons) || strcmp(name + n - strlen(neurons), neurons) != 0);
}

static bool is_folder(const char *path)
{
    struct stat st;
    return !stat(path, &st) && S_ISDIR(st.st_mode);
}

static oato_status model_add(struct model_files *f, const char *name, const char *path,
                             struct oato_error *err)
{
    const char *part = strstr(name, first);
    const size_t n = strlen(name), end = strlen(suffix);
    const size_t length = part                                         ? (size_t)(part - name)
                          : n > end && !strcmp(name + n - end, suffix) ? n - end
                                                                       : n;
    if (f->n == MODEL_FILES_MOST)
        return oato_fail(err, OATO_EUSAGE, "--models: more than %d models; name fewer",
                         MODEL_FILES_MOST);
    struct auto_model *m = &f->of[f->n++];
    m->name = arena_strndup(&f->arena, name, length);
    m->path = arena_strndup(&f->arena, path, strlen(path));
    return m->name && m->path ? OATO_OK : oato_fail_memory(err, n, "the list of models");
}

static oato_status folder_read(struct model_files *f, const char *path, const char *as,
                               struct oato_error *err)
{
    struct dirent **entry;
    oato_status status = OATO_OK;
    const int32_t before = f->n;
    const int n = scandir(path, &entry, NULL, alphasort);
    if (n < 0)
        return oato_fail(err, OATO_EIO, "%s: cannot be read", path);
    for (int i = 0; i < n; i++) {
        const char *name = entry[i]->d_name;
        struct text file;
        text_init(&file);
        text_printf(&file, "%s/%s", path, name);
        if (file.failed)
            status = oato_fail_memory(err, file.len, "the list of models");
        else if (!status && !as && name[0] != '.' && is_folder(file.data))
            status = folder_read(f, file.data, name, err);
        else if (!status && is_model(name) && !(as && f->n > before))
            status = model_add(f, as ? as : name, file.data, err);
        text_free(&file);
        free(entry[i]);
    }
    free(entry);
    return status;
}

static oato_status list_take(struct model_files *f, const char *list, struct oato_error *err)
{
    oato_status status = OATO_OK;
    for (const char *at = list; *at && !status; at += strcspn(at, ","), at += *at == ',') {
        char *path = arena_strndup(&f->arena, at, strcspn(at, ","));
        const char *slash = path ? strrchr(path, '/') : NULL;
        if (!path)
            status = oato_fail_memory(err, strlen(list), "the list of models");
        else if (*path && access(path, R_OK))
            status = oato_fail(err, OATO_EIO, "%s: %s", path, strerror(errno));
        else if (*path)
            status = model_add(f, slash ? slash + 1 : path, path, err);
    }
    return status;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct auto_model *)a)->name, ((const struct auto_model *)b)->name);
}

oato_status model_files_read(struct model_files *f, const char *list, struct oato_error *err)
{
    f->n = 0;
    arena_init(&f->arena);
    oato_status status =
        is_folder(list) ? folder_read(f, list, NULL, err) : list_take(f, list, err);
    qsort(f->of, (size_t)f->n, sizeof *f->of, by_name);
    if (!status && !f->n)
        status = oato_fail(err, OATO_EUSAGE, "--models: there is no model in '%.200s'", list);
    for (int32_t i = 1; i < f->n && !status; i++)
        if (!strcmp(f->of[i - 1].name, f->of[i].name))
            status = oato_fail(err, OATO_EUSAGE,
                               "--models: %.200s and %.200s have the same name; rename one",
                               f->of[i - 1].path, f->of[i].path);
    if (status)
        model_files_free(f);
    return status;
}

void model_files_free(struct model_files *f)
{
    arena_free(&f->arena);
    f->n = 0;
}
