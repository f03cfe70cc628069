/*
 * profile_schema.c - the keys of the profile file, in the order in which they are written: one row
 * per key, with the offset of its value. Reader and writer both use these tables, so a new key is
 * one row here and one line in docs/profile-format.md.
 */
#include "planfmt/planfmt_internal.h"

#include <stdlib.h>
#include <string.h>

#define AT(type, member)   offsetof(struct type, member)
#define SIZE(type, member) sizeof(((struct type *)0)->member)

enum {
    NAME_BYTES = 255,
    NOTES_BYTES = 65535,
    MODEL_BYTES = 95,
    SPEC_BYTES = 159,
    LEVEL_BYTES = 31
};

/* clang-format off */
const struct schema profile_head_schema = {"profile", {
    {"oato_profile", AT(profile, version), FIELD_I32, 0, REQUIRED},
    {"tool", AT(profile, tool), FIELD_TEXT, NAME_BYTES, OPTIONAL},
    {"date", AT(profile, date), FIELD_TEXT, NAME_BYTES, OPTIONAL},
    {"notes", AT(profile, notes), FIELD_TEXT, NOTES_BYTES, OPTIONAL},
    {"unfinished", AT(profile, unfinished), FIELD_TEXT, NAME_BYTES, IF_SET},
}, 5};

const struct schema profile_machine_schema = {"machine", {
    {"cpu", AT(profile_machine, cpu), FIELD_TEXT, NAME_BYTES, OPTIONAL},
    {"isa", AT(profile_machine, isa), FIELD_TEXT, NAME_BYTES, OPTIONAL},
    {"kernel_isa", AT(profile_machine, kernel_isa), FIELD_TEXT, NAME_BYTES, OPTIONAL},
    {"sockets", AT(profile_machine, sockets), FIELD_I32, 0, OPTIONAL},
    {"cores", AT(profile_machine, cores), FIELD_I32, 0, OPTIONAL},
    {"threads", AT(profile_machine, threads), FIELD_I32, 0, OPTIONAL},
    {"numa_nodes", AT(profile_machine, numa_nodes), FIELD_I32, 0, OPTIONAL},
    {"memory_bytes", AT(profile_machine, memory_bytes), FIELD_U64, 0, OPTIONAL},
    {"l1d_bytes", AT(profile_machine, l1d_bytes), FIELD_U64, 0, OPTIONAL},
    {"l2_bytes", AT(profile_machine, l2_bytes), FIELD_U64, 0, OPTIONAL},
    {"l3_bytes", AT(profile_machine, l3_bytes), FIELD_U64, 0, OPTIONAL},
}, 11};

/* Lengths as in struct plan_device, where these strings end up. */
const struct schema profile_device_schema = {"device", {
    {"id", AT(profile_device, id), FIELD_TEXT, 15, REQUIRED},
    {"kind", AT(profile_device, kind), FIELD_TEXT, 15, REQUIRED},
    {"model", AT(profile_device, model), FIELD_TEXT, MODEL_BYTES, OPTIONAL},
    {"spec", AT(profile_device, spec), FIELD_TEXT, SPEC_BYTES, OPTIONAL},
    {"isa", AT(profile_device, isa), FIELD_TEXT, LEVEL_BYTES, IF_SET},
    {"layout", AT(profile_device, layout), FIELD_TEXT, LEVEL_BYTES, IF_SET},
    {"memory_bytes", AT(profile_device, memory_bytes), FIELD_U64, 0, REQUIRED},
    {"free_bytes", AT(profile_device, free_bytes), FIELD_U64, 0, REQUIRED},
    {"threads", AT(profile_device, threads), FIELD_I32, 0, OPTIONAL},
    {"is_host", AT(profile_device, is_host), FIELD_BOOL, 0, REQUIRED},
    {"read_bytes_per_s", AT(profile_device, read_bytes_per_s), FIELD_F64, 0, OPTIONAL},
    {"flops_per_s", AT(profile_device, flops_per_s), FIELD_F64, 0, OPTIONAL},
    {"record_overhead_ns", AT(profile_device, record_overhead_ns), FIELD_F64, 0, OPTIONAL},
    {"step_overhead_ns", AT(profile_device, step_overhead_ns), FIELD_F64, 0, OPTIONAL},
    {"rows_overhead", AT(profile_device, rows_overhead), FIELD_F64, 0, OPTIONAL},
    {"launch_ns", AT(profile_device, launch_ns), FIELD_F64, 0, IF_SET},
    {"spans", AT(profile_device, spans), FIELD_BOOL, 0, IF_SET},
    {"rows", AT(profile_device, rows), FIELD_ROWS, 0, IF_SET},
    {"unit_overhead_ns", AT(profile_device, unit_overhead_ns), FIELD_F64, 0, IF_SET},
    {"compile_s", AT(profile_device, compile_s), FIELD_F64, 0, IF_SET},
    {"compile_cached", AT(profile_device, compile_cached), FIELD_BOOL, 0, IF_SET},
    {"library_bytes", AT(profile_device, library_bytes), FIELD_U64, 0, IF_SET},
    {"data_sheet", AT(profile_device, data_sheet), FIELD_BOOL, 0, IF_SET},
    {"refills", AT(profile_device, refills), FIELD_BOOL, 0, IF_SET},
    {"keeps", AT(profile_device, keeps), FIELD_BOOL, 0, IF_SET},
    {"contradicts", AT(profile_device, contradicts), FIELD_BOOL, 0, IF_SET},
    {"join_norm_ns", AT(profile_device, join_ns[JOIN_NORM]), FIELD_F64, 0, IF_SET},
    {"join_attention_ns", AT(profile_device, join_ns[JOIN_ATTENTION]), FIELD_F64, 0, IF_SET},
    {"join_add_ns", AT(profile_device, join_ns[JOIN_ADD]), FIELD_F64, 0, IF_SET},
    {"join_rope_store_ns", AT(profile_device, join_ns[JOIN_ROPE_STORE]), FIELD_F64, 0, IF_SET},
}, 26 + JOIN_COUNT};

const struct schema profile_link_schema = {"link", {
    {"from", AT(link_text, from), FIELD_CHARS, SIZE(link_text, from), REQUIRED},
    {"to", AT(link_text, to), FIELD_CHARS, SIZE(link_text, to), REQUIRED},
    {"latency_ns", AT(link_text, link.latency_ns), FIELD_F64, 0, REQUIRED},
    {"bytes_per_s", AT(link_text, link.bytes_per_s), FIELD_F64, 0, REQUIRED},
    {"sync_ns", AT(link_text, link.sync_ns), FIELD_F64, 0, OPTIONAL},
    {"pageable_latency_ns", AT(link_text, link.pageable_latency_ns), FIELD_F64, 0, WITH_NEXT},
    {"pageable_bytes_per_s", AT(link_text, link.pageable_bytes_per_s), FIELD_F64, 0, IF_SET},
    {"both_bytes_per_s", AT(link_text, link.both_bytes_per_s), FIELD_F64, 0, IF_SET},
    {"stream_bytes_per_s", AT(link_text, link.stream_bytes_per_s), FIELD_F64, 0, IF_SET},
}, 9};

const struct schema profile_runs_schema = {"supports", {
    {"device", AT(runs_text, device), FIELD_CHARS, SIZE(runs_text, device), REQUIRED},
    {"kind", AT(runs_text, kind), FIELD_CHARS, SIZE(runs_text, kind), REQUIRED},
    {"types", AT(runs_text, types), FIELD_TEXT, NAME_BYTES, IF_SET},
    {"values", AT(runs_text, values), FIELD_TEXT, NAME_BYTES, IF_SET},
    {"workspace_bytes", AT(runs_text, workspace.bytes), FIELD_F64, 0, IF_SET},
    {"workspace_per_input", AT(runs_text, workspace.per_input), FIELD_F64, 0, IF_SET},
    {"workspace_per_output", AT(runs_text, workspace.per_output), FIELD_F64, 0, IF_SET},
    {"workspace_per_partial", AT(runs_text, workspace.per_partial), FIELD_F64, 0, IF_SET},
}, 8};

const struct schema profile_row_schema = {"operator", {
    {"device", AT(row_text, device), FIELD_CHARS, SIZE(row_text, device), REQUIRED},
    {"op", AT(row_text, op), FIELD_CHARS, SIZE(row_text, op), REQUIRED},
    {"supported", AT(row_text, row.supported), FIELD_BOOL, 0, LAST_UNLESS_SET},
    {"median_ns", AT(row_text, row.median_ns), FIELD_F64, 0, REQUIRED},
    {"p10_ns", AT(row_text, row.p10_ns), FIELD_F64, 0, OPTIONAL},
    {"p90_ns", AT(row_text, row.p90_ns), FIELD_F64, 0, OPTIONAL},
    {"repeats", AT(row_text, row.repeats), FIELD_I32, 0, OPTIONAL},
    {"prepared_bytes", AT(row_text, row.prepared_bytes), FIELD_U64, 0, REQUIRED},
    {"workspace_bytes", AT(row_text, row.workspace_bytes), FIELD_U64, 0, REQUIRED},
    {"numerics", AT(row_text, numerics), FIELD_CHARS, SIZE(row_text, numerics), REQUIRED},
    {"disturbed", AT(row_text, row.disturbed), FIELD_BOOL, 0, IF_SET},
    {"own_ns", AT(row_text, row.own_ns), FIELD_F64, 0, IF_SET},
    {"contradicts", AT(row_text, row.contradicts), FIELD_BOOL, 0, IF_SET},
}, 13};

const struct schema profile_restore_schema = {"restore", {
    {"model", AT(profile_restore, model), FIELD_U64, 0, REQUIRED},
    {"devices", AT(profile_restore, devices), FIELD_TEXT, NAME_BYTES, REQUIRED},
    {"tokens", AT(profile_restore, tokens), FIELD_I32, 0, REQUIRED},
    {"beside", AT(profile_restore, beside), FIELD_I32, 0, OPTIONAL},
    {"bytes", AT(profile_restore, bytes), FIELD_U64, 0, OPTIONAL},
    {"extents", AT(profile_restore, extents), FIELD_I32, 0, OPTIONAL},
    {"median_ns", AT(profile_restore, median_ns), FIELD_F64, 0, REQUIRED},
}, 7};

const struct schema profile_storage_schema = {"storage", {
    {"depth", AT(profile_storage, depth), FIELD_I32, 0, REQUIRED},
    {"bytes", AT(profile_storage, bytes), FIELD_U64, 0, REQUIRED},
    {"direct", AT(profile_storage, direct), FIELD_BOOL, 0, OPTIONAL},
    {"bytes_per_s", AT(profile_storage, bytes_per_s), FIELD_F64, 0, REQUIRED},
    {"p10_bytes_per_s", AT(profile_storage, p10_bytes_per_s), FIELD_F64, 0, OPTIONAL},
    {"p90_bytes_per_s", AT(profile_storage, p90_bytes_per_s), FIELD_F64, 0, OPTIONAL},
    {"passes", AT(profile_storage, passes), FIELD_I32, 0, OPTIONAL},
    {"latency_ns", AT(profile_storage, latency_ns), FIELD_F64, 0, OPTIONAL},
    {"contradicts", AT(profile_storage, contradicts), FIELD_BOOL, 0, IF_SET},
}, 9};

const struct schema profile_sum_schema = {"sum", {
    {"ranks", AT(sum_text, row.ranks), FIELD_I32, 0, REQUIRED},
    {"hosts", AT(sum_text, row.hosts), FIELD_I32, 0, REQUIRED},
    {"by", AT(sum_text, by), FIELD_CHARS, SIZE(sum_text, by), REQUIRED},
    {"wire", AT(sum_text, wire), FIELD_CHARS, SIZE(sum_text, wire), REQUIRED},
    {"bytes", AT(sum_text, row.bytes), FIELD_U64, 0, REQUIRED},
    {"median_ns", AT(sum_text, row.median_ns), FIELD_F64, 0, REQUIRED},
}, 6};
/* clang-format on */

bool rows_rise(const int32_t rows[DEVICE_ROWS])
{
    bool rise = true;
    for (int i = 0; i < DEVICE_ROWS; i++)
        rise = rise && (i && rows[i] ? rows[i] > rows[i - 1] && rows[i - 1] > 0 : rows[i] >= 0);
    return rise;
}

bool field_is_set(const struct field *f, const void *base)
{
    const void *at = (const char *)base + f->offset;
    if (f->type == FIELD_TEXT)
        return *or_empty(*(const char *const *)at);
    if (f->type == FIELD_ROWS)
        return *(const int32_t *)at > 0;
    return f->type == FIELD_BOOL ? *(const bool *)at : *(const double *)at > 0;
}

int schema_fields(const struct schema *schema, const void *base)
{
    for (int i = 0; i < schema->n; i++)
        if (schema->field[i].presence == LAST_UNLESS_SET && !field_is_set(&schema->field[i], base))
            return i + 1;
    return schema->n;
}

bool is_stand_in(const char *device_model)
{
    static const char words[] = "stand-in for ";
    return !strncmp(or_empty(device_model), words, sizeof words - 1);
}

bool profile_may_have(const char *device_model)
{
    return !is_stand_in(device_model) || !strcmp(or_empty(getenv("OATO_STAND_IN")), "1");
}

bool profile_device_id_ok(const char *id, const char *kind)
{
    size_t n = strlen(kind), len = strlen(id);
    if (!n || len > 15 || len < n + 2 || strncmp(id, kind, n) != 0 || id[n] != ':')
        return false;
    for (const char *c = kind; *c; c++)
        if (!(*c >= 'a' && *c <= 'z') && !(*c >= '0' && *c <= '9') && *c != '_')
            return false;
    return strspn(id + n + 1, "0123456789") == len - n - 1;
}
