/* ddp.c: ek_distributed_data_parallel: each rank trains on numbers of its own, and all ranks have
 * the same parameters after every step.
 *
 *     samples/mpirun -n 2 build/samples/ddp */
#include <evenkeel/evenkeel.h>

#include "../args.h"

#define OPTIONS(ROW) ROW(int, steps, "5", 1, 1 << 20, "training steps")
args_declare(OPTIONS);

static ek_tensor *draw(ek_generator *generator, int64_t columns)
{
    ek_tensor *numbers = ek_zeros(EK_SHAPE(20, columns));
    return ek_normal_(numbers, 0, 1, generator) < 0 ? NULL : numbers;
}

/* Trains model for some steps and writes the loss of each; prints them if losses is NULL. */
static int train(ek_module *model, int rank, int steps, double *losses)
{
    ek_scope scope = ek_scope_begin();
    ek_generator *generator = ek_generator_new(1000 + (uint64_t)rank);
    ek_tensor *input = draw(generator, 10), *labels = draw(generator, 5);
    ek_module *criterion = ek_mse_loss();
    ek_optimizer *optimizer = ek_sgd(model, .lr = 0.001);
    int rc = 0;
    for (int step = 0; step < steps && rc == 0; step++) {
        double value;
        ek_scope scope_of_step = ek_scope_begin();
        ek_tensor *loss = ek_loss(criterion, ek_forward(model, input), labels);
        if (ek_minimize(optimizer, loss, .value = &value) < 0)
            rc = ek_error_status();
        else if (losses)
            losses[step] = value;
        else
            printf("Rank %d, step %d: loss %.6f\n", rank, step, value);
        ek_scope_end(&scope_of_step);
    }
    ek_optimizer_free(optimizer);
    ek_module_free(criterion);
    ek_generator_free(generator);
    ek_scope_end(&scope);
    return rc;
}

/* Initial values cannot differ: all ranks get rank 0's. */
static ek_module *make_model(int rank)
{
    ek_manual_seed(42 + (uint64_t)rank);
    return ek_distributed_data_parallel(
        ek_sequential(ek_linear(10, 10), ek_relu(), ek_linear(10, 5)));
}

int main(int argc, char **argv)
{
    int rc = args_read(argc, argv, "Trains a small network, data parallel over ranks.\n\n",
                       option_table);
    if (rc != 0)
        return rc == ARGS_HELP ? 0 : REFUSED;
    ek_module *model = NULL;
    char hash[65];
    rc = ek_dist_init_process_group();
    if (rc == 0) {
        int rank = ek_dist_get_rank(NULL);
        model = make_model(rank);
        rc = model ? train(model, rank, (int)opt.steps, NULL) : ek_error_status();
        if (rc == 0 && (rc = ek_module_sha256(model, hash)) == 0)
            printf("Rank %d, parameters: %.16s\n", rank, hash);
    }
    if (rc < 0)
        ek_dist_print_error(stderr);
    ek_module_free(model);
    return ek_shutdown() < 0 || rc < 0 ? FAILED : 0;
}
