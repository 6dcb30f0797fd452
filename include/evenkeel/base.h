/** @file
 * base.h: what every public header needs: export marks, keyword arguments, three-way switches.
 *
 * Keyword arguments. A constructor or operation with options is a macro over a function that takes
 * a struct: `ek_conv2d(3, 16, 3, .padding = 1)`. Positional members come first, designated ones
 * follow. A member left out means PyTorch's default. A member that is written means what it says,
 * zero included: `ek_adam(net, .beta1 = 0)` uses 0. To tell a written zero from none, the macro
 * passes the text of its arguments in the struct's first member, `keywords`. A struct that is
 * filled without the macro has no such text: there write EK_ZERO for a zero that is not the
 * default.
 *
 * Calls are macros, and macros split their arguments at every comma that stands outside of
 * parentheses, also in braces and brackets. So put parentheses around a compound literal:
 * `ek_full(((double[]){1, 2})[i], EK_SHAPE(1))`. Lists that are options, `.kernels = {3, 1}`, and
 * EK_SHAPE(2, 3) are fine without.
 *
 * Switches (ek_switch) are EK_ON or EK_OFF; `true` and `false` mean the same: `.bias = false` is
 * off. EK_DEFAULT, written or not, is the default. In a struct that is filled without its macro, a
 * switch of 0 is the default, too.
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

/** A zero for numeric options whose default is not zero, in structs that are filled without their
 * macro. Every numeric type that options use (int, int64_t, double) can hold it. */
#define EK_ZERO (-2147483647 - 1)

/** The arguments as text, after the expansion of macros in them. */
#define EK_KEYWORDS(...) (__extension__ EK_KEYWORDS_TEXT(__VA_ARGS__))
#define EK_KEYWORDS_TEXT(...) #__VA_ARGS__

/** EK_ASSERTED(check, text) is 0; gcc shows the text if `check`, of constants and strings, is
 * false. EK_LACKS: whether a string lacks another. EK_KEYWORDS_SHAPED is EK_KEYWORDS, but a
 * compile-time error if the arguments begin with a digit or a brace in place of a shape. */
#ifndef __cplusplus
#if defined(__GNUC__) && !defined(__clang__)
#define EK_LACKS(text, part) (__builtin_strstr(text, part) == 0)
#define EK_ASSERTED(check, text)      \
    (0 * (int)sizeof(struct {         \
         _Static_assert(check, text); \
         char unused;                 \
     }))
#define EK_KEYWORDS_SHAPED(...)                                                       \
    (EK_KEYWORDS(__VA_ARGS__) +                                                       \
     EK_ASSERTED(__builtin_strspn(EK_KEYWORDS_TEXT(__VA_ARGS__), "{0123456789") == 0, \
                 "a shape is wanted: write EK_SHAPE(2, 3)"))
#elif defined(__clang__)
#define EK_ASSERTED(check, text) 0
static inline const char *ek_keywords_shaped(const char *text)
    __attribute__((diagnose_if(text[0] == '{' || (text[0] >= '0' && text[0] <= '9'),
                               "a shape is wanted: write EK_SHAPE(2, 3)", "error")));
static inline const char *ek_keywords_shaped(const char *text)
{
    return text;
}
#define EK_KEYWORDS_SHAPED(...) ek_keywords_shaped(EK_KEYWORDS(__VA_ARGS__))
#else
#define EK_ASSERTED(check, text) 0
#define EK_KEYWORDS_SHAPED(...) EK_KEYWORDS(__VA_ARGS__)
#endif
#else
#define EK_ASSERTED(check, text) 0
#endif

/** EK_OPTIONS(type, ...) is the options struct with the given members. EK_OPTIONS_1, _2 and _3 also
 * take the names of the first members, which calls usually give by position. EK_ITEMS and EK_COUNT
 * are the address and the length of an array of the arguments. */
#ifdef __cplusplus
#include "evenkeel/cxx.h"
#else
#define EK_OPTIONS(type, ...) ((type){.keywords = EK_KEYWORDS(__VA_ARGS__), __VA_ARGS__})
#define EK_OPTIONS_1(type, m, ...) EK_OPTIONS(type, __VA_ARGS__)
#define EK_OPTIONS_2(type, m, n, ...) EK_OPTIONS(type, __VA_ARGS__)
#define EK_OPTIONS_3(type, m, n, p, ...) EK_OPTIONS(type, __VA_ARGS__)
#define EK_ITEMS(type, ...) ((type const[]){__VA_ARGS__})
#define EK_COUNT(type, ...) ((int)(sizeof((type const[]){__VA_ARGS__}) / sizeof(type)))
#endif

EK_BEGIN_DECLARATIONS

/** True if the text names the option, as in ".lr = 0", or gives it by position (counted from 0,
 * after `keywords`). False for NULL: a struct that was filled without its macro. */
EK_API bool ek_keyword_is_written(const char *keywords, const char *name, int position);

/** An option as it was given: its number, 0 if it was left out, EK_ZERO if a zero was written. */
#define EK_GIVEN(options, member, position)                                                  \
    ((options)->member == 0 && ek_keyword_is_written((options)->keywords, #member, position) \
         ? EK_ZERO                                                                           \
         : (options)->member)

EK_END_DECLARATIONS

/** A switch whose default is not necessarily off. 0 is one that was left out; one that a call
 * writes as 0 is off. So a variable that may stand for the default holds EK_DEFAULT, not 0. In C++
 * it is a class of this size, which can be made of a bool. */
#ifdef __cplusplus
enum ek_switch_state { EK_ON = 1, EK_OFF = 2, EK_DEFAULT = 3 };
struct ek_switch {
    ek_switch_state state;
    ek_switch() = default;
    constexpr ek_switch(bool on) : state(on ? EK_ON : EK_OFF)
    {
    }
    constexpr ek_switch(ek_switch_state given) : state(given)
    {
    }
    constexpr operator ek_switch_state() const
    {
        return state;
    }
};
#else
typedef enum ek_switch { EK_ON = 1, EK_OFF = 2, EK_DEFAULT = 3 } ek_switch;
#endif

/** Tensors have at most this many dimensions. */
enum { EK_MAX_DIMS = 8 };

/** Processes that communicate (dist.h). */
typedef struct ek_process_group ek_process_group;

#endif
