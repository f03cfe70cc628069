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
    {"doctor", doctor_command, "say what this machine offers, and what would make it faster"},
    {"run", run_command, "continue or answer; all that oato-run does"},
};

static oato_status oato_command(int argc, char **argv, struct oato_error *err)
{
    for (size_t i = 0; argc > 1 && i < ARRAY_LEN(verbs); i++)
        if (!strcmp(argv[1], verbs[i].name))
            return verbs[i].run(argc - 1, argv + 1, err);
    return run_command(argc, argv, err);
}

int main(int argc, char **argv)
{
    return front_main("oato", oato_command, argc, argv);
}
