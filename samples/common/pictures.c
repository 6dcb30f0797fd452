#include "common/pictures.h"

#include <evenkeel/data.h>
#include <evenkeel/status.h>
#include <unistd.h>

enum { PICTURE_CLASSES = 10 };

static ek_tensor *read_part(const char *directory, const char *set, const char *what)
{
    char path[4096];

    snprintf(path, sizeof(path), "%s/%s-%s", directory, set, what);
    if (access(path, R_OK) != 0)
        snprintf(path, sizeof(path), "%s/%s-%s.gz", directory, set, what);
    return ek_read_idx(path);
}

ek_tensor *pictures_read(const char *directory, const char *set)
{
    ek_tensor *images = read_part(directory, set, "images-idx3-ubyte");

    if (!images)
        return NULL;
    ek_shape shape = ek_tensor_shape(images), wanted = shape;
    char text[160];
    wanted.ndim = 3;
    wanted.dims[1] = wanted.dims[2] = PICTURE;
    if (ek_shape_equal(&shape, &wanted) && shape.dims[0] > 0)
        return images;
    ek_error(EK_E_FORMAT, "%s/%s-images: sizes %s; pictures of 28 x 28 are needed", directory, set,
             ek_shape_text(&shape, text));
    return NULL;
}

ek_tensor *picture_labels_read(const char *directory, const char *set, int64_t count)
{
    ek_tensor *labels = read_part(directory, set, "labels-idx1-ubyte");

    if (!labels)
        return NULL;
    ek_shape shape = ek_tensor_shape(labels);
    char text[160];
    if (shape.ndim != 1 || shape.dims[0] != count) {
        ek_error(EK_E_FORMAT, "%s/%s-labels: sizes %s; one label for each of %lld is needed",
                 directory, set, ek_shape_text(&shape, text), (long long)count);
        return NULL;
    }
    const uint8_t *classes = ek_tensor_data(labels);
    for (int64_t i = 0; i < count; i++) {
        if (classes[i] >= PICTURE_CLASSES) {
            ek_error(EK_E_FORMAT, "%s/%s-labels: label %lld is %d; 0 to 9 are known", directory,
                     set, (long long)i, classes[i]);
            return NULL;
        }
    }
    return labels;
}

void pictures_explain(const char *program, const char *directory)
{
    fprintf(stderr,
            "%s: --data %s must hold Fashion-MNIST's four files; Debian's package "
            "dataset-fashion-mnist puts them in /usr/share/datasets/fashion-mnist\n",
            program, directory);
}
