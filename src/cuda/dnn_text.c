/* dnn_text.c: a problem and its plan as a line of text. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "cuda/dnn_plan.h"

#ifdef EK_HAVE_CUDNN

static const char *const operation_names[] = {[EK_DNN_FORWARD] = "convolution",
                                              [EK_DNN_INPUT_GRADIENT] = "input gradient",
                                              [EK_DNN_WEIGHT_GRADIENT] = "weight gradient",
                                              [EK_DNN_ATTENTION] = "attention",
                                              [EK_DNN_ATTENTION_GRADIENT] = "attention's gradient"};

static const char *const refusal_names[EK_DNN_REFUSALS] = {[EK_DNN_TENSOR_CORES] = "tensor cores",
                                                           [EK_DNN_NONDETERMINISTIC] =
                                                               "nondeterministic",
                                                           [EK_DNN_IMPRECISE] = "imprecise",
                                                           [EK_DNN_NOT_SUPPORTED] = "not supported",
                                                           [EK_DNN_WORKSPACE] =
                                                               "too much workspace"};

static const struct {
    cudnnBackendNumericalNote_t note;
    const char *name;
} notes[] = {{CUDNN_NUMERICAL_NOTE_TENSOR_CORE, "tensor cores"},
             {CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS, "down-converts"},
             {CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION, "narrow sums"},
             {CUDNN_NUMERICAL_NOTE_FFT, "FFT"},
             {CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC, "nondeterministic"},
             {CUDNN_NUMERICAL_NOTE_WINOGRAD, "Winograd"}};

__attribute__((format(printf, 2, 3))) static void text_append(char text[EK_DNN_TEXT],
                                                              const char *format, ...)
{
    size_t used = strlen(text);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text + used, EK_DNN_TEXT - used, format, arguments);
    va_end(arguments);
}

static void text_append_sizes(char text[EK_DNN_TEXT], const char *what, const int64_t *sizes,
                              int64_t count)
{
    text_append(text, "%s", what);
    for (int64_t i = 0; i < count; i++)
        text_append(text, "%s%lld", i ? "x" : "", (long long)sizes[i]);
}

static void text_append_attention(char text[EK_DNN_TEXT], const ek_dnn_problem *p)
{
    text_append(text, "%s %s%s%s%s", operation_names[p->operation],
                ek_dtype_name((ek_dtype)p->dtype), p->deterministic ? " deterministic" : "",
                p->causal ? " causal" : "", p->drops ? " with dropout" : "");
    text_append_sizes(text, " q ", (const int64_t[]){p->batch, p->heads, p->rows, p->depth}, 4);
    text_append_sizes(text, " v ", (const int64_t[]){p->batch, p->groups, p->keys, p->width}, 4);
    if (p->mask[0])
        text_append_sizes(text, " mask ", p->mask, 4);
}

static void text_append_problem(char text[EK_DNN_TEXT], const ek_dnn_problem *p)
{
    if (p->operation >= EK_DNN_ATTENTION) {
        text_append_attention(text, p);
        return;
    }
    text_append(text, "%s%s %s%s %s", operation_names[p->operation], p->bias ? " with bias" : "",
                p->tf32 ? "tf32" : ek_dtype_name((ek_dtype)p->dtype),
                p->deterministic ? " deterministic" : "",
                p->format == EK_CHANNELS_LAST ? "channels-last" : "row-major");
    text_append_sizes(text, " x ", p->x, 2 + p->dims);
    text_append_sizes(text, " w ", p->w, 2 + p->dims);
    text_append_sizes(text, " y ", p->y, 2 + p->dims);
    text_append_sizes(text, " stride ", p->stride, p->dims);
    text_append_sizes(text, " padding ", p->before, p->dims);
    text_append_sizes(text, " dilation ", p->dilation, p->dims);
    if (p->alignment != 16)
        text_append(text, " aligned to %lld", (long long)p->alignment);
}

const char *ek_dnn_plan_text(const ek_dnn_problem *problem, const ek_dnn_plan *plan,
                             char text[EK_DNN_TEXT])
{
    text[0] = '\0';
    text_append_problem(text, problem);
    if (plan->plan)
        text_append(text, ": engine %lld", (long long)plan->engine);
    else
        text_append(text, ": no engine");
    for (size_t i = 0; i < sizeof notes / sizeof *notes; i++)
        if (ek_dnn_plan_has(plan, notes[i].note))
            text_append(text, ", %s", notes[i].name);
    if (plan->plan)
        text_append(text, ", workspace %lld", (long long)plan->workspace);
    const char *word = "; refused: ";
    for (int i = EK_DNN_ALLOWED + 1; i < EK_DNN_REFUSALS; i++) {
        if (plan->refused[i])
            text_append(text, "%s%d %s", word, plan->refused[i], refusal_names[i]);
        word = plan->refused[i] ? ", " : word;
    }
    for (int i = 0; i < plan->timed; i++) {
        text_append(text, "%sengine %lld ",
                    i ? ", " : "; timed: ", (long long)plan->times[i].engine);
        if (plan->times[i].milliseconds < 0)
            text_append(text, "failed");
        else
            text_append(text, "%.3f ms", (double)plan->times[i].milliseconds);
    }
    return text;
}

#endif
