/* archive_module.c: parameters and buffers of modules, out and in again.
 *
 * A tensor that stands in several places of a module (tied weights) is written once, under the
 * path that walks give it. Files of others may have it under another of its paths, or under
 * several: any of them does, if all that are there are equal. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "archive/archive.h"
#include "core/map.h"
#include "core/tensor.h"
#include "evenkeel/autograd.h"
#include "evenkeel/ops.h"

/* ---- out ---- */

typedef struct writer {
    ek_archive *archive;
    const char *name;
} writer;

static int put_tensor(const char *path, ek_tensor *tensor, void *user)
{
    const writer *w = user;
    return ek_archive_add(w->archive, "archive_put_module", w->name, path, tensor,
                          ek_tensor_device(tensor));
}

int ek_archive_put_module(ek_archive *archive, const char *name, ek_module *module)
{
    EK_TRY(ek_archive_check_written(archive, "archive_put_module", name));
    EK_TRY(ek_archive_check_given(module, "archive_put_module", "module"));
    writer w = {archive, name};
    ek_archive_mark mark = ek_archive_begin(archive);
    int status = ek_module_parameters(module, put_tensor, &w);
    if (status == 0)
        status = ek_module_buffers(module, put_tensor, &w);
    return ek_archive_end(archive, mark, status);
}

/* ---- in: which tensor of the file for which of the module ---- */

static const char what[] = "archive_load_module";

/* A tensor of the module. */
typedef struct target {
    char *path;        /* owned */
    ek_tensor *tensor; /* the module's */
    const char *found; /* its name in the file; NULL: there is none */
    ek_tensor *source; /* converted, in the scope; NULL: the file's will do */
    ek_version *fresh; /* a buffer's, to come; a reference */
} target;

typedef struct loading {
    const ek_archive *archive;
    ek_module *module;
    ek_archive_range below;
    size_t skip;     /* bytes of the file's names before the module's paths */
    target *targets; /* parameters, then buffers */
    int count, room, parameters;
    ek_map by_tensor; /* the number of its target and 1 */
    char *prefix;     /* the first `skip` bytes */
    bool *used;       /* by place in the range */
    ek_load_report report;
} loading;

static int note_target(const char *path, ek_tensor *tensor, void *user)
{
    loading *l = user;
    EK_TRY(ek_grow(&l->targets, &l->room, l->count + 1));
    void **number = ek_map_at(&l->by_tensor, tensor);
    char *copy = ek_strdup(path);
    if (!number || !copy) {
        free(copy);
        return EK_E_NO_MEMORY;
    }
    l->targets[l->count++] = (target){.path = copy, .tensor = tensor};
    *number = (void *)(uintptr_t)l->count;
    return 0;
}

static const char *name_at(const loading *l, int i)
{
    return ek_safetensors_sorted(l->archive->file, l->below.begin + i);
}

/* The place in the range of the name that is `prefix` and `path`; -1: none. */
static int find_name(const loading *l, size_t skip, const char *prefix, const char *path)
{
    int low = 0, high = l->below.end - l->below.begin;
    while (low < high) {
        int middle = low + (high - low) / 2;
        const char *name = name_at(l, middle);
        int order = strncmp(name, prefix, skip);
        if (order == 0)
            order = strcmp(name + skip, path);
        if (order == 0)
            return middle;
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return -1;
}

static int count_found(const loading *l, size_t skip, const char *prefix)
{
    int found = 0;
    for (int i = 0; i < l->count; i++)
        found += find_name(l, skip, prefix, l->targets[i].path) >= 0;
    return found;
}

/* A file of a data-parallel module may have "module." before all of its names; if the module
 * itself has a child of that name, what finds more is meant. */
static int choose_prefix(loading *l, const char *name)
{
    static const char of_wrappers[] = "module.";
    size_t length = *name ? strlen(name) + 1 : 0;
    int count = l->below.end - l->below.begin;
    bool everywhere = count > 0;
    l->prefix = ek_calloc(1, length + sizeof of_wrappers);
    if (!l->prefix)
        return EK_E_NO_MEMORY;
    snprintf(l->prefix, length + sizeof of_wrappers, "%s%s", name, length ? "." : "");
    for (int i = 0; i < count && everywhere; i++)
        everywhere = strncmp(name_at(l, i) + length, of_wrappers, strlen(of_wrappers)) == 0;
    l->skip = length;
    int plainly = everywhere ? count_found(l, length, l->prefix) : 0;
    if (!everywhere)
        return 0;
    memcpy(l->prefix + length, of_wrappers, sizeof of_wrappers);
    if (count_found(l, length + strlen(of_wrappers), l->prefix) > plainly)
        l->skip = length + strlen(of_wrappers);
    return 0;
}

/* The number of the target that the module has in another place under this path; -1: none. */
static int find_tied(loading *l, const char *path)
{
    ek_error_record before;
    ek_error_take(&before);
    ek_tensor *tensor = ek_module_tensor(l->module, path);
    void *number = tensor ? ek_map_find(&l->by_tensor, tensor) : NULL;
    ek_error_clear();
    ek_error_raise(&before);
    return number ? (int)(uintptr_t)number - 1 : -1;
}

static bool equal_in_file(const loading *l, const char *a, const char *b)
{
    ek_array_view x, y;
    if (ek_safetensors_view(l->archive->file, a, &x) < 0 ||
        ek_safetensors_view(l->archive->file, b, &y) < 0) {
        ek_error_clear();
        return false;
    }
    return x.element == y.element && ek_shape_equal(&x.shape, &y.shape) &&
           (x.nbytes == 0 || memcmp(x.elements, y.elements, x.nbytes) == 0);
}

static void match_all(loading *l)
{
    for (int i = 0; i < l->count; i++) {
        int place = find_name(l, l->skip, l->prefix, l->targets[i].path);
        if (place < 0)
            continue;
        l->targets[i].found = name_at(l, place);
        l->used[place] = true;
    }
    for (int i = 0; i < l->below.end - l->below.begin; i++) {
        int tied = l->used[i] ? -1 : find_tied(l, name_at(l, i) + l->skip);
        if (tied < 0)
            continue;
        target *t = &l->targets[tied];
        l->used[i] = !t->found || equal_in_file(l, t->found, name_at(l, i));
        t->found = t->found ? t->found : name_at(l, i);
    }
}

/* ---- in: what doesn't fit ---- */

/* Appends `"name"` for each of the first few, then how many more there are. */
typedef struct name_list {
    char text[400];
    size_t length;
    int count;
} name_list;

static void list_name(name_list *list, const char *name)
{
    enum { SHOWN = 3, LONGEST = 100 };
    if (list->count++ >= SHOWN)
        return;
    int n = snprintf(list->text + list->length, sizeof list->text - list->length, "%s\"%.*s\"",
                     list->length ? ", " : "", LONGEST, name);
    list->length += (size_t)n;
}

static const char *end_list(name_list *list)
{
    enum { SHOWN = 3 };
    if (list->count > SHOWN)
        snprintf(list->text + list->length, sizeof list->text - list->length, " (and %d more)",
                 list->count - SHOWN);
    return list->text;
}

static void report_name(char first[256], int *count, const char *name)
{
    if ((*count)++ == 0)
        snprintf(first, 256, "%.255s", name);
}

/* Fills the report; an error that lists the names where `strict`. */
static int compare_names(loading *l, const char *name, bool strict)
{
    name_list missing = {.length = 0}, unexpected = {.length = 0};
    for (int i = 0; i < l->count; i++) {
        if (l->targets[i].found) {
            l->report.loaded++;
            continue;
        }
        list_name(&missing, l->targets[i].path);
        report_name(l->report.first_missing, &l->report.missing, l->targets[i].path);
    }
    for (int i = 0; i < l->below.end - l->below.begin; i++) {
        if (l->used[i])
            continue;
        list_name(&unexpected, name_at(l, i) + l->skip);
        report_name(l->report.first_unexpected, &l->report.unexpected, name_at(l, i) + l->skip);
    }
    if (!strict || missing.count + unexpected.count == 0)
        return 0;
    return EK_FAIL(EK_E_INVALID, "%s: \"%.100s\" of %.200s and the module differ: %s%s%s%s%s", what,
                   name, l->archive->path, missing.count ? "missing: " : "", end_list(&missing),
                   missing.count && unexpected.count ? "; " : "",
                   unexpected.count ? "unexpected: " : "", end_list(&unexpected));
}

/* Shapes and dtypes; the first that differs, and how many more. */
static int check_arrays(const loading *l)
{
    const target *first = NULL;
    char of_file[160], of_module[160];
    int more = 0;
    for (int i = 0; i < l->count; i++) {
        const target *t = &l->targets[i];
        ek_array_view view;
        if (!t->found)
            continue;
        EK_TRY(ek_safetensors_view(l->archive->file, t->found, &view));
        ek_shape shape = ek_tensor_shape(t->tensor);
        if (ek_shape_equal(&view.shape, &shape))
            continue;
        more += first != NULL;
        if (!first)
            ek_shape_text(&view.shape, of_file);
        first = first ? first : t;
    }
    if (!first)
        return 0;
    ek_shape shape = ek_tensor_shape(first->tensor);
    char others[40] = "";
    if (more > 0)
        snprintf(others, sizeof others, ", and %d more differ", more);
    return EK_FAIL(EK_E_SHAPE, "%s: %.200s: \"%.200s\" is %s, in the module it is %s%s", what,
                   l->archive->path, first->found, of_file, ek_shape_text(&shape, of_module),
                   others);
}

/* ---- in: elements ---- */

/* All that may lack memory comes before the first write. Replicas that go on with buffers of their
 * own (.broadcast_buffers off) look at nothing but which version object the module's has: a fresh
 * one has them take what was loaded. */
static int convert_all(loading *l)
{
    for (int i = 0; i < l->count; i++) {
        target *t = &l->targets[i];
        ek_array_view view;
        if (!t->found)
            continue;
        if (i >= l->parameters && !(t->fresh = ek_version_new()))
            return ek_error_pending();
        EK_TRY(ek_safetensors_view(l->archive->file, t->found, &view));
        ek_dtype dtype = ek_tensor_dtype(t->tensor);
        if (view.dtype == dtype && !view.element->widen)
            continue;
        t->source = ek_to_dtype(ek_safetensors_read(l->archive->file, t->found), dtype);
        t->source = t->source ? ek_contiguous(t->source, EK_CONTIGUOUS) : NULL;
        if (!t->source)
            return ek_error_pending();
    }
    return 0;
}

/* Who looks at the buffer still sees in the old version that it was written. */
static void renew_version(target *t)
{
    ek_version *old = t->tensor->version;
    if (!t->fresh)
        return;
    atomic_store_explicit(&t->fresh->count, ek_tensor_version(t->tensor), memory_order_relaxed);
    t->tensor->version = t->fresh;
    t->fresh = NULL;
    ek_object_release(old);
}

/* Straight from the file if that has elements of the module's dtype. */
static int copy_all(const loading *l)
{
    for (int i = 0; i < l->count; i++) {
        target *t = &l->targets[i];
        ek_array_view view;
        if (!t->found)
            continue;
        EK_TRY(ek_safetensors_view(l->archive->file, t->found, &view));
        const void *elements = t->source ? ek_tensor_data(t->source) : view.elements;
        size_t nbytes = (size_t)ek_count(t->tensor) * ek_dtype_size(t->tensor->dtype);
        EK_TRY(ek_set_data(t->tensor, elements, nbytes));
        renew_version(t);
    }
    return 0;
}

static int load(loading *l, const char *name, bool strict)
{
    EK_TRY(ek_module_parameters(l->module, note_target, l));
    l->parameters = l->count;
    EK_TRY(ek_module_buffers(l->module, note_target, l));
    l->used = ek_calloc((size_t)(l->below.end - l->below.begin), sizeof *l->used);
    if (!l->used)
        return EK_E_NO_MEMORY;
    EK_TRY(choose_prefix(l, name));
    match_all(l);
    EK_TRY(compare_names(l, name, strict));
    EK_TRY(check_arrays(l));
    ek_scope scope = ek_scope_begin();
    bool grad_enabled = ek_set_grad_enabled(false);
    int status = convert_all(l);
    if (status == 0)
        status = copy_all(l);
    ek_set_grad_enabled(grad_enabled);
    ek_scope_end(&scope);
    return status;
}

int ek_archive_load_module_with(const ek_archive *archive, const char *name,
                                ek_load_options options)
{
    EK_TRY(ek_archive_check_read(archive, what, name));
    EK_TRY(ek_archive_check_given(options.module, what, "module"));
    loading l = {.archive = archive, .module = options.module};
    l.below = ek_archive_below(archive, name);
    int status = load(&l, name, options.strict != EK_OFF);
    if (status < 0)
        l.report.loaded = 0;
    if (options.report)
        *options.report = l.report;
    for (int i = 0; i < l.count; i++) {
        ek_object_release(l.targets[i].fresh);
        free(l.targets[i].path);
    }
    ek_map_clear(&l.by_tensor);
    free(l.targets);
    free(l.prefix);
    free(l.used);
    return status;
}
