/* transformer.c: encoder and decoder layers, stacks of layers, and the transformer of both. */
#include "nn/transformer.h"

#include <stdio.h>
#include <stdlib.h>

#include "core/tensor.h"
#include "evenkeel/attention.h"
#include "evenkeel/autograd.h"
#include "nn/module_table.h"

/* ---- calls of children ---- */

/* Makes a dictionary of the entries whose values aren't none; none if there are no such entries. */
static ek_value transformer_dict(const ek_value_entry *entries, int count)
{
    enum { MOST = 8 };
    ek_value_entry given[MOST];
    int length = 0;
    for (int i = 0; i < count; i++)
        if (entries[i].value.kind != EK_VALUE_NONE)
            given[length++] = entries[i];
    return length > 0 ? ek_value_dict(given, length) : ek_value_none();
}

static ek_tensor *transformer_apply(ek_module *module, ek_tensor *x)
{
    return x ? ek_apply(module, x) : NULL;
}

/* ---- layers ---- */

typedef struct transformer_layer {
    ek_module module;
    ek_module *self_attn, *multihead_attn; /* the second in decoders */
    ek_module *linear1, *dropout, *linear2;
    ek_module *norm1, *norm2, *norm3;
    ek_module *dropout1, *dropout2, *dropout3;
    ek_transformer_activation activation;
    bool norm_first;
} transformer_layer;

/* The masks of an attention, and whether it is causal. */
typedef struct transformer_masks {
    ek_value mask, padding, causal;
} transformer_masks;

/* Sets *total to residual + dropout(x), and returns norm(*total). */
static ek_tensor *transformer_join(ek_tensor **total, ek_module *dropout, ek_module *norm,
                                   ek_tensor *residual, ek_tensor *x)
{
    if (ek_dropout_module_is_idle(dropout))
        return ek_layer_norm_module_added(norm, total, residual, x);
    *total = ek_dropout_module_added(dropout, residual, x);
    return transformer_apply(norm, *total);
}

/* Returns the attention of x to `memory`. */
static ek_tensor *transformer_attend(ek_module *attention, ek_tensor *x, ek_tensor *memory,
                                     const transformer_masks *masks)
{
    if (!x)
        return NULL;
    const ek_value_entry entries[] = {{"attn_mask", masks->mask},
                                      {"key_padding_mask", masks->padding},
                                      {"is_causal", masks->causal}};
    return ek_value_tensor(
        ek_forward_kw(attention, transformer_dict(entries, 3), x, memory, memory));
}

/* Returns the two linear layers of x. */
static ek_tensor *transformer_feed(const transformer_layer *self, ek_tensor *x)
{
    const bool gelu = self->activation == EK_TRANSFORMER_GELU;
    ek_forward_function *fused = NULL;
    if (ek_module_is_fusible(self->linear1))
        fused = gelu ? ek_linear_with_gelu(self->linear1, EK_GELU_NONE)
                     : ek_linear_with_relu(self->linear1);
    if (fused && x) {
        const ek_value input = EK_VALUE(x);
        const ek_args args = {&input, 1, ek_value_none()};
        x = ek_value_tensor(ek_module_call(self->linear1, &args, fused));
    } else {
        x = transformer_apply(self->linear1, x);
        if (x)
            x = gelu ? ek_f_gelu(x, EK_GELU_NONE) : ek_f_relu(x);
    }
    return transformer_apply(self->linear2, transformer_apply(self->dropout, x));
}

static ek_value encoder_layer_forward(ek_module *module, const ek_args *args)
{
    static const char *const names[] = {"src_mask", "src_key_padding_mask", "is_causal"};
    const transformer_layer *self = (transformer_layer *)module;
    const ek_args inputs = {args->inputs, args->count, ek_value_none()};
    ek_value given[3];
    if (ek_keywords_of(module, args, names, 3, given) < 0)
        return ek_value_error();
    const transformer_masks masks = {given[0], given[1], given[2]};
    ek_tensor *x = ek_only_input(module, &inputs);
    if (!x)
        return ek_value_error();
    ek_module *first = self->dropout1, *second = self->dropout2;
    ek_tensor *y;
    if (self->norm_first) {
        y = ek_apply(self->norm1, x);
        y = transformer_attend(self->self_attn, y, y, &masks);
        y = transformer_join(&x, first, self->norm2, x, y);
        x = ek_dropout_module_added(second, x, transformer_feed(self, y));
        return ek_value_of_tensor(x);
    }
    y = transformer_attend(self->self_attn, x, x, &masks);
    x = transformer_join(&y, first, self->norm1, x, y);
    x = transformer_join(&y, second, self->norm2, x, transformer_feed(self, x));
    return ek_value_of_tensor(x);
}

static const char *const decoder_keywords[] = {
    "tgt_mask",    "tgt_key_padding_mask",    "tgt_is_causal",
    "memory_mask", "memory_key_padding_mask", "memory_is_causal"};
enum { DECODER_KEYWORDS = 6 };

static ek_value decoder_layer_forward(ek_module *module, const ek_args *args)
{
    const transformer_layer *self = (transformer_layer *)module;
    const ek_args inputs = {args->inputs, args->count, ek_value_none()};
    ek_value given[DECODER_KEYWORDS];
    if (ek_keywords_of(module, args, decoder_keywords, DECODER_KEYWORDS, given) < 0 ||
        ek_check_inputs(module, &inputs, 2) < 0)
        return ek_value_error();
    const transformer_masks own = {given[0], given[1], given[2]};
    const transformer_masks other = {given[3], given[4], given[5]};
    ek_tensor *x = ek_arg_tensor(args, 0), *memory = ek_arg_tensor(args, 1);
    if (!x || !memory)
        return ek_value_error();
    ek_module *first = self->dropout1, *second = self->dropout2, *third = self->dropout3;
    ek_tensor *y;
    if (self->norm_first) {
        y = ek_apply(self->norm1, x);
        y = transformer_attend(self->self_attn, y, y, &own);
        y = transformer_join(&x, first, self->norm2, x, y);
        y = transformer_attend(self->multihead_attn, y, memory, &other);
        y = transformer_join(&x, second, self->norm3, x, y);
        x = ek_dropout_module_added(third, x, transformer_feed(self, y));
        return ek_value_of_tensor(x);
    }
    y = transformer_attend(self->self_attn, x, x, &own);
    x = transformer_join(&y, first, self->norm1, x, y);
    y = transformer_attend(self->multihead_attn, x, memory, &other);
    x = transformer_join(&y, second, self->norm2, x, y);
    x = transformer_join(&y, third, self->norm3, x, transformer_feed(self, x));
    return ek_value_of_tensor(x);
}

static const ek_module_type encoder_layer_type = {.name = "transformer_encoder_layer",
                                                  .size = sizeof(transformer_layer),
                                                  .forward = encoder_layer_forward};
static const ek_module_type decoder_layer_type = {.name = "transformer_decoder_layer",
                                                  .size = sizeof(transformer_layer),
                                                  .forward = decoder_layer_forward};

/* Registers the children in PyTorch's order, in which initial values are drawn. */
static void transformer_register(transformer_layer *self, const ek_transformer_layer_options *o,
                                 bool decoder)
{
    ek_module *module = &self->module;
    const int64_t width = o->dim_feedforward;
    const double p = o->dropout;
    const ek_shape shape = EK_SHAPE(o->d_model);
    ek_module **const norms[] = {&self->norm1, &self->norm2, &self->norm3};
    ek_module **const dropouts[] = {&self->dropout1, &self->dropout2, &self->dropout3};
    ek_register_module(module, "self_attn", &self->self_attn,
                       ek_multihead_attention(o->d_model, o->nhead, .dropout = p,
                                              .batch_first = o->batch_first,
                                              .is_causal = o->is_causal));
    if (decoder)
        ek_register_module(module, "multihead_attn", &self->multihead_attn,
                           ek_multihead_attention(o->d_model, o->nhead, .dropout = p,
                                                  .batch_first = o->batch_first));
    ek_register_module(module, "linear1", &self->linear1, ek_linear(o->d_model, width));
    ek_register_module(module, "dropout", &self->dropout, ek_dropout(p));
    ek_register_module(module, "linear2", &self->linear2, ek_linear(width, o->d_model));
    for (int i = 0; i < (decoder ? 3 : 2); i++) {
        char name[16];
        snprintf(name, sizeof name, "norm%d", i + 1);
        ek_register_module(module, name, norms[i], ek_layer_norm(shape, .eps = o->layer_norm_eps));
    }
    for (int i = 0; i < (decoder ? 3 : 2); i++) {
        char name[16];
        snprintf(name, sizeof name, "dropout%d", i + 1);
        ek_register_module(module, name, dropouts[i], ek_dropout(p));
    }
}

static ek_module *transformer_layer_new(const ek_module_type *type,
                                        const ek_transformer_layer_options *options, bool decoder)
{
    const int activation = (int)options->activation;
    if (activation < 0 || activation > EK_TRANSFORMER_GELU) {
        EK_FAIL(EK_E_INVALID,
                "%s: activation must be EK_TRANSFORMER_RELU or EK_TRANSFORMER_GELU, got %d",
                type->name, activation);
        return NULL;
    }
    transformer_layer *self = (transformer_layer *)ek_module_new(type);
    if (self) {
        self->activation = options->activation;
        self->norm_first = options->norm_first;
        transformer_register(self, options, decoder);
    }
    return ek_module_finish((ek_module *)self);
}

ek_module *ek_transformer_encoder_layer_with(ek_transformer_layer_options options)
{
    return transformer_layer_new(&encoder_layer_type, &options, false);
}

ek_module *ek_transformer_decoder_layer_with(ek_transformer_layer_options options)
{
    return transformer_layer_new(&decoder_layer_type, &options, true);
}

/* ---- stacks ---- */

typedef struct transformer_stack {
    ek_module module;
    ek_module *layers; /* holds them by number; never called */
    ek_module *norm;   /* or NULL */
} transformer_stack;

/* Calls the layers one after another, then the norm. Every layer gets the inputs after the first,
 * and the keywords. */
static ek_value stack_run(const transformer_stack *self, ek_value x, const ek_value *memory,
                          ek_value keywords)
{
    const int count = ek_module_member_count(self->layers);
    for (int i = 0; i < count; i++) {
        const ek_member member = ek_module_member(self->layers, i);
        if (member.kind != EK_MEMBER_MODULE)
            continue;
        const ek_value inputs[] = {x, memory ? *memory : ek_value_none()};
        const ek_args args = {inputs, memory ? 2 : 1, keywords};
        x = ek_module_forward(*member.slot.module, &args);
        if (x.kind == EK_VALUE_ERROR)
            return x;
    }
    return self->norm ? ek_forward(self->norm, x) : x;
}

static ek_value encoder_forward(ek_module *module, const ek_args *args)
{
    static const char *const names[] = {"mask", "src_key_padding_mask", "is_causal"};
    const transformer_stack *self = (transformer_stack *)module;
    const ek_args inputs = {args->inputs, args->count, ek_value_none()};
    ek_value given[3];
    if (ek_keywords_of(module, args, names, 3, given) < 0 || !ek_only_input(module, &inputs))
        return ek_value_error();
    const ek_value_entry entries[] = {{"src_mask", given[0]},
                                      {"src_key_padding_mask", given[1]},
                                      {"is_causal", given[2]}};
    return stack_run(self, args->inputs[0], NULL, transformer_dict(entries, 3));
}

static ek_value decoder_forward(ek_module *module, const ek_args *args)
{
    const transformer_stack *self = (transformer_stack *)module;
    const ek_args inputs = {args->inputs, args->count, ek_value_none()};
    ek_value given[DECODER_KEYWORDS];
    if (ek_keywords_of(module, args, decoder_keywords, DECODER_KEYWORDS, given) < 0 ||
        ek_check_inputs(module, &inputs, 2) < 0)
        return ek_value_error();
    return stack_run(self, args->inputs[0], &args->inputs[1], args->keywords);
}

static const ek_module_type encoder_type = {.name = "transformer_encoder",
                                            .size = sizeof(transformer_stack),
                                            .forward = encoder_forward};
static const ek_module_type decoder_type = {.name = "transformer_decoder",
                                            .size = sizeof(transformer_stack),
                                            .forward = decoder_forward};

static ek_module *stack_new(const ek_module_type *type, const ek_transformer_stack_options *o)
{
    const int most = o->num_layers > 0 ? o->num_layers : 0;
    ek_module **layers = ek_calloc((size_t)most + 1, sizeof *layers);
    int count = 0;
    if (layers && o->layer)
        layers[count++] = o->layer;
    else
        ek_module_discard(o->layer);
    if (!o->layer && ek_error_status() == 0)
        EK_FAIL(EK_E_INVALID, "%s: the layer is NULL", type->name);
    if (o->num_layers < 1 && ek_error_status() == 0)
        EK_FAIL(EK_E_INVALID, "%s: num_layers has to be at least 1, not %d", type->name,
                o->num_layers);
    while (ek_error_status() == 0 && count < most)
        if ((layers[count] = ek_module_copy(layers[0])) != NULL)
            count++;
    transformer_stack *self = (transformer_stack *)ek_module_new(type);
    ek_module *holder = layers ? ek_sequential_of(layers, count) : NULL;
    free(layers);
    if (self) {
        ek_register_module(&self->module, "layers", &self->layers, holder);
        if (o->norm)
            ek_register_module(&self->module, "norm", &self->norm, o->norm);
    } else {
        ek_module_free(holder);
        ek_module_discard(o->norm);
    }
    return ek_module_finish((ek_module *)self);
}

ek_module *ek_transformer_encoder_with(ek_transformer_stack_options options)
{
    return stack_new(&encoder_type, &options);
}

ek_module *ek_transformer_decoder_with(ek_transformer_stack_options options)
{
    return stack_new(&decoder_type, &options);
}

/* ---- encoder and decoder ---- */

typedef struct transformer {
    ek_module module;
    ek_module *encoder, *decoder;
} transformer;

static ek_value transformer_forward(ek_module *module, const ek_args *args)
{
    enum { TGT, MEMORY = 3, SRC = 6, KEYWORDS = 9 };
    static const char *const names[KEYWORDS] = {
        "tgt_mask",    "tgt_key_padding_mask",    "tgt_is_causal",
        "memory_mask", "memory_key_padding_mask", "memory_is_causal",
        "src_mask",    "src_key_padding_mask",    "src_is_causal"};
    const transformer *self = (transformer *)module;
    const ek_args inputs = {args->inputs, args->count, ek_value_none()};
    ek_value given[KEYWORDS];
    if (ek_keywords_of(module, args, names, KEYWORDS, given) < 0 ||
        ek_check_inputs(module, &inputs, 2) < 0)
        return ek_value_error();
    const ek_value_entry encoder[] = {{"mask", given[SRC]},
                                      {"src_key_padding_mask", given[SRC + 1]},
                                      {"is_causal", given[SRC + 2]}};
    ek_value_entry decoder[DECODER_KEYWORDS];
    for (int i = 0; i < DECODER_KEYWORDS; i++)
        decoder[i] = (ek_value_entry){names[i], given[i]};
    ek_value memory = ek_forward_kw(self->encoder, transformer_dict(encoder, 3), args->inputs[0]);
    if (memory.kind == EK_VALUE_ERROR)
        return memory;
    return ek_forward_kw(self->decoder, transformer_dict(decoder, DECODER_KEYWORDS),
                         args->inputs[1], memory);
}

static const ek_module_type transformer_type = {.name = "transformer",
                                                .size = sizeof(transformer),
                                                .forward = transformer_forward};

static int transformer_draw(const char *path, ek_tensor *tensor, void *user)
{
    (void)path, (void)user;
    return tensor->ndim > 1 ? ek_init_xavier_uniform(tensor, 1) : 0;
}

ek_module *ek_transformer_with(ek_transformer_options options)
{
    const ek_transformer_options *o = &options;
    const ek_transformer_layer_options layer = {.d_model = o->d_model,
                                                .nhead = o->nhead,
                                                .dim_feedforward = o->dim_feedforward,
                                                .dropout = o->dropout,
                                                .activation = o->activation,
                                                .layer_norm_eps = o->layer_norm_eps,
                                                .batch_first = o->batch_first,
                                                .norm_first = o->norm_first};
    const ek_shape shape = EK_SHAPE(o->d_model);
    transformer *self = (transformer *)ek_module_new(&transformer_type);
    if (self) {
        ek_register_module(
            &self->module, "encoder", &self->encoder,
            ek_transformer_encoder(ek_transformer_encoder_layer_with(layer), o->num_encoder_layers,
                                   .norm = ek_layer_norm(shape, .eps = o->layer_norm_eps)));
        ek_register_module(
            &self->module, "decoder", &self->decoder,
            ek_transformer_decoder(ek_transformer_decoder_layer_with(layer), o->num_decoder_layers,
                                   .norm = ek_layer_norm(shape, .eps = o->layer_norm_eps)));
        if (ek_error_status() == 0)
            ek_module_parameters(&self->module, transformer_draw, NULL);
    }
    return ek_module_finish((ek_module *)self);
}
