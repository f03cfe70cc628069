/*
 * deal.c - how the threads that run a record share its units: half of them are divided beforehand,
 * the others go to whoever is free, so that one slow thread does not hold up the rest.
 */
#include "kernels/cpu/record_internal.h"

int64_t deal_own(int64_t units, int n_threads)
{
    return n_threads > 1 ? units / (2 * n_threads) : units;
}

/* The counter of what is dealt carries the barrier's phase: what an earlier record left there is
 * out of date by itself. */
bool deal_next(struct deal *d, int64_t *begin, int64_t *end)
{
    const struct run *x = d->x;
    const int64_t own = deal_own(d->units, x->n_threads);
    if (!d->begun && own) {
        d->begun = true;
        *begin = x->thread * own;
        *end = *begin + own;
        return true;
    }
    if (x->n_threads == 1)
        return false;
    _Atomic uint64_t *dealt = (_Atomic uint64_t *)x->c->workspace;
    const uint64_t tag = (uint64_t)cpu_barrier_phase(x->barrier) << 32;
    uint64_t seen = atomic_load_explicit(dealt, memory_order_relaxed), next;
    do {
        const bool current = (seen & ~(uint64_t)UINT32_MAX) == tag;
        *begin = max_i64(own * x->n_threads, current ? (int64_t)(seen & UINT32_MAX) : 0);
        if (*begin >= d->units)
            return false;
        *end = *begin + max_i64(1, (d->units - *begin) / (2 * x->n_threads));
        next = tag | (uint64_t)*end;
    } while (!atomic_compare_exchange_weak_explicit(dealt, &seen, next, memory_order_relaxed,
                                                    memory_order_relaxed));
    return true;
}
