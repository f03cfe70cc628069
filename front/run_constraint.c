/*
 * run_constraint.c - what the command line asks of answers: a grammar, and biases of tokens.
 */
#include "front/run.h"

#include <string.h>

static int given(const struct run_args *a)
{
    return !!a->grammar + !!a->grammar_file + !!a->schema + !!a->schema_file;
}

static oato_status compile(struct constraint *c, bool schema, const char *s, size_t n,
                           struct oato_error *err)
{
    return schema ? grammar_of_schema(s, n, &c->budget, &c->grammar, err)
                  : grammar_parse(s, n, &c->budget, &c->grammar, err);
}

static oato_status compile_file(struct constraint *c, bool schema, const char *path,
                                struct oato_error *err)
{
    struct text text;
    oato_status status = text_read_file(path, TEXT_LINES, &text, err);
    if (!status && compile(c, schema, or_empty(text.data), text.len, err)) {
        if (err->status == OATO_EUSAGE) /* the file is at fault, not the command line */
            err->status = OATO_EFILE;
        status = oato_fail_at(err, "%s", path);
    }
    text_free(&text);
    return status;
}

oato_status constraint_open(struct constraint *c, const struct run_args *a, struct oato_error *err)
{
    *c = (struct constraint){.args = a, .budget = BUDGET_REQUEST};
    if (!given(a))
        return OATO_OK;
    if (given(a) > 1)
        return oato_fail(err, OATO_EUSAGE,
                         "more than one grammar; give one of --grammar, --grammar-file, "
                         "--json-schema and --json-schema-file");
    if (a->ignore_end)
        return oato_fail(err, OATO_EUSAGE,
                         "--ignore-eos goes on after the end that a grammar sets; leave it out");
    if (a->grammar_file || a->schema_file)
        return compile_file(c, a->schema_file, a->schema_file ? a->schema_file : a->grammar_file,
                            err);
    const char *s = a->schema ? a->schema : a->grammar;
    return compile(c, a->schema, s, strlen(s), err)
               ? oato_fail_at(err, "%s", a->schema ? "--json-schema" : "--grammar")
               : OATO_OK;
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
        status = grammar_state_create(c->grammar, c->vocab, &c->budget, state, err);
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
