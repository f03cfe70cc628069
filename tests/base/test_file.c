/*
 * test_file.c - a file appears whole or not at all: a full disk, an abandoned write or a bad place
 * leaves what was there before and no temporary name beside it.
 */
#include "base/base.h"

#include <dirent.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char folder[64], path[96];

static int setup(void **state)
{
    (void)state;
    strcpy(folder, "/tmp/oato-file-XXXXXX");
    if (!mkdtemp(folder))
        return 1;
    snprintf(path, sizeof path, "%s/file", folder);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    unlink(path);
    return rmdir(folder); /* fails when a temporary file was left behind */
}

static void write_whole(const char *content)
{
    struct oato_error err;
    struct outfile f;
    assert_int_equal(outfile_open(&f, path, &err), OATO_OK);
    assert_int_equal(outfile_write(&f, content, strlen(content), &err), OATO_OK);
    assert_int_equal(outfile_commit(&f, &err), OATO_OK);
}

static void assert_content(const char *content)
{
    struct oato_error err;
    struct mapped_file f;
    assert_int_equal(file_map(path, &f, &err), OATO_OK);
    assert_int_equal(f.bytes, strlen(content));
    if (f.bytes)
        assert_memory_equal(f.data, content, f.bytes);
    file_unmap(&f);
    assert_null(f.data);
}

static int entries(void)
{
    DIR *d = opendir(folder);
    int n = 0;
    assert_non_null(d);
    while (readdir(d))
        n++;
    closedir(d);
    return n - 2;
}

static void a_file_is_replaced_whole(void **state)
{
    (void)state;
    write_whole("first");
    assert_content("first");
    write_whole("");
    assert_content("");
    write_whole("second");
    assert_content("second");
    assert_int_equal(entries(), 1);
    struct stat st;
    mode_t mask = umask(0);
    umask(mask);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0666 & ~mask);
}

static void an_abandoned_write_changes_nothing(void **state)
{
    (void)state;
    struct oato_error err;
    struct outfile f;
    write_whole("old");
    assert_int_equal(outfile_open(&f, path, &err), OATO_OK);
    assert_int_equal(outfile_write(&f, "new", 3, &err), OATO_OK);
    assert_int_equal(entries(), 2);
    outfile_abort(&f);
    outfile_abort(&f); /* twice is harmless */
    assert_content("old");
    assert_int_equal(entries(), 1);
}

/* Fills the disk after `limit` bytes, as far as this process can see. */
static void with_full_disk(rlim_t limit, bool at_commit)
{
    struct rlimit old, full;
    struct oato_error err = {0};
    struct outfile f;
    static char block[1 << 16];
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    full = old;
    full.rlim_cur = limit;
    oato_status status = outfile_open(&f, path, &err);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &full), 0);
    if (!status)
        status = outfile_write(&f, block, at_commit ? 100 : sizeof block, &err);
    if (!status)
        status = outfile_commit(&f, &err);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    assert_int_equal(status, OATO_EIO);
    assert_non_null(strstr(err.text, path));
}

static void a_full_disk_leaves_the_old_file(void **state)
{
    (void)state;
    write_whole("old");
    with_full_disk(4096, false);
    assert_content("old");
    with_full_disk(10, true); /* found only when the buffer is flushed */
    assert_content("old");
    assert_int_equal(entries(), 1);
}

static void a_stream_error_is_found_at_commit(void **state)
{
    (void)state;
    struct oato_error err;
    struct outfile f;
    write_whole("old");
    assert_int_equal(outfile_open(&f, path, &err), OATO_OK);
    int full = open("/dev/full", O_WRONLY);
    if (full < 0) {
        outfile_abort(&f);
        skip();
    }
    assert_true(dup2(full, fileno(f.stream)) >= 0);
    close(full);
    fputs("stdio keeps this in its buffer", f.stream);
    assert_int_equal(outfile_commit(&f, &err), OATO_EIO);
    assert_content("old");
    assert_int_equal(entries(), 1);
}

static void bad_places_are_refused(void **state)
{
    (void)state;
    struct oato_error err;
    struct outfile f;
    struct mapped_file m;
    char bad[128];
    assert_int_equal(outfile_open(&f, folder, &err), OATO_EIO);
    assert_non_null(strstr(err.text, "is a directory"));
    snprintf(bad, sizeof bad, "%s/none/file", folder);
    assert_int_equal(outfile_open(&f, bad, &err), OATO_EIO);
    assert_non_null(strstr(err.text, bad));
    assert_int_equal(file_map(bad, &m, &err), OATO_EIO);
    assert_non_null(strstr(err.text, bad));
    assert_int_equal(file_map(folder, &m, &err), OATO_EIO);
    assert_non_null(strstr(err.text, "not a regular file"));
    assert_null(m.data);
}

/* Bytes of the mapping at p that are resident in this process, from /proc/self/smaps. */
static long resident_bytes(const void *p)
{
    FILE *f = fopen("/proc/self/smaps", "r");
    char line[512];
    unsigned long begin;
    long kib = -1;
    bool here = false;
    assert_non_null(f);
    while (kib < 0 && fgets(line, sizeof line, f)) {
        if (sscanf(line, "%lx-", &begin) == 1)
            here = begin == (unsigned long)(uintptr_t)p;
        if (here)
            sscanf(line, "Rss: %ld", &kib);
    }
    fclose(f);
    return kib < 0 ? -1 : kib << 10;
}

/* However small the pieces and whatever the kernel maps around a page that is touched. */
static void released_pages_leave_the_resident_set(void **state)
{
    (void)state;
    enum { BYTES = 4 << 20, PIECE = 10000 };
    struct oato_error err;
    struct outfile f;
    struct mapped_file m;
    static uint8_t data[BYTES];
    assert_int_equal(outfile_open(&f, path, &err), OATO_OK);
    assert_int_equal(outfile_write(&f, data, BYTES, &err), OATO_OK);
    assert_int_equal(outfile_commit(&f, &err), OATO_OK);
    assert_int_equal(file_map(path, &m, &err), OATO_OK);
    file_prefetch(&m, 0, BYTES);
    file_prefetch(&m, BYTES, 100); /* beyond the end: ignored */
    for (size_t at = 0; at < BYTES; at += PIECE) {
        for (size_t i = at; i < at + PIECE && i < BYTES; i += 1000)
            assert_int_equal(m.data[i], 0);
        file_release(&m, at, PIECE);
        assert_int_equal(resident_bytes(m.data), 0);
    }
    file_unmap(&m);
}

static void released_pages_can_be_read_again(void **state)
{
    (void)state;
    struct oato_error err;
    struct outfile f;
    struct mapped_file m;
    uint8_t page[4096];
    assert_int_equal(outfile_open(&f, path, &err), OATO_OK);
    for (int i = 0; i < 8; i++) {
        memset(page, i, sizeof page);
        assert_int_equal(outfile_write(&f, page, sizeof page, &err), OATO_OK);
    }
    assert_int_equal(outfile_commit(&f, &err), OATO_OK);
    assert_int_equal(file_map(path, &m, &err), OATO_OK);
    file_release(&m, 100, 5 * 4096);
    file_release(&m, 0, 100);
    file_release(&m, 4096, 40 * 4096); /* beyond the end */
    file_release(&m, m.bytes, 1);
    for (size_t i = 0; i < m.bytes; i += 512)
        assert_int_equal(m.data[i], i / 4096);
    file_unmap(&m);
    file_release(&m, 0, 4096);
}

int main(void)
{
#define FILE_TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        FILE_TEST(a_file_is_replaced_whole),
        FILE_TEST(an_abandoned_write_changes_nothing),
        FILE_TEST(a_full_disk_leaves_the_old_file),
        FILE_TEST(a_stream_error_is_found_at_commit),
        FILE_TEST(bad_places_are_refused),
        FILE_TEST(released_pages_can_be_read_again),
        FILE_TEST(released_pages_leave_the_resident_set),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
