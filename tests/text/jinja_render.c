/*
 * jinja_render.c - renders a Jinja program for tests: jinja-render TEMPLATE SECONDS < VARIABLES
 *
 * Every line of standard input is a JSON object of variables; SECONDS since 1970 is the time that
 * the program sees. For every line prints "text N" or "error N" and a newline, then N bytes.
 */
#include "text/jinja/jinja_internal.h"

#include <stdlib.h>
#include <string.h>

static void answer(const char *what, const char *text, size_t n)
{
    printf("%s %zu\n", what, n);
    fwrite(text, 1, n, stdout);
}

static void render(const struct jinja_template *t, int64_t now, const char *variables)
{
    struct oato_error err = {0};
    struct text out;
    text_init(&out);
    struct jinja *x = jinja_begin(t, &err);
    if (!x)
        exit(err.status);
    x->now = now;
    jinja_set_json(x, variables, strlen(variables));
    if (jinja_run(x, &out))
        answer("error", err.text, strlen(err.text));
    else
        answer("text", out.data ? out.data : "", out.len);
    fprintf(stderr, "%lld steps, %zu bytes\n", (long long)x->steps, x->arena.used_bytes);
    jinja_end(x);
    text_free(&out);
}

int main(int argc, char **argv)
{
    struct oato_error err = {0};
    struct mapped_file f;
    struct jinja_template *t = NULL;
    char *line = NULL;
    size_t cap = 0;
    int64_t now;
    if (argc != 3 || !parse_i64(argv[2], 0, INT64_MAX, &now)) {
        fputs("usage: jinja-render TEMPLATE SECONDS < VARIABLES\n", stderr);
        return OATO_EUSAGE;
    }
    oato_status status = file_map(argv[1], &f, &err);
    if (!status) {
        status =
            jinja_parse(argv[1], (const char *)f.data, f.bytes, &jinja_limits_default, &t, &err);
        file_unmap(&f);
    }
    while (getline(&line, &cap, stdin) > 0) {
        if (status)
            answer("error", err.text, strlen(err.text));
        else
            render(t, now, line);
    }
    free(line);
    jinja_free(t);
    return 0;
}
