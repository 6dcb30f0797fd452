/* nests.c: the net around the layers, of several inputs and outputs, and criteria. */
#include <evenkeel/ops.h>
#include <evenkeel/status.h>

#include "modules.h"
#include "program.h"

enum { MOST_TENSORS = 8 };

typedef struct nest {
    ek_module module;
    ek_module *body;
    int output;
} nest;

/* The tensors of a nest in their order; returns how many there are now. */
static int collect(ek_value value, ek_tensor **tensors, int count)
{
    if (value.kind == EK_VALUE_TENSOR && count < MOST_TENSORS)
        tensors[count++] = value.as.tensor;
    else if (value.kind == EK_VALUE_LIST || value.kind == EK_VALUE_DICT)
        for (int i = 0; i < ek_value_length(value); i++)
            count = collect(ek_value_at(value, i), tensors, count);
    return count;
}

static int collect_arguments(const ek_args *args, ek_tensor **tensors)
{
    int count = 0;
    for (int i = 0; i < args->count; i++)
        count = collect(args->inputs[i], tensors, count);
    return count;
}

/* ---- the net ---- */

static ek_value nest_output(int output, ek_tensor *y)
{
    ek_tensor *other = ek_add_scalar(ek_mul_scalar(y, 2), -1);
    if (output == OUTPUT_PAIR)
        return EK_LIST(y, other);
    ek_value rest = EK_LIST(other);
    if (!y || !other || rest.kind == EK_VALUE_ERROR)
        return ek_value_error();
    return ek_value_dict((ek_value_entry[]){{"scores", ek_value_of_tensor(y)}, {"rest", rest}}, 2);
}

static ek_value nest_forward(ek_module *module, const ek_args *args)
{
    nest *self = (nest *)module;
    ek_tensor *tensors[MOST_TENSORS], *x;
    int count = collect_arguments(args, tensors);
    if (count == 0) {
        ek_error(EK_E_INVALID, "the nest has no tensor");
        return ek_value_error();
    }
    x = tensors[0];
    for (int i = 1; i < count; i++)
        x = ek_add_scaled(x, tensors[i], 0.5);
    ek_tensor *y = ek_apply(self->body, x);
    return self->output == OUTPUT_ONE ? ek_value_of_tensor(y) : nest_output(self->output, y);
}

static const ek_module_type nest_type = {.name = "nest",
                                         .size = sizeof(nest),
                                         .forward = nest_forward};

static ek_module *nest_of(const ek_module_type *type, ek_module *body, int output)
{
    nest *self = body ? (nest *)ek_module_new(type) : NULL;
    if (!self) {
        ek_module_free(body);
        return NULL;
    }
    self->output = output;
    ek_register_module(&self->module, "body", &self->body, body);
    return ek_module_finish(&self->module);
}

ek_module *nest_new(ek_module *body, int output)
{
    return nest_of(&nest_type, body, output);
}

/* ---- its criterion ---- */

static ek_value nest_criterion_forward(ek_module *module, const ek_args *args)
{
    ek_tensor *tensors[MOST_TENSORS], *total = NULL;
    int count = collect_arguments(args, tensors);
    if (count < 2) {
        ek_error(EK_E_INVALID, "a criterion of %d tensors", count);
        return ek_value_error();
    }
    for (int i = 0; i < count - 1; i++) {
        ek_tensor *loss = ek_loss(((nest *)module)->body, tensors[i], tensors[count - 1]);
        total = i ? ek_add(total, loss) : loss;
    }
    return ek_value_of_tensor(ek_mul_scalar(total, 1.0 / (count - 1)));
}

/* As the criterion itself would be called. */
static ek_tensor *nest_criterion_denominator(ek_module *module, const ek_args *args)
{
    ek_module *body = ((nest *)module)->body;
    ek_tensor *tensors[MOST_TENSORS];
    int count = collect_arguments(args, tensors);
    if (count < 2)
        return NULL;
    ek_args inner = {EK_VALUES(tensors[0], tensors[count - 1]), 2, ek_value_none()};
    return body->type->denominator(body, &inner);
}

static bool nest_criterion_is_sum(ek_module *module)
{
    ek_module *body = ((nest *)module)->body;
    return body->type->is_sum && body->type->is_sum(body);
}

static const ek_module_type nest_criterion_type = {.name = "nest_criterion",
                                                   .size = sizeof(nest),
                                                   .forward = nest_criterion_forward,
                                                   .denominator = nest_criterion_denominator,
                                                   .is_sum = nest_criterion_is_sum};

/* Around criteria that are means over samples. */
static const ek_module_type nest_samples_type = {.name = "nest_samples",
                                                 .size = sizeof(nest),
                                                 .forward = nest_criterion_forward};

ek_module *nest_criterion_new(ek_module *criterion)
{
    bool counts = criterion && criterion->type->denominator;
    return nest_of(counts ? &nest_criterion_type : &nest_samples_type, criterion, 0);
}

/* ---- criteria of the user's ---- */

static ek_tensor *counted(ek_tensor *target)
{
    ek_tensor *level = target ? ek_full(0.4, ek_scalar_shape(), .dtype = ek_tensor_dtype(target),
                                        .device = ek_tensor_device(target))
                              : NULL;
    return target ? ek_to_dtype(ek_gt(target, level), ek_tensor_dtype(target)) : NULL;
}

static ek_value weighted_forward(ek_module *module, const ek_args *args)
{
    ek_tensor *y = ek_arg_tensor(args, 0), *t = ek_arg_tensor(args, 1), *w = counted(t);
    return ek_value_of_tensor(ek_div(ek_sum(ek_mul(w, ek_square(ek_sub(y, t)))), ek_sum(w)));
}

static ek_tensor *weighted_denominator(ek_module *module, const ek_args *args)
{
    return ek_sum(counted(ek_arg_tensor(args, 1)));
}

static const ek_module_type weighted_type = {.name = "weighted_squares",
                                             .size = sizeof(ek_module),
                                             .forward = weighted_forward,
                                             .denominator = weighted_denominator};

ek_module *weighted_criterion_new(void)
{
    return ek_module_new(&weighted_type);
}

static ek_value samples_forward(ek_module *module, const ek_args *args)
{
    ek_tensor *y = ek_arg_tensor(args, 0), *t = ek_arg_tensor(args, 1);
    ek_tensor *distance = ek_abs(ek_sub(y, t));
    if (!distance)
        return ek_value_error();
    return ek_value_of_tensor(ek_mul_scalar(ek_sum(ek_mul(distance, ek_square(distance))),
                                            1.0 / (double)ek_tensor_size(distance, 0)));
}

static const ek_module_type samples_type = {.name = "cubes_per_sample",
                                            .size = sizeof(ek_module),
                                            .forward = samples_forward};

ek_module *samples_criterion_new(void)
{
    return ek_module_new(&samples_type);
}
