/*
 * models.h - what a model is: a GGUF file, its metadata and tensors, and the operator graph that
 * its architecture builds. Knows no device.
 *
 * Start with model_open; gguf_open serves tools that need only a part. What turns text into tokens
 * and back is in text/.
 */
#ifndef OATO_MODELS_H
#define OATO_MODELS_H

#include "base/base.h"
#include "kernels/op.h"

#include <string.h>

/* ------------------------------------------------------------------------------- GGUF ----- */

enum { GGUF_MAX_DIMS = 4, GGUF_MAX_NAME = 63 };

/* The numbers are GGUF's value types. */
enum gguf_type {
    GGUF_U8,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_F32,
    GGUF_BOOL,
    GGUF_STRING,
    GGUF_ARRAY,
    GGUF_U64,
    GGUF_I64,
    GGUF_F64,
    GGUF_TYPE_COUNT
};

struct gguf_string {
    const char *data; /* not zero-terminated */
    size_t len;
};
static inline bool gguf_string_is(struct gguf_string s, const char *what)
{
    return s.len == strlen(what) && memcmp(s.data, what, s.len) == 0;
}
/* Whether `what` is anywhere in it. */
bool gguf_string_has(struct gguf_string s, const char *what);

struct gguf_value {
    enum gguf_type type;
    enum gguf_type elem;               /* of an array */
    uint64_t count;                    /* of an array; 1 otherwise */
    const uint8_t *data;               /* raw little-endian scalars; for strings see gguf_str */
    const struct gguf_string *strings; /* STRING: one; ARRAY of STRING: count */
};

struct gguf_tensor {
    const char *name;
    oato_dtype dtype;
    int32_t n_dims;
    int64_t ne[GGUF_MAX_DIMS]; /* ne[0] is the row length; 1 beyond n_dims */
    const uint8_t *data;       /* NULL in a header-only file */
    size_t bytes;
    const struct mapped_file *file; /* the (split) file that data lies in */
};

struct gguf; /* an open file, or all files of a split model */

/* Opens and checks everything (sizes, offsets, alignment, duplicates, types). path may be any
 * file of a split model; the others are looked for in the same folder. A file whose metadata
 * has oato.header_only = true has no data. */
oato_status gguf_open(const char *path, struct gguf **out, struct oato_error *err);
/* The same from memory that outlives the handle, for tests and fuzzing (no split files); name
 * appears in messages. */
oato_status gguf_open_memory(const void *data, size_t bytes, const char *name, struct gguf **out,
                             struct oato_error *err);
void gguf_close(struct gguf *g);

/* The beginning of a download is a header as soon as all keys and descriptions of tensors are
 * there. *needs becomes 0 if these bytes of a file, or of a part of a split model, are that much;
 * else the bytes that it needs at least, more than these: fetch them and ask again. OATO_EFILE:
 * what is there is damaged, or the header would be larger than any. */
enum { GGUF_HEAD_MOST = 256 << 20 };
oato_status gguf_head_needs(const void *data, size_t bytes, const char *name, uint64_t *needs,
                            struct oato_error *err);
/* gguf_open and gguf_open_memory of files that may end anywhere behind their headers: no tensor
 * has data, as in a header-only file. Of a split model the beginning of each part must be there. */
oato_status gguf_open_head(const char *path, struct gguf **out, struct oato_error *err);
oato_status gguf_open_head_memory(const void *data, size_t bytes, const char *name,
                                  struct gguf **out, struct oato_error *err);

const char *gguf_path(const struct gguf *g);
/* PowerInfer's file, of magic PWRI: activations are ReLU, ffn_down_t may stand in place of
 * ffn_down; predictors of active neurons, fc1 and fc2, are left out of the graph. */
bool gguf_powerinfer(const struct gguf *g);
bool gguf_header_only(const struct gguf *g);
size_t gguf_kv_count(const struct gguf *g);
const char *gguf_kv_key(const struct gguf *g, size_t i);
const struct gguf_value *gguf_kv_value(const struct gguf *g, size_t i);
/* NULL when the key is missing. */
const struct gguf_value *gguf_find(const struct gguf *g, const char *key);
size_t gguf_tensor_count(const struct gguf *g);
/* In file order; all are one array, so that t - gguf_tensor_at(g, 0) is the index of t. */
const struct gguf_tensor *gguf_tensor_at(const struct gguf *g, size_t i);
const struct gguf_tensor *gguf_tensor(const struct gguf *g, const char *name); /* NULL: missing */
/* Bytes of all tensors' data. */
uint64_t gguf_data_bytes(const struct gguf *g);

/* Typed access with conversion between integer types; false when missing or of another type. */
bool gguf_get_i64(const struct gguf *g, const char *key, int64_t *out);
bool gguf_get_bool(const struct gguf *g, const char *key, bool *out);
bool gguf_get_string(const struct gguf *g, const char *key, struct gguf_string *out);
/* Element i of an array of numbers (or the scalar itself, whatever i). */
bool gguf_value_i64(const struct gguf_value *v, uint64_t i, int64_t *out);
bool gguf_value_f64(const struct gguf_value *v, uint64_t i, double *out); /* integers convert */
/* What a reader of a key wants of its value. Readers name all their keys in a table and have it
 * checked first, so that none is taken for missing because of its type. */
enum gguf_wanted {
    GGUF_WANT_INTEGER, /* of any width */
    GGUF_WANT_U32,
    GGUF_WANT_U64,
    GGUF_WANT_NUMBER, /* an integer, too */
    GGUF_WANT_BOOL,
    GGUF_WANT_STRING,
    GGUF_WANT_INTEGERS, /* these are arrays */
    GGUF_WANT_BYTES,
    GGUF_WANT_NUMBERS,
    GGUF_WANT_STRINGS,
};
struct gguf_key_type {
    const char *key;
    enum gguf_wanted wanted;
};
/* OATO_EFILE where one of the keys is there and of another type: "FILE: key K is a STRING, wanted
 * an integer". file "": the caller puts it in front. */
oato_status gguf_check_keys(const struct gguf *g, const char *file,
                            const struct gguf_key_type *rows, size_t n, struct oato_error *err);
oato_status gguf_value_check(const char *file, const char *key, const struct gguf_value *v,
                             enum gguf_wanted wanted, struct oato_error *err);
/* The message alone. */
oato_status gguf_mistyped(const char *file, const char *key, const struct gguf_value *v,
                          const char *wanted, struct oato_error *err);

/* Identity of the model (DESIGN, Plan): hash of the keys that give shapes and of the sorted tensor
 * names, types and shapes. Splitting the file or editing its chat template does not change it. */
uint64_t gguf_structure_hash(const struct gguf *g);
/* Hash of sampled tensor data: 4 KiB at the start, middle and end of every tensor, in order of
 * name. 0 for a header-only file. */
uint64_t gguf_content_hash(const struct gguf *g);

/* Writer: collects keys and tensors, then writes the whole file (temporary name, sync, rename). */
struct gguf_writer;
struct gguf_writer *gguf_writer_create(void); /* NULL when memory is short */
void gguf_writer_free(struct gguf_writer *w);
/* A failed allocation or a mistake (duplicate tensor, rows that are not whole blocks) is kept and
 * returned by gguf_writer_save. */
void gguf_writer_scalar(struct gguf_writer *w, const char *key, enum gguf_type type,
                        const void *value);
void gguf_writer_string(struct gguf_writer *w, const char *key, const char *value);
void gguf_writer_array(struct gguf_writer *w, const char *key, enum gguf_type elem,
                       const void *data, uint64_t count);
void gguf_writer_strings(struct gguf_writer *w, const char *key, const struct gguf_string *s,
                         uint64_t count);
/* data is borrowed until save; NULL (for all) makes a header-only file. */
void gguf_writer_tensor(struct gguf_writer *w, const char *name, oato_dtype dtype, int32_t n_dims,
                        const int64_t *ne, const void *data);
/* All keys of g (borrowed until save) except split.*, general.alignment and oato.header_only, which
 * belong to its files. Setting a key again replaces its value. */
void gguf_writer_copy_kv(struct gguf_writer *w, const struct gguf *g);
oato_status gguf_writer_save(struct gguf_writer *w, const char *path, struct oato_error *err);
/* Opens what gguf_writer_save would write, without writing it; `name` appears in messages. */
oato_status gguf_writer_open(struct gguf_writer *w, const char *name, struct gguf **out,
                             struct oato_error *err);
/* Writes a model as one header-only file: a few KiB that oato-plan accepts in place of the model.
 * The vocabulary, which is most of a header, is left out. */
oato_status gguf_save_header(const struct gguf *g, const char *path, struct oato_error *err);

/* -------------------------------------------------------------------------------- graph --- */

struct graph_value {
    int32_t width;
    int32_t rows;     /* enum row_class of kernels/program.h: 0 tokens, 1 rows with logits */
    int32_t producer; /* index of the operator */
};

enum { GRAPH_INPUTS = 3, GRAPH_OUTPUTS = 3, GRAPH_WEIGHTS = 6 };

struct graph_op {
    struct oato_op op;
    const char *name; /* stable: "blk.3.attn_q", "blk.3.attn_qkv", "output"; plans refer to it */
    int32_t layer;    /* -1 before the first, n_layers after the last */
    int32_t kv_layer; /* KV_STORE, ATTENTION: whose keys and values; `layer`, or an earlier one that
                         stores them for several; else -1 */
    int32_t n_in, n_out, n_weights;
    int32_t in[GRAPH_INPUTS], out[GRAPH_OUTPUTS];    /* values */
    const struct gguf_tensor *weight[GRAPH_WEIGHTS]; /* may hold NULL: absent optional weight */
    /* ROPE: takes the place of weight[0] where the context of a sequence may be longer than
     * beyond_context; NULL: nothing does */
    const struct gguf_tensor *beyond;
    int32_t beyond_context;
};

struct graph {
    struct arena arena;
    struct graph_op *ops; /* execution order */
    int32_t n_ops;
    struct graph_value *values;
    int32_t n_values;
    int32_t logits; /* the value that holds them */
    int32_t n_layers;
};

/* A match of op_fusions[fusion] whose first member is operator `first`. */
struct graph_match {
    int32_t fusion, first;
};
/* Finds every match, overlapping ones included, in order of first. Returns how many there are,
 * which may exceed max; only max are stored. */
int32_t graph_matches(const struct graph *g, struct graph_match *out, int32_t max);
/* The matches that `take` accepts (NULL: all), from left to right; a match that overlaps an
 * accepted one is skipped. out must have room for graph_matches(g, NULL, 0). Returns how many. */
typedef bool graph_match_fn(void *user, const struct graph *g, struct graph_match m);
int32_t graph_cover(const struct graph *g, graph_match_fn *take, void *user,
                    struct graph_match *out);
/* The join (kernels/op.h) that operator i completes with its neighbours from *first on, or
 * JOIN_NONE. Of one norm's products each completes one. */
enum op_join graph_join(const struct graph *g, int32_t i, int32_t *first);
/* The fused operator of a match; it keeps the name of the first member. */
struct graph_op graph_fused(const struct graph *g, struct graph_match m);
/* The graph with the given matches replaced by fused operators (a match that overlaps an earlier
 * one is an error). The result has its own arena and refers to the same tensors. */
oato_status graph_fuse(const struct graph *g, const struct graph_match *m, int32_t n,
                       struct graph *out, struct oato_error *err);
/* graph_fuse with the matches of graph_cover: how a model runs without a plan. */
oato_status graph_fuse_all(const struct graph *g, graph_match_fn *take, void *user,
                           struct graph *out, struct oato_error *err);
void graph_free(struct graph *g);
/* The size of an operator in a step: rows by the row class of its value. kv_positions: positions
 * that each token could attend to, summed; an operator with a window reads no more than that. */
struct op_size graph_op_size(const struct graph *g, int32_t op, int32_t tokens, int32_t rows,
                             int32_t seqs, int64_t kv_positions);
/* How often the value is read; the logits are once more. */
int32_t graph_readers(const struct graph *g, int32_t value);
/* Bytes of recurrent state of one sequence in all layers. */
uint64_t graph_state_bytes(const struct graph *g);
/* The widest window of a layer with KV; 0: none has one. */
int32_t graph_window(const struct graph *g);
/* Bytes of KV of one position in all layers. */
uint64_t graph_kv_bytes(const struct graph *g, oato_dtype kv);
/* A copy of op with the KV dtype set (KV_STORE, ATTENTION), others unchanged. */
struct oato_op graph_op_with_kv(const struct graph_op *op, oato_dtype kv);

/* -------------------------------------------------------------------------------- model --- */

struct model_shape {
    const char *architecture;
    int64_t context_length; /* trained with */
    int32_t positions_most; /* of a sequence: that have learned embeddings, or that attention which
                               is sparse beyond them reads all of; 0: no limit */
    int32_t n_layers, width, ffn_width, heads, kv_heads, head_dim, vocab;
    int32_t experts, experts_used; /* 0: none; with experts ffn_width is that of one */
};

struct model {
    struct gguf *gguf;
    struct model_shape shape;
    struct graph graph; /* unfused */
};

/* Opens the file, checks every tensor's shape against the architecture and builds the graph. The
 * tokenizer is made by tokenizer_create when it is needed (random test models have none). */
oato_status model_open(const char *path, struct model **out, struct oato_error *err);
/* What is asked for in place of what the file says; zeros ask for nothing. */
struct model_choice {
    /* The logits of the block that predicts one more token (multi-token prediction, key
     * nextn_predict_layers) in place of the model's own: those of a token are for the next one,
     * from the hidden state of the token before. OATO_EFILE when there is no such block. */
    bool mtp;
    /* The activation of its FFNs, a name for activation_parse; files say it by the string
     * A.feed_forward_activation or A.hidden_activation. OATO_EUSAGE when the name is unknown. */
    const char *ffn_activation;
};
oato_status model_open_as(const char *path, const struct model_choice *choice, struct model **out,
                          struct oato_error *err);
/* Takes ownership of the GGUF (closed on failure too). */
oato_status model_from_gguf(struct gguf *g, struct model **out, struct oato_error *err);
oato_status model_from_gguf_as(struct gguf *g, const struct model_choice *choice,
                               struct model **out, struct oato_error *err);
void model_close(struct model *m);

/* model_facts.c. Elements of all tensors; the type that most bytes of them are of. */
int64_t model_parameters(const struct model *m);
oato_dtype model_dtype(const struct model *m);
/* Whether it has a ranking head. OATO_EFILE: it has, but of a type or a shape that is not read. */
oato_status model_head(const struct model *m, bool *there, struct oato_error *err);
/* Its score of the last hidden state of a text: the share of the first of two classes, or the value
 * of the only one. */
double model_head_score(const struct model *m, const float *state);

/* ------------------------------------------------------------------------------- shapes --- */

enum { SHAPE_NAME = 32, SHAPE_KEYS = 1024 };

/* The types of the tensors of a file as llama-quantize makes it: "Q4_K_M". */
struct mix;

/* A model by its architecture and sizes: what can be planned for before its file is there. Fields
 * are those of a data file (models/shapes). */
struct shape_spec {
    char name[SHAPE_NAME]; /* of the data file: "llama-3.1-8b" */
    char title[64];        /* "Llama 3.1 8B" */
    char aliases[128];     /* words: further names */
    char architecture[24]; /* any that oato runs */
    char optional[128];    /* words: optional tensors with one in their name are made */
    char plain[64];        /* words: matrices that a mix leaves at its plain type */
    char keys[SHAPE_KEYS]; /* "KEY=VALUE ...", more keys of the architecture, or in place of those
                              that the sizes give; a number with a dot is a float32, a list has
                              commas, true is a bool, another word a string */
    char type[16];         /* of the file that most people take, a name for mix_find */
    int64_t layers, width, ffn, heads, kv_heads, vocab, context;
    int64_t head_dim;              /* 0: width / heads */
    int64_t experts, experts_used; /* of ffn neurons each */
    bool tied;                     /* the embedding is the output matrix too */
    oato_dtype least_v; /* of attention's values in a mix with fewer bits; F32: no such rule */
    oato_dtype dtype;   /* of all matrices when there is no mix */
    const struct mix *mix;
};

/* The data files that are compiled in, in order of their names; NULL beyond the last. */
const struct embedded_file *shape_file(size_t i);
/* The shape that a data file describes, its mix that of its type. OATO_EFILE names the line. */
oato_status shape_parse(const struct embedded_file *file, struct shape_spec *out,
                        struct oato_error *err);
/* "NAME[:TYPE]", in any case. OATO_EUSAGE when either is unknown; the message lists those there
 * are. */
oato_status shape_find(const char *text, struct shape_spec *out, struct oato_error *err);
/* NULL: no such mix. What llama-quantize calls Q8_0, F16 and the like are mixes, too. */
const struct mix *mix_find(const char *name);
const char *mix_name(const struct mix *m);
/* The number that llama.cpp's general.file_type has for the shape's mix, or dtype. */
uint32_t shape_file_type(const struct shape_spec *s);

/* The keys of a model of this shape; `name` becomes general.name. The tokenizer's are left out. */
void shape_put_keys(const struct shape_spec *s, const char *name, struct gguf_writer *w);
/* The tensors, without data, in the order of the graph; *out is in the arena. OATO_EUSAGE when the
 * architecture refuses the sizes. */
oato_status shape_tensors(const struct shape_spec *s, struct arena *arena, struct gguf_tensor **out,
                          size_t *n, struct oato_error *err);
/* A header-only file of this shape. */
oato_status shape_open(const struct shape_spec *s, struct gguf **out, struct oato_error *err);

/* ---------------------------------------------------------------------- made-up weights --- */

/* Fills bytes of whole blocks with values of about the given mean and standard deviation. The mean
 * counts for F32, F16 and BF16; other types have none. Every block is one that a quantiser could
 * have written: finite, ordinary scales, no -128 in Q8_0. */
void random_blocks_fill(oato_dtype dtype, void *data, size_t bytes, double mean, double deviation,
                        uint64_t seed);

#endif
