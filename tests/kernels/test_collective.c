/*
 * test_collective.c - sums, broadcasts and agreement between ranks that are forks of this process:
 * one order of summands whatever the tree, one rounding for each type between hosts, MPI's sums
 * where they are chosen, and the end of all when one fails or stops.
 */
#include "fork_transport.h"

#include "kernels/core/wire.h"
#include "kernels/ranks/collective.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

enum { N = 1280, LONG = 5 * 65536 / 4, PASSED = 65536 / 2 };

/* Exit statuses of a rank: which check failed. */
enum { GOOD, CANNOT_OPEN, CANNOT_SUM, WRONG_SUM, WRONG_WAY, WRONG_TEXT, WRONG_STATUS };

typedef int rank_fn(struct collective *c, int rank, const struct fork_world *w);

static struct fork_world *world_create(int ranks, int hosts)
{
    struct fork_world *w =
        mmap(NULL, sizeof *w, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    char text[32];
    assert_true(w != MAP_FAILED);
    w->ranks = ranks;
    w->hosts = hosts;
    snprintf(text, sizeof text, "%llx", (unsigned long long)(uintptr_t)w);
    setenv(FORK_WORLD, text, 1);
    setenv("OATO_MPI", OATO_FORK_TRANSPORT, 1);
    return w;
}

/* For a rank that does not look itself: rank 0 says it. */
static void lost_end(const struct oato_error *err)
{
    _exit(err->text[0] ? WRONG_TEXT : GOOD);
}

static int rank_run(int rank, const struct fork_world *w, rank_fn *run)
{
    char text[16];
    struct collective *c;
    struct oato_error err;
    int32_t host[RANKS_MAX];
    snprintf(text, sizeof text, "%d", rank);
    setenv(FORK_RANK, text, 1);
    if (collective_open(&c, lost_end, &err) || collective_hosts(c, host) != w->hosts ||
        collective_group(c, host, &err))
        return CANNOT_OPEN;
    const int status = run(c, rank, w);
    collective_close(c);
    return status;
}

static void ranks_start(struct fork_world *w, rank_fn *run)
{
    for (int rank = 0; rank < w->ranks; rank++) {
        const pid_t child = fork();
        if (!child)
            _exit(rank_run(rank, w, run));
        w->child[rank] = child;
    }
}

/* The first status that is not GOOD, which a stopped rank's is. */
static int ranks_wait(const struct fork_world *w)
{
    int worst = GOOD;
    for (int rank = 0; rank < w->ranks; rank++) {
        int status = 0;
        assert_int_equal(waitpid(w->child[rank], &status, WUNTRACED), w->child[rank]);
        if (WIFSTOPPED(status)) {
            kill(w->child[rank], SIGKILL);
            waitpid(w->child[rank], NULL, 0);
        } else if (worst == GOOD) {
            worst = WIFEXITED(status) ? WEXITSTATUS(status) : 100 + WTERMSIG(status);
        }
    }
    return worst;
}

static int ranks_run(struct fork_world *w, rank_fn *run)
{
    ranks_start(w, run);
    return ranks_wait(w);
}

static void world_free(struct fork_world *w)
{
    munmap(w, sizeof *w);
}

/* ------------------------------------------------------------------------------- sums ----- */

/* Rank 1 of three or more adds nothing. */
static bool adds(int rank, const struct fork_world *w)
{
    return rank != 1 || w->ranks < 3;
}

static void summand(int rank, float *x, int n)
{
    uint32_t s = (uint32_t)rank + 7;
    for (int i = 0; i < n; i++) {
        s = s * 1664525u + 1013904223u;
        x[i] = ((float)(s >> 8) - 8388608) * 1.1e-4f;
    }
}

/* As DESIGN has it: the ranks of a host in order, then the hosts in order. */
static void expect(const struct fork_world *w, oato_dtype wire, float *total, int n)
{
    float *host = malloc(2 * (size_t)n * sizeof *host), *x = host + n;
    bool any_host = false;
    for (int h = 0; h < w->hosts; h++) {
        bool any = false;
        for (int r = 0; r < w->ranks; r++) {
            if (r * w->hosts / w->ranks != h || !adds(r, w))
                continue;
            summand(r, x, n);
            for (int i = 0; i < n; i++)
                host[i] = any ? host[i] + x[i] : x[i];
            any = true;
        }
        if (w->hosts > 1)
            wire_round(wire, host, any ? (size_t)n : 0);
        for (int i = 0; i < n && any; i++)
            total[i] = any_host ? total[i] + host[i] : host[i];
        any_host = any_host || any;
    }
    if (w->hosts > 1)
        wire_round(wire, total, (size_t)n);
    free(host);
}

static int sums_are_right(struct collective *c, int rank, const struct fork_world *w)
{
    static const oato_dtype wires[] = {DT_F32, DT_F16, DT_Q8_0};
    static const int sizes[] = {32, N, LONG};
    static float own[LONG], sum[LONG], expected[LONG];
    struct oato_error err;
    for (size_t s = 0; s < ARRAY_LEN(sizes); s++)
        for (size_t i = 0; i < ARRAY_LEN(wires); i++) {
            const size_t bytes = (size_t)sizes[s] * sizeof *sum;
            summand(rank, own, sizes[s]);
            expect(w, wires[i], expected, sizes[s]);
            if (collective_reduce(c, adds(rank, w) ? own : NULL, sum, (size_t)sizes[s], wires[i],
                                  &err))
                return CANNOT_SUM;
            if (memcmp(sum, expected, bytes) != 0)
                return WRONG_SUM;
        }
    return GOOD;
}

static void sums_have_one_order_and_one_rounding(void **state)
{
    static const int places[][2] = {{2, 1}, {2, 2}, {3, 1}, {3, 3}, {4, 2}, {6, 3}};
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(places); i++) {
        struct fork_world *w = world_create(places[i][0], places[i][1]);
        const int status = ranks_run(w, sums_are_right);
        if (status)
            fail_msg("%d ranks on %d hosts: %d", w->ranks, w->hosts, status);
        assert_int_equal(w->closed, w->ranks);
        world_free(w);
    }
}

static int one_sum(struct collective *c, oato_dtype wire)
{
    static float x[N];
    struct oato_error err;
    x[0] = 1;
    return collective_reduce(c, x, x, N, wire, &err) ? CANNOT_SUM : GOOD;
}
static int one_f32(struct collective *c, int rank, const struct fork_world *w)
{
    (void)rank;
    (void)w;
    return one_sum(c, DT_F32);
}
static int one_q8(struct collective *c, int rank, const struct fork_world *w)
{
    (void)rank;
    (void)w;
    return one_sum(c, DT_Q8_0);
}

static size_t bytes_of(rank_fn *run)
{
    struct fork_world *w = world_create(2, 2);
    assert_int_equal(ranks_run(w, run), GOOD);
    const size_t bytes = w->sent_bytes;
    world_free(w);
    return bytes;
}

static void a_q8_0_sum_has_34_of_128_bytes(void **state)
{
    (void)state;
    assert_int_equal(bytes_of(one_f32) - bytes_of(one_q8), 2 * N / 32 * (128 - 34));
}

/* ------------------------------------------------------------------------------- ways ----- */

/* What fork_transport's library_sum makes. */
static bool made_by(struct collective *c, size_t n, float expected)
{
    static float x[N];
    struct oato_error err;
    for (size_t i = 0; i < n; i++)
        x[i] = 1;
    return !collective_reduce(c, x, x, n, DT_F32, &err) && x[0] == expected && x[n - 1] == expected;
}

static int sizes_choose(struct collective *c, int rank, const struct fork_world *w)
{
    const struct sum_choice choice[] = {
        {64, SUM_TREE, DT_F32}, {128, SUM_ALLREDUCE, DT_F32}, {256, SUM_REDUCE, DT_F32}};
    struct oato_error err;
    (void)rank;
    if (!made_by(c, 16, 2) || collective_choose(c, choice, 3, &err))
        return WRONG_WAY;
    return made_by(c, 16, 2) && made_by(c, 17, -1) && made_by(c, 32, -1) && made_by(c, 33, -2) &&
                   made_by(c, N, -2) && w->ranks == 2
               ? GOOD
               : WRONG_WAY;
}

static int forced_allreduce(struct collective *c, int rank, const struct fork_world *w)
{
    const struct sum_choice tree = {UINT64_MAX, SUM_TREE, DT_F32}, f16 = {64, SUM_TREE, DT_F16};
    struct oato_error err;
    (void)rank;
    (void)w;
    if (collective_choose(c, &tree, 1, &err) || !made_by(c, 16, -1))
        return WRONG_WAY;
    if (collective_choose(c, &f16, 1, &err) != OATO_EUSAGE)
        return WRONG_STATUS;
    return strstr(err.text, "OATO_COLLECTIVE is allreduce, which sums F32") ? GOOD : WRONG_TEXT;
}

static void the_size_decides_who_sums_unless_the_user_does(void **state)
{
    (void)state;
    struct fork_world *w = world_create(2, 2);
    assert_int_equal(ranks_run(w, sizes_choose), GOOD);
    setenv("OATO_COLLECTIVE", "allreduce", 1);
    assert_int_equal(ranks_run(w, forced_allreduce), GOOD);
    unsetenv("OATO_COLLECTIVE");
    world_free(w);
}

/* A value goes from rank to rank, each of which adds to it, and back to the first. */
static int chain(struct collective *c, int rank, const struct fork_world *w)
{
    static float x[PASSED];
    struct oato_error err;
    const int next = (rank + 1) % w->ranks, before = (rank + w->ranks - 1) % w->ranks;
    if (rank && collective_receive(c, before, x, PASSED, &err))
        return CANNOT_SUM;
    for (int i = 0; i < PASSED; i++)
        x[i] += (float)(rank + i);
    if (collective_send(c, next, x, PASSED, &err))
        return CANNOT_SUM;
    if (rank)
        return GOOD;
    if (collective_receive(c, before, x, PASSED, &err))
        return CANNOT_SUM;
    const int ranks = w->ranks * (w->ranks - 1) / 2;
    for (int i = 0; i < PASSED; i++)
        if (x[i] != (float)(w->ranks * i + ranks))
            return WRONG_SUM;
    return collective_send(c, rank, x, 1, &err) == OATO_EDEVICE &&
                   collective_receive(c, w->ranks, x, 1, &err) == OATO_EDEVICE
               ? GOOD
               : WRONG_STATUS;
}

static void values_pass_from_rank_to_rank(void **state)
{
    (void)state;
    for (int hosts = 1; hosts <= 3; hosts += 2) {
        struct fork_world *w = world_create(3, hosts);
        assert_int_equal(ranks_run(w, chain), GOOD);
        world_free(w);
    }
}

/* Rank 1 computes for longer than a rank may be silent. */
static int one_is_slow(struct collective *c, int rank, const struct fork_world *w)
{
    float x = 1;
    struct oato_error err;
    (void)w;
    if (rank == 1)
        nanosleep(&(struct timespec){.tv_sec = 6, .tv_nsec = 500000000}, NULL);
    const oato_status status = rank == 1 ? collective_send(c, 0, &x, 1, &err)
                               : rank    ? OATO_OK
                                         : collective_receive(c, 1, &x, 1, &err);
    return status || collective_broadcast(c, &x, sizeof x, WAITS_EVER, &err) ? CANNOT_SUM : GOOD;
}

/* ----------------------------------------------------------------------------- failures --- */

static int silent_says(struct collective *c, oato_status status, const struct oato_error *err,
                       const char *text)
{
    (void)c;
    return status != OATO_EDEVICE ? WRONG_STATUS : strstr(err->text, text) ? GOOD : WRONG_TEXT;
}

/* An engine fails on rank 1, which leaves; the others wait for its summand. */
static int one_leaves(struct collective *c, int rank, const struct fork_world *w)
{
    static float x[N];
    struct oato_error err;
    (void)w;
    if (rank == 1) {
        oato_fail(&err, OATO_EDEVICE, "cpu:0: record 3 of the step failed");
        collective_leave(c, &err);
        return strcmp(err.text, "rank 1 on host0: cpu:0: record 3 of the step failed") != 0 ||
                       err.status != OATO_EDEVICE || !collective_reduce(c, x, x, N, DT_F32, &err)
                   ? WRONG_TEXT
                   : GOOD;
    }
    const oato_status status = collective_reduce(c, x, x, N, DT_F32, &err);
    const char *said = rank ? "" : "rank 1 on host0 has not answered"; /* the first one says it */
    const int result = silent_says(c, status, &err, said);
    collective_leave(c, &err); /* it names who is lost, not itself */
    return result || strstr(err.text, "rank 0 on host0: rank 1") ? WRONG_TEXT : GOOD;
}

/* Rank 2 stops while rank 0 waits until all have loaded, and rank 1 is in a sum of MPI's own. */
static int one_stops(struct collective *c, int rank, const struct fork_world *w)
{
    static float x[N];
    struct oato_error err;
    (void)w;
    if (rank == 2)
        raise(SIGSTOP);
    if (rank == 1) {
        const struct sum_choice library = {UINT64_MAX, SUM_ALLREDUCE, DT_F32};
        collective_choose(c, &library, 1, &err);
        collective_reduce(c, x, x, N, DT_F32, &err);
        return CANNOT_SUM;
    }
    const oato_status status = collective_agree(c, OATO_OK, &err);
    const int result = silent_says(c, status, &err, "rank 2 on host0 has not answered for 6 s");
    nanosleep(&(struct timespec){.tv_sec = 2}, NULL); /* so that rank 1 must end by itself */
    return result;
}

static void who_leaves_or_stops_is_named_by_those_who_wait(void **state)
{
    (void)state;
    const uint64_t begin = now_ns();
    struct fork_world *leaves = world_create(3, 1);
    ranks_start(leaves, one_leaves);
    struct fork_world *slow = world_create(3, 1);
    ranks_start(slow, one_is_slow);
    struct fork_world *stops = world_create(3, 1);
    stops->sum_waits = true;
    ranks_start(stops, one_stops);
    const int how_left = ranks_wait(leaves), how_stopped = ranks_wait(stops);
    const int how_slow = ranks_wait(slow); /* no child is left behind whatever fails */
    assert_int_equal(how_left, GOOD);
    assert_int_equal(how_stopped, GOOD);
    assert_int_equal(how_slow, GOOD); /* it does not stop */
    assert_true(now_ns() - begin < UINT64_C(20000000000));
    assert_int_equal(leaves->closed, 0); /* nobody waits for the others in MPI_Finalize */
    assert_int_equal(stops->closed, 0);
    world_free(leaves);
    world_free(stops);
    world_free(slow);
}

/* ---------------------------------------------------------------------------- closing ----- */

static int ends(struct collective *c, int rank, const struct fork_world *w)
{
    (void)c, (void)rank, (void)w;
    program_ends(OATO_OK, NULL);
    return WRONG_STATUS; /* of a rank that closes, which the one with a limit does not */
}

/* Rank 1 is busy closing something else, though it still answers its watch. */
static int one_closes_late(struct collective *c, int rank, const struct fork_world *w)
{
    (void)c, (void)w;
    program_ends(OATO_OK, NULL);
    if (rank) {
        program_closes("cuda:0 closes its streams");
        nanosleep(&(struct timespec){.tv_sec = 5}, NULL);
    }
    return WRONG_STATUS;
}

/* Whatever waits: the other rank, or MPI itself. Each ends with the status that it had. */
static void closing_has_a_limit(void **state)
{
    (void)state;
    setenv("OATO_CLOSING_LIMIT", "0.2", 1);
    program_begin("tested");
    for (int mpi = 0; mpi < 2; mpi++) {
        struct fork_world *w = world_create(2, 1);
        const uint64_t begin = now_ns();
        w->close_waits = mpi;
        ranks_start(w, mpi ? ends : one_closes_late);
        for (int rank = 0; rank < 2; rank++) {
            int status = 0;
            assert_int_equal(waitpid(w->child[rank], &status, 0), w->child[rank]);
            assert_true(WIFEXITED(status));
            assert_int_equal(WEXITSTATUS(status), mpi && rank ? WRONG_STATUS : GOOD);
        }
        assert_true(now_ns() - begin < UINT64_C(4000000000));
        assert_int_equal(w->closed, mpi); /* rank 1 */
        world_free(w);
    }
    unsetenv("OATO_CLOSING_LIMIT");
}

/* ----------------------------------------------------------------------------- memory ----- */

static bool memory_full; /* so is /dev/shm */

/* In front of the C library's. */
int fallocate(int fd, int how, off_t at, off_t bytes)
{
    (void)fd, (void)how, (void)at, (void)bytes;
    errno = memory_full ? ENOSPC : EOPNOTSUPP;
    return -1;
}

static int never_runs(struct collective *c, int rank, const struct fork_world *w)
{
    (void)c, (void)rank, (void)w;
    return WRONG_STATUS;
}

/* Memory that is only promised ends a rank by SIGBUS at its first sum. */
static void full_shared_memory_is_refused(void **state)
{
    (void)state;
    struct fork_world *w = world_create(3, 1);
    memory_full = true;
    assert_int_equal(ranks_run(w, never_runs), CANNOT_OPEN);
    memory_full = false;
    world_free(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_have_one_order_and_one_rounding),
        cmocka_unit_test(a_q8_0_sum_has_34_of_128_bytes),
        cmocka_unit_test(the_size_decides_who_sums_unless_the_user_does),
        cmocka_unit_test(values_pass_from_rank_to_rank),
        cmocka_unit_test(closing_has_a_limit),
        cmocka_unit_test(who_leaves_or_stops_is_named_by_those_who_wait),
        cmocka_unit_test(full_shared_memory_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
