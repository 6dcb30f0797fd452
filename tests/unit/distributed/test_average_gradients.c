/* The mean of a module's gradients over ranks: against one process, with gradients that only some
 * ranks have, and in few messages. */
#include "autograd/graph.h"
#include "evenkeel/ddp.h"
#include "evenkeel/nn.h"
#include "evenkeel/ops.h"
#include "kit/same.h"
#include "kit/shards.h"

enum { RANKS = 3, ROWS = 7, INPUTS = 4, HIDDEN = 5, OUTPUTS = 2 };
static const int bounds[] = {0, 4, 4, ROWS}; /* of the ranks' rows; rank 1 has none */

static ek_tensor *drawn(uint64_t seed, ek_shape shape, ek_dtype dtype)
{
    ek_tensor *x = ek_empty(shape, EK_F64, .device = ek_cpu());
    for (int64_t i = 0; x && i < ek_count(x); i++)
        ((double *)ek_tensor_address(x))[i] =
            sin((double)(seed * 100 + (uint64_t)i) * 1.7) + 0.01 * (double)(i % 7);
    return ek_to_device(ek_to_dtype(x, dtype), test_home());
}

static double number(ek_tensor *x, int64_t i)
{
    ek_scope scope = ek_scope_begin();
    ek_tensor *row = x ? ek_contiguous(ek_to_device(ek_detach(x), ek_cpu()), EK_CONTIGUOUS) : NULL;
    double value = row ? ek_element_double((const char *)ek_tensor_address(row) +
                                               (size_t)i * ek_dtype_size(row->dtype),
                                           row->dtype)
                       : NAN;
    ek_scope_end(&scope);
    return value;
}

static const char *near(ek_tensor *x, ek_tensor *wanted)
{
    LOOP_CHECK(x && wanted && ek_same_shape(x, wanted));
    for (int64_t i = 0; i < ek_count(wanted); i++)
        LOOP_CHECK(fabs(number(x, i) - number(wanted, i)) <=
                   1e-12 * fmax(1, fabs(number(wanted, i))));
    return NULL;
}

/* ---- modules ---- */

/* The same on all ranks: its values don't come from a generator. */
static ek_module *network(ek_dtype first, ek_dtype second)
{
    ek_module *a = ek_linear(INPUTS, HIDDEN), *b = ek_linear(HIDDEN, OUTPUTS);
    ek_module *spare = ek_linear(3, 3); /* which no forward uses */
    if (a && b && spare) {
        ek_module_to_dtype(a, first);
        ek_module_to_dtype(b, second);
    }
    ek_module *net = ek_sequential(a, ek_tanh(), b, spare);
    tensor_list l = parameters_of(net);
    bool before = ek_set_grad_enabled(false);
    for (int i = 0; i < l.count; i++) {
        ek_shape shape = ek_tensor_shape(l.tensors[i]);
        ek_copy_(l.tensors[i],
                 ek_to_device(drawn((uint64_t)i, shape, l.tensors[i]->dtype), ek_cpu()));
    }
    ek_set_grad_enabled(before);
    if (net && ek_module_to_device(net, test_home()) < 0) {
        ek_module_free(net);
        return NULL;
    }
    return net;
}

/* The sum of the rows' losses. */
static ek_tensor *loss_of(ek_module *net, int begin, int end)
{
    tensor_list l = parameters_of(net);
    ek_tensor *x = ek_narrow(drawn(50, EK_SHAPE(ROWS, INPUTS), EK_F64), 0, begin, end - begin);
    ek_tensor *y =
        ek_f_tanh(ek_f_linear(ek_to_dtype(x, l.tensors[0]->dtype), l.tensors[0], l.tensors[1]));
    y = ek_f_linear(ek_to_dtype(y, l.tensors[2]->dtype), l.tensors[2], l.tensors[3]);
    return ek_sum(ek_mul(y, y));
}

/* ---- against one process ---- */

RANKS_LOOP(the_mean_of_slices_is_the_gradient_of_one_process, RANKS, 0, 3)
{
    ek_module *net = network(EK_F64, EK_F64), *whole = network(EK_F64, EK_F64);
    LOOP_CHECK(net && whole);
    for (int step = 0; step < 2; step++) { /* gradients that were there are part of the mean */
        RANKS_OK(ek_backward(loss_of(whole, 0, ROWS)));
        RANKS_OK(
            ek_backward(ek_mul_scalar(loss_of(net, bounds[world->rank], bounds[world->rank + 1]),
                                      world->size)));
        RANKS_OK(ek_dist_average_gradients(net, world));
        tensor_list own = parameters_of(net), all = parameters_of(whole);
        LOOP_CHECK_EQ(own.count, 6);
        for (int i = 0; i < 4; i++)
            LOOP_PASS(near(ek_tensor_grad(own.tensors[i]), ek_tensor_grad(all.tensors[i])));
        for (int i = 4; i < 6; i++) /* absent everywhere stays absent */
            LOOP_CHECK(!ek_tensor_grad(own.tensors[i]));
    }
    ek_module_free(net);
    ek_module_free(whole);
    return NULL;
}

/* ---- presence, places, dtypes ---- */

/* Rank r has a gradient of parameter i if bit i of has[r] is set. */
RANKS_TEST(what_any_rank_has_all_have_afterwards, RANKS, 1)
{
    static const int has[RANKS] = {0x05, 0x21, 0x0d};
    ek_module *net = network(EK_F64, EK_F32);
    LOOP_CHECK(net);
    tensor_list l = parameters_of(net);
    ek_tensor *slots[6];
    for (int i = 0; i < l.count; i++) {
        slots[i] = drawn(7, ek_tensor_shape(l.tensors[i]), l.tensors[i]->dtype);
        if (i >= 2) /* some parameters have memory for their gradients */
            RANKS_OK(ek_leaf_set_grad_buffer(l.tensors[i], slots[i]));
        if (has[world->rank] >> i & 1)
            RANKS_OK(ek_tensor_set_grad(l.tensors[i],
                                        ek_full(world->rank + i + 1, ek_tensor_shape(l.tensors[i]),
                                                l.tensors[i]->dtype, .device = test_home())));
    }
    RANKS_OK(ek_dist_average_gradients(net, world));
    for (int i = 0; i < l.count; i++) {
        double sum = 0;
        bool any = false;
        for (int r = 0; r < RANKS; r++) {
            any = any || has[r] >> i & 1;
            sum += has[r] >> i & 1 ? r + i + 1 : 0;
        }
        ek_tensor *grad = ek_tensor_grad(l.tensors[i]);
        LOOP_CHECK(any == !!grad);
        if (grad && i >= 2 && !(has[world->rank] >> i & 1))
            LOOP_CHECK(grad == slots[i]);
        for (int64_t k = 0; grad && k < ek_count(grad); k++)
            LOOP_CHECK(fabs(number(grad, k) - sum / RANKS) <= 1e-6);
    }
    ek_module_free(net);
    return NULL;
}

/* Gradients with a graph, and such whose elements repeat in memory. */
RANKS_TEST(gradients_with_a_graph_lose_it, RANKS, 2)
{
    ek_module *net = network(EK_F64, EK_F64);
    LOOP_CHECK(net);
    tensor_list l = parameters_of(net);
    RANKS_OK(ek_backward(loss_of(net, 0, 1 + world->rank), .create_graph = true));
    LOOP_CHECK(ek_tensor_requires_grad(ek_tensor_grad(l.tensors[0])));
    ek_tensor *sum = ek_clone(ek_detach(ek_tensor_grad(l.tensors[0])));
    RANKS_OK(ek_dist_all_reduce(sum, .group = world, .op = EK_DIST_AVG));
    ek_tensor *one = ek_full(world->rank, EK_SHAPE(1, 1), EK_F32, .device = test_home());
    RANKS_OK(ek_tensor_set_grad(l.tensors[4], ek_expand(one, EK_SHAPE(3, 3))));
    RANKS_OK(ek_dist_average_gradients(net, world));
    LOOP_CHECK(!ek_tensor_requires_grad(ek_tensor_grad(l.tensors[0])));
    LOOP_PASS(near(ek_tensor_grad(l.tensors[0]), sum));
    for (int i = 0; i < 9; i++)
        LOOP_CHECK(number(ek_tensor_grad(l.tensors[4]), i) == 1);
    LOOP_CHECK(number(one, 0) == world->rank);
    ek_module_zero_grad(net);
    ek_module_free(net);
    return NULL;
}

/* ---- shards ---- */

RANKS_TEST(gradients_in_shards, RANKS, 3)
{
    ek_module *net = network(EK_F64, EK_F64);
    LOOP_CHECK(net);
    ek_tensor *w = parameters_of(net).tensors[0];
    ek_tensor *grad = ek_mul_scalar(drawn(3, ek_tensor_shape(w), EK_F64), world->rank);
    RANKS_OK(ek_tensor_set_grad(w, grad));
    ek_shards *shards = hand_shards(2);
    LOOP_CHECK(shards);
    int cut = 3 + world->rank; /* ranks may cut differently */
    for (int i = 0; i < 2; i++) {
        ek_tensor *piece = drawn(0, EK_SHAPE(i ? INPUTS * HIDDEN - cut : cut), EK_F64);
        RANKS_OK(ek_tensor_set_requires_grad(piece, true));
        ek_shards_add(shards, 0, i ? cut : 0, i ? INPUTS * HIDDEN : cut, piece);
    }
    RANKS_OK(ek_leaf_set_shards(w, shards, 0));
    ek_object_release(shards);
    RANKS_OK(ek_dist_average_gradients(net, world));
    LOOP_PASS(near(ek_gather_grad(w), drawn(3, ek_tensor_shape(w), EK_F64))); /* (0 + 1 + 2) / 3 */
    RANKS_OK(ek_leaf_set_shards(w, NULL, 0));
    ek_module_free(net);
    return NULL;
}

/* ---- messages ---- */

RANKS_TEST(small_gradients_are_one_message, RANKS, 0)
{
    ek_module *modules[10];
    for (int i = 0; i < 10; i++)
        LOOP_CHECK((modules[i] = ek_linear(3, 2)));
    ek_module *net = ek_sequential_of(modules, 10);
    LOOP_CHECK(net && ek_module_to_device(net, test_home()) >= 0);
    for (int i = 0; i < 10; i++)
        RANKS_OK(ek_tensor_set_grad(parameters_of(modules[i]).tensors[0],
                                    drawn((uint64_t)i, EK_SHAPE(2, 3), EK_F32)));
    RANKS_OK(ek_dist_average_gradients(net, world)); /* the first use of a GPU is a call more */
    uint64_t before = world->calls;
    RANKS_OK(ek_dist_average_gradients(net, world));
    LOOP_CHECK_EQ(world->calls - before, 3); /* two tell who has gradients, one has them all */
    ek_module_free(net);
    return NULL;
}

/* Larger than a bucket: several travel one after another. */
RANKS_TEST(large_gradients_are_several_buckets, 2, 0)
{
    ek_module *net = ek_sequential(ek_linear(3000, 1000), ek_linear(10, 1000),
                                   ek_linear(1000, 3000), ek_linear(2, 2));
    LOOP_CHECK(net && ek_module_to_device(net, test_home()) >= 0);
    tensor_list l = parameters_of(net);
    for (int i = 0; i < l.count; i++)
        RANKS_OK(
            ek_tensor_set_grad(l.tensors[i], ek_full(i + world->rank, ek_tensor_shape(l.tensors[i]),
                                                     EK_F32, .device = test_home())));
    RANKS_OK(ek_dist_barrier(.group = world));
    uint64_t before = world->calls;
    RANKS_OK(ek_dist_average_gradients(net, world));
    LOOP_CHECK(world->calls - before > 4);
    for (int i = 0; i < l.count; i++) {
        ek_tensor *grad = ek_tensor_grad(l.tensors[i]);
        double mean = i + (world->size - 1) / 2.0;
        LOOP_CHECK(number(grad, 0) == mean && number(grad, ek_count(grad) - 1) == mean);
        LOOP_CHECK(number(ek_sum(ek_abs(ek_add_scalar(grad, -mean))), 0) == 0);
    }
    ek_module_free(net);
    return NULL;
}

/* ---- errors, and one rank ---- */

RANKS_LOOP(modules_that_differ_are_refused, RANKS, 0, 3)
{
    int what = *(const int *)user;
    bool odd = world->rank == 1;
    ek_module *net = odd && what == 0   ? ek_linear(3, 2, .bias = false)
                     : odd && what == 1 ? ek_linear(2, 3)
                     : odd && what == 2 ? NULL
                                        : ek_linear(3, 2);
    const char *sentences[] = {
        "average_gradients: the module has 2 parameters on rank 0, but 1 on rank 1",
        "average_gradients: parameter 0 of the module has another path, dtype or shape on rank 1",
        "average_gradients: module is NULL"};
    int status = what < 2 ? EK_E_STATE : odd ? EK_E_INVALID : EK_E_ABORTED;
    RANKS_EXPECT(ek_dist_average_gradients(net, world), status, sentences[what]);
    RANKS_OK(ek_dist_barrier(.group = world));
    ek_module_free(net);
    return NULL;
}

TEST(one_rank_keeps_its_gradients)
{
    ek_module *net = network(EK_F64, EK_F64);
    ck_assert_ptr_nonnull(net);
    ck_assert_int_eq(ek_dist_average_gradients(net, NULL), EK_E_STATE);
    ek_error_clear();
    assert_ok(ek_dist_init_process_group());
    assert_ok(ek_backward(loss_of(net, 0, ROWS)));
    tensor_list l = parameters_of(net);
    ek_tensor *grad = ek_tensor_grad(l.tensors[0]), *copy = ek_clone(grad);
    assert_ok(ek_dist_average_gradients(net, NULL));
    ck_assert_ptr_eq(ek_tensor_grad(l.tensors[0]), grad);
    ck_assert_ptr_null(near(grad, copy));
    assert_ok(ek_dist_destroy_process_group(NULL));
    ek_module_free(net);
}
