# What Doxygen reads in place of the headers and of the Markdown files, so that these can stay as people read them, and
# what the documentation's test knows about them. Of a header it prints one whose every function and macro has a comment
# of Doxygen's (base.h says what the headers' comments hold for: for a paragraph, and for the macro rather than for the
# function that it calls), of a page one whose links lead to pages, and whose names of functions to their descriptions.
# The program's variable `mode` asks for something else:
#
#   names      what all headers that are given declare: a name, a tab, and function (or macro), type or shorthand
#   pytorch    the table of names in include/evenkeel/README.md: PyTorch's name, what it is called here, a note, with tabs
#   aliases    a header of PyTorch's names, which search boxes find, and of names without ek_
#
# The variable `names` is a file of what mode `names` prints, `torch` one of what mode `pytorch` prints, `root` the
# project's folder, `pages` the Markdown files in it. documentation_pages.awk, which is read with this file, has what
# reads Markdown.
BEGIN {
    while (names && (getline line < names) > 0) {
        sub(/\t.*/, "", line)
        known[line] = 1
    }
    while (torch && (getline line < torch) > 0) {
        split(line, pair, "\t")
        called[pair[2]] = called[pair[2]] (called[pair[2]] ? ", " : "") "`" pair[1] "`"
    }
    if (mode == "aliases")
        print_aliases()
}

{ L[++lines] = $0 }

END {
    if (mode == "names")
        print_names()
    else if (mode == "pytorch")
        print_pytorch()
    else if (FILENAME ~ /\.md$/)
        print_markdown()
    else if (mode == "")
        print_header()
}

# ---- text ----

# A code span as Doxygen is to read it: a name that is known is a link, and one with an apostrophe, which would end the
# span, is written otherwise.
function code(text) {
    if (text in known)
        return "@ref " text " \"" text "\""
    if (!index(text, "'"))
        return "`" text "`"
    gsub(/&/, "\\&amp;", text)
    gsub(/</, "\\&lt;", text)
    return "<code>" text "</code>"
}

# A line, or if a code span goes on in the next ones, these with it. Sets `behind` to the line behind them.
function whole_spans(lines_of, count, at,    text) {
    text = lines_of[at]
    while (gsub(/`/, "`", text) % 2 && at < count && lines_of[at + 1] != "")
        text = text " " lines_of[++at]
    behind = at + 1
    return text
}

# Prose as Doxygen is to read it: what would be a command, a mark or a list is escaped, names become links.
function prose(text,    parts, count, i, result) {
    sub(/^[-+] /, "\\\\&", text)
    if (match(text, /^[0-9]+\. /))
        text = substr(text, 1, RLENGTH - 2) "\\" substr(text, RLENGTH - 1)
    count = split(text, parts, "`")
    for (i = 1; i <= count; i++)
        if (i % 2 == 0)
            result = result code(parts[i])
        else {
            gsub(/[\\@<>#&*%$|]/, "\\\\&", parts[i])
            gsub(/(^| )_/, "&\\_", parts[i])
            gsub(/_\\_/, "\\_", parts[i])
            result = result linked(parts[i])
        }
    return result
}

# The text with each known name as a link.
function linked(text,    result, name) {
    while (match(text, /[A-Za-z0-9_]+/)) {
        name = substr(text, RSTART, RLENGTH)
        result = result substr(text, 1, RSTART - 1) (name in known ? "@ref " name " \"" name "\"" : name)
        text = substr(text, RSTART + RLENGTH)
    }
    return result text
}

# Lines of a comment without its stars, each prose unless it is indented, as programs and tables are.
function comment_text(text,    parts, count, i, line, result) {
    sub(/^[ \t]*\/\*+<?/, "", text)
    sub(/[ \t]*\*\/[ \t]*$/, "", text)
    count = split(text, parts, "\n")
    for (i = 1; i <= count; i++) {
        if (i > 1)
            sub(/^[ \t]*\*?/, "", parts[i])
        sub(/^ /, "", parts[i])
    }
    for (i = 1; i <= count; i = behind) {
        behind = i + 1
        line = parts[i] ~ /^    / ? parts[i] : prose(whole_spans(parts, count, i))
        result = result (result == "" ? "" : "\n") line
    }
    return result
}

# ---- headers ----

# Reads a comment that begins at line `at`; returns its text as it stands, and sets `after` to the line behind it.
function whole_comment(at,    text) {
    text = L[at]
    while (index(L[at], "*/") == 0 && at < lines)
        text = text "\n" L[++at]
    after = at + 1
    return text
}

# Reads a declaration that begins at line `at`, likewise.
function whole_declaration(at,    text, body, depth) {
    text = L[at]
    if (text ~ /^#define/)
        while (L[at] ~ /\\$/ && at < lines)
            text = text "\n" L[++at]
    else
        while (1) {
            body = L[at]
            sub(/\/\*.*/, "", body)
            depth += gsub(/\{/, "", body) - gsub(/\}/, "", body)
            if (depth <= 0 && (body ~ /;[ \t]*$/ || L[at] ~ /^\}/) || at >= lines)
                break
            text = text "\n" L[++at]
        }
    while (text ~ /\/\*[^\n]*$/ && text !~ /\*\/[ \t]*$/ && at < lines)
        text = text "\n" L[++at]
    after = at + 1
    return text
}

# The name that a declaration declares.
function declared(text,    head) {
    head = text
    gsub(/\n/, " ", head)
    if (head ~ /^#define/) {
        sub(/^#define /, "", head)
        sub(/[^A-Za-z0-9_].*/, "", head)
        return head
    }
    if (head ~ /^(EK_API|static inline)/) {
        sub(/\(.*/, "", head)
        sub(/.*[ *]/, "", head)
        return head
    }
    return ""
}

# For macros that fill a struct: the struct and the members that go by position. EK_X_CALL(function, ...) stands for the
# EK_CALL that it is.
function options_of(text,    call, after) {
    gsub(/\\?\n */, "", text)
    if (match(text, /EK_[A-Z0-9_]+_CALL\([a-z0-9_]+, __VA_ARGS__\)/)) {
        call = substr(text, RSTART, RLENGTH)
        sub(/\(.*/, "", call)
        if (call in shorthand)
            return shorthand[call]
    }
    if (!match(text, /EK_CALL(_AFTER)?(_[1-9])?\([a-z0-9_]+, [a-z0-9_(), ]*/))
        return ""
    text = substr(text, RSTART, RLENGTH)
    after = text ~ /^EK_CALL_AFTER/
    sub(/^[^(]*\([^,]*, /, "", text) # the function
    if (after)
        sub(/^[^,]*, /, "", text)
    sub(/[, ]+(__)?$/, "", text)
    return text
}

function options_struct(name) {
    name = shorthand[name]
    sub(/,.*/, "", name)
    return name
}

function arguments(text,    members, name) {
    text = options_of(text)
    if (text == "")
        return ""
    name = members = text
    sub(/,.*/, "", name)
    if (!sub(/^[^,]*, */, "", members))
        return "\n\n@par Arguments\nMembers of " linked(name) ", by name."
    return "\n\n@par Arguments\n" members "; then members of " linked(name) ", by name."
}

function print_header(    i, at, n, text, comment, kind, name, doc, item, fresh, group, callee) {
    for (i = 1; i <= lines; i = after) { # items: comments, declarations, and lines of other kinds
        item++
        if (L[i] ~ /^\/\*/) {
            text = whole_comment(i)
            kind = text ~ /^\/\* ----/ ? "section" : text ~ /^\/\*\* @file/ ? "file" : text ~ /^\/\*\*/ ? "comment" : "other"
        } else if (L[i] ~ /^(EK_API|#define (ek|EK)_|typedef|enum|struct [a-z_]+ \{|static inline)/) {
            text = whole_declaration(i)
            kind = "declaration"
        } else {
            text = L[i]
            kind = text == "" ? "empty" : "other"
            after = i + 1
        }
        K[item] = kind
        X[item] = text
        if (kind == "empty" || kind == "section" || kind == "file")
            doc = ""
        else if (kind == "comment") {
            doc = (fresh ? doc "\n\n" : "") comment_text(text)
            fresh = 1
            continue
        } else if (kind == "declaration") {
            D[item] = doc
            N[item] = name = declared(text)
            if (name != "" && !(name in documented))
                documented[name] = doc
            if (text ~ /^#define EK_[A-Z0-9_]+_CALL\(function, \.\.\.\)/)
                shorthand[name] = options_of(substr(text, index(text, ")")))
            if (text ~ /^#define (ek|EK)_/ && match(text, /\)[^()]*ek_[a-z0-9_]+\(|_CALL(_AFTER)?\(ek_[a-z0-9_]+,|EK_CALL[A-Z0-9_]*\(ek_[a-z0-9_]+,/)) {
                callee = substr(text, RSTART, RLENGTH)
                sub(/^.*[^a-z0-9_]ek_/, "ek_", callee)
                gsub(/[^a-z0-9_]/, "", callee)
                if (index(callee, tolower(name)) == 1) {
                    wrapped[name] = callee
                    wraps[callee] = name
                }
            }
        }
        fresh = 0
    }
    for (i = 1; i <= item; i++) {
        text = X[i]
        if (K[i] == "comment")
            continue
        if (K[i] == "file") {
            text = comment_text(text)
            sub(/^\\@file\n[a-z0-9_]+\.h: /, "", text)
            print "/** @file\n" toupper(substr(text, 1, 1)) substr(text, 2) " */"
        } else if (K[i] == "section") {
            if (group)
                print "/** @} */"
            group = 1
            text = comment_text(text)
            sub(/^---- /, "", text)
            n = index(text, " ----")
            print "/** @name " toupper(substr(text, 1, 1)) substr(text, 2, n - 2) "\n" substr(text, n + 5) " */\n/** @{ */"
        } else if (K[i] == "declaration")
            print_declaration(text, N[i], D[i])
        else {
            if (text ~ /^EK_END_DECLARATIONS/ && group) {
                print "/** @} */"
                group = 0
            }
            print text
        }
    }
}

function print_declaration(text, name, doc,    at, trailing, parts, count, i) {
    if (text ~ /^(EK_API|static inline)/ && (at = index(text, "/**<"))) {
        trailing = comment_text(substr(text, at))
        text = substr(text, 1, at - 1)
        doc = trailing (doc == "" ? "" : "\n\n" doc)
    }
    if (doc == "" && name in wrapped)
        doc = documented[wrapped[name]]
    if (name in wraps && (doc == "" || documented[wraps[name]] != ""))
        doc = "What the macro " linked(wraps[name]) " calls, with its options as a struct."
    if (doc == "" && name in shorthand)
        doc = "Calls a function with a " linked(options_struct(name)) " that is made of the arguments."
    else if (text ~ /^#define ek_/)
        doc = doc arguments(text)
    if (name in called)
        doc = doc "\n\n@par PyTorch\n" called[name]
    if (doc != "")
        print "/** " doc " */"
    if (text ~ /^#define/) {
        print text
        return
    }
    count = split(text, parts, "\n")
    for (i = 1; i <= count; i++) { # members of structs and values of enumerations have comments, too
        text = parts[i]
        trailing = ""
        if (at = index(text, "/**")) {
            trailing = substr(text, at)
            text = substr(text, 1, at - 1)
            while (index(trailing, "*/") == 0 && i < count)
                trailing = trailing "\n" parts[++i]
            if (text !~ /[^ ]/) { # it stands before its member
                trailing = trailing " " parts[i + 1]
                text = substr(trailing, index(trailing, "*/") + 3)
                trailing = substr(trailing, 1, index(trailing, "*/") + 1)
                i++
            }
        }
        print_members(text, trailing == "" ? "" : "/** " comment_text(trailing) " */")
    }
}

# A line of a struct; each of several members in it has the comment.
function print_members(text, comment,    type, members, count, i) {
    if (comment == "" || text !~ /^ +(const )?[a-z0-9_]+ [a-z0-9_*, []+[^(]*; *$/ || !match(text, /^ +(const )?[a-z0-9_]+ /)) {
        print comment (comment == "" ? "" : "\n") text
        return
    }
    type = substr(text, 1, RLENGTH)
    text = substr(text, RLENGTH + 1)
    sub(/; *$/, "", text)
    count = split(text, members, /, */)
    for (i = 1; i <= count; i++)
        print comment "\n" type members[i] ";"
}

function print_names(    i, text, name, foreign) {
    for (i = 1; i <= lines; i = after) {
        after = i + 1
        if (L[i] ~ /^#(ifdef|elif defined).*__(cplusplus|clang__)/)
            foreign = 1 # Doxygen reads neither C++'s part nor clang's
        else if (L[i] ~ /^#(elif|else|endif)/)
            foreign = 0
        else if (L[i] ~ /^\/\*/)
            whole_comment(i)
        else if (!foreign && L[i] ~ /^(EK_API|#define (ek|EK)_|static inline|typedef (struct|enum) ek_[a-z0-9_]+ \{)/) {
            text = whole_declaration(i)
            name = declared(text)
            if (name == "") {
                name = text
                sub(/^typedef (struct|enum) /, "", name)
                sub(/ .*/, "", name)
            }
            print name "\t" (text ~ /^typedef/ ? "type" : name ~ /^EK_/ ? "shorthand" : "function")
        }
    }
}
