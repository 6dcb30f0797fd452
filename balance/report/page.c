/* page.c: charts as the page's script reads them. */
#include "report/page.h"

#include "core/json.h"
#include "report/report.h"

enum { DIGITS = 9 };

void ek_page_begin(FILE *page, const char *title)
{
    ek_html_begin(page, title, NULL);
}

void ek_page_end(FILE *page)
{
    ek_html_end(page, NULL, -1); /* without reports it can't fail */
}

static ek_json_writer chart_begin(FILE *page, const char *title)
{
    ek_json_writer json = {.stream = page, .in_html = true};

    fputs("<script type=\"application/json\" class=\"chart\">", page);
    ek_json_begin(&json, NULL, '{');
    ek_json_put_text(&json, "title", title);
    return json;
}

static void chart_end(ek_json_writer *json)
{
    ek_json_close(json, ']');
    ek_json_close(json, '}');
    fputs("</script>\n", json->stream);
}

void ek_page_bars(FILE *page, const char *title, const char *note, const ek_page_bar *bars,
                  int count)
{
    ek_json_writer json = chart_begin(page, title);

    if (note)
        ek_json_put_text(&json, "note", note);
    ek_json_begin(&json, "bars", '[');
    for (int i = 0; i < count; i++) {
        ek_json_begin(&json, NULL, '{');
        ek_json_put_text(&json, "name", bars[i].name);
        ek_json_put_text(&json, "text", bars[i].text);
        ek_json_put_real(&json, "value", bars[i].value, DIGITS);
        ek_json_close(&json, '}');
    }
    chart_end(&json);
}

void ek_page_lines(FILE *page, const char *title, const char *unit, const ek_page_series *series,
                   int count)
{
    ek_json_writer json = chart_begin(page, title);

    ek_json_put_text(&json, "unit", unit);
    ek_json_begin(&json, "series", '[');
    for (int s = 0; s < count; s++) {
        ek_json_begin(&json, NULL, '{');
        ek_json_put_text(&json, "name", series[s].name);
        ek_json_begin(&json, "values", '[');
        for (int i = 0; i < series[s].count; i++)
            ek_json_put_real(&json, NULL, series[s].values[i], DIGITS);
        ek_json_close(&json, ']');
        ek_json_close(&json, '}');
    }
    chart_end(&json);
}
