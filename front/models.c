/*
 * models.c - oato pull, ls and rm: models of a hub, and those that are kept here.
 */
#include "front/front.h"
#include "net/net.h"

#include <inttypes.h>
#include <stddef.h>
#include <string.h>
#include <time.h>

enum { PULL = 1, LS = 2, RM = 4, JOBS_MOST = 16, NAMES_MOST = 64 };

struct models_args {
    int32_t jobs;
    bool json, help;
    const char *names[NAMES_MOST];
    int32_t n_names;
};

static oato_status take_jobs(const struct options *o, void *to, struct oato_error *err)
{
    int64_t v;
    if (!parse_i64(o->value, 1, JOBS_MOST, &v))
        return oato_fail(err, OATO_EUSAGE, "%s wants a whole number from 1 to %d, not '%s'",
                         o->name, JOBS_MOST, o->value);
    *(int32_t *)to = (int32_t)v;
    return OATO_OK;
}

static const struct option_of table[] = {
    {"jobs", 'j', "N", "connections at the same time, 1 to 16 (default 4)", PULL, take_jobs,
     offsetof(struct models_args, jobs), 0, 0},
    {"json", 0, NULL, "print one JSON object", PULL | LS, option_flag,
     offsetof(struct models_args, json), 0, 0},
    {"help", 'h', NULL, "this text", PULL | LS | RM, option_flag,
     offsetof(struct models_args, help), 0, 0},
};

static oato_status read_args(unsigned verb, int argc, char **argv, struct models_args *a,
                             struct option_row *rows, struct oato_error *err)
{
    struct options o;
    options_rows(table, ARRAY_LEN(table), verb, rows);
    options_init(&o, rows, argc - 1, argv + 1);
    for (int id; !a->help && (id = options_take(&o, table, a, err)) != OPT_END;) {
        if (id == OPT_ERROR)
            return err->status;
        if (id == OPT_OPERAND && a->n_names == NAMES_MOST)
            return oato_fail(err, OATO_EUSAGE, "more than %d names; give fewer at a time",
                             NAMES_MOST);
        if (id == OPT_OPERAND)
            a->names[a->n_names++] = o.value;
    }
    return OATO_OK;
}

static oato_status show_help(const char *usage, const char *about, const struct option_row *rows,
                             struct oato_error *err)
{
    printf("Usage: oato %s\n%s\nOptions:\n", usage, about);
    options_help(rows, stdout);
    printf("See man oato-pull.\n");
    return stdout_check(err);
}

static oato_status print_text(struct text *t, struct oato_error *err)
{
    if (t->failed)
        oato_fail_memory(err, t->len, "the output");
    else if (t->len)
        text_print(stdout, t->data, t->len);
    const oato_status status = t->failed ? err->status : stdout_check(err);
    text_free(t);
    return status;
}

/* ---------------------------------------------------------------------------------- pull --- */

static oato_status pull_one(const char *name, const struct models_args *a, struct oato_error *err)
{
    const struct pull_options o = {.jobs = a->jobs, .warn = program_warn};
    struct pulled p = {0};
    struct text out;
    text_init(&out);
    oato_status status = hub_pull(name, &o, &p, err);
    if (!status && a->json) {
        json_add_object(&out, NULL, JSON("name", p.name.data), JSON("path", p.path.data),
                        JSON("bytes", p.bytes), JSON("fetched_bytes", p.fetched_bytes));
        text_printf(&out, "\n");
    } else if (!status) {
        text_printf(&out, "%s\n", p.path.data);
        text_tell("%s: %.2f GB%s\n", p.name.data, (double)p.bytes * 1e-9,
                  p.fetched_bytes ? "" : ", was here already");
    }
    if (status)
        text_free(&out);
    text_free(&p.name);
    text_free(&p.path);
    return status ? status : print_text(&out, err);
}

oato_status pull_command(int argc, char **argv, struct oato_error *err)
{
    struct option_row rows[ARRAY_LEN(table) + 1];
    struct models_args a = {0};
    oato_status status = read_args(PULL, argc, argv, &a, rows, err);
    if (!status && a.help)
        return show_help("pull OWNER/REPO[:QUANT] .. [OPTIONS]",
                         "Fetches models from the hub, goes on with what was cut off, and prints "
                         "their paths.",
                         rows, err);
    if (!status && !a.n_names)
        status = oato_fail(err, OATO_EUSAGE, "pull wants OWNER/REPO or OWNER/REPO:QUANT");
    interrupt_catch();
    for (int32_t i = 0; i < a.n_names && !status; i++)
        status = pull_one(a.names[i], &a, err);
    return status;
}

/* ------------------------------------------------------------------------------------ ls --- */

static void list_text(const struct kept_models *k, const char *folder, struct text *out)
{
    int width = 4;
    uint64_t bytes = 0;
    for (size_t i = 0; i < k->n; i++)
        width = (int)strlen(k->model[i].name) > width ? (int)strlen(k->model[i].name) : width;
    for (size_t i = 0; i < k->n; i++) {
        const struct kept_model *m = &k->model[i];
        char day[16] = "";
        struct tm tm;
        const time_t changed = (time_t)m->changed_s;
        if (localtime_r(&changed, &tm))
            strftime(day, sizeof day, "%Y-%m-%d", &tm);
        text_printf(out, "%-*s  %9.1f MB  %s", width, m->name, (double)m->bytes * 1e-6, day);
        if (m->parts > 1)
            text_printf(out, "  %d parts", m->parts);
        if (!m->whole)
            text_printf(out, "  unfinished: %.1f MB to come; oato pull goes on",
                        (double)m->missing * 1e-6);
        text_printf(out, "\n");
        bytes += m->bytes;
    }
    text_printf(out, "%zu model%s, %.1f MB; %.1f MB of disk in %s\n", k->n, k->n == 1 ? "" : "s",
                (double)bytes * 1e-6, (double)k->disk_bytes * 1e-6, folder);
}

static void list_json(const struct kept_models *k, const char *folder, struct text *out)
{
    json_open(out, NULL, '{');
    json_add(out, JSON("folder", folder), JSON("disk_bytes", k->disk_bytes));
    json_open(out, "models", '[');
    for (size_t i = 0; i < k->n; i++) {
        const struct kept_model *m = &k->model[i];
        json_add_object(out, NULL, JSON("name", m->name), JSON("path", m->path),
                        JSON("bytes", m->bytes), JSON("parts", m->parts),
                        json_bool("complete", m->whole), JSON("missing_bytes", m->missing),
                        JSON("changed", m->changed_s));
    }
    json_close(out, ']');
    json_close(out, '}');
    text_printf(out, "\n");
}

oato_status ls_command(int argc, char **argv, struct oato_error *err)
{
    struct option_row rows[ARRAY_LEN(table) + 1];
    struct models_args a = {0};
    struct kept_models k;
    struct text out, folder;
    oato_status status = read_args(LS, argc, argv, &a, rows, err);
    if (!status && a.help)
        return show_help("ls [OPTIONS]", "Lists the models that are kept here.", rows, err);
    if (!status && a.n_names)
        status = oato_fail(err, OATO_EUSAGE, "ls takes no names, not '%s'", a.names[0]);
    if (status || kept_list(&k, err))
        return err->status;
    text_init(&out);
    text_init(&folder);
    kept_folder(&folder);
    (a.json ? list_json : list_text)(&k, or_empty(folder.data), &out);
    out.failed = out.failed || folder.failed;
    text_free(&folder);
    kept_models_free(&k);
    return print_text(&out, err);
}

/* ------------------------------------------------------------------------------------ rm --- */

oato_status rm_command(int argc, char **argv, struct oato_error *err)
{
    struct option_row rows[ARRAY_LEN(table) + 1];
    struct models_args a = {0};
    oato_status status = read_args(RM, argc, argv, &a, rows, err);
    if (!status && a.help)
        return show_help("rm NAME ..", "Removes models that are kept here, as oato ls names them.",
                         rows, err);
    if (!status && !a.n_names)
        status = oato_fail(err, OATO_EUSAGE, "rm wants the names of models; oato ls lists them");
    for (int32_t i = 0; i < a.n_names && !status; i++) {
        uint64_t freed;
        status = kept_remove(a.names[i], &freed, err);
        if (!status)
            text_tell("%s: removed, %.1f MB are free again\n", a.names[i], (double)freed * 1e-6);
    }
    return status;
}
