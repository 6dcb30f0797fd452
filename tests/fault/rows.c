/* rows.c: see rows.h. */
#include "rows.h"

#include <stdlib.h>
#include <string.h>

static struct {
    ek_tensor *inputs[ROWS_INPUTS], *varied[ROWS_INPUTS];
    int count, varied_count;
} rows;

static ek_shape parse_shape(const char *text)
{
    ek_shape shape = ek_scalar_shape();
    char *end = NULL;
    for (long size = strtol(text, &end, 10); size > 0; size = strtol(end + 1, &end, 10)) {
        shape.dims[shape.ndim++] = size;
        if (*end != 'x')
            break;
    }
    return shape;
}

static ek_tensor *make_input(char letter, ek_shape shape)
{
    ek_device device = ek_host(0);
    bool varied = letter == 'f' || letter == 'p';
    if (letter == 'i')
        return ek_randint(0, 3, shape, .device = device);
    if (letter == 'b')
        return ek_to_dtype(ek_randint(0, 2, shape, .device = device), EK_U8);
    if (letter == 'p') {
        ek_tensor *x = ek_detach(ek_add_scalar(ek_rand(shape, .device = device), 1));
        return ek_tensor_set_requires_grad(x, true) < 0 ? NULL : x;
    }
    return ek_randn(shape, .device = device, .requires_grad = varied);
}

int rows_set_up(const rows_operation *operation)
{
    for (const char *word = operation->inputs; *word; word += strcspn(word, " ")) {
        word += strspn(word, " ");
        ek_tensor *x = ek_keep(make_input(*word, parse_shape(word + 1)));
        rows.inputs[rows.count++] = x;
        if (*word == 'f' || *word == 'p')
            rows.varied[rows.varied_count++] = x;
    }
    return ek_error_status();
}

static ek_tensor *sum_of_squares(ek_tensor *const *x, int count)
{
    ek_tensor *sum = NULL;
    for (int i = 0; i < count; i++) {
        ek_tensor *term = x[i] ? ek_sum(ek_square(x[i])) : NULL;
        if (term)
            sum = sum ? ek_add(sum, term) : term;
    }
    return sum;
}

/* The gradient of the squared result, and what that depends on of the inputs. */
static int note_gradients(ek_tensor *y)
{
    ek_tensor *gradients[ROWS_INPUTS] = {NULL}, *seconds[ROWS_INPUTS] = {NULL};
    ek_tensor *loss = sum_of_squares(&y, 1);
    int status = ek_grad(.outputs = &loss, .output_count = 1, .inputs = rows.varied,
                         .input_count = rows.varied_count, .gradients = gradients,
                         .create_graph = true, .allow_unused = true);
    for (int i = 0; i < rows.varied_count && status >= 0; i++)
        status = fault_note_tensor(gradients[i]);
    if (status < 0)
        return status;
    ek_tensor *penalty = sum_of_squares(gradients, rows.varied_count);
    if (!penalty || !ek_tensor_requires_grad(penalty))
        return ek_error_status();
    status = ek_grad(.outputs = &penalty, .output_count = 1, .inputs = rows.varied,
                     .input_count = rows.varied_count, .gradients = seconds, .allow_unused = true);
    for (int i = 0; i < rows.varied_count && status >= 0; i++)
        status = fault_note_tensor(seconds[i]);
    return status;
}

int rows_attempt(const rows_operation *operation)
{
    ek_tensor *y = operation->apply(rows.inputs);
    int status = y ? fault_note_tensor(y) : ek_error_status();
    if (!y && status >= 0)
        fault_broken("a NULL has an error pending");
    return status >= 0 && y && ek_tensor_requires_grad(y) ? note_gradients(y) : status;
}

int rows_world(void)
{
    int status = 0;
    for (int i = 0; i < rows.count && status >= 0; i++)
        status = fault_note_tensor(rows.inputs[i]);
    return status;
}

void rows_clear(void)
{
    for (int i = 0; i < rows.count; i++)
        ek_release(rows.inputs[i]);
    memset(&rows, 0, sizeof rows);
}
