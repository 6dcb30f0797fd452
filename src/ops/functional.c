/* functional.c: products with the Jacobian of a function, the Jacobian and the Hessian. */
#include "evenkeel/functional.h"

#include <stdlib.h>

#include "ops/ops.h"

/* One evaluation. */
typedef struct functional {
    const char *name;
    ek_functional_options options;
    int outputs;                         /* how many */
    ek_tensor *x[EK_FUNCTIONAL_TENSORS]; /* what the function is given */
    ek_tensor *y[EK_FUNCTIONAL_TENSORS]; /* what it made */
} functional;

static int functional_check(functional *f)
{
    const ek_functional_options *o = &f->options;
    if (!o->function || !o->inputs || !o->results)
        return ek_error_status() < 0 ? ek_error_pending()
                                     : EK_FAIL(EK_E_INVALID, "%s: the %s", f->name,
                                               !o->function ? "function is NULL"
                                               : !o->inputs ? "inputs are NULL"
                                                            : "results are NULL");
    f->outputs = o->output_count ? o->output_count : 1;
    if (o->input_count < 1 || o->input_count > EK_FUNCTIONAL_TENSORS || f->outputs < 1 ||
        f->outputs > EK_FUNCTIONAL_TENSORS)
        return EK_FAIL(EK_E_INVALID, "%s: %d inputs and %d outputs; there can be 1 to %d of each",
                       f->name, o->input_count, f->outputs, EK_FUNCTIONAL_TENSORS);
    for (int i = 0; i < o->input_count; i++)
        if (!ek_floating(f->name, "an input", o->inputs[i]))
            return ek_error_pending();
    return 0;
}

/* Calls the function on new leaves. With create_graph, inputs that require a gradient are passed
 * directly. */
static int functional_call(functional *f)
{
    const ek_functional_options *o = &f->options;
    for (int i = 0; i < o->input_count; i++) {
        ek_tensor *x = o->inputs[i];
        f->x[i] = o->create_graph && x->requires_grad ? x : ek_detach(x);
        if (!f->x[i] || (!f->x[i]->requires_grad && ek_tensor_set_requires_grad(f->x[i], true) < 0))
            return ek_error_pending();
    }
    EK_TRY(ek_error_outcome(o->function(f->x, f->y, o->user)));
    for (int i = 0; i < f->outputs; i++)
        if (!ek_floating(f->name, "an output", f->y[i]))
            return ek_error_pending();
    return 0;
}

/* Writes the gradients of the inputs from the outputs that require a gradient. If no output depends
 * on an input, writes zeros. */
static int functional_grad(ek_tensor *const *y, ek_tensor *const *v, int outputs,
                           ek_tensor *const *x, int inputs, ek_tensor **results, bool create_graph)
{
    ek_tensor *roots[EK_FUNCTIONAL_TENSORS], *weights[EK_FUNCTIONAL_TENSORS];
    int count = 0;
    for (int i = 0; i < inputs; i++)
        results[i] = NULL;
    for (int i = 0; i < outputs; i++)
        if (y[i] && y[i]->requires_grad) {
            roots[count] = y[i];
            weights[count++] = v ? v[i] : NULL;
        }
    if (count > 0)
        EK_TRY(ek_grad(.outputs = roots, .output_count = count, .inputs = x, .input_count = inputs,
                       .gradients = results, .grad_outputs = weights, .retain_graph = true,
                       .create_graph = create_graph, .allow_unused = true));
    for (int i = 0; i < inputs; i++) {
        if (!results[i])
            results[i] = ek_zeros_like(x[i]);
        if (!results[i])
            return ek_error_pending();
    }
    return 0;
}

/* Returns true if every v[i] has the shape, device and dtype of x[i]. If x[i] has one element, v[i]
 * may be NULL. */
static bool functional_fits(const functional *f, ek_tensor *const *x, int count, const char *what)
{
    for (int i = 0; i < count; i++) {
        ek_tensor *v = f->options.v ? f->options.v[i] : NULL;
        ek_shape shape = ek_tensor_shape(x[i]);
        if (!v && ek_count(x[i]) != 1)
            return EK_FAIL(EK_E_SHAPE, "%s: v is needed, because %s %d has %lld elements", f->name,
                           what, i, (long long)ek_count(x[i])) == 0;
        if (v && (!ek_of_shape(f->name, "v", v, &shape) || !ek_alike(f->name, v, x[i])))
            return false;
    }
    return true;
}

/* ---- the four ---- */

typedef int functional_body(functional *f);

static int functional_vjp(functional *f)
{
    const ek_functional_options *o = &f->options;
    if (!functional_fits(f, f->y, f->outputs, "output"))
        return ek_error_pending();
    return functional_grad(f->y, o->v, f->outputs, f->x, o->input_count, o->results,
                           o->create_graph);
}

/* Computes J v by two backwards: v' J is linear in v', so that its derivative by v' is J, which is
 * multiplied by v. */
static int functional_jvp(functional *f)
{
    const ek_functional_options *o = &f->options;
    ek_tensor *u[EK_FUNCTIONAL_TENSORS], *rows[EK_FUNCTIONAL_TENSORS], *ones[EK_FUNCTIONAL_TENSORS];
    if (!functional_fits(f, f->x, o->input_count, "input"))
        return ek_error_pending();
    for (int i = 0; i < f->outputs; i++)
        if (!(u[i] = ek_zeros_like(f->y[i])) || ek_tensor_set_requires_grad(u[i], true) < 0)
            return ek_error_pending();
    for (int i = 0; i < o->input_count; i++)
        if (!(ones[i] = o->v && o->v[i] ? o->v[i] : ek_ones_like(f->x[i])))
            return ek_error_pending();
    EK_TRY(functional_grad(f->y, u, f->outputs, f->x, o->input_count, rows, true));
    return functional_grad(rows, ones, o->input_count, u, f->outputs, o->results, o->create_graph);
}

/* Computes derivatives of each element of y by the inputs. The shape of results[i] has y's
 * dimensions, then those of x[i]. */
static int functional_rows(const functional *f, ek_tensor *y, ek_tensor **results,
                           bool create_graph)
{
    const int inputs = f->options.input_count;
    const int64_t count = ek_count(y);
    int rc = 0;
    for (int i = 0; i < inputs; i++)
        if (y->ndim + f->x[i]->ndim > EK_MAX_DIMS)
            return EK_FAIL(EK_E_SHAPE, "%s: %s by %s has more than %d dimensions", f->name,
                           EK_SIZE_TEXT(y), EK_SIZE_TEXT(f->x[i]), EK_MAX_DIMS);
    ek_tensor **rows = ek_calloc((size_t)(count * inputs) + 1, sizeof *rows);
    ek_tensor *flat = rows ? ek_reshape(y, EK_SHAPE(count)) : NULL;
    if (!flat)
        rc = ek_error_pending();
    for (int64_t e = 0; e < count && rc >= 0; e++) {
        ek_tensor *element = ek_select(flat, 0, e), *found[EK_FUNCTIONAL_TENSORS];
        rc = element ? functional_grad(&element, NULL, 1, f->x, inputs, found, create_graph)
                     : ek_error_pending();
        for (int i = 0; i < inputs && rc >= 0; i++)
            rows[i * count + e] = found[i];
    }
    for (int i = 0; i < inputs && rc >= 0; i++) {
        ek_shape shape = ek_tensor_shape(y);
        for (int d = 0; d < f->x[i]->ndim; d++)
            shape.dims[shape.ndim++] = f->x[i]->shape[d];
        results[i] = count > 0 ? ek_reshape(ek_stack(rows + i * count, (int)count, 0), shape)
                               : ek_filled(ek_tensor_dev(y), y->dtype, &shape, 0);
        rc = results[i] ? 0 : ek_error_pending();
    }
    free(rows);
    return rc;
}

static int functional_jacobian(functional *f)
{
    const ek_functional_options *o = &f->options;
    for (int i = 0; i < f->outputs; i++)
        EK_TRY(functional_rows(f, f->y[i], o->results + i * o->input_count, o->create_graph));
    return 0;
}

static int functional_hessian(functional *f)
{
    const ek_functional_options *o = &f->options;
    ek_tensor *gradients[EK_FUNCTIONAL_TENSORS];
    if (f->outputs != 1 || ek_count(f->y[0]) != 1)
        return EK_FAIL(EK_E_SHAPE, "%s: the function must have one output of one element", f->name);
    ek_tensor *y = ek_reshape(f->y[0], ek_scalar_shape());
    EK_TRY(functional_grad(&y, NULL, 1, f->x, o->input_count, gradients, true));
    for (int i = 0; i < o->input_count; i++)
        EK_TRY(functional_rows(f, gradients[i], o->results + i * o->input_count, o->create_graph));
    return 0;
}

/* Moves results and outputs out of the scope. Without create_graph they are detached. */
static int functional_return(const functional *f, ek_tensor **tensors, int count)
{
    for (int i = 0; i < count; i++) {
        tensors[i] = f->options.create_graph ? tensors[i] : ek_detach(tensors[i]);
        if (!tensors[i])
            return ek_error_pending();
    }
    return 0;
}

/* Results are numbered by inputs, by outputs, or by both. */
typedef enum functional_order {
    BY_INPUT,
    BY_OUTPUT,
    BY_OUTPUT_AND_INPUT,
    BY_TWO_INPUTS
} functional_order;

static int functional_run(const char *name, ek_functional_options options, functional_body *body,
                          functional_order order)
{
    functional f = {.name = name, .options = options};
    EK_TRY(functional_check(&f));
    const int inputs = options.input_count;
    const int count = order == BY_INPUT              ? inputs
                      : order == BY_OUTPUT           ? f.outputs
                      : order == BY_OUTPUT_AND_INPUT ? f.outputs * inputs
                                                     : inputs * inputs;
    for (int i = 0; i < count; i++)
        options.results[i] = NULL;
    ek_scope scope = ek_scope_begin();
    bool enabled = ek_set_grad_enabled(true);
    int rc = functional_call(&f);
    rc = rc >= 0 ? body(&f) : rc;
    rc = rc >= 0 ? functional_return(&f, options.results, count) : rc;
    rc = rc >= 0 ? functional_return(&f, f.y, f.outputs) : rc;
    ek_set_grad_enabled(enabled);
    for (int i = 0; i < count && rc >= 0; i++)
        ek_keep(options.results[i]);
    for (int i = 0; options.outputs && i < f.outputs && rc >= 0; i++)
        options.outputs[i] = ek_keep(f.y[i]);
    ek_scope_end(&scope);
    for (int i = 0; i < count; i++)
        options.results[i] = rc >= 0 ? ek_scope_adopt(options.results[i]) : NULL;
    for (int i = 0; options.outputs && i < f.outputs; i++)
        options.outputs[i] = rc >= 0 ? ek_scope_adopt(options.outputs[i]) : NULL;
    return rc;
}

int ek_vjp_with(ek_functional_options options)
{
    return functional_run("vjp", options, functional_vjp, BY_INPUT);
}

int ek_jvp_with(ek_functional_options options)
{
    return functional_run("jvp", options, functional_jvp, BY_OUTPUT);
}

int ek_jacobian_with(ek_functional_options options)
{
    return functional_run("jacobian", options, functional_jacobian, BY_OUTPUT_AND_INPUT);
}

int ek_hessian_with(ek_functional_options options)
{
    return functional_run("hessian", options, functional_hessian, BY_TWO_INPUTS);
}
