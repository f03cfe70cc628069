#include "tests/pipeline/together.h"

#include "kernels/ranks/collective.h"
#include "tests/executor/harness.h"

// clang-format off
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>
// clang-format on

enum { PROMPT_MOST = 256 };

/* What all ranks share: how they send, and what became of them. */
struct together {
    struct fork_world world;
    struct engine_stats stats[FORK_RANKS];
};

static void lost_end(const struct oato_error *err)
{
    (void)err;
    _exit(1);
}

/* A rank; rank 0 leads. */
static oato_status rank_run(const struct model *m, const struct plan *p,
                            const struct engine_options *options, int32_t prompt, int rank,
                            struct together *all, struct oato_error *err)
{
    int32_t ids[PROMPT_MOST], seq = 0;
    struct engine_options o = *options;
    struct engine *e;
    char text[16];
    snprintf(text, sizeof text, "%d", rank);
    setenv(FORK_RANK, text, 1);
    fill_ids(ids, prompt + 1, m->shape.vocab, 6);
    if (collective_open(&o.ranks, lost_end, err) || engine_open(m, p, &o, NULL, NULL, &e, err) ||
        engine_join(e, err))
        return err->status;
    oato_status status = OATO_OK;
    if (rank)
        status = engine_follow(e, err);
    else if (!(status = engine_seq_create(e, &seq, err)))
        status = engine_feed(e, seq, ids, prompt, LOGITS_LAST, NULL, NULL, err);
    const struct engine_input in = {seq, &ids[prompt], 1, LOGITS_LAST, false};
    if (!rank && !status)
        status = engine_step(e, &in, 1, err);
    engine_get_stats(e, &all->stats[rank]);
    engine_close(e);
    collective_close(o.ranks);
    return status;
}

void together_run(const struct model *m, const struct plan *p, const struct engine_options *o,
                  int32_t prompt, struct engine_stats out[FORK_RANKS])
{
    char text[32];
    const int n = plan_ranks(p);
    struct together *all =
        mmap(NULL, sizeof *all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(all != MAP_FAILED && n <= FORK_RANKS && prompt < PROMPT_MOST);
    all->world.ranks = all->world.hosts = n;
    snprintf(text, sizeof text, "%llx", (unsigned long long)(uintptr_t)&all->world);
    setenv(FORK_WORLD, text, 1);
    setenv("OATO_MPI", OATO_FORK_TRANSPORT, 1);
    for (int rank = 0; rank < n; rank++) {
        struct oato_error err;
        const pid_t child = fork();
        if (!child && rank_run(m, p, o, prompt, rank, all, &err)) {
            print_error("rank %d: %s\n", rank, err.text);
            _exit(1);
        }
        if (!child)
            _exit(0);
        all->world.child[rank] = child;
    }
    bool good = true;
    for (int rank = 0; rank < n; rank++) {
        int status;
        good = waitpid(all->world.child[rank], &status, 0) == all->world.child[rank] &&
               WIFEXITED(status) && !WEXITSTATUS(status) && good;
        out[rank] = all->stats[rank];
    }
    munmap(all, sizeof *all);
    assert_true(good);
}
