/* inject_helpers.c: oneDNN, zlib, libpng and TurboJPEG when they have no memory. */
#include <errno.h>
#include <oneapi/dnnl/dnnl.h>
#include <png.h>
#include <stdio.h>
#include <turbojpeg.h>
#include <zlib.h>

#include "inject.h"
#include "ledger.h"

#define HELPER_CALL(result, bad, name, parameters, arguments)                      \
    result __real_##name parameters;                                               \
    result __wrap_##name parameters;                                               \
    result __wrap_##name parameters                                                \
    {                                                                              \
        return inject_hit(INJECT_HELPER, #name) ? (bad) : __real_##name arguments; \
    }

/* ---- oneDNN ---- */

#define HELPER_DNNL(name, parameters, arguments) \
    HELPER_CALL(dnnl_status_t, dnnl_out_of_memory, name, parameters, arguments)

HELPER_DNNL(dnnl_engine_create, (dnnl_engine_t * engine, dnnl_engine_kind_t kind, size_t index),
            (engine, kind, index))
HELPER_DNNL(dnnl_stream_create, (dnnl_stream_t * stream, dnnl_engine_t engine, unsigned flags),
            (stream, engine, flags))
HELPER_DNNL(dnnl_memory_create,
            (dnnl_memory_t * memory, const dnnl_memory_desc_t *desc, dnnl_engine_t engine,
             void *data),
            (memory, desc, engine, data))
HELPER_DNNL(dnnl_post_ops_create, (dnnl_post_ops_t * ops), (ops))
HELPER_DNNL(dnnl_post_ops_append_sum, (dnnl_post_ops_t ops, float scale), (ops, scale))
HELPER_DNNL(dnnl_primitive_attr_create, (dnnl_primitive_attr_t * attr), (attr))
HELPER_DNNL(dnnl_primitive_attr_set_post_ops,
            (dnnl_primitive_attr_t attr, const_dnnl_post_ops_t ops), (attr, ops))
HELPER_DNNL(dnnl_primitive_desc_create,
            (dnnl_primitive_desc_t * desc, const_dnnl_op_desc_t op,
             const_dnnl_primitive_attr_t attr, dnnl_engine_t engine,
             const_dnnl_primitive_desc_t hint),
            (desc, op, attr, engine, hint))
HELPER_DNNL(dnnl_reorder_primitive_desc_create,
            (dnnl_primitive_desc_t * desc, const dnnl_memory_desc_t *from,
             dnnl_engine_t from_engine, const dnnl_memory_desc_t *to, dnnl_engine_t to_engine,
             const_dnnl_primitive_attr_t attr),
            (desc, from, from_engine, to, to_engine, attr))
HELPER_DNNL(dnnl_primitive_create, (dnnl_primitive_t * primitive, const_dnnl_primitive_desc_t desc),
            (primitive, desc))
HELPER_DNNL(dnnl_primitive_execute,
            (const_dnnl_primitive_t primitive, dnnl_stream_t stream, int count,
             const dnnl_exec_arg_t *args),
            (primitive, stream, count, args))
HELPER_DNNL(dnnl_sgemm,
            (char transa, char transb, dnnl_dim_t m, dnnl_dim_t n, dnnl_dim_t k, float alpha,
             const float *a, dnnl_dim_t lda, const float *b, dnnl_dim_t ldb, float beta, float *c,
             dnnl_dim_t ldc),
            (transa, transb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc))

/* ---- zlib ---- */

static bool helper_no_errno(const char *function)
{
    bool hit = inject_hit(INJECT_HELPER, function);
    if (hit)
        errno = ENOMEM;
    return hit;
}

gzFile __real_gzdopen(int file, const char *mode);
gzFile __wrap_gzdopen(int file, const char *mode);
gzFile __wrap_gzdopen(int file, const char *mode)
{
    return helper_no_errno("gzdopen") ? NULL : __real_gzdopen(file, mode);
}

HELPER_CALL(int, -1, gzbuffer, (gzFile file, unsigned nbytes), (file, nbytes))

/* The last gzread that failed: gzerror tells why. One at a time: readers are single threads here.
 */
static gzFile helper_unread;

int __real_gzread(gzFile file, void *data, unsigned nbytes);
int __wrap_gzread(gzFile file, void *data, unsigned nbytes);
int __wrap_gzread(gzFile file, void *data, unsigned nbytes)
{
    if (!inject_hit(INJECT_HELPER, "gzread"))
        return __real_gzread(file, data, nbytes);
    helper_unread = file;
    return -1;
}

const char *__real_gzerror(gzFile file, int *code);
const char *__wrap_gzerror(gzFile file, int *code);
const char *__wrap_gzerror(gzFile file, int *code)
{
    if (file != helper_unread || !file)
        return __real_gzerror(file, code);
    helper_unread = NULL;
    *code = Z_MEM_ERROR;
    return "out of memory";
}

/* ---- pictures ---- */

/* What png_image_write_to_memory returns and says without memory. */
static int inject_no_picture(png_imagep image)
{
    snprintf(image->message, sizeof image->message, "out of memory");
    return 0;
}

HELPER_CALL(tjhandle, NULL, tjInitDecompress, (void), ())
HELPER_CALL(png_infop, NULL, png_create_info_struct, (png_const_structrp png), (png))
HELPER_CALL(png_structp, NULL, png_create_read_struct_2,
            (png_const_charp version, png_voidp user, png_error_ptr fail, png_error_ptr warn,
             png_voidp memory, png_malloc_ptr allocate, png_free_ptr give_back),
            (version, user, fail, warn, memory, allocate, give_back))

HELPER_CALL(int, inject_no_picture(image), png_image_write_to_memory,
            (png_imagep image, void *memory, png_alloc_size_t *nbytes, int convert,
             const void *pixels, png_int_32 stride, const void *palette),
            (image, memory, nbytes, convert, pixels, stride, palette))
