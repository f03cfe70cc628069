/*
 * timeline.c - a device's event: a counter that only rises. One thread signals, any thread waits.
 *
 * A waiter spins for some microseconds, because most waits are shorter than a sleep costs; for a
 * real device's longer, since steps go from one to another at every layer, and in a virtual machine
 * a wake-up takes as long as a layer. A simulated device computes on the very cores. Then the
 * waiter sleeps on a futex word that every signal changes. It announces itself in `sleepers` before
 * it reads the word, and the signaller changes the word before it reads `sleepers`; both orders are
 * sequentially consistent, so one of the two always sees the other and no wake-up is lost.
 */
#include "kernels/device.h"

#include <linux/futex.h>
#include <sched.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
    SPIN_NS = 20000,
    YIELD_EVERY = 64,        /* spins after that, for the thread may be waiting for a core */
    LONG_SPIN_NS = 10000000, /* a decode step of a device that is none of our threads */
    STOP_POLL_NS = 20000000, /* how late a stop may be noticed */
};

void timeline_init(struct timeline *t)
{
    memset(t, 0, sizeof *t);
}

void timeline_wake(struct timeline *t)
{
    atomic_fetch_add(&t->word, 1);
    if (atomic_load(&t->sleepers))
        syscall(SYS_futex, &t->word, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

void timeline_raise(struct timeline *t, uint64_t value, uint64_t clock_ns)
{
    uint64_t old = atomic_load_explicit(&t->value, memory_order_relaxed);
    if (value <= old)
        return;
    /* values that are jumped over are reached now as well */
    uint64_t first = value - old < TIMELINE_RING ? old + 1 : value - TIMELINE_RING + 1;
    for (uint64_t v = first; v <= value; v++)
        __atomic_store_n(&t->clock_ns[v % TIMELINE_RING], clock_ns, __ATOMIC_RELAXED);
    atomic_store(&t->value, value);
}

void timeline_signal(struct timeline *t, uint64_t value, uint64_t clock_ns)
{
    timeline_raise(t, value, clock_ns);
    timeline_wake(t);
}

void timeline_fail(struct timeline *t, enum timeline_failure why)
{
    int alive = TIMELINE_ALIVE;
    atomic_compare_exchange_strong(&t->failed, &alive, why);
    timeline_wake(t);
}

bool timeline_reached(struct timeline *t, uint64_t value)
{
    return atomic_load(&t->value) >= value;
}

static bool settled(struct timeline *t, uint64_t value)
{
    return atomic_load(&t->failed) || timeline_reached(t, value);
}

static void spin(struct timeline *t, uint64_t value)
{
    for (int32_t i = spins_in(SPIN_NS); i && !settled(t, value); i--)
        cpu_relax();
    if (t->simulated)
        return;
    const uint64_t end = now_ns() + LONG_SPIN_NS;
    for (int i = 1; !settled(t, value) && now_ns() < end; i++)
        if (i % YIELD_EVERY)
            cpu_relax();
        else
            sched_yield();
}

bool timeline_wait_unless(struct timeline *t, uint64_t value, uint64_t *clock_ns,
                          const _Atomic bool *stop)
{
    const struct timespec poll = {.tv_nsec = STOP_POLL_NS};
    if (!stop)
        spin(t, value);
    if (!settled(t, value)) {
        atomic_fetch_add(&t->sleepers, 1);
        for (;;) {
            uint32_t word = atomic_load(&t->word);
            if (settled(t, value) || (stop && atomic_load(stop)))
                break;
            syscall(SYS_futex, &t->word, FUTEX_WAIT_PRIVATE, word, stop ? &poll : NULL, NULL, 0);
        }
        atomic_fetch_sub(&t->sleepers, 1);
    }
    if (atomic_load(&t->failed) || atomic_load(&t->value) < value)
        return false;
    if (clock_ns)
        *clock_ns = __atomic_load_n(&t->clock_ns[value % TIMELINE_RING], __ATOMIC_RELAXED);
    return true;
}

bool timeline_wait(struct timeline *t, uint64_t value, uint64_t *clock_ns)
{
    return timeline_wait_unless(t, value, clock_ns, NULL);
}
