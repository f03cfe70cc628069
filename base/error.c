/*
 * error.c - messages travel in the caller's oato_error; the text is cut at its size, never
 * overrun, newlines in it become spaces so that one failure is one line, and what it quotes from
 * files cannot steer a terminal.
 */
#include "base/base.h"

#include <stdarg.h>
#include <string.h>

static void one_line(char *text)
{
    for (char *s = text; *s; s++)
        if (*s == '\n' || *s == '\r' || *s == '\t')
            *s = ' ';
    text_tame(text, strlen(text));
}

oato_status oato_fail(struct oato_error *err, oato_status status, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(err->text, sizeof err->text, fmt, ap);
    va_end(ap);
    one_line(err->text);
    err->status = status;
    return status;
}

oato_status oato_fail_at(struct oato_error *err, const char *fmt, ...)
{
    char prefix[256], rest[sizeof err->text];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(prefix, sizeof prefix, fmt, ap);
    va_end(ap);
    memcpy(rest, err->text, sizeof rest);
    rest[sizeof rest - 1] = 0;
    if ((size_t)snprintf(err->text, sizeof err->text, "%s: %s", prefix, rest) >= sizeof err->text)
        err->text[sizeof err->text - 2] = '~';
    one_line(err->text);
    return err->status;
}

void warn_line(warn_fn warn, void *user, const char *fmt, ...)
{
    char line[5000]; /* the longest path, and what is wrong with it */
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    if (warn)
        warn(user, line);
}

#define OUT_OF_MEMORY "out of memory: "

oato_status oato_fail_memory(struct oato_error *err, size_t bytes, const char *what)
{
    return oato_fail(err, OATO_EFIT, OUT_OF_MEMORY "%zu bytes for %s", bytes, what);
}

bool oato_failed_memory(const struct oato_error *err)
{
    return err->status == OATO_EFIT && strstr(err->text, OUT_OF_MEMORY);
}
