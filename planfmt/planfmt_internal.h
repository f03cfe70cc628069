/*
 * planfmt_internal.h - what the files of this room share: the schema of the profile, used by
 * both reader and writer, and the checks of a plan, used by both encoding and decoding.
 */
#ifndef OATO_PLANFMT_INTERNAL_H
#define OATO_PLANFMT_INTERNAL_H

#include "planfmt/planfmt.h"

/* ----------------------------------------------------------------------------- profile ---- */

enum field_type {
    FIELD_TEXT,  /* const char *, at most `size` bytes */
    FIELD_CHARS, /* char[size] */
    FIELD_I32,
    FIELD_U64,
    FIELD_F64,
    FIELD_BOOL,
    FIELD_ROWS, /* int32_t[DEVICE_ROWS], a list of rising numbers; 0 ends it */
};

/* Whether a key is there. All but REQUIRED ones may be missing in a file. */
enum field_presence {
    REQUIRED,
    OPTIONAL,        /* always written */
    IF_SET,          /* a number above 0, true, a text that is not empty */
    LAST_UNLESS_SET, /* false: the last key; true: not written, as readers take it for granted */
    WITH_NEXT,       /* as the next key, which is IF_SET */
};

/* One key of a mapping, and where its value is in the structure of the mapping. */
struct field {
    const char *name;
    size_t offset;
    enum field_type type;
    uint32_t size;
    enum field_presence presence;
};

/* Mappings that name devices and operators by text, unlike the structures of planfmt.h. */
struct link_text {
    char from[16], to[16];
    struct profile_link link; /* without its devices */
};

struct row_text {
    char device[16], op[OP_KEY_SIZE], numerics[32];
    struct profile_row row; /* without these */
};

struct runs_text {
    char device[16], kind[24];
    const char *types;  /* "F32 F16"; "" of kinds without a type */
    const char *values; /* "F16 F16 > F16"; "" where all are F32 */
    struct profile_workspace workspace;
};

struct sum_text {
    char by[16], wire[8];
    struct profile_sum row; /* without these */
};

enum {
    FIELDS_MAX = 30,
    PROFILE_DEVICES_MAX = 64,
    PROFILE_RESTORES_MAX = 65536,
    PROFILE_STORAGE_MAX = 64,
    PROFILE_SUMS_MAX = 4096
};

struct schema {
    const char *what; /* for messages: "device" */
    struct field field[FIELDS_MAX];
    int n;
};

extern const struct schema profile_head_schema, profile_machine_schema, profile_device_schema,
    profile_link_schema, profile_runs_schema, profile_row_schema, profile_restore_schema,
    profile_storage_schema, profile_sum_schema;
/* Indices in the schemas. */
enum { DEVICE_ID };
enum { LINK_FROM, LINK_TO, LINK_LATENCY, LINK_RATE };
enum { ROW_DEVICE, ROW_OP };
enum { RUNS_DEVICE, RUNS_KIND, RUNS_TYPES, RUNS_VALUES };

/* Whether the field, a bool, double or text, is true, above 0 or not empty in the structure. */
/* Whether the numbers of a FIELD_ROWS rise from above 0 up to the 0 that ends them. */
bool rows_rise(const int32_t rows[DEVICE_ROWS]);
bool field_is_set(const struct field *f, const void *base);
/* How many of the fields that structure has: those up to a LAST_UNLESS_SET that is not, or all. */
int schema_fields(const struct schema *schema, const void *base);

/* True when id is "kind:number" with at most 15 bytes. */
bool profile_device_id_ok(const char *id, const char *kind);

/* Adds the row. A row with the same key sets *existed and is replaced only if `replace`. */
bool profile_add(struct profile *p, const struct profile_row *row, bool replace, bool *existed);

/* Appends a copy; its text is the profile's already. False: memory is short. */
bool profile_add_restore(struct profile *p, const struct profile_restore *r);

/* profile_runs.c: the types that a device runs of a kind as text, "F32 F16", and back; kinds
 * without a type have "". */
void runs_text_write(int kind, uint64_t types, struct text *out);
/* False: bad has the first word that is none of the kind's types, or is there twice; "": types are
 * missing. */
bool runs_text_read(int kind, const char *text, uint64_t *types, char bad[24]);

/* The types of a kind's inputs, ">", those of its outputs; the last ones that are F32 are left out,
 * "" is none but these. */
void values_text_write(const struct value_types *v, struct text *out);
bool values_text_read(const char *text, struct value_types *v);

/* Texts of a row of sums to its way and type, and back. False: the row cannot be. */
bool sum_text_read(struct sum_text *t);
bool sum_text_write(struct sum_text *t);

/* Appends what profile_save writes to *out, whose contents are undefined after a failure. */
oato_status profile_print(const struct profile *p, struct text *out, struct oato_error *err);

/* ----------------------------------------------------------------------------- neurons ---- */

/* neurons_magnitudes.c: takes a tensor "NAME_quantiles" or "NAME_counts" over, whose layer is at
 * most `layers`; others are skipped. The array has room for one of each tensor of the file. */
oato_status magnitudes_read(struct neurons *n, const struct gguf_tensor *t, int64_t layers,
                            struct oato_error *err);
oato_status magnitudes_check(const struct neurons *n, oato_status status, struct oato_error *err);
/* neurons_predictors.c: the names of a predictor's tensors, "blk.N.NAME". */
enum predictor_part { PREDICT_DOWN, PREDICT_UP, PREDICT_BIAS, PREDICT_PARTS };
extern const char *const predictor_part_name[PREDICT_PARTS];
/* Takes a tensor of a predictor over, others are skipped. */
oato_status predictors_read(struct neurons *n, const struct gguf_tensor *t, struct oato_error *err);
/* Reads their recall, predicted and active; value: three numbers for each layer. NULL: none. */
oato_status predictors_read_verdicts(struct neurons *n, const struct gguf_value *value,
                                     struct oato_error *err);
oato_status predictors_check(const struct neurons *n, oato_status status, struct oato_error *err);
/* OATO_EFILE when a predictor does not have the model's shapes. */
oato_status predictors_check_model(const struct neurons *n, const struct gguf *g,
                                   struct oato_error *err);
/* OATO_EFILE unless the file's general.architecture is `architecture`; what: "a neurons sidecar".
 */
oato_status neurons_check_kind(const struct gguf *g, const char *what, const char *architecture,
                               struct oato_error *err);
oato_status neurons_read_u64(const struct gguf *g, const char *key, uint64_t *out,
                             struct oato_error *err);

/* -------------------------------------------------------------------------------- plan ---- */

/* Checks all ranges and indices in the plan; `status` is returned when a check fails. */
oato_status plan_validate(const struct plan *p, oato_status status, struct oato_error *err);
/* plan_caches.c: checks the caches of experts against the fused graph. */
oato_status plan_check_caches(const struct plan *p, const struct graph *g, struct oato_error *err);

/* The layout of docs/plan-format.md. */
enum {
    PLAN_FORMAT = 1,
    PLAN_HEADER_BYTES = 64,
    PLAN_ENTRY_BYTES = 40,
    PLAN_SECTION_ALIGN = 8,
    PLAN_SECTIONS_MAX = 256,
    PLAN_FLAG_REQUIRED = 1,
};

enum section_id {
    SEC_STRINGS = 1,
    SEC_IDENTITY,
    SEC_DEVICES,
    SEC_PARTS,
    SEC_KV,
    SEC_FUSIONS,
    SEC_REQUEST,
    SEC_COSTS,
    SEC_BASELINES,
    SEC_SUMMARY,
    SEC_NEURONS,
    SEC_CACHES,
    SEC_SPARSE,
    SEC_INPUTS,
    SEC_SUMS,
    SEC_KERNELS,
    SEC_POINTS,
    SEC_CHOICES,
    SEC_ALTERNATIVES,
    SEC_END
};

enum plan_field_type {
    PLAN_TEXT,  /* const char *; in the file the offset of a string */
    PLAN_CHARS, /* char[size]; in the file the offset of a string */
    PLAN_U32,   /* int32_t, uint32_t, an enumeration or a float */
    PLAN_U64,   /* 8 bytes, signed or not */
    PLAN_BOOL,  /* 4 bytes in the file */
    PLAN_ZERO,  /* 4 reserved bytes; not in memory */
};

/* One field of a record, in the order of the file, and where it is in the structure. */
struct plan_field {
    enum plan_field_type type;
    size_t offset, size;
};

struct section_kind {
    const char *name;
    uint32_t flags, record_bytes;
    bool one;     /* exactly one record, whose structure is struct plan itself */
    bool missing; /* absent when empty, even if required */
    const struct plan_field *fields;
    uint32_t n_fields;
    /* Not `one`: bytes of a structure, and where in struct plan the array and its length are. */
    size_t size, array, length;
    int32_t most; /* not 0: the array is in struct plan itself, with room for so many */
};

extern const char plan_magic[8];
extern const struct section_kind section_kind[SEC_END]; /* by id */

#endif
