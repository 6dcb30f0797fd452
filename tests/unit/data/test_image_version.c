/* test_image_version.c: a libpng of another version than the one that Evenkeel was compiled for. */
#include <png.h>

#include "unit.h"

WRAPS(png_create_read_struct_2)

static const char *compiled_for;

png_structp __real_png_create_read_struct_2(png_const_charp, png_voidp, png_error_ptr,
                                            png_error_ptr, png_voidp, png_malloc_ptr, png_free_ptr);
png_structp __wrap_png_create_read_struct_2(png_const_charp, png_voidp, png_error_ptr,
                                            png_error_ptr, png_voidp, png_malloc_ptr, png_free_ptr);
png_structp __wrap_png_create_read_struct_2(png_const_charp version, png_voidp user,
                                            png_error_ptr fail, png_error_ptr warn,
                                            png_voidp memory, png_malloc_ptr allocate,
                                            png_free_ptr release)
{
    return __real_png_create_read_struct_2(compiled_for ? compiled_for : version, user, fail, warn,
                                           memory, allocate, release);
}

TEST(other_version)
{
    ek_tensor *bytes = golden("images.golden", "rgb8/file");
    const void *data = ek_tensor_data(bytes);
    size_t nbytes = (size_t)ek_tensor_count(bytes);
    compiled_for = "0.90";
    assert_refused(ek_decode_image(data, nbytes, 0, "cat"), EK_E_BACKEND,
                   "decode_image: cat: libpng " PNG_LIBPNG_VER_STRING " is ");
    compiled_for = NULL;
    assert_made(ek_decode_image(data, nbytes, 0, "cat"));
}
