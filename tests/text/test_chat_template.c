/*
 * test_chat_template.c - the model's own program is run; a named format renders what its program
 * renders, and stands in for one that cannot be parsed.
 *
 * The programs are shortened to what recognition needs; the expected texts are what the whole
 * programs render (checked by hand with Jinja).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tests/text/small_vocab.h"

#define SAYS(role, content)                                                                        \
    {                                                                                              \
        role, content, sizeof(content) - 1                                                         \
    }

static const struct chat_message talk[] = {
    SAYS("system", "Be brief"), SAYS("user", "Hello"),    SAYS("assistant", "Hi there"),
    SAYS("user", " And? "),     SAYS("assistant", " X "), SAYS("user", "Bye"),
};

/* In place of the system's: 24 November 2026, 22:00 UTC. */
time_t time(time_t *out)
{
    const time_t now = 1795557600;
    if (out)
        *out = now;
    return now;
}

/* A file that holds nothing but a template; program NULL: not even that. */
static struct gguf *file_with(const char *program)
{
    struct gguf_writer *w = gguf_writer_create();
    gguf_writer_string(w, "general.architecture", "llama");
    if (program)
        gguf_writer_string(w, "tokenizer.chat_template", program);
    return saved(w);
}

static struct chat_template *named(const char *name)
{
    struct oato_error err = {0};
    struct chat_template *c = NULL;
    struct gguf *g = file_with(NULL);
    if (chat_template_find(g, name, strlen(or_empty(name)), NULL, &c, &err) != OATO_OK)
        fail_msg("%s", err.text);
    gguf_close(g);
    assert_string_equal(chat_template_name(c), name);
    return c;
}

/* Frees c. */
static void renders(struct chat_template *c, const struct chat_message *m, size_t n,
                    bool add_assistant, const char *want)
{
    struct oato_error err = {0};
    struct text out;
    text_init(&out);
    if (chat_template_apply(c, m, n, add_assistant, NULL, &out, &err) != OATO_OK)
        fail_msg("%s", err.text);
    assert_string_equal(out.data ? out.data : "", want);
    text_free(&out);
    chat_template_free(c);
}

static void formats_are_recognised_from_their_programs(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"chatml", "{{'<|im_start|>' + message['role'] + '\\n' + message['content']}}"},
        {"smollm",
         "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging "
         "Face<|im_end|>\n' }}"},
        {"qwen2.5",
         "{{- '<|im_start|>system\\nYou are Qwen, created by Alibaba Cloud. You are a helpful "
         "assistant.<|im_end|>\\n' }}"},
        {"qwen2", "{{ '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n' }}"},
        {"qwen1.5", "{{ '<|im_start|>system\nYou are a helpful assistant<|im_end|>\n' }}"},
        {"phi4", "{{'<|im_start|>user<|im_sep|>' + message['content'] + '<|im_end|>'}}"},
        {"llama2", "{% set content = '<<SYS>>\\n' %}{{ bos_token + '[INST] ' + content.strip() + ' "
                   "[/INST]' }}"},
        {"llama2-one-bos",
         "{{ bos_token }}{% set content = '<<SYS>>\\n' %}{{ '[INST] ' + content.strip() }}"},
        {"llama2-untrimmed", "{{- bos_token + '[INST] ' + messages[idx]['content'] -}}<<SYS>>"},
        {"mistral-v0", "{{ '[INST] ' + message['content'] + ' [/INST]' }}"},
        {"mistral-v1", "{{- ' [INST] ' + system_message + '\\n\\n' + message['content'] }}"},
        {"mistral-v3", "{{- \"[AVAILABLE_TOOLS] [\" }}{{- \"[INST] \" + message[\"content\"] }}"},
        {"mistral-v3-tekken",
         "{{- \"[AVAILABLE_TOOLS][\" }}{{- \"[INST]\" + message[\"content\"] }}"},
        {"mistral-v7", "{{ '[INST] ' + message['content'] }}{{ '[SYSTEM_PROMPT] ' }}"},
        {"mistral-v7-tekken", "{{ '[INST]' + message['content'] }}{{ '[SYSTEM_PROMPT]' }}"},
        {"phi3", "{{'<|user|>' + '\n' + message['content'] + '<|end|>' + '<|assistant|>' + '\n'}}"},
        {"phi3", "{{'<|' + message['role'] + '|>' + '\n' + message['content'] + '<|end|>\n' }}"},
        {"stablelm-zephyr", "{{'<|user|>\n' + message['content'] + '<|endoftext|>\n' }}"},
        {"zephyr", "{{ '<|user|>\n' + message['content'] + eos_token }}"},
        {"gemma", "{{ '<start_of_turn>' + role + '\n' + message['content'] | trim }}"},
        {"llama3", "{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>"},
        {"llama3.1",
         "<|start_header_id|>system{{- \"Cutting Knowledge Date: December 2023\\n\" }}{{- \"Today "
         "Date: \" + date_string }}"},
        {"deepseek", "{{'### Instruction:\\n'}}{{'\\n<|EOT|>\\n'}}"},
        {"deepseek2", "{{ 'Assistant: ' + message['content'] + eos_token }}"},
        {"deepseek3",
         "{{'<｜User｜>' + content}}{{'<｜Assistant｜>' + content + '<｜end▁of▁sentence｜>'}}"},
        {"deepseek-r1", "{{'<｜User｜>' + content}}{{'<｜Assistant｜><think>\\n'}}"},
        {"command-r", "{{ '<|START_OF_TURN_TOKEN|><|USER_TOKEN|>' + message['content'].strip() }}"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct oato_error err = {0};
        struct chat_template *c;
        char program[512];
        snprintf(program, sizeof program, "%s{%% that jinja would refuse", cases[i][1]);
        struct gguf *g = file_with(program);
        if (chat_template_find(g, NULL, 0, NULL, &c, &err) != OATO_OK)
            fail_msg("%s: %s", cases[i][0], err.text);
        assert_string_equal(chat_template_name(c), cases[i][0]);
        assert_non_null(strstr(chat_template_warning(c), "its chat template, line "));
        assert_non_null(strstr(chat_template_warning(c), cases[i][0]));
        gguf_close(g);
        chat_template_free(c);
        chat_template_free(named(cases[i][0]));
    }
}

static void what_is_not_known_is_an_error_that_lists_the_names(void **state)
{
    (void)state;
    static const char *const programs[] = {
        NULL,
        "",
        "{{ 'GPT4 Correct ' + message['role'].title() }}{% if",
        "<|im_start|>{{ message['content'] }}<end_of_utterance>{% if",
    };
    for (size_t i = 0; i < ARRAY_LEN(programs); i++) {
        struct oato_error err = {0};
        struct chat_template *c;
        struct gguf *g = file_with(programs[i]);
        assert_int_equal(chat_template_find(g, NULL, 0, NULL, &c, &err), OATO_EFILE);
        assert_non_null(strstr(err.text, "--chat-template"));
        assert_non_null(strstr(err.text, "chatml, mistral-v7"));
        assert_non_null(strstr(err.text, "deepseek3"));
        assert_int_equal(chat_template_find(g, "alpaca", strlen("alpaca"), NULL, &c, &err),
                         OATO_EUSAGE);
        assert_non_null(strstr(err.text, "--chat-template alpaca"));
        assert_non_null(strstr(err.text, "gemma"));
        gguf_close(g);
    }
}

static void a_conversation_renders_as_the_model_was_trained(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"chatml", "<|im_start|>system\nBe brief<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n"
                   "<|im_start|>assistant\nHi there<|im_end|>\n<|im_start|>user\n And? <|im_end|>\n"
                   "<|im_start|>assistant\n X <|im_end|>\n<|im_start|>user\nBye<|im_end|>\n"
                   "<|im_start|>assistant\n"},
        {"phi4", "<|im_start|>system<|im_sep|>Be brief<|im_end|><|im_start|>user<|im_sep|>Hello"
                 "<|im_end|><|im_start|>assistant<|im_sep|>Hi there<|im_end|><|im_start|>user"
                 "<|im_sep|> And? <|im_end|><|im_start|>assistant<|im_sep|> X <|im_end|>"
                 "<|im_start|>user<|im_sep|>Bye<|im_end|><|im_start|>assistant<|im_sep|>"},
        {"llama2",
         "[INST] <<SYS>>\nBe brief\n<</SYS>>\n\nHello [/INST] Hi there </s><s>[INST] And? "
         "[/INST] X </s><s>[INST] Bye [/INST]"},
        {"llama2-one-bos",
         "[INST] <<SYS>>\nBe brief\n<</SYS>>\n\nHello [/INST] Hi there </s>[INST] "
         "And? [/INST] X </s>[INST] Bye [/INST]"},
        {"llama2-untrimmed", "[INST] <<SYS>>\nBe brief\n<</SYS>>\n\nHello [/INST] Hi there </s><s>"
                             "[INST]  And?  [/INST]  X  </s><s>[INST] Bye [/INST]"},
        {"mistral-v0", "[INST] Be brief\nHello [/INST]Hi there</s>[INST]  And?  [/INST] X </s>"
                       "[INST] Bye [/INST]"},
        {"mistral-v1", " [INST] Be brief\n\nHello [/INST] Hi there</s> [INST]  And?  [/INST]  X "
                       "</s> [INST] Bye [/INST]"},
        {"mistral-v3", "[INST] Hello[/INST] Hi there</s>[INST]  And? [/INST] X</s>[INST] Be "
                       "brief\n\nBye[/INST]"},
        {"mistral-v3-tekken", "[INST]Hello[/INST]Hi there</s>[INST] And? [/INST] X </s>[INST]Be "
                              "brief\n\nBye[/INST]"},
        {"mistral-v7", "[SYSTEM_PROMPT] Be brief[/SYSTEM_PROMPT][INST] Hello[/INST] Hi there</s>"
                       "[INST]  And? [/INST]  X </s>[INST] Bye[/INST]"},
        {"mistral-v7-tekken", "[SYSTEM_PROMPT]Be brief[/SYSTEM_PROMPT][INST]Hello[/INST]Hi there"
                              "</s>[INST] And? [/INST] X </s>[INST]Bye[/INST]"},
        {"phi3", "<|system|>\nBe brief<|end|>\n<|user|>\nHello<|end|>\n<|assistant|>\nHi there"
                 "<|end|>\n<|user|>\n And? <|end|>\n<|assistant|>\n X <|end|>\n<|user|>\nBye"
                 "<|end|>\n<|assistant|>\n"},
        {"zephyr", "<|system|>\nBe brief</s>\n<|user|>\nHello</s>\n<|assistant|>\nHi there</s>\n"
                   "<|user|>\n And? </s>\n<|assistant|>\n X </s>\n<|user|>\nBye</s>\n"
                   "<|assistant|>\n"},
        {"gemma", "<start_of_turn>user\nBe brief\n\nHello<end_of_turn>\n<start_of_turn>model\nHi "
                  "there<end_of_turn>\n<start_of_turn>user\nAnd?<end_of_turn>\n<start_of_turn>"
                  "model\nX<end_of_turn>\n<start_of_turn>user\nBye<end_of_turn>\n<start_of_turn>"
                  "model\n"},
        {"llama3", "<|start_header_id|>system<|end_header_id|>\n\nBe brief<|eot_id|>"
                   "<|start_header_id|>user<|end_header_id|>\n\nHello<|eot_id|>"
                   "<|start_header_id|>assistant<|end_header_id|>\n\nHi there<|eot_id|>"
                   "<|start_header_id|>user<|end_header_id|>\n\nAnd?<|eot_id|>"
                   "<|start_header_id|>assistant<|end_header_id|>\n\nX<|eot_id|>"
                   "<|start_header_id|>user<|end_header_id|>\n\nBye<|eot_id|>"
                   "<|start_header_id|>assistant<|end_header_id|>\n\n"},
        {"deepseek", "Be brief### Instruction:\nHello\n### Response:\nHi there\n<|EOT|>\n### "
                     "Instruction:\n And? \n### Response:\n X \n<|EOT|>\n### Instruction:\nBye\n"
                     "### Response:\n"},
        {"deepseek2", "Be brief\n\nUser: Hello\n\nAssistant: Hi there<｜end▁of▁sentence｜>User:  "
                      "And? \n\nAssistant:  X <｜end▁of▁sentence｜>User: Bye\n\nAssistant:"},
        {"deepseek3",
         "Be brief<｜User｜>Hello<｜Assistant｜>Hi there<｜end▁of▁sentence｜><｜User｜> "
         "And? <｜Assistant｜> X <｜end▁of▁sentence｜><｜User｜>Bye<｜Assistant｜>"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        renders(named(cases[i][0]), talk, ARRAY_LEN(talk), true, cases[i][1]);
}

static void a_default_system_message_is_given_when_there_is_none(void **state)
{
    (void)state;
    const struct chat_message hello[] = {SAYS("user", "Hi")};
    renders(named("smollm"), hello, 1, true,
            "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging "
            "Face<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
    renders(named("llama3.1"), hello, 1, false,
            "<|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\n"
            "Today Date: 25 Nov 2026\n\n<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nHi"
            "<|eot_id|>");
    renders(named("chatml"), hello, 1, true,
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
    renders(named("smollm"), talk, 2, false,
            "<|im_start|>system\nBe brief<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n");
}

static void messages_that_cannot_be_rendered_are_refused(void **state)
{
    (void)state;
    const struct chat_message tool[] = {SAYS("tool", "42")};
    const struct chat_message lonely[] = {SAYS("system", "Be brief")};
    const struct chat_message late[] = {SAYS("user", "Hi"), SAYS("system", "Be brief")};
    struct oato_error err = {0};
    struct text out;
    text_init(&out);
    struct chat_template *chatml = named("chatml"), *gemma = named("gemma"),
                         *llama2 = named("llama2");
    assert_int_equal(chat_template_apply(chatml, tool, 1, true, NULL, &out, &err), OATO_EUSAGE);
    assert_non_null(strstr(err.text, "\"tool\""));
    assert_int_equal(chat_template_variables(chatml, "{}", &err), OATO_EUSAGE);
    assert_int_equal(chat_template_apply(gemma, lonely, 1, true, NULL, &out, &err), OATO_EUSAGE);
    assert_int_equal(chat_template_apply(llama2, late, 2, true, NULL, &out, &err), OATO_EUSAGE);
    assert_non_null(strstr(err.text, "message 2"));
    assert_int_equal(out.len, 0);
    renders(named("mistral-v3"), late, 2, true, "[INST] Be brief\n\nHi[/INST]");
    text_free(&out);
    chat_template_free(chatml);
    chat_template_free(gemma);
    chat_template_free(llama2);
}

static struct chat_template *own(struct gguf *g, const char *variables)
{
    struct oato_error err = {0};
    struct chat_template *c = NULL;
    if (chat_template_find(g, NULL, 0, NULL, &c, &err) ||
        (variables && chat_template_variables(c, variables, &err)))
        fail_msg("%s", err.text);
    assert_string_equal(chat_template_name(c), "of the model");
    assert_string_equal(chat_template_warning(c), "");
    return c;
}

static void the_program_of_the_model_is_run(void **state)
{
    static const char program[] =
        "{% for m in messages %}<{{ m.role }}>{{ m['content'] | trim }}{% endfor %}|"
        "{% if add_generation_prompt %}<assistant>{{ mood or tools }}{% endif %}";
    struct gguf *g = file_with(program);
    (void)state;
    renders(own(g, NULL), talk, 4, true,
            "<system>Be brief<user>Hello<assistant>Hi there<user>And?|<assistant>");
    renders(own(g, NULL), talk, 1, false, "<system>Be brief|");
    renders(own(g, "{\"mood\": \"sch\\u00f6n\"}"), talk, 2, true,
            "<system>Be brief<user>Hello|<assistant>sch\xc3\xb6n");
    gguf_close(g);
}

static void programs_are_told_the_local_date(void **state)
{
    static const char program[] =
        "{{ date_string }}, {{ datetime }}, {{ strftime_now('%d %b %Y %H:%M') }}";
    struct gguf *g = file_with(program);
    (void)state;
    renders(own(g, NULL), talk, 1, true, "25 Nov 2026, Nov 25 2026, 25 Nov 2026 07:00");
    renders(own(g, "{\"date_string\": \"today\"}"), talk, 1, true,
            "today, Nov 25 2026, 25 Nov 2026 07:00");
    gguf_close(g);
}

static void variables_are_a_json_object(void **state)
{
    static const char *const bad[] = {"[1]", "{\"a\": }", "{\"a\"", "", "{} {}"};
    struct gguf *g = file_with("x");
    struct chat_template *c = own(g, "{}");
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct oato_error err = {0};
        assert_int_equal(chat_template_variables(c, bad[i], &err), OATO_EUSAGE);
        assert_non_null(strstr(err.text, "no JSON object"));
    }
    chat_template_free(c);
    gguf_close(g);
}

static void a_program_that_refuses_says_why(void **state)
{
    static const char *const cases[][2] = {
        {"{% for m in messages %}\n{% if m.role == 'system' %}\n"
         "{{ raise_exception('System role\nnot supported') }}{% endif %}{% endfor %}",
         "its chat template, line 3: System role not supported"},
        {"{{ messages[0].tools.x }}", "'dict object' has no attribute 'tools'"},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct oato_error err = {0};
        struct text out;
        struct gguf *g = file_with(cases[i][0]);
        struct chat_template *c = own(g, NULL);
        text_init(&out);
        assert_int_equal(chat_template_apply(c, talk, 2, true, NULL, &out, &err), OATO_EFILE);
        if (!strstr(err.text, cases[i][1]))
            fail_msg("%s", err.text);
        assert_int_equal(out.len, 0);
        assert_null(strchr(err.text, '\n'));
        text_free(&out);
        chat_template_free(c);
        gguf_close(g);
    }
}

/* A vocabulary of three tokens, whose model adds the first. */
static void the_first_token_is_left_to_the_tokenizer(void **state)
{
    static const struct {
        bool adds;
        const char *program, *want;
    } cases[] = {
        {true, "{{ bos_token }}Hi{{ eos_token }}{{ bos_token }}", "Hi</s><s>"},
        {false, "{{ bos_token }}Hi{{ eos_token }}", "<s>Hi</s>"},
        {true, "Hi", "Hi"},
    };
    static const struct gguf_string tokens[] = {{"<unk>", 5}, {"<s>", 3}, {"</s>", 4}};
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct oato_error err = {0};
        struct gguf *g = NULL;
        char path[] = "/tmp/oato-test-XXXXXX";
        const uint32_t bos = 1, eos = 2;
        close(mkstemp(path));
        struct gguf_writer *w = gguf_writer_create();
        gguf_writer_string(w, "general.architecture", "llama");
        gguf_writer_string(w, "tokenizer.ggml.model", "gpt2");
        gguf_writer_string(w, "tokenizer.chat_template", cases[i].program);
        gguf_writer_strings(w, "tokenizer.ggml.tokens", tokens, 3);
        gguf_writer_scalar(w, "tokenizer.ggml.bos_token_id", GGUF_U32, &bos);
        gguf_writer_scalar(w, "tokenizer.ggml.eos_token_id", GGUF_U32, &eos);
        gguf_writer_scalar(w, "tokenizer.ggml.add_bos_token", GGUF_BOOL, &cases[i].adds);
        if (gguf_writer_save(w, path, &err) || gguf_open(path, &g, &err))
            fail_msg("%s", err.text);
        gguf_writer_free(w);
        unlink(path);
        renders(own(g, NULL), talk, 1, true, cases[i].want);
        gguf_close(g);
    }
}

static void a_program_takes_the_place_of_the_models(void **state)
{
    static const struct chat_message m[] = {SAYS("system", " Be brief. "), SAYS("user", "Hi")};
    (void)state;
    struct oato_error err = {0};
    struct chat_template *c;
    struct gguf *g = file_with("{{ 'the model' }}");
    assert_int_equal(chat_template_find(g, "{{messages[1].content}}",
                                        strlen("{{messages[1].content}}"), NULL, &c, &err),
                     OATO_OK);
    assert_string_equal(chat_template_name(c), "as given");
    renders(c, m, 2, true, "Hi");
    assert_int_equal(chat_template_find(g, "just text", strlen("just text"), NULL, &c, &err),
                     OATO_OK);
    renders(c, m, 2, true, "just text");
    assert_int_equal(chat_template_find(g, "{{ no end", strlen("{{ no end"), NULL, &c, &err),
                     OATO_EUSAGE);
    gguf_close(g);
    renders(named("command-r"), m, 2, true,
            "<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>Be brief.<|END_OF_TURN_TOKEN|>"
            "<|START_OF_TURN_TOKEN|><|USER_TOKEN|>Hi<|END_OF_TURN_TOKEN|>"
            "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(formats_are_recognised_from_their_programs),
        cmocka_unit_test(what_is_not_known_is_an_error_that_lists_the_names),
        cmocka_unit_test(a_conversation_renders_as_the_model_was_trained),
        cmocka_unit_test(a_default_system_message_is_given_when_there_is_none),
        cmocka_unit_test(messages_that_cannot_be_rendered_are_refused),
        cmocka_unit_test(the_program_of_the_model_is_run),
        cmocka_unit_test(a_program_takes_the_place_of_the_models),
        cmocka_unit_test(a_program_that_refuses_says_why),
        cmocka_unit_test(programs_are_told_the_local_date),
        cmocka_unit_test(variables_are_a_json_object),
        cmocka_unit_test(the_first_token_is_left_to_the_tokenizer),
    };
    setenv("TZ", "EAST-9", 1); /* nine hours before UTC */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
