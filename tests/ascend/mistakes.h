/* mistakes.h - a client that keeps a rule of the stand-in, or breaks it by one mistake. */
#ifndef STAND_MISTAKES_H
#define STAND_MISTAKES_H

#include <stdbool.h>

struct mistake {
    const char *rule;
    void (*client)(bool wrong);
    const char *setting; /* of the stand-in, or NULL */
};

enum { OPERATOR_MISTAKES = 15 };
extern const struct mistake operator_mistakes[OPERATOR_MISTAKES];

#endif
