/* latents.c: see latents.h. */
#include "latents.h"

/* ---- for training ---- */

/* Draws how many layers get the first latent: all layers, or if two latents are mixed 1 to
 * STYLEGAN_LAYERS - 1. */
static ek_tensor *seeds_cut(int64_t groups, double mixing, ek_generator *random)
{
    const ek_shape shape = EK_SHAPE(groups, STYLEGAN_GROUP);
    ek_tensor *mixed = ek_empty(shape, EK_I64), *cut = ek_empty(shape, EK_I64);
    if (!mixed || !cut || ek_bernoulli_(mixed, mixing, random) < 0 ||
        ek_random_(cut, 1, STYLEGAN_LAYERS, random) < 0)
        return NULL;
    return ek_where(ek_ne_scalar(mixed, 0), cut, ek_full(STYLEGAN_LAYERS, shape, EK_I64));
}

seeds seeds_draw(int64_t groups, int64_t latent, double mixing, ek_dtype dtype,
                 ek_generator *random)
{
    seeds drawn;
    drawn.z = adversary_noise(EK_SHAPE(groups, STYLEGAN_GROUP, 2, latent), dtype, random);
    drawn.cut = world_rows(seeds_cut(groups, mixing, random));
    drawn.noise = adversary_noise(EK_SHAPE(groups, STYLEGAN_GROUP, STYLEGAN_NOISE), dtype, random);
    return drawn;
}

/* ---- pictures ---- */

enum { AVERAGED_LATENTS = 1024, MADE_AT_ONCE = 32 };

typedef struct latents_making {
    const latents_sampling *how;
    ek_module *mapping, *synthesis;
    ek_tensor *mean; /* a reference; NULL: not truncated */
} latents_making;

/* Returns the mean of w (1, latent), to which truncation pulls other w. */
static ek_tensor *latents_mean(const latents_making *of, ek_generator *random)
{
    ek_tensor *z = ek_empty(EK_SHAPE(AVERAGED_LATENTS, of->how->latent), of->how->dtype);
    if (!z || ek_normal_(z, 0, 1, random) < 0)
        return NULL;
    return ek_mean(ek_apply(of->mapping, ek_to_device(z, of->how->device)), EK_DIMS(0),
                   .keepdim = true);
}

static ek_tensor *latents_make_part(int64_t first, int64_t count, ek_generator *random, void *user)
{
    latents_making *of = user;
    const latents_sampling *how = of->how;
    if (how->truncation && first == 0)
        of->mean = ek_keep(latents_mean(of, random));
    ek_tensor *z = ek_empty(EK_SHAPE(count, how->latent), how->dtype);
    ek_tensor *noise = ek_empty(EK_SHAPE(count, STYLEGAN_NOISE), how->dtype);
    ek_normal_(z, 0, 1, random);
    ek_normal_(noise, 0, 1, random);
    ek_tensor *w = ek_apply(of->mapping, ek_to_device(z, how->device));
    if (of->mean)
        w = ek_lerp_scalar(of->mean, w, *how->truncation);
    w = ek_expand(ek_unsqueeze(w, 1), EK_SHAPE(count, STYLEGAN_LAYERS, how->latent));
    return ek_value_tensor(ek_forward(of->synthesis, w, ek_to_device(noise, how->device)));
}

ek_tensor *latents_sample(const latents_sampling *how, ek_ema *average, int64_t count,
                          uint64_t seed)
{
    latents_making of = {.how = how,
                         .mapping = ek_module_at(how->generator, "mapping"),
                         .synthesis = ek_module_at(how->generator, "synthesis")};
    ek_tensor *pictures =
        adversary_parts(average, seed, count, MADE_AT_ONCE, latents_make_part, &of);
    ek_release(of.mean);
    return pictures;
}
