/* unit.h: what the Check programs share: their main, tensor comparison, goldens, all public headers
 * and the usual ones of C.
 *
 *     FIXTURE(setup, teardown)
 *
 *     TEST(a_sentence)
 *     {
 *         ck_assert_int_eq(1 + 1, 2);
 *     }
 *
 * Nothing else is needed: tests register themselves, and unit.c has main. CK_RUN_CASE=a_sentence
 * runs this one alone. Nothing may call the library before Check forks: threads started in the
 * parent don't exist in the child. With CK_FORK=no all tests run in one process: after each, unit.c
 * puts back the environment, modes and devices, and shuts the library down. */
#ifndef EK_TESTS_UNIT_H
#define EK_TESTS_UNIT_H

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "devices.h"
#include "evenkeel/evenkeel.h"

/* A function that the library calls has all parameters of its type, also those that a test has no
 * use for. */
#pragma GCC diagnostic ignored "-Wunused-parameter"

/* A test, with its body behind. */
#define TEST(name) TEST_LOOP(name, 0, 1)

/* A test for each `_i` of [first, end): none if the range is empty. */
#define TEST_LOOP(name, first, end)                                          \
    static void name(int _i);                                                \
    __attribute__((constructor)) static void unit_test_##name(void)          \
    {                                                                        \
        static unit_test test = {.test = {#name, name, __FILE__, __LINE__}}; \
        unit_add(&test, (first), (end));                                     \
    }                                                                        \
    static void name(int _i)

/* Functions before and after each test that the file defines further down; NULL for none. */
#define FIXTURE(setup, teardown)                                        \
    __attribute__((constructor)) static void unit_fixture_##setup(void) \
    {                                                                   \
        unit_fixture((setup), (teardown));                              \
    }

/* A name for the tests that the file defines further down: CK_INCLUDE_TAGS=name runs these alone.
 */
#define GROUP(name)                                                     \
    __attribute__((constructor)) static void unit_group_of_##name(void) \
    {                                                                   \
        unit_group(#name);                                              \
    }

/* A function that main calls before all tests, in the process that Check forks. */
#define BEFORE_ALL(function)                                              \
    __attribute__((constructor)) static void unit_before_##function(void) \
    {                                                                     \
        unit_before_all(function);                                        \
    }

/* The program's tests run in a process each, whatever CK_FORK says: for what the library reads once
 * and what does not outlast a test well. */
#define OWN_PROCESSES                                                      \
    __attribute__((constructor)) static void unit_with_own_processes(void) \
    {                                                                      \
        unit_own_processes();                                              \
    }

/* tests/CMakeLists.txt reads these in a test's file. NAMES_DEVICES: the devices are host devices,
 * whatever the environment says. WRAPS: the linker lets calls of the function go to __wrap_ of its
 * name. COST: about the seconds that the program takes. ctest starts long tests first. */
#define NAMES_DEVICES
#define WRAPS(function)
#define COST(seconds)

typedef struct unit_test {
    TTest test;
    int first, end;
    SFun setup, teardown;
    const char *group; /* NULL: none */
    struct unit_test *next;
} unit_test;

void unit_add(unit_test *test, int first, int end);
void unit_fixture(SFun setup, SFun teardown);
void unit_group(const char *name);
void unit_before_all(SFun function);
void unit_own_processes(void);

/* Fails with the pending error's sentence unless `status` >= 0 or the pointer is not NULL. */
void assert_ok_at(int status, const char *file, int line);
void assert_tensor_at(const void *pointer, const char *file, int line);
#define assert_ok(call) assert_ok_at((call), __FILE__, __LINE__)
#define assert_made(pointer) assert_tensor_at((pointer), __FILE__, __LINE__)

/* The pending error has this status and its sentence contains `part`, and nothing twice in a row as
 * in "linear: linear: ..."; clears it. */
void assert_error_at(int status, const char *part, const char *file, int line);
#define assert_error(status, part) assert_error_at((status), (part), __FILE__, __LINE__)

/* The call gives nothing (NULL, this status, or the value of an error), and assert_error(status,
 * part). */
#define assert_refused(call, status, part)                      \
    assert_refused_at(_Generic((call), ek_value                 \
                               : gives_error, int               \
                               : gives_status, int64_t          \
                               : gives_status, default          \
                               : gives_null)((call), (status)), \
                      (status), (part), __FILE__, __LINE__)
bool gives_error(ek_value result, int status);
bool gives_status(int64_t result, int status);
bool gives_null(const void *result, int status);
void assert_refused_at(bool refused, int status, const char *part, const char *file, int line);

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

/* Made, and on this device. */
void assert_on_at(const ek_tensor *tensor, ek_device device, const char *file, int line);
#define assert_on(tensor, device) assert_on_at((tensor), (device), __FILE__, __LINE__)

/* Element i in row-major order, as double. */
double element(const ek_tensor *tensor, int64_t i);
/* The number that the bits of an f16 stand for, and the bits of the f16 nearest to a number. */
double f16_value(uint16_t half);
uint16_t f16_bits(double value);
/* A f64 (or other) tensor on a device from doubles in row-major order. */
ek_tensor *tensor_of(const double *values, ek_shape shape, ek_dtype dtype, ek_device device);

/* Golden files: named tensors written by tests/golden/make.py. `file` is a name in tests/golden.
 * The tensor is in the scope, on cpu; a missing file or name fails the test. */
ek_tensor *golden(const char *file, const char *name);
bool golden_has(const char *file, const char *name);

/* A row of a switch that makes what a number stands for. */
#define CASE_IS(label, ...) \
    case label:             \
        return __VA_ARGS__

#endif
