/*
 * grammar_machine.c - the tables of a grammar's state: sets of readings, and the stacks of places
 * to return to that they share. Equal frames and equal sets are kept once. What a step visits,
 * finds and keeps is limited and counted, whatever the grammar.
 */
#include "text/grammar_state.h"

#include <stdlib.h>
#include <string.h>

enum {
    SETS_MOST = 4096,
    READINGS_MOST = 1 << 18, /* in all sets */
    FRAMES_MOST = 1 << 18,
    BUCKETS = 1 << 12,      /* of sets */
    SEEN_LEAST = 1 << 7,    /* twice as many as the places that a step visits .. */
    SEEN_MOST = 1 << 14,    /* .. and may visit */
    MACHINE_MOST = 1 << 24, /* bytes */
    STEP_STEPS = 8,         /* of a budget: what a table entry takes, .. */
    PLACE_STEPS = 2,        /* .. each place that it visits, and each reading that it finds .. */
    SORT_STEPS = 6,         /* .. and sorts */
};

/* Where a rule returns to. Frame 0 is the bottom: the text ends. Frames lie above those below. */
struct frame {
    int32_t symbol; /* what follows there */
    uint32_t below;
    int32_t depth;
    uint32_t chain; /* the next of the bucket, or 0 */
};

/* A terminal that may come next, or that the text is in the middle of. */
struct reading {
    int32_t symbol; /* what follows the terminal */
    uint32_t frame;
    uint32_t state; /* of the terminal's automaton */
};

struct set {
    uint32_t first, n; /* readings, sorted */
    bool complete;     /* the text may end here */
    uint32_t chain;
};

struct place {
    int32_t symbol;
    uint32_t frame, turn; /* turn: of the step that saw it */
};

struct grammar_machine {
    struct frame *frames;
    struct reading *readings; /* of all sets, then of the one that is being made */
    struct set *sets;
    uint16_t (*next)[256];
    uint32_t n_frames, cap_frames, n_readings, cap_readings, n_sets, cap_sets, cap_next;
    uint32_t *frame_bucket, n_buckets; /* 0: empty */
    uint32_t set_bucket[BUCKETS];
    struct place *seen, *work; /* cap_seen, and half as many */
    uint32_t turn, n_seen, n_work, cap_seen;
    uint64_t steps; /* of a budget, since they were told */
    size_t bytes, bytes_most;
    bool cut; /* places or frames were left out for their number */
};

/* ----------------------------------------------------------------------------------- tables */

/* False: it would be more than the machine may have. */
static bool bytes_take(struct grammar_machine *m, size_t bytes)
{
    if (m->bytes > m->bytes_most || bytes > m->bytes_most - m->bytes)
        return false;
    m->bytes += bytes;
    return true;
}

static bool grow(struct grammar_machine *m, void *array, uint32_t n, uint32_t more, uint32_t *cap,
                 uint32_t most, size_t size)
{
    if (n + more <= *cap)
        return true;
    if (n + more > most)
        return false;
    uint32_t to = *cap ? *cap : 64;
    while (to < n + more)
        to *= 2;
    if (!bytes_take(m, (size_t)(to - *cap) * size))
        return false;
    void *grown = realloc(*(void **)array, (size_t)to * size);
    if (!grown)
        return false;
    *(void **)array = grown;
    *cap = to;
    return true;
}

void grammar_machine_free(struct grammar_machine *m)
{
    if (!m)
        return;
    free(m->frames);
    free(m->frame_bucket);
    free(m->readings);
    free(m->sets);
    free(m->next);
    free(m->seen);
    free(m->work);
    free(m);
}

static bool set_room(struct grammar_machine *m)
{
    return grow(m, &m->sets, m->n_sets, 1, &m->cap_sets, SETS_MOST, sizeof *m->sets) &&
           grow(m, &m->next, m->n_sets, 1, &m->cap_next, SETS_MOST, sizeof *m->next);
}

static uint32_t mix(uint32_t a, uint32_t b)
{
    const uint64_t x = ((uint64_t)b << 32 | a) * 0x9e3779b97f4a7c15u;
    return (uint32_t)(x >> 32) ^ (uint32_t)(x >> 47);
}

/* Empties `seen` and makes it larger; what lies in it now stays. */
static bool seen_room(struct grammar_machine *m)
{
    const uint32_t cap = m->cap_seen ? 2 * m->cap_seen : SEEN_LEAST;
    const size_t size = sizeof *m->seen + sizeof *m->work / 2;
    if (!bytes_take(m, (cap - m->cap_seen) * size))
        return false;
    struct place *seen = calloc(cap, sizeof *seen);
    struct place *work = seen ? realloc(m->work, cap / 2 * sizeof *work) : NULL;
    if (!work) {
        free(seen);
        return false;
    }
    for (uint32_t i = 0; i < m->cap_seen; i++) {
        if (m->seen[i].turn != m->turn)
            continue;
        uint32_t at = mix((uint32_t)m->seen[i].symbol, m->seen[i].frame) & (cap - 1);
        while (seen[at].turn)
            at = (at + 1) & (cap - 1);
        seen[at] = m->seen[i];
    }
    free(m->seen);
    m->seen = seen;
    m->work = work;
    m->cap_seen = cap;
    return true;
}

static bool frame_room(struct grammar_machine *m)
{
    const uint32_t had = m->cap_frames;
    if (!grow(m, &m->frames, m->n_frames, 1, &m->cap_frames, FRAMES_MOST, sizeof *m->frames))
        return false;
    if (m->cap_frames == had)
        return true;
    uint32_t *bucket = calloc(m->cap_frames, sizeof *bucket);
    if (!bucket || !bytes_take(m, (m->cap_frames - had) * sizeof *bucket)) {
        free(bucket);
        return false;
    }
    free(m->frame_bucket);
    m->frame_bucket = bucket;
    m->n_buckets = m->cap_frames;
    for (uint32_t f = 1; f < m->n_frames; f++) {
        const struct frame *x = &m->frames[f];
        const uint32_t at = mix((uint32_t)x->symbol, x->below) & (m->n_buckets - 1);
        m->frames[f].chain = bucket[at];
        bucket[at] = f;
    }
    return true;
}

void grammar_machine_bytes(struct grammar_machine *m, size_t bytes_most)
{
    m->bytes_most = bytes_most < MACHINE_MOST ? bytes_most : MACHINE_MOST;
}

struct grammar_machine *grammar_machine_create(size_t bytes_most)
{
    struct grammar_machine *m = calloc(1, sizeof *m);
    if (!m)
        return NULL;
    grammar_machine_bytes(m, bytes_most);
    bool room = bytes_take(m, sizeof *m) && frame_room(m) && seen_room(m) &&
                grow(m, &m->readings, 0, 1, &m->cap_readings, READINGS_MOST, sizeof *m->readings);
    for (int i = 0; i < SET_FIRST && room; i++) {
        room = set_room(m);
        if (room) {
            m->sets[m->n_sets] = (struct set){0};
            for (int byte = 0; byte < 256; byte++)
                m->next[m->n_sets][byte] = SET_DEAD;
            m->n_sets++;
        }
    }
    if (!room) {
        grammar_machine_free(m);
        return NULL;
    }
    m->frames[m->n_frames++] = (struct frame){0};
    return m;
}

/* Results of frame_push that are no frames. */
#define FRAME_TOO_DEEP UINT32_MAX
#define FRAME_NO_ROOM  (UINT32_MAX - 1)

static uint32_t frame_push(struct grammar_machine *m, int32_t symbol, uint32_t below)
{
    const uint32_t hash = mix((uint32_t)symbol, below);
    for (uint32_t f = m->frame_bucket[hash & (m->n_buckets - 1)]; f; f = m->frames[f].chain)
        if (m->frames[f].symbol == symbol && m->frames[f].below == below)
            return f;
    const int32_t depth = m->frames[below].depth + 1;
    if (depth > DEPTH_MOST) {
        m->cut = true;
        return FRAME_TOO_DEEP;
    }
    if (!frame_room(m))
        return FRAME_NO_ROOM;
    uint32_t *bucket = &m->frame_bucket[hash & (m->n_buckets - 1)];
    m->frames[m->n_frames] = (struct frame){symbol, below, depth, *bucket};
    return *bucket = m->n_frames++;
}

/* -------------------------------------------------------------------------- making a set --- */

enum outcome { ROOM, FULL, TOO_MANY }; /* FULL: of the tables; TOO_MANY: for one step */

/* Readings are added behind those of the sets; `made` counts them. */
struct making {
    struct grammar_machine *m;
    const struct grammar *g;
    uint32_t made;
    bool complete;
};

static enum outcome reading_add(struct making *x, struct reading r)
{
    struct grammar_machine *m = x->m;
    if (x->made == SET_MOST)
        return TOO_MANY;
    if (!grow(m, &m->readings, m->n_readings, x->made + 1, &m->cap_readings, READINGS_MOST,
              sizeof *m->readings))
        return FULL;
    m->readings[m->n_readings + x->made++] = r;
    return ROOM;
}

/* A place is visited once per step. */
static enum outcome work_add(struct grammar_machine *m, int32_t symbol, uint32_t frame)
{
    const uint32_t hash = mix((uint32_t)symbol, frame);
    uint32_t at = hash & (m->cap_seen - 1);
    for (; m->seen[at].turn == m->turn; at = (at + 1) & (m->cap_seen - 1))
        if (m->seen[at].symbol == symbol && m->seen[at].frame == frame)
            return ROOM;
    if (m->n_seen == m->cap_seen / 2) {
        if (m->cap_seen == SEEN_MOST)
            return TOO_MANY;
        if (!seen_room(m))
            return FULL;
        for (at = hash & (m->cap_seen - 1); m->seen[at].turn; at = (at + 1) & (m->cap_seen - 1))
            ;
    }
    m->seen[at] = m->work[m->n_work++] = (struct place){symbol, frame, m->turn};
    m->n_seen++;
    return ROOM;
}

static enum outcome call_rule(struct making *x, int32_t rule, int32_t symbol, uint32_t frame)
{
    const struct grammar *g = x->g;
    /* nothing follows: returning there would only return further */
    if (g->symbols[symbol].kind != SYMBOL_END)
        frame = frame_push(x->m, symbol, frame);
    if (frame == FRAME_TOO_DEEP)
        return ROOM;
    enum outcome outcome = frame == FRAME_NO_ROOM ? FULL : ROOM;
    const struct grammar_rule *r = &g->rules[rule];
    x->m->steps += (uint64_t)r->n; /* most of which may be known */
    for (int32_t i = 0; i < r->n && outcome == ROOM; i++)
        outcome = work_add(x->m, g->alternatives[r->first + i], frame);
    return outcome;
}

/* Adds the terminals that may come next at a place. */
static enum outcome expand(struct making *x, int32_t symbol, uint32_t frame)
{
    struct grammar_machine *m = x->m;
    enum outcome outcome = work_add(m, symbol, frame);
    while (m->n_work && outcome == ROOM) {
        const struct place p = m->work[--m->n_work];
        const struct symbol s = x->g->symbols[p.symbol];
        switch (s.kind) {
        case SYMBOL_END:
            if (!p.frame)
                x->complete = true;
            else
                outcome = work_add(m, m->frames[p.frame].symbol, m->frames[p.frame].below);
            break;
        case SYMBOL_RULE: outcome = call_rule(x, s.arg, p.symbol + 1, p.frame); break;
        case SYMBOL_CHAR:
            outcome = reading_add(x, (struct reading){p.symbol + 1, p.frame, (uint32_t)s.arg});
            break;
        }
    }
    return outcome;
}

static void making_begin(struct making *x)
{
    x->m->turn++;
    x->m->n_seen = x->m->n_work = 0;
}

static int by_place(const void *a, const void *b)
{
    return memcmp(a, b, sizeof(struct reading)); /* any order, if always the same */
}

/* The number of the set that was made. */
static uint32_t set_add(struct making *x)
{
    struct grammar_machine *m = x->m;
    struct reading *r = m->readings + m->n_readings;
    if (!x->made && !x->complete)
        return SET_DEAD;
    qsort(r, x->made, sizeof *r, by_place);
    const size_t bytes = x->made * sizeof *r;
    uint32_t *bucket = &m->set_bucket[hash_bytes(r, bytes) % BUCKETS];
    for (uint32_t i = *bucket; i; i = m->sets[i].chain)
        if (m->sets[i].n == x->made && m->sets[i].complete == x->complete &&
            !memcmp(m->readings + m->sets[i].first, r, bytes))
            return i;
    if (!set_room(m))
        return SET_UNKNOWN;
    m->sets[m->n_sets] = (struct set){m->n_readings, x->made, x->complete, *bucket};
    memset(m->next[m->n_sets], 0, sizeof m->next[m->n_sets]);
    m->n_readings += x->made;
    return *bucket = m->n_sets++;
}

static uint32_t making_end(struct making *x, enum outcome outcome)
{
    struct grammar_machine *m = x->m;
    m->steps += STEP_STEPS + PLACE_STEPS * (uint64_t)m->n_seen + SORT_STEPS * (uint64_t)x->made;
    m->cut = m->cut || outcome == TOO_MANY;
    return outcome == ROOM ? set_add(x) : outcome == FULL ? SET_UNKNOWN : SET_DEAD;
}

/* What it took, and whether a text was refused for its size. */
static void tell(struct grammar_state *s)
{
    s->used += s->machine->steps;
    s->machine->steps = 0;
    s->cut = s->cut || s->machine->cut;
    s->next = s->machine->next;
}

uint32_t grammar_step_make(struct grammar_state *s, uint32_t set, unsigned char byte)
{
    struct making x = {.m = s->machine, .g = s->grammar};
    const struct set from = x.m->sets[set];
    enum outcome outcome = ROOM;
    if (grammar_spent(s))
        return SET_DEAD;
    making_begin(&x);
    for (uint32_t i = 0; i < from.n && outcome == ROOM; i++) {
        struct reading r = x.m->readings[from.first + i];
        r.state = x.g->next[r.state][byte];
        if (r.state == CHAR_DONE)
            outcome = expand(&x, r.symbol, r.frame);
        else if (r.state != CHAR_REFUSED)
            outcome = reading_add(&x, r);
    }
    x.m->steps += from.n;
    const uint32_t to = making_end(&x, outcome);
    tell(s);
    s->next[set][byte] = (uint16_t)to;
    return to;
}

uint32_t grammar_machine_begin(struct grammar_state *s)
{
    const struct grammar *g = s->grammar;
    struct making x = {.m = s->machine, .g = g};
    const struct grammar_rule *root = &g->rules[g->root];
    enum outcome outcome = ROOM;
    making_begin(&x);
    for (int32_t i = 0; i < root->n && outcome == ROOM; i++)
        outcome = expand(&x, g->alternatives[root->first + i], 0);
    const uint32_t set = making_end(&x, outcome);
    tell(s);
    return set;
}

bool grammar_machine_copy(struct grammar_machine *m, const struct grammar_machine *from,
                          uint32_t set, uint32_t *to)
{
    const struct set *s = &from->sets[set];
    struct making x = {.m = m, .complete = s->complete};
    uint32_t *frames = calloc(from->n_frames, sizeof *frames);
    bool room = frames;
    m->steps += DROP_STEPS + from->n_frames;
    for (uint32_t i = 0; i < s->n && room; i++)
        frames[from->readings[s->first + i].frame] = 1;
    for (uint32_t f = from->n_frames - 1; f > 0 && room; f--)
        if (frames[f])
            frames[from->frames[f].below] = 1;
    if (room)
        frames[0] = 0;
    for (uint32_t f = 1; f < from->n_frames && room; f++) {
        if (!frames[f])
            continue;
        frames[f] = frame_push(m, from->frames[f].symbol, frames[from->frames[f].below]);
        room = frames[f] < FRAME_NO_ROOM;
    }
    for (uint32_t i = 0; i < s->n && room; i++) {
        struct reading r = from->readings[s->first + i];
        r.frame = frames[r.frame];
        room = reading_add(&x, r) == ROOM;
    }
    free(frames);
    *to = making_end(&x, room ? ROOM : FULL);
    return *to != SET_UNKNOWN;
}

uint16_t (*grammar_machine_next(struct grammar_machine *m))[256]
{
    return m->next;
}

bool grammar_machine_complete(const struct grammar_machine *m, uint32_t set)
{
    return m->sets[set].complete;
}
