/* base.h: what every public header needs: export marks, keyword arguments, three-way switches.
 *
 * Keyword arguments. A constructor or operation with options is a macro over a function that takes
 * a struct: `ek_conv2d(3, 16, 3, .padding = 1)`. The struct's first member is `keywords`, which the
 * macro sets, so that both positional and designated members may follow. A member left out is zero,
 * and zero means PyTorch's default. Where zero itself is wanted and is not the default, write
 * EK_ZERO; where a switch is on by default, write EK_OFF. */
#ifndef EVENKEEL_BASE_H
#define EVENKEEL_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
#define EK_BEGIN_DECLARATIONS extern "C" {
#define EK_END_DECLARATIONS }
#else
#define EK_BEGIN_DECLARATIONS
#define EK_END_DECLARATIONS
#endif

#if defined(__GNUC__)
#define EK_API __attribute__((visibility("default")))
#define EK_PRINTF(text, first) __attribute__((format(printf, text, first)))
#else
#define EK_API
#define EK_PRINTF(text, first)
#endif

/* An explicit zero for numeric options whose default is not zero. Representable in every numeric
 * type that options use (int, int64_t, double). */
#define EK_ZERO (-2147483647 - 1)

/* A switch whose default is not necessarily off. */
typedef enum ek_switch { EK_DEFAULT = 0, EK_ON = 1, EK_OFF = 2 } ek_switch;

/* Tensors have at most this many dimensions. */
enum { EK_MAX_DIMS = 8 };

#endif
