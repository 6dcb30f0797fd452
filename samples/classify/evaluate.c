#include "classify/evaluate.h"

#include "classify/data.h"

static int add_batch(ek_module *network, const ek_batch *batch, double *loss, int64_t *right)
{
    int64_t predicted[TESTED_AT_ONCE], labels[TESTED_AT_ONCE];
    const size_t nbytes = (size_t)batch->count * sizeof(int64_t);
    ek_tensor *target = ek_value_tensor(batch->target);
    ek_tensor *logits = ek_apply(network, ek_value_tensor(batch->input));
    double sum;

    int rc = ek_item(ek_f_cross_entropy(logits, target, .reduction = EK_SUM), &sum);
    if (rc == 0)
        rc = ek_to_data(ek_argmax(logits, 1, false), predicted, nbytes);
    if (rc == 0)
        rc = ek_to_data(target, labels, nbytes);
    for (int64_t i = 0; rc == 0 && i < batch->count; i++)
        *right += predicted[i] == labels[i];
    *loss += rc == 0 ? sum : 0;
    return rc;
}

int evaluate(ek_module *network, ek_loader *loader, evaluation *result)
{
    bool had_gradients = ek_set_grad_enabled(false), more = true;
    int64_t right = 0;
    int rc = 0;

    *result = (evaluation){0};
    ek_module_train(network, false);
    while (rc >= 0 && more) {
        ek_scope scope = ek_scope_begin();
        ek_batch batch;
        rc = ek_loader_next(loader, &batch);
        more = rc > 0;
        if (more) {
            rc = add_batch(network, &batch, &result->loss, &right);
            result->count += batch.count;
        }
        ek_scope_end(&scope);
    }
    ek_module_train(network, true);
    ek_set_grad_enabled(had_gradients);
    if (rc == 0) {
        result->loss /= (double)result->count;
        result->accuracy = (double)right / (double)result->count;
    }
    return rc;
}
