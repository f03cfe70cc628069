/*
 * folder.h - a folder of a test's own, made before it and removed behind it.
 */
#ifndef OATO_TEST_FOLDER_H
#define OATO_TEST_FOLDER_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char test_folder[64];

static inline int folder_create(void **state)
{
    (void)state;
    strcpy(test_folder, "/tmp/oato-test-XXXXXX");
    return mkdtemp(test_folder) ? 0 : -1;
}

static inline int folder_remove(void **state)
{
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", test_folder);
    return system(command); // NOLINT(bugprone-command-processor): the name is ours
}

#endif
