/* einsum.c: sums of products by subscripts. Operands are joined from left to right. A label that
 * neither a later operand nor the result has is summed as soon as possible, by a matrix product if
 * both joined operands have it. */
#include <string.h>

#include "ops/autocast.h"
#include "ops/ops.h"

/* Labels are A to Z, a to z, and the dimensions of an ellipsis, counted from the last one. */
enum { LETTERS = 52, LABELS = LETTERS + EK_MAX_DIMS, OPERANDS = 64 };

typedef uint64_t label_set;

/* A tensor with a label for each dimension. */
typedef struct einsum_term {
    ek_tensor *x;
    int label[EK_MAX_DIMS];
} einsum_term;

typedef struct einsum {
    const char *equation;
    int count;
    einsum_term term[OPERANDS];
    int ellipsis;         /* most dimensions that an ellipsis stands for */
    int64_t size[LABELS]; /* 0: not seen */
    int uses[LABELS];     /* how many dimensions have it */
    int out_count, out[LABELS];
} einsum;

static label_set einsum_set_of(const einsum_term *term)
{
    label_set set = 0;
    for (int d = 0; d < term->x->ndim; d++)
        set |= (label_set)1 << term->label[d];
    return set;
}

/* ---- reading ---- */

static int einsum_letter(char c)
{
    return c >= 'A' && c <= 'Z' ? c - 'A' : c >= 'a' && c <= 'z' ? c - 'a' + 26 : -1;
}

/* Reads labels up to a comma, an arrow or the end. They must label `dims` dimensions; -1 for the
 * result, whose ellipsis has all dimensions. Returns the number of labels, or a negative status. */
static int einsum_read_labels(einsum *sum, const char **text, int dims, int *label)
{
    int count = 0, letters = 0, dots = 0;
    for (const char *c = *text; *c && *c != ',' && *c != '-'; c++)
        letters += einsum_letter(*c) >= 0;
    for (; **text && **text != ',' && **text != '-'; (*text)++) {
        int letter = einsum_letter(**text), hidden = dims < 0 ? sum->ellipsis : dims - letters;
        if (**text == ' ')
            continue;
        if (letter >= 0 && count < EK_MAX_DIMS) {
            label[count++] = letter;
        } else if (strncmp(*text, "...", 3) == 0 && !dots++ && hidden >= 0 &&
                   count + hidden <= EK_MAX_DIMS) {
            sum->ellipsis = hidden > sum->ellipsis ? hidden : sum->ellipsis;
            for (int i = hidden; i > 0; i--)
                label[count++] = LETTERS + i - 1;
            *text += 2;
        } else {
            return EK_FAIL(EK_E_INVALID, "einsum: '%.1s' in \"%s\" can't be read at its place",
                           *text, sum->equation);
        }
    }
    if (dims >= 0 && count != dims)
        return EK_FAIL(EK_E_SHAPE, "einsum: an operand has %d dimensions and \"%s\" names %d", dims,
                       sum->equation, count);
    return count;
}

/* Records the sizes of an operand's labels. A size of 1 broadcasts. */
static int einsum_add_sizes(einsum *sum, const einsum_term *term)
{
    for (int d = 0; d < term->x->ndim; d++) {
        int label = term->label[d];
        int64_t size = term->x->shape[d], known = sum->size[label];
        if (sum->uses[label]++ > 0 && size != known && size != 1 && known != 1)
            return EK_FAIL(EK_E_SHAPE,
                           "einsum: a dimension of \"%s\" has %lld elements in one operand and "
                           "%lld in another",
                           sum->equation, (long long)known, (long long)size);
        if (sum->uses[label] == 1 || known == 1)
            sum->size[label] = size;
    }
    return 0;
}

/* Sets the result's labels if the equation doesn't name them: the ellipsis, and labels that occur
 * once. */
static void einsum_imply_result(einsum *sum)
{
    for (int i = sum->ellipsis; i > 0; i--)
        sum->out[sum->out_count++] = LETTERS + i - 1;
    for (int i = 0; i < LETTERS; i++)
        if (sum->uses[i] == 1)
            sum->out[sum->out_count++] = i;
}

static int einsum_read_result(einsum *sum, const char *text)
{
    label_set seen = 0;
    EK_TRY(sum->out_count = einsum_read_labels(sum, &text, -1, sum->out));
    for (int i = 0; i < sum->out_count; i++) {
        if (sum->uses[sum->out[i]] == 0 || seen >> sum->out[i] & 1)
            return EK_FAIL(EK_E_INVALID,
                           "einsum: the result of \"%s\" has a letter twice, or one that no "
                           "operand has",
                           sum->equation);
        seen |= (label_set)1 << sum->out[i];
    }
    return *text ? EK_FAIL(EK_E_INVALID, "einsum: \"%s\" goes on after the result", sum->equation)
                 : 0;
}

static int einsum_read(einsum *sum, ek_tensor *const *tensors)
{
    const char *text = sum->equation;
    bool mixes = ek_autocast_mixes(tensors, sum->count);
    for (int i = 0; i < sum->count; i++) {
        einsum_term *term = &sum->term[i];
        term->x = tensors[i];
        if (!ek_floating("einsum", "an operand", term->x) ||
            !(mixes ? ek_same_device("einsum", tensors[0], term->x)
                    : ek_alike("einsum", tensors[0], term->x)))
            return ek_error_pending();
        EK_TRY(einsum_read_labels(sum, &text, term->x->ndim, term->label));
        EK_TRY(einsum_add_sizes(sum, term));
        if (i + 1 < sum->count && *text++ != ',')
            return EK_FAIL(EK_E_INVALID, "einsum: %d operands, and \"%s\" has %d", sum->count,
                           sum->equation, i + 1);
    }
    if (*text == '\0') {
        einsum_imply_result(sum);
        return sum->out_count <= EK_MAX_DIMS
                   ? 0
                   : EK_FAIL(EK_E_SHAPE, "einsum: the result has %d dimensions; there can be %d",
                             sum->out_count, EK_MAX_DIMS);
    }
    if (strncmp(text, "->", 2) != 0)
        return EK_FAIL(EK_E_INVALID, "einsum: %d operands, and \"%s\" goes on", sum->count,
                       sum->equation);
    return einsum_read_result(sum, text + 2);
}

/* ---- computing ---- */

/* Takes diagonals of labels that occur twice, and expands dimensions that broadcast. */
static void einsum_prepare(const einsum *sum, einsum_term *term)
{
    for (int a = 0; term->x && a < term->x->ndim; a++)
        for (int b = a + 1; term->x && b < term->x->ndim; b++) {
            if (term->label[a] != term->label[b])
                continue;
            int label = term->label[a], to = 0;
            if (term->x->shape[a] != term->x->shape[b]) {
                term->x = EK_REFUSE(EK_E_SHAPE,
                                    "einsum: a dimension that \"%s\" names twice has %lld and %lld "
                                    "elements",
                                    sum->equation, (long long)term->x->shape[a],
                                    (long long)term->x->shape[b]);
                return;
            }
            for (int d = 0; d < term->x->ndim; d++)
                if (d != a && d != b)
                    term->label[to++] = term->label[d];
            term->label[to] = label;
            term->x = ek_diagonal(term->x, 0, a, b);
            a = -1;
            break;
        }
    if (!term->x)
        return;
    ek_shape shape = {.ndim = term->x->ndim};
    for (int d = 0; d < shape.ndim; d++)
        shape.dims[d] = sum->size[term->label[d]];
    term->x = ek_expand(term->x, shape);
}

/* Sums over dimensions whose labels aren't in `kept`. */
static void einsum_reduce(einsum_term *term, label_set kept)
{
    unsigned reduced = 0;
    int to = 0, ndim = term->x ? term->x->ndim : 0;
    for (int d = 0; d < ndim; d++)
        if (kept >> term->label[d] & 1)
            term->label[to++] = term->label[d];
        else
            reduced |= 1u << d;
    if (reduced)
        term->x = ek_sum_mask(term->x, reduced, reduced);
}

/* Returns x with three dimensions, each made of the dimensions of a set of labels. sizes[i] becomes
 * the size of dimension i. */
static ek_tensor *einsum_arrange(const einsum_term *term, const label_set sets[3], int64_t sizes[3])
{
    ek_shape order = {.ndim = term->x->ndim};
    int at = 0;
    for (int s = 0; s < 3; s++) {
        sizes[s] = 1;
        for (int label = 0; label < LABELS; label++)
            for (int d = 0; d < term->x->ndim; d++)
                if (term->label[d] == label && sets[s] >> label & 1) {
                    order.dims[at++] = d;
                    sizes[s] *= term->x->shape[d];
                }
    }
    return ek_permute(term->x, order);
}

/* Writes the labels of these sets, one set after the other, and their sizes. */
static bool einsum_label(const einsum *sum, const label_set sets[3], int *label, ek_shape *shape)
{
    shape->ndim = 0;
    for (int s = 0; s < 3; s++)
        for (int i = 0; i < LABELS; i++) {
            if (!(sets[s] >> i & 1))
                continue;
            if (shape->ndim == EK_MAX_DIMS)
                return EK_REFUSE(EK_E_SHAPE, "einsum: \"%s\" has more than %d dimensions at once",
                                 sum->equation, EK_MAX_DIMS);
            label[shape->ndim] = i;
            shape->dims[shape->ndim++] = sum->size[i];
        }
    return true;
}

/* Replaces a by the product of a and b; labels that aren't in `kept` are summed. */
static void einsum_join(const einsum *sum, einsum_term *a, einsum_term *b, label_set kept)
{
    label_set of_a = einsum_set_of(a), of_b = einsum_set_of(b);
    einsum_reduce(a, kept | of_b);
    einsum_reduce(b, kept | of_a);
    label_set shared = of_a & of_b & kept, summed = of_a & of_b & ~kept;
    label_set left = of_a & ~of_b & kept, right = of_b & ~of_a & kept;
    int64_t l[3], r[3];
    ek_shape shape;
    ek_tensor *x = a->x && b->x ? einsum_arrange(a, (label_set[]){shared, left, summed}, l) : NULL;
    ek_tensor *y = x ? einsum_arrange(b, (label_set[]){shared, summed, right}, r) : NULL;
    a->x = NULL;
    if (!y || !einsum_label(sum, (label_set[]){shared, left, right}, a->label, &shape))
        return;
    x = ek_reshape(x, EK_SHAPE(l[0], l[1], l[2]));
    y = ek_reshape(y, EK_SHAPE(r[0], r[1], r[2]));
    a->x = ek_reshape(summed ? ek_matmul(x, y) : ek_mul(x, y), shape);
}

/* Returns the labels of the result and of the operands after the first `done`. */
static label_set einsum_kept(const einsum *sum, int done)
{
    label_set kept = 0;
    for (int i = 0; i < sum->out_count; i++)
        kept |= (label_set)1 << sum->out[i];
    for (int i = done; i < sum->count; i++)
        kept |= einsum_set_of(&sum->term[i]);
    return kept;
}

/* Returns the operand that remains, with its dimensions in the result's order. */
static ek_tensor *einsum_finish(const einsum *sum, einsum_term *term)
{
    ek_shape order = {.ndim = sum->out_count};
    einsum_reduce(term, einsum_kept(sum, sum->count));
    for (int i = 0; term->x && i < sum->out_count; i++)
        for (int d = 0; d < term->x->ndim; d++)
            if (term->label[d] == sum->out[i])
                order.dims[i] = d;
    return ek_permute(term->x, order);
}

ek_tensor *ek_einsum(const char *equation, ek_tensor *const *tensors, int count)
{
    if (!equation || !tensors)
        return EK_REFUSE(EK_E_INVALID, "einsum: %s is NULL", equation ? "tensors" : "equation");
    if (count < 1 || count > OPERANDS)
        return EK_REFUSE(EK_E_INVALID, "einsum: %d operands; there can be 1 to %d", count,
                         OPERANDS);
    einsum sum = {.equation = equation, .count = count};
    if (einsum_read(&sum, tensors) < 0)
        return NULL;
    ek_scope scope = ek_scope_begin();
    einsum_term *first = &sum.term[0];
    for (int i = 0; i < count && first->x; i++) {
        einsum_prepare(&sum, &sum.term[i]);
        if (!sum.term[i].x)
            first->x = NULL;
    }
    for (int i = 1; i < count && first->x; i++)
        einsum_join(&sum, first, &sum.term[i], einsum_kept(&sum, i + 1));
    ek_tensor *y = first->x ? einsum_finish(&sum, first) : NULL;
    bool is_operand = false;
    for (int i = 0; i < count; i++)
        is_operand = is_operand || y == tensors[i];
    return ek_scope_return(&scope, is_operand ? ek_clone(y) : y);
}
