/*
 * sampling_json.c - stop words, DRY's breakers and biases of JSON.
 */
#include "text/sampling_json.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------------------ stop words --- */

enum { STOP_BYTES = 1024 };

static oato_status stop_add(struct stops *out, const json_t *word, struct oato_error *err)
{
    const size_t n = json_string_length(word);
    if (!json_is_string(word) || n > STOP_BYTES || out->n == STOPS_MAX)
        return oato_fail(err, OATO_EUSAGE, "stop wants at most %d texts of at most %d bytes",
                         STOPS_MAX, STOP_BYTES);
    if (!n)
        return OATO_OK;
    char *copy = strdup(json_string_value(word));
    if (!copy)
        return oato_fail_memory(err, n, "a stop word");
    out->word[out->n++] = copy;
    return OATO_OK;
}

oato_status stops_read(const json_t *v, struct stops *out, struct oato_error *err)
{
    const json_t *word;
    size_t i;
    if (!v)
        return OATO_OK;
    if (!json_is_array(v))
        return stop_add(out, v, err);
    json_array_foreach(v, i, word)
    {
        if (stop_add(out, word, err))
            return err->status;
    }
    return OATO_OK;
}

/* -------------------------------------------------------------------------------- breakers --- */

oato_status dry_breakers_read(const json_t *v, struct budget *budget, struct dry_options *dry,
                              struct dry_breakers **made, struct oato_error *err)
{
    const json_t *word;
    size_t i;
    if (!v)
        return OATO_OK;
    if (!json_is_array(v) || json_array_size(v) > DRY_BREAKERS)
        return oato_fail(err, OATO_EUSAGE, "dry_sequence_breakers wants a list of at most %d texts",
                         DRY_BREAKERS);
    dry->breaker[0] = ""; /* none, if the list is empty */
    dry->n_breakers = (int32_t)max_i64(1, (int64_t)json_array_size(v));
    json_array_foreach(v, i, word)
    {
        dry->breaker[i] = json_string_value(word);
        if (!json_is_string(word))
            return oato_fail(err, OATO_EUSAGE, "dry_sequence_breakers wants texts");
    }
    const size_t bytes = dry_breakers_bytes(dry);
    if (budget_spend(budget, bytes, bytes, "dry_sequence_breakers", err))
        return err->status;
    dry->prepared = *made = dry_breakers_create(dry);
    return *made ? OATO_OK : oato_fail_memory(err, bytes, "dry_sequence_breakers");
}

/* ---------------------------------------------------------------------------------- biases --- */

enum { BIAS_STEPS = 5 }; /* to take one up */

/* Those that are read. */
struct biases {
    const struct tokenizer *tokenizer;
    struct budget *budget;
    struct logit_bias *of;
    size_t n, cap;
};

static oato_status bias_add(struct biases *b, int64_t id, double bias, struct oato_error *err)
{
    if (budget_spend(b->budget, BIAS_STEPS, 2 * sizeof *b->of, "logit_bias", err))
        return err->status;
    struct logit_bias *more = array_room(b->of, b->n, &b->cap, sizeof *more);
    if (!more)
        return oato_fail_memory(err, sizeof *more, "a logit bias");
    b->of = more;
    more[b->n++] = (struct logit_bias){(int32_t)id, (float)bias};
    return OATO_OK;
}

/* What: a token's id, its number as a key, or a text, all of whose tokens are meant. */
static oato_status bias_of(struct biases *b, const json_t *id, const char *text, const json_t *bias,
                           struct oato_error *err)
{
    const double by = json_is_false(bias) ? -INFINITY : json_number_value(bias);
    int64_t number = json_integer_value(id);
    int32_t *ids = NULL;
    size_t n = 0;
    if (!json_is_number(bias) && !json_is_false(bias))
        return oato_fail(err, OATO_EUSAGE, "logit_bias wants numbers, or false for never");
    if (json_is_integer(id) || (text && parse_i64(text, 0, INT32_MAX, &number)))
        return number < 0 || number > INT32_MAX
                   ? oato_fail(err, OATO_EUSAGE, "logit_bias wants ids of tokens")
                   : bias_add(b, number, by, err);
    if (!text)
        return oato_fail(err, OATO_EUSAGE, "logit_bias wants ids of tokens or texts");
    oato_status status = tokenizer_encode_within(b->tokenizer, text, strlen(text),
                                                 TOKENIZE_PARSE_SPECIAL, b->budget, &ids, &n, err);
    for (size_t i = 0; i < n && !status; i++)
        status = bias_add(b, ids[i], by, err);
    free(ids);
    return status;
}

/* One for each token; those of no token go. */
static oato_status biases_sum(struct biases *b, struct oato_error *err)
{
    const int32_t vocab = tokenizer_size(b->tokenizer);
    const size_t n = b->n;
    float *sums = n ? calloc((size_t)vocab, sizeof *sums) : NULL;
    if (n && !sums)
        return oato_fail_memory(err, (size_t)vocab * sizeof *sums, "logit_bias");
    for (size_t i = 0; i < n; i++)
        if (b->of[i].id < vocab)
            sums[b->of[i].id] += b->of[i].bias;
    b->n = 0;
    for (int32_t id = 0; id < vocab && b->n < n; id++)
        if (sums[id] != 0)
            b->of[b->n++] = (struct logit_bias){id, sums[id]};
    free(sums);
    return OATO_OK;
}

oato_status logit_bias_read(const json_t *v, const struct tokenizer *t, struct budget *budget,
                            struct sampler_options *o, struct logit_bias **made,
                            struct oato_error *err)
{
    struct biases b = {.tokenizer = t, .budget = budget};
    const json_t *one;
    const char *key;
    size_t i;
    oato_status status = OATO_OK;
    if (v && !json_is_object(v) && !json_is_array(v))
        return oato_fail(err, OATO_EUSAGE, "logit_bias wants an object or a list of pairs");
    json_object_foreach((json_t *)v, key, one)
    {
        if (!status)
            status = bias_of(&b, NULL, key, one, err);
    }
    json_array_foreach(v, i, one)
    {
        const json_t *id = json_array_get(one, 0);
        if (!status)
            status = bias_of(&b, id, json_string_value(id), json_array_get(one, 1), err);
    }
    if (!status)
        status = biases_sum(&b, err);
    o->bias = *made = b.of;
    o->n_bias = (int32_t)b.n;
    return status;
}
