// convolution.cpp: see convolution.h. A sample's windows are laid out as a matrix, whose columns
// are the positions of y, and multiplied.
#include "convolution.h"

namespace emulator
{

size_t ConvolutionTensor::bytes() const
{
    int64_t last = 0;
    for (size_t d = 0; d < shape.size(); d++)
        last += (shape[d] - 1) * strides[d];
    return (size_t)(last + 1) * element_size(type);
}

bool convolution_fits(const Convolution &c)
{
    size_t dims = c.stride.size();
    if (dims < 2 || dims > 3 || c.dilation.size() != dims || c.before.size() != dims ||
        c.after.size() != dims)
        return false;
    for (const ConvolutionTensor *tensor : {&c.x, &c.w, &c.y})
        if (tensor->shape.size() != dims + 2)
            return false;
    if (c.x.shape[0] != c.y.shape[0] || c.w.shape[0] != c.y.shape[1] || c.w.shape[1] < 1 ||
        c.x.shape[1] % c.w.shape[1] != 0 || c.w.shape[0] % (c.x.shape[1] / c.w.shape[1]) != 0)
        return false;
    for (size_t i = 0; i < dims; i++) {
        int64_t window = c.dilation[i] * (c.w.shape[2 + i] - 1) + 1;
        int64_t room = c.x.shape[2 + i] + c.before[i] + c.after[i] - window;
        if (room < 0 || room / c.stride[i] + 1 != c.y.shape[2 + i])
            return false;
    }
    return true;
}

namespace
{

// Returns the offsets of the elements of one sample and channel, row-major.
std::vector<int64_t> places(const ConvolutionTensor &t)
{
    std::vector<int64_t> all = {0};
    for (size_t d = 2; d < t.shape.size(); d++) {
        std::vector<int64_t> finer;
        for (int64_t before : all)
            for (int64_t i = 0; i < t.shape[d]; i++)
                finer.push_back(before + i * t.strides[d]);
        all.swap(finer);
    }
    return all;
}

// The geometry of one group of channels.
struct Windows {
    int64_t channels, outputs, groups;       // channels and outputs of a group
    std::vector<int64_t> x_at, w_at, y_at;   // by position or tap
    std::vector<std::vector<int64_t>> reads; // by tap, then position of y: index in x_at, or -1
};

Windows windows_of(const Convolution &c)
{
    Windows s;
    size_t dims = c.stride.size();
    s.channels = c.w.shape[1];
    s.groups = c.x.shape[1] / c.w.shape[1];
    s.outputs = c.w.shape[0] / s.groups;
    s.x_at = places(c.x), s.w_at = places(c.w), s.y_at = places(c.y);
    for (size_t tap = 0; tap < s.w_at.size(); tap++) {
        std::vector<int64_t> reads(s.y_at.size());
        for (size_t position = 0; position < s.y_at.size(); position++) {
            int64_t index = 0, scale = 1;
            size_t t = tap, p = position;
            for (size_t i = dims; i-- > 0;) {
                int64_t at = (int64_t)(p % (size_t)c.y.shape[2 + i]) * c.stride[i] +
                             (int64_t)(t % (size_t)c.w.shape[2 + i]) * c.dilation[i] - c.before[i];
                p /= (size_t)c.y.shape[2 + i], t /= (size_t)c.w.shape[2 + i];
                if (at < 0 || at >= c.x.shape[2 + i] || index < 0)
                    index = -1;
                else
                    index += at * scale;
                scale *= c.x.shape[2 + i];
            }
            reads[position] = index;
        }
        s.reads.push_back(reads);
    }
    return s;
}

float get(const Convolution &c, const ConvolutionTensor &t, int64_t at)
{
    float value = load_float(t.data, t.type, at);
    return c.tf32 ? tf32_of(value) : value;
}

// Returns a matrix as [position][row]: a row for each channel and tap, a column for each position
// of y.
std::vector<float> lay_out(const Convolution &c, const Windows &s, int64_t sample, int64_t group)
{
    size_t taps = s.w_at.size(), rows = (size_t)s.channels * taps;
    std::vector<float> matrix(rows * s.y_at.size());
    for (int64_t channel = 0; channel < s.channels; channel++) {
        int64_t base = sample * c.x.strides[0] + (group * s.channels + channel) * c.x.strides[1];
        for (size_t tap = 0; tap < taps; tap++)
            for (size_t position = 0; position < s.y_at.size(); position++) {
                int64_t from = s.reads[tap][position];
                if (from >= 0)
                    matrix[position * rows + (size_t)channel * taps + tap] =
                        get(c, c.x, base + s.x_at[(size_t)from]);
            }
    }
    return matrix;
}

// Return a group's weights as [output][row], and a sample's y as [position][output].
std::vector<float> weights_of(const Convolution &c, const Windows &s, int64_t group)
{
    size_t taps = s.w_at.size(), rows = (size_t)s.channels * taps;
    std::vector<float> all((size_t)s.outputs * rows);
    for (int64_t output = 0; output < s.outputs; output++)
        for (int64_t channel = 0; channel < s.channels; channel++)
            for (size_t tap = 0; tap < taps; tap++)
                all[(size_t)output * rows + (size_t)channel * taps + tap] =
                    get(c, c.w,
                        (group * s.outputs + output) * c.w.strides[0] + channel * c.w.strides[1] +
                            s.w_at[tap]);
    return all;
}

std::vector<float> results_of(const Convolution &c, const Windows &s, int64_t sample, int64_t group)
{
    std::vector<float> all(s.y_at.size() * (size_t)s.outputs);
    for (int64_t output = 0; output < s.outputs; output++)
        for (size_t position = 0; position < s.y_at.size(); position++)
            all[position * (size_t)s.outputs + (size_t)output] =
                get(c, c.y,
                    sample * c.y.strides[0] + (group * s.outputs + output) * c.y.strides[1] +
                        s.y_at[position]);
    return all;
}

Matrix matrix_of(std::vector<float> &values, int64_t leading, bool transposed)
{
    return {reinterpret_cast<char *>(values.data()), CUDA_R_32F, leading, 0, transposed};
}

void multiply_into(std::vector<float> &c, int64_t m, int64_t n, int64_t k, const Matrix &a,
                   const Matrix &b, double beta, SumOrder order)
{
    multiply({m, n, k, 1, a, b, matrix_of(c, m, false), 1, beta, false, {}, false, order});
}

void forward(const Convolution &c, const Windows &s, int64_t group)
{
    int64_t rows = s.channels * (int64_t)s.w_at.size(), positions = (int64_t)s.y_at.size();
    std::vector<float> w = weights_of(c, s, group), y((size_t)(positions * s.outputs));
    for (int64_t sample = 0; sample < c.x.shape[0]; sample++) {
        std::vector<float> x = lay_out(c, s, sample, group);
        multiply_into(y, s.outputs, positions, rows, matrix_of(w, rows, true),
                      matrix_of(x, rows, false), 0, c.order);
        for (int64_t output = 0; output < s.outputs; output++) {
            int64_t channel = group * s.outputs + output;
            float bias = c.bias ? load_float(c.bias, c.y.type, channel) : 0;
            for (int64_t position = 0; position < positions; position++)
                store_float(c.y.data, c.y.type,
                            sample * c.y.strides[0] + channel * c.y.strides[1] +
                                s.y_at[(size_t)position],
                            y[(size_t)(position * s.outputs + output)] + bias);
        }
    }
}

void input_gradient(const Convolution &c, const Windows &s, int64_t group)
{
    size_t taps = s.w_at.size();
    int64_t rows = s.channels * (int64_t)taps, positions = (int64_t)s.y_at.size();
    std::vector<float> w = weights_of(c, s, group), each((size_t)(rows * positions));
    for (int64_t sample = 0; sample < c.x.shape[0]; sample++) {
        std::vector<float> dy = results_of(c, s, sample, group);
        multiply_into(each, rows, positions, s.outputs, matrix_of(w, rows, false),
                      matrix_of(dy, s.outputs, false), 0, c.order);
        for (int64_t channel = 0; channel < s.channels; channel++) {
            std::vector<float> sums(s.x_at.size());
            for (size_t tap = 0; tap < taps; tap++)
                for (size_t position = 0; position < s.y_at.size(); position++)
                    if (s.reads[tap][position] >= 0)
                        sums[(size_t)s.reads[tap][position]] +=
                            each[position * (size_t)rows + (size_t)channel * taps + tap];
            for (size_t i = 0; i < sums.size(); i++)
                store_float(c.x.data, c.x.type,
                            sample * c.x.strides[0] +
                                (group * s.channels + channel) * c.x.strides[1] + s.x_at[i],
                            sums[i]);
        }
    }
}

void weight_gradient(const Convolution &c, const Windows &s, int64_t group)
{
    size_t taps = s.w_at.size();
    int64_t rows = s.channels * (int64_t)taps, positions = (int64_t)s.y_at.size();
    std::vector<float> sums((size_t)(rows * s.outputs)); // [output][row]
    for (int64_t i = 0; i < c.x.shape[0]; i++) {
        int64_t sample = (c.order.first + i) % c.x.shape[0];
        std::vector<float> x = lay_out(c, s, sample, group), dy = results_of(c, s, sample, group);
        multiply_into(sums, rows, s.outputs, positions, matrix_of(x, rows, false),
                      matrix_of(dy, s.outputs, true), 1, c.order);
    }
    for (int64_t output = 0; output < s.outputs; output++)
        for (int64_t channel = 0; channel < s.channels; channel++)
            for (size_t tap = 0; tap < taps; tap++)
                store_float(c.w.data, c.w.type,
                            (group * s.outputs + output) * c.w.strides[0] +
                                channel * c.w.strides[1] + s.w_at[tap],
                            sums[(size_t)(output * rows + channel * (int64_t)taps) + tap]);
}

} // namespace

void convolve(const Convolution &c)
{
    Windows s = windows_of(c);
    for (int64_t group = 0; group < s.groups; group++) {
        if (c.output == Convolution::Y)
            forward(c, s, group);
        else if (c.output == Convolution::X)
            input_gradient(c, s, group);
        else
            weight_gradient(c, s, group);
    }
}

} // namespace emulator
