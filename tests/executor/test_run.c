/*
 * test_run.c - oato-run from outside, on a tiny random model: what it prints, that each mistake is
 * one line with the exit status of DESIGN, and that nothing is half-written.
 */
#include "planfmt/planfmt.h"
#include "tests/models/random_model.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static char dir[] = "/tmp/oato-run-XXXXXX";

/* Runs `oato-run ARGS` by the shell in the scratch directory; out gets stdout, err stderr. */
static int run(struct text *out, struct text *err, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

static void read_into(struct text *t, const char *name)
{
    char path[256], block[4096];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    t->len = 0;
    text_add(t, "", 0);
    for (size_t n; (n = fread(block, 1, sizeof block, f)) > 0;)
        text_add(t, block, n);
    fclose(f);
}

static int run(struct text *out, struct text *err, const char *fmt, ...)
{
    char args[2048], command[4096];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(args, sizeof args, fmt, ap);
    va_end(ap);
    snprintf(command, sizeof command, "cd %s && '%s' %s >out.txt 2>err.txt </dev/null", dir,
             OATO_RUN, args);
    int status = system(command);
    read_into(out, "out.txt");
    read_into(err, "err.txt");
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static int lines(const struct text *t)
{
    int n = 0;
    for (size_t i = 0; i < t->len; i++)
        n += t->data[i] == '\n';
    return n;
}

struct outputs {
    struct text out, err;
};

static int setup(void **state)
{
    static struct outputs o;
    struct random_model m = random_model_default();
    struct oato_error err;
    char path[256];
    m.tokenizer = true;
    m.vocab = 512;
    if (!mkdtemp(dir))
        return 1;
    snprintf(path, sizeof path, "%s/tiny.gguf", dir);
    if (random_model_save(&m, path, &err))
        return 1;
    m.layers = 3;
    snprintf(path, sizeof path, "%s/other.gguf", dir);
    if (random_model_save(&m, path, &err))
        return 1;
    snprintf(path, sizeof path, "%s/text.txt", dir);
    FILE *f = fopen(path, "w");
    for (int i = 0; f && i < 40; i++)
        fprintf(f, "%d bottles of beer on the wall, ", i);
    if (!f || fclose(f))
        return 1;
    *state = &o;
    return 0;
}

static int teardown(void **state)
{
    struct outputs *o = *state;
    char command[64];
    text_free(&o->out);
    text_free(&o->err);
    snprintf(command, sizeof command, "rm -r %s", dir);
    return system(command);
}

static void generates_and_repeats_itself(void **state)
{
    struct outputs *o = *state;
    assert_int_equal(run(&o->out, &o->err, "tiny.gguf -p 'Hello' -n 12 --ignore-eos"), 0);
    assert_memory_equal(o->out.data, "Hello", 5);
    assert_true(o->out.len > 6);
    assert_int_equal(lines(&o->err), 1); /* the timings */
    char *first = strdup(o->out.data);
    assert_int_equal(run(&o->out, &o->err, "generate -m tiny.gguf -pHello -n12 --ignore-eos -t1"),
                     0);
    assert_string_equal(o->out.data, first);
    assert_int_equal(
        run(&o->out, &o->err, "tiny.gguf -p Hello -n 12 --ignore-eos --devices cpu,sim:vram=8MiB"),
        0);
    assert_string_equal(o->out.data, first);
    /* the same answer in company */
    assert_int_equal(
        run(&o->out, &o->err, "tiny.gguf -p Hello -p 'Another one' -n 12 --ignore-eos"), 0);
    assert_memory_equal(o->out.data, "[1] ", 4);
    assert_memory_equal(o->out.data + 4, first, strlen(first));
    assert_non_null(strstr(o->out.data, "\n[2] Another one"));
    free(first);
    assert_int_equal(run(&o->out, &o->err, "tiny.gguf -p Hello -n 0"), 0);
    assert_string_equal(o->out.data, "Hello\n");
    assert_int_equal(run(&o->out, &o->err,
                         "tiny.gguf -p Hello -n 4 --no-display-prompt --temp 1.5 "
                         "--top-k 7 --top-p 0.9 --min-p 0.01 --seed 3 "
                         "--repeat-penalty 1.1 --repeat-last-n 9 --kv f32"),
                     0);
    assert_int_equal(run(&o->out, &o->err, "tiny.gguf --chat -p Hello -n 4 --system Short."), 0);
}

/* A plan with these two parts; one without an operator is of that which makes the logits. */
static void save_plan_for(const char *name, const struct plan_part given[2],
                          struct plan_request request)
{
    char path[256];
    struct oato_error err;
    struct model *m = NULL;
    struct plan p;
    struct plan_device devices[2] = {{.id = "cpu:0", .kind = "cpu"},
                                     {.id = "sim:0", .kind = "sim"}};
    struct plan_part parts[2] = {given[0], given[1]};
    snprintf(devices[1].spec, sizeof devices[1].spec, "vram=8MiB,link=1kB/s");
    snprintf(path, sizeof path, "%s/tiny.gguf", dir);
    assert_int_equal(model_open(path, &m, &err), OATO_OK);
    for (int32_t i = 0; i < m->graph.n_ops; i++)
        for (int part = 0; part < 2; part++)
            if (!given[part].op && m->graph.ops[i].n_out &&
                m->graph.ops[i].out[0] == m->graph.logits)
                parts[part].op = m->graph.ops[i].name;
    plan_init(&p);
    p.structure_hash = gguf_structure_hash(m->gguf);
    p.devices = devices;
    p.n_devices = 2;
    p.parts = parts;
    p.n_parts = 2;
    p.request = request;
    p.prefill_ns = 34000000000;
    p.decode_ns = 1000000;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    if (plan_save(&p, path, &err))
        fail_msg("%s", err.text);
    plan_free(&p);
    model_close(m);
}

static const struct plan_request fine_request = {
    .prompt = 24, .generate = 6, .context = 64, .batch = 1, .ubatch = 32, .kv = DT_F16};

static void save_plan(const char *name, const struct plan_part given[2])
{
    save_plan_for(name, given, fine_request);
}

/* The number behind `key`, the first time that it stands behind `part`. */
static double number_of(const struct text *t, const char *part, const char *key)
{
    const char *at = strstr(t->data, part);
    at = at ? strstr(at, key) : NULL;
    if (at)
        return strtod(at + strlen(key), NULL);
    fail_msg("no %s %s in %s", part, key, t->data);
    return 0;
}

/* Over a link of 1 kB/s go 32768 bytes of the matrix, beside them the input, and then the output of
 * 24 x 128: seconds that nobody waits for. */
/* Threads without a processor would only hold up the others. */
static void too_many_threads_are_told_and_not_started(void **state)
{
    struct outputs *o = *state;
    assert_int_equal(run(&o->out, &o->err, "bench tiny.gguf -t 1000 --prefill 4 --generate 2"), 0);
    assert_non_null(strstr(o->err.data, "warning: 1000 threads asked for"));
    assert_non_null(strstr(o->err.data, "using"));
    assert_int_equal(run(&o->out, &o->err, "bench tiny.gguf -t 1 --prefill 4 --generate 2"), 0);
    assert_null(strstr(o->err.data, "warning"));
}

static void bench_holds_a_plan_to_its_prediction(void **state)
{
    struct outputs *o = *state;
    /* the first layer's gate and up stream to a simulated device in prefill */
    static const struct plan_part parts[2] = {
        {"blk.0.ffn_up", 0, 128, AXIS_ROWS, 1 << PHASE_PREFILL, 1, 0},
        {"blk.0.ffn_up", 0, 128, AXIS_ROWS, 1 << PHASE_DECODE, 0, 0},
    };
    save_plan("tiny.plan", parts);
    assert_int_equal(run(&o->out, &o->err, "bench tiny.gguf --plan tiny.plan -r 1 --json"), 0);
    assert_non_null(strstr(o->out.data, "\"prefill\":{\"tokens\":24,"));
    assert_non_null(strstr(o->out.data, "\"decode\":{\"tokens\":6,"));
    assert_non_null(strstr(o->out.data, "\"batch\":1,\"depth\":24,\"host_idle\":"));
    assert_non_null(strstr(o->out.data, "\"measured\":{\"clock\":\"devices\","));
    const double prefill = number_of(&o->out, "\"measured\"", "\"prefill_ns\":") * 1e-9;
    assert_true(prefill > 45.056 && prefill < 46);
    const double ratio = number_of(&o->out, "\"predicted_over_measured\"", "\"prefill\":");
    assert_true(ratio > 0.999 * 34 / prefill && ratio < 1.001 * 34 / prefill);
    assert_true(number_of(&o->out, "\"predicted_over_measured\"", "\"decode\":") > 0);
    assert_int_equal(run(&o->out, &o->err, "bench tiny.gguf --plan tiny.plan -r 1"), 0);
    assert_non_null(strstr(o->out.data, "predicted / measured  prefill 34000.000 / "));
    assert_non_null(strstr(o->out.data, "  decode 1.000 / "));
    /* of other numbers of tokens nothing was predicted */
    assert_int_equal(
        run(&o->out, &o->err, "bench tiny.gguf --plan tiny.plan -r 1 --prefill 8 -d 0"), 0);
    assert_null(strstr(o->out.data, "34000"));
    assert_non_null(strstr(o->out.data, "(the plan is for --prompt 24 --generate 6 --depth 24"));
    assert_int_equal(run(&o->out, &o->err, "tiny.gguf --plan tiny.plan --dump-program"), 0);
    assert_non_null(strstr(o->out.data, "    0 stream     w0\n"));
}

/* Each token's 64 + 128 numbers take most of a second on the link; or none goes there. */
static void bench_tells_how_long_the_host_waits(void **state)
{
    struct outputs *o = *state;
    for (int device = 0; device < 2; device++) {
        const struct plan_part parts[2] = {
            {"blk.0.ffn_up", 0, 128, AXIS_ROWS, 1 << PHASE_PREFILL, 1, device},
            {"blk.0.ffn_up", 0, 128, AXIS_ROWS, 1 << PHASE_DECODE, device, device},
        };
        save_plan("tiny.plan", parts);
        assert_int_equal(run(&o->out, &o->err, "bench tiny.gguf --plan tiny.plan -r 1 --json"), 0);
        const double idle = number_of(&o->out, "\"decode\"", "\"host_idle\":");
        assert_true(device ? idle > 0.9 && idle <= 1 : idle > -0.1 && idle < 0.7);
    }
    assert_int_equal(run(&o->out, &o->err, "bench tiny.gguf --plan tiny.plan -r 1"), 0);
    assert_non_null(strstr(o->out.data, ", the host idle for "));
}

static void candidates_cross_the_link_where_they_suffice(void **state)
{
    static const struct {
        const char *args, *key; /* NULL: whole rows */
    } rows[] = {
        {"", "top_k/k512/n2"},
        {"--temp 1", "top_k/k512/n80"},
        {"--top-k 20 --temp 1 --repeat-penalty 1.1 --repeat-last-n 30", "top_k/k512/n100"},
        {"--temp 1 --top-k 0", NULL},
        {"--repeat-penalty 0.9", NULL},
    };
    static const struct plan_part parts[2] = {
        {NULL, 0, 512, AXIS_ROWS, 1 << PHASE_PREFILL, 1, 1},
        {NULL, 0, 512, AXIS_ROWS, 1 << PHASE_DECODE, 1, 1},
    };
    struct outputs *o = *state;
    save_plan("output.plan", parts);
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        assert_int_equal(
            run(&o->out, &o->err, "tiny.gguf --plan output.plan --dump-program %s", rows[i].args),
            0);
        const char *at = strstr(o->out.data, "top_k/");
        const size_t length = rows[i].key ? strlen(rows[i].key) : 0;
        if (rows[i].key ? !at || memcmp(at, rows[i].key, length) != 0 || at[length] != ' '
                        : at != NULL)
            fail_msg("%s: %s", rows[i].args, o->out.data);
        const char *answer = "-p Hello -n 12 --ignore-eos --seed 5";
        assert_int_equal(run(&o->out, &o->err, "tiny.gguf %s %s", answer, rows[i].args), 0);
        char *first = strdup(o->out.data);
        assert_int_equal(run(&o->out, &o->err, "tiny.gguf --plan output.plan -c 512 %s %s", answer,
                             rows[i].args),
                         0);
        assert_string_equal(o->out.data, first);
        free(first);
    }
    assert_int_equal(run(&o->out, &o->err, "bench tiny.gguf --plan output.plan --dump-program"), 0);
    assert_null(strstr(o->out.data, "top_k/"));
}

static void the_context_ends_an_answer_well(void **state)
{
    struct outputs *o = *state;
    assert_int_equal(run(&o->out, &o->err, "tiny.gguf -p Hello -c 64 -n 200 --ignore-eos"), 0);
    assert_memory_equal(o->out.data, "Hello", 5);
    assert_int_equal(o->out.data[o->out.len - 1], '\n');
    assert_non_null(strstr(o->err.data, "the context is full; use -c N"));
    assert_non_null(strstr(o->err.data, "decode "));
    /* more prompts than the context holds at once: they take turns */
    assert_int_equal(
        run(&o->out, &o->err, "tiny.gguf -p Hello -p Hello -p Hello -c 64 -n 50 --ignore-eos"), 0);
    const char *second = strstr(o->out.data, "\n\n[2] "), *third = strstr(o->out.data, "\n\n[3] ");
    assert_true(second && third);
    assert_int_equal(third - second, second - o->out.data + 2);
}

/* Whether the text, without its newline, ends inside a character. */
static bool ends_inside(const struct text *t)
{
    const uint8_t *s = (const uint8_t *)t->data;
    size_t n = t->len - 1, tail = 0;
    while (tail < 3 && tail < n && (s[n - 1 - tail] & 0xc0) == 0x80)
        tail++;
    const int lead = tail < n ? s[n - 1 - tail] : 0;
    return lead >= 0xc2 && lead < 0xf5 && tail < (lead < 0xe0 ? 1u : lead < 0xf0 ? 2u : 3u);
}

static int count(const struct text *t, const char *what)
{
    int n = 0;
    for (const char *at = strstr(t->data, what); at; at = strstr(at + 1, what))
        n++;
    return n;
}

/* Random answers begin and end inside a character now and then. */
static void whole_characters_are_printed(void **state)
{
    struct outputs *o = *state;
    for (int seed = 0; seed < 24; seed++) {
        assert_int_equal(run(&o->out, &o->err,
                             "tiny.gguf -p a -p b -n 3 --no-display-prompt --ignore-eos --temp 9 "
                             "--top-k 0 --top-p 1 --min-p 0 --seed %d",
                             seed),
                         0);
        assert_int_equal(count(&o->out, "[1] "), 1);
        assert_int_equal(count(&o->out, "[2] "), 1);
        if (ends_inside(&o->out))
            fail_msg("seed %d: half a character", seed);
    }
}

/* The same text from -p, from a file, from - and from a pipe. */
static void a_prompt_comes_from_anywhere(void **state)
{
    struct outputs *o = *state;
    char shell[512];
    snprintf(shell, sizeof shell, "cd %s && echo Hello there >prompt.txt && echo >empty.txt", dir);
    assert_int_equal(system(shell), 0);
    assert_int_equal(run(&o->out, &o->err, "tiny.gguf -p 'Hello there' -n 8 --ignore-eos"), 0);
    char *first = strdup(o->out.data);
    assert_int_equal(run(&o->out, &o->err, "tiny.gguf -f prompt.txt -n 8 --ignore-eos"), 0);
    assert_string_equal(o->out.data, first);
    for (int i = 0; i < 2; i++) {
        snprintf(
            shell, sizeof shell,
            "cd %s && echo Hello there | '%s' tiny.gguf %s -n 8 --ignore-eos >out.txt 2>err.txt",
            dir, OATO_RUN, i ? "-f -" : "");
        assert_int_equal(system(shell), 0);
        read_into(&o->out, "out.txt");
        assert_string_equal(o->out.data, first);
    }
    free(first);
    assert_int_equal(run(&o->out, &o->err, "tiny.gguf -f prompt.txt -f empty.txt"), 2);
    assert_non_null(strstr(o->err.data, "'prompt.txt'"));
}

static void the_other_verbs_answer(void **state)
{
    struct outputs *o = *state;
    assert_int_equal(run(&o->out, &o->err, "tokenize tiny.gguf -p 'a b' --ids --no-special"), 0);
    assert_int_equal(lines(&o->out), 1);
    assert_int_equal(run(&o->out, &o->err, "tokenize tiny.gguf -p 'a b'"), 0);
    assert_non_null(strstr(o->out.data, "\"a\""));
    assert_int_equal(run(&o->out, &o->err, "bench tiny.gguf --prefill 32 --generate 4 -r 1 --json"),
                     0);
    assert_memory_equal(o->out.data, "{\"prefill\":{\"tokens\":32,\"tokens_per_s\":", 38);
    assert_non_null(strstr(o->out.data, "\"peak_rss_bytes\":"));
    /* 2 layers of 64 x 64 for q and out, 64 x 32 for k and v, three of 64 x 128; 512 x 64. */
    assert_non_null(strstr(o->out.data, "\"decode_operations\":212992,"
                                        "\"prefill_operations\":147456,"
                                        "\"attention_operations\":512,\"position_bytes\":256}"));
    assert_int_equal(
        run(&o->out, &o->err, "bench tiny.gguf --prefill 0 --generate 4 -r 2 -b 3 -d 70"), 0);
    assert_non_null(strstr(o->out.data, "decode      12 tokens"));
    assert_int_equal(run(&o->out, &o->err, "tiny.gguf --dump-program"), 0);
    assert_non_null(strstr(o->out.data, "# decode on cpu:0"));
    assert_non_null(strstr(o->out.data, "mul_mat/"));
    assert_int_equal(
        run(&o->out, &o->err, "logits tiny.gguf --ids 1 -o /none/logits.f32 --dump-program"), 0);
    assert_non_null(strstr(o->out.data, "# decode on cpu:0")); /* and nothing is computed */
    assert_int_equal(run(&o->out, &o->err, "logits tiny.gguf --ids 1,2,3 -o logits.f32"), 0);
    read_into(&o->out, "logits.f32");
    assert_int_equal(o->out.len, 3 * 512 * 4);
    assert_int_equal(run(&o->out, &o->err, "perplexity tiny.gguf -f text.txt -c 32"), 0);
    assert_non_null(strstr(o->out.data, "\nperplexity "));
    double one = 0, other = 0, divergence = -1, same = 0;
    for (int i = 0; i < 2; i++) { /* the same twice, then one with another cache */
        char command[96];
        snprintf(command, sizeof command,
                 "perplexity tiny.gguf -f text.txt -c 32 --compare plain --kv %s",
                 i ? "f32" : "f16");
        assert_int_equal(run(&o->out, &o->err, command), 0);
        const char *plain = strstr(o->out.data, "\nplain "), *ours = strstr(o->out.data, "\nthis ");
        assert_true(plain && ours && sscanf(plain, " plain %lf", &one) == 1);
        assert_int_equal(sscanf(ours, " this %lf %lf %lf", &other, &divergence, &same), 3);
        assert_true(one > 1 && fabs(one - other) < (i ? 1 : 1e-9) && same > (i ? 50 : 99));
        assert_true(i ? divergence < 0.01 && one != other : divergence == 0);
    }
    assert_int_equal(run(&o->out, &o->err,
                         "perplexity tiny.gguf -f text.txt -c 32 --compare dense --sparse "
                         "above=0.1"),
                     0);
    const char *ours = strstr(o->out.data, "\nthis ");
    assert_true(ours && strstr(o->out.data, "\ndense ") &&
                sscanf(ours, " this %lf %lf", &other, &divergence) == 2 && divergence > 0);
    assert_int_equal(run(&o->out, &o->err, "--help"), 0);
    assert_int_equal(run(&o->out, &o->err, "bench --help"), 0);
    assert_int_equal(run(&o->out, &o->err, "--version"), 0);
    assert_int_equal(run(&o->out, &o->err, "--list-devices"), 0);
    assert_non_null(strstr(o->out.data, "cpu"));
}

/* What people type who come from llama.cpp. */
static void common_options_of_others_are_taken(void **state)
{
    struct outputs *o = *state;
    assert_int_equal(run(&o->out, &o->err, "tiny.gguf -p Hello -n 6 -c 1024 --ubatch 64"), 0);
    char *first = strdup(o->out.data);
    assert_int_equal(
        run(&o->out, &o->err,
            "-m tiny.gguf -p Hello --n-predict 6 --ctx-size 1k --ubatch-size 64 -fa on "
            "--temperature 0 --kv F16"),
        0);
    assert_string_equal(o->out.data, first);
    assert_int_equal(run(&o->out, &o->err, "tiny.gguf -fa -p Hello --generate 6 -ub 64"), 0);
    assert_string_equal(o->out.data, first);
    free(first);
    assert_int_equal(run(&o->out, &o->err, "bench -m tiny.gguf -p 32 -n 4 -r 1 -fa 1"), 0);
    assert_non_null(strstr(o->out.data, "prefill     32 tokens"));
}

static void a_conversation_reads_lines(void **state)
{
    struct outputs *o = *state;
    char command[512];
    snprintf(command, sizeof command,
             "cd %s && printf 'Hi\\nMore\\n/clear\\nAgain\\n/exit\\nnever\\n' | '%s' chat "
             "tiny.gguf -n 5 "
             ">out.txt 2>err.txt",
             dir, OATO_RUN);
    int status = system(command);
    read_into(&o->out, "out.txt");
    read_into(&o->err, "err.txt");
    assert_int_equal(WEXITSTATUS(status), 0);
    assert_true(lines(&o->out) >= 3);
    assert_int_equal(lines(&o->err), 1);
}

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
    snprintf(path, sizeof path, "%s/big.gguf", dir);
    assert_int_equal(random_model_save(&m, path, &err), OATO_OK);
    snprintf(shell, sizeof shell,
             "cd %s && for i in $(seq 3000); do cat text.txt; done | head -c 30000 >long.txt && "
             "for i in $(seq 20); do cat long.txt; done >longer.txt",
             dir);
    assert_int_equal(system(shell), 0);
    for (size_t i = 0; i < ARRAY_LEN(verbs); i++) {
        snprintf(shell, sizeof shell,
                 "cd %s && timeout -k 10 -s TERM 0.5 '%s' %s >out.txt 2>err.txt </dev/null", dir,
                 OATO_RUN, verbs[i]);
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
        {"tiny.gguf -p x -ngl 99", 2, "'-ngl' is not supported: a plan decides what runs on a GPU"},
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
             "cd %s && head -c 5000 tiny.gguf >cut.gguf && echo hello >text.gguf", dir);
    assert_int_equal(system(command), 0);
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        int status = run(&o->out, &o->err, "%s", rows[i].args);
        const char *last = strstr(o->err.data, "oato-run: ");
        if (status != rows[i].status || !last || !strstr(last, rows[i].says) || lines(&o->err) != 1)
            fail_msg("oato-run %s: status %d, expected %d with '%s'; it said: %s", rows[i].args,
                     status, rows[i].status, rows[i].says, o->err.data);
    }
    snprintf(command, sizeof command, "cd %s && '%s' tokenize tiny.gguf -p x >/dev/full 2>err.txt",
             dir, OATO_RUN);
    int status = system(command);
    assert_int_equal(WEXITSTATUS(status), 6);
    read_into(&o->err, "err.txt");
    assert_non_null(strstr(o->err.data, "standard output"));
    snprintf(command, sizeof command, "cd %s && ! ls o o.* 2>/dev/null", dir);
    assert_int_equal(system(command), 0); /* nothing half-written */
}

/* What the command line did not say is no usage error. */
static void a_plan_whose_request_cannot_run_is_a_bad_file(void **state)
{
    static const struct plan_part parts[2] = {
        {"blk.0.ffn_up", 0, 128, AXIS_ROWS, 1 << PHASE_PREFILL, 0, 0},
        {"blk.0.ffn_up", 0, 128, AXIS_ROWS, 1 << PHASE_DECODE, 0, 0},
    };
    struct outputs *o = *state;
    for (int i = 0; i < 6; i++) {
        struct plan_request q = fine_request;
        int32_t *const changed[] = {&q.context, &q.batch, &q.ubatch};
        static const int32_t most[] = {REQUEST_CONTEXT_MAX, REQUEST_BATCH_MAX, REQUEST_UBATCH_MAX};
        *changed[i / 2] = i % 2 ? most[i / 2] + 1 : 0;
        save_plan_for("bad.plan", parts, q);
        assert_int_equal(run(&o->out, &o->err, "tiny.gguf --plan bad.plan -p x -n 1"), 3);
        assert_int_equal(lines(&o->err), 1);
        assert_non_null(strstr(o->err.data, "run oato-plan again"));
    }
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
    snprintf(command, sizeof command,
             "cd %s && ln -f tiny.gguf link.gguf && sha256sum *.gguf *.plan >sums", dir);
    assert_int_equal(system(command), 0);
    for (size_t i = 0; i < ARRAY_LEN(args); i++) {
        assert_int_equal(run(&o->out, &o->err, "%s", args[i]), 2);
        assert_int_equal(lines(&o->err), 1);
        assert_non_null(strstr(o->err.data, "not overwritten"));
    }
    snprintf(command, sizeof command, "cd %s && sha256sum --quiet -c sums && rm link.gguf", dir);
    assert_int_equal(system(command), 0);
}

/* Its logits would be read from behind the row. */
static void a_vocabulary_larger_than_the_logits_is_refused(void **state)
{
    struct outputs *o = *state;
    struct oato_error err;
    struct model *m;
    char path[256];
    snprintf(path, sizeof path, "%s/tiny.gguf", dir);
    assert_int_equal(model_open(path, &m, &err), OATO_OK);
    struct gguf_writer *w = gguf_writer_create();
    assert_non_null(w);
    gguf_writer_copy_kv(w, m->gguf);
    for (size_t i = 0; i < gguf_tensor_count(m->gguf); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(m->gguf, i);
        gguf_writer_tensor(w, t->name, t->dtype, t->n_dims, t->ne, t->data);
    }
    random_vocab_add(w, 513);
    snprintf(path, sizeof path, "%s/vocab.gguf", dir);
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
        snprintf(command, sizeof command, "cd %s && '%s' %s >/dev/full 2>err.txt", dir, OATO_RUN,
                 args[i]);
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
             dir, OATO_RUN, OATO_RUN);
    assert_int_equal(system(command), 0);
    read_into(&o->out, "out.txt");
    assert_string_equal(o->out.len ? o->out.data : "", "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(generates_and_repeats_itself),
        cmocka_unit_test(too_many_threads_are_told_and_not_started),
        cmocka_unit_test(bench_holds_a_plan_to_its_prediction),
        cmocka_unit_test(bench_tells_how_long_the_host_waits),
        cmocka_unit_test(candidates_cross_the_link_where_they_suffice),
        cmocka_unit_test(the_context_ends_an_answer_well),
        cmocka_unit_test(whole_characters_are_printed),
        cmocka_unit_test(a_prompt_comes_from_anywhere),
        cmocka_unit_test(the_other_verbs_answer),
        cmocka_unit_test(common_options_of_others_are_taken),
        cmocka_unit_test(a_conversation_reads_lines),
        cmocka_unit_test(a_signal_ends_every_verb_soon),
        cmocka_unit_test(every_mistake_is_one_line_and_its_status),
        cmocka_unit_test(a_plan_whose_request_cannot_run_is_a_bad_file),
        cmocka_unit_test(inputs_and_models_are_not_overwritten),
        cmocka_unit_test(a_vocabulary_larger_than_the_logits_is_refused),
        cmocka_unit_test(a_full_disk_for_standard_output_is_an_error),
        cmocka_unit_test(short_memory_is_an_error_and_no_crash),
    };
    return cmocka_run_group_tests_name("oato-run", tests, setup, teardown);
}
