/*
 * selftest.c - oato-run selftest, also oato selftest: checks one device and leaves a file to attach
 * to a report. The checks are the profiler's; docs/selftest.md says what the file has.
 */
#include "front/front.h"
#include "profiler/profiler.h"

#include <string.h>

struct selftest_args {
    struct selftest_options options;
    const char *output;
    bool json, help;
};

#define AT(take, member) take, offsetof(struct selftest_args, member), 0, 0
static const struct option_of table[] = {
    {"device", 'd', "DEVICE", "the device, as --list-devices has it (or the operand)", 1,
     AT(option_text, options.device)},
    {"model", 'm', "FILE", "this GGUF file says the sentence instead of a made-up model", 1,
     AT(option_text, options.model)},
    {"only", 0, "KIND[/TYPE]", "only these operators, such as mul_mat/Q4_0; nothing else", 1,
     AT(option_text, options.only)},
    {"quick", 0, NULL, "fewer shapes and sizes: seconds", 1, AT(option_flag, options.quick)},
    {"perf", 0, NULL, "also a table of what operators take", 1, AT(option_flag, options.perf)},
    {"output", 'o', "FILE", "the file to write (default selftest-DEVICE.json here)", 1,
     AT(option_text, output)},
    {"json", 0, NULL, "print the file's text instead of the summary", 1, AT(option_flag, json)},
    {"help", 'h', NULL, "this text", 1, AT(option_flag, help)},
};
#undef AT

static void help(const struct option_row *rows)
{
    printf("Usage: oato-run selftest --device DEVICE [OPTIONS]\n"
           "Checks a device: every operator against the CPU's reference, copies, events and a\n"
           "generated sentence. Options:\n");
    options_help(rows, stdout);
    printf("Exit status: 0 all right, 1 something is wrong, 2 usage, 3 bad file, 4 does not fit,\n"
           "5 device failed, 6 input/output failed.\nSee man oato-run.\n");
}

static oato_status file_write(const char *path, const struct text *json, struct oato_error *err)
{
    struct outfile f;
    if (outfile_open(&f, path, err))
        return err->status;
    oato_status status = outfile_write(&f, json->data, json->len, err);
    if (!status)
        status = outfile_write(&f, "\n", 1, err);
    if (status) {
        outfile_abort(&f);
        return status;
    }
    return outfile_commit(&f, err);
}

/* What was found, even by a device that failed; the error of writing it counts less than its. */
static oato_status report(const struct selftest_args *a, const char *path,
                          const struct text *people, const struct text *json,
                          struct oato_error *err)
{
    const struct text *shown = a->json ? json : people;
    if (file_write(path, json, err))
        return err->status;
    text_print(stdout, or_empty(shown->data), shown->len);
    if (a->json)
        puts("");
    else
        printf("%s has all of it, to attach to a report\n", path);
    return stdout_check(err);
}

oato_status selftest_command(int argc, char **argv, struct oato_error *err)
{
    struct option_row rows[ARRAY_LEN(table) + 1];
    struct selftest_args a = {0};
    struct text people, json;
    struct oato_error second;
    struct options o;
    char named[64];
    options_rows(table, ARRAY_LEN(table), 1, rows);
    options_init(&o, rows, argc - 1, argv + 1);
    for (int id; !a.help && (id = options_take(&o, table, &a, err)) != OPT_END;) {
        if (id == OPT_ERROR)
            return err->status;
        if (id == OPT_OPERAND && a.options.device)
            return oato_fail(err, OATO_EUSAGE, "more than one device: '%s' and '%s'; give one",
                             a.options.device, o.value);
        if (id == OPT_OPERAND)
            a.options.device = o.value;
    }
    if (a.help) {
        help(rows);
        return stdout_check(err);
    }
    if (!a.options.device)
        return oato_fail(err, OATO_EUSAGE,
                         "no device given: selftest --device cuda:0; oato-run --list-devices lists "
                         "those that are here");
    selftest_file_name(a.options.device, named, sizeof named);
    const char *path = a.output ? a.output : named;
    outfile_keep(a.options.model);
    interrupt_catch();
    if (outfile_check(path, err))
        return err->status;
    oato_status status = selftest_run(&a.options, &people, &json, err);
    if (json.len) {
        const oato_status written = report(&a, path, &people, &json, status ? &second : err);
        if (written && status <= OATO_NEGATIVE) {
            *err = status ? second : *err;
            status = written;
        }
    }
    text_free(&people);
    text_free(&json);
    return status;
}
