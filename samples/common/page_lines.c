/* page_lines.c: a chart that stretches: the lines are an SVG without a fixed shape, the numbers
 * beside it are text of the page, so that they keep their size on any screen. */
#include <float.h>
#include <math.h>
#include <stdint.h>

#include "common/page.h"

enum { POINTS = 800, SIDE = 1000 }; /* of a line at most; height and width of the drawing */

typedef struct y_axis {
    double low, high, tick;
} y_axis;

/* The mean of the finite ones among values[from, to); NaN where there are none. */
static double mean_of(const double *values, int from, int to)
{
    double sum = 0;
    int count = 0;

    for (int i = from; i < to; i++) {
        if (isfinite(values[i])) {
            sum += values[i];
            count++;
        }
    }
    return count > 0 ? sum / count : NAN;
}

static int points_of(const page_series *series)
{
    return series->count < POINTS ? series->count : POINTS;
}

static double point(const page_series *series, int index)
{
    int64_t count = series->count, points = points_of(series);

    return mean_of(series->values, (int)(index * count / points),
                   (int)((index + 1) * count / points));
}

/* 1, 2 or 5 times a power of ten, about a fifth of the span. */
static double tick_of(double span)
{
    double power = pow(10, floor(log10(span / 5))), part = span / 5 / power;

    return power * (part < 1.5 ? 1 : part < 3.5 ? 2 : part < 7.5 ? 5 : 10);
}

/* From what is drawn, widened to whole ticks; zero is always in it. */
static y_axis axis_of(const page_series *series, int count)
{
    y_axis axis = {0, 0, 0};

    for (int s = 0; s < count; s++) {
        for (int i = 0; i < points_of(&series[s]); i++) {
            double value = point(&series[s], i);
            if (!isnan(value)) {
                axis.low = fmin(axis.low, value);
                axis.high = fmax(axis.high, value);
            }
        }
    }
    double span = axis.high - axis.low;
    if (!(span > DBL_MIN * 1e10 && span < DBL_MAX / 1e10))
        return (y_axis){0, 1, 0.2};
    axis.tick = tick_of(span);
    axis.low = floor(axis.low / axis.tick) * axis.tick;
    axis.high = ceil(axis.high / axis.tick) * axis.tick;
    return axis;
}

/* From the top, 0 to 1. */
static double place(const y_axis *axis, double value)
{
    return (axis->high - value) / (axis->high - axis->low);
}

static void legend(FILE *page, const page_series *series, int count)
{
    if (count < 2)
        return;
    fputs("<div class=\"legend\">\n", page);
    for (int s = 0; s < count; s++)
        fprintf(page, "<span><i style=\"background:var(--%s)\"></i>%s</span>\n", page_colour(s),
                series[s].name);
    fputs("</div>\n", page);
}

static void draw(FILE *page, const page_series *series, int index, const y_axis *axis)
{
    int points = points_of(series);

    fprintf(page, "<polyline style=\"stroke:var(--%s)\" points=\"", page_colour(index));
    for (int i = 0; i < points; i++) {
        double value = point(series, i);
        if (!isnan(value))
            fprintf(page, "%.1f,%.1f ", SIDE * (points > 1 ? i / (points - 1.0) : 0.5),
                    SIDE * place(axis, value));
    }
    fputs("\"/>\n", page);
}

void page_lines(FILE *page, const char *title, const char *unit, const page_series *series,
                int count)
{
    y_axis axis = axis_of(series, count);
    int ticks = (int)lround((axis.high - axis.low) / axis.tick), longest = 1;

    fprintf(page, "<section>\n<h2>%s</h2>\n", title);
    legend(page, series, count);
    fputs("<div class=\"plot\">\n", page);
    for (int i = 0; i <= ticks; i++) {
        double value = axis.low + i * axis.tick;
        /* What rounding left of zero is zero. */
        fprintf(page, "<span style=\"top:%.2f%%\">%g</span>\n", 100 * place(&axis, value),
                fabs(value) < axis.tick / 2 ? 0 : value);
    }
    fprintf(page,
            "<svg viewBox=\"0 0 %d %d\" preserveAspectRatio=\"none\" role=\"img\" "
            "aria-label=\"%s\">\n",
            SIDE, SIDE, title);
    for (int i = 0; i <= ticks; i++) {
        double y = SIDE * place(&axis, axis.low + i * axis.tick);
        fprintf(page, "<line x1=\"0\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\"/>\n", SIDE, y, y);
    }
    for (int s = 0; s < count; s++) {
        draw(page, &series[s], s, &axis);
        longest = series[s].count > longest ? series[s].count : longest;
    }
    fprintf(page,
            "</svg>\n</div>\n<div class=\"axis\"><span>%s 1</span><span>%d</span></div>\n"
            "</section>\n",
            unit, longest);
}
