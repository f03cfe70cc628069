/*
 * test_run_errors.c - oato-run from outside: each mistake is one line with the exit status of
 * DESIGN, nothing is half-written or overwritten, and a signal ends every verb soon.
 */
#include "tests/front/run_outside.h"
#include "tests/models/random_model.h"

#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

/* Of a long run, too, long before its end. */
static void a_signal_ends_every_verb_soon(void **state)
{
    static const char *const verbs[] = {
        "logits big.gguf --ids $(yes 7, | head -30000 | tr -d '\\n')7 -o o",
        "bench big.gguf --prefill 30000 --generate 1 -r 1",
        "bench big.gguf --prefill 0 --generate 1 -d 30000 -r 1",
        "perplexity big.gguf -f longer.txt -c 8192",
        "generate big.gguf -f long.txt -c 40000 --ignore-eos",
    };
    struct random_model m = random_model_default();
    struct outputs *o = *state;
    struct oato_error err;
    char shell[1024], path[256];
    m.tokenizer = true;
    m.width = m.ffn = 512;
    m.context = 100000;
    snprintf(path, sizeof path, "%s/big.gguf", run_dir);
    assert_int_equal(random_model_save(&m, path, &err), OATO_OK);
    snprintf(shell, sizeof shell,
             "cd %s && for i in $(seq 3000); do cat text.txt; done | head -c 30000 >long.txt && "
             "for i in $(seq 20); do cat long.txt; done >longer.txt",
             run_dir);
    assert_int_equal(system(shell), 0);
    for (size_t i = 0; i < ARRAY_LEN(verbs); i++) {
        snprintf(shell, sizeof shell,
                 "cd %s && timeout -k 10 -s TERM 0.5 '%s' %s >out.txt 2>err.txt </dev/null",
                 run_dir, OATO_RUN, verbs[i]);
        const uint64_t begin = now_ns();
        const int status = system(shell);
        const double seconds = (double)(now_ns() - begin) * 1e-9;
        print_message("%.2f s\n", seconds);
        read_into(&o->err, "err.txt");
        /* timeout says 124 when it was needed; 137 when TERM was not enough */
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 124 || seconds > 6)
            fail_msg("%s: status %d after %.1f s: %s", verbs[i], status, seconds, o->err.data);
    }
}

static void every_mistake_is_one_line_and_its_status(void **state)
{
    static const struct {
        const char *args;
        int status;
        const char *says;
    } rows[] = {
        {"", 2, "no model given"},
        {"tiny.gguf", 2, "-p"},
        {"tiny.gguf -p x --temprature 1", 2, "--temp"},
        {"tiny.gguf -p x --prefill 3", 2, "--prefill"},
        {"tiny.gguf -p x -ngl 99", 2, "'-ngl' is not supported: a GPU is used by itself"},
        {"tiny.gguf -p x -ctk q8_0", 2, "--kv"},
        {"tiny.gguf -p x -no-cnv", 2, "leave it out"},
        {"tiny.gguf -p x --mlock", 2, "stay in memory"},
        {"tiny.gguf -p x -b 512", 2, "'-b' is not supported: --ubatch N"},
        {"tiny.gguf -p x -fa off", 2, "always on"},
        {"tiny.gguf -p x -c 4q", 2, "-c wants a whole number"},
        {"tiny.gguf -p x --context-length 4", 2, "'--context'"},
        {"bench tiny.gguf -p x", 2, "-p wants a whole number"},
        {"tiny.gguf -p x -n abc", 2, "whole number"},
        {"tiny.gguf -p x --temp -1", 2, "number"},
        {"tiny.gguf -p x --kv q4", 2, "f16, q8_0 or f32"},
        {"tiny.gguf -p x --seed -4", 2, "--seed"},
        {"tiny.gguf other.gguf -p x", 2, "more than one model"},
        {"tiny.gguf -p x -f y", 2, "not both"},
        {"tiny.gguf -p x --system Short.", 2, "--chat"},
        {"tiny.gguf -p x --chat-template chatml", 2, "--chat"},
        {"tiny.gguf -p x --devices gpu", 2, "gpu"},
        {"tiny.gguf -p x --chat --chat-template nothing", 2, "--chat-template"},
        {"tiny.gguf -p x --chat-template-file text.txt", 2, "--chat-template-file applies"},
        {"tiny.gguf -p x --chat --chat-template chatml --chat-template-file text.txt", 2,
         "not both"},
        {"tiny.gguf -p x --chat --chat-template-file missing.txt", 6, "missing.txt"},
        {"logits tiny.gguf --ids 1,x -o o", 2, "--ids"},
        {"logits tiny.gguf --ids 1", 2, "-o"},
        {"logits tiny.gguf --ids 1 -o o --mtp", 3, "no block that predicts"},
        {"logits tiny.gguf --ids 1 -o o --mtp --plan x.plan", 2, "leave --plan out"},
        {"logits tiny.gguf --ids 99999 -o o", 2, "vocabulary"},
        {"perplexity tiny.gguf", 2, "-f"},
        {"perplexity tiny.gguf -f /dev/null", 2, "window"},
        {"perplexity tiny.gguf -f text.txt -c 32 --compare x", 2, "--compare"},
        {"tokenize tiny.gguf", 2, "-p"},
        {"cut.gguf -p x", 3, "cut.gguf"},
        {"text.gguf -p x", 3, "text.gguf"},
        {"tiny.gguf -p x --plan tiny.gguf", 3, "tiny.gguf"},
        {"tiny.gguf -f text.txt -c 100", 4, "but the context holds only 100; use -c "},
        {"missing.gguf -p x", 6, "missing.gguf"},
        {"tiny.gguf -p x --plan missing.plan", 6, "missing.plan"},
        {"tiny.gguf -f missing.txt", 6, "missing.txt"},
        {"logits tiny.gguf --ids 1 -o nowhere/o", 6, "nowhere/o"},
    };
    struct outputs *o = *state;
    char command[256];
    snprintf(command, sizeof command,
             "cd %s && head -c 5000 tiny.gguf >cut.gguf && echo hello >text.gguf", run_dir);
    assert_int_equal(system(command), 0);
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        int status = run(&o->out, &o->err, "%s", rows[i].args);
        const char *last = strstr(o->err.data, "oato-run: ");
        if (status != rows[i].status || !last || !strstr(last, rows[i].says) || lines(&o->err) != 1)
            fail_msg("oato-run %s: status %d, expected %d with '%s'; it said: %s", rows[i].args,
                     status, rows[i].status, rows[i].says, o->err.data);
    }
    snprintf(command, sizeof command, "cd %s && '%s' tokenize tiny.gguf -p x >/dev/full 2>err.txt",
             run_dir, OATO_RUN);
    int status = system(command);
    assert_int_equal(WEXITSTATUS(status), 6);
    read_into(&o->err, "err.txt");
    assert_non_null(strstr(o->err.data, "standard output"));
    snprintf(command, sizeof command, "cd %s && ! ls o o.* 2>/dev/null", run_dir);
    assert_int_equal(system(command), 0); /* nothing half-written */
}

/* By any of its names; and no other model either. */
static void inputs_and_models_are_not_overwritten(void **state)
{
    static const char *const args[] = {
        "logits tiny.gguf --ids 1 -o tiny.gguf", "logits tiny.gguf --ids 1 -o link.gguf",
        "logits tiny.gguf --ids 1 -o other.gguf",
        "logits tiny.gguf --ids 1 --plan output.plan -o output.plan"};
    struct outputs *o = *state;
    char command[512];
    snprintf(
        command, sizeof command,
        "cd %s && ln -f tiny.gguf link.gguf && echo >output.plan && sha256sum *.gguf *.plan >sums",
        run_dir);
    assert_int_equal(system(command), 0);
    for (size_t i = 0; i < ARRAY_LEN(args); i++) {
        assert_int_equal(run(&o->out, &o->err, "%s", args[i]), 2);
        assert_int_equal(lines(&o->err), 1);
        assert_non_null(strstr(o->err.data, "not overwritten"));
    }
    snprintf(command, sizeof command, "cd %s && sha256sum --quiet -c sums && rm link.gguf",
             run_dir);
    assert_int_equal(system(command), 0);
}

/* Its logits would be read from behind the row. */
static void a_vocabulary_larger_than_the_logits_is_refused(void **state)
{
    struct outputs *o = *state;
    struct oato_error err;
    struct model *m;
    char path[256];
    snprintf(path, sizeof path, "%s/tiny.gguf", run_dir);
    assert_int_equal(model_open(path, &m, &err), OATO_OK);
    struct gguf_writer *w = gguf_writer_create();
    assert_non_null(w);
    gguf_writer_copy_kv(w, m->gguf);
    for (size_t i = 0; i < gguf_tensor_count(m->gguf); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(m->gguf, i);
        gguf_writer_tensor(w, t->name, t->dtype, t->n_dims, t->ne, t->data);
    }
    random_vocab_add(w, 513);
    snprintf(path, sizeof path, "%s/vocab.gguf", run_dir);
    assert_int_equal(gguf_writer_save(w, path, &err), OATO_OK);
    gguf_writer_free(w);
    model_close(m);
    assert_int_equal(run(&o->out, &o->err, "vocab.gguf -p hi -n 4 -c 64"), 3);
    assert_int_equal(lines(&o->err), 1);
    assert_non_null(strstr(o->err.data, "513 tokens, but the model computes logits of 512"));
}

/* Every program's stdout may be a full disk, whatever it is asked for. */
static void a_full_disk_for_standard_output_is_an_error(void **state)
{
    static const char *const args[] = {"--help",
                                       "--version",
                                       "--list-devices",
                                       "chat --help",
                                       "tiny.gguf --dump-program",
                                       "tokenize tiny.gguf -p x"};
    struct outputs *o = *state;
    char command[512];
    for (size_t i = 0; i < ARRAY_LEN(args); i++) {
        snprintf(command, sizeof command, "cd %s && '%s' %s >/dev/full 2>err.txt", run_dir,
                 OATO_RUN, args[i]);
        int status = system(command);
        assert_int_equal(WEXITSTATUS(status), 6);
        read_into(&o->err, "err.txt");
        assert_non_null(strstr(o->err.data, "standard output"));
    }
}

/* Whatever it is that cannot be had: a library's own, too. From where the system can load the
 * program, which depends on the GPU kernels in it. A sanitizer wants more than all of it. */
static void short_memory_is_an_error_and_no_crash(void **state)
{
    struct outputs *o = *state;
    char command[1024];
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    skip();
#endif
    snprintf(command, sizeof command,
             "cd %s && { least=4000; until (ulimit -v $least; exec '%s' --version); do "
             "least=$((least + 50)); done; for kib in $(seq $least 50 $((least + 4000))); do "
             "(ulimit -v $kib; exec '%s' tiny.gguf -p x -n 1 -t 2 -c 64); s=$?; "
             "[ $s -lt 128 ] || echo $kib: $s >&3; done; } 3>out.txt >/dev/null 2>&1",
             run_dir, OATO_RUN, OATO_RUN);
    assert_int_equal(system(command), 0);
    read_into(&o->out, "out.txt");
    assert_string_equal(o->out.len ? o->out.data : "", "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_signal_ends_every_verb_soon),
        cmocka_unit_test(every_mistake_is_one_line_and_its_status),
        cmocka_unit_test(inputs_and_models_are_not_overwritten),
        cmocka_unit_test(a_vocabulary_larger_than_the_logits_is_refused),
        cmocka_unit_test(a_full_disk_for_standard_output_is_an_error),
        cmocka_unit_test(short_memory_is_an_error_and_no_crash),
    };
    return cmocka_run_group_tests_name("mistakes of oato-run", tests, run_setup, run_teardown);
}
