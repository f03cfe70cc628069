/*
 * state.cu - the recurrent mixers: short convolutions, the gated delta rule, Mamba's scans. A
 * thread has one column of one head's state (or one channel of a convolution, or of a scan whose
 * channels decay by themselves) and goes through the tokens of its sequence in order, so that no
 * division into steps changes a bit. Neighbouring threads have neighbouring columns: rows of a
 * state are read and written whole.
 */
#include "kernels/cuda/device_code.cuh"

/* The sequence of the block; the state of the record's operator there. */
__device__ static float *slot_of(const cuda_state_args &a, const cuda_seq &seq)
{
    return a.state + seq.state * a.slot_floats;
}

__device__ static float softplus(float x)
{
    return x > 20 ? x : log1pf(expf(x));
}

__device__ static float sigmoid(float x)
{
    return 1 / (1 + expf(-x));
}

/* The input `back` steps before the sequence's t-th token. */
__device__ static float earlier(const cuda_state_args &a, const float *x, const float *state,
                                bool fresh, int t, int back, int c)
{
    if (t >= back)
        return x[(int64_t)(t - back) * a.k + c];
    return fresh ? 0 : state[(int64_t)(t - back + a.rows) * a.k + c];
}

KERNEL(conv, STATE_THREADS, cuda_state_args)
{
    const cuda_seq &seq = a.step.seq[blockIdx.y];
    const int c = blockIdx.x * STATE_THREADS + threadIdx.x, n = seq.query_len;
    const bool fresh = seq.kv_len == n;
    if (c >= a.k || !n)
        return;
    float *state = slot_of(a, seq);
    const float *x = a.in[0] + (int64_t)seq.query_begin * a.k;
    for (int t = 0; t < n; t++) {
        float sum = 0;
        for (int i = 0; i <= a.rows; i++)
            sum += a.weight[0][(int64_t)c * (a.rows + 1) + i] *
                   earlier(a, x, state, fresh, t, a.rows - i, c);
        a.y[(int64_t)(seq.query_begin + t) * a.k + c] = sum;
    }
    for (int i = 0; i < a.rows; i++) /* the oldest first: none is overwritten before it moved */
        state[(int64_t)i * a.k + c] = earlier(a, x, state, fresh, n - 1, a.rows - 1 - i, c);
}

__device__ static float square_sum(const float *x, int n)
{
    float sum = 0;
    for (int i = 0; i < n; i++)
        sum += x[i] * x[i];
    return sum;
}

/* The block's head, and the thread's column in it. */
struct column {
    int head, c, dim;
    bool is_there;
};

__device__ static column column_of(const cuda_state_args &a)
{
    const int pieces = (a.head_dim + STATE_THREADS - 1) / STATE_THREADS;
    const int c = blockIdx.x % pieces * STATE_THREADS + threadIdx.x;
    return {(int)blockIdx.x / pieces, c, a.head_dim, c < a.head_dim};
}

KERNEL(delta, STATE_THREADS, cuda_state_args)
{
    const cuda_seq &seq = a.step.seq[blockIdx.y];
    const column p = column_of(a);
    const int d = p.dim, group = a.cyclic ? p.head % a.groups : p.head / (a.heads / a.groups);
    float *q = (float *)SHARED_ROOM, *k = q + d, *decay = k + d; /* of a token */
    float *s = slot_of(a, seq) + (int64_t)p.head * d * d + p.c;
    for (int i = 0; seq.kv_len == seq.query_len && p.is_there && seq.query_len && i < d; i++)
        s[i * d] = 0;
    for (int t = seq.query_begin; t < seq.query_begin + seq.query_len; t++) {
        const float *in = a.in[0] + (int64_t)t * a.k + group * d, A = a.weight[0][p.head];
        __syncthreads();
        for (int i = threadIdx.x; i < d; i += STATE_THREADS) {
            const int64_t at = (int64_t)t * a.heads + p.head;
            const float x = a.in[1][a.per_channel ? at * d + i : at];
            q[i] = in[i];
            k[i] = in[a.groups * d + i];
            decay[i] = expf(a.scale != 0 ? a.scale * sigmoid(A * x) : A * softplus(x));
        }
        __syncthreads();
        if (!p.is_there)
            continue;
        const float q_factor = 1 / sqrtf((square_sum(q, d) + a.eps) * (float)d);
        const float k_factor = 1 / sqrtf(square_sum(k, d) + a.eps);
        const float b = sigmoid(a.in[2][(int64_t)t * a.heads + p.head]);
        const float v = a.in[0][(int64_t)t * a.k + (2 * a.groups + p.head) * d + p.c];
        float seen = 0, sum = 0;
        for (int i = 0; i < d; i++)
            seen += k[i] * decay[i] * s[i * d];
        const float change = b * (v - k_factor * seen) * k_factor;
        for (int i = 0; i < d; i++) {
            s[i * d] = decay[i] * s[i * d] + k[i] * change;
            sum += q[i] * s[i * d];
        }
        a.y[((int64_t)t * a.heads + p.head) * d + p.c] = q_factor * sum;
    }
}

KERNEL(ssm, STATE_THREADS, cuda_state_args)
{
    const cuda_seq &seq = a.step.seq[blockIdx.y];
    const column p = column_of(a);
    const int d = p.dim, group = p.head / (a.heads / a.groups);
    const bool constant = a.alibi != 0;
    const float kept = constant ? expf(-a.scale * alibi_slope(a.alibi, a.heads, p.head)) : 0;
    const int64_t unit = a.per_channel ? p.head * d + p.c : p.head; /* decays by itself */
    const int64_t units = a.per_channel ? a.heads * d : a.heads;
    const float *A = a.weight[0] + (a.per_channel ? unit * a.rows : unit);
    float *B = (float *)SHARED_ROOM, *C = B + a.rows; /* of a token */
    float *s = slot_of(a, seq) + (int64_t)p.head * a.rows * d + p.c;
    for (int i = 0; seq.kv_len == seq.query_len && p.is_there && seq.query_len && i < a.rows; i++)
        s[i * d] = 0;
    for (int t = seq.query_begin; t < seq.query_begin + seq.query_len; t++) {
        const float *in = a.in[0] + (int64_t)t * a.k;
        const float *of_group = in + a.heads * d + group * a.rows;
        __syncthreads();
        for (int i = threadIdx.x; i < a.rows; i += STATE_THREADS) {
            B[i] = of_group[i];
            C[i] = of_group[a.groups * a.rows + i];
        }
        __syncthreads();
        if (!p.is_there)
            continue;
        const float dt = constant ? 1 : softplus(a.in[1][t * units + unit]);
        const float x = in[p.head * d + p.c];
        float sum = 0, decay = constant ? kept : expf(dt * A[0]);
        for (int i = 0; i < a.rows; i++) {
            if (a.per_channel)
                decay = expf(dt * A[i]);
            s[i * d] = decay * s[i * d] + B[i] * (dt * x);
            sum += C[i] * s[i * d];
        }
        a.y[((int64_t)t * a.heads + p.head) * d + p.c] =
            constant ? sum : sum + a.weight[1][unit] * x;
    }
}

/* In the order of the list: a slot that was copied may be written by a later copy. */
KERNEL(state_copy, STATE_THREADS, cuda_state_copy_args)
{
    const int64_t i = (int64_t)blockIdx.x * STATE_THREADS + threadIdx.x;
    for (int c = 0; i < a.slot_floats && c < a.copies; c++)
        a.state[a.step.state_copy[c].to * a.slot_floats + i] =
            a.state[a.step.state_copy[c].from * a.slot_floats + i];
}
