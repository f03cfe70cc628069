/*
 * op.h - the operator: what the model lists, the profiler times, the solver places, the plan stores
 * and a device executes.
 *
 * Values are float32 matrices of `rows` x width, row after row, or F16 where a device says so
 * (struct value_types); a row belongs to a token of the step, or to a token whose logits are
 * wanted. Weights are GGUF tensors of n rows of k elements: y[row][j] = sum over i of x[row][i] *
 * W[j][i].
 *
 * Experts are matrices of one shape in one three-dimensional tensor, {k, n, experts}. Except for
 * routing it is treated as one matrix of experts * n rows; expert e has rows [e * n, (e + 1) * n).
 * A token's choice of experts is a value like any other: the ids of its experts_used experts as
 * whole float32 numbers, distinct and ascending, then as many weights. An operator that holds only
 * some experts skips the other chosen ones: EXPERT_GATE_UP leaves their rows unchanged, and
 * EXPERT_DOWN gives a partial sum.
 */
#ifndef OATO_OP_H
#define OATO_OP_H

#include "base/base.h"
#include "kernels/activation.h"

enum op_kind {
    OP_NONE = 0,
    /* in graphs, as models build them */
    OP_EMBED,     /* out[0] = rows of weight[0] named by the step's token ids, or positions */
    OP_RMS_NORM,  /* out[0] = in[0] / rms(in[0], eps) * weight[0], or as `norm` says; k = n = width
                   */
    OP_MUL_MAT,   /* out[0] = weight[0] in[0] */
    OP_BIAS,      /* out[0] = in[0] + weight[0] */
    OP_SCALE,     /* out[0] = in[0] * weight[0][0], or * scale without a weight; or / weight[0] */
    OP_ROPE,      /* out[0] = in[0] rotated by position; weight[0] optional: divisors per pair */
    OP_KV_STORE,  /* in[0] = k, in[1] = v of the step's tokens go to the pages of kv_layer; with a
                     k_tail in[1] = that tail, and in[0] has for each head the rest of k, then v
                     (unless v lies in k) */
    OP_ATTENTION, /* out[0] = softmax(scale q K) V, causal, perhaps within a window; in[0] = q;
                     weight[0] optional: a sink of each head, one more score without a value */
    OP_ADD,       /* out[0] = in[0] + in[1] */
    OP_SWIGLU,    /* out[0] = activation(in[0]) * in[1], SwiGLU with the first one */
    OP_ACTIVATE,  /* out[0] = activation(in[0]) */
    OP_SELECT,    /* out[0] = the rows of in[0] whose logits are wanted */
    OP_HEAD_NORM, /* RMS_NORM of each head separately, with one weight[0] of head_dim for all heads
                   */
    OP_ROUTE,     /* out[0] = choice of experts: the experts_used largest scores (ties: lower ids
                     first) of in[0], softmax or route_score, as weights, divided by their sum if
                     route_norm is set, then multiplied by scale unless scale is 0; k = experts.
                     weight[0] optional: is added to the scores that choose, not to the weights.
                     weight[1] optional: an order of all experts, as whole float32 numbers. Ids are
                     then places in it, which is how the weights of these experts lie.
                     With route_groups only experts of the route_groups_used best groups are chosen
                     from; a group's score is the sum of its two best. With route_share there are
                     that many scores for each expert, and k is that many times as large: the
                     experts_used largest choose experts score / route_share, each of which has the
                     weight of score number `expert` for each score that chose it, and 0 if none did
                     and it only fills the choice up, lower ids first */
    OP_EXPERT_GATE_UP, /* GATE_UP of each expert that in[1], a choice, names for the token: out[0] =
                          experts_used rows of n, concatenated in the order of the choice.
                          `single`: activation(weight[0] in[0]), and weight[1] is weight[0] again.
                          Optional, of all experts: factors (weight[2] of gate's products, [3] of
                          up's), and then biases (weight[4] and [5]) */
    OP_EXPERT_DOWN,    /* out[0] = sum over the choice in[1], in its order, of its weight times
                          weight[0] of that expert times its row of k of in[0]. Optional, of all
                          experts: factors weight[1] and then biases weight[2] of the products */
    /* fused patterns, see op_fusions */
    OP_QKV,      /* out[0..2] = weight[0..2] in[0]; n rows of q, n2 rows of k and of v */
    OP_GATE_UP,  /* out[0] = activation(weight[0] in[0]) * (weight[1] in[0]) */
    OP_ADD_NORM, /* out[0] = in[0] + in[1]; out[1] = rms_norm(out[0]) * weight[0] */
    /* made by lowering */
    OP_MERGE,     /* out[0] = in[0], in[1], ... concatenated (row parts), in part order */
    OP_MERGE_SUM, /* out[0] = in[0] + in[1] + ..., all of the same width (K parts), in part order */
    OP_KV_COPY,   /* copies the pages that the step lists, in every layer on this device */
    OP_EXPERT_SUM, /* the sum of EXPERT_DOWN from products that two devices made: out[0] = sum over
                      the choice in[0], in its order, of its weight times its row of n of in[2]
                      where the cache has the expert, else of in[1] */
    OP_TOP_K,      /* out[0] = candidates of each row of logits in[0], the first of which has the id
                      `first`: the ids of its n / 2 largest logits as whole float32 numbers, then
                      these logits, both by descending logit; ties: lower id first, NaN last */
    OP_SLICE, /* out[0] = columns [first, first + n) of in[0]; with heads: n / heads columns from
                 `first` on of each of the heads' k / heads */
    OP_GATE,  /* in graphs: out[0] = in[0] * activation(in[1]), whose `heads` elements are each of
                 k / heads neighbours of in[0] */
    /* Recurrent mixers, in graphs: each has a state of its own in the slot of the sequence, which
     * it reads and writes token by token in order. */
    OP_CONV,  /* out[0][c] = sum over j of weight[0][c][j] x[c][j], x: the last state + 1 inputs of
                 channel c, oldest first; its state are the last `state` inputs */
    OP_DELTA, /* the gated delta rule: S of head_dim x head_dim for each head. in[0] = q and k of
                 kv_heads, v of heads; in[1]: decays a, in[2]: b, one for each head:
                 S = S exp(weight[0] softplus(a)); S += k (sigmoid(b) (v - S'k))'; out[0] = S'q,
                 with q and k divided by sqrt(sum of squares + eps), q by sqrt(head_dim) as well.
                 per_channel: a is one for each head and row of S; with `scale` the exponent is
                 scale sigmoid(weight[0] a) */
    OP_SSM,   /* Mamba's scan: S of state x head_dim for each head. in[0] = x of heads, then B and C
                 of kv_heads groups, state wide; in[1] = dt, one for each head: D = softplus(dt),
                 S = S exp(D weight[0]) + B (D x)'; out[0] = S'C + weight[1] x. per_channel: weight[0]
                 is one for each head and row of S, and head_dim is 1. With alibi decays are constant:
                 there is no in[1] and no weight, S = S exp(-scale op_slope) + B x', out[0] = S'C */
    OP_HEAD_MUL_MAT, /* in graphs: each head has a matrix of its own, n x k, one behind the other in
                        weight[0]: out[0] has for each head the product with the first k of its
                        head_dim columns of in[0], then the other columns as they are */
    OP_ACTIVE,       /* made by lowering, for predictors: out[0] = a list: the number of elements of
                        in[0], plus weight[0] if there is one, above `threshold`, then their numbers,
                        ascending, as whole float32 numbers; what follows has no meaning */
    OP_MUL_MAT_T, /* in graphs: MUL_MAT with a weight that is kept transposed, k rows of n elements:
                     out[0] = sum over i of in[0][i] times row i, in rising i. Rows of elements that
                     are 0 are not read */
    OP_CONVERT, /* made by lowering: out[0] = in[0], a value of the other type, as `dtype`: F16, or
                   F32 of an F16; finite numbers beyond those of F16 become its largest */
    OP_KIND_COUNT
};

enum { DEVICES_MAX = 17 }; /* of one engine, plan or simulation: a host and 16 beside it */

/* Which rows a value has in a step: one per token, or one per token whose logits or last hidden
 * state are wanted (LOGITS). Of the latter all, but only in steps that want any state (STATES), or
 * those whose logits are wanted (OUTPUT), these only in steps that want candidates of them
 * (PICKED), or only in all others (WHOLE). */
enum row_class {
    ROWS_TOKENS,
    ROWS_LOGITS,
    ROWS_PICKED,
    ROWS_WHOLE,
    ROWS_OUTPUT,
    ROWS_STATES,
    ROW_CLASSES
};

/* How a weight is used; decides its layout. */
enum weight_use {
    WEIGHT_MATRIX, /* matrix products, also those of experts */
    WEIGHT_LOOKUP, /* rows as they are: EMBED, MUL_MAT_T */
    WEIGHT_VECTOR, /* norms, biases, rope divisors: always converted to float32 */
    WEIGHT_ROWS,   /* rows that are read one by one: up of a sparse GATE_UP */
    WEIGHT_COLUMNS /* columns that are read one by one: a sparse MUL_MAT */
};

/* The axis along which an operator is split into parts: output rows, inputs (the parts' results are
 * summed), KV heads, experts. Plans store these numbers. */
enum op_axis { AXIS_ROWS, AXIS_K, AXIS_HEADS, AXIS_EXPERTS, AXIS_COUNT };
extern const char *const op_axis_name[AXIS_COUNT]; /* "rows", "k", "heads", "experts" */

/* What is left out of a product, of a layer's feed-forward block, of a model: the one vocabulary of
 * operators, plans, prices and --sparse. Operators have OFF to BY_ROWS, whose numbers their keys
 * have; the others are ways to ask for these. */
enum sparse_mode {
    SPARSE_OFF, /* nothing */
    /* What is at most a threshold. A GATE_UP computes up's product only where |activation(gate)| >
     * threshold, and out[0] is exactly 0 elsewhere; a MUL_MAT does not read the columns of its
     * weight where |in[0]| <= threshold. threshold 0: what is exactly 0; negative: nothing is
     * skipped, by the same kernels and so with the same bits as 0 where activations have exact
     * zeros */
    SPARSE_ABOVE,
    /* Products are computed only for the neurons, the product's rows, that in[1], a list as
     * OP_ACTIVE makes them, names for the token, and up's of a GATE_UP only for those of them that
     * ABOVE would compute it for; a MUL_MAT gives -infinity for the others, which a ReLU, with a
     * bias before it or not, makes 0. Of a model: in decode, by the predictors of a sidecar; layers
     * without one are EXACT */
    SPARSE_PREDICT,
    /* With the weights of PREDICT, where there is no list: a GATE_UP as ABOVE, a MUL_MAT as OFF */
    SPARSE_BY_ROWS,
    SPARSE_DENSE,    /* what EXACT, or else ABOVE, would choose computes everything, by the kernels
                        that can skip: the bits of EXACT */
    SPARSE_EXACT,    /* ABOVE 0, in layers whose activation has exact zeros */
    SPARSE_THRESHOLD /* ABOVE each layer's own threshold, below which a share of its activations was
                        counted (CATS) */
};

/* What --sparse asks for; none given: what the plan says, or what the planner finds to pay. */
struct sparse_choice {
    bool given;
    enum sparse_mode mode;
    float threshold; /* of ABOVE; the share of THRESHOLD */
    /* Products of attention and FFN matrices skip inputs, each up to the magnitude that the share
     * `input` of its own was counted to have at most (TEAL). OFF leaves the whole FFN to that,
     * other modes its down and what they do not fuse; DENSE: nothing is skipped. */
    bool skips_inputs;
    float input;
};

/* The word of a mode: "exact"; NULL: operators alone have it. */
const char *sparse_mode_name(enum sparse_mode mode);
/* From "auto" (none given), "off", "dense", "exact", "predict", "above=0.1", "threshold=0.5", each
 * but the first perhaps with ",input=0.4", or "input=0.4" alone (OFF); OATO_EUSAGE: it is none. */
oato_status sparse_parse(const char *text, struct sparse_choice *out, struct oato_error *err);
/* The taker of --sparse, to a struct sparse_choice. */
oato_status option_sparse(const struct options *o, void *to, struct oato_error *err);

enum rope_pairing { ROPE_ADJACENT = 0, ROPE_HALVES = 1 }; /* pairs (2i, 2i+1) or (i, i + d/2) */

struct oato_op {
    uint16_t kind;  /* enum op_kind */
    uint16_t dtype; /* of the weight; of the KV cache for KV_STORE and ATTENTION; else F32 */
    int32_t k;      /* width of the input; EXPERT_DOWN: of one expert's */
    int32_t n;      /* width of (the first) output; EMBED: rows of the table, its output has k;
                       EXPERT_GATE_UP: of one expert's output */
    int32_t n2;     /* QKV: rows of k and of v; else 0 */
    int32_t heads, kv_heads, head_dim; /* ROPE and HEAD_NORM (heads), KV_STORE (kv_heads),
                                          ATTENTION, DELTA, SSM, HEAD_MUL_MAT (heads); SLICE, GATE
                                          (heads); else 0 */
    /* KV_STORE, ATTENTION: the width of a head's values, if not head_dim; or v_in_k: values are not
     * stored, they are the first v_in_k dimensions of k. KV_STORE: k_tail, the last dimensions of k
     * that all heads have in common. 0: none of this */
    int32_t v_dim, v_in_k, k_tail;
    int32_t experts, experts_used; /* ROUTE, EXPERT_GATE_UP, EXPERT_DOWN; else 0 */
    /* EXPERT_GATE_UP, EXPERT_DOWN: the weights are those of experts [expert_first, expert_first +
     * experts_held); 0, 0: all experts */
    int32_t expert_first, experts_held;
    /* EXPERT_GATE_UP, EXPERT_DOWN, of experts in a cache (step.cached). 0: there is none; > 0: of
     * the experts above only those are computed that the cache has, and the weights are those of so
     * many slots; -1: only the others. If not 0, EXPERT_DOWN makes no sum: out[0] = experts_used
     * rows of n, the products of each expert, for EXPERT_SUM */
    int32_t expert_slots;
    int32_t first;       /* SLICE: first column of the output; ROPE: first dimension of a head
                            that is rotated; ATTENTION: number of its first head; TOP_K: id of the
                            first logit */
    int32_t by_position; /* EMBED: n > 0: rows are named by positions + n - 1, those beyond the last
                            row are that one; 0: by token ids */
    int32_t divides;     /* SCALE: 1: out[0] = in[0] / weight[0], one number for each column */
    int32_t state;       /* CONV: inputs before the current one; SSM: rows of a head's state */
    int32_t per_channel; /* DELTA, SSM: 1 when rows of a state decay by themselves */
    int32_t cyclic;      /* DELTA: 1: head h has k head h mod kv_heads; 0: neighbours share one */
    int32_t rope_dims;   /* ROPE: dimensions of a head that are rotated */
    int32_t rope_pairing; /* ROPE: enum rope_pairing */
    int32_t activation;   /* SWIGLU, GATE_UP, EXPERT_GATE_UP, ACTIVATE, GATE: enum activation */
    int32_t norm;         /* RMS_NORM, ADD_NORM, HEAD_NORM: enum norm_flag; 0: plain RMS norm */
    int32_t route_norm;   /* ROUTE: 1 when the weights of a choice sum to 1 */
    int32_t route_score;  /* ROUTE: enum route_score */
    int32_t route_groups, route_groups_used; /* ROUTE: of experts / route_groups experts each; 0, 0:
                                                no groups */
    int32_t route_share;                     /* ROUTE: scores for each expert; 0: one */
    int32_t up_dtype;   /* EXPERT_GATE_UP: the type of weight[1] where that is another one than
                           weight[0]'s, both of whole blocks; 0: the same */
    int32_t one_tensor; /* EXPERT_GATE_UP: 1 when weight[0] and [1] are the same tensor, of 2 n rows
                           an expert: the gate's, then those of up */
    int32_t single;     /* EXPERT_GATE_UP: 1 when there is only a gate, or only up */
    int32_t weighs_input; /* EXPERT_GATE_UP, EXPERT_DOWN: 1 when weights of the choice multiply the
                             products of EXPERT_GATE_UP in place of those of EXPERT_DOWN */
    int32_t window;       /* KV_STORE, ATTENTION: last positions that a token sees, with its own;
                             0: all */
    int32_t chunked;      /* ATTENTION: 1: the window begins at the last multiple of itself */
    float soft_cap;       /* ATTENTION: scores s become soft_cap tanh(s / soft_cap); 0: they stay */
    float alibi; /* ATTENTION: scores also get -slope * distance, op_slope; SSM: constant decays by
                    op_slope; 0: no slopes */
    int32_t alibi_heads; /* of all heads, of which the operator may have some, from `first` on */
    int32_t sparse;      /* MUL_MAT, GATE_UP: enum sparse_mode, at most SPARSE_BY_ROWS */
    float threshold;
    float eps;                 /* RMS_NORM, ADD_NORM, HEAD_NORM, DELTA */
    float rope_base;           /* ROPE: frequency base */
    float rope_scale;          /* ROPE: positions are multiplied by this (1 = no scaling) .. */
    float rope_low, rope_high; /* .. from pair rope_high on, up to rope_low not, and between by
                                  degrees (YaRN); 0, 0: everywhere */
    float rope_magnitude;      /* ROPE: of rotated dimensions; 0: 1 */
    /* SCALE without a weight: the factor of position p is also multiplied by
     * 1 + temperature ln(floor((p + temperature_offset) / temperature_step) + 1); 0: it is not */
    float temperature, temperature_step, temperature_offset;
    float scale; /* EMBED, ROUTE: factor (0 = none); SCALE: factor; ATTENTION: of q.k; with
                    an activation: its cap, bound or limit; SSM with alibi: of the slopes */
};

/* Which of a device's numerics classes computes a record (DESIGN, Numerics): DECODE for decode,
 * rows of logits and, under --deterministic, all phases; PREFILL where many rows make arithmetic
 * the limit. A device may use one class for both. LIBRARY is PREFILL, except where a vendor's
 * library computes an operator: its class ends in a dot and the library's name (f16.cublas) and
 * gives a row the same bits only if the whole step is the same, so it is used only where the plan
 * names that class. */
enum numerics_choice {
    NUMERICS_DECODE,
    NUMERICS_PREFILL,
    NUMERICS_CHOICES, /* number of classes with reproducible bits */
    NUMERICS_LIBRARY = NUMERICS_CHOICES
};

/* Profiles hold times of NUMERICS_PREFILL for steps with more rows than this. */
enum { NUMERICS_DECODE_ROWS = 16 };

/* TOP_K: the maximum of candidates, and of logits in a row (ids must be exact in float32). */
enum { TOP_K_MOST = 256, TOP_K_LOGITS_MOST = 1 << 24 };
/* ACTIVE: the maximum of elements, for the same reason. */
enum { LIST_MOST = 1 << 24 };

enum {
    HEAD_DIM_MAX = 1024, /* limits of the kernels */
    EXPERTS_MAX = 4096,
    KV_PAGE_POSITIONS = 64, /* of a page of the KV cache, on every device */
    KV_PADDING = 64,        /* bytes behind a cache, and at most between layers of it */
    KV_ROOMS = 2,           /* in memory, for layers whose KV stays in a file */
    CONV_STATE_MAX = 15,
    /* Earlier states that an engine keeps to truncate sequences to, in all of them together */
    STATE_CHECKPOINTS = 4
};
/* The pages that so many positions take. */
static inline int32_t kv_pages_of(int64_t positions)
{
    return (int32_t)((positions + KV_PAGE_POSITIONS - 1) / KV_PAGE_POSITIONS);
}

/* Pages that suffice where no token sees more than the last `window` positions, however long the
 * sequences are: for each what its next token sees, for all together the tokens of a step, and for
 * two that share a page and leave it in one step that page. */
static inline int64_t kv_window_pages(int32_t window, int32_t seqs, int32_t tokens)
{
    const int64_t astray =
        KV_PAGE_POSITIONS - 2; /* a run of n positions touches (n + astray) / 64 + 1 */
    return seqs + seqs / 2 + (seqs * (window - 1 + astray) + tokens) / KV_PAGE_POSITIONS;
}

/* Slots of recurrent state that so many sequences take, on every device. */
static inline int32_t state_slots_of(int32_t seqs)
{
    return seqs + STATE_CHECKPOINTS;
}

/* A product whose weight is read by columns. */
static inline bool op_by_columns(const struct oato_op *op)
{
    return op->kind == OP_MUL_MAT && op->sparse == SPARSE_ABOVE;
}

/* Numbers of rows that a device compiles its functions for, ascending, then 0 (device_info.rows).
 */
enum { DEVICE_ROWS = 8 };
/* How it runs T rows: `whole` calls of `largest` each, then the other rows, if any, in one call
 * for `rest` rows, the least of these numbers that has room. */
struct row_steps {
    int32_t largest, whole, rest;
};
struct row_steps row_steps(const int32_t rows[DEVICE_ROWS], int32_t T);
static inline int32_t row_calls(struct row_steps s)
{
    return s.whole + (s.rest > 0);
}

/* What varies from step to step and decides an operator's cost. */
struct op_size {
    int32_t rows;         /* T: rows that the operator computes */
    int32_t seqs;         /* S: sequences (ATTENTION, kinds with a state), at least 1 */
    int64_t kv_positions; /* ATTENTION: positions read, summed over the step's tokens */
    int32_t active;       /* sparse: neurons that are expected not to be skipped; 0: all */
};

enum { OP_KEY_SIZE = 96 };

/* clang-format off */
/* The profile's key names the kind and everything that decides the cost of a run; values such as
 * eps and rope_base are not part of it. Fields that are not named follow from the others or are zero.
 *
 *   embed/Q8_0/k576/n49152         k width of a row, which is the output's; n rows of the table
 *   rms_norm/k576                  n = k; so bias, scale, add, swiglu, activate, select, add_norm
 *   mul_mat/Q4_0/k4096/n14336      k in, n out
 *   rope/h9/d64/r64/p0             heads, head_dim, rope_dims, rope_pairing; k = n = heads * head_dim
 *   head_norm/h16/d128             heads, head_dim; k = n = heads * head_dim
 *   kv_store/F16/g3/d64            type of the cache, kv_heads, head_dim; k = n = kv_heads * head_dim
 *   attention/F16/h9/g3/d64        the same and heads; k = n = heads * head_dim
 *   attention/F16/h16/g1/d576/c512 with v_in_k: n = heads * c; or /v128: v_dim; n = heads * v
 *   kv_store/F16/g16/d96/v64/x32   the same, and k_tail
 *   head_mul_mat/Q8_0/k128/n512/h16/d192   k, n of one head; heads, head_dim
 *   mul_mat_t/Q4_0/k4096/n1024     k in, n out
 *   qkv/Q4_1/k576/n576/m192        m = n2
 *   gate_up/Q4_1/k576/n1536        n of the gate, of the up matrix and of the output
 *   gate_up/Q4_1/k576/n1536/z1     enum sparse_mode; likewise mul_mat; threshold is not part of it
 *   merge/n576                     n of the output, k = n
 *   merge_sum/k1152/n576           k in all inputs together, n of each and of the output
 *   slice/k576/n64                 k of the input, n of the output; first is not part of it
 *   gate/k4096/h32                 k in and out, heads gates
 *   route/e128/u8                  experts, experts_used; k = experts, n = 2 * experts_used
 *   route/e64/u8/x2                the same and route_share; k = experts * share
 *   expert_gate_up/Q4_0/k2048/n768/e128/u8   k in, n out of one expert
 *   expert_gate_up/Q4_0/k2048/n768/e128/u8/s1   single
 *   expert_gate_up/IQ2_S/k2048/n768/e128/u8/y18   y: up_dtype, GGUF's number of the type
 *   expert_down/Q4_0/k768/n2048/e128/u8      k in, n out of one expert
 *   expert_sum/n2048/e128/u8       n out, k = n
 *   kv_copy
 *   convert/F16/k4096              type of the output; n = k
 *   active/k14336                  k elements in; n = k + 1
 *   top_k/k128256/n80              k logits in, n twice the candidates; first is not part of it
 *   conv/k2048/s3                  channels, state; n = k
 *   delta/h32/g16/d128/c0          heads, kv_heads, head_dim, per_channel
 *   ssm/h64/g8/d64/s128/c0         heads, kv_heads, head_dim, state, per_channel
 *
 * A step's part follows: /t4 is rows; kinds with a state have /t4/s2: rows, seqs; attention has
 * /t4/s2/kv1000: rows, seqs, kv_positions; what skips neurons may have /t4/a1434: rows, active. */
/* clang-format on */
/* size NULL: omit the step's part. Writes at most OP_KEY_SIZE bytes; returns out. */
char *oato_op_key(const struct oato_op *op, const struct op_size *size, char out[OP_KEY_SIZE]);
/* Parses a key; size->rows = 0 when the key has no step part. False when it is not a key. */
bool oato_op_parse(const char *key, struct oato_op *op, struct op_size *size);
/* An operator of the kind and type in an ordinary shape, to ask a device whether it runs such
 * operators at all. Kinds without a type have F32. False: no operator of the kind has that type. */
bool op_example(enum op_kind kind, oato_dtype dtype, struct oato_op *out);
/* True when both have the same key without the step's part. */
bool oato_op_same(const struct oato_op *a, const struct oato_op *b);

/* a(x); scale: that of the operator. */
float activation_of(enum activation a, float scale, float x);
/* Whether a(x) is exactly 0 for many x, so that neurons are silent and can be skipped losslessly.
 */
bool activation_has_zeros(enum activation a);
/* The n bytes of a name in a file or option: silu, gelu, relu, relu2 and their synonyms, those of
 * llama.cpp included. False: it is none. */
bool activation_parse(const char *name, size_t n, enum activation *out);
const char *activation_name(enum activation a); /* "relu"; "other" for one that files cannot name */

const char *op_kind_name(int kind); /* "mul_mat"; "?" when unknown */
bool op_kind_parse(const char *name, enum op_kind *out);

enum { OP_ANY = -1 };
/* Inputs that this kind takes; OP_ANY: one or more, for merges. */
int op_in_count(const struct oato_op *op);
int64_t op_in_width(const struct oato_op *op, int i);  /* of the i-th input; OP_ANY: any width */
int32_t op_out_width(const struct oato_op *op, int i); /* of the i-th output; 0: there is none */
/* Shape of the i-th weight of an operator: rows x elements. False when it has no such weight. */
bool op_weight_shape(const struct oato_op *op, int i, int64_t *n, int64_t *k);
int op_weight_count(const struct oato_op *op); /* the most weights that it takes */
int op_weight_least(const struct oato_op *op); /* the first ones, which it cannot go without */
enum weight_use op_weight_use(const struct oato_op *op);
enum weight_use op_weight_use_at(const struct oato_op *op, int i); /* optional ones are vectors */
/* The type of weight i of those that the operator cannot go without. */
oato_dtype op_weight_dtype(const struct oato_op *op, int i);
/* False: the shape or type is invalid for every device. */
bool op_valid(const struct oato_op *op);
/* Whether the operator can be split along an axis, and the length of the axis; 0: it has no such
 * axis. Every operator has rows, even where they cannot be split. */
bool op_divides(const struct oato_op *op, enum op_axis axis);
/* Whether a part along the axis reads only its own columns of the inputs. */
bool op_reads_columns(const struct oato_op *op, enum op_axis axis);
int64_t op_axis_extent(const struct oato_op *op, enum op_axis axis);
/* The types in which a device reads the inputs of a kind of operators from its arena and leaves
 * their outputs there, an oato_dtype each: F32 or F16. Of a merge all inputs have the first one's.
 */
enum { OP_INPUTS = 3, OP_OUTPUTS = 3 };
struct value_types {
    uint8_t in[OP_INPUTS], out[OP_OUTPUTS];
};
/* Of the operator's i-th input or output by a device's table, [OP_KIND_COUNT]; NULL: F32. CONVERT
 * has its own, and choices of experts, lists and candidates, whose ids must be exact, are always
 * F32. */
oato_dtype value_type_in(const struct value_types *device, const struct oato_op *op, int i);
oato_dtype value_type_out(const struct value_types *device, const struct oato_op *op, int i);
/* Whether it reads or leaves any value as F16. */
bool value_types_halve(const struct value_types *device, const struct oato_op *op);
static inline uint64_t value_type_bytes(oato_dtype type)
{
    return type == DT_F16 ? 2 : 4;
}
/* Whether a run's cost depends on op_size.seqs. */
bool op_has_seqs(int kind);
/* The neurons of which a sparse MUL_MAT or GATE_UP skips some: op_size.active of them are left. */
int32_t op_neurons(const struct oato_op *op);
/* True for KV_STORE and ATTENTION, which work on the pages of a layer. */
bool op_has_kv(const struct oato_op *op);
/* Whether the operator may be in a span (program.h) of a device that compiles spans. */
bool op_spans(const struct oato_op *op);
/* Floats of recurrent state that the operator keeps for a sequence; 0: it has none. */
int64_t op_state_floats(const struct oato_op *op);
int32_t op_v_dim(const struct oato_op *op); /* width of a head's values */
/* Bytes of K and V of one position in all its heads; 0: they are no whole blocks. */
uint64_t op_kv_bytes(const struct oato_op *op, oato_dtype dtype);
/* The same of a page of a layer whose KV stays in a file: whole blocks of it. */
uint64_t op_kv_filed_bytes(const struct oato_op *op, oato_dtype dtype);
/* A host sums the attention of a few tokens by segments of the context, whose results it merges:
 * the bytes of these partial results; 0 for more tokens, which keep the threads busy without that.
 */
enum {
    ATTENTION_SEGMENT = 256, /* positions: blocks of a segment are summed first, then segments */
    ATTENTION_SPLIT_TOKENS = 8
};
uint64_t op_attention_partial_bytes(const struct oato_op *op, const struct op_size *size);
/* Floats of a head's values, padded to whole vectors. */
static inline int64_t attention_row_floats(int64_t v_dim)
{
    return (v_dim + 15) & ~(int64_t)15;
}
/* Floats of one query's result in one segment: the largest score, the sum of exponentials relative
 * to it, and the values weighted by them. */
static inline int64_t attention_partial_floats(int64_t v_dim)
{
    return 2 + attention_row_floats(v_dim);
}
/* The most that a matrix (WEIGHT_MATRIX) of that type takes in the layout of any device of this
 * build; a test compares all of them. */
uint64_t op_matrix_bytes_most(oato_dtype dtype, int64_t rows, int64_t k);
/* ALiBi's slope of a head of an ATTENTION or SSM. */
float op_slope(const struct oato_op *op, int32_t head);
/* Types that such pages may have. */
bool op_kv_dtype(oato_dtype dtype);
/* Arithmetic operations (a multiply-add is two), and bytes of weights (in GGUF form) and of KV that
 * one run moves: for rooflines. A sequence's KV counts once for all its rows. KV_COPY counts 0:
 * only the device knows the pages. Experts count as often as they are expected to be read,
 * op_experts_read. A sequence's state is read and written once for all its rows. */
double op_flops(const struct oato_op *op, const struct op_size *size);
double op_bytes(const struct oato_op *op, const struct op_size *size);
/* True for EXPERT_GATE_UP and EXPERT_DOWN, whose weights are those of several experts. */
bool op_has_experts(const struct oato_op *op);
/* The number of experts that an EXPERT_GATE_UP or EXPERT_DOWN holds. */
int32_t op_experts_held(const struct oato_op *op);
/* The expected number of distinct experts that T tokens choose when each chooses u of E at random:
 * E (1 - (1 - u/E)^T), from u for one token to E for many; real routing is uneven and reads fewer.
 * Scaled by the share of experts that the operator holds. 0 for other operators. */
double op_experts_read(const struct oato_op *op, int32_t tokens);

/* A fused pattern: consecutive operators of the graph that one operator replaces. graph_fuse
 * (models/models.h) checks which values must coincide. */
struct op_fusion {
    const char *name;   /* as stored in plans */
    const char *suffix; /* appended to the first member's name to name the fused operator */
    enum op_kind fused;
    int n_members;
    enum op_kind member[4];
};
extern const struct op_fusion op_fusions[];
extern const int op_fusion_count;

/* Neighbours that a device may run for less than one by one, and with the same bits: each keeps its
 * record, so that a plan may still cut between them, and what they save counts for the last one
 * (graph_join, models/models.h). A device declares those that it has (device_ops.joins). */
enum op_join {
    JOIN_NORM,       /* a norm and a product of its output, which it packs */
    JOIN_ATTENTION,  /* the same of attention's output */
    JOIN_ADD,        /* a product and an addition to its output */
    JOIN_ROPE_STORE, /* rotations of q and k and the store of k */
    JOIN_COUNT,
    JOIN_NONE = JOIN_COUNT
};
extern const char *const op_join_names[JOIN_COUNT];

#endif
