/* A training loop: a data set, loaders, a criterion, an optimizer, an evaluation. */
#include <evenkeel/evenkeel.h>

/* Points of the plane, and whether they lie in a ring: samples of (point, class). */
static ek_dataset *points(int64_t count)
{
    EK_SCOPE(scope);
    ek_tensor *at = ek_add_scalar(ek_mul_scalar(ek_rand(EK_SHAPE(count, 2)), 2), -1);
    ek_tensor *radius = ek_norm(at, EK_DIMS(1));
    ek_tensor *within = ek_logical_and(ek_gt_scalar(radius, 0.4), ek_lt_scalar(radius, 0.9));
    return ek_tensor_dataset(at, ek_to_dtype(within, EK_I64)); /* keeps both */
}

/* One pass over the loader, with training steps if there is an optimizer. Writes the share of right
 * answers. */
static int run(ek_module *net, ek_module *criterion, ek_optimizer *optimizer, ek_loader *loader,
               double *right)
{
    ek_batch batch;
    double hits = 0, samples = 0, count;
    bool had_gradients = ek_set_grad_enabled(optimizer != NULL);
    ek_module_train(net, optimizer != NULL); /* dropout and batch norm care */
    int rc;
    while ((rc = ek_loader_next(loader, &batch)) > 0) { /* 0: the end of the pass */
        EK_SCOPE(step); /* ends with this pass of the loop, also by break */
        ek_tensor *target = ek_value_tensor(batch.target);
        ek_tensor *output = ek_apply(net, ek_value_tensor(batch.input));
        ek_tensor *found = ek_eq(ek_argmax(output, 1, false), target);
        rc = ek_item(ek_sum(ek_to_dtype(found, EK_F64)), &count);
        if (rc == 0 && optimizer)
            rc = ek_minimize(optimizer, ek_loss(criterion, output, target));
        if (rc < 0)
            break;
        hits += count;
        samples += (double)batch.count;
    }
    *right = hits / samples;
    ek_set_grad_enabled(had_gradients);
    return rc;
}

int main(void)
{
    ek_manual_seed(0); /* fixes points, initial values and the order of samples */
    ek_loader *training =
        ek_data_loader(points(1024), .batch_size = 32, .shuffle = true, .workers = 1);
    ek_loader *test = ek_data_loader(points(512), .batch_size = 256);
    ek_module *net =
        ek_sequential(ek_linear(2, 32), ek_relu(), ek_linear(32, 32), ek_relu(), ek_linear(32, 2));
    ek_module *criterion = ek_cross_entropy_loss();
    ek_optimizer *optimizer = ek_adam(net, .lr = 1e-2);
    double right = 0;
    int rc = 0;
    for (int epoch = 1; epoch <= 20 && rc == 0; epoch++) {
        rc = run(net, criterion, optimizer, training, &right);
        if (rc == 0 && epoch % 5 == 0)
            printf("epoch %2d: %.0f %% of the training points\n", epoch, 100 * right);
    }
    if (rc == 0 && (rc = run(net, criterion, NULL, test, &right)) == 0)
        printf("%.0f %% of points that it has not seen\n", 100 * right);
    if (rc < 0)
        ek_print_error(stderr);
    ek_loader_free(training);
    ek_loader_free(test);
    ek_optimizer_free(optimizer);
    ek_module_free(criterion);
    ek_module_free(net);
    return ek_shutdown() < 0 || rc < 0;
}
