/*
 * head.c - see head.h. A line is kept until it is complete, and read then.
 */
#include "net/head.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { METHOD_BYTES = 32, EMPTY_LINES = 8 };

static bool wrong(struct head *h, unsigned status, const char *why)
{
    h->in_body = h->at > HEAD_FIELD;
    h->status = status;
    h->why = why;
    return false;
}

/* ----------------------------------------------------------------------------- characters ---- */

static bool is_token(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!s[i] || !(strchr("!#$%&'*+-.^_`|~", s[i]) || (s[i] >= '0' && s[i] <= '9') ||
                       (s[i] >= 'A' && s[i] <= 'Z') || (s[i] >= 'a' && s[i] <= 'z')))
            return false;
    return n > 0;
}

/* Blanks, tabs, visible characters, and bytes beyond ASCII. */
static bool is_value(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (((unsigned char)s[i] < ' ' && s[i] != '\t') || s[i] == 127)
            return false;
    return true;
}

static bool is_visible(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (s[i] <= ' ' || s[i] == 127 || s[i] == '#')
            return false;
    return n > 0;
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t';
}

static size_t count(const char *s, size_t n, char c)
{
    size_t found = 0;
    for (size_t i = 0; i < n; i++)
        found += s[i] == c;
    return found;
}

/* Whether a list with commas has the word. */
static bool has_word(const char *s, size_t n, const char *word)
{
    const size_t length = strlen(word);
    for (size_t begin = 0, i = 0; i <= n; i++) {
        if (i < n && s[i] != ',')
            continue;
        size_t end = i;
        while (begin < end && is_blank(s[begin]))
            begin++;
        while (end > begin && is_blank(s[end - 1]))
            end--;
        if (end - begin == length && !strncasecmp(s + begin, word, length))
            return true;
        begin = i + 1;
    }
    return false;
}

/* -------------------------------------------------------------------------------- lines ------ */

/* Of http://HOST at the beginning of a target, as proxies are sent it. */
static size_t site_length(const char *s, size_t n)
{
    const size_t scheme = n > 7 && !strncasecmp(s, "http://", 7)    ? 7
                          : n > 8 && !strncasecmp(s, "https://", 8) ? 8
                                                                    : 0;
    size_t i = scheme;
    while (scheme && i < n && s[i] != '/' && s[i] != '?')
        i++;
    return i;
}

/* METHOD SP TARGET SP VERSION */
static bool request_line(struct head *h, const char *s, size_t n)
{
    const char *target = memchr(s, ' ', n);
    const char *version = target ? memchr(target + 1, ' ', n - (size_t)(target + 1 - s)) : NULL;
    if (!version || !is_token(s, (size_t)(target - s)) || target - s > METHOD_BYTES)
        return wrong(h, 400, "the request does not begin with METHOD TARGET HTTP/1.1");
    const size_t target_n = (size_t)(version - ++target), version_n = n - (size_t)(++version - s);
    if (version_n != 8 || strncmp(version, "HTTP/", 5) != 0 || version[6] != '.' ||
        version[5] < '0' || version[5] > '9' || version[7] < '0' || version[7] > '9')
        return wrong(h, 400, "the request does not begin with METHOD TARGET HTTP/1.1");
    if (version[5] != '1' || version[7] > '1')
        return wrong(h, 505, "HTTP/1.1 and HTTP/1.0 are spoken here");
    if (!is_visible(target, target_n))
        return wrong(h, 400, "the request's target has characters that must be escaped");
    if (memmem(target, target_n, "%00", 3))
        return wrong(h, 400, "the request's target has a zero byte");
    h->fields = (int32_t)count(target, target_n, '&');
    if (h->fields > HEAD_FIELDS)
        return wrong(h, 414, "the request's target has too many parts");
    h->old = version[7] == '0';
    h->keeps = h->closes = false;
    h->at = HEAD_FIELD;
    h->whole.len = 0;
    const size_t site = site_length(target, target_n);
    text_add(&h->whole, s, (size_t)(target - s));
    if (site && (site == target_n || target[site] != '/'))
        text_add(&h->whole, "/", 1);
    text_add(&h->whole, target + site, target_n - site);
    text_printf(&h->whole, " %.8s\r\n", version);
    return true;
}

static bool length_take(struct head *h, const char *s, size_t n)
{
    if (h->lengths++)
        return wrong(h, 400, "more than one Content-Length");
    for (size_t i = 0; i < n; i++) {
        if (s[i] < '0' || s[i] > '9')
            return wrong(h, 400, "Content-Length is no number");
        if (h->left <= HEAD_BODY_BYTES)
            h->left = 10 * h->left + (uint64_t)(s[i] - '0');
    }
    if (!n)
        return wrong(h, 400, "Content-Length is no number");
    return h->left <= HEAD_BODY_BYTES || wrong(h, 413, "the request is larger than 64 MiB");
}

static bool coding_take(struct head *h, const char *s, size_t n)
{
    const char *last = memrchr(s, ',', n);
    if (h->codings++ || (last && has_word(s, (size_t)(last - s), "chunked")))
        return wrong(h, 400, "chunked is not the last Transfer-Encoding, or is there twice");
    return (n == 7 && !strncasecmp(s, "chunked", n)) ||
           wrong(h, 501, "the only Transfer-Encoding here is chunked");
}

static bool is_host(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!(is_token(s + i, 1) || strchr("()=;:[]", s[i])) || s[i] == '#')
            return false;
    return true;
}

static bool host_take(struct head *h, const char *s, size_t n)
{
    if (h->hosts++)
        return wrong(h, 400, "more than one Host");
    return is_host(s, n) || wrong(h, 400, "Host is no name of a host");
}

static bool is_name(const char *s, size_t n, const char *name)
{
    return n == strlen(name) && !strncasecmp(s, name, n);
}

/* Name: value */
static bool field(struct head *h, const char *s, size_t n)
{
    const char *colon = memchr(s, ':', n);
    const size_t name_n = colon ? (size_t)(colon - s) : 0;
    if (!is_token(s, name_n) || !is_value(s, n))
        return wrong(h, 400,
                     !is_value(s, n)  ? "a header has a control character"
                     : is_blank(s[0]) ? "a header goes on in another line"
                     : !colon         ? "a header without a colon"
                     : is_blank(s[name_n ? name_n - 1 : 0])
                         ? "a blank before a header's colon"
                         : "a header's name has other characters");
    const char *value = colon + 1;
    size_t value_n = n - name_n - 1;
    while (value_n && is_blank(*value)) {
        value++;
        value_n--;
    }
    while (value_n && is_blank(value[value_n - 1]))
        value_n--;
    if (++h->fields > HEAD_FIELDS)
        return wrong(h, 431, "the request has too many headers");
    if (h->at == HEAD_TRAILER)
        return true;
    if (is_name(s, name_n, "content-length") && !length_take(h, value, value_n))
        return false;
    if (is_name(s, name_n, "transfer-encoding") && !coding_take(h, value, value_n))
        return false;
    if (is_name(s, name_n, "host") && !host_take(h, value, value_n))
        return false;
    if (is_name(s, name_n, "connection")) {
        h->keeps |= has_word(value, value_n, "keep-alive");
        h->closes |= has_word(value, value_n, "close");
    }
    if (!is_name(s, name_n, "cookie")) { /* nobody reads them, and they would be taken apart */
        text_add(&h->whole, s, name_n);
        text_add(&h->whole, ": ", 2);
        text_add(&h->whole, value, value_n);
        text_add(&h->whole, "\r\n", 2);
    }
    return true;
}

/* The request is complete: another one may follow. */
static void request_end(struct head *h)
{
    h->at = h->closes || (h->old && !h->keeps) ? HEAD_OVER : HEAD_START;
    h->bytes = 0;
    h->fields = h->hosts = h->lengths = h->codings = 0;
}

/* The empty line behind the fields. */
static bool head_end(struct head *h, struct text *out)
{
    if (h->codings && h->lengths)
        return wrong(h, 400, "both Content-Length and Transfer-Encoding");
    if (h->codings && h->old)
        return wrong(h, 400, "HTTP/1.0 has no Transfer-Encoding");
    if (!h->hosts && !h->old)
        return wrong(h, 400, "no Host; HTTP/1.1 needs one");
    text_add(out, h->whole.data, h->whole.len);
    text_add(out, "\r\n", 2);
    out->failed = out->failed || h->whole.failed;
    h->requests++;
    h->bytes = 0;
    h->fields = 0;
    h->at = h->codings ? HEAD_CHUNK : HEAD_BODY;
    if (h->at == HEAD_BODY && !h->left)
        request_end(h);
    return true;
}

/* Hexadecimal digits, and ;extensions that nobody reads. */
static bool chunk_line(struct head *h, const char *s, size_t n, struct text *out)
{
    size_t digits = 0;
    h->left = 0;
    for (; digits < n && h->left <= HEAD_BODY_BYTES; digits++) {
        const char c = s[digits] | 0x20;
        const bool digit = s[digits] >= '0' && s[digits] <= '9';
        if (!digit && (c < 'a' || c > 'f'))
            break;
        h->left = h->left << 4 | (uint64_t)(digit ? s[digits] - '0' : c - 'a' + 10);
    }
    if (h->left > HEAD_BODY_BYTES)
        return wrong(h, 413, "the request is larger than 64 MiB");
    if (!digits || (digits < n && s[digits] != ';') || !is_value(s, n))
        return wrong(h, 400, "a chunk does not begin with its size");
    text_printf(out, "%llx\r\n", (unsigned long long)h->left);
    h->at = h->left ? HEAD_DATA : HEAD_TRAILER;
    h->bytes = 0;
    return true;
}

/* Without its end. */
static bool line_take(struct head *h, const char *s, size_t n, struct text *out)
{
    switch (h->at) {
    case HEAD_START:
        if (!n) /* some clients send one behind a body */
            return ++h->fields <= EMPTY_LINES || wrong(h, 400, "only empty lines");
        return request_line(h, s, n);
    case HEAD_FIELD: return n ? field(h, s, n) : head_end(h, out);
    case HEAD_CHUNK: return chunk_line(h, s, n, out);
    case HEAD_DATA_END:
        h->at = HEAD_CHUNK;
        text_add(out, "\r\n", 2);
        return !n || wrong(h, 400, "a chunk is longer than it says");
    case HEAD_TRAILER: /* they are read by nobody */
        if (n)
            return field(h, s, n);
        text_add(out, "\r\n", 2);
        request_end(h);
        return true;
    case HEAD_BODY:
    case HEAD_DATA:
    case HEAD_OVER: break;
    }
    return true;
}

/* A byte of a line. */
static bool byte_take(struct head *h, char c, struct text *out)
{
    struct text *l = &h->line;
    if (c != '\n') {
        if (h->at == HEAD_DATA_END && (l->len || c != '\r'))
            return wrong(h, 400, "a chunk is longer than it says");
        if (h->at == HEAD_START && l->len >= HEAD_TARGET_BYTES)
            return wrong(h, 414, "the request's target is too long");
        if (++h->bytes > HEAD_BYTES)
            return wrong(h, 431, "the request's headers are too large");
        text_add(l, &c, 1);
        return !l->failed || wrong(h, 500, "memory is short");
    }
    if (!l->len || l->data[l->len - 1] != '\r' || memchr(l->data, '\r', l->len - 1))
        return wrong(h, 400, "a line of the request does not end with CR and LF");
    const size_t n = l->len - 1;
    l->len = 0;
    return line_take(h, l->data, n, out);
}

void head_read(struct head *h, const char *bytes, size_t n, struct text *out)
{
    for (size_t i = 0; i < n && !h->status && h->at != HEAD_OVER;) {
        if (h->at != HEAD_BODY && h->at != HEAD_DATA) {
            byte_take(h, bytes[i++], out);
            continue;
        }
        const size_t take = (size_t)min_i64((int64_t)h->left, (int64_t)(n - i));
        text_add(out, bytes + i, take);
        h->left -= take;
        i += take;
        if (!h->left && h->at == HEAD_DATA)
            h->at = HEAD_DATA_END;
        else if (!h->left)
            request_end(h);
    }
    if (out->failed && !h->status)
        wrong(h, 500, "memory is short");
}

void head_free(struct head *h)
{
    text_free(&h->line);
    text_free(&h->whole);
}
