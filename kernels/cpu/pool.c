/*
 * pool.c - the persistent threads of a cpu device and the barrier between records.
 *
 * Waiting spins and then sleeps on a futex. Between steps it spins for some microseconds, so that
 * an idle device costs nothing. Within a step it spins for long: whoever sleeps gives its core
 * away for a whole time slice when the machine is shared, once a barrier. It yields before that,
 * lest it hold the core of the thread that it waits for; what was waited since counts as late, and
 * crowd.c decides by it how many threads the next steps have.
 *
 * Where the scheduler could do worse (several threads a core, several NUMA nodes) workers are
 * bound: each to a core of its own when there is a worker for every core, else to the cores of a
 * node, so that two processes do not choose the same ones. The calling thread belongs to the
 * program and is never bound.
 */
#include "kernels/cpu/pool.h"
#include "kernels/cpu/kernels_internal.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

/* A host samples between two steps. After YIELD_NS within a step somebody else may have the core:
 * on a shared machine it can be the thread that is waited for. */
enum { IDLE_NS = 500000, BARRIER_NS = 10000000, YIELD_NS = 250000, YIELD_EVERY = 64 };

static const struct read_ahead nothing;

static void futex_wait(_Atomic uint32_t *word, uint32_t seen)
{
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

static void futex_wake_all(_Atomic uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

/* Returns what *word holds once that is not `seen`. Whoever changes it calls word_changed after.
 * Spins for ns; meanwhile it fetches what will be read next, if anything. *late_ns (may be NULL)
 * grows by what it waited after YIELD_NS. */
static uint32_t word_wait(_Atomic uint32_t *word, uint32_t seen, uint64_t ns,
                          _Atomic uint32_t *sleepers, struct read_ahead next,
                          _Atomic uint64_t *late_ns)
{
    const int32_t spins = spins_in(ns), patient = spins_in(YIELD_NS);
    uint64_t late_since = 0;
    uint32_t now = seen;
    for (int32_t i = 0; i < spins; i++) {
        now = atomic_load_explicit(word, memory_order_acquire);
        if (now != seen)
            break;
        if ((uint64_t)i * 64 < next.bytes)
            __builtin_prefetch(next.from + (size_t)i * 64, 0, 2);
        else if (i < patient || i % YIELD_EVERY)
            cpu_relax();
        else
            sched_yield();
        if (i == patient && late_ns)
            late_since = now_ns();
    }
    if (now == seen) {
        atomic_fetch_add(sleepers, 1);
        while ((now = atomic_load(word)) == seen)
            futex_wait(word, seen);
        atomic_fetch_sub(sleepers, 1);
    }
    if (late_since)
        atomic_fetch_add_explicit(late_ns, now_ns() - late_since, memory_order_relaxed);
    return now;
}

static void word_changed(_Atomic uint32_t *word, _Atomic uint32_t *sleepers)
{
    if (atomic_load(sleepers))
        futex_wake_all(word);
}

void cpu_barrier_init(struct cpu_barrier *b, int n)
{
    atomic_init(&b->arrived, 0);
    atomic_init(&b->phase, 0);
    atomic_init(&b->sleepers, 0);
    atomic_init(&b->late_ns, 0);
    b->n = n;
}

static void barrier_wait(struct cpu_barrier *b, struct read_ahead next, _Atomic uint64_t *late_ns)
{
    if (b->n <= 1)
        return;
    uint32_t phase = atomic_load_explicit(&b->phase, memory_order_relaxed);
    if (atomic_fetch_add(&b->arrived, 1) + 1 == (uint32_t)b->n) {
        atomic_store_explicit(&b->arrived, 0, memory_order_relaxed);
        atomic_store(&b->phase, phase + 1);
        word_changed(&b->phase, &b->sleepers);
    } else {
        word_wait(&b->phase, phase, BARRIER_NS, &b->sleepers, next, late_ns);
    }
}

void cpu_barrier_wait(struct cpu_barrier *b)
{
    barrier_wait(b, nothing, &b->late_ns);
}

void cpu_barrier_wait_fetching(struct cpu_barrier *b, struct read_ahead next)
{
    barrier_wait(b, next, &b->late_ns);
}

void cpu_barrier_wait_device(struct cpu_barrier *b, struct read_ahead next)
{
    barrier_wait(b, next, NULL);
}

uint32_t cpu_barrier_phase(const struct cpu_barrier *b)
{
    return atomic_load_explicit(&b->phase, memory_order_relaxed);
}

#if defined(__aarch64__)
static uint64_t fpcr_get(void)
{
    uint64_t state;
    __asm__ volatile("mrs %0, fpcr" : "=r"(state));
    return state;
}

static void fpcr_set(uint64_t state)
{
    __asm__ volatile("msr fpcr, %0" : : "r"(state));
}
#endif

uint32_t float_state_fast(void)
{
#if defined(__x86_64__)
    uint32_t old = _mm_getcsr();
    _mm_setcsr(old | 0x8040); /* flush to zero, denormals are zero */
    return old;
#elif defined(__aarch64__)
    uint64_t old = fpcr_get();
    fpcr_set(old | 1u << 24); /* FZ: denormal inputs and results are zero */
    return (uint32_t)old;
#else
    return 0;
#endif
}

void float_state_set(uint32_t state)
{
#if defined(__x86_64__)
    _mm_setcsr(state);
#elif defined(__aarch64__)
    fpcr_set(state);
#else
    (void)state;
#endif
}

/* ----------------------------------------------------------------------------------- pool - */

struct worker {
    struct cpu_pool *pool;
    pthread_t thread;
    int index;
    hwloc_const_cpuset_t cpus; /* NULL: where the scheduler likes */
};

struct cpu_pool {
    _Alignas(64) _Atomic uint32_t epoch; /* raised to begin a run */
    _Atomic uint32_t epoch_sleepers;
    _Alignas(64) _Atomic uint32_t busy; /* workers that have not finished */
    _Atomic uint32_t busy_sleepers;
    _Alignas(64) cpu_pool_fn fn; /* of the run that `epoch` began */
    void *arg;
    struct worker *workers; /* [1, n_threads) */
    hwloc_topology_t topology;
    int n_threads;
    _Atomic bool stop;
};

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    struct cpu_pool *p = w->pool;
    if (w->cpus)
        hwloc_set_cpubind(p->topology, w->cpus, HWLOC_CPUBIND_THREAD);
    float_state_fast();
    bool runs = true;
    for (uint32_t epoch = 0;;) {
        epoch = word_wait(&p->epoch, epoch, runs ? IDLE_NS : 0, &p->epoch_sleepers, nothing, NULL);
        if (atomic_load(&p->stop))
            return NULL;
        runs = epoch % CPU_THREADS_MAX >= (uint32_t)w->index;
        if (!runs) /* nobody waits for this thread, and what is below may be of a later run */
            continue;
        p->fn(p->arg, w->index);
        if (atomic_fetch_sub(&p->busy, 1) == 1)
            word_changed(&p->busy, &p->busy_sleepers);
    }
}

void cpu_pool_run_some(struct cpu_pool *p, int threads, cpu_pool_fn fn, void *arg)
{
    uint32_t state = float_state_fast();
    if (threads > 1) {
        const uint32_t serial = atomic_load(&p->epoch) / CPU_THREADS_MAX + 1;
        p->fn = fn;
        p->arg = arg;
        atomic_store(&p->busy, (uint32_t)threads - 1);
        atomic_store(&p->epoch, serial * CPU_THREADS_MAX + (uint32_t)threads - 1);
        word_changed(&p->epoch, &p->epoch_sleepers);
    }
    fn(arg, 0);
    if (threads > 1) {
        for (uint32_t busy; (busy = atomic_load(&p->busy)) != 0;)
            word_wait(&p->busy, busy, BARRIER_NS, &p->busy_sleepers, nothing, NULL);
    }
    float_state_set(state);
}

void cpu_pool_run(struct cpu_pool *p, cpu_pool_fn fn, void *arg)
{
    cpu_pool_run_some(p, p->n_threads, fn, arg);
}

int cpu_pool_threads(const struct cpu_pool *p)
{
    return p->n_threads;
}

#define HWLOC_BYTES ((size_t)16 << 20) /* more than it takes; a failed allocation crashes it */

/* The processors that this process may run on, with their cores. */
static bool topology_load(hwloc_topology_t *t)
{
    /* Cores and nodes need no plugin, and those of Debian bring X11, OpenCL and libxml2 with ICU:
     * 3 MiB and a fifth of a second. */
    setenv("HWLOC_PLUGINS_PATH", "/dev/null", 0);
    if (!memory_spare(HWLOC_BYTES) || hwloc_topology_init(t))
        return false;
    hwloc_topology_set_all_types_filter(*t, HWLOC_TYPE_FILTER_KEEP_NONE);
    hwloc_topology_set_type_filter(*t, HWLOC_OBJ_CORE, HWLOC_TYPE_FILTER_KEEP_ALL);
    hwloc_topology_set_flags(*t, HWLOC_TOPOLOGY_FLAG_RESTRICT_TO_CPUBINDING |
                                     HWLOC_TOPOLOGY_FLAG_IS_THISSYSTEM);
    if (hwloc_topology_load(*t)) {
        hwloc_topology_destroy(*t);
        return false;
    }
    return true;
}

static int topology_cores(hwloc_topology_t t)
{
    int cores = hwloc_get_nbobjs_by_type(t, HWLOC_OBJ_CORE);
    return cores > 0 ? cores : hwloc_get_nbobjs_by_type(t, HWLOC_OBJ_PU);
}

int cpu_physical_cores(void)
{
    hwloc_topology_t t;
    if (!topology_load(&t)) {
        long n = sysconf(_SC_NPROCESSORS_ONLN);
        return n > 0 ? (int)n : 1;
    }
    int cores = topology_cores(t);
    hwloc_topology_destroy(t);
    return cores > 0 ? cores : 1;
}

/* The thread's own core; NULL unless there is a thread for each: else two processes would choose
 * the same ones. */
static hwloc_obj_t core_of(hwloc_topology_t t, int n_threads, int thread)
{
    if (!t || hwloc_get_nbobjs_by_type(t, HWLOC_OBJ_CORE) != n_threads)
        return NULL;
    return hwloc_get_obj_by_type(t, HWLOC_OBJ_CORE, (unsigned)thread);
}

/* The node of a core. */
static hwloc_obj_t node_of(hwloc_topology_t t, hwloc_obj_t core)
{
    hwloc_obj_t node = NULL;
    while (core && (node = hwloc_get_next_obj_by_type(t, HWLOC_OBJ_NUMANODE, node)))
        if (hwloc_bitmap_isincluded(core->cpuset, node->cpuset))
            return node;
    return NULL;
}

/* Threads that leave cores free are spread in proportion to the cores of each node. */
hwloc_const_cpuset_t cpu_place(hwloc_topology_t t, int n_threads, int thread)
{
    const int cores = hwloc_get_nbobjs_by_type(t, HWLOC_OBJ_CORE);
    const int units = hwloc_get_nbobjs_by_type(t, HWLOC_OBJ_PU);
    const int nodes = hwloc_get_nbobjs_by_type(t, HWLOC_OBJ_NUMANODE);
    if (units == cores && nodes <= 1)
        return NULL;
    hwloc_obj_t place = core_of(t, n_threads, thread);
    if (!place && nodes > 1 && n_threads < cores)
        place = node_of(t, hwloc_get_obj_by_type(t, HWLOC_OBJ_CORE,
                                                 (unsigned)((int64_t)thread * cores / n_threads)));
    return place ? place->cpuset : NULL;
}

hwloc_bitmap_t cpu_pool_bind(const struct cpu_pool *p, int thread)
{
    const hwloc_obj_t core = core_of(p->topology, p->n_threads, thread);
    hwloc_bitmap_t before = core ? hwloc_bitmap_alloc() : NULL;
    if (before && (hwloc_get_cpubind(p->topology, before, HWLOC_CPUBIND_THREAD) ||
                   hwloc_set_cpubind(p->topology, core->cpuset, HWLOC_CPUBIND_THREAD))) {
        hwloc_bitmap_free(before);
        return NULL;
    }
    return before;
}

void cpu_pool_unbind(const struct cpu_pool *p, hwloc_bitmap_t before)
{
    if (!before)
        return;
    hwloc_set_cpubind(p->topology, before, HWLOC_CPUBIND_THREAD);
    hwloc_bitmap_free(before);
}

/* Pieces of a record are dealt as threads come free, so no node is the right one for a row: pages
 * go to all nodes in turn. Where that is not allowed they lie where they are first touched. */
void cpu_pool_spread(const struct cpu_pool *p, void *data, uint64_t bytes)
{
    if (p->topology && hwloc_get_nbobjs_by_type(p->topology, HWLOC_OBJ_NUMANODE) > 1)
        hwloc_set_area_membind(p->topology, data, bytes,
                               hwloc_topology_get_topology_nodeset(p->topology),
                               HWLOC_MEMBIND_INTERLEAVE, HWLOC_MEMBIND_BYNODESET);
}

oato_status cpu_pool_create(int n_threads, struct cpu_pool **out, struct oato_error *err)
{
    struct cpu_pool *p = aligned_alloc(64, size_align(sizeof *p, 64));
    if (!p)
        return oato_fail_memory(err, sizeof *p, "the thread pool");
    memset(p, 0, sizeof *p);
    p->n_threads = 1;
    p->workers = calloc((size_t)n_threads, sizeof *p->workers);
    if (!p->workers) {
        cpu_pool_free(p);
        return oato_fail_memory(err, (size_t)n_threads * sizeof *p->workers, "the thread pool");
    }
    if (n_threads > 1 && !topology_load(&p->topology))
        p->topology = NULL;
    for (int i = 1; i < n_threads; i++) {
        p->workers[i].cpus = p->topology ? cpu_place(p->topology, n_threads, i) : NULL;
        p->workers[i].pool = p;
        p->workers[i].index = i;
        int e = pthread_create(&p->workers[i].thread, NULL, worker_main, &p->workers[i]);
        if (e) {
            cpu_pool_free(p);
            return oato_fail(err, OATO_EFIT,
                             "cpu: cannot start thread %d of %d: %s; use fewer --threads", i + 1,
                             n_threads, strerror(e));
        }
        p->n_threads = i + 1;
    }
    *out = p;
    return OATO_OK;
}

void cpu_pool_free(struct cpu_pool *p)
{
    if (!p)
        return;
    atomic_store(&p->stop, true);
    atomic_fetch_add(&p->epoch, CPU_THREADS_MAX);
    futex_wake_all(&p->epoch);
    for (int i = 1; i < p->n_threads; i++)
        pthread_join(p->workers[i].thread, NULL);
    if (p->topology)
        hwloc_topology_destroy(p->topology);
    free(p->workers);
    free(p);
}
