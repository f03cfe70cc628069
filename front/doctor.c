/*
 * doctor.c - oato doctor: what this machine offers, what keeps a part of it from being used, and
 * what would make it faster, each with the command that does it. JSON and text come from the same
 * probes. docs/man/oato-doctor.1 lists the keys, which stay.
 */
#include "front/doctor.h"
#include "front/front.h"

#include <stdarg.h>
#include <string.h>

enum { COLUMNS = 79, LABEL = 12 };

/* --------------------------------------------------------------------------- saying it ---- */

/* Adds the text, of which `used` columns are taken, with its lines broken between words. */
static void add_broken(struct text *t, const char *text, int used, int indent)
{
    for (const char *p = text; *p;) {
        const int n = (int)strcspn(p, " ");
        if (used > indent && used + 1 + n > COLUMNS) {
            text_printf(t, "\n%*s", indent, "");
            used = indent;
        }
        text_printf(t, "%s%.*s", used > indent ? " " : "", n, p);
        used += n + (used > indent);
        p += n + (p[n] == ' ');
    }
    text_printf(t, "\n");
}

void doctor_line(struct doctor *d, const char *label, const char *fmt, ...)
{
    char line[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    text_printf(&d->people, "%-*s", LABEL, label);
    add_broken(&d->people, line, LABEL, LABEL);
}

static void finding_fill(struct doctor_finding *f, const char *id, const char *command,
                         const char *fmt, va_list ap)
{
    f->id = id;
    vsnprintf(f->why, sizeof f->why, fmt, ap);
    snprintf(f->command, sizeof f->command, "%s", command);
}

void doctor_problem(struct doctor *d, const char *id, const char *command, const char *fmt, ...)
{
    va_list ap;
    if (d->n_problems == PROBLEMS_MAX)
        return;
    va_start(ap, fmt);
    finding_fill(&d->problem[d->n_problems++], id, command, fmt, ap);
    va_end(ap);
}

void doctor_advise(struct doctor *d, enum advice what, const char *command, const char *fmt, ...)
{
#define ADVICE_ID(number, id) id,
    static const char *const ids[] = {ADVICE_LIST(ADVICE_ID)};
#undef ADVICE_ID
    va_list ap;
    if (d->advice[what].id)
        return;
    va_start(ap, fmt);
    finding_fill(&d->advice[what], ids[what], command, fmt, ap);
    va_end(ap);
}

static void findings_add(struct doctor *d, const char *key, const char *title,
                         const struct doctor_finding *f, int n)
{
    bool titled = false;
    json_open(&d->json, key, '[');
    for (int i = 0; i < n; i++) {
        if (!f[i].id)
            continue;
        json_add_object(&d->json, NULL, JSON("id", f[i].id), JSON("why", f[i].why),
                        JSON("command", f[i].command));
        text_printf(&d->people, "%s", titled ? "" : title);
        titled = true;
        text_printf(&d->people, "- ");
        add_broken(&d->people, f[i].why, 2, 2);
        if (f[i].command[0])
            text_printf(&d->people, "    %s\n", f[i].command);
    }
    json_close(&d->json, ']');
}

/* ---------------------------------------------------------------------------- devices ----- */

static void device_add(struct doctor *d, const struct device_ops *ops, int index)
{
    const struct device_options options = {.threads = 0};
    struct oato_device *device;
    struct oato_error err;
    if (d->n_devices == DOCTOR_DEVICES)
        return;
    if (ops->open(index, "", &options, &device, &err)) {
        char id[32];
        snprintf(id, sizeof id, "%s:%d", ops->kind, index);
        doctor_line(d, "", "%s is unusable: %s", id, err.text);
        json_add_object(&d->json, NULL, JSON("id", id), json_bool("usable", false),
                        JSON("why", err.text));
        doctor_problem(d, "device-unusable", "", "%s", err.text);
        return;
    }
    struct device_info *info = &d->device[d->n_devices].info;
    ops->info(device, info);
    if (info->read_bytes_per_s > 0) { /* declared: there is nothing to look at */
        ops->close(device);
        return;
    }
    d->device[d->n_devices++].device = device;
    doctor_line(d, info->id, "%s, %.1f GiB, %.1f free, kernels %s", info->model,
                (double)info->memory_bytes / (1 << 30), (double)info->free_bytes / (1 << 30),
                info->isa);
    json_add_object(&d->json, NULL, JSON("id", info->id), json_bool("usable", true),
                    JSON("model", info->model), JSON("kernels", info->isa),
                    JSON("memory_bytes", info->memory_bytes), JSON("free_bytes", info->free_bytes),
                    JSON("threads", (uint64_t)info->threads), json_bool("host", info->is_host));
}

/* What of a kind's hardware is here, and what keeps it from being used. */
static void sight_judge(struct doctor *d, const struct device_ops *ops, int usable)
{
    struct device_sight s = {0};
    struct oato_device *device;
    struct oato_error err = {0};
    if (!ops->sight)
        return;
    ops->sight(d->root, &s);
    json_add_object(&d->json, ops->kind, JSON("seen", (uint64_t)s.n),
                    JSON("usable", (uint64_t)usable), JSON("first", s.what));
    if (s.n > usable && s.hidden[0])
        doctor_advise(d, ADVICE_GPU_HIDDEN, "",
                      "%d of %d accelerators can be used: %s is set and hides the others; unset it",
                      usable, s.n, s.hidden);
    else if (s.n && !usable) {
        if (!s.why[0] && !ops->open(0, "", NULL, &device, &err))
            ops->close(device); /* it came meanwhile */
        doctor_line(d, ops->kind, "%s: unusable", s.what);
        doctor_problem(d, "gpu-unusable", s.command, "%s%s cannot be used: %s", s.what,
                       s.n > 1 ? " and others" : "", s.why[0] ? s.why : err.text);
    } else if (s.n > usable)
        doctor_advise(d, ADVICE_GPU_HIDDEN, d->contained ? "docker run --gpus all ..." : s.command,
                      "%d of %d accelerators can be used", usable, s.n);
    if (usable && s.lacks[0])
        doctor_advise(d, ADVICE_GPU_LIBRARY, s.lacks_command, "%s, is not installed", s.lacks);
}

void doctor_devices(struct doctor *d)
{
    int usable[DOCTOR_DEVICES] = {0};
    json_open(&d->json, "devices", '[');
    for (int i = 0; i < DOCTOR_DEVICES && device_registry[i]; i++) {
        const int n = device_registry[i]->probe();
        for (int index = 0; index < n; index++)
            device_add(d, device_registry[i], index);
        usable[i] = n;
    }
    json_close(&d->json, ']');
    json_open(&d->json, "hardware", '{');
    for (int i = 0; i < DOCTOR_DEVICES && device_registry[i]; i++)
        sight_judge(d, device_registry[i], usable[i]);
    struct text others;
    text_init(&others);
    if (device_strangers(d->root, &others))
        doctor_line(d, "", "not used, for there are no kernels: %s", others.data);
    json_add(&d->json, JSON("others", or_empty(others.data)));
    text_free_part(&others, &d->people);
    json_close(&d->json, '}');
    for (int i = 0; i < d->n_devices; i++) {
        struct oato_device *device = d->device[i].device;
        const char *slow = device->ops->warning ? device->ops->warning(device) : NULL;
        if (slow)
            doctor_line(d, "", "%s", slow);
    }
}

/* --------------------------------------------------------------------------- the verb ----- */

static void debug_judge(struct doctor *d)
{
#ifndef __OPTIMIZE__
    doctor_advise(d, ADVICE_DEBUG_BUILD, "cmake --preset release && cmake --build --preset release",
                  "this build is not optimised");
#else
    (void)d;
#endif
}

static void doctor_end(struct doctor *d)
{
    for (int i = 0; i < d->n_devices; i++)
        d->device[i].device->ops->close(d->device[i].device);
}

oato_status doctor_run(const char *root, const char *model, struct text *people, struct text *json,
                       struct oato_error *err)
{
    struct doctor d = {.root = root, .contained = host_contained(root)};
    text_init(&d.people);
    text_init(&d.json);
    json_open(&d.json, NULL, '{');
    json_add(&d.json, JSON("version", OATO_VERSION));
    doctor_processor(&d);
    doctor_memory(&d);
    doctor_limits(&d);
    doctor_devices(&d);
    doctor_storage(&d, model);
    doctor_ranks(&d);
    debug_judge(&d);
    oato_status status = model ? doctor_model(&d, model, err) : OATO_OK;
    if (!status) {
        findings_add(&d, "problems", "\nWrong here:\n", d.problem, d.n_problems);
        findings_add(&d, "advice", "\nWhat would make it faster, the largest gain first:\n",
                     d.advice, ADVICE_COUNT);
        if (!d.n_problems)
            text_printf(&d.people, "\nNothing keeps this machine from being used.\n");
        json_add(&d.json, json_bool("ok", !d.n_problems));
        json_close(&d.json, '}');
        status = d.n_problems ? OATO_NEGATIVE : OATO_OK;
    }
    doctor_end(&d);
    if (d.people.failed || d.json.failed)
        status = oato_fail_memory(err, d.people.cap + d.json.cap, "the diagnosis");
    *people = d.people;
    *json = d.json;
    return status;
}

struct doctor_args {
    const char *model;
    bool json, help;
};

static const struct option_of table[] = {
    {"model", 'm', "FILE", "what of this GGUF file fits (or the operand)", 1, option_text,
     offsetof(struct doctor_args, model), 0, 0},
    {"json", 0, NULL, "machine-readable output", 1, option_flag, offsetof(struct doctor_args, json),
     0, 0},
    {"help", 'h', NULL, "this text", 1, option_flag, offsetof(struct doctor_args, help), 0, 0},
};

static void help(const struct option_row *rows)
{
    printf("Usage: oato doctor [MODEL.gguf] [OPTIONS]\n"
           "Says what this machine offers, what is wrong and what would make it faster.\n"
           "Options:\n");
    options_help(rows, stdout);
    printf("Exit status: 0 all well, 1 something cannot be used, 2 usage, 3 bad file, "
           "6 input/output failed.\nSee man oato-doctor.\n");
}

oato_status doctor_command(int argc, char **argv, struct oato_error *err)
{
    struct option_row rows[ARRAY_LEN(table) + 1];
    struct doctor_args a = {0};
    struct text people, json;
    struct options o;
    options_rows(table, ARRAY_LEN(table), 1, rows);
    options_init(&o, rows, argc - 1, argv + 1);
    for (int id; !a.help && (id = options_take(&o, table, &a, err)) != OPT_END;) {
        if (id == OPT_ERROR)
            return err->status;
        if (id == OPT_OPERAND && a.model)
            return oato_fail(err, OATO_EUSAGE, "more than one model: '%s' and '%s'; give one",
                             a.model, o.value);
        if (id == OPT_OPERAND)
            a.model = o.value;
    }
    if (a.help) {
        help(rows);
        return stdout_check(err);
    }
    oato_status status = doctor_run("", a.model, &people, &json, err);
    if (status <= OATO_NEGATIVE) {
        const struct text *t = a.json ? &json : &people;
        text_print(stdout, t->data, t->len);
        if (a.json)
            puts("");
        const oato_status written = stdout_check(err);
        status = written ? written : status;
    }
    text_free(&people);
    text_free(&json);
    return status;
}
