/* A module of one's own, its gradients, and gradients of gradients. */
#include <evenkeel/evenkeel.h>

/* scale * body(x). A module is a struct that begins with an ek_module. */
typedef struct scaled {
    ek_module module;
    ek_module *body;
    ek_tensor *scale;
} scaled;

static ek_value scaled_forward(ek_module *module, const ek_args *args)
{
    scaled *self = (scaled *)module;
    return EK_VALUE(ek_mul(self->scale, ek_apply(self->body, ek_arg_tensor(args, 0))));
}

static const ek_module_type scaled_type = {.name = "scaled",
                                           .size = sizeof(scaled),
                                           .forward = scaled_forward};

/* What is registered is trained, moved, saved and replicated. Takes over `body`. */
static ek_module *scaled_new(ek_module *body)
{
    scaled *self = (scaled *)ek_module_new(&scaled_type);
    if (!self)
        return NULL;
    ek_register_module(&self->module, "body", &self->body, body);
    ek_register_parameter(&self->module, "scale", &self->scale, ek_full(2, EK_SHAPE(1)));
    return ek_module_finish(&self->module); /* NULL if any of this failed */
}

static int print_gradient(const char *path, ek_tensor *parameter, void *user)
{
    double norm;
    (void)user;
    int rc = ek_item(ek_norm(ek_tensor_grad(parameter)), &norm);
    if (rc == 0)
        printf("%-14s |gradient| %.4f\n", path, norm);
    return rc;
}

int main(void)
{
    ek_manual_seed(1); /* PyTorch's numbers for this seed */
    ek_module *net = scaled_new(ek_sequential(ek_linear(3, 4), ek_tanh(), ek_linear(4, 1)));
    ek_scope scope = ek_scope_begin();
    ek_tensor *x = ek_randn(EK_SHAPE(8, 3), .requires_grad = true), *dx;
    ek_tensor *y = ek_sum(ek_square(ek_apply(net, x)));
    ek_module_print(net, stdout);
    int rc = ek_backward(y, .retain_graph = true);
    if (rc == 0)
        rc = ek_module_parameters(net, print_gradient, NULL);

    /* The gradient by the input, as a function that has gradients itself: a penalty on it. */
    ek_module_zero_grad(net);
    if (rc == 0)
        rc = ek_grad(.outputs = &y, .output_count = 1, .inputs = &x, .input_count = 1,
                     .gradients = &dx, .create_graph = true);
    if (rc == 0 && (rc = ek_backward(ek_mean(ek_square(dx)))) == 0) {
        printf("with the mean of (dy/dx)^2 as loss:\n");
        rc = print_gradient("scale", ek_module_tensor(net, "scale"), NULL);
    }
    if (rc < 0)
        ek_print_error(stderr);
    ek_scope_end(&scope);
    ek_module_free(net);
    return ek_shutdown() < 0 || rc < 0;
}
