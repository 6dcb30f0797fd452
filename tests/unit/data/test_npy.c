/* test_npy.c: NumPy's format as NumPy writes it, and in every way damaged. */
#include "core/tensor.h"
#include "files.h"

FIXTURE(make_directory, empty_directory)

static ek_tensor *read_golden(const char *name)
{
    char path[512];
    snprintf(path, sizeof path, EK_GOLDEN_DIR "/npy/%s", name);
    return ek_read_npy(path);
}

/* ---- what NumPy wrote ---- */

/* Element i in row-major order; names of files that are not f4's or f8's begin with their type.
 * Also in tests/golden/make_npy.py. */
static double value(const char *name, ek_dtype dtype, int64_t i)
{
    uint64_t bits = (uint64_t)i * 0x13579bdf;
    if (strncmp(name, "i1", 2) == 0)
        return (int8_t)bits;
    if (strncmp(name, "i2", 2) == 0)
        return (int16_t)bits;
    if (strncmp(name, "i4", 2) == 0)
        return (int32_t)bits;
    if (strncmp(name, "u2", 2) == 0)
        return (uint16_t)bits;
    if (strncmp(name, "u4", 2) == 0)
        return (uint32_t)bits;
    if (strncmp(name, "b1", 2) == 0)
        return i % 3 == 0;
    if (dtype == EK_I64)
        return (double)(i * (INT64_C(1) << 40) - 5);
    return dtype == EK_U8 ? (double)(i * 7 % 256) : (double)i * 0.5 - 1;
}

static void assert_golden(const char *name, ek_dtype dtype, ek_shape shape)
{
    char text[160];
    ek_tensor *tensor = read_golden(name);
    assert_made(tensor);
    ek_shape found = ek_tensor_shape(tensor);
    ck_assert_msg(ek_shape_equal(&found, &shape), "%s: shape %s", name,
                  ek_shape_text(&found, text));
    ck_assert_msg(ek_tensor_dtype(tensor) == dtype, "%s: %s", name,
                  ek_dtype_name(ek_tensor_dtype(tensor)));
    ck_assert(ek_device_equal(ek_tensor_device(tensor), ek_cpu()));
    ck_assert(ek_tensor_is_contiguous(tensor, EK_CONTIGUOUS));
    for (int64_t i = 0; i < ek_tensor_count(tensor); i++) {
        double wanted = value(name, dtype, i);
        if (!(element(tensor, i) == wanted))
            ck_abort_msg("%s: element %lld is %g, not %g", name, (long long)i, element(tensor, i),
                         wanted);
    }
}

TEST(written_by_numpy)
{
    assert_golden("f4.npy", EK_F32, EK_SHAPE(2, 3));
    assert_golden("f4.npy.gz", EK_F32, EK_SHAPE(2, 3));
    assert_golden("f8.npy", EK_F64, EK_SHAPE(3));
    assert_golden("i8.npy", EK_I64, EK_SHAPE(2, 1, 2));
    assert_golden("u1.npy", EK_U8, EK_SHAPE(3, 4));
    assert_golden("b1.npy", EK_BOOL, EK_SHAPE(7));
    assert_golden("version2.npy", EK_F32, EK_SHAPE(2, 3));
    assert_golden("version3.npy", EK_F32, EK_SHAPE(2, 3));
    assert_golden("scalar.npy", EK_F64, ek_scalar_shape());
    assert_golden("empty.npy", EK_I64, EK_SHAPE(0, 3));
    assert_golden("dimensions8.npy", EK_U8, EK_SHAPE(1, 2, 1, 3, 1, 2, 1, 1));
}

/* Types that there is no dtype of become one that holds their numbers. */
TEST(widened)
{
    static const uint32_t all_kinds[] = {0,          0x80000000, 0x33800000, 0xb87fc000,
                                         0x38800000, 0x3eaaa000, 0xc77fe000, 0x7f800000,
                                         0xff800000, 0x7fc00000, 0xffc54000};
    assert_golden("f2.npy", EK_F16, EK_SHAPE(2, 3));
    assert_golden("f2_fortran.npy", EK_F16, EK_SHAPE(35, 33));
    assert_golden("i1.npy", EK_I64, EK_SHAPE(3, 5));
    assert_golden("i2.npy", EK_I64, EK_SHAPE(3, 5));
    assert_golden("i2_fortran.npy", EK_I64, EK_SHAPE(3, 2, 4));
    assert_golden("i4.npy", EK_I32, EK_SHAPE(3, 5));
    assert_golden("u2.npy", EK_I64, EK_SHAPE(3, 5));
    assert_golden("u4.npy", EK_I64, EK_SHAPE(3, 5));
    ek_tensor *tensor = read_golden("f2_all_kinds.npy");
    assert_made(tensor);
    ck_assert_int_eq(ek_tensor_dtype(tensor), EK_F16);
    ck_assert_int_eq(ek_tensor_count(tensor), 11);
    for (int i = 0; i < 11; i++) {
        float wanted;
        double got = element(tensor, i);
        memcpy(&wanted, &all_kinds[i], sizeof wanted);
        ck_assert(isnan(wanted) ? isnan(got)
                                : got == (double)wanted && !signbit(got) == !signbit(wanted));
    }
}

TEST(fortran_order)
{
    assert_golden("fortran2.npy", EK_F32, EK_SHAPE(5, 3));
    assert_golden("fortran3.npy", EK_F64, EK_SHAPE(2, 3, 4));
    assert_golden("fortran4.npy", EK_I64, EK_SHAPE(3, 2, 2, 5));
    assert_golden("fortran_blocks.npy", EK_U8, EK_SHAPE(35, 2, 67));
    assert_golden("empty_fortran.npy", EK_F32, EK_SHAPE(3, 0, 2));
}

/* ---- written by the library ---- */

/* The file that is made of the tensor equals NumPy's. */
static void assert_numpys(const char *name, const ek_tensor *tensor)
{
    static uint8_t ours[1 << 14], theirs[1 << 14];
    char golden_path[512];
    snprintf(golden_path, sizeof golden_path, EK_GOLDEN_DIR "/npy/%s", name);
    assert_ok(ek_save_npy(path_of("file"), tensor));
    size_t nbytes = read_file(path_of("file"), ours, sizeof ours);
    ck_assert_msg(nbytes == read_file(golden_path, theirs, sizeof theirs) &&
                      memcmp(ours, theirs, nbytes) == 0,
                  "%s differs", name);
}

TEST(files_are_numpys_to_the_byte)
{
    static const char *const rows[] = {"f2.npy",     "f4.npy",    "f8.npy",
                                       "i4.npy",     "i8.npy",    "u1.npy",
                                       "scalar.npy", "empty.npy", "dimensions8.npy"};
    static const char *const columns[] = {"f2_fortran.npy", "fortran2.npy", "fortran3.npy",
                                          "fortran4.npy", "fortran_blocks.npy"};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        assert_numpys(rows[i], read_golden(rows[i]));
    for (size_t i = 0; i < sizeof columns / sizeof *columns; i++) {
        uint8_t elements[1 << 14];
        int64_t strides[EK_MAX_DIMS], step = 1;
        ek_tensor *read = read_golden(columns[i]);
        ek_shape shape = ek_tensor_shape(read);
        size_t nbytes = (size_t)ek_tensor_count(read) * ek_dtype_size(read->dtype);
        for (int d = 0; d < shape.ndim; step *= shape.dims[d++])
            strides[d] = step;
        ek_tensor *tensor =
            ek_tensor_new_strided(ek_dev_get(ek_host(0)), read->dtype, &shape, strides);
        assert_ok(ek_to_data(read, elements, nbytes));
        assert_ok(ek_set_data(tensor, elements, nbytes));
        assert_numpys(columns[i], tensor);
    }
}

TEST(writing_is_refused)
{
    ek_tensor *x = ek_empty(EK_SHAPE(2));
    assert_refused(ek_save_npy("/nowhere/x.npy", x), EK_E_IO, "save_npy: cannot write");
    assert_refused(ek_save_npy(path_of("x"), ek_empty(EK_SHAPE(2), EK_BF16)), EK_E_DTYPE,
                   "NumPy has no bf16");
    assert_refused(ek_save_npy(NULL, x), EK_E_INVALID, "the path is NULL");
    assert_refused(ek_save_npy(path_of("x"), NULL), EK_E_INVALID, "the tensor is NULL");
    ck_assert_int_eq(files_in_directory(), 0);
}

static void assert_golden_refused(const char *name, int status, const char *part)
{
    assert_refused(read_golden(name), status, part);
}

TEST(other_types)
{
    assert_golden_refused("big_endian.npy", EK_E_DTYPE,
                          "big_endian.npy: elements of type '>f4' (big-endian)");
    assert_golden_refused("big_endian_i4.npy", EK_E_DTYPE, "type '>i4' (big-endian)");
    assert_golden_refused("u8.npy", EK_E_DTYPE, "type '<u8'");
    assert_golden_refused("c8.npy", EK_E_DTYPE, "type '<c8'");
    assert_golden_refused("object.npy", EK_E_DTYPE, "'|O' (pickled Python objects");
    assert_golden_refused("structured.npy", EK_E_DTYPE, "structured.npy: its elements have parts");
    assert_golden_refused("text.npy", EK_E_DTYPE, "type '<U2'");
    assert_golden_refused("dimensions9.npy", EK_E_FORMAT, "more than 8 dimensions");
}

/* ---- headers of all kinds ---- */

enum { ROOM = 1 << 17 };

/* A version-1 file with this header and six bytes of elements; returns its length. */
static size_t file_with(const char *header, uint8_t *bytes)
{
    size_t nbytes = strlen(header);
    memcpy(bytes, "\x93NUMPY\1\0", 8);
    bytes[8] = (uint8_t)nbytes;
    bytes[9] = (uint8_t)(nbytes >> 8);
    memcpy(bytes + 10, header, nbytes);
    memcpy(bytes + 10 + nbytes, "\1\2\3\4\5\6", 6);
    return nbytes + 16;
}

static ek_tensor *read_with(const char *header)
{
    uint8_t bytes[1024];
    return ek_read_npy(write_file("file", bytes, file_with(header, bytes)));
}

/* All of these are the same array. */
TEST(spacing_and_order)
{
    static const char *const headers[] = {
        "{'descr': '|u1', 'fortran_order': False, 'shape': (2, 3), }         \n",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (2, 3)}",
        "{'shape':(2,3,),'descr':'|u1','fortran_order':False}",
        " { \"fortran_order\" : False ,\t\"shape\" : ( 2L , 3L ) ,\r\n \"descr\" : \"<u1\" } \n",
        "{'descr': '|b1', 'fortran_order': False, 'shape': (2, 3), }",
    };
    ek_shape wanted = EK_SHAPE(2, 3);
    for (size_t i = 0; i < sizeof headers / sizeof *headers; i++) {
        uint8_t data[6];
        ek_tensor *tensor = read_with(headers[i]);
        assert_made(tensor);
        ek_shape shape = ek_tensor_shape(tensor);
        ck_assert(ek_shape_equal(&shape, &wanted));
        assert_ok(ek_to_data(tensor, data, sizeof data));
        ck_assert_mem_eq(data, "\1\2\3\4\5\6", 6);
    }
}

TEST(broken_headers)
{
    static const struct {
        const char *header, *part;
    } cases[] = {
        {"", "at byte 0 of its header it ends instead of '{'"},
        {"     ", "at byte 5 of its header it ends instead of '{'"},
        {"[]", "at byte 0 of its header there is '[' instead of '{'"},
        {"{}", "there is no 'descr'"},
        {"{'descr': '|u1', 'fortran_order': False, }", "there is no 'shape'"},
        {"{'descr': '|u1', 'shape': (6,), }", "there is no 'fortran_order'"},
        {"{'descr': '|u1', 'descr': '|u1'", "at byte 17 of its header there is ''' instead of"},
        {"{'descr': '|u1', 'other': 1", "each once"},
        {"{'descr' '|u1'", "instead of ':'"},
        {"{'descr': u1", "instead of a string"},
        {"{'descr': '|u1", "it ends instead of '''"},
        {"{'descr': '|u1\"", "it ends instead of '''"},
        {"{'descr': '\\x41'", "there is '\\' instead of the end of a short string"},
        {"{'descr': '\xc3\xa4'", "there is 0xc3"},
        {"{'descr': 'uuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuu'",
         "the end of a short string"},
        {"{'descr': '|u1' 'shape'", "instead of ',' or '}'"},
        {"{'descr': '|u1',, 'shape'", "instead of a string"},
        {"{,", "instead of a string"},
        {"{'fortran_order': false", "instead of True or False"},
        {"{'fortran_order': 0", "instead of True or False"},
        {"{'fortran_order': FalseTrue", "instead of ',' or '}'"},
        {"{'shape': 6", "there is '6' instead of '('"},
        {"{'shape': (6)", "there is ')' instead of ','"},
        {"{'shape': (,)", "instead of a size"},
        {"{'shape': (2,,3)", "instead of a size"},
        {"{'shape': (2 3)", "there is '3' instead of ','"},
        {"{'shape': (2, 3 4)", "there is '4' instead of ',' or ')'"},
        {"{'shape': (2, 3", "it ends instead of ',' or ')'"},
        {"{'shape': (-6,)", "there is '-' instead of a size, which is not negative"},
        {"{'shape': (6.0,)", "instead of ','"},
        {"{'shape': (0x6,)", "instead of ','"},
        {"{'shape': (9223372036854775808,)", "instead of the end of a size below 2^63"},
        {"{'shape': (9223372036854775807,)", "its sizes multiply to more than 2^59"},
        {"{'shape': (0, 4294967296, 4294967296)", "its sizes multiply to more than 2^59"},
        {"{'shape': (1,1,1,1,1,1,1,1,1)", "more than 8 dimensions"},
        {"{'descr': '|u1', 'fortran_order': False, 'shape': (6,)} x", "instead of its end"},
        {"{'descr': [('x', '<f4')", NULL},
        {"{'descr': ('<f4', (2,))", NULL},
        {"{'descr': '>i8'", NULL},
        {"{'descr': ''", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ck_assert_msg(read_with(cases[i].header) == NULL, "%s is read", cases[i].header);
        assert_error(cases[i].part ? EK_E_FORMAT : EK_E_DTYPE,
                     cases[i].part ? cases[i].part : "'<u4' and '|b1' are read");
    }
}

/* A NUL is neither space nor the end. */
TEST(zero_bytes)
{
    static const char good[] = "{'descr': '|u1', 'fortran_order': False, 'shape': (6,)}   ";
    uint8_t bytes[256];
    size_t nbytes = file_with(good, bytes);
    assert_made(ek_read_npy(write_file("file", bytes, nbytes)));
    for (size_t at = 10; at < nbytes - 6; at++) {
        file_with(good, bytes);
        bytes[at] = 0;
        ck_assert_msg(!ek_read_npy(write_file("file", bytes, nbytes)), "NUL at %zu", at);
        ck_assert_int_lt(ek_error_status(), 0);
        ek_error_clear();
    }
}

/* ---- files ---- */

static void assert_npy_refused(const uint8_t *bytes, size_t nbytes, const char *part)
{
    assert_refused(ek_read_npy(write_file("file", bytes, nbytes)), EK_E_FORMAT, part);
}

TEST(damaged)
{
    static const char good[] = "{'descr': '<f8', 'fortran_order': False, 'shape': (0, 2)}";
    static uint8_t bytes[ROOM], zipped[ROOM];
    size_t nbytes = file_with("{'descr': '|u1', 'fortran_order': False, 'shape': (6,)}", bytes);
    for (size_t cut = 0; cut < nbytes; cut++)
        assert_npy_refused(bytes, cut, "truncated");
    assert_npy_refused(bytes, nbytes + 1, "bytes follow its 6 elements");
    bytes[0] = 0x92;
    assert_npy_refused(bytes, nbytes, "file: not an .npy file: it begins with 92 4e");
    bytes[0] = 0x93;
    bytes[6] = 4;
    assert_npy_refused(bytes, nbytes, "version 4.0");
    bytes[6] = 0;
    assert_npy_refused(bytes, nbytes, "version 0.0");
    bytes[6] = bytes[7] = 1;
    assert_npy_refused(bytes, nbytes, "version 1.1");
    memcpy(bytes + 6, "\2\0\0\0\1\0", 6);
    assert_npy_refused(bytes, nbytes, "a header of 65536 bytes; up to 65535 are read");
    memcpy(bytes + 8, "\377\377\377\377", 4);
    assert_npy_refused(bytes, nbytes, "a header of 4294967295 bytes");
    nbytes = file_with(good, bytes);
    assert_npy_refused(bytes, nbytes, "bytes follow its 0 elements");
    assert_made(ek_read_npy(write_file("file", bytes, nbytes - 6)));
    /* 2^61 bytes that the file does not have must not be allocated. */
    nbytes = file_with("{'descr': '<f8', 'fortran_order': True, 'shape': (16777216, 17179869184)}",
                       bytes);
    assert_npy_refused(bytes, nbytes, "its header says 288230376151711744 elements");

    nbytes = file_with("{'descr': '|u1', 'fortran_order': False, 'shape': (6,)}", bytes);
    FILE *file = fopen(write_gzip("file", bytes, nbytes), "rb");
    ck_assert_ptr_nonnull(file);
    nbytes = fread(zipped, 1, sizeof zipped, file);
    fclose(file);
    for (size_t cut = 0; cut < nbytes; cut++)
        assert_npy_refused(zipped, cut, "truncated");
    zipped[nbytes - 6] ^= 1; /* in the checksum */
    assert_npy_refused(zipped, nbytes, "damaged");
}

/* A header as long as version 1 allows, and larger elements than are read at a time. */
TEST(large)
{
    static uint8_t bytes[ROOM];
    static char header[65536];
    size_t count = 300 * 1001;
    uint8_t *whole = malloc(ROOM + count), *back = malloc(count);
    ck_assert(whole && back);
    memset(header, ' ', sizeof header - 1);
    memcpy(header + 30000, "{'descr': '|u1', 'fortran_order': True, 'shape': (300, 1001)}", 61);
    size_t nbytes = file_with(header, bytes) - 6;
    memcpy(whole, bytes, nbytes);
    for (size_t i = 0; i < count; i++)
        whole[nbytes + i] = (uint8_t)(i * 2654435761u >> 13);
    ek_tensor *tensor = ek_read_npy(write_gzip("file", whole, nbytes + count));
    assert_made(tensor);
    assert_ok(ek_to_data(tensor, back, count));
    for (size_t i = 0; i < 300; i++)
        for (size_t j = 0; j < 1001; j++)
            if (back[i * 1001 + j] != whole[nbytes + i + 300 * j])
                ck_abort_msg("element (%zu, %zu)", i, j);
    free(whole);
    free(back);
}

TEST(unreadable)
{
    assert_refused(ek_read_npy("/nowhere/array.npy"), EK_E_IO,
                   "read_npy: cannot open /nowhere/array.npy: No such file");
    assert_refused(ek_read_npy(directory), EK_E_IO, "Is a directory");
    assert_refused(ek_read_npy(NULL), EK_E_INVALID, "read_npy: the path is NULL");
}
