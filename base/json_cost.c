/*
 * json_cost.c - see json_cost.h.
 */
#include "base/json_cost.h"

/* What values take in jansson, with malloc's share. */
enum {
    LIST_BYTES = 128,
    OBJECT_BYTES = 224,
    MEMBER_BYTES = 112,
    VALUE_BYTES = 48,
    QUOTE_BYTES = 24
};

oato_status json_afford(struct budget *b, const char *json, size_t n, struct oato_error *err)
{
    size_t bytes = 2 * n; /* as it is, and the texts in it */
    bool text = false;
    for (size_t i = 0; i < n; i++) {
        const char c = json[i];
        if (c == '"') {
            text = !text;
            bytes += QUOTE_BYTES;
        } else if (text) {
            i += c == '\\';
        } else if (c == '[') {
            bytes += LIST_BYTES;
        } else if (c == '{') {
            bytes += OBJECT_BYTES;
        } else if (c == ':') {
            bytes += MEMBER_BYTES;
        } else if (c == ',') {
            bytes += VALUE_BYTES;
        }
    }
    return budget_spend(b, n, bytes, "the JSON of the request", err);
}
