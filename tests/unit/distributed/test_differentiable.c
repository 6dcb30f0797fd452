/* Sums, means and joins over ranks as operations of the graph: N ranks with slices of a batch
 * against one process with the whole batch, and against finite differences. */
#include "core/tensor.h"
#include "evenkeel/ops.h"
#include "group/world.h"
#include "kit/ranks.h"

enum { RANKS = 4, ROWS = 7, COLUMNS = 3, INPUTS = 2, ORDERS = 3 };

/* How many rows of the batch each rank has. */
static const struct {
    int ranks, rows[RANKS];
} splits[] = {{1, {7}}, {2, {4, 3}}, {3, {4, 0, 3}}, {3, {0, 7, 0}}, {4, {1, 2, 0, 4}}};
enum { SPLITS = sizeof splits / sizeof *splits };

/* Numbers that every rank can compute. */
static ek_tensor *drawn(uint64_t seed, ek_shape shape, ek_dtype dtype)
{
    ek_tensor *x = ek_empty(shape, EK_F64, .device = ek_cpu());
    for (int64_t i = 0; x && i < ek_count(x); i++) {
        uint64_t bits = ((uint64_t)i * 2654435761u + seed * 40503u + 12345u) * 0x9e3779b97f4a7c15u;
        ((double *)ek_tensor_address(x))[i] = (double)(bits >> 40) / (double)(1 << 23) - 1;
    }
    return ek_to_device(ek_to_dtype(ek_mul_scalar(x, 50), dtype), test_home());
}

static ek_tensor *leaf_of(ek_tensor *x)
{
    x = ek_clone(x);
    return x && ek_tensor_set_requires_grad(x, true) >= 0 ? x : NULL;
}

static double number(ek_tensor *x, int64_t i)
{
    ek_scope scope = ek_scope_begin();
    ek_tensor *row = ek_contiguous(ek_to_device(x, ek_cpu()), EK_CONTIGUOUS);
    double value = row ? ek_element_double((const char *)ek_tensor_address(row) +
                                               (size_t)i * ek_dtype_size(row->dtype),
                                           row->dtype)
                       : NAN;
    ek_scope_end(&scope);
    return value;
}

static const char *near(ek_tensor *x, ek_tensor *wanted, const char *what)
{
    LOOP_CHECK(x && wanted);
    LOOP_CHECK(ek_same_shape(x, wanted));
    double most = 1;
    for (int64_t i = 0; i < ek_count(wanted); i++)
        most = fmax(most, fabs(number(wanted, i)));
    for (int64_t i = 0; i < ek_count(wanted); i++) {
        double a = number(x, i), b = number(wanted, i);
        if (!(fabs(a - b) <= 1e-12 * most))
            return loop_failure(__FILE__, __LINE__, "%s: element %lld is %.17g, not %.17g", what,
                                (long long)i, a, b);
    }
    return NULL;
}

/* ---- losses of a batch x and a parameter w, as one rank and as one process ---- */

typedef struct problem {
    ek_process_group *group; /* NULL: one process with the whole batch */
    int dim;                 /* of the rows */
    int64_t first;           /* row of the batch */
    int64_t rows;
} problem;

static ek_tensor *over_sum(const problem *p, ek_tensor *x)
{
    return p->group ? ek_dist_sum(x, p->group) : x;
}

/* The sum again, by way of the mean. */
static ek_tensor *over_mean(const problem *p, ek_tensor *x)
{
    return p->group ? ek_mul_scalar(ek_dist_mean(x, p->group), p->group->size) : x;
}

/* This rank's share of something that all ranks compute alike. */
static ek_tensor *share(const problem *p, ek_tensor *x)
{
    return p->group ? ek_mul_scalar(x, 1.0 / p->group->size) : x;
}

/* Constant weights of the samples. */
static ek_tensor *weights(const problem *p)
{
    return ek_narrow(ek_mul_scalar(drawn(9, EK_SHAPE(ROWS, COLUMNS), EK_F64), 0.02), 0, p->first,
                     p->rows);
}

typedef ek_tensor *loss_function(const problem *p, ek_tensor *x, ek_tensor *w);

/* Normalised by the statistics of the whole batch. */
static ek_tensor *normalised(const problem *p, ek_tensor *x, ek_tensor *w)
{
    ek_tensor *mean = ek_mul_scalar(over_sum(p, ek_sum(x, EK_DIMS(0))), 1.0 / ROWS);
    ek_tensor *centred = ek_sub(x, mean);
    ek_tensor *var = over_mean(p, ek_sum(ek_mul(centred, centred), EK_DIMS(0)));
    ek_tensor *y = ek_div(ek_mul(centred, w), ek_sqrt(ek_add_scalar(var, 0.1)));
    y = ek_f_tanh(ek_add(y, w));
    return ek_sum(ek_mul(ek_mul(y, y), weights(p)));
}

/* Each sample against all samples. */
static ek_tensor *compared(const problem *p, ek_tensor *x, ek_tensor *w)
{
    ek_tensor *rows = p->dim ? ek_transpose(x, 0, 1) : x;
    ek_tensor *y = ek_f_tanh(ek_mul(rows, w));
    ek_tensor *own = p->dim ? ek_transpose(y, 0, 1) : y;
    ek_tensor *all = p->group ? ek_dist_join(own, p->dim ? -1 : 0, p->group) : own;
    ek_tensor *kernel = ek_f_tanh(ek_matmul(rows, p->dim ? all : ek_transpose(all, 0, 1)));
    return ek_sum(ek_mul(ek_matmul(kernel, p->dim ? ek_transpose(all, 0, 1) : all), weights(p)));
}

/* gradients[o] are those of order o + 1: each is that of the squares of those before. */
static int differentiate(const problem *p, loss_function *function, ek_tensor *x, ek_tensor *w,
                         ek_tensor *gradients[ORDERS][INPUTS])
{
    ek_tensor *inputs[INPUTS] = {x, w}, *loss = function(p, x, w);
    for (int order = 0; order < ORDERS; order++) {
        if (ek_grad(.outputs = &loss, .output_count = 1, .inputs = inputs, .input_count = INPUTS,
                    .gradients = gradients[order], .create_graph = true) < 0)
            return ek_error_status();
        ek_tensor *dx = gradients[order][0];
        ek_tensor *dw = gradients[order][1] = over_sum(p, gradients[order][1]);
        loss = ek_add(ek_sum(ek_mul(dx, dx)), share(p, ek_sum(ek_mul(dw, ek_f_tanh(dw)))));
    }
    return loss ? 0 : ek_error_status();
}

typedef struct setting {
    loss_function *function;
    int split, dim;
} setting;

static const char *orders(ek_process_group *world, void *user)
{
    const setting *s = user;
    const char *const names[] = {"x", "w"};
    ek_shape shape = s->dim ? EK_SHAPE(COLUMNS, ROWS) : EK_SHAPE(ROWS, COLUMNS);
    ek_tensor *x = ek_mul_scalar(drawn(1, shape, EK_F64), 0.02);
    ek_tensor *w = ek_mul_scalar(drawn(2, EK_SHAPE(COLUMNS), EK_F64), 0.02);
    problem whole = {.dim = s->dim, .rows = ROWS};
    problem part = {.group = world, .dim = s->dim, .rows = splits[s->split].rows[world->rank]};
    for (int r = 0; r < world->rank; r++)
        part.first += splits[s->split].rows[r];
    ek_tensor *wanted[ORDERS][INPUTS], *own[ORDERS][INPUTS];
    RANKS_OK(differentiate(&whole, s->function, leaf_of(x), leaf_of(w), wanted));
    RANKS_OK(differentiate(&part, s->function, leaf_of(ek_narrow(x, s->dim, part.first, part.rows)),
                           leaf_of(w), own));
    for (int order = 0; order < ORDERS; order++) {
        ek_tensor *dx = ek_narrow(wanted[order][0], s->dim, part.first, part.rows);
        LOOP_PASS(near(own[order][0], dx, names[0]));
        LOOP_PASS(near(own[order][1], wanted[order][1], names[1]));
    }
    return NULL;
}

TEST_LOOP(gradients_of_sums_and_means_to_the_third_order, 0, SPLITS)
{
    setting s = {normalised, _i, 0};
    ranks_check(splits[_i].ranks, (uint64_t)_i, orders, &s);
}

TEST_LOOP(gradients_of_joins_to_the_third_order, 0, 2 * SPLITS)
{
    setting s = {compared, _i / 2, _i % 2};
    ranks_check(splits[s.split].ranks, (uint64_t)_i, orders, &s);
}

/* ---- finite differences: one element of one rank moves, all ranks' losses add up ---- */

static ek_tensor *small_function(ek_tensor *x, ek_process_group *world)
{
    ek_tensor *all = ek_dist_join(ek_f_tanh(x), 0, world);
    ek_tensor *scale = ek_dist_mean(ek_sum(ek_mul(x, x)), world);
    ek_tensor *sum = ek_dist_sum(ek_sum(ek_mul(all, all)), world);
    ek_tensor *y = ek_mul(ek_sum(ek_f_tanh(ek_mul(all, scale))), sum);
    return ek_mul_scalar(y, 1 + world->rank); /* ranks have losses of their own */
}

static const char *total_loss(ek_tensor *x, ek_process_group *world, double *total)
{
    ek_tensor *loss = ek_to_device(ek_detach(small_function(x, world)), ek_cpu());
    RANKS_OK(ek_dist_all_reduce(loss, .group = world));
    *total = number(loss, 0);
    return NULL;
}

RANKS_LOOP(gradients_by_finite_differences, _i, 2, 4)
{
    const double step = 1e-5;
    ek_tensor *base = ek_mul_scalar(drawn(5 + (uint64_t)world->rank, EK_SHAPE(2), EK_F64), 0.01);
    ek_tensor *x = leaf_of(base);
    RANKS_OK(ek_backward(small_function(x, world)));
    for (int rank = 0; rank < world->size; rank++)
        for (int i = 0; i < 2; i++) {
            double losses[2];
            for (int side = 0; side < 2; side++) {
                ek_tensor *moved = ek_to_device(ek_clone(base), ek_cpu());
                if (rank == world->rank)
                    ((double *)ek_tensor_address(moved))[i] += side ? step : -step;
                LOOP_PASS(total_loss(ek_to_device(moved, test_home()), world, &losses[side]));
            }
            double numeric = (losses[1] - losses[0]) / (2 * step);
            double found = rank == world->rank ? number(ek_tensor_grad(x), i) : numeric;
            if (!(fabs(numeric - found) <= 1e-6 * fmax(1, fabs(numeric))))
                return loop_failure(__FILE__, __LINE__, "%.12g, by differences %.12g", found,
                                    numeric);
        }
    return NULL;
}

/* ---- values ---- */

static const char *same_bits(ek_tensor *x, ek_tensor *wanted)
{
    LOOP_CHECK(x && wanted);
    x = ek_contiguous(ek_to_device(x, ek_cpu()), EK_CONTIGUOUS);
    wanted = ek_contiguous(ek_to_device(wanted, ek_cpu()), EK_CONTIGUOUS);
    LOOP_CHECK(x && wanted && x->dtype == wanted->dtype && ek_same_shape(x, wanted));
    size_t nbytes = (size_t)ek_count(x) * ek_dtype_size(x->dtype);
    LOOP_CHECK(nbytes == 0 || memcmp(ek_tensor_address(x), ek_tensor_address(wanted), nbytes) == 0);
    return NULL;
}

RANKS_TEST(sums_are_those_of_the_collective_to_the_bit, 3, 1)
{
    static const int64_t sizes[] = {0, 1, 5, 40, 3000, 90001};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (int dtype = 0; dtype < EK_DTYPES; dtype++) {
            ek_scope scope = ek_scope_begin();
            ek_tensor *x =
                dtype == EK_U8
                    ? ek_full(90 + world->rank, EK_SHAPE(sizes[s]), EK_U8, .device = test_home())
                    : drawn((uint64_t)world->rank, EK_SHAPE(sizes[s]), (ek_dtype)dtype);
            ek_tensor *before = ek_clone(x), *sum = ek_clone(x);
            RANKS_OK(ek_dist_all_reduce(sum, .group = world));
            LOOP_PASS(same_bits(ek_dist_sum(x, world), sum));
            if (ek_dtype_is_floating((ek_dtype)dtype)) {
                ek_tensor *mean = ek_clone(x);
                RANKS_OK(ek_dist_all_reduce(mean, .op = EK_DIST_AVG, .group = world));
                LOOP_PASS(same_bits(ek_dist_mean(x, world), mean));
            }
            LOOP_PASS(same_bits(x, before));
            ek_scope_end(&scope);
        }
    return NULL;
}

/* Parts of a tensor that every rank knows, cut along each dimension, as views too. */
RANKS_TEST(joins_of_parts_are_the_whole, 3, 2)
{
    for (int dtype = 0; dtype < EK_DTYPES; dtype++)
        for (int dim = 0; dim < 3; dim++)
            for (int split = 0; split < 4; split++) {
                ek_scope scope = ek_scope_begin();
                ek_shape shape = {3, {5, 6, split == 3 ? 9000 : 7}};
                int64_t bounds[4] = {0, split == 1 ? 0 : 1, split == 2 ? 1 : 4, shape.dims[dim]};
                ek_tensor *whole = dtype == EK_U8 ? ek_full(7, shape, EK_U8, .device = test_home())
                                                  : drawn(3, shape, (ek_dtype)dtype);
                ek_tensor *part = ek_narrow(whole, dim, bounds[world->rank],
                                            bounds[world->rank + 1] - bounds[world->rank]);
                if (split == 0)
                    part = ek_contiguous(part, EK_CONTIGUOUS);
                ek_tensor *joined = ek_dist_join(part, split % 2 ? dim - 3 : dim, world);
                LOOP_PASS(same_bits(joined, whole));
                LOOP_CHECK(!ek_tensor_requires_grad(joined));
                ek_scope_end(&scope);
            }
    return NULL;
}

/* ---- who records ---- */

/* One rank's tensor requires a gradient; all ranks' losses depend on it. */
RANKS_TEST(all_ranks_record_if_one_requires_a_gradient, 3, 3)
{
    for (int kind = 0; kind < 3; kind++) {
        ek_tensor *x = drawn(4, EK_SHAPE(2, 3), EK_F64);
        if (world->rank == 1)
            x = leaf_of(x);
        ek_tensor *y = kind == 0   ? ek_dist_sum(x, world)
                       : kind == 1 ? ek_dist_mean(x, world)
                                   : ek_dist_join(x, 1, world);
        LOOP_CHECK(ek_tensor_requires_grad(y));
        RANKS_OK(ek_backward(ek_mul_scalar(ek_sum(y), world->rank + 1), .create_graph = true));
        double wanted = kind == 1 ? 2 : 6; /* 1 + 2 + 3, over the number of ranks */
        for (int i = 0; i < 6 && world->rank == 1; i++)
            LOOP_CHECK(number(ek_tensor_grad(x), i) == wanted);
        if (world->rank == 1)
            ek_tensor_set_grad(x, NULL);
        else
            LOOP_CHECK(!ek_tensor_requires_grad(x) && !ek_tensor_grad(x));
    }
    return NULL;
}

RANKS_TEST(without_gradient_mode_there_is_no_graph, 3, 4)
{
    ek_tensor *x = leaf_of(drawn(4, EK_SHAPE(2, 3), EK_F64));
    bool before = ek_set_grad_enabled(false);
    ek_tensor *y = ek_dist_sum(x, world), *z = ek_dist_join(x, 0, world);
    ek_set_grad_enabled(before);
    LOOP_CHECK(y && z && !ek_tensor_requires_grad(y) && !ek_tensor_requires_grad(z));
    for (int kind = 0; kind < 2; kind++) {
        ek_set_grad_enabled(world->rank != 1);
        y = kind ? ek_dist_join(x, 0, world) : ek_dist_sum(x, world);
        ek_set_grad_enabled(before);
        LOOP_CHECK(!y);
        RANKS_EXPECT(ek_error_status(), EK_E_STATE,
                     kind ? "dist_join: rank 0's tensor requires a gradient, but gradient mode is "
                            "off on rank 1"
                          : "dist_sum: rank 0's tensor requires a gradient");
    }
    RANKS_OK(ek_dist_barrier(.group = world));
    return NULL;
}

/* ---- one rank ---- */

RANKS_TEST(in_a_group_of_one_and_outside_the_result_is_the_tensor, 2, 5)
{
    int ranks[] = {0};
    ek_process_group *group = ek_communication_new_group(world->communication, ranks, 1, 60);
    LOOP_CHECK(group);
    ek_tensor *x = leaf_of(drawn(4, EK_SHAPE(2, 3), EK_F64));
    LOOP_CHECK(ek_dist_sum(x, group) == x); /* on rank 1, which is not in the group, too */
    LOOP_CHECK(ek_dist_mean(x, group) == x);
    LOOP_CHECK(ek_dist_join(x, 1, group) == x);
    ek_communication_destroy_group(group);
    return NULL;
}

TEST(without_a_world_the_call_is_refused)
{
    ek_tensor *x = ek_zeros(EK_SHAPE(2), EK_F64, .device = ek_cpu());
    ck_assert_ptr_null(ek_dist_sum(x, NULL));
    assert_refused(ek_error_status(), EK_E_STATE, "there is no process group");
    assert_ok(ek_dist_init_process_group());
    ck_assert_ptr_eq(ek_dist_sum(x, NULL), x);
    ck_assert_ptr_eq(ek_dist_join(x, 0, NULL), x);
    ck_assert_ptr_null(ek_dist_join(x, 1, NULL));
    assert_refused(ek_error_status(), EK_E_SHAPE, "dist_join: dimension 1 is not in [-1, 0]");
    assert_ok(ek_dist_destroy_process_group(NULL));
}

/* ---- errors ---- */

static ek_tensor *wrong_call(ek_process_group *world, int what)
{
    bool odd = world->rank == 1;
    ek_tensor *x = drawn(4, EK_SHAPE(2, 3), EK_F64);
    switch (what) {
    case 0:
        return ek_dist_sum(odd ? ek_sum(x, EK_DIMS(0)) : x, world);
    case 1:
        return odd ? ek_dist_mean(x, world) : ek_dist_sum(x, world);
    case 2:
        return ek_dist_join(odd ? ek_to_dtype(x, EK_F32) : x, 0, world);
    case 3:
        return ek_dist_join(x, odd, world);
    case 4:
        return ek_dist_join(odd ? ek_narrow(x, 1, 0, 2) : x, 0, world);
    case 5:
        return ek_dist_join(odd ? ek_reshape(x, EK_SHAPE(6)) : x, 0, world);
    case 6:
        return ek_dist_sum(odd ? NULL : x, world);
    case 7:
        return ek_dist_mean(odd ? ek_zeros(EK_SHAPE(2, 3), EK_I64, .device = test_home()) : x,
                            world);
    default:
        return ek_dist_join(x, odd ? 2 : 1, world);
    }
}

static const struct {
    int status, odd; /* on the other ranks, and on rank 1 */
    const char *sentence, *odd_sentence;
} wrong[] = {
    {EK_E_STATE, EK_E_STATE, "rank 0 calls dist_sum of f64[2, 3] by SUM, rank 1 dist_sum of f64[3]",
     "rank 0 calls"},
    {EK_E_STATE, EK_E_STATE, "rank 1 dist_mean", "rank 1 dist_mean"},
    {EK_E_DTYPE, EK_E_DTYPE,
     "dist_join: rank 0 has f64[2, 3] and joins along dimension 0, rank 1 "
     "has f32[2, 3]",
     "rank 1 has f32[2, 3]"},
    {EK_E_SHAPE, EK_E_SHAPE, "and joins along dimension 1", "and joins along dimension 1"},
    {EK_E_SHAPE, EK_E_SHAPE, "rank 1 has f64[2, 2]", "rank 1 has f64[2, 2]"},
    {EK_E_SHAPE, EK_E_SHAPE, "rank 1 has f64[6]", "rank 1 has f64[6]"},
    {EK_E_ABORTED, EK_E_INVALID, "dist_sum: x is NULL", "dist_sum: x is NULL"},
    {EK_E_ABORTED, EK_E_DTYPE, "rank 1 on ", "dist_mean"},
    {EK_E_ABORTED, EK_E_SHAPE, "rank 1 on ", "dist_join: dimension 2 is not in [-2, 1]"},
};
enum { WRONG = sizeof wrong / sizeof *wrong };

RANKS_LOOP(wrong_calls_are_errors_of_all_ranks, 3, 0, WRONG)
{
    int what = *(const int *)user;
    bool odd = world->rank == 1;
    LOOP_CHECK(!wrong_call(world, what));
    RANKS_EXPECT(ek_error_status(), odd ? wrong[what].odd : wrong[what].status,
                 odd ? wrong[what].odd_sentence : wrong[what].sentence);
    ek_tensor *one = ek_ones(EK_SHAPE(1), EK_F64, .device = test_home());
    LOOP_CHECK(number(ek_dist_sum(one, world), 0) == world->size);
    return NULL;
}

/* A rank fails while the others go backward: their backward fails, and works the next time. */
RANKS_LOOP(a_failure_ends_backward_on_all_ranks, 3, 0, 4)
{
    for (int round = 0; round < 3; round++) {
        ek_tensor *x = leaf_of(drawn(4, EK_SHAPE(2, 3), EK_F64));
        ek_tensor *y = ek_sum(ek_dist_join(ek_dist_sum(x, world), 0, world));
        if (round % 2 == 0) {
            RANKS_OK(ek_backward(y));
            LOOP_CHECK(number(ek_tensor_grad(x), 0) == world->size * world->size);
        } else if (world->rank == 1) {
            ek_error(EK_E_USER, "no more data");
            ek_world_outcome(world, EK_E_USER);
            ek_error_clear();
        } else {
            RANKS_EXPECT(ek_backward(y), EK_E_ABORTED, "no more data");
        }
    }
    return NULL;
}
