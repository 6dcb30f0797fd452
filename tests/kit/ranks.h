/* ranks.h: ranks as threads of one test, each with a separate communication over the loop. */
#ifndef EK_TESTS_RANKS_H
#define EK_TESTS_RANKS_H

#include "evenkeel/evenkeel.h"
#include "kit/loop.h"
#include "link/communication.h"

/* A test's function for one rank, called on the rank's thread. Returns NULL or what failed. */
typedef const char *ranks_function(ek_process_group *world, void *user);

typedef struct ranks_run {
    loop *loop;
    ranks_function *function;
    void *user;
    double timeout; /* seconds; 0: 60 */
    bool lax;       /* ranks do not compare their calls */
    bool breaks;    /* the world is broken at the end: closing fails */
} ranks_run;

/* The loop_function of a ranks_run: opens a communication, runs the function in a scope, and closes
 * the communication. */
const char *ranks_of(int rank, void *run);

/* Runs the function on `size` ranks with delays drawn from the seed, and checks that nothing was
 * violated and nothing is left open. */
void ranks_check(int size, uint64_t seed, ranks_function *function, void *user);

/* Defines a test whose body runs on each of `size` ranks, with `world`; the body returns NULL or
 * what failed. `user` points to the test's `_i`. RANKS_LOOP defines a test for each seed `_i` of
 * [first, end). */
#define RANKS_TEST(name, size, seed) RANKS_TESTS(name, 0, 1, (size), (seed))
#define RANKS_LOOP(name, size, first, end) RANKS_TESTS(name, (first), (end), (size), (uint64_t)_i)
#define RANKS_TESTS(name, first, end, size, seed)         \
    static ranks_function name##_on_rank;                 \
    TEST_LOOP(name, first, end)                           \
    {                                                     \
        ranks_check((size), (seed), name##_on_rank, &_i); \
    }                                                     \
    static const char *name##_on_rank(ek_process_group *world, void *user)

/* Checks that `rc` is this status, and that the error's sentence contains the text. */
const char *ranks_expect(int rc, int status, const char *text);
#define RANKS_EXPECT(call, status, text) LOOP_PASS(ranks_expect((call), (status), (text)))
#define RANKS_OK(call)                                                                    \
    do {                                                                                  \
        if ((call) < 0)                                                                   \
            return loop_failure(__FILE__, __LINE__, "%s: %s", #call, ek_error_message()); \
    } while (0)

enum { RANKS_LARGE = 100000 }; /* elements of a tensor that does not travel in a descriptor */

/* Makes n ones on cpu. */
ek_tensor *ranks_ones(int64_t n);
/* Checks that the world works, as it does after every failure. */
const char *ranks_work(ek_process_group *world);

#endif
