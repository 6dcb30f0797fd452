/** @file
 * base.h: what every public header needs: export marks and keyword arguments.
 *
 * Keyword arguments. A constructor or operation with options is a macro over a function that takes
 * a struct: `ek_conv2d(3, 16, 3, .padding = 1)`. Positional members come first, designated ones
 * follow. A member that is left out has its default, which stands behind the member in the struct,
 * EK_IS(1e-3), and is 0, NULL or false where nothing stands. A member that is written means what it
 * says, zero included: `ek_adam(net, .beta1 = 0)` uses 0. EK_UNSET is PyTorch's None, for numbers
 * that may be absent. A struct that is filled by hand begins with its defaults:
 * `ek_sgd_options o = EK_DEFAULTS(ek_sgd_options); o.lr = 0.1; ek_sgd_with(o);`. To give an option
 * twice is an error of the compiler.
 *
 * How it works in C. EK_CALL declares the struct with the defaults as initialisers, and the
 * caller's after them, which win. The member `begin` of each struct stands between the two: what
 * the caller gives without a name comes behind it. The defaults of a struct NAME are the list
 * EK_DEFAULTS_NAME, which stands behind it and says once more what EK_IS says to C++. gcc warns of
 * an initialiser that is overridden by one warning if it has an effect, and by another if it has
 * none. So EK_DEFAULT gives each default an effect, the empty function ek_default_is_here, and the
 * other warning is left for options that are given twice. clang has one warning for both, so that
 * the caller's initialisers are looked at once more by themselves, in the operand of typeof. In C++
 * members have their defaults from EK_IS, see cxx.h.
 *
 * Calls are macros, and macros split their arguments at every comma that stands outside of
 * parentheses, also in braces and brackets. So put parentheses around a compound literal:
 * `ek_full(((double[]){1, 2})[i], EK_SHAPE(1))`. Lists that are options, `.kernels = {3, 1}`, and
 * EK_SHAPE(2, 3) are fine without. Such a call stands in a function, not in the initialiser of a
 * static variable.
 *
 * Compilers. All public headers but tensor.h and random.h are system headers to them: for a mistake
 * in a call they show the call, not the macros behind it, and warnings are those of the caller's
 * arguments. The two are none, so that gcc warns of numbers where a shape is wanted. Some types
 * have a second name that says in such a message what is wanted, as
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
 * false. EK_LACKS: whether a string lacks another. EK_SHAPED(text) is 0, but a compile-time error
 * if the text of the arguments begins with a digit or a brace in place of a shape,
 * to gcc also behind signs and parentheses. */
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
 * give by position. EK_CALL_AFTER and its like pass `first` before the struct. EK_ITEMS and
 * EK_COUNT are the address and the length of an array of the arguments. */
#ifdef __cplusplus
#include "evenkeel/cxx.h"
#else
#define EK_IS(value)
/** What a struct that is filled by hand begins with: ek_sgd_options o = EK_DEFAULTS(...). */
#define EK_DEFAULTS(type)   \
    {                       \
        EK_DEFAULTS_##type, \
    }
/** One default, and the list of a struct that has none. */
#ifdef __clang__
#define EK_DEFAULT(member, value) .member = value
#else
#define EK_DEFAULT(member, value) .member = (ek_default_is_here(), value)
#endif
#define EK_NO_DEFAULTS EK_DEFAULT(begin, 0)
/** Nothing but an effect, by which compilers tell a default from what a caller gives. */
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
 * lives no longer than the expression, so that the call is the better place for one. */
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

/** Processes that communicate (dist.h). */
typedef struct ek_process_group ek_process_group;

#endif
