/*
 * head.h - what requests look like in HTTP/1.1 (RFC 9112), read byte by byte in front of
 * libmicrohttpd. That is lenient (0.9.75 takes the first of two lengths, cuts a field at a zero
 * byte, joins folded lines, needs no Host), and what it does refuse it answers with a page of HTML.
 * Here a request has one meaning or is refused; what goes on is written anew, in one form.
 */
#ifndef OATO_HEAD_H
#define OATO_HEAD_H

#include "base/base.h"

enum {
    HEAD_TARGET_BYTES = 8 << 10, /* of a request's first line */
    HEAD_BYTES = 16 << 10,       /* of a head; of a chunk's line; of the trailers */
    HEAD_FIELDS = 100,           /* lines of a head, and parameters of its target */
    HEAD_BODY_BYTES = 64 << 20
};

/* The requests of one connection. All zeros begins. */
struct head {
    enum {
        HEAD_START, /* before the first line of a request */
        HEAD_FIELD, /* lines of the head */
        HEAD_BODY,  /* `left` bytes of it */
        HEAD_CHUNK, /* the line of a chunk's size */
        HEAD_DATA,  /* `left` bytes of the chunk */
        HEAD_DATA_END,
        HEAD_TRAILER,
        HEAD_OVER /* the connection ends behind this request: what follows is none */
    } at;
    struct text line;  /* that is not complete yet */
    struct text whole; /* the head so far, as it goes on */
    size_t bytes;
    uint64_t left;
    int32_t fields, hosts, lengths, codings;
    bool old, keeps, closes; /* HTTP/1.0; words of the field Connection. Of the last request, too */
    int32_t requests;        /* heads that were complete */
    /* What is wrong, as a status and a text; 0: nothing. It stays so. in_body: of a request that is
     * counted. */
    unsigned status;
    const char *why;
    bool in_body;
};

/* Reads n more bytes, and appends to `out` what goes on: heads once they are complete, bodies as
 * they come. Nothing does behind what is wrong. */
void head_read(struct head *h, const char *bytes, size_t n, struct text *out);
void head_free(struct head *h);

#endif
