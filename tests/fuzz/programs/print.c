/* print.c: see print.h. */
#include "print.h"

#include "layers.h"
#include "modules.h"

static const char *task_name(const program *p)
{
    static const char *const names[TASK_COUNT] = {"ek_mse_loss",
                                                  "ek_cross_entropy_loss",
                                                  "ek_nll_loss",
                                                  "ek_l1_loss",
                                                  "ek_bce_with_logits_loss",
                                                  "weighted_criterion_new",
                                                  "samples_criterion_new",
                                                  "ek_gan_loss"};
    return names[p->task];
}

static void print_net(const program *p, FILE *stream)
{
    static const char *const inputs[] = {"x", "x, y", "{\"x\": x, \"rest\": [y, 7]}"};
    static const char *const outputs[] = {"", " gives [y, 2 y - 1]",
                                          " gives {\"scores\": y, \"rest\": [2 y - 1]}"};
    char text[200];
    placed_net net;
    place_layers(p, &net);
    fprintf(stream, "net = ek_sequential(");
    for (int i = 0; i < net.count; i++)
        fprintf(stream, "%s\n    %s", i ? "," : "", write_layer(&net.layers[i], text));
    fprintf(stream, ");                      /* %s, %s%s%s */\n",
            p->dtype == DTYPE_F64 ? "f64" : "f32", inputs[p->input], outputs[p->output],
            p->plain_norm ? "" : ", synchronised");
}

static void print_criterion(const program *p, FILE *stream)
{
    static const char *const reductions[] = {"EK_MEAN", "EK_SUM", "EK_NONE"};
    fprintf(stream, "criterion = %s%s(", p->output == OUTPUT_ONE ? "" : "nest_criterion_new of ",
            task_name(p));
    if (p->task == TASK_CRITIC)
        fprintf(stream, "%d), on real and on fake; ek_gradient_penalty(.kind = %d);\n", p->critic,
                p->penalty);
    else
        fprintf(stream, ".reduction = %s%s%s);%s\n", reductions[p->reduction],
                p->weighted ? ", .weight = w" : "", p->smoothing ? ", .label_smoothing = 0.1" : "",
                p->ignored == 0   ? ""
                : p->ignored == 1 ? " /* every third target ignored */"
                                  : " /* the first half of targets ignored */");
}

static void print_optimizer(const program *p, FILE *stream)
{
    static const char *const names[OPTIMIZER_COUNT] = {
        "ek_sgd(model, .lr = 0.05",
        "ek_sgd(model, .lr = 0.05, .momentum = 0.9, .nesterov = true, .weight_decay = 1e-2",
        "ek_sgd(model, .lr = 0.05, .momentum = 0.5, .dampening = 0.1",
        "ek_adam(model, .lr = 0.01, .eps = 1e-2, .weight_decay = 1e-2",
        "ek_adam(model, .lr = 0.01, .eps = 1e-2, .beta1 = 0.8, .amsgrad = true",
        "ek_adamw(model, .lr = 0.01, .eps = 1e-2"};
    static const char *const schedules[] = {"", " ek_step_lr(optimizer, 2, 0.5);",
                                            " ek_cosine_annealing_lr(optimizer, 6, 1e-3);"};
    static const char *const clips[] = {"", " /* gradients clipped to a norm of 0.5 */",
                                        " /* gradients clipped at 0.1 */"};
    fprintf(stream, "optimizer = %s%s)%s;%s%s\n", names[p->optimizer],
            p->maximize ? ", .maximize = true" : "",
            p->groups > 1 ? ", every second parameter in a group of lr 0.02" : "",
            schedules[p->schedule], clips[p->clip]);
}

static void print_plan(const way *w, FILE *stream)
{
    static const char *const names[] = {NULL, "chunks", "weights", "first_device_batch", "plan"};
    if (w->plan == PLAN_NONE)
        return;
    fprintf(stream, ", .%s = {", names[w->plan]);
    for (int i = 0; i < (w->plan == PLAN_FIRST ? 1 : w->count); i++)
        fprintf(stream, "%s%d", i ? ", " : "", w->shares[i]);
    fprintf(stream, "}");
}

static void print_way(const program *p, const way *w, FILE *stream)
{
    static const char *const wrappers[] = {"ek_data_parallel_model(net", "ek_data_parallel(net",
                                           "ek_data_parallel_model(net, .plain = true", "(net"};
    static const char *const splits[] = {"", ", .split = EK_SPLIT_EVEN",
                                         ", .split = EK_SPLIT_AUTO"};
    static const char *const gathers[] = {"", ", .output_device = the last",
                                          ", .output_on_cpu = true"};
    fprintf(stream, "model = %s, .device_ids = {", wrappers[w->wrapper]);
    for (int i = 0; i < w->count; i++)
        fprintf(stream, "%shost:%d", i ? ", " : "", w->on[i]);
    fprintf(stream, "}%s%s%s", splits[w->split],
            w->split == SPLIT_AUTO && w->goal ? ", .goal = EK_GOAL_TIME" : "", gathers[w->gather]);
    print_plan(w, stream);
    static const char *const shards[] = {"", ", .shard = EK_SHARD_OPTIMIZER",
                                         ", .shard = EK_SHARD_PARAMETERS"};
    fprintf(stream, "%s%s%s%s);%s%s", shards[w->shard],
            w->offload ? ", .offload = EK_OFFLOAD_OPTIMIZER" : "",
            w->own ? ", .broadcast_buffers = false" : "",
            w->stats ? ", .running_stats = EK_RUNNING_STATS_AVERAGE" : "",
            w->patched ? " ek_patch_replication_callback(model);" : "",
            w->mean_of_means ? " criterion with EK_MEAN_OF_MEANS;" : "");
    if (w->micro > 1)
        fprintf(stream, " /* %d micro-batches */", w->micro);
    fprintf(stream, "%s\n", p->devices > w->count && p->slow ? " /* slow devices */" : "");
}

static void print_step(const step *s, int number, FILE *stream)
{
    static const char *const hows[STEP_COUNT] = {
        "ek_train_step(x, target)",
        "ek_backward(ek_loss(criterion, ek_forward(model, x), target)), ek_step(optimizer)",
        "two forwards, ek_backward of a sum of losses, ek_step(optimizer)",
        "two ek_train_step(.accumulate_only = true), ek_step(optimizer)",
        "ek_grad of the loss by x (.create_graph = true), ek_backward of both, ek_step(optimizer)",
        "ek_train_step of a loader's batch",
        "losses on real and fake with the gradient penalty, ek_backward, ek_step(optimizer)"};
    static const char *const events[EVENT_COUNT] = {"",
                                                    "; then a forward in evaluation mode",
                                                    "; then all is saved, and loaded the other way",
                                                    "; then a report starts, or stops",
                                                    "; then a forward alone",
                                                    "; then ek_find_batch",
                                                    "; then another learning rate",
                                                    "; then a forward whose output is kept",
                                                    "; then parameters are multiplied by 0.95"};
    fprintf(stream, "step %d: %d samples: %s%s\n", number, s->batch, hows[s->how],
            events[s->event]);
    if (s->fault != FAULT_NONE)
        fprintf(stream, "    with a fault: %s, at %d, during the %s\n", fault_word(s->fault), s->at,
                s->during == DURING_STEP ? "step" : "event");
}

void program_print(const program *p, FILE *stream)
{
    bool loads = false;
    fprintf(stream, "/* %d devices%s; compared with %s */\n", p->devices,
            p->slow ? " of speed 0.7" : "",
            p->judge == JUDGE_ONE_DEVICE ? "one device" : "itself, to the bit");
    print_net(p, stream);
    print_criterion(p, stream);
    print_way(p, &p->ways[0], stream);
    for (int i = 0; i < p->step_count; i++)
        loads = loads || p->steps[i].event == EVENT_CHECKPOINT;
    if (loads) {
        fprintf(stream, "the other ");
        print_way(p, &p->ways[1], stream);
    }
    print_optimizer(p, stream);
    if (p->autocast)
        fprintf(stream, "ek_autocast_begin(EK_BF16);\n");
    if (p->build_fault)
        fprintf(stream, "allocation %d fails while this is built first\n", p->build_fault);
    for (int i = 0; i < p->step_count; i++)
        print_step(&p->steps[i], i, stream);
}
