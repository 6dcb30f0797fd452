/* norm_sums.cu: sums over columns: moments, and sums of dy and of dy * (x - mean). */
#include "cuda/norm.cuh"

/* Stores a column's pair: as partial sums, or as results. */
template <typename R>
EK_DEVICE void sums_put(const ek_cuda_norm &a, const ek_norm_share &own, int c, double first,
                        double second, void *const (&into)[2], R result, R other_result)
{
    if (a.first != nullptr) {
        const int64_t at = ek_norm_partial(a, own.sample, own.part, own.column + c);
        a.first[at] = first;
        a.second[at] = second;
    } else {
        const int64_t at = own.sample * a.channels + own.column + c;
        ((R *)into[0])[at] = result;
        ((R *)into[1])[at] = other_result;
    }
}

/* ---- moments ----
 *
 * Values are taken relative to the column's first value, so that a mean that is large against the
 * deviation costs no digits. A thread takes a few values at a time: two passes over registers
 * compute their mean and deviations, which are merged (Chan et al. 1983). Threads' and blocks'
 * moments are merged in the same way. */

template <bool planes, typename T, int V> struct moments {
    typedef typename ek_compute<T>::type R;
    enum { PLANES = planes, LOADS = 4, COLUMNS = planes ? 1 : V };
    ek_norm_pair<R> pairs[COLUMNS] = {};
    R base[COLUMNS] = {};
    int count = 0;

    __device__ __forceinline__ void begin(const ek_cuda_norm &a, const ek_norm_share &own)
    {
        ek_norm_share first = own;
        first.begin = 0;
        ek_load_elements(base, ek_norm_cursor<planes, T>(a, first, 0).x);
    }

    template <int U> __device__ __forceinline__ void add(const ek_norm_cursor<planes, T> &at)
    {
        enum { N = planes ? U * V : U };
        R x[U][V], mean[COLUMNS] = {}, squares[COLUMNS] = {};
        ek_norm_load(x, at.x, at.x_step);
        EK_EACH(u, U)
            EK_EACH(v, V) {
                x[u][v] -= base[v % COLUMNS];
                mean[v % COLUMNS] += x[u][v];
            }
        EK_EACH(c, COLUMNS)
            mean[c] *= (R)1 / (R)N;
        EK_EACH(u, U)
            EK_EACH(v, V) {
                const R d = x[u][v] - mean[v % COLUMNS];
                squares[v % COLUMNS] += d * d;
            }
        const ek_norm_weights<R> weights = ek_norm_weigh<true>((R)count, (R)N);
        EK_EACH(c, COLUMNS)
            ek_norm_merge<true>(&pairs[c], {mean[c], squares[c]}, weights);
        count += N;
    }

    __device__ __forceinline__ void end(const ek_cuda_norm &a, const ek_norm_share &own)
    {
        ek_norm_join<true, planes>(a, own, pairs, &count);
        if (!own.puts)
            return;
        EK_EACH(c, COLUMNS) {
            const double mean = (double)base[c] + (double)pairs[c].first;
            R spread = pairs[c].second / (R)count;
            if (a.first == nullptr)
                spread = ek_norm_updated(a.update, own.sample * a.channels + own.column + c,
                                         (R)mean, spread);
            sums_put(a, own, c, mean, (double)pairs[c].second, a.by_group, (R)mean, spread);
        }
    }
};

/* ---- sums of dy and of dy * (x - mean) ----
 *
 * Elements of a column share a mean. If `by_row`, elements of a vector share mean and invstd, and
 * the second sum is of dy * (x - mean) invstd. */

template <bool by_row, bool planes, typename T, int V> struct sums {
    typedef typename ek_compute<T>::type R;
    enum { PLANES = planes, LOADS = planes ? 2 : 4, COLUMNS = planes ? 1 : V };
    ek_norm_pair<R> pairs[COLUMNS] = {};
    R center[COLUMNS];
    const R *mean, *invstd;
    int64_t step;
    int count = 0;

    __device__ __forceinline__ void begin(const ek_cuda_norm &a, const ek_norm_share &own)
    {
        const int64_t groups = a.channels / a.each;
        const int64_t at = own.begin * groups + own.column / a.each;
        step = own.step * groups;
        mean = a.mean == nullptr ? nullptr : (const R *)a.mean + at;
        invstd = (const R *)a.invstd + at;
        EK_EACH(c, by_row ? 0 : COLUMNS)
            center[c] = ek_norm_value(a.mean, ek_norm_group(a, own.sample, own.column + c), R(0));
    }

    template <int U> __device__ __forceinline__ void add(const ek_norm_cursor<planes, T> &at)
    {
        R x[U][V], dy[U][V];
        ek_norm_pair<R> some[COLUMNS] = {};
        ek_norm_load(dy, at.dy, at.dy_step);
        ek_norm_load(x, at.x, at.x_step);
        if (!by_row && at.mask != nullptr)
            ek_norm_cut_off(dy, at.mask, at.mask_step);
        EK_EACH(u, U) {
            if (planes && at.weight != nullptr) {
                R factor[V];
                ek_load_elements(factor, at.weight + u * at.x_step);
                EK_EACH(v, V)
                    dy[u][v] *= factor[v];
            }
            const R row = by_row && mean != nullptr ? mean[u * step] : R(0);
            const R scale = by_row ? invstd[u * step] : R(1);
            EK_EACH(v, V) {
                const R apart = x[u][v] - (by_row ? row : center[v % COLUMNS]);
                some[v % COLUMNS].first += dy[u][v];
                some[v % COLUMNS].second += dy[u][v] * (by_row ? apart * scale : apart);
            }
        }
        EK_EACH(c, COLUMNS)
            ek_norm_merge<false>(&pairs[c], some[c], {});
        mean = mean == nullptr ? nullptr : mean + U * step;
        invstd += U * step;
    }

    __device__ __forceinline__ void end(const ek_cuda_norm &a, const ek_norm_share &own)
    {
        ek_norm_join<false, planes>(a, own, pairs, &count);
        if (!own.puts)
            return;
        EK_EACH(c, COLUMNS) {
            const int64_t at = own.sample * a.channels + own.column + c;
            const R first = pairs[c].first, second = pairs[c].second;
            const R scale = by_row || a.first != nullptr ? R(1) : ek_norm_value(a.invstd, at, R(1));
            sums_put(a, own, c, (double)first, (double)second, by_row ? a.by_column : a.by_group,
                     first, second * scale);
            if (!by_row && a.first == nullptr)
                ek_norm_put_line(a.line, at, first, second, scale);
        }
    }
};

template <bool planes, typename T, int V> using columns = sums<false, planes, T, V>;
template <bool planes, typename T, int V> using elements = sums<true, false, T, V>;

int ek_cuda_launch_norm_moments(const ek_cuda_stream *stream, const ek_cuda_norm *norm)
{
    return ek_norm_launch<moments>(stream, norm);
}

int ek_cuda_launch_norm_sums(const ek_cuda_stream *stream, const ek_cuda_norm *norm)
{
    return ek_norm_launch<columns>(stream, norm);
}

int ek_cuda_launch_norm_elements(const ek_cuda_stream *stream, const ek_cuda_norm *norm)
{
    return ek_norm_launch<elements>(stream, norm);
}
