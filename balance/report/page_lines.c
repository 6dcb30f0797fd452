/* page_lines.c: plots that stretch: the lines are an SVG without a fixed shape, the numbers beside
 * it are text of the page, so that they keep their size on any screen. */
#include <float.h>
#include <math.h>

#include "report/page.h"

enum { POINTS = 800, SIDE = 1000 }; /* of a line at most; height and width of the drawing */

typedef struct y_axis {
    double low, high, tick;
} y_axis;

typedef struct x_axis {
    double low, high;
} x_axis;

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

static int points_of(const ek_page_series *series)
{
    return series->count < POINTS ? series->count : POINTS;
}

/* The first value that belongs to a point. */
static int first_of(const ek_page_series *series, int index)
{
    return (int)((int64_t)index * series->count / points_of(series));
}

static double point(const ek_page_series *series, int index)
{
    return mean_of(series->values, first_of(series, index), first_of(series, index + 1));
}

static double position(const ek_page_series *series, int i)
{
    return series->at ? series->at[i] : i + 1;
}

/* ---- axes ---- */

/* 1, 2 or 5 times a power of ten, about a fifth of the span. */
static double tick_of(double span)
{
    double power = pow(10, floor(log10(span / 5))), part = span / 5 / power;

    return power * (part < 1.5 ? 1 : part < 3.5 ? 2 : part < 7.5 ? 5 : 10);
}

/* Widened to whole ticks; zero is always in it. */
static y_axis axis_within(double low, double high)
{
    y_axis axis = {fmin(low, 0), fmax(high, 0), 0};
    double span = axis.high - axis.low;

    if (!(span > DBL_MIN * 1e10 && span < DBL_MAX / 1e10))
        return (y_axis){0, 1, 0.2};
    axis.tick = tick_of(span);
    axis.low = floor(axis.low / axis.tick) * axis.tick;
    axis.high = ceil(axis.high / axis.tick) * axis.tick;
    return axis;
}

static y_axis y_axis_of(const ek_page_plot *plot, const ek_page_series *series, int count)
{
    double low = 0, high = isfinite(plot->high) ? plot->high : 0;

    for (int s = 0; s < count; s++) {
        for (int i = 0; i < points_of(&series[s]); i++) {
            double value = point(&series[s], i);
            if (!isnan(value)) {
                low = fmin(low, value);
                high = fmax(high, value);
            }
        }
    }
    return axis_within(low, high);
}

static x_axis x_axis_of(const ek_page_series *series, int count)
{
    x_axis axis = {INFINITY, -INFINITY};

    for (int s = 0; s < count; s++) {
        if (series[s].count > 0) {
            axis.low = fmin(axis.low, position(&series[s], 0));
            axis.high = fmax(axis.high, position(&series[s], series[s].count - 1));
        }
    }
    return axis;
}

/* From the top and from the left, 0 to 1. */
static double down(const y_axis *axis, double value)
{
    return fmin(fmax((axis->high - value) / (axis->high - axis->low), 0), 1);
}

static double along(const x_axis *axis, double at)
{
    double part = (at - axis->low) / (axis->high - axis->low);

    return part >= 0 ? fmin(part, 1) : axis->high > axis->low ? 0 : 0.5;
}

/* ---- drawing ---- */

/* With the colours, so that no two of 36 lines look alike, and few by their colour alone. */
static const char *dashes_of(int index)
{
    static const char *const dashes[] = {"none", "7 4", "2 4", "10 4 2 4", "14 5", "4 3"};

    return dashes[(index + index / 6) % 6];
}

static void write_keys(FILE *page, const ek_page_series *series, int count, bool stacked)
{
    for (int s = 0; s < count; s++) {
        if (stacked)
            fprintf(page, "<span><i class=\"%s\"></i>", ek_page_colour(s));
        else
            fprintf(page,
                    "<span><svg viewBox=\"0 0 36 8\" aria-hidden=\"true\"><path d=\"M0 4H36\" "
                    "style=\"stroke:var(--%s);stroke-dasharray:%s\"/></svg>",
                    ek_page_colour(s), dashes_of(s));
        ek_page_text(page, series[s].name);
        fputs("</span>\n", page);
    }
}

/* Of lines where there are several, and of dots, whose texts have no room in narrow plots. */
static void write_legend(FILE *page, const ek_page_plot *plot, const ek_page_series *series,
                         int count)
{
    int dots = 0;

    for (int m = 0; m < plot->mark_count; m++)
        dots += !isnan(plot->marks[m].at);
    if (count < 2 && dots == 0)
        return;
    fputs("<div class=\"legend\">\n", page);
    if (count > 1)
        write_keys(page, series, count, plot->stacked);
    for (int m = 0; m < plot->mark_count; m++) {
        if (isnan(plot->marks[m].at))
            continue;
        fputs("<span><i class=\"dot\"></i>", page);
        ek_page_text(page, plot->marks[m].text);
        fputs("</span>\n", page);
    }
    fputs("</div>\n", page);
}

static void draw_line(FILE *page, const ek_page_series *series, int index, const x_axis *x,
                      const y_axis *y)
{
    int points = points_of(series), drawn = 0;
    double left = 0, top = 0;

    fprintf(page, "<polyline style=\"stroke:var(--%s);stroke-dasharray:%s\" points=\"",
            ek_page_colour(index), dashes_of(index));
    for (int i = 0; i < points; i++) {
        double value = point(series, i);
        if (isnan(value))
            continue;
        left = SIDE * along(x, position(series, first_of(series, i)));
        top = SIDE * down(y, value);
        fprintf(page, "%.1f,%.1f ", left, top);
        drawn++;
    }
    if (drawn == 1) /* a line of one point is none, of the same point twice is a dot */
        fprintf(page, "%.1f,%.1f", left, top);
    fputs("\"/>\n", page);
}

/* The sum of a value and those of the series below it. */
static double height_of(const ek_page_series *series, int index, int i)
{
    double sum = 0;

    for (int s = 0; s <= index; s++)
        if (isfinite(series[s].values[i]))
            sum += series[s].values[i];
    return sum;
}

/* Along its top and back along the top of the one below. */
static void draw_area(FILE *page, const ek_page_series *series, int index, const x_axis *x,
                      const y_axis *y)
{
    fprintf(page, "<polygon style=\"fill:var(--%s)\" points=\"", ek_page_colour(index));
    for (int i = 0; i < series->count; i++)
        fprintf(page, "%.1f,%.1f ", SIDE * along(x, position(series, i)),
                SIDE * down(y, height_of(series, index, i)));
    for (int i = series->count - 1; i >= 0; i--)
        fprintf(page, "%.1f,%.1f ", SIDE * along(x, position(series, i)),
                SIDE * down(y, height_of(series, index - 1, i)));
    fputs("\"/>\n", page);
}

static bool is_empty(const ek_page_series *series)
{
    for (int i = 0; i < series->count; i++)
        if (series->values[i] > 0)
            return false;
    return true;
}

static void write_ticks(FILE *page, const ek_page_plot *plot, const y_axis *axis, int ticks)
{
    for (int i = 0; i <= ticks; i++) {
        double value = axis->low + i * axis->tick;
        /* What rounding left of zero is zero. */
        fprintf(page, "<span style=\"top:%.2f%%\">%g", 100 * down(axis, value),
                fabs(value) < axis->tick / 2 ? 0 : value);
        ek_page_text(page, plot->suffix ? plot->suffix : "");
        fputs("</span>\n", page);
    }
}

static void write_rules(FILE *page, const ek_page_plot *plot, const y_axis *axis, int ticks)
{
    for (int i = 0; i <= ticks; i++) {
        double y = SIDE * down(axis, axis->low + i * axis->tick);
        fprintf(page, "<line x1=\"0\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\"/>\n", SIDE, y, y);
    }
    for (int m = 0; m < plot->mark_count; m++) {
        double y = SIDE * down(axis, plot->marks[m].value);
        if (isnan(plot->marks[m].at))
            fprintf(page, "<line class=\"mark\" x1=\"0\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\"/>\n",
                    SIDE, y, y);
    }
}

/* Dots have their text on the side where there is more room, lines on the other. */
static void write_marks(FILE *page, const ek_page_plot *plot, const x_axis *x, const y_axis *y)
{
    bool right = true;

    for (int m = 0; m < plot->mark_count; m++)
        if (!isnan(plot->marks[m].at))
            right = along(x, plot->marks[m].at) <= 0.5;
    for (int m = 0; m < plot->mark_count; m++) {
        const ek_page_mark *mark = &plot->marks[m];
        double top = 100 * down(y, mark->value), left = 100 * along(x, mark->at);
        if (isnan(mark->at))
            fprintf(page, "<b class=\"line%s\" style=\"top:%.2f%%\">", right ? "" : " aside", top);
        else
            fprintf(page,
                    "<i class=\"dot\" style=\"left:%.2f%%;top:%.2f%%\"></i>"
                    "<b class=\"%s\" style=\"left:%.2f%%;top:%.2f%%\">",
                    left, top, left > 50 ? "left" : "right", left, top);
        ek_page_text(page, mark->text);
        fputs("</b>\n", page);
    }
}

void ek_page_plot_write(FILE *page, const ek_page_plot *plot, const ek_page_series *series,
                        int count)
{
    x_axis x = x_axis_of(series, count);
    y_axis y = y_axis_of(plot, series, count);
    int ticks = (int)lround((y.high - y.low) / y.tick);

    fputs("<div class=\"plot\">\n", page);
    write_ticks(page, plot, &y, ticks);
    fprintf(page,
            "<svg viewBox=\"0 0 %d %d\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"",
            SIDE, SIDE);
    ek_page_text(page, plot->label);
    fputs("\">\n", page);
    if (!plot->stacked)
        write_rules(page, plot, &y, ticks);
    for (int s = 0; s < count; s++) {
        if (!plot->stacked)
            draw_line(page, &series[s], s, &x, &y);
        else if (!is_empty(&series[s]))
            draw_area(page, series, s, &x, &y);
    }
    if (plot->stacked) /* areas would hide them */
        write_rules(page, plot, &y, ticks);
    fputs("</svg>\n", page);
    write_marks(page, plot, &x, &y);
    fputs("</div>\n<div class=\"axis\"><span>", page);
    ek_page_text(page, plot->left);
    fputs("</span><span>", page);
    ek_page_text(page, plot->right);
    fputs("</span></div>\n", page);
    write_legend(page, plot, series, count);
}

void ek_page_lines(FILE *page, const char *title, const char *unit, const ek_page_series *series,
                   int count)
{
    char left[64], right[32];
    int longest = 1;

    for (int s = 0; s < count; s++)
        longest = series[s].count > longest ? series[s].count : longest;
    snprintf(left, sizeof left, "%s 1", unit);
    snprintf(right, sizeof right, "%d", longest);
    const ek_page_plot plot = {.label = title, .left = left, .right = right};
    fputs("<section>\n<h2>", page);
    ek_page_text(page, title);
    fputs("</h2>\n", page);
    ek_page_plot_write(page, &plot, series, count);
    fputs("</section>\n", page);
}
