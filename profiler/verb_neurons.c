/*
 * verb_neurons.c - oato-profile neurons show FILE and plot FILE: what a neurons sidecar says, on
 * the terminal, as JSON or as an SVG.
 */
#include "profiler/verbs.h"

#include <stddef.h>
#include <string.h>

struct command {
    const char *operands[2];
    int n_operands;
    const char *out;
    bool json, help;
};

enum { SHOW = 1, PLOT = 2, BOTH = SHOW | PLOT };

#define INTO(verbs, take, member) verbs, take, offsetof(struct command, member), 0, 0

static const struct option_of table[] = {
    {"json", 0, NULL, "show: one line of JSON", INTO(SHOW, option_flag, json)},
    {"output", 'o', "FILE", "plot: the SVG to write; default ./FILE.svg; -: standard output",
     INTO(PLOT, option_text, out)},
    {"help", 'h', NULL, "this text", INTO(BOTH, option_flag, help)},
};

static void print_help(void)
{
    struct option_row rows[ARRAY_LEN(table) + 1];
    options_rows(table, ARRAY_LEN(table), BOTH, rows);
    puts("Usage: oato-profile neurons show FILE.neurons.gguf [--json]\n"
         "       oato-profile neurons plot FILE.neurons.gguf [-o FILE.svg]\n"
         "Shows how active the neurons and experts of each layer are, and how few of them do most\n"
         "of the work; or draws it.\n");
    options_help(rows, stdout);
    puts("\nExit status: 0 done, 2 usage, 3 bad file, 6 reading or writing failed.");
}

/* ./NAME.svg for DIR/NAME.neurons.gguf. */
static void svg_name(const char *path, struct text *t)
{
    static const char end[] = ".gguf";
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    const size_t n = strlen(name), e = sizeof end - 1;
    text_add(t, name, n > e && !strcmp(name + n - e, end) ? n - e : n);
    text_printf(t, ".svg");
}

static oato_status save_svg(const char *path, const struct text *svg, struct oato_error *err)
{
    struct outfile f;
    if (!strcmp(path, "-")) {
        fwrite(svg->data, 1, svg->len, stdout);
        return OATO_OK;
    }
    oato_status status = outfile_open(&f, path, err);
    if (!status)
        status = outfile_write(&f, svg->data, svg->len, err);
    return status ? status : outfile_commit(&f, err);
}

static oato_status show(const struct command *c, const struct neurons *n, struct oato_error *err)
{
    struct text t;
    text_init(&t);
    neurons_report(n, c->operands[1], c->json, &t);
    const oato_status status = t.failed ? oato_fail_memory(err, t.len, "the table") : OATO_OK;
    if (!status)
        text_print(stdout, t.data, t.len);
    text_free(&t);
    return status;
}

static oato_status plot(const struct command *c, const struct neurons *n, struct oato_error *err)
{
    struct text svg, name;
    text_init(&svg);
    text_init(&name);
    svg_name(c->operands[1], &name);
    const char *slash = strrchr(c->operands[1], '/');
    oato_status status = neurons_plot(n, slash ? slash + 1 : c->operands[1], &svg, err);
    const char *path = c->out ? c->out : name.data;
    if (!status && (name.failed || svg.failed))
        status = oato_fail_memory(err, svg.len, "the plot");
    if (!status)
        status = save_svg(path, &svg, err);
    if (!status && strcmp(path, "-") != 0)
        text_tell("wrote %s\n", path);
    text_free(&svg);
    text_free(&name);
    return status;
}

static oato_status parse(int argc, char **argv, struct command *c, struct oato_error *err)
{
    struct option_row rows[ARRAY_LEN(table) + 1];
    struct options o;
    unsigned verb = BOTH;
    for (int i = 1; i < argc && verb == BOTH; i++)
        verb = !strcmp(argv[i], "show") ? SHOW : !strcmp(argv[i], "plot") ? PLOT : BOTH;
    options_rows(table, ARRAY_LEN(table), verb, rows);
    options_init(&o, rows, argc - 1, argv + 1);
    while (!c->help) {
        const int id = options_take(&o, table, c, err);
        if (id == OPT_END)
            break;
        if (id == OPT_ERROR)
            return err->status;
        if (id == OPT_OPERAND && c->n_operands < 2)
            c->operands[c->n_operands++] = o.value;
        else if (id == OPT_OPERAND)
            return oato_fail(err, OATO_EUSAGE, "one file at a time: '%s' and '%s'", c->operands[1],
                             o.value);
    }
    const char *word = c->n_operands ? c->operands[0] : "";
    if (c->help || (c->n_operands == 2 && (!strcmp(word, "show") || !strcmp(word, "plot"))))
        return OATO_OK;
    return oato_fail(err, OATO_EUSAGE,
                     "neurons wants show or plot and a file: oato-profile neurons show "
                     "FILE.neurons.gguf; see oato-profile neurons --help");
}

oato_status run_neurons(int argc, char **argv, struct oato_error *err)
{
    struct command c = {0};
    struct neurons n;
    if (parse(argc, argv, &c, err))
        return err->status;
    if (c.help) {
        print_help();
        return OATO_OK;
    }
    outfile_keep(c.operands[1]);
    if (c.out && outfile_check(c.out, err))
        return err->status;
    oato_status status = neurons_load(c.operands[1], &n, err);
    if (status)
        return status;
    status = strcmp(c.operands[0], "show") ? plot(&c, &n, err) : show(&c, &n, err);
    neurons_free(&n);
    return status;
}
