/*
 * test_file.c - a file appears whole or not at all: a full disk, an abandoned write or a bad place
 * leaves what was there before and no temporary name beside it. Inputs and models are not replaced,
 * and a file that is cut off while it is mapped is named.
 */
#include "base/base.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
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
    program_begin("test_file"); /* else SIGXFSZ ends it */
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
    assert_true(dup2(full, stream_fd(f.stream)) >= 0);
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

static mode_t mode_of(const char *name)
{
    struct stat st;
    assert_int_equal(lstat(name, &st), 0);
    return st.st_mode;
}

/* Writes `content` to `name`, which is no longer than it was if that is refused. */
static oato_status write_to(const char *name, const char *content, struct oato_error *err)
{
    struct outfile f;
    oato_status status = outfile_open(&f, name, err);
    if (!status)
        status = outfile_write(&f, content, strlen(content), err);
    return status ? status : outfile_commit(&f, err);
}

/* Under any name, by any link. */
static void an_input_is_not_replaced(void **state)
{
    (void)state;
    struct oato_error err;
    char names[3][128];
    write_whole("input");
    snprintf(names[0], sizeof names[0], "%s/hard", folder);
    snprintf(names[1], sizeof names[1], "%s/soft", folder);
    snprintf(names[2], sizeof names[2], "%s/../%s/file", folder, strrchr(folder, '/') + 1);
    assert_int_equal(link(path, names[0]), 0);
    assert_int_equal(symlink(path, names[1]), 0);
    outfile_keep(NULL);
    outfile_keep("/none/such");
    outfile_keep(path);
    for (size_t i = 0; i <= ARRAY_LEN(names); i++) {
        const char *name = i < ARRAY_LEN(names) ? names[i] : path;
        assert_int_equal(outfile_check(name, &err), OATO_EUSAGE);
        assert_int_equal(write_to(name, "output", &err), OATO_EUSAGE);
        assert_non_null(strstr(err.text, name));
        assert_non_null(strstr(err.text, "input"));
    }
    assert_content("input");
    unlink(names[0]);
    unlink(names[1]);
}

/* Before a program computes for minutes, which leaves nothing behind. */
static void a_check_says_what_would_fail_at_the_end(void **state)
{
    (void)state;
    struct oato_error err;
    char name[160];
    snprintf(name, sizeof name, "%s/none/file", folder);
    assert_int_equal(outfile_check(name, &err), OATO_EIO);
    assert_non_null(strstr(err.text, name));
    assert_int_equal(outfile_check(folder, &err), OATO_EIO);
    snprintf(name, sizeof name, "%s/new", folder);
    assert_int_equal(outfile_check(name, &err), OATO_OK);
    assert_int_equal(access(name, F_OK), -1);
    snprintf(name, sizeof name, "%s/new.oato-part", folder);
    assert_int_equal(access(name, F_OK), -1);
    assert_int_equal(outfile_check("/dev/null", &err), OATO_OK);
    write_whole("old");
    assert_int_equal(outfile_check(path, &err), OATO_OK);
    assert_content("old");
}

static void a_model_is_not_replaced(void **state)
{
    (void)state;
    struct oato_error err;
    struct outfile f;
    write_whole("GGUF and gigabytes");
    assert_int_equal(write_to(path, "output", &err), OATO_EUSAGE);
    assert_non_null(strstr(err.text, path));
    assert_content("GGUF and gigabytes");
    assert_int_equal(outfile_open_over(&f, path, &err), OATO_OK); /* who knows what it is, may */
    assert_int_equal(outfile_commit(&f, &err), OATO_OK);
    assert_content("");
}

static void links_are_followed_and_modes_kept(void **state)
{
    (void)state;
    struct oato_error err;
    char soft[128];
    snprintf(soft, sizeof soft, "%s/soft", folder);
    write_whole("old");
    assert_int_equal(chmod(path, 0600), 0);
    assert_int_equal(symlink("file", soft), 0);
    assert_int_equal(write_to(soft, "new", &err), OATO_OK);
    assert_content("new");
    assert_true(S_ISLNK(mode_of(soft)));
    assert_int_equal(mode_of(path) & 07777, 0600);
    unlink(path);
    assert_int_equal(write_to(soft, "new", &err), OATO_EIO);
    assert_non_null(strstr(err.text, "dangling symbolic link"));
    unlink(soft);
}

/* /dev/null stays a device, and a FIFO gives what is written to who reads it. */
static void what_is_no_file_is_written_to(void **state)
{
    (void)state;
    struct oato_error err;
    char got[16] = "";
    assert_int_equal(write_to("/dev/null", "gone", &err), OATO_OK);
    assert_true(S_ISCHR(mode_of("/dev/null")));
    assert_int_equal(write_to("/dev/full", "too much", &err), OATO_EIO);
    assert_true(S_ISCHR(mode_of("/dev/full")));
    assert_int_equal(mkfifo(path, 0600), 0);
    int reader = open(path, O_RDONLY | O_NONBLOCK);
    assert_true(reader >= 0);
    assert_int_equal(write_to(path, "through", &err), OATO_OK);
    assert_int_equal(read(reader, got, sizeof got), 7);
    assert_string_equal(got, "through");
    close(reader);
    assert_true(S_ISFIFO(mode_of(path)));
    assert_int_equal(entries(), 1);
}

/* Redirected output and the file of the same name are one, and what was printed before stays. */
static void standard_output_is_written_to(void **state)
{
    (void)state;
    struct oato_error err;
    fflush(stdout);
    int old = dup(STDOUT_FILENO), fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    assert_true(old >= 0 && fd >= 0);
    dup2(fd, STDOUT_FILENO);
    close(fd);
    printf("before ");
    oato_status status = write_to("/dev/stdout", "and after", &err);
    dup2(old, STDOUT_FILENO);
    close(old);
    assert_int_equal(status, OATO_OK);
    assert_content("before and after");
}

/* A killed writer leaves one file, which the next one takes over; two writers at once do not meet.
 */
static void kills_leave_one_temporary_file(void **state)
{
    (void)state;
    struct oato_error err;
    struct outfile a, b;
    write_whole("old");
    for (int i = 0; i < 5; i++) {
        pid_t child = fork();
        if (child == 0) {
            if (outfile_open(&a, path, &err) || outfile_write(&a, "half", 4, &err))
                _exit(1);
            fflush(a.stream);
            raise(SIGKILL);
        }
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status));
        assert_int_equal(entries(), 2);
    }
    assert_int_equal(outfile_open(&a, path, &err), OATO_OK);
    assert_int_equal(outfile_open(&b, path, &err), OATO_OK);
    assert_int_equal(entries(), 3);
    assert_int_equal(outfile_write(&a, "from a", 6, &err), OATO_OK);
    assert_int_equal(outfile_write(&b, "from b", 6, &err), OATO_OK);
    assert_int_equal(outfile_commit(&a, &err), OATO_OK);
    assert_content("from a");
    assert_int_equal(outfile_commit(&b, &err), OATO_OK);
    assert_content("from b");
    assert_int_equal(entries(), 1);
}

/* What a link or a file of several names has under the temporary name is left alone. */
static void the_temporary_name_may_be_taken(void **state)
{
    (void)state;
    char taken[128], precious[128], got[16] = "";
    snprintf(taken, sizeof taken, "%s.oato-part", path);
    snprintf(precious, sizeof precious, "%s/precious", folder);
    for (int hard = 0; hard < 2; hard++) {
        int fd = open(precious, O_RDWR | O_CREAT, 0600);
        assert_int_equal(write(fd, "precious", 8), 8);
        assert_int_equal(hard ? link(precious, taken) : symlink(precious, taken), 0);
        write_whole("new");
        assert_content("new");
        assert_int_equal(pread(fd, got, sizeof got, 0), 8);
        assert_string_equal(got, "precious");
        close(fd);
        unlink(taken);
        unlink(precious);
    }
}

static void a_fifo_is_no_input(void **state)
{
    (void)state;
    struct oato_error err;
    struct mapped_file m;
    assert_int_equal(mkfifo(path, 0600), 0);
    alarm(20); /* it would wait for a writer for ever */
    assert_int_equal(file_map(path, &m, &err), OATO_EIO);
    alarm(0);
    assert_non_null(strstr(err.text, "not a regular file"));
}

static void no_room_to_map_does_not_fit(void **state)
{
    (void)state;
    struct oato_error err;
    struct mapped_file m;
    write_whole("");
    assert_int_equal(truncate(path, (off_t)1 << 40), 0);
    pid_t child = fork();
    if (child == 0) {
        const struct rlimit little = {(rlim_t)1 << 38, (rlim_t)1 << 38};
        /* an emulator has limits of its own, or none */
        if (setrlimit(RLIMIT_AS, &little) ||
            mmap(NULL, (size_t)1 << 40, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) !=
                MAP_FAILED ||
            errno != ENOMEM)
            _exit(OATO_EFIT);
        _exit((int)file_map(path, &m, &err));
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), OATO_EFIT);
}

/* In a child without memory, but for blocks that hold names. */
static int opened_without_memory(void)
{
    const struct rlimit little = {1 << 20, 1 << 20};
    void *names[8], *p;
    struct oato_error err;
    struct outfile f;
    if (setrlimit(RLIMIT_AS, &little))
        return OATO_EFIT;
    p = malloc(1 << 24);
    free(p);
    if (p) /* an emulator has no limits */
        return OATO_EFIT;
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        names[i] = malloc(strlen(path) + 16);
    /* each size, because malloc keeps what was freed by size; kept from being optimised away */
    for (size_t bytes = 1 << 20; bytes >= 256; bytes = bytes > 4096 ? bytes / 2 : bytes - 16)
        while ((p = malloc(bytes)))
            *(volatile char *)p = 1;
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        free(names[i]);
    return (int)outfile_open_over(&f, path, &err);
}

static void a_stream_without_memory_does_not_fit(void **state)
{
    (void)state;
#ifdef __SANITIZE_ADDRESS__ /* its allocator ends the program */
    skip();
#endif
    write_whole("old");
    fflush(NULL);
    pid_t child = fork();
    if (child == 0)
        _exit(opened_without_memory());
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), OATO_EFIT);
}

/* In a child, whose stderr comes back. The file's name must not reach the terminal as it is. */
static int cut_while_mapped(bool ours, char *said, size_t n)
{
    int ends[2], status;
    struct oato_error err;
    struct mapped_file m, other;
    char name[128];
    snprintf(name, sizeof name, "%s/\033[31mred", folder);
    write_whole("");
    assert_int_equal(rename(path, name), 0);
    assert_int_equal(truncate(name, 3 << 20), 0);
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        program_begin("oato-test");
        if (file_map(name, &other, &err) || file_map(name, &m, &err))
            _exit(100);
        file_unmap(&other);
        if (!ours) { /* a mapping that nobody told us of */
            file_unmap(&m);
            m.data = mmap(NULL, 3 << 20, PROT_READ, MAP_PRIVATE, open(name, O_RDONLY), 0);
        }
        if (truncate(name, 4096))
            _exit(101);
        volatile uint8_t byte = m.data[2 << 20];
        _exit(byte + 102);
    }
    close(ends[1]);
    ssize_t got = 0, more;
    while ((more = read(ends[0], said + got, n - 1 - (size_t)got)) > 0)
        got += more;
    said[got] = 0;
    close(ends[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    unlink(name);
    return status;
}

static void a_file_that_is_cut_off_in_use_is_named(void **state)
{
    (void)state;
    if (getenv("OATO_TEST_EMULATOR"))
        skip(); /* qemu-user ends the program itself */
    char said[512], name[128];
    int status = cut_while_mapped(true, said, sizeof said);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), OATO_EFILE);
    snprintf(name, sizeof name, "oato-test: %s/?[31mred: ", folder);
    assert_memory_equal(said, name, strlen(name));
    assert_ptr_equal(strchr(said, '\n'), said + strlen(said) - 1);
#ifndef __SANITIZE_ADDRESS__ /* it has a handler of its own */
    status = cut_while_mapped(false, said, sizeof said);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS);
    assert_string_equal(said, "");
#endif
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
        FILE_TEST(a_model_is_not_replaced),
        FILE_TEST(links_are_followed_and_modes_kept),
        FILE_TEST(what_is_no_file_is_written_to),
        FILE_TEST(standard_output_is_written_to),
        FILE_TEST(kills_leave_one_temporary_file),
        FILE_TEST(the_temporary_name_may_be_taken),
        FILE_TEST(a_fifo_is_no_input),
        FILE_TEST(no_room_to_map_does_not_fit),
        FILE_TEST(a_stream_without_memory_does_not_fit),
        FILE_TEST(a_file_that_is_cut_off_in_use_is_named),
        FILE_TEST(released_pages_can_be_read_again),
        FILE_TEST(released_pages_leave_the_resident_set),
        FILE_TEST(a_check_says_what_would_fail_at_the_end),
        FILE_TEST(an_input_is_not_replaced), /* the last one: what is kept is kept for good */
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
