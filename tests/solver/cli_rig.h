/*
 * cli_rig.h - oato-plan run by a shell in a folder of its own: what tests of its command line
 * share.
 */
#ifndef OATO_CLI_RIG_H
#define OATO_CLI_RIG_H

#include <stddef.h>
#include <stdint.h>

enum { CLI_OUT = 1 << 20 };
extern char cli_out[CLI_OUT], cli_err[4096]; /* stdout and stderr of the last run */

/* Makes the folder; cli_end removes it and all in it. */
void cli_begin(void);
int cli_end(void);

/* A random model of 4 layers; profiles are for m.gguf: cpu:0 and a sim:0 six times as fast, all
 * times scaled; noisy: so much of the median is the p10 of each row. */
void cli_save_model(const char *name, const char *arch, int64_t width);
void cli_save_profile(const char *name, double scale);
void cli_save_noisy_profile(const char *name, double scale, double p10);
/* Files of the folder by their names. */
void cli_path(const char *name, char *to, size_t n);
size_t cli_read_file(const char *name, char *to, size_t n); /* zero-terminated; 0: none */
void cli_write_bytes(const char *name, const char *data, size_t n);
struct plan;
void cli_load_plan(const char *name, struct plan *p);

/* Runs oato-plan with these arguments and expects the exit status and, with words, one line on
 * stderr that has them. */
void cli_expect(const char *arguments, int status, const char *words);
/* The same and JSON on stdout. */
void cli_expect_json(const char *arguments, int status);

/* Small requests. */
#define REQUEST_SIZES "--prompt 64 --generate 32 --context 256"
#define REQUEST       "-p p.yaml --prompt 32 --generate 16 --ubatch 512 --gap 0 "

#endif
