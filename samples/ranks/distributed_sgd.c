/* distributed_sgd.c: data-parallel training by hand: each rank trains on its part of the data, and
 * averages its gradients with those of the others before each step.
 *
 *     samples/mpirun -n 2 build/samples/distributed_sgd */
#include <stdlib.h>

#include <evenkeel/evenkeel.h>

#include "../args.h"

enum { GLOBAL_BATCH = 128, CLASSES = 10, MOST = 1 << 20 };

static const char about[] =
    "Trains a small convolution network on pictures of the MNIST family. Each rank has an equal\n"
    "part of the data and of the batch of 128, and prints the mean of its own losses after each\n"
    "epoch. Gradients are averaged after each backward.\n\n";

#define OPTIONS(ROW)                                                      \
    ROW(folder, data, "Fashion-MNIST's files")                            \
    ROW(int, epochs, "10", 1, MOST, "passes over the data")               \
    ROW(int, samples, "0", 0, MOST, "the first ones of the data; 0: all") \
    ROW(word, dtype, "f32", args_dtype_words, "TYPE", "of parameters and pictures")
args_declare(OPTIONS);

static ek_module *make_net(void)
{
    return ek_sequential(ek_conv2d(1, 10, 5), ek_max_pool2d(2), ek_relu(), ek_conv2d(10, 20, 5),
                         ek_dropout2d(0.5), ek_max_pool2d(2), ek_relu(), ek_flatten(1, -1),
                         ek_linear(320, 50), ek_relu(), ek_dropout(0.5), ek_linear(50, CLASSES));
}

/* The first samples of the training set, normalised. */
static ek_dataset *make_pictures(void)
{
    const double mean = 0.1307, std = 0.3081;
    ek_dataset *all = ek_mnist(opt.data, true);
    int64_t count = all ? ek_dataset_length(all) : 0;
    count = opt.samples && opt.samples < count ? opt.samples : count;
    int64_t *indices = malloc((size_t)(count + 1) * sizeof *indices);
    for (int64_t i = 0; indices && i < count; i++)
        indices[i] = i;
    ek_dataset *first = ek_subset(all, indices, count);
    free(indices);
    return ek_transformed(first, 0, ek_to_float(), ek_normalize(&mean, &std, 1));
}

/* This rank's part, in batches of its share: the same partition on all ranks, by the same seed. */
static ek_loader *make_loader(int rank, int size)
{
    double sizes[EK_MAX_DEVICES];
    if (size > EK_MAX_DEVICES) {
        ek_error(EK_E_USER, "at most %d ranks", EK_MAX_DEVICES);
        return NULL;
    }
    for (int r = 0; r < size; r++)
        sizes[r] = 1.0 / size;
    ek_dataset *part =
        ek_partition(rank, make_pictures(), .sizes = sizes, .count = size, .seed = 1234);
    return ek_data_loader(part, .batch_size = GLOBAL_BATCH / size, .shuffle = true);
}

/* One step; adds its loss to *sum. */
static int train_batch(ek_module *net, ek_optimizer *optimizer, const ek_batch *batch, double *sum)
{
    double value;
    ek_zero_grad(optimizer);
    ek_tensor *input = ek_to_dtype(ek_value_tensor(batch->input), (ek_dtype)opt.dtype);
    ek_tensor *output = ek_f_log_softmax(ek_apply(net, input), 1);
    ek_tensor *loss = ek_f_nll_loss(output, ek_value_tensor(batch->target));
    if (ek_item(loss, &value) < 0 || ek_backward(loss) < 0 ||
        ek_dist_average_gradients(net, NULL) < 0 || ek_step(optimizer) < 0)
        return ek_error_status();
    *sum += value;
    return 0;
}

/* Writes the mean loss of each epoch; prints it if losses is NULL. */
static int train(ek_module *net, ek_loader *loader, ek_optimizer *optimizer, double *losses)
{
    int rank = ek_dist_get_rank(NULL);
    ek_batch batch;
    int rc = 0;
    for (int64_t epoch = 0; epoch < opt.epochs && rc == 0; epoch++) {
        double sum = 0;
        while ((rc = ek_loader_next(loader, &batch)) > 0) {
            ek_scope step = ek_scope_begin();
            rc = train_batch(net, optimizer, &batch, &sum);
            ek_scope_end(&step);
            if (rc < 0)
                return rc;
        }
        sum /= (double)ek_loader_length(loader);
        if (losses)
            losses[epoch] = sum;
        else
            printf("Rank %d, epoch %lld: %g\n", rank, (long long)epoch, sum);
    }
    return rc;
}

static int run(double *losses)
{
    int rank = ek_dist_get_rank(NULL), size = ek_dist_get_world_size(NULL);
    ek_manual_seed(1234); /* all ranks begin with the same parameters */
    ek_module *net = make_net();
    ek_module_to_dtype(net, (ek_dtype)opt.dtype);
    ek_loader *loader = make_loader(rank, size);
    ek_optimizer *optimizer = net && loader ? ek_sgd(net, .lr = 0.01, .momentum = 0.5) : NULL;
    char hash[65];
    int rc = optimizer ? train(net, loader, optimizer, losses) : ek_error_status();
    if (rc == 0 && !losses && (rc = ek_module_sha256(net, hash)) == 0) /* the same on all ranks */
        printf("Rank %d, parameters: %.16s\n", rank, hash);
    ek_optimizer_free(optimizer);
    ek_loader_free(loader);
    ek_module_free(net);
    return rc;
}

int main(int argc, char **argv)
{
    int rc = args_read(argc, argv, about, option_table);
    if (rc != 0)
        return rc == ARGS_HELP ? 0 : REFUSED;
    rc = ek_dist_init_process_group();
    if (rc == 0) {
        rc = run(NULL);
        ek_dist_raise(); /* a rank that cannot read the data must not keep the others waiting */
    }
    if (rc < 0)
        ek_dist_print_error(stderr);
    return ek_shutdown() < 0 || rc < 0 ? FAILED : 0;
}
