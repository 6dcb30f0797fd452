/* retrieval.c: cumulative matching and mean average precision; see views.h. */
#include <stdlib.h>
#include <string.h>

#include "views.h"

/* ---- one query ---- */

/* Goes through the gallery in the order of its distances, up to the last. Returns whether anything
 * is right. */
static bool retrieval_search(const int64_t *order, int64_t count, sighting query,
                             const sighting *gallery, int64_t *nearest, retrieval *sums)
{
    int64_t seen = 0, right = 0, first = 0; /* first: the rank of the first right one, from 1 */
    double precisions = 0;
    for (int64_t i = 0; i < count; i++) {
        const sighting *found = &gallery[order[i]];
        const bool same = found->identity == query.identity;
        if (same && found->camera == query.camera)
            continue; /* junk */
        if (nearest && seen < RETRIEVAL_SHOWN)
            nearest[seen] = order[i];
        seen++;
        if (!same)
            continue;
        right++;
        first = first ? first : seen;
        precisions += (double)right / (double)seen;
    }
    if (right == 0)
        return false;
    sums->map += precisions / (double)right;
    sums->rank1 += first <= 1;
    sums->rank5 += first <= 5;
    return true;
}

int retrieval_judge(ek_tensor *distances, const sighting *queries, const sighting *gallery,
                    retrieval *found)
{
    *found = (retrieval){0};
    for (int i = 0; i < RETRIEVAL_DRAWN * RETRIEVAL_SHOWN; i++)
        found->nearest[i / RETRIEVAL_SHOWN][i % RETRIEVAL_SHOWN] = -1;
    ek_tensor *order = ek_argsort(distances, 1, false);
    if (!order)
        return ek_error_status();
    const int64_t rows = ek_tensor_size(order, 0), count = ek_tensor_size(order, 1);
    const size_t nbytes = (size_t)(rows * count) * sizeof(int64_t);
    int64_t *all = malloc(nbytes ? nbytes : 1);
    int rc = all ? ek_to_data(order, all, nbytes)
                 : ek_error(EK_E_NO_MEMORY, "no memory for %lld queries", (long long)rows);
    for (int64_t q = 0; rc == 0 && q < rows; q++)
        found->queries += retrieval_search(all + q * count, count, queries[q], gallery,
                                           q < RETRIEVAL_DRAWN ? found->nearest[q] : NULL, found);
    free(all);
    if (found->queries > 0) {
        found->map /= (double)found->queries;
        found->rank1 /= (double)found->queries;
        found->rank5 /= (double)found->queries;
    }
    return rc;
}

/* ---- a set of views ---- */

int64_t retrieval_query_row(int64_t query, int64_t views)
{
    return query / VIEW_CAMERAS * views + query % VIEW_CAMERAS;
}

int64_t retrieval_gallery_row(int64_t index, int64_t views)
{
    const int64_t others = views - VIEW_CAMERAS;
    return index / others * views + VIEW_CAMERAS + index % others;
}

static sighting sighting_of_row(int64_t row, int64_t views)
{
    return (sighting){row / views, row % views % VIEW_CAMERAS};
}

int retrieval_of_features(ek_tensor *features, int64_t views, retrieval *found)
{
    if (!features)
        return ek_error_status();
    ek_scope scope = ek_scope_begin();
    const int64_t identities = ek_tensor_size(features, 0) / views;
    const int64_t queries = identities * VIEW_CAMERAS, others = identities * views - queries;
    sighting *of = malloc((size_t)(queries + others) * sizeof *of);
    for (int64_t i = 0; of && i < queries + others; i++)
        of[i] = sighting_of_row(i < queries ? retrieval_query_row(i, views)
                                            : retrieval_gallery_row(i - queries, views),
                                views);
    ek_tensor *rows = ek_f_unflatten(ek_f_normalize(ek_to_dtype(features, EK_F64)), 0,
                                     EK_SHAPE(identities, views));
    ek_tensor *asked = ek_f_flatten(ek_narrow(rows, 1, 0, VIEW_CAMERAS), 0, 1);
    ek_tensor *searched =
        ek_f_flatten(ek_narrow(rows, 1, VIEW_CAMERAS, views - VIEW_CAMERAS), 0, 1);
    int rc =
        of ? retrieval_judge(ek_cdist(asked, searched, 2), of, of + queries, found)
           : ek_error(EK_E_NO_MEMORY, "no memory for %lld views", (long long)(queries + others));
    free(of);
    ek_scope_end(&scope);
    return rc;
}

int retrieval_of_pixels(ek_dataset *set, int64_t views, retrieval *found)
{
    ek_scope scope = ek_scope_begin();
    ek_value all = dataset_first(set, ek_dataset_length(set));
    ek_tensor *pixels = ek_to_dtype(ek_value_tensor(ek_value_at(all, 0)), EK_F64);
    int rc = retrieval_of_features(ek_f_flatten(pixels, 1, -1), views, found);
    ek_scope_end(&scope);
    return rc;
}

/* ---- what was found, as pictures ---- */

enum { BORDER = 2, FRAMED = VIEW_SIDE + 2 * BORDER };

/* Copies a view into a picture (3, FRAMED, FRAMED) with a border of a color. */
static int retrieval_frame(ek_dataset *set, int64_t row, const uint8_t colour[3], uint8_t *to)
{
    uint8_t view[VIEW_SIDE][VIEW_SIDE];
    ek_scope scope = ek_scope_begin();
    int rc =
        ek_to_data(ek_value_tensor(ek_value_at(ek_dataset_get(set, row), 0)), view, sizeof view);
    ek_scope_end(&scope);
    for (int i = 0; rc == 0 && i < 3 * FRAMED * FRAMED; i++) {
        const int y = i / FRAMED % FRAMED - BORDER, x = i % FRAMED - BORDER;
        const bool inside = y >= 0 && y < VIEW_SIDE && x >= 0 && x < VIEW_SIDE;
        to[i] = inside ? view[y][x] : colour[i / (FRAMED * FRAMED)];
    }
    return rc;
}

ek_tensor *retrieval_draw(const retrieval *found, ek_dataset *set, int64_t views)
{
    static const uint8_t query[] = {128, 128, 128}, right[] = {0, 160, 0}, wrong[] = {220, 0, 0};
    static uint8_t drawn[RETRIEVAL_DRAWN][RETRIEVAL_SHOWN + 1][3 * FRAMED * FRAMED];
    memset(drawn, 0, sizeof drawn);
    for (int q = 0; q < RETRIEVAL_DRAWN; q++) {
        const int64_t of = retrieval_query_row(q, views);
        int rc = retrieval_frame(set, of, query, drawn[q][0]);
        for (int i = 0; rc == 0 && i < RETRIEVAL_SHOWN && found->nearest[q][i] >= 0; i++) {
            const int64_t row = retrieval_gallery_row(found->nearest[q][i], views);
            const bool same = row / views == of / views;
            rc = retrieval_frame(set, row, same ? right : wrong, drawn[q][i + 1]);
        }
        if (rc < 0)
            return NULL;
    }
    return ek_from_data(drawn,
                        EK_SHAPE((int64_t)RETRIEVAL_DRAWN * (RETRIEVAL_SHOWN + 1), 3, FRAMED,
                                 FRAMED),
                        EK_U8);
}
