/*
 * oato.c - the front door: a few verbs, and a model to talk with.
 */
#include "front/front.h"

#include <string.h>

static const struct {
    const char *name;
    front_command run; /* argv[0] is the verb */
    const char *help;
} verbs[] = {
    {"run", run_command, "continue or answer; all that oato-run does"},
    {"doctor", doctor_command, "say what this machine offers, and what would make it faster"},
    {"selftest", selftest_command, "check a device, for a report"},
    {"pull", pull_command, "fetch a model, OWNER/REPO[:QUANT]"},
    {"ls", ls_command, "list the models that are here"},
    {"rm", rm_command, "remove some of them"},
};

static oato_status help(struct oato_error *err)
{
    puts("Usage: oato MODEL.gguf [OPTIONS]\n"
         "       oato VERB ...\n"
         "Measures this machine, plans where the model runs, and runs it: a conversation at a\n"
         "terminal, if the model has a chat template, else what -p TEXT begins with. Verbs:");
    for (size_t i = 0; i < ARRAY_LEN(verbs); i++)
        printf("  %-11s %s\n", verbs[i].name, verbs[i].help);
    puts("Each has --help; oato run --help lists the options of a model. See man oato.");
    return stdout_check(err);
}

static oato_status oato_command(int argc, char **argv, struct oato_error *err)
{
    static const char *const asks[] = {"--help", "-h", "help"};
    for (size_t i = 0; argc > 1 && i < ARRAY_LEN(asks); i++)
        if (!strcmp(argv[1], asks[i]))
            return help(err);
    const char *names[ARRAY_LEN(verbs)];
    for (size_t i = 0; i < ARRAY_LEN(verbs); i++) {
        names[i] = verbs[i].name;
        if (argc > 1 && !strcmp(argv[1], names[i]))
            return verbs[i].run(argc - 1, argv + 1, err);
    }
    if (argc > 1 && verb_check(argv[1], names, ARRAY_LEN(names), err))
        return err->status;
    return model_command(argc, argv, err);
}

int main(int argc, char **argv)
{
    return front_main("oato", oato_command, argc, argv);
}
