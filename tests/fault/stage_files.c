/* stage_files.c: data.h and dataset.h: files, made here, read, and safetensors written. */
#include <png.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <turbojpeg.h>
#include <zlib.h>

#include "fault.h"

/* ---- making them: nothing fails yet ---- */

static void put_file(const char *name, const void *data, size_t nbytes)
{
    FILE *file = fopen(fault_path(name), "wb");
    if (file) {
        fwrite(data, 1, nbytes, file);
        fclose(file);
    }
}

static void put_compressed(const char *name, const void *data, size_t nbytes)
{
    gzFile file = gzopen(fault_path(name), "wb");
    if (file) {
        gzwrite(file, data, (unsigned)nbytes);
        gzclose(file);
    }
}

static const unsigned char idx[] = {0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 2,
                                    0, 0, 0, 2, 1, 2, 3, 4, 5, 6, 7, 8};
static const unsigned char labels[] = {0, 0, 8, 1, 0, 0, 0, 2, 1, 0};

static void put_npy(void)
{
    char npy[128 + 12] = "\x93NUMPY\x01\x00\x76\x00"
                         "{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }";
    size_t text = 10 + strlen(npy + 10);
    memset(npy + text, ' ', 128 - text);
    npy[8] = 118;
    npy[9] = 0;
    const float numbers[] = {1, 2, 3};
    npy[127] = '\n';
    memcpy(npy + 128, numbers, sizeof numbers);
    put_file("a.npy", npy, sizeof npy);
}

static unsigned char picture[2048];
static size_t picture_nbytes;

static void put_pictures(void)
{
    unsigned char pixels[4 * 4 * 3], *jpeg = NULL;
    unsigned long nbytes = 0;
    for (size_t i = 0; i < sizeof pixels; i++)
        pixels[i] = (unsigned char)(i * 5);
    png_image png = {.version = PNG_IMAGE_VERSION,
                     .width = 4,
                     .height = 4,
                     .format = PNG_FORMAT_RGB};
    png_image_write_to_file(&png, fault_path("a.png"), 0, pixels, 0, NULL);
    tjhandle handle = tjInitCompress();
    tjCompress2(handle, pixels, 4, 0, 4, TJPF_RGB, &jpeg, &nbytes, TJSAMP_444, 90, 0);
    tjDestroy(handle);
    put_file("a.jpg", jpeg, nbytes);
    mkdir(fault_path("pictures"), 0777);
    mkdir(fault_path("pictures/cat"), 0777);
    mkdir(fault_path("pictures/dog"), 0777);
    put_file("pictures/dog/1.jpg", jpeg, nbytes);
    picture_nbytes = nbytes < sizeof picture ? nbytes : 0;
    memcpy(picture, jpeg, picture_nbytes);
    tjFree(jpeg);
    png_image_write_to_file(&png, fault_path("pictures/cat/1.png"), 0, pixels, 0, NULL);
}

static int files_set_up(int row)
{
    static bool made;
    static unsigned char cifar[2 * 3073], cifar100[2 * 3074];
    if (made)
        return 0;
    made = true;
    mkdir(fault_path("mnist"), 0777);
    mkdir(fault_path("cifar"), 0777);
    put_file("a.idx", idx, sizeof idx);
    put_compressed("b.idx.gz", idx, sizeof idx);
    put_file("mnist/train-images-idx3-ubyte", idx, sizeof idx);
    put_compressed("mnist/train-labels-idx1-ubyte.gz", labels, sizeof labels);
    put_compressed("a.bin.gz", cifar, sizeof cifar);
    put_file("cifar/test_batch.bin", cifar, sizeof cifar);
    put_file("cifar/test.bin", cifar100, sizeof cifar100);
    put_npy();
    put_pictures();
    return 0;
}

/* ---- reading them ---- */

static int read_cifar(void)
{
    ek_tensor *pictures, *numbers;
    int status = ek_read_cifar(fault_path("a.bin.gz"), 10, &pictures, &numbers);
    if (status < 0 && (pictures || numbers))
        fault_broken("on an error both are NULL");
    return status < 0 ? status : fault_note_tensor(numbers);
}

static int write_picture(void)
{
    ek_tensor *x = ek_full(0.5, EK_SHAPE(3, 1, 2, 2), .device = ek_host(0));
    int status = fault_note_tensor(ek_make_grid(x, .normalize = true));
    return status < 0 ? status : ek_save_image(fault_path("grid.png"), x);
}

static int write_npy(void)
{
    ek_tensor *x = ek_full(0.5, EK_SHAPE(2, 3), .device = ek_host(0));
    int status = ek_save_npy(fault_path("b.npy"), x ? ek_transpose(x, 0, 1) : NULL);
    return status < 0 ? status : ek_save_npy(fault_path("b.npy"), ek_narrow(x, 1, 0, 2));
}

static int note_set(ek_dataset *dataset)
{
    int status = dataset ? fault_note_value(ek_dataset_get(dataset, 1)) : ek_error_status();
    ek_dataset_free(dataset);
    return status;
}

static int read_folder(void)
{
    ek_dataset *folder = ek_image_folder(fault_path("pictures"));
    if (folder && (!ek_image_folder_class(folder, 1) || !ek_image_folder_path(folder, 0)))
        fault_broken("a folder's names can be had");
    return note_set(folder);
}

/* ---- safetensors ---- */

static int write_tensors(void)
{
    ek_tensor *x = ek_full(3, EK_SHAPE(2, 3), .device = ek_host(1));
    ek_named_tensor tensors[] = {{"a \"name\"", x}, {"b", ek_arange(4, EK_I64, ek_cpu())}};
    ek_metadata metadata = {"key", "value"};
    return ek_safetensors_save(fault_path("t.safetensors"), tensors, 2, &metadata, 1);
}

static int read_tensors(void)
{
    ek_safetensors *file = ek_safetensors_open(fault_path("t.safetensors"));
    if (!file)
        return ek_error_status();
    int status = fault_note_tensor(ek_safetensors_read(file, ek_safetensors_name(file, 0)));
    const char *value = ek_safetensors_metadata(file, "key");
    fault_note(ek_safetensors_count(file) + (value ? strlen(value) : 100));
    ek_safetensors_close(file);
    return status;
}

static int export_module(void)
{
    ek_tensor *x = ek_full(0.5, EK_SHAPE(2, 3, 4));
    ek_module *module = ek_sequential(ek_gru(4, 2, .batch_first = true));
    int status = ek_onnx_export(fault_path("net.onnx"), module, EK_VALUE(x));
    ek_module_free(module);
    return status;
}

#define FILES(X)                                                                                  \
    X(idx, fault_note_tensor(ek_read_idx(fault_path("a.idx"))))                                   \
    X(idx_gz, fault_note_tensor(ek_read_idx(fault_path("b.idx.gz"))))                             \
    X(npy, fault_note_tensor(ek_read_npy(fault_path("a.npy"))))                                   \
    X(cifar, read_cifar())                                                                        \
    X(png, fault_note_tensor(ek_read_image(fault_path("a.png"), 3)))                              \
    X(jpeg, fault_note_tensor(ek_read_image(fault_path("a.jpg"), 1)))                             \
    X(picture, write_picture())                                                                   \
    X(save_npy, write_npy())                                                                      \
    X(tokens, note_set(ek_token_dataset(.path = fault_path("a.npy"), .length = 2, .type = "u8"))) \
    X(mnist, note_set(ek_mnist(fault_path("mnist"), true)))                                       \
    X(cifar10, note_set(ek_cifar10(fault_path("cifar"), false)))                                  \
    X(cifar100, note_set(ek_cifar100(fault_path("cifar"), false, true)))                          \
    X(decode, fault_note_tensor(ek_decode_image(picture, picture_nbytes, 3, "memory")))           \
    X(folder, read_folder())                                                                      \
    X(onnx, export_module())                                                                      \
    X(save, write_tensors())                                                                      \
    X(open, read_tensors())

#define FILE_FUNCTION(name, call)   \
    static int attempt_##name(void) \
    {                               \
        return call;                \
    }
FILES(FILE_FUNCTION)

#define FILE_ROW(name, call) {#name, attempt_##name},
static const struct {
    const char *name;
    int (*attempt)(void);
} rows[] = {FILES(FILE_ROW)};

/* The file to open is the one that is saved. */
static int tensors_set_up(int row)
{
    files_set_up(row);
    return rows[row].attempt == attempt_open ? write_tensors() : 0;
}

static int files_attempt(int row)
{
    return rows[row].attempt();
}

FAULT_STAGE(files, FAULT_ROWS(rows), .set_up = tensors_set_up, .attempt = files_attempt,
            .files = true);
