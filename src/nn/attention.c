/* attention.c: multi-head attention, and embeddings. */
#include "ops/attention.h"

#include <math.h>
#include <string.h>

#include "core/tensor.h"
#include "evenkeel/attention.h"
#include "evenkeel/autograd.h"
#include "nn/transformer.h"

/* ---- keyword arguments ---- */

int ek_keywords_of(const ek_module *module, const ek_args *args, const char *const *names,
                   int count, ek_value *values)
{
    for (int i = 0; i < count; i++)
        values[i] = ek_value_get(args->keywords, names[i]);
    for (int k = 0; k < ek_value_length(args->keywords); k++) {
        const char *key = ek_value_key(args->keywords, k);
        int i = 0;
        while (i < count && strcmp(key, names[i]) != 0)
            i++;
        if (i == count)
            return EK_FAIL(EK_E_INVALID, "%s takes no keyword argument \"%s\"", module->type->name,
                           key);
    }
    return 0;
}

/* Returns a flag, or `fallback` if the value is none. Negative with an error if it isn't an
 * integer. */
static int attention_flag(const char *name, ek_value value, bool fallback)
{
    if (value.kind == EK_VALUE_NONE)
        return fallback;
    if (value.kind != EK_VALUE_INT)
        return EK_FAIL(EK_E_INVALID, "%s has to be an integer, 0 or 1", name);
    return value.as.integer != 0;
}

/* Sets *mask to the value's tensor, or to NULL if the value is none. EK_E_INVALID for others. */
static int attention_mask_of(const char *name, ek_value value, ek_tensor **mask)
{
    *mask = value.kind == EK_VALUE_TENSOR ? value.as.tensor : NULL;
    if (value.kind == EK_VALUE_NONE || *mask)
        return 0;
    return EK_FAIL(EK_E_INVALID, "%s has to be a tensor or none", name);
}

/* ---- multi-head attention ---- */

typedef struct multihead {
    ek_module module;
    ek_tensor *in_proj_weight; /* (3 E, E), of q, k, v; NULL: q, k, v have separate weights */
    ek_tensor *q_proj_weight, *k_proj_weight, *v_proj_weight; /* (E, E), (E, kdim), (E, vdim) */
    ek_tensor *in_proj_bias;                                  /* (3 E), or NULL */
    ek_module *out_proj;
    int64_t embed_dim, num_heads, kdim, vdim;
    double dropout;
    bool batch_first, is_causal;
} multihead;

/* Returns y (length, features) or (batch, length, features) or, unless batch_first, (length, batch,
 * features) as (batch, length, features). */
static ek_tensor *multihead_batch(const multihead *self, ek_tensor *y)
{
    if (!y || y->ndim == 2)
        return y ? ek_unsqueeze(y, 0) : NULL;
    return self->batch_first ? y : ek_transpose(y, 0, 1);
}

/* Projects operand `part` (q, k, v) and returns it as (batch, heads, length, size of a head). */
static ek_tensor *multihead_project(const multihead *self, ek_tensor *x, int part)
{
    ek_tensor *const own[] = {self->q_proj_weight, self->k_proj_weight, self->v_proj_weight};
    const int64_t features = self->embed_dim, heads = self->num_heads;
    ek_tensor *w = self->in_proj_weight
                       ? ek_narrow(self->in_proj_weight, 0, part * features, features)
                       : own[part];
    ek_tensor *bias =
        self->in_proj_bias ? ek_narrow(self->in_proj_bias, 0, part * features, features) : NULL;
    if (!w || (self->in_proj_bias && !bias))
        return NULL;
    ek_tensor *y = multihead_batch(self, ek_f_linear(x, w, bias));
    y = y ? ek_reshape(y, EK_SHAPE(y->shape[0], y->shape[1], heads, features / heads)) : NULL;
    return y ? ek_transpose(y, 1, 2) : NULL;
}

/* Projects the operands of a call: by one product if they are one tensor. */
static bool multihead_project_all(const multihead *self, ek_tensor *const x[3],
                                  ek_attention_call *call)
{
    if (self->in_proj_weight && x[0] == x[1] && x[0] == x[2] && !ek_thread_self()->observer) {
        ek_tensor *all = ek_f_linear(x[0], self->in_proj_weight, self->in_proj_bias);
        return ek_attention_split(call, multihead_batch(self, all), self->num_heads);
    }
    call->q = multihead_project(self, x[0], 0);
    call->k = multihead_project(self, x[1], 1);
    call->v = multihead_project(self, x[2], 2);
    return call->q && call->k && call->v;
}

/* The sizes of a call. */
typedef struct multihead_sizes {
    int64_t batch, rows, keys;
    bool batched;
} multihead_sizes;

static int multihead_check(const multihead *self, const ek_args *args, ek_tensor *const x[3],
                           multihead_sizes *sizes)
{
    static const char *const names[] = {"query", "key", "value"};
    const int64_t features[] = {self->embed_dim, self->kdim, self->vdim};
    for (int i = 0; i < 3; i++) {
        char text[200];
        if (!x[i])
            return ek_error_pending();
        if ((x[i]->ndim != 2 && x[i]->ndim != 3) || x[i]->ndim != x[0]->ndim ||
            x[i]->shape[x[i]->ndim - 1] != features[i])
            return EK_FAIL(EK_E_SHAPE,
                           "%s has to be of 2 or 3 dimensions, the last of size %lld, got %s",
                           names[i], (long long)features[i], ek_tensor_text(x[i], text));
    }
    sizes->batched = x[0]->ndim == 3;
    const int length = sizes->batched && self->batch_first ? 1 : 0, batch = 1 - length;
    for (int i = 0; i < 3; i++)
        EK_TRY(ek_check_batch(names[i], args->inputs[i], sizes->batched ? batch : -1));
    sizes->rows = x[0]->shape[length];
    sizes->keys = x[1]->shape[length];
    sizes->batch = sizes->batched ? x[0]->shape[batch] : 1;
    bool fit = x[2]->shape[length] == sizes->keys;
    for (int i = 1; i < 3 && sizes->batched; i++)
        fit = fit && x[i]->shape[batch] == sizes->batch;
    if (!fit)
        return EK_FAIL(EK_E_SHAPE,
                       "query, key and value differ in batch or length: the batch is "
                       "dimension %d, the length dimension %d",
                       batch, length);
    return 0;
}

static int multihead_check_mask(const char *name, const ek_tensor *mask, bool fits,
                                const char *wanted)
{
    char text[200];
    return fits ? 0
                : EK_FAIL(EK_E_SHAPE, "%s has to be %s, got %s", name, wanted,
                          ek_tensor_text(mask, text));
}

/* Joins both masks to one mask that is added to scores (batch, heads, rows, keys). */
static int multihead_join_masks(const multihead *self, const multihead_sizes *sizes,
                                ek_tensor *mask, ek_tensor *padding, ek_dtype dtype,
                                ek_tensor **joined)
{
    const int64_t batch = sizes->batch, heads = self->num_heads;
    const int64_t rows = sizes->rows, keys = sizes->keys;
    *joined = NULL;
    if (mask) {
        const ek_shape shape = ek_tensor_shape(mask);
        const ek_shape flat = EK_SHAPE(rows, keys), whole = EK_SHAPE(batch * heads, rows, keys);
        EK_TRY(multihead_check_mask("attn_mask", mask,
                                    ek_shape_equal(&shape, &flat) || ek_shape_equal(&shape, &whole),
                                    "(L, S) or (batch * heads, L, S)"));
        if (shape.ndim == 3)
            mask = ek_reshape(mask, EK_SHAPE(batch, heads, rows, keys));
        *joined = ek_attention_bias("attention", mask, dtype, true);
        if (!*joined)
            return ek_error_pending();
    }
    if (padding) {
        const ek_shape shape = ek_tensor_shape(padding);
        const ek_shape flat = EK_SHAPE(keys), whole = EK_SHAPE(batch, keys);
        EK_TRY(multihead_check_mask("key_padding_mask", padding,
                                    ek_shape_equal(&shape, sizes->batched ? &whole : &flat),
                                    "(batch, S), or (S) without a batch"));
        ek_tensor *bias =
            ek_attention_bias("attention", ek_reshape(padding, EK_SHAPE(batch, 1, 1, keys)), dtype,
                              true);
        *joined = bias && *joined ? ek_add(*joined, bias) : bias;
        if (!*joined)
            return ek_error_pending();
    }
    return 0;
}

/* Joins heads (batch, heads, length, size) to features, and projects these. */
static ek_tensor *multihead_output(const multihead *self, const multihead_sizes *sizes,
                                   ek_tensor *heads)
{
    if (!heads)
        return NULL;
    ek_tensor *y =
        ek_permute(heads, self->batch_first ? EK_SHAPE(0, 2, 1, 3) : EK_SHAPE(2, 0, 1, 3));
    if (!y)
        return NULL;
    y = ek_reshape(y, sizes->batched ? EK_SHAPE(y->shape[0], y->shape[1], self->embed_dim)
                                     : EK_SHAPE(sizes->rows, self->embed_dim));
    return y ? ek_apply(self->out_proj, y) : NULL;
}

static ek_value multihead_forward(ek_module *module, const ek_args *args)
{
    enum { MASK, PADDING, CAUSAL, WEIGHTS, AVERAGE, KEYWORDS };
    static const char *const names[KEYWORDS] = {"attn_mask", "key_padding_mask", "is_causal",
                                                "need_weights", "average_attn_weights"};
    const multihead *self = (multihead *)module;
    ek_value given[KEYWORDS];
    ek_tensor *mask, *padding;
    multihead_sizes sizes = {.batch = 0};
    const ek_args inputs = {args->inputs, args->count, ek_value_none()};
    if (ek_keywords_of(module, args, names, KEYWORDS, given) < 0 ||
        ek_check_inputs(module, &inputs, 3) < 0)
        return ek_value_error();
    const int causal = attention_flag(names[CAUSAL], given[CAUSAL], self->is_causal);
    const int need_weights = attention_flag(names[WEIGHTS], given[WEIGHTS], false);
    const int average = attention_flag(names[AVERAGE], given[AVERAGE], true);
    ek_tensor *x[3] = {ek_arg_tensor(args, 0), ek_arg_tensor(args, 1), ek_arg_tensor(args, 2)};
    if (causal < 0 || need_weights < 0 || average < 0 ||
        attention_mask_of(names[MASK], given[MASK], &mask) < 0 ||
        attention_mask_of(names[PADDING], given[PADDING], &padding) < 0 ||
        multihead_check(self, args, x, &sizes) < 0)
        return ek_value_error();
    ek_attention_call call = {.causal = causal,
                              .dropout_p = module->training ? self->dropout : 0,
                              .scale = 1 / sqrt((double)self->embed_dim / (double)self->num_heads)};
    if (!multihead_project_all(self, x, &call) ||
        multihead_join_masks(self, &sizes, mask, padding, call.q->dtype, &call.mask) < 0)
        return ek_value_error();
    ek_tensor *weights = NULL;
    ek_tensor *y =
        multihead_output(self, &sizes,
                         ek_attention("attention", &call, need_weights ? &weights : NULL));
    ek_value output = ek_value_of_tensor(y);
    if (y && sizes.batched)
        output = ek_value_batched(output, self->batch_first ? 0 : 1);
    if (!y || !need_weights)
        return output;
    if (average)
        weights = ek_mean(weights, EK_DIMS(1));
    if (!sizes.batched)
        return EK_LIST(y, ek_squeeze(weights, 0));
    return EK_LIST(output, ek_value_batched(ek_value_of_tensor(weights), 0));
}

static const ek_module_type multihead_type = {.name = "multihead_attention",
                                              .size = sizeof(multihead),
                                              .forward = multihead_forward};

/* Registers matrices and biases in PyTorch's order. */
static void multihead_register(multihead *self, bool bias)
{
    static const char *const names[] = {"q_proj_weight", "k_proj_weight", "v_proj_weight"};
    ek_tensor **const members[] = {&self->q_proj_weight, &self->k_proj_weight,
                                   &self->v_proj_weight};
    const int64_t features = self->embed_dim, columns[] = {features, self->kdim, self->vdim};
    ek_module *module = &self->module;
    const bool one = self->kdim == features && self->vdim == features;
    if (one)
        ek_register_parameter(module, "in_proj_weight", &self->in_proj_weight,
                              ek_new_parameter(EK_SHAPE(3 * features, features), EK_F32));
    for (int i = 0; i < 3; i++)
        ek_register_parameter(module, names[i], members[i],
                              one ? NULL
                                  : ek_new_parameter(EK_SHAPE(features, columns[i]), EK_F32));
    if (!one)
        ek_register_parameter(module, "in_proj_weight", &self->in_proj_weight, NULL);
    ek_register_parameter(module, "in_proj_bias", &self->in_proj_bias,
                          bias ? ek_new_parameter(EK_SHAPE(3 * features), EK_F32) : NULL);
    /* The output's projection draws its initial values first, its bias included. */
    ek_register_module(module, "out_proj", &self->out_proj,
                       ek_linear(features, features, .bias = bias));
    if (ek_error_status() < 0)
        return;
    if (one)
        ek_init_xavier_uniform(self->in_proj_weight, 1);
    for (int i = 0; i < 3 && !one; i++)
        ek_init_xavier_uniform(*members[i], 1);
    if (bias && ek_init_constant(self->in_proj_bias, 0) >= 0)
        ek_init_constant(ek_module_tensor(self->out_proj, "bias"), 0);
}

ek_module *ek_multihead_attention_with(ek_multihead_attention_options options)
{
    const int64_t features = options.embed_dim, heads = options.num_heads;
    if (features < 1 || features > INT64_MAX / 3 || heads < 1 || features % heads != 0 ||
        options.kdim < 0 || options.vdim < 0) {
        EK_FAIL(EK_E_INVALID,
                "multihead_attention: embed_dim has to be a positive multiple of num_heads, "
                "3 embed_dim at most INT64_MAX, and kdim and vdim at least 1, got %lld, %lld, %lld "
                "and %lld",
                (long long)features, (long long)heads, (long long)options.kdim,
                (long long)options.vdim);
        return NULL;
    }
    if (!(options.dropout >= 0 && options.dropout <= 1)) {
        EK_FAIL(EK_E_INVALID, "multihead_attention: dropout has to be between 0 and 1, not %g",
                options.dropout);
        return NULL;
    }
    ek_scope scope = ek_scope_begin();
    multihead *self = (multihead *)ek_module_new(&multihead_type);
    if (self) {
        self->embed_dim = features;
        self->num_heads = heads;
        self->kdim = options.kdim ? options.kdim : features;
        self->vdim = options.vdim ? options.vdim : features;
        self->dropout = options.dropout;
        self->batch_first = options.batch_first;
        self->is_causal = options.is_causal;
        multihead_register(self, options.bias);
    }
    ek_scope_end(&scope);
    return ek_module_finish((ek_module *)self);
}

/* ---- embeddings ---- */

typedef struct embedding {
    ek_module module;
    ek_tensor *weight;   /* (num, dim) */
    int64_t padding_idx; /* EK_UNSET: none */
} embedding;

static ek_value embedding_forward(ek_module *module, const ek_args *args)
{
    const embedding *self = (embedding *)module;
    return ek_value_of_tensor(
        ek_f_embedding(self->weight, ek_only_input(module, args), self->padding_idx));
}

static const ek_module_type embedding_type = {.name = "embedding",
                                              .size = sizeof(embedding),
                                              .forward = embedding_forward};

ek_module *ek_embedding_with(ek_embedding_module_options options)
{
    const int64_t padding = options.padding_idx, rows = options.num;
    const bool padded = padding != EK_UNSET;
    if (rows < 1 || options.dim < 1) {
        EK_FAIL(EK_E_INVALID, "embedding: num %lld and dim %lld have to be at least 1",
                (long long)rows, (long long)options.dim);
        return NULL;
    }
    if (padded && (padding >= rows || padding < -rows)) {
        EK_FAIL(EK_E_INVALID, "embedding: padding_idx is %lld, but there are %lld rows",
                (long long)padding, (long long)rows);
        return NULL;
    }
    ek_scope scope = ek_scope_begin();
    embedding *self = (embedding *)ek_module_new(&embedding_type);
    if (self) {
        self->padding_idx = padding;
        ek_register_parameter(&self->module, "weight", &self->weight,
                              ek_new_parameter(EK_SHAPE(rows, options.dim), EK_F32));
        if (ek_error_status() == 0 && ek_init_normal(self->weight, 0, 1) >= 0 && padded) {
            ek_tensor *row =
                ek_select(ek_detach(self->weight), 0, padding < 0 ? padding + rows : padding);
            if (row)
                ek_init_constant(row, 0);
        }
    }
    ek_scope_end(&scope);
    return ek_module_finish((ek_module *)self);
}
