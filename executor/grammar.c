/*
 * grammar.c - follows a text through a grammar: a pushdown automaton, made deterministic as far as
 * the text needs it. What the text may be in the middle of is a set of readings, each a terminal
 * and a stack of places to return to. Stacks share their frames, and equal frames and equal sets
 * are kept once, so that a set has a number and its successor by a byte is a table entry: a text,
 * or all tokens of a vocabulary, cost one look-up per byte where they were before.
 *
 * The tables are a cache. When they are full, everything is dropped but what the current set needs.
 */
#include "executor/grammar_state.h"

#include <stdlib.h>
#include <string.h>

enum {
    SETS_MOST = 4096,
    READINGS_MOST = 1 << 18, /* in all sets */
    SET_MOST = 4096,         /* in one */
    FRAMES_MOST = 1 << 18,
    DEPTH_MOST = 1000,
    BUCKETS = 1 << 12,
    SEEN = 1 << 14, /* twice as many as the places that a step may visit */
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
    uint32_t frame_bucket[BUCKETS], set_bucket[BUCKETS]; /* 0: empty */
    struct place seen[SEEN], work[SEEN / 2];
    uint32_t turn, n_seen, n_work;
};

/* ----------------------------------------------------------------------------------- tables */

static bool grow(void *array, uint32_t n, uint32_t more, uint32_t *cap, uint32_t most, size_t size)
{
    if (n + more <= *cap)
        return true;
    if (n + more > most)
        return false;
    uint32_t to = *cap ? *cap : 64;
    while (to < n + more)
        to *= 2;
    void *grown = realloc(*(void **)array, (size_t)to * size);
    if (!grown)
        return false;
    *(void **)array = grown;
    *cap = to;
    return true;
}

static void machine_free(struct grammar_machine *m)
{
    if (!m)
        return;
    free(m->frames);
    free(m->readings);
    free(m->sets);
    free(m->next);
    free(m);
}

static bool set_room(struct grammar_machine *m)
{
    return grow(&m->sets, m->n_sets, 1, &m->cap_sets, SETS_MOST, sizeof *m->sets) &&
           grow(&m->next, m->n_sets, 1, &m->cap_next, SETS_MOST, sizeof *m->next);
}

/* With the bottom frame and the dead set; NULL: memory is short. */
static struct grammar_machine *machine_create(void)
{
    struct grammar_machine *m = calloc(1, sizeof *m);
    bool room = m && grow(&m->frames, 0, 1, &m->cap_frames, FRAMES_MOST, sizeof *m->frames) &&
                grow(&m->readings, 0, 1, &m->cap_readings, READINGS_MOST, sizeof *m->readings);
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
        machine_free(m);
        return NULL;
    }
    m->frames[m->n_frames++] = (struct frame){0};
    return m;
}

static uint32_t mix(uint32_t a, uint32_t b)
{
    const uint64_t x = ((uint64_t)b << 32 | a) * 0x9e3779b97f4a7c15u;
    return (uint32_t)(x >> 32) ^ (uint32_t)(x >> 47);
}

/* Results of frame_push that are no frames. */
#define FRAME_TOO_DEEP UINT32_MAX
#define FRAME_NO_ROOM  (UINT32_MAX - 1)

static uint32_t frame_push(struct grammar_machine *m, int32_t symbol, uint32_t below)
{
    uint32_t *bucket = &m->frame_bucket[mix((uint32_t)symbol, below) % BUCKETS];
    for (uint32_t f = *bucket; f; f = m->frames[f].chain)
        if (m->frames[f].symbol == symbol && m->frames[f].below == below)
            return f;
    const int32_t depth = m->frames[below].depth + 1;
    if (depth > DEPTH_MOST)
        return FRAME_TOO_DEEP;
    if (!grow(&m->frames, m->n_frames, 1, &m->cap_frames, FRAMES_MOST, sizeof *m->frames))
        return FRAME_NO_ROOM;
    m->frames[m->n_frames] = (struct frame){symbol, below, depth, *bucket};
    return *bucket = m->n_frames++;
}

/* -------------------------------------------------------------------------- making a set --- */

/* Readings are added behind those of the sets; `made` counts them. */
struct making {
    struct grammar_machine *m;
    const struct grammar *g;
    uint32_t made;
    bool complete;
};

static bool reading_add(struct making *x, struct reading r)
{
    struct grammar_machine *m = x->m;
    if (x->made == SET_MOST || !grow(&m->readings, m->n_readings, x->made + 1, &m->cap_readings,
                                     READINGS_MOST, sizeof *m->readings))
        return false;
    m->readings[m->n_readings + x->made++] = r;
    return true;
}

/* A place is visited once per step. False: there are too many. */
static bool work_add(struct grammar_machine *m, int32_t symbol, uint32_t frame)
{
    uint32_t at = mix((uint32_t)symbol, frame) % SEEN;
    while (m->seen[at].turn == m->turn) {
        if (m->seen[at].symbol == symbol && m->seen[at].frame == frame)
            return true;
        at = (at + 1) % SEEN;
    }
    if (m->n_seen == SEEN / 2)
        return false;
    m->seen[at] = m->work[m->n_work++] = (struct place){symbol, frame, m->turn};
    m->n_seen++;
    return true;
}

static bool call_rule(struct making *x, int32_t rule, int32_t symbol, uint32_t frame)
{
    const struct grammar *g = x->g;
    /* nothing follows: returning there would only return further */
    if (g->symbols[symbol].kind != SYMBOL_END)
        frame = frame_push(x->m, symbol, frame);
    if (frame == FRAME_TOO_DEEP)
        return true;
    bool room = frame != FRAME_NO_ROOM;
    const struct grammar_rule *r = &g->rules[rule];
    for (int32_t i = 0; i < r->n && room; i++)
        room = work_add(x->m, g->alternatives[r->first + i], frame);
    return room;
}

/* Adds the terminals that may come next at a place. */
static bool expand(struct making *x, int32_t symbol, uint32_t frame)
{
    struct grammar_machine *m = x->m;
    bool room = work_add(m, symbol, frame);
    while (m->n_work && room) {
        const struct place p = m->work[--m->n_work];
        const struct symbol s = x->g->symbols[p.symbol];
        switch (s.kind) {
        case SYMBOL_END:
            if (!p.frame)
                x->complete = true;
            else
                room = work_add(m, m->frames[p.frame].symbol, m->frames[p.frame].below);
            break;
        case SYMBOL_RULE: room = call_rule(x, s.arg, p.symbol + 1, p.frame); break;
        case SYMBOL_CHAR:
            room = reading_add(x, (struct reading){p.symbol + 1, p.frame, (uint32_t)s.arg});
            break;
        }
    }
    return room;
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
static uint32_t making_end(struct making *x)
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

uint32_t grammar_step_make(struct grammar_state *s, uint32_t set, unsigned char byte)
{
    struct making x = {.m = s->machine, .g = s->grammar};
    const struct set from = x.m->sets[set];
    bool room = true;
    making_begin(&x);
    for (uint32_t i = 0; i < from.n && room; i++) {
        struct reading r = x.m->readings[from.first + i];
        r.state = x.g->next[r.state][byte];
        if (r.state == CHAR_DONE)
            room = expand(&x, r.symbol, r.frame);
        else if (r.state != CHAR_REFUSED)
            room = reading_add(&x, r);
    }
    const uint32_t to = room ? making_end(&x) : SET_UNKNOWN;
    s->next = x.m->next;
    s->next[set][byte] = (uint16_t)to;
    return to;
}

/* ------------------------------------------------------------------------------------ states */

/* Copies a set of another machine with the frames that it needs. False: memory is short. */
static bool machine_copy(struct grammar_machine *m, const struct grammar_machine *from,
                         uint32_t set, uint32_t *to)
{
    const struct set *s = &from->sets[set];
    struct making x = {.m = m, .complete = s->complete};
    uint32_t *frames = calloc(from->n_frames, sizeof *frames);
    bool room = frames;
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
        room = reading_add(&x, r);
    }
    free(frames);
    *to = room ? making_end(&x) : SET_UNKNOWN;
    return *to != SET_UNKNOWN;
}

bool grammar_drop(struct grammar_state *s)
{
    struct grammar_machine *m = machine_create();
    uint32_t set;
    if (!m || !machine_copy(m, s->machine, s->set, &set)) {
        machine_free(m);
        return false;
    }
    machine_free(s->machine);
    s->machine = m;
    s->next = m->next;
    s->set = set;
    for (int i = 0; i < MASKS_KEPT; i++)
        s->masks[i].set = SET_UNKNOWN;
    return true;
}

uint32_t grammar_walk(struct grammar_state *s, const char *bytes, size_t n)
{
    for (int again = 0; again < 2; again++) {
        uint32_t set = s->set;
        size_t i = 0;
        for (; i < n && set > SET_DEAD; i++)
            set = grammar_step(s, set, (unsigned char)bytes[i]);
        if (set != SET_UNKNOWN || !grammar_drop(s))
            return set == SET_UNKNOWN ? SET_DEAD : set;
    }
    return SET_DEAD;
}

/* NULL: memory is short. */
static struct grammar_state *state_alloc(const struct grammar *g, const struct grammar_vocab *v)
{
    struct grammar_state *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    s->grammar = g;
    s->vocab = v;
    s->machine = machine_create();
    if (!s->machine || !grammar_masks_alloc(s)) {
        grammar_state_free(s);
        return NULL;
    }
    s->next = s->machine->next;
    return s;
}

static oato_status fail_memory(struct oato_error *err)
{
    return oato_fail_memory(err, sizeof(struct grammar_machine), "the state of a grammar");
}

oato_status grammar_state_create(const struct grammar *g, const struct grammar_vocab *v,
                                 struct grammar_state **out, struct oato_error *err)
{
    struct grammar_state *s = state_alloc(g, v);
    *out = s;
    if (!s)
        return fail_memory(err);
    struct making x = {.m = s->machine, .g = g};
    const struct grammar_rule *root = &g->rules[g->root];
    making_begin(&x);
    bool room = true;
    for (int32_t i = 0; i < root->n && room; i++)
        room = expand(&x, g->alternatives[root->first + i], 0);
    s->set = room ? making_end(&x) : SET_UNKNOWN;
    s->next = s->machine->next;
    if (s->set > SET_DEAD)
        return OATO_OK;
    const bool dead = s->set == SET_DEAD;
    grammar_state_free(s);
    *out = NULL;
    if (dead)
        return oato_fail(err, OATO_EUSAGE, "the grammar allows no text at all");
    return oato_fail(
        err, OATO_EUSAGE,
        "the grammar can begin in more than %d ways; use classes and fewer alternatives", SET_MOST);
}

oato_status grammar_state_clone(const struct grammar_state *s, struct grammar_state **out,
                                struct oato_error *err)
{
    struct grammar_state *twin = state_alloc(s->grammar, s->vocab);
    *out = twin;
    if (!twin)
        return fail_memory(err);
    if (machine_copy(twin->machine, s->machine, s->set, &twin->set)) {
        twin->next = twin->machine->next;
        return OATO_OK;
    }
    grammar_state_free(twin);
    *out = NULL;
    return fail_memory(err);
}

void grammar_state_free(struct grammar_state *s)
{
    if (!s)
        return;
    machine_free(s->machine);
    grammar_masks_free(s);
    free(s);
}

bool grammar_allows(struct grammar_state *s, const char *bytes, size_t n)
{
    return grammar_walk(s, bytes, n) != SET_DEAD;
}

bool grammar_accept(struct grammar_state *s, const char *bytes, size_t n)
{
    const uint32_t to = grammar_walk(s, bytes, n);
    if (to != SET_DEAD)
        s->set = to;
    return to != SET_DEAD;
}

bool grammar_complete(const struct grammar_state *s)
{
    return s->machine->sets[s->set].complete;
}
