/*
 * chat_prompt.c - conversations as OpenAI's clients send them, made into what the model's template
 * reads. The model's own template gets messages and tools as JSON; a named format only roles and
 * texts, and so do templates that show no tools.
 */
#include "text/chat_prompt.h"
#include "base/json_cost.h"
#include "text/chat_tools.h"
#include "text/json_values.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum { MESSAGES_MAX = 4096 };

/* ----------------------------------------------------------------------------- messages --- */

/* Arguments come as text; templates expect them as an object, which takes more than the text. */
static oato_status calls_mend(json_t *calls, size_t at, struct budget *budget,
                              struct oato_error *err)
{
    json_t *call;
    size_t i;
    bool good = !calls || json_is_array(calls);
    json_array_foreach(calls, i, call)
    {
        json_t *function = json_object_get(call, "function");
        const json_t *text = json_given(function, "arguments");
        const char *s = or_empty(json_string_value(text));
        good = good && json_is_string(json_object_get(function, "name")) &&
               (!text || json_is_string(text) || json_is_object(text));
        if (json_afford(budget, s, json_string_length(text), err))
            return err->status;
        json_t *object = !json_is_string(text) ? NULL
                         : !s[strspn(s, " \n")]
                             ? json_object() /* of a function without parameters */
                             : json_loadb(s, json_string_length(text), JSON_ALLOW_NUL, NULL);
        if (json_is_object(object))
            json_object_set_new(function, "arguments", object);
        else
            json_decref(object);
    }
    return good ? OATO_OK
                : oato_fail(err, OATO_EUSAGE,
                            "message %zu wants tool_calls that is a list of functions, each with "
                            "a name, and arguments that are a text or an object",
                            at + 1);
}

/* Checks a message and changes it in place: its content becomes a text. */
static oato_status message_mend(const struct chat_request *r, json_t *message, size_t at,
                                struct oato_error *err)
{
    if (!json_is_object(message) || !json_is_string(json_object_get(message, "role")))
        return oato_fail(err, OATO_EUSAGE, "message %zu wants a role and content", at + 1);
    chat_message_rename(r->template, message);
    json_t *content = json_object_get(message, "content"),
           *calls = json_object_get(message, "tool_calls");
    const json_t *thoughts = json_given(message, "reasoning_content");
    json_t *joined = json_is_array(thoughts) ? parts_join(thoughts, "\n") : NULL;
    if (thoughts && !joined && !json_is_string(thoughts))
        return oato_fail(err, OATO_EUSAGE, "message %zu wants reasoning_content that is a text",
                         at + 1);
    if (joined)
        json_object_set_new(message, "reasoning_content", joined);
    if (calls_mend(calls, at, r->budget, err))
        return err->status;
    if (json_is_array(content)) {
        joined = parts_join(content, "\n");
        if (!joined)
            return oato_fail(err, OATO_EUSAGE,
                             "message %zu has content that is no text; this server reads only text",
                             at + 1);
        json_object_set_new(message, "content", joined);
        return OATO_OK;
    }
    if ((!content || json_is_null(content)) &&
        (json_is_array(calls) || json_is_string(json_object_get(message, "reasoning_content"))))
        json_object_set_new(message, "content", json_string(""));
    else if (!json_is_string(content))
        return oato_fail(err, OATO_EUSAGE, "message %zu wants content that is a text", at + 1);
    return OATO_OK;
}

static oato_status messages_mend(const struct chat_request *r, json_t *messages,
                                 struct oato_error *err)
{
    json_t *message;
    size_t i, answers = 0;
    if (!json_is_array(messages) || !json_array_size(messages) ||
        json_array_size(messages) > MESSAGES_MAX)
        return oato_fail(err, OATO_EUSAGE, "messages wants a list of 1 to %d messages",
                         MESSAGES_MAX);
    json_array_foreach(messages, i, message)
    {
        if (message_mend(r, message, i, err))
            return err->status;
        const bool says = json_is(json_object_get(message, "role"), "assistant") &&
                          !json_object_get(message, "tool_calls");
        answers = says ? answers + 1 : 0;
    }
    return answers > 1 ? oato_fail(err, OATO_EUSAGE,
                                   "messages ends with %zu answers of the assistant; at most one "
                                   "may stand there",
                                   answers)
                       : OATO_OK;
}

/* ------------------------------------------------------------------------------- tools --- */

bool chat_must_call(const json_t *request, const char **only)
{
    const json_t *choice = json_object_get(request, "tool_choice");
    const json_t *name = json_object_get(json_object_get(choice, "function"), "name");
    *only = json_string_value(name);
    return *only || json_is(choice, "required");
}

/* The tools that the template shows: none with tool_choice "none". */
static oato_status tools_check(const json_t *o, const json_t **tools, struct oato_error *err)
{
    const json_t *choice = json_object_get(o, "tool_choice"), *tool;
    const char *only;
    size_t i;
    *tools = json_object_get(o, "tools");
    const bool must = chat_must_call(o, &only);
    if (must && !json_array_size(*tools))
        return oato_fail(err, OATO_EUSAGE, "tool_choice asks for a call, but there are no tools");
    if (*tools && !json_is_null(*tools) && !json_is_array(*tools))
        return oato_fail(err, OATO_EUSAGE, "tools wants a list");
    json_array_foreach(*tools, i, tool)
    {
        const json_t *function = json_object_get(tool, "function");
        if (!json_string_length(json_object_get(function, "name")))
            return oato_fail(err, OATO_EUSAGE, "tools[%zu] wants a function with a name", i);
    }
    if (choice && !json_is_null(choice) && !must && !json_is(choice, "none") &&
        !json_is(choice, "auto"))
        return oato_fail(
            err, OATO_EUSAGE,
            "tool_choice wants \"auto\", \"none\", \"required\" or a function by name");
    if (!json_array_size(*tools) || json_is(choice, "none"))
        *tools = NULL;
    return OATO_OK;
}

/* ---------------------------------------------------------------------------- the prompt --- */

/* What a prompt is made of. */
struct talk {
    const struct chat_request *of;
    json_t *messages;
    bool answer; /* the opening of one stands behind them */
};

/* The variables of the command line, then of the request: the caller's. */
static json_t *variables_of(const struct chat_request *r)
{
    json_t *all = json_object(), *effort = json_object_get(r->json, "reasoning_effort");
    json_t *ours = json_loads(or_empty(r->variables), JSON_ALLOW_NUL, NULL);
    if (r->reasoning)
        json_object_set_new(all, "enable_thinking", json_boolean(strcmp(r->reasoning, "off") != 0));
    json_object_update(all, ours);
    if (json_is(effort, "none"))
        json_object_set_new(all, "enable_thinking", json_false());
    else if (json_is_string(effort))
        json_object_set(all, "reasoning_effort", effort);
    json_object_update(all, json_object_get(r->json, "chat_template_kwargs"));
    json_decref(ours);
    return all;
}

bool chat_thinks_not(const struct chat_request *r)
{
    json_t *all = variables_of(r);
    const bool off = json_is_false(json_object_get(all, "enable_thinking"));
    json_decref(all);
    return off;
}

/* What the model's own template sees besides the tokens: messages, tools and the variables. */
static char *variables_dump(const struct talk *t, json_t *messages, const json_t *tools)
{
    json_t *all = variables_of(t->of);
    json_object_set(all, "messages", messages);
    if (tools)
        json_object_set(all, "tools", (json_t *)tools);
    if (!json_object_get(all, "functions")) /* firefunction puts it behind a text */
        json_object_set_new(all, "functions", json_string(""));
    char *dump = json_dumps(all, JSON_COMPACT);
    json_decref(all);
    return dump;
}

static oato_status named_apply(const struct talk *t, json_t *messages, struct text *out,
                               struct oato_error *err)
{
    const size_t n = json_array_size(messages);
    struct chat_message *list = calloc(n, sizeof *list);
    const json_t *message;
    size_t i;
    if (!list)
        return oato_fail_memory(err, n * sizeof *list, "messages");
    json_array_foreach(messages, i, message)
    {
        const json_t *content = json_object_get(message, "content");
        list[i] = (struct chat_message){json_string_value(json_object_get(message, "role")),
                                        json_string_value(content), json_string_length(content)};
    }
    oato_status status = chat_template_apply_within(t->of->template, list, n, t->answer, NULL,
                                                    t->of->budget, out, err);
    free(list);
    return status;
}

static oato_status own_apply(const struct talk *t, json_t *messages, const json_t *tools,
                             struct text *out, struct oato_error *err)
{
    char *variables = variables_dump(t, messages, tools);
    if (!variables)
        return oato_fail_memory(err, 1 << 16, "messages");
    const size_t n = strlen(variables);
    oato_status status = budget_spend(t->of->budget, n, n, "what the chat template is given", err);
    if (!status)
        status = chat_template_apply_within(t->of->template, NULL, 0, t->answer, variables,
                                            t->of->budget, out, err);
    free(variables);
    return status;
}

static oato_status any_apply(const struct talk *t, json_t *messages, const json_t *tools,
                             struct text *out, struct oato_error *err)
{
    return chat_template_is_program(t->of->template) ? own_apply(t, messages, tools, out, err)
                                                     : named_apply(t, messages, out, err);
}

/* A template that makes the same of the messages with the tools and without them shows none, so
 * that the model could not know of them. */
static bool tools_hidden(const struct talk *t, const struct text *with)
{
    struct text without;
    struct oato_error ignored;
    text_init(&without);
    const bool same = !own_apply(t, t->messages, NULL, &without, &ignored) &&
                      without.len == with->len &&
                      !memcmp(or_empty(without.data), or_empty(with->data), with->len);
    text_free(&without);
    return same;
}

/* In the generic form. A template that refuses the system, or leaves it out, gets no message of it.
 */
static oato_status generic_apply(const struct talk *t, const json_t *tools, struct text *out,
                                 struct oato_error *err)
{
    static const char shown[] = "<tools>";
    const bool several = !json_is_false(json_object_get(t->of->json, "parallel_tool_calls"));
    oato_status status = OATO_OK;
    bool good = false;
    for (int no_system = 0; no_system < 2 && !good; no_system++) {
        json_t *told = chat_tools_tell(t->messages, tools, several, no_system);
        if (!told)
            return oato_fail_memory(err, 1 << 16, "messages");
        out->len = 0;
        status = any_apply(t, told, NULL, out, err);
        json_decref(told);
        good =
            !status && (!tools || (out->len && memmem(out->data, out->len, shown, strlen(shown))));
    }
    if (!good && !status)
        return oato_fail(err, OATO_EUSAGE,
                         "the chat template of the model shows neither tools nor the system's "
                         "message; leave tools out");
    return status;
}

/* The text of the prompt, and the form of calls that it tells: the generic one, too, where a call
 * must be made and no grammar is known for the model's own. */
static oato_status talk_apply(const struct talk *t, const json_t *tools, enum chat_form *form,
                              struct text *out, struct oato_error *err)
{
    const struct chat_template *template = t->of->template;
    const bool own = chat_template_is_program(template);
    const bool shows = own && chat_template_mentions(template, "tools");
    const bool tells = own && chat_template_mentions(template, "tool_calls");
    const struct chat_call_form *known = NULL;
    const char *only;
    const bool must = chat_must_call(t->of->json, &only);
    *form = CHAT_FORM_OWN;
    if (tools ? shows : tells || !chat_tools_used(t->messages)) {
        if (any_apply(t, t->messages, tools, out, err))
            return err->status;
        if (must && chat_call_form_find(template, CHAT_FORM_OWN, or_empty(out->data), out->len,
                                        &known, err))
            return err->status;
        if ((known || !must) && (!tools || !tools_hidden(t, out)))
            return OATO_OK;
    }
    *form = tools ? CHAT_FORM_GENERIC : CHAT_FORM_OWN;
    return generic_apply(t, tools, out, err);
}

/* An answer of the assistant that stands last is gone on with: it is taken out of the messages and
 * put behind the prompt. NULL: there is none. */
static json_t *begun_take(json_t *messages)
{
    const size_t n = json_array_size(messages);
    json_t *last = json_array_get(messages, n - 1);
    if (n < 2 || !json_is(json_object_get(last, "role"), "assistant") ||
        json_object_get(last, "tool_calls"))
        return NULL;
    json_incref(last);
    json_array_remove(messages, n - 1);
    return last;
}

oato_status chat_prompt_make(const struct chat_request *r, enum chat_form *form, struct text *out,
                             struct oato_error *err)
{
    const json_t *o = r->json, *tools = NULL;
    struct talk t = {r, json_object_get(o, "messages"), .answer = true};
    bool goes_on = false;
    if (messages_mend(r, t.messages, err) || tools_check(o, &tools, err) ||
        json_flag(o, "continue_final_message", &goes_on, err) ||
        json_flag(o, "add_generation_prompt", &t.answer, err))
        return err->status;
    if (goes_on && t.answer && json_object_get(o, "add_generation_prompt"))
        return oato_fail(err, OATO_EUSAGE,
                         "give either add_generation_prompt or continue_final_message, not both");
    if (!chat_template_is_program(r->template) &&
        json_object_size(json_object_get(o, "chat_template_kwargs")))
        return oato_fail(err, OATO_EUSAGE,
                         "the chat template %s has no variables; leave chat_template_kwargs out",
                         chat_template_name(r->template));
    json_t *begun = t.answer || goes_on ? begun_take(t.messages) : NULL;
    const json_t *said = json_object_get(begun, "content");
    t.answer = t.answer || begun;
    const oato_status status = talk_apply(&t, tools, form, out, err);
    if (json_is_string(said))
        text_add(out, json_string_value(said), json_string_length(said));
    json_decref(begun);
    return status;
}
