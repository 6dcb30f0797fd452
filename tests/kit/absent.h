/* absent.h: a tensor whose storage has memory only while it is held (core/tensor.h, ek_residence),
 * so that whoever reads it without holding it crashes. */
#ifndef EK_TESTS_KIT_ABSENT_H
#define EK_TESTS_KIT_ABSENT_H

#include <stdlib.h>

#include "core/tensor.h"
#include "unit.h"

typedef struct absent {
    ek_residence residence;
    ek_storage *storage; /* borrowed */
    char *elements;      /* owned */
    int holds;
} absent;

static inline void absent_destroy(ek_object *object)
{
    free(((absent *)object)->elements);
    free(object);
}

static inline int absent_hold(ek_residence *residence)
{
    absent *self = (absent *)residence;
    ek_dev *cpu = ek_dev_get(ek_cpu());
    if (self->holds++ > 0)
        return 0;
    EK_TRY(ek_storage_present(self->storage));
    return ek_dev_copy(self->storage->dev, self->storage->data, cpu, self->elements,
                       self->storage->nbytes);
}

static inline void absent_release(ek_residence *residence)
{
    absent *self = (absent *)residence;
    if (--self->holds == 0)
        ek_storage_absent(self->storage);
}

/* Makes a tensor with x's elements and geometry, in the scope. x lies alone in its storage. */
static inline ek_tensor *absent_tensor(ek_tensor *x)
{
    absent *self = calloc(1, sizeof *self);
    ek_dev *cpu = ek_dev_get(ek_cpu());
    ck_assert_ptr_nonnull(self);
    ek_object_init(&self->residence.object, absent_destroy);
    self->residence.hold = absent_hold;
    self->residence.release = absent_release;
    self->elements = malloc(x->storage->nbytes + 1);
    assert_ok(
        ek_dev_copy(cpu, self->elements, ek_tensor_dev(x), x->storage->data, x->storage->nbytes));
    self->storage = ek_storage_new_absent(ek_tensor_dev(x), x->storage->nbytes, EK_MEMORY_PARAMETER,
                                          &self->residence);
    assert_made(self->storage);
    ek_shape shape = ek_tensor_shape(x);
    ek_tensor *made = ek_tensor_member(self->storage, x->dtype, &shape, x->stride, x->offset);
    assert_made(made);
    ek_object_release(self->storage);
    ek_object_release(self);
    return made;
}

#endif
