/*
 * terminal.c - see terminal.h.
 */
#include "tests/front/terminal.h"

#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

void terminal_open(struct tty *t, const char *folder, const char *term, char *const args[])
{
    memset(t, 0, sizeof *t);
    const struct winsize size = {.ws_row = 24, .ws_col = 80};
    t->child = forkpty(&t->fd, NULL, NULL, &size);
    if (t->child < 0)
        skip();
    if (t->child == 0) {
        unsetenv("LANG");
        unsetenv("LC_ALL");
        unsetenv("LC_CTYPE");
        setenv("TERM", term, 1);
        unsetenv("NO_COLOR");
        signal(SIGINT, SIG_DFL); /* whoever runs the tests may ignore it */
        if (!chdir(folder))
            execv(OATO_RUN, args);
        _exit(127);
    }
}

bool terminal_read(struct tty *t, int timeout_ms)
{
    char block[4096];
    struct pollfd p = {.fd = t->fd, .events = POLLIN};
    if (poll(&p, 1, timeout_ms) <= 0)
        return true;
    const ssize_t n = read(t->fd, block, sizeof block);
    if (n > 0)
        text_add(&t->seen, block, (size_t)n);
    return n > 0;
}

void wait_for(struct tty *t, const char *what)
{
    const uint64_t end = now_ns() + 60000000000u;
    const char *hit = NULL;
    for (bool more = true; more && !hit && now_ns() < end;) {
        hit = t->seen.data ? strstr(t->seen.data + t->at, what) : NULL;
        more = hit || terminal_read(t, 200);
    }
    if (!hit)
        fail_msg("no '%s' in: %s", what, t->seen.data ? t->seen.data + t->at : "");
    else
        t->at = (size_t)(hit - t->seen.data) + strlen(what);
}

/* The prompt is there a moment before the editor waits for keys; nobody types within it. */
void wait_for_prompt(struct tty *t)
{
    wait_for(t, "> ");
    usleep(200000);
}

void type(struct tty *t, const char *keys)
{
    assert_int_equal(write(t->fd, keys, strlen(keys)), strlen(keys));
}

int terminal_close(struct tty *t)
{
    int status;
    while (terminal_read(t, 60000))
        continue;
    assert_int_equal(waitpid(t->child, &status, 0), t->child);
    close(t->fd);
    text_free(&t->seen);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}
