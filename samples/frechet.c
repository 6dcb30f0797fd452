/* frechet.c: see frechet.h. */
#include "frechet.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "adversary.h"

/* ---- the distance ---- */

/* Rotates two vectors of n numbers, whose elements are `step` apart, in their plane. */
static void frechet_rotate(double *x, double *y, int n, int step, double cosine, double sine)
{
    for (int k = 0; k < n * step; k += step) {
        const double xk = x[k], yk = y[k];
        x[k] = cosine * xk - sine * yk;
        y[k] = sine * xk + cosine * yk;
    }
}

/* Jacobi's method. Leaves the eigenvalues of a symmetric matrix in its diagonal, and the
 * eigenvectors in the columns of v. */
static void frechet_eigen(double *a, double *v, int n)
{
    enum { SWEEPS = 30 };
    for (int i = 0; i < n * n; i++)
        v[i] = i % (n + 1) == 0;
    for (int i = 0; i < SWEEPS * n * n; i++) {
        const int p = i / n % n, q = i % n;
        const double apq = a[p * n + q];
        if (q <= p || apq == 0)
            continue;
        /* The rotation that makes this element 0, by the smaller angle. */
        const double theta = (a[q * n + q] - a[p * n + p]) / (2 * apq);
        const double t = copysign(1, theta) / (fabs(theta) + sqrt(theta * theta + 1));
        const double c = 1 / sqrt(t * t + 1), s = t * c;
        frechet_rotate(a + p, a + q, n, n, c, s);
        frechet_rotate(a + p * n, a + q * n, n, 1, c, s);
        frechet_rotate(v + p, v + q, n, n, c, s);
    }
}

/* Returns (x - mean)^T (x - mean) / (N - 1), (F, F), and the mean (1, F). */
static ek_tensor *frechet_covariance(ek_tensor *x, ek_tensor **mean)
{
    *mean = ek_mean(x, EK_DIMS(0), .keepdim = true);
    ek_tensor *apart = ek_sub(x, *mean);
    return apart ? ek_mul_scalar(ek_matmul(ek_transpose(apart, 0, 1), apart),
                                 1.0 / (double)(ek_tensor_size(apart, 0) - 1))
                 : NULL;
}

/* Computes trace((A B)^(1/2)) of covariances. With the root R of A, the trace is that of (R B
 * R)^(1/2), and R B R is symmetric. */
static int frechet_trace_root(ek_tensor *a, ek_tensor *b, double *trace)
{
    const int n = (int)ek_tensor_size(a, 0);
    const size_t nbytes = (size_t)n * (size_t)n * sizeof(double);
    double *values = malloc(nbytes), *vectors = malloc(nbytes);
    int rc = values && vectors ? ek_to_data(a, values, nbytes)
                               : ek_error(EK_E_NO_MEMORY, "no memory for %d features", n);
    if (rc == 0) {
        frechet_eigen(values, vectors, n);
        for (int i = 0; i < n * n; i++) /* V D^(1/2) */
            vectors[i] *= sqrt(fmax(values[i % n * (n + 1)], 0));
        ek_tensor *root = ek_from_data(vectors, EK_SHAPE(n, n), EK_F64);
        rc = ek_to_data(ek_matmul(ek_transpose(root, 0, 1), ek_matmul(b, root)), values, nbytes);
    }
    if (rc == 0) {
        frechet_eigen(values, vectors, n);
        *trace = 0;
        for (int i = 0; i < n; i++)
            *trace += sqrt(fmax(values[i * (n + 1)], 0));
    }
    free(values);
    free(vectors);
    return rc;
}

int frechet_distance(ek_tensor *x, ek_tensor *y, double *distance)
{
    ek_scope scope = ek_scope_begin();
    ek_tensor *mean_x, *mean_y;
    ek_tensor *a = frechet_covariance(ek_to_dtype(x, EK_F64), &mean_x);
    ek_tensor *b = frechet_covariance(ek_to_dtype(y, EK_F64), &mean_y);
    double means = 0, traces = 0, root = 0;
    int rc = ek_item(ek_sum(ek_square(ek_sub(mean_x, mean_y))), &means);
    if (rc == 0)
        rc = ek_item(ek_sum(ek_diagonal(ek_add(a, b), 0, 0, 1)), &traces);
    if (rc == 0)
        rc = frechet_trace_root(a, b, &root);
    *distance = means + traces - 2 * root;
    ek_scope_end(&scope);
    return rc;
}

/* ---- the classifier ---- */

enum {
    SIDE = 32,
    CLASSES = 10,
    FEATURES = 64,
    TRAINED_AT_ONCE = 128,
    JUDGED_AT_ONCE = 256,
    MOST_PARTS = 64
};

static ek_module *frechet_halve(int in, int out)
{
    return ek_sequential(ek_conv2d(in, out, 3, .stride = 2, .padding = 1), ek_relu());
}

/* Makes two modules in a row: pictures (N, 1, 32, 32) to features, and features to logits. */
static ek_module *frechet_classifier(void)
{
    ek_module *features =
        ek_sequential(frechet_halve(1, 16), frechet_halve(16, 32), frechet_halve(32, 64),
                      ek_flatten(1, -1), ek_linear(1024, FEATURES), ek_relu());
    return ek_sequential(features, ek_linear(FEATURES, CLASSES));
}

static int frechet_train(ek_module *classifier, ek_dataset *pictures, int64_t steps, uint64_t seed)
{
    ek_generator *shuffle = ek_generator_new(seed);
    ek_sampler *order = shuffled_sampler(ek_dataset_length(pictures), shuffle);
    ek_loader *loader =
        ek_data_loader(ek_dataset_keep(pictures), .batch_size = TRAINED_AT_ONCE, .sampler = order);
    ek_module *criterion = ek_cross_entropy_loss();
    ek_optimizer *optimizer = ek_adam(classifier);
    int rc = ek_error_status();
    for (int64_t i = 0; i < steps && rc == 0; i++) {
        ek_batch batch;
        ek_scope scope = ek_scope_begin();
        rc = loader_next(loader, &batch);
        if (rc == 0)
            rc =
                ek_train_step(NULL, .model = classifier, .criterion = criterion,
                              .optimizer = optimizer, .input = batch.input, .target = batch.target);
        ek_scope_end(&scope);
    }
    ek_optimizer_free(optimizer);
    ek_module_free(criterion);
    ek_loader_free(loader);
    ek_generator_free(shuffle);
    return rc;
}

/* Returns the pictures' features (N, FEATURES). */
static ek_tensor *frechet_features(ek_module *classifier, ek_tensor *pictures)
{
    ek_module *features = ek_module_at(classifier, "0");
    ek_tensor *parts[MOST_PARTS];
    const int count = ek_split(ek_to_dtype(pictures, EK_F32), JUDGED_AT_ONCE, 0, parts, MOST_PARTS);
    if (count < 0)
        return NULL;
    for (int i = 0; i < count; i++) {
        ek_scope scope = ek_scope_begin();
        parts[i] = ek_scope_return(&scope, ek_apply(features, parts[i]));
    }
    return ek_cat(parts, count, 0);
}

static int frechet_measure(ek_module *classifier, ek_tensor *made, ek_dataset *training,
                           ek_dataset *testing, frechet_result *result)
{
    const int64_t count = result->pictures;
    ek_value tested = dataset_first(testing, count), trained = dataset_first(training, count);
    ek_tensor *wanted = frechet_features(classifier, ek_value_tensor(ek_value_at(tested, 0)));
    ek_tensor *logits = ek_apply(ek_module_at(classifier, "1"), wanted);
    ek_tensor *right = ek_eq(ek_argmax(logits, 1, false), ek_value_tensor(ek_value_at(tested, 1)));
    ek_tensor *uniform = ek_mul_scalar(ek_rand(EK_SHAPE(count, 1, SIDE, SIDE)), 2);
    const struct {
        ek_tensor *pictures;
        double *distance;
    } sets[] = {{ek_add_scalar(uniform, -1), &result->noise},
                {ek_narrow(made, 0, 0, count), &result->generated},
                {ek_value_tensor(ek_value_at(trained, 0)), &result->training}};
    int rc = ek_item(ek_mean(ek_to_dtype(right, EK_F64)), &result->accuracy);
    for (int i = 0; i < 3 && rc == 0; i++)
        rc = frechet_distance(frechet_features(classifier, sets[i].pictures), wanted,
                              sets[i].distance);
    return rc;
}

int frechet_judge(ek_tensor *made, const char *directory, int64_t steps, uint64_t seed,
                  frechet_result *result)
{
    ek_dataset *training = adversary_pictures(directory, true, SIDE),
               *testing = adversary_pictures(directory, false, SIDE);
    int rc = ek_error_status();
    if (rc == 0) {
        const int64_t counts[] = {ek_tensor_size(made, 0), ek_dataset_length(training),
                                  ek_dataset_length(testing)};
        result->pictures = counts[0] < counts[1] ? counts[0] : counts[1];
        result->pictures = result->pictures < counts[2] ? result->pictures : counts[2];
        ek_manual_seed(seed);
        ek_module *classifier = frechet_classifier();
        rc = frechet_train(classifier, training, steps, seed);
        ek_scope scope = ek_scope_begin();
        bool had_gradients = ek_set_grad_enabled(false);
        if (rc == 0)
            rc = frechet_measure(classifier, made, training, testing, result);
        ek_set_grad_enabled(had_gradients);
        ek_scope_end(&scope);
        ek_module_free(classifier);
    }
    ek_dataset_free(training);
    ek_dataset_free(testing);
    return rc;
}

int frechet_check_count(int64_t judged)
{
    return judged == 1
               ? args_complain(
                     "--judged 1: 0 or at least 2 are needed; one picture has no covariance")
               : 0;
}

void frechet_json(json_writer *json, const frechet_result *r)
{
    if (r->pictures > 0)
        json_write(json, "frechet { pictures %jd accuracy %g noise %g generated %g training %g }",
                   r->pictures, r->accuracy, r->noise, r->generated, r->training);
}

void frechet_print(const frechet_result *r)
{
    if (r->pictures > 0)
        printf("Frechet distance of %" PRId64 " pictures to as many test pictures, in features of "
               "a classifier that is right\non %.1f %% of these: noise %.2f, generated %.2f, "
               "training pictures %.2f\n",
               r->pictures, 100 * r->accuracy, r->noise, r->generated, r->training);
}
