/*
 * responses.h - OpenAI's /v1/responses: requests (responses.c), answers (responses_answer.c), and
 * those that are kept (response_store.c).
 */
#ifndef OATO_SERVER_RESPONSES_H
#define OATO_SERVER_RESPONSES_H

#include "server/http.h"

/* Any thread. create: NULL: memory is short. */
struct response_store *response_store_create(void);
void response_store_free(struct response_store *s); /* or NULL */
/* Keeps a copy; a text that is larger than the store, or for which memory is short, is not kept. */
void response_store_put(struct response_store *s, int32_t client, const char *id, const char *text);
/* Appends the text that this client was given; forget: it is not kept any more. False: there is
 * none. */
bool response_store_get(struct response_store *s, int32_t client, const char *id, bool forget,
                        struct text *out);

/* Reasoning that comes back with the next request: behind this mark it stands as it is. */
#define REASONING_MARK "oato:"

/* dialect.request. What the answer repeats (ask.kept): "echo", members of the response; "items",
 * the conversation as text, if it is to be kept; "names", of the tools that are no functions by
 * this name: {"custom": true}, or {"name": .., "namespace": ..}; "reasoning": it is sent back. */
oato_status responses_request(struct exchange *x, struct oato_error *err);

#endif
