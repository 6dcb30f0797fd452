/* Several processes: the program starts its own ranks, which average their gradients. */
#include <evenkeel/evenkeel.h>

enum { RANKS = 2, STEPS = 15, BATCH = 16 };

/* Each rank learns from samples of its own. */
static int learn(ek_module *model, int rank, double *loss)
{
    ek_module *criterion = ek_distributed_criterion(ek_mse_loss()); /* the loss of all ranks */
    ek_optimizer *optimizer = ek_sgd(model, .lr = 0.05);
    ek_generator *samples = ek_generator_new((uint64_t)rank);
    int rc = samples ? 0 : ek_error_status();
    for (int i = 0; i < STEPS && rc == 0; i++) {
        EK_SCOPE(step);
        ek_tensor *x = ek_empty(EK_SHAPE(BATCH, 4));
        ek_normal_(x, 0, 1, samples);
        ek_tensor *l =
            ek_loss(criterion, ek_forward(model, x), ek_sum(x, EK_DIMS(1), .keepdim = true));
        rc = ek_minimize(optimizer, l, .value = loss);
        if (rc == 0 && rank == 0 && (i + 1) % 5 == 0)
            printf("step %d: loss of both ranks' samples %.4f\n", i + 1, *loss);
    }
    ek_generator_free(samples);
    ek_optimizer_free(optimizer);
    ek_module_free(criterion);
    return rc;
}

/* What each process does. An error that it returns is one of ek_spawn, which names the rank. */
static int work(int rank, void *user)
{
    double loss, difference;
    ek_value weights[RANKS];
    (void)user;
    int rc = ek_dist_init_process_group();
    if (rc < 0)
        return rc;
    ek_manual_seed((uint64_t)rank); /* rank 0's parameters are sent to all */
    ek_module *model = ek_distributed_data_parallel(ek_linear(4, 1));
    ek_scope scope = ek_scope_begin();
    rc = learn(model, rank, &loss);
    if (rc == 0)
        rc = ek_dist_all_gather_value(EK_VALUE(ek_module_tensor(model, "weight")), weights, NULL);
    if (rc == 0 && rank == 0) {
        ek_tensor *gap = ek_sub(ek_value_tensor(weights[0]), ek_value_tensor(weights[1]));
        rc = ek_item(ek_max(ek_abs(gap)), &difference);
        printf("the ranks' weights differ by at most %g\n", difference);
    }
    ek_scope_end(&scope);
    ek_module_free(model);
    return rc;
}

int main(void)
{
    int rc = ek_spawn(work, .nprocs = RANKS); /* needs Open MPI or MPICH */
    if (rc < 0)
        ek_print_error(stderr);
    return ek_shutdown() < 0 || rc < 0;
}
