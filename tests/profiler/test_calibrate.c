/*
 * Counting which neurons and experts fire: a run that is stopped and goes on gives the same bytes
 * as one that is not, other models, texts and options are refused, and the programs say it in one
 * line. (tests/oracle/test_neurons.py holds the counts to numpy.)
 */
#include "executor/executor.h"
#include "profiler/profiler.h"

#include "tests/profiler/profiler_testing.h"

#include <math.h>
#include <signal.h>
#include <sys/time.h>
#include <sys/wait.h>

static const char text_file[] = "/usr/share/common-licenses/GPL-2";

static struct model *model_of(const char *architecture, const char *keys, uint64_t seed)
{
    struct random_model m = random_model_default();
    struct oato_error err = {0};
    struct model *model = NULL;
    m.architecture = architecture;
    m.keys = keys;
    m.seed = seed;
    if (strstr(architecture, "moe")) {
        m.experts = 16;
        m.experts_used = 4;
        m.head_dim = 32;
    }
    if (random_model_open(&m, &model, &err))
        fail_msg("%s", err.text);
    return model;
}

/* A text of that many bytes; returns its path. */
static const char *text_of(char path[128], const char *name, size_t bytes)
{
    char block[8192];
    FILE *in = fopen(text_file, "r"), *out = fopen(path_in(path, name), "w");
    assert_non_null(in);
    assert_non_null(out);
    const size_t n = fread(block, 1, sizeof block, in);
    for (size_t at = 0; at < bytes; at += n)
        fwrite(block, 1, n < bytes - at ? n : bytes - at, out);
    fclose(in);
    fclose(out);
    return path;
}

static struct calibrate_options options_of(const char *text)
{
    return (struct calibrate_options){
        .texts = {text}, .n_texts = 1, .threads = 2, .window = 200, .level = CALIBRATE_LEVEL};
}

static void counts(const struct model *m, const struct calibrate_options *o, const char *path,
                   struct calibrate_report *r)
{
    struct oato_error err = {0};
    if (calibrate(m, o, path, r, &err))
        fail_msg("%s", err.text);
}

static void same_bytes(const char *a, const char *b)
{
    struct oato_error err;
    struct mapped_file x = {0}, y = {0};
    if (file_map(a, &x, &err) || file_map(b, &y, &err))
        fail_msg("%s", err.text);
    assert_int_equal(x.bytes, y.bytes);
    assert_memory_equal(x.data, y.data, x.bytes);
    file_unmap(&x);
    file_unmap(&y);
}

static void on_alarm(int sig)
{
    (void)sig;
    oato_interrupted = SIGINT;
}

/* Stopped wherever the timer hits. */
static void what_is_stopped_goes_on(void **state)
{
    (void)state;
    char text[128], whole[128], parts[128];
    struct model *m = model_of("llama", NULL, 1);
    const struct calibrate_options o = options_of(text_of(text, "long.txt", 60000));
    struct calibrate_report r;
    struct oato_error err;
    int stops = 0;
    counts(m, &o, path_in(whole, "whole.neurons.gguf"), &r);
    assert_true(r.tokens > 10000 && r.tokens_before == 0);
    path_in(parts, "parts.neurons.gguf");
    signal(SIGALRM, on_alarm);
    int64_t before = 0;
    oato_status status = OATO_NEGATIVE;
    for (long us = 20000; status; us += r.tokens > before ? 0 : us / 2) {
        before = stops ? before : 0;
        setitimer(ITIMER_REAL, &(struct itimerval){.it_value = {us / 1000000, us % 1000000}}, NULL);
        status = calibrate(m, &o, parts, &r, &err);
        setitimer(ITIMER_REAL, &(struct itimerval){0}, NULL);
        oato_interrupted = 0;
        if (status && status != OATO_NEGATIVE)
            fail_msg("%s", err.text);
        assert_true(r.tokens_before == before);
        stops += status && r.tokens > 0;
        if (status && r.tokens > before) { /* a sidecar that can be used */
            struct neurons n;
            assert_non_null(strstr(err.text, "goes on"));
            if (neurons_load(parts, &n, &err))
                fail_msg("%s", err.text);
            assert_true(n.tokens == (uint64_t)r.tokens && n.text_tokens > n.tokens);
            assert_non_null(n.magnitudes[0].counts);
            neurons_free(&n);
        }
        before = r.tokens;
    }
    assert_true(stops > 0);
    same_bytes(whole, parts);
    counts(m, &o, parts, &r); /* nothing is left to do */
    assert_true(r.tokens == r.tokens_before);
    same_bytes(whole, parts);
    model_close(m);
}

static void threads_change_nothing(void **state)
{
    (void)state;
    char text[128], one[128], two[128];
    struct model *m = model_of("qwen2", NULL, 1);
    struct calibrate_options o = options_of(text_of(text, "short.txt", 3000));
    struct calibrate_report r;
    counts(m, &o, path_in(two, "two.neurons.gguf"), &r);
    o.threads = 1;
    counts(m, &o, path_in(one, "one.neurons.gguf"), &r);
    same_bytes(one, two);
    model_close(m);
}

static void experts_are_counted_as_often_as_they_are_used(void **state)
{
    (void)state;
    char text[128], path[128];
    struct model *m = model_of("qwen3moe", NULL, 1);
    const struct calibrate_options o = options_of(text_of(text, "short.txt", 3000));
    struct calibrate_report r;
    struct oato_error err;
    struct neurons n;
    counts(m, &o, path_in(path, "experts.neurons.gguf"), &r);
    if (neurons_load(path, &n, &err) || neurons_check_model(&n, m->gguf, &err))
        fail_msg("%s", err.text);
    assert_int_equal(n.n_layers, m->shape.n_layers);
    for (int32_t i = 0; i < n.n_layers; i++) {
        const struct neurons_layer *l = neurons_layer(&n, i);
        double sum = 0;
        assert_true(l && l->n_experts == 16 && !l->ffn_freq);
        for (int32_t j = 0; j < l->n_experts; j++)
            sum += (double)l->exp_freq[j];
        assert_true(fabs(sum - 4) < 1e-4);
    }
    assert_true(neurons_magnitudes(&n, "blk.1.attn_output.in")->quantiles[100] > 0);
    neurons_free(&n);
    model_close(m);
}

/* ReLU: a neuron is silent when it is 0, so that quantiles begin with zeros and there is no level.
 */
static void zeros_need_no_threshold(void **state)
{
    (void)state;
    char text[128], path[128];
    struct model *m = model_of("llama", "feed_forward_activation=relu", 1);
    const struct calibrate_options o = options_of(text_of(text, "short.txt", 3000));
    struct calibrate_report r;
    struct oato_error err;
    struct neurons n;
    counts(m, &o, path_in(path, "relu.neurons.gguf"), &r);
    if (neurons_load(path, &n, &err))
        fail_msg("%s", err.text);
    assert_string_equal(n.activation, "relu");
    assert_true(n.level == 0 && n.layers[0].ffn_threshold == 0);
    double sum = 0;
    for (int32_t j = 0; j < n.layers[0].n_ff; j++)
        sum += (double)n.layers[0].ffn_freq[j];
    const double silent = 1 - sum / n.layers[0].n_ff;
    const float *q = neurons_magnitudes(&n, "blk.0.ffn_act")->quantiles;
    assert_true(q[(int)(100 * silent)] == 0 && q[(int)(100 * silent) + 1] > 0);
    assert_true(neurons_magnitudes(&n, "blk.0.ffn_down.in")->quantiles[20] == 0);
    neurons_free(&n);
    model_close(m);
}

/* Stopped once or twice while it trains; and the model must be one whose neurons are silent. */
static void predictors_are_the_same_each_time(void **state)
{
    (void)state;
    char text[128], whole[128], parts[128];
    struct random_model shape = random_model_default();
    struct oato_error err = {0};
    struct model *m, *silu = model_of("llama", NULL, 1);
    shape.keys = "feed_forward_activation=relu";
    shape.width = 128;
    shape.ffn = 768;
    if (random_model_open(&shape, &m, &err))
        fail_msg("%s", err.text);
    struct calibrate_options o = options_of(text_of(text, "little.txt", 900));
    struct calibrate_report r;
    o.predictors = true;
    counts(m, &o, path_in(whole, "predicts.neurons.gguf"), &r);
    assert_true(r.predictors.layers == 2 && !r.predictors.without);
    assert_true(r.predictors.share > 0 && r.predictors.share < 1); /* of a decode step's time */
    path_in(parts, "parts_predict.neurons.gguf");
    signal(SIGALRM, on_alarm);
    oato_status status = OATO_NEGATIVE;
    for (long us = 100000; status; us += us / 2) {
        setitimer(ITIMER_REAL, &(struct itimerval){.it_value = {us / 1000000, us % 1000000}}, NULL);
        status = calibrate(m, &o, parts, &r, &err);
        setitimer(ITIMER_REAL, &(struct itimerval){0}, NULL);
        oato_interrupted = 0;
        if (status && status != OATO_NEGATIVE)
            fail_msg("%s", err.text);
    }
    same_bytes(whole, parts);
    counts(m, &o, parts, &r); /* nothing is left to do */
    same_bytes(whole, parts);
    assert_int_equal(calibrate(silu, &o, path_in(parts, "silu.neurons.gguf"), &r, &err),
                     OATO_EUSAGE);
    assert_non_null(strstr(err.text, "never silent"));
    model_close(silu);
    model_close(m);
}

static void refused(const struct model *m, const struct calibrate_options *o, const char *path,
                    oato_status status, const char *words)
{
    struct calibrate_report r;
    struct oato_error err = {0};
    assert_int_equal(calibrate(m, o, path, &r, &err), status);
    if (!strstr(err.text, words) || strchr(err.text, '\n'))
        fail_msg("not one line with '%s': %s", words, err.text);
}

static void what_does_not_belong_together_is_refused(void **state)
{
    (void)state;
    char text[128], other[128], empty[128], path[128], copy[128];
    struct model *m = model_of("llama", NULL, 1), *weights = model_of("llama", NULL, 2),
                 *relu = model_of("llama", "feed_forward_activation=relu", 1);
    struct calibrate_options o = options_of(text_of(text, "short.txt", 3000));
    struct calibrate_report r;
    counts(m, &o, path_in(path, "belongs.neurons.gguf"), &r);
    counts(m, &o, path_in(copy, "copy.neurons.gguf"), &r);
    refused(weights, &o, path, OATO_EFILE, "other weights");
    refused(relu, &o, path, OATO_EUSAGE, "another activation");
    o.level = 0.5;
    refused(m, &o, path, OATO_EUSAGE, "another level");
    o.level = CALIBRATE_LEVEL;
    o.window = 100;
    refused(m, &o, path, OATO_EUSAGE, "other windows");
    o.window = 200;
    o.texts[0] = text_of(other, "other.txt", 3001);
    refused(m, &o, path, OATO_EUSAGE, "another text");
    o.texts[0] = text_of(empty, "empty.txt", 0);
    refused(m, &o, path, OATO_EFILE, "is empty");
    struct model *opt = model_of("opt", "attention.layer_norm_epsilon=0.00001", 1);
    o.texts[0] = text;
    o.window = 4096; /* there are 512 learned positions */
    refused(opt, &o, path, OATO_EUSAGE, "use --window 512 or less");
    o.window = 0;
    counts(opt, &o, path_in(other, "opt.neurons.gguf"), &r);
    o.window = 200;
    model_close(opt);
    o.texts[0] = "/no/such.txt";
    refused(m, &o, path, OATO_EIO, "/no/such.txt");
    same_bytes(path, copy);
    o.texts[0] = other;
    o.replace = true;
    counts(m, &o, path, &r);
    assert_true(r.tokens_before == 0);
    model_close(m);
    model_close(weights);
    model_close(relu);
}

/* The status of a command line of the program, whose output goes to `out` and complaints to `err`.
 */
static int command(const char *words, char out[8192], char err[1024])
{
    char line[1024], o[128], e[128];
    snprintf(line, sizeof line, "cd %s && '%s' %s >stdout 2>stderr", test_folder,
             OATO_PROFILE_PROGRAM, words);
    const int status = system(line); // NOLINT(cert-env33-c): words of this file
    const struct {
        char *to;
        size_t bytes;
        const char *path;
    } files[] = {{out, 8192, path_in(o, "stdout")}, {err, 1024, path_in(e, "stderr")}};
    for (size_t i = 0; i < ARRAY_LEN(files); i++) {
        FILE *f = fopen(files[i].path, "r");
        files[i].to[f ? fread(files[i].to, 1, files[i].bytes - 1, f) : 0] = 0;
        fclose(f);
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void the_program_counts_and_shows(void **state)
{
    (void)state;
    static char out[8192];
    char text[128], model[128], err[1024];
    struct random_model m = random_model_default();
    struct oato_error e;
    text_of(text, "cli.txt", 3000);
    if (random_model_save(&m, path_in(model, "cli.gguf"), &e))
        fail_msg("%s", e.text);
    if (command("cli.gguf --calibrate cli.txt cli.txt --ffn-activation relu -t 1", out, err))
        fail_msg("%s", err);
    assert_non_null(strstr(out, "cli.neurons.gguf: "));
    assert_int_equal(command("neurons show cli.neurons.gguf", out, err), 0);
    assert_non_null(strstr(out, "|relu(x)| is not 0"));
    assert_non_null(strstr(out, "all layers: 80 % of activations are those of"));
    assert_int_equal(command("neurons show cli.neurons.gguf --json", out, err), 0);
    assert_non_null(strstr(out, "\"activation\":\"relu\""));
    assert_non_null(strstr(out, "\"layers\":[{\"layer\":0,\"neurons\":128,\"active\":"));
    assert_int_equal(command("neurons plot cli.neurons.gguf", out, err), 0);
    assert_int_equal(command("neurons plot cli.neurons.gguf -o -", out, err), 0);
    assert_memory_equal(out, "<svg ", 5);
    static const struct {
        const char *words, *says;
        int status;
    } rows[] = {
        {"neurons", "neurons wants show or plot", 2},
        {"neurons show", "neurons wants show or plot", 2},
        {"neurons draw x", "neurons wants show or plot", 2},
        {"neurons show cli.gguf", "not a neurons sidecar", 3},
        {"neurons show a b", "one file at a time", 2},
        {"neurons plot cli.neurons.gguf -o cli.gguf", "is a GGUF file", 2},
        {"neurons plot --json cli.neurons.gguf", "unknown option '--json'", 2},
        {"cli.gguf --calibrate cli.txt --quick", "unknown option '--quick'", 2},
        {"cli.gguf --level 0.5", "unknown option '--level'", 2},
        {"cli.gguf --calibrate cli.txt --level 2", "--level '2': a share from", 2},
        {"cli.gguf --calibrate cli.txt --ffn-activation tanh", "unknown activation 'tanh'", 2},
        {"cli.gguf --calibrate cli.txt", "another text", 2},
        {"cli.gguf --calibrate cli.txt -o cli.gguf --replace", "cli.gguf: ", 2},
        {"cli.gguf --calibrate cli.txt -o cli.txt --replace", "cli.txt: ", 2},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        const int status = command(rows[i].words, out, err);
        const char *end = strchr(err, '\n');
        if (status != rows[i].status || !strstr(err, rows[i].says) || !end || end[1])
            fail_msg("%s: status %d, not one line with '%s': %s", rows[i].words, status,
                     rows[i].says, err);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_stopped_goes_on),
        cmocka_unit_test(threads_change_nothing),
        cmocka_unit_test(experts_are_counted_as_often_as_they_are_used),
        cmocka_unit_test(zeros_need_no_threshold),
        cmocka_unit_test(predictors_are_the_same_each_time),
        cmocka_unit_test(what_does_not_belong_together_is_refused),
        cmocka_unit_test(the_program_counts_and_shows),
    };
    return cmocka_run_group_tests(tests, folder_create, folder_remove);
}
