/*
 * What a client sends goes on in one form, however it comes in pieces, and any bytes are refused or
 * read to their end: nothing goes on behind what is wrong.
 */
#include "net/head.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

static const char taken[] =
    "\r\nPOST http://x:80/a?b=c HTTP/1.1\r\nHOST:x\r\nCookie: a=b\r\nContent-Length:\t002 "
    "\r\n\r\n{}"
    "POST /b HTTP/1.1\r\nhost: \r\ntransfer-encoding: Chunked\r\n\r\n"
    "00a;x=y\r\n0123456789\r\n1\r\nx\r\n000\r\nT: u\r\n\r\n"
    "GET https://x HTTP/1.0\r\nconnection: a , Keep-Alive\r\n\r\n"
    "GET /c HTTP/1.1\r\nHost: x\r\nConnection:  close  \r\n\r\nGET /d HTTP/1.1\r\nHost: x\r\n\r\n";
static const char passed[] = "POST /a?b=c HTTP/1.1\r\nHOST: x\r\nContent-Length: 002\r\n\r\n{}"
                             "POST /b HTTP/1.1\r\nhost: \r\ntransfer-encoding: Chunked\r\n\r\n"
                             "a\r\n0123456789\r\n1\r\nx\r\n0\r\n\r\n"
                             "GET / HTTP/1.0\r\nconnection: a , Keep-Alive\r\n\r\n"
                             "GET /c HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";

/* In pieces of at most so many bytes. */
static void pass(struct head *h, const char *s, size_t n, size_t most, struct text *out)
{
    *h = (struct head){0};
    text_init(&h->line);
    text_init(&h->whole);
    text_init(out);
    for (size_t i = 0; i < n; i += most)
        head_read(h, s + i, n - i < most ? n - i : most, out);
}

static void passes_in_one_form(void **state)
{
    (void)state;
    for (size_t most = 1; most < sizeof taken; most++) {
        struct head h;
        struct text out;
        pass(&h, taken, sizeof taken - 1, most, &out);
        assert_int_equal(h.status, 0);
        assert_int_equal(h.requests, 4);
        assert_int_equal(h.at, HEAD_OVER);
        assert_string_equal(out.data, passed);
        text_free(&out);
        head_free(&h);
    }
}

/* A byte is changed, dropped or doubled: what goes on is what other pieces give, too, and reading
 * it again gives the same. */
static void any_bytes_have_one_meaning(void **state)
{
    (void)state;
    const unsigned seed = (unsigned)time(NULL);
    print_message("seed %u\n", seed);
    srand(seed);
    for (int i = 0; i < 4000; i++) {
        char bytes[sizeof taken + 1];
        size_t n = sizeof taken - 1;
        memcpy(bytes, taken, n);
        const size_t at = (size_t)rand() % n;
        const int how = rand() % 3;
        if (!how) {
            bytes[at] = (char)rand();
        } else if (how == 1) {
            memmove(bytes + at, bytes + at + 1, --n - at);
        } else {
            memmove(bytes + at + 1, bytes + at, n++ - at);
        }
        struct head whole, pieces, again;
        struct text a, b, c;
        pass(&whole, bytes, n, n, &a);
        pass(&pieces, bytes, n, 1 + (size_t)rand() % 9, &b);
        pass(&again, or_empty(a.data), a.len, a.len + 1, &c);
        if (whole.status != pieces.status || a.len != b.len ||
            (a.len && memcmp(a.data, b.data, a.len) != 0) || again.status || c.len != a.len ||
            (a.len && memcmp(a.data, c.data, a.len) != 0))
            fail_msg("seed %u, case %d: %u %s", seed, i, whole.status, or_empty(whole.why));
        assert_true(!whole.status || (whole.status >= 400 && whole.why));
        text_free(&a);
        text_free(&b);
        text_free(&c);
        head_free(&whole);
        head_free(&pieces);
        head_free(&again);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(passes_in_one_form),
                                       cmocka_unit_test(any_bytes_have_one_meaning)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
