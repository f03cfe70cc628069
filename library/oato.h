/*
 * oato.h - the whole interface of liboato, for programs outside the source tree, in C17 or C++17:
 * models, text, plans, the engine and batches of requests on it. Start with executor/session.h,
 * which opens all of them in one call; docs/examples/complete.c is a short program.
 *
 * The interface may change with every version until 1.0; pkg-config tells which is installed.
 */
#ifndef OATO_H
#define OATO_H

#ifdef __cplusplus
/* What the headers below include has templates, and goes first, outside of extern "C". */
#include <atomic>
#include <cerrno>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <pthread.h>
#include <stdatomic.h>
/* C++ sees atomic members as plain ones of the same layout: they are the devices' own. */
#pragma push_macro("_Atomic")
#undef _Atomic
#define _Atomic
extern "C" {
#endif

#include "executor/batch.h"
#include "executor/executor.h"
#include "executor/session.h"
#include "models/models.h"
#include "planfmt/planfmt.h"
#include "text/grammar.h"
#include "text/sampler.h"
#include "text/sampling.h"
#include "text/text.h"

#ifdef __cplusplus
}
#pragma pop_macro("_Atomic")
#endif

#endif
