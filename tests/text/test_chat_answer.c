/*
 * test_chat_answer.c - answers that are cut off, damaged or hostile; tests/oracle/test_answers.py
 * compares with what the makers' templates render.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "tests/text/answer_cut.h"

static const char hermes[] = "<think></think> <tool_call>{\"name\"";
static const char tagged[] = "</think> <tool_call><function= <parameter=";
static const char harmony[] = "<|channel|>";
static const char llama3[] = "{\"name\": f, \"parameters\": dictionary of argument name";

static struct gguf_string string(const char *s)
{
    return (struct gguf_string){s, strlen(s)};
}

static void cut(const char *program, const char *prompt, const char *answer, size_t piece,
                struct answer_parts *p)
{
    struct oato_error err = {0};
    assert_int_equal(answer_cut(string(program), string(prompt), string(answer), piece, p, &err),
                     OATO_OK);
}

static void parts_of_any_pieces(void **state)
{
    static const struct {
        const char *program, *prompt, *answer, *says, *thinks, *calls;
    } cases[] = {
        {hermes, "", "  Plain\n\n text \n", "  Plain\n\n text \n", "", ""},
        {hermes, "", "<think>\nA <b>\n</think>\n\nB", "B", "A <b>", ""},
        {hermes, "..<think>\n", "A</think>B", "B", "A", ""},
        {hermes, "", "a < b <tool", "a < b <tool", "", ""},
        {hermes, "", "x <tool_call>{\"name\": \"f\", \"arguments\": {\"a\":-1.50e3}}</tool_call> y",
         "xy", "", "[\"f\",{\"a\":-1.50e3}]"},
        {hermes, "", "<tool_call>{\"name\": \"f\"}</tool_call>", "", "", "[\"f\",{}]"},
        /* the end token stood in place of the mark */
        {hermes, "", "<tool_call>{\"name\": \"f\", \"arguments\": {}}", "", "", "[\"f\",{}]"},
        /* what cannot be read is said */
        {hermes, "", "<tool_call>{\"name\": \"f\", \"arguments\": {</tool_call>!",
         "<tool_call>{\"name\": \"f\", \"arguments\": {</tool_call>!", "", ""},
        {hermes, "", "<tool_call>[]</tool_call>", "<tool_call>[]</tool_call>", "", ""},
        {hermes, "", "<tool_call>", "<tool_call>", "", ""},
        {hermes, "", "<tool_call>{\"name\": 3}</tool_call>", "<tool_call>{\"name\": 3}</tool_call>",
         "", ""},
        {hermes, "", "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 01}}</tool_call>",
         "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 01}}</tool_call>", "", ""},
        /* reasoning may speak of calls */
        {hermes, "<think>", "a <tool_call> b</think>c", "c", "a <tool_call> b", ""},
        {tagged, "",
         "<tool_call>\n<function=f>\n<parameter=a b>\n\"x\"\ny\n</parameter>\n<parameter=n>\n7\n"
         "</parameter>\n</function>\n</tool_call>",
         "", "", "[\"f\",{\"a b\":\"\\\"x\\\"\\u000ay\",\"n\":7}]"},
        {tagged, "",
         "<function=f><parameter=a><![CDATA[\n1]]></parameter><parameter=b><![CDATA[</parameter>"
         "<parameter=c>\"x</parameter></function>",
         "", "", "[\"f\",{\"a\":\"\\u000a1\",\"b\":\"\",\"c\":\"\\\"x\"}]"},
        {tagged, "", "<function=f><parameter=a>1", "<function=f><parameter=a>1", "", ""},
        {harmony, "",
         "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary "
         "to=functions.f <|constrain|>json<|message|>{\"a\":[]}",
         "", "Hm.", "[\"f\",{\"a\":[]}]"},
        {harmony, "", "<|channel|>final<|message|>Hi", "Hi", "", ""},
        {llama3, "", "{\"name\": \"f\", \"parameters\": {\"a\": null}}", "", "",
         "[\"f\",{\"a\":null}]"},
        {llama3, "", "So: {\"name\": \"f\"}", "So: {\"name\": \"f\"}", "", ""},
        {llama3, "", "{\"name\": of", "{\"name\": of", "", ""},
        {"", "<think>", "a</think><tool_call>", "a</think><tool_call>", "", ""},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        for (size_t piece = 1; piece < 100; piece = piece * 3 + 1) {
            struct answer_parts p;
            cut(cases[i].program, cases[i].prompt, cases[i].answer, piece, &p);
            assert_string_equal(or_empty(p.text[CHAT_SAYS].data), cases[i].says);
            assert_string_equal(or_empty(p.text[CHAT_THINKS].data), cases[i].thinks);
            assert_string_equal(or_empty(p.calls.data), cases[i].calls);
            answer_parts_free(&p);
        }
}

static void nesting_ends(void **state)
{
    enum { DEEP = 10000 };
    struct text answer;
    struct answer_parts p;
    (void)state;
    text_init(&answer);
    text_printf(&answer, "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\":");
    for (int i = 0; i < DEEP; i++)
        text_printf(&answer, "[");
    cut(hermes, "", answer.data, 4096, &p);
    assert_int_equal(p.calls.len, 0);
    assert_string_equal(p.text[CHAT_SAYS].data, answer.data);
    answer_parts_free(&p);
    text_free(&answer);
}

/* Twice the text takes about twice the time: a minute would be quadratic. */
static void long_calls_arrive_in_time(void **state)
{
    enum { PIECES = 200000 };
    struct text answer;
    struct answer_parts p;
    (void)state;
    text_init(&answer);
    text_printf(&answer, "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"");
    for (int i = 0; i < PIECES; i++)
        text_printf(&answer, "a < b, ");
    text_printf(&answer, "\"}}</tool_call>");
    cut(hermes, "", answer.data, 4, &p);
    assert_int_equal(p.text[CHAT_SAYS].len, 0);
    assert_true(p.calls.len > PIECES);
    answer_parts_free(&p);
    text_free(&answer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_of_any_pieces),
        cmocka_unit_test(nesting_ends),
        cmocka_unit_test(long_calls_arrive_in_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
