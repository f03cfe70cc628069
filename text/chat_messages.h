/*
 * chat_messages.h - requests in the form of OpenAI's chats (jansson's objects), made piece by piece
 * of what other interfaces have. Where memory is short something is missing.
 */
#ifndef OATO_CHAT_MESSAGES_H
#define OATO_CHAT_MESSAGES_H

#include "text/text.h"

struct json_t;

/* Of OpenAI's messages: the last one, if it is of this role, or a new one behind it; the templates
 * of models read no two of a role in a row. Its content is a list of parts, as is its reasoning.
 * NULL: memory is short. */
struct json_t *message_of(struct json_t *messages, const char *role);
/* The result of a call, whose content is empty yet. */
struct json_t *message_of_result(struct json_t *messages, const struct json_t *id);
/* Appends to one of its lists of parts: "content", or "reasoning_content". A text that is no JSON
 * string counts as empty. */
void message_part(struct json_t *message, const char *part, const struct json_t *text);
/* arguments: an object, or the text of one. */
void message_calls(struct json_t *message, const struct json_t *id, const struct json_t *name,
                   const struct json_t *arguments);
/* Appends a tool in OpenAI's form. Members that are NULL are left out. */
void tool_add(struct json_t *tools, const struct json_t *name, const struct json_t *description,
              const struct json_t *schema);
/* Lets the model reason, or not, where its template knows the variable. */
void thinking_set(const struct chat_template *c, struct json_t *request, bool on);
/* Set members of a chat: a call of this function is forced; the effort that OpenAI's chats know for
 * one of theirs or Anthropic's, or an error that names the member; what the answer follows,
 * {"type": .., "schema": ..}.
 */
void choice_set(struct json_t *request, const struct json_t *name);
oato_status effort_set(struct json_t *request, const char *member, const struct json_t *effort,
                       struct oato_error *err);
oato_status format_set(struct json_t *request, const char *name, const struct json_t *format,
                       struct oato_error *err);
/* Drops the beginning of a conversation behind the messages of the system: about this part of its
 * text, one message at least, and results with their calls. False: only one message is left. */
bool conversation_cut(struct json_t *messages, double part);

#endif
