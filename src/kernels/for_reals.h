/* for_reals.h: includes the file named by EK_FOR_REALS twice: with EK_REAL as float, then as
 * double. EK_NAME(f) is the function f for that type. If a file names itself, its code for each
 * type stands in the #else of its #ifndef EK_REAL. There is no include guard, because several files
 * include this header. */
#define EK_REAL float
#define EK_NAME(name) name##_f32
#include EK_FOR_REALS
#undef EK_REAL
#undef EK_NAME

#define EK_REAL double
#define EK_NAME(name) name##_f64
#include EK_FOR_REALS
#undef EK_REAL
#undef EK_NAME
#undef EK_FOR_REALS
