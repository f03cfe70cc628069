/*
 * text.c - growing strings, escaping for JSON, HTML and terminals, numbers with units, and XXH64. A
 * text that ran out of memory says so in `failed` once, instead of at every call.
 */
#include "base/base.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <utf8proc.h>
#include <xxhash.h>

void text_init(struct text *t)
{
    memset(t, 0, sizeof *t);
}

bool text_reserve(struct text *t, size_t more)
{
    size_t need;
    if (t->failed || !size_add(t->len, more, &need) || !size_add(need, 1, &need)) {
        t->failed = true;
        return false;
    }
    if (need <= t->cap)
        return true;
    size_t cap = t->cap ? t->cap : 64;
    while (cap < need)
        cap = cap > SIZE_MAX / 2 ? need : cap * 2;
    char *p = realloc(t->data, cap);
    if (!p) {
        t->failed = true;
        return false;
    }
    t->data = p;
    t->cap = cap;
    return true;
}

void text_add(struct text *t, const char *s, size_t n)
{
    if (!text_reserve(t, n))
        return;
    if (n)
        memcpy(t->data + t->len, s, n);
    t->len += n;
    t->data[t->len] = 0;
}

void text_printf(struct text *t, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n < 0 || !text_reserve(t, (size_t)n)) {
        t->failed = true;
        return;
    }
    va_start(ap, fmt);
    vsnprintf(t->data + t->len, (size_t)n + 1, fmt, ap);
    va_end(ap);
    t->len += (size_t)n;
}

void text_free(struct text *t)
{
    free(t->data);
    text_init(t);
}

void text_free_part(struct text *t, struct text *whole)
{
    whole->failed = whole->failed || t->failed;
    text_free(t);
}

oato_status text_mark_skip(const char *name, const char **s, size_t *n, struct oato_error *err)
{
    const unsigned char *u = (const unsigned char *)*s;
    if (*n >= 2 && ((u[0] == 0xff && u[1] == 0xfe) || (u[0] == 0xfe && u[1] == 0xff)))
        return oato_fail(err, OATO_EFILE,
                         "%s: is UTF-16 or UTF-32; convert it to UTF-8, as by iconv -f UTF-16 -t "
                         "UTF-8",
                         name);
    if (*n >= 3 && u[0] == 0xef && u[1] == 0xbb && u[2] == 0xbf) {
        *s += 3;
        *n -= 3;
    }
    return OATO_OK;
}

void text_ends_unify(char *s, size_t *n)
{
    char *end = s;
    for (size_t i = 0; i < *n; i++)
        if (s[i] != '\r' || i + 1 == *n || s[i + 1] != '\n')
            *end++ = s[i] == '\r' ? '\n' : s[i];
    *n = (size_t)(end - s);
}

/* UTF-8 as in RFC 3629: no surrogates, no overlong forms, nothing above U+10FFFF. */
int utf8_char(const char *s, size_t n)
{
    const uint8_t *b = (const uint8_t *)s;
    uint8_t lead = b[0];
    if (lead < 0x80)
        return 1;
    if (lead < 0xc2 || lead > 0xf4)
        return -1;
    int len = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
    for (int i = 1; i < len; i++) {
        if ((size_t)i == n)
            return 0;
        /* Only the second byte has narrower limits than 80..BF. */
        uint8_t lo = 0x80, hi = 0xbf;
        if (i == 1) {
            lo = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
            hi = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
        }
        if (b[i] < lo || b[i] > hi)
            return -1;
    }
    return len;
}

bool utf8_is_text(const char *s, size_t n)
{
    for (size_t i = 0; i < n;) {
        const int length = utf8_char(s + i, n - i);
        if (length < 1)
            return false;
        i += (size_t)length;
    }
    return true;
}

bool char_is_white(uint32_t c)
{
    const utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)c);
    return (c >= '\t' && c <= '\r') || c == 0x85 ||
           (category >= UTF8PROC_CATEGORY_ZS && category <= UTF8PROC_CATEGORY_ZP);
}

static size_t utf8_length(const char *s, size_t n)
{
    const int len = utf8_char(s, n);
    return len > 0 ? (size_t)len : 0;
}

/* True for the controls of ASCII and, as UTF-8, those of Latin 1: terminals obey both. */
static bool is_control(const unsigned char *s, size_t len)
{
    return len == 1 ? s[0] < 0x20 || s[0] == 0x7f : len == 2 && s[0] == 0xc2 && s[1] < 0xa0;
}

void text_tame(char *s, size_t n)
{
    const unsigned char *u = (const unsigned char *)s;
    for (size_t i = 0; i < n;) {
        const size_t len = utf8_length(s + i, n - i), step = len ? len : 1;
        const bool harmless =
            s[i] == '\n' || s[i] == '\t' || (s[i] == '\r' && i + 1 < n && s[i + 1] == '\n');
        if (!len || (is_control(u + i, len) && !harmless))
            memset(s + i, '?', step);
        i += step;
    }
}

void text_print(FILE *to, const char *s, size_t n)
{
    char block[4096];
    if (to != stderr && isatty(stream_fd(to)) != 1) {
        fwrite(s, 1, n, to);
        return;
    }
    for (size_t take; n; s += take, n -= take) {
        take = n < sizeof block ? n : sizeof block;
        /* no block ends inside a character; what has no character there is not worth a search */
        for (int back = 0; take < n && back < 3 && (s[take] & 0xc0) == 0x80; back++)
            take--;
        memcpy(block, s, take);
        text_tame(block, take);
        fwrite(block, 1, take, to);
    }
}

void text_tell(const char *fmt, ...)
{
    char line[8192];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    text_print(stderr, line, strlen(line));
}

void text_add_json(struct text *t, const char *s, size_t n)
{
    const unsigned char *u = (const unsigned char *)s;
    for (size_t i = 0; i < n;) {
        size_t len = utf8_length(s + i, n - i);
        if (!len) {
            text_add(t, "\xef\xbf\xbd", 3);
            i++;
        } else if (u[i] == '"' || u[i] == '\\') {
            text_printf(t, "\\%c", u[i]);
            i++;
        } else if (is_control(u + i, len)) {
            text_printf(t, "\\u%04x", u[i + len - 1]);
            i += len;
        } else {
            text_add(t, s + i, len);
            i += len;
        }
    }
}

void text_add_html(struct text *t, const char *s, size_t n)
{
    static const struct {
        char c;
        const char *entity;
    } entities[] = {{'&', "&amp;"}, {'<', "&lt;"}, {'>', "&gt;"}, {'"', "&quot;"}, {'\'', "&#39;"}};
    const unsigned char *u = (const unsigned char *)s;
    for (size_t i = 0, len; i < n; i += len) {
        size_t e = 0;
        while (e < ARRAY_LEN(entities) && s[i] != entities[e].c)
            e++;
        len = utf8_length(s + i, n - i);
        if (e < ARRAY_LEN(entities))
            text_printf(t, "%s", entities[e].entity);
        else if (!len || (is_control(u + i, len) && s[i] != '\n' && s[i] != '\t'))
            text_add(t, "\xef\xbf\xbd", 3);
        else
            text_add(t, s + i, len);
        len = len ? len : 1;
    }
}

static bool parse_number(const char *s, char **end, double *out)
{
    if (!(isdigit((unsigned char)*s) || *s == '.') || s[1] == 'x' || s[1] == 'X')
        return false; /* strtod would take signs, words and hexadecimal */
    errno = 0;
    *out = strtod(s, end);
    return *end != s && !errno && isfinite(*out);
}

bool parse_quantity(const char *s, const char *unit, double *out)
{
    char *p;
    double v;
    if (!parse_number(s, &p, &v))
        return false;
    while (*p == ' ')
        p++;
    if (*p && strcmp(p, unit) != 0) {
        static const char up[] = "KMGTP", down[] = "mun";
        const char *hit;
        if (!strcmp(unit, "s") && (hit = strchr(down, *p))) {
            v *= pow(1e-3, (double)(hit - down + 1));
            p++;
        } else if ((hit = strchr(up, *p == 'k' ? 'K' : *p))) {
            p++;
            double base = *p == 'i' ? (p++, 1024.0) : 1000.0;
            v *= pow(base, (double)(hit - up + 1));
        }
    }
    if (*p && strcmp(p, unit) != 0)
        return false;
    *out = v;
    return true;
}

bool parse_i64(const char *s, int64_t lo, int64_t hi, int64_t *out)
{
    char *end;
    errno = 0;
    long long v = strtoll(s, &end, 10);
    if (end == s || *end || errno || v < lo || v > hi)
        return false;
    *out = v;
    return true;
}

bool parse_count(const char *s, int64_t lo, int64_t hi, int64_t *out)
{
    char digits[24];
    const size_t n = strlen(s);
    const char unit = n ? s[n - 1] : 0;
    const int shift = unit == 'k' || unit == 'K' ? 10 : unit == 'm' || unit == 'M' ? 20 : 0;
    int64_t v;
    if (!shift)
        return parse_i64(s, lo, hi, out);
    if (n >= sizeof digits)
        return false;
    memcpy(digits, s, n - 1);
    digits[n - 1] = 0;
    if (!parse_i64(digits, 0, INT64_MAX >> shift, &v) || v << shift < lo || v << shift > hi)
        return false;
    *out = v << shift;
    return true;
}

bool parse_f64(const char *s, double lo, double hi, double *out)
{
    char *end;
    errno = 0;
    double v = strtod(s, &end);
    if (end == s || *end || errno || !(v >= lo && v <= hi))
        return false;
    *out = v;
    return true;
}

void print_f64(double v, char text[F64_TEXT])
{
    const bool whole = v == floor(v), large = fabs(v) >= 1e16;
    *text = 0;
    for (int n = 1; n <= 17 && strtod(text, NULL) != v; n++)
        snprintf(text, F64_TEXT, whole && large ? "%.*e" : "%.*g", n - (whole && large), v);
    if (whole && !large)
        snprintf(text, F64_TEXT, "%.1f", v);
}

uint64_t hash_bytes(const void *data, size_t bytes)
{
    return XXH64(data, bytes, 0);
}

struct hash_stream *hash_create(void)
{
    XXH64_state_t *s = XXH64_createState();
    if (s)
        XXH64_reset(s, 0);
    return (struct hash_stream *)s;
}

void hash_update(struct hash_stream *h, const void *data, size_t bytes)
{
    XXH64_update((XXH64_state_t *)h, data, bytes);
}

uint64_t hash_digest(const struct hash_stream *h)
{
    return XXH64_digest((const XXH64_state_t *)h);
}

void hash_free(struct hash_stream *h)
{
    XXH64_freeState((XXH64_state_t *)h);
}
