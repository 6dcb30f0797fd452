/* gpt2.c: GPT-2 (Radford et al. 2019), with the names of its published checkpoints. Its matrices
 * are stored as (in, out), the transpose of a linear layer's. */
#include <math.h>
#include <string.h>

#include "core/error.h"
#include "evenkeel/attention.h"
#include "evenkeel/init.h"
#include "evenkeel/models.h"
#include "nn/module_table.h"
#include "nn/nn.h"
#include "ops/attention.h"
#include "ops/autocast.h"
#include "ops/dropout.h"
#include "ops/linear.h"

/* Sizes with defaults resolved. */
typedef struct gpt2_plan {
    int64_t vocabulary, context, width, layers, heads, inner;
    double dropout, eps;
    bool head;
} gpt2_plan;

/* ---- x w + b, for w (in, out). Autocast casts the parameter rather than its transpose, so that
 * all parameters of the slab are cast at once ---- */

typedef struct gpt2_projection {
    ek_module module;
    ek_tensor *weight, *bias; /* (in, out), (out) */
} gpt2_projection;

static ek_value gpt2_projection_forward(ek_module *module, const ek_args *args)
{
    const gpt2_projection *self = (gpt2_projection *)module;
    ek_tensor *x = ek_only_input(module, args);
    ek_tensor *weight = x ? ek_autocast_narrow(self->weight) : NULL;
    return ek_value_of_tensor(weight ? ek_f_linear(x, ek_transpose(weight, 0, 1), self->bias)
                                     : NULL);
}

/* Computes the projection and GELU in one pass. */
static ek_value gpt2_projection_gelu(ek_module *module, const ek_args *args)
{
    const gpt2_projection *self = (gpt2_projection *)module;
    ek_tensor *x = ek_only_input(module, args);
    ek_tensor *weight = x ? ek_autocast_narrow(self->weight) : NULL;
    return ek_value_of_tensor(
        weight ? ek_linear_gelu(x, ek_transpose(weight, 0, 1), self->bias, EK_GELU_TANH) : NULL);
}

static const ek_module_type gpt2_projection_type = {.name = "gpt2_projection",
                                                    .size = sizeof(gpt2_projection),
                                                    .forward = gpt2_projection_forward};

/* Its matrix is filled by gpt2_init. */
static ek_module *gpt2_projection_new(int64_t in, int64_t out)
{
    gpt2_projection *self = (gpt2_projection *)ek_module_new(&gpt2_projection_type);
    if (!self)
        return NULL;
    ek_scope scope = ek_scope_begin();
    ek_register_parameter(&self->module, "weight", &self->weight,
                          ek_new_parameter(EK_SHAPE(in, out), EK_F32));
    ek_register_parameter(&self->module, "bias", &self->bias,
                          ek_new_parameter(EK_SHAPE(out), EK_F32));
    if (ek_error_status() == 0)
        ek_init_constant(self->bias, 0);
    ek_scope_end(&scope);
    return ek_module_finish(&self->module);
}

/* ---- attention ---- */

typedef struct gpt2_attention {
    ek_module module;
    ek_module *c_attn, *c_proj; /* c_attn makes queries, keys and values; c_proj joins heads */
    int64_t width, heads;
    double dropout;
} gpt2_attention;

/* Computes attention without the dropout of its result. */
static ek_value gpt2_attention_undropped(ek_module *module, const ek_args *args)
{
    const gpt2_attention *self = (gpt2_attention *)module;
    ek_tensor *x = ek_only_input(module, args);
    ek_tensor *all = x ? ek_autocast_narrow(ek_apply(self->c_attn, x)) : NULL;
    ek_attention_call call = {.causal = true,
                              .dropout_p = module->training ? self->dropout : 0,
                              .scale = 1 / sqrt((double)self->width / (double)self->heads)};
    if (!ek_attention_split(&call, all, self->heads))
        return ek_value_error();
    ek_tensor *y = ek_attention("attention", &call, NULL);
    y = ek_f_flatten(ek_transpose(y, 1, 2), 2, 3);
    return ek_value_of_tensor(ek_apply(self->c_proj, y));
}

static ek_value gpt2_attention_forward(ek_module *module, const ek_args *args)
{
    ek_tensor *y = ek_value_tensor(gpt2_attention_undropped(module, args));
    return ek_value_of_tensor(
        ek_f_dropout(y, ((const gpt2_attention *)module)->dropout, module->training));
}

static const ek_module_type gpt2_attention_type = {.name = "gpt2_attention",
                                                   .size = sizeof(gpt2_attention),
                                                   .forward = gpt2_attention_forward};

static ek_module *gpt2_attention_new(const gpt2_plan *plan)
{
    gpt2_attention *self = (gpt2_attention *)ek_module_new(&gpt2_attention_type);
    if (!self)
        return NULL;
    self->width = plan->width;
    self->heads = plan->heads;
    self->dropout = plan->dropout;
    ek_register_module(&self->module, "c_attn", &self->c_attn,
                       gpt2_projection_new(plan->width, 3 * plan->width));
    ek_register_module(&self->module, "c_proj", &self->c_proj,
                       gpt2_projection_new(plan->width, plan->width));
    return ek_module_finish(&self->module);
}

/* ---- the MLP of each token ---- */

typedef struct gpt2_mlp {
    ek_module module;
    ek_module *c_fc, *c_proj;
    double dropout;
} gpt2_mlp;

/* Computes the layers without the dropout of their result. */
static ek_value gpt2_mlp_undropped(ek_module *module, const ek_args *args)
{
    const gpt2_mlp *self = (gpt2_mlp *)module;
    ek_tensor *x = ek_only_input(module, args);
    if (!x)
        return ek_value_error();
    ek_tensor *y;
    if (self->c_fc->type == &gpt2_projection_type && ek_module_is_fusible(self->c_fc)) {
        const ek_value input = EK_VALUE(x);
        const ek_args fc = {&input, 1, ek_value_none()};
        y = ek_value_tensor(ek_module_call(self->c_fc, &fc, gpt2_projection_gelu));
    } else {
        y = ek_f_gelu(ek_apply(self->c_fc, x), EK_GELU_TANH);
    }
    return ek_value_of_tensor(ek_apply(self->c_proj, y));
}

static ek_value gpt2_mlp_forward(ek_module *module, const ek_args *args)
{
    ek_tensor *y = ek_value_tensor(gpt2_mlp_undropped(module, args));
    return ek_value_of_tensor(
        ek_f_dropout(y, ((const gpt2_mlp *)module)->dropout, module->training));
}

static const ek_module_type gpt2_mlp_type = {.name = "gpt2_mlp",
                                             .size = sizeof(gpt2_mlp),
                                             .forward = gpt2_mlp_forward};

static ek_module *gpt2_mlp_new(const gpt2_plan *plan)
{
    gpt2_mlp *self = (gpt2_mlp *)ek_module_new(&gpt2_mlp_type);
    if (!self)
        return NULL;
    self->dropout = plan->dropout;
    ek_register_module(&self->module, "c_fc", &self->c_fc,
                       gpt2_projection_new(plan->width, plan->inner));
    ek_register_module(&self->module, "c_proj", &self->c_proj,
                       gpt2_projection_new(plan->inner, plan->width));
    return ek_module_finish(&self->module);
}

/* ---- a layer ---- */

typedef struct gpt2_layer {
    ek_module module;
    ek_module *ln_1, *attn, *ln_2, *mlp;
    double dropout;
} gpt2_layer;

/* Returns the sum of x and the part's result for y. Dropout and the sum are one operation if no
 * hook reads the part's result. */
static ek_tensor *gpt2_add(const gpt2_layer *self, ek_tensor *x, ek_tensor *y, ek_module *part,
                           const ek_module_type *type, ek_forward_function *undropped)
{
    if (!x || !y)
        return NULL;
    if (part->type != type || !ek_module_is_fusible(part))
        return ek_add(x, ek_apply(part, y));
    const ek_value input = EK_VALUE(y);
    y = ek_value_tensor(ek_module_call(part, &(ek_args){&input, 1, ek_value_none()}, undropped));
    return ek_dropout_added(x, y, self->dropout, part->training);
}

static ek_value gpt2_layer_forward(ek_module *module, const ek_args *args)
{
    const gpt2_layer *self = (gpt2_layer *)module;
    ek_tensor *x = ek_only_input(module, args);
    if (!x)
        return ek_value_error();
    ek_tensor *y = ek_apply(self->ln_1, x);
    if (self->dropout == 0 || !module->training) {
        y = y ? ek_layer_norm_module_added(self->ln_2, &x, x, ek_apply(self->attn, y)) : NULL;
    } else {
        x = gpt2_add(self, x, y, self->attn, &gpt2_attention_type, gpt2_attention_undropped);
        y = x ? ek_apply(self->ln_2, x) : NULL;
    }
    x = gpt2_add(self, x, y, self->mlp, &gpt2_mlp_type, gpt2_mlp_undropped);
    return ek_value_of_tensor(x);
}

static const ek_module_type gpt2_layer_type = {.name = "gpt2_layer",
                                               .size = sizeof(gpt2_layer),
                                               .forward = gpt2_layer_forward};

static ek_module *gpt2_norm(const gpt2_plan *plan)
{
    return ek_layer_norm(EK_SHAPE(plan->width), .eps = plan->eps);
}

static ek_module *gpt2_layer_new(const gpt2_plan *plan)
{
    gpt2_layer *self = (gpt2_layer *)ek_module_new(&gpt2_layer_type);
    if (!self)
        return NULL;
    self->dropout = plan->dropout;
    ek_register_module(&self->module, "ln_1", &self->ln_1, gpt2_norm(plan));
    ek_register_module(&self->module, "attn", &self->attn, gpt2_attention_new(plan));
    ek_register_module(&self->module, "ln_2", &self->ln_2, gpt2_norm(plan));
    ek_register_module(&self->module, "mlp", &self->mlp, gpt2_mlp_new(plan));
    return ek_module_finish(&self->module);
}

/* ---- the network ---- */

typedef struct gpt2 {
    ek_module module;
    ek_module *wte, *wpe; /* embeddings of tokens and of positions */
    ek_module *h, *ln_f;  /* a sequential of layers */
    int64_t context;
    double dropout;
    bool head; /* the output is multiplied by the matrix of `wte` */
} gpt2;

static ek_value gpt2_forward(ek_module *module, const ek_args *args)
{
    const gpt2 *self = (gpt2 *)module;
    ek_tensor *tokens = ek_only_input(module, args);
    const int ndim = tokens ? ek_tensor_ndim(tokens) : 0;
    if (!tokens)
        return ek_value_error();
    const int64_t length = ndim > 0 ? ek_tensor_size(tokens, -1) : 0;
    if (ndim < 1 || ndim > 2 || length > self->context) {
        const ek_shape shape = ek_tensor_shape(tokens);
        char text[160];
        EK_FAIL(EK_E_SHAPE, "gpt2: tokens are %s; (N, L) or (L) with L at most %lld is needed",
                ek_shape_text(&shape, text), (long long)self->context);
        return ek_value_error();
    }
    ek_tensor *positions = ek_module_tensor(self->wpe, "weight");
    ek_tensor *x = ek_apply(self->wte, ndim == 1 ? ek_unsqueeze(tokens, 0) : tokens);
    if (x && positions)
        x = ek_add(x, ek_narrow(positions, 0, 0, length));
    x = ek_apply(self->h, ek_f_dropout(x, self->dropout, module->training));
    x = ek_apply(self->ln_f, x);
    if (self->head)
        x = ek_f_linear(x, ek_module_tensor(self->wte, "weight"), NULL);
    return ek_value_of_tensor(x && ndim == 1 ? ek_squeeze(x, 0) : x);
}

static const ek_module_type gpt2_type = {.name = "gpt2",
                                         .size = sizeof(gpt2),
                                         .forward = gpt2_forward};

/* Initialises matrices by normal numbers. If a matrix's results are added to a token's features,
 * its deviation is smaller by the root of the number of such matrices, so that the sum over all
 * layers has the deviation of one. */
static int gpt2_init(const char *path, ek_tensor *tensor, void *plan)
{
    static const char end[] = "c_proj.weight";
    const size_t length = strlen(path);
    const bool adds =
        length >= sizeof end - 1 && strcmp(path + length - (sizeof end - 1), end) == 0;
    const double deviation =
        adds ? 0.02 / sqrt(2 * (double)((const gpt2_plan *)plan)->layers) : 0.02;
    return ek_tensor_ndim(tensor) == 2 ? ek_init_normal(tensor, 0, deviation) : 0;
}

static ek_module *gpt2_new(gpt2_plan *plan)
{
    gpt2 *self = (gpt2 *)ek_module_new(&gpt2_type);
    if (!self)
        return NULL;
    ek_module *m = &self->module;
    self->context = plan->context;
    self->dropout = plan->dropout;
    self->head = plan->head;
    ek_register_module(m, "wte", &self->wte, ek_embedding(plan->vocabulary, plan->width));
    ek_register_module(m, "wpe", &self->wpe, ek_embedding(plan->context, plan->width));
    ek_register_module(m, "h", &self->h, ek_sequential_of(NULL, 0));
    for (int64_t i = 0; i < plan->layers && ek_error_status() == 0; i++)
        ek_module_list_append(self->h, gpt2_layer_new(plan));
    ek_register_module(m, "ln_f", &self->ln_f, gpt2_norm(plan));
    m = ek_module_finish(m);
    if (m && ek_module_parameters(m, gpt2_init, plan) < 0) {
        ek_module_free(m);
        return NULL;
    }
    return m;
}

ek_module *ek_gpt2_with(ek_gpt2_options options)
{
    enum { MOST = 1 << 30, MOST_LAYERS = 1 << 16 };
    const int64_t width = options.width;
    gpt2_plan plan = {
        .vocabulary = options.vocabulary,
        .context = options.context,
        .width = width,
        .layers = options.layers,
        .heads = options.heads,
        .inner = options.inner || width >= MOST ? options.inner : 4 * width,
        .dropout = options.dropout,
        .eps = options.layer_norm_eps,
        .head = options.head,
    };
    if (plan.vocabulary < 1 || plan.vocabulary > MOST || plan.context < 1 || plan.context > MOST ||
        width < 1 || width > MOST || plan.inner < 1 || plan.inner > MOST || plan.layers < 1 ||
        plan.layers > MOST_LAYERS)
        return EK_FAIL_NULL(
            EK_E_INVALID,
            "gpt2: vocabulary %lld, context %lld, width %lld, inner %lld and layers "
            "%lld have to be at least 1, and at most %d, layers at most %d",
            (long long)plan.vocabulary, (long long)plan.context, (long long)width,
            (long long)plan.inner, (long long)plan.layers, MOST, MOST_LAYERS);
    if (plan.heads < 1 || width % plan.heads != 0)
        return EK_FAIL_NULL(EK_E_INVALID,
                            "gpt2: width %lld has to be a multiple of heads, which is %lld",
                            (long long)width, (long long)plan.heads);
    if (!(plan.dropout >= 0 && plan.dropout <= 1))
        return EK_FAIL_NULL(EK_E_INVALID, "gpt2: dropout has to be between 0 and 1, not %g",
                            plan.dropout);
    return gpt2_new(&plan);
}
