/*
 * fuzz_schema.c - whatever the JSON schema, it is refused in one line or a text follows it, and
 * both take no more time and memory than a request may.
 */
#include "tests/fuzz/constrained.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct budget budget = BUDGET_REQUEST;
    struct oato_error err = {.text = ""};
    struct grammar *g;
    limits_begin();
    const oato_status status = grammar_of_schema((const char *)data, bytes, &budget, &g, &err);
    if (status)
        check_error(status, &err);
    else
        constrained_walk(g, &budget, data, bytes);
    limits_end();
    return 0;
}
