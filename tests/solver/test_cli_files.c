/*
 * test_cli_files.c - what oato-plan makes beside plans: header-only models, imported splits; and
 * what check says where measurements vary.
 */
#include "planfmt/planfmt.h"
#include "tests/models/random_model.h"
#include "tests/solver/cli_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { LAYERS = 4, NEURONS = 128 };

static int setup(void **state)
{
    (void)state;
    cli_begin();
    cli_save_model("m.gguf", "llama", 64);
    cli_save_model("other.gguf", "llama", 128);
    cli_save_profile("p.yaml", 1);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    return cli_end();
}

/* ------------------------------------------------------------------------------- headers --- */

static struct gguf *opened(const char *name)
{
    char path[160];
    struct oato_error err;
    struct gguf *g;
    cli_path(name, path, sizeof path);
    if (gguf_open(path, &g, &err))
        fail_msg("%s", err.text);
    return g;
}

static void a_header_is_planned_for_like_its_model(void **state)
{
    (void)state;
    struct plan real, small;
    struct oato_error err;
    uint8_t *a = NULL, *b = NULL;
    size_t na = 0, nb = 0;
    cli_expect("header m.gguf -o small.gguf", 0, NULL);
    assert_non_null(strstr(cli_out, "small.gguf"));
    cli_expect_json("header m.gguf -o small.gguf --json", 0);
    struct gguf *model = opened("m.gguf"), *header = opened("small.gguf");
    assert_true(gguf_header_only(header) && !gguf_find(header, "tokenizer.ggml.tokens"));
    assert_true(gguf_structure_hash(model) == gguf_structure_hash(header));
    assert_int_equal(gguf_content_hash(header), 0);
    gguf_close(model);
    gguf_close(header);

    const char *request = "-p p.yaml --budget sim:0=2MiB --gap 0";
    char line[256];
    snprintf(line, sizeof line, "m.gguf %s -o real.plan", request);
    cli_expect(line, 0, NULL);
    snprintf(line, sizeof line, "small.gguf %s -o small.plan", request);
    cli_expect(line, 0, NULL);
    cli_load_plan("real.plan", &real);
    cli_load_plan("small.plan", &small);
    assert_true(real.content_hash != 0 && small.content_hash == 0);
    real.content_hash = 0;
    assert_int_equal(plan_encode(&real, &a, &na, &err), OATO_OK);
    assert_int_equal(plan_encode(&small, &b, &nb, &err), OATO_OK);
    assert_int_equal(na, nb);
    assert_memory_equal(a, b, na);
    free(a);
    free(b);
    plan_free(&real);
    plan_free(&small);
    cli_expect("check real.plan small.gguf -p p.yaml", 0, NULL);
    cli_expect("check small.plan m.gguf -p p.yaml", 0, NULL);
    cli_expect("header small.gguf -o smaller.gguf", 0, NULL); /* of a header, too */

    cli_expect("header m.gguf", 2, "-o FILE.gguf");
    cli_expect("header p.yaml -o never.gguf", 3, "p.yaml");
    cli_expect("header m.gguf -o none/small.gguf", 6, "none/small.gguf");
}

/* A cut file, a pipe that is cut and one that is not. */
static void a_header_comes_from_the_beginning_of_a_download(void **state)
{
    (void)state;
    static char model[1 << 20], whole[1 << 16], part[1 << 16];
    static const char *const ways[] = {"header cut.gguf -o part1.gguf",
                                       "header -o part2.gguf < cut.gguf",
                                       "header - -o part3.gguf < m.gguf"};
    static const char *const made[] = {"part1.gguf", "part2.gguf", "part3.gguf"};
    cli_expect("header m.gguf -o whole.gguf", 0, NULL);
    const size_t n = cli_read_file("whole.gguf", whole, sizeof whole);
    const size_t bytes = cli_read_file("m.gguf", model, sizeof model);
    cli_write_bytes("cut.gguf", model, bytes / 4);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        cli_expect(ways[i], 0, NULL);
        assert_int_equal(cli_read_file(made[i], part, sizeof part), n);
        assert_memory_equal(whole, part, n);
    }
    cli_write_bytes("cut.gguf", model, 1000);
    cli_expect("header cut.gguf -o no.gguf", 3, "cut.gguf: its 0.00 MB end inside the header");
    cli_expect("header -o no.gguf < cut.gguf", 3, "are needed, perhaps more");
    cli_expect("header -o no.gguf < p.yaml", 3, "it is not a GGUF file");
    assert_int_equal(cli_read_file("no.gguf", part, sizeof part), 0);
}

/* -------------------------------------------------------------------------------- splits --- */

/* What a split says wrongly, if anything. */
struct split {
    int layers, neurons, missing,
        swapped;     /* missing: a layer; swapped: it and the next; -1: none */
    int hot;         /* neurons on the GPU: i * 7 % neurons < hot */
    int32_t strange; /* the first value of layer 1, if not 0 */
    bool buckets, wrong_bucket, no_capacity, gguf_magic;
    const char *architecture;
};

#define FINE .layers = LAYERS, .neurons = NEURONS, .missing = -1, .swapped = -1, .hot = 32
static const struct split fine = {FINE};

static bool is_hot(const struct split *s, int layer, int i)
{
    return (i * 7 + layer) % s->neurons < s->hot;
}

static void add_layer(struct gguf_writer *w, const struct split *s, int layer, int32_t *idx,
                      int32_t *bucket)
{
    char name[64];
    int64_t n = 0;
    const int64_t all = s->neurons;
    for (int i = 0; i < s->neurons; i++) {
        idx[i] = is_hot(s, layer, i);
        if (idx[i])
            bucket[n++] = i;
    }
    if (layer == 1 && s->strange)
        idx[0] = s->strange;
    if (s->wrong_bucket)
        bucket[0]++;
    snprintf(name, sizeof name, "blk.%d.gpu_idx", layer);
    gguf_writer_tensor(w, name, DT_I32, 1, &all, idx);
    snprintf(name, sizeof name, "blk.%d.gpu_bucket", layer);
    if (s->buckets && n)
        gguf_writer_tensor(w, name, DT_I32, 1, &n, bucket);
}

/* A split as PowerInfer's exporter writes it: a GGUF, then its magic overwritten. */
static void save_split(const char *name, const struct split *s)
{
    static int32_t idx[16][4096], bucket[16][4096];
    struct gguf_writer *w = gguf_writer_create();
    struct oato_error err;
    char path[160];
    const uint64_t capacity = 1 << 30;
    assert_non_null(w);
    gguf_writer_string(w, "general.architecture",
                       s->architecture ? s->architecture : "generic.gpu_index");
    gguf_writer_scalar(w, "generic.gpu_index.block_count", GGUF_U32, &(uint32_t){LAYERS});
    if (!s->no_capacity)
        gguf_writer_scalar(w, "split.vram_capacity", GGUF_U64, &capacity);
    for (int i = 0; i < s->layers; i++) {
        const int layer = i == s->swapped ? i + 1 : i == s->swapped + 1 && i ? i - 1 : i;
        if (layer != s->missing)
            add_layer(w, s, s->swapped < 0 ? i : layer, idx[i], bucket[i]);
    }
    cli_path(name, path, sizeof path);
    if (gguf_writer_save(w, path, &err))
        fail_msg("%s", err.text);
    gguf_writer_free(w);
    FILE *f = s->gguf_magic ? NULL : fopen(path, "r+b");
    if (f) {
        assert_int_equal(fwrite("PWRI", 1, 4, f), 4);
        fclose(f);
    }
}

static void imported(const char *name, struct neurons *n)
{
    char path[160];
    struct oato_error err;
    cli_path(name, path, sizeof path);
    if (neurons_load(path, n, &err))
        fail_msg("%s", err.text);
}

static void an_imported_split_has_its_neurons_first(void **state)
{
    (void)state;
    for (int buckets = 0; buckets < 2; buckets++) {
        struct neurons n;
        struct split s = fine;
        s.buckets = buckets;
        save_split("s.gpuidx", &s);
        cli_expect("import s.gpuidx -m m.gguf -o s.neurons.gguf", 0, NULL);
        assert_non_null(strstr(cli_out, "128 of 512 neurons on the GPU (25.0 %"));
        assert_non_null(strstr(cli_out, "chosen for 1024.0 MiB"));
        cli_expect_json("import s.gpuidx -m m.gguf -o s.neurons.gguf --json", 0);
        imported("s.neurons.gguf", &n);
        assert_int_equal(n.n_layers, LAYERS);
        for (int l = 0; l < LAYERS; l++) {
            const struct neurons_layer *x = neurons_layer(&n, l);
            assert_non_null(x);
            assert_null(x->ffn_freq);
            assert_int_equal(x->ffn_hot, s.hot);
            for (int i = 0; i < NEURONS; i++) {
                assert_int_equal(is_hot(&s, l, x->ffn_order[i]), i < s.hot);
                assert_true(!i || i == s.hot || x->ffn_order[i - 1] < x->ffn_order[i]);
            }
        }
        struct gguf *g = opened("m.gguf");
        struct oato_error err;
        assert_int_equal(neurons_check_model(&n, g, &err), OATO_OK);
        gguf_close(g);
        neurons_free(&n);
    }
}

static void splits_that_are_damaged_or_foreign_are_refused(void **state)
{
    (void)state;
    static const struct {
        struct split s;
        const char *words;
    } cases[] = {
        {{FINE, .gguf_magic = true}, "does not begin with PWRI"},
        {{FINE, .architecture = "llama"}, "'llama', not 'generic.gpu_index'"},
        {{FINE, .no_capacity = true}, "split.vram_capacity"},
        {{FINE, .strange = 2}, "blk.1.gpu_idx: element 0 is 2"},
        {{FINE, .buckets = true, .wrong_bucket = true}, "blk.0.gpu_bucket does not list"},
        {{.layers = 4, .neurons = NEURONS, .missing = 2, .swapped = -1, .hot = 9},
         "found blk.3.gpu_idx where blk.2.gpu_idx was expected"},
        {{.layers = 4, .neurons = NEURONS, .missing = 3, .swapped = -1, .hot = 9},
         "it has 3 layers, but the model has 4"},
        {{.layers = 5, .neurons = NEURONS, .missing = -1, .swapped = -1, .hot = 9},
         "it has 5 layers, but the model has 4"},
        {{.layers = 4, .neurons = NEURONS, .missing = -1, .swapped = 1, .hot = 9},
         "found blk.2.gpu_idx where blk.1.gpu_idx was expected"},
        {{.layers = 4, .neurons = NEURONS, .missing = -1, .swapped = -1},
         "no neuron is on the GPU"},
        {{.layers = 4, .neurons = NEURONS / 2, .missing = -1, .swapped = -1, .hot = 9},
         "has 64 neurons"},
    };
    char nothing[16];
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        save_split("bad.gpuidx", &cases[i].s);
        cli_expect("import bad.gpuidx -m m.gguf -o bad.neurons.gguf", 3, cases[i].words);
        assert_non_null(strstr(cli_err, "bad.gpuidx"));
        assert_int_equal(cli_read_file("bad.neurons.gguf", nothing, sizeof nothing), 0);
    }
    cli_expect("import m.gguf -m m.gguf -o bad.neurons.gguf", 3, "PWRI");
    cli_expect("import none.gpuidx -m m.gguf -o bad.neurons.gguf", 6, "none.gpuidx");
    cli_expect("import bad.gpuidx -o bad.neurons.gguf", 2, "-m MODEL.gguf");
    cli_write_bytes("short.gpuidx", "PWRI\3\0\0\0", 8);
    cli_expect("import short.gpuidx -m m.gguf -o bad.neurons.gguf", 3, "short.gpuidx");
}

/* The exporter takes the files of twelve layers as 0 1 10 11 2 3 ...: set 2 is layer 10's. */
static void sets_in_the_order_of_texts_find_their_layers(void **state)
{
    (void)state;
    static const int text_order[12] = {0, 1, 10, 11, 2, 3, 4, 5, 6, 7, 8, 9};
    struct split s = fine;
    struct neurons n;
    char path[160];
    struct oato_error err;
    s.layers = 12;
    save_split("text.gpuidx", &s);
    /* a model of twelve layers */
    struct gguf_writer *w = gguf_writer_create();
    assert_non_null(w);
    gguf_writer_string(w, "general.architecture", "llama");
    gguf_writer_scalar(w, "llama.block_count", GGUF_U32, &(uint32_t){12});
    for (int i = 0; i < 12; i++) {
        char name[64];
        snprintf(name, sizeof name, "blk.%d.ffn_down.weight", i);
        gguf_writer_tensor(w, name, DT_F32, 2, (const int64_t[]){NEURONS, 32}, NULL);
    }
    cli_path("twelve.gguf", path, sizeof path);
    assert_int_equal(gguf_writer_save(w, path, &err), OATO_OK);
    gguf_writer_free(w);
    cli_expect("import text.gpuidx -m twelve.gguf -o text.neurons.gguf --text-order", 0, NULL);
    imported("text.neurons.gguf", &n);
    for (int set = 0; set < 12; set++) {
        const struct neurons_layer *x = neurons_layer(&n, text_order[set]);
        for (int i = 0; i < NEURONS; i++)
            assert_int_equal(is_hot(&s, set, x->ffn_order[i]), i < s.hot);
    }
    neurons_free(&n);
}

/* Where measurements vary more than the change that is asked for, nothing is fine; a median far
 * beyond the limit is a regression however fast some runs are. */
static void what_measurements_cannot_tell_is_not_called_fine(void **state)
{
    (void)state;
    static const struct {
        double scale, p10;
        const char *max_slower;
        int status;
        const char *words, *verdict;
    } cases[] = {
        {1, 1, "5%", 0, NULL, "fine"},
        {1.03, 0.97, "5%", 0, NULL, "fine"},
        {1.12, 1, "5%", 1, "run oato-plan again", "not fine"},
        {1.15, 0.97, "5%", 1, "run oato-plan again", "not fine"},
        {1.3, 0.9, "5%", 1, "run oato-plan again", "not fine"}, /* even its p10 is over */
        {3, 1.0 / 3, "5%", 1, "run oato-plan again", "not fine"},
        {1, 0.7, "5%", 7, "too noisy to tell", "too noisy to tell"},
        {1.12, 0.9, "5%", 7, "too noisy to tell", "too noisy to tell"},
        {0.95, 0.8, "5%", 7, "too noisy to tell", "too noisy to tell"},
        {1.12, 0.9, "15%", 0, NULL, "fine"},
    };
    cli_expect("m.gguf -p p.yaml --prompt 64 --generate 32 --context 256 -o d.plan", 0, NULL);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char line[128], expected[64];
        cli_save_noisy_profile("noisy.yaml", cases[i].scale, cases[i].p10);
        snprintf(line, sizeof line, "check d.plan m.gguf -p noisy.yaml --max-slower %s",
                 cases[i].max_slower);
        cli_expect(line, cases[i].status, cases[i].words);
        assert_int_equal(strstr(cli_out, "dispersion of the profile") != NULL, cases[i].p10 < 1);
        if (cases[i].status != 1) /* then the other check may be too noisy */
            assert_int_equal(strstr(cli_out, "TOO NOISY TO TELL") != NULL, cases[i].status == 7);
        snprintf(line, sizeof line, "check d.plan m.gguf -p noisy.yaml --max-slower %s --json",
                 cases[i].max_slower);
        cli_expect_json(line, cases[i].status);
        snprintf(expected, sizeof expected, "\"good\":%s,\"verdict\":\"%s\"}",
                 cases[i].status ? "false" : "true", cases[i].verdict);
        assert_non_null(strstr(cli_out, expected));
        assert_non_null(strstr(cli_out, "\"dispersion_ns\":"));
    }
}

/* Marks of a profile that contradicts itself reach whoever reads a plan made with it. */
static void contradictions_of_the_profile_are_told(void **state)
{
    (void)state;
    char path[160];
    struct profile p;
    struct oato_error err;
    cli_path("p.yaml", path, sizeof path);
    if (profile_load(path, &p, NULL, NULL, &err))
        fail_msg("%s", err.text);
    p.devices[0].contradicts = true;
    for (int32_t i = 0; i < p.n_rows; i++)
        p.rows[i].contradicts = p.rows[i].device == 0;
    cli_path("odd.yaml", path, sizeof path);
    if (profile_save(&p, path, &err))
        fail_msg("%s", err.text);
    profile_free(&p);
    cli_expect("m.gguf -p p.yaml " REQUEST_SIZES " -o even.plan", 0, NULL);
    assert_null(strstr(cli_out, "contradicts"));
    cli_expect("m.gguf -p odd.yaml " REQUEST_SIZES " -o odd.plan", 0, NULL);
    assert_non_null(strstr(cli_out, "operators were faster than its rate of reading memory"));
    assert_non_null(strstr(cli_out, "the overhead of a record on cpu:0"));
    cli_expect("diff even.plan odd.plan", 0, NULL); /* prices do not depend on it */
    cli_expect("show odd.plan -m m.gguf -p odd.yaml", 0, NULL);
    assert_non_null(strstr(cli_out, "the profile contradicts itself"));
    cli_expect_json("show odd.plan -m m.gguf -p odd.yaml --json", 0);
    assert_non_null(strstr(cli_out, "{\"device\":\"cpu:0\",\"what\":\"record_overhead_ns\"}"));
    cli_expect("explain odd.plan blk.1.attn_q -m m.gguf -p odd.yaml", 0, NULL);
    assert_non_null(strstr(cli_out, "  ! on cpu:0 it was faster"));
    cli_expect("explain odd.plan blk.1 -m m.gguf -p odd.yaml", 0, NULL);
    assert_non_null(strstr(cli_out, "the profile contradicts itself"));
}

/* By any of its names; other models, too, but headers and sidecars can be made again. */
static void inputs_and_models_are_not_overwritten(void **state)
{
    (void)state;
    static const char *const lines[] = {
        "m.gguf " REQUEST "-o m.gguf",
        "m.gguf " REQUEST "-o ./hard.gguf",
        "m.gguf " REQUEST "-o other.gguf",
        "m.gguf " REQUEST "-o p.yaml",
        "header m.gguf -o m.gguf",
        "header m.gguf -o other.gguf",
        "import s.gpuidx -m m.gguf -o other.gguf",
        "import s.gpuidx -m m.gguf -o s.gpuidx",
        "report in.plan -m m.gguf -p p.yaml -o in.plan",
        "report in.plan -m m.gguf -p p.yaml -o p.yaml",
        "simulate in.plan -m m.gguf -p p.yaml --trace in.plan",
        "frontier m.gguf " REQUEST "--steps 1 --svg m.gguf",
    };
    static char before[5][CLI_OUT], after[CLI_OUT];
    static const char *const names[5] = {"m.gguf", "other.gguf", "p.yaml", "in.plan", "s.gpuidx"};
    size_t n[5];
    char path[128], hard[128];
    cli_path("m.gguf", path, sizeof path);
    cli_path("hard.gguf", hard, sizeof hard);
    assert_int_equal(link(path, hard), 0);
    save_split("s.gpuidx", &fine);
    cli_expect("m.gguf " REQUEST "-o in.plan", 0, NULL);
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        n[i] = cli_read_file(names[i], before[i], sizeof before[i]);
    for (size_t i = 0; i < ARRAY_LEN(lines); i++)
        cli_expect(lines[i], 2, "not overwritten");
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        assert_int_equal(cli_read_file(names[i], after, sizeof after), n[i]);
        assert_memory_equal(after, before[i], n[i]);
    }
    cli_expect("header m.gguf -o again.gguf", 0, NULL);
    cli_expect("header m.gguf -o again.gguf", 0, NULL);
    cli_expect("import s.gpuidx -m m.gguf -o again.gguf", 0, NULL);
    cli_expect("header again.gguf -o again.gguf", 3, "again.gguf"); /* no model */
}

static void help_on_a_full_disk_is_an_error(void **state)
{
    (void)state;
    char command[256];
    snprintf(command, sizeof command, "%s --help >/dev/full 2>/dev/null", OATO_PLAN);
    assert_int_equal(WEXITSTATUS(system(command)), 6);
}

/* Two plans of many parts whose operators have names of their own; the second has every tenth of
 * them elsewhere. It took 9 s when each name was looked for in all parts. */
static void large_plans_are_compared_at_once(void **state)
{
    (void)state;
    enum { PARTS = 75000, NAME = 24 };
    struct oato_error err;
    char path[128];
    char(*names)[NAME] = calloc(PARTS, NAME);
    struct plan_part *parts = calloc(PARTS, sizeof *parts);
    assert_true(names && parts);
    cli_expect("m.gguf -p p.yaml " REQUEST_SIZES " -o m.plan", 0, NULL);
    for (int other = 0; other < 2; other++) {
        struct plan p;
        cli_load_plan("m.plan", &p);
        for (int i = 0; i < PARTS; i++) {
            snprintf(names[i], NAME, "blk.%d.part", (int)((i * 7919LL) % PARTS));
            parts[i] = p.parts[0];
            parts[i].op = names[i];
            parts[i].device = parts[i].home = other && i % 10 == 0;
        }
        struct plan many = p;
        many.parts = parts;
        many.n_parts = PARTS;
        cli_path(other ? "many1.plan" : "many0.plan", path, sizeof path);
        assert_int_equal(plan_save(&many, path, &err), OATO_OK);
        plan_free(&p);
    }
    free(parts);
    free(names);
    struct rusage before, after; /* of the processor: tests run beside others */
    getrusage(RUSAGE_CHILDREN, &before);
    cli_expect("diff many0.plan many1.plan", 1, "differ");
    getrusage(RUSAGE_CHILDREN, &after);
    const double seconds = (double)(after.ru_utime.tv_sec - before.ru_utime.tv_sec) +
                           (double)(after.ru_utime.tv_usec - before.ru_utime.tv_usec) / 1e6;
    print_message("%.2f s\n", seconds);
    assert_true(seconds < 4);
    assert_non_null(strstr(cli_out, "7500 operators move"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_header_is_planned_for_like_its_model),
        cmocka_unit_test(a_header_comes_from_the_beginning_of_a_download),
        cmocka_unit_test(an_imported_split_has_its_neurons_first),
        cmocka_unit_test(splits_that_are_damaged_or_foreign_are_refused),
        cmocka_unit_test(sets_in_the_order_of_texts_find_their_layers),
        cmocka_unit_test(what_measurements_cannot_tell_is_not_called_fine),
        cmocka_unit_test(contradictions_of_the_profile_are_told),
        cmocka_unit_test(inputs_and_models_are_not_overwritten),
        cmocka_unit_test(help_on_a_full_disk_is_an_error),
        cmocka_unit_test(large_plans_are_compared_at_once),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
