/*
 * editor_screen.c - draws a line that is being edited. Rows are counted as the terminal breaks
 * them: lines that are longer than it is wide are written whole, so that they stay one line when
 * the window changes its size and for who copies them. A text higher than the screen is shown
 * around the cursor.
 */
#include "front/editor_internal.h"

#include <string.h>
#include <sys/ioctl.h>
#include <wchar.h>

enum { TAB_COLUMNS = 4 };

/* Columns of the character at s, of *bytes bytes. */
static int columns_at(const char *s, size_t n, int *bytes)
{
    wchar_t c;
    const int length = utf8_char(s, n);
    *bytes = length > 0 ? length : 1;
    if (*s == '\t')
        return TAB_COLUMNS;
    if (length <= 0 || mbrtowc(&c, s, (size_t)length, &(mbstate_t){0}) > (size_t)length)
        return 1; /* drawn as a question mark */
    const int columns = wcwidth(c);
    return columns < 0 ? 1 : columns;
}

struct place {
    int row, column;
};

/* Goes on from p over the character at byte i of n; returns the byte behind it. */
static size_t walk(struct place *p, int width, const char *s, size_t i, size_t n)
{
    int bytes;
    if (s[i] == '\n') {
        *p = (struct place){p->row + 1, 0};
        return i + 1;
    }
    const int columns = columns_at(s + i, n - i, &bytes);
    if (p->column + columns > width)
        *p = (struct place){p->row + 1, 0};
    p->column += columns;
    return i + (size_t)bytes;
}

/* Where the cursor stands before byte `at` of what is drawn from byte `from` on. */
static struct place place_of(int width, const char *prompt, const char *s, size_t from, size_t at,
                             size_t n)
{
    struct place p = {0, from ? 0 : (int)strlen(prompt)};
    for (size_t i = from; i < at;)
        i = walk(&p, width, s, i, n);
    if (p.column >= width)
        p = (struct place){p.row + 1, 0};
    return p;
}

/* The byte with which a row begins. */
static size_t row_begin(int width, const char *prompt, const char *s, size_t n, int row)
{
    struct place p = {0, (int)strlen(prompt)};
    for (size_t i = 0; i < n;) {
        const size_t begin = i;
        i = walk(&p, width, s, i, n);
        if (p.row == row)
            return p.column ? begin : i; /* behind the line's end */
    }
    return n;
}

static void put(struct text *t, const char *s)
{
    text_add(t, s, strlen(s));
}

/* Terminals get no byte of the text that would be a command to them. */
static void put_text(struct text *t, const char *s, size_t n)
{
    for (size_t i = 0; i < n;) {
        int bytes;
        columns_at(s + i, n - i, &bytes);
        if (s[i] == '\n') {
            put(t, "\r\n");
        } else if (s[i] == '\t') {
            put(t, "    ");
        } else {
            char c[8] = "";
            memcpy(c, s + i, (size_t)bytes);
            text_tame(c, (size_t)bytes);
            text_add(t, c, strnlen(c, (size_t)bytes));
        }
        i += (size_t)bytes;
    }
}

void screen_measure(struct screen *s)
{
    struct winsize size;
    const bool known = !ioctl(s->fd, TIOCGWINSZ, &size) && size.ws_col && size.ws_row;
    s->width = known ? size.ws_col : 80;
    s->height = known ? size.ws_row : 24;
}

/* To where the drawing began, which is cleared, and what is below it. */
static void put_clear(const struct screen *s, const char *prompt, const struct text *was,
                      struct text *t)
{
    const int up =
        place_of(s->width, prompt, or_empty(was->data), s->first, s->cursor, was->len).row;
    if (s->drawn && up)
        text_printf(t, "\033[%dA", up);
    put(t, "\r\033[J");
}

static void put_from(const struct screen *s, const char *prompt, const struct text *text,
                     size_t first, size_t end, struct text *t)
{
    const char *data = or_empty(text->data);
    struct place p = {0, first ? 0 : (int)strlen(prompt)};
    if (!first)
        put(t, prompt);
    put_text(t, data + first, end - first);
    for (size_t i = first; i < end;)
        i = walk(&p, s->width, data, i, text->len);
    if (p.column >= s->width) /* the cursor waits at the margin for one more character */
        put(t, "\r\n");
}

void screen_draw(struct screen *s, const char *prompt, const struct text *was,
                 const struct text *text, size_t at)
{
    const char *data = or_empty(text->data);
    struct text t;
    text_init(&t);
    put_clear(s, prompt, was, &t);
    const int cursor = place_of(s->width, prompt, data, 0, at, text->len).row;
    const int last = place_of(s->width, prompt, data, 0, text->len, text->len).row;
    /* the rows that are shown: all, or those up to half a screen behind the cursor */
    const int most = s->height > 1 ? s->height - 1 : 1; /* tmux keeps what a whole screen clears */
    int end = last + 1, begin = 0;
    if (end > most) {
        end = (int)min_i64(end, max_i64(cursor + 1 + most / 2, most));
        begin = end - most;
    }
    s->first = begin ? row_begin(s->width, prompt, data, text->len, begin) : 0;
    size_t until = end > last ? text->len : row_begin(s->width, prompt, data, text->len, end);
    if (until < text->len && until > s->first && data[until - 1] == '\n')
        until--;
    until = until < s->first ? s->first : until;
    put_from(s, prompt, text, s->first, until, &t);
    const struct place to = place_of(s->width, prompt, data, s->first, at, text->len),
                       from = place_of(s->width, prompt, data, s->first, until, text->len);
    if (from.row > to.row)
        text_printf(&t, "\033[%dA", from.row - to.row);
    put(&t, "\r");
    if (to.column)
        text_printf(&t, "\033[%dC", to.column);
    s->cursor = at;
    s->drawn = true;
    fd_write(s->fd, t.data, t.len);
    text_free(&t);
}

void screen_finish(struct screen *s, const char *prompt, const struct text *was,
                   const struct text *text)
{
    struct text t;
    text_init(&t);
    put_clear(s, prompt, was, &t);
    put_from(s, prompt, text, 0, text->len, &t);
    put(&t, "\r\n");
    s->drawn = false;
    fd_write(s->fd, t.data, t.len);
    text_free(&t);
}
