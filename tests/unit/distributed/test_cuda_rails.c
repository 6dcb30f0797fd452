/* Tensors that travel from GPU to GPU: each rank has a GPU of its own. What comes out is to the bit
 * what comes out of the host's tensors. */
#include "rails_setup.h"

/* ---- calls ---- */

static const int64_t sizes[] = {0, 5, 127, 1000, 70001};
enum { SIZES = sizeof sizes / sizeof *sizes };

static bool op_fits(ek_dist_op op, ek_dtype dtype)
{
    return ek_dtype_is_floating(dtype) ? op < EK_DIST_BAND : op != EK_DIST_AVG;
}

static const char *reduces(ek_process_group *world, void *user)
{
    for (int s = 0; s < SIZES; s += test_is_short() ? 2 : 1)
        for (int dtype = 0; dtype < EK_DTYPES; dtype++)
            for (ek_dist_op op = 0; op <= EK_DIST_BXOR; op++) {
                if (!op_fits(op, dtype) || (s == 4 && op > EK_DIST_AVG))
                    continue;
                ek_scope scope = ek_scope_begin();
                ek_tensor *x = numbers(dtype, world->rank, sizes[s]), *y = on_gpu(x, world);
                RANKS_OK(ek_dist_all_reduce(x, .op = op, .group = world));
                RANKS_OK(ek_dist_all_reduce(y, .op = op, .group = world));
                LOOP_CHECK(same(y, x));
                RANKS_OK(ek_dist_reduce(x, world->size - 1, .op = op, .group = world));
                RANKS_OK(ek_dist_reduce(y, world->size - 1, .op = op, .group = world));
                LOOP_CHECK(same(y, x));
                ek_scope_end(&scope);
            }
    LOOP_CHECK(world->rails && world->rails->rail);
    return NULL;
}

static ek_tensor *given(ek_process_group *world, int from, int to, int64_t extra, bool gpu)
{
    ek_tensor *x = numbers(EK_F32, 10 * from + to, from + to + extra);
    return gpu ? on_gpu(x, world) : x;
}

static ek_tensor *awaited(ek_process_group *world, int from, int to, int64_t extra, bool gpu)
{
    ek_tensor *x = ek_zeros(EK_SHAPE(from + to + extra), .device = ek_cpu());
    return gpu ? on_gpu(x, world) : x;
}

/* All calls with lists; *outcome becomes what has come, one tensor after another. */
static const char *lists_of(ek_process_group *world, int64_t extra, bool gpu, ek_tensor **outcome)
{
    int size = world->size, rank = world->rank, count = 0;
    ek_tensor *in[GPUS], *out[GPUS], *all[6 * GPUS + 4];
    for (int r = 0; r < size; r++) {
        in[r] = awaited(world, r, rank, extra, gpu);
        out[r] = given(world, rank, r, extra, gpu);
    }
    RANKS_OK(ek_dist_all_to_all(.inputs = out, .list = in, .group = world));
    for (int r = 0; r < size; r++)
        all[count++] = in[r];
    for (int r = 0; r < size; r++)
        in[r] = awaited(world, r, 0, extra, gpu);
    RANKS_OK(ek_dist_all_gather(given(world, rank, 0, extra, gpu), in, .group = world));
    for (int r = 0; r < size; r++)
        all[count++] = in[r];
    for (int r = 0; r < size; r++)
        in[r] = awaited(world, r, 0, extra, gpu);
    RANKS_OK(ek_dist_gather(given(world, rank, 0, extra, gpu), rank == 1 ? in : NULL, 1,
                            .group = world));
    for (int r = 0; r < size && rank == 1; r++)
        all[count++] = in[r];
    ek_tensor *part = awaited(world, 0, rank, extra, gpu);
    for (int r = 0; r < size; r++)
        out[r] = given(world, 0, r, extra, gpu);
    RANKS_OK(ek_dist_scatter(part, rank == 0 ? out : NULL, 0, .group = world));
    all[count++] = part;
    for (int r = 0; r < size; r++)
        out[r] = ek_reshape(given(world, rank, rank, extra, gpu), EK_SHAPE(-1));
    for (int r = 0; r < size; r++) {
        out[r] = numbers(EK_F32, 10 * rank + r, r + extra);
        out[r] = gpu ? on_gpu(out[r], world) : out[r];
    }
    ek_tensor *sum = awaited(world, 0, rank, extra, gpu);
    RANKS_OK(ek_dist_reduce_scatter(sum, out, .group = world));
    all[count++] = sum;
    ek_tensor *sent = given(world, rank, 0, extra, gpu);
    sent = ek_narrow(sent, 0, 0, extra);
    RANKS_OK(ek_dist_broadcast(sent, 1, .group = world));
    all[count++] = sent;
    *outcome = ek_cat(all, count, 0);
    LOOP_CHECK(*outcome);
    return NULL;
}

static const char *lists(ek_process_group *world, void *user)
{
    int64_t extra = *(const int64_t *)user;
    ek_tensor *on_host, *on_device;
    LOOP_PASS(lists_of(world, extra, false, &on_host));
    LOOP_PASS(lists_of(world, extra, true, &on_device));
    LOOP_CHECK(same(on_device, on_host));
    return NULL;
}

/* Strides, and tensors that lie elsewhere than the call's first. */
static const char *strided(ek_process_group *world, void *user)
{
    ek_tensor *x = ek_reshape(numbers(EK_F32, world->rank, 3500), EK_SHAPE(70, 50));
    ek_tensor *y = on_gpu(x, world), *list[GPUS], *copies[GPUS];
    RANKS_OK(ek_dist_all_reduce(ek_transpose(x, 0, 1), .group = world));
    RANKS_OK(ek_dist_all_reduce(ek_transpose(y, 0, 1), .group = world));
    LOOP_CHECK(same(y, x));
    for (int r = 0; r < world->size; r++) {
        list[r] = ek_zeros(EK_SHAPE(50, 70), .device = ek_cpu());
        copies[r] = ek_zeros(EK_SHAPE(50, 70), .device = ek_cpu());
        if (r % 2)
            list[r] = ek_to_device(list[r], ek_cuda((world->rank + r) % world->size));
    }
    RANKS_OK(ek_dist_all_gather(ek_transpose(y, 0, 1), list, .group = world));
    RANKS_OK(ek_dist_all_gather(ek_transpose(x, 0, 1), copies, .group = world));
    for (int r = 0; r < world->size; r++)
        LOOP_CHECK(same(list[r], copies[r]));
    return NULL;
}

/* ---- operations of the graph ---- */

static const char *graph_of(ek_process_group *world, bool gpu, ek_tensor **outcome)
{
    ek_tensor *x =
        ek_reshape(numbers(EK_F64, world->rank, 60 + 30 * world->rank), EK_SHAPE(2, -1, 5));
    x = ek_clone(gpu ? on_gpu(x, world) : x);
    RANKS_OK(ek_tensor_set_requires_grad(x, true));
    ek_tensor *whole = ek_dist_join(ek_mul(x, x), 1, world);
    ek_tensor *mean = ek_dist_mean(ek_sum(whole, EK_DIMS(1)), world);
    ek_tensor *sum = ek_dist_sum(ek_mul(whole, whole), world);
    LOOP_CHECK(whole && mean && sum);
    RANKS_OK(ek_backward(ek_add(ek_sum(ek_mul(mean, mean)), ek_sum(sum))));
    ek_tensor *parts[] = {ek_reshape(ek_detach(whole), EK_SHAPE(-1)),
                          ek_reshape(ek_detach(mean), EK_SHAPE(-1)),
                          ek_reshape(ek_tensor_grad(x), EK_SHAPE(-1))};
    *outcome = ek_to_device(ek_cat(parts, 3, 0), ek_cpu());
    LOOP_CHECK(*outcome);
    return NULL;
}

static const char *graph(ek_process_group *world, void *user)
{
    ek_tensor *on_host, *on_device;
    LOOP_PASS(graph_of(world, false, &on_host));
    LOOP_PASS(graph_of(world, true, &on_device));
    for (int64_t i = 0; i < ek_count(on_host); i++) {
        double a = element(on_host, i), b = element(on_device, i);
        LOOP_CHECK(fabs(a - b) <= 1e-12 * (1 + fabs(a)));
    }
    return NULL;
}

/* ---- ek_distributed_data_parallel ---- */

typedef struct setting {
    bool narrow;
    int gpus; /* of each rank */
    ek_dist_backend backend;
} setting;

static int fill(const char *path, ek_tensor *parameter, void *user)
{
    int *number = user;
    for (int64_t i = 0; i < ek_count(parameter); i++)
        ((float *)ek_tensor_address(parameter))[i] =
            (float)cos((double)(i + 31 * ++*number)) * 0.3f;
    ek_tensor_touch(parameter);
    return 0;
}

static const char *train(ek_process_group *world, const setting *s, ek_tensor **outcome)
{
    int number = 0;
    world->communication->backend = s->backend;
    ek_module *net = ek_sequential(ek_conv2d(2, 8, 3), ek_sync_batch_norm(8), ek_relu(),
                                   ek_flatten(1, -1), ek_linear(128, 40), ek_linear(40, 3));
    LOOP_CHECK(net);
    RANKS_OK(ek_module_parameters(net, fill, &number));
    ek_device first = ek_cuda(s->gpus * world->rank);
    ek_device_list own = ek_device_list_of((ek_device[]){first, ek_cuda(first.index + 1)}, s->gpus);
    ek_module *model =
        ek_distributed_data_parallel(net, .device_ids = own, .process_group = world,
                                     .bucket_cap_mb = 0.004, .bf16_gradients = s->narrow);
    LOOP_CHECK(model);
    ek_optimizer *optimizer = ek_sgd(model, .lr = 0.1);
    for (int step = 0; step < 3; step++) {
        ek_scope scope = ek_scope_begin();
        ek_tensor *x = numbers(EK_F32, 10 * world->rank + step, 3 * 2 * 36);
        x = ek_to_device(ek_mul_scalar(ek_reshape(x, EK_SHAPE(3, 2, 6, 6)), 0.01), first);
        ek_zero_grad(optimizer);
        RANKS_OK(ek_backward(ek_mean(ek_square(ek_apply(model, x)))));
        RANKS_OK(ek_step(optimizer));
        ek_scope_end(&scope);
    }
    *outcome = ek_clone(ek_to_device(ek_detach(ek_module_tensor(net, "0.weight")), ek_cpu()));
    LOOP_CHECK(*outcome);
    ek_optimizer_free(optimizer);
    ek_module_free(model);
    return NULL;
}

/* The same to the bit, whatever carries the gradients. */
static const char *trains(ek_process_group *world, void *user)
{
    setting s = *(const setting *)user;
    ek_tensor *staged, *carried;
    ek_use_deterministic_algorithms(true); /* sums of convolutions may differ otherwise */
    s.backend = EK_DIST_MPI;
    LOOP_PASS(train(world, &s, &staged));
    s.backend = EK_DIST_NCCL;
    LOOP_PASS(train(world, &s, &carried));
    LOOP_CHECK(same(carried, staged));
    return NULL;
}

/* NCCL adds in an order of its own. */
static const char *library_sums(ek_process_group *world, void *user)
{
    for (int dtype = 0; dtype < EK_DTYPES; dtype++)
        for (ek_dist_op op = 0; op <= EK_DIST_BXOR; op++) {
            if (!op_fits(op, dtype))
                continue;
            ek_scope scope = ek_scope_begin();
            ek_tensor *x = numbers(dtype, world->rank, 300), *y = on_gpu(x, world);
            RANKS_OK(ek_dist_all_reduce(x, .op = op, .group = world));
            RANKS_OK(ek_dist_all_reduce(y, .op = op, .group = world));
            for (int64_t i = 0; i < ek_count(x); i++) {
                double a = element(y, i), b = element(x, i);
                bool narrow = ek_dtype_is_narrow((ek_dtype)dtype); /* NCCL rounds each sum */
                LOOP_CHECK(a == b ||                               /* infinite in f16 */
                           fabs(a - b) <= (narrow ? 0.02 : 1e-5) * fabs(b) + (narrow ? 2 : 1e-3));
            }
            ek_scope_end(&scope);
        }
    LOOP_CHECK(world->rails && world->rails->library);
    return NULL;
}

/* ---- tests ---- */

TEST_LOOP(sums_are_those_of_the_host, 2, 5)
{
    if (enough(_i))
        ranks_check(_i, (uint64_t)_i, reduces, NULL);
}

TEST(sums_may_be_left_to_nccl)
{
    setenv("EVENKEEL_DIST_SUM", "nccl", 1);
    if (enough(3))
        ranks_check(3, 1, library_sums, NULL);
}

TEST_LOOP(lists_are_those_of_the_host, 0, 6)
{
    int64_t extras[] = {1, 700};
    if (enough(2 + _i % 3))
        ranks_check(2 + _i % 3, (uint64_t)_i, lists, &extras[_i / 3]);
}

TEST_LOOP(any_layout_and_place, 2, 4)
{
    if (enough(_i))
        ranks_check(_i, (uint64_t)_i, strided, NULL);
}

TEST_LOOP(operations_of_the_graph, 2, 4)
{
    if (enough(_i))
        ranks_check(_i, (uint64_t)_i, graph, NULL);
}

TEST_LOOP(training_is_the_same_by_nccl_and_by_host_memory, 0, 6)
{
    int ranks = _i < 4 ? 2 + _i / 2 : 2;
    setting s = {.narrow = _i % 2, .gpus = _i < 4 ? 1 : 2};
    if (enough(ranks * s.gpus))
        ranks_check(ranks, (uint64_t)_i, trains, &s);
}
