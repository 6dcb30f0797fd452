/* dtypes.h: the list of dtypes. A row describes a dtype: its enumerator without EK_, its name, the
 * type of an element in memory, the class in which it is computed (F32, F64 or I64), and the range
 * of whole numbers that it holds without a gap (first, last, and as text). A new dtype needs a row,
 * the macros below the rows, and an enumerator. Valid as C11, C++17 and CUDA device code. */
#ifndef EK_CORE_DTYPES_H
#define EK_CORE_DTYPES_H

#include "core/bits.h"

/* clang-format off */
#define EK_DTYPE_ROWS(X)                                                                          \
    X(F32, "f32", float, F32, -(1LL << 24), 1LL << 24, "whole numbers up to 2^24")                \
    X(F64, "f64", double, F64, -(1LL << 53), 1LL << 53, "whole numbers up to 2^53")               \
    X(BF16, "bf16", uint16_t, F32, -(1LL << 8), 1LL << 8, "whole numbers up to 2^8")              \
    X(I64, "i64", int64_t, I64, INT64_MIN, INT64_MAX, "whole numbers from -2^63 to 2^63 - 1")     \
    X(U8, "u8", uint8_t, I64, 0, 255, "whole numbers from 0 to 255")                              \
    X(F16, "f16", uint16_t, F32, -(1LL << 11), 1LL << 11, "whole numbers up to 2^11")             \
    X(I32, "i32", int32_t, I64, INT32_MIN, INT32_MAX, "whole numbers from -2^31 to 2^31 - 1")     \
    X(BOOL, "bool", uint8_t, I64, 0, 1, "0 and 1")
/* clang-format on */

/* The types of classes. */
#define EK_TYPE_OF_F32 float
#define EK_TYPE_OF_F64 double
#define EK_TYPE_OF_I64 int64_t

/* EK_LOAD_x(v): the number that element v in memory represents, in a type that holds this
 * number. */
#define EK_LOAD_F32(v) (v)
#define EK_LOAD_F64(v) (v)
#define EK_LOAD_BF16(v) ek_float_of_bf16(v)
#define EK_LOAD_I64(v) (v)
#define EK_LOAD_U8(v) (v)
#define EK_LOAD_F16(v) ek_float_of_f16(v)
#define EK_LOAD_I32(v) (v)
#define EK_LOAD_BOOL(v) ((uint8_t)((v) != 0))

/* EK_x_OF_REAL(v): the element in memory for a float or a double. */
#define EK_F32_OF_REAL(v) ((float)(v))
#define EK_F64_OF_REAL(v) ((double)(v))
#define EK_BF16_OF_REAL(v) ek_bf16_of((float)(v))
#define EK_I64_OF_REAL(v) ek_i64_of((double)(v))
#define EK_U8_OF_REAL(v) ((uint8_t)ek_i64_of((double)(v)))
#define EK_F16_OF_REAL(v) ek_f16_of((float)(v))
#define EK_I32_OF_REAL(v) ek_i32_of((double)(v))
#define EK_BOOL_OF_REAL(v) ((uint8_t)((v) != 0))

/* EK_x_OF_INTEGER(v): the element in memory for an integer, modulo 2^n. */
#define EK_F32_OF_INTEGER(v) ((float)(v))
#define EK_F64_OF_INTEGER(v) ((double)(v))
#define EK_BF16_OF_INTEGER(v) ek_bf16_of((float)(v))
#define EK_I64_OF_INTEGER(v) ((int64_t)(v))
#define EK_U8_OF_INTEGER(v) ((uint8_t)(v))
#define EK_F16_OF_INTEGER(v) ek_f16_of((float)(v))
#define EK_I32_OF_INTEGER(v) ((int32_t)(v))
#define EK_BOOL_OF_INTEGER(v) ((uint8_t)((v) != 0))

#endif
