/*
 * warp.cpp - the operations of a warp, each by its definition (PTX ISA: shfl.sync, vote.sync,
 * ldmatrix.sync, mma.sync). The last lane to arrive runs one for all lanes of the mask.
 */
#include "tests/cuda_on_cpu/cuda_on_cpu.h"

#include <atomic>

namespace cuda_on_cpu
{
namespace
{
enum { M = 16, N = 8 }; /* of a product: rows of a, columns of b */
std::atomic<uint64_t> products;

void run_sync(exchange *, uint32_t)
{
}

void run_ballot(exchange *lanes, uint32_t mask)
{
    uint32_t votes = 0;
    for (int i = 0; i < WARP_LANES; i++)
        if (mask >> i & 1)
            votes |= lanes[i].given[0] << i;
    for (int i = 0; i < WARP_LANES; i++)
        if (mask >> i & 1)
            lanes[i].taken[0] = votes;
}

/* given: the value and from which lane the other one is wanted. A lane outside the mask has none.
 */
void run_shuffle(exchange *lanes, uint32_t mask)
{
    for (int i = 0; i < WARP_LANES; i++) {
        if (!(mask >> i & 1))
            continue;
        uint32_t source = lanes[i].given[2];
        bool there = source < WARP_LANES && (mask >> source & 1);
        lanes[i].taken[0] = there ? lanes[source].given[0] : 0xffffa5a5;
        lanes[i].taken[1] = there ? lanes[source].given[1] : 0xffffa5a5;
    }
}

/* c += a b. Lane i has of a the rows i / 4 and that plus 8, of b the column i / 4, of the depth
 * what its place in the group of four says: a register holds `packed` neighbours, the upper
 * registers have the upper half. Of c it has two columns of the same rows. */
template <int depth, class T, class Sum, T element(uint32_t word, int i)>
void run_product(exchange *lanes, uint32_t)
{
    constexpr int packed = depth / 8;
    Sum a[M][depth], b[depth][N], c[M][N];
    for (int i = 0; i < WARP_LANES; i++) {
        int group = i / 4, place = i % 4;
        for (int e = 0; e < packed; e++) {
            int k = place * packed + e;
            for (int r = 0; r < 4; r++)
                a[group + r % 2 * 8][k + r / 2 * (depth / 2)] = element(lanes[i].given[r], e);
            for (int r = 0; r < 2; r++)
                b[k + r * (depth / 2)][group] = element(lanes[i].given[4 + r], e);
        }
        for (int r = 0; r < 4; r++)
            std::memcpy(&c[group + r / 2 * 8][place * 2 + r % 2], &lanes[i].given[6 + r], 4);
    }
    products++;
    for (int m = 0; m < M; m++)
        for (int k = 0; k < depth; k++)
            for (int n = 0; n < N; n++)
                c[m][n] += a[m][k] * b[k][n];
    for (int i = 0; i < WARP_LANES; i++)
        for (int r = 0; r < 4; r++)
            std::memcpy(&lanes[i].taken[r], &c[i / 4 + r / 2 * 8][i % 4 * 2 + r % 2], 4);
}

/* given: row i % 8 of tile i / 8. Taken: of each tile two neighbours of a column. */
void run_tiles(exchange *lanes, uint32_t)
{
    for (int i = 0; i < WARP_LANES; i++)
        for (int tile = 0; tile < 4; tile++) {
            uint16_t pair[2];
            for (int e = 0; e < 2; e++) {
                const exchange &row = lanes[tile * 8 + i % 4 * 2 + e];
                pair[e] = static_cast<uint16_t>(row.given[i / 8] >> i / 4 % 2 * 16);
            }
            lanes[i].taken[tile] = pair[0] | static_cast<uint32_t>(pair[1]) << 16;
        }
}

int8_t byte_of(uint32_t word, int i)
{
    return static_cast<int8_t>(word >> 8 * i);
}

float half_of(uint32_t word, int i)
{
    return half_to_float(static_cast<uint16_t>(word >> 16 * i));
}

float bfloat_of(uint32_t word, int i)
{
    return __uint_as_float(word >> 16 * i << 16);
}
} // namespace

const warp_operation sync_lanes = {"__syncwarp", run_sync};
const warp_operation ballot = {"__ballot_sync (or any, all)", run_ballot};
const warp_operation shuffle = {"__shfl_sync", run_shuffle};
const warp_operation shuffle_up = {"__shfl_up_sync", run_shuffle};
const warp_operation shuffle_down = {"__shfl_down_sync", run_shuffle};
const warp_operation shuffle_xor = {"__shfl_xor_sync", run_shuffle};
const warp_operation product_s8 = {"mma_s8", run_product<32, int8_t, int32_t, byte_of>};
const warp_operation product_f16 = {"mma_f16", run_product<16, float, float, half_of>};
const warp_operation product_bf16 = {"mma_bf16", run_product<16, float, float, bfloat_of>};
const warp_operation tiles = {"load_tiles", run_tiles};
} // namespace cuda_on_cpu

/* How often a warp has multiplied on tensor cores, for tests that count. */
extern "C" __attribute__((visibility("default"))) uint64_t cuda_on_cpu_products(void)
{
    return cuda_on_cpu::products;
}
