/* module_print.c: modules as text, in the form of Python's print(model). */
#include <stdio.h>
#include <string.h>

#include "core/locale.h"
#include "core/tensor.h"
#include "nn/module_table.h"

/* Writes the module's description without its children. If the module's type has no `describe`,
 * writes the shapes of parameters. */
static void print_describe(const ek_module *module, char *text, size_t size)
{
    text[0] = '\0';
    if (module->type->describe) {
        locale_t before = ek_locale_begin(); /* users' modules have numbers, too */
        module->type->describe(module, text, size);
        ek_locale_end(before);
        return;
    }
    for (int i = 0; i < ek_module_member_count(module); i++) {
        ek_member member = ek_module_member(module, i);
        if (member.kind != EK_MEMBER_PARAMETER || !*member.slot.tensor)
            continue;
        char shape[160];
        const ek_shape dims = ek_tensor_shape(*member.slot.tensor);
        size_t length = strlen(text);
        snprintf(text + length, size - length, "%s%s=%s", length ? ", " : "", member.name,
                 ek_shape_text(&dims, shape));
    }
}

static bool print_has_children(const ek_module *module)
{
    for (int i = 0; i < ek_module_member_count(module); i++) {
        ek_member member = ek_module_member(module, i);
        if (member.kind == EK_MEMBER_MODULE && *member.slot.module)
            return true;
    }
    return false;
}

static void print_module(const ek_module *module, int depth, FILE *stream)
{
    char text[400];
    print_describe(module, text, sizeof text);
    fprintf(stream, "%s(", module->type->name);
    if (!print_has_children(module)) {
        fprintf(stream, "%s)\n", text);
        return;
    }
    fputc('\n', stream);
    if (text[0])
        fprintf(stream, "%*s%s\n", 2 * depth + 2, "", text);
    for (int i = 0; i < ek_module_member_count(module); i++) {
        ek_member member = ek_module_member(module, i);
        if (member.kind != EK_MEMBER_MODULE || !*member.slot.module)
            continue;
        fprintf(stream, "%*s(%s): ", 2 * depth + 2, "", member.name);
        print_module(*member.slot.module, depth + 1, stream);
    }
    fprintf(stream, "%*s)\n", 2 * depth, "");
}

int ek_module_print(const ek_module *module, FILE *stream)
{
    EK_TRY(ek_check_pointer("module_print", "the stream", stream));
    EK_TRY(ek_check_alive("module_print", "the module", module));
    if (module)
        print_module(module, 0, stream);
    else
        fputs("NULL\n", stream);
    if (fflush(stream) != 0 || ferror(stream))
        return EK_FAIL(EK_E_IO, "module_print: the stream does not take what is written");
    return 0;
}
