/*
 * sampling_json.h - what JSON says of sampling besides numbers, for requests and whatever else has
 * it: stop words, DRY's breakers, biases. All of it is untrusted: OATO_EUSAGE names the member.
 */
#ifndef OATO_SAMPLING_JSON_H
#define OATO_SAMPLING_JSON_H

#include "text/sampler.h"
#include "text/stops.h"

struct json_t;

/* "stop": a text, or a list of them. The words are the caller's, after an error, too. */
oato_status stops_read(const struct json_t *v, struct stops *out, struct oato_error *err);
/* "dry_sequence_breakers": a list of texts, which dry borrows. *made is the caller's, and borrowed
 * by dry, too. */
oato_status dry_breakers_read(const struct json_t *v, struct budget *budget,
                              struct dry_options *dry, struct dry_breakers **made,
                              struct oato_error *err);
/* "logit_bias": {"id": bias} as OpenAI has it, or [[id, bias], ..]; false for never, and a text in
 * place of an id means all of its tokens. *made (free it, after an error, too) is borrowed by o,
 * and has one bias for each token at most, since they are added at every step. */
oato_status logit_bias_read(const struct json_t *v, const struct tokenizer *t,
                            struct budget *budget, struct sampler_options *o,
                            struct logit_bias **made, struct oato_error *err);

#endif
