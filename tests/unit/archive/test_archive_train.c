/* What optimizers carry besides their states, and averages, go on from a file. */
#include "archive_setup.h"
#include "evenkeel/autograd.h"
#include "evenkeel/loader.h"
#include "evenkeel/nn.h"

/* ---- options and averages ---- */

/* Options that were changed come along; others don't, and what doesn't fit changes nothing. */
TEST(changed_options_go_on_from_a_file)
{
    ek_module *module = ek_linear(3, 2);
    ek_optimizer *optimizer = ek_adam(module, .lr = 0.1), *other = ek_adam(module, .lr = 0.5);
    double value = 0;
    assert_ok(ek_optimizer_set(optimizer, 0, "beta1", 0.75));
    assert_ok(ek_optimizer_set(optimizer, 0, "weight_decay", 0.25));
    ek_archive *archive = ek_archive_new();
    assert_ok(ek_archive_put_optimizer(archive, "o", optimizer, module));
    archive = through_file(archive);
    ck_assert(ek_archive_has(archive, "o.beta1") && !ek_archive_has(archive, "o.beta2"));
    assert_ok(ek_archive_load_optimizer(archive, "o", other, module));
    assert_ok(ek_optimizer_get(other, 0, "beta1", &value));
    ck_assert_double_eq(value, 0.75);
    assert_ok(ek_optimizer_get(other, 0, "weight_decay", &value));
    ck_assert_double_eq(value, 0.25);
    ck_assert_double_eq(ek_optimizer_lr(other, 0), 0.1);
    /* Two groups: the file is of one. */
    ek_tensor *more = ek_ones(EK_SHAPE(1), .requires_grad = true);
    ek_optimizer *two = ek_adam(module, .lr = 0.5);
    ck_assert_int_eq(ek_optimizer_add_group(two, &more, 1), 1);
    assert_refused(ek_archive_load_optimizer(archive, "o", two, module), EK_E_SHAPE, "1 groups");
    assert_ok(ek_optimizer_get(two, 0, "beta1", &value));
    ck_assert_double_eq(value, 0.9);
    ek_archive_free(archive);
    ek_optimizer_free(optimizer);
    ek_optimizer_free(other);
    ek_optimizer_free(two);
    ek_module_free(module);
}

/* A number that each parameter carries is part of its state. */
TEST_LOOP(carried_numbers_go_on_from_a_file, 0, 2)
{
    ek_module *modules[2] = {ek_linear(3, 2), NULL};
    modules[1] = ek_module_copy(modules[0]);
    ek_optimizer *optimizers[2];
    for (int i = 0; i < 2; i++)
        optimizers[i] = _i ? ek_nadam(modules[i], .lr = 0.1)
                           : ek_asgd(modules[i], .lr = 0.1, .lambd = 0.1, .t0 = 1);
    for (int step = 0; step < 6; step++) {
        if (step == 3) {
            ek_archive *archive = ek_archive_new();
            assert_ok(ek_archive_put_module(archive, "m", modules[0]));
            assert_ok(ek_archive_put_optimizer(archive, "o", optimizers[0], modules[0]));
            archive = through_file(archive);
            ck_assert(ek_archive_has(archive, _i ? "o.weight.mu_product" : "o.bias.eta"));
            assert_ok(ek_archive_load_module(archive, "m", modules[1]));
            assert_ok(ek_archive_load_optimizer(archive, "o", optimizers[1], modules[1]));
            ek_archive_free(archive);
        }
        for (int i = 0; i < (step < 3 ? 1 : 2); i++) {
            ek_tensor *weight = ek_module_tensor(modules[i], "weight");
            ek_tensor *bias = ek_module_tensor(modules[i], "bias");
            assert_ok(ek_tensor_set_grad(weight, ek_full(step + 1, EK_SHAPE(2, 3))));
            assert_ok(ek_tensor_set_grad(bias, ek_full(step - 2, EK_SHAPE(2))));
            assert_ok(ek_step(optimizers[i]));
        }
    }
    for (int k = 0; k < 2; k++)
        assert_close(ek_detach(ek_module_tensor(modules[1], k ? "weight" : "bias")),
                     ek_detach(ek_module_tensor(modules[0], k ? "weight" : "bias")), 0, 0);
    for (int i = 0; i < 2; i++) {
        ek_optimizer_free(optimizers[i]);
        ek_module_free(modules[i]);
    }
}

TEST(averages_go_on_from_a_file)
{
    ek_module *module = ek_linear(3, 2), *wide = ek_linear(4, 2);
    ek_tensor *weight = ek_module_tensor(module, "weight");
    ek_ema *ema = ek_ema_new(module, .equal = true), *again = ek_ema_new(module, .equal = true);
    ek_ema *misfit = ek_ema_new(wide);
    for (int step = 0; step < 3; step++) {
        assert_ok(ek_init_constant(weight, step * step));
        assert_ok(ek_ema_update(ema));
    }
    ek_archive *archive = ek_archive_new();
    assert_ok(ek_archive_put_ema(archive, "ema", ema));
    archive = through_file(archive);
    assert_ok(ek_archive_load_ema(archive, "ema", again));
    ck_assert_int_eq(ek_ema_updates(again), 3);
    assert_ok(ek_init_constant(weight, 7));
    assert_ok(ek_ema_update(ema));
    assert_ok(ek_ema_update(again));
    assert_close(ek_ema_tensor(again, "weight"), ek_ema_tensor(ema, "weight"), 0, 0);
    ck_assert_double_eq_tol(element(ek_ema_tensor(again, "weight"), 1), 3, 1e-6);
    assert_refused(ek_archive_load_ema(archive, "ema", misfit), EK_E_SHAPE, "\"ema.weight\" is");
    assert_refused(ek_archive_load_ema(archive, "other", ema), EK_E_INVALID, "other.updates");
    ek_archive *most = ek_archive_new();
    assert_ok(ek_archive_put_module(most, "ema", module));
    assert_ok(ek_archive_put(most, "ema.updates", ek_value_of_int(INT64_MAX)));
    most = through_file(most);
    assert_refused(ek_archive_load_ema(most, "ema", ema), EK_E_FORMAT,
                   "after 9223372036854775807 updates");
    ek_archive_free(most);
    assert_refused(ek_archive_load_ema(archive, "ema", NULL), EK_E_INVALID, "the ema is NULL");
    ck_assert_int_eq(ek_ema_updates(misfit), 0);
    ek_archive_free(archive);
    ek_ema_free(ema);
    ek_ema_free(again);
    ek_ema_free(misfit);
    ek_module_free(module);
    ek_module_free(wide);
}

/* ---- all of a training ---- */

enum { SAMPLES = 12, ROWS = 3 };

static ek_training_state training_of(uint64_t seed)
{
    ek_manual_seed(seed);
    ek_training_state all = {.model = ek_sequential(ek_linear(2, 3), ek_dropout(0.5)),
                             .generator = ek_generator_new(seed),
                             .scaler = ek_grad_scaler_new(.init_scale = (double)(seed + 8)),
                             .random = true};
    all.optimizer = ek_adam(all.model, .lr = 0.1);
    all.schedule = ek_step_lr(all.optimizer, 2, 0.5);
    all.ema = ek_ema_new(all.model, .decay = 0.5);
    all.loader = ek_data_loader(ek_tensor_dataset(ek_rand(EK_SHAPE(SAMPLES, 2))),
                                .batch_size = ROWS, .shuffle = true, .workers = 0);
    return all;
}

static void training_free(ek_training_state *all)
{
    ek_loader_free(all->loader);
    ek_generator_free(all->generator);
    ek_grad_scaler_free(all->scaler);
    ek_ema_free(all->ema);
    ek_schedule_free(all->schedule);
    ek_optimizer_free(all->optimizer);
    ek_module_free(all->model);
}

/* One step, with all that the training has. Returns what its batches, its random numbers and its
 * parameters come to. */
static double training_step(const ek_training_state *all)
{
    ek_batch batch;
    ek_scope scope = ek_scope_begin();
    ek_tensor *noise = ek_empty(EK_SHAPE(1), EK_F32);
    ck_assert_int_eq(ek_loader_next(all->loader, &batch), 1);
    assert_ok(ek_normal_(noise, 0, 1, all->generator));
    double sum = ek_grad_scaler_factor(all->scaler) + element(noise, 0);
    for (int64_t i = 0; i < ROWS; i++)
        sum = 13 * sum + (double)batch.indices[i];
    ek_tensor *loss = ek_sum(ek_square(ek_apply(all->model, ek_rand(EK_SHAPE(4, 2)))));
    ek_zero_grad(all->optimizer);
    assert_ok(ek_backward(loss));
    assert_ok(ek_step(all->optimizer));
    assert_ok(ek_schedule_step(all->schedule));
    assert_ok(ek_ema_update(all->ema));
    sum += element(ek_sum(ek_ema_tensor(all->ema, "0.weight")), 0);
    sum += element(ek_sum(ek_detach(ek_module_tensor(all->model, "0.weight"))), 0);
    ek_scope_end(&scope);
    return sum;
}

/* Each part goes on where it was: what follows is the same to the bit. Parts that are left out are
 * neither put nor loaded. */
TEST(trainings_go_on_from_a_file)
{
    ek_scope scope = ek_scope_begin();
    ek_training_state all = training_of(1), other = training_of(2);
    double wanted[2];
    training_step(&all);
    ek_archive *archive = ek_archive_new();
    assert_ok(ek_archive_put_training(archive, "t", all));
    archive = through_file(archive);
    for (int i = 0; i < 2; i++)
        wanted[i] = training_step(&all);
    assert_ok(ek_archive_load_training(archive, "t", other));
    for (int i = 0; i < 2; i++)
        ck_assert_double_eq(training_step(&other), wanted[i]);
    assert_refused(ek_archive_load_training(archive, "u", other), EK_E_INVALID, "u");
    assert_ok(ek_archive_load_training(archive, "u", (ek_training_state){.model = NULL}));
    ek_archive_free(archive);
    archive = ek_archive_new();
    assert_refused(ek_archive_put_training(archive, "t",
                                           (ek_training_state){.optimizer = all.optimizer}),
                   EK_E_INVALID, "the module is NULL");
    ck_assert(!ek_archive_has(archive, "t"));
    ek_archive_free(archive);
    training_free(&all);
    training_free(&other);
    ek_scope_end(&scope);
    assert_ok(ek_shutdown());
}
