/* Copies of modules, modules as text, containers, averages of statistics, and some layers. */
#include "kit/models.h"

/* ---- a user's module that owns memory ---- */

typedef struct noted {
    ek_module module;
    ek_tensor *scale;
    ek_module *body;
    char *note; /* owned */
    int number;
} noted;

static ek_value noted_forward(ek_module *module, const ek_args *args)
{
    noted *self = (noted *)module;
    return ek_value_of_tensor(ek_mul(ek_apply(self->body, ek_arg_tensor(args, 0)), self->scale));
}

static void noted_destroy(ek_module *module)
{
    free(((noted *)module)->note);
}

static bool copy_fails;

static int noted_copy(ek_module *copy, const ek_module *original)
{
    if (copy_fails)
        return ek_error(EK_E_STATE, "no copies today");
    ((noted *)copy)->note = strdup(((const noted *)original)->note);
    return 0;
}

static void noted_describe(const ek_module *module, char *text, size_t size)
{
    snprintf(text, size, "note=%s", ((const noted *)module)->note);
}

MODULE_TYPE_WITH(noted, noted, .destroy = noted_destroy, .copy = noted_copy,
                 .describe = noted_describe)
static const ek_module_type closed_type = {.name = "closed",
                                           .size = sizeof(noted),
                                           .forward = noted_forward,
                                           .destroy = noted_destroy};

static noted *noted_new(const ek_module_type *type, ek_module *body)
{
    ek_scope scope = ek_scope_begin();
    noted *self = (noted *)ek_module_new(type);
    self->note = strdup("mine");
    self->number = 5;
    assert_ok(ek_register_parameter(&self->module, "scale", &self->scale, ek_ones(EK_SHAPE(1))));
    assert_ok(ek_register_module(&self->module, "body", &self->body, body));
    ek_scope_end(&scope);
    return self;
}

/* ---- copies ---- */

static void digest(ek_module *module, char text[65])
{
    assert_ok(ek_module_sha256(module, text));
}

TEST(a_copy_is_equal_and_apart)
{
    char texts[3][65];
    ek_module *module = ek_sequential(ek_linear(3, 4), ek_batch_norm1d(4, .momentum = 0.3),
                                      ek_dropout(0.5), ek_linear(4, 2, .bias = false));
    ek_tensor *x = ek_randn(EK_SHAPE(5, 3));
    ek_module_train(module, false);
    ek_tensor *frozen = ek_module_tensor(module, "3.weight");
    assert_ok(ek_tensor_set_requires_grad(frozen, false));
    assert_ok(ek_backward(ek_sum(ek_apply(module, x))));
    ek_module *copy = ek_module_copy(module);
    assert_made(copy);
    digest(module, texts[0]);
    digest(copy, texts[1]);
    ck_assert_str_eq(texts[0], texts[1]);
    assert_close(ek_apply(copy, x), ek_apply(module, x), 0, 0);
    ck_assert_ptr_null(ek_tensor_grad(ek_module_tensor(copy, "0.weight")));
    ck_assert(ek_tensor_requires_grad(ek_module_tensor(copy, "0.weight")));
    ck_assert(!ek_tensor_requires_grad(ek_module_tensor(copy, "3.weight")));
    ek_module_train(copy, true); /* its own modes, buffers and parameters */
    ek_apply(copy, x);
    ck_assert_double_eq(element(ek_module_tensor(module, "1.running_mean"), 0), 0);
    ck_assert_double_eq(element(ek_module_tensor(copy, "1.num_batches_tracked"), 0), 1);
    assert_ok(ek_init_constant(ek_module_tensor(copy, "0.weight"), 3));
    digest(module, texts[2]);
    ck_assert_str_eq(texts[0], texts[2]);
    ek_module_free(module); /* the copy lives on, and has names */
    ek_module_train(copy, false);
    assert_made(ek_apply(copy, x));
    assert_refused(ek_apply(copy, ek_ones(EK_SHAPE(2, 9))), EK_E_SHAPE, "0 (linear)");
    ek_module_free(copy);
}

TEST(what_is_shared_stays_shared)
{
    ek_module *inner = ek_linear(2, 2);
    ek_module *module = ek_sequential(inner, ek_relu(), inner);
    ek_module *copy = ek_module_copy(module);
    assert_made(copy);
    ck_assert_ptr_eq(ek_module_child(copy, 0), ek_module_child(copy, 2));
    ck_assert_ptr_ne(ek_module_child(copy, 0), inner);
    ck_assert_int_eq(ek_module_numel(copy), 6);
    ek_module_free(copy);
    ek_module_free(module);
    /* A tensor in two modules. */
    module = ek_sequential(ek_linear(2, 2), ek_identity());
    assert_ok(ek_register_parameter(ek_module_child(module, 1), "tied", NULL,
                                    ek_module_tensor(module, "0.weight")));
    copy = ek_module_copy(module);
    ck_assert_ptr_eq(ek_module_tensor(copy, "1.tied"), ek_module_tensor(copy, "0.weight"));
    ck_assert_ptr_ne(ek_module_tensor(copy, "1.tied"), ek_module_tensor(module, "1.tied"));
    ek_module_free(copy);
    ek_module_free(module);
}

TEST(users_modules_copy_what_they_own)
{
    noted *self = noted_new(&noted_type, ek_linear(2, 2));
    noted *copy = (noted *)ek_module_copy(&self->module);
    assert_made(copy);
    ck_assert_ptr_ne(copy->note, self->note);
    ck_assert_str_eq(copy->note, "mine");
    ck_assert_int_eq(copy->number, 5);
    ck_assert_ptr_ne(copy->scale, self->scale);
    ck_assert_ptr_ne(copy->body, self->body);
    ek_module_free(&copy->module);
    copy_fails = true;
    assert_refused(ek_module_copy(&self->module), EK_E_STATE, "no copies today");
    copy_fails = false;
    ek_module *closed = ek_sequential(ek_relu(), &noted_new(&closed_type, ek_relu())->module);
    assert_refused(ek_module_copy(closed), EK_E_INVALID,
                   "module_copy: closed frees memory of its own (destroy), and its type has no");
    assert_refused(ek_module_copy(NULL), EK_E_INVALID, "the module is NULL");
    ek_module_free(closed);
    ek_module_free(&self->module);
}

/* ---- text ---- */

static void assert_text(ek_module *module, const char *wanted)
{
    char *text = NULL;
    size_t size = 0;
    FILE *stream = open_memstream(&text, &size);
    ck_assert_ptr_nonnull(stream);
    assert_ok(ek_module_print(module, stream));
    fclose(stream);
    ck_assert_str_eq(text, wanted);
    free(text);
}

TEST(modules_as_text)
{
    ek_module *module = ek_sequential(
        ek_linear(3, 4, .bias = false), ek_batch_norm1d(4, .momentum = EK_CUMULATIVE),
        &noted_new(&noted_type, ek_sequential(ek_relu(), ek_leaky_relu(0.25)))->module,
        ek_layer_norm(EK_SHAPE(4)), ek_alpha_dropout(0.5));
    assert_text(module, "sequential(\n"
                        "  (0): linear(in_features=3, out_features=4, bias=False)\n"
                        "  (1): batch_norm1d(4, eps=1e-05, momentum=None, affine=True, "
                        "track_running_stats=True)\n"
                        "  (2): noted(\n"
                        "    note=mine\n"
                        "    (body): sequential(\n"
                        "      (0): relu()\n"
                        "      (1): leaky_relu(negative_slope=0.25)\n"
                        "    )\n"
                        "  )\n"
                        "  (3): layer_norm(weight=[4], bias=[4])\n"
                        "  (4): alpha_dropout(p=0.5)\n"
                        ")\n");
    ek_module *plain = ek_conv1d(3, 4, 3);
    ek_module *other = ek_conv_transpose2d(4, 6, 3, .strides = {2, 1}, .padding = 1, .groups = 2,
                                           .output_paddings = {1, 0}, .bias = false);
    assert_text(plain, "conv1d(3, 4, kernel_size=(3,), stride=(1,))\n");
    assert_text(other, "conv_transpose2d(4, 6, kernel_size=(3, 3), stride=(2, 1), padding=(1, 1), "
                       "output_padding=(1, 0), groups=2, bias=False)\n");
    ek_module_free(plain);
    ek_module_free(other);
    assert_text(NULL, "NULL\n");
    assert_refused(ek_module_print(module, NULL), EK_E_INVALID, "stream");
    ek_module_free(module);
}

/* ---- children ---- */

static int count_module(const char *path, ek_module *module, void *user)
{
    char *list = user;
    snprintf(list + strlen(list), 200 - strlen(list), "%s:%s ", path, module->type->name);
    return strcmp(path, "right.0") == 0 ? 7 : 0;
}

TEST(children_by_name_and_path)
{
    char list[200] = "";
    ek_module *dict = ek_module_dict({"left", ek_linear(2, 2)});
    ek_module *branches = ek_module_list(ek_relu(), ek_tanh()), *none = ek_module_dict_of(NULL, 0);
    assert_made(none);
    ek_module_free(none);
    assert_ok(ek_register_module(dict, "right", NULL, branches));
    assert_ok(ek_module_list_append(branches, ek_sigmoid()));
    ck_assert_str_eq(ek_module_child_name(dict, 1), "right");
    ck_assert_str_eq(ek_module_child_name(branches, 2), "2");
    ck_assert_ptr_null(ek_module_child_name(dict, 2));
    ck_assert_ptr_null(ek_module_child_name(dict, -1));
    ck_assert_ptr_eq(ek_module_at(dict, ""), dict);
    ck_assert_ptr_eq(ek_module_at(dict, "right"), branches);
    ck_assert_ptr_eq(ek_module_at(dict, "right.2"), ek_module_child(branches, 2));
    assert_refused(ek_module_at(dict, "right.3"), EK_E_INVALID, "no module \"right.3\"");
    assert_refused(ek_module_at(dict, "left.weight"), EK_E_INVALID, "no module");
    assert_refused(ek_module_at(NULL, "x"), EK_E_INVALID, "module is NULL");
    ck_assert_int_eq(ek_module_modules(dict, count_module, list), 7);
    ck_assert_str_eq(list, ":module_dict left:linear right:module_list right.0:relu ");
    assert_refused(ek_module_modules(dict, NULL, NULL), EK_E_INVALID, "visitor is NULL");
    assert_refused(ek_apply(dict, ek_ones(EK_SHAPE(1))), EK_E_INVALID,
                   "module_dict: a module_dict has no forward");
    assert_refused(ek_module_list_append(dict, ek_relu()), EK_E_INVALID, "no list or sequential");
    assert_refused(ek_module_list(ek_relu(), NULL), EK_E_INVALID, "module_list: module 1 is NULL");
    ek_module *row = ek_sequential(ek_relu());
    assert_ok(ek_module_list_append(row, ek_linear(2, 3)));
    ck_assert_int_eq(ek_tensor_size(ek_apply(row, ek_ones(EK_SHAPE(1, 2))), 1), 3);
    ek_module *checkpointed = ek_checkpoint(row); /* paths skip it */
    ck_assert_ptr_eq(ek_module_at(checkpointed, "1"), ek_module_child(row, 1));
    ek_module *copy = ek_module_copy(checkpointed);
    assert_made(copy);
    ek_module_free(copy);
    ek_module_free(checkpointed);
    ek_module_free(dict);
}

/* ---- statistics of given data ---- */

static int run_batches(ek_module *module, void *user)
{
    ek_tensor *batches = user;
    ck_assert(!ek_grad_enabled());
    for (int64_t i = 0; i < ek_tensor_size(batches, 0); i++)
        if (!ek_apply(module, ek_select(batches, 0, i)))
            return ek_error_status();
    return 0;
}

TEST(statistics_follow_pytorch)
{
    static const char *const paths[] = {"1.running_mean", "1.running_var", "4.running_mean",
                                        "4.running_var"};
    static const char *const parameters[] = {"0.weight", "0.bias", "3.weight", "3.bias"};
    char path[64];
    ek_module *module = ek_sequential(ek_linear(4, 5), ek_batch_norm1d(5), ek_relu(),
                                      ek_linear(5, 3), ek_batch_norm1d(3, .momentum = 0.25));
    assert_ok(ek_module_to_dtype(module, EK_F64));
    ek_set_grad_enabled(false);
    for (int i = 0; i < 4; i++) {
        snprintf(path, sizeof path, "bn/%s", parameters[i]);
        ek_copy_(ek_module_tensor(module, parameters[i]), golden("train.golden", path));
    }
    ek_set_grad_enabled(true);
    ek_tensor *batches = golden("train.golden", "bn/batches");
    ek_apply(module, ek_add_scalar(ek_select(batches, 0, 0), 1));
    ek_module_train(module, false);
    assert_ok(ek_update_batch_norm(module, run_batches, batches));
    for (int i = 0; i < 4; i++) {
        snprintf(path, sizeof path, "bn/%s", paths[i]);
        assert_close(ek_module_tensor(module, paths[i]), golden("train.golden", path), 1e-12,
                     1e-12);
    }
    ck_assert(!module->training && !ek_module_child(module, 1)->training);
    ck_assert(ek_grad_enabled());
    /* The momentum is what it was. */
    ek_module_train(module, true);
    ek_tensor *mean = ek_clone(ek_module_tensor(module, "4.running_mean"));
    ek_apply(module, ek_mul_scalar(ek_select(batches, 0, 1), 0));
    ck_assert(element(mean, 0) != element(ek_module_tensor(module, "4.running_mean"), 0));
    assert_refused(ek_update_batch_norm(module, NULL, NULL), EK_E_INVALID, "function is NULL");
    ek_module_free(module);
    module = ek_linear(2, 2); /* none: `run` isn't called */
    assert_ok(ek_update_batch_norm(module, run_batches, NULL));
    ek_module_free(module);
}

/* ---- layers ---- */

TEST_LOOP(alpha_dropout_follows_pytorch, 0, 2)
{
    ek_tensor *wanted = golden("train.golden", _i ? "alpha_dropout/f64" : "alpha_dropout/f32");
    double values[24];
    for (int i = 0; i < 24; i++)
        values[i] = -2 + 4 * i / 23.0;
    ek_tensor *x = ek_to_dtype(ek_from_data(values, EK_SHAPE(4, 6), EK_F64), _i ? EK_F64 : EK_F32);
    ek_module *module = ek_alpha_dropout(0.3), *all = ek_alpha_dropout(1);
    ek_manual_seed(5);
    assert_close(ek_apply(module, x), wanted, _i ? 1e-12 : 2e-6, _i ? 1e-12 : 2e-6);
    ek_module_train(module, false);
    assert_close(ek_apply(module, x), x, 0, 0);
    ck_assert_double_eq(element(ek_sum(ek_apply(all, x)), 0), 0);
    assert_refused(ek_alpha_dropout(2), EK_E_INVALID, "alpha_dropout: the probability");
    ek_module_free(module);
    ek_module_free(all);
}

/* Whole channels are zero, the others twice as large. */
TEST_LOOP(channels_are_dropped, 1, 4)
{
    ek_module *module = _i == 1   ? ek_dropout1d(0.5)
                        : _i == 2 ? ek_dropout2d(0.5)
                                  : ek_dropout3d(0.5);
    ek_shape shape = {.ndim = _i + 2, .dims = {6, 5, 3, 2, 2}};
    int64_t field = _i == 1 ? 3 : _i == 2 ? 6 : 12, zeros = 0;
    ek_tensor *y = ek_apply(module, ek_ones(shape));
    for (int64_t c = 0; c < 30; c++) {
        double first = element(y, c * field);
        ck_assert(first == 0 || first == 2);
        zeros += first == 0;
        for (int64_t k = 0; k < field; k++)
            ck_assert_double_eq(element(y, c * field + k), first);
    }
    ck_assert(zeros > 3 && zeros < 27);
    assert_refused(ek_apply(module, ek_ones(EK_SHAPE(2, 2))), EK_E_SHAPE, "expected an input of");
    ek_module_free(module);
}

TEST(unflatten)
{
    ek_module *module = ek_unflatten(1, EK_SHAPE(2, -1)), *last = ek_unflatten(-1, EK_SHAPE(3, 4));
    ek_tensor *x = ek_randn(EK_SHAPE(5, 12)), *y = ek_apply(module, x), *z = ek_apply(last, x);
    ck_assert_int_eq(ek_tensor_size(y, 1), 2);
    ck_assert_int_eq(ek_tensor_size(y, 2), 6);
    ck_assert_int_eq(ek_tensor_size(z, 2), 4);
    assert_close(ek_reshape(y, EK_SHAPE(5, 12)), x, 0, 0);
    assert_refused(ek_apply(last, ek_ones(EK_SHAPE(2, 13))), EK_E_SHAPE,
                   "unflatten: dimension 1 of 13 elements does not fit");
    assert_refused(ek_apply(module, ek_ones(EK_SHAPE(12))), EK_E_SHAPE,
                   "unflatten: dimension 1 is not in");
    assert_refused(ek_unflatten(1, EK_SHAPE(-1, -1)), EK_E_INVALID, "one at most may be -1");
    ek_module_free(module);
    ek_module_free(last);
}
