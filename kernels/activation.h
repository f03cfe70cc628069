/*
 * activation.h - the functions that stand between the two halves of an FFN, the kinds of norms, and
 * the scores of routers. Only constants, because device code includes it, too; activation.c,
 * kernels/cpu/ref.c and ops_experts.c define them.
 */
#ifndef OATO_ACTIVATION_H
#define OATO_ACTIVATION_H

/* a(x) of SWIGLU, GATE_UP, EXPERT_GATE_UP, ACTIVATE and GATE; sigmoid s(x) = 1 / (1 + e^-x). */
enum activation {
    ACT_SILU,         /* x s(x) */
    ACT_GELU,         /* x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) / 2, the form of llama.cpp */
    ACT_RELU,         /* max(x, 0) */
    ACT_RELU_SQUARED, /* max(x, 0)^2 */
    ACT_SIGMOID,      /* s(x) */
    ACT_SOFT_CAP,     /* scale tanh(x / scale) */
    ACT_CLAMPED,      /* gpt-oss: with g = min(x, 7), g s(1.702 g); times 1 + clamp(in[1], -7, 7) */
    ACT_CLAMP,        /* min(max(x, -scale), scale) */
    ACT_NONE,         /* x */
    ACT_CLAMPED_SILU, /* silu(min(x, scale)); times clamp(in[1], -scale, scale) */
    ACT_SOFTPLUS,     /* ln(1 + e^x) */
    ACT_SILU_CLAMPED, /* min(silu(x), scale); times clamp(in[1], -scale, scale) */
    ACT_COUNT
};

/* What makes scores of a router's logits (ROUTE). */
enum route_score { ROUTE_SOFTMAX, ROUTE_SIGMOID, ROUTE_ROOT_SOFTPLUS, ROUTE_SCORE_COUNT };

/* Flags of RMS_NORM, ADD_NORM and HEAD_NORM: how they differ from x / rms(x) * weight[0]. */
enum norm_flag {
    NORM_CENTRED = 1, /* the mean is subtracted first: LayerNorm */
    NORM_BIASED = 2,  /* weight[1] is added last; not HEAD_NORM */
    NORM_PLAIN = 4,   /* no weights */
    NORM_OWN_HEADS =
        8, /* HEAD_NORM: each head has its own weights, in weight[0] one after another */
    NORM_HEAD_GAINS = 16, /* HEAD_NORM: each head has one number for all its elements */
};

#endif
