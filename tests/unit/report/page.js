/* page.js PAGE: runs the script of a page that ek_report_html wrote, on separate reports, in a small document,
 * and checks what the script draws. The markup is parsed strictly: elements must end in their order, and
 * texts and attributes must have no NaN. */
"use strict";
const assert = require("node:assert");
const fs = require("node:fs");
const vm = require("node:vm");

/* ---- a document ---- */

const RAW = ["script", "style"], VOID = ["meta", "br"];
const NO_NUMBER = /NaN|undefined|Infinity|\bnull\b/;

function decode(text) {
    return text.replace(/&([^;]*);/g, (entity, name) => {
        const named = {nbsp: "\u00a0", lt: "<", gt: ">", amp: "&"};
        assert(name[0] === "#" || named[name], `no entity: ${entity}`);
        return named[name] ?? String.fromCharCode(name.slice(1));
    });
}

class Element {
    constructor(tag, attributes = {}) {
        Object.assign(this, {tag, attributes, children: [], parent: null, listeners: {}, style: {}});
        this.id = attributes.id;
        this.hidden = "hidden" in attributes;
        this.clientWidth = 1000;
        this.offsetWidth = this.offsetHeight = 50;
    }
    get classes() { return (this.attributes.class ?? "").split(" "); }
    get dataset() {
        return Object.fromEntries(["tip", "written", "every"].map(name => [name, this.attributes[`data-${name}`]]));
    }
    getAttribute(name) { return this.attributes[name] ?? null; }
    setAttribute(name, value) { this.attributes[name] = value; }
    set textContent(text) { this.children = [text]; }
    click() { this.fire("click"); }
    focus() { this.focused = true; }
    get all() { return this.children.flatMap(child => child instanceof Element ? [child, ...child.all] : []); }
    get textContent() { return this.children.map(child => child.textContent ?? child).join(""); }
    set innerHTML(text) { this.children = parse(text, this); }
    insertAdjacentHTML(where, text) {
        assert.equal(where, "beforebegin");
        this.parent.children.splice(this.parent.children.indexOf(this), 0, ...parse(text, this.parent));
    }
    matches(selector) {
        const [, tag, id, style, attribute] = /^(\w*)(?:#([\w-]+))?(?:\.([\w-]+))?(?:\[([\w-]+)\])?$/.exec(selector);
        return (!tag || tag === this.tag) && (!id || id === this.id) && (!style || this.classes.includes(style)) &&
            (!attribute || attribute in this.attributes);
    }
    closest(selector) { return this.matches(selector) ? this : this.parent?.closest(selector) ?? null; }
    querySelectorAll(selector) { return this.all.filter(element => element.matches(selector)); }
    querySelector(selector) { return this.querySelectorAll(selector)[0] ?? null; }
    getElementById(id) { return this.querySelector(`#${id}`); }
    getBoundingClientRect() { return {left: 0, top: 0, width: 1000, height: 230}; }
    setPointerCapture() {}
    addEventListener(type, listener) { this.listeners[type] = listener; }
    fire(type, event = {}) {
        const prevent = () => { event.prevented = true; };
        this.listeners[type]({target: this, button: 0, clientX: 0, clientY: 0, preventDefault: prevent, ...event});
        return event;
    }
}

/* The elements and texts of markup. */
function parse(text, parent) {
    const token = /<!--.*?-->|<!doctype html>|<(\/?)([a-z0-9]+)((?:\s+[\w-]+(?:="[^"<]*")?)*)\s*(\/?)>|[^<]+/gsy;
    const root = new Element("root");
    let open = root;
    for (let at = 0; at < text.length; at = token.lastIndex) {
        const found = token.exec(text);
        assert(found, `no markup: ${text.slice(at, at + 80)}`);
        const [whole, close, tag, list, empty] = found;
        if (tag === undefined) {
            if (whole[0] === "<")
                continue;
            assert(!whole.includes(">"), `a stray >: ${whole}`);
            assert(!NO_NUMBER.test(whole), whole);
            open.children.push(decode(whole));
        } else if (close) {
            assert.equal(open.tag, tag, `</${tag}> ends <${open.tag}>`);
            open = open.parent;
        } else {
            const attributes = {};
            for (const [, name, , value] of list.matchAll(/([\w-]+)(="([^"]*)")?/g)) {
                assert(!(name in attributes), `${name} twice`);
                assert(!NO_NUMBER.test(value ?? ""), `${tag} ${name}="${value}"`);
                attributes[name] = decode(value ?? "");
            }
            const element = new Element(tag, attributes);
            element.parent = open === root && parent ? parent : open;
            open.children.push(element);
            if (RAW.includes(tag)) {
                const end = text.indexOf(`</${tag}`, token.lastIndex);
                element.children = [text.slice(token.lastIndex, end)];
                token.lastIndex = end + tag.length + 3;
            } else if (!empty && !VOID.includes(tag)) {
                element.parent = open;
                open = element;
            }
        }
    }
    assert.equal(open, root, `<${open.tag}> has no end`);
    root.children.filter(child => child instanceof Element).forEach(child => { child.parent = parent ?? root; });
    return root.children;
}

/* ---- running the page ---- */

const written = fs.readFileSync(process.argv[2], "utf8");
const [before, behind] = written.split(/(?<=id="data">)[^]*?(?=<\/script>)/);

/* Runs the page on data. Returns the document, the script's functions and its charts. */
function run(data, more = "", live = {written: "", every: ""}, kept = {}) {
    const document = new Element("document");
    const from = before.replace(/data-written="\d*" data-every="\d*"/, `data-written="${live.written}" data-every="${live.every}"`);
    document.innerHTML = from.replace("</main>", `${more}</main>`) +
        JSON.stringify(data).replaceAll("<", "\\u003c") + behind;
    document.activeElement = null;
    const listeners = {};
    const page = vm.createContext({document, innerWidth: 1280, innerHeight: 900, scrollY: 700, Date,
                                   location: {pathname: "/page.html", reload: () => { page.reloads++; }},
                                   sessionStorage: {getItem: key => kept[key], removeItem: key => delete kept[key],
                                                    setItem: (key, value) => { kept[key] = value; }},
                                   scrollTo: (x, y) => { page.scrolled = y; }, reloads: 0,
                                   setTimeout: (call, after) => page.timers.push({call, after}), timers: [],
                                   addEventListener: (type, listener) => { listeners[type] = listener; }});
    vm.runInContext(document.querySelectorAll("script").find(script => !script.attributes.type).textContent, page);
    page.charts = vm.runInContext("charts", page);
    page.tip = document.getElementById("tip");
    page.text = document.getElementById("report").textContent.replace(/[ \n]+/g, " ");
    page.resize = listeners.resize;
    return page;
}

function all(page, selector) {
    return page.document.querySelectorAll(selector);
}

function assertHas(page, ...parts) {
    for (const part of parts)
        assert(page.text.includes(part), `no "${part}" in: ${page.text}`);
}

/* ---- reports ---- */

const MIB = 2 ** 20;

function sample(seconds, activation, step = 0, workspace = 0) {
    return {seconds, step, in_use: activation + workspace,
            categories: {parameter: 0, gathered: 0, gradient: 0, optimizer: 0, activation, communication: 0, workspace}};
}

function device(name, mib, capacity = 512 * MIB) {
    return {device: name, capacity, peak: sample(0.25, mib * MIB, 1), peak_operation: "forward of conv2d",
            reserved_peak: 7 * MIB, reserved_at_peak: 6 * MIB, largest_free: MIB, system: 2 * MIB, dropped: 5,
            computing: 0.5, communicating: 0.25, waiting: 0.25,
            memory: [sample(0, 0), sample(0.25, mib * MIB, 1), sample(0.5, MIB / 2, 2, MIB / 4), sample(1, 0, 2)],
            step_memory: [sample(0, 0), sample(0.0025, MIB, 2), sample(0.005, 0, 2)]};
}

function span(device, thread, depth, kind, begin, end, label) {
    return {device, thread, depth, kind, begin, end, label};
}

function report(name, more = {}) {
    const devices = [device("host:0", 3), device("host:1", 1)];
    const spans = [span(0, 0, 0, "compute", 0, 0.004, "backward of conv2d"),
                   span(0, 0, 1, "communicate", 0.001, 0.002, "reduce"),
                   span(1, 0, 0, "wait", 0.001, 0.005, "waiting")];
    return {name, steps: 3, seconds: 1, step_seconds: 0.005, imbalance: 1.5, largest_batch: 0, devices,
            last_step: {seconds: 0.005, dropped: 0, spans}, ...more};
}

function page(...reports) {
    return run({format: "evenkeel-report-1", reports});
}

/* Returns the x at which a chart shows this part of its axis. */
function clientX(part) {
    return 84 + part * (1000 - 84 - 8);
}

/* ---- tests ---- */

const tests = {
    the_page_that_was_written_is_drawn() {
        const data = JSON.parse(/id="data">([^]*?)<\/script>/.exec(written)[1]), drawn = run(data);
        const [one] = data.reports;
        assertHas(drawn, one.name, drawn.bytes(one.devices[0].peak.in_use), one.devices[0].peak_operation);
        assert.equal(drawn.charts.length, 4 + one.scalars.length);
    },

    it_says_what_is_full() {
        const drawn = page(report("balanced", {largest_batch: 4096}));
        assertHas(drawn, "host:0 is the fullest: 3.00\u00a0MiB, 0.6\u00a0% of its 512\u00a0MiB.",
            "Most of it, 100\u00a0%, is activation. That was in step 1, after 250\u00a0ms, during forward of conv2d.",
            "imbalance: uneven1.50", "median step5.00\u00a0ms", "largest batch4096", "computing 50\u00a0%",
            "2 devices, 3 steps in 1.00\u00a0s", "host:1computingcommunicatingwaiting 75\u00a0% busy");
    },

    it_says_who_is_nearest_to_its_capacity() {
        const drawn = page(report("classic", {devices: [device("host:0", 3), device("host:1", 1, 4 * MIB)]}));
        assertHas(drawn, "host:0 is the fullest", "host:1 is nearest to its capacity: 25\u00a0% of 4.00\u00a0MiB.");
        assert.equal(all(drawn, "div.room").length, 1); /* 512 MiB are too far away to be shown */
    },

    devices_as_full_as_each_other_are_level() {
        const drawn = page(report("sharded", {imbalance: 1, devices: [device("host:0", 3), device("host:1", 3)]}));
        assertHas(drawn, "All are about as full; host:0 holds most: 3.00\u00a0MiB", "imbalance: level1.00");
    },

    ranks_say_who_waited_for_whom() {
        const rank = (rank, exposed, waited, waited_for, last) =>
            ({rank, host: `node${rank}`, steps: 3, seconds: 1, exposed, waited, waited_for, last, calls: 8});
        const devices = [0, 1].map(rank => ({...device("host:0", 3 - rank), rank}));
        const drawn = page(report("alone"), report("together", {devices, ranks: [rank(0, 0.5, 0.375, 1, 1),
                                                                                 rank(1, 0.125, 0, -1, 7)]}));
        assertHas(drawn, "rank 0 host:0 is the fullest", "Communication was exposed for 13\u00a0% to 50\u00a0%",
            "Rank 1 came last most often, to 7 of 8 calls of all ranks; the others waited 375\u00a0ms at most",
            "50\u00a0% exposedwaited 375\u00a0ms for later ranks, longest for rank 1; last 1 of 8 times; on node0",
            "13\u00a0% exposedlast 7 of 8 times; on node1");
        const bar = all(drawn, "div").find(one => one.attributes["aria-label"]?.startsWith("rank 0: "));
        assert.equal(bar.attributes["aria-label"],
            "rank 0: for later ranks 38\u00a0%, exposed 13\u00a0%, hidden, or no communication 50\u00a0%");
        const cells = all(drawn, "table").at(-1).querySelectorAll("td").map(cell => cell.textContent).join("|");
        assert.equal(cells, "0|node0|3|1.000|0.500|0.375|1|1|8|1|node1|3|1.000|0.125|0.000||7|8");
        assert(!page(report("alone")).text.includes("Ranks"));
        const quiet = {...rank(0, 0, 0, -1, 0), seconds: 0, calls: 0};
        assertHas(page(report("none", {devices, ranks: [quiet, {...quiet, rank: 1}]})), "exposed for 0\u00a0%");
    },

    reports_stand_side_by_side() {
        const drawn = page(report("classic way"), report("sharded way", {largest_batch: 77}));
        assert.equal(drawn.charts.length, 8);
        assertHas(drawn, "Fullest device", "Median step", "Largest batch", "classic way not known", "sharded way 77",
            "one vertical scale");
        const bars = all(drawn, "div.bars")[0].querySelectorAll("div.bar");
        assert.equal(bars.length, 8);
        assert.equal(bars[0].attributes.style, "width:100.000%");
    },

    what_was_expected_stands_beside_what_was_measured() {
        const means = [{name: "sharded <parameters>", saved: 6 * MIB, seconds: 0.002},
                       {name: "recomputation", saved: -MIB, seconds: -0.001}];
        const [first, second] = report("planned").devices;
        const devices = [{...first, expected: sample(0, 2 * MIB, 0, 2 * MIB)}, second];
        const drawn = page(report("planned", {devices, expected: {batch: 64, step_seconds: 0.004, means}}));
        assertHas(drawn, "expected step4.00\u00a0ms", "planned, batch 64", "expected 4.00\u00a0ms",
            "measured 5.00\u00a0ms +25\u00a0%", "expected 4.00\u00a0MiB", "measured 3.00\u00a0MiB \u221225\u00a0%",
            "sharded <parameters> saves 6.00\u00a0MiB, costs 2.00\u00a0ms",
            "recomputation saves \u22121.00\u00a0MiB, costs \u22121.00\u00a0ms",
            "activationworkspace4.00\u00a0MiB measured \u221225\u00a0%");
        const labels = all(drawn, "div").map(one => one.attributes["aria-label"]);
        assert(labels.includes("host:0 as expected: 4.00\u00a0MiB, activation 2.00\u00a0MiB, workspace 2.00\u00a0MiB"));
        const bars = all(drawn, "div.track").filter(one => one.attributes["aria-label"]?.startsWith("host:0"))
            .map(one => one.querySelector("div.bar").attributes.style);
        assert.deepEqual(bars.slice(0, 2), ["width:75.000%", "width:100.000%"]);
        assert.equal(drawn.charts[1].host.querySelectorAll("text.mark")[0].textContent,
            "expected peak 4.00\u00a0MiB");
        const cells = all(drawn, "table").slice(-2).map(table =>
            table.querySelectorAll("td").map(cell => cell.textContent).join("|"));
        assert.equal(cells[0], "host:0|4.00|0.00|0.00|0.00|0.00|2.00|0.00|2.00|3.00");
        assert.equal(cells[1], "sharded <parameters>|6.00|2.000|recomputation|-1.00|-1.000");
        assert(!page(report("alone")).text.includes("xpected"));
        page(report("empty", {steps: 0, step_seconds: 0, expected: {batch: 0, step_seconds: 0, means: []}}));
    },

    holders_are_named() {
        const holders = [{path: "layer1.0.conv1", category: "activation", nbytes: 2 * MIB},
                         {path: "", category: "optimizer", nbytes: MIB}];
        const [first, second] = report("a").devices;
        const lack = {requested: 4 * MIB, category: "workspace", operation: "fc: forward of linear",
                      at: sample(0.5, 2 * MIB, 1), holders};
        const drawn = page(report("a", {devices: [{...first, holders, out_of_memory: lack}, second]}));
        assertHas(drawn, "host:0 had no memory for 4.00\u00a0MiB of workspace, during fc: forward of linear, in step 1,",
            "The largest holders were layer1.0.conv1 (activation) 2.00\u00a0MiB, no module (optimizer) 1.00\u00a0MiB.");
        const cells = all(drawn, "table").at(-3).querySelectorAll("td").map(cell => cell.textContent).join("|");
        assert.equal(cells, "host:0|layer1.0.conv1|activation|2.00|host:0|no module|optimizer|1.00");
        assert(!page(report("a")).text.includes("olders"));
    },

    long_labels_lose_their_begin() {
        const {shortened} = page(), label = "layer1.0.conv1: backward of conv2d";
        const cases = [[34, label], [33, "0.conv1: backward of conv2d"], [26, "conv1: backward of conv2d"],
                       [24, "backward of conv2d"], [17, "conv2d"], [1, "conv2d"]];
        for (const [letters, text] of cases)
            assert.equal(shortened(label, letters), text);
        assert.equal(shortened("waiting for the workers", 5), "waiting for the workers");
    },

    lanes_of_one_device_name_their_threads() {
        const spans = [span(0, 0, 0, "compute", 0, 0.004, "a"), span(0, 1, 0, "compute", 0, 0.004, "b")];
        const step = {seconds: 0.005, dropped: 0, spans};
        assertHas(page(report("a", {last_step: {...step, threads: ["caller", "worker"]}})), "host:0caller", "host:0worker");
        assertHas(page(report("a", {last_step: step})), "host:0thread 1");
    },

    every_number_of_the_tables_is_there() {
        const drawn = page(report("a"));
        const cells = all(drawn, "table").slice(-4).map(table =>
            table.querySelectorAll("td").map(cell => cell.textContent).join("|"));
        assert.equal(cells[0], "2|3|1.500|3.00|5.000|1.000|");
        assert.equal(cells[1], ["host:0|3.00|0.00|0.00|0.00|0.00|3.00|0.00|0.00|7.00|512.00|1|0.250|forward of conv2d",
                                "host:1|1.00|0.00|0.00|0.00|0.00|1.00|0.00|0.00|7.00|512.00|1|0.250|forward of conv2d"].join("|"));
        assert.equal(cells[2], "host:0|6.00|50.0|1.00|2.00|5|host:1|6.00|16.7|1.00|2.00|5");
        assert.equal(cells[3], "host:0|0.500|0.250|0.250|host:1|0.500|0.250|0.250");
        const rows = all(drawn, "table")[0].querySelectorAll("tr");
        assert.equal(rows.length, 5);
        assert.equal(rows[3].textContent, "500\u00a0ms20.750.750.000.000.000.000.500.000.25");
    },

    names_are_text_only() {
        const hostile = "</script><script>alert(1)</script><img onerror='x'>&amp;\"\u0001";
        const one = report(hostile);
        one.devices[0].peak_operation = one.last_step.spans[0].label = one.devices[0].device = hostile;
        const drawn = page(one), plain = hostile.replace("\u0001", " ");
        assertHas(drawn, `${plain.trim()} is the fullest`, `during ${plain}.`);
        assert.equal(all(drawn, "img").length, 0);
        assert.equal(all(drawn, "script").length, 2);
        assert(all(drawn, "i").some(box => box.dataset.tip?.startsWith(plain)));
    },

    nothing_is_said_in_words() {
        const empty = {...device("host:1", 0), peak: sample(0, 0), peak_operation: "", computing: 0, communicating: 0,
                       waiting: 0, memory: [sample(0, 0)], step_memory: []};
        const nothing = report("run", {steps: 0, seconds: 0, step_seconds: 0, imbalance: 1, devices: [empty],
                                       last_step: {seconds: 0, dropped: 0, spans: []}});
        const drawn = page(nothing);
        assertHas(drawn, "held no memory", "No step has been finished", "Nothing is known of what a step did",
            "No device held memory");
        assert.equal(drawn.charts.length, 0);
        assert.equal(all(drawn, "svg").length, 0);
        assertHas(page(), "No way of training was reported.");
        assertHas(page({...nothing, devices: []}), "0 devices");
        assertHas(page(nothing, report("other")), "No step has been finished.");
        assertHas(page(report("run", {last_step: {seconds: 1, dropped: 0, spans: []}}), report("other")),
            "Nothing is known of what its last step did");
    },

    what_is_no_number_is_left_out() {
        const one = report("a", {seconds: null, step_seconds: null, imbalance: null}), [first] = one.devices;
        first.computing = first.peak.seconds = first.memory[1].seconds = first.step_memory[1].seconds = null;
        one.last_step.spans.push(span(0, 0, 0, "wait", null, null, "never"),
                                 span(0, 0, 0, "wait", 1, 0, "backwards"));
        const drawn = page(one);
        assert.equal(all(drawn, "div.lane").length, 2);
        assert.equal(firstPath(drawn), "M0.0 198.0L454.0 198.0L454.0 148.5L908.0 148.5L908.0 198.0");
        assert(!drawn.text.includes("never") && !drawn.text.includes("backwards"));
    },

    numbers_are_for_people() {
        const {bytes, seconds, percent} = page();
        const cases = [
            [NaN, "0 B", "0 s"], [null, "0 B", "0 s"], [-1, "0 B", "0 s"], [0, "0 B", "0 s"],
            [3e-6, "0 B", "3.00 \u00b5s"], [0.0125, "0 B", "12.5 ms"], [0.9996, "1 B", "1.00 s"],
            [1023, "1023 B", "17.1 min"], [1023.9 * 2 ** 20, "1.00 GiB", "298232 h"],
            [312.4 * MIB, "312 MiB", "90993 h"], [1e300, "1000000000000000 PiB", "1000000000000000 h"]];
        for (const [value, memory, time] of cases) {
            assert.equal(bytes(value), memory.replace(" ", "\u00a0"));
            assert.equal(seconds(value), time.replace(" ", "\u00a0"));
        }
        assert.equal(percent(0.941), "94\u00a0%");
        assert.equal(percent(0.003), "0.3\u00a0%");
    },

    plots_have_a_line_per_device_and_an_area_per_category() {
        const drawn = page(report("a")), [lines, stack, lanes, step] = drawn.charts.map(chart => chart.host);
        assert.equal(lines.querySelectorAll("path").length, 2);
        assert.equal(stack.querySelectorAll("path").length, 2); /* activation and workspace */
        assert.equal(step.querySelectorAll("path").length, 2);
        assert.equal(lanes.querySelectorAll("div.lane").length, 2);
        assert.equal(lines.querySelectorAll("circle").length, 1);
        assert.equal(lines.querySelectorAll("text.mark")[0].textContent, "peak of host:0: 3.00\u00a0MiB");
        assert.deepEqual([...lines.querySelectorAll("text")].map(text => text.textContent.replace("\u00a0", " ")),
            ["0 MiB", "0.5 MiB", "1 MiB", "1.5 MiB", "2 MiB", "2.5 MiB", "3 MiB",
             "0.0 s", "0.2 s", "0.4 s", "0.6 s", "0.8 s", "1.0 s", "peak of host:0: 3.00 MiB"]);
        /* Each value is held until the next: along, then up. */
        assert.equal(firstPath(drawn),
            "M0.0 198.0L227.0 198.0L227.0 0.0L454.0 0.0L454.0 148.5L908.0 148.5L908.0 198.0");
    },

    every_category_has_a_color_of_its_own() {
        const drawn = page(report("a")), names = Object.keys(sample(0, 0).categories);
        const colors = all(drawn, "div.legend").map(legend => legend.querySelectorAll("i").map(box => box.classes[0]))
            .find(list => list.length === names.length);
        assert.equal(new Set(colors).size, names.length);
        for (const color of colors)
            assert(drawn.document.querySelector("style").textContent.includes(`.${color} { background: var(--${color}); }`));
    },

    capacities_that_are_near_are_lines_across() {
        const drawn = page(report("a", {devices: [device("host:0", 3, 4 * MIB), device("host:1", 1, 4 * MIB)]}));
        assert.equal(drawn.charts[0].host.querySelectorAll("line.mark").length, 1);
        assert.equal(drawn.charts[0].host.querySelector("text.mark").textContent, "capacity 4.00\u00a0MiB");
        assert.equal(all(drawn, "div.room").length, 2);
    },

    the_pointer_shows_the_numbers_that_are_there() {
        const drawn = page(report("a")), [lines, stack, lanes] = drawn.charts.map(chart => chart.host);
        assert.equal(drawn.tip.hidden, true);
        lines.fire("pointermove", {clientX: clientX(0.3)});
        assert.equal(drawn.tip.hidden, false);
        assert.equal(drawn.tip.textContent, "0.300\u00a0s, step 1host:03.00\u00a0MiBhost:11.00\u00a0MiB");
        assert.equal(lines.querySelector(".cursor").hidden, false);
        stack.fire("pointermove", {clientX: clientX(0.75)});
        assert.equal(drawn.tip.textContent,
            "0.750\u00a0s, step 2together768\u00a0KiBactivation512\u00a0KiBworkspace256\u00a0KiB");
        lanes.fire("pointermove", {clientX: clientX(0.3), target: lanes.querySelectorAll("i")[1]});
        assert.equal(drawn.tip.textContent, "1.500\u00a0msreduce: communicating, 1.00\u00a0ms from 1.00\u00a0ms");
        lanes.fire("pointermove", {clientX: clientX(0.3)});
        assert.equal(drawn.tip.textContent, "1.500\u00a0mshost:0reduce, 1.00\u00a0mshost:1waiting, 4.00\u00a0ms");
        lanes.fire("pointerleave");
        assert.equal(drawn.tip.hidden, true);
    },

    dragging_zooms_all_charts_of_one_time() {
        const drawn = page(report("a")), [lines, stack, lanes] = drawn.charts, before = markupOf(lanes);
        const button = drawn.document.getElementById(lines.axis.id), whole = markupOf(stack);
        lines.host.fire("pointerdown", {clientX: clientX(0.2)});
        lines.host.fire("pointermove", {clientX: clientX(0.4)});
        assert.equal(lines.host.querySelector(".cursor").style.width, "181.6px");
        lines.host.fire("pointerup", {clientX: clientX(0.4)});
        assert(Math.abs(lines.axis.from - 0.2) < 1e-9 && Math.abs(lines.axis.to - 0.4) < 1e-9);
        assert.notEqual(markupOf(stack), whole);
        assert.equal(markupOf(lanes), before); /* another time */
        assert.equal(button.hidden, false);
        button.fire("click");
        assert.equal(markupOf(stack), whole);
        assert.equal(button.hidden, true);
        lines.host.fire("pointerdown", {clientX: 300}); /* a click alone changes nothing */
        lines.host.fire("pointerup", {clientX: 302});
        assert.equal(lines.axis.to - lines.axis.from, 1);
    },

    the_wheel_zooms_where_it_is_meant_to() {
        const drawn = page(report("a")), [{host, axis}] = drawn.charts;
        assert(!host.fire("wheel", {deltaY: -1, clientX: 500}).prevented);
        assert.equal(axis.to - axis.from, 1);
        drawn.document.activeElement = host;
        assert(host.fire("wheel", {deltaY: -1, clientX: clientX(0.5)}).prevented);
        assert(Math.abs(axis.from - 0.1) < 1e-9 && Math.abs(axis.to - 0.9) < 1e-9);
        for (let i = 0; i < 200; i++)
            host.fire("wheel", {deltaY: -1, clientX: clientX(0.7)});
        assert(axis.to - axis.from >= 0.99e-6);
        for (let i = 0; i < 200; i++)
            host.fire("wheel", {deltaY: 1, clientX: clientX(0.1)});
        assert.equal(axis.to - axis.from, 1);
        host.fire("dblclick");
        drawn.resize();
    },

    a_finger_shows_numbers_and_zooms() {
        const drawn = page(report("a")), [{host, axis}] = drawn.charts, touch = {pointerType: "touch"};
        host.fire("pointerdown", {...touch, clientX: clientX(0.3)});
        host.fire("pointerup", {...touch, clientX: clientX(0.3)});
        host.fire("pointerleave", touch);
        assert.equal(drawn.tip.hidden, false);
        assert.equal(drawn.tip.textContent, "0.300\u00a0s, step 1host:03.00\u00a0MiBhost:11.00\u00a0MiB");
        host.fire("pointerdown", {...touch, clientX: clientX(0.2)});
        host.fire("pointerup", {...touch, clientX: clientX(0.4)});
        assert.equal(drawn.tip.hidden, true);
        assert(Math.abs(axis.to - axis.from - 0.2) < 1e-9);
    },

    keys_move_and_zoom() {
        const drawn = page(report("a")), [{host, axis}] = drawn.charts;
        assert(host.fire("keydown", {key: "ArrowRight"}).prevented);
        assert.equal(drawn.tip.textContent, "0.520\u00a0s, step 2host:0768\u00a0KiBhost:1768\u00a0KiB");
        host.fire("keydown", {key: "+"});
        assert(Math.abs(axis.to - axis.from - 0.5) < 1e-9);
        for (let i = 0; i < 100; i++)
            host.fire("keydown", {key: "ArrowRight"});
        assert.equal(axis.to, 1);
        host.fire("keydown", {key: "Escape"});
        assert.equal(axis.to - axis.from, 1);
        assert(!host.fire("keydown", {key: "Tab"}).prevented);
        host.fire("blur");
        assert.equal(drawn.tip.hidden, true);
    },

    /* Many spans are drawn as few boxes, which count them all. If zoomed in, each span has a box. */
    lanes_keep_every_span() {
        const SPANS = 20000, spans = [];
        for (let i = 0; i < SPANS; i++) {
            const begin = Math.floor(i / 4) / (SPANS / 4), end = begin + 1e-5 * (i % 16);
            spans.push(span(i % 2, i % 4, 0, ["compute", "communicate", "wait"][i % 3], begin, end, "relu"));
        }
        const drawn = page(report("a", {last_step: {seconds: 1, dropped: 3, spans}})), {host, axis} = drawn.charts[2];
        const boxes = () => host.querySelectorAll("i");
        const spansOf = box => +(/^\d+/.exec(box.dataset.tip) ?? [1])[0];
        assertHas(drawn, "There was no room for 3 spans, which are missing here.");
        assert.equal(host.querySelectorAll("div.lane").length, 4);
        assert(boxes().length < 4 * 1000);
        assert.equal(boxes().reduce((sum, box) => sum + spansOf(box), 0), SPANS);
        axis.show(0.5, 0.505);
        assert(boxes().length > 80 && boxes().every(box => spansOf(box) === 1));
        assert(boxes().some(box => box.textContent === "" && box.dataset.tip.startsWith("relu: computing")));
    },

    operations_that_consist_of_others_are_frames() {
        const spans = [span(0, 0, 0, "compute", 0, 10, "backward"), span(0, 0, 1, "wait", 1, 9, "waiting"),
                       span(0, 0, 0, "compute", 20, 30, "forward"), span(0, 0, 1, "wait", 21, 23, "waiting")];
        const drawn = page(report("a", {last_step: {seconds: 30, dropped: 0, spans}}));
        const boxes = drawn.charts[2].host.querySelectorAll("i");
        assert.equal(boxes.length, 4);
        for (const box of boxes)
            assert.equal(box.classes.includes("frame"), box.dataset.tip.startsWith("backward"));
        assert.equal(boxes[0].textContent, "backward");
    },

    sums_are_less_what_lies_within() {
        const spans = [span(0, 0, 0, "compute", 0, 10, "outer"), span(0, 0, 1, "communicate", 1, 4, "inner"),
                       span(0, 0, 1, "communicate", 5, 6, "inner"), span(1, 1, 0, "compute", 2, 3, "outer")];
        for (let i = 0; i < 20; i++)
            spans.push(span(1, 1, 0, "wait", 4, 4.001, `short ${i}`));
        const drawn = page(report("a", {last_step: {seconds: 10, dropped: 0, spans}}));
        const rows = all(drawn, "table")[1].querySelectorAll("tr").map(row => row.textContent);
        assert.equal(rows.length, 17);
        assert.equal(rows[1], "outercomputing27.00\u00a0s63.5\u00a0%");
        assert.equal(rows[2], "innercommunicating24.00\u00a0s36.3\u00a0%");
        assert.equal(rows[16], "others77.00\u00a0ms0.1\u00a0%");
    },

    long_lines_keep_their_extremes() {
        const memory = Array.from({length: 50000}, (_, i) =>
            sample(i / 50000, i === 33333 ? 3 * MIB : i % 2 ? MIB : 2 * MIB));
        const drawn = page(report("a", {devices: [{...device("host:0", 3), memory}]}));
        assert(firstPath(drawn).length < 120000);
        assert(firstPath(drawn).includes(" 0.0L")); /* the top of the plot, which a single sample reaches */
    },

    charts_behind_the_report_are_drawn_in_their_places() {
        const json = value => `<script type="application/json" class="chart">${JSON.stringify(value)}</script>`;
        const lines = {title: "Loss", unit: "step", series: [{name: "a", values: [null, 1, -2, 0.5]},
            {name: "b", values: [3]}, {name: "c", values: [null]}, {name: "d", values: []}]};
        const bars = {title: "Rate", bars: [{name: "x", text: "5", value: 5}, {name: "y", text: "none", value: null}]};
        const drawn = run({reports: []}, `<p>before</p>${json(lines)}${json(bars)}<p>behind</p>`);
        const main = drawn.document.querySelector("main").children.filter(child => child.tag).map(child => child.tag);
        assert.deepEqual(main, ["div", "p", "section", "script", "section", "script", "p"]);
        assert.equal(drawn.text, ""); /* a page of charts alone needs no report */
        const [{host}] = drawn.charts;
        assert.equal(host.querySelectorAll("path").length, 1);
        assert.equal(host.querySelectorAll("circle").length, 1); /* b has one value */
        host.fire("pointermove", {clientX: clientX(1 / 3)});
        assert.equal(drawn.tip.textContent, "step 2a1b3");
        assert.deepEqual(all(drawn, "div.bar").map(bar => bar.attributes.style),
            ["width:100.000%", "width:0.000%"]);
    },

    few_values_are_dots_and_missing_ones_gaps() {
        const json = values => `<script type="application/json" class="chart">${JSON.stringify(
            {title: "Loss", unit: "test", series: values.map(list => ({name: "a", values: list}))})}</script>`;
        const drawn = run({reports: []}, json([[3.36]]) + json([[]]) + json([[null], []]) +
            json([[null, 5, null, 4, 3, null, 2, 1]]));
        assert.equal(drawn.charts.length, 2); /* the others have no values */
        assert.equal(all(drawn, "section").filter(one => /No values yet/.test(one.textContent)).length, 2);
        const [{host: one}, {host: gaps}] = drawn.charts;
        const {cx, cy} = one.querySelector("circle").attributes;
        assert.equal(one.querySelectorAll("path").length, 0);
        assert(Math.abs(cx - 454) < 1 && cy > 1 && cy < 197); /* in the middle of the plot */
        assert.deepEqual(one.querySelectorAll("text").map(text => text.textContent).filter(text =>
            /test/.test(text)), ["test 1"]);
        assert.equal(gaps.querySelectorAll("circle").length, 1);
        assert.deepEqual(gaps.querySelectorAll("path").map(path => path.attributes.d.match(/[ML]/g).join("")),
            ["MLML"]);
    },

    the_scalars_of_runs_lie_over_one_another() {
        const scalars = (...points) => ({scalars: [{name: "loss <a>", points}]});
        const drawn = page(report("a", scalars([1, 3, 3, 3], [2, null, null, null], [4, 2, 1, 4], [6, 1, 1, 1])),
                           report("b", scalars([3, 2.5, 2.5, 2.5])), report("c"));
        const [{host, axis}] = drawn.charts, label = host.attributes["aria-label"];
        assert.deepEqual([axis.low, axis.high, axis.unit], [1, 6, "step"]);
        assert.equal(label, "loss <a> by step; the last values: a 1, b 2.5");
        assert.equal(host.querySelectorAll("path").length, 2); /* the band of a, and its line after the gap */
        assert.equal(host.querySelectorAll("path.band").length, 1);
        assert.equal(host.querySelectorAll("circle").length, 2); /* a before the gap, and b */
        host.fire("pointermove", {clientX: clientX(0.6)});
        assert.equal(drawn.tip.textContent, "step 4a2b2.5");
        assertHas(page(report("a", scalars([1, null, null, null]))), "loss <a>No values yet.");
    },

    last_steps_have_a_scale_for_each_and_one_for_all() {
        const long = report("long", {last_step: {...report("a").last_step, seconds: 0.02}});
        const drawn = page(report("short"), long), button = drawn.document.getElementById("common");
        const ends = () => [...new Set(drawn.charts.slice(4).map(chart => chart.axis))].map(axis => axis.to);
        assert.deepEqual(ends(), [0.005, 0.02]);
        button.click();
        assert.equal(button.getAttribute("aria-pressed"), "true");
        assert.deepEqual(ends(), [0.02, 0.02]);
        button.click();
        assert.deepEqual(ends(), [0.005, 0.02]);
        assert.equal(page(long).document.getElementById("common"), null);
    },

    the_menu_links_to_the_sections() {
        const drawn = page(report("a"), report("b")), links = all(drawn, "a");
        assert.deepEqual(links.map(link => link.textContent), ["Summary", "Peak memory per device", "Memory over time",
            "Time per device", "The last step", "The numbers"]);
        for (const link of links)
            assert(drawn.document.getElementById(link.attributes.href.slice(1)));
        assert(run({reports: []}, "<h2>alone</h2>").document.getElementById("menu").hidden);
    },

    a_live_page_reloads_and_stays_where_it_was() {
        const data = {reports: [report("a"), report("b")]}, kept = {}, now = Math.floor(Date.now() / 1000);
        const said = drawn => drawn.document.getElementById("written").textContent;
        const first = run(data, "", {written: now, every: 30}, kept), [{axis, host}] = first.charts;
        assert(/^Written .*; reloads every 30 seconds\.$/.test(said(first)), said(first));
        axis.show(0.25, 0.5);
        first.document.getElementById("common").click();
        all(first, "details")[1].open = true;
        host.fire("pointermove", {clientX: 500});
        const [{call, after}] = first.timers;
        assert.equal(after, 30000);
        call(); /* not while the reader points at a number */
        assert.equal(first.reloads, 0);
        host.fire("pointerleave");
        first.timers[1].call();
        assert.equal(first.reloads, 1);
        const last = run(data, "", {written: now, every: ""}, kept);
        assert.deepEqual([last.charts[0].axis.from, last.charts[0].axis.to], [0.25, 0.5]);
        assert.equal(last.document.getElementById("common").getAttribute("aria-pressed"), "true");
        assert.deepEqual(all(last, "details").map(one => one.open), [false, true, false, false]);
        assert.equal(last.scrolled, 700);
        assert.deepEqual([last.timers.length, Object.keys(kept).length], [0, 0]);
        assert(/when the run had ended\.$/.test(said(last)));
        assert(/not rewritten since/.test(said(run(data, "", {written: now - 3600, every: 30}))));
        assert(page(report("a")).document.getElementById("written").hidden);
    },
};

function firstPath(page) {
    return page.charts[0].host.querySelector("path").attributes.d;
}

function markupOf(chart) {
    return chart.host.querySelectorAll("path").map(path => path.attributes.d).join() +
        chart.host.querySelectorAll("i").map(box => box.attributes.style).join();
}

let failed = 0;
for (const [name, test] of Object.entries(tests)) {
    try {
        test();
    } catch (error) {
        failed++;
        console.error(`FAILED: ${name}: ${error.stack}`);
    }
}
console.log(`${Object.keys(tests).length} tests of the page's script, ${failed} failed`);
process.exit(failed ? 1 : 0);
