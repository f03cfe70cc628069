/*
 * front.c - begin and end of a program.
 */
#include "front/front.h"

void front_ends(oato_status status, const struct oato_error *err)
{
    program_ends(oato_interrupted ? 130 : (int)status, status > OATO_NEGATIVE ? err : NULL);
}

int front_main(const char *name, front_command command, int argc, char **argv)
{
    struct oato_error err = {0};
    program_begin(name);
    const oato_status status = command(argc, argv, &err);
    if (status > OATO_NEGATIVE && err.text[0]) /* empty: rank 0 says it */
        fprintf(stderr, "%s: %s\n", name, err.text);
    return program_exit(oato_interrupted ? 130 : (int)status);
}
