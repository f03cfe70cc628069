/*
 * test_prompt_store.c - the folder of a prompt cache: what is read is what was written for that
 * very text, whatever happened to the files; the folder stays within its bound and forgets what was
 * longest unused, across restarts and beside other servers; a disk that is full costs one warning.
 */
#include "executor/prompt_store.h"
#include "tests/folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

enum { PAGE = 4, PAGES = 6, DATA = 100, STATE = 300, HEADER = 80 };

static int warnings;
static char warning[700];

static void on_warning(void *user, const char *text)
{
    (void)user;
    warnings++;
    snprintf(warning, sizeof warning, "%s", text);
}

static struct prompt_store *store_open(uint64_t most, uint64_t engine)
{
    const struct prompt_store_options o = {.folder = test_folder,
                                           .most_bytes = most,
                                           .who = {1, 2, engine},
                                           .bytes = {DATA, DATA, STATE},
                                           .page = PAGE,
                                           .warn = on_warning};
    struct prompt_store *s;
    struct oato_error err;
    warnings = 0;
    if (prompt_store_open(&o, &s, &err))
        fail_msg("%s", err.text);
    return s;
}

static void ids_fill(int32_t *ids, int32_t text)
{
    for (int32_t i = 0; i < PAGES * PAGE; i++)
        ids[i] = 1000 * text + i;
}

static uint64_t key_of(const struct prompt_store *s, const int32_t *ids, int32_t pages)
{
    uint64_t key = 0;
    for (int32_t i = 0; i < pages; i++)
        key = prompt_store_key(s, key, ids + (ptrdiff_t)i * PAGE);
    return key;
}

static uint8_t byte_of(int32_t text, int32_t pages, size_t i)
{
    return (uint8_t)(31 * (size_t)text + 7 * (size_t)pages + i);
}

static void put(struct prompt_store *s, int32_t text, int32_t pages, enum prompt_part part,
                int64_t used)
{
    int32_t ids[PAGES * PAGE];
    ids_fill(ids, text);
    uint8_t *data = prompt_store_room(s, part);
    assert_non_null(data);
    for (size_t i = 0; i < (part == PROMPT_STATE ? STATE : DATA); i++)
        data[i] = byte_of(text, pages, i);
    prompt_store_put(s, key_of(s, ids, pages), part, ids, pages * PAGE, used, data);
}

/* How many of the pieces of a text can be read, one page after the other; those that can are right.
 */
static int32_t read_back(struct prompt_store *s, int32_t text, int32_t pages, enum prompt_part part)
{
    int32_t ids[PAGES * PAGE], n = 0;
    struct prompt_piece pieces[PAGES];
    void *data;
    ids_fill(ids, text);
    for (int32_t i = 0; i < pages; i++)
        pieces[i] = (struct prompt_piece){key_of(s, ids, i + 1), part, (i + 1) * PAGE};
    struct prompt_read *r = prompt_store_read(s, ids, PAGES * PAGE, pieces, pages);
    assert_non_null(r);
    for (enum prompt_reading now; (now = prompt_read_next(r, &data)) != PROMPT_END;) {
        if (now == PROMPT_WAIT) {
            prompt_read_wait(r, 1000000000);
            continue;
        }
        n++;
        for (size_t i = 0; i < (part == PROMPT_STATE ? STATE : DATA); i++)
            assert_int_equal(((uint8_t *)data)[i], byte_of(text, n, i));
        prompt_read_used(r);
    }
    prompt_read_end(r);
    return n;
}

static bool has(struct prompt_store *s, int32_t text, int32_t pages, enum prompt_part part)
{
    int32_t ids[PAGES * PAGE];
    ids_fill(ids, text);
    return prompt_store_has(s, key_of(s, ids, pages), part);
}

/* Bytes of the folder's files; *others gets how many are no pieces. */
static uint64_t folder_bytes(int *others)
{
    uint64_t bytes = 0;
    DIR *d = opendir(test_folder);
    assert_non_null(d);
    *others = 0;
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        struct stat st;
        if (e->d_name[0] == '.' || fstatat(dirfd(d), e->d_name, &st, 0))
            continue;
        bytes += (uint64_t)st.st_size;
        *others += strspn(e->d_name, "0123456789abcdef") != 16 || strchr(e->d_name + 17, '.');
    }
    closedir(d);
    return bytes;
}

static void path_of(const struct prompt_store *s, int32_t text, int32_t pages, char *out, size_t n)
{
    int32_t ids[PAGES * PAGE];
    ids_fill(ids, text);
    snprintf(out, n, "%s/%016llx.page", test_folder, (unsigned long long)key_of(s, ids, pages));
}

static void what_was_written_is_read_by_the_next(void **state)
{
    (void)state;
    struct prompt_store *s = store_open(1 << 20, 3);
    for (int32_t i = 1; i <= PAGES; i++) {
        put(s, 1, i, PROMPT_PAGE, 100 - i);
        put(s, 1, i, PROMPT_WINDOW, 100 - i);
    }
    put(s, 1, PAGES, PROMPT_STATE, 1);
    put(s, 2, 1, PROMPT_PAGE, 1);
    prompt_store_close(s);
    s = store_open(1 << 20, 3);
    assert_int_equal(read_back(s, 1, PAGES, PROMPT_PAGE), PAGES);
    assert_int_equal(read_back(s, 1, PAGES, PROMPT_WINDOW), PAGES);
    assert_true(has(s, 1, PAGES, PROMPT_STATE) && !has(s, 1, 1, PROMPT_STATE));
    assert_true(has(s, 2, 1, PROMPT_PAGE) && !has(s, 2, 2, PROMPT_PAGE));
    assert_int_equal(read_back(s, 2, 2, PROMPT_PAGE), 1); /* the second one is not there */
    struct prompt_store_stats stats;
    int others;
    prompt_store_get_stats(s, &stats);
    assert_int_equal(stats.pieces, 2 * PAGES + 2);
    assert_int_equal(stats.bytes, folder_bytes(&others));
    assert_int_equal(others + warnings, 0);
    prompt_store_close(s);
    s = store_open(1 << 20, 4); /* another engine's: nothing is found */
    assert_int_equal(read_back(s, 1, 1, PROMPT_PAGE) + warnings, 0);
    prompt_store_close(s);
}

/* The copy of a piece with another byte, or cut off there, is not used, and it is said once. */
static void what_is_damaged_is_not_used(void **state)
{
    uint8_t whole[HEADER + PAGES * PAGE * 4 + DATA];
    char path[200];
    (void)state;
    struct prompt_store *s = store_open(1 << 20, 3);
    put(s, 1, 1, PROMPT_PAGE, 10);
    put(s, 1, 2, PROMPT_PAGE, 9);
    path_of(s, 1, 2, path, sizeof path);
    prompt_store_close(s);
    int fd = open(path, O_RDONLY);
    const ssize_t n = read(fd, whole, sizeof whole);
    close(fd);
    assert_int_equal(n, HEADER + 2 * PAGE * 4 + DATA);
    for (ssize_t i = 0; i < 2 * n; i++) {
        const ssize_t at = i / 2;
        unlink(path);
        fd = open(path, O_WRONLY | O_CREAT, 0600);
        whole[at] ^= i % 2 ? 0 : 0x10;
        assert_int_equal(write(fd, whole, (size_t)(i % 2 ? at : n)), i % 2 ? at : n);
        whole[at] ^= i % 2 ? 0 : 0x10;
        close(fd);
        s = store_open(1 << 20, 3);
        assert_int_equal(read_back(s, 1, 2, PROMPT_PAGE), 1);
        assert_int_equal(warnings, 1);
        assert_non_null(strstr(warning, "computing the prompt again"));
        assert_int_equal(access(path, F_OK), -1);
        assert_int_equal(read_back(s, 1, 2, PROMPT_PAGE), 1);
        assert_int_equal(warnings, 1);
        prompt_store_close(s);
    }
}

/* Of another text, model or engine under the name of a piece; or a file that others may write. */
static void what_is_foreign_is_not_used(void **state)
{
    char path[200], from[200], command[500];
    (void)state;
    struct prompt_store *s = store_open(1 << 20, 4);
    put(s, 1, 1, PROMPT_PAGE, 10);
    put(s, 3, 1, PROMPT_PAGE, 10);
    path_of(s, 1, 1, from, sizeof from);
    prompt_store_close(s);
    for (int i = 0; i < 3; i++) {
        s = store_open(1 << 20, i == 0 ? 3 : 4);
        path_of(s, i == 2 ? 1 : 2, 1, path, sizeof path);
        prompt_store_close(s);
        snprintf(command, sizeof command, i == 2 ? "chmod g+w '%s'" : "cp '%s' '%s'",
                 i == 2 ? path : from, path);
        assert_int_equal(system(command), 0); // NOLINT(bugprone-command-processor)
        s = store_open(1 << 20, i == 0 ? 3 : 4);
        assert_int_equal(read_back(s, i == 2 ? 1 : 2, 1, PROMPT_PAGE), 0);
        assert_int_equal(warnings, 1);
        assert_non_null(strstr(warning, i == 0   ? "another KV type"
                                        : i == 1 ? "holds another text"
                                                 : "can be written by others"));
        prompt_store_close(s);
    }
}

static uint64_t piece_bytes(int32_t pages)
{
    return HEADER + (uint64_t)pages * PAGE * 4 + DATA;
}

static void a_folder_forgets_what_was_longest_unused(void **state)
{
    int others;
    (void)state;
    uint64_t most = 0;
    for (int32_t i = 1; i <= PAGES; i++)
        most += piece_bytes(i);
    struct prompt_store *s = store_open(most, 3);
    for (int32_t i = 1; i <= PAGES; i++)
        put(s, 1, i, PROMPT_PAGE, 1000 - i);
    prompt_store_close(s);
    assert_int_equal(folder_bytes(&others), most);
    s = store_open(most, 3);
    put(s, 2, 1, PROMPT_PAGE, 2000); /* the end of the first text goes */
    prompt_store_close(s);
    assert_in_range(folder_bytes(&others), 1, most);
    s = store_open(most, 3);
    assert_int_equal(read_back(s, 1, PAGES, PROMPT_PAGE), PAGES - 1);
    int32_t ids[PAGES * PAGE];
    ids_fill(ids, 1);
    for (int32_t i = 1; i < PAGES; i++)
        assert_true(prompt_store_use(s, key_of(s, ids, i), PROMPT_PAGE, 3000 - i));
    prompt_store_close(s); /* the files know it, too */
    s = store_open(most, 3);
    put(s, 3, PAGES, PROMPT_PAGE,
        4000); /* now the second text is the one that was longest unused */
    prompt_store_close(s);
    s = store_open(most, 3);
    assert_int_equal(read_back(s, 2, 1, PROMPT_PAGE), 0);
    assert_int_equal(read_back(s, 1, PAGES, PROMPT_PAGE), PAGES - 1);
    put(s, 4, 1, PROMPT_PAGE, 500); /* what is there is wanted more */
    prompt_store_close(s);
    s = store_open(piece_bytes(1) + piece_bytes(2), 3); /* a smaller bound holds at once */
    assert_in_range(folder_bytes(&others), 1, piece_bytes(1) + piece_bytes(2));
    assert_int_equal(read_back(s, 4, 1, PROMPT_PAGE), 0);
    prompt_store_close(s);
    s = store_open(10, 3);
    assert_int_equal(folder_bytes(&others), 0);
    put(s, 1, 1, PROMPT_PAGE, 5000); /* never has room, which is no fault */
    prompt_store_close(s);
    assert_int_equal(folder_bytes(&others), 0);
    assert_int_equal(warnings, 0);
}

static void what_a_killed_writer_left_is_removed(void **state)
{
    static const char *const names[] = {"0123456789abcdef.page.oato-part",
                                        "0123456789abcdef.state.Ab3xY9", "somebody.elses",
                                        "0123456789abcdef.page.oato-live"};
    int fd[ARRAY_LEN(names)];
    char path[200];
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        snprintf(path, sizeof path, "%s/%s", test_folder, names[i]);
        fd[i] = open(path, O_RDWR | O_CREAT, 0600);
        assert_true(fd[i] >= 0);
    }
    assert_int_equal(flock(fd[3], LOCK_EX), 0); /* another server writes it */
    prompt_store_close(store_open(1 << 20, 3));
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        snprintf(path, sizeof path, "%s/%s", test_folder, names[i]);
        assert_int_equal(access(path, F_OK), i < 2 ? -1 : 0);
        close(fd[i]);
        unlink(path);
    }
}

static void a_full_disk_costs_one_warning(void **state)
{
    const struct rlimit small = {200, RLIM_INFINITY};
    struct rlimit before;
    int others;
    (void)state;
    struct prompt_store *s = store_open(1 << 20, 3);
    getrlimit(RLIMIT_FSIZE, &before);
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    for (int32_t text = 1; text <= 3; text++)
        for (int32_t i = 1; i <= PAGES; i++)
            put(s, text, i, PROMPT_PAGE, 1000 - i);
    for (int i = 0; i < 1000 && prompt_store_writes(s); i++)
        usleep(10000);
    assert_false(prompt_store_writes(s));
    prompt_store_close(s);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(warnings, 1);
    assert_non_null(strstr(warning, "not kept there"));
    folder_bytes(&others);
    assert_int_equal(others, 0);
    s = store_open(1 << 20, 3);
    put(s, 1, 1, PROMPT_PAGE, 1000);
    prompt_store_close(s);
    s = store_open(1 << 20, 3);
    assert_int_equal(read_back(s, 1, 1, PROMPT_PAGE), 1);
    prompt_store_close(s);
}

static void a_folder_that_cannot_be_is_an_error(void **state)
{
    char folder[200];
    (void)state;
    snprintf(folder, sizeof folder, "%s/file", test_folder);
    close(open(folder, O_RDWR | O_CREAT, 0600));
    struct prompt_store_options o = {.folder = folder, .most_bytes = 1 << 20, .page = PAGE};
    struct prompt_store *s;
    struct oato_error err;
    assert_int_equal(prompt_store_open(&o, &s, &err), OATO_EIO);
    o.folder = "/proc/oato";
    assert_int_equal(prompt_store_open(&o, &s, &err), OATO_EIO);
    assert_null(s);
    assert_non_null(strstr(err.text, "/proc/oato"));
    unlink(folder);
}

/* Waits until a store finds the first page of a text that another one has written. */
static void await_piece(struct prompt_store *s, int32_t text)
{
    int32_t ids[PAGES * PAGE];
    ids_fill(ids, text);
    for (int i = 0; i < 3000 && !prompt_store_has(s, key_of(s, ids, 1), PROMPT_PAGE); i++)
        usleep(1000);
    assert_true(prompt_store_has(s, key_of(s, ids, 1), PROMPT_PAGE));
}

/* Each finds what the other wrote before, and together they stay within the bound. */
static void two_servers_share_a_folder(void **state)
{
    const uint64_t most = 8 * piece_bytes(PAGES);
    int others;
    (void)state;
    struct prompt_store *a = store_open(most, 3), *b = store_open(most, 3);
    /* one piece each, at the same time: neither takes the other's for its own */
    put(a, 20, 1, PROMPT_PAGE, 1);
    put(b, 21, 1, PROMPT_PAGE, 2);
    await_piece(a, 21);
    await_piece(b, 20);
    for (int32_t round = 1; round < 12; round++) {
        for (int32_t i = 1; i <= PAGES; i++) { /* the same at the same time, too */
            put(a, round, i, PROMPT_PAGE, 1000 * round - i);
            put(b, round + round % 2, i, PROMPT_PAGE, 1000 * round + 500 - i);
        }
        for (int i = 0; i < 1000; i++) {
            struct prompt_store_stats x, y;
            prompt_store_get_stats(a, &x);
            prompt_store_get_stats(b, &y);
            if (!x.waiting_bytes && !y.waiting_bytes)
                break;
            usleep(1000);
        }
        for (int i = 0; i < 3000 && folder_bytes(&others) > most; i++)
            usleep(1000); /* they find each other a moment later */
        assert_in_range(folder_bytes(&others), 1, most);
        read_back(a, round, PAGES, PROMPT_PAGE);
        read_back(b, round, PAGES, PROMPT_PAGE);
    }
    assert_int_equal(warnings, 0);
    prompt_store_close(a);
    prompt_store_close(b);
    a = store_open(most, 3);
    assert_in_range(folder_bytes(&others), 1, most);
    assert_int_equal(others, 0);
    assert_int_equal(read_back(a, 12, 1, PROMPT_PAGE), 1);
    prompt_store_close(a);
}

/* Reads that nobody waits for any more, and a store that is closed with much to be written. */
static void nothing_hangs_at_the_end(void **state)
{
    int32_t ids[PAGES * PAGE];
    struct prompt_piece pieces[PAGES];
    (void)state;
    struct prompt_store *s = store_open(1 << 20, 3);
    ids_fill(ids, 1);
    for (int32_t i = 0; i < PAGES; i++) {
        put(s, 1, i + 1, PROMPT_PAGE, 10 - i);
        pieces[i] = (struct prompt_piece){key_of(s, ids, i + 1), PROMPT_PAGE, (i + 1) * PAGE};
    }
    for (int i = 0; i < 50; i++)
        prompt_read_end(prompt_store_read(s, ids, PAGES * PAGE, pieces, PAGES));
    prompt_store_close(s);
    s = store_open(1 << 20, 3);
    assert_int_equal(read_back(s, 1, PAGES, PROMPT_PAGE), PAGES);
    prompt_store_drop(s, PROMPT_STATE, prompt_store_room(s, PROMPT_STATE));
    prompt_store_close(s);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, folder_create, folder_remove)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(what_was_written_is_read_by_the_next),
        TEST(what_is_damaged_is_not_used),
        TEST(what_is_foreign_is_not_used),
        TEST(a_folder_forgets_what_was_longest_unused),
        TEST(what_a_killed_writer_left_is_removed),
        TEST(a_full_disk_costs_one_warning),
        TEST(a_folder_that_cannot_be_is_an_error),
        TEST(two_servers_share_a_folder),
        TEST(nothing_hangs_at_the_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
