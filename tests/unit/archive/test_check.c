/* EVENKEEL_CHECK=1: handles that are used after their release, or released twice. */
#include "check_setup.h"

NAMES_DEVICES

static ek_tensor *released_by_scope(void)
{
    ek_scope scope = ek_scope_begin();
    ek_tensor *x = a_tensor();
    HERE, ek_scope_end(&scope);
    return x;
}

static void item(void)
{
    double value;
    ck_assert_int_eq(ek_item(released_by_scope(), &value), EK_E_STATE);
}

static void first_operand(void)
{
    ck_assert_ptr_null(ek_add(released_by_scope(), a_tensor()));
}

static void second_operand(void)
{
    ck_assert_ptr_null(ek_matmul(a_tensor(), released_by_scope()));
}

static void backward(void)
{
    ck_assert_int_eq(ek_backward(released_by_scope()), EK_E_STATE);
}

static void keep(void)
{
    ck_assert_ptr_null(ek_keep(released_by_scope()));
}

static void shape(void)
{
    ck_assert_int_eq(ek_tensor_shape(released_by_scope()).ndim, 0);
}

static void data(void)
{
    ck_assert_ptr_null(ek_tensor_data(released_by_scope()));
}

static void gradient(void)
{
    ck_assert_ptr_null(ek_tensor_grad(released_by_scope()));
}

static void register_parameter(void)
{
    ek_module *list = ek_parameter_list(a_tensor());
    ck_assert_int_lt(ek_parameter_list_append(list, released_by_scope()), 0);
    ek_module_free(list);
}

static void set_buffer(void)
{
    ek_module *norm = ek_batch_norm1d(4);
    ck_assert_int_eq(ek_module_set_tensor(norm, "running_mean", released_by_scope()), EK_E_STATE);
    ek_module_free(norm);
}

static void scope_of_block(void)
{
    ek_tensor *x = NULL;
    for (int i = 0; i < 2; i++) {
        HERE;
        EK_SCOPE(step);
        x = a_tensor();
        if (i == 0)
            continue;
    }
    line++;
    ek_neg(x);
}

static void release_then_use(void)
{
    ek_tensor *x = a_tensor();
    HERE, ek_release(x); /* the scope's reference */
    ek_exp(x);
}

static void release_twice(void)
{
    EK_SCOPE(scope);
    ek_tensor *x = a_tensor();
    HERE, ek_release(x);
}

static void release_released(void)
{
    ek_tensor *x = released_by_scope();
    ek_release(x);
}

static void list_after_scope(void)
{
    ek_scope scope = ek_scope_begin();
    ek_value list = EK_LIST(a_tensor(), a_tensor());
    HERE, ek_scope_end(&scope);
    ck_assert_int_eq(ek_value_at(list, 0).kind, EK_VALUE_ERROR);
}

static void dictionary_released(void)
{
    const ek_value_entry entry = {"x", EK_VALUE(a_tensor())};
    ek_value dict = ek_value_dict(&entry, 1);
    HERE, ek_value_release(dict);
    ck_assert_int_eq(ek_value_get(dict, "x").kind, EK_VALUE_ERROR);
}

static void return_released(void)
{
    ek_tensor *x = released_by_scope();
    ek_scope scope = ek_scope_begin();
    ck_assert_ptr_null(ek_scope_return(&scope, x));
}

static void parameter_after_module(void)
{
    ek_module *module = ek_linear(2, 2);
    ek_tensor *weight = ek_module_tensor(module, "weight");
    HERE, ek_module_free(module);
    ek_sum(weight);
}

static ek_module *freed_module(void)
{
    ek_module *module = ek_linear(2, 2);
    HERE, ek_module_free(module);
    return module;
}

static void apply(void)
{
    ck_assert_ptr_null(ek_apply(freed_module(), a_tensor()));
}

static void module_at_root(void)
{
    ck_assert_ptr_null(ek_module_at(freed_module(), ""));
}

static void optimizer_of_module(void)
{
    ck_assert_ptr_null(ek_sgd(freed_module(), .lr = 0.1));
}

static void module_twice(void)
{
    ek_module_free(freed_module());
}

static void wrap_module(void)
{
    ck_assert_ptr_null(ek_data_parallel_model(freed_module()));
}

static void child_of_sequential(void)
{
    ck_assert_ptr_null(ek_sequential(freed_module()));
}

static void child_freed_alone(void)
{
    ek_module *child = ek_linear(2, 2), *parent = ek_sequential(child);
    HERE, ek_module_free(child);
    ek_module_free(parent);
}

static ek_optimizer *freed_optimizer(void)
{
    ek_module *module = ek_linear(2, 2);
    ek_optimizer *optimizer = ek_sgd(module, .lr = 0.1);
    ek_module_free(module);
    HERE, ek_optimizer_free(optimizer);
    return optimizer;
}

static void step(void)
{
    ck_assert_int_eq(ek_step(freed_optimizer()), EK_E_STATE);
}

static void zero_grad(void)
{
    ek_zero_grad(freed_optimizer());
}

static void optimizer_twice(void)
{
    ek_optimizer_free(freed_optimizer());
}

static void schedule_after_optimizer(void)
{
    ek_module *module = ek_linear(2, 2);
    ek_optimizer *optimizer = ek_sgd(module, .lr = 0.1);
    ek_schedule *schedule = ek_step_lr(optimizer, 1, 0.5);
    HERE, ek_optimizer_free(optimizer);
    ck_assert_int_eq(ek_schedule_step(schedule), EK_E_STATE);
    ek_schedule_free(schedule);
    ek_module_free(module);
}

static void loader(void)
{
    ek_loader *made = ek_data_loader(ek_tensor_dataset(a_tensor()), .batch_size = 1);
    ek_batch batch;
    HERE, ek_loader_free(made);
    ck_assert_int_eq(ek_loader_next(made, &batch), EK_E_STATE);
}

static void data_set_of_loader(void)
{
    ek_dataset *dataset = ek_tensor_dataset(a_tensor());
    ek_loader *made = ek_data_loader(dataset, .batch_size = 1);
    HERE, ek_loader_free(made);
    ck_assert_int_eq(ek_dataset_length(dataset), EK_E_STATE);
}

static void scaler(void)
{
    ek_grad_scaler *made = ek_grad_scaler_new();
    HERE, ek_grad_scaler_free(made);
    ck_assert_ptr_null(ek_grad_scaler_scale(made, a_tensor()));
}

static void ema(void)
{
    ek_module *module = ek_linear(2, 2);
    ek_ema *made = ek_ema_new(module);
    ek_module_free(module);
    HERE, ek_ema_free(made);
    ck_assert_int_eq(ek_ema_update(made), EK_E_STATE);
}

static void report(void)
{
    ek_report *made = ek_report_start(.name = "x");
    HERE, ek_report_free(made);
    ck_assert_int_lt(ek_report_step(made), 0);
}

static void archive(void)
{
    ek_archive *made = ek_archive_new();
    HERE, ek_archive_free(made);
    ck_assert_int_lt(ek_archive_put(made, "x", EK_VALUE(a_tensor())), 0);
}

static void generator(void)
{
    ek_generator *made = ek_generator_new(1);
    HERE, ek_generator_free(made);
    ek_generator_free(made);
}

/* A module that gives its activation away through a plain member. */
typedef struct keeper {
    ek_module module;
    ek_tensor *last;
} keeper;

static ek_value keeper_forward(ek_module *module, const ek_args *args)
{
    keeper *self = (keeper *)module;
    self->last = ek_f_relu(ek_arg_tensor(args, 0));
    return EK_VALUE(ek_neg(self->last));
}

static void activation_after_forward(void)
{
    static const ek_module_type type = {.name = "keeper",
                                        .size = sizeof(keeper),
                                        .forward = keeper_forward};
    ek_module *net = ek_module_new(&type);
    assert_made(ek_apply(net, a_tensor()));
    ek_neg(((keeper *)net)->last);
    ek_module_free(net);
}

static const check_mistake mistakes[] = {
    {item, "item: the tensor was released by the scope that ended at @; ek_keep it"},
    {first_operand, "add: x was released by the scope that ended at @; ek_keep it"},
    {second_operand, "matmul: y was released by the scope that ended at @"},
    {backward, "ek_backward: an output was released by the scope that ended at @"},
    {keep, "keep: the tensor was released by the scope that ended at @"},
    {shape, "tensor_shape: the tensor was released by the scope that ended at @"},
    {data, "tensor_data: the tensor was released by the scope that ended at @"},
    {gradient, "tensor_grad: the tensor was released by the scope that ended at @"},
    {register_parameter, "the parameter was released by the scope that ended at @"},
    {set_buffer, "module_set_tensor: the tensor was released by the scope that ended at @"},
    {scope_of_block, "neg: x was released by the scope that began at @; ek_keep it"},
    {release_then_use, "exp: x was released by ek_release at @ ["},
    {release_twice, "this tensor was released before by ek_release at @"},
    {release_released, "this tensor was released before by the scope that ended at @"},
    {list_after_scope, "the value was released by the scope that ended at @; ek_value_keep it"},
    {dictionary_released, "the dictionary was released by ek_value_release at @ ["},
    {return_released, "scope_return: what the scope returns was released by the scope that ended "
                      "at @"},
    {parameter_after_module, "sum: x was released by ek_module_free at @ ["},
    {apply, "module_forward: the module was released by ek_module_free at @"},
    {module_at_root, "module_at: the module was released by ek_module_free at @"},
    {optimizer_of_module, "sgd: the module was released by ek_module_free at @"},
    {module_twice, "this module was released before by ek_module_free at @"},
    {wrap_module, "was released by ek_module_free at @"},
    {child_of_sequential, "the child was released by ek_module_free at @"},
    {child_freed_alone, "this module was released before by ek_module_free at @"},
    {step, "optimizer: the optimizer was released by ek_optimizer_free at @"},
    {zero_grad, "zero_grad: the optimizer was released by ek_optimizer_free at @"},
    {optimizer_twice, "this optimizer was released before by ek_optimizer_free at @"},
    {schedule_after_optimizer, "the optimizer was released by ek_optimizer_free at @"},
    {loader, "loader_next: the loader was released by ek_loader_free at @"},
    {data_set_of_loader, "the data set was released by ek_loader_free at @"},
    {scaler, "the scaler was released by ek_grad_scaler_free at @"},
    {ema, "the ema was released by ek_ema_free at @"},
    {report, "report_step: the report was released by ek_report_free at @"},
    {archive, "the archive was released by ek_archive_free at @"},
    {generator, "this generator was released before by ek_generator_free at @"},
    {activation_after_forward, "neg: x was released by the forward of keeper; ek_keep it"},
};

TEST_LOOP(mistakes_are_named_with_the_line_that_released, 0, sizeof mistakes / sizeof *mistakes)
{
    assert_named(&mistakes[_i], "test_check.c");
}
