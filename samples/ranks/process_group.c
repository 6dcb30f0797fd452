/* process_group.c: a process group that does nothing yet: what every program of several ranks
 * begins and ends with.
 *
 *     samples/mpirun -n 2 build/samples/process_group */
#include <evenkeel/evenkeel.h>

/* What each rank does: to be filled in. */
static int run(int rank, int size)
{
    printf("Rank %d of %d\n", rank, size);
    return 0;
}

int main(void)
{
    int rc = ek_dist_init_process_group();
    if (rc == 0)
        rc = run(ek_dist_get_rank(NULL), ek_dist_get_world_size(NULL));
    if (rc < 0)
        ek_dist_print_error(stderr); /* once per job, on the rank where it began */
    return ek_shutdown() < 0 || rc < 0;
}
