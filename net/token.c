/*
 * token.c - who we are to the hub: HF_TOKEN, or the file in which its own programs keep it. A token
 * is one word: anything else in it would become a header of its own.
 */
#include "net/net_internal.h"

#include <stdlib.h>
#include <string.h>

enum { TOKEN_MOST = 4096 };

/* The first line of a file of a token; NULL: none. */
static char *token_of_file(const char *path)
{
    char line[TOKEN_MOST + 2] = "";
    FILE *f = stream_open(path, "r");
    char *got = f ? fgets(line, sizeof line, f) : NULL;
    if (f)
        fclose(f);
    return got ? strdup(line) : NULL;
}

/* As the hub's own programs look for it; NULL: none. */
static char *token_look(void)
{
    const char *given = getenv("HF_TOKEN"), *path = getenv("HF_TOKEN_PATH");
    const char *home = getenv("HF_HOME"), *caches = getenv("XDG_CACHE_HOME");
    if (given && *given)
        return strdup(given);
    if (path && *path)
        return token_of_file(path);
    struct text at;
    text_init(&at);
    if (home && *home)
        text_printf(&at, "%s/token", home);
    else if (caches && *caches)
        text_printf(&at, "%s/huggingface/token", caches);
    else
        text_printf(&at, "%s/.cache/huggingface/token", or_empty(getenv("HOME")));
    char *token = at.failed ? NULL : token_of_file(at.data);
    text_free(&at);
    return token;
}

oato_status token_find(char **out, struct oato_error *err)
{
    char *token = token_look();
    *out = NULL;
    if (!token)
        return OATO_OK;
    const size_t white = strspn(token, " \t\r\n");
    size_t n = strlen(token);
    while (n > white && strchr(" \t\r\n", token[n - 1]))
        n--;
    memmove(token, token + white, n - white);
    token[n - white] = 0;
    for (const char *s = token; *s; s++) {
        if (*s > ' ' && *s <= '~')
            continue;
        free(token);
        return oato_fail(err, OATO_EUSAGE,
                         "the token of HF_TOKEN or of the token file has a character that no token "
                         "has: write it again");
    }
    if (*token)
        *out = token;
    else
        free(token);
    return OATO_OK;
}
