/* gradcheck.c: compares backward with central differences.
 *
 * The outputs of a function are weighted by a fixed random direction, so that one number is
 * differentiated: L = sum of direction * output. For every element e of every input that requires a
 * gradient, (L(e + eps) - L(e - eps)) / (2 eps) is compared with what ek_grad says. */
#include <math.h>
#include <stdlib.h>

#include "autograd/graph.h"
#include "evenkeel/random.h"

/* A function of several outputs. Writes at most `room` outputs, any of which may be NULL. Returns
 * their number, or a negative status. */
typedef int check_outputs(void *user, ek_tensor *const *inputs, int count, ek_tensor **outputs,
                          int room);

typedef struct checker {
    const char *name;
    check_outputs *function;
    void *user;
    ek_tensor *const *inputs;
    int input_count, output_room;
    double epsilon, absolute, relative;
} checker;

static int gradcheck_read_f64(const ek_tensor *tensor, double **data)
{
    size_t nbytes = (size_t)ek_count(tensor) * sizeof(double);
    *data = ek_calloc(1, nbytes);
    if (!*data)
        return ek_error_pending();
    int rc = ek_to_data(tensor, *data, nbytes);
    if (rc < 0) {
        free(*data);
        *data = NULL;
    }
    return rc;
}

static int gradcheck_dtype(const checker *check, const char *what, int index,
                           const ek_tensor *tensor)
{
    char text[200];
    if (tensor->dtype == EK_F64)
        return 0;
    return EK_FAIL(EK_E_DTYPE, "%s: %s %d is %s; differences need f64", check->name, what, index,
                   ek_tensor_text(tensor, text));
}

/* Returns the direction for output `index`, in the scope. The direction is equal in every
 * evaluation. */
static ek_tensor *gradcheck_direction_of(int index, const ek_tensor *output)
{
    ek_generator *generator = ek_generator_new(20181027 + (uint64_t)index);
    ek_tensor *direction = generator ? ek_tensor_like(output) : NULL;
    if (direction && ek_normal_(direction, 0, 1, generator) < 0)
        direction = NULL;
    ek_generator_free(generator);
    return direction;
}

/* Adds the sum of direction * output, over one output, to *sum. */
static int gradcheck_weigh(const ek_tensor *output, const ek_tensor *direction, double *sum)
{
    double *values = NULL, *weights = NULL;
    int rc = direction ? gradcheck_read_f64(output, &values) : ek_error_pending();
    if (rc >= 0)
        rc = gradcheck_read_f64(direction, &weights);
    for (int64_t i = 0; rc >= 0 && i < ek_count(output); i++)
        *sum += values[i] * weights[i];
    free(values);
    free(weights);
    return rc;
}

static int gradcheck_evaluate(const checker *check, double *loss)
{
    ek_scope scope = ek_scope_begin();
    ek_tensor **outputs = ek_calloc((size_t)check->output_room, sizeof *outputs);
    int rc = outputs ? check->function(check->user, check->inputs, check->input_count, outputs,
                                       check->output_room)
                     : ek_error_pending();
    *loss = 0;
    for (int i = 0, count = rc; i < count && rc >= 0; i++) {
        if (outputs[i])
            rc = gradcheck_weigh(outputs[i], gradcheck_direction_of(i, outputs[i]), loss);
    }
    free(outputs);
    ek_scope_end(&scope);
    return rc < 0 ? rc : 0;
}

/* Writes the gradients of the weighted outputs with respect to the inputs that require one, by
 * ek_grad, in the scope. A NULL gradient counts as zeros. */
static int gradcheck_differentiate(const checker *check, ek_tensor **gradients)
{
    size_t room = (size_t)check->output_room, input_count = (size_t)check->input_count;
    ek_tensor **outputs = ek_calloc(3 * room + 2 * input_count, sizeof *outputs);
    if (!outputs)
        return ek_error_pending();
    ek_tensor **roots = outputs + room, **directions = roots + room;
    ek_tensor **wanted = directions + room, **results = wanted + input_count;
    int roots_count = 0, wanted_count = 0;

    int rc = check->function(check->user, check->inputs, check->input_count, outputs,
                             check->output_room);
    for (int i = 0, count = rc; i < count && rc >= 0; i++) {
        if (!outputs[i])
            continue;
        rc = gradcheck_dtype(check, "output", i, outputs[i]);
        if (rc < 0 || !outputs[i]->requires_grad)
            continue;
        roots[roots_count] = outputs[i];
        directions[roots_count] = gradcheck_direction_of(i, outputs[i]);
        if (!directions[roots_count++])
            rc = ek_error_pending();
    }
    for (int i = 0; i < check->input_count; i++)
        if (check->inputs[i]->requires_grad)
            wanted[wanted_count++] = check->inputs[i];
    if (rc >= 0)
        rc = ek_grad(.outputs = roots, .output_count = roots_count, .inputs = wanted,
                     .input_count = wanted_count, .gradients = results, .grad_outputs = directions,
                     .allow_unused = true);
    for (int i = 0, k = 0; i < check->input_count; i++)
        gradients[i] = check->inputs[i]->requires_grad ? results[k++] : NULL;
    free(outputs);
    return rc < 0 ? rc : 0;
}

/* The element whose difference exceeds the allowed difference by the largest factor. */
typedef struct worst {
    double excess; /* difference / allowed */
    int input;
    int64_t element;
    double analytic, numeric;
} worst;

static int gradcheck_loss_at(const checker *check, ek_tensor *input, double *data, int64_t element,
                             double value, double *loss)
{
    double before = data[element];
    data[element] = value;
    int rc = ek_set_data(input, data, (size_t)ek_count(input) * sizeof *data);
    data[element] = before;
    return rc < 0 ? rc : gradcheck_evaluate(check, loss);
}

static int gradcheck_input(const checker *check, int index, const ek_tensor *gradient, worst *found)
{
    ek_tensor *input = check->inputs[index];
    double *data = NULL, *analytic = NULL;
    int rc = gradcheck_read_f64(input, &data);
    if (rc >= 0 && gradient)
        rc = gradcheck_read_f64(gradient, &analytic);
    for (int64_t e = 0; rc >= 0 && e < ek_count(input); e++) {
        double above, below;
        rc = gradcheck_loss_at(check, input, data, e, data[e] + check->epsilon, &above);
        if (rc >= 0)
            rc = gradcheck_loss_at(check, input, data, e, data[e] - check->epsilon, &below);
        if (rc < 0)
            break;
        double numeric = (above - below) / (2 * check->epsilon);
        double exact = analytic ? analytic[e] : 0;
        double excess = fabs(exact - numeric) / (check->absolute + check->relative * fabs(numeric));
        if (!(excess <= found->excess)) /* true for NaN */
            *found = (worst){isnan(excess) ? INFINITY : excess, index, e, exact, numeric};
    }
    /* Restores the input even after an error, of which the first stays the pending error. */
    if (data) {
        int status = ek_set_data(input, data, (size_t)ek_count(input) * sizeof *data);
        rc = rc < 0 ? rc : status;
    }
    free(data);
    free(analytic);
    return rc;
}

static int gradcheck_compare(const checker *check)
{
    ek_tensor **gradients = ek_calloc((size_t)check->input_count, sizeof *gradients);
    if (!gradients)
        return ek_error_pending();
    ek_scope scope = ek_scope_begin();
    worst found = {0, -1, 0, 0, 0};
    int rc = gradcheck_differentiate(check, gradients);
    for (int i = 0; rc >= 0 && i < check->input_count; i++)
        if (check->inputs[i]->requires_grad)
            rc = gradcheck_input(check, i, gradients[i], &found);
    ek_scope_end(&scope);
    free(gradients);
    if (rc < 0)
        return rc;
    if (found.excess <= 1)
        return 0;
    char text[200];
    return EK_FAIL(EK_E_AUTOGRAD,
                   "%s: element %lld of input %d, %s: backward says %.10g, central differences say "
                   "%.10g (allowed: %.3g + %.3g of it)",
                   check->name, (long long)found.element, found.input,
                   ek_tensor_text(check->inputs[found.input], text), found.analytic, found.numeric,
                   check->absolute, check->relative);
}

static int gradcheck_prepare(const char *name, const ek_gradcheck_options *options, checker *check)
{
    int pending = ek_error_status();
    if (pending < 0)
        return pending;
    if (!options->function || options->input_count < 0 ||
        (options->input_count && !options->inputs))
        return EK_FAIL(EK_E_INVALID, "%s needs a function and its inputs", name);
    *check = (checker){.name = name,
                       .inputs = options->inputs,
                       .input_count = options->input_count,
                       .output_room = 1,
                       .epsilon = options->epsilon,
                       .absolute = options->absolute_tolerance,
                       .relative = options->relative_tolerance};
    if (!(check->epsilon > 0) || !(check->absolute >= 0) || !(check->relative >= 0))
        return EK_FAIL(EK_E_INVALID,
                       "%s: epsilon %g has to be more than 0, absolute_tolerance %g and "
                       "relative_tolerance %g at least 0",
                       name, check->epsilon, check->absolute, check->relative);
    int wanted = 0;
    for (int i = 0; i < options->input_count; i++) {
        if (!options->inputs[i])
            return EK_FAIL(EK_E_INVALID, "%s: input %d is NULL", name, i);
        if (!options->inputs[i]->requires_grad)
            continue;
        EK_TRY(gradcheck_dtype(check, "input", i, options->inputs[i]));
        wanted++;
    }
    if (!wanted)
        return EK_FAIL(EK_E_INVALID, "%s: none of the %d inputs requires a gradient", name,
                       options->input_count);
    return 0;
}

static int gradcheck_one_output(void *user, ek_tensor *const *inputs, int count,
                                ek_tensor **outputs, int room)
{
    const ek_gradcheck_options *options = user;
    (void)room;
    outputs[0] = options->function(inputs, count, options->user);
    return outputs[0] ? 1 : ek_error_pending();
}

int ek_gradcheck_with(ek_gradcheck_options options)
{
    checker check;
    EK_TRY(gradcheck_prepare("ek_gradcheck", &options, &check));
    check.function = gradcheck_one_output;
    check.user = &options;
    bool enabled = ek_set_grad_enabled(true);
    int rc = gradcheck_compare(&check);
    ek_set_grad_enabled(enabled);
    return rc;
}

/* Computes the gradient as a function, for second derivatives. Its inputs are the function's
 * inputs, followed by the gradient of the output. Its outputs are the gradients of the inputs that
 * require a gradient. */
static int gradcheck_gradient_outputs(void *user, ek_tensor *const *inputs, int count,
                                      ek_tensor **outputs, int room)
{
    const ek_gradcheck_options *options = user;
    ek_tensor *output = options->function(inputs, count - 1, options->user);
    if (!output)
        return ek_error_pending();
    ek_tensor **wanted = ek_calloc((size_t)count, sizeof *wanted);
    if (!wanted)
        return ek_error_pending();
    int wanted_count = 0;
    for (int i = 0; i < count - 1; i++)
        if (inputs[i]->requires_grad)
            wanted[wanted_count++] = inputs[i];
    int rc = wanted_count <= room ? 0 : EK_FAIL(EK_E_STATE, "ek_gradgradcheck: too many inputs");
    if (rc >= 0)
        rc =
            ek_grad(.outputs = &output, .output_count = 1, .inputs = wanted,
                    .input_count = wanted_count, .gradients = outputs,
                    .grad_outputs = &inputs[count - 1], .create_graph = true, .allow_unused = true);
    free(wanted);
    return rc < 0 ? rc : wanted_count;
}

/* Returns a random gradient of the output, which is varied as the inputs are. Its seed differs from
 * the seeds of all directions. */
static ek_tensor *gradcheck_random_gradient(const ek_gradcheck_options *options)
{
    ek_tensor *output = options->function(options->inputs, options->input_count, options->user);
    ek_tensor *gradient = output ? gradcheck_direction_of(1000, output) : NULL;
    if (gradient)
        gradient->requires_grad = true;
    return gradient;
}

int ek_gradgradcheck_with(ek_gradcheck_options options)
{
    checker check;
    EK_TRY(gradcheck_prepare("ek_gradgradcheck", &options, &check));
    int count = options.input_count + 1;
    ek_tensor **inputs = ek_calloc((size_t)count, sizeof *inputs);
    if (!inputs)
        return ek_error_pending();
    ek_scope scope = ek_scope_begin();
    bool enabled = ek_set_grad_enabled(true);
    for (int i = 0; i < options.input_count; i++)
        inputs[i] = options.inputs[i];
    inputs[count - 1] = gradcheck_random_gradient(&options);
    check.function = gradcheck_gradient_outputs;
    check.user = &options;
    check.inputs = inputs;
    check.input_count = count;
    check.output_room = count;
    int rc = inputs[count - 1] ? gradcheck_dtype(&check, "output", 0, inputs[count - 1])
                               : ek_error_pending();
    if (rc >= 0)
        rc = gradcheck_compare(&check);
    ek_set_grad_enabled(enabled);
    ek_scope_end(&scope);
    free(inputs);
    return rc;
}
