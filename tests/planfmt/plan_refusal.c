#include "plan_refusal.h"
#include "random_planfmt.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

void encode(const struct plan *p, uint8_t **data, size_t *bytes)
{
    struct oato_error err = {.text = ""};
    if (plan_encode(p, data, bytes, &err))
        fail_msg("%s", err.text);
}

/* The copy has no byte behind its end. */
const char *refusal(const uint8_t *data, size_t bytes)
{
    static struct oato_error err;
    struct plan p;
    uint8_t *exact = malloc(bytes ? bytes : 1);
    assert_non_null(exact);
    memcpy(exact, data, bytes);
    oato_status status = plan_load_memory(exact, bytes, "m.plan", &p, &err);
    free(exact);
    if (status)
        assert_null(p.arena.blocks);
    plan_free(&p);
    if (!status)
        return NULL;
    assert_int_equal(status, OATO_EFILE);
    assert_true(!strncmp(err.text, "m.plan: ", 8) && !strchr(err.text, '\n'));
    return err.text;
}

void assert_refused(const uint8_t *data, size_t bytes, const char *say)
{
    const char *text = refusal(data, bytes);
    if (!text || !strstr(text, say))
        fail_msg("'%s' is not in '%s'", say, text ? text : "(loaded)");
}

void a_small_plan(uint8_t **data, size_t *bytes)
{
    struct rng rng = {5};
    struct plan p;
    random_plan(&rng, 8, &p);
    p.content_hash = 1;
    p.neurons_hash = 0;
    p.n_caches = 0;
    p.n_sparse = 0;
    p.n_inputs = 0;
    p.n_sums = 0;
    p.request.n_points = 0;
    p.n_choices = p.n_alternatives = 0;
    encode(&p, data, bytes);
    plan_free(&p);
}
