/*
 * collective.h - the ranks that run one model together: processes on one or several hosts, each
 * with its share of every layer, or with some of the layers. What they must exchange is a record of
 * the host device's program (RECORD_REDUCE to RECORD_RECEIVE), so devices call this and nobody
 * else.
 *
 * The ranks of a host form a group. Its first rank is the leader: it sums what the group's ranks
 * have put into shared memory, exchanges sums with the other leaders, and puts the total back. Two
 * leaders send to each other; more send to the first one, which answers: hosts - 1 messages each
 * way per sum. Sums have one order whatever the path: the ranks of a host in order, then the hosts
 * in order. Who is in which group comes from the plan, because it decides the bits.
 *
 * Messages between hosts are MPI's. Implementations of MPI differ in their ABI, so the part that
 * calls it is a module of its own for each (kernels/ranks/), opened at run time: the same binary
 * runs where no MPI is installed. Nothing outside kernels/ names MPI.
 *
 * MPI's own MPI_Allreduce, or MPI_Reduce and MPI_Bcast, may make the sums, too: where the plan has
 * them, or all of them with OATO_COLLECTIVE=allreduce or =reduce. Only the watch ends these when a
 * rank has stopped, and their bits are the library's.
 *
 * All ranks call the same functions in the same order. After a failure the ranks cannot go on: each
 * must close and exit with an error, and the launcher then ends the others.
 */
#ifndef OATO_COLLECTIVE_H
#define OATO_COLLECTIVE_H

#include "kernels/sums.h"

enum { RANKS_MAX = 64 };

struct collective;

/* How a rank waits for another one. */
enum waits {
    WAITS_AWAKE, /* for what is due; fails after seconds */
    WAITS_EVER,  /* sleeps between looks after a while: nobody knows when it comes */
};

/* The implementations of MPI that there may be modules for; NULL from i on: no more. *why gets what
 * keeps module i from being opened here, "" if nothing does. For a diagnosis. */
const char *collective_module(int i, char *why, size_t why_bytes);

/* Joins the ranks that mpirun has started; without it there is one. From then on a thread watches
 * whether the others are there, and whatever waits for them fails when one has stopped. on_lost
 * (may be NULL) is called, on that thread, for who has not noticed soon after. OATO_EDEVICE:
 * the launcher's MPI has no module here. */
oato_status collective_open(struct collective **out, void (*on_lost)(const struct oato_error *err),
                            struct oato_error *err);
/* Waits until all others close, too; after a failure it leaves without them. NULL is allowed. */
void collective_close(struct collective *c);
/* A step failed here, so the others wait in vain: collective_close will not wait for them. Begins
 * the message with this rank, unless it tells which other rank is lost. */
void collective_leave(struct collective *c, struct oato_error *err);
/* OATO_EDEVICE: another rank has stopped. */
oato_status collective_alive(struct collective *c, struct oato_error *err);
int32_t collective_rank(const struct collective *c);
int32_t collective_ranks(const struct collective *c);

/* Every rank's status so far: the first rank that failed decides. The others get its status and
 * message, with "rank N: " before it. Waits as long as it takes. */
oato_status collective_agree(struct collective *c, oato_status own, struct oato_error *err);
/* Fails on all ranks, with a message that names one, unless the value of `what` is the same on
 * all. */
oato_status collective_same(struct collective *c, const char *what, uint64_t value,
                            struct oato_error *err);
/* The number of each rank's host, from 0 in order of rank; returns how many there are. */
int32_t collective_hosts(const struct collective *c, int32_t host[RANKS_MAX]);
/* Groups the ranks by the number of their host, ascending with the rank. OATO_EFILE: ranks of one
 * number run on several hosts. */
oato_status collective_group(struct collective *c, const int32_t *host, struct oato_error *err);

/* How sums are made, by their size; before it, and with n 0, by the tree. OATO_COLLECTIVE takes
 * precedence. OATO_EUSAGE: it has MPI make sums that are not of F32. */
oato_status collective_choose(struct collective *c, const struct sum_choice *choice, int32_t n,
                              struct oato_error *err);
/* Memory that this thread will read after the next sum or gathered rows, to its cache while it
 * waits for other ranks there. 0 bytes: none. */
void collective_fetch(struct collective *c, const void *at, size_t bytes);
/* sum[i] over all ranks; wire: of what goes between hosts, n being whole blocks of it. own NULL:
 * this rank adds nothing, as at least one other does. sum may be own. */
oato_status collective_reduce(struct collective *c, const float *own, float *sum, size_t n,
                              oato_dtype wire, struct oato_error *err);
/* Rows of which each rank has some columns: `own` has `own_width` of `width`, 0 on some ranks, in
 * order of rank. The whole rows go to `all` on every rank or, with to_first, on rank 0 only. */
oato_status collective_gather(struct collective *c, const float *own, int32_t own_width, float *all,
                              int32_t width, int32_t rows, bool to_first, struct oato_error *err);
/* To one rank, which goes on with what this one has computed, and from one. They wait for as long
 * as the other rank is there: it may have several layers to compute before. */
oato_status collective_send(struct collective *c, int32_t to, const float *x, size_t n,
                            struct oato_error *err);
oato_status collective_receive(struct collective *c, int32_t from, float *x, size_t n,
                               struct oato_error *err);
/* From rank 0 to all, which wait for it like this; rank 0 waits for them as long as they are there.
 */
oato_status collective_broadcast(struct collective *c, void *data, size_t bytes, enum waits how,
                                 struct oato_error *err);
/* A message from rank 0 to the first rank of the last host and back; other ranks return at once. */
oato_status collective_ping(struct collective *c, void *data, size_t bytes, struct oato_error *err);

#endif
