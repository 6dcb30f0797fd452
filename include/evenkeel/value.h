/** @file
 * value.h: values, which modules take and give: a tensor, or a tree of lists and dictionaries.
 *
 * A value is small and passed by value. Its tensor, list or dictionary is owned by a scope, as any
 * tensor. Lists and dictionaries hold references to their elements. */
#ifndef EVENKEEL_VALUE_H
#define EVENKEEL_VALUE_H
#pragma GCC system_header /* see base.h */

#include "evenkeel/scope.h"
#include "evenkeel/tensor.h"

EK_BEGIN_DECLARATIONS

/** The tag is named so that compilers' messages explain the mistake of a tensor in place of an
 * ek_value. */
typedef enum ek_kind_that_EK_VALUE_sets {
    EK_VALUE_NONE = 0,
    EK_VALUE_TENSOR,
    EK_VALUE_LIST,
    EK_VALUE_DICT,
    EK_VALUE_INT,
    EK_VALUE_FLOAT,
    EK_VALUE_POINTER, /**< the user's pointer; never followed */
    EK_VALUE_ERROR    /**< an operation failed; the thread's error says why */
} ek_value_kind;

typedef struct ek_list ek_list;
typedef struct ek_dict ek_dict;

typedef struct ek_value {
    ek_value_kind kind;
    /** Marks a list that has one element per device: outputs of a data-parallel model, inputs and
     * targets that are scattered already. */
    bool per_device;
    /** For a tensor: 1 + its batch dimension, as ek_value_batched has marked it; 0: no mark. */
    signed char batch;
    union {
        ek_tensor *tensor;
        ek_list *list;
        ek_dict *dict;
        int64_t integer;
        double floating;
        void *pointer;
    } as;
} ek_value;

/** No value: a target, say, that a criterion doesn't take. */
EK_API ek_value ek_value_none(void);
/** NULL gives EK_VALUE_ERROR if an error is pending, else EK_VALUE_NONE. */
EK_API ek_value ek_value_of_tensor(ek_tensor *tensor);
/** Values of a number or of the user's pointer, and the value that stands for a failed result. */
EK_API ek_value ek_value_of_int(int64_t integer);
EK_API ek_value ek_value_of_float(double floating);
EK_API ek_value ek_value_of_pointer(void *pointer);
EK_API ek_value ek_value_error(void);

/** A list of `count` values. An error among them gives an error. */
EK_API ek_value ek_value_list(const ek_value *items, int count);
/** The same, marked per_device. */
EK_API ek_value ek_value_per_device(const ek_value *items, int count);

/** The value with the dimension `dim` of each of its tensors marked as their batch; a negative one
 * counts from the end. EK_VALUE_ERROR, with EK_E_SHAPE, if a tensor has no such dimension. A mark
 * belongs to the value, not to the tensor: operations on the tensor know nothing of it.
 *
 * Data-parallel wrappers cut inputs and join outputs along the marked dimension, and tensors
 * without a mark along the wrapper's option `dim`. So pass the state of a recurrent network, which
 * has its batch in dimension 1, to a wrapper as ek_value_batched(state, 1). Recurrent networks mark
 * their results, and wrappers mark what they cut and join: a state that a wrapper returned is
 * marked. */
EK_API ek_value ek_value_batched(ek_value value, int dim);
/** The marked dimension, from 0, or `otherwise` if there is no mark. */
EK_API int ek_value_batch_dim(ek_value value, int otherwise);

/** A dictionary, in the order of its entries. Keys are copied; duplicates are EK_E_INVALID. */
typedef struct ek_value_entry {
    const char *key;
    ek_value value;
} ek_value_entry;
EK_API ek_value ek_value_dict(const ek_value_entry *entries, int count);

/** The tensor of a value (borrowed). NULL with EK_E_INVALID for another kind of value; NULL with
 * the pending error for an error. */
EK_API ek_tensor *ek_value_tensor(ek_value value);

/** Length of a list or dictionary; 0 for others. */
EK_API int ek_value_length(ek_value value);
/** Element of a list or, by position, of a dictionary, and the key at a position (borrowed).
 * EK_VALUE_ERROR or NULL if out of range. */
EK_API ek_value ek_value_at(ek_value value, int index);
EK_API const char *ek_value_key(ek_value value, int index);
/** Element of a dictionary by key (borrowed); EK_VALUE_NONE if there is none. */
EK_API ek_value ek_value_get(ek_value value, const char *key);

/** Add and drop a reference, as ek_keep and ek_release do for tensors. */
EK_API ek_value ek_value_keep(ek_value value);
EK_API void ek_value_release(ek_value value);
/** Ends a scope, but moves the value to the enclosing one; returns it. */
EK_API ek_value ek_scope_return_value(ek_scope *scope, ek_value value);
#ifndef EK_WITHOUT_PLACES
/* Notes the place of the call that releases the value or returns it from a scope. */
static inline ek_value ek_value_placed(ek_value value, const char *file, int line)
{
    ek_placed(NULL, file, line);
    return value;
}
#define ek_value_release(value) ek_value_release(ek_value_placed((value), __FILE__, __LINE__))
#define ek_scope_return_value(scope, value) \
    ek_scope_return_value(scope, ek_value_placed((value), __FILE__, __LINE__))
#endif

/** EK_VALUE(x): a value of x, which is a tensor or a value. */
#ifdef __cplusplus
} /* extern "C" */
static inline ek_value ek_to_value(ek_tensor *tensor)
{
    return ek_value_of_tensor(tensor);
}
static inline ek_value ek_to_value(ek_value value)
{
    return value;
}
#define EK_VALUE(x) ek_to_value(x)
extern "C" {
#else
static inline ek_value ek_value_identity(ek_value value)
{
    return value;
}
/* EK_VALUE's type for anything else, named so that the compiler's message explains the mistake. */
typedef struct ek_tensor_or_ek_value {
    int unused;
} ek_tensor_or_ek_value;
static inline ek_value ek_only_tensors_and_values_are_taken(ek_tensor_or_ek_value x)
{
    (void)x;
    return ek_value_error();
}
#define EK_VALUE(x)                         \
    _Generic((x), ek_tensor *               \
             : ek_value_of_tensor, ek_value \
             : ek_value_identity, default   \
             : ek_only_tensors_and_values_are_taken)(x)
#endif

/** EK_LIST(a, b, c): a list of up to 8 tensors or values. EK_SCATTERED(a, b, c): the same, marked
 * per_device. */
#define EK_MAP_1(f, a) f(a)
#define EK_MAP_2(f, a, ...) f(a), EK_MAP_1(f, __VA_ARGS__)
#define EK_MAP_3(f, a, ...) f(a), EK_MAP_2(f, __VA_ARGS__)
#define EK_MAP_4(f, a, ...) f(a), EK_MAP_3(f, __VA_ARGS__)
#define EK_MAP_5(f, a, ...) f(a), EK_MAP_4(f, __VA_ARGS__)
#define EK_MAP_6(f, a, ...) f(a), EK_MAP_5(f, __VA_ARGS__)
#define EK_MAP_7(f, a, ...) f(a), EK_MAP_6(f, __VA_ARGS__)
#define EK_MAP_8(f, a, ...) f(a), EK_MAP_7(f, __VA_ARGS__)
#define EK_MAP_MORE(f, ...) ek_at_most_8_values_are_taken_here_more_by_ek_value_list
#define EK_MAP_PICK(a, b, c, d, e, f, g, h, i, j, k, l, name, ...) name
#define EK_MAP(f, ...)                                                                        \
    EK_MAP_PICK(__VA_ARGS__, EK_MAP_MORE, EK_MAP_MORE, EK_MAP_MORE, EK_MAP_MORE, EK_MAP_8,    \
                EK_MAP_7, EK_MAP_6, EK_MAP_5, EK_MAP_4, EK_MAP_3, EK_MAP_2, EK_MAP_1, unused) \
    (f, __VA_ARGS__)
#define EK_VALUES(...) EK_ITEMS(ek_value, EK_MAP(EK_VALUE, __VA_ARGS__))
#define EK_VALUES_COUNT(...) EK_MAP_PICK(__VA_ARGS__, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, unused)
#define EK_LIST(...) ek_value_list(EK_VALUES(__VA_ARGS__), EK_VALUES_COUNT(__VA_ARGS__))
#define EK_SCATTERED(...) ek_value_per_device(EK_VALUES(__VA_ARGS__), EK_VALUES_COUNT(__VA_ARGS__))

EK_END_DECLARATIONS
#endif
