// cudnn_attention.cpp: graphs of attention. They are computed operation by operation, as their
// descriptors say, each in f32 and then rounded to the type of its result.
#include <cmath>
#include <cstdio>

#include "cudnn_graph.h"
#include "half.h"
#include "product.h"

namespace emulator
{

namespace
{

struct Tensor {
    int64_t name, shape[4], strides[4], alignment;
    int type;
    bool between, by_value; // between two operations, without memory; one number on the host

    int64_t at(int64_t b, int64_t h, int64_t r, int64_t c) const // dimensions of size 1 repeat
    {
        const int64_t index[4] = {b, h, r, c};
        int64_t offset = 0;
        for (int d = 0; d < 4; d++)
            offset += shape[d] == 1 ? 0 : index[d] * strides[d];
        return offset;
    }
    size_t span() const // elements from the first to the last
    {
        return (size_t)at(shape[0] - 1, shape[1] - 1, shape[2] - 1, shape[3] - 1) + 1;
    }
    int64_t count() const
    {
        return shape[0] * shape[1] * shape[2] * shape[3];
    }
    cudaDataType real() const
    {
        return type == CUDNN_DATA_BFLOAT16 ? CUDA_R_16BF
               : type == CUDNN_DATA_HALF   ? CUDA_R_16F
                                           : CUDA_R_32F;
    }
    template <typename Body> void each(Body body) const
    {
        for (int64_t b = 0; b < shape[0]; b++)
            for (int64_t h = 0; h < shape[1]; h++)
                for (int64_t r = 0; r < shape[2]; r++)
                    for (int64_t c = 0; c < shape[3]; c++)
                        body(b, h, r, c);
    }
};

struct Node {
    cudnnBackendDescriptorType_t kind;
    int mode = 0;
    int64_t axis = 0, x = 0, b = 0, t = 0, y = 0; // names of tensors, 0 for none
};

struct Attention {
    std::vector<Node> nodes;
    std::map<int64_t, Tensor> tensors; // by name

    const Tensor &of(int64_t name) const
    {
        return tensors.at(name);
    }
    bool has(cudnnBackendDescriptorType_t kind, int mode) const
    {
        for (const Node &node : nodes)
            if (node.kind == kind && node.mode == mode)
                return true;
        return false;
    }
    bool is_gradient() const
    {
        return has(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR, 0);
    }
    // The first product is q k'.
    const Node &scores() const
    {
        size_t i = 0;
        while (nodes[i].kind != CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR)
            i++;
        return nodes[i];
    }
};

// ---- descriptors ----

template <typename T> T value_of(const Content *c, cudnnBackendAttributeName_t name, T absent)
{
    auto found = c->values.find(name);
    if (found != c->values.end())
        memcpy(&absent, found->second.data(), sizeof absent);
    return absent;
}

// Reads a tensor once. Returns its name, 0 if there is none, -1 if it isn't of four dimensions.
int64_t read(Attention *a, const Content *c)
{
    if (!c)
        return 0;
    std::vector<int64_t> shape = c->integers(CUDNN_ATTR_TENSOR_DIMENSIONS);
    std::vector<int64_t> strides = c->integers(CUDNN_ATTR_TENSOR_STRIDES);
    Tensor t;
    if (shape.size() != 4 || strides.size() != 4)
        return -1;
    for (size_t d = 0; d < 4; d++) {
        t.shape[d] = shape[d];
        t.strides[d] = strides[d];
    }
    t.name = value_of<int64_t>(c, CUDNN_ATTR_TENSOR_UNIQUE_ID, -1);
    t.alignment = value_of<int64_t>(c, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, 1);
    t.type = value_of<int>(c, CUDNN_ATTR_TENSOR_DATA_TYPE, -1);
    t.between = value_of(c, CUDNN_ATTR_TENSOR_IS_VIRTUAL, false);
    t.by_value = value_of(c, CUDNN_ATTR_TENSOR_IS_BY_VALUE, false);
    a->tensors[t.name] = t;
    return t.name;
}

bool repeats(const Attention &a, int64_t name, const Tensor &y)
{
    for (int d = 0; name && d < 4; d++)
        if (a.of(name).shape[d] != 1 && a.of(name).shape[d] != y.shape[d])
            return false;
    return true;
}

bool node_fits(const Attention &a, const Node &n)
{
    if (n.x <= 0 || n.b < 0 || n.t < 0 || n.y <= 0)
        return false;
    const Tensor &x = a.of(n.x), &y = a.of(n.y);
    switch (n.kind) {
    case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR: {
        if (!n.b)
            return false;
        const int64_t *b = a.of(n.b).shape;
        return x.shape[0] == b[0] && x.shape[1] % b[1] == 0 && x.shape[3] == b[2] &&
               y.shape[0] == x.shape[0] && y.shape[1] == x.shape[1] && y.shape[2] == x.shape[2] &&
               y.shape[3] == b[3];
    }
    case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR:
        for (int d = 0; d < 4; d++)
            if (x.shape[d] % y.shape[d] != 0)
                return false;
        return true;
    case CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR:
        return x.count() == y.count();
    default:
        return repeats(a, n.x, y) && repeats(a, n.b, y) && repeats(a, n.t, y);
    }
}

bool read_node(Attention *a, const Content *c)
{
    Node n;
    n.kind = c->kind;
    switch (c->kind) {
    case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR:
        n.x = read(a, c->part(CUDNN_ATTR_OPERATION_MATMUL_ADESC));
        n.b = read(a, c->part(CUDNN_ATTR_OPERATION_MATMUL_BDESC));
        n.y = read(a, c->part(CUDNN_ATTR_OPERATION_MATMUL_CDESC));
        break;
    case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR:
        n.x = read(a, c->part(CUDNN_ATTR_OPERATION_REDUCTION_XDESC));
        n.y = read(a, c->part(CUDNN_ATTR_OPERATION_REDUCTION_YDESC));
        n.mode = value_of(c->part(CUDNN_ATTR_OPERATION_REDUCTION_DESC),
                          CUDNN_ATTR_REDUCTION_OPERATOR, -1);
        break;
    case CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR:
        n.x = read(a, c->part(CUDNN_ATTR_OPERATION_RESHAPE_XDESC));
        n.y = read(a, c->part(CUDNN_ATTR_OPERATION_RESHAPE_YDESC));
        break;
    case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR: {
        const Content *kind = c->part(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
        n.x = read(a, c->part(CUDNN_ATTR_OPERATION_POINTWISE_XDESC));
        n.b = read(a, c->part(CUDNN_ATTR_OPERATION_POINTWISE_BDESC));
        n.t = read(a, c->part(CUDNN_ATTR_OPERATION_POINTWISE_TDESC));
        n.y = read(a, c->part(CUDNN_ATTR_OPERATION_POINTWISE_YDESC));
        n.mode = value_of(kind, CUDNN_ATTR_POINTWISE_MODE, -1);
        n.axis = value_of<int64_t>(kind, CUDNN_ATTR_POINTWISE_AXIS, 0);
        break;
    }
    default:
        return false;
    }
    a->nodes.push_back(n);
    return node_fits(*a, n);
}

bool read_graph(const Content &graph, Attention *a)
{
    auto found = graph.parts.find(CUDNN_ATTR_OPERATIONGRAPH_OPS);
    if (found == graph.parts.end())
        return false;
    int products = 0;
    for (const auto &operation : found->second) {
        if (!read_node(a, operation.get()))
            return false;
        products += operation->kind == CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR;
    }
    return products == (a->is_gradient() ? 5 : 2);
}

// Returns what cuDNN 9.19 answers for an H200, and cudnn-frontend for other GPUs.
bool is_supported(const Attention &a)
{
    const Node &scores = a.scores();
    const Tensor &q = a.of(scores.x), &k = a.of(scores.b);
    const int64_t most = machine().capability / 10 == 9 ? 256 : 128;
    const int64_t width = a.of(a.is_gradient() ? a.nodes[0].x : a.nodes.back().b).shape[3];
    if (q.type != CUDNN_DATA_BFLOAT16 && q.type != CUDNN_DATA_HALF)
        return false;
    if (a.is_gradient() && q.shape[2] == 1 && k.shape[3] == 1)
        return false;
    if (q.shape[3] % 8 != 0 || q.shape[3] > most || width % 8 != 0 || width > most)
        return false;
    for (const auto &entry : a.tensors) {
        const Tensor &t = entry.second;
        const bool across = t.name == scores.b || t.strides[3] != 1;
        if (!t.between && !t.by_value && t.shape[2] > 1 && t.shape[3] > 1 &&
            (t.alignment < 16 || t.strides[across ? 2 : 3] != 1))
            return false;
    }
    return true;
}

// ---- computing ----

typedef std::shared_ptr<std::vector<float>> Numbers;

float rounded(float value, int type)
{
    return type == CUDNN_DATA_BFLOAT16 ? bf16_value(bf16_of(value))
           : type == CUDNN_DATA_HALF   ? half_value(half_of(value))
                                       : value;
}

struct Computer {
    Attention a;
    std::map<int64_t, char *> addresses; // on the device, by name
    std::map<int64_t, float> by_value;
    std::map<int64_t, Numbers> numbers; // what is computed or loaded, by the tensors' strides

    const std::vector<float> &load(int64_t name)
    {
        Numbers &n = numbers[name];
        if (n)
            return *n;
        const Tensor &t = a.of(name);
        n = std::make_shared<std::vector<float>>(t.span());
        t.each([&](int64_t b, int64_t h, int64_t r, int64_t c) {
            (*n)[(size_t)t.at(b, h, r, c)] =
                t.by_value ? by_value.at(name)
                           : load_float(addresses.at(name), t.real(), t.at(b, h, r, c));
        });
        return *n;
    }

    void multiply(const Node &n, std::vector<float> &y)
    {
        const Tensor &a_of = a.of(n.x), &b_of = a.of(n.b), &c_of = a.of(n.y);
        const std::vector<float> &x = load(n.x), &z = load(n.b);
        const int64_t members = a_of.shape[1] / b_of.shape[1];
        c_of.each([&](int64_t b, int64_t h, int64_t r, int64_t c) {
            const float *row = &x[(size_t)a_of.at(b, h, r, 0)];
            const float *column = &z[(size_t)b_of.at(b, h / members, 0, c)];
            const int64_t by_row = a_of.strides[3], by_column = b_of.strides[2];
            float sum = 0;
            for (int64_t k = 0; k < a_of.shape[3]; k++)
                sum += row[k * by_row] * column[k * by_column];
            y[(size_t)c_of.at(b, h, r, c)] = sum;
        });
    }

    void reduce(const Node &n, std::vector<float> &y)
    {
        const Tensor &from = a.of(n.x), &to = a.of(n.y);
        const std::vector<float> &x = load(n.x);
        const bool adds = n.mode == CUDNN_REDUCE_TENSOR_ADD;
        int64_t share[4]; // how many elements side by side are reduced to one
        for (int d = 0; d < 4; d++)
            share[d] = from.shape[d] / to.shape[d];
        std::fill(y.begin(), y.end(), adds ? 0.0F : -INFINITY);
        from.each([&](int64_t b, int64_t h, int64_t r, int64_t c) {
            float value = x[(size_t)from.at(b, h, r, c)];
            float &into = y[(size_t)to.at(b / share[0], h / share[1], r / share[2], c / share[3])];
            into = adds ? into + value : value > into || std::isnan(value) ? value : into;
        });
    }

    float point(const Node &n, float x, float b, float t, int64_t index)
    {
        switch (n.mode) {
        case CUDNN_POINTWISE_ADD:
            return x + b;
        case CUDNN_POINTWISE_MUL:
            return x * b;
        case CUDNN_POINTWISE_DIV:
            return x / b;
        case CUDNN_POINTWISE_SUB:
            return x - b;
        case CUDNN_POINTWISE_EXP:
            return expf(x);
        case CUDNN_POINTWISE_LOG:
            return logf(x);
        case CUDNN_POINTWISE_CMP_GE:
            return x >= b;
        case CUDNN_POINTWISE_GEN_INDEX:
            return (float)index;
        case CUDNN_POINTWISE_BINARY_SELECT:
            return t != 0 ? x : b;
        default:
            return x;
        }
    }

    void apply(const Node &n, std::vector<float> &y)
    {
        static const std::vector<float> none(1);
        const Tensor &to = a.of(n.y), &x_of = a.of(n.x);
        const bool indexes = n.mode == CUDNN_POINTWISE_GEN_INDEX;
        const std::vector<float> &x = load(n.x);
        const std::vector<float> &second = n.b ? load(n.b) : none, &third = n.t ? load(n.t) : none;
        to.each([&](int64_t b, int64_t h, int64_t r, int64_t c) {
            const int64_t index[4] = {b, h, r, c};
            y[(size_t)to.at(b, h, r, c)] = point(n, x[(size_t)x_of.at(b, h, r, c)],
                                                 second[n.b ? (size_t)a.of(n.b).at(b, h, r, c) : 0],
                                                 third[n.t ? (size_t)a.of(n.t).at(b, h, r, c) : 0],
                                                 indexes ? index[n.axis] : 0);
        });
    }

    void run(const Node &n)
    {
        const Tensor &to = a.of(n.y);
        Numbers y = std::make_shared<std::vector<float>>(to.span());
        switch (n.kind) {
        case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR:
            multiply(n, *y);
            break;
        case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR:
            reduce(n, *y);
            break;
        case CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR: // other strides for the same numbers
            *y = load(n.x);
            break;
        default:
            apply(n, *y);
        }
        to.each([&](int64_t b, int64_t h, int64_t r, int64_t c) {
            const int64_t at = to.at(b, h, r, c);
            (*y)[(size_t)at] = rounded((*y)[(size_t)at], to.type);
            if (!to.between)
                store_float(addresses.at(n.y), to.real(), at, (*y)[(size_t)at]);
        });
        numbers[n.y] = y;
    }

    void run()
    {
        for (const Node &node : a.nodes)
            run(node);
    }
};

// Fills in addresses and values. Returns false if an address is missing, or isn't where it must be.
bool bind(Machine &m, int device, const Content &pack, Computer *computer)
{
    std::vector<int64_t> names = pack.integers(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
    std::vector<int64_t> pointers = pack.integers(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
    size_t needed = 0;
    if (names.size() != pointers.size())
        return false;
    for (size_t i = 0; i < names.size(); i++) {
        auto found = computer->a.tensors.find(names[i]);
        char *pointer = reinterpret_cast<char *>(pointers[i]);
        if (found == computer->a.tensors.end() || found->second.between || !pointer)
            return false;
        const Tensor &t = found->second;
        if (t.by_value) {
            memcpy(&computer->by_value[t.name], pointer, sizeof(float));
        } else if (pointers[i] % t.alignment != 0 ||
                   !lies_in(m, pointer, t.span() * element_size(t.real()), device)) {
            fprintf(stderr,
                    "emulator: tensor %d of attention is not aligned, or does not lie in "
                    "one allocation of device %d\n",
                    (int)t.name, device);
            return false;
        }
        computer->addresses[t.name] = pointer;
    }
    for (const auto &entry : computer->a.tensors)
        needed += !entry.second.between;
    return needed == computer->addresses.size();
}

} // namespace

bool attention_fits(const Content &graph)
{
    Attention a;
    return read_graph(graph, &a);
}

const std::vector<Engine> &attention_engines(const Content &graph)
{
    static const std::vector<Engine> none;
    static const std::vector<Engine> forward = {
        {2, {CUDNN_NUMERICAL_NOTE_TENSOR_CORE}, 0, false, CUDNN_STATUS_SUCCESS}};
    static const std::vector<Engine> gradient = {
        {6, {CUDNN_NUMERICAL_NOTE_TENSOR_CORE}, 0, false, CUDNN_STATUS_SUCCESS}};
    Attention a;
    if (!read_graph(graph, &a) || !is_supported(a))
        return none;
    return a.is_gradient() ? gradient : forward;
}

// Returns the bytes of a gradient's workspace: gradients of keys and values for each head of a
// group, and gradients of the scores if dq has no f32 sums.
int64_t attention_workspace(const Content &graph)
{
    Attention a;
    if (!read_graph(graph, &a) || !a.is_gradient())
        return 0;
    const Tensor &q = a.of(a.scores().x), &k = a.of(a.scores().b), &s = a.of(a.scores().y);
    const bool sums = a.has(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, CUDNN_POINTWISE_IDENTITY);
    const int64_t grouped = q.shape[1] == k.shape[1] ? 0 : 2 * q.shape[0] * q.shape[1] * k.count();
    return 2 * ((sums ? 0 : s.count()) + grouped / (k.shape[0] * k.shape[1]));
}

cudnnStatus_t attention_enqueue(Machine &m, Lock &lock, int device, const Stream &stream,
                                const Content &graph, const Content &pack)
{
    auto computer = std::make_shared<Computer>();
    std::vector<int64_t> workspace = pack.integers(CUDNN_ATTR_VARIANT_PACK_WORKSPACE);
    if (device != current_device() || !stream || stream->device != device)
        return CUDNN_STATUS_EXECUTION_FAILED;
    if (!read_graph(graph, &computer->a) || workspace.size() != 1 ||
        !bind(m, device, pack, computer.get()))
        return CUDNN_STATUS_BAD_PARAM;
    char *scratch = reinterpret_cast<char *>(workspace[0]);
    size_t scratch_size = (size_t)attention_workspace(graph);
    if (scratch_size > 0 && !lies_in(m, scratch, scratch_size, device))
        return CUDNN_STATUS_BAD_PARAM;
    Operation operation;
    operation.name = "attention";
    operation.run = [computer, scratch, scratch_size] {
        spoil(scratch, scratch_size);
        computer->run();
        Machine &now = machine();
        Lock counting(now.lock);
        now.counters.attentions++;
    };
    after_issue(m, lock, issue(m, stream, std::move(operation))->self);
    return CUDNN_STATUS_SUCCESS;
}

} // namespace emulator
