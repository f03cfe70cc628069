/*
 * route.cu - the choice of experts, and who chose which.
 */
#include "kernels/cuda/device_code.cuh"

__device__ static float route_score_of(const cuda_route_args &a, float logit, float top, float all)
{
    if (a.score == ROUTE_SOFTMAX)
        return expf(logit - top) / all;
    if (a.score == ROUTE_SIGMOID)
        return 1 / (1 + expf(-logit));
    return sqrtf(logit > 20 ? logit : log1pf(expf(logit)));
}

/* Makes the scores of experts in all but the best groups negative infinity. */
__device__ static void choose_groups(const cuda_route_args &a, float *score, float *group)
{
    const int each = a.scores / a.groups;
    for (int g = threadIdx.x; g < a.groups; g += WARP) {
        float first = -INFINITY, second = each > 1 ? -INFINITY : 0;
        for (int e = g * each; e < (g + 1) * each; e++) {
            const float s = score[e];
            if (each > 1)
                second = s > first ? first : s > second ? s : second;
            first = s > first ? s : first;
        }
        group[g] = first + second;
    }
    __syncwarp();
    for (int g = threadIdx.x; g < a.groups; g += WARP) {
        int better = 0;
        for (int i = 0; i < a.groups; i++)
            better += group[i] > group[g] || (group[i] == group[g] && i < g);
        for (int e = g * each; better >= a.groups_used && e < (g + 1) * each; e++)
            score[e] = -INFINITY;
    }
    __syncwarp();
}

/* How many of an expert's scores were chosen. */
__device__ static int times_chosen(const cuda_route_args &a, const uint32_t *chosen, int expert)
{
    int n = 0;
    for (int e = expert * a.share; e < (expert + 1) * a.share; e++)
        n += chosen[e / 32] >> e % 32 & 1;
    return n;
}

/* The best of what is left, `used` times: of equal ones the lower id. A logit is taken out by
 * making it negative infinity in the copy; what is no number is chosen last. */
KERNEL(route, WARP, cuda_route_args)
{
    float *logit = (float *)SHARED_ROOM;               /* [scores] */
    uint32_t *chosen = (uint32_t *)(logit + a.scores); /* a bit a score */
    const int lane = threadIdx.x;
    const float *in = a.logits + (int64_t)blockIdx.x * a.scores;
    float *out = a.choice + (int64_t)blockIdx.x * 2 * a.used;
    float top = -INFINITY, all = 0, sum = 0;
    for (int e = lane; e < a.scores; e += WARP) {
        logit[e] = in[e];
        top = fmaxf(top, in[e]);
    }
    for (int i = lane; i < (a.scores + 31) / 32; i += WARP)
        chosen[i] = 0;
    top = warp_max(top);
    for (int e = lane; e < a.scores; e += WARP)
        all += expf(in[e] - top);
    all = warp_sum(all);
    for (int e = lane; a.scored && e < a.scores; e += WARP)
        logit[e] = route_score_of(a, in[e], top, all) + (a.bias ? a.bias[e] : 0);
    __syncwarp();
    if (a.groups)
        choose_groups(a, logit, (float *)(chosen + (a.scores + 31) / 32));
    for (int n = 0; n < a.used; n++) {
        int best = a.scores;
        for (int e = lane; e < a.scores; e += WARP)
            if (!(chosen[e / 32] >> e % 32 & 1) && (best == a.scores || logit[e] > logit[best]))
                best = e;
        for (int step = WARP / 2; step; step /= 2) {
            const int other = __shfl_xor_sync(0xffffffff, best, step);
            if (other < a.scores && (best == a.scores || logit[other] > logit[best] ||
                                     (!(logit[best] > logit[other]) && other < best)))
                best = other;
        }
        __syncwarp();
        if (lane == 0)
            chosen[best / 32] |= 1u << best % 32;
        __syncwarp();
    }
    if (lane)
        return;
    int n = 0, spare = a.used;
    for (int e = 0; e < a.scores / a.share; e++)
        spare -= times_chosen(a, chosen, e) > 0;
    for (int place = 0; place < a.scores / a.share; place++) {
        const int e = a.order ? (int)a.order[place] : place;
        const int times = times_chosen(a, chosen, e);
        if (!times && spare-- <= 0)
            continue;
        out[n] = (float)place;
        out[a.used + n] =
            (float)times * (a.scored ? route_score_of(a, in[e], top, all) : expf(logit[e] - top));
        sum += out[a.used + n++];
    }
    const float factor = a.scale != 0 ? a.scale : 1;
    for (n = 0; n < a.used; n++)
        out[a.used + n] = out[a.used + n] /
                          (!a.scored ? (a.norm ? sum : all)
                           : a.norm  ? fmaxf(sum, 0x1p-14f)
                                     : 1) *
                          factor;
}

/* Lists the columns of the expert whose matrices are number blockIdx.x. Every block counts the
 * pairs of all experts, so none has to wait for another one's; a warp takes a stretch of pairs, and
 * places its own behind those that the warps before it have. Integers are counted: in any order
 * they come to the same. */
KERNEL(expert_groups, ROW_THREADS, cuda_group_args)
{
    __shared__ int of_warp[ROW_THREADS / WARP];
    int *count = (int *)SHARED_ROOM; /* [places] */
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, expert = blockIdx.x;
    const int stretch = (a.pairs + ROW_THREADS - 1) / ROW_THREADS * WARP;
    const int begin = warp * stretch, end = min(a.pairs, begin + stretch), used = a.choice.used;
    for (int e = threadIdx.x; e < a.choice.places; e += ROW_THREADS)
        count[e] = 0;
    __syncthreads();
    int own = 0;
    for (int p = begin + lane; p < end; p += WARP) {
        const int e = expert_place(a.choice, p / used, p % used);
        own += e == expert;
        if (e >= 0)
            atomicAdd(&count[e], 1);
    }
    own = warp_sum(own);
    if (lane == 0)
        of_warp[warp] = own;
    __syncthreads();
    int first = 0, tile = 0; /* columns and tiles of the experts before */
    for (int e = lane; e < expert; e += WARP) {
        first += count[e];
        tile += (count[e] + MATRIX_TILE - 1) / MATRIX_TILE;
    }
    first = warp_sum(first);
    tile = warp_sum(tile);
    int at = first;
    for (int w = 0; w < warp; w++)
        at += of_warp[w];
    for (int from = begin; from < end; from += WARP) {
        const int p = from + lane;
        const bool mine = p < end && expert_place(a.choice, p / used, p % used) == expert;
        const uint32_t all = __ballot_sync(0xffffffff, mine);
        if (mine)
            a.column[at + __popc(all & ((1u << lane) - 1))] = {a.tokens ? p / used : p, p};
        at += __popc(all);
    }
    const int n = count[expert], tiles = (n + MATRIX_TILE - 1) / MATRIX_TILE;
    for (int i = threadIdx.x; i < tiles; i += ROW_THREADS)
        a.tile[tile + i] = {expert, first + i * MATRIX_TILE,
                            min((int)MATRIX_TILE, n - i * MATRIX_TILE)};
    if (expert < a.choice.places - 1)
        return;
    for (int i = tile + tiles + threadIdx.x; i < a.tiles; i += ROW_THREADS)
        a.tile[i] = {0, 0, 0};
}

KERNEL(expert_gate, ROW_THREADS, cuda_expert_parts_args)
{
    const int i = blockIdx.x * ROW_THREADS + threadIdx.x, used = a.choice.used;
    const int64_t pair = blockIdx.y, at = pair * a.n + i;
    if (i >= a.n || expert_place(a.choice, pair / used, pair % used) < 0)
        return;
    const int expert = chosen_expert(a.choice, pair / used, pair % used);
    const float weight = expert_weight(a.choice, pair / used, pair % used);
    a.y[at] = gated(
        a.activation, a.extras.limit, expert_product(a.extras, 0, expert, weight, a.n, i, a.y[at]),
        a.extras.single ? 1 : expert_product(a.extras, 1, expert, weight, a.n, i, a.part[at]));
}

KERNEL(expert_sum, ROW_THREADS, cuda_expert_parts_args)
{
    const int i = blockIdx.x * ROW_THREADS + threadIdx.x;
    const int64_t token = blockIdx.y, pair = token * a.choice.used;
    if (i >= a.n)
        return;
    float sum = 0;
    for (int place = 0; place < a.choice.used; place++) {
        if (expert_place(a.choice, token, place) < 0)
            continue;
        const float weight = a.extras.weighs_input ? 1 : expert_weight(a.choice, token, place);
        sum = fmaf(weight,
                   expert_product(a.extras, 0, chosen_expert(a.choice, token, place), 1, a.n, i,
                                  a.part[(pair + place) * a.n + i]),
                   sum);
    }
    a.y[token * a.n + i] = sum;
}

KERNEL(expert_apart, ROW_THREADS, cuda_expert_parts_args)
{
    const int i = blockIdx.x * ROW_THREADS + threadIdx.x, used = a.choice.used;
    const int64_t pair = blockIdx.y, at = pair * a.n + i;
    if (i >= a.n || expert_place(a.choice, pair / used, pair % used) < 0)
        return;
    a.y[at] = expert_product(a.extras, 0, chosen_expert(a.choice, pair / used, pair % used), 1, a.n,
                             i, a.part[at]);
}
