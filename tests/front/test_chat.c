/*
 * test_chat.c - a conversation with oato-run, at a terminal and through a pipe: every character
 * typed reaches the model, Ctrl-C ends an answer and not the talk, a full context is no end.
 */
#include "tests/folder.h"
#include "tests/front/terminal.h"
#include "tests/models/random_model.h"

#include <poll.h>
#include <pty.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

/* ------------------------------------------------------------------------------------- tests */

static void read_into(struct text *t, const char *name)
{
    char path[256], block[4096];
    snprintf(path, sizeof path, "%s/%s", test_folder, name);
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    t->len = 0;
    text_add(t, "", 0);
    for (size_t n; f && (n = fread(block, 1, sizeof block, f)) > 0;)
        text_add(t, block, n);
    fclose(f);
}

/* The exit status of `printf LINES | oato-run chat tiny.gguf ARGS`; out.txt and err.txt. */
static int talk(const char *lines, const char *args, struct text *out, struct text *err)
{
    char shell[2048];
    snprintf(shell, sizeof shell,
             "cd %s && printf '%s' | '%s' chat tiny.gguf --temp 0 %s >out.txt 2>err.txt",
             test_folder, lines, OATO_RUN, args);
    const int status = system(shell);
    assert_true(WIFEXITED(status));
    read_into(out, "out.txt");
    read_into(err, "err.txt");
    return WEXITSTATUS(status);
}

static int setup(void **state)
{
    struct random_model m = random_model_default();
    struct oato_error err;
    char path[256];
    m.tokenizer = true;
    m.vocab = 512;
    if (folder_create(state))
        return 1;
    snprintf(path, sizeof path, "%s/tiny.gguf", test_folder);
    if (random_model_save(&m, path, &err))
        return 1;
    m.context = 1 << 20; /* whose answers take long */
    m.width = 256;
    m.ffn = 512;
    snprintf(path, sizeof path, "%s/long.gguf", test_folder);
    return random_model_save(&m, path, &err) ? 1 : 0;
}

static void what_is_typed_reaches_the_model(void **state)
{
    static const char line[] = "Gr\xc3\xbc\xc3\x9f Gott, \xe2\x98\x83 \xe6\x97\xa5\xe6\x9c\xac";
    struct tty t;
    struct text out, err;
    char keys[64], answer[64];
    (void)state;
    text_init(&out);
    text_init(&err);
    snprintf(keys, sizeof keys, "%s\\n", line);
    assert_int_equal(talk(keys, "-n 6", &out, &err), 0);
    terminal_open(&t, test_folder, "xterm",
                  (char *[]){"oato-run", "chat", "tiny.gguf", "-n", "6", "--temp", "0", NULL});
    wait_for(&t, "tiny.gguf, context 512 tokens, template of the model");
    wait_for(&t, "> ");
    snprintf(keys, sizeof keys, "%s\r", line);
    type(&t, keys);
    wait_for(&t, line);
    /* the answer to what was typed is that to what was piped; the terminal writes \r\n */
    snprintf(answer, sizeof answer, "%.*s", (int)strcspn(out.data, "\n"), out.data);
    text_tame(answer, strlen(answer)); /* as a terminal gets it */
    wait_for(&t, answer);
    wait_for(&t, "(cut at -n 6)");
    type(&t, "/help\r");
    wait_for(&t, "/clear");
    type(&t, "/bogus\r");
    wait_for(&t, "no command /bogus");
    type(&t, "/bye\r");
    assert_int_equal(terminal_close(&t), 0);
    text_free(&out);
    text_free(&err);
}

static void an_interrupt_ends_the_answer_only(void **state)
{
    struct tty t;
    (void)state;
    terminal_open(&t, test_folder, "xterm",
                  (char *[]){"oato-run", "chat", "long.gguf", "-n", "-1", "-c", "300000", NULL});
    wait_for_prompt(&t);
    for (int i = 0; i < 2; i++) {
        type(&t, "Hello\r");
        wait_for(&t, "Hello");
        wait_for(&t, "\033[?2004l");   /* the line is done */
        while (t.seen.len < t.at + 20) /* it answers */
            assert_true(terminal_read(&t, 1000));
        type(&t, "\x03");
        wait_for(&t, "(interrupted)");
        wait_for_prompt(&t);
    }
    type(&t, "\x03"); /* no answer to end: once is a warning */
    wait_for(&t, "Ctrl-C again");
    wait_for_prompt(&t);
    type(&t, "/help\r");
    wait_for(&t, "/clear");
    wait_for_prompt(&t);
    type(&t, "\x03");
    wait_for(&t, "Ctrl-C again");
    wait_for_prompt(&t);
    type(&t, "\x03");
    assert_int_equal(terminal_close(&t), 130);
}

static void a_terminate_signal_ends_the_talk(void **state)
{
    struct tty t;
    (void)state;
    terminal_open(&t, test_folder, "xterm",
                  (char *[]){"oato-run", "chat", "long.gguf", "-n", "-1", "-c", "300000", NULL});
    wait_for(&t, "> ");
    type(&t, "Hello\r");
    wait_for(&t, "Hello");
    while (t.seen.len < t.at + 20)
        assert_true(terminal_read(&t, 1000));
    assert_int_equal(kill(t.child, SIGTERM), 0);
    assert_int_equal(terminal_close(&t), 130);
}

/* What a newcomer sees of a model that was made to talk. */
static void a_terminal_shows_loading_and_hints_at_chat(void **state)
{
    struct tty t;
    (void)state;
    terminal_open(&t, test_folder, "xterm",
                  (char *[]){"oato-run", "tiny.gguf", "-p", "Hi", "-n", "2", "-c", "600", NULL});
    wait_for(&t, "the context of 600 tokens exceeds the 512");
    wait_for(&t, "loading ");
    wait_for(&t, "cpu:0");
    wait_for(&t, "without --chat it continues the prompt");
    wait_for(&t, "Hi");
    assert_int_equal(terminal_close(&t), 0);
    terminal_open(&t, test_folder, "xterm",
                  (char *[]){"oato-run", "tiny.gguf", "--chat", "-p", "Hi", "-n", "2", NULL});
    wait_for(&t, "decode");
    assert_null(strstr(t.seen.data, "without --chat it continues the prompt"));
    assert_null(strstr(t.seen.data, "exceeds the"));
    assert_int_equal(terminal_close(&t), 0);
}

/* A model whose prompts open the reasoning, which never ends. */
static void reasoning_is_a_part_of_its_own(void **state)
{
    struct tty t;
    struct text out, err;
    char shell[1024];
    (void)state;
    text_init(&out);
    text_init(&err);
    snprintf(
        shell, sizeof shell,
        "cd %s && sed 's/>assistant/>a <think>/' tiny.gguf >think.gguf && '%s' think.gguf --chat "
        "-p Hi -p Ho -n 5 --ignore-eos --json >out.txt 2>err.txt && printf 'Hi\nHo\n' | '%s' "
        "chat think.gguf -n 5 >pipe.txt 2>err.txt",
        test_folder, OATO_RUN, OATO_RUN);
    assert_int_equal(system(shell), 0);
    read_into(&out, "out.txt");
    assert_memory_equal(out.data, "{\"text\":\"\",\"reasoning\":\"", 24);
    assert_true(out.data[24] != '"');
    assert_non_null(strstr(out.data, "\"calls\":[],\"prompt_tokens\":"));
    assert_non_null(strstr(out.data, "\"tokens\":5,\"end\":\"limit\"}\n{"));
    read_into(&out, "pipe.txt");
    assert_string_equal(out.data, "\n\n");
    terminal_open(&t, test_folder, "xterm",
                  (char *[]){"oato-run", "think.gguf", "--chat", "-p", "Hi", "-n", "5", NULL});
    wait_for(&t, "\033[2m");
    wait_for(&t, "\033[0m");
    assert_int_equal(terminal_close(&t), 0);
    terminal_open(&t, test_folder, "dumb",
                  (char *[]){"oato-run", "think.gguf", "--chat", "-p", "Hi", "-n", "5", NULL});
    wait_for(&t, "(thinking) ");
    wait_for(&t, "(cut at -n 5)");
    assert_null(strchr(t.seen.data, '\033'));
    assert_int_equal(terminal_close(&t), 0);
    text_free(&out);
    text_free(&err);
}

/* A piped conversation of all commands; nothing of them reaches the model. */
static void commands_are_not_messages(void **state)
{
    static const char *const told[] = {
        "\"\"\"                   begins a message",
        "temp               0 ",
        "system             (none)",
        "(--temp wants a number from 0 to 100, not 'warm')",
        "(there is no option bogus; /set alone shows all)",
        "(/set top-k wants a value",
        "temp               0.5 ",
        "top-k              7 ",
        "system             Be short.",
        "(the last question is forgotten; 2 messages are left)",
        "3 messages; ",
        " of 512 tokens of the context; KV cache 0.",
        "(3 messages are in talk.json)",
        "(there is nothing to undo)",
        "(there is no question to answer again)",
        "(1 messages are in short.json)",
        "(3 messages of talk.json)",
        "(bad.json: line 2: ",
        "(none.json: No such file or directory)",
        "(other.json: messages[0] has the role 'tool'",
        "(tiny.gguf: ",
        "(there is no command /bogus; /help lists them; //bogus or a space in front sends it",
    };
    struct text out, err;
    (void)state;
    text_init(&out);
    text_init(&err);
    char shell[256];
    snprintf(shell, sizeof shell,
             "cd %s && echo '{\"messages\":[{' >bad.json && echo "
             "'[{\"role\":\"tool\",\"content\":\"\"}]' >other.json && cp tiny.gguf kept.gguf",
             test_folder);
    assert_int_equal(system(shell), 0);
    assert_int_equal(talk("/help\\n/?\\n/set\\n/set temp warm\\n/set bogus 1\\n/set top-k\\n/set "
                          "temp 0.5\\n/set top_k "
                          "7\\n/set seed 3\\n/set system Be short.\\n/set "
                          "show\\none\\ntwo\\n/undo\\n/regen\\n/stats"
                          "\\n/save talk.json\\n/clear\\n/undo\\n/regen\\n/save short.json\\n/load "
                          "talk.json\\n/load "
                          "bad.json\\n/load none.json\\n/load other.json\\n/save "
                          "tiny.gguf\\n/bogus\\n/bye\\nnever\\n",
                          "-n 5", &out, &err),
                     0);
    const char *at = err.data;
    for (size_t i = 0; i < ARRAY_LEN(told); i++) {
        const char *hit = strstr(at, told[i]);
        if (!hit)
            fail_msg("no '%s' in: %s", told[i], at);
        at = hit ? hit : at;
    }
    snprintf(shell, sizeof shell, "cd %s && cmp tiny.gguf kept.gguf", test_folder);
    assert_int_equal(system(shell), 0);
    int lines = 0; /* an answer each of one, two and one again */
    for (size_t i = 0; i < out.len; i++)
        lines += out.data[i] == '\n';
    assert_true(lines >= 3);
    read_into(&out, "talk.json");
    assert_non_null(strstr(out.data,
                           "{\"messages\":[{\"role\":\"system\",\"content\":\"Be short.\"},"
                           "{\"role\":\"user\",\"content\":\"one\"},{\"role\":"
                           "\"assistant\",\"content\":\""));
    /* what is meant for the model reaches it, and what was loaded is gone on with */
    assert_int_equal(
        talk("//set\\n /undo\\n/usr/bin is a folder\\n\"\"\"a\\n\\nb\\n\"\"\"\\n/save x.json\\n",
             "-n 2", &out, &err),
        0);
    read_into(&out, "x.json");
    assert_non_null(strstr(out.data, "\"content\":\"/set\""));
    assert_non_null(strstr(out.data, "\"content\":\" /undo\""));
    assert_non_null(strstr(out.data, "\"content\":\"/usr/bin is a folder\""));
    assert_non_null(strstr(out.data, "\"content\":\"a\\u000a\\u000ab\""));
    text_free(&out);
    text_free(&err);
}

/* Without --temp tokens are drawn by a seed of which the same text can be had again. */
static void a_random_seed_is_told(void **state)
{
    struct text out, err, again;
    char args[64];
    unsigned long long seeds[2] = {0};
    (void)state;
    text_init(&out);
    text_init(&err);
    text_init(&again);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(talk("Hello\\n", "--temp 0.8 -n 12", i ? &again : &out, &err), 0);
        const char *seed = strstr(err.data, "; seed ");
        assert_non_null(seed);
        seeds[i] = seed ? strtoull(seed + 7, NULL, 10) : 0;
    }
    assert_true(seeds[0] != seeds[1]);
    snprintf(args, sizeof args, "--temp 0.8 -n 12 -s %llu", seeds[0]);
    assert_int_equal(talk("Hello\\n", args, &again, &err), 0);
    assert_string_equal(again.data, out.data);
    text_free(&out);
    text_free(&err);
    text_free(&again);
}

static void a_full_context_forgets_the_oldest_messages(void **state)
{
    static const char question[] = "Please tell me all that you know about it\\n";
    struct text out, err;
    struct text lines;
    (void)state;
    text_init(&out);
    text_init(&err);
    text_init(&lines);
    for (int i = 0; i < 9; i++)
        text_add(&lines, question, strlen(question));
    if (talk(lines.data, "-n 10 -c 128", &out, &err) != 0)
        fail_msg("%s", err.data);
    assert_non_null(strstr(err.data, "the oldest 2 messages are forgotten"));
    /* an answer without room is cut; the next question is answered */
    assert_int_equal(talk("one\\ntwo\\nthree\\n", "-n -1 -c 64 --system Short.", &out, &err), 0);
    assert_non_null(strstr(err.data, "cut: the context of 64 tokens is full"));
    /* a message that never fits is told, and the talk goes on */
    lines.len = 0;
    text_printf(&lines, "%0300d\\nyes\\n", 7);
    assert_int_equal(talk(lines.data, "-n 4 -c 128", &out, &err), 0);
    assert_non_null(strstr(err.data, "this message takes 3"));
    assert_non_null(
        strstr(err.data, "the context has 128: send a shorter one, or start with -c 512"));
    assert_non_null(strstr(err.data, "decode 3 tokens"));
    text_free(&lines);
    text_free(&out);
    text_free(&err);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_typed_reaches_the_model),
        cmocka_unit_test(an_interrupt_ends_the_answer_only),
        cmocka_unit_test(a_terminate_signal_ends_the_talk),
        cmocka_unit_test(a_terminal_shows_loading_and_hints_at_chat),
        cmocka_unit_test(reasoning_is_a_part_of_its_own),
        cmocka_unit_test(commands_are_not_messages),
        cmocka_unit_test(a_random_seed_is_told),
        cmocka_unit_test(a_full_context_forgets_the_oldest_messages),
    };
    return cmocka_run_group_tests(tests, setup, folder_remove);
}
