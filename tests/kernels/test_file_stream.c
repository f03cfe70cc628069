/*
 * test_file_stream.c - weights go round a ring that is smaller than they are: what has arrived is
 * the file's, whenever a place comes free, and nobody waits for ever.
 */
#include "kernels/core/file_stream.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* Places: a piece's neighbour waits for the piece before it. */
enum { PIECES = 3, PLACES = 2, ROUNDS = 20000, LONGEST_S = 120 };

static char path[64];
static uint8_t *ring;

static int setup(void **state)
{
    (void)state;
    uint8_t piece[READ_ALIGN];
    strcpy(path, "/var/tmp/oato-stream-XXXXXX");
    const int fd = mkstemp(path);
    ring = pages_alloc((size_t)PLACES * READ_ALIGN);
    bool good = fd >= 0 && ring;
    for (int i = 0; i < PIECES && good; i++) {
        memset(piece, 'a' + i, sizeof piece);
        good = write(fd, piece, sizeof piece) == (ssize_t)sizeof piece;
    }
    close(fd);
    return good ? 0 : 1;
}

static int teardown(void **state)
{
    (void)state;
    pages_free(ring, (size_t)PLACES * READ_ALIGN);
    return unlink(path);
}

struct streamed {
    struct file_stream *s;
    struct direct_file file;
    uint8_t bytes[PIECES]; /* a weight is known by its address */
    struct oato_weight *weights[PIECES];
};

static void stream_begin(struct streamed *x)
{
    struct program_record records[PIECES];
    struct oato_error err;
    uint32_t *needs;
    memset(records, 0, sizeof records);
    *x = (struct streamed){0};
    assert_int_equal(direct_open(path, &x->file, &err), OATO_OK);
    for (int i = 0; i < PIECES; i++) {
        uint8_t piece[READ_ALIGN];
        memset(piece, 'a' + i, sizeof piece);
        x->weights[i] = (struct oato_weight *)(void *)&x->bytes[i];
        records[i] =
            (struct program_record){.kind = RECORD_RUN, .n_weights = 1, .weight = {(uint32_t)i}};
        const struct weight_source source = {.stored = {.file = &x->file,
                                                        .offset = (uint64_t)i * READ_ALIGN,
                                                        .hash = hash_bytes(piece, sizeof piece)}};
        if (file_stream_add(&x->s, "test", x->weights[i], READ_ALIGN, &source, ring,
                            (uint64_t)(i % PLACES) * READ_ALIGN, &err))
            fail_msg("%s", err.text);
    }
    const struct program p = {.records = records, .n_records = PIECES, .weights = x->weights};
    if (file_stream_compile(x->s, &p, RECORD_RUN, &needs, &err))
        fail_msg("%s", err.text);
    for (uint32_t i = 0; i < PIECES; i++)
        assert_int_equal(needs[i], i + 1);
    free(needs);
}

/* A place comes free at any moment of the thread that reads: also between its looking for one and
 * its going to sleep. */
static void a_place_may_come_free_at_any_moment(void **state)
{
    (void)state;
    struct streamed x;
    stream_begin(&x);
    alarm(LONGEST_S); /* whoever waits for ever fails */
    for (int round = 0; round < ROUNDS; round++) {
        file_stream_begin(x.s);
        for (uint32_t i = 0; i < PIECES; i++) {
            while (!file_stream_arrived(x.s, i + 1))
                cpu_relax();
            assert_int_equal(ring[(i % PLACES + 1) * READ_ALIGN - 1], 'a' + i);
            for (int pause = round % 64; pause; pause--)
                cpu_relax();
            file_stream_used(x.s, i + 1);
        }
    }
    alarm(0);
    assert_in_range(file_stream_read(x.s), (uint64_t)ROUNDS * PIECES * READ_ALIGN,
                    ((uint64_t)ROUNDS + 1) * PIECES * READ_ALIGN);
    file_stream_free(x.s);
    direct_close(&x.file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_place_may_come_free_at_any_moment)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
