/*
 * test_reader.c - reading ahead gives the file's bytes whatever the order, with io_uring and
 * without; and a file that ends too early, or cannot be read, is named.
 */
#include "base/base.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { PIECE = 3 * READ_ALIGN, PIECES = 64, ROOM = 5, DEPTH = 4 };

static char path[64];
static uint8_t *content;
static uint8_t *buffer;

static int setup(void **state)
{
    (void)state;
    strcpy(path, "/var/tmp/oato-reader-XXXXXX");
    const int fd = mkstemp(path);
    content = malloc((size_t)PIECE * PIECES);
    buffer = pages_alloc((size_t)PIECE * ROOM);
    if (fd < 0 || !content || !buffer)
        return 1;
    for (size_t i = 0; i < (size_t)PIECE * PIECES; i++)
        content[i] = (uint8_t)(i * 2654435761u >> 13);
    const ssize_t n = write(fd, content, (size_t)PIECE * PIECES);
    close(fd);
    return n == (ssize_t)PIECE * PIECES ? 0 : 1;
}

static int teardown(void **state)
{
    (void)state;
    free(content);
    pages_free(buffer, (size_t)PIECE * ROOM);
    return unlink(path);
}

/* A number of each piece, each once, in an order that is not theirs. */
static uint64_t piece_of(uint64_t i)
{
    return i * 37 % PIECES;
}

static void opened(struct direct_file *f, struct reader **r, bool plain)
{
    struct oato_error err;
    assert_int_equal(direct_open(path, f, &err), OATO_OK);
    assert_int_equal(reader_create(buffer, (size_t)PIECE * ROOM, DEPTH, plain, r, &err), OATO_OK);
}

static void read_all(bool plain)
{
    struct direct_file f;
    struct reader *r;
    struct oato_error err;
    uint64_t place[PIECES], tag, asked = 0;
    bool taken[ROOM] = {false};
    opened(&f, &r, plain);
    assert_int_equal(f.bytes, (uint64_t)PIECE * PIECES);
    assert_false(plain && reader_overlaps(r));
    for (uint64_t done = 0; done < PIECES; done++) {
        while (asked < PIECES) {
            uint64_t to = 0;
            while (taken[to])
                to++;
            const uint64_t piece = piece_of(asked);
            if (!reader_start(r, &f, piece * PIECE, buffer + to * PIECE, PIECE, piece))
                break;
            taken[to] = true;
            place[piece] = to;
            asked++;
        }
        assert_int_equal(reader_on_way(r), asked - done);
        assert_in_range(reader_on_way(r), 1, DEPTH);
        if (reader_wait(r, &tag, &err))
            fail_msg("%s", err.text);
        assert_memory_equal(buffer + place[tag] * PIECE, content + tag * PIECE, PIECE);
        taken[place[tag]] = false;
    }
    reader_free(r);
    direct_close(&f);
}

static void pieces_are_those_of_the_file(void **state)
{
    (void)state;
    read_all(false);
    read_all(true);
}

/* KiB that the kernel holds in memory for devices. */
static long pinned_kib(void)
{
    char line[128];
    long kib = -1;
    FILE *f = fopen("/proc/self/status", "r");
    assert_non_null(f);
    while (kib < 0 && fgets(line, sizeof line, f))
        sscanf(line, "VmPin: %ld", &kib);
    fclose(f);
    return kib;
}

/* Else a process that starts next finds less memory in its control group. */
static void the_buffer_is_let_go_at_once(void **state)
{
    (void)state;
    struct direct_file f;
    struct reader *r;
    const long before = pinned_kib();
    opened(&f, &r, false);
    print_message("pinned: %ld KiB, with a reader %ld\n", before, pinned_kib());
    reader_free(r);
    assert_int_equal(pinned_kib(), before);
    direct_close(&f);
}

static void a_file_that_ends_early_is_named(void **state)
{
    (void)state;
    const uint64_t last = (uint64_t)PIECE * PIECES - READ_ALIGN;
    for (int i = 0; i < 4; i++) {
        const bool plain = i & 1;
        struct direct_file f;
        struct reader *r;
        struct oato_error err = {.text = ""};
        uint64_t tag;
        opened(&f, &r, plain);
        if (i >= 2) /* in the middle of a block, where no direct read may begin */
            assert_int_equal(truncate(path, (off_t)last + 100), 0);
        assert_true(reader_start(r, &f, last, buffer, PIECE, 7));
        assert_true(reader_start(r, &f, 0, buffer + PIECE, PIECE, 8)); /* left on its way */
        do {
            err.text[0] = 0;
        } while (!reader_wait(r, &tag, &err));
        assert_int_equal(tag, 7);
        assert_int_equal(err.status, OATO_EFILE);
        assert_non_null(strstr(err.text, path));
        assert_non_null(strstr(err.text, "truncated"));
        reader_free(r);
        direct_close(&f);
    }
}

/* As on a disk that fails: the descriptor cannot be read any more. */
static void a_read_that_fails_is_named(void **state)
{
    (void)state;
    for (int plain = 0; plain < 2; plain++) {
        struct direct_file f;
        struct reader *r;
        struct oato_error err = {.text = ""};
        uint64_t tag;
        opened(&f, &r, plain);
        const int fd = open(path, O_WRONLY | O_CLOEXEC);
        assert_int_equal(dup2(fd, f.fd), f.fd);
        close(fd);
        assert_true(reader_start(r, &f, PIECE, buffer, PIECE, 7));
        assert_int_equal(reader_wait(r, &tag, &err), OATO_EIO);
        assert_non_null(strstr(err.text, path));
        assert_non_null(strstr(err.text, "cannot read"));
        reader_free(r);
        direct_close(&f);
    }
}

static void a_file_that_is_not_there_is_named(void **state)
{
    (void)state;
    struct direct_file f;
    struct oato_error err = {.text = ""};
    assert_int_equal(direct_open("/var/tmp/oato-not-there", &f, &err), OATO_EIO);
    assert_non_null(strstr(err.text, "/var/tmp/oato-not-there"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(pieces_are_those_of_the_file, setup, teardown),
        cmocka_unit_test_setup_teardown(the_buffer_is_let_go_at_once, setup, teardown),
        cmocka_unit_test_setup_teardown(a_file_that_ends_early_is_named, setup, teardown),
        cmocka_unit_test_setup_teardown(a_read_that_fails_is_named, setup, teardown),
        cmocka_unit_test(a_file_that_is_not_there_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
