/*
 * chat.c - conversations: their prompts, made in text/, and the answers to them, with the grammar
 * of calls that must be made.
 */
#include "server/server_internal.h"
#include "text/chat_messages.h"
#include "text/chat_prompt.h"

#include <stdlib.h>

/* chat_prompt; form: of the calls that the prompt tells. */
static oato_status prompt_make(const struct instance *m, const struct chat_request *r,
                               enum chat_form *form, struct text *out, struct oato_error *err)
{
    return m->template ? chat_prompt_make(r, form, out, err)
                       : oato_fail(err, OATO_EUSAGE, "%.450s", m->no_template);
}

oato_status chat_prompt(const struct instance *m, const json_t *o, struct budget *budget,
                        struct text *out, struct oato_error *err)
{
    const struct chat_request r = {m->template, m->options->session.variables, o, budget,
                                   m->options->reasoning};
    enum chat_form form;
    return prompt_make(m, &r, &form, out, err);
}

static oato_status calls_constrain(struct job *j, const struct chat_request *r, enum chat_form form,
                                   const struct text *prompt, struct oato_error *err)
{
    const char *only;
    if (!chat_must_call(r->json, &only))
        return OATO_OK;
    if (j->ask.grammar)
        return oato_fail(err, OATO_EUSAGE,
                         "give either a tool_choice that must be kept or a grammar, not both");
    if (j->ask.ignore_end)
        return oato_fail(err, OATO_EUSAGE,
                         "ignore_eos goes on after the call that is asked for; leave it out");
    return chat_calls_grammar(r, form, prompt, &j->ask.grammar, err);
}

/* The prompt and its tokens, which are the caller's. */
static oato_status prompt_encode(struct job *j, const struct chat_request *r, enum chat_form *form,
                                 struct text *prompt, int32_t **ids, size_t *n,
                                 struct oato_error *err)
{
    const struct instance *m = j->instance;
    prompt->len = 0;
    oato_status status = prompt_make(m, r, form, prompt, err);
    if (!status)
        status = text_fits(j, prompt->len, err);
    return status
               ? status
               : tokenizer_encode_within(m->session.tokenizer, or_empty(prompt->data), prompt->len,
                                         TOKENIZE_PROMPT, &j->ask.budget, ids, n, err);
}

/* The same, for OpenAI's "truncation": "auto": of what does not fit, with room for an answer, the
 * beginning is dropped. */
static oato_status prompt_cut(struct job *j, const struct chat_request *r, enum chat_form *form,
                              struct text *prompt, int32_t **ids, size_t *n, struct oato_error *err)
{
    json_t *all = json_deep_copy(json_object_get(r->json, "messages")); /* the prompt changes it */
    const int32_t context = j->instance->context, most = j->ask.most;
    const int32_t room = context - (int32_t)min_i64(most > 0 ? most : 256, context / 4);
    oato_status status = prompt_encode(j, r, form, prompt, ids, n, err);
    for (; status == OATO_EFIT || (!status && *n > (size_t)room);) {
        const size_t tokens = status ? j->n_unfit : *n;
        if (!tokens || !conversation_cut(all, 1 - room / (double)tokens))
            break;
        json_object_set_new((json_t *)r->json, "messages", json_deep_copy(all));
        free(*ids);
        *ids = NULL;
        status = prompt_encode(j, r, form, prompt, ids, n, err);
    }
    json_decref(all);
    return status;
}

oato_status chat_add(struct job *j, const json_t *o, struct oato_error *err)
{
    const bool cuts =
        j->ask.dialect == &dialect_responses && json_is(json_object_get(o, "truncation"), "auto");
    const struct instance *m = j->instance;
    const struct chat_request r = {m->template, m->options->session.variables, o, &j->ask.budget,
                                   m->options->reasoning};
    int32_t *ids = NULL;
    size_t n = 0;
    struct text prompt;
    text_init(&prompt);
    enum chat_form form = CHAT_FORM_OWN;
    j->ask.thinks_not = chat_thinks_not(&r);
    j->ask.one_call = json_is_false(json_object_get(o, "parallel_tool_calls"));
    oato_status status = (cuts ? prompt_cut : prompt_encode)(j, &r, &form, &prompt, &ids, &n, err);
    if (!status)
        status = calls_constrain(j, &r, form, &prompt, err);
    if (!status)
        status = prompt_ids_add(j, ids, n, err);
    for (int32_t i = 0; i < j->n_choices && !status; i++) {
        status = answer_text_read(&j->choices[i]->told, m->template, form, &prompt, err);
        if (!status)
            status = constraint_think(j->choices[i], err);
    }
    free(ids);
    text_free(&prompt);
    return status;
}
