/** @file
 * base.h: what every public header needs: export marks and keyword arguments.
 *
 * Keyword arguments. A constructor or operation with options is a macro over a function that takes
 * a struct: `ek_conv2d(3, 16, 3, .padding = 1)`. Positional members come first, designated ones
 * follow. A member that is left out has its default, which the struct shows after the member as
 * EK_IS(1e-3); without an EK_IS the default is 0, NULL or false. A member that the call gives is
 * used as given, also 0: `ek_adam(net, .beta1 = 0)` uses 0. EK_UNSET is PyTorch's None, for numbers
 * that may be absent. A struct that is filled by hand begins with its defaults:
 * `ek_sgd_options o = EK_DEFAULTS(ek_sgd_options); o.lr = 0.1; ek_sgd_with(o);`. To give an option
 * twice is an error of the compiler.
 *
 * How it works in C. EK_CALL declares the struct with the defaults as initialisers, and the
 * caller's after them, which win. The member `begin` of each struct is initialised between the two,
 * so that the caller's positional values begin at the member after it. The defaults of a struct
 * NAME are the list EK_DEFAULTS_NAME, which follows the struct and repeats for C what EK_IS tells
 * C++. gcc warns of an initialiser that is overridden by one warning if it has an effect, and by
 * another if it has none. So EK_DEFAULT gives each default an effect, the empty function
 * ek_default_is_here, and the other warning is left for options that are given twice. clang has one
 * warning for both; so the caller's initialisers are checked alone a second time, in the operand of
 * typeof. In C++ members have their defaults from EK_IS, see cxx.h.
 *
 * Calls are macros, and macros split their arguments at every comma that stands outside of
 * parentheses, also in braces and brackets. So put parentheses around a compound literal:
 * `ek_full(((double[]){1, 2})[i], EK_SHAPE(1))`. Lists that are options, `.kernels = {3, 1}`, and
 * EK_SHAPE(2, 3) need no parentheses. Calls with options must be inside a function, not in the
 * initialiser of a static variable.
 *
 * Compilers. All public headers but tensor.h and random.h are system headers to compilers: for a
 * mistake in a call they show the call, not the macros in its expansion, and they warn only of the
 * caller's arguments. tensor.h and random.h are not, so that gcc warns of numbers where a shape is
 * wanted. Some types have a second name that tells in the compiler's message what is wanted, as
 * ek_module_made_with_parentheses.
 *
 * Comments in the public headers. A comment that documents begins with two stars (a file's head:
 * and @file) and stands before what users call: before the macro, which follows the options' struct
 * and the function `_with`, or before the function; it holds for its whole paragraph, up to an
 * empty line or the next such comment. A member's comment stands behind the member and begins with
 * two stars and `<`. Comments with one star, such as heads of sections, document nothing; because
 * editors take the last comment before a declaration for its own, what follows a head of a section
 * has a comment. */
#ifndef EVENKEEL_BASE_H
#define EVENKEEL_BASE_H
#pragma GCC system_header /* see "Compilers" above */

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

/** PyTorch's None for a number that may be absent: an int, an int64_t or a double. */
#define EK_UNSET (-2147483647 - 1)

/** EK_TEXT(a, b) is "a, b", after the expansion of macros in them. */
#define EK_TEXT(...) (__extension__ EK_TEXT_OF(__VA_ARGS__))
#define EK_TEXT_OF(...) #__VA_ARGS__

/** EK_ASSERTED(check, text) is 0; gcc shows the text if `check`, of constants and strings, is
 * false. EK_LACKS(text, part) is true if `part` does not occur in `text`. EK_SHAPED(text) is 0; if
 * the text of the arguments begins with a digit or a brace in place of a shape (with gcc also after
 * signs and parentheses), it is a compile-time error. */
#ifndef __cplusplus
#if defined(__GNUC__) && !defined(__clang__)
#define EK_LACKS(text, part) (__builtin_strstr(text, part) == 0)
#define EK_ASSERTED(check, text)      \
    (0 * (int)sizeof(struct {         \
         _Static_assert(check, text); \
         char unused;                 \
     }))
#define EK_SHAPED(text)                                                                      \
    EK_ASSERTED(__builtin_strspn(text + __builtin_strspn(text, "(+- "), "{0123456789") == 0, \
                "a shape is wanted: write EK_SHAPE(2, 3)")
#elif defined(__clang__)
#define EK_ASSERTED(check, text) 0
static inline int ek_shaped(const char *text)
    __attribute__((diagnose_if(text[0] == '{' || (text[0] >= '0' && text[0] <= '9'),
                               "a shape is wanted: write EK_SHAPE(2, 3)", "error")));
static inline int ek_shaped(const char *text)
{
    (void)text;
    return 0;
}
#define EK_SHAPED(text) ek_shaped(text)
#else
#define EK_ASSERTED(check, text) 0
#define EK_SHAPED(text) 0
#endif
#else
#define EK_ASSERTED(check, text) 0
#endif

/** EK_CALL(function, type, ...) calls the function with an options struct of the type that has the
 * given members. EK_CALL_1, _2 and _3 also take the names of the first members, which calls usually
 * give by position. EK_CALL_AFTER and EK_CALL_AFTER_1 pass `first` before the struct. EK_ITEMS and
 * EK_COUNT are the address and the length of an array of the arguments. */
#ifdef __cplusplus
#include "evenkeel/cxx.h"
#else
#define EK_IS(value)
/** Initialises a struct that is filled by hand: ek_sgd_options o = EK_DEFAULTS(ek_sgd_options). */
#define EK_DEFAULTS(type)   \
    {                       \
        EK_DEFAULTS_##type, \
    }
/** EK_DEFAULT is one default; EK_NO_DEFAULTS is the list of a struct without defaults. */
#ifdef __clang__
#define EK_DEFAULT(member, value) .member = value
#else
#define EK_DEFAULT(member, value) .member = (ek_default_is_here(), value)
#endif
#define EK_NO_DEFAULTS EK_DEFAULT(begin, 0)
/** Does nothing. To compilers the call is an effect, which only defaults have, not callers' values.
 */
static inline void ek_default_is_here(void)
{
}

#ifdef __clang__
#define EK_TWICE_IS_AN_ERROR \
    _Pragma("clang diagnostic push") _Pragma("clang diagnostic error \"-Winitializer-overrides\"")
#define EK_DEFAULT_IS_OVERRIDDEN                                    \
    _Pragma("clang diagnostic ignored \"-Winitializer-overrides\"") \
        _Pragma("clang diagnostic ignored \"-Wint-conversion\"")    \
            _Pragma("clang diagnostic ignored \"-Wincompatible-pointer-types\"")
#define EK_AS_BEFORE _Pragma("clang diagnostic pop")
#define EK_CALL_DECLARE(type, checked, ...)                                \
    EK_TWICE_IS_AN_ERROR __typeof__((type){.begin = checked, __VA_ARGS__}) \
        EK_DEFAULT_IS_OVERRIDDEN ek_options = {EK_DEFAULTS_##type, .begin = 0, __VA_ARGS__};
#else
#define EK_TWICE_IS_AN_ERROR \
    _Pragma("GCC diagnostic push") _Pragma("GCC diagnostic error \"-Woverride-init\"")
#define EK_DEFAULT_IS_OVERRIDDEN _Pragma("GCC diagnostic ignored \"-Woverride-init-side-effects\"")
#define EK_AS_BEFORE _Pragma("GCC diagnostic pop")
#define EK_CALL_DECLARE(type, checked, ...)                                              \
    EK_TWICE_IS_AN_ERROR EK_DEFAULT_IS_OVERRIDDEN type ek_options = {EK_DEFAULTS_##type, \
                                                                     .begin = checked,   \
                                                                     __VA_ARGS__};
#endif
#define EK_CALL_CHECKED(call, type, checked, ...) \
    (__extension__({ EK_CALL_DECLARE(type, checked, __VA_ARGS__) EK_AS_BEFORE call; }))
#define EK_CALL(function, type, ...) EK_CALL_CHECKED(function(ek_options), type, 0, __VA_ARGS__)
/** The struct itself: EK_OPTIONS(ek_sgd_options, net, .lr = 0.1). In C an array among the arguments
 * lives no longer than the expression: give arrays in the call that uses the options. */
#define EK_OPTIONS(type, ...) EK_CALL(, type, __VA_ARGS__)
#define EK_CALL_1(function, type, m, ...) EK_CALL(function, type, __VA_ARGS__)
#define EK_CALL_2(function, type, m, n, ...) EK_CALL(function, type, __VA_ARGS__)
#define EK_CALL_3(function, type, m, n, p, ...) EK_CALL(function, type, __VA_ARGS__)
#define EK_CALL_AFTER(function, first, type, ...) \
    EK_CALL_CHECKED(function(first, ek_options), type, 0, __VA_ARGS__)
#define EK_CALL_AFTER_1(function, first, type, m, ...) \
    EK_CALL_AFTER(function, first, type, __VA_ARGS__)
#define EK_ITEMS(type, ...) ((type const[]){__VA_ARGS__})
#define EK_COUNT(type, ...) ((int)(sizeof((type const[]){__VA_ARGS__}) / sizeof(type)))
#endif

/** Tensors have at most this many dimensions. */
enum { EK_MAX_DIMS = 8 };

/** A group of processes that communicate (dist.h). */
typedef struct ek_process_group ek_process_group;

#endif
