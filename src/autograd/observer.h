/* observer.h: how an observer learns of the operations and modules that a thread runs, for the
 * export of modules to other formats.
 *
 * Every operation ends with a call of ek_record, with its name, operands and attributes, and
 * ek_record tells the observer. Graph nodes would not suffice: integers, comparisons and tensors
 * without a gradient have none. Operations that never call ek_record tell the observer by
 * EK_OBSERVED. Without an observer each operation pays one load. */
#ifndef EK_AUTOGRAD_OBSERVER_H
#define EK_AUTOGRAD_OBSERVER_H

#include "autograd/graph.h"
#include "evenkeel/module.h"

/* ek_thread.observer points to the observer, which is borrowed. Arguments of the functions are
 * valid during the call only. The observer keeps its errors for its owner. */
typedef struct ek_observer {
    /* Called after an operation has made the outputs. If output 0 is input 0, the operation wrote
     * in place. If an earlier operation made an output already, the earlier operation is a part of
     * the later one. */
    void (*operation)(struct ek_observer *self, const char *name, ek_tensor *const *outputs,
                      int output_count, const ek_record_options *options);
    /* Called before and after a module's forward. `output` is an error if the forward failed. */
    void (*enter)(struct ek_observer *self, ek_module *module);
    void (*leave)(struct ek_observer *self, ek_module *module, const ek_args *args,
                  ek_value output);
} ek_observer;

/* Tells the observer of an operation that records nothing. The macro's value is y. */
#define EK_OBSERVED(y, name, ...) ek_observed((y), (name), &(const ek_record_options){__VA_ARGS__})
static inline ek_tensor *ek_observed(ek_tensor *y, const char *name,
                                     const ek_record_options *options)
{
    ek_observer *observer = ek_thread_self()->observer;
    if (y && observer)
        observer->operation(observer, name, &y, 1, options);
    return y;
}

#endif
