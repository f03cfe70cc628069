/*
 * state.c - which slot holds the recurrent state of which sequence. A slot means the same sequence
 * in every operator and on every device, as pages do.
 *
 * Invariant: references[s] = sequences and checkpoints that name s. Those are at most as many as
 * there are slots, so that whoever must leave a shared one finds a free one.
 */
#include "executor/executor_internal.h"

oato_status state_pool_init(struct state_pool *p, struct arena *a, int32_t seqs,
                            struct oato_error *err)
{
    const int32_t slots = state_slots_of(seqs);
    p->free_list = arena_alloc(a, (size_t)slots, sizeof *p->free_list);
    p->references = arena_alloc(a, (size_t)slots, sizeof *p->references);
    p->copies = arena_alloc(a, (size_t)seqs, sizeof *p->copies);
    p->undo = arena_alloc(a, (size_t)seqs, sizeof *p->undo);
    if (!p->free_list || !p->references || !p->copies || !p->undo)
        return oato_fail_memory(err, (size_t)slots * sizeof *p->free_list, "slots of state");
    p->n_slots = p->n_free = slots;
    for (int32_t i = 0; i < slots; i++)
        p->free_list[i] = slots - 1 - i; /* slot 0 is handed out first */
    return OATO_OK;
}

static int32_t slot_take(struct state_pool *p)
{
    const int32_t slot = p->free_list[--p->n_free];
    p->references[slot] = 1;
    return slot;
}

static void slot_drop(struct state_pool *p, int32_t slot)
{
    if (slot >= 0 && --p->references[slot] == 0)
        p->free_list[p->n_free++] = slot;
}

/* One more name for a slot. */
static int32_t slot_share(struct state_pool *p, int32_t slot)
{
    if (slot >= 0)
        p->references[slot]++;
    return slot;
}

/* ------------------------------------------------------------------------------ sequences */

void state_take(struct state_pool *p, struct kv_seq *s)
{
    s->state = slot_take(p);
}

void state_fork(struct state_pool *p, const struct kv_seq *from, struct kv_seq *to)
{
    to->state = slot_share(p, from->state);
}

static void mark_remove(struct state_pool *p, int32_t i)
{
    slot_drop(p, p->marks[i].slot);
    p->n_marks--;
    for (; i < p->n_marks; i++)
        p->marks[i] = p->marks[i + 1];
}

/* -1: none. */
static int32_t mark_of(const struct state_pool *p, uint64_t text)
{
    int32_t i = p->n_marks - 1;
    while (i >= 0 && p->marks[i].text != text)
        i--;
    return i;
}

bool state_mark_find(const struct state_pool *p, uint64_t text)
{
    return !p->n_slots || mark_of(p, text) >= 0;
}

int32_t state_mark_slot(const struct state_pool *p, uint64_t text)
{
    const int32_t i = p->n_slots ? mark_of(p, text) : -1;
    return i < 0 ? -1 : p->marks[i].slot;
}

/* Makes room for one more: the oldest end of a prompt whose answer went on goes, else the
 * checkpoint that was longest not used. */
static void mark_room(struct state_pool *p)
{
    int32_t gone = 0;
    if (p->n_marks < STATE_CHECKPOINTS)
        return;
    while (gone < p->n_marks && !p->marks[gone].passed)
        gone++;
    mark_remove(p, gone < p->n_marks ? gone : 0);
}

int32_t state_mark_new(struct state_pool *p, int32_t length, uint64_t text)
{
    mark_room(p);
    const int32_t slot =
        slot_take(p); /* at most as many are named as there are sequences and marks */
    p->marks[p->n_marks++] =
        (struct state_mark){.seq = -1, .length = length, .slot = slot, .text = text};
    return slot;
}

/* The last to be replaced. */
static void mark_touch(struct state_pool *p, int32_t i)
{
    struct state_mark used = p->marks[i];
    used.passed = false;
    for (; i + 1 < p->n_marks; i++)
        p->marks[i] = p->marks[i + 1];
    p->marks[i] = used;
}

void state_mark_use(struct state_pool *p, struct kv_seq *s, uint64_t text)
{
    if (!p->n_slots)
        return;
    mark_touch(p, mark_of(p, text));
    s->state = slot_share(p, p->marks[p->n_marks - 1].slot);
}

/* Keeps the state that the sequence has now. The end of its prompt stays while there is room,
 * because the same prompt may come again, or be saved. */
static void mark_add(struct state_pool *p, const struct kv_seq *s, int32_t seq, uint64_t text,
                     bool prompt)
{
    if (!p->n_slots)
        return;
    for (int32_t i = p->n_marks - 1; i >= 0; i--) {
        struct state_mark *m = &p->marks[i];
        if (m->seq != seq || !m->latest)
            continue;
        if (prompt || !m->prompt)
            mark_remove(p, i);
        else {
            m->latest = false;
            m->passed = true;
        }
    }
    if (text && mark_of(p, text) >= 0) {
        mark_touch(p, mark_of(p, text));
        return;
    }
    mark_room(p);
    p->marks[p->n_marks++] = (struct state_mark){.seq = seq,
                                                 .length = s->length,
                                                 .slot = slot_share(p, s->state),
                                                 .text = text,
                                                 .prompt = prompt,
                                                 .latest = text && s->length != s->branch};
}

void state_keep(struct kv_pool *p, int32_t seq, bool prompt)
{
    const struct kv_seq *s = &p->seqs[seq];
    const bool full = s->shares && s->length % KV_PAGE_POSITIONS == 0;
    const uint64_t text =
        full ? prefix_text(&p->prefix, s->table[KV_ALL].pages[s->length / KV_PAGE_POSITIONS - 1])
             : 0;
    if (s->shares ? text != 0 : prompt)
        mark_add(&p->state, s, seq, text, prompt);
}

int32_t state_truncate(struct state_pool *p, struct kv_seq *s, int32_t seq, int32_t length)
{
    if (!p->n_slots || length >= s->length)
        return length;
    const struct state_mark *best = NULL;
    for (int32_t i = p->n_marks - 1; i >= 0; i--)
        if (p->marks[i].seq == seq && p->marks[i].length > length) {
            if (p->marks[i].text)
                p->marks[i].seq = -1; /* for others */
            else
                mark_remove(p, i);
        }
    for (int32_t i = 0; i < p->n_marks; i++)
        if (p->marks[i].seq == seq && (!best || p->marks[i].length > best->length))
            best = &p->marks[i];
    slot_drop(p, s->state);
    s->state = best ? slot_share(p, best->slot) : -1;
    return best ? best->length : 0;
}

/* -------------------------------------------------------------------------------- a step's */

void state_reserve(struct state_pool *p, struct kv_seq *s, int32_t seq)
{
    if (!p->n_slots || (s->state >= 0 && p->references[s->state] == 1))
        return;
    p->undo[p->n_undo++] = (struct state_undo){seq, s->state};
    const int32_t slot = slot_take(p);
    if (s->state >= 0)
        p->copies[p->n_copies++] = (struct step_state_copy){s->state, slot};
    slot_drop(p, s->state);
    s->state = slot;
}

void state_commit(struct state_pool *p)
{
    p->n_undo = p->n_copies = 0;
}

void state_rollback(struct state_pool *p, struct kv_seq *seqs)
{
    while (p->n_undo > 0) {
        const struct state_undo u = p->undo[--p->n_undo];
        slot_drop(p, seqs[u.seq].state);
        seqs[u.seq].state = slot_share(p, u.slot);
    }
    p->n_copies = 0;
}
