/* report_html.c: one page without scripts or other files: bars are boxes, the curve is SVG. */
#include <inttypes.h>
#include <math.h>

#include "imbalance/result.h"

static const double mebibyte = 1 << 20;

static const char head[] =
    "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
    "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
    "<title>Memory imbalance of data-parallel training</title>\n<style>\n"
    ":root { color-scheme: light dark; --ground: #fff; --card: #f5f6f8; --ink: #1b1f24;\n"
    "  --faint: #5c6670; --track: #e3e6ea; --c0: #3566b0; --c1: #d97a1e; --c2: #7a4fa3;\n"
    "  --c3: #2f8f5b; --c4: #c2384e; --c5: #8a8f96; }\n"
    "@media (prefers-color-scheme: dark) { :root { --ground: #14171a; --card: #1e2226;\n"
    "  --ink: #e8eaed; --faint: #9aa4ae; --track: #2c3238; --c0: #6f9be0; --c1: #f0a04f;\n"
    "  --c2: #b18bd8; --c3: #5fc08c; --c4: #ef7385; --c5: #a9afb6; } }\n"
    "* { box-sizing: border-box; }\n"
    "body { margin: 0 auto; max-width: 72rem; padding: 1.5rem 1rem 3rem; background: "
    "var(--ground);\n"
    "  color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }\n"
    "h1 { font-size: 1.5rem; margin: 0 0 .25rem; } h2 { font-size: 1.05rem; margin: 0 0 .75rem; }\n"
    "p { margin: 0 0 1rem; } .faint { color: var(--faint); }\n"
    ".grid { display: grid; gap: 1rem;\n"
    "  grid-template-columns: repeat(auto-fit, minmax(min(100%, 20rem), 1fr)); }\n"
    "section { background: var(--card); border-radius: .6rem; padding: 1rem; margin: 0 0 1rem;\n"
    "  min-width: 0; }\n"
    ".row { display: grid; grid-template-columns: 5rem 1fr 5.5rem; gap: .6rem;\n"
    "  align-items: center; margin: .3rem 0; font-size: .9rem; }\n"
    ".row > :last-child { text-align: right; font-variant-numeric: tabular-nums; }\n"
    ".track { background: var(--track); border-radius: .25rem; height: 1.1rem; }\n"
    ".bar { display: flex; height: 100%; border-radius: .25rem; overflow: hidden; }\n"
    ".bar span { display: block; height: 100%; }\n"
    ".legend { display: flex; flex-wrap: wrap; gap: .3rem 1.1rem; font-size: .9rem; }\n"
    ".legend i { display: inline-block; width: .8rem; height: .8rem; border-radius: .2rem;\n"
    "  margin-right: .4rem; vertical-align: -.08rem; }\n"
    "h3 { font-size: .95rem; margin: 1rem 0 .3rem; }\n"
    "svg { display: block; width: 100%; height: auto; } svg text { fill: var(--faint);\n"
    "  font-size: 11px; } .wide { overflow-x: auto; }\n"
    "table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums; }\n"
    "th, td { padding: .3rem .6rem; text-align: right; white-space: nowrap;\n"
    "  border-bottom: 1px solid var(--track); } th:first-child, td:first-child,\n"
    "th:nth-child(2), td:nth-child(2) { text-align: left; }\n"
    "</style>\n</head>\n<body>\n";

static const char *colour(int index)
{
    static const char *const names[] = {"c0", "c1", "c2", "c3", "c4", "c5"};

    return names[index % 6];
}

/* ---- charts ---- */

static void memory_chart(FILE *f, const mode_result *results, int count)
{
    uint64_t largest = 1;

    for (int m = 0; m < count; m++)
        for (int d = 0; d < results[m].device_count; d++)
            if (results[m].devices[d].peak > largest)
                largest = results[m].devices[d].peak;
    fputs("<section>\n<h2>Peak memory per device</h2>\n<div class=\"legend\">\n", f);
    for (int c = 0; c < EK_MEMORY_CATEGORIES; c++)
        fprintf(f, "<span><i style=\"background:var(--%s)\"></i>%s</span>\n", colour(c),
                ek_memory_category_name((ek_memory_category)c));
    fputs("</div>\n", f);
    for (int m = 0; m < count; m++) {
        fprintf(f, "<h3>%s: imbalance %.2f</h3>\n", results[m].name, results[m].imbalance);
        for (int d = 0; d < results[m].device_count; d++) {
            const device_result *device = &results[m].devices[d];
            double peak = device->peak ? (double)device->peak : 1;
            fprintf(f,
                    "<div class=\"row\"><span>%s</span><div class=\"track\"><div class=\"bar\" "
                    "style=\"width:%.2f%%\">",
                    device->name, 100 * peak / (double)largest);
            for (int c = 0; c < EK_MEMORY_CATEGORIES; c++)
                if (device->categories[c])
                    fprintf(f,
                            "<span style=\"width:%.2f%%;background:var(--%s)\" title=\"%s %.2f "
                            "MiB\"></span>",
                            100 * (double)device->categories[c] / peak, colour(c),
                            ek_memory_category_name((ek_memory_category)c),
                            (double)device->categories[c] / mebibyte);
            fprintf(f, "</div></div><span>%.2f MiB</span></div>\n", peak / mebibyte);
        }
    }
    fputs("</section>\n", f);
}

typedef double measure(const mode_result *result);

static double imbalance_of(const mode_result *r)
{
    return r->imbalance;
}
static double rate_of(const mode_result *r)
{
    return r->samples_per_second;
}
static double step_of(const mode_result *r)
{
    return 1000 * r->step_seconds;
}
static double iou_of(const mode_result *r)
{
    return r->mean_iou;
}
static double accuracy_of(const mode_result *r)
{
    return r->pixel_accuracy;
}

/* A bar per mode. */
static void mode_chart(FILE *f, const char *title, measure *value, const char *format,
                       const mode_result *results, int count)
{
    double largest = 0;

    for (int m = 0; m < count; m++)
        largest = fmax(largest, value(&results[m]));
    fprintf(f, "<section>\n<h2>%s</h2>\n", title);
    for (int m = 0; m < count; m++) {
        double v = value(&results[m]);
        char text[32];
        snprintf(text, sizeof(text), format, v);
        fprintf(f,
                "<div class=\"row\"><span>%s</span><div class=\"track\"><div class=\"bar\" "
                "style=\"width:%.2f%%;background:var(--%s)\"></div></div><span>%s</span></div>\n",
                results[m].name, largest > 0 ? 100 * v / largest : 0, colour(m), text);
    }
    fputs("</section>\n", f);
}

/* Losses of all modes over steps. */
static void loss_chart(FILE *f, const mode_result *results, int count)
{
    enum { LEFT = 40, TOP = 8, WIDTH = 640, HEIGHT = 220, BOTTOM = 22 };
    double top = 0;

    for (int m = 0; m < count; m++)
        for (int i = 0; i < results[m].loss_count; i++)
            if (isfinite(results[m].losses[i]))
                top = fmax(top, results[m].losses[i]);
    top = top > 0 ? top : 1;
    fputs("<section>\n<h2>Loss</h2>\n<div class=\"legend\">\n", f);
    for (int m = 0; m < count; m++)
        fprintf(f, "<span><i style=\"background:var(--%s)\"></i>%s</span>\n", colour(m),
                results[m].name);
    fprintf(f,
            "</div>\n<svg viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"Loss of each step\">\n",
            LEFT + WIDTH + 8, TOP + HEIGHT + BOTTOM);
    for (int i = 0; i <= 4; i++) {
        double y = TOP + HEIGHT * (1 - i / 4.0);
        fprintf(f,
                "<line x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"var(--track)\"/>"
                "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%.2f</text>\n",
                LEFT, LEFT + WIDTH, y, y, LEFT - 6, y + 4, top * i / 4);
    }
    for (int m = 0; m < count; m++) {
        int steps = results[m].loss_count;
        fprintf(f, "<polyline fill=\"none\" stroke=\"var(--%s)\" stroke-width=\"1.5\" points=\"",
                colour(m));
        for (int i = 0; i < steps; i++)
            if (isfinite(results[m].losses[i]))
                fprintf(f, "%.1f,%.1f ", LEFT + WIDTH * (steps > 1 ? i / (steps - 1.0) : 0.5),
                        TOP + HEIGHT * (1 - results[m].losses[i] / top));
        fputs("\"/>\n", f);
    }
    fprintf(f,
            "<text x=\"%d\" y=\"%d\">step 1</text><text x=\"%d\" y=\"%d\" text-anchor=\"end\">"
            "%d</text>\n</svg>\n</section>\n",
            LEFT, TOP + HEIGHT + 16, LEFT + WIDTH, TOP + HEIGHT + 16, results[0].loss_count);
}

/* ---- the numbers ---- */

static void number_table(FILE *f, const mode_result *results, int count)
{
    fputs("<section>\n<h2>The numbers</h2>\n<p class=\"faint\">Memory in MiB at the device's peak."
          "</p>\n<div class=\"wide\"><table>\n<tr><th>mode</th><th>device</th><th>peak</th>",
          f);
    for (int c = 0; c < EK_MEMORY_CATEGORIES; c++)
        fprintf(f, "<th>%s</th>", ek_memory_category_name((ek_memory_category)c));
    fputs("<th>imbalance</th><th>step ms</th><th>samples/s</th><th>final loss</th>"
          "<th>pixel accuracy</th><th>mean IoU</th></tr>\n",
          f);
    for (int m = 0; m < count; m++) {
        const mode_result *r = &results[m];
        for (int d = 0; d < r->device_count; d++) {
            fprintf(f, "<tr><td>%s</td><td>%s</td><td>%.2f</td>", r->name, r->devices[d].name,
                    (double)r->devices[d].peak / mebibyte);
            for (int c = 0; c < EK_MEMORY_CATEGORIES; c++)
                fprintf(f, "<td>%.2f</td>", (double)r->devices[d].categories[c] / mebibyte);
            if (d == 0)
                fprintf(f,
                        "<td>%.2f</td><td>%.1f</td><td>%.0f</td><td>%.4f</td><td>%.2f %%</td>"
                        "<td>%.4f</td>",
                        r->imbalance, 1000 * r->step_seconds, r->samples_per_second,
                        r->losses[r->loss_count - 1], 100 * r->pixel_accuracy, r->mean_iou);
            else
                fputs("<td></td><td></td><td></td><td></td><td></td><td></td>", f);
            fputs("</tr>\n", f);
        }
    }
    fputs("</table></div>\n</section>\n", f);
}

int report_html(const char *path, const run_settings *settings, const mode_result *results,
                int count)
{
    FILE *f = fopen(path, "w");

    if (!f)
        return -1;
    fputs(head, f);
    fprintf(f,
            "<h1>Memory imbalance of data-parallel training</h1>\n<p class=\"faint\">Segmentation "
            "of Fashion-MNIST scenes of %" PRId64 " x %" PRId64 ", %" PRId64
            " parameters, batch %" PRId64 ", %d steps, %" PRId64 " devices, %s, learning rate %g, "
            "seed %" PRId64 ".</p>\n",
            settings->size, settings->size, results[0].parameters, settings->batch,
            settings_steps(settings), settings->devices, settings->optimizer, settings->lr,
            settings->seed);
    memory_chart(f, results, count);
    fputs("<div class=\"grid\">\n", f);
    mode_chart(f, "Imbalance (fullest device over the mean)", imbalance_of, "%.2f", results, count);
    mode_chart(f, "Median step (ms)", step_of, "%.1f", results, count);
    mode_chart(f, "Samples per second", rate_of, "%.0f", results, count);
    mode_chart(f, "Mean IoU on test scenes", iou_of, "%.4f", results, count);
    mode_chart(f, "Pixel accuracy on test scenes", accuracy_of, "%.4f", results, count);
    fputs("</div>\n", f);
    loss_chart(f, results, count);
    number_table(f, results, count);
    fputs("</body>\n</html>\n", f);
    int failed = ferror(f);
    return fclose(f) != 0 || failed ? -1 : 0;
}
