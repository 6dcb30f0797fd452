/* test_archive_module.c: parameters and buffers of modules, by their paths. */
#include "archive_setup.h"

/* ---- modules ---- */

static ek_module *net(uint64_t seed)
{
    ek_manual_seed(seed);
    ek_module *made = ek_sequential(ek_conv2d(2, 4, 3, .padding = 1), ek_batch_norm2d(4), ek_relu(),
                                    ek_conv2d(4, 3, 1, .bias = false));
    assert_made(made);
    return made;
}

/* Parameters and buffers alike. */
static char *digest(ek_module *module, char text[80])
{
    ek_scope scope = ek_scope_begin();
    ek_tensor *mean = ek_module_tensor(module, "1.running_mean");
    assert_ok(ek_module_sha256(module, text));
    snprintf(text + 64, 16, "%.8g", element(mean, 0));
    ek_scope_end(&scope);
    return text;
}

/* A forward in training mode, so that running statistics move. */
static void move_statistics(ek_module *module)
{
    ek_scope scope = ek_scope_begin();
    assert_made(ek_apply(module, ek_randn(EK_SHAPE(8, 2, 5, 5), .device = test_device(0))));
    ek_scope_end(&scope);
}

static ek_archive *saved(ek_module *module, const char *name)
{
    ek_archive *a = ek_archive_new();
    assert_ok(ek_archive_put_module(a, name, module));
    return through_file(a);
}

/* The module's tensors with a prefix before each name, as others may have written them. */
typedef struct renamed {
    ek_named_tensor tensors[32];
    char names[32][64];
    const char *prefix;
    int count;
} renamed;

static int rename_tensor(const char *of, ek_tensor *tensor, void *user)
{
    renamed *r = user;
    snprintf(r->names[r->count], sizeof r->names[0], "%s%s", r->prefix, of);
    r->tensors[r->count] = (ek_named_tensor){r->names[r->count], tensor};
    r->count++;
    return 0;
}

static void rename_all(ek_module *module, const char *prefix, renamed *r)
{
    *r = (renamed){.prefix = prefix};
    assert_ok(ek_module_parameters(module, rename_tensor, r));
    assert_ok(ek_module_buffers(module, rename_tensor, r));
}

/* ---- there and back ---- */

TEST(state_dicts_come_back)
{
    char texts[2][80];
    ek_module *from = net(1), *to = net(2);
    assert_ok(ek_module_to_device(from, test_device(0)));
    move_statistics(from);
    ek_archive *a = saved(from, "model");
    ck_assert(ek_archive_has(a, "model.1.num_batches_tracked"));
    ck_assert(!ek_archive_has(a, "model.3.bias"));
    ck_assert_int_eq(ek_value_length(ek_archive_get(a, "model.1")), 5);
    assert_ok(ek_module_to_device(to, test_device(1)));
    ek_load_report report;
    assert_ok(ek_archive_load_module(a, "model", to, .report = &report));
    ck_assert_str_eq(digest(from, texts[0]), digest(to, texts[1]));
    ck_assert(element(ek_module_tensor(to, "1.num_batches_tracked"), 0) == 1);
    ck_assert(ek_device_equal(ek_tensor_device(ek_module_tensor(to, "0.weight")), test_device(1)));
    ck_assert_int_eq(report.loaded, 8);
    ck_assert_int_eq(report.missing + report.unexpected, 0);
    ek_archive_free(a);
    ek_module_free(from);
    ek_module_free(to);
}

TEST_LOOP(names_may_begin_with_module, 0, 4)
{
    static const char *const prefixes[] = {"", "module.", "a.b.", "a.b.module."};
    char texts[2][80];
    renamed r;
    ek_module *from = net(1), *to = net(2);
    rename_all(from, prefixes[_i], &r);
    ek_archive *a = file_of(r.tensors, r.count);
    assert_ok(ek_archive_load_module(a, _i < 2 ? "" : "a.b", to));
    ck_assert_str_eq(digest(from, texts[0]), digest(to, texts[1]));
    ek_archive_free(a);
    ek_module_free(from);
    ek_module_free(to);
}

static ek_value no_forward(ek_module *module, const ek_args *args)
{
    return ek_value_none();
}

static const ek_module_type holder_type = {.name = "holder",
                                           .size = sizeof(ek_module),
                                           .forward = no_forward};

/* A module whose own child is named so: with and without a wrapper's prefix. */
TEST_LOOP(modules_may_have_a_child_of_that_name, 0, 2)
{
    char texts[2][65];
    renamed r;
    ek_module *from = ek_module_new(&holder_type), *to = ek_module_new(&holder_type);
    assert_ok(ek_register_module(from, "module", NULL, net(1)));
    assert_ok(ek_register_module(to, "module", NULL, net(2)));
    rename_all(from, _i ? "module." : "", &r);
    ek_archive *a = file_of(r.tensors, r.count);
    assert_ok(ek_archive_load_module(a, "", to));
    assert_ok(ek_module_sha256(from, texts[0]));
    assert_ok(ek_module_sha256(to, texts[1]));
    ck_assert_str_eq(texts[0], texts[1]);
    ek_archive_free(a);
    ek_module_free(from);
    ek_module_free(to);
}

TEST_LOOP(dtypes_are_converted, 0, 3)
{
    ek_module *from = net(1), *to = net(2), *wide = net(1);
    assert_ok(ek_module_to_dtype(wide, EK_F64));
    assert_ok(ek_module_to_dtype(from, (ek_dtype[]){EK_F64, EK_BF16, EK_F16}[_i]));
    ek_archive *a = saved(from, "");
    assert_ok(ek_archive_load_module(a, "", to));
    assert_ok(ek_archive_load_module(a, "", wide));
    ek_tensor *half = ek_module_tensor(from, "0.weight");
    ck_assert_int_eq(ek_tensor_dtype(ek_module_tensor(to, "0.weight")), EK_F32);
    assert_close(ek_module_tensor(to, "0.weight"), ek_to_dtype(half, EK_F32), 0, 0);
    assert_close(ek_module_tensor(wide, "0.weight"), ek_to_dtype(half, EK_F64), 0, 0);
    ek_archive_free(a);
    ek_module_free(from);
    ek_module_free(wide);
    ek_module_free(to);
}

/* Weights as they are published, in other dtypes than the module's. */
TEST_LOOP(narrow_dtypes_are_widened, 0, 2)
{
    static const char header[] = "{\"weight\":{\"dtype\":\"F16\",\"shape\":[2,2],"
                                 "\"data_offsets\":[0,8]},\"bias\":{\"dtype\":\"I8\","
                                 "\"shape\":[2],\"data_offsets\":[8,10]},\"n\":{\"dtype\":\"I16\","
                                 "\"shape\":[],\"data_offsets\":[10,12]}}";
    static const uint16_t elements[] = {0x3c00, 0xc100, 0x0001, 0x7bff, 0x03fe, 0xff85};
    static const float weights[] = {1, -2.5f, 0x1p-24f, 65504}, biases[] = {-2, 3};
    const uint8_t length[8] = {sizeof header - 1};
    int64_t n = 0;
    FILE *stream = fopen(file_path, "wb");
    ck_assert_ptr_nonnull(stream);
    ck_assert_uint_lt(sizeof header, 256);
    fwrite(length, 1, sizeof length, stream);
    fwrite(header, 1, sizeof header - 1, stream);
    fwrite(elements, 1, sizeof elements, stream);
    ck_assert_int_eq(fclose(stream), 0);
    ek_archive *a = ek_archive_open(file_path);
    assert_made(a);
    ek_module *to = ek_linear(2, 2);
    assert_ok(ek_module_to_dtype(to, _i ? EK_F64 : EK_F32));
    assert_ok(ek_archive_load_module(a, "", to, .strict = false));
    for (int i = 0; i < 4; i++)
        ck_assert_double_eq(element(ek_module_tensor(to, "weight"), i), (double)weights[i]);
    for (int i = 0; i < 2; i++)
        ck_assert_double_eq(element(ek_module_tensor(to, "bias"), i), (double)biases[i]);
    assert_ok(ek_archive_get_int(a, "n", &n));
    ck_assert_int_eq(n, -123);
    ek_tensor *half = ek_archive_tensor(a, "weight", NULL);
    ck_assert_int_eq(ek_tensor_dtype(half), EK_F16);
    assert_close(ek_to_dtype(half, EK_F32), ek_from_data(weights, EK_SHAPE(2, 2)), 0, 0);
    ck_assert_double_eq(element(ek_archive_get(a, "bias").as.tensor, 1), 3);
    ek_archive_free(a);
    ek_module_free(to);
}

/* Tensors of every dtype, on two devices, come back as they were; i32 is a whole number, too. */
TEST(every_dtype_is_kept)
{
    const double values[] = {0, 1, 1, 0, 2, 3};
    ek_archive *a = ek_archive_new();
    int64_t n = 0;
    ek_tensor *tensors[EK_DTYPES];
    for (int d = 0; d < EK_DTYPES; d++) {
        tensors[d] = tensor_of(values, EK_SHAPE(2, 3), (ek_dtype)d, test_device(d % 2));
        assert_ok(ek_archive_put(a, ek_dtype_name((ek_dtype)d), EK_VALUE(tensors[d])));
    }
    assert_ok(ek_archive_put(a, "n", EK_VALUE(ek_scalar(-7, EK_I32, ek_cpu()))));
    assert_ok(ek_archive_save(a, file_path));
    ek_archive_free(a);
    a = ek_archive_open(file_path);
    for (int d = 0; d < EK_DTYPES; d++)
        assert_close(ek_archive_tensor(a, ek_dtype_name((ek_dtype)d), NULL), tensors[d], 0, 0);
    assert_ok(ek_archive_get_int(a, "n", &n));
    ck_assert_int_eq(n, -7);
    ek_archive_free(a);
}

/* A scaler goes on with its scale and its count. */
TEST(scalers)
{
    ek_grad_scaler *scaler = ek_grad_scaler_new(), *other = ek_grad_scaler_new(.init_scale = 2);
    assert_ok(ek_grad_scaler_set(scaler, 3e-5, 41));
    ek_archive *a = ek_archive_new();
    assert_ok(ek_archive_put_grad_scaler(a, "scaler", scaler));
    const double none[] = {0};
    assert_ok(ek_archive_put(a, "bad.scale", EK_VALUE(ek_from_data(none, EK_SHAPE(1), EK_F64))));
    assert_ok(ek_archive_put(a, "bad.tracker", ek_value_of_int(1)));
    assert_ok(ek_archive_save(a, file_path));
    ek_archive_free(a);
    a = ek_archive_open(file_path);
    assert_ok(ek_archive_load_grad_scaler(a, "scaler", other));
    ck_assert(ek_grad_scaler_factor(other) == (double)3e-5f);
    ck_assert_int_eq(ek_grad_scaler_tracker(other), 41);
    assert_refused(ek_archive_load_grad_scaler(a, "bad", other), EK_E_FORMAT,
                   "\"bad\" has scale 0 after 1 updates");
    assert_refused(ek_archive_load_grad_scaler(a, "none", other), EK_E_INVALID, "none.scale");
    ck_assert_int_eq(ek_grad_scaler_tracker(other), 41);
    ek_archive_free(a);
    ek_grad_scaler_free(scaler);
    ek_grad_scaler_free(other);
}

/* Handles, gradients and leaves are as before; a graph that has saved old values is told. */
TEST(loading_is_a_write)
{
    ek_module *from = net(1), *to = net(2);
    ek_archive *a = saved(from, "m");
    ek_tensor *weight = ek_module_tensor(to, "0.weight");
    ek_tensor *x = ek_randn(EK_SHAPE(2, 2, 4, 4), .requires_grad = true);
    assert_ok(ek_backward(ek_sum(ek_apply(to, x))));
    ek_tensor *gradient = ek_tensor_grad(weight);
    assert_made(gradient);
    ek_tensor *loss = ek_sum(ek_apply(to, x));
    uint64_t version = ek_tensor_version(weight);
    assert_ok(ek_archive_load_module(a, "m", to));
    ck_assert_ptr_eq(ek_module_tensor(to, "0.weight"), weight);
    ck_assert_ptr_eq(ek_tensor_grad(weight), gradient);
    ck_assert_uint_gt(ek_tensor_version(weight), version);
    ck_assert(ek_tensor_requires_grad(weight));
    ck_assert(ek_grad_enabled());
    ck_assert_int_eq(ek_backward(loss), EK_E_MODIFIED);
    ek_error_clear();
    ek_archive_free(a);
    ek_module_free(from);
    ek_module_free(to);
}

/* ---- wrappers ---- */

static void assert_outputs(ek_module *model, ek_module *plain)
{
    ek_scope scope = ek_scope_begin();
    ek_manual_seed(5);
    ek_tensor *x = ek_randn(EK_SHAPE(8, 2, 5, 5));
    ek_module_train(model, false);
    ek_module_train(plain, false);
    x = ek_to_device(x, test_device(0));
    ek_tensor *y = ek_apply(model, x), *wanted = ek_apply(plain, x);
    assert_close_norm(y, wanted, 1e-5);
    ek_module_train(model, true);
    ek_module_train(plain, true);
    ek_scope_end(&scope);
}

/* Replicas that were there before compute with what was loaded, in all ways of wrapping. */
TEST_LOOP(wrappers_are_seen_through, 0, 4)
{
    static const char *const wrapped_too[] = {"0.weight", "1.running_var", "3.weight"};
    ek_module *from = net(1), *inner = net(2);
    assert_ok(ek_module_to_device(from, test_device(0)));
    move_statistics(from);
    ek_device_list devices = ek_devices(test_kind(), 4);
    ek_module *model = ek_data_parallel(inner, .device_ids = devices,
                                        .shard = _i & 1 ? EK_SHARD_OPTIMIZER : EK_SHARD_NONE,
                                        .broadcast_buffers = !(_i & 2));
    assert_made(model);
    move_statistics(model);
    ek_archive *a = saved(from, "model");
    assert_ok(ek_archive_load_module(a, "model", model));
    assert_outputs(model, from);
    ek_archive_free(a);
    a = saved(model, "model");
    ck_assert(!ek_archive_has(a, "model.module"));
    for (int i = 0; i < 3; i++) {
        char name[64];
        snprintf(name, sizeof name, "model.%s", wrapped_too[i]);
        ck_assert(ek_archive_has(a, name));
    }
    ek_module *again = net(3);
    assert_ok(ek_module_to_device(again, test_device(0)));
    assert_ok(ek_archive_load_module(a, "model", again));
    assert_outputs(again, from);
    ek_archive_free(a);
    ek_module_free(again);
    ek_module_free(model);
    ek_module_free(from);
}

/* ---- what doesn't fit ---- */

static void assert_unchanged(ek_archive *a, const char *name, ek_module *to, int status,
                             const char *part)
{
    char texts[2][80];
    digest(to, texts[0]);
    assert_refused(ek_archive_load_module(a, name, to), status, part);
    ck_assert_str_eq(texts[0], digest(to, texts[1]));
}

TEST(other_names_are_listed)
{
    renamed r;
    ek_load_report report;
    ek_module *from = net(1), *to = net(2);
    rename_all(from, "m.", &r);
    for (int i = 1; i < 6; i++)
        r.names[i][0] = 'm', r.names[i][2] = (char)(r.names[i][2] + 7);
    ek_archive *a = file_of(r.tensors, r.count);
    assert_unchanged(a, "m", to, EK_E_INVALID,
                     "missing: \"0.bias\", \"1.weight\", \"1.bias\" (and 2 more); "
                     "unexpected: \"7.bias\", ");
    ck_assert_int_eq(ek_archive_load_module(a, "m", to, .report = &report), EK_E_INVALID);
    ek_error_clear();
    ck_assert_int_eq(report.loaded, 0);
    ck_assert_int_eq(report.missing, 5);
    assert_ok(ek_archive_load_module(a, "m", to, .strict = false, .report = &report));
    ck_assert_int_eq(report.loaded, 3);
    ck_assert_int_eq(report.missing, 5);
    ck_assert_int_eq(report.unexpected, 5);
    ck_assert_str_eq(report.first_missing, "0.bias");
    ck_assert_str_eq(report.first_unexpected, "7.bias");
    assert_close(ek_module_tensor(to, "0.weight"), ek_module_tensor(from, "0.weight"), 0, 0);
    ck_assert(element(ek_module_tensor(to, "0.bias"), 0) !=
              element(ek_module_tensor(from, "0.bias"), 0));
    assert_unchanged(a, "x", to, EK_E_INVALID, "missing: \"0.weight\"");
    assert_unchanged(a, "", to, EK_E_INVALID, "unexpected: \"m.0.weight\"");
    ek_archive_free(a);
    ek_module_free(from);
    ek_module_free(to);
}

/* Whatever strict says. */
TEST(other_shapes_are_told)
{
    ek_module *to = net(2);
    ek_manual_seed(1);
    ek_module *from = ek_sequential(ek_conv2d(2, 5, 3, .padding = 1), ek_batch_norm2d(5), ek_relu(),
                                    ek_conv2d(5, 3, 1, .bias = false));
    ek_archive *a = saved(from, "m");
    assert_unchanged(
        a, "m", to, EK_E_SHAPE,
        "\"m.0.weight\" is [5, 2, 3, 3], in the module it is [4, 2, 3, 3], and 6 more");
    assert_refused(ek_archive_load_module(a, "m", to, .strict = false), EK_E_SHAPE, "m.0.weight");
    ek_archive_free(a);
    ek_module_free(from);
    ek_module_free(to);
}

TEST(wrong_calls_are_refused)
{
    ek_module *module = net(1);
    ek_archive *a = ek_archive_new();
    assert_refused(ek_archive_put_module(a, "m", NULL), EK_E_INVALID, "the module is NULL");
    assert_refused(ek_archive_put_module(a, NULL, module), EK_E_INVALID, "the name is NULL");
    assert_ok(ek_archive_put(a, "m.3.weight", ek_value_of_int(1)));
    assert_refused(ek_archive_put_module(a, "m", module), EK_E_INVALID, "\"m.3.weight\" is taken");
    ck_assert(!ek_archive_has(a, "m.0")); /* nothing of it is left */
    assert_ok(ek_archive_put_module(a, "n", module));
    assert_refused(ek_archive_load_module(a, "n", module), EK_E_STATE, "is being written");
    a = through_file(a);
    assert_refused(ek_archive_load_module(a, "n", NULL), EK_E_INVALID, "the module is NULL");
    assert_refused(ek_archive_load_module(a, NULL, module), EK_E_INVALID, "the name is NULL");
    ek_archive_free(a);
    ek_module_free(module);
}

/* ---- tied weights ---- */

/* One tensor under "first" and "second.weight", of which walks give the first. */
static ek_module *tied(double value)
{
    ek_module *module = ek_module_new(&holder_type), *child = ek_module_new(&holder_type);
    ek_tensor *shared = ek_full(value, EK_SHAPE(2), .device = test_home());
    assert_ok(ek_register_parameter(module, "first", NULL, shared));
    assert_ok(ek_register_parameter(child, "weight", NULL, shared));
    assert_ok(ek_register_module(module, "second", NULL, child));
    return module;
}

TEST_LOOP(tied_weights_load_from_any_of_their_names, 0, 5)
{
    ek_tensor *three = ek_full(3, EK_SHAPE(2)), *four = ek_full(4, EK_SHAPE(2));
    const ek_named_tensor names[][2] = {{{"first", three}, {NULL, NULL}},
                                        {{"second.weight", three}, {NULL, NULL}},
                                        {{"first", three}, {"second.weight", three}},
                                        {{"first", three}, {"second.weight", four}},
                                        {{"first", three}, {"third", three}}};
    ek_module *to = tied(1);
    ek_archive *a = file_of(names[_i], names[_i][1].name ? 2 : 1);
    int status = ek_archive_load_module(a, "", to);
    if (_i < 3)
        assert_ok(status);
    else
        assert_error(EK_E_INVALID,
                     _i == 3 ? "unexpected: \"second.weight\"" : "unexpected: \"third\"");
    ck_assert(element(ek_module_tensor(to, "second.weight"), 1) == (_i < 3 ? 3 : 1));
    ek_archive_free(a);
    a = saved(to, "t");
    ck_assert(ek_archive_has(a, "t.first") && ek_archive_has(a, "t.second.weight"));
    ek_archive_free(a);
    ek_module_free(to);
}

/* The wrapper's names are those of PyTorch's files; a tied original has its other path, too. */
TEST(computed_weights_are_not_written)
{
    ek_module *norm = ek_weight_norm(ek_linear(2, 2, .bias = false));
    ek_module *net = ek_sequential(norm, ek_linear(2, 2, .bias = false));
    assert_ok(ek_module_set_tensor(net, "1.weight", ek_module_tensor(net, "0.weight_v")));
    ek_archive *a = saved(net, "n");
    ck_assert(ek_archive_has(a, "n.0.weight_g") && ek_archive_has(a, "n.0.weight_v"));
    ck_assert(ek_archive_has(a, "n.1.weight") && !ek_archive_has(a, "n.0.weight"));
    assert_ok(ek_archive_load_module(a, "n", net));
    ek_archive_free(a);
    ek_module_free(net);
}
