/*
 * nccl.cpp - the emulated GPU's NCCL: messages between the GPUs of several processes of one host,
 * in the stream's order. Messages of a group move together, as those of the real one do; each alone
 * waits for its counterpart.
 *
 * Stricter than the real one: memory is whole in an allocation, what is received lies apart from
 * what is sent in the group, and the ranks must not leave while a message is under way.
 */
#include "tests/cuda_on_cpu/driver.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

extern "C" {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wshadow" /* see driver.h */
#include "kernels/cuda/cuda_nccl.h"
#pragma GCC diagnostic pop

#define DECLARE(member, symbol, arguments)                                                         \
    __attribute__((visibility("default")))                                                         \
    nccl_status on_cpu_nccl_##member arguments __asm__(symbol);
CUDA_NCCL_FUNCTIONS(DECLARE)
#undef DECLARE
__attribute__((visibility("default"))) const char *
on_cpu_nccl_text(nccl_status status) __asm__(CUDA_NCCL_TEXT);
}

namespace cuda_on_cpu
{
namespace
{
enum { UNHANDLED_CUDA_ERROR = 1, SYSTEM_ERROR = 2, INVALID_ARGUMENT = 4, INVALID_USAGE = 5 };
enum { MOST_RANKS = 8, PIECE = 16 << 10 };

/* From one rank to another: a piece of a message at a time. */
struct mailbox {
    std::atomic<uint64_t> sent, taken; /* pieces */
    uint8_t piece[PIECE];
};

struct shared {
    std::atomic<int> joined;
    mailbox box[MOST_RANKS][MOST_RANKS]; /* [from][to] */
};

/* A message, and how much of it has moved. */
struct message {
    uint8_t *at;
    size_t bytes, done;
    int other;
    bool sends;
};

/* What this thread has begun between group_begin and group_end. */
struct group {
    bool open = false;
    cu_stream stream = nullptr;
    nccl_ranks ranks = nullptr;
    std::vector<message> messages;
};
thread_local group now;
} // namespace
} // namespace cuda_on_cpu

struct ncclComm {
    cu_context gpu;
    int rank, n;
    cuda_on_cpu::shared *common;
    std::atomic<int> under_way;
};

namespace cuda_on_cpu
{
namespace
{
/* Moves a piece, if the other side is ready for it. */
bool move_piece(ncclComm *c, message *m)
{
    mailbox &box = m->sends ? c->common->box[c->rank][m->other] : c->common->box[m->other][c->rank];
    const size_t left = m->bytes - m->done, bytes = left < PIECE ? left : size_t{PIECE};
    const bool full =
        box.sent.load(std::memory_order_acquire) != box.taken.load(std::memory_order_acquire);
    if (!left || full == m->sends)
        return false;
    if (m->sends)
        memcpy(box.piece, m->at + m->done, bytes);
    else
        memcpy(m->at + m->done, box.piece, bytes);
    (m->sends ? box.sent : box.taken).fetch_add(1, std::memory_order_release);
    m->done += bytes;
    return true;
}

void move_all(ncclComm *c, std::vector<message> messages)
{
    for (bool left = true; left;) {
        bool moved = false;
        left = false;
        for (message &m : messages) {
            moved = move_piece(c, &m) || moved;
            left = left || m.done < m.bytes;
        }
        if (!moved)
            sched_yield();
    }
    c->under_way--;
}

nccl_status begin(void *at, size_t n, nccl_type type, int other, nccl_ranks c, cu_stream stream,
                  bool sends)
{
    locked lock(state().lock);
    const size_t bytes = n * sizeof(float);
    if (!c || !now.open || (now.ranks && (now.ranks != c || now.stream != stream)))
        return INVALID_USAGE;
    if (check_stream(stream) || stream->gpu != c->gpu)
        return UNHANDLED_CUDA_ERROR;
    if (type != NCCL_FLOAT32 || other < 0 || other >= c->n || other == c->rank ||
        !is_inside(c->gpu, reinterpret_cast<cu_address>(at), bytes))
        return INVALID_ARGUMENT;
    for (const message &m : now.messages)
        if (m.sends != sends && m.at < static_cast<uint8_t *>(at) + bytes &&
            static_cast<uint8_t *>(at) < m.at + m.bytes)
            return INVALID_ARGUMENT;
    now.ranks = c;
    now.stream = stream;
    now.messages.push_back({static_cast<uint8_t *>(at), bytes, 0, other, sends});
    return NCCL_OK;
}

shared *common_map(const char *name, bool make)
{
    const int file = shm_open(name, make ? O_RDWR | O_CREAT | O_EXCL : O_RDWR, 0600);
    void *p = MAP_FAILED;
    if (file >= 0 && (!make || !ftruncate(file, sizeof(shared))))
        p = mmap(nullptr, sizeof(shared), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (file >= 0)
        close(file);
    return p == MAP_FAILED ? nullptr : static_cast<shared *>(p);
}
} // namespace
} // namespace cuda_on_cpu

using namespace cuda_on_cpu;

nccl_status on_cpu_nccl_get_version(int *version)
{
    *version = static_cast<int>(setting("NCCL_VERSION", 22809));
    return NCCL_OK;
}

nccl_status on_cpu_nccl_make_id(nccl_id *id)
{
    static int made;
    snprintf(id->bytes, sizeof id->bytes, "/oato-nccl-%d-%d", static_cast<int>(getpid()), made++);
    shared *common = common_map(id->bytes, true);
    if (common)
        munmap(common, sizeof *common);
    return common ? NCCL_OK : int{SYSTEM_ERROR};
}

/* The name is gone once all have joined. */
nccl_status on_cpu_nccl_join(nccl_ranks *ranks, int n, nccl_id id, int rank)
{
    cu_context gpu;
    {
        locked lock(state().lock);
        if (current_context(&gpu))
            return UNHANDLED_CUDA_ERROR;
    }
    if (n < 1 || n > MOST_RANKS || rank < 0 || rank >= n)
        return INVALID_ARGUMENT;
    shared *common = common_map(id.bytes, false);
    if (!common)
        return SYSTEM_ERROR;
    common->joined++;
    while (common->joined < n)
        sched_yield();
    if (!rank)
        shm_unlink(id.bytes);
    *ranks = new ncclComm{gpu, rank, n, common, {0}};
    return NCCL_OK;
}

nccl_status on_cpu_nccl_leave(nccl_ranks ranks)
{
    if (ranks->under_way) {
        std::fputs("ncclCommDestroy: messages are under way\n", stderr);
        std::abort();
    }
    munmap(ranks->common, sizeof *ranks->common);
    delete ranks;
    return NCCL_OK;
}

nccl_status on_cpu_nccl_group_begin(void)
{
    now = {};
    now.open = true;
    return NCCL_OK;
}

nccl_status on_cpu_nccl_group_end(void)
{
    const group ended = now;
    now = {};
    if (!ended.open)
        return INVALID_USAGE;
    if (!ended.ranks)
        return NCCL_OK;
    locked lock(state().lock);
    ended.ranks->under_way++;
    enqueue(ended.stream, {WORK_LAUNCH, [=] { move_all(ended.ranks, ended.messages); }});
    return NCCL_OK;
}

nccl_status on_cpu_nccl_send(const void *from, size_t n, nccl_type type, int to, nccl_ranks ranks,
                             cu_stream stream)
{
    return begin(const_cast<void *>(from), n, type, to, ranks, stream, true);
}

nccl_status on_cpu_nccl_receive(void *to, size_t n, nccl_type type, int from, nccl_ranks ranks,
                                cu_stream stream)
{
    return begin(to, n, type, from, ranks, stream, false);
}

const char *on_cpu_nccl_text(nccl_status status)
{
    return status == NCCL_OK                ? "no error"
           : status == UNHANDLED_CUDA_ERROR ? "unhandled cuda error"
           : status == SYSTEM_ERROR         ? "unhandled system error"
           : status == INVALID_ARGUMENT     ? "invalid argument"
                                            : "invalid usage";
}
