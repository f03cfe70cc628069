/*
 * chat_tools.h - tools in conversations: messages for templates that show none, and the form of
 * calls that must be made. Messages are jansson's, as OpenAI's interface has them, each with a role
 * and a content that are texts, but for those that chat_message_rename gets.
 */
#ifndef OATO_CHAT_TOOLS_H
#define OATO_CHAT_TOOLS_H

#include "text/text.h"

struct json_t;

/* Older and newer names for the same, in place: functions that are called are tools, and the
 * developer is the system where the template does not know it. A list of no calls goes. */
void chat_message_rename(const struct chat_template *c, struct json_t *message);
/* Whether messages call tools, or are what these have returned. */
bool chat_tools_used(const struct json_t *messages);
/* The messages as a new list (json_decref), for a template that shows neither tools (NULL: there
 * are none) nor calls, nor with no_system messages of the system. several: calls may be more than
 * one. NULL: memory is short. */
struct json_t *chat_tools_tell(const struct json_t *messages, const struct json_t *tools,
                               bool several, bool no_system);

/* A call is `before` NAME `between` ARGUMENTS `after`, and ARGUMENTS a JSON object. */
struct chat_call_form {
    const char *before, *between, *after;
};
/* That of calls in the answer to a prompt. *out NULL: arguments are no JSON, or there are no calls.
 */
oato_status chat_call_form_find(const struct chat_template *c, enum chat_form form,
                                const char *prompt, size_t n, const struct chat_call_form **out,
                                struct oato_error *err);

#endif
