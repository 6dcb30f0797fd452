/* shard_setup.h: parameters that are sharded by hand over several devices, as the data-parallel
 * wrappers shard theirs. */
#ifndef EK_TESTS_SHARD_SETUP_H
#define EK_TESTS_SHARD_SETUP_H

#include <stdlib.h>
#include <string.h>

#include "autograd/graph.h"
#include "autograd/shards.h"
#include "core/slab.h"
#include "evenkeel/ops.h"
#include "evenkeel/optim.h"
#include "unit.h"

enum { PARAMETERS = 8, MOST_DEVICES = 4 };

typedef struct fake_group {
    ek_shards shards;
    int count, devices;
    ek_tensor *parameters[PARAMETERS]; /* borrowed */
    uint64_t versions[PARAMETERS];     /* at which the shards had the parameters' values */
    ek_tensor *copies[MOST_DEVICES][PARAMETERS]; /* references; of device 0 the parameters */
    int refreshed, published, fail;              /* fail: the next refresh does */
} fake_group;

static inline ek_shape parameter_shape(int i)
{
    /* Counts 7, 48, 16, 1, 0, 30 of f32, then 18 and 9 of f64. */
    static const ek_shape shapes[PARAMETERS] = {{1, {7}},    {4, {2, 3, 4, 2}}, {2, {4, 4}},
                                                {0, {0}},    {2, {0, 4}},       {3, {5, 2, 3}},
                                                {2, {6, 3}}, {1, {9}}};
    return shapes[i];
}

static inline ek_dtype parameter_dtype(int i)
{
    return i < 6 ? EK_F32 : EK_F64;
}

static inline void random_parameters(ek_tensor **p, ek_device device)
{
    for (int i = 0; i < PARAMETERS; i++) {
        p[i] = ek_to_device(ek_randn(parameter_shape(i), .dtype = parameter_dtype(i),
                                     .format = EK_CHANNELS_LAST),
                            device);
        p[i] = ek_clone(p[i]);
        assert_ok(ek_tensor_set_requires_grad(p[i], true));
    }
}

static inline void copies_of(ek_tensor *const *p, ek_tensor **copies)
{
    for (int i = 0; i < PARAMETERS; i++) {
        copies[i] = ek_clone(ek_detach(p[i]));
        assert_ok(ek_tensor_set_requires_grad(copies[i], true));
    }
}

/* ---- the group ---- */

static inline char *address_of(ek_tensor *tensor, int64_t element)
{
    return (char *)ek_tensor_address(tensor) + (size_t)element * ek_dtype_size(tensor->dtype);
}

static inline int copy_range(ek_tensor *to, ek_tensor *from, const ek_shard *shard)
{
    return ek_dev_copy(ek_tensor_dev(to), address_of(to, shard->begin), ek_tensor_dev(from),
                       address_of(from, shard->begin),
                       (size_t)(shard->end - shard->begin) * ek_dtype_size(to->dtype));
}

static inline int owner_of(const fake_group *group, const ek_shard *shard)
{
    for (int d = 0; d < group->devices; d++)
        if (ek_tensor_dev(group->copies[d][0]) == ek_tensor_dev(shard->tensor))
            return d;
    ck_abort_msg("nobody owns a shard");
}

static inline int fake_refresh(ek_shards *shards)
{
    fake_group *group = (fake_group *)shards;
    group->refreshed++;
    if (group->fail)
        return EK_FAIL(EK_E_STATE, "no refreshment");
    for (int i = 0; i < group->count; i++) {
        if (group->versions[i] == ek_tensor_version(group->parameters[i]))
            continue;
        for (int d = 1; d < group->devices; d++) {
            const ek_shard all = {0, ek_count(group->parameters[i]), NULL};
            EK_TRY(copy_range(group->copies[d][i], group->parameters[i], &all));
        }
        group->versions[i] = ek_tensor_version(group->parameters[i]);
    }
    return 0;
}

static inline int fake_publish(ek_shards *shards, int status)
{
    (void)status;
    fake_group *group = (fake_group *)shards;
    group->published++;
    for (int i = 0; i < group->count; i++) {
        for (int k = shards->first[i]; k < shards->first[i] + shards->counts[i]; k++) {
            const ek_shard *shard = &shards->all[k];
            int owner = owner_of(group, shard);
            for (int d = 0; d < group->devices; d++)
                if (d != owner)
                    EK_TRY(copy_range(group->copies[d][i], group->copies[owner][i], shard));
        }
        group->versions[i] = ek_tensor_version(group->parameters[i]);
    }
    return 0;
}

static inline void fake_destroy(ek_object *object)
{
    fake_group *group = (fake_group *)object;
    for (int d = 0; d < group->devices; d++)
        for (int i = 0; i < group->count; i++)
            ek_object_release(group->copies[d][i]);
    ek_shards_clear(&group->shards);
    free(group);
}

/* The tensors in slabs on `device`, one per dtype. */
static inline void make_homes(ek_tensor *const *tensors, int count, ek_device device,
                              ek_tensor **homes)
{
    for (int dtype = 0; dtype < EK_DTYPES; dtype++) {
        ek_tensor *chosen[PARAMETERS * MOST_DEVICES + 1];
        int n = 0;
        for (int i = 0; i < count; i++)
            if ((int)tensors[i]->dtype == dtype)
                chosen[n++] = tensors[i];
        if (n == 0)
            continue;
        ek_slab *slab = ek_slab_new(ek_dev_get(device), chosen, n);
        assert_made(slab);
        n = 0;
        for (int i = 0; i < count; i++)
            if ((int)tensors[i]->dtype == dtype)
                homes[i] = ek_object_retain(slab->members[n++]);
        ek_object_release(slab);
    }
}

/* ---- shardings ---- */

/* A flat leaf on the owner's copy. */
static inline ek_tensor *shard_of(ek_tensor *copy, int64_t begin, int64_t end)
{
    ek_shape shape = {1, {end - begin}};
    int64_t stride = 1;
    ek_tensor *tensor =
        ek_tensor_member(copy->storage, copy->dtype, &shape, &stride, copy->offset + begin);
    assert_made(tensor);
    tensor->requires_grad = true;
    return ek_object_retain(tensor);
}

/* Where device d's part of a parameter's elements begins. "Straddling": cuts anywhere, so that
 * parameters have shards on several devices, some of them empty. Else whole slabs are cut at
 * multiples of 16 elements. */
static inline int64_t cut(const ek_tensor *parameter, int devices, int d, bool straddling)
{
    int64_t count = ek_count(parameter), offset = parameter->offset;
    if (d == 0 || d == devices)
        return d == 0 ? 0 : count;
    if (straddling)
        return count * d * d / (devices * devices);
    int64_t total = (int64_t)(parameter->storage->nbytes / ek_dtype_size(parameter->dtype));
    int64_t at = (total * d / devices + 15) / 16 * 16 - offset;
    return at < 0 ? 0 : at > count ? count : at;
}

static inline void divide_parameter(fake_group *group, int i, bool straddling)
{
    ek_tensor *parameter = group->parameters[i];
    for (int d = 0; d < group->devices; d++) {
        int64_t begin = cut(parameter, group->devices, d, straddling);
        int64_t end = cut(parameter, group->devices, d + 1, straddling);
        ek_tensor *tensor = shard_of(group->copies[d][i], begin, end);
        ek_shards_add(&group->shards, i, begin, end, tensor);
        ek_object_release(tensor);
    }
}

static inline void give_slots(fake_group *group)
{
    ek_memory_category before = ek_memory_set_category(EK_MEMORY_GRADIENT);
    for (int d = 0; d < group->devices; d++) {
        ek_tensor *tensors[PARAMETERS], *slots[PARAMETERS];
        for (int i = 0; i < group->count; i++)
            tensors[i] = group->shards.all[group->shards.first[i] + d].tensor;
        make_homes(tensors, group->count, ek_tensor_device(tensors[0]), slots);
        for (int i = 0; i < group->count; i++) {
            assert_ok(ek_leaf_set_grad_buffer(tensors[i], slots[i]));
            ek_object_release(slots[i]);
        }
    }
    ek_memory_set_category(before);
}

/* Divides the parameters, which lie on the first device, over `devices`; the leaves keep the
 * group. */
static inline fake_group *divide_over(ek_tensor *const *p, int count, int devices, bool straddling)
{
    ek_tensor *homes[PARAMETERS] = {NULL};
    fake_group *group = calloc(1, sizeof *group);
    ck_assert_ptr_nonnull(group);
    ek_object_init(&group->shards.object, fake_destroy);
    assert_ok(ek_shards_init(&group->shards, count, count * devices));
    group->shards.refresh = fake_refresh;
    group->shards.publish = fake_publish;
    group->count = count;
    group->devices = devices;
    ek_memory_category before = ek_memory_set_category(EK_MEMORY_PARAMETER);
    make_homes(p, count, ek_tensor_device(p[0]), homes);
    for (int d = 1; d < devices; d++)
        make_homes(homes, count, test_device(d), group->copies[d]);
    ek_memory_set_category(before);
    for (int i = 0; i < count; i++) {
        assert_made(ek_copy_(homes[i], ek_detach(p[i])));
        ek_tensor_rebind(p[i], homes[i]);
        for (int d = 1; d < devices; d++)
            assert_made(ek_copy_(group->copies[d][i], homes[i]));
        group->copies[0][i] = homes[i];
        group->parameters[i] = p[i];
        group->versions[i] = ek_tensor_version(p[i]);
        divide_parameter(group, i, straddling);
    }
    give_slots(group);
    for (int i = 0; i < count; i++)
        assert_ok(ek_leaf_set_shards(p[i], &group->shards, i));
    ek_object_release(&group->shards);
    return group;
}

static inline void make_whole(ek_tensor *const *p, int count)
{
    for (int i = 0; i < count; i++)
        assert_ok(ek_leaf_set_shards(p[i], NULL, 0));
}

/* ---- comparisons ---- */

static inline void assert_equal_lists(ek_tensor *const *a, ek_tensor *const *b, int count)
{
    for (int i = 0; i < count; i++)
        assert_close(ek_detach(a[i]), ek_detach(b[i]), 0, 0);
}

/* All devices' copies are the parameters'. */
static inline void assert_published(const fake_group *group)
{
    for (int d = 1; d < group->devices; d++)
        assert_equal_lists(group->copies[d], group->parameters, group->count);
}

static inline uint64_t bytes_of(ek_device device, ek_memory_category category)
{
    ek_memory_stats stats;
    assert_ok(ek_memory_get_stats(device, &stats));
    return stats.now[category];
}

#endif
