/* point_to_point.c: rank 0 adds 1 to a tensor and sends it to rank 1: with calls that wait, or with
 * calls that only start.
 *
 *     samples/mpirun -n 2 build/samples/point_to_point --non-blocking */
#include <evenkeel/evenkeel.h>

#include "../args.h"

#define OPTIONS(ROW) ROW(switch, non_blocking, "start the calls, and wait for them later")
args_declare(OPTIONS);

static int print_data(int rank, const ek_tensor *tensor)
{
    double value;
    if (ek_item(tensor, &value) < 0)
        return ek_error_status();
    printf("Rank %d has data %g\n", rank, value);
    return 0;
}

static int run_blocking(int rank)
{
    ek_tensor *tensor = ek_zeros(EK_SHAPE(1));
    int rc;
    if (rank == 0) {
        tensor = ek_add_scalar(tensor, 1);
        rc = ek_dist_send(tensor, 1);
    } else {
        rc = ek_dist_recv(tensor, 0); /* the rank that sent */
    }
    return rc < 0 ? rc : print_data(rank, tensor);
}

static int run_non_blocking(int rank)
{
    ek_tensor *tensor = ek_zeros(EK_SHAPE(1));
    ek_dist_work *work = NULL;
    int rc;
    if (rank == 0) {
        tensor = ek_add_scalar(tensor, 1);
        rc = ek_dist_send(tensor, 1, .work = &work);
        if (rc == 0)
            printf("Rank 0 started sending\n");
    } else {
        rc = ek_dist_recv(tensor, 0, .work = &work);
        if (rc == 0)
            printf("Rank 1 started receiving\n");
    }
    if (rc < 0)
        return rc;
    /* Until ek_dist_wait returns, nobody may write to what is sent or read what is received. */
    rc = ek_dist_wait(work);
    return rc < 0 ? rc : print_data(rank, tensor);
}

static int run(void)
{
    int rank = ek_dist_get_rank(NULL), size = ek_dist_get_world_size(NULL);
    if (size != 2)
        return ek_error(EK_E_USER,
                        "two ranks are needed, and there %s %d: start it with "
                        "samples/mpirun -n 2",
                        size == 1 ? "is" : "are", size);
    ek_scope scope = ek_scope_begin();
    int rc = opt.non_blocking ? run_non_blocking(rank) : run_blocking(rank);
    ek_scope_end(&scope);
    return rc;
}

int main(int argc, char **argv)
{
    int rc = args_read(argc, argv, "Rank 0 adds 1 to a tensor and sends it to rank 1.\n\n",
                       option_table);
    if (rc != 0)
        return rc == ARGS_HELP ? 0 : REFUSED;
    rc = ek_dist_init_process_group();
    if (rc == 0)
        rc = run();
    if (rc < 0)
        ek_dist_print_error(stderr);
    return ek_shutdown() < 0 || rc < 0 ? FAILED : 0;
}
