/* stage_comm.c: comm.h: what crosses devices, and its gradients. */
#include "rows.h"

/* All tensors, each times another number, as one on host:0. */
static ek_tensor *gathered(int count, ek_tensor **slices)
{
    ek_tensor *flat[2 * FAULT_DEVICES] = {NULL};
    for (int i = 0; i < count; i++)
        flat[i] = ek_to_device(ek_mul_scalar(ek_f_flatten(slices[i], 0, -1), i + 1), ek_host(0));
    return count < 0 ? NULL : ek_cat(flat, count, 0);
}

/* x on each device, times another number there. */
static void spread(ek_tensor *x, ek_tensor **out)
{
    for (int i = 0; i < FAULT_DEVICES; i++)
        out[i] = ek_mul_scalar(ek_to_device(x, ek_host(i)), i + 1);
}

static ek_tensor *broadcast(ek_tensor *x)
{
    ek_device_list devices = fault_devices();
    ek_tensor *out[FAULT_DEVICES] = {NULL};
    int status = ek_broadcast(x, &devices, out);
    return gathered(status < 0 ? status : FAULT_DEVICES, out);
}

/* Buffers of 8 bytes: one per tensor. */
static ek_tensor *broadcast_coalesced(ek_tensor *const *x)
{
    ek_device_list devices = fault_devices();
    ek_tensor *out[2 * FAULT_DEVICES] = {NULL};
    int status = ek_broadcast_coalesced(x, 2, &devices, 8, out);
    return gathered(status < 0 ? status : 2 * FAULT_DEVICES, out);
}

static ek_tensor *reduce_add(ek_tensor *x)
{
    ek_tensor *in[FAULT_DEVICES];
    spread(x, in);
    return ek_to_device(ek_reduce_add(in, FAULT_DEVICES, ek_host(1)), ek_host(0));
}

static ek_tensor *reduce(ek_tensor *x)
{
    ek_tensor *in[FAULT_DEVICES];
    spread(x, in);
    return ek_reduce_add(in, FAULT_DEVICES, ek_tensor_device(in[0]));
}

static ek_tensor *reduce_add_coalesced(ek_tensor *const *x)
{
    ek_tensor *in[2 * FAULT_DEVICES], *out[2] = {NULL};
    for (int i = 0; i < 2; i++) {
        ek_tensor *on[FAULT_DEVICES];
        spread(x[i], on);
        for (int d = 0; d < FAULT_DEVICES; d++)
            in[2 * d + i] = on[d];
    }
    int status = ek_reduce_add_coalesced(in, FAULT_DEVICES, 2, ek_host(0), 0, out);
    return gathered(status < 0 ? status : 2, out);
}

static ek_tensor *scatter(ek_tensor *x, const int64_t *sizes)
{
    ek_device_list devices = fault_devices();
    ek_tensor *out[FAULT_DEVICES] = {NULL};
    return gathered(ek_scatter(x, &devices, sizes, 0, out), out);
}

static ek_tensor *gather(ek_tensor *x)
{
    ek_tensor *in[FAULT_DEVICES];
    spread(x, in);
    return ek_gather(in, FAULT_DEVICES, ek_host(0), 0);
}

static ek_tensor *allreduce(ek_tensor *x)
{
    ek_tensor *in[FAULT_DEVICES], *out[FAULT_DEVICES] = {NULL};
    spread(x, in);
    int status = ek_allreduce(in, 1, FAULT_DEVICES, out);
    return gathered(status < 0 ? status : FAULT_DEVICES, out);
}

/* ---- over nests ---- */

static ek_tensor *nest(ek_tensor *const *x)
{
    ek_device_list devices = fault_devices();
    ek_value parts[FAULT_DEVICES];
    ek_value whole = ek_value_dict((const ek_value_entry[]){{"a", EK_VALUE(x[0])},
                                                            {"b", EK_LIST(x[1], ek_value_of_int(3),
                                                                          ek_value_of_float(0.5))}},
                                   2);
    int count = ek_scatter_value(whole, &devices, NULL, 0, parts);
    if (count < 0)
        return NULL;
    ek_value joined = ek_gather_value(parts, count, ek_host(0), 0);
    ek_value list = ek_value_get(joined, "b");
    return ek_add(ek_value_tensor(ek_value_get(joined, "a")),
                  ek_value_tensor(ek_value_at(list, 0)));
}

/* A tensor whose batch is dimension 1, beside one whose batch is dimension 0. */
static ek_tensor *marked(ek_tensor *const *x)
{
    ek_device_list devices = fault_devices();
    ek_value parts[FAULT_DEVICES], whole = EK_LIST(x[0], ek_value_batched(EK_VALUE(x[1]), 1));
    int count = ek_scatter_value(whole, &devices, NULL, 0, parts);
    if (count < 0)
        return NULL;
    ek_value joined = ek_gather_value(parts, count, ek_host(0), 0);
    if (joined.kind == EK_VALUE_ERROR)
        return NULL;
    return ek_transpose(ek_value_tensor(ek_value_at(joined, 1)), 0,
                        ek_value_batch_dim(ek_value_at(joined, 1), 0));
}

static ek_tensor *to_device(ek_tensor *x)
{
    ek_tensor *on[FAULT_DEVICES];
    spread(x, on);
    ek_value value = ek_value_to_device(EK_SCATTERED(on[0], on[1], on[2]), ek_host(0), 0);
    return ek_value_tensor(value);
}

/* ---- inside the replicas of a forward ---- */

static ek_value meet_forward(ek_module *self, const ek_args *args)
{
    ek_tensor *x = ek_arg_tensor(args, 0), *sum = NULL;
    ek_tensor *mean = x ? ek_mean(x, EK_DIMS(0)) : NULL;
    if (!mean || ek_allreduce(&mean, 1, 1, &sum) < 0)
        return ek_value_error();
    return ek_value_of_tensor(ek_mul(x, sum));
}

static const ek_module_type meet_type = {.name = "meet",
                                         .size = sizeof(ek_module),
                                         .forward = meet_forward};

static ek_tensor *meet(ek_tensor *x)
{
    ek_module *module = ek_data_parallel(ek_module_new(&meet_type), .device_ids = fault_devices());
    ek_tensor *y = ek_apply(module, x);
    ek_module_free(module);
    return y;
}

#define COMMUNICATION(X)                                                \
    X(broadcast, "f2x3", broadcast(x[0]))                               \
    X(broadcast_coalesced, "f2x3 f3", broadcast_coalesced(x))           \
    X(reduce_add, "f2x3", reduce_add(x[0]))                             \
    X(reduce_add_coalesced, "f2x3 f3", reduce_add_coalesced(x))         \
    X(reduce, "f2x3", reduce(x[0]))                                     \
    X(scatter, "f5x2", scatter(x[0], NULL))                             \
    X(scatter_sizes, "f5x2", scatter(x[0], (const int64_t[]){1, 3, 1})) \
    X(gather, "f2x3", gather(x[0]))                                     \
    X(allreduce, "f2x3", allreduce(x[0]))                               \
    X(allreduce_replicas, "f5x2", meet(x[0]))                           \
    X(nest, "f5x2 f5x2", nest(x))                                       \
    X(marked, "f5x2 f2x5", marked(x))                                   \
    X(value_to_device, "f2x3", to_device(x[0]))

ROWS_STAGE(comm, COMMUNICATION);
