# The part of documentation.awk that reads Markdown: the table of PyTorch's names in include/evenkeel/README.md, and pages.

# ---- the table of names ----

# The names that the code spans of a cell stand for: `torch.{add, sub}` are two. Each is put into `list`, with the number
# of its span in `span`; returns how many there are.
function cell_names(cell, list, span,    parts, spans, i, j, items, count, open, close_, n) {
    spans = split(cell, parts, "`")
    for (i = 2; i <= spans; i += 2) {
        open = index(parts[i], "{")
        close_ = index(parts[i], "}")
        if (open == 0 || close_ < open) {
            list[++n] = parts[i]
            span[n] = i
            continue
        }
        count = split(substr(parts[i], open + 1, close_ - open - 1), items, /, */)
        for (j = 1; j <= count; j++) {
            list[++n] = substr(parts[i], 1, open - 1) items[j] substr(parts[i], close_ + 1)
            span[n] = i
        }
    }
    return n
}

# Sets LEFT[1..n] to PyTorch's names of a row and RIGHT[i, 1..RIGHTS[i]] to what each is called here: `ek_*` has its name,
# a span of as many names as the left cell has one for each, other spans are for all; and NOTE to the third cell. Returns
# n, 0 for other lines.
function row_names(line,    cells, i, k, n, list, span, right, of, count, width, last) {
    if (line !~ /^\| *`/)
        return 0
    split(line, cells, "|")
    delete LEFT
    NOTE = cells[4]
    gsub(/^ +| +$/, "", NOTE)
    n = cell_names(cells[2], LEFT, span)
    count = cell_names(cells[3], right, of)
    for (k = 1; k <= count; k++)
        width[of[k]]++
    for (i = 1; i <= n; i++) {
        RIGHTS[i] = 0
        last = LEFT[i]
        sub(/.*\./, "", last)
        for (k = 1; k <= count; k++) {
            place[of[k]] = k > 1 && of[k] == of[k - 1] ? place[of[k]] + 1 : 1
            if (width[of[k]] > 1 && width[of[k]] == n && place[of[k]] != i)
                continue
            RIGHT[i, ++RIGHTS[i]] = right[k]
            sub(/\*/, last, RIGHT[i, RIGHTS[i]])
        }
    }
    return n
}

function print_pytorch(    i, j, k, n) {
    for (i = 1; i <= lines; i++) {
        n = row_names(L[i])
        for (j = 1; j <= n; j++)
            for (k = 1; k <= RIGHTS[j]; k++)
                print LEFT[j] "\t" RIGHT[j, k] "\t" (k == RIGHTS[j] ? NOTE : "")
    }
}

# What is said of a name, whose spelling is that of its first mention: "`torch.gather` is ek_gather_dim; ...".
function alias(name, subject, text, note,    key) {
    if (name !~ /^[A-Za-z_][A-Za-z0-9_]*$/)
        return
    key = tolower(name)
    if (!(key in spelt)) {
        keys[++aliases] = key
        spelt[key] = name
    }
    if (subject == "" && (key, text) in mentioned)
        return
    mentioned[key, text]
    if (subject == latest[key])
        said[key] = said[key] (said[key] ? ", " : "") text
    else
        said[key] = said[key] (said[key] ? "; " : "") subject text
    said[key] = said[key] note
    latest[key] = subject
}

function print_aliases(    line, pair, name, i) {
    close(torch)
    while ((getline line < torch) > 0) {
        split(line, pair, "\t")
        name = pair[1]
        sub(/.*\./, "", name)
        alias(name, "`" pair[1] "` is ", code(pair[2]), pair[3] ~ /[^ ]/ ? " (" spans(pair[3]) ")" : "")
    }
    close(names)
    while ((getline line < names) > 0)
        if (sub(/\tfunction$/, "", line) && line !~ /_(with|of)$/) {
            name = line
            sub(/^ek_(f_|dist_)?/, "", name)
            alias(name, "", code(line), "")
        }
    print "/** @defgroup pytorch Names of PyTorch, and names without ek_\n * What they are called here.\n * @{ */"
    for (i = 1; i <= aliases; i++)
        print "/** " said[keys[i]] ". */\n#define " spelt[keys[i]]
    print "/** @} */"
    exit
}

# ---- pages ----

function page_id(path) {
    if (path == "README.md")
        return "mainpage"
    sub(/\.md$/, "", path)
    gsub(/[^A-Za-z0-9]/, "_", path)
    return "page_" path
}

# The part of an address behind #, as hosts of repositories make it of a headline.
function slug(headline) {
    headline = tolower(headline)
    gsub(/[^a-z0-9 _-]/, "", headline)
    gsub(/ /, "-", headline)
    return headline
}

# Where a link of this page leads: what stands in its parentheses on the site, or "" if the site does not have that.
function target_of(target,    path, part, at) {
    if (target ~ /^https?:/)
        return target
    if (at = index(target, "#")) {
        part = "_" substr(target, at + 1)
        target = substr(target, 1, at - 1)
    }
    path = target == "" ? page : folder target
    sub(/\/$/, "", path)
    while (sub(/[^\/]+\/\.\.\//, "", path))
        ;
    if (path ~ /^include\/evenkeel\/[a-z0-9_]+\.h$/) {
        sub(/.*\//, "", path)
        return "@ref " path
    }
    if (index(" " pages " ", " " path "/README.md "))
        path = path "/README.md"
    else if (!index(" " pages " ", " " path " "))
        return ""
    return "@ref " (part == "" ? path == "README.md" ? "index" : page_id(path) : page_id(path) part)
}

# A line's code spans that are names, as links.
function spans(text,    parts, count, i, result) {
    count = split(text, parts, "`")
    for (i = 1; i <= count; i++)
        if (i % 2 == 0)
            result = result code(parts[i])
        else {
            gsub(/@/, "\\\\@", parts[i])
            result = result parts[i]
        }
    return result
}

function line_of_page(text,    result, link, words, target) {
    while (match(text, /\[[^]]*\]\([^)]*\)/)) {
        link = substr(text, RSTART + 1, RLENGTH - 2)
        words = target = link
        sub(/\]\(.*/, "", words)
        sub(/^[^]]*\]\(/, "", target)
        target = target_of(target)
        result = result spans(substr(text, 1, RSTART - 1))
        text = substr(text, RSTART + RLENGTH)
        if (target == "")
            result = result words
        else {
            gsub(/`/, "", words)
            result = result "[" words "](" target ")"
        }
    }
    return result spans(text)
}

# A row of the table of names, with all names of the right cell as links.
function row_of_page(line, n,    cells, count, i, k, text, seen) {
    count = split(line, cells, "|")
    for (i = 1; i <= n; i++)
        for (k = 1; k <= RIGHTS[i]; k++)
            if (!(RIGHT[i, k] in seen)) {
                seen[RIGHT[i, k]]
                text = text (text ? ", " : " ") spans("`" RIGHT[i, k] "`")
            }
    line = "|" spans(cells[2]) "|" text " |"
    for (i = 4; i < count; i++)
        line = line line_of_page(cells[i]) "|"
    return line
}

function print_markdown(    i, fenced, text, n, first) {
    page = folder = substr(FILENAME, index(FILENAME, root) == 1 ? length(root) + 2 : 1)
    if (!sub(/[^\/]*$/, "", folder))
        folder = ""
    for (i = 1; i <= lines; i = behind) {
        text = L[i]
        behind = i + 1
        if (text ~ /^```/)
            fenced = !fenced
        if (fenced || text ~ /^(```|    )/)
            print text
        else if (text ~ /^#+ /) {
            n = text
            sub(/^#+ /, "", n)
            print spans(text) " {#" page_id(page) (first++ ? "_" slug(n) : "") "}"
        } else if (text ~ /^\[[A-Za-z0-9_]+\.c\]\([A-Za-z0-9_]+\.c\)$/) {
            sub(/^.*\(/, "", text)
            sub(/\)$/, "", text)
            print "@include " folder text
        } else if (n = row_names(text))
            print row_of_page(text, n)
        else
            print line_of_page(whole_spans(L, lines, i))
    }
}
