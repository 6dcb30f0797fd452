/* test_onnx.c: ONNX files as written: their nodes, names and shapes, read by a reader of Protocol
 * Buffers' wire format; and what is refused. tests/samples/onnx runs files of all operations. */
#include "kit/files.h"
#include "unit.h"

FIXTURE(make_directory, remove_directory)

/* ---- a reader ---- */

typedef struct span {
    const unsigned char *at, *end;
} span;

static uint64_t read_varint(span *from)
{
    uint64_t value = 0;
    for (int shift = 0; from->at < from->end; shift += 7) {
        const unsigned char byte = *from->at++;
        value |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80)
            break;
    }
    return value;
}

/* Reads a field: its number; *part becomes its bytes, or *value its number. 0 at the end. */
static int read_field(span *from, span *part, uint64_t *value)
{
    if (from->at >= from->end)
        return 0;
    const uint64_t tag = read_varint(from);
    *part = (span){from->at, from->at};
    if ((tag & 7) == 0)
        *value = read_varint(from);
    else {
        const uint64_t nbytes = (tag & 7) == 5 ? 4 : read_varint(from);
        ck_assert_uint_le(nbytes, (uint64_t)(from->end - from->at));
        *part = (span){from->at, from->at + nbytes};
        from->at += nbytes;
    }
    return (int)(tag >> 3);
}

/* The n-th field of this number, from 0; an empty span if there is none. */
static span field_of(span message, int number, int n, uint64_t *value)
{
    span part;
    uint64_t ignored, *to = value ? value : &ignored;
    for (int field; (field = read_field(&message, &part, to)) != 0;)
        if (field == number && n-- == 0)
            return part;
    return (span){NULL, NULL};
}

static bool is_text(span part, const char *text)
{
    return (size_t)(part.end - part.at) == strlen(text) && memcmp(part.at, text, strlen(text)) == 0;
}

static unsigned char bytes[1 << 20];

/* The graph of the file at file_path. */
static span graph(void)
{
    uint64_t version = 0;
    const span model = {bytes, bytes + read_file(file_path, bytes, sizeof bytes)};
    field_of(model, 1, 0, &version);
    ck_assert_uint_eq(version, 8);
    field_of(field_of(model, 8, 0, NULL), 2, 0, &version);
    ck_assert_uint_eq(version, 17);
    return field_of(model, 7, 0, NULL);
}

/* The operators of the graph's nodes are those in `types`, with a space after each. */
static void assert_nodes(const char *types)
{
    char text[1000] = "";
    const span all = graph();
    for (int i = 0;; i++) {
        const span node = field_of(all, 1, i, NULL), type = field_of(node, 4, 0, NULL);
        if (!node.at)
            break;
        snprintf(text + strlen(text), sizeof text - strlen(text), "%.*s ",
                 (int)(type.end - type.at), (const char *)type.at);
    }
    ck_assert_str_eq(text, types);
}

/* Initializer `name` of the file has these elements. */
static void assert_initializer(const char *name, const ek_tensor *tensor)
{
    float numbers[64];
    const size_t nbytes = (size_t)ek_tensor_count(tensor) * sizeof *numbers;
    span initializer, raw = {NULL, NULL};
    const span all = graph();
    for (int i = 0; (initializer = field_of(all, 5, i, NULL)).at; i++)
        if (is_text(field_of(initializer, 8, 0, NULL), name))
            raw = field_of(initializer, 9, 0, NULL);
    ck_assert_uint_eq((size_t)(raw.end - raw.at), nbytes);
    assert_ok(ek_to_data(tensor, numbers, nbytes));
    ck_assert_mem_eq(raw.at, numbers, nbytes);
}

/* Input (field 11) or output (12) i has this name and shape, whose sizes end with a space each. */
static void assert_value(int field, int i, const char *name, const char *shape)
{
    char text[100] = "";
    const span value = field_of(graph(), field, i, NULL);
    const span type = field_of(field_of(value, 2, 0, NULL), 1, 0, NULL);
    const span sizes = field_of(type, 2, 0, NULL);
    ck_assert(is_text(field_of(value, 1, 0, NULL), name));
    for (int d = 0;; d++) {
        uint64_t size = 0;
        const span dim = field_of(sizes, 1, d, NULL), symbol = field_of(dim, 2, 0, NULL);
        if (!dim.at)
            break;
        field_of(dim, 1, 0, &size);
        char *end = text + strlen(text);
        if (symbol.at)
            sprintf(end, "%.*s ", (int)(symbol.end - symbol.at), (const char *)symbol.at);
        else
            sprintf(end, "%llu ", (unsigned long long)size);
    }
    ck_assert_str_eq(text, shape);
}

/* ---- files ---- */

TEST(parameters_have_their_paths)
{
    ek_module *net = ek_sequential(ek_conv2d(3, 4, 3, .padding = 1), ek_batch_norm2d(4), ek_relu(),
                                   ek_flatten(1, -1), ek_linear(64, 2));
    ek_module_at(net, "1")->training = false;
    assert_ok(ek_onnx_export(file_path, net, EK_VALUE(ek_randn(EK_SHAPE(1, 3, 4, 4)))));
    ck_assert(net->training);
    ck_assert(!ek_module_at(net, "1")->training);
    assert_nodes("Conv BatchNormalization Relu Reshape Gemm Identity ");
    assert_initializer("1.running_var", ek_module_tensor(net, "1.running_var"));
    assert_initializer("4.bias", ek_module_tensor(net, "4.bias"));
    assert_value(11, 0, "input", "N 3 4 4 ");
    assert_value(12, 0, "output", "N 2 ");
    ek_module_free(net);
}

TEST(a_recurrent_network_is_a_node)
{
    ek_module *net = ek_lstm(4, 5, .batch_first = true);
    const char *const inputs[] = {"x"}, *const outputs[] = {"y", "h", "c"};
    assert_ok(ek_onnx_export(file_path, net, EK_VALUE(ek_randn(EK_SHAPE(2, 3, 4))),
                             .input_names = inputs, .output_names = outputs));
    assert_nodes("Transpose LSTM Squeeze Transpose Identity Identity Identity ");
    assert_value(11, 0, "x", "N 3 4 ");
    assert_value(12, 1, "h", "1 N 5 ");
    assert_value(12, 2, "c", "1 N 5 ");
    ek_module_free(net);
}

TEST(a_fixed_batch)
{
    ek_module *net = ek_flatten(0, 1);
    ek_value x = EK_VALUE(ek_randn(EK_SHAPE(2, 3, 4)));
    assert_ok(ek_onnx_export(file_path, net, x));
    assert_value(12, 0, "output", "3N 4 ");
    assert_ok(ek_onnx_export(file_path, net, x, .dynamic_batch = false));
    assert_value(12, 0, "output", "6 4 ");
    ek_module_free(net);
}

/* ---- what is refused: no file is written ---- */

typedef struct function {
    ek_module module;
    ek_tensor *(*call)(ek_tensor *x);
} function;

static ek_value function_forward(ek_module *module, const ek_args *args)
{
    return EK_VALUE(((function *)module)->call(ek_arg_tensor(args, 0)));
}

static ek_tensor *sorted(ek_tensor *x)
{
    return ek_cumsum(x, 1);
}

static ek_tensor *by_batch(ek_tensor *x)
{
    return ek_mul_scalar(x, (double)ek_tensor_size(x, 0));
}

static ek_tensor *by_elements(ek_tensor *x)
{
    double first = 0;
    ek_item(ek_select(ek_select(x, 0, 0), 0, 0), &first);
    return ek_add_scalar(x, first);
}

static ek_tensor *by_branch(ek_tensor *x)
{
    return ek_tensor_size(x, 0) > 3 ? ek_exp(x) : ek_neg(x);
}

static ek_tensor *by_choice(ek_tensor *x)
{
    return ek_neg(ek_masked_select(x, ek_gt_scalar(x, 0)));
}

static ek_tensor *outside(ek_tensor *x)
{
    ek_tensor *y = ek_zeros(ek_tensor_shape(x));
    ek_to_data(x, ek_tensor_data(y), (size_t)ek_tensor_count(x) * sizeof(float));
    return ek_add(y, x);
}

static ek_tensor *no_input(ek_tensor *x)
{
    return ek_ones(ek_tensor_shape(x));
}

static ek_tensor *through_view(ek_tensor *x)
{
    ek_tensor *y = ek_clone(x);
    ek_add_(ek_narrow(y, 1, 0, 1), ek_ones(EK_SHAPE(1)));
    return ek_neg(y);
}

static ek_tensor *constant_in_place(ek_tensor *x)
{
    return ek_add_(ek_zeros(ek_tensor_shape(x)), x);
}

static ek_tensor *read_before_write(ek_tensor *x)
{
    ek_tensor *c = ek_zeros(EK_SHAPE(5)), *y = ek_add(x, c);
    return ek_mul(y, ek_add_(c, ek_ones(EK_SHAPE(5))));
}

static const struct {
    ek_tensor *(*call)(ek_tensor *x);
    const char *sentence;
} refused[] = {
    {sorted, "onnx_export: 0 (scan) has no counterpart in ONNX"},
    {by_batch, "0 (mul_scalar) has numbers that depend on the batch's size"},
    {by_elements, "0 (add_scalar) has numbers that depend on the batch's size, or on the inputs'"},
    {by_branch, "which operations run depends on the batch's size or on the inputs' elements, from "
                "0 ("},
    {by_choice, "onnx_export: 0"},
    {outside, "0: a constant, f32[3, 5] on"},
    {no_input, "output 0 is made of no input"},
    {through_view, "was written in place"},
    {read_before_write, "0: a constant, f32[3, 5] on"},
    {constant_in_place, "0: add_ writes to a constant in place"},
};

TEST_LOOP(what_onnx_does_not_have, 0, sizeof refused / sizeof *refused)
{
    static const ek_module_type type = {.name = "function",
                                        .size = sizeof(function),
                                        .forward = function_forward};
    function *module = (function *)ek_module_new(&type);
    module->call = refused[_i].call;
    ek_module *net = ek_sequential(&module->module);
    ek_value x = EK_VALUE(ek_randn(EK_SHAPE(3, 5)));
    assert_refused(ek_onnx_export(file_path, net, x), EK_E_INVALID, refused[_i].sentence);
    ck_assert_int_eq(files_in_directory(), 0);
    ck_assert(net->training);
    ek_module_free(net);
}

TEST(arguments_are_checked)
{
    ek_module *net = ek_relu();
    ek_value x = EK_VALUE(ek_ones(EK_SHAPE(2, 3)));
    assert_refused(ek_onnx_export(file_path, net, x, .opset = 16), EK_E_INVALID, "opset is 16");
    assert_refused(ek_onnx_export(file_path, net, ek_value_none()), EK_E_INVALID,
                   "the inputs have no tensor");
    assert_refused(ek_onnx_export(file_path, net, EK_VALUE(ek_ones(EK_SHAPE(0, 3)))), EK_E_INVALID,
                   "empty batch");
    assert_refused(ek_onnx_export("/nowhere/x.onnx", net, x), EK_E_IO, "/nowhere/x.onnx");
    assert_refused(ek_onnx_export(NULL, net, x), EK_E_INVALID, "the path is NULL");
    assert_refused(ek_onnx_export(file_path, NULL, x), EK_E_INVALID, "the module is NULL");
    ek_module_free(net);
}
