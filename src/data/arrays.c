/* arrays.c: files that hold one array: reads the IDX format and NumPy's, writes NumPy's.
 *
 * An IDX file has a magic number (two zero bytes, element type, dimensions), the sizes as
 * big-endian u32, and the elements in row-major order.
 *
 * NumPy's has a magic number, a version, the length of the header, the header, and the elements.
 * The header is a Python dictionary of three literals:
 *
 *     {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }
 *
 * The parser accepts these three entries in any order and spacing, and no other Python. */
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/file.h"
#include "core/tensor.h"
#include "data/element.h"
#include "data/stream.h"
#include "evenkeel/data.h"

typedef struct array_header {
    const ek_element *element;
    bool fortran_order; /* the first index varies fastest */
    ek_shape shape;
} array_header;

/* ---- IDX ---- */

enum { IDX_U8 = 0x08 };

static int idx_read_header(ek_byte_stream *stream, array_header *header)
{
    uint8_t magic[4], size[4];
    EK_TRY(ek_byte_stream_read_header(stream, magic, sizeof magic));
    if (magic[0] != 0 || magic[1] != 0)
        return EK_FAIL_IN(EK_E_FORMAT, stream,
                          "not an IDX file: it begins with %02x %02x instead of 00 00", magic[0],
                          magic[1]);
    if (magic[2] != IDX_U8)
        return EK_FAIL_IN(EK_E_FORMAT, stream,
                          "elements of type 0x%02x; unsigned bytes (0x08) are read", magic[2]);
    if (magic[3] < 1 || magic[3] > EK_MAX_DIMS)
        return EK_FAIL_IN(EK_E_FORMAT, stream, "%d dimensions; 1 to %d are read", magic[3],
                          EK_MAX_DIMS);
    header->element = ek_element_of(EK_U8);
    for (int i = 0; i < magic[3]; i++) {
        EK_TRY(ek_byte_stream_read_header(stream, size, sizeof size));
        EK_TRY(ek_byte_stream_add_size(stream, &header->shape,
                                       (int64_t)size[0] << 24 | size[1] << 16 | size[2] << 8 |
                                           size[3]));
    }
    return 0;
}

/* ---- NumPy: tokens of the header ---- */

enum { MAX_HEADER = 65535 }; /* bytes: the most that version 1 allows */

typedef struct npy_parser {
    const ek_byte_stream *stream;
    const char *text;
    size_t nbytes, at;
} npy_parser;

/* Skips white space. Returns the next byte without consuming it, or NUL at the end. */
static char npy_look(npy_parser *p)
{
    while (p->at < p->nbytes && strchr(" \t\r\n", p->text[p->at]) && p->text[p->at])
        p->at++;
    return p->at < p->nbytes ? p->text[p->at] : '\0';
}

static int npy_fail(npy_parser *p, const char *wanted)
{
    unsigned char found = (unsigned char)npy_look(p);
    char name[32];
    if (p->at >= p->nbytes)
        snprintf(name, sizeof name, "it ends");
    else
        snprintf(name, sizeof name,
                 found >= ' ' && found < 127 ? "there is '%c'" : "there is 0x%02x", found);
    return EK_FAIL_IN(EK_E_FORMAT, p->stream, "at byte %zu of its header %s instead of %s", p->at,
                      name, wanted);
}

static bool npy_accept(npy_parser *p, char wanted)
{
    if (npy_look(p) != wanted)
        return false;
    p->at++;
    return true;
}

static int npy_expect(npy_parser *p, char wanted)
{
    char name[] = {'\'', wanted, '\'', '\0'};
    return npy_accept(p, wanted) ? 0 : npy_fail(p, name);
}

static bool npy_accept_word(npy_parser *p, const char *word)
{
    size_t nbytes = strlen(word);
    npy_look(p);
    if (p->nbytes - p->at < nbytes || memcmp(p->text + p->at, word, nbytes) != 0)
        return false;
    p->at += nbytes;
    return true;
}

/* Parses a string of printable ASCII without escapes. */
static int npy_parse_string(npy_parser *p, char *string, size_t room)
{
    char quote = npy_look(p);
    size_t nbytes = 0;
    if (quote != '\'' && quote != '"')
        return npy_fail(p, "a string");
    for (p->at++; p->at < p->nbytes && p->text[p->at] != quote; p->at++) {
        char byte = p->text[p->at];
        if (byte < ' ' || byte > '~' || byte == '\\' || nbytes + 1 == room)
            return npy_fail(p, "the end of a short string");
        string[nbytes++] = byte;
    }
    string[nbytes] = '\0';
    return npy_expect(p, quote);
}

static int npy_parse_size(npy_parser *p, int64_t *size)
{
    if (npy_look(p) == '-')
        return npy_fail(p, "a size, which is not negative");
    if (npy_look(p) < '0' || npy_look(p) > '9')
        return npy_fail(p, "a size");
    *size = 0;
    for (; p->at < p->nbytes && p->text[p->at] >= '0' && p->text[p->at] <= '9'; p->at++)
        if (__builtin_mul_overflow(*size, 10, size) ||
            __builtin_add_overflow(*size, p->text[p->at] - '0', size))
            return npy_fail(p, "the end of a size below 2^63");
    if (p->at < p->nbytes && p->text[p->at] == 'L') /* Python 2's long integers */
        p->at++;
    return 0;
}

/* ---- NumPy: values of the header ---- */

#define TYPES \
    "'<f2', '<f4', '<f8', '|i1', '<i2', '<i4', '<i8', '|u1', '<u2', '<u4' and '|b1' are read"

/* NumPy's names of element types. Types of one byte may have any byte order; NumPy writes the first
 * of their names. */
static const struct {
    const char *name, *element;
} npy_types[] = {{"<f2", "F16"},  {"<f4", "F32"}, {"<f8", "F64"}, {"<i2", "I16"}, {"<i4", "I32"},
                 {"<i8", "I64"},  {"<u2", "U16"}, {"<u4", "U32"}, {"|i1", "I8"},  {"<i1", "I8"},
                 {">i1", "I8"},   {"|u1", "U8"},  {"<u1", "U8"},  {">u1", "U8"},  {"|b1", "BOOL"},
                 {"<b1", "BOOL"}, {">b1", "BOOL"}};
enum { NPY_TYPES = sizeof npy_types / sizeof *npy_types };

static int npy_parse_descr(npy_parser *p, array_header *header)
{
    const char *path = p->stream->path, *reason = "";
    char name[64];
    if (npy_look(p) == '[' || npy_look(p) == '(')
        return EK_FAIL(EK_E_DTYPE,
                       "read_npy: %s: its elements have parts (a structured dtype); " TYPES, path);
    EK_TRY(npy_parse_string(p, name, sizeof name));
    for (int i = 0; i < NPY_TYPES; i++)
        if (strcmp(name, npy_types[i].name) == 0) {
            header->element = ek_element_find(npy_types[i].element);
            return 0;
        }
    if (name[0] == '>')
        reason = " (big-endian)";
    else if (strcmp(name, "|O") == 0)
        reason = " (pickled Python objects, which are never loaded)";
    return EK_FAIL(EK_E_DTYPE, "read_npy: %s: elements of type '%s'%s; " TYPES, path, name, reason);
}

static int npy_parse_fortran_order(npy_parser *p, array_header *header)
{
    if (npy_accept_word(p, "True"))
        header->fortran_order = true;
    else if (!npy_accept_word(p, "False"))
        return npy_fail(p, "True or False");
    return 0;
}

/* Parses a tuple. A tuple of one size ends with a comma. */
static int npy_parse_shape(npy_parser *p, array_header *header)
{
    bool comma = true;
    int64_t size = 0;
    EK_TRY(npy_expect(p, '('));
    while (!npy_accept(p, ')')) {
        if (!comma)
            return npy_fail(p, "',' or ')'");
        EK_TRY(npy_parse_size(p, &size));
        EK_TRY(ek_byte_stream_add_size(p->stream, &header->shape, size));
        comma = npy_accept(p, ',');
        if (!comma && header->shape.ndim == 1)
            return npy_fail(p, "','");
    }
    return 0;
}

static const struct {
    const char *key;
    int (*parse)(npy_parser *p, array_header *header);
} npy_entries[] = {{"descr", npy_parse_descr},
                   {"fortran_order", npy_parse_fortran_order},
                   {"shape", npy_parse_shape}};
enum { ENTRIES = sizeof npy_entries / sizeof *npy_entries };

static int npy_parse_entry(npy_parser *p, array_header *header, bool seen[ENTRIES])
{
    char key[32];
    size_t begin = (npy_look(p), p->at), i = 0;
    EK_TRY(npy_parse_string(p, key, sizeof key));
    while (i < ENTRIES && strcmp(key, npy_entries[i].key) != 0)
        i++;
    if (i == ENTRIES || seen[i]) {
        p->at = begin;
        return npy_fail(p, "'descr', 'fortran_order' or 'shape', each once");
    }
    seen[i] = true;
    EK_TRY(npy_expect(p, ':'));
    return npy_entries[i].parse(p, header);
}

static int npy_parse(npy_parser *p, array_header *header)
{
    bool seen[ENTRIES] = {false}, comma = true;
    EK_TRY(npy_expect(p, '{'));
    while (!npy_accept(p, '}')) {
        if (!comma)
            return npy_fail(p, "',' or '}'");
        EK_TRY(npy_parse_entry(p, header, seen));
        comma = npy_accept(p, ',');
    }
    for (int i = 0; i < ENTRIES; i++)
        if (!seen[i])
            return EK_FAIL_IN(EK_E_FORMAT, p->stream, "there is no '%s' in its header",
                              npy_entries[i].key);
    if (npy_look(p) || p->at < p->nbytes)
        return npy_fail(p, "its end");
    return 0;
}

/* ---- NumPy: the header ---- */

/* Reads the header's length, which is little-endian: 2 bytes in version 1, 4 in later versions. */
static int npy_read_length(ek_byte_stream *stream, size_t *length)
{
    uint8_t start[8], bytes[4] = {0};
    EK_TRY(ek_byte_stream_read_header(stream, start, sizeof start));
    if (memcmp(start, "\x93NUMPY", 6) != 0)
        return EK_FAIL_IN(EK_E_FORMAT, stream,
                          "not an .npy file: it begins with %02x %02x instead of 93 4e", start[0],
                          start[1]);
    if (start[6] < 1 || start[6] > 3 || start[7] != 0)
        return EK_FAIL_IN(EK_E_FORMAT, stream, "version %d.%d; 1.0, 2.0 and 3.0 are read", start[6],
                          start[7]);
    EK_TRY(ek_byte_stream_read_header(stream, bytes, start[6] == 1 ? 2 : 4));
    *length = bytes[0] | (size_t)bytes[1] << 8 | (size_t)bytes[2] << 16 | (size_t)bytes[3] << 24;
    if (*length > MAX_HEADER)
        return EK_FAIL_IN(EK_E_FORMAT, stream, "a header of %zu bytes; up to %d are read", *length,
                          MAX_HEADER);
    return 0;
}

/* Reads magic, version and header. EK_E_DTYPE if Evenkeel lacks the element type. */
static int npy_read_header(ek_byte_stream *stream, array_header *header)
{
    size_t length = 0;
    EK_TRY(npy_read_length(stream, &length));
    char *text = ek_calloc(1, length);
    if (!text)
        return EK_E_NO_MEMORY;
    npy_parser p = {.stream = stream, .text = text, .nbytes = length};
    int status = ek_byte_stream_read_header(stream, text, length);
    if (status == 0)
        status = npy_parse(&p, header);
    free(text);
    return status;
}

/* ---- elements in column-major order ---- */

/* Writes to[i * to_step + j] = from[i + j * from_step], square by square. The squares are small
 * enough for the cache lines of both sides to stay cached. */
static inline void array_transpose(int64_t rows, int64_t columns, const uint8_t *from,
                                   int64_t from_step, uint8_t *to, int64_t to_step, size_t size)
{
    enum { SIDE = 32 };
    for (int64_t i0 = 0; i0 < rows; i0 += SIDE)
        for (int64_t j0 = 0; j0 < columns; j0 += SIDE) {
            int64_t i1 = i0 + SIDE < rows ? i0 + SIDE : rows;
            int64_t j1 = j0 + SIDE < columns ? j0 + SIDE : columns;
            for (int64_t i = i0; i < i1; i++)
                for (int64_t j = j0; j < j1; j++)
                    memcpy(to + (size_t)(i * to_step + j) * size,
                           from + (size_t)(i + j * from_step) * size, size);
        }
}

/* Calls array_transpose with a size that is a constant, so that the compiler unrolls the copies. */
static void array_transpose_any(int64_t rows, int64_t columns, const uint8_t *from,
                                int64_t from_step, uint8_t *to, int64_t to_step, size_t size)
{
    if (size == 1)
        array_transpose(rows, columns, from, from_step, to, to_step, 1);
    else if (size == 2)
        array_transpose(rows, columns, from, from_step, to, to_step, 2);
    else if (size == 4)
        array_transpose(rows, columns, from, from_step, to, to_step, 4);
    else
        array_transpose(rows, columns, from, from_step, to, to_step, 8);
}

/* Fills a row-major tensor from column-major elements. For each index of the middle dimensions it
 * transposes the first and the last dimension. */
static void array_fill_reversed(ek_tensor *tensor, const uint8_t *from)
{
    size_t size = ek_dtype_size(tensor->dtype);
    int last = tensor->ndim - 1;
    int64_t step[EK_MAX_DIMS] = {1}, index[EK_MAX_DIMS] = {0}, places = 1;
    for (int i = 1; i <= last; i++)
        step[i] = step[i - 1] * tensor->shape[i - 1];
    for (int i = 1; i < last; i++)
        places *= tensor->shape[i];
    for (int64_t place = 0; place < places; place++) {
        int64_t at = 0, to = 0;
        for (int i = 1; i < last; i++) {
            at += index[i] * step[i];
            to += index[i] * tensor->stride[i];
        }
        array_transpose_any(tensor->shape[0], tensor->shape[last], from + (size_t)at * size,
                            step[last], (uint8_t *)ek_tensor_address(tensor) + (size_t)to * size,
                            tensor->stride[0], size);
        for (int i = last - 1; i >= 1 && ++index[i] == tensor->shape[i]; i--)
            index[i] = 0;
    }
}

/* ---- files ---- */

/* Makes the tensor from elements that have its dtype and the file's order. */
static ek_tensor *array_ordered(const array_header *header, const uint8_t *elements)
{
    ek_dtype dtype = header->element->dtype;
    if (!header->fortran_order || header->shape.ndim < 2)
        return ek_from_data(elements, header->shape, dtype);
    ek_tensor *tensor = ek_empty(header->shape, dtype);
    if (tensor && ek_count(tensor) > 0)
        array_fill_reversed(tensor, elements);
    return tensor;
}

static ek_tensor *array_tensor(const array_header *header, const uint8_t *elements)
{
    if (!header->element->widen)
        return array_ordered(header, elements);
    size_t count = (size_t)ek_shape_count(&header->shape);
    uint8_t *wide = ek_element_widened(header->element, elements, count);
    ek_tensor *tensor = wide ? array_ordered(header, wide) : NULL;
    free(wide);
    return tensor;
}

static ek_tensor *array_read(const char *what, const char *path,
                             int (*read_header)(ek_byte_stream *stream, array_header *header))
{
    ek_byte_stream stream;
    array_header header = {0};
    ek_bytes elements = {0};
    ek_tensor *tensor = NULL;
    if (ek_byte_stream_open(&stream, what, path) < 0)
        return NULL;
    if (read_header(&stream, &header) == 0 &&
        ek_byte_stream_append_elements(&stream, (size_t)ek_shape_count(&header.shape),
                                       ek_element_size(header.element), &elements) == 0)
        tensor = array_tensor(&header, elements.bytes);
    free(elements.bytes);
    ek_byte_stream_close(&stream);
    return tensor;
}

ek_tensor *ek_read_idx(const char *path)
{
    return array_read("read_idx", path, idx_read_header);
}

ek_tensor *ek_read_npy(const char *path)
{
    return array_read("read_npy", path, npy_read_header);
}

/* ---- writing NumPy's ---- */

enum {
    NPY_HEADER = 128
}; /* bytes before the elements: a multiple of 64 that has room for 8 sizes */

/* Returns NumPy's name of the dtype; NULL if NumPy lacks it. */
static const char *npy_name_of(ek_dtype dtype)
{
    for (int i = 0; i < NPY_TYPES; i++)
        if (strcmp(npy_types[i].element, ek_element_of(dtype)->name) == 0)
            return npy_types[i].name;
    return NULL;
}

/* Writes all that precedes the elements, to the byte as numpy.save. */
static void npy_write_header(const array_header *header, const char *name, char text[NPY_HEADER])
{
    enum { PREFIX = 10 };
    const ek_shape *shape = &header->shape;
    char *at = text + PREFIX, *end = text + NPY_HEADER;
    at += snprintf(at, (size_t)(end - at), "{'descr': '%s', 'fortran_order': %s, 'shape': (", name,
                   header->fortran_order ? "True" : "False");
    for (int i = 0; i < shape->ndim; i++)
        at += snprintf(at, (size_t)(end - at), "%s%lld", i > 0 ? ", " : "",
                       (long long)shape->dims[i]);
    at += snprintf(at, (size_t)(end - at), "%s), }", shape->ndim == 1 ? "," : "");
    memset(at, ' ', (size_t)(end - at));
    end[-1] = '\n';
    memcpy(text, "\x93NUMPY\x01\x00", 8);
    text[8] = NPY_HEADER - PREFIX;
    text[9] = 0;
}

typedef struct npy_file {
    char header[NPY_HEADER];
    size_t nbytes;
    ek_rows rows;
} npy_file;

static int npy_write(const ek_file *file, void *user)
{
    const npy_file *npy = user;
    EK_TRY(ek_file_write(file, npy->header, NPY_HEADER));
    return ek_file_write(file, npy->rows.bytes, npy->nbytes);
}

/* Returns the tensor, or, if only its columns are contiguous, a view with its dimensions in reverse
 * order. NULL on error. */
static const ek_tensor *npy_in_order(const ek_tensor *tensor, bool *fortran_order)
{
    int64_t shape[EK_MAX_DIMS], stride[EK_MAX_DIMS];
    for (int i = 0; i < tensor->ndim; i++) {
        shape[i] = tensor->shape[tensor->ndim - 1 - i];
        stride[i] = tensor->stride[tensor->ndim - 1 - i];
    }
    const ek_tensor *reversed = ek_tensor_view(tensor, tensor->ndim, shape, stride, tensor->offset);
    *fortran_order = reversed && !ek_tensor_is_contiguous(tensor, EK_CONTIGUOUS) &&
                     ek_tensor_is_contiguous(reversed, EK_CONTIGUOUS);
    return reversed && !*fortran_order ? tensor : reversed;
}

static int npy_save(const char *path, const ek_tensor *tensor)
{
    array_header header = {.shape = ek_tensor_shape(tensor)};
    const char *name = npy_name_of(tensor->dtype);
    if (!name)
        return EK_FAIL(EK_E_DTYPE, "save_npy: %s: NumPy has no %s; ek_to_dtype converts to f32",
                       path, ek_dtype_name(tensor->dtype));
    npy_file npy = {.nbytes = (size_t)ek_count(tensor) * ek_dtype_size(tensor->dtype)};
    const ek_tensor *ordered = npy_in_order(tensor, &header.fortran_order);
    if (!ordered)
        return ek_error_pending();
    EK_TRY(ek_rows_of(ordered, &npy.rows));
    npy_write_header(&header, name, npy.header);
    int rc = ek_file_replace("save_npy", path, npy_write, &npy);
    ek_rows_free(&npy.rows);
    return rc;
}

int ek_save_npy(const char *path, const ek_tensor *tensor)
{
    EK_TRY(ek_check_given("save_npy", "the path", path));
    EK_TRY(ek_check_handle("save_npy", "the tensor", tensor));
    ek_scope scope = ek_scope_begin();
    int rc = npy_save(path, tensor);
    ek_scope_end(&scope);
    return rc;
}
