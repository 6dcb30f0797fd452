/* grad.c: ek_backward and ek_grad. */
#include "autograd/run.h"
#include "autograd/shards.h"
#include "kernels/kernels.h"

/* A walk can begin at the root. */
static int grad_check_root(const char *function, int index, const ek_tensor *output)
{
    char text[200];
    if (!output)
        return EK_FAIL(EK_E_INVALID, "%s: output %d is NULL", function, index);
    EK_TRY(ek_check_alive(function, "an output", output));
    if (!output->requires_grad)
        return EK_FAIL(
            EK_E_AUTOGRAD,
            "%s: output %d, %s, has no gradient: nothing that it was computed from requires one, "
            "or gradient mode was off",
            function, index, ek_tensor_text(output, text));
    return 0;
}

/* The gradient of a root, in the scope. */
static ek_tensor *grad_of_root(const char *function, int index, ek_tensor *output,
                               ek_tensor *gradient)
{
    char texts[2][200];
    if (ek_check_alive(function, "a gradient that is given", gradient) < 0)
        return NULL;
    if (gradient) {
        if (ek_same_shape(gradient, output) && gradient->dtype == output->dtype &&
            ek_tensor_dev(gradient) == ek_tensor_dev(output))
            return gradient;
        return EK_FAIL_NULL(EK_E_SHAPE,
                            "%s: the gradient given for output %d is %s, but the output is %s",
                            function, index, ek_tensor_text(gradient, texts[1]),
                            ek_tensor_text(output, texts[0]));
    }
    if (ek_count(output) != 1)
        return EK_FAIL_NULL(
            EK_E_SHAPE,
            "%s: output %d, %s, has more than one element (or none): give its gradient, or sum it",
            function, index, ek_tensor_text(output, texts[0]));
    ek_tensor *ones = ek_tensor_like(output);
    if (!ones || ek_kernels_of(ones)->fill(ek_tensor_dev(ones), ones, 1) < 0)
        return NULL;
    return ones;
}

/* Walks from the roots and runs the tasks. The caller has set the run's options. */
static int grad_run(ek_run *run, const char *function, ek_tensor *const *roots,
                    ek_tensor *const *grad_outputs, int count)
{
    ek_route *routes = ek_run_alloc(run, (size_t)count * sizeof *routes);
    ek_tensor **gradients = ek_run_alloc(run, (size_t)count * sizeof *gradients);
    if (!routes || !gradients)
        return ek_error_pending();
    for (int i = 0; i < count; i++)
        EK_TRY(grad_check_root(function, i, roots[i]));
    EK_TRY(ek_run_walk(run, roots, count, routes));
    ek_scope scope = ek_scope_begin();
    ek_memory_category before = ek_memory_set_category(EK_MEMORY_ACTIVATION);
    int rc = 0;
    for (int i = 0; i < count && rc >= 0; i++) {
        gradients[i] = grad_of_root(function, i, roots[i], grad_outputs ? grad_outputs[i] : NULL);
        rc = gradients[i] ? 0 : ek_error_pending();
    }
    ek_memory_set_category(before);
    for (int i = 0; rc >= 0 && i < count; i++)
        ek_keep(gradients[i]);
    ek_scope_end(&scope);
    return ek_run_execute(run, routes, gradients, rc < 0 ? rc : count);
}

int ek_backward_with(ek_backward_options options)
{
    int pending = ek_error_status();
    if (pending < 0)
        return pending;
    EK_TRY(ek_fork_check());
    if (!options.loss)
        return EK_FAIL(EK_E_INVALID, "ek_backward: the loss is NULL");
    ek_run run = {.create_graph = options.create_graph,
                  .retain_graph = options.retain_graph || options.create_graph,
                  .accumulate = true};
    int rc = grad_run(&run, "ek_backward", &options.loss, &options.gradient, 1);
    ek_run_free(&run);
    return rc;
}

/* ---- ek_grad ---- */

static int grad_check_options(const ek_grad_options *options)
{
    if (options->output_count < 0 || options->input_count < 0 ||
        (options->output_count && !options->outputs) ||
        (options->input_count && (!options->inputs || !options->gradients)))
        return EK_FAIL(EK_E_INVALID,
                       "ek_grad: outputs, inputs and gradients must be arrays of output_count (%d) "
                       "and input_count (%d) entries",
                       options->output_count, options->input_count);
    for (int i = 0; i < options->input_count; i++) {
        char text[200];
        if (!options->inputs[i])
            return EK_FAIL(EK_E_INVALID, "ek_grad: input %d is NULL", i);
        EK_TRY(ek_check_alive("ek_grad", "an input", options->inputs[i]));
        if (!options->inputs[i]->requires_grad)
            return EK_FAIL(EK_E_AUTOGRAD, "ek_grad: input %d, %s, does not require a gradient", i,
                           ek_tensor_text(options->inputs[i], text));
    }
    return 0;
}

static int grad_capture_inputs(ek_run *run, const ek_grad_options *options, ek_buffer **buffers)
{
    for (int i = 0; i < options->input_count; i++) {
        ek_task *task;
        buffers[i] = ek_run_buffer(run, options->inputs[i], &task);
        if (!buffers[i])
            return ek_error_pending();
        buffers[i]->capture = true;
    }
    return 0;
}

static int grad_check_captured(const ek_grad_options *options, ek_buffer *const *buffers)
{
    for (int i = 0; i < options->input_count && !options->allow_unused; i++) {
        char text[200];
        if (buffers[i]->captured)
            continue;
        const ek_tensor *input = options->inputs[i];
        ek_tensor_text(input, text);
        if (input->shards && !ek_leaf_ranks(input))
            return EK_FAIL(
                EK_E_AUTOGRAD,
                "ek_grad: input %d, %s, is sharded over devices, and gradients go to its "
                "shards: use ek_backward and ek_gather_grad",
                i, text);
        return EK_FAIL(EK_E_AUTOGRAD,
                       "ek_grad: input %d, %s, has no part in the outputs; pass allow_unused if "
                       "that is meant",
                       i, text);
    }
    return 0;
}

int ek_grad_with(ek_grad_options options)
{
    for (int i = 0; options.gradients && i < options.input_count; i++)
        options.gradients[i] = NULL;
    int pending = ek_error_status();
    if (pending < 0)
        return pending;
    EK_TRY(ek_fork_check());
    EK_TRY(grad_check_options(&options));
    ek_run run = {.create_graph = options.create_graph,
                  .retain_graph = options.retain_graph || options.create_graph};
    ek_buffer **buffers = ek_run_alloc(&run, (size_t)options.input_count * sizeof *buffers);
    int rc = buffers ? grad_capture_inputs(&run, &options, buffers) : ek_error_pending();
    if (rc >= 0)
        rc = grad_run(&run, "ek_grad", options.outputs, options.grad_outputs, options.output_count);
    if (rc >= 0)
        rc = grad_check_captured(&options, buffers);
    for (int i = 0; i < options.input_count && rc >= 0; i++) {
        if (!buffers[i]->captured)
            continue;
        options.gradients[i] = ek_scope_adopt(buffers[i]->captured);
        buffers[i]->captured = NULL;
        for (int k = i + 1; k < options.input_count && !buffers[i]->captured; k++)
            if (buffers[k] == buffers[i]) /* the same input given twice */
                buffers[i]->captured = ek_keep(options.gradients[i]);
        rc = options.gradients[i] ? 0 : ek_error_pending();
    }
    ek_run_free(&run);
    return rc;
}
