/* penalty_points.c: where gradient penalties look at the critic. */
#include "balance/penalty.h"
#include "core/tensor.h"
#include "evenkeel/autograd.h"
#include "evenkeel/ops.h"
#include "ops/autocast.h"

const char *ek_penalty_name(ek_penalty_kind kind)
{
    static const char *const names[] = {"wgan_gp", "wgan_lp", "dragan", "r1", "r2"};
    return (unsigned)kind < sizeof names / sizeof *names ? names[kind] : NULL;
}

static bool needs_real(ek_penalty_kind kind)
{
    return kind != EK_PENALTY_R2;
}

static bool needs_fake(ek_penalty_kind kind)
{
    return kind == EK_PENALTY_WGAN_GP || kind == EK_PENALTY_WGAN_LP || kind == EK_PENALTY_R2;
}

/* ---- checks ---- */

static int check_samples(const char *kind, const char *name, const ek_tensor *x)
{
    char text[200];
    if (!x) {
        EK_TRY(ek_error_status());
        return EK_FAIL(EK_E_INVALID, "gradient penalty: %s needs %s samples; %s is NULL", kind,
                       name, name);
    }
    if (!ek_dtype_is_floating(x->dtype))
        return EK_FAIL(EK_E_DTYPE, "gradient penalty: %s samples have to be floating, not %s", name,
                       ek_tensor_text(x, text));
    if (x->ndim == 0 || ek_count(x) == 0)
        return EK_FAIL(EK_E_SHAPE,
                       "gradient penalty: %s samples have to be (N, ...) with at least one "
                       "element, not %s",
                       name, ek_tensor_text(x, text));
    return 0;
}

static int check_pair(const ek_tensor *real, const ek_tensor *fake)
{
    char texts[2][200];
    ek_tensor_text(real, texts[0]);
    ek_tensor_text(fake, texts[1]);
    if (!ek_same_shape(real, fake))
        return EK_FAIL(EK_E_SHAPE,
                       "gradient penalty: real is %s, but fake is %s; the shapes must "
                       "be the same",
                       texts[0], texts[1]);
    if (real->dtype != fake->dtype)
        return EK_FAIL(EK_E_DTYPE,
                       "gradient penalty: real is %s, but fake is %s; the dtypes must "
                       "be the same",
                       texts[0], texts[1]);
    if (ek_tensor_dev(real) != ek_tensor_dev(fake))
        return EK_FAIL(EK_E_DEVICE,
                       "gradient penalty: real is %s, but fake is %s; they must lie "
                       "on one device",
                       texts[0], texts[1]);
    return 0;
}

static int check(const ek_tensor *real, const ek_tensor *fake, ek_penalty_kind kind)
{
    const char *name = ek_penalty_name(kind);
    if (!name)
        return EK_FAIL(EK_E_INVALID, "gradient penalty: %d is no kind (ek_penalty_kind)",
                       (int)kind);
    if ((!real || !fake) && ek_error_status() < 0)
        return ek_error_status(); /* also of samples that this kind does without */
    if (needs_real(kind))
        EK_TRY(check_samples(name, "real", real));
    if (needs_fake(kind))
        EK_TRY(check_samples(name, "fake", fake));
    if (needs_real(kind) && needs_fake(kind))
        EK_TRY(check_pair(real, fake));
    if (kind == EK_PENALTY_DRAGAN && ek_count(real) < 2)
        return EK_FAIL(EK_E_SHAPE,
                       "gradient penalty: dragan needs the deviation of real's elements, and there "
                       "is only one");
    return 0;
}

/* ---- points ---- */

/* Uniform in [0, 1), of real's dtype and device. */
static ek_tensor *draw(ek_shape shape, const ek_tensor *real, ek_generator *generator)
{
    ek_tensor *u = ek_empty(shape, .dtype = real->dtype, .device = ek_tensor_device(real));
    return u && ek_uniform_(u, 0, 1, generator) < 0 ? NULL : u;
}

/* x + a (y - x), a for each sample. */
static ek_tensor *interpolate(ek_tensor *x, ek_tensor *y, ek_generator *generator)
{
    ek_shape shape = {.ndim = x->ndim};
    for (int i = 0; i < x->ndim; i++)
        shape.dims[i] = i == 0 ? x->shape[0] : 1;
    ek_tensor *a = draw(shape, x, generator);
    return ek_add(x, ek_mul(ek_sub(y, x), a));
}

/* x + std b / 2, b for each element; std of the whole batch. */
static ek_tensor *perturb(ek_tensor *x, ek_generator *generator)
{
    ek_tensor *b = draw(ek_tensor_shape(x), x, generator);
    return ek_add(x, ek_mul(b, ek_mul_scalar(ek_std(x), 0.5)));
}

static ek_tensor *points(ek_tensor *real, ek_tensor *fake, ek_penalty_kind kind,
                         ek_generator *generator)
{
    if (kind == EK_PENALTY_R1 || kind == EK_PENALTY_R2)
        return ek_detach(kind == EK_PENALTY_R1 ? real : fake);
    ek_tensor *other = kind == EK_PENALTY_DRAGAN ? perturb(real, generator) : fake;
    return other ? interpolate(real, other, generator) : NULL;
}

ek_tensor *ek_penalty_points(ek_tensor *real, ek_tensor *fake, ek_penalty_kind kind,
                             ek_generator *generator)
{
    ek_scope scope = ek_scope_begin();
    bool enabled = ek_set_grad_enabled(false);
    /* A generator under autocast gives bf16, a loader f32. */
    real = ek_autocast_wide(real);
    fake = ek_autocast_wide(fake);
    ek_tensor *x = check(real, fake, kind) < 0 ? NULL : points(real, fake, kind, generator);
    ek_set_grad_enabled(enabled);
    return ek_scope_end_with(&scope, x);
}
