// recurrent.cpp: recurrent networks, sample by sample and step by step.
//
// The reserve holds f32: the number of calls it has seen, then for each row (a direction of a
// layer) what the steps computed, and for each layer its outputs.
#include "recurrent.h"

#include <algorithm>
#include <cmath>

#include "product.h"

namespace emulator
{

namespace
{

enum : int64_t { GAP = 64 }; // elements between weights and biases

struct Row {
    float *gates;       // of each step 4 hidden: i f g o; or r z n and the n of the product; or h
    float *c, *hidden;  // of each step: the cell, and h before its projection
    float *of_x, *of_h; // gradients of the gates' sums: of the input's part, and of h's
    float *projected;   // gradients of h after its projection
};

struct Memory {
    const RecurrentCall &call;
    float *calls;

    explicit Memory(const RecurrentCall &of) : call(of), calls((float *)of.reserve)
    {
    }
    int64_t cells() const
    {
        return call.steps * call.samples;
    }
    int64_t row_floats() const
    {
        const Network &n = call.network;
        return cells() * (6 * n.hidden + 2 * n.gates() * n.hidden + n.size);
    }
    Row row(int index) const
    {
        const Network &n = call.network;
        float *at = calls + 1 + index * row_floats();
        Row row;
        row.gates = at;
        row.c = row.gates + 4 * n.hidden * cells();
        row.hidden = row.c + n.hidden * cells();
        row.of_x = row.hidden + n.hidden * cells();
        row.of_h = row.of_x + n.gates() * n.hidden * cells();
        row.projected = row.of_h + n.gates() * n.hidden * cells();
        return row;
    }
    int64_t width() const
    {
        return call.network.directions * call.network.size;
    }
    float *outputs(int layer) const
    {
        return calls + 1 + call.network.rows() * row_floats() + layer * cells() * width();
    }
    size_t floats() const
    {
        return (size_t)(1 + call.network.rows() * row_floats() +
                        call.network.layers * cells() * width());
    }
};

std::vector<float> loaded(const char *data, cudaDataType type, int64_t count)
{
    std::vector<float> all((size_t)count);
    for (int64_t i = 0; data && i < count; i++)
        all[(size_t)i] = load_float(data, type, i);
    return all;
}

float rounded(float value, cudaDataType type)
{
    char element[8];
    store_float(element, type, 0, value);
    return load_float(element, type, 0);
}

float dot(const float *a, const float *b, int64_t count)
{
    float sum = 0;
    for (int64_t i = 0; i < count; i++)
        sum += a[i] * b[i];
    return sum;
}

void add_scaled(float *to, float factor, const float *x, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        to[i] += factor * x[i];
}

float sigmoid(float x)
{
    return 1 / (1 + std::exp(-x));
}

// The steps of a sample in a row's order, and where each lies.
struct Steps {
    const RecurrentCall &call;
    bool reverse;
    int64_t sample;

    int64_t count() const
    {
        return call.lengths[(size_t)sample];
    }
    int64_t cell(int64_t i) const // among all cells (steps, samples)
    {
        return (reverse ? count() - 1 - i : i) * call.samples + sample;
    }
};

// All that a row's steps read.
struct RowInput {
    const Network &n;
    int64_t columns, gates;          // of the row's input; gates * hidden
    const float *w, *r, *p, *biases; // weights of the input, of h and of the projection
    const float *input;              // (steps, samples, columns)
    const float *h, *c;              // before the first step (samples, ...)
};

void run_step(const RowInput &in, const Row &row, int64_t cell, const float *input, const float *h,
              const float *c, float *out)
{
    const Network &n = in.n;
    const int64_t hidden = n.hidden;
    std::vector<float> of_x((size_t)in.gates), of_h((size_t)in.gates);
    for (int64_t k = 0; k < in.gates; k++) {
        of_x[(size_t)k] =
            dot(in.w + k * in.columns, input, in.columns) + (n.bias ? in.biases[k] : 0);
        of_h[(size_t)k] =
            dot(in.r + k * n.size, h, n.size) + (n.bias ? in.biases[in.gates + k] : 0);
    }
    float *gates = row.gates + cell * 4 * hidden, *kept = row.hidden + cell * hidden;
    for (int64_t k = 0; k < hidden; k++) {
        auto sum = [&](int64_t g) {
            return of_x[(size_t)(g * hidden + k)] + of_h[(size_t)(g * hidden + k)];
        };
        if (n.cell == CUDNN_LSTM) {
            const float i = sigmoid(sum(0)), f = sigmoid(sum(1)), g = std::tanh(sum(2)),
                        o = sigmoid(sum(3)), after = f * c[k] + i * g;
            gates[k] = i, gates[hidden + k] = f, gates[2 * hidden + k] = g;
            gates[3 * hidden + k] = o;
            row.c[cell * hidden + k] = after;
            kept[k] = o * std::tanh(after);
        } else if (n.cell == CUDNN_GRU) {
            const float product = of_h[(size_t)(2 * hidden + k)], r = sigmoid(sum(0)),
                        z = sigmoid(sum(1)),
                        fresh = std::tanh(of_x[(size_t)(2 * hidden + k)] + r * product);
            gates[k] = r, gates[hidden + k] = z, gates[2 * hidden + k] = fresh;
            gates[3 * hidden + k] = product;
            kept[k] = (1 - z) * fresh + z * h[k];
        } else {
            kept[k] = n.cell == CUDNN_RNN_RELU ? std::fmax(sum(0), 0.0f) : std::tanh(sum(0));
        }
    }
    for (int64_t k = 0; k < n.size; k++)
        out[k] = rounded(n.projects() ? dot(in.p + k * hidden, kept, hidden) : kept[k], n.type);
}

// Gradients of a step. dh and dc are those of the states after the step, and become those of the
// states before.
void run_step_back(const RowInput &in, const Row &row, int64_t cell, const float *h, const float *c,
                   std::vector<float> &dh, std::vector<float> &dc, float *dinput)
{
    const Network &n = in.n;
    const int64_t hidden = n.hidden;
    std::vector<float> d(dh);
    float *of_x = row.of_x + cell * in.gates, *of_h = row.of_h + cell * in.gates;
    std::copy(dh.begin(), dh.end(), row.projected + cell * n.size);
    if (n.projects()) {
        d.assign((size_t)hidden, 0);
        for (int64_t k = 0; k < n.size; k++)
            add_scaled(d.data(), dh[(size_t)k], in.p + k * hidden, hidden);
    }
    dh.assign((size_t)n.size, 0);
    const float *gates = row.gates + cell * 4 * hidden;
    for (int64_t k = 0; k < hidden; k++) {
        const float dk = d[(size_t)k], a = gates[k], b = gates[hidden + k],
                    g = gates[2 * hidden + k], o = gates[3 * hidden + k];
        if (n.cell == CUDNN_LSTM) {
            const float t = std::tanh(row.c[cell * hidden + k]),
                        all = dc[(size_t)k] + dk * o * (1 - t * t);
            of_x[k] = all * g * a * (1 - a);
            of_x[hidden + k] = all * c[k] * b * (1 - b);
            of_x[2 * hidden + k] = all * a * (1 - g * g);
            of_x[3 * hidden + k] = dk * t * o * (1 - o);
            dc[(size_t)k] = all * b;
        } else if (n.cell == CUDNN_GRU) {
            const float dfresh = dk * (1 - b) * (1 - g * g);
            of_x[k] = dfresh * o * a * (1 - a);
            of_x[hidden + k] = dk * (h[k] - g) * b * (1 - b);
            of_x[2 * hidden + k] = dfresh;
            dh[(size_t)k] = dk * b;
        } else {
            const float out = row.hidden[cell * hidden + k];
            of_x[k] = n.cell == CUDNN_RNN_RELU ? (out > 0 ? dk : 0) : dk * (1 - out * out);
        }
    }
    std::copy(of_x, of_x + in.gates, of_h);
    for (int64_t k = 0; n.cell == CUDNN_GRU && k < hidden; k++)
        of_h[2 * hidden + k] *= gates[k];
    for (int64_t k = 0; k < in.gates; k++) {
        add_scaled(dh.data(), of_h[k], in.r + k * n.size, n.size);
        add_scaled(dinput, of_x[k], in.w + k * in.columns, in.columns);
    }
}

// What all calls begin with: operands as f32.
struct Operands {
    const RecurrentCall &call;
    Memory memory;
    std::vector<float> x, h, c, weights;

    explicit Operands(const RecurrentCall &of)
        : call(of), memory(of),
          x(loaded(of.x, of.network.type, of.steps * of.samples * of.network.input)),
          h(loaded(of.hx, of.network.type, of.network.rows() * of.samples * of.network.size)),
          c(loaded(of.cx, of.network.type, of.network.rows() * of.samples * of.network.hidden)),
          weights(loaded(of.weights, of.network.type, of.network.elements()))
    {
    }
    RowInput row(int index) const
    {
        const Network &n = call.network;
        const float *w = weights.data();
        const int layer = index / n.directions;
        return {n,
                n.columns(index),
                n.gates() * n.hidden,
                w + n.weights_at(index),
                w + n.recurrent_at(index),
                w + n.projection_at(index),
                w + n.biases_at(index),
                layer == 0 ? x.data() : memory.outputs(layer - 1),
                h.data() + index * call.samples * n.size,
                c.data() + index * call.samples * n.hidden};
    }
    // h and c before step i of a row.
    const float *h_before(const RowInput &in, int index, const Steps &steps, int64_t i) const
    {
        const Network &n = call.network;
        return i == 0 ? in.h + steps.sample * n.size
                      : memory.outputs(index / n.directions) + steps.cell(i - 1) * memory.width() +
                            index % n.directions * n.size;
    }
    const float *c_before(const RowInput &in, int index, const Steps &steps, int64_t i) const
    {
        const int64_t hidden = call.network.hidden;
        return i == 0 ? in.c + steps.sample * hidden
                      : memory.row(index).c + steps.cell(i - 1) * hidden;
    }
};

void store(char *data, cudaDataType type, int64_t at, const float *values, int64_t count)
{
    for (int64_t k = 0; data && k < count; k++)
        store_float(data, type, at + k, values ? values[k] : NAN);
}

} // namespace

int64_t Network::weights_at(int row) const
{
    int64_t at = 0;
    for (int i = 0; i < row; i++)
        at += gates() * hidden * (columns(i) + size) + (projects() ? size * hidden : 0);
    return at;
}

int64_t Network::biases_at(int row) const
{
    return weights_at(rows()) + GAP + (bias ? row * 2 * gates() * hidden : 0);
}

size_t RecurrentCall::reserve_bytes() const
{
    return Memory(*this).floats() * sizeof(float);
}

void recurrent_forward(const RecurrentCall &call)
{
    const Network &n = call.network;
    std::vector<char> own(call.reserve ? 0 : call.reserve_bytes());
    RecurrentCall with = call;
    with.reserve = call.reserve ? call.reserve : own.data();
    const Operands operands(with);
    const Memory &memory = operands.memory;
    *memory.calls = 1;
    for (int index = 0; index < n.rows(); index++) {
        const RowInput in = operands.row(index);
        const Row row = memory.row(index);
        float *outputs = memory.outputs(index / n.directions) + index % n.directions * n.size;
        for (int64_t sample = 0; sample < call.samples; sample++) {
            const Steps steps = {call, index % n.directions == 1, sample};
            for (int64_t i = 0; i < steps.count(); i++) {
                const int64_t cell = steps.cell(i);
                run_step(in, row, cell, in.input + cell * in.columns,
                         operands.h_before(in, index, steps, i),
                         operands.c_before(in, index, steps, i), outputs + cell * memory.width());
            }
            const int64_t last = steps.count() ? steps.cell(steps.count() - 1) : -1,
                          state = index * call.samples + sample;
            store(call.hy, n.type, state * n.size,
                  last < 0 ? nullptr : outputs + last * memory.width(), n.size);
            store(call.cy, n.type, state * n.hidden, last < 0 ? nullptr : row.c + last * n.hidden,
                  n.hidden);
        }
    }
    const std::vector<float> zeros((size_t)memory.width());
    for (int64_t cell = 0; cell < memory.cells(); cell++) {
        const bool within = cell / call.samples < call.lengths[(size_t)(cell % call.samples)];
        store(call.y, n.type, cell * memory.width(),
              within      ? memory.outputs(n.layers - 1) + cell * memory.width()
              : call.pads ? zeros.data()
                          : nullptr,
              memory.width());
    }
}

bool recurrent_data(const RecurrentCall &call)
{
    const Network &n = call.network;
    const Operands operands(call);
    const Memory &memory = operands.memory;
    if (*memory.calls != 1)
        return false;
    *memory.calls = 2;
    const std::vector<float> dhy = loaded(call.dhy, n.type, n.rows() * call.samples * n.size),
                             dcy = loaded(call.dcy, n.type, n.rows() * call.samples * n.hidden);
    std::vector<float> dout = loaded(call.dy, n.type, memory.cells() * memory.width());
    for (int layer = n.layers - 1; layer >= 0; layer--) {
        const int64_t columns = n.columns(layer * n.directions);
        std::vector<float> dinput((size_t)(memory.cells() * columns));
        for (int index = layer * n.directions; index < (layer + 1) * n.directions; index++) {
            const RowInput in = operands.row(index);
            for (int64_t sample = 0; sample < call.samples; sample++) {
                const Steps steps = {call, index % n.directions == 1, sample};
                const int64_t state = index * call.samples + sample;
                std::vector<float> dh(dhy.begin() + state * n.size,
                                      dhy.begin() + (state + 1) * n.size),
                    dc(dcy.begin() + state * n.hidden, dcy.begin() + (state + 1) * n.hidden);
                for (int64_t i = steps.count() - 1; i >= 0; i--) {
                    const int64_t cell = steps.cell(i);
                    add_scaled(
                        dh.data(), 1,
                        &dout[(size_t)(cell * memory.width() + index % n.directions * n.size)],
                        n.size);
                    run_step_back(in, memory.row(index), cell,
                                  operands.h_before(in, index, steps, i),
                                  operands.c_before(in, index, steps, i), dh, dc,
                                  &dinput[(size_t)(cell * columns)]);
                }
                store(call.dhx, n.type, state * n.size, dh.data(), n.size);
                store(call.dcx, n.type, state * n.hidden, dc.data(), n.hidden);
            }
        }
        dout = dinput;
    }
    for (int64_t cell = 0; cell < memory.cells(); cell++) {
        const bool within = cell / call.samples < call.lengths[(size_t)(cell % call.samples)];
        store(call.dx, n.type, cell * n.input, within ? &dout[(size_t)(cell * n.input)] : nullptr,
              n.input);
    }
    return true;
}

bool recurrent_weights(const RecurrentCall &call)
{
    const Network &n = call.network;
    const Operands operands(call);
    const Memory &memory = operands.memory;
    if (*memory.calls != 2)
        return false;
    std::vector<float> sums = loaded(call.dweights, n.type, n.elements());
    for (int index = 0; index < n.rows(); index++) {
        const RowInput in = operands.row(index);
        const Row row = memory.row(index);
        float *w = &sums[(size_t)n.weights_at(index)], *r = &sums[(size_t)n.recurrent_at(index)],
              *p = sums.data() + n.projection_at(index), *b = sums.data() + n.biases_at(index);
        for (int64_t sample = 0; sample < call.samples; sample++) {
            const Steps steps = {call, index % n.directions == 1, sample};
            for (int64_t i = 0; i < steps.count(); i++) {
                const int64_t cell = steps.cell(i);
                const float *h = operands.h_before(in, index, steps, i);
                for (int64_t k = 0; k < in.gates; k++) {
                    const float of_x = row.of_x[cell * in.gates + k],
                                of_h = row.of_h[cell * in.gates + k];
                    add_scaled(w + k * in.columns, of_x, in.input + cell * in.columns, in.columns);
                    add_scaled(r + k * n.size, of_h, h, n.size);
                    if (n.bias)
                        b[k] += of_x, b[in.gates + k] += of_h;
                }
                for (int64_t k = 0; n.projects() && k < n.size; k++)
                    add_scaled(p + k * n.hidden, row.projected[cell * n.size + k],
                               row.hidden + cell * n.hidden, n.hidden);
            }
        }
    }
    store(call.dweights, n.type, 0, sums.data(), n.elements());
    return true;
}

} // namespace emulator
