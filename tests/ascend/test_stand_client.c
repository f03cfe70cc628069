/*
 * What llama.cpp's backend does with these libraries, in short; scripts/peer-ascend-tests lets it
 * do so itself.
 */
#include "tests/ascend/client.h"

static void no_stream_is_the_default_one(void **state)
{
    (void)state;
    start(NULL);
    struct client c = client_open();
    send(c.x, 3);
    OK(scale(c.x, c.y, 2, c.workspace, NULL));
    assert_int_equal(stand_pending(), 1);
    OK(aclrtSynchronizeStream(c.stream)); /* another one */
    assert_int_equal(stand_pending(), 1);
    OK(aclrtSynchronizeStream(NULL));
    assert_int_equal(stand_pending(), 0);
    client_close(&c);
    assert_int_equal(stand_broken(NULL), 0);
    stand_reset();
}

static void a_device_is_reset_as_often_as_it_was_set(void **state)
{
    (void)state;
    start(NULL);
    struct client c = client_open();
    client_close(&c);
    int32_t device;
    OK(aclrtSetDevice(0));
    OK(aclrtSetDevice(0));
    OK(aclrtResetDevice(0));
    OK(aclrtGetDevice(&device));
    while (aclrtResetDevice(0) == 0)
        ;
    assert_int_equal(aclrtGetDevice(&device), 107002);
    assert_int_equal(stand_broken("device_set"), 2);
    stand_reset();
}

static void memory_lies_as_the_rules_say(void **state)
{
    (void)state;
    for (int loose = 0; loose < 2; loose++) {
        start((const char *const[]){loose ? "STAND_RULES=loose" : "STAND_RULES=strict", NULL});
        struct client c = client_open();
        OK(scale(c.x, c.y, 2, c.workspace, c.stream));
        OK(aclrtSynchronizeStream(c.stream));
        uintptr_t apart = (uintptr_t)c.y - (uintptr_t)c.x;
        assert_int_equal((uintptr_t)c.x % 128, loose ? 0 : 64);
        assert_int_equal(apart % (loose ? 512 : 128), 0);
        client_close(&c);
        stand_reset();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_stream_is_the_default_one),
        cmocka_unit_test(a_device_is_reset_as_often_as_it_was_set),
        cmocka_unit_test(memory_lies_as_the_rules_say),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
