/*
 * gguf_internal.h - what the GGUF files of this room share: the parsed header of one file and the
 * handle over all files of a model. Parsing (gguf_parse.c) knows one file, gguf.c joins split
 * files and answers lookups, gguf_hash.c gives the model's identity, gguf_writer.c writes.
 */
#ifndef OATO_GGUF_INTERNAL_H
#define OATO_GGUF_INTERNAL_H

#include "models/models.h"

#define GGUF_KEY_ALIGNMENT    "general.alignment"
#define GGUF_KEY_ARCHITECTURE "general.architecture"
#define GGUF_KEY_HEADER_ONLY  "oato.header_only"
#define GGUF_POWERINFER       "PWRI" /* in place of GGUF at the start of PowerInfer's files */
#define GGUF_KEY_SPLIT_NO     "split.no"
#define GGUF_KEY_SPLIT_COUNT  "split.count"
#define GGUF_KEY_SPLIT_TOTAL  "split.tensors.count"

enum {
    GGUF_VERSION_WRITTEN = 3,
    GGUF_DEFAULT_ALIGNMENT = 32,
    GGUF_MIN_ALIGNMENT = 8, /* the specification asks for a multiple of 8 */
    GGUF_MAX_ALIGNMENT = 1 << 30,
    GGUF_MAX_KEY = 65535,
};

struct gguf_kv {
    const char *key; /* the first member, as of a tensor its name: see name_index */
    struct gguf_value value;
    struct gguf_string one; /* what value.strings points at for a STRING */
};

/* One file, parsed. Everything is in the arena or in the file itself. */
struct gguf_header {
    struct gguf_kv *kv;
    const struct gguf_kv **kv_by_key;
    size_t n_kv;
    struct gguf_tensor *tensors;
    size_t n_tensors;
    bool header_only;
};

struct gguf_part {
    struct gguf_part *next;
    struct mapped_file file;
    bool mapped; /* by us; else the caller's memory */
    struct gguf_header header;
};

struct gguf {
    struct arena arena;
    const char *path;
    bool head; /* files may end behind their headers */
    struct gguf_part named;          /* the file given by the caller */
    struct gguf_part *parts;         /* all files, in order of split.no */
    const struct gguf_header *first; /* of part 0, whose metadata is the model's */
    struct gguf_tensor *tensors;
    const struct gguf_tensor **by_name;
    size_t n_tensors;
    uint64_t data_bytes;
    _Atomic uint64_t content_hash; /* 0: not computed yet */
};

/* Reads the header of file, which must stay mapped; error messages lack the file name. needs: the
 * file may end anywhere behind its header, and tensors have no data; when it ends before, *needs
 * becomes the bytes that it has at least, else it stays as it is. NULL: the file must be whole. */
oato_status gguf_parse(const struct mapped_file *file, struct arena *arena, struct gguf_header *out,
                       uint64_t *needs, struct oato_error *err);
/* Pointers to n structures of `size` bytes, in order of their names, which are their first members.
 * NULL when two are alike ("duplicate key 'a'") or memory is short. */
void *name_index(struct arena *arena, const void *items, size_t n, size_t size, const char *what,
                 struct oato_error *err);
/* The structure with that name; NULL: none. */
const void *name_find(const void *index, size_t n, const char *name);
/* NULL when the key is missing. */
const struct gguf_value *gguf_header_find(const struct gguf_header *h, const char *key);

/* Bytes of a scalar type; 0 for STRING, ARRAY and unknown types. */
size_t gguf_scalar_bytes(uint32_t type);
bool gguf_alignment_ok(uint64_t alignment);
/* Bytes of a tensor's data; false when dtype, n_dims or a dimension is out of range, rows are not
 * whole blocks, or the size overflows. */
bool gguf_tensor_bytes(oato_dtype dtype, int32_t n_dims, const int64_t *ne, size_t *out);
/* name made safe for a message: printable ASCII, at most GGUF_MAX_NAME bytes. */
struct gguf_shown {
    char text[GGUF_MAX_NAME + 4];
};
struct gguf_shown gguf_show(const char *name, size_t n);

#endif
