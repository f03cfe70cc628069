/*
 * utf8_stream.c - text that arrives in pieces, handed on in whole characters.
 *
 * A token may end in the middle of a character. What is printed must not: up to three bytes are
 * held back until the character is complete or can no longer become one. Bytes that are not UTF-8
 * pass through unchanged, so that the output is always exactly the input. UTF-8 as in RFC 3629:
 * no surrogates, no overlong forms, nothing above U+10FFFF.
 */
#include "models/tokens_internal.h"

#include <string.h>

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

int utf8_put(uint32_t c, char *out)
{
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    static const uint8_t lead[5] = {0, 0, 0xc0, 0xe0, 0xf0};
    const int n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (int i = n - 1; i > 0; i--, c >>= 6)
        out[i] = (char)(0x80 | (c & 0x3f));
    out[0] = (char)(lead[n] | c);
    return n;
}

uint32_t utf8_get(const char *s, int len)
{
    const uint8_t *b = (const uint8_t *)s;
    if (len == 1)
        return b[0];
    uint32_t c = b[0] & (0x7f >> len);
    for (int i = 1; i < len; i++)
        c = c << 6 | (b[i] & 0x3f);
    return c;
}

size_t utf8_valid_prefix(const char *s, size_t n)
{
    size_t i = 0;
    while (i < n) {
        int len = utf8_char(s + i, n - i);
        if (len <= 0)
            break;
        i += (size_t)len;
    }
    return i;
}

void utf8_stream_push(struct utf8_stream *s, const char *bytes, size_t n, struct text *out)
{
    size_t i = 0;
    while (s->n_held > 0 && i < n) {
        s->held[s->n_held++] = bytes[i++];
        int len = utf8_char(s->held, (size_t)s->n_held);
        if (len > 0) {
            text_add(out, s->held, (size_t)len);
            s->n_held = 0;
        } else if (len < 0) {
            /* What was held is no character; the new byte may begin one. */
            text_add(out, s->held, (size_t)s->n_held - 1);
            s->n_held = 0;
            i--;
        }
    }
    while (i < n) {
        size_t valid = utf8_valid_prefix(bytes + i, n - i);
        text_add(out, bytes + i, valid);
        i += valid;
        if (i == n)
            break;
        if (utf8_char(bytes + i, n - i) == 0) {
            s->n_held = (int)(n - i);
            memcpy(s->held, bytes + i, n - i);
            break;
        }
        text_add(out, bytes + i++, 1);
    }
}

void utf8_stream_flush(struct utf8_stream *s, struct text *out)
{
    text_add(out, s->held, (size_t)s->n_held);
    s->n_held = 0;
}
