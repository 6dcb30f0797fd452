/* resample.cu: resizes images, which is a linear map, and computes the map's adjoint. One launch
 * fills tables of the rows of each direction's matrix; another sums elements by these tables. A
 * thread gathers the inputs of each element that it writes in a fixed order; neighbouring threads
 * share inputs through the caches. A thread of the map uses a column's weights for several rows, a
 * thread of the adjoint all weights for several channels. */
#include "cuda/image.cuh"
#include "cuda/launches.h"

enum { ROWS = 4, GROUP = 4 };

/* ---- tables ---- */

template <typename R>
EK_DEVICE void resample_fill_row(const ek_resample_axis &axis, const ek_cuda_resample_table &table,
                                 int64_t i)
{
    ek_resample_row row = ek_resample_row_of(&axis, i);
    double norm = ek_resample_norm(&axis, &row);
    R *weight = (R *)table.weight + i * table.taps;
    table.first[i] = (int32_t)row.first;
    for (int32_t t = 0; t < table.taps; t++) {
        bool exists = row.first + t < row.end;
        weight[t] = exists ? (R)(ek_resample_weight(&axis, &row, row.first + t) * norm) : (R)0;
    }
}

template <typename R> EK_KERNEL resample_fill(ek_cuda_resample_job job, int64_t count)
{
    EK_GRID_LOOP(i, count) {
        int64_t at = i;
        EK_EACH(d, 3) {
            const ek_resample_axis &axis = job.axis[d];
            int64_t inputs = job.adjoint ? axis.in : 0;
            if (at >= 0 && at < axis.out)
                resample_fill_row<R>(axis, job.table[d], at);
            at -= axis.out;
            if (at >= 0 && at < inputs) {
                job.table[d].begin[at] = (int32_t)ek_resample_reader(&axis, at, true);
                job.table[d].end[at] = (int32_t)ek_resample_reader(&axis, at, false);
            }
            at -= inputs;
        }
    }
}

/* ---- sums ---- */

/* Adds `share` times `real` channels of a position, which lie `step` apart, to sum. If PACKED,
 * there are V contiguous channels. */
template <typename T, int V, bool PACKED>
EK_DEVICE void resample_add(typename ek_compute<T>::type (&sum)[V],
                            typename ek_compute<T>::type share, const T *from, int64_t step,
                            int real)
{
    typename ek_compute<T>::type values[V];
    if constexpr (PACKED) {
        ek_load_elements<T, V>(values, from);
    } else {
        EK_EACH(v, V)
            values[v] = v < real ? ek_load(from + v * step) : 0;
    }
    EK_EACH(v, V)
        sum[v] += share * values[v];
}

template <typename T, int V, bool PACKED>
EK_DEVICE void resample_store(T *to, const typename ek_compute<T>::type (&sum)[V], int64_t step,
                              int real)
{
    if constexpr (PACKED) {
        ek_store_elements<T, V>(to, sum);
    } else {
        EK_EACH(v, V)
            if (v < real)
                ek_store(to + v * step, sum[v]);
    }
}

/* Computes the map. A thread has V channels of ROWS positions below each other; `bands` counts
 * these groups. TAPS is the number of taps of a matrix's row, or 0 if it is read from the tables.
 * Elements whose weight is 0 don't count, even if they are infinite. */
template <typename T, typename I, int V, int TAPS>
EK_KERNEL resample_forward(ek_cuda_resample_job job, ek_cuda_image bands)
{
    typedef typename ek_compute<T>::type R;
    enum { KEPT = TAPS > 0 ? TAPS : 1 };
    const ek_cuda_resample_table &depth = job.table[0], &height = job.table[1],
                                 &width = job.table[2];
    I step = (I)job.from.step[2], rows = (I)job.to.size[1];
    EK_GRID_LOOP(i, bands.count) {
        ek_index<I> index = ek_index_of(bands, (I)i);
        const T *plane =
            (const T *)job.from.data + ek_plane_offset(job.from, index.sample, index.channel);
        const R *of_depth = (const R *)depth.weight + (I)index.at[0] * depth.taps;
        const R *of_width = (const R *)width.weight + (I)index.at[2] * width.taps;
        I first = index.at[1] * ROWS, front = depth.first[index.at[0]];
        const T *column = plane + (I)width.first[index.at[2]] * step;
        R kept[KEPT];
        EK_EACH(u, KEPT)
            kept[u] = of_width[u];
        EK_EACH(row, ROWS) {
            if (first + row >= rows)
                break;
            index.at[1] = first + row;
            const R *of_height = (const R *)height.weight + (I)index.at[1] * height.taps;
            I top = height.first[index.at[1]];
            R sum[V] = {};
            for (I s = 0; s < depth.taps; s++) {
                if (of_depth[s] == 0)
                    continue;
                for (I t = 0; t < (TAPS > 0 ? TAPS : height.taps); t++) {
                    R share = of_depth[s] * of_height[t], line[V] = {};
                    if (share == 0)
                        continue;
                    const T *from = column + (front + s) * (I)job.from.step[0] +
                                    (top + t) * (I)job.from.step[1];
                    if constexpr (TAPS > 0) {
                        EK_EACH(u, KEPT)
                            if (kept[u] != 0)
                                resample_add<T, V, true>(line, kept[u], from + u * step, 1, V);
                    } else {
                        for (I u = 0; u < width.taps; u++)
                            if (of_width[u] != 0)
                                resample_add<T, V, true>(line, of_width[u], from + u * step, 1, V);
                    }
                    EK_EACH(v, V)
                        sum[v] += share * line[v];
                }
            }
            ek_store_elements<T, V>((T *)job.to.data + ek_offset_of(job.to, index), sum);
        }
    }
}

/* Returns the weight that output o gives to input j. */
template <typename R, typename I>
EK_DEVICE R resample_share(const ek_cuda_resample_table &table, I o, I j)
{
    return ((const R *)table.weight)[o * (I)table.taps + j - (I)table.first[o]];
}

/* Computes the adjoint. A thread has a group of V channels of one position; `groups` counts these
 * groups. */
template <typename T, typename I, int V, bool PACKED>
EK_KERNEL resample_adjoint(ek_cuda_resample_job job, ek_cuda_image groups)
{
    typedef typename ek_compute<T>::type R;
    const ek_cuda_resample_table &depth = job.table[0], &height = job.table[1],
                                 &width = job.table[2];
    EK_GRID_LOOP(i, groups.count) {
        ek_index<I> index = ek_index_of(groups, (I)i);
        I x = index.at[2], begin = width.begin[x], end = width.end[x];
        index.channel *= V;
        int real = (int)((I)job.to.channels - index.channel);
        const T *plane =
            (const T *)job.from.data + ek_plane_offset(job.from, index.sample, index.channel);
        R sum[V] = {};
        for (I a = depth.begin[index.at[0]]; a < (I)depth.end[index.at[0]]; a++)
            for (I b = height.begin[index.at[1]]; b < (I)height.end[index.at[1]]; b++) {
                R share = resample_share<R>(depth, a, index.at[0]) *
                          resample_share<R>(height, b, index.at[1]);
                R line[V] = {};
                if (share == 0)
                    continue;
                const T *from = plane + a * (I)job.from.step[0] + b * (I)job.from.step[1];
                for (I c = begin; c < end; c++) {
                    R part = resample_share<R>(width, c, x);
                    if (part != 0)
                        resample_add<T, V, PACKED>(line, part, from + c * (I)job.from.step[2],
                                                   job.from.by_channel, real);
                }
                EK_EACH(v, V)
                    sum[v] += share * line[v];
            }
        resample_store<T, V, PACKED>((T *)job.to.data + ek_offset_of(job.to, index), sum,
                                     job.to.by_channel, real);
    }
}

/* ---- launches ---- */

template <typename T>
static int launch_resample_fill(const ek_cuda_stream *stream, const ek_cuda_resample_job *job)
{
    int64_t count = 0;
    for (int d = 0; d < 3; d++)
        count += job->axis[d].out + (job->adjoint ? job->axis[d].in : 0);
    return ek_launch(stream, ek_grid(stream, count), resample_fill<typename ek_compute<T>::type>,
                     *job, count);
}

template <typename T, typename I, int V, int TAPS>
static int launch_resample_forward(const ek_cuda_stream *stream, const ek_cuda_resample_job *job)
{
    ek_cuda_resample_job vectors = *job;
    if (V > 1) {
        vectors.from = ek_image_by_vectors(job->from, V);
        vectors.to = ek_image_by_vectors(job->to, V);
    }
    ek_cuda_image bands = vectors.to;
    int64_t height = bands.size[1];
    bands.size[1] = (height + ROWS - 1) / ROWS;
    bands.per_size[1] = ek_cuda_divider_of(bands.size[1]);
    bands.count = bands.count / height * bands.size[1];
    return ek_launch(stream, ek_grid(stream, bands.count), resample_forward<T, I, V, TAPS>, vectors,
                     bands);
}

template <typename T, int V>
static int launch_resample_taps(const ek_cuda_stream *stream, const ek_cuda_resample_job *job)
{
    int32_t taps = job->table[2].taps;
    if (taps == 1)
        return launch_resample_forward<T, int32_t, V, 1>(stream, job);
    if (taps == 2)
        return launch_resample_forward<T, int32_t, V, 2>(stream, job);
    return launch_resample_forward<T, int32_t, V, 0>(stream, job);
}

template <typename T, typename I, int V, bool PACKED>
static int launch_resample_adjoint(const ek_cuda_stream *stream, const ek_cuda_resample_job *job)
{
    ek_cuda_image groups = job->to;
    groups.channels = (groups.channels + V - 1) / V;
    groups.per_channels = ek_cuda_divider_of(groups.channels);
    groups.count = groups.count / job->to.channels * groups.channels;
    return ek_launch(stream, ek_grid(stream, groups.count), resample_adjoint<T, I, V, PACKED>, *job,
                     groups);
}

template <typename T>
static int launch_resample_of(const ek_cuda_stream *stream, const ek_cuda_resample_job *job)
{
    enum { V = 16 / sizeof(T) };
    int error = launch_resample_fill<T>(stream, job);
    bool has_vectors = !job->wide && ek_image_has_vectors(job->from, V, sizeof(T)) &&
                       ek_image_has_vectors(job->to, V, sizeof(T));
    if (error != 0)
        return error;
    if (!job->adjoint)
        return job->wide     ? launch_resample_forward<T, int64_t, 1, 0>(stream, job)
               : has_vectors ? launch_resample_taps<T, V>(stream, job)
                             : launch_resample_taps<T, 1>(stream, job);
    if (job->wide)
        return launch_resample_adjoint<T, int64_t, 1, false>(stream, job);
    if (has_vectors)
        return launch_resample_adjoint<T, int32_t, V, true>(stream, job);
    if (job->to.count / GROUP < (int64_t)stream->multiprocessors * 1024)
        return launch_resample_adjoint<T, int32_t, 1, false>(stream, job);
    return launch_resample_adjoint<T, int32_t, GROUP, false>(stream, job);
}

int ek_cuda_launch_resample(const ek_cuda_stream *stream, const ek_cuda_resample_job *job)
{
    EK_FLOATING(job->to.dtype, T, return launch_resample_of<T>(stream, job))
}
