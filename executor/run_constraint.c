/*
 * run_constraint.c - what the command line asks of answers: a grammar, and biases of tokens.
 */
#include "executor/run.h"

#include <string.h>

bool constraint_given(const struct run_args *a)
{
    return a->grammar || a->grammar_file;
}

/* The file is at fault, not the command line. */
static oato_status blame_file(const char *path, struct oato_error *err)
{
    const struct oato_error why = *err;
    return why.status == OATO_EUSAGE ? oato_fail(err, OATO_EFILE, "%s: %s", path, why.text)
                                     : why.status;
}

oato_status constraint_open(struct constraint *c, const struct run_args *a, struct oato_error *err)
{
    *c = (struct constraint){.args = a};
    if (!constraint_given(a))
        return OATO_OK;
    if (a->grammar && a->grammar_file)
        return oato_fail(err, OATO_EUSAGE,
                         "more than one grammar; give one of --grammar and --grammar-file");
    if (a->ignore_end)
        return oato_fail(err, OATO_EUSAGE,
                         "--ignore-eos goes on after the end that a grammar sets; leave it out");
    if (a->grammar)
        return grammar_parse(a->grammar, strlen(a->grammar), &c->grammar, err);
    struct text text;
    oato_status status = text_read_file(a->grammar_file, &text, err);
    if (!status && grammar_parse(or_empty(text.data), text.len, &c->grammar, err))
        status = blame_file(a->grammar_file, err);
    text_free(&text);
    return status;
}

oato_status constraint_begin(struct constraint *c, const struct tokenizer *t,
                             struct sampler *sampler, struct grammar_state **state,
                             struct oato_error *err)
{
    const struct sampler_options *o = &c->args->open.sampling;
    grammar_state_free(*state);
    *state = NULL;
    for (int32_t i = 0; i < o->n_bias; i++)
        if (o->bias[i].id >= tokenizer_size(t))
            return oato_fail(err, OATO_EUSAGE,
                             "--logit-bias: there is no token %d; the vocabulary has %d",
                             (int)o->bias[i].id, (int)tokenizer_size(t));
    if (!c->grammar)
        return OATO_OK;
    oato_status status = c->vocab ? OATO_OK : grammar_vocab_create(t, &c->vocab, err);
    if (!status)
        status = grammar_state_create(c->grammar, c->vocab, state, err);
    if (!status) {
        const struct sampler_constraint follow = grammar_constraint(*state);
        sampler_constrain(sampler, &follow);
    }
    return status;
}

void constraint_close(struct constraint *c)
{
    grammar_vocab_free(c->vocab);
    grammar_free(c->grammar);
}
