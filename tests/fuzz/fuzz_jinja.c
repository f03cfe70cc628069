/*
 * fuzz_jinja.c - whatever the program, it is refused or it renders, or it ends at a limit; the
 * message is one line. What is rendered twice is the same.
 */
#include "text/jinja/jinja_internal.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static const char variables[] =
    "{\"messages\": [{\"role\": \"system\", \"content\": \"Be brief.\"}, {\"role\": \"user\","
    "\"content\": \" Gr\\u00fc\\u00dfe \\ud83d\\ude00 </think> \"}, {\"role\": \"assistant\","
    "\"content\": null, \"tool_calls\": [{\"function\": {\"name\": \"f\", \"arguments\":"
    "{\"x\": [1, 2.5, true]}}}]}], \"add_generation_prompt\": true, \"bos_token\": \"<s>\","
    "\"eos_token\": \"</s>\", \"n\": 9223372036854775807}";

static oato_status render(const struct jinja_template *t, struct text *out, struct oato_error *err)
{
    text_init(out);
    struct jinja *x = jinja_begin(t, err);
    if (!x)
        abort();
    x->now = 0;
    jinja_set_json(x, variables, sizeof variables - 1);
    oato_status status = jinja_run(x, out);
    jinja_end(x);
    return status;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct jinja_limits limits = jinja_limits_default;
    struct oato_error err = {.text = ""};
    struct jinja_template *t;
    struct text one, two;
    limits.steps = 100000;
    oato_status status = jinja_parse("fuzz", (const char *)data, bytes, &limits, &t, &err);
    if (!status) {
        status = render(t, &one, &err);
        const oato_status again = render(t, &two, &err);
        if (again != status || one.len != two.len ||
            (one.len && memcmp(one.data, two.data, one.len)))
            abort();
        text_free(&one);
        text_free(&two);
        jinja_free(t);
    }
    if (status && (err.status != status || !err.text[0] || strchr(err.text, '\n')))
        abort();
    return 0;
}
