/*
 * test_response_store.c - what is kept is found by its client alone, the longest unused one goes
 * when there are too many or when they are too large, and what is forgotten is gone.
 */
#include "server/responses.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static bool has(struct response_store *s, int32_t client, const char *id, const char *wanted)
{
    struct text t;
    text_init(&t);
    const bool found = response_store_get(s, client, id, false, &t);
    if (found && wanted)
        assert_string_equal(or_empty(t.data), wanted);
    text_free(&t);
    return found;
}

static void each_client_has_its_own(void **state)
{
    struct response_store *s = response_store_create();
    struct text t;
    (void)state;
    assert_non_null(s);
    response_store_put(s, 0, "a", "of 0");
    response_store_put(s, 1, "b", "of 1");
    assert_true(has(s, 0, "a", "of 0"));
    assert_true(has(s, 1, "b", "of 1"));
    assert_false(has(s, 1, "a", NULL));
    assert_false(has(s, 0, "b", NULL));
    text_init(&t);
    assert_false(response_store_get(s, 1, "a", true, &t));
    assert_true(response_store_get(s, 0, "a", true, &t));
    assert_string_equal(t.data, "of 0");
    text_free(&t);
    assert_false(has(s, 0, "a", NULL));
    assert_true(has(s, 1, "b", NULL));
    response_store_free(s);
}

static void the_longest_unused_goes(void **state)
{
    struct response_store *s = response_store_create();
    char id[16];
    (void)state;
    for (int i = 0; i < 1000; i++) {
        snprintf(id, sizeof id, "%d", i);
        response_store_put(s, 0, id, id);
    }
    assert_true(has(s, 0, "0", "0")); /* 1 is the longest unused one now */
    response_store_put(s, 0, "more", "more");
    assert_true(has(s, 0, "0", "0"));
    assert_false(has(s, 0, "1", NULL));
    assert_true(has(s, 0, "2", "2"));
    assert_true(has(s, 0, "999", "999"));
    response_store_free(s);
}

static void bytes_are_bounded(void **state)
{
    struct response_store *s = response_store_create();
    const size_t half = 15 << 20, more_than_all = 33 << 20;
    char *large = malloc(more_than_all + 1);
    (void)state;
    assert_non_null(large);
    memset(large, 'x', more_than_all);
    large[more_than_all] = 0;
    response_store_put(s, 0, "small", "small");
    response_store_put(s, 0, "too large", large);
    assert_false(has(s, 0, "too large", NULL));
    assert_true(has(s, 0, "small", NULL)); /* nothing went for it */
    large[half] = 0;
    response_store_put(s, 0, "a", large);
    response_store_put(s, 0, "b", large);
    assert_true(has(s, 0, "small", NULL));
    assert_true(has(s, 0, "b", large));
    response_store_put(s, 0, "c", large);
    assert_false(has(s, 0, "a", NULL));
    assert_true(has(s, 0, "b", NULL));
    assert_true(has(s, 0, "c", NULL));
    assert_true(has(s, 0, "small", NULL)); /* used after a */
    free(large);
    response_store_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_client_has_its_own),
        cmocka_unit_test(the_longest_unused_goes),
        cmocka_unit_test(bytes_are_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
