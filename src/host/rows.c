#include "host/rows.h"

#include "host/parallel.h"
#include "kernels/formulas.h"

/* Loops carry EK_IVDEP: out may be x, but never overlaps it otherwise. */

#define UNARY_CASE(suffix, name)                             \
    case EK_UNARY_##name:                                    \
        EK_IVDEP                                             \
        for (int64_t i = 0; i < n; i++)                      \
            out[i] = ek_unary_##name##_##suffix(x[i], a, b); \
        break;
#define UNARY_F32(name, formula) UNARY_CASE(f32, name)
#define UNARY_F64(name, formula) UNARY_CASE(f64, name)
#define UNARY_I64(name, formula) UNARY_CASE(i64, name)

EK_MULTIVERSION
void ek_rows_unary_f32(ek_unary op, int64_t n, float *out, const float *x, float a, float b)
{
    switch (op) {
        EK_UNARY_REALS(UNARY_F32)
    default:
        break;
    }
}

EK_MULTIVERSION
void ek_rows_unary_f64(ek_unary op, int64_t n, double *out, const double *x, double a, double b)
{
    switch (op) {
        EK_UNARY_REALS(UNARY_F64)
    default:
        break;
    }
}

void ek_rows_unary_i64(ek_unary op, int64_t n, int64_t *out, const int64_t *x, double a, double b)
{
    switch (op) {
        EK_UNARY_INTEGERS(UNARY_I64)
    default:
        break;
    }
}

#define BINARY_CASE(suffix, name)                                \
    case EK_BINARY_##name:                                       \
        EK_IVDEP                                                 \
        for (int64_t i = 0; i < n; i++)                          \
            out[i] = ek_binary_##name##_##suffix(x[i], y[i], a); \
        break;
#define BINARY_F32(name, formula) BINARY_CASE(f32, name)
#define BINARY_F64(name, formula) BINARY_CASE(f64, name)
#define BINARY_I64(name, formula) BINARY_CASE(i64, name)

EK_MULTIVERSION
void ek_rows_binary_f32(ek_binary op, int64_t n, float *out, const float *x, const float *y,
                        float a)
{
    switch (op) {
        EK_BINARY_REALS(BINARY_F32)
    default:
        break;
    }
}

EK_MULTIVERSION
void ek_rows_binary_f64(ek_binary op, int64_t n, double *out, const double *x, const double *y,
                        double a)
{
    switch (op) {
        EK_BINARY_REALS(BINARY_F64)
    default:
        break;
    }
}

void ek_rows_binary_i64(ek_binary op, int64_t n, int64_t *out, const int64_t *x, const int64_t *y,
                        double a)
{
    switch (op) {
        EK_BINARY_INTEGERS(BINARY_I64)
    default:
        break;
    }
}

#define COMPARE_LOOPS(ctype)             \
    {                                    \
        const ctype *u = x, *v = y;      \
        switch (op) {                    \
            EK_COMPARISONS(COMPARE_CASE) \
        }                                \
        break;                           \
    }
#define COMPARE_CASE(name, operator)     \
    case EK_COMPARE_##name:              \
        for (int64_t i = 0; i < n; i++)  \
            out[i] = u[i] operator v[i]; \
        break;

EK_MULTIVERSION
void ek_rows_compare(ek_compare op, ek_class type, int64_t n, uint8_t *restrict out, const void *x,
                     const void *y)
{
    switch (type) {
    case EK_CLASS_F32:
        COMPARE_LOOPS(float)
    case EK_CLASS_F64:
        COMPARE_LOOPS(double)
    case EK_CLASS_I64:
        COMPARE_LOOPS(int64_t)
    }
}

#define WHERE_LOOP(ctype)                      \
    {                                          \
        const ctype *u = x, *v = y;            \
        ctype *w = out;                        \
        EK_IVDEP                               \
        for (int64_t i = 0; i < n; i++)        \
            w[i] = condition[i] ? u[i] : v[i]; \
        break;                                 \
    }

EK_MULTIVERSION
void ek_rows_where(ek_class type, int64_t n, void *out, const uint8_t *condition, const void *x,
                   const void *y)
{
    switch (type) {
    case EK_CLASS_F32:
        WHERE_LOOP(float)
    case EK_CLASS_F64:
        WHERE_LOOP(double)
    case EK_CLASS_I64:
        WHERE_LOOP(int64_t)
    }
}
