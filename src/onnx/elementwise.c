/* elementwise.c: how elementwise operations are written: functions of one tensor and of two,
 * comparisons, choice by a condition, casts. */
#include <math.h>

#include "onnx/graph.h"
#include "ops/unary.h"

/* Defines a row's function whose output is an expression; A and B are the numbers of the row. */
#define ELEMENTWISE(name, output) \
    ROW(elementwise_##name)       \
    {                             \
        return output;            \
    }
#define A (((const unary_numbers *)r->attributes)->a)
#define B (((const unary_numbers *)r->attributes)->b)

/* ---- functions of one tensor ---- */

ELEMENTWISE(same, NODE(TYPE, IN(X)))
ELEMENTWISE(alpha, NODE(TYPE, IN(X), FLOAT("alpha", A)))
ELEMENTWISE(square, NODE("Mul", IN(X, X)))
ELEMENTWISE(hardsigmoid, NODE("HardSigmoid", IN(X), FLOAT("alpha", 1.0 / 6), FLOAT("beta", 0.5)))
ELEMENTWISE(clip, NODE("Clip", IN(X, isinf(A) ? "" : NUMBER(A), isinf(B) ? "" : NUMBER(B))))
ELEMENTWISE(hardshrink, NODE("Shrink", IN(X), FLOAT("lambd", A)))
ELEMENTWISE(softshrink, NODE("Shrink", IN(X), FLOAT("lambd", A), FLOAT("bias", A)))
ELEMENTWISE(threshold, NODE("Where", IN(NODE("LessOrEqual", IN(X, NUMBER(A))), NUMBER(B), X)))
ELEMENTWISE(log_sigmoid, NODE("Neg", IN(NODE("Softplus", IN(NODE("Neg", IN(X)))))))
ELEMENTWISE(silu, NODE("Mul", IN(X, NODE("Sigmoid", IN(X)))))
ELEMENTWISE(mish, NODE("Mul", IN(X, NODE("Tanh", IN(NODE("Softplus", IN(X)))))))
ELEMENTWISE(pow, NODE("Pow", IN(X, NUMBER(A))))
ELEMENTWISE(raise, NODE("Max", IN(X, NUMBER(*(const double *)r->attributes))))
ELEMENTWISE(div, NODE("Div", IN(X, NUMBER(*(const double *)r->attributes))))
ELEMENTWISE(rsqrt, NODE("Reciprocal", IN(NODE("Sqrt", IN(X)))))
ELEMENTWISE(log1p, NODE("Log", IN(NODE("Add", IN(X, NUMBER(1))))))
ELEMENTWISE(expm1, NODE("Sub", IN(NODE("Exp", IN(X)), NUMBER(1))))
ELEMENTWISE(log2, NODE("Div", IN(NODE("Log", IN(X)), NUMBER(0.69314718055994531))))
ELEMENTWISE(log10, NODE("Div", IN(NODE("Log", IN(X)), NUMBER(2.3025850929940457))))
ELEMENTWISE(exp2, NODE("Pow", IN(NUMBER(2), X)))
ELEMENTWISE(erfc, NODE("Sub", IN(NUMBER(1), NODE("Erf", IN(X)))))
ELEMENTWISE(trunc, NODE("Mul", IN(NODE("Sign", IN(X)), NODE("Floor", IN(NODE("Abs", IN(X)))))))
ELEMENTWISE(frac, NODE("Sub", IN(X, elementwise_trunc(g, r))))
ELEMENTWISE(to_dtype,
            NODE("Cast", IN(X), INT("to", ek_onnx_dtype(ek_onnx_output_tensor(g, r, 0)->dtype))))

/* The probability that a standard normal number is below x. */
ELEMENTWISE(ndtr, NODE("Mul",
                       IN(NUMBER(0.5),
                          NODE("Add", IN(NUMBER(1),
                                         NODE("Erf", IN(NODE("Mul", IN(X, NUMBER(sqrt(0.5)))))))))))

/* Returns x ndtr(x), or x sigmoid(x (c + d x^2)), which equals the formula with tanh. */
ROW(elementwise_gelu)
{
    const char *x = X;
    if (A == 0)
        return NODE("Mul", IN(x, elementwise_ndtr(g, r)));
    const char *cubic = NODE("Mul", IN(NODE("Mul", IN(x, x)), NUMBER(0.07135481627260025)));
    const char *slope = NODE("Add", IN(cubic, NUMBER(1.5957691216057308)));
    return NODE("Mul", IN(x, NODE("Sigmoid", IN(NODE("Mul", IN(x, slope))))));
}

/* From a threshold of 20 on, softplus and x are equal in f32. */
ROW(elementwise_softplus)
{
    const char *scaled = A == 1 ? X : NODE("Mul", IN(X, NUMBER(A)));
    const char *y = NODE("Softplus", IN(scaled));
    y = A == 1 ? y : NODE("Div", IN(y, NUMBER(A)));
    return B >= 20 ? y : NODE("Where", IN(NODE("Greater", IN(scaled, NUMBER(B))), X, y));
}

/* Returns a x + b. */
ROW(elementwise_affine)
{
    const char *y = A == 1 ? X : NODE("Mul", IN(X, NUMBER(A)));
    return B == 0 ? (A == 1 ? NODE("Identity", IN(y)) : y) : NODE("Add", IN(y, NUMBER(B)));
}

/* ---- functions of two tensors ---- */

#define LEFT ek_onnx_operand(g, r, 0)
#define RIGHT ek_onnx_operand(g, r, 1)

ELEMENTWISE(pair, NODE(TYPE, IN(LEFT, RIGHT)))
ELEMENTWISE(fmod, NODE("Mod", IN(LEFT, RIGHT), INT("fmod", 1)))
ELEMENTWISE(lerp, NODE("Add", IN(LEFT, NODE("Mul", IN(NODE("Sub", IN(RIGHT, LEFT)),
                                                      NUMBER(*(const double *)r->attributes))))))

ROW(elementwise_add)
{
    const double alpha = *(const double *)r->attributes;
    const char *right = alpha == 1 || alpha == -1 ? RIGHT : NODE("Mul", IN(RIGHT, NUMBER(alpha)));
    return NODE(alpha == -1 ? "Sub" : "Add", IN(LEFT, right));
}

/* The remainder has the sign of y. */
ROW(elementwise_remainder)
{
    if (!ek_dtype_is_floating(ek_onnx_input_tensor(g, r, 0)->dtype))
        return NODE("Mod", IN(LEFT, RIGHT));
    const char *whole = NODE("Floor", IN(NODE("Div", IN(LEFT, RIGHT))));
    return NODE("Sub", IN(LEFT, NODE("Mul", IN(whole, RIGHT))));
}

/* Bool and u8 are cast to i32, because not all comparisons of ONNX take them. */
ROW(elementwise_compare)
{
    const ek_dtype dtype = ek_onnx_input_tensor(g, r, 0)->dtype;
    const bool wide = dtype != EK_BOOL && dtype != EK_U8, differs = TYPE[0] == 'N';
    const char *sides[] = {LEFT, RIGHT, NULL};
    for (int i = 0; i < 2 && !wide; i++)
        sides[i] = NODE("Cast", IN(sides[i]), INT("to", ek_onnx_dtype(EK_I32)));
    const char *z = NODE(differs ? "Equal" : TYPE, sides);
    return differs ? NODE("Not", IN(z)) : z;
}

ROW(elementwise_where)
{
    const char *condition = ek_onnx_saved(g, r, 0);
    if (g->trace->values[r->saved[0]].tensor->dtype != EK_BOOL)
        condition = NODE("Cast", IN(condition), INT("to", ek_onnx_dtype(EK_BOOL)));
    return NODE("Where", IN(condition, LEFT, RIGHT));
}

ROW(elementwise_clamp)
{
    const char *low = RIGHT, *high = ek_onnx_operand(g, r, 2);
    const char *y = low[0] ? NODE("Max", IN(LEFT, low)) : LEFT;
    return high[0] ? NODE("Min", IN(y, high)) : y;
}

/* Returns y, which copy_ writes over all of x. */
ROW(elementwise_copy)
{
    return NODE("Cast", IN(ek_onnx_input(g, r, 1)),
                INT("to", ek_onnx_dtype(ek_onnx_output_tensor(g, r, 0)->dtype)));
}

/* ---- the table ---- */

#define SAME(name, type)                       \
    {                                          \
        name, elementwise_same, type, 0, false \
    }
#define OF_X(name, write)                         \
    {                                             \
        name, elementwise_##write, NULL, 0, false \
    }
#define PAIR(name, write, type)                  \
    {                                            \
        name, elementwise_##write, type, 0, true \
    }
/* clang-format off */
const ek_onnx_row ek_onnx_elementwise[] = {
    SAME("neg", "Neg"), SAME("abs", "Abs"), SAME("sign", "Sign"), SAME("sqrt", "Sqrt"),
    SAME("safe_root", "Sqrt"), SAME("reciprocal", "Reciprocal"), SAME("exp", "Exp"),
    SAME("log", "Log"), SAME("relu", "Relu"), SAME("sigmoid", "Sigmoid"), SAME("tanh", "Tanh"),
    SAME("selu", "Selu"), SAME("softsign", "Softsign"), SAME("hardswish", "HardSwish"),
    SAME("sin", "Sin"), SAME("cos", "Cos"), SAME("tan", "Tan"), SAME("asin", "Asin"),
    SAME("acos", "Acos"), SAME("atan", "Atan"), SAME("sinh", "Sinh"), SAME("cosh", "Cosh"),
    SAME("asinh", "Asinh"), SAME("acosh", "Acosh"), SAME("atanh", "Atanh"), SAME("erf", "Erf"),
    SAME("floor", "Floor"), SAME("ceil", "Ceil"), SAME("round", "Round"),
    {"elu", elementwise_alpha, "Elu", 0, false}, {"celu", elementwise_alpha, "Celu", 0, false},
    {"leaky_relu", elementwise_alpha, "LeakyRelu", 0, false},
    OF_X("square", square), OF_X("raise_value", raise), OF_X("hardsigmoid", hardsigmoid), OF_X("clamp", clip),
    OF_X("hardtanh", clip), OF_X("relu6", clip), OF_X("hardshrink", hardshrink),
    OF_X("softshrink", softshrink), OF_X("threshold", threshold), OF_X("silu", silu),
    OF_X("log_sigmoid", log_sigmoid), OF_X("mish", mish), OF_X("gelu", gelu), OF_X("ndtr", ndtr),
    OF_X("softplus", softplus), OF_X("pow_scalar", pow), OF_X("div_scalar", div),
    OF_X("add_scalar", affine), OF_X("sub_scalar", affine), OF_X("rsub_scalar", affine),
    OF_X("mul_scalar", affine), OF_X("rsqrt", rsqrt), OF_X("log1p", log1p), OF_X("expm1", expm1),
    OF_X("log2", log2), OF_X("log10", log10), OF_X("exp2", exp2), OF_X("erfc", erfc),
    OF_X("trunc", trunc), OF_X("frac", frac), OF_X("to_dtype", to_dtype), OF_X("copy_", copy),
    PAIR("add", add, NULL), PAIR("sub", add, NULL), PAIR("add_", add, NULL), PAIR("sub_", add, NULL),
    PAIR("mul", pair, "Mul"), PAIR("mul_", pair, "Mul"), PAIR("div", pair, "Div"),
    PAIR("div_", pair, "Div"), PAIR("maximum", pair, "Max"), PAIR("minimum", pair, "Min"),
    PAIR("pow", pair, "Pow"), PAIR("fmod", fmod, NULL), PAIR("remainder", remainder, NULL),
    PAIR("lerp_scalar", lerp, NULL), PAIR("clamp_tensors", clamp, NULL),
    PAIR("eq", compare, "Equal"), PAIR("ne", compare, "NotEqual"), PAIR("lt", compare, "Less"),
    PAIR("le", compare, "LessOrEqual"), PAIR("gt", compare, "Greater"),
    PAIR("ge", compare, "GreaterOrEqual"), {"where", elementwise_where, NULL, 1, true}, {0}};
/* clang-format on */
