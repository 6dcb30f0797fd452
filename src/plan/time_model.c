/* time_model.c: a device's time by its samples. */
#include "plan/models.h"

#include <stdlib.h>

typedef struct ek_time_point point;

static int by_number(const void *a, const void *b)
{
    const double *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

static double median(double *numbers, int count)
{
    qsort(numbers, (size_t)count, sizeof *numbers, by_number);
    return count % 2 ? numbers[count / 2] : (numbers[count / 2 - 1] + numbers[count / 2]) / 2;
}

/* The median at the n of points[of], and of how many; 0 if an earlier point is of that n. */
static int at_size(const ek_time_model *model, int of, double *ns)
{
    double same[EK_MODEL_POINTS];
    int count = 0;
    for (int i = 0; i < model->count; i++) {
        if (model->points[i].n != model->points[of].n)
            continue;
        if (i < of)
            return 0;
        same[count++] = model->points[i].ns;
    }
    *ns = median(same, count);
    return count;
}

/* The largest n is at least a quarter above the smallest: less is lost in noise. */
static bool differ(const ek_time_model *model)
{
    int64_t least = model->points[0].n, most = least;
    for (int i = 1; i < model->count; i++) {
        int64_t n = model->points[i].n;
        least = n < least ? n : least;
        most = n > most ? n : most;
    }
    return most - least > 0 && most - least >= least / 4;
}

/* Time in proportion to samples: the best without a fixed part. */
static double proportion(const ek_time_model *model)
{
    double each[EK_MODEL_POINTS];
    for (int i = 0; i < model->count; i++)
        each[i] = model->points[i].ns / (double)model->points[i].n;
    return median(each, model->count);
}

static void fit(ek_time_model *model)
{
    double weight = 0, n = 0, ns = 0, above = 0, below = 0;
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < model->count; i++) {
            double size = (double)model->points[i].n, at;
            int count = at_size(model, i, &at);
            if (!count)
                continue;
            if (pass == 0) {
                weight += count;
                n += count * size;
                ns += count * at;
            } else {
                above += count * (size - n / weight) * (at - ns / weight);
                below += count * (size - n / weight) * (size - n / weight);
            }
        }
    }
    double slope = below > 0 ? above / below : 0, fixed = (ns - slope * n) / weight;
    if (!(slope > 0 && fixed > 0))
        model->shape = (ek_line){0, proportion(model)};
    else
        model->shape = (ek_line){fixed, slope};
}

void ek_time_model_add(ek_time_model *model, int64_t n, double ns)
{
    model->points[model->next] = (point){n, ns};
    model->next = (model->next + 1) % EK_MODEL_POINTS;
    model->count += model->count < EK_MODEL_POINTS;
    if (differ(model)) {
        fit(model);
        model->shaped = true;
    } else if (!model->shaped) {
        model->shape = (ek_line){0, proportion(model)};
    }
}

bool ek_time_model_line(const ek_time_model *model, ek_line *line)
{
    double factors[EK_MODEL_POINTS];
    *line = (ek_line){0, 0};
    if (!model->count)
        return false;
    for (int i = 0; i < model->count; i++) {
        double expected = model->shape.fixed + model->shape.per_sample * (double)model->points[i].n;
        factors[i] = expected > 0 ? model->points[i].ns / expected : 1;
    }
    double factor = median(factors, model->count);
    *line = (ek_line){model->shape.fixed * factor, model->shape.per_sample * factor};
    return true;
}
