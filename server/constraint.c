/*
 * constraint.c - answers that follow a grammar: GBNF, or a JSON schema by either of its names. The
 * tokenizer's vocabulary is sorted for it when it is first needed.
 */
#include "server/server_internal.h"
#include "text/thinking.h"

#include <stdlib.h>
#include <string.h>

/* The schema that is asked for; *any: any JSON object will do. */
static oato_status schema_find(const json_t *o, const json_t **schema, bool *any,
                               struct oato_error *err)
{
    const json_t *format = json_object_get(o, "response_format");
    const json_t *type = json_object_get(format, "type");
    *schema = json_object_get(o, "json_schema");
    *any = false;
    if (!format || json_is_null(format) || json_is(type, "text"))
        return OATO_OK;
    if (json_is(type, "json_object")) {
        *schema = json_object_get(format, "schema");
        *any = !*schema;
        return OATO_OK;
    }
    *schema = json_object_get(json_object_get(format, "json_schema"), "schema");
    if (!json_is(type, "json_schema") || !*schema)
        return oato_fail(err, OATO_EUSAGE,
                         "response_format wants the type text, json_object, or json_schema with a "
                         "json_schema.schema");
    return OATO_OK;
}

oato_status constraint_read(const json_t *o, struct ask *ask, struct oato_error *err)
{
    static const char object[] = "{\"type\":\"object\"}";
    const json_t *gbnf = json_object_get(o, "grammar"), *schema;
    bool any;
    oato_status status = schema_find(o, &schema, &any, err);
    if (json_is_null(schema))
        schema = NULL;
    const bool has_gbnf = json_string_length(gbnf) > 0;
    if (!status && has_gbnf && (schema || any))
        status = oato_fail(err, OATO_EUSAGE, "give either a grammar or a JSON schema, not both");
    if (!status && (has_gbnf || schema || any) && ask->ignore_end)
        status = oato_fail(err, OATO_EUSAGE,
                           "ignore_eos goes on after the end that a grammar sets; leave it out");
    if (status)
        return status;
    ask->gbnf = has_gbnf ? json_string_value(gbnf) : NULL;
    if (has_gbnf)
        return grammar_parse(json_string_value(gbnf), json_string_length(gbnf), &ask->budget,
                             &ask->grammar, err);
    if (any)
        return grammar_of_schema(object, strlen(object), &ask->budget, &ask->grammar, err);
    if (schema && !json_is_object(schema) && !json_is_boolean(schema))
        return oato_fail(err, OATO_EUSAGE,
                         "json_schema, or the schema of response_format, wants an object");
    return schema ? grammar_of_json(schema, &ask->budget, &ask->grammar, err) : OATO_OK;
}

oato_status constraint_begin(struct choice *c, struct oato_error *err)
{
    struct instance *m = c->job->instance;
    const struct ask *ask = &c->job->ask;
    if (!ask->grammar)
        return OATO_OK;
    pthread_mutex_lock(&m->vocab_lock);
    oato_status status =
        m->vocab ? OATO_OK : grammar_vocab_create(m->session.tokenizer, &m->vocab, err);
    pthread_mutex_unlock(&m->vocab_lock);
    if (!status)
        status = grammar_state_create(ask->grammar, m->vocab, &ask->budget, &c->follows, err);
    if (!status) {
        const struct sampler_constraint follow = grammar_constraint(c->follows);
        sampler_constrain(c->sampler, &follow);
    }
    return status;
}

void constraints_share(struct job *j)
{
    for (int32_t i = 0; i < j->n_choices; i++)
        if (j->choices[i]->follows)
            grammar_state_bytes(j->choices[i]->follows, j->ask.budget.bytes / (size_t)j->n_choices);
}

oato_status constraint_think(struct choice *c, struct oato_error *err)
{
    const struct ask *ask = &c->job->ask;
    struct thinking_marks marks = {.most = ask->thinks_most, .message = ask->thinks_end};
    marks.begun = chat_reader_thinks(c->told.reader, &marks.begin, &marks.end);
    if (marks.begun && ask->thinks_not && marks.most < 0)
        marks.most = 0; /* the template began it all the same */
    if (!marks.begin || (!c->follows && marks.most < 0) ||
        (ask->gbnf && strstr(ask->gbnf, marks.end)))
        return OATO_OK;
    if (thinking_create(c->follows, c->told.tokenizer, &marks, &c->thinking, err))
        return err->status;
    const struct sampler_constraint follow = thinking_constraint(c->thinking);
    sampler_constrain(c->sampler, &follow);
    return OATO_OK;
}
