/*
 * run_outside.c - see run_outside.h.
 */
#include "tests/front/run_outside.h"
#include "tests/models/random_model.h"

#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

char run_dir[] = "/tmp/oato-run-XXXXXX";

void read_into(struct text *t, const char *name)
{
    char path[256], block[4096];
    snprintf(path, sizeof path, "%s/%s", run_dir, name);
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    t->len = 0;
    text_add(t, "", 0);
    for (size_t n; (n = fread(block, 1, sizeof block, f)) > 0;)
        text_add(t, block, n);
    fclose(f);
}

int run(struct text *out, struct text *err, const char *fmt, ...)
{
    char args[2048], command[4096];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(args, sizeof args, fmt, ap);
    va_end(ap);
    const bool picks =
        strstr(args, " -n ") && !strstr(args, "--temp") && strncmp(args, "bench", 5) != 0;
    snprintf(command, sizeof command, "cd %s && '%s' %s %s >out.txt 2>err.txt </dev/null", run_dir,
             OATO_RUN, args, picks ? "--temp 0" : "");
    int status = system(command);
    read_into(out, "out.txt");
    read_into(err, "err.txt");
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

int lines(const struct text *t)
{
    int n = 0;
    for (size_t i = 0; i < t->len; i++)
        n += t->data[i] == '\n';
    return n;
}

int run_setup(void **state)
{
    static struct outputs o;
    struct random_model m = random_model_default();
    struct oato_error err;
    char path[256];
    m.tokenizer = true;
    m.vocab = 512;
    if (!mkdtemp(run_dir))
        return 1;
    snprintf(path, sizeof path, "%s/tiny.gguf", run_dir);
    if (random_model_save(&m, path, &err))
        return 1;
    m.layers = 3;
    snprintf(path, sizeof path, "%s/other.gguf", run_dir);
    if (random_model_save(&m, path, &err))
        return 1;
    snprintf(path, sizeof path, "%s/text.txt", run_dir);
    FILE *f = fopen(path, "w");
    for (int i = 0; f && i < 40; i++)
        fprintf(f, "%d bottles of beer on the wall, ", i);
    if (!f || fclose(f))
        return 1;
    *state = &o;
    return 0;
}

int run_teardown(void **state)
{
    struct outputs *o = *state;
    char command[64];
    text_free(&o->out);
    text_free(&o->err);
    snprintf(command, sizeof command, "rm -r %s", run_dir);
    return system(command);
}
