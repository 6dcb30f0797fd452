/* archive_module.c: writes the parameters and buffers of modules, and loads them.
 *
 * A tensor that a module has in several places (tied weights) is written under each of its paths,
 * because PyTorch's load_state_dict wants all of them. A file may have the tensor under some of its
 * paths only. Of several copies one is loaded, and copies that differ from it are reported as
 * unexpected. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "archive/archive.h"
#include "core/error.h"
#include "core/map.h"
#include "core/tensor.h"
#include "evenkeel/autograd.h"
#include "evenkeel/ops.h"
#include "nn/module_table.h"

/* ---- writing ---- */

static int module_put_tensor(const char *path, ek_tensor *tensor, void *put)
{
    return ek_archive_add(put, path, tensor, ek_tensor_device(tensor));
}

int ek_archive_put_module(ek_archive *archive, const char *name, ek_module *module)
{
    ek_archive_put_call put = {archive, "archive_put_module", name};
    EK_TRY(ek_archive_check_put(&put));
    EK_TRY(ek_archive_check_given(&put, "the module", module));
    ek_archive_mark mark = ek_archive_begin(archive);
    int status = ek_module_tensor_paths(module, EK_MEMBER_PARAMETER, module_put_tensor, &put);
    ek_archive_set_alike(archive, mark); /* buffers may differ between ranks */
    if (status == 0)
        status = ek_module_tensor_paths(module, EK_MEMBER_BUFFER, module_put_tensor, &put);
    return ek_archive_end(archive, mark, status);
}

/* ---- loading: matching tensors of the file and of the module ---- */

/* A tensor of the module. */
typedef struct target {
    char *path;        /* owned */
    ek_tensor *tensor; /* borrowed from the module */
    const char *found; /* the tensor's name in the file, borrowed; NULL: it has none */
    ek_tensor *source; /* the converted tensor, in the scope; NULL: none needed */
    ek_write_count
        *fresh; /* one reference: the buffer's next version object; NULL for a parameter */
} target;

typedef struct loading {
    ek_archive_get_call get;
    const ek_safetensors *file;
    ek_module *module;
    ek_archive_range below;
    char *prefix;    /* the part of the file's names in front of the module's paths */
    size_t skip;     /* length of the prefix in bytes */
    target *targets; /* parameters, then buffers */
    int count, room, parameters;
    ek_map by_tensor; /* from a tensor to the index of its target plus 1 */
    bool *used;       /* true for names of the range that belong to a target */
    ek_load_report report;
} loading;

static int loading_note(const char *path, ek_tensor *tensor, void *user)
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

static const char *loading_name(const loading *l, int i)
{
    return ek_safetensors_sorted(l->file, l->below.begin + i);
}

/* Returns the index, in the range, of the name "<prefix><path>"; negative if there is none. */
static int loading_find(const loading *l, const char *path)
{
    return ek_safetensors_find(l->file, l->prefix, path) - l->below.begin;
}

static int loading_count_found(const loading *l)
{
    int found = 0;
    for (int i = 0; i < l->count; i++)
        found += loading_find(l, l->targets[i].path) >= 0;
    return found;
}

/* Chooses the prefix that finds more of the names. Files of data-parallel modules may have
 * "module." in front of all names, but the module itself may have a child of that name. */
static int loading_choose_prefix(loading *l)
{
    static const char of_wrappers[] = "module.";
    const char *name = l->get.name;
    size_t length = *name ? strlen(name) + 1 : 0;
    int count = l->below.end - l->below.begin;
    bool everywhere = count > 0;
    l->skip = length;
    l->prefix = ek_calloc(1, length + sizeof of_wrappers);
    if (!l->prefix)
        return EK_E_NO_MEMORY;
    snprintf(l->prefix, length + sizeof of_wrappers, "%s%s", name, length ? "." : "");
    for (int i = 0; i < count && everywhere; i++)
        everywhere = strncmp(loading_name(l, i) + length, of_wrappers, strlen(of_wrappers)) == 0;
    if (!everywhere)
        return 0;
    int plainly = loading_count_found(l);
    memcpy(l->prefix + length, of_wrappers, sizeof of_wrappers);
    if (loading_count_found(l) > plainly)
        l->skip = length + strlen(of_wrappers);
    l->prefix[l->skip] = '\0';
    return 0;
}

/* Returns the index of the target that also has this path in the module; -1 if there is none. */
static int loading_find_tied(loading *l, const char *path)
{
    ek_error_record before;
    ek_error_take(&before);
    ek_tensor *tensor = ek_module_tensor(l->module, path);
    void *number = tensor ? ek_map_find(&l->by_tensor, tensor) : NULL;
    ek_error_clear();
    ek_error_raise(&before);
    return number ? (int)(uintptr_t)number - 1 : -1;
}

static bool loading_equal(const loading *l, const char *a, const char *b)
{
    ek_array_view x, y;
    if (ek_safetensors_view(l->file, a, &x) < 0 || ek_safetensors_view(l->file, b, &y) < 0) {
        ek_error_clear();
        return false;
    }
    return ek_array_equal(&x, &y);
}

static void loading_match(loading *l)
{
    for (int i = 0; i < l->count; i++) {
        int place = loading_find(l, l->targets[i].path);
        if (place < 0)
            continue;
        l->targets[i].found = loading_name(l, place);
        l->used[place] = true;
    }
    for (int i = 0; i < l->below.end - l->below.begin; i++) {
        int tied = l->used[i] ? -1 : loading_find_tied(l, loading_name(l, i) + l->skip);
        if (tied < 0)
            continue;
        target *t = &l->targets[tied];
        l->used[i] = !t->found || loading_equal(l, t->found, loading_name(l, i));
        t->found = t->found ? t->found : loading_name(l, i);
    }
}

/* ---- loading: reporting what does not fit ---- */

/* A list of names for a message: the first few in quotes, and the number of all. */
typedef struct name_list {
    const char *first;
    char text[400];
    size_t length;
    int count;
} name_list;

enum { NAMES_SHOWN = 3 };

static void name_list_add(name_list *list, const char *name)
{
    enum { LONGEST = 100 };
    list->first = list->first ? list->first : name;
    if (list->count++ >= NAMES_SHOWN)
        return;
    int n = snprintf(list->text + list->length, sizeof list->text - list->length, "%s\"%.*s\"",
                     list->length ? ", " : "", LONGEST, name);
    list->length += (size_t)n;
}

/* Writes the number of all names to `count` and the first one to `first`. Returns the list's text,
 * completed by the number of names that it leaves out. */
static const char *name_list_end(name_list *list, int *count, char first[256])
{
    if (list->count > NAMES_SHOWN)
        snprintf(list->text + list->length, sizeof list->text - list->length, " (and %d more)",
                 list->count - NAMES_SHOWN);
    *count = list->count;
    snprintf(first, 256, "%.255s", list->first ? list->first : "");
    return list->text;
}

/* Fills the report. If `strict` and names differ, fails with a list of them. */
static int loading_compare_names(loading *l, bool strict)
{
    ek_load_report *report = &l->report;
    name_list missing = {.length = 0}, unexpected = {.length = 0};
    for (int i = 0; i < l->count; i++) {
        if (l->targets[i].found)
            report->loaded++;
        else
            name_list_add(&missing, l->targets[i].path);
    }
    for (int i = 0; i < l->below.end - l->below.begin; i++)
        if (!l->used[i])
            name_list_add(&unexpected, loading_name(l, i) + l->skip);
    const char *lacks = name_list_end(&missing, &report->missing, report->first_missing);
    const char *has = name_list_end(&unexpected, &report->unexpected, report->first_unexpected);
    if (!strict || missing.count + unexpected.count == 0)
        return 0;
    return EK_FAIL(EK_E_INVALID, "%s: \"%.100s\" of %.200s and the module differ: %s%s%s%s%s",
                   l->get.what, l->get.name, l->get.archive->path, *lacks ? "missing: " : "", lacks,
                   *lacks && *has ? "; " : "", *has ? "unexpected: " : "", has);
}

/* Checks shapes and dtypes. The error names the first tensor that differs, and how many more do. */
static int loading_check_arrays(const loading *l)
{
    const target *first = NULL;
    char of_file[160], of_module[160];
    int more = 0;
    for (int i = 0; i < l->count; i++) {
        const target *t = &l->targets[i];
        ek_array_view view;
        if (!t->found)
            continue;
        EK_TRY(ek_safetensors_view(l->file, t->found, &view));
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
    return EK_FAIL(EK_E_SHAPE, "%s: %.200s: \"%.200s\" is %s, in the module it is %s%s",
                   l->get.what, l->get.archive->path, first->found, of_file,
                   ek_shape_text(&shape, of_module), others);
}

/* ---- loading: elements ---- */

/* Does all that may run out of memory, before anything is written. Each buffer gets a fresh version
 * object, because replicas with buffers of their own (.broadcast_buffers off) take the module's
 * buffer only if its version object is a new one. */
static int loading_convert(loading *l)
{
    for (int i = 0; i < l->count; i++) {
        target *t = &l->targets[i];
        ek_array_view view;
        if (!t->found)
            continue;
        if (i >= l->parameters && !(t->fresh = ek_version_new()))
            return ek_error_pending();
        EK_TRY(ek_safetensors_view(l->file, t->found, &view));
        ek_dtype dtype = ek_tensor_dtype(t->tensor);
        if (view.dtype == dtype && ek_array_is_plain(&view))
            continue;
        t->source = ek_to_dtype(ek_safetensors_read(l->file, t->found), dtype);
        t->source = t->source ? ek_contiguous(t->source, EK_CONTIGUOUS) : NULL;
        if (!t->source)
            return ek_error_pending();
    }
    return 0;
}

/* Gives the buffer its fresh version object. Graphs that saved the buffer keep the old one. */
static void target_renew_version(target *t)
{
    ek_write_count *old = t->tensor->version;
    if (!t->fresh)
        return;
    atomic_store_explicit(&t->fresh->count, ek_tensor_version(t->tensor), memory_order_relaxed);
    t->tensor->version = t->fresh;
    t->fresh = NULL;
    ek_object_release(old);
}

/* Copies each tensor's converted elements, or those of the file if they have the module's dtype. */
static int loading_copy(const loading *l)
{
    for (int i = 0; i < l->count; i++) {
        target *t = &l->targets[i];
        ek_array_view view;
        if (!t->found)
            continue;
        EK_TRY(ek_safetensors_view(l->file, t->found, &view));
        const void *elements = t->source ? ek_tensor_data(t->source) : view.elements;
        size_t nbytes = (size_t)ek_count(t->tensor) * ek_dtype_size(t->tensor->dtype);
        EK_TRY(ek_set_data(t->tensor, elements, nbytes));
        target_renew_version(t);
    }
    return 0;
}

static int loading_run(loading *l, bool strict)
{
    EK_TRY(ek_module_parameters(l->module, loading_note, l));
    l->parameters = l->count;
    EK_TRY(ek_module_buffers(l->module, loading_note, l));
    l->used = ek_calloc((size_t)(l->below.end - l->below.begin), sizeof *l->used);
    if (!l->used)
        return EK_E_NO_MEMORY;
    EK_TRY(loading_choose_prefix(l));
    loading_match(l);
    EK_TRY(loading_compare_names(l, strict));
    EK_TRY(loading_check_arrays(l));
    ek_scope scope = ek_scope_begin();
    bool grad_enabled = ek_set_grad_enabled(false);
    int status = loading_convert(l);
    if (status == 0)
        status = loading_copy(l);
    ek_set_grad_enabled(grad_enabled);
    ek_scope_end(&scope);
    return status;
}

int ek_archive_load_module_with(ek_load_options options)
{
    const ek_archive *archive = options.archive;
    const char *name = options.name;
    loading l = {.get = {archive, "archive_load_module", name, NULL}, .module = options.module};
    EK_TRY(ek_archive_check_get(&l.get));
    EK_TRY(ek_check_handle(l.get.what, "the module", options.module));
    l.file = archive->file;
    l.below = ek_archive_below(archive, name);
    int status = loading_run(&l, options.strict);
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
