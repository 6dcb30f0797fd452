/* compare FILE OTHER TOLERANCE NAME...: whether the tensors of two archives below these names are
 * as many and alike: |a - b| <= TOLERANCE * (1 + |b|). Says what differs most. */
#include <evenkeel/evenkeel.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct difference {
    double most;
    int64_t count;
} difference;

static int compare_tensors(ek_tensor *a, ek_tensor *b, difference *found)
{
    int64_t count = a ? ek_tensor_count(a) : 0;
    if (!a || !b || ek_tensor_count(b) != count)
        return ek_error(EK_E_SHAPE, "tensors of other sizes");
    size_t nbytes = (size_t)count * sizeof(double);
    double *x = malloc(nbytes + 1), *y = malloc(nbytes + 1);
    ek_to_data(ek_to_dtype(a, EK_F64), x, nbytes);
    ek_to_data(ek_to_dtype(b, EK_F64), y, nbytes);
    for (int64_t i = 0; i < count && ek_error_status() == 0; i++) {
        double off = fabs(x[i] - y[i]) / (1 + fabs(y[i]));
        if (!(off <= found->most)) /* also if it is no number */
            found->most = off;
    }
    found->count += count;
    free(x);
    free(y);
    return ek_error_status();
}

static int compare_values(ek_value a, ek_value b, difference *found)
{
    if (a.kind != b.kind || ek_value_length(a) != ek_value_length(b))
        return ek_error_status() < 0 ? ek_error_status() : ek_error(EK_E_SHAPE, "other tensors");
    if (a.kind == EK_VALUE_TENSOR)
        return compare_tensors(ek_value_tensor(a), ek_value_tensor(b), found);
    for (int i = 0; i < ek_value_length(a); i++) {
        int rc = compare_values(ek_value_at(a, i), ek_value_at(b, i), found);
        if (rc < 0)
            return rc;
    }
    return 0;
}

int main(int argc, char **argv)
{
    if (argc < 5)
        return 2;
    ek_scope scope = ek_scope_begin();
    ek_archive *a = ek_archive_open(argv[1]), *b = ek_archive_open(argv[2]);
    difference found = {0};
    int rc = ek_error_status();
    for (int i = 4; i < argc && rc >= 0; i++)
        rc = compare_values(ek_archive_get(a, argv[i]), ek_archive_get(b, argv[i]), &found);
    bool alike = rc >= 0 && found.count > 0 && found.most <= strtod(argv[3], NULL);
    if (rc < 0)
        ek_print_error(stdout);
    else
        printf("%s: %lld numbers, %g\n", alike ? "alike" : "different", (long long)found.count,
               found.most);
    ek_archive_free(a);
    ek_archive_free(b);
    ek_scope_end(&scope);
    return ek_shutdown() < 0 || !alike;
}
