/*
 * pull.c - a model from the hub into the folder of models, and what a command line means by a
 * model.
 */
#include "net/net_internal.h"

#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

oato_status net_stopped(struct oato_error *err)
{
    return oato_fail(err, OATO_EIO, "stopped");
}

bool net_wait(const char *what, double seconds)
{
    struct progress p;
    const uint64_t begin = now_ns();
    double spent = 0;
    progress_begin(&p, what, seconds);
    while (!oato_interrupted && (spent = (double)(now_ns() - begin) * 1e-9) < seconds) {
        progress_update(&p, spent, "waiting");
        nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
    }
    progress_end(&p);
    return !oato_interrupted;
}

static bool has_size(const char *path, uint64_t bytes)
{
    struct stat st;
    return !stat(path, &st) && S_ISREG(st.st_mode) && (uint64_t)st.st_size == bytes;
}

/* One file, unless it is there. */
static oato_status pull_file(struct http *h, const char *endpoint, const char *repo,
                             const struct hub_files *f, const struct hub_file *file,
                             const struct pull_options *o, struct pulled *out,
                             struct oato_error *err)
{
    struct text path, url;
    text_init(&path);
    text_init(&url);
    kept_folder(&path);
    text_printf(&path, "/%s/%s", repo, file->path);
    text_printf(&url, "%s/%s/resolve/%s/", endpoint, repo, f->revision);
    text_add_url(&url, file->path);
    oato_status status = OATO_OK;
    if (path.failed || url.failed) {
        status = oato_fail_memory(err, strlen(file->path), "a file name");
    } else if (!has_size(path.data, file->bytes)) {
        const char *slash = strrchr(file->path, '/');
        char *end = strrchr(path.data, '/');
        *end = 0;
        folder_make(path.data);
        *end = '/';
        const struct fetch x = {.http = h,
                                .url = url.data,
                                .name = slash ? slash + 1 : file->path,
                                .path = path.data,
                                .bytes = file->bytes,
                                .sum = file->sum,
                                .options = o};
        status = fetch_file(&x, &out->fetched_bytes, err);
    }
    if (!out->path.len && !path.failed)
        text_printf(&out->path, "%s", path.data);
    out->bytes += file->bytes;
    text_free(&path);
    text_free(&url);
    return status;
}

/* REPO:QUANT, or REPO:FILE where several have that quantisation. */
static void name_model(const struct hub_files *f, const struct hub_model *m, const char *repo,
                       struct text *to)
{
    bool unique = true;
    for (size_t i = 0; i < f->n_models; i++)
        unique = unique && (&f->model[i] == m || strcasecmp(f->model[i].tag, m->tag) != 0);
    const char *slash = strrchr(m->part[0]->path, '/');
    text_printf(to, "%s:%s", repo, unique ? m->tag : slash ? slash + 1 : m->part[0]->path);
}

static oato_status pull(const struct hub_name *name, const struct pull_options *o,
                        struct pulled *out, struct oato_error *err)
{
    struct http *h = NULL;
    struct hub_files f = {0};
    const struct hub_model *m = NULL;
    struct text endpoint;
    text_init(&endpoint);
    oato_status status = hub_endpoint(&endpoint, err);
    if (!status)
        status = http_create(endpoint.data, &h, err);
    if (!status)
        status = hub_list(h, endpoint.data, name->repo, &f, err);
    if (!status)
        status = hub_choose(&f, name->repo, name->quant, &m, err);
    if (!status)
        status = hub_model_whole(m, name->repo, err);
    for (int32_t i = 0; !status && i < m->parts; i++)
        status = pull_file(h, endpoint.data, name->repo, &f, m->part[i], o, out, err);
    if (!status)
        name_model(&f, m, name->repo, &out->name);
    if (!status && (out->name.failed || out->path.failed))
        status = oato_fail_memory(err, sizeof name->repo, "a name");
    hub_files_free(&f);
    http_free(h);
    text_free(&endpoint);
    return status;
}

oato_status hub_pull(const char *name, const struct pull_options *o, struct pulled *out,
                     struct oato_error *err)
{
    struct hub_name hub;
    if (!hub_name_parse(name, &hub))
        return oato_fail(err, OATO_EUSAGE,
                         "'%s' is not the name of a model: OWNER/REPO or OWNER/REPO:QUANT", name);
    struct oato_error not_here;
    if (o->kept_first && !kept_find(name, &out->path, &not_here)) {
        text_printf(&out->name, "%s", name);
        return out->name.failed ? oato_fail_memory(err, strlen(name), "a name") : OATO_OK;
    }
    return pull(&hub, o, out, err);
}

oato_status model_locate(const char **model, const char *hf, warn_fn warn, struct oato_error *err)
{
    static struct pulled at;
    struct hub_name hub;
    struct oato_error not_here = {0};
    const char *operand = *model;
    if (operand && hf)
        return oato_fail(err, OATO_EUSAGE, "more than one model: '%s' and -hf '%s'; give one",
                         operand, hf);
    text_free(&at.name);
    text_free(&at.path);
    if (hf && hub_pull(hf, &(struct pull_options){.kept_first = true, .warn = warn}, &at, err))
        return err->status;
    /* what is there, or does not look like a name, is a file's path */
    if (operand && access(operand, F_OK) && hub_name_parse(operand, &hub) &&
        kept_find(operand, &at.path, &not_here) && !strstr(operand, ".gguf")) {
        *err = not_here;
        return err->status;
    }
    *model = at.path.len ? at.path.data : operand;
    return OATO_OK;
}
