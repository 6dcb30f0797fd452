/* histogram.c: how a tensor's elements are distributed, in the buckets of TensorFlow's histograms
 * (tensorflow/core/lib/histogram/histogram.cc). */
#include <float.h>
#include <math.h>
#include <stdlib.h>

#include "core/dtypes.h"
#include "core/tensor.h"
#include "log/log.h"

/* The limits above zero are 1e-12, 1.1 times that and so on below 1e20, and the largest number. The
 * limits below zero are their negatives. One limit is zero. */
enum { HISTOGRAM_SIDE = 774, HISTOGRAM_ROOM = 2 * (HISTOGRAM_SIDE + 1) + 1 };

/* counts[i] elements lie in [limits[i - 1], limits[i]). */
typedef struct histogram {
    double min, max, count, sum, squares;
    double limits[HISTOGRAM_ROOM], counts[HISTOGRAM_ROOM];
    int buckets;
} histogram;

static void histogram_begin(histogram *h)
{
    double limit = 1e-12;
    *h = (histogram){.buckets = HISTOGRAM_ROOM};
    for (int i = 0; i < HISTOGRAM_SIDE; i++, limit *= 1.1) {
        h->limits[HISTOGRAM_SIDE + 2 + i] = limit;
        h->limits[HISTOGRAM_SIDE - i] = -limit;
    }
    h->limits[0] = -DBL_MAX;
    h->limits[HISTOGRAM_ROOM - 1] = DBL_MAX;
}

static void histogram_add(histogram *h, double value)
{
    int low = 0, high = HISTOGRAM_ROOM - 1; /* the first limit above the value is in [low, high] */
    if (!isfinite(value))
        return;
    while (low < high) {
        const int middle = (low + high) / 2;
        if (h->limits[middle] > value)
            high = middle;
        else
            low = middle + 1;
    }
    h->counts[low]++;
    h->min = h->count == 0 ? value : fmin(h->min, value);
    h->max = h->count == 0 ? value : fmax(h->max, value);
    h->count++;
    h->sum += value;
    h->squares += value * value;
}

/* Joins empty buckets that follow each other, and drops empty buckets at the end. */
static void histogram_pack(histogram *h)
{
    int used = 0, last = 0;
    for (int i = 0; i < h->buckets; i++) {
        const bool joins = used > 0 && h->counts[i] == 0 && h->counts[used - 1] == 0;
        used += !joins;
        h->limits[used - 1] = h->limits[i];
        h->counts[used - 1] = h->counts[i];
        last = h->counts[i] > 0 ? used : last;
    }
    h->buckets = last;
}

static void histogram_add_all(histogram *h, ek_dtype dtype, const void *elements, int64_t count)
{
    switch (dtype) {
#define HISTOGRAM_CASE(label, text, type, ...)                                      \
    case EK_##label:                                                                \
        for (int64_t i = 0; i < count; i++)                                         \
            histogram_add(h, (double)EK_LOAD_##label(((const type *)elements)[i])); \
        break;
        EK_DTYPE_ROWS(HISTOGRAM_CASE)
#undef HISTOGRAM_CASE
    }
}

static int histogram_of(const ek_tensor *tensor, histogram *h)
{
    EK_TRY(ek_check_given("log_histogram", "the tensor", tensor));
    const size_t nbytes = (size_t)ek_count(tensor) * ek_dtype_size(tensor->dtype);
    void *elements = ek_calloc(nbytes + 1, 1);
    int rc = elements ? ek_to_data(tensor, elements, nbytes) : EK_E_NO_MEMORY;
    if (rc >= 0) {
        histogram_begin(h);
        histogram_add_all(h, tensor->dtype, elements, ek_count(tensor));
        histogram_pack(h);
    }
    free(elements);
    return rc;
}

/* Doubles are little-endian in the format, as on all processors that the library runs on. */
static void histogram_put(const histogram *h, ek_protobuf *value)
{
    enum { HISTOGRAM = 5, MIN = 1, MAX, NUMBER, SUM, SQUARES, LIMITS, COUNTS };
    ek_protobuf message = {0};
    ek_protobuf_double(&message, MIN, h->min);
    ek_protobuf_double(&message, MAX, h->max);
    ek_protobuf_double(&message, NUMBER, h->count);
    ek_protobuf_double(&message, SUM, h->sum);
    ek_protobuf_double(&message, SQUARES, h->squares);
    ek_protobuf_bytes(&message, LIMITS, h->limits, (size_t)h->buckets * sizeof *h->limits);
    ek_protobuf_bytes(&message, COUNTS, h->counts, (size_t)h->buckets * sizeof *h->counts);
    ek_protobuf_message(value, HISTOGRAM, &message);
}

static void histogram_put_list(ek_json_writer *json, const char *key, const double *of, int count)
{
    ek_json_begin(json, key, '[');
    for (int i = 0; i < count; i++)
        ek_json_put_real(json, NULL, of[i], 17);
    ek_json_close(json, ']');
}

static void members_of_histogram(ek_json_writer *json, const void *of)
{
    const histogram *h = of;
    ek_json_begin(json, "histogram", '{');
    ek_json_put_real(json, "count", h->count, 17);
    ek_json_put_real(json, "min", h->min, 17);
    ek_json_put_real(json, "max", h->max, 17);
    ek_json_put_real(json, "sum", h->sum, 17);
    ek_json_put_real(json, "sum_squares", h->squares, 17);
    histogram_put_list(json, "limits", h->limits, h->buckets);
    histogram_put_list(json, "counts", h->counts, h->buckets);
    ek_json_close(json, '}');
}

int ek_log_histogram(ek_run_log *log, const char *tag, int64_t step, const ek_tensor *tensor)
{
    ek_log_row row;
    int rc = ek_log_row_begin(&row, "log_histogram", log, tag, step);
    if (rc <= 0)
        return rc;
    histogram *h = ek_calloc(1, sizeof *h);
    rc = h ? histogram_of(tensor, h) : EK_E_NO_MEMORY;
    if (rc >= 0)
        histogram_put(h, &row.value);
    row.members = members_of_histogram;
    row.of = h;
    rc = ek_log_row_end(&row, rc);
    free(h);
    return rc;
}
