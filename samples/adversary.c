/* adversary.c: see adversary.h. */
#include "adversary.h"

ek_dataset *adversary_pictures(ek_dataset *bytes, int side)
{
    const double half = 0.5;
    return ek_transformed(bytes, 0, ek_center_crop(side), ek_to_float(),
                          ek_normalize(&half, &half, 1));
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

int adversary_mean(ek_value scores, double *mean)
{
    bool had_gradients = ek_set_grad_enabled(false);
    ek_tensor *all = world_all(ek_value_tensor(ek_value_to_device(scores, ek_cpu(), 0)));
    int rc = ek_item(ek_mean(ek_to_dtype(all, EK_F64)), mean);
    ek_set_grad_enabled(had_gradients);
    return rc;
}
