/*
 * profile_lists.c - reads the rows of a profile's lists: links, what devices run, operators,
 * restores, storage and sums. A row is checked as it is read, so that every error names its place.
 */
#include "planfmt/profile_reader_internal.h"

#include <string.h>

static oato_status device_of(struct reader *r, const char *id, yaml_mark_t at, int32_t *out)
{
    *out = profile_device_index(r->profile, id);
    if (*out < 0)
        return fail_at(r, at, "device '%s' is not among the %d of 'devices'", id,
                       r->profile->n_devices);
    return OATO_OK;
}

oato_status read_link(struct reader *r)
{
    struct profile *p = r->profile;
    struct link_text t = {.link = {.sync_ns = 0}};
    struct mapping_marks m;
    oato_status status = read_mapping(r, &profile_link_schema, &t, &m);
    if (!status)
        status = device_of(r, t.from, m.value[LINK_FROM], &t.link.from);
    if (!status)
        status = device_of(r, t.to, m.value[LINK_TO], &t.link.to);
    if (status)
        return status;
    const struct profile_link l = t.link;
    if (l.from == l.to)
        return fail_at(r, m.value[LINK_TO], "link from '%s' to itself", t.from);
    if (!(l.bytes_per_s > 0))
        return fail_at(r, m.value[LINK_RATE], "bytes_per_s: must be above 0");
    for (int32_t i = 0; i < p->n_links; i++)
        if (p->links[i].from == l.from && p->links[i].to == l.to)
            return fail_at(r, m.begin, "duplicate link from '%s' to '%s'", t.from, t.to);
    p->links = array_of(r, p->links, p->n_devices * (p->n_devices - 1), sizeof l);
    if (!p->links)
        return r->err->status;
    p->links[p->n_links++] = l;
    return OATO_OK;
}

/* Whether the text, a kind or an operator's key, is of a kind that profiles had before: measured,
 * but of no use. */
static bool is_gone(const char *text)
{
    return !strcmp(text, "signs") || !strncmp(text, "signs/", 6);
}

/* A kind that a device runs, and its types. */
oato_status read_runs(struct reader *r)
{
    struct profile *p = r->profile;
    struct runs_text t = {.types = "", .values = ""};
    struct mapping_marks m;
    enum op_kind kind;
    int32_t device = 0;
    char bad[24];
    oato_status status = read_mapping(r, &profile_runs_schema, &t, &m);
    if (!status)
        status = device_of(r, t.device, m.value[RUNS_DEVICE], &device);
    if (status)
        return status;
    struct profile_device *d = &p->devices[device];
    if (is_gone(t.kind))
        return OATO_OK;
    if (!op_kind_parse(t.kind, &kind))
        return fail_at(r, m.value[RUNS_KIND], "kind: '%s' is not a kind of operator", t.kind);
    d->runs = array_of(r, d->runs, OP_KIND_COUNT, sizeof *d->runs);
    if (!d->runs)
        return r->err->status;
    if (d->runs[kind])
        return fail_at(r, m.begin, "duplicate kind '%s' on '%s'", t.kind, t.device);
    if (*t.values) {
        d->values = array_of(r, d->values, OP_KIND_COUNT, sizeof *d->values);
        if (!d->values)
            return r->err->status;
        if (!values_text_read(t.values, &d->values[kind]))
            return fail_at(r, m.value[RUNS_VALUES],
                           "values: '%.40s' is no list of F16 and F32, as in 'F16 F32 > F16'",
                           t.values);
    }
    const struct profile_workspace *w = &t.workspace;
    if (w->bytes > 0 || w->per_input > 0 || w->per_output > 0 || w->per_partial > 0) {
        d->workspaces = array_of(r, d->workspaces, OP_KIND_COUNT, sizeof *w);
        if (!d->workspaces)
            return r->err->status;
        d->workspaces[kind] = *w;
    }
    if (runs_text_read((int)kind, t.types, &d->runs[kind], bad))
        return OATO_OK;
    return bad[0] ? fail_at(r, m.value[RUNS_TYPES],
                            "types: '%s' is a duplicate, or no type that %s has", bad, t.kind)
                  : fail_at(r, m.begin, "types: missing; %s has types", t.kind);
}

oato_status read_row(struct reader *r)
{
    struct row_text t = {.row = {.supported = true}};
    struct profile_row *row = &t.row;
    struct mapping_marks m;
    oato_status status = read_mapping(r, &profile_row_schema, &t, &m);
    if (!status && !row->supported) /* only the key counts */
        *row = (struct profile_row){.supported = false};
    if (!status)
        status = device_of(r, t.device, m.value[ROW_DEVICE], &row->device);
    if (status)
        return status;
    if (is_gone(t.op))
        return OATO_OK;
    row->numerics = row->supported ? t.numerics : "";
    if (!oato_op_parse(t.op, &row->op, &row->size))
        return fail_at(r, m.value[ROW_OP], "op: '%s' is not an operator key", t.op);
    if (row->size.rows < 1)
        return fail_at(r, m.value[ROW_OP], "op: '%s' lacks the size of the step (/t1)", t.op);
    bool existed;
    if (r->profile->n_rows == INT32_MAX / 4 || !profile_add(r->profile, row, false, &existed))
        return oato_fail_memory(r->err, sizeof *row, "a profile");
    if (existed)
        return fail_at(r, m.begin, "duplicate operator '%s' on '%s'", t.op, t.device);
    return OATO_OK;
}

oato_status read_restore(struct reader *r)
{
    struct profile *p = r->profile;
    struct profile_restore t = {.devices = ""};
    struct mapping_marks m;
    if (read_mapping(r, &profile_restore_schema, &t, &m))
        return r->err->status;
    if (t.tokens < 1 || !(t.median_ns > 0))
        return fail_at(r, m.begin, "tokens and median_ns: must be above 0");
    if (p->n_restores == PROFILE_RESTORES_MAX)
        return fail_at(r, m.begin, "more than %d restores", PROFILE_RESTORES_MAX);
    return profile_add_restore(p, &t) ? OATO_OK : oato_fail_memory(r->err, sizeof t, "a profile");
}

oato_status read_storage(struct reader *r)
{
    struct profile *p = r->profile;
    struct profile_storage t = {0};
    struct mapping_marks m;
    if (read_mapping(r, &profile_storage_schema, &t, &m))
        return r->err->status;
    if (t.depth < 1 || !t.bytes || !(t.bytes_per_s > 0))
        return fail_at(r, m.begin, "depth, bytes and bytes_per_s: must be above 0");
    p->storage = array_of(r, p->storage, PROFILE_STORAGE_MAX, sizeof t);
    if (!p->storage)
        return r->err->status;
    if (p->n_storage == PROFILE_STORAGE_MAX)
        return fail_at(r, m.begin, "more than %d rows of storage", PROFILE_STORAGE_MAX);
    p->storage[p->n_storage++] = t;
    return OATO_OK;
}

oato_status read_sum(struct reader *r)
{
    struct profile *p = r->profile;
    struct sum_text t = {.row = {.ranks = 0}};
    struct mapping_marks m;
    if (read_mapping(r, &profile_sum_schema, &t, &m))
        return r->err->status;
    if (!sum_text_read(&t))
        return fail_at(r, m.begin,
                       "sum: numbers must be above 0, hosts at most ranks, wire F32, F16 or Q8_0, "
                       "and by tree, allreduce, reduce, message or step");
    p->sums = array_of(r, p->sums, PROFILE_SUMS_MAX, sizeof t.row);
    if (!p->sums)
        return r->err->status;
    if (p->n_sums == PROFILE_SUMS_MAX)
        return fail_at(r, m.begin, "more than %d sums", PROFILE_SUMS_MAX);
    p->sums[p->n_sums++] = t.row;
    return OATO_OK;
}
