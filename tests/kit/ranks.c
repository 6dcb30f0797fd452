/* ranks.c: see ranks.h. */
#include "kit/ranks.h"

#include "core/thread.h"

const char *ranks_of(int rank, void *user)
{
    const ranks_run *run = user;
    ek_communication *communication;
    if (ek_communication_open(loop_transport(), loop_rank(run->loop, rank), loop_size(run->loop),
                              run->timeout > 0 ? run->timeout : 60, !run->lax, NULL, NULL,
                              &communication) < 0)
        return loop_failure(__FILE__, __LINE__, "open: %s", ek_error_message());
    ek_scope scope = ek_scope_begin();
    const char *failure = run->function(communication->world, run->user);
    ek_scope_end(&scope);
    if (failure)
        return failure;
    if (ek_error_status() < 0)
        return loop_failure(__FILE__, __LINE__, "an error was left: %s", ek_error_message());
    int rc = ek_communication_close(communication, false);
    if (run->breaks ? rc >= 0 : rc < 0)
        return loop_failure(__FILE__, __LINE__, "close: %d, %s", rc, ek_error_message());
    ek_error_clear();
    ek_thread_clear();
    return NULL;
}

void ranks_check(int size, uint64_t seed, ranks_function *function, void *user)
{
    ranks_run run = {.loop = loop_new(size, seed), .function = function, .user = user};
    assert_loop(run.loop, ranks_of, &run);
    loop_free(run.loop);
}

const char *ranks_expect(int rc, int status, const char *text)
{
    if (rc != status)
        return loop_failure(__FILE__, __LINE__, "status %d, not %d: %s", rc, status,
                            ek_error_message());
    if (!strstr(ek_error_message(), text))
        return loop_failure(__FILE__, __LINE__, "\"%s\" lacks \"%s\"", ek_error_message(), text);
    ek_error_clear();
    return NULL;
}

ek_tensor *ranks_ones(int64_t n)
{
    return ek_ones(EK_SHAPE(n), .device = ek_cpu());
}

const char *ranks_work(ek_process_group *world)
{
    ek_tensor *small = ranks_ones(3), *large = ranks_ones(RANKS_LARGE);
    RANKS_OK(ek_dist_all_reduce(small, .group = world));
    RANKS_OK(ek_dist_all_reduce(large, .group = world));
    LOOP_CHECK(element(small, 2) == world->size && element(large, RANKS_LARGE - 1) == world->size);
    RANKS_OK(ek_dist_barrier(.group = world));
    return NULL;
}
