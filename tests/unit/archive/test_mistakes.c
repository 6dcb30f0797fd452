/* Thirty mistakes that people make at run time: each gets an error whose sentence has the words
 * that name the remedy, or what is wrong with which value. */
#include "devices.h"
#include "unit.h"

NAMES_DEVICES

/* Runs what makes the mistake, which frees no module: `net` and `other` are freed here. */
#define MISTAKE(number, status, words, ...)                  \
    TEST(mistake_##number)                                   \
    {                                                        \
        ek_module *net = NULL, *other = NULL;                \
        ek_optimizer *optimizer = NULL;                      \
        ck_assert_int_eq(ek_host_devices_configure("2"), 0); \
        __VA_ARGS__;                                         \
        assert_error(status, words);                         \
        ek_optimizer_free(optimizer);                        \
        ek_module_free(net);                                 \
        ek_module_free(other);                               \
    }
#define ONES(...) ek_ones(EK_SHAPE(__VA_ARGS__))
#define WANTING(...) ek_ones(EK_SHAPE(__VA_ARGS__), .requires_grad = true)

MISTAKE(1, EK_E_DEVICE, "move one with ek_to_device", net = ek_linear(4, 2);
        ek_module_to_device(net, ek_host(0)); ek_forward(net, ONES(3, 4)))
MISTAKE(2, EK_E_SHAPE, "last dimension to be 4, got f32[3, 5]", net = ek_linear(4, 2);
        ek_forward(net, ONES(3, 5)))
MISTAKE(3, EK_E_SHAPE, "sequential: 2 (linear)",
        net = ek_sequential(ek_relu(), ek_flatten(1, -1), ek_linear(100, 10));
        ek_forward(net, ONES(2, 1, 8, 8)))
MISTAKE(4, EK_E_SHAPE, "classes have dtype i64", ek_f_cross_entropy(ONES(3, 4), ONES(3)))
MISTAKE(5, EK_E_DTYPE, "convert one with ek_to_dtype", net = ek_conv2d(1, 8, 3);
        ek_forward(net, ek_zeros(EK_SHAPE(2, 1, 8, 8), EK_U8)))
MISTAKE(6, EK_E_INVALID, "it must be from 0 to 3",
        ek_f_cross_entropy(ONES(3, 4), ek_full(9, EK_SHAPE(3), EK_I64)))
MISTAKE(7, EK_E_STATE, "with retain_graph the first time",
        ek_tensor *loss = ek_sum(ek_square(WANTING(2)));
        ek_backward(loss); ek_backward(loss))
MISTAKE(8, EK_E_SHAPE, "or sum it", ek_backward(ek_square(WANTING(2))))
MISTAKE(9, EK_E_AUTOGRAD, "gradient mode was off", ek_backward(ek_sum(ONES(2))))
MISTAKE(10, EK_E_INVALID, "adam has no momentum; its options are lr", net = ek_linear(1, 1);
        ek_optimizer *adam = ek_adam(net); ek_optimizer_set(adam, 0, "momentum", 0.9);
        ek_optimizer_free(adam))
MISTAKE(11, EK_E_DTYPE, "convert one with ek_to_dtype",
        ek_add(ONES(2), ek_ones(EK_SHAPE(2), EK_F64)))
MISTAKE(12, EK_E_DEVICE, "4 host devices wanted", ek_devices(EK_HOST, 4))
MISTAKE(13, EK_E_AUTOGRAD, "turn gradient mode off for it", ek_mul_scalar_(WANTING(2), 2))
MISTAKE(14, EK_E_INVALID, "a criterion takes those by ek_data_parallel_criterion",
        net = ek_data_parallel_model(ek_linear(4, 2));
        other = ek_mse_loss(); ek_loss(other, ek_forward(net, ONES(4, 4)), ONES(4, 2)))
MISTAKE(15, EK_E_INVALID, "ek_value_to_device joins them",
        net = ek_data_parallel_model(ek_linear(4, 2));
        ek_value_tensor(ek_forward(net, ONES(4, 4))))
MISTAKE(16, EK_E_DEVICE, "mse_loss: operands on host:0 and cpu",
        net = ek_data_parallel(ek_linear(4, 2));
        other = ek_mse_loss(); ek_loss(other, ek_forward(net, ONES(4, 4)), WANTING(4, 2)))
MISTAKE(17, EK_E_INVALID, "use what is in it (ek_module_child",
        net = ek_module_list(ek_linear(4, 2));
        ek_forward(net, ONES(4, 4)))
MISTAKE(18, EK_E_INVALID, "take one of its elements by ek_value_at", net = ek_lstm(4, 2);
        ek_apply(net, ONES(4, 3, 4)))
MISTAKE(19, EK_E_IO, "it must hold train-images-idx3-ubyte", ek_mnist("/nowhere", true))
MISTAKE(20, EK_E_STATE, "ek_archive_save it, and open the file",
        ek_archive *archive = ek_archive_new();
        net = ek_linear(4, 2); ek_archive_put_module(archive, "", net);
        ek_archive_load_module(archive, "", net); ek_archive_free(archive))
MISTAKE(22, EK_E_INVALID, "write ek_clip_grad_norm(optimizer, 1.0)", net = ek_linear(4, 2);
        optimizer = ek_sgd(net); ek_clip_grad_norm(optimizer))
MISTAKE(23, EK_E_SHAPE, "linear was refused, because this error was not cleared",
        net = ek_linear(4, 2);
        ek_forward(net, ONES(3, 5)); ck_assert_ptr_null(ek_linear(4, 2));
        ck_assert_ptr_null(ek_sequential(ek_identity())))
MISTAKE(24, EK_E_SHAPE, "data_loader was refused, because this error was not cleared",
        ek_dataset *rows = ek_tensor_dataset(ONES(2)); /* the loader frees it */
        ek_add(ONES(2), ONES(3)); ck_assert_ptr_null(ek_data_loader(rows)))
MISTAKE(25, EK_E_INVALID, "in_channels 0 and out_channels 0 have to be at least 1", ek_conv2d())
MISTAKE(26, EK_E_INVALID, "kernel", ek_conv2d(3, 16))
MISTAKE(27, EK_E_INVALID, "kernel is 3 and kernel_size is 5; they are one option",
        ek_max_pool2d(3, .kernel_size = 5))
MISTAKE(28, EK_E_INVALID, "write EK_DIMS(1)", ek_sum(ONES(2, 3), 0, 1))
MISTAKE(29, EK_E_INVALID, "\"weight\" is registered already", net = ek_linear(4, 2);
        ek_register_parameter(net, "weight", NULL, ONES(2, 4)))
MISTAKE(30, EK_E_STATE, "compile it again", ek_check_abi_of(EK_ABI + 1, "9.9.9"))

/* ---- what is none ---- */

TEST(a_written_limit_of_0_is_one)
{
    ek_module *net = ek_linear(4, 2);
    ek_optimizer *optimizer = ek_sgd(net, .lr = 0.1);
    double after = -1;
    assert_ok(ek_backward(ek_sum(ek_square(ek_apply(net, ONES(3, 4))))));
    assert_refused(ek_clip_grad_norm(.module = net), EK_E_INVALID, "max_norm is left out");
    assert_ok(ek_item(ek_norm(ek_tensor_grad(ek_module_tensor(net, "weight"))), &after));
    ck_assert_double_gt(after, 0);
    assert_ok(ek_clip_grad_norm(optimizer, .max_norm = 0));
    assert_ok(ek_item(ek_norm(ek_tensor_grad(ek_module_tensor(net, "weight"))), &after));
    ck_assert_double_eq(after, 0);
    ek_optimizer_free(optimizer);
    ek_module_free(net);
}

/* A failed part of a module is that module's error, and no earlier one. */
TEST(a_failed_part_is_not_an_earlier_error)
{
    assert_refused(ek_sequential(ek_linear(0, 2)), EK_E_INVALID, "linear: ");
    ck_assert_ptr_null(ek_sequential(ek_linear(0, 2)));
    ck_assert_ptr_null(strstr(ek_error_message(), "refused"));
    ek_error_clear();
    ck_assert_ptr_null(ek_data_loader(ek_image_folder("/nowhere")));
    ck_assert_ptr_null(strstr(ek_error_message(), "refused"));
    ek_error_clear();
}

static void count_warnings(ek_log_level level, const char *line, void *user)
{
    *(int *)user += level == EK_LOG_WARNING && strstr(line, "sgd: no parameter has a gradient");
}

TEST(a_step_without_gradients_is_logged)
{
    int warnings = 0;
    ek_module *net = ek_linear(4, 2);
    ek_optimizer *optimizer = ek_sgd(net, .lr = 0.1);
    ek_set_log(count_warnings, &warnings);
    assert_ok(ek_step(optimizer));
    assert_ok(ek_step(optimizer)); /* says it once */
    ck_assert_int_eq(warnings, 1);
    assert_ok(ek_backward(ek_sum(ek_apply(net, ONES(3, 4)))));
    assert_ok(ek_step(optimizer));
    ek_set_log(NULL, NULL);
    ck_assert_int_eq(warnings, 1);
    ek_optimizer_free(optimizer);
    ek_module_free(net);
}

TEST(second_names_are_the_options)
{
    ek_module *conv = ek_conv2d(1, 2, .kernel_size = 3), *pool = ek_avg_pool2d(.kernel_size = 2);
    ek_shape shape = ek_tensor_shape(ek_apply(pool, ek_apply(conv, ONES(1, 1, 6, 6))));
    ck_assert(ek_shape_equal(&shape, &EK_SHAPE(1, 2, 2, 2)));
    ek_module_free(conv);
    ek_module_free(pool);
    ck_assert_str_eq(ek_version(), EK_VERSION);
    ck_assert_int_eq(ek_abi(), EK_ABI);
    assert_ok(EK_CHECK_ABI());
    assert_refused(ek_check_abi_of(EK_ABI, NULL), EK_E_INVALID, "version is NULL");
}
