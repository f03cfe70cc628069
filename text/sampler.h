/*
 * sampler.h - which token comes next, of a row of logits: temperature, what cuts, penalties, DRY,
 * Mirostat, constraints; and the probabilities of a row.
 */
#ifndef OATO_SAMPLER_H
#define OATO_SAMPLER_H

#include "text/text.h"

struct logit_bias {
    int32_t id;
    float bias; /* -INFINITY: the token is never picked, unless nothing else is left */
};

enum { DRY_BREAKERS = 16 };

/* DRY: a token that would repeat n tokens of the text, n not less than `allowed`, loses multiplier
 * * base^(n - allowed) of its logit. */
struct dry_options {
    float multiplier, base;            /* 0, and less than 1: off */
    int32_t allowed, last;             /* tokens; of the last so many; 0: off */
    const struct tokenizer *tokenizer; /* borrowed; NULL: nothing breaks a repetition */
    /* Texts across which nothing counts as repeated; "": none. n_breakers 0: the usual four.
     * Copied. */
    const char *breaker[DRY_BREAKERS];
    int32_t n_breakers;
    const struct dry_breakers *prepared; /* of them, for several samplers; borrowed; NULL: none */
};

/* What finds the breakers in a text, in a time that does not depend on their lengths. NULL: memory
 * is short. It takes dry_breakers_bytes of memory and about as many steps of work. */
struct dry_breakers *dry_breakers_create(const struct dry_options *o);
void dry_breakers_free(struct dry_breakers *b);
size_t dry_breakers_bytes(const struct dry_options *o);

struct sampler_options {
    float temperature;  /* 0: the most likely token */
    int32_t top_k;      /* 0: off */
    float top_p, min_p; /* 1 and 0: off */
    float typical_p;    /* locally typical sampling up to this probability; 0 and 1: off */
    float top_n_sigma;  /* drops logits so many standard deviations below the largest; 0: off */
    /* Drops, this often, all tokens of at least the threshold's probability but the least likely of
     * them (XTC); 0, or a threshold above 0.5: off */
    float xtc_probability, xtc_threshold;
    /* The temperature goes up and down by as much as `range`, with the entropy of the candidates to
     * the power of `exponent`; 0: off */
    float temperature_range, temperature_exponent;
    float repeat_penalty; /* divides (a negative logit: multiplies); 1: off */
    /* Subtracted from the logit of a recent token: once, and once per occurrence; 0: off */
    float presence_penalty, frequency_penalty;
    int32_t repeat_last; /* number of recent tokens that the three penalties cover */
    struct dry_options dry;
    /* Mirostat 1 or 2 in place of top-k, top-p and all that cut: keeps the surprise of tokens, in
     * bits, near tau, learning at the rate eta; 0: off */
    int32_t mirostat;
    float mirostat_tau, mirostat_eta;
    uint64_t seed;
    const struct logit_bias *bias; /* added to logits first; borrowed; ids outside the vocabulary
                                      are ignored; NULL: none */
    int32_t n_bias;
    bool logprobs;        /* sampler_probs is wanted */
    int32_t top_logprobs; /* how many of the most likely tokens it lists besides the picked one */
    bool final_probs;     /* with the probabilities by which the token was drawn */
    struct sampler_scratch *scratch; /* borrowed; NULL: of its own */
};

/* Of what may be negative: all tokens for top_k, all of the context for the last so many, which are
 * never more than that. */
void sampler_bound(struct sampler_options *o, int32_t context);

/* What picking works in, by far the most of a sampler's memory. Samplers of one vocabulary may
 * share it if they never pick at the same time. NULL: memory is short. */
struct sampler_scratch;
struct sampler_scratch *sampler_scratch_create(int32_t vocab);
void sampler_scratch_free(struct sampler_scratch *s);
/* What a sampler with a scratch of others takes besides. */
size_t sampler_bytes(const struct sampler_options *o);

/* MORE: the mask is not made yet. FAILED: it cannot be. */
enum sampler_mask { MASK_READY, MASK_MORE, MASK_FAILED };

/* What may come next. Borrowed by a sampler; called while it picks only. */
struct sampler_constraint {
    bool (*allows)(void *user, int32_t id); /* may this token come next */
    /* The tokens that may come next: bit id % 64 of word id / 64; borrowed until the next call.
     * Works for about so many steps (struct budget), then goes on in the next call. */
    enum sampler_mask (*mask)(void *user, uint64_t steps, const uint64_t **bits);
    void (*take)(void *user, int32_t id); /* this token comes next */
    void *user;
};

struct sampler;
struct sampler *sampler_create(const struct sampler_options *o, int32_t vocab); /* NULL: memory */
void sampler_free(struct sampler *s);
/* From now on only tokens that c (copied) allows are picked; NULL: any. A constrained sampler needs
 * whole rows. The token that is drawn without regard to c is asked about first, and the mask is
 * made only when c refuses it, which without top-k, top-p and min-p gives the same distribution. */
void sampler_constrain(struct sampler *s, const struct sampler_constraint *c);
/* Adds a token of the text (prompt or generated) to the recent tokens. */
void sampler_accept(struct sampler *s, int32_t id);
/* What picking gives instead of a token. NONE: the constraint allows no token. MORE: its mask is
 * not made yet. FAILED: the mask cannot be made, and the constraint knows why. */
enum { SAMPLER_NONE = -1, SAMPLER_MORE = -2, SAMPLER_FAILED = -3 };
/* Picks the next token and tells the constraint, if any, that it comes next. The same seed and
 * logits give the same token on any machine. */
int32_t sampler_next(struct sampler *s, const float *logits);
/* The same, but the constraint's mask is worked on for about so many steps of a budget: after
 * SAMPLER_MORE, which keeps a copy of the row, sampler_go_on goes on with it. */
int32_t sampler_begin(struct sampler *s, const float *logits, uint64_t steps);
int32_t sampler_go_on(struct sampler *s, uint64_t steps);
/* How many of a row's largest logits suffice to sample with these options and no constraint; 0: all
 * are needed. */
int32_t sampler_candidates(const struct sampler_options *o, int32_t vocab);
/* How many suffice for the sampler's next token; 0: all are needed. */
int32_t sampler_needs(const struct sampler *s);
/* The same token as sampler_next gives for the whole row, from n candidates: n ids, then their
 * logits, as engine_candidates returns them. n must be at least sampler_needs. */
int32_t sampler_next_of(struct sampler *s, const float *candidates, int32_t n);

struct token_prob {
    int32_t id;
    float logprob; /* natural logarithm of its probability */
};
/* Of the row that sampler_next saw last: the token that it picked, then the options.top_logprobs
 * most likely ones, by the softmax of the logits as the model gave them; with options.final_probs
 * by what was left after all other options, so perhaps fewer. *n of them, valid until the next
 * call; none without options.logprobs or when nothing was picked. */
const struct token_prob *sampler_probs(const struct sampler *s, int32_t *n);
/* The logarithm of the sum of the exponentials of a row of logits. */
double logits_log_sum(const float *logits, int32_t vocab);
/* The KL divergence of `other`'s probabilities from those of logits, two rows with their log sums.
 */
double logits_divergence(const float *logits, double log_sum, const float *other,
                         double other_log_sum, int32_t vocab);
/* The token of the largest logit, the first of equal ones. */
int32_t logits_likeliest(const float *logits, int32_t vocab);
/* Of a row of logits: token `id`, then the `top` most likely ones (at most vocab), with their log
 * probabilities. Returns how many are in out, which has room for 1 + top. */
int32_t logits_probs(const float *logits, int32_t vocab, int32_t id, int32_t top,
                     struct token_prob *out);

#endif
