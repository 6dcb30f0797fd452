/* Tensors: how they are made and read, who owns them, and how errors travel. */
#include <evenkeel/evenkeel.h>

/* The mean of the columns whose mean is above `limit`, for the caller's scope. */
static ek_tensor *large_columns(ek_tensor *x, double limit)
{
    EK_SCOPE(scope); /* owns what is made from here on, until the block ends */
    ek_tensor *means = ek_mean(x, EK_DIMS(0));
    ek_tensor *chosen = ek_masked_select(means, ek_gt_scalar(means, limit));
    return ek_scope_return(&scope, ek_mean(chosen)); /* hands on one tensor */
}

int main(void)
{
    const float numbers[] = {1, 2, 3, 4, 5, 6}, tens[] = {10, 20, 30};
    ek_scope scope = ek_scope_begin();
    ek_tensor *x = ek_from_data(numbers, EK_SHAPE(2, 3));
    ek_tensor *row = ek_from_data(tens, EK_SHAPE(3));
    ek_tensor_print(ek_add(x, row), stdout); /* row is broadcast */

    /* Views share memory with the tensor that they are of. */
    ek_tensor *last = ek_select(x, 1, -1);
    ek_fill_(last, 9);
    ek_tensor_print(x, stdout);

    double value;
    if (ek_item(large_columns(x, 3), &value) == 0)
        printf("mean of the large columns: %.2f\n", value);

    /* A failed operation gives NULL, and operations on NULL give NULL: one check, at the end. */
    ek_tensor *product = ek_mul_scalar(ek_exp(ek_matmul(x, row)), 0.5);
    printf("matmul of x and row: %s\n", product ? "a tensor" : "NULL");
    ek_tensor *wrong = ek_sum(ek_exp(ek_matmul(x, x)));
    if (!wrong) {
        printf("pending: %s\n", ek_status_name(ek_error_status()));
        ek_print_error(stdout); /* prints the sentence, and clears the error */
    }

    ek_tensor *kept = ek_keep(ek_sum(x)); /* outlives the scope */
    ek_scope_end(&scope);
    if (ek_item(kept, &value) == 0)
        printf("kept: %.0f\n", value);
    ek_release(kept);
    return ek_shutdown() < 0; /* an error if a tensor is still kept */
}
