/*
 * op_row.h - the row that says all of a kind of operator: its key, its inputs, outputs and weights,
 * how it may be cut, what it costs and which shapes can be computed. op_kinds.c has the table.
 */
#ifndef OATO_OP_ROW_H
#define OATO_OP_ROW_H

#include "kernels/op.h"

/* The numbers that a key may have. */
enum field_id {
    F_END,
    F_K,
    F_N,
    F_N2,
    F_HEADS,
    F_KV_HEADS,
    F_HEAD_DIM,
    F_ROPE_DIMS,
    F_PAIRING,
    F_EXPERTS,
    F_USED,
    F_STATE,
    F_CHANNELS,
    F_V_DIM,
    F_V_IN_K,
    F_K_TAIL,
    F_SINGLE,
    F_SHARE,
    F_UP_DTYPE,
    F_SPARSE
};

/* Widths of values and weights in terms of the operator's fields. */
enum width {
    W_NONE, /* there is no such value or weight; of a key: it names this width itself */
    W_ANY,
    W_ONE,
    W_K,
    W_N,
    W_GATE_N, /* rows of an expert in the tensor of its gate */
    W_N2,
    W_HEAD,     /* one head */
    W_HEADS,    /* all of them */
    W_KV_HEADS, /* those of K */
    W_STORED,   /* what KV_STORE stores: all of K, or what heads do not share and V */
    W_STORED_2, /* V, or what heads share */
    W_VALUES,   /* of attention's heads */
    W_ATTENDED, /* q and values of all heads */
    W_MATRICES, /* rows of one matrix for each head */
    W_PRODUCTS, /* of HEAD_MUL_MAT */
    W_PAIRS,    /* that ROPE turns in a head */
    W_ROTATED,  /* dimensions that it turns in all heads */
    W_EXPERTS,
    W_SCORES, /* of all experts */
    W_CHOICE, /* of a token: ids and weights of its experts */
    W_GATES,
    W_CHOSEN_K, /* of these a row of k each */
    W_CHOSEN_N,
    W_DOWN_N,   /* EXPERT_DOWN's output: n, or W_CHOSEN_N if it makes no sum */
    W_WEIGHTED, /* rows of a norm's weight: one, or one a head; none if it is plain */
    W_BIASED,   /* and of its bias */
    W_FACTORS,  /* of SCALE: one, or one for each column */
    W_ADDED,    /* by MERGE_SUM to the first summand */
    W_TAPS,     /* of all channels */
    W_BY_HEAD,
    W_QKV,     /* q and k of kv_heads, v of heads */
    W_DECAYS,  /* one for each head, or for each row of its state */
    W_XBC,     /* x of all heads, B and C of all groups */
    W_STEPS,   /* dt of all heads; 0 with constant decays */
    W_DECAYED, /* rows of the weights of decays: one, or 0 likewise */
    W_STATE,   /* of a sequence */
    W_LIST,    /* of elements of the input: how many, and which */
    W_LISTED   /* of GATE_UP's neurons; 0: there is no list */
};

/* The memory that a run reads or writes beside the operator's values. */
enum traffic {
    NONE,
    VECTOR,
    TABLE_ROWS,
    TRANSPOSED,
    MATRICES,
    EXPERTS,
    STATE,
    KV_WRITTEN,
    KV_READ
};

enum {
    ROWS = 1 << AXIS_ROWS,
    K = 1 << AXIS_K,
    HEADS = 1 << AXIS_HEADS,
    BY_EXPERT = 1 << AXIS_EXPERTS
};

struct op_kind_row {
    const char *name;
    bool typed; /* the dtype is part of the key; else it is F32 */
    uint8_t fields[7];
    uint8_t k, n; /* enum width: what they are when the key does not name them */
    bool spans; /* each row of its outputs follows from the same rows of its inputs and from weights
                   alone, not from positions, KV, state, lists or choices */
    bool merges; /* takes any number of inputs, all of width in[0] */
    uint8_t in[3], out[3];
    struct {
        uint8_t n, k;
    } weight[6];      /* EXPERTS: demanded ones of one expert */
    uint8_t optional; /* the last so many weights may be absent; they are vectors */
    enum traffic traffic;
    /* Operations beside those of matrices: so many for each element of a width, exp counts as two;
     * for each row, expert chosen, or position that KV_READ reads. */
    uint8_t flops, flops_of;
    uint8_t axes;
    const char *example; /* what follows name and type in the key of an ordinary shape */
    bool (*fits)(const struct oato_op *op); /* what a kernel demands beside; NULL: nothing */
};

/* The row of a kind; of one that nobody knows the empty row of OP_NONE. */
const struct op_kind_row *op_kind_row(int kind);
int64_t op_width(const struct oato_op *op, enum width width);

#endif
