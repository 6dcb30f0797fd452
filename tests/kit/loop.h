/* loop.h: a transport between threads of one program: ranks without processes, with the semantics
 * of MPI, faults on demand, and a record of what MPI would not forgive.
 *
 *     static const char *greet(int rank, void *user)
 *     {
 *         LOOP_TRY(loop_transport()->open(loop_rank(user, rank), &world, &place));
 *         LOOP_CHECK(place.rank == rank);
 *         return NULL;
 *     }
 *
 *     loop *l = loop_new(3, seed);
 *     assert_loop(l, greet, l);
 *     loop_free(l);
 *
 * A rank's memory is read and written inside the rank's own calls alone. Messages arrive only in
 * calls of test. Large sends wait for their receiver. With a seed, messages take a random number of
 * calls of test, and some small sends wait for their receiver, too. The same seed draws the same
 * numbers for each rank's messages. The memory that a collective receives into is filled with NaN
 * until the collective is complete.
 *
 * A violation is recorded as a sentence: collective calls that differ between ranks, in kind, order
 * or size (their requests stay open for ever); memory of a send that changes before the send is
 * complete; calls of one rank from two threads; ranks and tags that do not exist; requests or
 * communicators that are still open when their communicator or the world is closed. */
#ifndef EK_TESTS_KIT_LOOP_H
#define EK_TESTS_KIT_LOOP_H

#include <stdbool.h>
#include <stdint.h>

#include "link/transport.h"
#include "unit.h"

/* What calls return when they fail. */
enum {
    LOOP_E_TRUNCATED = -1, /* the message is longer than the receiver's memory */
    LOOP_E_FAULT = -2,     /* requested by loop_fail_call or loop_fail_request */
    LOOP_E_DEAD = -3,      /* the rank was killed, or another rank for which it waits in split */
    LOOP_E_ENDED = -4,     /* the job was ended */
    LOOP_E_INVALID = -5    /* the call is a violation */
};

typedef struct loop loop;

/* Makes a loop of `size` ranks. If `seed` is 0, there are no delays. */
loop *loop_new(int size, uint64_t seed);
/* Frees the loop, which no thread uses any more. */
void loop_free(loop *l);
const ek_transport *loop_transport(void);
/* Returns the context that opens the transport for a rank. */
void *loop_rank(loop *l, int rank);
int loop_size(const loop *l);

/* From now on a message takes up to `tests` of its receiver's calls of test, and up to
 * `milliseconds`, to arrive. */
void loop_delay(loop *l, int tests, int milliseconds);

/* From now on a message arrives in parts of `nbytes` bytes, one part each `milliseconds`. */
void loop_rate(loop *l, size_t nbytes, int milliseconds);

/* Faults. Any thread may call these functions while ranks run. */

/* Stops a rank: it receives and sends nothing, and its calls of split and close wait. */
void loop_stop(loop *l, int rank);
void loop_resume(loop *l, int rank);
/* All calls of the rank fail from now on. Calls that free memory still do so. */
void loop_kill(loop *l, int rank);
/* Ends the job, as the transport's `end` does: all calls of all ranks fail from now on. */
void loop_end(loop *l, int status);
/* Makes the rank's n-th next call that opens, splits or starts a transfer fail and do nothing. */
void loop_fail_call(loop *l, int rank, int n);
/* Makes the rank's n-th next transfer start, send nothing, and fail when it is tested. */
void loop_fail_request(loop *l, int rank, int n);
/* From now on nothing that `rank` sends to `to` (ranks of the world) arrives. */
void loop_cut(loop *l, int rank, int to);
/* Loses the n-th next message that `rank` sends to `to` (ranks of the world). */
void loop_drop(loop *l, int rank, int to, int n);

/* What the loop has recorded. */

/* Returns the violations as sentences, each on a line; "" if there are none. Valid until the loop
 * is freed. */
const char *loop_violations(loop *l);
/* Returns the number of open requests and communicators, which is 0 once all ranks have closed. */
int loop_leaks(loop *l);
/* Returns the number of messages that were sent and not received. */
int loop_strays(loop *l);
/* Returns how many collective calls a rank has made and how many messages it has sent, together. */
int loop_transfers(loop *l, int rank);
/* Returns true if the job was ended. If so, *status becomes the first status that it was ended
 * with; `status` may be NULL. */
bool loop_ended(loop *l, int *status);

/* Runs the function for every rank, each on a new thread, and joins the threads. The function
 * returns NULL, or a text of what failed. Check must not be used in it. Returns the first text in
 * time, valid until the next run, or NULL. A text ends the job, so that the other ranks do not wait
 * for ever. */
typedef const char *loop_function(int rank, void *user);
const char *loop_run(loop *l, loop_function *function, void *user);

/* Returns the text of a failure, valid until the thread's next call. */
const char *loop_failure(const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
#define LOOP_CHECK(condition)                                          \
    do {                                                               \
        if (!(condition))                                              \
            return loop_failure(__FILE__, __LINE__, "%s", #condition); \
    } while (0)
#define LOOP_CHECK_EQ(a, b)                                                                      \
    do {                                                                                         \
        long long loop_a = (long long)(a), loop_b = (long long)(b);                              \
        if (loop_a != loop_b)                                                                    \
            return loop_failure(__FILE__, __LINE__, "%s == %lld, not %lld", #a, loop_a, loop_b); \
    } while (0)
/* A call of the transport must not fail. */
#define LOOP_TRY(call)                                                  \
    do {                                                                \
        int loop_status = (call);                                       \
        if (loop_status < 0)                                            \
            return loop_failure(__FILE__, __LINE__, "%s: %s", #call,    \
                                loop_transport()->reason(loop_status)); \
    } while (0)
/* A function that returns NULL or a text of what failed must return NULL. */
#define LOOP_PASS(call)                 \
    do {                                \
        const char *loop_text = (call); \
        if (loop_text)                  \
            return loop_text;           \
    } while (0)

/* Runs the function, and checks that all ranks pass, that nothing was violated, and that nothing is
 * left open. */
#define assert_loop(l, function, user) assert_loop_at((l), (function), (user), __FILE__, __LINE__)
void assert_loop_at(loop *l, loop_function *function, void *user, const char *file, int line);

#endif
