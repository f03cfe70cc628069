/*
 * profile_write.c - writes a profile as YAML through libyaml's emitter, in an order and a number
 * format that depend on nothing but the values: the same profile gives the same bytes, and
 * reading them gives the same values back. What the reader would refuse is refused here first.
 */
#include "planfmt/planfmt_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <yaml.h>

struct writer {
    yaml_emitter_t emitter;
    bool failed;
};

static int collect(void *user, unsigned char *data, size_t bytes)
{
    struct text *t = user;
    text_add(t, (const char *)data, bytes);
    return !t->failed;
}

/* ------------------------------------------------------------------------------- scalars --- */

static void emit(struct writer *w, int initialized, yaml_event_t *e)
{
    if (initialized && w->failed)
        yaml_event_delete(e);
    else if (!initialized || !yaml_emitter_emit(&w->emitter, e))
        w->failed = true; /* an event that was emitted is the emitter's */
}

static void put_styled(struct writer *w, const char *s, yaml_scalar_style_t style)
{
    yaml_event_t e;
    emit(w,
         yaml_scalar_event_initialize(&e, NULL, NULL, (const yaml_char_t *)s, (int)strlen(s), 1, 1,
                                      style),
         &e);
}

/* Numbers and words of the format itself. */
static void put_plain(struct writer *w, const char *s)
{
    put_styled(w, s, YAML_PLAIN_SCALAR_STYLE);
}

/* Text is quoted when another YAML reader might take it for a number, a date or a truth value. */
static void put_text(struct writer *w, const char *s)
{
    static const char *const words[] = {"true", "false", "yes", "no", "on",
                                        "off",  "null",  "y",   "n"};
    bool plain = (*s >= 'a' && *s <= 'z') || (*s >= 'A' && *s <= 'Z');
    for (size_t i = 0; i < ARRAY_LEN(words); i++)
        if (!strcasecmp(s, words[i]))
            plain = false;
    if (strpbrk(s, "\n\r\t"))
        plain = false;
    put_styled(w, s, plain ? YAML_PLAIN_SCALAR_STYLE : YAML_DOUBLE_QUOTED_SCALAR_STYLE);
}

/* The fewest of 15, 16 or 17 digits that read back as the same number; an exponent gets the dot
 * that YAML 1.1 readers ask for. */
static void put_f64(struct writer *w, double v)
{
    char s[40];
    if (v == 0)
        v = 0; /* no "-0" */
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(s, sizeof s, "%.*g", digits, v);
        if (strtod(s, NULL) == v)
            break;
    }
    char *e = strchr(s, 'e');
    if (e && !strchr(s, '.')) {
        memmove(e + 2, e, strlen(e) + 1);
        memcpy(e, ".0", 2);
    }
    put_plain(w, s);
}

static void put_u64(struct writer *w, uint64_t v)
{
    char s[24];
    snprintf(s, sizeof s, "%llu", (unsigned long long)v);
    put_plain(w, s);
}

/* ------------------------------------------------------------------------------ mappings --- */

static void begin_mapping(struct writer *w, bool one_line)
{
    yaml_event_t e;
    emit(w,
         yaml_mapping_start_event_initialize(
             &e, NULL, NULL, 1, one_line ? YAML_FLOW_MAPPING_STYLE : YAML_BLOCK_MAPPING_STYLE),
         &e);
}

static void end_mapping(struct writer *w)
{
    yaml_event_t e;
    emit(w, yaml_mapping_end_event_initialize(&e), &e);
}

static void begin_list(struct writer *w, const char *key)
{
    yaml_event_t e;
    put_plain(w, key);
    emit(w, yaml_sequence_start_event_initialize(&e, NULL, NULL, 1, YAML_BLOCK_SEQUENCE_STYLE), &e);
}

static void end_list(struct writer *w)
{
    yaml_event_t e;
    emit(w, yaml_sequence_end_event_initialize(&e), &e);
}

static bool is_written(const struct field *f, const void *base)
{
    switch (f->presence) {
    case REQUIRED:
    case OPTIONAL: return true;
    case IF_SET: return field_is_set(f, base);
    case LAST_UNLESS_SET: return !field_is_set(f, base);
    case WITH_NEXT: return field_is_set(f + 1, base);
    }
    return true;
}

/* "[1, 16, 256]" */
static void put_numbers(struct writer *w, const int32_t *rows)
{
    yaml_event_t e;
    emit(w, yaml_sequence_start_event_initialize(&e, NULL, NULL, 1, YAML_FLOW_SEQUENCE_STYLE), &e);
    for (int i = 0; i < DEVICE_ROWS && rows[i]; i++)
        put_u64(w, (uint64_t)rows[i]);
    end_list(w);
}

/* The fields of the schema, from the structure at base. */
static void put_fields(struct writer *w, const struct schema *schema, const void *base)
{
    const int n = schema_fields(schema, base);
    for (int i = 0; i < n; i++) {
        const struct field *f = &schema->field[i];
        const void *from = (const char *)base + f->offset;
        if (!is_written(f, base))
            continue;
        put_plain(w, f->name);
        switch (f->type) {
        case FIELD_TEXT: put_text(w, or_empty(*(const char *const *)from)); break;
        case FIELD_CHARS: put_text(w, from); break;
        case FIELD_I32: put_u64(w, (uint64_t) * (const int32_t *)from); break;
        case FIELD_U64: put_u64(w, *(const uint64_t *)from); break;
        case FIELD_F64: put_f64(w, *(const double *)from); break;
        case FIELD_BOOL: put_plain(w, *(const bool *)from ? "true" : "false"); break;
        case FIELD_ROWS: put_numbers(w, from); break;
        }
    }
}

static void put_mapping(struct writer *w, const struct schema *schema, const void *base,
                        bool one_line)
{
    begin_mapping(w, one_line);
    put_fields(w, schema, base);
    end_mapping(w);
}

/* -------------------------------------------------------------------------------- checks --- */

static oato_status check_fields(const struct schema *schema, const void *base, int32_t index,
                                struct oato_error *err)
{
    for (int i = 0; i < schema->n; i++) {
        const struct field *f = &schema->field[i];
        const void *from = (const char *)base + f->offset;
        const char *why = NULL;
        if (f->type == FIELD_I32 && *(const int32_t *)from < 0)
            why = "negative";
        if (f->type == FIELD_F64 && (!isfinite(*(const double *)from) || *(const double *)from < 0))
            why = "negative or not finite";
        if (f->type == FIELD_ROWS && !rows_rise(from))
            why = "not a list of rising numbers";
        if (f->type == FIELD_TEXT && strlen(or_empty(*(const char *const *)from)) > f->size)
            why = "too long";
        if (why)
            return oato_fail(err, OATO_EUSAGE, "profile not written: %s %d: %s is %s", schema->what,
                             index, f->name, why);
    }
    return OATO_OK;
}

static oato_status check_devices(const struct profile *p, struct oato_error *err)
{
    if (p->n_devices < 1 || p->n_devices > PROFILE_DEVICES_MAX)
        return oato_fail(err, OATO_EUSAGE, "profile not written: %d devices; allowed: 1 to %d",
                         p->n_devices, PROFILE_DEVICES_MAX);
    for (int32_t i = 0; i < p->n_devices; i++) {
        const struct profile_device *d = &p->devices[i];
        if (check_fields(&profile_device_schema, d, i, err))
            return err->status;
        if (!profile_device_id_ok(or_empty(d->id), or_empty(d->kind)))
            return oato_fail(err, OATO_EUSAGE,
                             "profile not written: device %d: id '%.40s' is not kind:number", i,
                             or_empty(d->id));
        if (!profile_may_have(d->model))
            return oato_fail(err, OATO_EUSAGE,
                             "profile not written: %s is a %s, whose times are no hardware's",
                             d->id, d->model);
        if (profile_device_index(p, d->id) != i)
            return oato_fail(err, OATO_EUSAGE, "profile not written: duplicate device '%s'", d->id);
    }
    return OATO_OK;
}

static bool device_exists(const struct profile *p, int32_t device)
{
    return device >= 0 && device < p->n_devices;
}

static oato_status check_profile(const struct profile *p, struct oato_error *err)
{
    if (check_fields(&profile_head_schema, p, 0, err) ||
        check_fields(&profile_machine_schema, &p->machine, 0, err) || check_devices(p, err))
        return err->status;
    for (int32_t i = 0; i < p->n_links; i++) {
        const struct profile_link *l = &p->links[i];
        struct link_text t = {.link = *l};
        if (check_fields(&profile_link_schema, &t, i, err))
            return err->status;
        bool good = device_exists(p, l->from) && device_exists(p, l->to) && l->from != l->to &&
                    l->bytes_per_s > 0;
        for (int32_t j = 0; j < i; j++)
            good = good && (p->links[j].from != l->from || p->links[j].to != l->to);
        if (!good)
            return oato_fail(err, OATO_EUSAGE,
                             "profile not written: link %d: device %d to %d at %g bytes/s is "
                             "a duplicate or invalid",
                             i, l->from, l->to, l->bytes_per_s);
    }
    return OATO_OK;
}

/* ------------------------------------------------------------------------------ sections --- */

static void put_devices(struct writer *w, const struct profile *p)
{
    begin_list(w, "devices");
    for (int32_t i = 0; i < p->n_devices; i++)
        put_mapping(w, &profile_device_schema, &p->devices[i], false);
    end_list(w);
}

static void put_links(struct writer *w, const struct profile *p)
{
    begin_list(w, "links");
    for (int32_t i = 0; i < p->n_links; i++) {
        struct link_text t = {.link = p->links[i]};
        snprintf(t.from, sizeof t.from, "%s", p->devices[t.link.from].id);
        snprintf(t.to, sizeof t.to, "%s", p->devices[t.link.to].id);
        put_mapping(w, &profile_link_schema, &t, true);
    }
    end_list(w);
}

/* A kind that a device runs, a line; the section is left out where no device was asked. */
static oato_status put_runs(struct writer *w, const struct profile *p, struct oato_error *err)
{
    bool begun = false, failed = false;
    for (int32_t d = 0; d < p->n_devices; d++)
        for (int kind = OP_NONE + 1; kind < OP_KIND_COUNT && p->devices[d].runs; kind++) {
            struct runs_text t = {.types = ""};
            struct text types, values;
            if (!p->devices[d].runs[kind])
                continue;
            if (!begun)
                begin_list(w, "supports");
            begun = true;
            text_init(&types);
            runs_text_write(kind, p->devices[d].runs[kind], &types);
            snprintf(t.device, sizeof t.device, "%s", p->devices[d].id);
            snprintf(t.kind, sizeof t.kind, "%s", op_kind_name(kind));
            t.types = or_empty(types.data);
            text_init(&values);
            if (p->devices[d].values)
                values_text_write(&p->devices[d].values[kind], &values);
            t.values = or_empty(values.data);
            if (p->devices[d].workspaces)
                t.workspace = p->devices[d].workspaces[kind];
            failed = failed || types.failed || values.failed;
            put_mapping(w, &profile_runs_schema, &t, true);
            text_free(&types);
            text_free(&values);
        }
    if (begun)
        end_list(w);
    return failed ? oato_fail_memory(err, 0, "a profile") : OATO_OK;
}

struct sorted_row {
    const struct profile_row *row;
    char key[OP_KEY_SIZE];
};

/* strverscmp: t2 stands before t128. */
static int by_device_and_key(const void *va, const void *vb)
{
    const struct sorted_row *a = va, *b = vb;
    const int order = order_i64(a->row->device, b->row->device);
    return order ? order : strverscmp(a->key, b->key);
}

static oato_status put_row(struct writer *w, const struct profile *p, const struct sorted_row *s,
                           struct oato_error *err)
{
    const struct profile_row *r = s->row;
    struct row_text t = {.row = *r};
    if (r->supported && check_fields(&profile_row_schema, &t, (int32_t)(r - p->rows), err))
        return oato_fail_at(err, "%s", s->key);
    if (strlen(or_empty(r->numerics)) >= sizeof t.numerics || r->size.rows < 1)
        return oato_fail(
            err, OATO_EUSAGE,
            "profile not written: operator '%s': invalid step of %d rows or numerics '%.40s'",
            s->key, r->size.rows, or_empty(r->numerics));
    snprintf(t.device, sizeof t.device, "%s", p->devices[r->device].id);
    snprintf(t.op, sizeof t.op, "%s", s->key);
    snprintf(t.numerics, sizeof t.numerics, "%s", or_empty(r->numerics));
    put_mapping(w, &profile_row_schema, &t, true);
    return OATO_OK;
}

static oato_status put_rows(struct writer *w, const struct profile *p, struct oato_error *err)
{
    size_t n = (size_t)p->n_rows;
    struct sorted_row *sorted = calloc(n ? n : 1, sizeof *sorted);
    if (!sorted)
        return oato_fail_memory(err, n * sizeof *sorted, "sorting a profile");
    oato_status status = OATO_OK;
    for (size_t i = 0; i < n && !status; i++) {
        const struct profile_row *r = &p->rows[i];
        sorted[i].row = r;
        oato_op_key(&r->op, &r->size, sorted[i].key);
        if (!device_exists(p, r->device))
            status = oato_fail(err, OATO_EUSAGE,
                               "profile not written: operator '%s' is on device %d of %d",
                               sorted[i].key, r->device, p->n_devices);
    }
    if (!status)
        qsort(sorted, n, sizeof *sorted, by_device_and_key);
    begin_list(w, "operators");
    for (size_t i = 0; i < n && !status; i++) {
        if (i && !by_device_and_key(&sorted[i - 1], &sorted[i]))
            status = oato_fail(err, OATO_EUSAGE, "profile not written: duplicate operator '%s'",
                               sorted[i].key);
        else
            status = put_row(w, p, &sorted[i], err);
    }
    end_list(w);
    free(sorted);
    return status;
}

/* The section is left out where there are none. */
static oato_status put_restores(struct writer *w, const struct profile *p, struct oato_error *err)
{
    if (!p->n_restores)
        return OATO_OK;
    begin_list(w, "restores");
    for (int32_t i = 0; i < p->n_restores; i++) {
        const struct profile_restore *r = &p->restores[i];
        if (check_fields(&profile_restore_schema, r, i, err))
            return err->status;
        if (r->tokens < 1 || !(r->median_ns > 0))
            return oato_fail(err, OATO_EUSAGE,
                             "profile not written: restore %d: %d tokens in %g ns", i, r->tokens,
                             r->median_ns);
        put_mapping(w, &profile_restore_schema, r, true);
    }
    end_list(w);
    return OATO_OK;
}

static oato_status put_storage(struct writer *w, const struct profile *p, struct oato_error *err)
{
    if (!p->n_storage)
        return OATO_OK;
    begin_list(w, "storage");
    for (int32_t i = 0; i < p->n_storage; i++) {
        const struct profile_storage *s = &p->storage[i];
        if (check_fields(&profile_storage_schema, s, i, err))
            return err->status;
        if (s->depth < 1 || !s->bytes || !(s->bytes_per_s > 0))
            return oato_fail(err, OATO_EUSAGE,
                             "profile not written: storage %d: depth %d, %llu bytes, %g bytes/s", i,
                             s->depth, (unsigned long long)s->bytes, s->bytes_per_s);
        put_mapping(w, &profile_storage_schema, s, true);
    }
    end_list(w);
    return OATO_OK;
}

static oato_status put_sums(struct writer *w, const struct profile *p, struct oato_error *err)
{
    if (!p->n_sums)
        return OATO_OK;
    begin_list(w, "sums");
    for (int32_t i = 0; i < p->n_sums; i++) {
        struct sum_text t = {.row = p->sums[i]};
        if (check_fields(&profile_sum_schema, &t, i, err))
            return err->status;
        if (!sum_text_write(&t) || p->n_sums > PROFILE_SUMS_MAX)
            return oato_fail(err, OATO_EUSAGE,
                             "profile not written: sum %d of %d: %d ranks on %d hosts, %llu bytes, "
                             "%g ns; or there are too many",
                             i, p->n_sums, t.row.ranks, t.row.hosts,
                             (unsigned long long)t.row.bytes, t.row.median_ns);
        put_mapping(w, &profile_sum_schema, &t, true);
    }
    end_list(w);
    return OATO_OK;
}

static oato_status put_profile(struct writer *w, const struct profile *p, struct oato_error *err)
{
    yaml_event_t e;
    emit(w, yaml_stream_start_event_initialize(&e, YAML_UTF8_ENCODING), &e);
    emit(w, yaml_document_start_event_initialize(&e, NULL, NULL, NULL, 1), &e);
    begin_mapping(w, false);
    struct profile head = *p;
    head.version = PROFILE_VERSION;
    put_fields(w, &profile_head_schema, &head);
    put_plain(w, "machine");
    put_mapping(w, &profile_machine_schema, &p->machine, false);
    put_devices(w, p);
    put_links(w, p);
    oato_status status = put_runs(w, p, err);
    if (!status)
        status = put_rows(w, p, err);
    if (!status)
        status = put_storage(w, p, err);
    if (!status)
        status = put_sums(w, p, err);
    if (!status)
        status = put_restores(w, p, err);
    if (status)
        return status;
    end_mapping(w);
    emit(w, yaml_document_end_event_initialize(&e, 1), &e);
    emit(w, yaml_stream_end_event_initialize(&e), &e);
    if (w->failed || !yaml_emitter_flush(&w->emitter))
        return oato_fail(err, OATO_EUSAGE, "profile not written: %s",
                         w->emitter.problem ? w->emitter.problem
                                            : "a string is not UTF-8, or out of memory");
    return OATO_OK;
}

oato_status profile_print(const struct profile *p, struct text *out, struct oato_error *err)
{
    struct writer w = {.failed = false};
    if (check_profile(p, err))
        return err->status;
    if (!yaml_emitter_initialize(&w.emitter))
        return oato_fail_memory(err, 0, "the YAML emitter");
    yaml_emitter_set_output(&w.emitter, collect, out);
    yaml_emitter_set_width(&w.emitter, -1); /* one operator, one line */
    yaml_emitter_set_unicode(&w.emitter, 1);
    oato_status status = put_profile(&w, p, err);
    yaml_emitter_delete(&w.emitter);
    return status;
}

oato_status profile_save(const struct profile *p, const char *path, struct oato_error *err)
{
    struct text text;
    struct outfile f;
    text_init(&text);
    oato_status status = profile_print(p, &text, err);
    if (status)
        oato_fail_at(err, "%s", path);
    if (!status)
        status = outfile_open(&f, path, err);
    if (!status && !(status = outfile_write(&f, text.data, text.len, err)))
        status = outfile_commit(&f, err);
    text_free(&text);
    return status;
}
