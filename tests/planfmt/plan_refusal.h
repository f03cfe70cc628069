/*
 * plan_refusal.h - a small plan as bytes, and what the reader says of bytes that are none. Failures
 * end the test.
 */
#ifndef OATO_PLAN_REFUSAL_H
#define OATO_PLAN_REFUSAL_H

#include "planfmt/planfmt.h"

/* Free *data. */
void encode(const struct plan *p, uint8_t **data, size_t *bytes);
/* The same each time, without optional sections. Free *data. */
void a_small_plan(uint8_t **data, size_t *bytes);
/* NULL when the bytes load; else the message, until the next call. */
const char *refusal(const uint8_t *data, size_t bytes);
/* The message has the words. */
void assert_refused(const uint8_t *data, size_t bytes, const char *say);

#endif
