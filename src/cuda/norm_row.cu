/* norm_row.cu: normalisation of rows that stay in the registers of a team of threads, so that each
 * pass reads its operands once. A thread has vectors 0 to U - 1 of V elements: vector u begins at
 * element (u lanes + lane) V of the row. */
#include "cuda/norm.cuh"

/* Loads a thread's vectors of a row of `size` elements. Elements beyond the row, and all elements
 * if `from` is NULL, are `otherwise`. */
template <typename T, typename R, int U, int V>
EK_DEVICE void row_load(R (&to)[U][V], const T *from, const ek_team &team, int size, R otherwise)
{
    EK_EACH(u, U) {
        const int at = (u * team.lanes + team.lane) * V;
        EK_EACH(v, V)
            to[u][v] = otherwise;
        if (from != nullptr && at < size)
            ek_load_elements(to[u], from + at);
    }
}

template <typename T, typename R, int U, int V>
EK_DEVICE void row_store(T *to, const R (&from)[U][V], const ek_team &team, int size)
{
    EK_EACH(u, U) {
        const int at = (u * team.lanes + team.lane) * V;
        if (at < size)
            ek_norm_store(to + at, from[u]);
    }
}

template <typename T> EK_DEVICE T *row_of(const ek_norm_operand &operand, int64_t row)
{
    return operand.data != nullptr ? (T *)operand.data + row * operand.sample : nullptr;
}

/* Returns the sums of the pairs of a row's threads to all of them. */
template <typename R> EK_DEVICE ek_norm_pair<R> row_sums(const ek_team &team, ek_norm_pair<R> own)
{
    return ek_team_join(team, ek_norm_counted<R>{own, 0}, ek_norm_joining<false, R>()).pair;
}

/* Adds the residual's row, of elements A, to x. Stores the sums, and rounds x to them. */
template <typename A, typename T, typename R, int U, int V>
EK_DEVICE void row_add(R (&x)[U][V], const ek_cuda_norm &a, int64_t row, const ek_team &team,
                       int size)
{
    R residual[U][V];
    row_load(residual, row_of<const A>(a.dy, row), team, size, R(0));
    EK_EACH(u, U)
        EK_EACH(v, V) {
            T sum;
            ek_store(&sum, x[u][v] + residual[u][v]);
            x[u][v] = ek_load(&sum);
        }
    row_store(row_of<T>(a.mask, row), x, team, size);
}

/* The mean is corrected by the mean of the deviations from it, which rounding has left. */
template <typename T, int U, int V> EK_KERNEL row_apply(const ek_cuda_norm a)
{
    typedef typename ek_compute<T>::type R;
    const ek_team team = ek_team_of({a.cut.team, false});
    const int size = (int)a.inner;
    const R share = (R)1 / (R)size;
    R weight[U][V], bias[U][V];
    row_load(weight, (const R *)a.weight, team, size, R(1));
    row_load(bias, (const R *)a.bias, team, size, R(0));
    EK_TEAM_LOOP(row, team, a.samples) {
        const int width = row < a.samples ? size : 0;
        R x[U][V], mean = 0;
        row_load(x, row_of<const T>(a.x, row), team, width, R(0));
        if (a.dy.data != nullptr && a.residual == EK_BF16 && sizeof(T) == sizeof(float))
            row_add<ek_bf16, T>(x, a, row, team, width);
        else if (a.dy.data != nullptr && a.residual == EK_F16 && sizeof(T) == sizeof(float))
            row_add<ek_f16, T>(x, a, row, team, width);
        else if (a.dy.data != nullptr)
            row_add<T, T>(x, a, row, team, width);
        if (a.mean != nullptr) {
            EK_EACH(u, U)
                EK_EACH(v, V)
                    mean += x[u][v];
            mean = ek_team_sum(team, mean) * share;
        }
        ek_norm_pair<R> rest = {0, 0};
        EK_EACH(u, U)
            EK_EACH(v, V) {
                x[u][v] = (u * team.lanes + team.lane) * V < width ? x[u][v] - mean : R(0);
                rest.first += x[u][v];
                rest.second += x[u][v] * x[u][v];
            }
        rest = row_sums(team, rest);
        const R drift = a.mean != nullptr ? rest.first * share : R(0);
        const R invstd = 1 / sqrt(rest.second * share - drift * drift + (R)a.update.eps);
        EK_EACH(u, U)
            EK_EACH(v, V)
                x[u][v] = (x[u][v] - drift) * invstd * weight[u][v] + bias[u][v];
        row_store(row_of<T>(a.y, row), x, team, width);
        if (width == 0 || team.lane != 0)
            continue;
        ((R *)a.by_group[1])[row] = invstd;
        if (a.mean != nullptr)
            ((R *)a.by_group[0])[row] = mean + drift;
    }
}

/* Teams take rows in turn, and each thread sums up dy and dy xhat of its elements over its team's
 * rows. */
template <typename T, int U, int V> EK_KERNEL row_gradient(const ek_cuda_norm a)
{
    typedef typename ek_compute<T>::type R;
    const ek_team team = ek_team_of({a.cut.team, false});
    const int size = (int)a.inner;
    R weight[U][V];
    ek_norm_pair<R> sums[U][V] = {};
    row_load(weight, (const R *)a.weight, team, size, R(1));
    EK_TEAM_LOOP(row, team, a.samples) {
        const int width = row < a.samples ? size : 0;
        const int64_t statistic = width > 0 ? row : 0;
        const R mean = ek_norm_value(a.mean, statistic, R(0));
        const R invstd = ek_norm_value(a.invstd, statistic, R(1));
        R x[U][V], dy[U][V];
        ek_norm_pair<R> line = {0, 0};
        row_load(dy, row_of<const T>(a.dy, row), team, width, R(0));
        row_load(x, row_of<const T>(a.x, row), team, width, mean);
        EK_EACH(u, U)
            EK_EACH(v, V) {
                x[u][v] = (x[u][v] - mean) * invstd;
                sums[u][v].first += dy[u][v];
                sums[u][v].second += dy[u][v] * x[u][v];
                dy[u][v] *= weight[u][v];
                line.first += dy[u][v];
                line.second += dy[u][v] * x[u][v];
            }
        line = row_sums(team, line);
        const R shift = a.mean != nullptr ? line.first * (R)a.share : R(0);
        const R slope = line.second * (R)a.share;
        const T *const residual = row_of<const T>(a.mask, row);
        EK_EACH(u, U) {
            const int at = (u * team.lanes + team.lane) * V;
            R term[V] = {};
            if (residual != nullptr && at < width)
                ek_load_elements(term, residual + at);
            EK_EACH(v, V)
                dy[u][v] = (dy[u][v] - shift - x[u][v] * slope) * invstd + term[v];
        }
        if (a.y.data != nullptr)
            row_store(row_of<T>(a.y, row), dy, team, width);
    }
    int count = 0;
    EK_EACH(u, U) {
        const int at = (u * team.lanes + team.lane) * V;
        if (a.first == nullptr)
            continue;
        ek_norm_join_teams<false>(sums[u], &count, team.seat, team.seats);
        EK_EACH(v, V)
            if (team.seat == 0 && at < size) {
                a.first[blockIdx.x * a.inner + at + v] = (double)sums[u][v].first;
                a.second[blockIdx.x * a.inner + at + v] = (double)sums[u][v].second;
            }
    }
}

/* Launches a kernel whose threads have as many values as a row needs (ek_cuda_norm_cut_row). */
#define ROW_LAUNCH(kernel, norm, grid)                                                         \
    EK_FLOATING((norm)->dtype, T,                                                              \
                enum {V = 16 / sizeof(T), HALF = EK_NORM_LONG / 2,                             \
                      SHORT = sizeof(T) == 8 ? HALF : EK_NORM_SHORT,                           \
                      LONG = sizeof(T) == 8 ? HALF : EK_NORM_LONG};                            \
                return ek_launch(stream, (grid),                                               \
                                 (norm)->cut.vector == 1                                       \
                                     ? kernel<T, HALF, 1>                                      \
                                     : ((norm)->cut.values == SHORT ? kernel<T, SHORT / V, V>  \
                                                                    : kernel<T, LONG / V, V>), \
                                 *(norm)))

int ek_cuda_launch_norm_row(const ek_cuda_stream *stream, const ek_cuda_norm *norm)
{
    ROW_LAUNCH(row_apply, norm, ek_grid(stream, norm->samples, EK_BLOCK / norm->cut.team))
}

int ek_cuda_launch_norm_row_gradient(const ek_cuda_stream *stream, const ek_cuda_norm *norm)
{
    ROW_LAUNCH(row_gradient, norm, (unsigned)norm->cut.parts)
}
