/* tensor_print.c: tensors as text for people, in the style of NumPy. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/locale.h"
#include "core/tensor.h"

enum { COLUMNS = 80, SUMMARISED = 1000, EDGE = 3, ELEMENT = 32 };

typedef struct printer {
    FILE *stream;
    const ek_tensor *tensor;
    const char *rows; /* all elements, row-major */
    bool summarised;
    bool measured;     /* `width` is known; until then nothing is written */
    int width, column; /* the width of the widest element; the current column */
} printer;

static int print_element_text(const printer *p, int64_t i, char text[ELEMENT])
{
    const char *element = p->rows + (size_t)i * ek_dtype_size(p->tensor->dtype);
    if (p->tensor->dtype == EK_I64) {
        int64_t value;
        memcpy(&value, element, sizeof value);
        return snprintf(text, ELEMENT, "%" PRId64, value);
    }
    if (p->tensor->dtype == EK_BOOL)
        return snprintf(text, ELEMENT, "%s", *element ? "true" : "false");
    return (int)ek_format(text, ELEMENT, "%.7g", ek_element_double(element, p->tensor->dtype));
}

static void print_put(printer *p, const char *text)
{
    if (p->measured)
        fputs(text, p->stream);
    p->column += (int)strlen(text);
}

/* Begins a new line, indented for `depth` open brackets. */
static void print_put_line(printer *p, int depth)
{
    if (p->measured)
        fprintf(p->stream, "\n%*s", depth, "");
    p->column = depth;
}

static void print_put_element(printer *p, int64_t i)
{
    char text[ELEMENT], padded[2 * ELEMENT];
    int length = print_element_text(p, i, text);
    if (!p->measured && length > p->width)
        p->width = length;
    snprintf(padded, sizeof padded, "%*s", p->measured ? p->width : 0, text);
    print_put(p, padded);
}

/* Returns true if element or row `i` of a dimension of `size` is replaced by "...". */
static bool print_is_left_out(const printer *p, int64_t i, int64_t size)
{
    return p->summarised && size > 2 * EDGE && i >= EDGE && i < size - EDGE;
}

/* Writes the elements of dimension `dim` and of the dimensions after it, from element `first`
 * on. */
static void print_put_part(printer *p, int dim, int64_t first)
{
    const ek_tensor *t = p->tensor;
    if (dim == t->ndim) {
        print_put_element(p, first);
        return;
    }
    if (dim == 0 && ek_count(t) == 0) { /* any number of rows without elements is written as [] */
        print_put(p, "[]");
        return;
    }
    int64_t size = t->shape[dim], each = 1;
    for (int d = dim + 1; d < t->ndim; d++)
        each *= t->shape[d];
    bool innermost = dim == t->ndim - 1;
    print_put(p, "[");
    for (int64_t i = 0; i < size; i++) {
        bool left_out = print_is_left_out(p, i, size);
        if (i > 0 && innermost) {
            /* The next element must fit into the line together with the comma or brackets after
             * it. */
            bool fits = p->column + 2 + (left_out ? 3 : p->width) + t->ndim <= COLUMNS;
            print_put(p, fits || !p->measured ? ", " : ",");
            if (!fits && p->measured)
                print_put_line(p, t->ndim);
        } else if (i > 0) {
            print_put(p, ",");
            for (int blank = dim + 2; blank < t->ndim && p->measured; blank++)
                fputc('\n', p->stream); /* an empty line between matrices */
            print_put_line(p, dim + 1);
        }
        if (left_out) {
            print_put(p, "...");
            i = size - EDGE - 1;
        } else {
            print_put_part(p, dim + 1, first + i * each);
        }
    }
    print_put(p, "]");
}

static void print_tensor(printer *p)
{
    char text[200];
    const ek_tensor *t = p->tensor;
    fprintf(p->stream, "%s:", ek_tensor_text(t, text));
    print_put_part(p, 0, 0); /* this first call only measures */
    bool one_line =
        (t->ndim < 2 || ek_count(t) == 0) && p->column + (int)strlen(text) + 2 <= COLUMNS;
    if (one_line)
        p->width = 0;
    fputc(one_line ? ' ' : '\n', p->stream);
    p->measured = true;
    p->column = one_line ? (int)strlen(text) + 2 : 0;
    print_put_part(p, 0, 0);
    fputc('\n', p->stream);
}

int ek_tensor_print(const ek_tensor *tensor, FILE *stream)
{
    EK_TRY(ek_check_pointer("tensor_print", "the stream", stream));
    EK_TRY(ek_check_alive("tensor_print", "the tensor", tensor));
    if (tensor) {
        int64_t count = ek_count(tensor);
        size_t nbytes = (size_t)count * ek_dtype_size(tensor->dtype);
        char *rows = ek_calloc(1, nbytes);
        if (!rows)
            return ek_error_pending();
        int rc = ek_to_data(tensor, rows, nbytes);
        if (rc >= 0)
            print_tensor(&(printer){.stream = stream,
                                    .tensor = tensor,
                                    .rows = rows,
                                    .summarised = count > SUMMARISED});
        free(rows);
        EK_TRY(rc);
    } else {
        fputs("NULL\n", stream);
    }
    if (fflush(stream) != 0 || ferror(stream))
        return EK_FAIL(EK_E_IO, "tensor_print: the stream does not take what is written");
    return 0;
}
