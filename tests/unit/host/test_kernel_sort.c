/* Positions in sorted order, searching in what is sorted, and writing at indices: the host's
 * kernels against loops, the GPU's against the host's. */
#include "twin.h"

/* Along dimension 1: some lines longer than one tile of a GPU. */
static const int64_t shapes[][3] = {{2, 5, 3}, {3, 60, 2}, {1, 1, 1}, {2, 2050, 2}, {1, 6000, 1}};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

/* Few different numbers, so that many are equal. */
static twin values(twin x, unsigned seed)
{
    return twin_integers(x, 0, 99, seed);
}

/* An element of a line. Of two equal ones the first comes first. */
typedef struct place {
    double value;
    int64_t i;
} place;

static int compare_places(const void *a, const void *b)
{
    const place *x = a, *y = b;
    return x->value != y->value ? (x->value < y->value ? -1 : 1) : (x->i < y->i ? -1 : 1);
}

static void check_sorted(ek_dtype dtype, int s, twin_layout layout, bool descending, int64_t count)
{
    const int64_t *shape = shapes[s], size = shape[1], first[] = {shape[0], count, shape[2]};
    twin x = values(twin_new(dtype, 3, shape, layout), 3);
    twin index = twin_new(EK_I64, 3, first, (twin_layout)((layout + 1) % TWIN_LAYOUTS));
    double *wanted = case_zeros(ek_count(index.host));
    place *line = calloc((size_t)size, sizeof *line);
    case_must(line);
    for (int64_t a = 0; a < shape[0]; a++)
        for (int64_t b = 0; b < shape[2]; b++) {
            for (int64_t i = 0; i < size; i++) {
                double value = case_get(x.host, (a * size + i) * shape[2] + b);
                line[i] = (place){descending ? -value : value, i};
            }
            qsort(line, (size_t)size, sizeof *line, compare_places);
            for (int64_t rank = 0; rank < count; rank++)
                wanted[(a * count + rank) * shape[2] + b] = (double)line[rank].i;
        }
    twin_run(argsort, ON(index), ON(x), 1, descending);
    const char *what = text_of("shape %d, layout %d, first %lld", s, layout, (long long)count);
    twin_expect(index, wanted, 0, what);
    twin_same(index, what);
    free(wanted);
    free(line);
}

TEST_LOOP(sorted, 0, EK_DTYPES)
{
    for (int s = 0; s < SHAPES; s++)
        for (int l = 0; l < TWIN_LAYOUTS; l++) {
            ek_scope scope = ek_scope_begin();
            int64_t size = shapes[s][1];
            check_sorted((ek_dtype)_i, s, (twin_layout)l, l % 2, size);
            check_sorted((ek_dtype)_i, s, (twin_layout)l, l % 3, (size + 9) / 10);
            ek_scope_end(&scope);
        }
}

/* More elements than a GPU sorts at once. */
TEST(many_lines_are_sorted)
{
    const int64_t shape[] = {3, 1500000}, first[] = {3, 1000};
    twin x = twin_integers(twin_new(EK_U8, 2, shape, TWIN_ROWS), 0, 255, 7);
    twin index = twin_new(EK_I64, 2, first, TWIN_ROWS);
    twin_run(argsort, ON(index), ON(x), 1, false);
    twin_same(index, "argsort");
}

TEST_LOOP(searched, 0, EK_DTYPES)
{
    const int64_t lines[] = {3, 50, 1}, looked[] = {3, 7, 1}, one[] = {50};
    for (int right = 0; right < 2; right++)
        for (int single = 0; single < 2; single++) {
            twin sorted = single ? twin_new((ek_dtype)_i, 1, one, TWIN_GAPS)
                                 : twin_new((ek_dtype)_i, 2, lines, TWIN_REVERSED);
            for (int64_t i = 0; i < ek_count(sorted.host); i++)
                case_set(sorted.host, i, (double)(i % 50 / 2));
            twin_push(sorted);
            twin x = twin_integers(twin_new((ek_dtype)_i, 2, looked, TWIN_GAPS), 0, 30, 4);
            twin out = twin_new(EK_I64, 2, looked, TWIN_ROWS);
            double wanted[21];
            for (int64_t i = 0; i < 21; i++) {
                double value = case_get(x.host, i);
                bool last = value > 24 || (_i == EK_BOOL && value > 0); /* the largest */
                wanted[i] = last && (right || value > 24) ? 50 : 2 * value + 2 * right;
            }
            twin_run(searchsorted, ON(out), ON(sorted), ON(x), right);
            twin_expect(out, wanted, 0, "searchsorted");
            twin_same(out, "searchsorted");
        }
}

/* Written once each, or several times if the order is fixed. */
TEST_LOOP(written, 0, 2 * EK_DTYPES)
{
    const int64_t whole[] = {4, 40, 3}, part[] = {3, 20, 2};
    ek_use_deterministic_algorithms(_i % 2);
    for (int l = 0; l < TWIN_LAYOUTS; l++) {
        twin out = values(twin_new((ek_dtype)(_i / 2), 3, whole, (twin_layout)l), 1);
        twin x =
            values(twin_new((ek_dtype)(_i / 2), 3, part, (twin_layout)((l + 2) % TWIN_LAYOUTS)), 2);
        twin index = twin_new(EK_I64, 3, part, (twin_layout)((l + 4) % TWIN_LAYOUTS));
        double wanted[480];
        for (int64_t i = 0; i < 480; i++)
            wanted[i] = case_get(out.host, i);
        for (int64_t i = 0; i < 120; i++) {
            int64_t line = i / 40, at = i / 2 % 20, column = i % 2;
            int64_t to = _i % 2 ? (at * 7 + line) % 9 : (at * 7 + line) % 40;
            case_set(index.host, i, (double)to);
            wanted[(line * 40 + to) * 3 + column] = case_get(x.host, i);
        }
        twin_push(index);
        twin_run(scatter, ON(out), ON(x), 1, ON(index));
        twin_expect(out, wanted, 0, "scatter");
        twin_same(out, "scatter");
    }
}

/* Rows of an embedding's gradient: the same bits as additions one by one. */
TEST(rows_are_added_in_order)
{
    const int64_t table[] = {100, 33}, many[] = {700, 33};
    twin out = twin_new(EK_F32, 2, table, TWIN_ROWS);
    twin x = twin_uniform(twin_new(EK_F32, 2, many, TWIN_ROWS), -2, 2, 5);
    twin index = twin_integers(twin_new(EK_I64, 1, many, TWIN_GAPS), 20, 90, 6);
    float sums[3300] = {0};
    double wanted[3300];
    for (int64_t i = 0; i < 700; i++)
        for (int64_t j = 0; j < 33; j++)
            sums[(int64_t)case_get(index.host, i) * 33 + j] += (float)case_get(x.host, i * 33 + j);
    for (int64_t i = 0; i < 3300; i++)
        wanted[i] = (double)sums[i];
    ek_use_deterministic_algorithms(true);
    twin_run(index_add, ON(out), ON(x), 0, ON(index));
    twin_expect(out, wanted, 0, "index_add");
    twin_same(out, "index_add");
    twin_repeats(out, index_add, ON(out), ON(x), 0, ON(index));
}
