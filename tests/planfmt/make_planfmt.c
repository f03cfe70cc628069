/*
 * make_planfmt.c - oato-make-planfmt plan|profile FOLDER: writes a few small plans or profiles, the
 * seed corpus of the fuzz targets.
 */
#include "random_planfmt.h"

#include <string.h>

int main(int argc, char **argv)
{
    struct oato_error err = {.text = ""};
    struct rng rng = {1};
    if (argc != 3 || (strcmp(argv[1], "plan") != 0 && strcmp(argv[1], "profile") != 0)) {
        fprintf(stderr, "usage: oato-make-planfmt plan|profile FOLDER\n");
        return OATO_EUSAGE;
    }
    for (int i = 0; i < 6; i++) {
        char path[1024];
        snprintf(path, sizeof path, "%s/seed-%d.%s", argv[2], i, argv[1]);
        if (!strcmp(argv[1], "plan")) {
            struct plan p;
            random_plan(&rng, 2 * i, &p);
            plan_save(&p, path, &err);
            plan_free(&p);
        } else {
            struct profile p;
            random_profile(&rng, 2 * i, &p);
            profile_save(&p, path, &err);
            profile_free(&p);
        }
        if (err.status) {
            fprintf(stderr, "%s\n", err.text);
            return err.status;
        }
    }
    return 0;
}
