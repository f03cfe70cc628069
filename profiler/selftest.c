/*
 * selftest.c - whether a device does what it should, and how fast: opens it beside the reference
 * kernels of the CPU, counts what is right, and writes one report for people and one to attach
 * somewhere. The order is that of trust: what the device is, each operator, copies and events, and
 * last a model.
 */
#include "profiler/selftest_internal.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { FAILURES_SHOWN = 20, REPORT_VERSION = 1 };

/* ------------------------------------------------------------------------------ the report - */

/* Error messages name files: of a path only its last part is for others to see. */
static void without_paths(const char *text, char *out, size_t out_bytes)
{
    size_t n = 0;
    for (const char *p = text; *p && n + 1 < out_bytes;) {
        const bool begins = p == text || strchr(" '\"(:=", p[-1]);
        if (begins && (*p == '/' || *p == '~' || (*p == '.' && p[1] == '/'))) {
            const size_t length = strcspn(p, " '\":,)");
            const char *slash = p + length;
            while (slash > p && slash[-1] != '/')
                slash--;
            p = slash > p ? slash : p + 1;
        }
        out[n++] = *p;
        p += *p != 0;
    }
    out[n] = 0;
}

static void key_of(const struct trial *t, char out[OP_KEY_SIZE + 64])
{
    static const char *const phase[] = {"decode", "prefill", "library"};
    char key[OP_KEY_SIZE];
    const struct op_size size = {.rows = t->rows, .seqs = t->seqs ? t->seqs : 1};
    oato_op_key(&t->op, t->rows ? &size : NULL, key);
    snprintf(out, OP_KEY_SIZE + 64, "%s %s", key, phase[t->numerics]);
    if (t->variant)
        snprintf(out + strlen(out), 16, " #%d", t->variant);
}

static void failure_add(struct selftest *s, const struct trial *t, const char *class,
                        const char *why)
{
    char key[OP_KEY_SIZE + 64], plain[512];
    without_paths(why, plain, sizeof plain);
    key_of(t, key);
    json_add_object(&s->failures, NULL, JSON("operator", key), JSON("numerics", class),
                    JSON("why", plain));
    if (s->all.failed <= FAILURES_SHOWN)
        text_printf(&s->failed_lines, "  %s (%s): %s\n", key, class, plain);
}

/* ------------------------------------------------------------------------------- counting -- */

static void count(struct selftest_count *c, const struct trial_result *r)
{
    c->cases += r != NULL;
    c->refused += r == NULL;
    c->failed += r && r->wrong[0];
    c->worst = r && !r->wrong[0] ? fmax(c->worst, r->nmse) : c->worst;
}

static struct selftest_count *class_count(struct selftest *s, const struct trial_result *r)
{
    int i = 0;
    while (i < s->n_classes && strcmp(s->class[i].name, r->numerics) != 0)
        i++;
    if (i == SELFTEST_CLASSES)
        return NULL;
    if (i == s->n_classes)
        snprintf(s->class[s->n_classes++].name, sizeof s->class[i].name, "%s", r->numerics);
    s->class[i].limit = fmax(s->class[i].limit, r->limit);
    return &s->class[i].count;
}

void selftest_note(struct selftest *s, const struct trial *t, const struct trial_result *r)
{
    struct selftest_count *class = r ? class_count(s, r) : NULL;
    count(&s->all, r);
    count(&s->count[t->op.kind][t->op.dtype], r);
    if (t->op.kind == OP_ATTENTION) { /* of what was stored and copied */
        count(&s->count[OP_KV_STORE][t->op.dtype], r);
        count(&s->count[OP_KV_COPY][DT_F32], r);
    }
    if (class)
        count(class, r);
    if (r && r->wrong[0])
        failure_add(s, t, r->numerics, r->wrong);
}

void selftest_note_error(struct selftest *s, const struct trial *t, const char *why)
{
    const struct trial_result r = {.wrong = "x"};
    count(&s->all, &r);
    count(&s->count[t->op.kind][t->op.dtype], &r);
    failure_add(s, t, "", why);
}

/* ----------------------------------------------------------------------------- the device -- */

static void library_symbol(void *user, const char *library, const char *symbol, bool found)
{
    struct text *t = user;
    json_add_object(t, NULL, JSON("library", library), JSON("symbol", symbol),
                    json_bool("found", found));
}

static void symbols_add(struct selftest *s, const struct device_ops *ops)
{
    json_open(&s->json, "symbols", '[');
    if (ops && ops->symbols)
        ops->symbols(library_symbol, &s->json);
    json_close(&s->json, ']');
}

static void device_add(struct selftest *s)
{
    const struct device_info *i = &s->rig.info;
    const struct oato_device *d = s->rig.device;
    const char *slow = d->ops->warning ? d->ops->warning(d) : NULL;
    json_open(&s->json, "device", '{');
    json_add(&s->json, JSON("id", i->id), JSON("kind", i->kind), JSON("model", i->model),
             JSON("kernels", i->isa), JSON("driver", i->driver),
             JSON("memory_bytes", i->memory_bytes), JSON("free_bytes", i->free_bytes),
             JSON("cache_bytes", i->cache_bytes), JSON("threads", (uint64_t)i->threads),
             json_bool("host", i->is_host), json_bool("declared", s->rig.declared),
             json_bool("stand_in", is_stand_in(i->model)), json_bool("spans", i->spans),
             JSON("layout", or_empty(d->ops->layout ? d->ops->layout(d) : NULL)));
    json_open(&s->json, "rows", '[');
    for (int r = 0; r < DEVICE_ROWS && i->rows[r]; r++)
        json_add(&s->json, JSON(NULL, (uint64_t)i->rows[r]));
    json_close(&s->json, ']');
    json_close(&s->json, '}');
    text_printf(&s->people, "%s  %s%s%s%s%s, %.1f GiB, %.1f free\n", i->id, i->model,
                i->isa[0] ? ", kernels " : "", i->isa, i->driver[0] ? ", driver " : "", i->driver,
                (double)i->memory_bytes / (1 << 30), (double)i->free_bytes / (1 << 30));
    if (slow)
        text_printf(&s->people, "%s\n", slow);
}

static void counts_add(struct selftest *s)
{
    struct text *j = &s->json;
    json_open(j, "operators", '{');
    json_add(j, JSON("cases", (uint64_t)s->all.cases), JSON("wrong", (uint64_t)s->all.failed),
             JSON("refused", (uint64_t)s->all.refused));
    json_open(j, "classes", '[');
    for (int i = 0; i < s->n_classes; i++)
        json_add_object(j, NULL, JSON("numerics", s->class[i].name),
                        JSON("cases", (uint64_t)s->class[i].count.cases),
                        JSON("wrong", (uint64_t)s->class[i].count.failed),
                        JSON("worst_nmse", s->class[i].count.worst),
                        JSON("limit", s->class[i].limit));
    json_close(j, ']');
    json_open(j, "kinds", '[');
    for (int k = 0; k < OP_KIND_COUNT; k++)
        for (int t = 0; t < TYPE_NUMBERS; t++) {
            const struct selftest_count *c = &s->count[k][t];
            if (c->cases + c->refused)
                json_add_object(
                    j, NULL, JSON("kind", op_kind_name(k)), JSON("type", dtype_name((oato_dtype)t)),
                    JSON("cases", (uint64_t)c->cases), JSON("wrong", (uint64_t)c->failed),
                    JSON("refused", (uint64_t)c->refused), JSON("worst_nmse", c->worst));
        }
    json_close(j, ']');
    json_open(j, "failures", '[');
    if (s->failures.len)
        text_add(j, s->failures.data, s->failures.len);
    json_close(j, ']');
    json_close(j, '}');
}

/* The types of a kind that were all refused. */
static void refused_print(struct selftest *s)
{
    for (int k = 0; k < OP_KIND_COUNT; k++) {
        struct text types;
        int some = 0, none = 0;
        text_init(&types);
        for (int t = 0; t < TYPE_NUMBERS; t++) {
            const struct selftest_count *c = &s->count[k][t];
            some += c->cases > 0;
            if (!c->refused || c->cases)
                continue;
            none++;
            text_printf(&types, " %s", dtype_name((oato_dtype)t));
        }
        if (none)
            text_printf(&s->people, "  refused: %s%s%s\n", op_kind_name(k), some ? " of" : "",
                        some ? or_empty(types.data) : "");
        text_free(&types);
    }
}

static void counts_print(struct selftest *s)
{
    text_printf(&s->people, "operators  %d cases, %d wrong, %d refused\n", (int)s->all.cases,
                (int)s->all.failed, (int)s->all.refused);
    for (int i = 0; i < s->n_classes; i++)
        text_printf(&s->people,
                    "  %-12s %5d cases, %d wrong, else NMSE at most %.2g (limit %.2g)\n",
                    s->class[i].name, (int)s->class[i].count.cases, (int)s->class[i].count.failed,
                    s->class[i].count.worst, s->class[i].limit);
    refused_print(s);
    text_add(&s->people, or_empty(s->failed_lines.data), s->failed_lines.len);
    if (s->all.failed > FAILURES_SHOWN)
        text_printf(&s->people, "  and %d more, which the file lists\n",
                    (int)s->all.failed - FAILURES_SHOWN);
}

/* ------------------------------------------------------------------------------ the steps -- */

static oato_status only_parse(struct selftest *s, struct oato_error *err)
{
    const char *only = s->o->only, *slash = only ? strchr(only, '/') : NULL;
    char kind[32] = "";
    oato_dtype dtype = DT_F32;
    s->only_dtype = -1;
    if (!only)
        return OATO_OK;
    snprintf(kind, sizeof kind, "%.*s", (int)(slash ? slash - only : (int64_t)strlen(only)), only);
    if (!op_kind_parse(kind, &s->only_kind))
        return oato_fail(err, OATO_EUSAGE,
                         "--only wants a kind of operator, such as mul_mat, or with a type, "
                         "mul_mat/Q4_0; not '%s'",
                         only);
    if (slash && (!dtype_parse(slash + 1, &dtype) || !dtype_is_weight(dtype)))
        return oato_fail(err, OATO_EUSAGE, "--only: '%s' is no type of weights, such as Q4_0",
                         slash + 1);
    if (slash)
        s->only_dtype = (int)dtype;
    return OATO_OK;
}

static oato_status rig_open(struct rig *r, const char *spec, const struct device_options *options,
                            struct oato_error *err)
{
    enum { CACHE_BYTES = 32 << 20 };
    oato_status status = device_open(spec, 0, options, &r->device, err);
    if (status)
        return status;
    r->device->ops->info(r->device, &r->info);
    r->declared = r->info.read_bytes_per_s > 0 && r->info.flops_per_s > 0;
    r->cache_bytes = r->info.cache_bytes ? r->info.cache_bytes : CACHE_BYTES;
    return OATO_OK;
}

static void rig_close(struct rig *r)
{
    if (r->device)
        r->device->ops->close(r->device);
    r->device = NULL;
}

static oato_status run_all(struct selftest *s, bool *right, struct oato_error *err)
{
    const struct device_options options = {.threads = s->o->threads}, plain = {.isa = "ref"};
    oato_status status = rig_open(&s->rig, s->o->device, &options, err);
    if (!status)
        status = rig_open(&s->reference, "cpu", &plain, err);
    if (status)
        return status;
    const struct device_info info = s->rig.info;
    device_add(s);
    progress_begin(&s->progress, "self-test", 1);
    status = selftest_operators(s, err);
    progress_end(&s->progress);
    if (!status && !s->all.cases)
        status = oato_fail(err, OATO_EUSAGE, "%s runs no operators of --only %s", info.id,
                           or_empty(s->o->only));
    rig_close(&s->reference);
    if (status != OATO_NEGATIVE && s->all.cases) {
        counts_add(s);
        counts_print(s);
    }
    *right = !s->all.failed;
    if (!status && !s->o->only)
        status = selftest_rates(s, err);
    if (!status && s->o->perf)
        status = selftest_perf(s, err);
    rig_close(&s->rig);
    bool says = true;
    if (!status && !s->o->only)
        status = selftest_sentence(s, &info, &says, err);
    *right = *right && says;
    return status;
}

oato_status selftest_run(const struct selftest_options *o, struct text *people, struct text *json,
                         struct oato_error *err)
{
    struct selftest *s = calloc(1, sizeof *s);
    char specs[2][256], plain[512];
    bool right = false;
    text_init(people);
    text_init(json);
    if (!s)
        return oato_fail_memory(err, sizeof *s, "a self-test");
    s->o = o;
    if (device_split(o->device, specs, ARRAY_LEN(specs) - 1, err) < 0 || only_parse(s, err)) {
        free(s);
        return err->status;
    }
    const uint64_t begin = now_ns();
    json_open(&s->json, NULL, '{');
    without_paths(o->device, plain, sizeof plain);
    json_add(&s->json, JSON("selftest", (uint64_t)REPORT_VERSION), JSON("version", OATO_VERSION),
             JSON("spec", plain), json_bool("quick", o->quick), JSON("only", or_empty(o->only)));
    symbols_add(s, device_kind(o->device));
    oato_status status = run_all(s, &right, err);
    progress_end(&s->progress);
    rig_close(&s->rig);
    rig_close(&s->reference);
    if (!status && !right)
        status = OATO_NEGATIVE;
    const bool failed = status == OATO_EDEVICE;
    without_paths(failed ? err->text : "", plain, sizeof plain);
    const double seconds = (double)(now_ns() - begin) * 1e-9;
    json_add(&s->json,
             JSON("verdict", failed  ? "failed"
                             : right ? "right"
                                     : "wrong"),
             JSON("error", plain), JSON("seconds", seconds));
    json_close(&s->json, '}');
    if (status <= OATO_NEGATIVE)
        text_printf(&s->people, "%s after %.0f s\n",
                    right ? "All is as it should be," : "Something is WRONG with this device,",
                    seconds);
    if (s->people.failed || s->json.failed || s->failures.failed)
        status = oato_fail_memory(err, s->json.cap, "the report");
    text_free(&s->failures);
    text_free(&s->failed_lines);
    if (oato_interrupted || (status > OATO_NEGATIVE && !failed)) {
        text_free(&s->people);
        text_free(&s->json);
    }
    *people = s->people;
    *json = s->json;
    free(s);
    return status;
}

void selftest_file_name(const char *device, char *out, size_t out_bytes)
{
    const size_t kind = strcspn(device, ":,");
    const size_t digits = device[kind] == ':' ? strspn(device + kind + 1, "0123456789") : 0;
    snprintf(out, out_bytes, "selftest-%.*s-%.*s.json", (int)kind, device, digits ? (int)digits : 1,
             digits ? device + kind + 1 : "0");
}
