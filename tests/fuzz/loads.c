/* loads.c: see loads.h. */
#include "loads.h"

#include <stdlib.h>

#include "data/safetensors.h"
#include "evenkeel/archive.h"
#include "evenkeel/autograd.h"
#include "evenkeel/nn.h"
#include "evenkeel/ops.h"
#include "evenkeel/scope.h"
#include "evenkeel/status.h"
#include "fuzz.h"

/* What the checkpoints of the corpora are of. */
typedef struct trained {
    ek_module *net;
    ek_optimizer *optimizer;
    ek_schedule *schedule;
    ek_ema *ema;
    ek_grad_scaler *scaler;
} trained;

static void trained_begin(trained *t)
{
    t->net = ek_sequential(ek_conv2d(2, 4, 3), ek_batch_norm2d(4));
    t->optimizer = ek_sgd(t->net, .lr = 0.5, .momentum = 0.9);
    t->schedule = ek_step_lr(t->optimizer, 2, 0.1);
    t->ema = ek_ema_new(t->net);
    t->scaler = ek_grad_scaler_new(.init_scale = 2);
    fuzz_require(t->ema && t->scaler && ek_error_status() == 0,
                 "a network with all that trains it");
}

static void trained_end(trained *t)
{
    ek_grad_scaler_free(t->scaler);
    ek_ema_free(t->ema);
    ek_schedule_free(t->schedule);
    ek_optimizer_free(t->optimizer);
    ek_module_free(t->net);
}

/* True if it went well. Otherwise there is an error, with a sentence; it is cleared. */
static bool loads_well(int status)
{
    fuzz_require((status < 0) == (ek_error_status() < 0), "what fails has an error");
    fuzz_require(status >= 0 || *ek_error_message(), "an error has a sentence");
    ek_error_clear();
    return status >= 0;
}

/* A step with what was loaded. Rates and scales may be anything that a load accepts. */
static void loads_step(trained *t)
{
    ek_scope scope = ek_scope_begin();
    ek_tensor *y = ek_apply(t->net, ek_ones(EK_SHAPE(2, 2, 3, 3)));
    int status = ek_backward(ek_grad_scaler_scale(t->scaler, ek_sum(y)));
    if (status == 0)
        status = ek_grad_scaler_step(t->scaler, t->optimizer);
    if (status == 0)
        status = ek_grad_scaler_update(t->scaler);
    loads_well(status);
    loads_well(ek_ema_update(t->ema));
    loads_well(ek_schedule_step(t->schedule));
    ek_scope_end(&scope);
}

/* Makes what may be loaded only for files that have something of it: that takes most time. */
static void loads_trained(const ek_archive *a)
{
    static const char *const names[] = {"model",    "0",   "1",     "optimizer",
                                        "schedule", "ema", "scaler"};
    trained made, *t = &made;
    size_t i = 0;
    while (i < sizeof names / sizeof *names && !ek_archive_has(a, names[i]))
        i++;
    if (i == sizeof names / sizeof *names)
        return;
    trained_begin(t);
    bool any = loads_well(ek_archive_load_module(a, "model", t->net, .strict = false));
    any = loads_well(ek_archive_load_module(a, "", t->net, .strict = false)) || any;
    any = loads_well(ek_archive_load_optimizer(a, "optimizer", t->optimizer, t->net)) || any;
    any = loads_well(ek_archive_load_schedule(a, "schedule", t->schedule)) || any;
    any = loads_well(ek_archive_load_ema(a, "ema", t->ema)) || any;
    any = loads_well(ek_archive_load_grad_scaler(a, "scaler", t->scaler)) || any;
    if (any)
        loads_step(t);
    trained_end(t);
}

void fuzz_load_all(const ek_safetensors *file, const char *path)
{
    enum { MOST = 16 }; /* files of more tensors have more of what these are */
    ek_scope scope = ek_scope_begin();
    ek_archive *a = ek_archive_open(path);
    ek_generator *generator = ek_generator_new(1);
    fuzz_require(a && generator, "a file that was opened can be opened again");
    for (int i = 0; i < ek_safetensors_count(file) && i < MOST; i++) {
        const char *name = ek_safetensors_name(file, i);
        int64_t number;
        double value;
        if (loads_well(ek_archive_load_generator(a, name, generator)))
            ek_random_u64(generator);
        loads_well(ek_archive_get_int(a, name, &number));
        loads_well(ek_archive_get_float(a, name, &value));
        loads_well(ek_archive_tensor(a, name, NULL) ? 0 : ek_error_status());
    }
    loads_trained(a);
    if (loads_well(ek_archive_load_random(a, "random")) ||
        loads_well(ek_archive_load_random(a, "")))
        ek_random_u64(NULL);
    loads_well(ek_archive_get(a, "").kind == EK_VALUE_ERROR ? ek_error_status() : 0);
    ek_generator_free(generator);
    ek_archive_free(a);
    ek_scope_end(&scope);
}
