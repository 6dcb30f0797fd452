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
 * A rank's memory is read and written inside the rank's own calls alone. Nothing arrives but in
 * calls of test. With a seed, messages take a random number of these calls, and some sends wait for
 * their receiver; the same seed draws the same for each rank's messages. The memory that a
 * collective receives into is filled with NaN until it is complete.
 *
 * A violation is recorded as a sentence: collective calls that differ between ranks, in kind, order
 * or size (their requests stay open for ever); memory of a send that changes before the send is
 * complete; calls of one rank from two threads; ranks and tags that do not exist; requests or
 * communicators that are open when theirs is closed. */
#ifndef EK_TESTS_KIT_LOOP_H
#define EK_TESTS_KIT_LOOP_H

#include <stdbool.h>
#include <stdint.h>

#include "link/transport.h"
#include "unit.h"

/* What calls return when they fail. */
enum {
    LOOP_E_TRUNCATED = -1, /* the message is longer than its room */
    LOOP_E_FAULT = -2,     /* as asked for: loop_fail_call, loop_fail_request */
    LOOP_E_DEAD = -3,      /* the rank is killed, or one that it waits for in split */
    LOOP_E_ENDED = -4,     /* the job has been ended */
    LOOP_E_INVALID = -5    /* the call is a violation */
};

typedef struct loop loop;

/* `seed` 0: no delays. */
loop *loop_new(int size, uint64_t seed);
/* No thread uses the loop any more. */
void loop_free(loop *l);
const ek_transport *loop_transport(void);
/* The context that opens the transport for a rank. */
void *loop_rank(loop *l, int rank);
int loop_size(const loop *l);

/* From now on a message takes up to `tests` of its receiver's calls of test, and up to
 * `milliseconds`. */
void loop_delay(loop *l, int tests, int milliseconds);

/* Faults. They may come from any thread, while ranks run. */

/* The rank stands still: nothing arrives, nothing leaves, and split and close wait. */
void loop_stop(loop *l, int rank);
void loop_resume(loop *l, int rank);
/* All calls of the rank fail from now on; those that free still do. */
void loop_kill(loop *l, int rank);
/* The job ends, as by the transport's end: all calls of all ranks fail from now on. */
void loop_end(loop *l, int status);
/* The rank's n-th next call that opens, splits or starts a transfer fails, and does nothing. */
void loop_fail_call(loop *l, int rank, int n);
/* The rank's n-th next transfer starts, sends nothing, and fails when it is tested. */
void loop_fail_request(loop *l, int rank, int n);
/* The n-th next message that `rank` sends to `to` (ranks of the world) is lost on its way. */
void loop_drop(loop *l, int rank, int to, int n);

/* What is known afterwards. */

/* Sentences, each on a line; "" if there are none. Valid until the loop is freed. */
const char *loop_violations(loop *l);
/* The requests and communicators that are open: 0 once all ranks have closed. */
int loop_leaks(loop *l);
/* The messages that have been sent, and not been received. */
int loop_strays(loop *l);
/* How many collective transfers a rank has started. */
int loop_collectives(loop *l, int rank);
/* The job has been ended, at first with this status (may be NULL). */
bool loop_ended(loop *l, int *status);

/* Runs the function for every rank, each on a new thread, and joins them. Check must not be
 * used there: a function returns NULL, or what failed. The first text in time is returned, valid
 * until the next run; on it the job is ended, so that the other ranks do not wait for ever. */
typedef const char *loop_function(int rank, void *user);
const char *loop_run(loop *l, loop_function *function, void *user);

/* The text of a failure; for the thread that makes it, until its next one. */
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
/* A function of this kind returns NULL. */
#define LOOP_PASS(call)                 \
    do {                                \
        const char *loop_text = (call); \
        if (loop_text)                  \
            return loop_text;           \
    } while (0)

/* All ranks pass, nothing was violated, and nothing is left open. */
#define assert_loop(l, function, user) assert_loop_at((l), (function), (user), __FILE__, __LINE__)
void assert_loop_at(loop *l, loop_function *function, void *user, const char *file, int line);

#endif
