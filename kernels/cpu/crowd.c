/*
 * crowd.c - how many threads compute a step. As a rule all that were asked for; but when others
 * want the same cores, a thread that has lost its core for a time slice holds up all of them at
 * the next barrier, a hundred times a step. Then fewer threads are faster: results do not depend
 * on their number (see ops.c).
 *
 * A step was crowded when its threads waited for each other longer than their work explains and
 * this process had to leave a core meanwhile: waiting alone may be the work's uneven pieces. One
 * such step may be chance; from the second one in a row, each takes as many threads away as left a
 * core, at most half. After a pause some come back to try; the pause is a multiple of what the
 * crowded step took, so that trying costs little, and doubles while it goes wrong.
 */
#include "kernels/cpu/kernels_internal.h"

#include <sys/resource.h>

/* A step that is crowded sooner than CHANCE_NS after another one, or after threads came back, is so
 * not by chance. */
enum { LATE_SHARE = 8, PAUSE_LEAST = 2, PAUSE_MOST = 64, CHANCE_NS = 10000000 };

int64_t crowd_switches(void)
{
    struct rusage usage;
    return getrusage(RUSAGE_SELF, &usage) ? 0 : usage.ru_nivcsw;
}

void crowd_init(struct crowd *c, int32_t most)
{
    *c = (struct crowd){.most = most, .threads = most, .switches = crowd_switches()};
}

static uint64_t clamp(uint64_t x, uint64_t least, uint64_t most)
{
    return x < least ? least : x > most ? most : x;
}

void crowd_note(struct crowd *c, uint64_t now_ns, uint64_t took_ns, uint64_t late_ns,
                int64_t switches)
{
    const int64_t left = switches - c->switches;
    c->switches = switches;
    if (left > 0 && late_ns * LATE_SHARE > took_ns * (uint64_t)c->threads) {
        const bool again = now_ns - took_ns <= c->again_ns;
        if (again) {
            c->pause_ns = clamp(2 * c->pause_ns, PAUSE_LEAST * took_ns, PAUSE_MOST * took_ns);
            c->threads -= (int32_t)min_i64(left, c->threads / 2);
        }
        c->again_ns = now_ns + (again ? c->pause_ns : CHANCE_NS);
    } else if (c->threads == c->most) {
        c->pause_ns -= c->pause_ns / 8; /* soon forgotten */
    } else if (now_ns >= c->again_ns) {
        c->threads = (int32_t)min_i64(c->threads + (c->threads + 7) / 8, c->most);
        c->again_ns = now_ns + CHANCE_NS;
    }
}
