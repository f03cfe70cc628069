/*
 * utf8_stream.c - text that arrives in pieces, handed on in whole characters.
 *
 * A token may end in the middle of a character. What is printed must not: up to three bytes are
 * held back until the character is complete or can no longer become one. Bytes that are not UTF-8
 * pass through unchanged, so that the output is always exactly the input.
 */
#include "text/tokens_internal.h"

#include <string.h>

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

size_t utf8_place_take(struct utf8_place *at, const char *bytes, size_t n)
{
    char head[sizeof at->begun + 4];
    const size_t begun = at->n_begun, more = n < 4 ? n : 4;
    size_t i = 0, offset;
    memcpy(head, at->begun, begun);
    memcpy(head + begun, bytes, more);
    while (i < begun) { /* the character that was begun, or what turns out to be none */
        const int length = utf8_char(head + i, begun + more - i);
        if (length > 0 && i + (size_t)length > begun)
            break;
        if (!length)
            break;
        i += length > 0 ? (size_t)length : 1;
        at->chars++;
    }
    offset = at->chars;
    at->n_begun = 0;
    while (i < begun + n) {
        const char *s = i < begun ? head + i : bytes + (i - begun);
        const size_t left = i < begun ? begun + more - i : begun + n - i;
        const int length = utf8_char(s, left);
        if (!length) {
            memmove(at->begun, s, left);
            at->n_begun = left;
            break;
        }
        i += length > 0 ? (size_t)length : 1;
        at->chars++;
    }
    return offset;
}
