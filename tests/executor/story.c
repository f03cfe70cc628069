/*
 * story.c - see story.h.
 */
#include "tests/executor/story.h"

#include <stdlib.h>

enum { PROMPT = 150, STEPS = 80 };

static int32_t seq_new(struct told *s)
{
    int32_t seq;
    struct oato_error err;
    if (engine_seq_create(s->e, &seq, &err))
        fail_msg("%s", err.text);
    return seq;
}

/* One step of n[i] tokens of each sequence, those from number `from` of a text on. */
static void tell_each(struct told *s, const int32_t *seqs, int n_seqs, int32_t from,
                      const int32_t *n)
{
    int32_t ids[1024];
    struct engine_input in[STORY_SEQS];
    struct oato_error err;
    fill_ids(ids, (int32_t)(sizeof ids / sizeof *ids), (int32_t)s->vocab, 5);
    for (int i = 0; i < n_seqs; i++)
        in[i] = (struct engine_input){
            .seq = seqs[i], .ids = ids + from + 7 * seqs[i], .n = n[i], .logits = LOGITS_LAST};
    if (engine_step(s->e, in, n_seqs, &err))
        fail_msg("%s", err.text);
    s->said = realloc(s->said, (s->n + (size_t)n_seqs) * s->vocab * sizeof *s->said);
    assert_non_null(s->said);
    for (int i = 0; i < n_seqs; i++, s->n++)
        memcpy(s->said + s->n * s->vocab, engine_logits(s->e, i), s->vocab * sizeof *s->said);
}

static void tell(struct told *s, const int32_t *seqs, int n_seqs, int32_t from, int32_t n)
{
    tell_each(s, seqs, n_seqs, from, (const int32_t[]){n, n, n});
}

struct told story_of(const struct model *m, const struct plan *p, struct engine_options options)
{
    struct told all = {.e = open_engine(m, p, options), .vocab = (size_t)m->shape.vocab}, *s = &all;
    struct oato_error err;
    int32_t seqs[STORY_SEQS] = {seq_new(s), seq_new(s), -1};
    for (int32_t at = 0; at < PROMPT; at += STORY_CHUNK)
        tell(s, seqs, 1, at, STORY_CHUNK);
    for (int32_t at = 0; at < STEPS; at++)
        tell(s, seqs, 1 + (at > 10), PROMPT + at, 1);
    if (engine_seq_fork(s->e, seqs[0], &seqs[2], &err))
        fail_msg("%s", err.text);
    for (int32_t at = 0; at < 4; at++)
        tell(s, seqs, 3, at, 1);
    if (engine_seq_truncate(s->e, seqs[2], 70, &err))
        fail_msg("%s", err.text);
    tell(s, seqs, 3, 9, 3);
    engine_seq_free(s->e, seqs[0]);
    seqs[0] = seq_new(s);
    tell(s, seqs, 1, 3, STORY_CHUNK);
    tell(s, seqs, 3, 50, 2);
    engine_seq_free(s->e, seqs[0]);
    if (engine_seq_fork(s->e, seqs[1], &seqs[0], &err))
        fail_msg("%s", err.text);
    tell_each(s, (const int32_t[]){seqs[2], seqs[0]}, 2, 60, (const int32_t[]){1, 20});
    tell(s, seqs, 3, 90, 1);
    return all;
}
