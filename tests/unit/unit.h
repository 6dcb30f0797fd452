/* unit.h: what the Check programs share: tensor comparison, goldens, and their main.
 *
 * A test file defines `Suite *suite(void)`; unit.c has main. Don't call the library before Check
 * forks: threads started in the parent don't exist in the child. */
#ifndef EK_TESTS_UNIT_H
#define EK_TESTS_UNIT_H

#include <check.h>

#include "devices.h"
#include "evenkeel/random.h"
#include "evenkeel/scope.h"
#include "evenkeel/status.h"
#include "evenkeel/tensor.h"

Suite *suite(void);

/* Fails with the pending error's sentence unless `status` >= 0 or the pointer is not NULL. */
void assert_ok_at(int status, const char *file, int line);
void assert_tensor_at(const void *pointer, const char *file, int line);
#define assert_ok(call) assert_ok_at((call), __FILE__, __LINE__)
#define assert_made(pointer) assert_tensor_at((pointer), __FILE__, __LINE__)

/* The pending error has this status and its sentence contains `part`, and nothing twice in a row as
 * in "linear: linear: ..."; clears it. */
void assert_error_at(int status, const char *part, const char *file, int line);
#define assert_error(status, part) assert_error_at((status), (part), __FILE__, __LINE__)

/* Same shape and dtype, and |a - b| <= absolute + relative * |b| for every element; NaN fails. */
void assert_close_at(const ek_tensor *a, const ek_tensor *b, double relative, double absolute,
                     const char *file, int line);
#define assert_close(a, b, relative, absolute) \
    assert_close_at((a), (b), (relative), (absolute), __FILE__, __LINE__)

/* |a - b|_2 <= relative * |b|_2 over the whole tensor: for gradients, whose single entries may
 * cancel. */
void assert_close_norm_at(const ek_tensor *a, const ek_tensor *b, double relative, const char *file,
                          int line);
#define assert_close_norm(a, b, relative) \
    assert_close_norm_at((a), (b), (relative), __FILE__, __LINE__)

/* Element i in row-major order, as double. */
double element(const ek_tensor *tensor, int64_t i);
/* A f64 (or other) tensor on a device from doubles in row-major order. */
ek_tensor *tensor_of(const double *values, ek_shape shape, ek_dtype dtype, ek_device device);

/* Golden files: named tensors written by tests/golden/make.py. `file` is a name in tests/golden.
 * The tensor is in the scope, on cpu; a missing file or name fails the test. */
ek_tensor *golden(const char *file, const char *name);
bool golden_has(const char *file, const char *name);

#endif
