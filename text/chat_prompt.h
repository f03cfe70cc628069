/*
 * chat_prompt.h - conversations as OpenAI's interface has them (jansson's objects), made into what
 * a model reads; and answers that must call a function.
 */
#ifndef OATO_CHAT_PROMPT_H
#define OATO_CHAT_PROMPT_H

#include "text/grammar.h"

struct json_t;

/* Whose prompt is made. */
struct chat_request {
    const struct chat_template *template;
    const char *variables; /* a JSON object for a template that is a program; NULL: none */
    /* "messages", which are changed, "tools", "tool_choice", "parallel_tool_calls",
     * "reasoning_effort", "chat_template_kwargs", which come after `variables`,
     * "add_generation_prompt", "continue_final_message" */
    const struct json_t *json;
    struct budget *budget; /* of the work and memory */
    const char *reasoning; /* "off", or something else: enable_thinking, where neither of the others
                              says it; NULL: it is not set */
};
/* Appends the text of the prompt; form: of the calls that it tells. OATO_EUSAGE names what is wrong
 * in the request. */
oato_status chat_prompt_make(const struct chat_request *r, enum chat_form *form, struct text *out,
                             struct oato_error *err);
/* Whether the template is asked for an answer without reasoning. */
bool chat_thinks_not(const struct chat_request *r);
/* tool_choice is "required", or {"type": "function", "function": {"name": ..}}, which *only is
 * then, borrowed; NULL otherwise. */
bool chat_must_call(const struct json_t *request, const char **only);
/* The grammar of answers to `prompt`, the text of chat_prompt_make, that call one of the request's
 * tools, or the one that must be called; several where parallel_tool_calls is true. */
oato_status chat_calls_grammar(const struct chat_request *r, enum chat_form form,
                               const struct text *prompt, struct grammar **out,
                               struct oato_error *err);

#endif
