/* page.c: the style sheet, text, numbers and bars. */
#include "report/page.h"

#include <math.h>

/* Text on the colours (--on) and beside them has a contrast of 4.5 and more in both schemes. */
static const char colours[] =
    ":root { color-scheme: light dark; --ground: #fff; --card: #f4f6f8; --ink: #1b1f24;\n"
    "  --faint: #56606a; --track: #dde1e6; --rule: #d3d8de; --on: #fff; --c0: #2f66b5;\n"
    "  --c1: #b05600; --c2: #8049ab; --c3: #1d7a58; --c4: #c02d55; --c5: #646b74;\n"
    "  --k0: #2f66b5; --k1: #b05600; --k2: #c3cad2; --k2on: #1b1f24; --gap: rgba(255, 255, 255, "
    ".5); }\n"
    "@media (prefers-color-scheme: dark) { :root { --ground: #14171a; --card: #1e2226;\n"
    "  --ink: #e8eaed; --faint: #a3adb7; --track: #343b42; --rule: #343b42; --on: #111417;\n"
    "  --c0: #76a3ea; --c1: #f0a04f; --c2: #bd96e4; --c3: #5cc49a; --c4: #f27b93;\n"
    "  --c5: #a9b0b8; --k0: #76a3ea; --k1: #f0a04f; --k2: #4b545d; --k2on: #e8eaed;\n"
    "  --gap: rgba(0, 0, 0, .5); } }\n";

static const char layout[] =
    "* { box-sizing: border-box; }\n"
    "body { margin: 0 auto; max-width: 82rem; padding: 1.5rem 1rem 3rem; background: "
    "var(--ground);\n"
    "  color: var(--ink); font: 16px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }\n"
    "h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 1rem; } h1 + p { margin-top: -.75rem; "
    "}\n"
    "h2 { font-size: 1.15rem; margin: 0 0 .5rem; } h3 { font-size: 1rem; margin: 1.25rem 0 .3rem; "
    "}\n"
    "h4 { font-size: .875rem; margin: .75rem 0 .25rem; }\n"
    "p { margin: 0 0 1rem; } section > p:last-child { margin-bottom: 0; } .faint { color: "
    "var(--faint); } .small { font-size: .875rem; }\n"
    "section { background: var(--card); border-radius: .6rem; padding: 1rem 1.25rem;\n"
    "  margin: 0 0 1rem; min-width: 0; } section section { padding: 0; }\n"
    ".grid { display: grid; gap: 1rem; margin: 0 0 1rem;\n"
    "  grid-template-columns: repeat(auto-fit, minmax(min(100%, 20rem), 1fr)); }\n"
    ".grid > * { margin: 0; min-width: 0; } .pair { display: grid; gap: 0 2rem;\n"
    "  grid-template-columns: repeat(auto-fit, minmax(min(100%, 30rem), 1fr)); }\n"
    ".pair > * { min-width: 0; }\n";

static const char bars[] =
    ".row { display: grid; grid-template-columns: 8rem 1fr 10.5rem; gap: .1rem .75rem;\n"
    "  align-items: center; margin: .5rem 0; font-size: .9rem; }\n"
    ".row > .track + span { text-align: right; font-variant-numeric: tabular-nums; }\n"
    ".row > .note { grid-column: 2 / -1; color: var(--faint); font-size: .8rem; }\n"
    ".pair .row { grid-template-columns: 4.5rem 1fr 5.5rem; }\n"
    ".grid .row { grid-template-columns: 1fr auto; }\n"
    ".grid .row > .track { grid-row: 2; grid-column: 1 / -1; height: .8rem; }\n"
    ".grid.bars { grid-template-columns: repeat(auto-fit, minmax(min(100%, 15rem), 1fr)); }\n"
    "@media (max-width: 40rem) { .row, .pair .row { grid-template-columns: 1fr auto; }\n"
    "  .row > .track { grid-row: 2; grid-column: 1 / -1; } .row > .note { grid-column: 1 / -1; }\n"
    "  section { padding: .9rem; } }\n"
    ".track { position: relative; background: var(--track); border-radius: .25rem;\n"
    "  height: 1.35rem; } .open { background: none; }\n"
    ".room { position: absolute; inset: 0 auto 0 0; background: var(--track);\n"
    "  border-radius: .25rem 0 0 .25rem; } .edge { border-right: 3px solid var(--ink); }\n"
    ".bar { position: relative; display: flex; gap: 1px; height: 100%; overflow: hidden;\n"
    "  border-radius: .25rem; }\n"
    ".bar span { display: block; height: 100%; min-width: 0; overflow: hidden; color: var(--on);\n"
    "  font-size: .75rem; line-height: 1.35rem; text-align: center; white-space: nowrap;\n"
    "  container-type: inline-size; }\n"
    ".bar em { font-style: normal; }\n"
    "@container (max-width: 5.9rem) { .bar em { display: none; } }\n"
    ".legend { display: flex; flex-wrap: wrap; gap: .3rem 1.1rem; font-size: .875rem; }\n"
    ".legend i { display: inline-block; width: .8rem; height: .8rem; border-radius: .2rem;\n"
    "  margin-right: .4rem; vertical-align: -.08rem; }\n"
    ".legend i.dot { width: .6rem; height: .6rem; border-radius: 50%; background: var(--ink);\n"
    "  vertical-align: 0; } .legend i.edge { width: .45rem; border-radius: 0; background: "
    "var(--track); }\n"
    ".legend svg { width: 2.2rem; height: .6rem; margin-right: .4rem; overflow: visible; }\n"
    ".c0 { background: var(--c0); } .c1 { background: var(--c1); } .c2 { background: var(--c2); }\n"
    ".c3 { background: var(--c3); } .c4 { background: var(--c4); } .c5 { background: var(--c5); }\n"
    ".k0 { background: var(--k0); } .k1 { background: var(--k1); }\n"
    ".k2, .bar span.k2 { color: var(--k2on); background: var(--k2); }\n";

static const char cards[] =
    ".cards { grid-template-columns: repeat(auto-fit, minmax(min(100%, 21rem), 1fr)); }\n"
    ".cards section { display: flex; flex-direction: column; }\n"
    ".facts { display: flex; flex-wrap: wrap; gap: .5rem 1.75rem; margin: auto 0 .9rem; }\n"
    ".facts div { display: flex; flex-direction: column-reverse; } .facts dt { font-size: .8rem;\n"
    "  color: var(--faint); } .facts dd { margin: 0; font-size: 1.45rem; line-height: 1.2;\n"
    "  font-weight: 650; font-variant-numeric: tabular-nums; }\n"
    ".cards .legend { margin: .4rem 0 0; gap: .1rem .8rem; font-size: .8rem; }\n"
    ".last { margin: .6rem 0 0; } .full { font-weight: 650; }\n";

/* Stripes tell what communicates and what waits from what computes, without colours too. */
static const char lanes[] =
    ".k1 { background-image: repeating-linear-gradient(135deg, transparent 0 5px,\n"
    "  rgba(0, 0, 0, .16) 5px 7px); } .k2 { background-image: repeating-linear-gradient(45deg,\n"
    "  transparent 0 4px, rgba(128, 128, 128, .35) 4px 5px); }\n"
    ".lanes { min-width: 44rem; } .lane { position: relative; background: var(--track);\n"
    "  border-radius: .2rem; overflow: hidden; }\n"
    ".of { display: grid; grid-template-columns: 8rem 1fr; margin: .25rem 0; }\n"
    ".of b { font-size: .8rem; line-height: 1.4rem; position: sticky; left: 0; z-index: 1;\n"
    "  padding-right: .5rem; background: var(--card); } .of b span { font-weight: 400; }\n"
    ".lane i { position: absolute; height: 1.1rem; min-width: 1px; overflow: hidden;\n"
    "  box-shadow: inset -1px 0 var(--gap); container-type: inline-size; }\n"
    ".lane em { display: block; padding: 0 .25rem; font: .7rem/1.1rem system-ui, sans-serif;\n"
    "  color: var(--on); white-space: nowrap; overflow: hidden; text-overflow: ellipsis; }\n"
    ".lane .k2 em { color: var(--k2on); }\n"
    ".lane .f { background: var(--card); border: 1px solid var(--k0); box-shadow: none; }\n"
    ".lane .f.k1 { border-color: var(--k1); } .lane .f.k2 { border-color: var(--faint); }\n"
    ".lane .f em { color: var(--ink); line-height: 1rem; }\n"
    "@container (max-width: 2.5rem) { .lane em { display: none; } }\n"
    ".d0 { top: .15rem; } .d1 { top: 1.35rem; } .d2 { top: 2.55rem; } .d3 { top: 3.75rem; }\n"
    ".d4 { top: 4.95rem; } .d5 { top: 6.15rem; }\n"
    ".times { display: flex; margin-left: 8rem; justify-content: space-between; font-size: "
    ".75rem;\n"
    "  color: var(--faint); font-variant-numeric: tabular-nums; padding: .2rem 0 0; }\n"
    "@media (max-width: 40rem) { .of { grid-template-columns: 4.25rem 1fr; }\n"
    "  .of b span { display: block; line-height: 1; } .times { margin-left: 4.25rem; } }\n";

static const char plots[] =
    ".plot { position: relative; height: 15rem; margin: 1rem .4rem .3rem 4.6rem; }\n"
    ".plot svg { display: block; width: 100%; height: 100%; overflow: visible; }\n"
    ".plot line { stroke: var(--rule); } .plot line.mark { stroke: var(--ink);\n"
    "  stroke-dasharray: 3 3; } .plot polyline { fill: none; stroke-width: 2;\n"
    "  stroke-linejoin: round; stroke-linecap: round; }\n"
    ".plot svg *, .legend svg * { vector-effect: non-scaling-stroke; stroke-width: 2; }\n"
    ".plot svg line { stroke-width: 1; }\n"
    ".plot span { position: absolute; right: 100%; transform: translateY(-50%);\n"
    "  padding-right: .5rem; white-space: nowrap; } .plot span, .axis { font-size: .75rem;\n"
    "  color: var(--faint); font-variant-numeric: tabular-nums; }\n"
    ".plot b { position: absolute; font-size: .75rem; line-height: 1.2; white-space: nowrap;\n"
    "  padding: 0 .25rem; border-radius: .2rem; color: var(--ink); background: var(--card); }\n"
    ".plot b.line { right: 0; transform: translateY(-110%); font-weight: 400; }\n"
    ".plot b.line.aside { right: auto; left: 0; }\n"
    ".plot b.left { transform: translate(-100%, -130%); }\n"
    ".plot b.right { transform: translate(0, -130%); }\n"
    "@media (max-width: 40rem) { .plot b.left, .plot b.right { display: none; } }\n"
    ".plot i.dot { position: absolute; width: .6rem; height: .6rem; border-radius: 50%;\n"
    "  margin: -.3rem 0 0 -.3rem; background: var(--ink); border: 2px solid var(--card); }\n"
    ".pair .plot { height: 12rem; } .axis + .legend { margin: .5rem 0 0 4.6rem; gap: .1rem 1rem; "
    "}\n"
    ".axis { display: flex; justify-content: space-between; gap: 1rem; margin: 0 .4rem 0 4.6rem; "
    "}\n";

static const char tables[] =
    ".wide { overflow-x: auto; max-width: 100%; } .wide:focus-visible, summary:focus-visible {\n"
    "  outline: 2px solid var(--c0); outline-offset: 2px; }\n"
    "table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums; }\n"
    "caption { text-align: left; color: var(--faint); padding: 0 0 .3rem; }\n"
    "th, td { padding: .3rem .5rem; text-align: right; white-space: nowrap;\n"
    "  border-bottom: 1px solid var(--rule); } th:first-child, td:first-child,\n"
    "th:nth-child(2), td:nth-child(2), .text { text-align: left; }\n"
    "td.text { white-space: normal; min-width: 9rem; }\n"
    "summary { cursor: pointer; font-weight: 600; font-size: .9rem; padding: .25rem 0; }\n"
    "@media print { body { max-width: none; padding: 0; font-size: 11pt; print-color-adjust: "
    "exact;\n"
    "  -webkit-print-color-adjust: exact; } .grid > *, .row, .plot, tr { break-inside: avoid; }\n"
    "  h2, h3 { break-after: avoid; } section { border: 1px solid var(--rule); }\n"
    "  .wide { overflow: visible; } .lanes { min-width: 0; } th, td { white-space: normal; "
    "padding: .15rem .3rem; } }\n";

void ek_page_text(FILE *page, const char *text)
{
    for (const unsigned char *c = (const unsigned char *)text; *c; c++) {
        switch (*c) {
        case '<':
            fputs("&lt;", page);
            break;
        case '>':
            fputs("&gt;", page);
            break;
        case '&':
            fputs("&amp;", page);
            break;
        case '"':
            fputs("&quot;", page);
            break;
        case '\'':
            fputs("&#39;", page);
            break;
        default: /* pages may not hold control characters */
            fputc((*c < 0x20 && *c != '\n') || *c == 0x7f ? ' ' : *c, page);
        }
    }
}

void ek_page_begin(FILE *page, const char *title)
{
    fputs("<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
          "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>",
          page);
    ek_page_text(page, title);
    fprintf(page, "</title>\n<style>\n%s%s%s%s%s%s%s</style>\n</head>\n<body>\n<h1>", colours,
            layout, bars, cards, lanes, plots, tables);
    ek_page_text(page, title);
    fputs("</h1>\n", page);
}

void ek_page_end(FILE *page)
{
    fputs("</body>\n</html>\n", page);
}

const char *ek_page_colour(int index)
{
    static const char *const names[] = {"c0", "c1", "c2", "c3", "c4", "c5"};

    return names[index % 6];
}

/* ---- numbers ---- */

/* Three digits that count, never an exponent, and a space that doesn't break. */
static char *write_number(double value, const char *unit, char text[32])
{
    int decimals = value < 9.995 ? 2 : value < 99.95 ? 1 : 0;

    snprintf(text, 32, "%.*f\302\240%s", decimals, fmin(value, 1e15), unit);
    return text;
}

char *ek_page_bytes(double nbytes, char text[32])
{
    static const char *const units[] = {"KiB", "MiB", "GiB", "TiB", "PiB"};
    int unit = -1;

    if (!(nbytes > 0))
        nbytes = 0;
    /* 1023.9 MiB is 1 GiB. */
    while (nbytes >= 1023.5 && unit < 4) {
        nbytes /= 1024;
        unit++;
    }
    if (unit < 0) {
        snprintf(text, 32, "%.0f\302\240B", nbytes);
        return text;
    }
    return write_number(nbytes, units[unit], text);
}

char *ek_page_seconds(double seconds, char text[32])
{
    if (!(seconds > 0)) {
        snprintf(text, 32, "0\302\240s");
        return text;
    }
    if (seconds < 0.9995e-3)
        return write_number(seconds * 1e6, "\302\265s", text);
    if (seconds < 0.9995)
        return write_number(seconds * 1e3, "ms", text);
    if (seconds < 600)
        return write_number(seconds, "s", text);
    return seconds < 7200 ? write_number(seconds / 60, "min", text)
                          : write_number(seconds / 3600, "h", text);
}

/* ---- bars ---- */

static double finite_share(double part, double whole)
{
    double share = part / whole;

    return share > 0 ? fmin(share, 1) : 0; /* NaN too is no part */
}

void ek_page_bars(FILE *page, const char *title, const char *note, const ek_page_bar *list,
                  int count)
{
    double longest = 0;

    for (int i = 0; i < count; i++)
        if (isfinite(list[i].value))
            longest = fmax(longest, list[i].value);
    fputs("<section>\n<h2>", page);
    ek_page_text(page, title);
    fputs("</h2>\n", page);
    if (note) {
        fputs("<p class=\"faint small\">", page);
        ek_page_text(page, note);
        fputs("</p>\n", page);
    }
    for (int i = 0; i < count; i++) {
        fputs("<div class=\"row\"><span>", page);
        ek_page_text(page, list[i].name);
        fprintf(page,
                "</span><div class=\"track\"><div class=\"bar %s\" style=\"width:%.2f%%\"></div>"
                "</div><span>",
                ek_page_colour(i), 100 * finite_share(list[i].value, longest));
        ek_page_text(page, list[i].text);
        fputs("</span></div>\n", page);
    }
    fputs("</section>\n", page);
}

void ek_page_parts(FILE *page, double width, const ek_page_part *parts, int count)
{
    fprintf(page, "<div class=\"bar\" style=\"width:%.2f%%\">", 100 * finite_share(width, 1));
    for (int i = 0; i < count; i++) {
        double share = finite_share(parts[i].share, 1);
        if (share <= 0)
            continue;
        fprintf(page, "<span class=\"%s\" style=\"flex:%.4f 1 0%%\" title=\"", parts[i].style,
                100 * share);
        ek_page_text(page, parts[i].name);
        fputc(' ', page);
        ek_page_text(page, parts[i].text);
        fputs("\"><em>", page); /* the style leaves it out where it has no room */
        ek_page_text(page, parts[i].name);
        fputs("</em></span>", page);
    }
    fputs("</div>", page);
}
