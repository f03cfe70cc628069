/*
 * server_internal.h - the parts of the server and the kinds of threads between them. HTTP threads
 * take requests and write answers, others prepare them so that nobody waits for a long one; the
 * engine thread of each model owns its session. A `job` is what they share: made by a thread that
 * prepares, answered by the engine thread.
 */
#ifndef OATO_SERVER_INTERNAL_H
#define OATO_SERVER_INTERNAL_H

#include "server/ask.h"
#include "server/dialect.h"
#include "server/http.h"
#include "server/instance.h"
#include "server/job.h"

#endif
