/** @file
 * cxx.h: the macros of base.h for C++17 and later. Include base.h, not this.
 *
 * C++ cannot mix positional and designated members in one list, nor take the address of an array in
 * an expression. So each positional argument is put into an options struct of its own, and the rest
 * is a list of designated members, in the order of their declaration. A list in braces (.kernels =
 * {3, 1}) must come after all positional arguments of the call. */
#ifndef EVENKEEL_CXX_H
#define EVENKEEL_CXX_H

#include "evenkeel/base.h"

#ifdef __cplusplus

/** Members that are left out are zero; as a system header this file gives no warnings about them.
 */
#pragma GCC system_header

#include <stddef.h>

/** The address of an array that lives until the end of the full expression. */
template <class T, size_t N> constexpr const T *ek_items(const T (&items)[N])
{
    return items;
}
/** The sizeof of its result is the number of items. Never called, so nothing is evaluated. */
template <class T, size_t N> char (&ek_counted(const T (&items)[N]))[N];
#define EK_ITEMS(type, ...) ek_items<type>({__VA_ARGS__})
#define EK_COUNT(type, ...) ((int)sizeof(ek_counted<type>({__VA_ARGS__})))

/** The default of a member, which in C stands in the list of the struct's defaults, too. */
#define EK_IS(value) = value
#define EK_DEFAULTS(type) type()

/** of({a}): options with member `m` set and defaults. of({.x = a}): options with member `x` set. If
 * there is no argument, `given` is false, and of({}) gives defaults. */
template <class O, class A, A O::*m, bool given> struct ek_leading {
    static O of(A a)
    {
        O options = O();
        if (given)
            options.*m = a;
        return options;
    }
    static O of(O options)
    {
        return options;
    }
};

/** Merges parts. Each member is set by one part at most, and is the default in all others: so the
 * bits in which a part differs from the defaults are its members'. */
template <class O> O ek_joined(const O &part)
{
    return part;
}
template <class O, class... P> O ek_joined(const O &part, const P &...parts)
{
    O options = ek_joined(parts...);
    const O defaults = O();
    unsigned char *to = reinterpret_cast<unsigned char *>(&options);
    const unsigned char *from = reinterpret_cast<const unsigned char *>(&part);
    const unsigned char *base = reinterpret_cast<const unsigned char *>(&defaults);
    for (size_t i = 0; i < sizeof(O); i++)
        to[i] = static_cast<unsigned char>(to[i] ^ from[i] ^ base[i]);
    return options;
}
/** Turns off clang's warning about braces around one number. */
#ifdef __clang__
#define EK_BRACED(...)                                                                            \
    _Pragma("clang diagnostic push") _Pragma("clang diagnostic ignored \"-Wbraced-scalar-init\"") \
        __VA_ARGS__ _Pragma("clang diagnostic pop")
#else
#define EK_BRACED(...) __VA_ARGS__
#endif

/** True if the text after the positional arguments is empty or begins with a member's name. */
constexpr bool ek_is_named(const char *text)
{
    return *text == ' ' || *text == ',' ? ek_is_named(text + 1) : *text == '\0' || *text == '.';
}
/** The argument of the text that follows the comma behind `at`, without spaces before it; its end
 * if there is none. */
constexpr const char *ek_next_argument(const char *at)
{
    for (int depth = 0; *at && (depth > 0 || *at != ','); at++) {
        if (*at == '"')
            for (at++; *at && *at != '"'; at++)
                at += *at == '\\' && at[1];
        depth += *at == '(' || *at == '{' || *at == '[';
        depth -= *at == ')' || *at == '}' || *at == ']';
        if (!*at)
            break;
    }
    while (*at == ',' || *at == ' ')
        at++;
    return at;
}
/** True if the text begins with the name, which ends where no letter, digit or _ follows. */
constexpr bool ek_is_name(const char *text, const char *name)
{
    while (*text == *name && *text && *text != ' ' && *text != '=')
        text++, name++;
    return (*name == '\0' || *name == ' ' || *name == '=') && (*text == ' ' || *text == '=');
}
/** True if no argument of the text names the member, as in .name = 0. */
constexpr bool ek_is_unnamed(const char *text, const char *name)
{
    for (; *text; text = ek_next_argument(text))
        if (*text == '.' && ek_is_name(text + 1, name))
            return false;
    return true;
}
/** True if no member is given twice: by the text's arguments without a name, which give the members
 * m, n and p in this order, and by those with one. */
constexpr bool ek_is_once(const char *text, const char *m, const char *n, const char *p)
{
    for (int i = 0; *text; i++) {
        const char *rest = ek_next_argument(text);
        const char *name = *text == '.' ? text + 1 : i == 0 ? m : i == 1 ? n : p;
        if (*name && !ek_is_unnamed(rest, name))
            return false;
        text = rest;
    }
    return true;
}
/** Classes, because their assertions are the first message about a call. */
template <bool named> struct ek_named {
    static_assert(named, "in C++ no more arguments of this call can go without a name: write "
                         ".member = value");
    template <class O> static O of(const O &options)
    {
        return options;
    }
};
#define EK_NAMED(O, ...) ek_named<ek_is_named(EK_TEXT_OF(__VA_ARGS__))>::of(O{__VA_ARGS__})
template <bool once> struct ek_once {
    static_assert(once, "an option is given twice");
    template <class O> static O of(const O &options)
    {
        return options;
    }
};

/** False if the text begins with a digit or a brace. */
constexpr bool ek_is_shaped(const char *text)
{
    return *text != '{' && (*text < '0' || *text > '9');
}
template <bool shaped> struct ek_shaped {
    static_assert(shaped, "a shape is wanted: write EK_SHAPE(2, 3)");
    template <class O> static O of(const O &options)
    {
        return options;
    }
};

#define EK_LEADING(O, m, ...) \
    ek_leading<O, decltype(O::m), &O::m, sizeof(EK_TEXT_OF(__VA_ARGS__)) != 1>::of({__VA_ARGS__})
#define EK_JOINED_1(O, m, a, ...) ek_joined(EK_LEADING(O, m, a), EK_NAMED(O, __VA_ARGS__))
#define EK_JOINED_2(O, m, n, a, b, ...) \
    ek_joined(EK_LEADING(O, m, a), EK_LEADING(O, n, b), EK_NAMED(O, __VA_ARGS__))
#define EK_JOINED_3(O, m, n, p, a, b, c, ...)                                \
    ek_joined(EK_LEADING(O, m, a), EK_LEADING(O, n, b), EK_LEADING(O, p, c), \
              EK_NAMED(O, __VA_ARGS__))
#define EK_ONCE(m, n, p, ...) ek_once<ek_is_once(EK_TEXT_OF(__VA_ARGS__), #m, #n, #p)>::of
/** The options that EK_CALL passes. The comma at the end keeps the last macro's `...` from being
 * left out. */
#define EK_MADE(O, ...) EK_NAMED(O, __VA_ARGS__)
#define EK_MADE_1(O, m, ...) \
    EK_ONCE(m, , , __VA_ARGS__)(EK_BRACED(EK_JOINED_1(O, m, __VA_ARGS__, )))
#define EK_MADE_2(O, m, n, ...) \
    EK_ONCE(m, n, , __VA_ARGS__)(EK_BRACED(EK_JOINED_2(O, m, n, __VA_ARGS__, )))
#define EK_MADE_3(O, m, n, p, ...) \
    EK_ONCE(m, n, p, __VA_ARGS__)(EK_BRACED(EK_JOINED_3(O, m, n, p, __VA_ARGS__, )))
#define EK_CALL(function, O, ...) function(EK_MADE(O, __VA_ARGS__))
#define EK_OPTIONS(O, ...) EK_MADE(O, __VA_ARGS__)
#define EK_CALL_1(function, O, m, ...) function(EK_MADE_1(O, m, __VA_ARGS__))
#define EK_CALL_2(function, O, m, n, ...) function(EK_MADE_2(O, m, n, __VA_ARGS__))
#define EK_CALL_3(function, O, m, n, p, ...) function(EK_MADE_3(O, m, n, p, __VA_ARGS__))
#define EK_CALL_AFTER(function, first, O, ...) function(first, EK_MADE(O, __VA_ARGS__))
#define EK_CALL_AFTER_1(function, first, O, m, ...) function(first, EK_MADE_1(O, m, __VA_ARGS__))

#endif
#endif
