/* world.c: see world.h. */
#include "world.h"

#include <stdio.h>

#include "args.h"

int world_join(void)
{
    int rc = ek_dist_init_process_group();
    args_quiet = !world_is_first();
    if (rc == 0 && args_quiet && !freopen("/dev/null", "w", stdout))
        return ek_error(EK_E_IO, "/dev/null cannot be written to");
    return rc;
}

int world_size(void)
{
    return ek_dist_get_world_size(NULL);
}

bool world_is_first(void)
{
    return ek_dist_get_rank(NULL) == 0;
}

int world_most(int value)
{
    double most = value;
    ek_error_record before;
    if (world_size() == 1)
        return value;
    ek_error_take(&before);
    int rc = ek_dist_all_reduce_number(&most, EK_DIST_MAX, NULL);
    if (before.status < 0) {
        ek_error_clear();
        ek_error_raise(&before);
    }
    return rc < 0 ? rc : (int)most;
}

int world_refuses(bool refused)
{
    const int size = world_size(), rank = ek_dist_get_rank(NULL);
    int most = world_most(refused ? size - rank : 0);
    if (most == size - rank)
        args_complain_late();
    return most > 0 ? 1 : most;
}

/* Returns the first of `count` rows that belongs to `rank`. torch.chunk and data-parallel wrappers
 * cut alike, so that a rank has the rows that a wrapper gives the device of that number. */
static int64_t world_first_row(int64_t count, int rank)
{
    const int64_t each = (count + world_size() - 1) / world_size();
    return each * rank < count ? each * rank : count;
}

int64_t world_share(int64_t count)
{
    const int rank = ek_dist_get_rank(NULL);
    return world_first_row(count, rank + 1) - world_first_row(count, rank);
}

ek_tensor *world_rows(ek_tensor *batch)
{
    if (!batch || world_size() == 1)
        return batch;
    const int64_t count = ek_tensor_size(batch, 0);
    return ek_narrow(batch, 0, world_first_row(count, ek_dist_get_rank(NULL)), world_share(count));
}

ek_tensor *world_all(ek_tensor *rows)
{
    return world_size() == 1 ? rows : ek_dist_join(rows, 0, NULL);
}

/* Returns the first rank on which the pending error began; -1 if the ranks cannot be asked. */
static int world_origin(void)
{
    const int size = world_size(), rank = ek_dist_get_rank(NULL);
    const bool began = ek_error_status() < 0 && ek_dist_error_rank() < 0;
    const int mine = began ? size - rank : 0;
    ek_error_record error;
    ek_error_take(&error);
    int most = -1;
    /* The first attempt may bring an error of another rank. */
    for (int attempt = 0; attempt < 2 && most < 0; attempt++) {
        most = world_most(mine);
        ek_error_clear();
    }
    ek_error_raise(&error);
    return most > 0 ? size - most : -1;
}

bool world_says_error(void)
{
    if (world_size() == 1)
        return true;
    ek_dist_raise();
    int origin = world_origin();
    return origin >= 0 ? origin == ek_dist_get_rank(NULL) : ek_dist_error_rank() < 0;
}

int world_fail(int status)
{
    args_quiet = !world_says_error();
    return args_fail(status);
}
