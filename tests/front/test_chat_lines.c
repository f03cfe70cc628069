/*
 * test_chat_lines.c - what is typed into oato-run chat: pasted text is one message, keys edit it,
 * a window may change its size meanwhile, and a terminal that cannot redraw gets text only.
 */
#include "tests/folder.h"
#include "tests/front/terminal.h"
#include "tests/models/random_model.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

static char *const chat[] = {"oato-run", "chat", "tiny.gguf", "-n", "4", "--temp", "0", NULL};

static int setup(void **state)
{
    struct random_model m = random_model_default();
    struct oato_error err;
    char path[256];
    m.tokenizer = true;
    m.vocab = 512;
    m.context = 2048;
    if (folder_create(state))
        return 1;
    snprintf(path, sizeof path, "%s/tiny.gguf", test_folder);
    return random_model_save(&m, path, &err) ? 1 : 0;
}

/* Saves the conversation and ends it: the message, of those of the user, must be that. */
static void expect_message(struct tty *t, size_t number, const char *content)
{
    char path[256];
    wait_for_prompt(t);
    type(t, "/save talk.json\r");
    wait_for(t, "messages are in talk.json");
    snprintf(path, sizeof path, "%s/talk.json", test_folder);
    json_t *talk = json_load_file(path, 0, NULL);
    const json_t *m = json_array_get(json_object_get(talk, "messages"), 2 * number);
    const char *is = json_string_value(json_object_get(m, "content"));
    assert_non_null(is);
    assert_string_equal(is, content);
    json_decref(talk);
}

static void bye(struct tty *t)
{
    wait_for_prompt(t);
    type(t, "/bye\r");
    assert_int_equal(terminal_close(t), 0);
}

/* Forty lines, taller than the screen, in whatever line ends the terminal sends; a slash in front
 * makes no command of them. */
static void a_pasted_text_is_one_message(void **state)
{
    static const char *const ends[] = {"\r", "\n", "\r\n"};
    struct tty t;
    struct text keys, content;
    (void)state;
    text_init(&keys);
    text_init(&content);
    terminal_open(&t, test_folder, "xterm", chat);
    for (size_t k = 0; k < ARRAY_LEN(ends); k++) {
        keys.len = content.len = 0;
        text_printf(&keys, "\033[200~");
        for (int i = 0; i < 40; i++) {
            text_printf(&keys, "/line %d \xc3\xa9\t.%s", i, ends[k]);
            text_printf(&content, "%s/line %d \xc3\xa9\t.", i ? "\n" : "", i);
        }
        text_printf(&keys, "\033[201~\r");
        wait_for_prompt(&t);
        type(&t, keys.data);
        wait_for(&t, "(cut at -n 4)");
        expect_message(&t, k, content.data);
    }
    bye(&t);
    text_free(&keys);
    text_free(&content);
}

static void keys_edit_the_line(void **state)
{
    static const struct {
        const char *keys, *message;
    } rows[] = {
        {"tw\x01one \x05o\r", "one two"}, /* Ctrl-A, Ctrl-E */
        {"a\xc3\xa9\x7f"
         "b\033[D\033[Dx\033[Cy\r",
         "xayb"},                                        /* a whole character */
        {"one two\x17three\033[H\033[3~\r", "ne three"}, /* Ctrl-W, Delete */
        {"ab\033\rcd\x01x\x0b"
         "y\r",
         "ab\nxy"},                                               /* Alt-Enter, Ctrl-K */
        {"\033[A\033[A\033[A\033[A\033[A\033[B!\r", "ne three!"}, /* the history, with each /save */
        {"xay\x12\r", "xayb"},                                    /* Ctrl-R */
        {"\"\"\"a\rb \"\"\"\r", "a\nb "},                         /* quotes */
        {"one two\033b\033d\x15"
         "\033[1;5Cz\033[99~\033OPq\r",
         "zq"}, /* words; unknown keys */
    };
    struct tty t;
    (void)state;
    terminal_open(&t, test_folder, "xterm", chat);
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        wait_for_prompt(&t);
        type(&t, rows[i].keys);
        wait_for(&t, "(cut at -n 4)");
        expect_message(&t, i, rows[i].message);
    }
    wait_for_prompt(&t);
    type(&t, "dropped\x03"); /* what was typed is gone, and the talk goes on */
    wait_for(&t, "Ctrl-C again");
    wait_for_prompt(&t);
    type(&t, "\x04");
    assert_int_equal(terminal_close(&t), 0);
}

/* What was drawn is taken back by the rows that it has now: neither less, which would leave some of
 * it, nor more, which would take what is above. */
static void a_window_may_change_its_size(void **state)
{
    const struct winsize narrow = {.ws_row = 24, .ws_col = 40}, wide = {.ws_row = 24, .ws_col = 90};
    struct tty t;
    char keys[128];
    (void)state;
    terminal_open(&t, test_folder, "xterm", chat);
    wait_for_prompt(&t);
    memset(keys, 'x', 100);
    keys[100] = 0;
    type(&t, keys);
    wait_for(&t, keys);
    ioctl(t.fd, TIOCSWINSZ, &narrow);
    wait_for(&t, "\033[2A\r\033[J> xxx"); /* 102 columns are three rows, the cursor in the last */
    ioctl(t.fd, TIOCSWINSZ, &wide);
    wait_for(&t, "\033[1A\r\033[J> xxx");
    type(&t, "\r");
    wait_for(&t, "(cut at -n 4)");
    expect_message(&t, 0, keys);
    bye(&t);
}

static void a_dumb_terminal_gets_text_only(void **state)
{
    struct tty t;
    (void)state;
    terminal_open(&t, test_folder, "dumb", chat);
    wait_for_prompt(&t);
    type(&t, "\"\"\"Hello\r");
    wait_for(&t, ". ");
    type(&t, "there\"\"\"\r");
    wait_for(&t, "(cut at -n 4)");
    expect_message(&t, 0, "Hello\nthere");
    wait_for_prompt(&t);
    type(&t, "\x03");
    wait_for(&t, "Ctrl-C again");
    wait_for_prompt(&t);
    type(&t, "/stats\r");
    wait_for(&t, "tokens of the context");
    assert_null(strchr(t.seen.data, '\033'));
    bye(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_pasted_text_is_one_message),
        cmocka_unit_test(keys_edit_the_line),
        cmocka_unit_test(a_window_may_change_its_size),
        cmocka_unit_test(a_dumb_terminal_gets_text_only),
    };
    return cmocka_run_group_tests(tests, setup, folder_remove);
}
