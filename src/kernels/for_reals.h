/* for_reals.h: includes the file that EK_FOR_REALS names twice: EK_REAL is float and then double,
 * and EK_NAME(f) is that type's f. A file may name itself: what stands for each type is in its
 * #else of #ifndef EK_REAL. No include guard: each use is another file's. */
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
