/* networks_reid.c: re-identification, against the public headers alone. */
#include <math.h>

#include "networks.h"

/* ---- the network: a residual network with a neck (Luo et al. 2019) ----
 *
 * The triplet loss wants distances, cross entropy wants directions. A batch normalisation between
 * the features of the one and those of the other lets both have their way. */

typedef struct reid_module {
    ek_module module;
    ek_module *trunk, *neck, *classifier;
} reid_module;

static ek_value reid_forward(ek_module *module, const ek_args *args)
{
    reid_module *self = (reid_module *)module;
    ek_tensor *features = ek_apply(self->trunk, ek_arg_tensor(args, 0));
    ek_tensor *normal = ek_apply(self->neck, features);
    if (!module->training)
        return ek_value_of_tensor(normal);
    return EK_LIST(features, ek_apply(self->classifier, normal));
}

static const ek_module_type reid_type = {.name = "reid",
                                         .size = sizeof(reid_module),
                                         .forward = reid_forward};

ek_module *reid_network(int width, int blocks, int features, int identities)
{
    reid_module *self = (reid_module *)ek_module_new(&reid_type);
    if (!self)
        return NULL;
    ek_module *m = &self->module;
    ek_register_module(m, "trunk", &self->trunk, resnet(1, width, blocks, true, features));
    ek_register_module(m, "neck", &self->neck, ek_batch_norm1d(features));
    ek_register_module(m, "classifier", &self->classifier,
                       ek_linear(features, identities, .bias = false));
    m = ek_module_finish(m);
    return m ? ek_convert_sync_batch_norm(m) : NULL;
}

/* ---- the triplet loss over a batch's hardest examples (Hermans et al. 2017) ---- */

ek_tensor *f_batch_hard_triplet_loss(ek_tensor *features, ek_tensor *identities, double margin)
{
    if (!features || !identities)
        return NULL;
    const int64_t count = ek_tensor_size(features, 0);
    ek_tensor *distances = ek_cdist(features, features, 2);
    ek_tensor *same = ek_eq(ek_unsqueeze(identities, 0), ek_unsqueeze(identities, 1));
    ek_tensor *itself = ek_eye(count, count, EK_BOOL, ek_tensor_device(features));
    ek_tensor *positive = ek_logical_and(same, ek_logical_not(itself));
    /* Without a positive or a negative the difference is -inf, and its hinge 0. */
    ek_tensor *furthest =
        ek_amax(ek_masked_fill(distances, ek_logical_not(positive), -INFINITY), EK_DIMS(1));
    ek_tensor *nearest = ek_amin(ek_masked_fill(distances, same, INFINITY), EK_DIMS(1));
    return ek_mean(ek_f_relu(ek_add_scalar(ek_sub(furthest, nearest), margin)));
}
