/*
 * test_cpu_pool.c - the threads of a cpu device: which cores they are bound to, where memory that
 * all of them read lies, how many compute while others want the cores, and that a slow core does
 * not hold up the others.
 */
#include "kernels/cpu/pool.h"
#include "kernels/cpu/record_internal.h"
#include "tests/kernels/test_cpu.h"

#include <sched.h>
#include <sys/syscall.h>

/* Policy of a page; -1: the kernel does not say. */
static int page_policy(const void *page)
{
    int mode = -1;
    return syscall(SYS_get_mempolicy, &mode, NULL, 0, page, 2 /* MPOL_F_ADDR */) ? -1 : mode;
}

static void memory_is_spread_over_numa_nodes(void **state)
{
    (void)state;
    static const struct {
        const char *machine;
        int policy;
    } rows[] = {{"numa:1 core:2 pu:1", 0}, {"numa:2 core:1 pu:1", 3 /* MPOL_INTERLEAVE */}};
    const uint64_t bytes = 1 << 20;
    /* hwloc binds, whatever the machine is said to be */
    setenv("HWLOC_THISSYSTEM", "1", 1);
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct cpu_pool *pool;
        struct oato_error err;
        setenv("HWLOC_SYNTHETIC", rows[i].machine, 1);
        assert_int_equal(cpu_pool_create(2, &pool, &err), OATO_OK);
        void *data = pages_alloc(bytes);
        cpu_pool_spread(pool, data, bytes);
        memset(data, 1, bytes);
        const int policy = page_policy(data);
        if (policy >= 0)
            assert_int_equal(policy, rows[i].policy);
        else
            print_message("the policy of pages cannot be read here\n");
        pages_free(data, bytes);
        cpu_pool_free(pool);
    }
    unsetenv("HWLOC_SYNTHETIC");
    unsetenv("HWLOC_THISSYSTEM");
}

/* Where each thread of a run may be: bound, and after. */
struct whereabouts {
    struct cpu_pool *pool;
    cpu_set_t before[2], bound[2], after[2];
    bool is_bound[2];
};

static void bind_and_look(void *arg, int thread)
{
    struct whereabouts *w = arg;
    sched_getaffinity(0, sizeof(cpu_set_t), &w->before[thread]);
    struct hwloc_bitmap_s *unbound = cpu_pool_bind(w->pool, thread);
    w->is_bound[thread] = unbound;
    sched_getaffinity(0, sizeof(cpu_set_t), &w->bound[thread]);
    cpu_pool_unbind(w->pool, unbound);
    sched_getaffinity(0, sizeof(cpu_set_t), &w->after[thread]);
}

static void bound_threads_have_cores_of_their_own(void **state)
{
    (void)state;
    struct oato_error err;
    struct whereabouts w = {.pool = NULL};
    assert_int_equal(cpu_pool_create(2, &w.pool, &err), OATO_OK);
    cpu_pool_run(w.pool, bind_and_look, &w);
    cpu_set_t both;
    CPU_AND(&both, &w.bound[0], &w.bound[1]);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(w.is_bound[i], cpu_physical_cores() > 1);
        assert_true(CPU_EQUAL(&w.before[i], &w.after[i]));
    }
    assert_int_equal(!CPU_COUNT(&both), w.is_bound[0]);
    cpu_pool_free(w.pool);
}

/* Processors of the thread of so many on the machine, as a list; "any". */
static void assert_place(const char *machine, int n_threads, int thread, const char *expected)
{
    hwloc_topology_t t;
    char text[64] = "any";
    assert_int_equal(hwloc_topology_init(&t), 0);
    assert_int_equal(hwloc_topology_set_synthetic(t, machine), 0);
    assert_int_equal(hwloc_topology_load(t), 0);
    const hwloc_const_cpuset_t place = cpu_place(t, n_threads, thread);
    if (place)
        hwloc_bitmap_list_snprintf(text, sizeof text, place);
    hwloc_topology_destroy(t);
    assert_string_equal(text, expected);
}

/* Where cores are left, another process may want them, and two must not choose the same ones. */
static void workers_are_bound_to_cores_only_when_they_use_all(void **state)
{
    (void)state;
    assert_place("numa:1 core:4 pu:1", 4, 3, "any"); /* the scheduler does as well */
    assert_place("numa:1 core:4 pu:2", 4, 3, "6-7");
    assert_place("numa:1 core:4 pu:2", 3, 2, "any");
    assert_place("numa:1 core:4 pu:2", 8, 5, "any");
    assert_place("numa:2 core:4 pu:1", 8, 5, "5");
    /* fewer: over all nodes */
    static const char *const nodes[] = {"0-3", "0-3", "4-7", "4-7"};
    for (int i = 1; i < 4; i++)
        assert_place("numa:2 core:4 pu:1", 4, i, nodes[i]);
    assert_place("numa:2 core:4 pu:1", 2, 1, "4-7");
    assert_place("numa:2 core:4 pu:1", 9, 1, "any");
}

static void crowded_steps_lose_threads_until_the_cores_are_free(void **state)
{
    (void)state;
    struct crowd c;
    const uint64_t ms = 1000000;
    uint64_t now = 1000 * ms;
    crowd_init(&c, 16);
    /* uneven pieces of work, or one step by chance, change nothing */
    for (int i = 0; i < 10; i++)
        crowd_note(&c, now += ms, ms, 16 * ms, 0);
    crowd_note(&c, now += ms, ms, 16 * ms, 3);
    assert_int_equal(c.threads, 16);
    for (int i = 0; i < 100; i++)
        crowd_note(&c, now += ms, ms, 0, 3);
    assert_int_equal(c.threads, 16);
    /* somebody needs three cores: three threads go */
    crowd_note(&c, now += 4 * ms, 4 * ms, 48 * ms, 6);
    assert_int_equal(c.threads, 16);
    crowd_note(&c, now += 4 * ms, 4 * ms, 48 * ms, 9);
    assert_int_equal(c.threads, 13);
    /* all of them: half and half again, never none */
    for (int i = 1; i < 10; i++)
        crowd_note(&c, now += 4 * ms, 4 * ms, 48 * ms, 9 + 100 * i);
    assert_int_equal(c.threads, 1);
    /* tries are rare while they go wrong: a twentieth of the time at most */
    uint64_t tries = 0, begin = now;
    for (int i = 0; i < 4000; i++) {
        const bool tried = c.threads > 1;
        tries += tried * 4 * ms;
        now += tried ? 4 * ms : ms;
        crowd_note(&c, now, tried ? 4 * ms : ms, tried ? 8 * ms : 0, c.switches + (tried ? 1 : 0));
    }
    assert_true(tries > 0 && tries * 20 < now - begin);
    /* and all come back when they do not */
    for (int i = 0; i < 1000; i++)
        crowd_note(&c, now += ms, ms, 0, c.switches);
    assert_int_equal(c.threads, 16);
}

/* The end of a record whose units take 1 on every first core and `slow` on every second one. */
static int64_t record_end(int n_threads, int64_t units, int slow)
{
    static _Alignas(64) uint8_t workspace[64];
    struct cpu_context c = {.workspace = workspace};
    struct cpu_barrier barrier;
    struct run x[16];
    struct deal deal[16];
    int64_t clock[16] = {0}, last = 0, done = 0, begin, end;
    memset(workspace, 0xff, sizeof workspace);
    cpu_barrier_init(&barrier, n_threads);
    for (int i = 0; i < n_threads; i++) {
        x[i] = (struct run){.c = &c, .barrier = &barrier, .thread = i, .n_threads = n_threads};
        deal[i] = (struct deal){.x = &x[i], .units = units};
    }
    for (int left = n_threads; left;) {
        int next = 0;
        for (int i = 1; i < n_threads; i++)
            if (clock[i] >= 0 && (clock[next] < 0 || clock[i] < clock[next]))
                next = i;
        if (deal_next(&deal[next], &begin, &end)) {
            done += end - begin;
            clock[next] += (end - begin) * (next % 2 ? slow : 1);
            last = max_i64(last, clock[next]);
        } else {
            clock[next] = -1;
            left--;
        }
    }
    assert_int_equal(done, units);
    return last;
}

/* Half of a record is dealt as threads come free: efficiency cores take what they can do meanwhile.
 */
static void slow_cores_take_smaller_shares(void **state)
{
    (void)state;
    for (int n = 2; n <= 16; n *= 2) {
        for (int slow = 1; slow <= 3; slow++) {
            const int64_t units = 32 * n;
            const double best = (double)units * 2 * slow / (n * (1.0 + slow));
            const int64_t got = record_end(n, units, slow), equal = units / n * slow;
            print_message("%2d threads, half of them %dx slower: %d; at best %.0f, in equal shares "
                          "%d\n",
                          n, slow, (int)got, best, (int)equal);
            assert_true((double)got < 1.15 * best);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_is_spread_over_numa_nodes),
        cmocka_unit_test(bound_threads_have_cores_of_their_own),
        cmocka_unit_test(workers_are_bound_to_cores_only_when_they_use_all),
        cmocka_unit_test(crowded_steps_lose_threads_until_the_cores_are_free),
        cmocka_unit_test(slow_cores_take_smaller_shares),
    };
    seed_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
