/* What ranks do with batches, reductions and calls that are not the usual ones: synchronised
 * statistics, ek_distributed_criterion and gradient penalties. */
#include "kit/exact.h"
#include "kit/ranks.h"

enum { CHANNELS = 3, MANY = 70 };

static ek_tensor *rows(int64_t count, int64_t channels, int64_t first)
{
    ek_tensor *x = ek_empty(EK_SHAPE(count, channels), .dtype = EK_F64, .device = ek_cpu());
    double *values = ek_tensor_data(x);
    for (int64_t i = 0; i < count * channels; i++)
        values[i] = sin((double)(first * channels + i) * 1.9);
    ek_tensor_touch(x);
    return x;
}

static ek_module *norm_over(ek_process_group *group)
{
    ek_module *norm = ek_sync_batch_norm(CHANNELS, .process_group = group);
    if (norm && ek_module_to_dtype(norm, EK_F64) < 0) {
        ek_module_free(norm);
        return NULL;
    }
    return norm;
}

/* ---- statistics ---- */

RANKS_TEST(evaluation_communicates_nothing, 3, 1)
{
    ek_module *norm = norm_over(world);
    LOOP_CHECK(norm);
    ek_module_train(norm, false);
    if (world->rank == 1) /* nobody else calls anything */
        LOOP_CHECK(ek_apply(norm, rows(4, CHANNELS, 0)));
    ek_module_free(norm);
    RANKS_OK(ek_dist_barrier(.group = world));
    return NULL;
}

/* After each refusal the ranks go on. */
RANKS_TEST(inputs_that_differ_are_refused_on_all_ranks, 3, 2)
{
    int r = world->rank;
    ek_module *norm = norm_over(world),
              *wider = ek_sync_batch_norm(r == 1 ? 4 : CHANNELS, .process_group = world);
    LOOP_CHECK(norm && wider);
    ek_tensor *wide = ek_to_dtype(rows(2, r == 1 ? 4 : CHANNELS, 0), EK_F32);
    RANKS_EXPECT(ek_apply(wider, wide) ? 0 : EK_E_SHAPE, EK_E_SHAPE,
                 "rank 1 has 4 channels of f32 and rank 0 3 of f32");
    RANKS_EXPECT(ek_apply(norm, rows(r == 1, CHANNELS, 0)) ? 0 : EK_E_SHAPE, EK_E_SHAPE,
                 "more than 1 value per channel");
    ek_tensor *x = rows(2, CHANNELS, 2 * r);
    if (r == 0)
        RANKS_OK(ek_tensor_set_requires_grad(x, true));
    bool before = ek_set_grad_enabled(r != 1);
    RANKS_EXPECT(ek_apply(norm, x) ? 0 : EK_E_STATE, EK_E_STATE,
                 "rank 0's input requires a gradient, but gradient mode is off on rank 1");
    ek_set_grad_enabled(before);
    x = r == 2 ? ek_zeros(EK_SHAPE(2), .dtype = EK_F64, .device = ek_cpu()) : x;
    LOOP_CHECK(!ek_apply(norm, x));
    RANKS_EXPECT(ek_error_status(), r == 2 ? EK_E_SHAPE : EK_E_ABORTED,
                 "expected an input of 2 to 5 dimensions");
    LOOP_CHECK(ek_apply(norm, rows(2, CHANNELS, 2 * r)));
    ek_module_free(norm);
    ek_module_free(wider);
    return NULL;
}

TEST(a_group_is_for_synchronised_normalisation)
{
    assert_ok(ek_dist_init_process_group());
    ek_module *norm = ek_sync_batch_norm(3, .process_group = ek_dist_world());
    assert_made(norm); /* alone, it needs no others */
    assert_made(ek_apply(norm, ek_ones(EK_SHAPE(2, 3))));
    ek_module_free(norm);
    ek_shutdown();
}

/* Only rank 0's input needs a gradient, and each rank has a loss of its own. */
static const char *mixed_history(ek_process_group *world, void *user)
{
    const ek_tensor *expected = user;
    int r = world->rank;
    ek_module *norm = norm_over(world);
    ek_tensor *x = rows(2, CHANNELS, 2 * r);
    if (r == 0)
        RANKS_OK(ek_tensor_set_requires_grad(x, true));
    ek_tensor *loss = ek_sum(ek_mul(ek_square(ek_apply(norm, x)), rows(2, CHANNELS, 50 + 2 * r)));
    RANKS_OK(ek_backward(loss));
    if (r == 0)
        LOOP_CHECK(exact_distance(ek_tensor_grad(x), ek_narrow((ek_tensor *)user, 0, 0, 2)) <=
                   1e-12);
    else
        LOOP_CHECK(!ek_tensor_grad(x));
    LOOP_CHECK(expected);
    ek_module_free(norm);
    return NULL;
}

TEST(one_input_with_a_history_is_enough)
{
    ek_module *norm = norm_over(NULL);
    ek_tensor *x = rows(6, CHANNELS, 0);
    assert_ok(ek_tensor_set_requires_grad(x, true));
    assert_ok(ek_backward(ek_sum(ek_mul(ek_square(ek_apply(norm, x)), rows(6, CHANNELS, 50)))));
    ranks_check(3, 3, mixed_history, ek_tensor_grad(x));
    ek_module_free(norm);
}

/* ---- many ranks ---- */

static const char *of_many(ek_process_group *world, void *user)
{
    exact_job job = exact_make(EXACT_CONVOLUTIONS, EK_F64);
    job.model = ek_distributed_data_parallel(job.model, .process_group = world);
    job.criteria[0] = ek_distributed_criterion(job.criteria[0], .process_group = world);
    LOOP_CHECK(job.model && job.criteria[0]);
    ek_tensor *loss = exact_loss(&job, world->rank, 1);
    RANKS_OK(ek_backward(loss));
    LOOP_CHECK(exact_distance(exact_outcome(&job, loss), user) <= 1e-12);
    exact_free(&job);
    return NULL;
}

TEST(more_ranks_than_chunks_that_a_kernel_takes)
{
    exact_job job = exact_make(EXACT_CONVOLUTIONS, EK_F64);
    ek_tensor *loss = exact_loss(&job, 0, MANY);
    assert_ok(ek_backward(loss));
    ek_tensor *outcome = exact_outcome(&job, loss);
    assert_made(outcome);
    ranks_check(MANY, 0, of_many, outcome);
    exact_free(&job);
}

/* ---- checkpoints ---- */

RANKS_TEST(statistics_of_all_ranks_inside_of_a_checkpoint, 2, 5)
{
    ek_tensor *gradients[2], *weight;
    for (int i = 0; i < 2; i++) {
        ek_module *body =
            ek_sequential(ek_linear(2, CHANNELS), ek_sync_batch_norm(CHANNELS), ek_tanh());
        ek_module *net = ek_sequential(i ? ek_checkpoint(body) : body, ek_linear(CHANNELS, 1));
        RANKS_OK(exact_fill(net));
        ek_module *model = ek_distributed_data_parallel(net, .process_group = world);
        LOOP_CHECK(model);
        RANKS_OK(ek_backward(
            ek_sum(ek_square(ek_apply(model, rows(world->rank + 1, 2, 5 * world->rank))))));
        weight = ek_module_tensor(model, "0.0.weight");
        LOOP_CHECK(weight && ek_tensor_grad(weight));
        gradients[i] = ek_clone(ek_tensor_grad(weight));
        ek_module_free(model);
    }
    LOOP_CHECK(exact_distance(gradients[1], gradients[0]) <= 1e-14);
    return NULL;
}

/* ---- criteria ---- */

RANKS_TEST(reductions_of_criteria, 3, 6)
{
    int r = world->rank;
    int64_t counts[] = {3, 0, 1}, firsts[] = {0, 3, 3};
    ek_tensor *x = rows(counts[r], CHANNELS, firsts[r]), *zero = ek_mul_scalar(x, 0);
    ek_tensor *all = rows(4, CHANNELS, 0), *losses[3];
    double sum, mean, own;
    RANKS_OK(ek_item(ek_sum(ek_square(all)), &sum));
    RANKS_OK(ek_tensor_set_requires_grad(x, true));
    ek_module *criteria[] = {ek_distributed_criterion(ek_mse_loss(.reduction = EK_SUM),
                                                      .process_group = world),
                             ek_distributed_criterion(ek_mse_loss(), .process_group = world,
                                                      .reduction = EK_MEAN_OF_MEANS),
                             ek_distributed_criterion(ek_mse_loss(.reduction = EK_NONE),
                                                      .process_group = world)};
    for (int i = 0; i < 3; i++)
        losses[i] = i == 1 ? ek_loss(criteria[i], EK_LIST(x, zero)) : ek_loss(criteria[i], x, zero);
    LOOP_CHECK(losses[0] && losses[1] && losses[2]);
    RANKS_OK(ek_item(losses[0], &own));
    LOOP_CHECK(fabs(own - sum) <= 1e-12 * sum);
    double parts[2];
    RANKS_OK(ek_item(ek_mean(ek_square(ek_narrow(all, 0, 0, 3))), &parts[0]));
    RANKS_OK(ek_item(ek_mean(ek_square(ek_narrow(all, 0, 3, 1))), &parts[1]));
    RANKS_OK(ek_item(losses[1], &mean));
    LOOP_CHECK(fabs(mean - (parts[0] + parts[1]) / 2) <= 1e-12);
    LOOP_CHECK_EQ(ek_tensor_count(losses[2]), counts[r] * CHANNELS);
    /* The mean over ranks of the gradients is the loss's: here each sample is one rank's. */
    RANKS_OK(ek_backward(losses[0], .retain_graph = true));
    LOOP_CHECK(counts[r] == 0 ||
               exact_distance(ek_tensor_grad(x), ek_mul_scalar(ek_detach(x), 6)) <= 1e-14);
    RANKS_OK(ek_tensor_set_grad(x, NULL));
    RANKS_OK(ek_backward(losses[1]));
    if (counts[r] > 0)
        LOOP_CHECK(exact_distance(ek_tensor_grad(x),
                                  ek_mul_scalar(ek_detach(x),
                                                3. / 2 * 2 / (double)ek_tensor_count(x))) <= 1e-14);
    for (int i = 0; i < 3; i++)
        ek_module_free(criteria[i]);
    return NULL;
}

RANKS_TEST(one_rank_calls_the_criterion_alike, 1, 6)
{
    ek_module *criterion = ek_distributed_criterion(ek_mse_loss(), .process_group = world);
    ek_tensor *x = rows(2, CHANNELS, 0),
              *loss = ek_loss(criterion, EK_LIST(x, rows(2, CHANNELS, 3)));
    LOOP_CHECK(loss && ek_tensor_ndim(loss) == 0);
    ek_module_free(criterion);
    return NULL;
}

RANKS_TEST(batches_of_which_nothing_counts, 2, 7)
{
    ek_module *criterion =
        ek_distributed_criterion(ek_cross_entropy_loss(.ignore_index = 1), .process_group = world);
    ek_tensor *x = rows(2, CHANNELS, 0), *loss;
    double value;
    RANKS_OK(ek_tensor_set_requires_grad(x, true));
    loss = ek_loss(criterion, x, ek_ones(EK_SHAPE(2), .dtype = EK_I64, .device = ek_cpu()));
    LOOP_CHECK(loss);
    RANKS_OK(ek_item(loss, &value));
    LOOP_CHECK(isnan(value));
    RANKS_OK(ek_backward(loss));
    RANKS_OK(ek_item(ek_sum(ek_square(ek_tensor_grad(x))), &value));
    LOOP_CHECK(value == 0);
    /* An error of one rank is one of all. */
    loss = ek_loss(criterion, x,
                   world->rank ? NULL : ek_zeros(EK_SHAPE(2), .dtype = EK_I64, .device = ek_cpu()));
    LOOP_CHECK(!loss);
    LOOP_CHECK(ek_error_status() == (world->rank == 1 ? EK_E_INVALID : EK_E_ABORTED));
    ek_error_clear();
    ek_module_free(criterion);
    return NULL;
}

/* ---- penalties ---- */

enum { SAMPLES = 6, KINDS = 5 };

static ek_tensor *penalise(ek_module *critic, ek_penalty_kind kind, int64_t first, int64_t count,
                           ek_process_group *group)
{
    ek_generator *generator = ek_generator_new(23);
    ek_tensor *penalty =
        ek_gradient_penalty(critic, rows(count, 4, first), rows(count, 4, 30 + first), .kind = kind,
                            .weight = 3, .generator = generator, .process_group = group);
    ek_generator_free(generator);
    return penalty;
}

/* Some norms of its gradients are over 1. */
static ek_module *make_critic(void)
{
    ek_module *critic = ek_sequential(ek_linear(4, 5), ek_tanh(), ek_linear(5, 1));
    bool enabled = ek_set_grad_enabled(false);
    if (exact_fill(critic) >= 0)
        ek_mul_scalar_(ek_module_tensor(critic, "0.weight"), 5);
    ek_set_grad_enabled(enabled);
    return critic;
}

typedef struct penalty_setting {
    ek_penalty_kind kind;
    ek_tensor *expected;
} penalty_setting;

static const char *penalises(ek_process_group *world, void *user)
{
    const penalty_setting *s = user;
    static const int64_t firsts[] = {0, 4, 4}, counts[] = {4, 0, 2};
    exact_job job = {.model = make_critic()};
    ek_tensor *penalty =
        penalise(job.model, s->kind, firsts[world->rank], counts[world->rank], world);
    LOOP_CHECK(penalty);
    RANKS_OK(ek_backward(penalty));
    RANKS_OK(ek_dist_average_gradients(job.model, world));
    double distance = exact_distance(exact_outcome(&job, penalty), s->expected);
    if (!(distance <= 1e-12))
        return loop_failure(__FILE__, __LINE__, "rank %d: %g apart", world->rank, distance);
    LOOP_CHECK(!penalise(job.model, s->kind, 0, 0, world)); /* nobody has samples */
    LOOP_CHECK(ek_error_status() == EK_E_SHAPE);
    ek_error_clear();
    exact_free(&job);
    return NULL;
}

/* The last bias has no gradient: the critic's gradient doesn't depend on it. */
TEST_LOOP(penalties_of_all_kinds, 0, KINDS)
{
    penalty_setting s = {.kind = (ek_penalty_kind)_i};
    exact_job job = {.model = make_critic()};
    ek_tensor *penalty = penalise(job.model, s.kind, 0, SAMPLES, NULL);
    assert_made(penalty);
    assert_ok(ek_backward(penalty));
    s.expected = exact_outcome(&job, penalty);
    assert_made(s.expected);
    ranks_check(3, (uint64_t)_i, penalises, &s);
    exact_free(&job);
}
