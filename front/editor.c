/*
 * editor.c - see editor.h. While a line is edited the terminal sends every key as it is; what it is
 * to do otherwise comes back with the line's end, also before the program is stopped (Ctrl-Z).
 */
#include "front/editor_internal.h"

#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <termios.h>
#include <unistd.h>

enum { HISTORY = 256, BLOCK = 4096 };

struct editor {
    struct screen screen;
    struct termios cooked;
    const char *prompt;
    struct text text, shown; /* as it is, and as it was drawn last */
    size_t at;               /* of the cursor */
    char *history[HISTORY];
    int n_history, recalled; /* recalled: n_history: the new line */
    char *fresh;             /* the new line, while an old one is shown */
    char block[BLOCK];       /* that was read */
    size_t n_block, i_block;
};

static volatile sig_atomic_t resized;

static void on_resize(int sig)
{
    (void)sig;
    resized = 1;
}

static void raw_begin(struct editor *e)
{
    struct termios raw = e->cooked;
    raw.c_iflag &= ~(tcflag_t)(ICRNL | INLCR | IGNCR | IXON | ISTRIP | BRKINT);
    raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO | ISIG | IEXTEN);
    raw.c_cc[VMIN] = 1;
    raw.c_cc[VTIME] = 0;
    RETRY(tcsetattr(STDIN_FILENO, TCSADRAIN, &raw));
    fd_write(e->screen.fd, "\033[?2004h", 8); /* pasted text comes between marks */
}

static void raw_end(struct editor *e)
{
    fd_write(e->screen.fd, "\033[?2004l", 8);
    RETRY(tcsetattr(STDIN_FILENO, TCSADRAIN, &e->cooked));
}

static void draw(struct editor *e)
{
    screen_draw(&e->screen, e->prompt, &e->shown, &e->text, e->at);
    e->shown.len = 0;
    text_add(&e->shown, or_empty(e->text.data), e->text.len);
}

/* ------------------------------------------------------------------------------- the keys */

/* The next byte; -1: the end; -2: none within so many milliseconds (-1: waits). A window of another
 * size is drawn anew meanwhile. */
static int byte_read(struct editor *e, int wait_ms)
{
    while (e->i_block == e->n_block) {
        struct pollfd p = {.fd = STDIN_FILENO, .events = POLLIN};
        /* a signal that came before poll is seen a moment later */
        const int ready = poll(&p, 1, wait_ms < 0 ? 500 : wait_ms);
        if (resized) {
            resized = 0;
            screen_measure(&e->screen);
            draw(e);
        }
        if (oato_interrupted)
            return -1;
        if (ready == 0 && wait_ms >= 0)
            return -2;
        if (ready <= 0)
            continue;
        const ssize_t n = RETRY(read(STDIN_FILENO, e->block, BLOCK));
        if (n <= 0)
            return -1;
        e->n_block = (size_t)n;
        e->i_block = 0;
    }
    return (unsigned char)e->block[e->i_block++];
}

enum key {
    KEY_END = -1,
    /* more than any byte */
    KEY_UP = 256,
    KEY_DOWN,
    KEY_LEFT,
    KEY_RIGHT,
    KEY_HOME,
    KEY_LAST,
    KEY_DELETE,
    KEY_WORD_LEFT,
    KEY_WORD_RIGHT,
    KEY_WORD_DELETE,
    KEY_WORD_ERASE,
    KEY_BREAK, /* a new line of the text */
    KEY_PASTE, /* the mark in front of a pasted text */
    KEY_NONE,
};

/* What follows an escape. */
static int sequence_read(struct editor *e)
{
    static const struct {
        const char *sequence;
        enum key key;
    } keys[] = {{"[A", KEY_UP},           {"[B", KEY_DOWN},          {"[C", KEY_RIGHT},
                {"[D", KEY_LEFT},         {"[H", KEY_HOME},          {"[F", KEY_LAST},
                {"OA", KEY_UP},           {"OB", KEY_DOWN},          {"OC", KEY_RIGHT},
                {"OD", KEY_LEFT},         {"OH", KEY_HOME},          {"OF", KEY_LAST},
                {"[1~", KEY_HOME},        {"[4~", KEY_LAST},         {"[7~", KEY_HOME},
                {"[8~", KEY_LAST},        {"[3~", KEY_DELETE},       {"[1;5C", KEY_WORD_RIGHT},
                {"[1;5D", KEY_WORD_LEFT}, {"[1;3C", KEY_WORD_RIGHT}, {"[1;3D", KEY_WORD_LEFT},
                {"[200~", KEY_PASTE},     {"b", KEY_WORD_LEFT},      {"f", KEY_WORD_RIGHT},
                {"d", KEY_WORD_DELETE},   {"\x7f", KEY_WORD_ERASE},  {"\r", KEY_BREAK}};
    char got[16] = "";
    for (size_t n = 0; n + 1 < sizeof got;) {
        const int byte = byte_read(e, 100);
        if (byte < 0)
            return byte == -1 ? KEY_END : KEY_NONE;
        got[n++] = (char)byte;
        /* the first byte may announce more; of "[" the last is a letter or ~ */
        if (n == 1 ? byte != '[' && byte != 'O' : *got == 'O' || byte >= 0x40)
            break;
    }
    for (size_t i = 0; i < ARRAY_LEN(keys); i++)
        if (!strcmp(got, keys[i].sequence))
            return keys[i].key;
    return KEY_NONE;
}

static int key_read(struct editor *e)
{
    const int byte = byte_read(e, -1);
    return byte == '\033' ? sequence_read(e) : byte;
}

/* ------------------------------------------------------------------------------- the text */

static void insert(struct editor *e, const char *s, size_t n)
{
    struct text *t = &e->text;
    if (!text_reserve(t, n + 1))
        return;
    memmove(t->data + e->at + n, t->data + e->at, t->len - e->at);
    memcpy(t->data + e->at, s, n);
    t->len += n;
    t->data[t->len] = 0;
    e->at += n;
}

static void erase(struct editor *e, size_t from, size_t to)
{
    struct text *t = &e->text;
    if (from >= to)
        return;
    memmove(t->data + from, t->data + to, t->len - to);
    t->len -= to - from;
    t->data[t->len] = 0;
    e->at = from;
}

static size_t before(const struct editor *e, size_t at)
{
    while (at && (e->text.data[--at] & 0xc0) == 0x80)
        continue;
    return at;
}

static size_t behind(const struct editor *e, size_t at)
{
    if (at < e->text.len)
        at++;
    while (at < e->text.len && (e->text.data[at] & 0xc0) == 0x80)
        at++;
    return at;
}

static bool is_space(const struct editor *e, size_t at)
{
    return strchr(" \t\n", e->text.data[at]) != NULL;
}

static size_t word_before(const struct editor *e)
{
    size_t at = e->at;
    while (at && is_space(e, at - 1))
        at--;
    while (at && !is_space(e, at - 1))
        at--;
    return at;
}

static size_t word_behind(const struct editor *e)
{
    size_t at = e->at;
    while (at < e->text.len && is_space(e, at))
        at++;
    while (at < e->text.len && !is_space(e, at))
        at++;
    return at;
}

static size_t line_begin(const struct editor *e)
{
    size_t at = e->at;
    while (at && e->text.data[at - 1] != '\n')
        at--;
    return at;
}

static size_t line_end(const struct editor *e)
{
    size_t at = e->at;
    while (at < e->text.len && e->text.data[at] != '\n')
        at++;
    return at;
}

/* The text up to the mark behind it. Its line ends may be CR, as Enter is, LF or both. False: the
 * end came before. */
static bool paste(struct editor *e)
{
    static const char mark[] = "\033[201~";
    struct text got;
    int byte = 0;
    text_init(&got);
    while (got.len < sizeof mark - 1 ||
           memcmp(got.data + got.len - (sizeof mark - 1), mark, sizeof mark - 1) != 0) {
        byte = byte_read(e, -1);
        if (byte < 0)
            break;
        text_add(&got, &(char){(char)byte}, 1);
    }
    size_t n = 0;
    for (size_t i = 0; byte >= 0 && i < got.len - (sizeof mark - 1); i++) {
        const unsigned char c = (unsigned char)got.data[i];
        if (c == '\r' && got.data[i + 1] == '\n')
            continue;
        if (c >= ' ' || c == '\t' || c == '\n' || c == '\r')
            got.data[n++] = c == '\r' ? '\n' : (char)c;
    }
    if (n)
        insert(e, got.data, n);
    text_free(&got);
    return byte >= 0;
}

/* ---------------------------------------------------------------------------- the history */

static void text_become(struct editor *e, const char *s)
{
    e->text.len = e->at = 0;
    insert(e, s, strlen(s));
}

/* Shows an older line or a newer one. */
static void recall(struct editor *e, int by)
{
    const int to = e->recalled + by;
    if (to < 0 || to > e->n_history)
        return;
    if (e->recalled == e->n_history) {
        free(e->fresh);
        e->fresh = strdup(or_empty(e->text.data));
    }
    e->recalled = to;
    text_become(e, to < e->n_history ? e->history[to] : or_empty(e->fresh));
}

static void remember(struct editor *e)
{
    const char *line = or_empty(e->text.data);
    if (!*line || (e->n_history && !strcmp(e->history[e->n_history - 1], line)))
        return;
    if (e->n_history == HISTORY) {
        free(e->history[0]);
        memmove(&e->history[0], &e->history[1], (HISTORY - 1) * sizeof *e->history);
        e->n_history--;
    }
    e->history[e->n_history] = strdup(line);
    e->n_history += e->history[e->n_history] != NULL;
}

/* Shows the last line with what is typed now. */
static void search(struct editor *e)
{
    int at = e->recalled;
    while (at > 0 && !strstr(e->history[at - 1], or_empty(e->fresh)))
        at--;
    if (!at)
        return;
    e->recalled = at - 1;
    text_become(e, e->history[at - 1]);
}

/* ------------------------------------------------------------------------------- the line */

#define CONTROL(letter) ((letter) - '@')

/* What Ctrl-Z asks for. */
static void stop(struct editor *e)
{
    raw_end(e);
    kill(0, SIGTSTP);
    raw_begin(e);
    screen_measure(&e->screen);
    e->screen.drawn = false;
}

static void edit(struct editor *e, int key)
{
    switch (key) {
    case KEY_UP:
    case CONTROL('P'): recall(e, -1); break;
    case KEY_DOWN:
    case CONTROL('N'): recall(e, 1); break;
    case CONTROL('R'):
        if (e->recalled == e->n_history) {
            free(e->fresh);
            e->fresh = strdup(or_empty(e->text.data));
        }
        search(e);
        break;
    case KEY_LEFT:
    case CONTROL('B'): e->at = before(e, e->at); break;
    case KEY_RIGHT:
    case CONTROL('F'): e->at = behind(e, e->at); break;
    case KEY_HOME:
    case CONTROL('A'): e->at = line_begin(e); break;
    case KEY_LAST:
    case CONTROL('E'): e->at = line_end(e); break;
    case KEY_WORD_LEFT: e->at = word_before(e); break;
    case KEY_WORD_RIGHT: e->at = word_behind(e); break;
    case KEY_DELETE:
    case CONTROL('D'): erase(e, e->at, behind(e, e->at)); break;
    case CONTROL('H'):
    case 0x7f: erase(e, before(e, e->at), e->at); break;
    case KEY_WORD_ERASE:
    case CONTROL('W'): erase(e, word_before(e), e->at); break;
    case KEY_WORD_DELETE: erase(e, e->at, word_behind(e)); break;
    case CONTROL('U'): erase(e, line_begin(e), e->at); break;
    case CONTROL('K'): erase(e, e->at, line_end(e)); break;
    case KEY_BREAK: insert(e, "\n", 1); break;
    case CONTROL('L'):
        fd_write(e->screen.fd, "\033[H\033[2J", 7);
        e->screen.drawn = false;
        break;
    case CONTROL('Z'): stop(e); break;
    default:
        if (key == '\t' || (key >= ' ' && key < 256))
            insert(e, &(char){(char)key}, 1);
    }
}

/* Follows keys up to the one that ends the line. */
static enum edited line_edit(struct editor *e)
{
    for (;;) {
        if (e->i_block == e->n_block) /* of what came at once only the last is drawn */
            draw(e);
        const int key = key_read(e);
        if (key == '\r' || key == '\n')
            return EDITED_LINE;
        if (key == KEY_END || (key == CONTROL('D') && !e->text.len))
            return EDITED_END;
        if (key == CONTROL('C'))
            return EDITED_INTERRUPT;
        if (key != KEY_PASTE)
            edit(e, key);
        else if (!paste(e))
            return EDITED_END;
    }
}

enum edited editor_read(struct editor *e, const char *prompt, struct text *line)
{
    const struct sigaction watch = {.sa_handler = on_resize};
    struct sigaction old;
    e->prompt = prompt;
    e->text.len = e->shown.len = e->at = 0;
    text_add(&e->text, "", 0);
    e->recalled = e->n_history;
    e->screen.drawn = false;
    RETRY(tcgetattr(STDIN_FILENO, &e->cooked));
    sigaction(SIGWINCH, &watch, &old);
    raw_begin(e);
    screen_measure(&e->screen);
    const enum edited how = line_edit(e);
    screen_finish(&e->screen, prompt, &e->shown, &e->text);
    raw_end(e);
    sigaction(SIGWINCH, &old, NULL);
    line->len = 0;
    text_add(line, or_empty(e->text.data), how == EDITED_LINE ? e->text.len : 0);
    if (how == EDITED_LINE)
        remember(e);
    return how;
}

struct editor *editor_open(int to)
{
    struct editor *e = NULL;
    struct termios t;
    if (terminal_of(to) > TERMINAL_DUMB && !tcgetattr(STDIN_FILENO, &t))
        e = calloc(1, sizeof *e);
    if (!e)
        return NULL;
    e->screen.fd = to;
    text_init(&e->text);
    text_init(&e->shown);
    return e;
}

void editor_free(struct editor *e)
{
    if (!e)
        return;
    for (int i = 0; i < e->n_history; i++)
        free(e->history[i]);
    free(e->fresh);
    text_free(&e->text);
    text_free(&e->shown);
    free(e);
}
