/*
 * profile_schema.c - the keys of the profile file, in the order in which they are written: one row
 * per key, with the offset of its value. Reader and writer both use these tables, so a new key is
 * one row here and one line in docs/profile-format.md.
 */
#include "planfmt/planfmt_internal.h"

#include <string.h>

#define AT(type, member)   offsetof(struct type, member)
#define SIZE(type, member) sizeof(((struct type *)0)->member)

enum { NAME_BYTES = 255, NOTES_BYTES = 65535, MODEL_BYTES = 95, SPEC_BYTES = 159 };

/* clang-format off */
const struct schema profile_head_schema = {"profile", {
    {"oato_profile", AT(profile, version), FIELD_I32, 0, true},
    {"tool", AT(profile, tool), FIELD_TEXT, NAME_BYTES, false},
    {"date", AT(profile, date), FIELD_TEXT, NAME_BYTES, false},
    {"notes", AT(profile, notes), FIELD_TEXT, NOTES_BYTES, false},
}, 4};

const struct schema profile_machine_schema = {"machine", {
    {"cpu", AT(profile_machine, cpu), FIELD_TEXT, NAME_BYTES, false},
    {"isa", AT(profile_machine, isa), FIELD_TEXT, NAME_BYTES, false},
    {"kernel_isa", AT(profile_machine, kernel_isa), FIELD_TEXT, NAME_BYTES, false},
    {"sockets", AT(profile_machine, sockets), FIELD_I32, 0, false},
    {"cores", AT(profile_machine, cores), FIELD_I32, 0, false},
    {"threads", AT(profile_machine, threads), FIELD_I32, 0, false},
    {"numa_nodes", AT(profile_machine, numa_nodes), FIELD_I32, 0, false},
    {"memory_bytes", AT(profile_machine, memory_bytes), FIELD_U64, 0, false},
    {"l1d_bytes", AT(profile_machine, l1d_bytes), FIELD_U64, 0, false},
    {"l2_bytes", AT(profile_machine, l2_bytes), FIELD_U64, 0, false},
    {"l3_bytes", AT(profile_machine, l3_bytes), FIELD_U64, 0, false},
}, 11};

/* Lengths as in struct plan_device, where these strings end up. */
const struct schema profile_device_schema = {"device", {
    {"id", AT(profile_device, id), FIELD_TEXT, 15, true},
    {"kind", AT(profile_device, kind), FIELD_TEXT, 7, true},
    {"model", AT(profile_device, model), FIELD_TEXT, MODEL_BYTES, false},
    {"spec", AT(profile_device, spec), FIELD_TEXT, SPEC_BYTES, false},
    {"memory_bytes", AT(profile_device, memory_bytes), FIELD_U64, 0, true},
    {"free_bytes", AT(profile_device, free_bytes), FIELD_U64, 0, true},
    {"threads", AT(profile_device, threads), FIELD_I32, 0, false},
    {"is_host", AT(profile_device, is_host), FIELD_BOOL, 0, true},
    {"read_bytes_per_s", AT(profile_device, read_bytes_per_s), FIELD_F64, 0, false},
    {"flops_per_s", AT(profile_device, flops_per_s), FIELD_F64, 0, false},
    {"record_overhead_ns", AT(profile_device, record_overhead_ns), FIELD_F64, 0, false},
    {"step_overhead_ns", AT(profile_device, step_overhead_ns), FIELD_F64, 0, false},
    {"rows_overhead", AT(profile_device, rows_overhead), FIELD_F64, 0, false},
    {"launch_ns", AT(profile_device, launch_ns), FIELD_F64, 0, false},
    {"data_sheet", AT(profile_device, data_sheet), FIELD_BOOL, 0, false},
    {"join_norm_ns", AT(profile_device, join_ns[JOIN_NORM]), FIELD_F64, 0, false},
    {"join_attention_ns", AT(profile_device, join_ns[JOIN_ATTENTION]), FIELD_F64, 0, false},
    {"join_add_ns", AT(profile_device, join_ns[JOIN_ADD]), FIELD_F64, 0, false},
    {"join_rope_store_ns", AT(profile_device, join_ns[JOIN_ROPE_STORE]), FIELD_F64, 0, false},
}, 15 + JOIN_COUNT};

const struct schema profile_link_schema = {"link", {
    {"from", AT(link_text, from), FIELD_CHARS, SIZE(link_text, from), true},
    {"to", AT(link_text, to), FIELD_CHARS, SIZE(link_text, to), true},
    {"latency_ns", AT(link_text, link.latency_ns), FIELD_F64, 0, true},
    {"bytes_per_s", AT(link_text, link.bytes_per_s), FIELD_F64, 0, true},
    {"sync_ns", AT(link_text, link.sync_ns), FIELD_F64, 0, false},
    {"pageable_latency_ns", AT(link_text, link.pageable_latency_ns), FIELD_F64, 0, false},
    {"pageable_bytes_per_s", AT(link_text, link.pageable_bytes_per_s), FIELD_F64, 0, false},
    {"both_bytes_per_s", AT(link_text, link.both_bytes_per_s), FIELD_F64, 0, false},
    {"stream_bytes_per_s", AT(link_text, link.stream_bytes_per_s), FIELD_F64, 0, false},
}, 9};

/* The reader asks for the required ones from ROW_MEDIAN on only of supported rows. */
const struct schema profile_row_schema = {"operator", {
    {"device", AT(row_text, device), FIELD_CHARS, SIZE(row_text, device), true},
    {"op", AT(row_text, op), FIELD_CHARS, SIZE(row_text, op), true},
    {"supported", AT(row_text, supported), FIELD_BOOL, 0, false},
    {"median_ns", AT(row_text, median_ns), FIELD_F64, 0, true},
    {"p10_ns", AT(row_text, p10_ns), FIELD_F64, 0, false},
    {"p90_ns", AT(row_text, p90_ns), FIELD_F64, 0, false},
    {"repeats", AT(row_text, repeats), FIELD_I32, 0, false},
    {"prepared_bytes", AT(row_text, prepared_bytes), FIELD_U64, 0, true},
    {"workspace_bytes", AT(row_text, workspace_bytes), FIELD_U64, 0, true},
    {"numerics", AT(row_text, numerics), FIELD_CHARS, SIZE(row_text, numerics), true},
    {"disturbed", AT(row_text, disturbed), FIELD_BOOL, 0, false},
}, 11};
/* clang-format on */

bool profile_device_id_ok(const char *id, const char *kind)
{
    size_t n = strlen(kind), len = strlen(id);
    if (!n || n > 7 || len > 15 || len < n + 2 || strncmp(id, kind, n) != 0 || id[n] != ':')
        return false;
    for (const char *c = kind; *c; c++)
        if (!(*c >= 'a' && *c <= 'z') && !(*c >= '0' && *c <= '9') && *c != '_')
            return false;
    return strspn(id + n + 1, "0123456789") == len - n - 1;
}
