/*
 * activation.c - what the functions of activation.h compute, for the reference kernels and for who
 * counts activations, and their names in files and options.
 */
#include "kernels/op.h"

#include <math.h>
#include <string.h>

static float silu(float x)
{
    return x / (1.0f + expf(-x));
}

float activation_of(enum activation a, float scale, float x)
{
    const float positive = x < 0 ? 0 : x, below_7 = x > 7 ? 7 : x; /* NaN stays NaN */
    const float below = x > scale ? scale : x;
    switch (a) {
    case ACT_SILU: return silu(x);
    case ACT_GELU: return 0.5f * x * (1.0f + tanhf(0.7978845608f * (x + 0.044715f * x * x * x)));
    case ACT_RELU: return positive;
    case ACT_RELU_SQUARED: return positive * positive;
    case ACT_SIGMOID: return 1.0f / (1.0f + expf(-x));
    case ACT_SOFT_CAP: return scale * tanhf(x / scale);
    case ACT_CLAMPED: return below_7 / (1.0f + expf(-1.702f * below_7));
    case ACT_CLAMP: return x < -scale ? -scale : x > scale ? scale : x;
    case ACT_NONE: return x;
    case ACT_CLAMPED_SILU: return silu(below);
    case ACT_SOFTPLUS: return x > 20 ? x : log1pf(expf(x));
    case ACT_SILU_CLAMPED: return silu(x) > scale ? scale : silu(x);
    case ACT_COUNT: break;
    }
    return 0;
}

bool activation_has_zeros(enum activation a)
{
    return a == ACT_RELU || a == ACT_RELU_SQUARED;
}

/* The first name of each is the one that is written; the others are those of llama.cpp's key
 * hidden_activation and of its converters. */
static const struct {
    const char *name;
    enum activation activation;
} names[] = {
    {"silu", ACT_SILU},          {"swish", ACT_SILU},
    {"swiglu", ACT_SILU},        {"gelu", ACT_GELU},
    {"geglu", ACT_GELU},         {"gelu_new", ACT_GELU},
    {"gelu_fast", ACT_GELU},     {"gelu_pytorch_tanh", ACT_GELU},
    {"relu", ACT_RELU},          {"reglu", ACT_RELU},
    {"relu2", ACT_RELU_SQUARED}, {"relu_squared", ACT_RELU_SQUARED},
};

bool activation_parse(const char *name, size_t n, enum activation *out)
{
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        if (strlen(names[i].name) != n || memcmp(names[i].name, name, n) != 0)
            continue;
        *out = names[i].activation;
        return true;
    }
    return false;
}

const char *activation_name(enum activation a)
{
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        if (names[i].activation == a)
            return names[i].name;
    return "other";
}
