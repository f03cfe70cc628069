/*
 * control.h - what a test asks of the stand-in beside AscendCL, exported by libascendcl.so; found
 * with dlsym where the library is opened at run time. The stand-in is set up by the environment,
 * which is read by the first call and again by stand_reset:
 *
 *   STAND_CHIP=910B4|310P3|310B1  the chip (or as aclrtGetSocName gives it)
 *   STAND_DEVICES=N               how many of it (1)
 *   STAND_MEMORY=BYTES            memory of each; k, M and G are allowed (the chip's)
 *   STAND_RULES=strict|loose      strict (default): what CANN's documentation allows; loose: also
 *                                 what llama.cpp's backend does on chips: it expects allocations
 *                                 at multiples of 128 (they are at 512; strict: at odd multiples
 *                                 of 64), has tensors begin anywhere and reach past their storage
 *                                 dims, and gives a few operators other shapes
 *   STAND_ORDER=ORDER             late (default): only what is waited for runs, and only then;
 *                                 others: all other streams run before it; eager: all at once;
 *                                 random: any order, by STAND_SEED
 *   STAND_PAGEABLE=late|now       asynchronous copies from and to pageable memory are as late as
 *                                 others (default), or have run on return, as documented
 *   STAND_FAIL=SYMBOL:N:CODE,...  the Nth call of a symbol (*: each) answers CODE
 *   STAND_DIE=NAME:N:CODE,...     the Nth task of a name (an operator, aclrtMemcpyAsync; *: any)
 *                                 ends in CODE (507015 if left out), and its device with it
 *   STAND_HANG=NAME:N,...         that task never ends
 *   STAND_MISSING=SYMBOL,...      dlsym does not find it (read when the library is opened)
 *   STAND_REPORT=FILE             each broken rule as it happens, leaks at exit; -: stderr
 */
#ifndef STAND_CONTROL_H
#define STAND_CONTROL_H

#include <stdint.h>

/* Present in no other library: what is opened is a stand-in, its times are declared. */
extern const char oato_stand_in[];

/* How often a rule was broken since the start or the last reset; NULL: all rules together. -1 for a
 * name that is none. */
int64_t stand_broken(const char *rule);
/* The name of rule i, NULL past the last; and what it asks of a client. */
const char *stand_rule(int i);
const char *stand_rule_text(int i);
/* Objects and allocations that are live; a line for each kind goes to the report. */
int64_t stand_leaks(void);
/* Tasks on all streams that have not run. */
int64_t stand_pending(void);
/* Forgets objects, counts and the initialisation, gives all memory back and reads the environment
 * again. No other thread may be in a call. */
void stand_reset(void);

#endif
