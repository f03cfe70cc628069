/*
 * test_chat.c - a conversation with oato-run, at a terminal and through a pipe: every character
 * typed reaches the model, Ctrl-C ends an answer and not the talk, a full context is no end.
 */
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

static char dir[] = "/tmp/oato-chat-XXXXXX";

/* -------------------------------------------------------------------------------- a terminal */

struct terminal {
    pid_t child;
    int fd;
    struct text seen;
    size_t at; /* what was waited for so far */
};

/* `oato-run ARGS` at a terminal of a host without a locale, in the scratch directory. */
static void terminal_open(struct terminal *t, char *const args[])
{
    memset(t, 0, sizeof *t);
    t->child = forkpty(&t->fd, NULL, NULL, NULL);
    if (t->child < 0)
        skip();
    if (t->child == 0) {
        unsetenv("LANG");
        unsetenv("LC_ALL");
        unsetenv("LC_CTYPE");
        setenv("TERM", "dumb", 1);
        if (!chdir(dir))
            execv(OATO_RUN, args);
        _exit(127);
    }
}

/* Reads for at most that long; false at the end. */
static bool terminal_read(struct terminal *t, int timeout_ms)
{
    char block[4096];
    struct pollfd p = {.fd = t->fd, .events = POLLIN};
    if (poll(&p, 1, timeout_ms) <= 0)
        return true;
    const ssize_t n = read(t->fd, block, sizeof block);
    if (n > 0)
        text_add(&t->seen, block, (size_t)n);
    return n > 0;
}

static void wait_for(struct terminal *t, const char *what)
{
    const uint64_t end = now_ns() + 60000000000u;
    const char *hit = NULL;
    for (bool more = true; more && !hit && now_ns() < end;) {
        hit = t->seen.data ? strstr(t->seen.data + t->at, what) : NULL;
        more = hit || terminal_read(t, 200);
    }
    if (!hit)
        fail_msg("no '%s' in: %s", what, t->seen.data ? t->seen.data + t->at : "");
    else
        t->at = (size_t)(hit - t->seen.data) + strlen(what);
}

static void type(struct terminal *t, const char *keys)
{
    assert_int_equal(write(t->fd, keys, strlen(keys)), strlen(keys));
}

/* Its exit status. */
static int terminal_close(struct terminal *t)
{
    int status;
    while (terminal_read(t, 60000))
        continue;
    assert_int_equal(waitpid(t->child, &status, 0), t->child);
    close(t->fd);
    text_free(&t->seen);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

/* ------------------------------------------------------------------------------------- tests */

static void read_into(struct text *t, const char *name)
{
    char path[256], block[4096];
    snprintf(path, sizeof path, "%s/%s", dir, name);
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
             "cd %s && printf '%s' | '%s' chat tiny.gguf %s >out.txt 2>err.txt", dir, lines,
             OATO_RUN, args);
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
    (void)state;
    m.tokenizer = true;
    m.vocab = 512;
    if (!mkdtemp(dir))
        return 1;
    snprintf(path, sizeof path, "%s/tiny.gguf", dir);
    if (random_model_save(&m, path, &err))
        return 1;
    m.context = 1 << 20; /* whose answers take long */
    m.width = 256;
    m.ffn = 512;
    snprintf(path, sizeof path, "%s/long.gguf", dir);
    return random_model_save(&m, path, &err) ? 1 : 0;
}

static int teardown(void **state)
{
    char shell[64];
    (void)state;
    snprintf(shell, sizeof shell, "rm -r %s", dir);
    return system(shell);
}

static void what_is_typed_reaches_the_model(void **state)
{
    static const char line[] = "Gr\xc3\xbc\xc3\x9f Gott, \xe2\x98\x83 \xe6\x97\xa5\xe6\x9c\xac";
    struct terminal t;
    struct text out, err;
    char keys[64], answer[64];
    (void)state;
    text_init(&out);
    text_init(&err);
    snprintf(keys, sizeof keys, "%s\\n", line);
    assert_int_equal(talk(keys, "-n 6", &out, &err), 0);
    terminal_open(&t, (char *[]){"oato-run", "chat", "tiny.gguf", "-n", "6", NULL});
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

/* The prompt is there a moment before the editor waits for keys; nobody types within it. */
static void wait_for_prompt(struct terminal *t)
{
    wait_for(t, "> ");
    usleep(200000);
}

static void an_interrupt_ends_the_answer_only(void **state)
{
    struct terminal t;
    (void)state;
    terminal_open(&t,
                  (char *[]){"oato-run", "chat", "long.gguf", "-n", "-1", "-c", "300000", NULL});
    wait_for_prompt(&t);
    for (int i = 0; i < 2; i++) {
        type(&t, "Hello\r");
        wait_for(&t, "Hello");
        wait_for(&t, "\n");
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
    struct terminal t;
    (void)state;
    terminal_open(&t,
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
    struct terminal t;
    (void)state;
    terminal_open(&t,
                  (char *[]){"oato-run", "tiny.gguf", "-p", "Hi", "-n", "2", "-c", "600", NULL});
    wait_for(&t, "the context of 600 tokens exceeds the 512");
    wait_for(&t, "loading ");
    wait_for(&t, "cpu:0");
    wait_for(&t, "without --chat it continues the prompt");
    wait_for(&t, "Hi");
    assert_int_equal(terminal_close(&t), 0);
    terminal_open(&t, (char *[]){"oato-run", "tiny.gguf", "--chat", "-p", "Hi", "-n", "2", NULL});
    wait_for(&t, "decode");
    assert_null(strstr(t.seen.data, "without --chat it continues the prompt"));
    assert_null(strstr(t.seen.data, "exceeds the"));
    assert_int_equal(terminal_close(&t), 0);
}

/* A model whose prompts open the reasoning, which never ends. */
static void reasoning_is_a_part_of_its_own(void **state)
{
    struct terminal t;
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
        dir, OATO_RUN, OATO_RUN);
    assert_int_equal(system(shell), 0);
    read_into(&out, "out.txt");
    assert_memory_equal(out.data, "{\"text\":\"\",\"reasoning\":\"", 24);
    assert_true(out.data[24] != '"');
    assert_non_null(strstr(out.data, "\"calls\":[],\"prompt_tokens\":"));
    assert_non_null(strstr(out.data, "\"tokens\":5,\"end\":\"limit\"}\n{"));
    read_into(&out, "pipe.txt");
    assert_string_equal(out.data, "\n\n");
    terminal_open(&t, (char *[]){"oato-run", "think.gguf", "--chat", "-p", "Hi", "-n", "5", NULL});
    wait_for(&t, "\033[2m");
    wait_for(&t, "\033[0m");
    assert_int_equal(terminal_close(&t), 0);
    text_free(&out);
    text_free(&err);
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
        cmocka_unit_test(a_full_context_forgets_the_oldest_messages),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
