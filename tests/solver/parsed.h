/* parsed.h - what a report says, as JSON. */
#ifndef OATO_PARSED_H
#define OATO_PARSED_H

#include "base/base.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

/* The text, which is emptied. */
static inline json_t *parsed(struct text *t)
{
    json_error_t e;
    assert_false(t->failed);
    json_t *j = json_loadb(t->data, t->len, 0, &e);
    if (!j)
        fail_msg("%s at %d of: %s", e.text, e.position, t->data);
    text_free(t);
    text_init(t);
    return j;
}

#endif
