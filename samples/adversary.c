/* adversary.c: see adversary.h. */
#include "adversary.h"

ek_dataset *adversary_framed(ek_dataset *bytes, int side)
{
    const double half = 0.5;
    return ek_transformed(bytes, 0, ek_center_crop(side), ek_to_float(),
                          ek_normalize(&half, &half, 1));
}

ek_dataset *adversary_pictures(const char *directory, bool train, int side)
{
    ek_dataset *bytes =
        pictures_checked(ek_mnist(directory, train), directory, EK_SHAPE(1, 28, 28));
    return bytes ? adversary_framed(bytes, side) : NULL;
}

ek_tensor *adversary_real(ek_loader *loader, ek_dtype dtype)
{
    ek_batch batch;
    if (loader_next(loader, &batch) < 0)
        return NULL;
    return ek_to_dtype(ek_value_tensor(batch.input), dtype);
}

ek_tensor *adversary_noise(ek_shape shape, ek_dtype dtype, ek_generator *random)
{
    ek_tensor *noise = ek_empty(shape, dtype);
    return noise && ek_normal_(noise, 0, 1, random) == 0 ? world_rows(noise) : NULL;
}

int adversary_backward(ek_tensor *loss, double *value)
{
    int rc = ek_backward(loss);
    if (rc == 0)
        rc = ek_item(loss, value);
    return rc == 0 ? loss_check(*value) : rc;
}

int adversary_generator_backward(const train_job *generator, const train_job *critic, ek_value made,
                                 double *value)
{
    ek_module_set_requires_grad(critic->network, false);
    ek_value scores = ek_forward(critic->model, made);
    int rc = adversary_backward(ek_loss(generator->criterion, scores), value);
    ek_module_set_requires_grad(critic->network, true);
    return rc;
}

int adversary_mean(ek_value scores, double *mean)
{
    bool had_gradients = ek_set_grad_enabled(false);
    ek_tensor *all = world_all(ek_value_tensor(ek_value_to_device(scores, ek_cpu(), 0)));
    int rc = ek_item(ek_mean(ek_to_dtype(all, EK_F64)), mean);
    ek_set_grad_enabled(had_gradients);
    return rc;
}

ek_tensor *adversary_parts(ek_ema *average, uint64_t seed, int64_t count, int64_t at_once,
                           adversary_maker *make, void *user)
{
    enum { MOST_PARTS = 512 };
    ek_tensor *parts[MOST_PARTS], *pictures = NULL;
    int used = 0;
    if (count > at_once * MOST_PARTS) {
        ek_error(EK_E_INVALID, "%lld pictures; at most %lld can be made", (long long)count,
                 (long long)at_once * MOST_PARTS);
        return NULL;
    }
    ek_generator *random = ek_generator_new(seed);
    bool had_gradients = ek_set_grad_enabled(false);
    if (!average || ek_ema_apply(average) == 0) {
        for (int64_t made = 0; made < count; made += at_once) {
            ek_scope scope = ek_scope_begin();
            ek_tensor *part =
                make(made, count - made < at_once ? count - made : at_once, random, user);
            parts[used++] = ek_scope_return(&scope, part ? ek_to_device(part, ek_cpu()) : NULL);
        }
        pictures = ek_cat(parts, used, 0);
        if (average)
            ek_ema_restore(average);
    }
    ek_set_grad_enabled(had_gradients);
    ek_generator_free(random);
    return pictures;
}

void adversary_save(run *r, ek_tensor *pictures, int columns)
{
    run_picture(r, "samples",
                EK_OPTIONS(ek_grid_options, pictures, .columns = columns, .normalize = true,
                           .low = -1, .high = 1, .pad_value = 0.125));
}

void adversary_keep(run *r, const train_job *generator, const train_job *critic,
                    ek_generator *random, ek_loader *loader, bool planned)
{
    run_keep(r, "data", (ek_training_state){.generator = random, .loader = loader});
    run_keep(r, "generator",
             (ek_training_state){.model = generator->network, .optimizer = generator->optimizer});
    run_keep(r, "critic",
             (ek_training_state){.model = critic->network, .optimizer = critic->optimizer});
    if (!planned)
        return;
    run_keep_plan(r, "generator_plan", generator->parallel);
    run_keep_plan(r, "critic_plan", critic->parallel);
}
