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
    assert_int_equal(
        answer_cut(string(program), string(prompt), string(answer), piece, false, p, &err),
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
        /* what cannot be read is said, up to the arguments; those go on as they are */
        {hermes, "", "<tool_call>{\"name\": \"f\", \"arguments\": [</tool_call>!",
         "<tool_call>{\"name\": \"f\", \"arguments\": [</tool_call>!", "", ""},
        {hermes, "", "<tool_call>{\"name\": \"f\", \"arguments\": {</tool_call>!", "!", "",
         "[\"f\",{..]"},
        {hermes, "",
         "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"b\" \"c\"}}</tool_call>!", "!", "",
         "[\"f\",{\"a\":\"b\"\"c\"}}..]"},
        {hermes, "", "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 01}}</tool_call>", "", "",
         "[\"f\",{\"a\":01}}..]"},
        /* arguments in front of the name; marks in a text; a function alone; what follows is text
         */
        {hermes, "",
         "<tool_call>{\"id\": 7, \"arguments\": {\"a\": \"</tool_call>\"}, \"name\": "
         "\"f\"}</tool_call>"
         "<tool_call>{\"g\": {}}</tool_call><tool_call>{\"name\": \"h\", \"arguments\": {\"b\": "
         "\"\\u00e4\\'\\x </tool_call> \xc3\xa4\"}, \"id\": 7} or so</tool_call>.",
         ".", "",
         "[\"f\",{\"a\":\"</tool_call>\"}],[\"g\",{}],[\"h\",{\"b\":\"\\u00e4'\\\\x </tool_call> "
         "\xc3\xa4\"}]"},
        {hermes, "", "<tool_call>[]</tool_call>", "<tool_call>[]</tool_call>", "", ""},
        {hermes, "", "<tool_call>", "<tool_call>", "", ""},
        {hermes, "", "<tool_call>{\"name\": 3}</tool_call>", "<tool_call>{\"name\": 3}</tool_call>",
         "", ""},
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
        {tagged, "", "<function=f><parameter=a>1", "", "", "[\"f\",{\"a\":1}]"},
        {tagged, "", "<function=f", "", "", "[\"f\",{}]"},
        {tagged, "", "<function=>", "<function=>", "", ""},
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
    assert_int_equal(p.n_cut, 1);
    assert_int_equal(p.n_whole + (int)p.text[CHAT_SAYS].len, 0);
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

/* Two calls in each form, and what is called. */
static const struct {
    const char *program, *answer, *calls;
    bool pieces; /* its arguments are JSON, or Python */
} formats[] = {
    {hermes,
     "Hm. <tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"x < \xc3\xa4\\n\", \"n\": "
     "[1.5e3, true]}}\n"
     "</tool_call>\n<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>",
     "[\"f\",{\"a\":\"x < \xc3\xa4\\n\",\"n\":[1.5e3,true]}],[\"g\",{}]", true},
    {tagged,
     "Hm. <tool_call>\n<function=f>\n<parameter=a>\nx < "
     "y\n</parameter>\n<parameter=n>\n[1]\n</parameter>\n"
     "</function>\n</tool_call>\n<tool_call>\n<function=g>\n</function>\n</tool_call>",
     "[\"f\",{\"a\":\"x < y\",\"n\":[1]}],[\"g\",{}]", true},
    {"<arg_key>",
     "Hm. <tool_call>f\n<arg_key>a</arg_key>\n<arg_value>x < y</arg_value>\n<arg_key>n</arg_key>\n"
     "<arg_value>[1]</arg_value>\n</tool_call><tool_call>g\n</tool_call>",
     "[\"f\",{\"a\":\"x < y\",\"n\":[1]}],[\"g\",{}]", true},
    {"minimax:tool_call",
     "Hm. <minimax:tool_call>\n<invoke name=\"f\">\n<parameter "
     "name=\"a\">x</parameter>\n</invoke>\n"
     "</minimax:tool_call>",
     "[\"f\",{\"a\":\"x\"}]", false},
    {"DSML",
     "Hm. <\uff5cDSML\uff5cfunction_calls>\n<\uff5cDSML\uff5cinvoke "
     "name=\"f\">\n<\uff5cDSML\uff5cparameter "
     "name=\"a\" string=\"true\">7</\uff5cDSML\uff5cparameter>\n</\uff5cDSML\uff5cinvoke>\n"
     "</\uff5cDSML\uff5cfunction_calls>",
     "[\"f\",{\"a\":\"7\"}]", false},
    {harmony,
     "<|channel|>final<|message|>Hm.<|start|>assistant<|channel|>commentary to=functions.f "
     "<|constrain|>json"
     "<|message|>{\"a\":\"x < y\",\"n\":[1]}",
     "[\"f\",{\"a\":\"x < y\",\"n\":[1]}]", true},
    {"[TOOL_CALLS]",
     "Hm.[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"a\": \"x ] y\"}}, {\"name\": \"g\", "
     "\"arguments\": "
     "{}}]",
     "[\"f\",{\"a\":\"x ] y\"}],[\"g\",{}]", true},
    {"[TOOL_CALLS]", "Hm.[TOOL_CALLS]f[ARGS]{\"a\": \"x\", \"n\": 1}[TOOL_CALLS]g[ARGS]{}",
     "[\"f\",{\"a\":\"x\",\"n\":1}],[\"g\",{}]", true},
    {"<\uff5ctool\u2581call\u2581begin\uff5c>",
     "Hm.<\uff5ctool\u2581calls\u2581begin\uff5c><\uff5ctool\u2581call\u2581begin\uff5c>function<"
     "\uff5ctool"
     "\u2581sep\uff5c>f\n```json\n{\"a\": 1, \"b\": 2}\n```<\uff5ctool\u2581call\u2581end\uff5c>"
     "<\uff5ctool\u2581call\u2581begin\uff5c>g<\uff5ctool\u2581sep\uff5c>{}<"
     "\uff5ctool\u2581call\u2581end\uff5c>"
     "<\uff5ctool\u2581calls\u2581end\uff5c>",
     "[\"f\",{\"a\":1,\"b\":2}],[\"g\",{}]", true},
    {"<|tool_call_begin|>",
     "Hm.<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"
     "\"a\": \"x\", "
     "\"b\": null}<|tool_call_end|><|tool_calls_section_end|>",
     "[\"f\",{\"a\":\"x\",\"b\":null}]", true},
    {"<|tool_call>call:", "Hm.<|tool_call>call:f{a:<|\"|>x < \"y\\<|\"|>,n:[1,-2]}<tool_call|>",
     "[\"f\",{\"a\":\"x < \\\"y\\\\\",\"n\":[1,-2]}]", true},
    {"<|tool_call_start|>",
     "Hm.<|tool_call_start|>[f(a='it\\'s', n=(1, None)), g()]<|tool_call_end|>",
     "[\"f\",{\"a\":\"it's\",\"n\":[1,null]}],[\"g\",{}]", true},
    {"<|START_ACTION|>",
     "Hm.<|START_ACTION|>[\n {\"tool_call_id\": \"0\", \"tool_name\": \"f\", \"parameters\": "
     "{\"a\": 1, \"b\": "
     "2}}\n]<|END_ACTION|>",
     "[\"f\",{\"a\":1,\"b\":2}]", true},
    {llama3, "{\"name\": \"f\", \"parameters\": {\"a\": \"x\", \"b\": 2}}",
     "[\"f\",{\"a\":\"x\",\"b\":2}]", true},
};

/* Wherever an answer is cut: what is called is the beginning of what the whole one calls, and
 * nothing of a call, nor of its marks, is said. */
static void cut_calls_are_never_said(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(formats); i++) {
        const char *answer = formats[i].answer, *whole = formats[i].calls;
        const size_t n = strlen(answer);
        int cut_within = 0;
        for (size_t at = 0; at <= n; at++) {
            struct answer_parts p;
            struct oato_error err;
            const size_t piece = 1 + at % 3;
            assert_int_equal(answer_cut(string(formats[i].program), string(""),
                                        (struct gguf_string){answer, at}, piece, true, &p, &err),
                             OATO_OK);
            const char *says = or_empty(p.text[CHAT_SAYS].data), *calls = or_empty(p.calls.data);
            const size_t told = strlen(calls) - (p.n_cut ? strlen("..]") : 0);
            if (strncmp("Hm. ", says, strlen(says)) || strncmp(whole, calls, told) || p.n_cut > 1)
                fail_msg("%s, cut at %zu: says %s, calls %s", answer, at, says, calls);
            cut_within += p.n_cut && told > strlen("[\"f\",{");
            if (at == n)
                assert_string_equal(calls, whole);
            answer_parts_free(&p);
        }
        if (formats[i].pieces && !cut_within)
            fail_msg("%s: its arguments do not arrive in pieces", answer);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_of_any_pieces),
        cmocka_unit_test(nesting_ends),
        cmocka_unit_test(cut_calls_are_never_said),
        cmocka_unit_test(long_calls_arrive_in_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
