/* table.h: a table of operations (test_ops_table.c) and the modes that check its rows.
 *
 *     FROM(.file = "nn_conv.golden", .numbered = true, .inputs = {"x", "w", "b"}, .dy = "dy")
 *     ROW(conv, SLOTS | THIRD(7), ek_f_conv2d(x[0], x[1], B, .groups = (int)o[6]))
 *
 * A row is an operation of x[0] to x[count - 1] that reads options o[] and constants c[] beside
 * them. Its cases are those of a golden file: the tensors "conv/0/x", "conv/0/w" (inputs, which a
 * case may lack), "conv/0/y" (what PyTorch makes of them), "conv/0/dy" and the gradients
 * "conv/0/dx" and "conv/0/dw"; "conv/1/x" and so on. If the source isn't numbered there is one,
 * "add/x0". A source without a file has seeded inputs of given shapes, and finite differences
 * alone. A row is a test of its name, and belongs to the source above it: CK_RUN_CASE=conv checks
 * that one in every mode. */
#ifndef EK_TESTS_OPS_TABLE_H
#define EK_TESTS_OPS_TABLE_H

#include "autograd/graph.h"
#include "core/tensor.h"
#include "kit/absent.h"
#include "kit/devices.h"
#include "kit/tensors.h"

#include "home.h"

enum { OP_INPUTS = 4, OP_OPTIONS = 16 };

/* What is known of a row; THIRD(n): the third derivatives of its case n are asked for. */
enum {
    KINKED = 1,   /* at a point without a derivative: no finite differences */
    BF16 = 2,     /* computes in bf16 */
    INTEGERS = 4, /* and in i64, as it does in f64 */
    EMPTY = 8,    /* x[0] may have no samples */
    SLOTS = 16,   /* gradients of x[1] on are written where they shall lie */
    ALONE = 32,   /* has gradients of its own for any one input */
    SECOND = 64,  /* the golden file has second derivatives */
    NARROW = 128, /* computes in f32: differences are coarse */
};
#define THIRD(n) (1u << (12 + (n)))

typedef struct op_source {
    const char *file; /* NULL: seeded inputs of shapes[case], up to the first of no dimensions */
    bool numbered;
    const char *inputs[OP_INPUTS], *constants[OP_INPUTS], *dy;
    double tolerance; /* of f32 */
    ek_shape shapes[2][OP_INPUTS];
} op_source;

typedef struct op_row {
    const char *name;
    ek_check_function *function; /* user: the op_run */
    unsigned flags;
    op_source source;
} op_row;

static op_source op_source_now;

/* Every mode. */
static void op_check(const op_row *row);

#define OP_JOIN(a, b) a##b
#define OP_NAMED(a, b) OP_JOIN(a, b)
#define FROM(...)                                                                 \
    __attribute__((constructor)) static void OP_NAMED(op_source_, __LINE__)(void) \
    {                                                                             \
        op_source_now = (op_source){__VA_ARGS__};                                 \
    }
#define ROW(name, flags_, ...)                                                      \
    static ek_tensor *name##_row(ek_tensor *const *x, int count, void *user)        \
    {                                                                               \
        const double *o = ((const op_run *)user)->options;                          \
        ek_tensor *const *c = ((const op_run *)user)->constants;                    \
        (void)x, (void)count, (void)o, (void)c;                                     \
        return __VA_ARGS__;                                                         \
    }                                                                               \
    static op_row name##_op = {#name, name##_row, (flags_), {NULL}};                \
    static void name##_test(int i __attribute__((unused)))                          \
    {                                                                               \
        op_check(&name##_op);                                                       \
    }                                                                               \
    __attribute__((constructor)) static void name##_add(void)                       \
    {                                                                               \
        static unit_test test = {.test = {#name, name##_test, __FILE__, __LINE__}}; \
        name##_op.source = op_source_now;                                           \
        unit_add(&test, 0, 1);                                                      \
    }

/* How inputs lie in memory: row-major, channels-last (of four dimensions only), every second
 * element of a larger tensor, row-major with memory only while they are held. */
typedef enum op_memory { OP_ROW_MAJOR, OP_LAST, OP_GAPS, OP_ABSENT, OP_MEMORIES } op_memory;

/* One case in one dtype. */
typedef struct op_run {
    const op_row *row;
    char prefix[64];
    ek_dtype dtype;
    ek_device device;
    op_memory memory;
    double options[OP_OPTIONS];
    ek_tensor *constants[OP_INPUTS], *inputs[OP_INPUTS];
    const char *names[OP_INPUTS]; /* of the inputs that the case has */
    int count;
} op_run;

static inline bool op_has(const op_run *run, const char *key)
{
    char text[128];
    snprintf(text, sizeof text, "%s/%s", run->prefix, key);
    return golden_has(run->row->source.file, text);
}

/* In the dtype of this run, if it is floating. */
static inline ek_tensor *op_golden(const op_run *run, const char *key)
{
    char text[128];
    snprintf(text, sizeof text, "%s/%s", run->prefix, key);
    ek_tensor *x = ek_to_device(golden(run->row->source.file, text), run->device);
    assert_made(x);
    return ek_dtype_is_floating(ek_tensor_dtype(x)) ? ek_to_dtype(x, run->dtype) : x;
}

/* A leaf of its own memory. */
static inline ek_tensor *op_leaf(const op_run *run, ek_tensor *x)
{
    if (run->memory == OP_GAPS)
        x = ek_select(ek_stack((ek_tensor *const[]){x, ek_clone(x)}, 2, -1), -1, 0);
    else
        x = ek_clone(run->memory == OP_LAST && ek_tensor_ndim(x) == 4
                         ? ek_contiguous(x, EK_CHANNELS_LAST)
                         : x);
    x = run->memory == OP_ABSENT ? absent_tensor(x) : ek_detach(x);
    assert_made(x);
    if (ek_dtype_is_floating(ek_tensor_dtype(x)))
        assert_ok(ek_tensor_set_requires_grad(x, true));
    return x;
}

/* The row's case of this number with its inputs; false if there is none. */
static inline bool op_begin(op_run *run, const op_row *row, int number, ek_dtype dtype,
                            op_memory memory)
{
    const op_source *from = &row->source;
    *run = (op_run){.row = row,
                    .dtype = dtype,
                    .device = dtype == EK_F64 ? test_home() : test_device(0),
                    .memory = memory};
    if (!from->file) {
        if (number == 2 || from->shapes[number][0].ndim == 0)
            return false;
        for (; run->count < OP_INPUTS && from->shapes[number][run->count].ndim > 0; run->count++)
            run->inputs[run->count] =
                op_leaf(run, leaf((uint64_t)run->count + 1, from->shapes[number][run->count]));
        return true;
    }
    if (from->numbered)
        snprintf(run->prefix, sizeof run->prefix, "%s/%d", row->name, number);
    else
        snprintf(run->prefix, sizeof run->prefix, "%s", row->name);
    if (!op_has(run, "y") || (number > 0 && !from->numbered))
        return false;
    for (int i = 0; i < OP_INPUTS && from->inputs[i]; i++)
        if (op_has(run, from->inputs[i])) {
            run->names[run->count] = from->inputs[i];
            run->inputs[run->count++] = op_leaf(run, op_golden(run, from->inputs[i]));
        }
    for (int i = 0; i < OP_INPUTS && from->constants[i]; i++)
        if (op_has(run, from->constants[i]))
            run->constants[i] = op_golden(run, from->constants[i]);
    if (op_has(run, "options")) {
        ek_tensor *options = op_golden(run, "options");
        ck_assert_int_lt(ek_tensor_count(options), OP_OPTIONS);
        for (int64_t k = 0; k < ek_tensor_count(options); k++)
            run->options[k] = element(options, k);
        run->options[OP_OPTIONS - 1] = (double)ek_tensor_count(options);
    }
    ck_assert_int_gt(run->count, 0);
    return true;
}

static inline ek_tensor *op_output(op_run *run)
{
    ek_scope scope = ek_scope_begin(); /* what is absent is so again before backward */
    ek_tensor *y = run->row->function(run->inputs, run->count, run);
    if (!y)
        ck_abort_msg("%s: %s", run->prefix, ek_error_message());
    return ek_scope_return(&scope, y);
}

/* Gradients of those inputs that have one, NULL for the others, where y has the gradient dy. */
static inline void op_gradients(op_run *run, ek_tensor *y, ek_tensor *dy, ek_tensor **gradients,
                                bool create_graph)
{
    ek_tensor *varied[OP_INPUTS], *found[OP_INPUTS];
    int count = 0;
    for (int i = 0; i < run->count; i++)
        if (ek_tensor_requires_grad(run->inputs[i]))
            varied[count++] = run->inputs[i];
    if (ek_grad(.outputs = &y, .output_count = 1, .inputs = varied, .input_count = count,
                .gradients = found, .grad_outputs = &dy, .create_graph = create_graph) < 0)
        ck_abort_msg("%s: %s", run->prefix, ek_error_message());
    for (int i = 0, v = 0; i < run->count; i++)
        gradients[i] = ek_tensor_requires_grad(run->inputs[i]) ? found[v++] : NULL;
}

/* "dx", or of PyTorch's second derivatives "second_x". */
static inline ek_tensor *op_wanted(const op_run *run, const char *prefix, int input)
{
    char key[48];
    snprintf(key, sizeof key, "%s%s", prefix, run->names[input]);
    return op_golden(run, key);
}

static inline double op_tolerance(const op_run *run)
{
    return run->dtype == EK_F64 ? 1e-12 : run->row->source.tolerance;
}

/* ---- modes ---- */

/* Each case of a row in a dtype and an order of memory, in a scope of its own. */
#define FOR_EACH_CASE(run, dtype, memory)                             \
    for (int number = 0, more = 1; more; number++)                    \
        for (ek_scope scope = ek_scope_begin(), *once = &scope; once; \
             ek_scope_end(&scope), once = NULL)                       \
            if ((more = op_begin(&(run), row, number, (dtype), (memory))) != 0)

/* Output and gradients are PyTorch's, computed in each memory from f64 and f32. */
static void check_pytorch(const op_row *row)
{
    int cases = 0;
    for (int way = 0; way < 2 * OP_MEMORIES; way++) {
        op_run run;
        FOR_EACH_CASE(run, way % 2 ? EK_F32 : EK_F64, (op_memory)(way / 2))
        {
            ek_tensor *y = op_output(&run), *gradients[OP_INPUTS];
            assert_close(y, op_golden(&run, "y"), op_tolerance(&run), op_tolerance(&run));
            op_gradients(&run, y, op_golden(&run, row->source.dy), gradients, false);
            for (int i = 0; i < run.count; i++)
                if (gradients[i])
                    assert_close(gradients[i], op_wanted(&run, "d", i), op_tolerance(&run),
                                 op_tolerance(&run));
            cases++;
        }
        ck_assert_int_gt(cases, 0);
    }
}

static void check_differences(const op_row *row)
{
    op_run run;
    /* The orders of memory take turns: kernels differ, derivatives don't. */
    FOR_EACH_CASE(run, EK_F64, (op_memory)(number % OP_ABSENT))
    {
        /* f32 rounds to 6e-8; steps of 0.01 keep that to 6e-6 of a difference. */
        ek_gradcheck_options options = EK_DEFAULTS(ek_gradcheck_options);
        options.function = row->function;
        options.inputs = run.inputs;
        options.input_count = run.count;
        options.user = &run;
        if (row->flags & NARROW) {
            options.epsilon = 1e-2;
            options.absolute_tolerance = options.relative_tolerance = 5e-3;
        }
        assert_ok(ek_gradcheck_with(options));
        /* Formulas of second derivatives are the host's, too, which checks all cases. Here every
         * fourth is checked, in one layout of memory after the other. */
        if (!test_is_short() || number % 4 == 0)
            assert_ok(ek_gradgradcheck_with(options));
    }
}

/* ek_gradcheck varies what requires a gradient: here each input alone. */
static void check_alone(const op_row *row)
{
    for (int kept = 0; kept < OP_INPUTS; kept++) {
        op_run run;
        ck_assert(op_begin(&run, row, 0, EK_F64, OP_LAST));
        if (kept >= run.count)
            break;
        for (int i = 0; i < run.count; i++)
            assert_ok(ek_tensor_set_requires_grad(run.inputs[i], i == kept));
        check_gradients(row->function, run.inputs, run.count, &run);
    }
}

/* The gradient of sum(f(inputs) c) by the first input, c constant: its own first and second
 * derivatives are f's second and third. */
static ek_tensor *first_gradient(ek_tensor *const *inputs, int count, void *user)
{
    op_run *run = user;
    ek_tensor *y = run->row->function(inputs, count, run), *gradient = NULL;
    if (!y)
        return NULL;
    ek_tensor *weights = ek_arange(ek_tensor_count(y), EK_F64, test_home());
    weights = ek_reshape(ek_add_scalar(ek_mul_scalar(weights, 0.37), -1), ek_tensor_shape(y));
    if (ek_grad(.outputs = &y, .output_count = 1, .inputs = inputs, .input_count = 1,
                .gradients = &gradient, .grad_outputs = &weights, .create_graph = true) < 0)
        return NULL;
    return gradient;
}

static void check_third(const op_row *row)
{
    for (int number = 0; number < 10; number++) {
        op_run run;
        if (!(row->flags & THIRD(number)))
            continue;
        ck_assert(op_begin(&run, row, number, EK_F64, OP_LAST));
        assert_ok(ek_gradgradcheck(.function = first_gradient, .inputs = run.inputs,
                                   .input_count = run.count, .user = &run));
        if (test_is_short())
            break;
    }
}

/* The gradient of the sum of g^3 over the first gradients g: what a penalty on gradients asks
 * for. */
static void check_second(const op_row *row)
{
    int found = 0;
    for (int way = 0; way < 4; way++) {
        op_run run;
        FOR_EACH_CASE(run, way % 2 ? EK_F32 : EK_F64, (op_memory)(way / 2))
        {
            ek_tensor *gradients[OP_INPUTS], *penalty = NULL;
            if (!op_has(&run, "second_x"))
                continue;
            found++;
            op_gradients(&run, op_output(&run), op_golden(&run, "dy"), gradients, true);
            for (int i = 0; i < run.count; i++) {
                ek_tensor *sum = ek_sum(ek_pow_scalar(gradients[i], 3));
                penalty = penalty ? ek_add(penalty, sum) : sum;
            }
            assert_ok(ek_backward(penalty));
            for (int i = 0; i < run.count; i++) {
                ek_tensor *gradient = ek_tensor_grad(run.inputs[i]);
                ek_tensor *wanted = op_wanted(&run, "second_", i);
                if (!gradient)
                    gradient = ek_zeros(ek_tensor_shape(wanted), run.dtype, run.device);
                /* Relative to the whole: an element of a second gradient is a sum that may cancel.
                 */
                double size, tolerance = run.dtype == EK_F64 ? 1e-11 : 1e-4;
                assert_ok(ek_item(ek_sum(ek_square(wanted)), &size));
                if (size == 0)
                    assert_close(gradient, wanted, 0, tolerance);
                else
                    assert_close_norm(gradient, wanted, tolerance);
            }
        }
    }
    ck_assert_int_gt(found, 0);
}

/* The gradients of parameters that have a slot are in it, none of its old content left. */
static void check_slots(const op_row *row)
{
    int found = 0;
    op_run run;
    FOR_EACH_CASE(run, EK_F64, OP_LAST)
    {
        ek_tensor *slots[OP_INPUTS];
        for (int i = 1; i < run.count; i++, found++) {
            slots[i] = ek_fill_(ek_detach(ek_clone(run.inputs[i])), (double)NAN);
            assert_ok(ek_leaf_set_grad_buffer(run.inputs[i], slots[i]));
        }
        assert_ok(ek_backward(op_output(&run), op_golden(&run, "dy")));
        for (int i = 0; i < run.count; i++) {
            ek_tensor *gradient = ek_tensor_grad(run.inputs[i]);
            assert_close(gradient, op_wanted(&run, "d", i), 1e-12, 1e-12);
            if (i > 0)
                ck_assert_ptr_eq(ek_tensor_address(gradient), ek_tensor_address(slots[i]));
        }
    }
    ck_assert_int_gt(found, 0);
}

/* Of numbers that bf16 or f16 rounds, one rounding or a few of the result. */
static void check_narrow(const op_row *row, ek_dtype dtype, double tolerance)
{
    op_run run;
    for (int gaps = 0; gaps < 2; gaps++)
        FOR_EACH_CASE(run, dtype, gaps ? OP_GAPS : OP_ROW_MAJOR)
        {
            ek_tensor *y = op_output(&run), *gradients[OP_INPUTS];
            op_run exact = run;
            ck_assert_int_eq(ek_tensor_dtype(y), dtype);
            for (int i = 0; i < run.count; i++)
                if (ek_tensor_requires_grad(run.inputs[i])) {
                    exact.inputs[i] = ek_detach(ek_to_dtype(run.inputs[i], EK_F32));
                    assert_ok(ek_tensor_set_requires_grad(exact.inputs[i], true));
                }
            ek_tensor *wanted = op_output(&exact), *dy = op_golden(&run, row->source.dy);
            assert_close_norm(ek_to_dtype(y, EK_F32), wanted, tolerance);
            op_gradients(&run, y, dy, gradients, false);
            op_gradients(&exact, wanted, ek_to_dtype(dy, EK_F32), exact.constants, false);
            for (int i = 0; i < run.count; i++)
                if (gradients[i]) {
                    ck_assert_int_eq(ek_tensor_dtype(gradients[i]), dtype);
                    assert_close_norm(ek_to_dtype(gradients[i], EK_F32), exact.constants[i],
                                      tolerance);
                }
        }
}

/* Whole numbers come out as they do in f64. */
static void check_integers(const op_row *row)
{
    op_run run;
    FOR_EACH_CASE(run, EK_F64, OP_GAPS)
    {
        op_run exact = run;
        for (int i = 0; i < run.count; i++)
            if (ek_tensor_dtype(run.inputs[i]) == EK_F64) {
                run.inputs[i] = ek_to_dtype(ek_mul_scalar(ek_detach(run.inputs[i]), 4), EK_I64);
                exact.inputs[i] = ek_to_dtype(run.inputs[i], EK_F64);
            }
        assert_close(op_output(&run), ek_to_dtype(op_output(&exact), EK_I64), 0, 0);
    }
}

/* No samples: no output, and gradients of zeros. */
static void check_no_samples(const op_row *row)
{
    op_run run;
    FOR_EACH_CASE(run, EK_F32, OP_ROW_MAJOR)
    {
        ek_tensor *gradients[OP_INPUTS];
        run.inputs[0] = op_leaf(&run, ek_detach(ek_narrow(run.inputs[0], 0, 0, 0)));
        ek_tensor *y = op_output(&run);
        ck_assert_int_eq(ek_tensor_size(y, 0), 0);
        op_gradients(&run, y, ek_ones(ek_tensor_shape(y), .device = run.device), gradients, false);
        for (int i = 0; i < run.count; i++)
            assert_close(gradients[i],
                         ek_zeros(ek_tensor_shape(run.inputs[i]), .device = run.device), 0, 0);
    }
}

static void op_check(const op_row *row)
{
    if (row->source.file)
        check_pytorch(row);
    if (!(row->flags & KINKED))
        check_differences(row);
    check_third(row);
    if (row->flags & ALONE)
        check_alone(row);
    if (row->flags & SECOND)
        check_second(row);
    if (row->flags & SLOTS)
        check_slots(row);
    if (row->flags & BF16) {
        check_narrow(row, EK_BF16, 2e-2);
        check_narrow(row, EK_F16, 2.5e-3);
    }
    if (row->flags & INTEGERS)
        check_integers(row);
    if (row->flags & EMPTY)
        check_no_samples(row);
}

#endif
