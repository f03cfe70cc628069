/*
 * models_internal.h - how an architecture builds its graph. The builder keeps the first error,
 * after which every call does nothing: an architecture reads like its equations and checks for
 * errors once, at the end.
 */
#ifndef OATO_MODELS_INTERNAL_H
#define OATO_MODELS_INTERNAL_H

#include "models/models.h"

/* A tensor of that name and shape that a file lacks; it stays valid while the graph is built. */
typedef const struct gguf_tensor *model_absent_fn(void *context, const char *name,
                                                  const int64_t ne[3], bool optional);

/* The block that predicts one more token: left out; in place of the output; or beside it, to list
 * the tensors of a file that has both. */
enum mtp { MTP_NONE, MTP_ALONE, MTP_BESIDE };

struct graph_builder {
    const struct gguf *gguf;
    enum mtp mtp;
    struct model_shape *shape; /* filled by the architecture */
    struct graph *graph;
    int32_t ops_cap, values_cap;
    const char *activation; /* asked for in place of the file's; NULL: none */
    bool *used;             /* by index in the file: tensors that the graph refers to */
    /* Of looped models: layers of a stack, and how often the first stack runs before the second one
     * does, 0: there is only one. 0, 0: each layer is a block of its own */
    int32_t stack, low_cycles;
    const char *ignored; /* words: optional tensors with a part that starts so are not there */
    /* When set, it is asked for tensors that the file lacks; NULL: they are missing. */
    model_absent_fn *absent;
    void *absent_context;
    struct oato_error *err;
};

/* Asks `absent` for the tensors of a model that has only keys, vocab_size among them. */
oato_status model_list_tensors(struct gguf *g, model_absent_fn *absent, void *context,
                               struct oato_error *err);

static inline bool build_failed(const struct graph_builder *b)
{
    return b->err->status != OATO_OK;
}

/* A tensor of a name that b->ignored has a word for. */
bool build_ignores(const struct graph_builder *b, const char *name);

/* The block of the file that has a layer's tensors. */
int32_t build_block(const struct graph_builder *b, int32_t layer);

/* The value of "ARCH.key"; NULL: there is none. */
const struct gguf_value *build_value(struct graph_builder *b, const char *key);
/* The same; the builder fails where it is of another type. */
const struct gguf_value *build_value_of(struct graph_builder *b, const char *key,
                                        enum gguf_wanted wanted);
/* Integer hyperparameter "ARCH.key" in [lo, hi] for a layer (an array has one entry per layer); a
 * missing key gives `otherwise`, or an error when that is negative. */
int32_t build_int(struct graph_builder *b, const char *key, int32_t layer, int64_t lo, int64_t hi,
                  int64_t otherwise);
float build_float(struct graph_builder *b, const char *key, double lo, double hi, double otherwise);
/* The same of a layer, where the key may be an array. */
float build_float_of(struct graph_builder *b, const char *key, int32_t layer, double lo, double hi,
                     double otherwise);
/* The same with a value for missing keys that may be negative; refuses a file without the key. */
float build_float_any(struct graph_builder *b, const char *key, double lo, double hi,
                      double otherwise);
void build_demand(struct graph_builder *b, const char *key);
bool build_bool(struct graph_builder *b, const char *key, bool otherwise);
/* Of a key that must be there: bools of the layers, or integers 0 and 1. */
bool build_flag(struct graph_builder *b, const char *key, int32_t layer);

/* The tensor of that name with exactly rows x k elements (rows 0: a vector of k); an absent one
 * is an error, or NULL when optional. */
const struct gguf_tensor *build_tensor(struct graph_builder *b, int64_t k, int64_t rows,
                                       bool optional, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));

/* The tensor of that name with exactly `experts` matrices of rows x k elements. */
const struct gguf_tensor *build_tensor_experts(struct graph_builder *b, int64_t k, int64_t rows,
                                               int64_t experts, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));

/* Appends an operator of one output (none for KV_STORE) and returns its value; in1 = -1 for one
 * input, in0 = -1 for none. width 0 = no output. */
int32_t build_op(struct graph_builder *b, int32_t layer, const char *name, struct oato_op op,
                 int32_t in0, int32_t in1, const struct gguf_tensor *weight, int32_t width);

/* One more input, and one more weight, of the operator appended last. */
void build_input(struct graph_builder *b, int32_t value);
void build_weight(struct graph_builder *b, const struct gguf_tensor *weight);
/* Its optional weights; NULL stands for an absent one. */
void build_extras(struct graph_builder *b, const struct gguf_tensor *const *weights, int n);

/* The layer whose keys and values it works on, if not its own. */
void build_kv_layer(struct graph_builder *b, int32_t layer);

/* What takes the place of its weight where a sequence may have a longer context. */
void build_beyond(struct graph_builder *b, const struct gguf_tensor *weight, int32_t context);

/* y = W x, n x k as the tensor says. */
int32_t build_mul_mat(struct graph_builder *b, int32_t layer, const char *name, int32_t in,
                      const struct gguf_tensor *weight);
/* An FFN of experts. */
struct experts {
    int32_t all, used, width; /* width: of one expert's hidden values; all 0: there are none */
    int32_t dense_layers;     /* the first layers have a dense FFN instead */
    int32_t step;             /* every step-th of the others has experts; 0: each */
    int32_t shared;           /* width of the experts that every token uses; 0: none */
    int32_t bank_width;       /* of an expert in the second bank; 0: there is none */
    int32_t bank_share;       /* experts of the first bank for one of the second */
    float bank_factor;        /* of the second bank's output */
    int32_t latent;           /* what experts read and write; 0: the model's width */
    bool normalised;          /* the weights of a choice are divided by their sum */
    float scale;              /* of the weights of a choice; 0: none */
    enum route_score score;
    int32_t groups, groups_used; /* 0: none */
};

#endif
