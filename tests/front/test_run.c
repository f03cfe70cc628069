/*
 * test_run.c - oato-run from outside, on a tiny random model: what its verbs print.
 */
#include "tests/front/run_outside.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

static void generates_and_repeats_itself(void **state)
{
    struct outputs *o = *state;
    assert_int_equal(run(&o->out, &o->err, "tiny.gguf -p 'Hello' -n 12 --ignore-eos"), 0);
    assert_memory_equal(o->out.data, "Hello", 5);
    assert_true(o->out.len > 6);
    assert_int_equal(lines(&o->err), 1); /* the timings */
    char *first = strdup(o->out.data);
    assert_int_equal(
        run(&o->out, &o->err, "generate -m tiny.gguf -pHello -n12 --ignore-eos -t1 --temp 0"), 0);
    assert_string_equal(o->out.data, first);
    assert_int_equal(
        run(&o->out, &o->err, "tiny.gguf -p Hello -n 12 --ignore-eos --devices cpu,sim:vram=8MiB"),
        0);
    assert_string_equal(o->out.data, first);
    /* the same answer in company */
    assert_int_equal(
        run(&o->out, &o->err, "tiny.gguf -p Hello -p 'Another one' -n 12 --ignore-eos"), 0);
    assert_memory_equal(o->out.data, "[1] ", 4);
    assert_memory_equal(o->out.data + 4, first, strlen(first));
    assert_non_null(strstr(o->out.data, "\n[2] Another one"));
    free(first);
    assert_int_equal(run(&o->out, &o->err, "tiny.gguf -p Hello -n 0"), 0);
    assert_string_equal(o->out.data, "Hello\n");
    assert_int_equal(run(&o->out, &o->err,
                         "tiny.gguf -p Hello -n 4 --no-display-prompt --temp 1.5 "
                         "--top-k 7 --top-p 0.9 --min-p 0.01 --seed 3 "
                         "--repeat-penalty 1.1 --repeat-last-n 9 --kv f32"),
                     0);
    assert_int_equal(run(&o->out, &o->err, "tiny.gguf --chat -p Hello -n 4 --system Short."), 0);
}

/* Threads without a processor would only hold up the others. */
static void too_many_threads_are_told_and_not_started(void **state)
{
    struct outputs *o = *state;
    assert_int_equal(run(&o->out, &o->err, "bench tiny.gguf -t 1000 --prefill 4 --generate 2"), 0);
    assert_non_null(strstr(o->err.data, "warning: 1000 threads asked for"));
    assert_non_null(strstr(o->err.data, "using"));
    assert_int_equal(run(&o->out, &o->err, "bench tiny.gguf -t 1 --prefill 4 --generate 2"), 0);
    assert_null(strstr(o->err.data, "warning"));
}

static void the_context_ends_an_answer_well(void **state)
{
    struct outputs *o = *state;
    assert_int_equal(run(&o->out, &o->err, "tiny.gguf -p Hello -c 64 -n 200 --ignore-eos"), 0);
    assert_memory_equal(o->out.data, "Hello", 5);
    assert_int_equal(o->out.data[o->out.len - 1], '\n');
    assert_non_null(strstr(o->err.data, "is full; -c N starts with a larger one"));
    assert_non_null(strstr(o->err.data, "decode "));
    /* more prompts than the context holds at once: they take turns */
    assert_int_equal(
        run(&o->out, &o->err, "tiny.gguf -p Hello -p Hello -p Hello -c 64 -n 50 --ignore-eos"), 0);
    const char *second = strstr(o->out.data, "\n\n[2] "), *third = strstr(o->out.data, "\n\n[3] ");
    assert_true(second && third);
    assert_int_equal(third - second, second - o->out.data + 2);
}

/* Whether the text, without its newline, ends inside a character. */
static bool ends_inside(const struct text *t)
{
    const uint8_t *s = (const uint8_t *)t->data;
    size_t n = t->len - 1, tail = 0;
    while (tail < 3 && tail < n && (s[n - 1 - tail] & 0xc0) == 0x80)
        tail++;
    const int lead = tail < n ? s[n - 1 - tail] : 0;
    return lead >= 0xc2 && lead < 0xf5 && tail < (lead < 0xe0 ? 1u : lead < 0xf0 ? 2u : 3u);
}

static int count(const struct text *t, const char *what)
{
    int n = 0;
    for (const char *at = strstr(t->data, what); at; at = strstr(at + 1, what))
        n++;
    return n;
}

/* Random answers begin and end inside a character now and then. */
static void whole_characters_are_printed(void **state)
{
    struct outputs *o = *state;
    for (int seed = 0; seed < 24; seed++) {
        assert_int_equal(run(&o->out, &o->err,
                             "tiny.gguf -p a -p b -n 3 --no-display-prompt --ignore-eos --temp 9 "
                             "--top-k 0 --top-p 1 --min-p 0 --seed %d",
                             seed),
                         0);
        assert_int_equal(count(&o->out, "[1] "), 1);
        assert_int_equal(count(&o->out, "[2] "), 1);
        if (ends_inside(&o->out))
            fail_msg("seed %d: half a character", seed);
    }
}

/* The same text from -p, from a file, from - and from a pipe. */
static void a_prompt_comes_from_anywhere(void **state)
{
    struct outputs *o = *state;
    char shell[512];
    snprintf(shell, sizeof shell, "cd %s && echo Hello there >prompt.txt && echo >empty.txt",
             run_dir);
    assert_int_equal(system(shell), 0);
    assert_int_equal(run(&o->out, &o->err, "tiny.gguf -p 'Hello there' -n 8 --ignore-eos"), 0);
    char *first = strdup(o->out.data);
    assert_int_equal(run(&o->out, &o->err, "tiny.gguf -f prompt.txt -n 8 --ignore-eos"), 0);
    assert_string_equal(o->out.data, first);
    for (int i = 0; i < 2; i++) {
        snprintf(shell, sizeof shell,
                 "cd %s && echo Hello there | '%s' tiny.gguf %s -n 8 --ignore-eos --temp 0 "
                 ">out.txt 2>err.txt",
                 run_dir, OATO_RUN, i ? "-f -" : "");
        assert_int_equal(system(shell), 0);
        read_into(&o->out, "out.txt");
        assert_string_equal(o->out.data, first);
    }
    free(first);
    assert_int_equal(run(&o->out, &o->err, "tiny.gguf -f prompt.txt -f empty.txt"), 2);
    assert_non_null(strstr(o->err.data, "'prompt.txt'"));
}

/* The tokens of the prompt in tiny.gguf that `ARGS` give. */
static int prompt_tokens(struct outputs *o, const char *args)
{
    static const char key[] = "\"prompt_tokens\":";
    if (run(&o->out, &o->err, "tiny.gguf -n 1 --json %s", args))
        fail_msg("%s: %s", args, o->err.data);
    const char *at = strstr(o->out.data, key);
    assert_non_null(at);
    return at ? atoi(at + strlen(key)) : 0;
}

/* Nothing ends at a zero byte: prompts, messages, templates, grammars, answers. */
static void text_is_bytes_and_a_length(void **state)
{
    struct outputs *o = *state;
    char shell[1024];
    snprintf(shell, sizeof shell,
             "cd %s && printf 'a' >a.txt && printf 'a\\0bc' >zero.txt && "
             "printf '{{ messages[0].content }}' >t.jinja && "
             "printf '{{ messages[0].content }}\\0bc' >zero.jinja && "
             "printf '\\0bc' >first.jinja && printf 'root ::= \"a\\0b\"' >zero.gbnf && "
             "printf 'root ::= \"a\" \\0 \"b\"' >outside.gbnf",
             run_dir);
    assert_int_equal(system(shell), 0);
    assert_int_equal(prompt_tokens(o, "-f zero.txt"), prompt_tokens(o, "-f a.txt") + 3);
    assert_int_equal(prompt_tokens(o, "--chat -f zero.txt"),
                     prompt_tokens(o, "--chat -f a.txt") + 3);
    const int one = prompt_tokens(o, "--chat -f a.txt --chat-template-file t.jinja");
    assert_int_equal(prompt_tokens(o, "--chat -f a.txt --chat-template-file zero.jinja"), one + 3);
    assert_int_equal(prompt_tokens(o, "--chat -f a.txt --chat-template-file first.jinja"), 3);
    assert_int_equal(prompt_tokens(o, "--chat -f zero.txt --chat-template chatml"),
                     prompt_tokens(o, "--chat -f a.txt --chat-template chatml") + 3);
    assert_int_equal(run(&o->out, &o->err, "tiny.gguf -p x -n 8 --json --grammar-file zero.gbnf"),
                     0);
    assert_memory_equal(o->out.data, "{\"text\":\"a\\u0000b\",", 19);
    assert_int_equal(run(&o->out, &o->err, "tiny.gguf -p x --grammar-file outside.gbnf"), 3);
    assert_non_null(strstr(o->err.data, "a character that begins no symbol"));
    assert_int_equal(
        run(&o->out, &o->err, "tiny.gguf -p x --json-schema '{\"const\":\"a\\u0000\"}'"), 2);
    assert_non_null(strstr(o->err.data, "a text with a zero byte (\\u0000) is not supported"));
    /* lines of a conversation: the second begins with one */
    snprintf(shell, sizeof shell,
             "cd %s && printf 'a\\0bc\\n\\0\\n/bye\\0\\n/bye\\n' | '%s' chat tiny.gguf -n 2 "
             "--grammar-file zero.gbnf >out.txt 2>err.txt",
             run_dir, OATO_RUN);
    assert_int_equal(system(shell), 0);
    read_into(&o->out, "out.txt");
    assert_int_equal(o->out.len, 3 * 3);
    assert_memory_equal(o->out.data, "a\0\na\0\na\0\n", o->out.len);
}

/* The model asks for EOS behind its texts, but a prompt is not yet one. */
static void no_end_stands_behind_a_prompt(void **state)
{
    struct outputs *o = *state;
    char shell[512];
    snprintf(shell, sizeof shell,
             "cd %s && LC_ALL=C sed 's/add_bos_token\\(....\\)./add_eos_token\\1\\x01/' tiny.gguf "
             ">ends.gguf && ! cmp -s tiny.gguf ends.gguf",
             run_dir);
    assert_int_equal(system(shell), 0);
    for (int i = 0; i < 2; i++) {
        const char *args = i ? "--chat -p Hello -n 8 --json" : "-p Hello -n 8 --json";
        assert_int_equal(run(&o->out, &o->err, "tiny.gguf %s", args), 0);
        char *usual = strdup(o->out.data);
        assert_int_equal(run(&o->out, &o->err, "ends.gguf %s", args), 0);
        assert_string_equal(o->out.data, usual);
        free(usual);
    }
    assert_int_equal(run(&o->out, &o->err, "tokenize tiny.gguf -p Hello"), 0);
    const int usual = lines(&o->out);
    assert_int_equal(run(&o->out, &o->err, "tokenize ends.gguf -p Hello"), 0);
    assert_int_equal(lines(&o->out), usual + 1);
}

static void the_other_verbs_answer(void **state)
{
    struct outputs *o = *state;
    assert_int_equal(run(&o->out, &o->err, "tokenize tiny.gguf -p 'a b' --ids --no-special"), 0);
    assert_int_equal(lines(&o->out), 1);
    assert_int_equal(run(&o->out, &o->err, "tokenize tiny.gguf -p 'a b'"), 0);
    assert_non_null(strstr(o->out.data, "\"a\""));
    assert_int_equal(run(&o->out, &o->err, "bench tiny.gguf --prefill 32 --generate 4 -r 1 --json"),
                     0);
    assert_memory_equal(o->out.data, "{\"prefill\":{\"tokens\":32,\"tokens_per_s\":", 38);
    assert_non_null(strstr(o->out.data, "\"peak_rss_bytes\":"));
    /* 2 layers of 64 x 64 for q and out, 64 x 32 for k and v, three of 64 x 128; 512 x 64. */
    assert_non_null(strstr(o->out.data, "\"decode_operations\":212992,"
                                        "\"prefill_operations\":147456,"
                                        "\"attention_operations\":512,\"position_bytes\":256}"));
    assert_int_equal(
        run(&o->out, &o->err, "bench tiny.gguf --prefill 0 --generate 4 -r 2 -b 3 -d 70"), 0);
    assert_non_null(strstr(o->out.data, "decode      12 tokens"));
    assert_int_equal(run(&o->out, &o->err, "tiny.gguf --dump-program"), 0);
    assert_non_null(strstr(o->out.data, "# decode on cpu:0"));
    assert_non_null(strstr(o->out.data, "mul_mat/"));
    assert_int_equal(
        run(&o->out, &o->err, "logits tiny.gguf --ids 1 -o /none/logits.f32 --dump-program"), 0);
    assert_non_null(strstr(o->out.data, "# decode on cpu:0")); /* and nothing is computed */
    assert_int_equal(run(&o->out, &o->err, "logits tiny.gguf --ids 1,2,3 -o logits.f32"), 0);
    read_into(&o->out, "logits.f32");
    assert_int_equal(o->out.len, 3 * 512 * 4);
    assert_int_equal(run(&o->out, &o->err, "perplexity tiny.gguf -f text.txt -c 32"), 0);
    assert_non_null(strstr(o->out.data, "\nperplexity "));
    double one = 0, other = 0, divergence = -1, same = 0;
    for (int i = 0; i < 2; i++) { /* the same twice, then one with another cache */
        char command[96];
        snprintf(command, sizeof command,
                 "perplexity tiny.gguf -f text.txt -c 32 --compare plain --kv %s",
                 i ? "f32" : "f16");
        assert_int_equal(run(&o->out, &o->err, command), 0);
        const char *plain = strstr(o->out.data, "\nplain "), *ours = strstr(o->out.data, "\nthis ");
        assert_true(plain && ours && sscanf(plain, " plain %lf", &one) == 1);
        assert_int_equal(sscanf(ours, " this %lf %lf %lf", &other, &divergence, &same), 3);
        assert_true(one > 1 && fabs(one - other) < (i ? 1 : 1e-9) && same > (i ? 50 : 99));
        assert_true(i ? divergence < 0.01 && one != other : divergence == 0);
    }
    assert_int_equal(run(&o->out, &o->err,
                         "perplexity tiny.gguf -f text.txt -c 32 --compare off --sparse "
                         "above=0.1"),
                     0);
    const char *ours = strstr(o->out.data, "\nthis ");
    assert_true(ours && strstr(o->out.data, "\noff ") &&
                sscanf(ours, " this %lf %lf", &other, &divergence) == 2 && divergence > 0);
    /* exact skips what adds nothing: of the same kernels it changes no bit */
    assert_int_equal(run(&o->out, &o->err,
                         "perplexity tiny.gguf -f text.txt -c 32 --ffn-activation relu --compare "
                         "dense --sparse exact"),
                     0);
    ours = strstr(o->out.data, "\nthis ");
    assert_true(ours && strstr(o->out.data, "\ndense ") &&
                sscanf(ours, " this %lf %lf", &other, &divergence) == 2 && divergence == 0);
    assert_int_equal(run(&o->out, &o->err, "--help"), 0);
    assert_int_equal(run(&o->out, &o->err, "bench --help"), 0);
    assert_int_equal(run(&o->out, &o->err, "--version"), 0);
    assert_int_equal(run(&o->out, &o->err, "--list-devices"), 0);
    assert_non_null(strstr(o->out.data, "cpu"));
}

/* What people type who come from llama.cpp. */
static void common_options_of_others_are_taken(void **state)
{
    struct outputs *o = *state;
    assert_int_equal(run(&o->out, &o->err, "tiny.gguf -p Hello -n 6 -c 1024 --ubatch 64"), 0);
    char *first = strdup(o->out.data);
    assert_int_equal(
        run(&o->out, &o->err,
            "-m tiny.gguf -p Hello --n-predict 6 --ctx-size 1k --ubatch-size 64 -fa on "
            "--temperature 0 --kv F16"),
        0);
    assert_string_equal(o->out.data, first);
    assert_int_equal(run(&o->out, &o->err, "tiny.gguf -fa -p Hello --generate 6 -ub 64 --temp 0"),
                     0);
    assert_string_equal(o->out.data, first);
    free(first);
    assert_int_equal(run(&o->out, &o->err, "bench -m tiny.gguf -p 32 -n 4 -r 1 -fa 1"), 0);
    assert_non_null(strstr(o->out.data, "prefill     32 tokens"));
}

static void a_conversation_reads_lines(void **state)
{
    struct outputs *o = *state;
    char command[512];
    snprintf(command, sizeof command,
             "cd %s && printf 'Hi\\nMore\\n/clear\\nAgain\\n/exit\\nnever\\n' | '%s' chat "
             "tiny.gguf -n 5 "
             ">out.txt 2>err.txt",
             run_dir, OATO_RUN);
    int status = system(command);
    read_into(&o->out, "out.txt");
    read_into(&o->err, "err.txt");
    assert_int_equal(WEXITSTATUS(status), 0);
    assert_true(lines(&o->out) >= 3);
    assert_int_equal(lines(&o->err), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(generates_and_repeats_itself),
        cmocka_unit_test(too_many_threads_are_told_and_not_started),
        cmocka_unit_test(the_context_ends_an_answer_well),
        cmocka_unit_test(whole_characters_are_printed),
        cmocka_unit_test(a_prompt_comes_from_anywhere),
        cmocka_unit_test(text_is_bytes_and_a_length),
        cmocka_unit_test(no_end_stands_behind_a_prompt),
        cmocka_unit_test(the_other_verbs_answer),
        cmocka_unit_test(common_options_of_others_are_taken),
        cmocka_unit_test(a_conversation_reads_lines),
    };
    return cmocka_run_group_tests_name("oato-run", tests, run_setup, run_teardown);
}
