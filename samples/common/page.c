#include "common/page.h"

static const char style[] =
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
    ".grid { display: grid; gap: 1rem; margin: 0 0 1rem;\n"
    "  grid-template-columns: repeat(auto-fit, minmax(min(100%, 20rem), 1fr)); }\n"
    "section { background: var(--card); border-radius: .6rem; padding: 1rem; margin: 0 0 1rem;\n"
    "  min-width: 0; } .grid section { margin: 0; }\n"
    ".row { display: grid; grid-template-columns: 5rem 1fr 5.5rem; gap: .6rem;\n"
    "  align-items: center; margin: .3rem 0; font-size: .9rem; }\n"
    ".row > :last-child { text-align: right; font-variant-numeric: tabular-nums; }\n"
    ".track { background: var(--track); border-radius: .25rem; height: 1.1rem; }\n"
    ".bar { display: flex; height: 100%; border-radius: .25rem; overflow: hidden; }\n"
    ".bar span { display: block; height: 100%; }\n"
    ".legend { display: flex; flex-wrap: wrap; gap: .3rem 1.1rem; font-size: .9rem; }\n"
    ".legend i { display: inline-block; width: .8rem; height: .8rem; border-radius: .2rem;\n"
    "  margin-right: .4rem; vertical-align: -.08rem; }\n"
    ".plot { position: relative; height: 15rem; margin: 1rem 0 .3rem 3.2rem; }\n"
    ".plot svg { display: block; width: 100%; height: 100%; }\n"
    ".plot line { stroke: var(--track); } .plot polyline { fill: none; stroke-width: 1.5;\n"
    "  stroke-linejoin: round; } .plot svg * { vector-effect: non-scaling-stroke; }\n"
    ".plot span { position: absolute; right: 100%; transform: translateY(-50%);\n"
    "  padding-right: .5rem; white-space: nowrap; } .plot span, .axis { font-size: .75rem;\n"
    "  color: var(--faint); font-variant-numeric: tabular-nums; }\n"
    ".axis { display: flex; justify-content: space-between; margin-left: 3.2rem; }\n"
    "h3 { font-size: .95rem; margin: 1rem 0 .3rem; } .wide { overflow-x: auto; }\n"
    "table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums; }\n"
    "th, td { padding: .3rem .6rem; text-align: right; white-space: nowrap;\n"
    "  border-bottom: 1px solid var(--track); } th:first-child, td:first-child,\n"
    "th:nth-child(2), td:nth-child(2) { text-align: left; }\n";

void page_begin(FILE *page, const char *title)
{
    fprintf(page,
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
            "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
            "<title>%s</title>\n<style>\n%s</style>\n</head>\n<body>\n<h1>%s</h1>\n",
            title, style, title);
}

void page_end(FILE *page)
{
    fputs("</body>\n</html>\n", page);
}

const char *page_colour(int index)
{
    static const char *const names[] = {"c0", "c1", "c2", "c3", "c4", "c5"};

    return names[index % 6];
}
