/*
 * run_main.c - oato-run.
 */
#include "front/front.h"

int main(int argc, char **argv)
{
    return front_main("oato-run", run_command, argc, argv);
}
