// cudnn_graph.h: cuDNN's handle, what its descriptors hold, and graphs of attention.
#ifndef EK_EMULATOR_CUDNN_GRAPH_H
#define EK_EMULATOR_CUDNN_GRAPH_H

#include <cstring>

#include <cudnn.h>

#include "machine.h"

struct cudnnContext {
    int device = 0;
    cudaStream_t stream = nullptr;
};

namespace emulator
{

struct Engine {
    int64_t number;
    std::vector<cudnnBackendNumericalNote_t> notes;
    double seconds;
    bool copies;       // needs workspace for all three tensors
    cudnnStatus_t run; // what it returns when it runs
};

// What a descriptor describes. Finalised, it no longer changes, and others refer to it.
struct Content {
    cudnnBackendDescriptorType_t kind;
    bool final = false;
    std::map<cudnnBackendAttributeName_t, std::vector<char>> values;
    std::map<cudnnBackendAttributeName_t, std::vector<std::shared_ptr<Content>>> parts;
    const Engine *engine = nullptr; // of engines and their configurations

    std::vector<int64_t> integers(cudnnBackendAttributeName_t name) const
    {
        auto found = values.find(name);
        std::vector<int64_t> all;
        if (found != values.end())
            all.resize(found->second.size() / sizeof(int64_t));
        if (!all.empty())
            memcpy(all.data(), found->second.data(), all.size() * sizeof(int64_t));
        return all;
    }
    const Content *part(cudnnBackendAttributeName_t name, size_t index = 0) const
    {
        auto found = parts.find(name);
        return found != parts.end() && index < found->second.size() ? found->second[index].get()
                                                                    : nullptr;
    }
};

// Returns true if a graph is of attention or its gradient, and its tensors fit together.
bool attention_fits(const Content &graph);
// Returns the engines that compute the graph. If cuDNN refuses the graph, there are none.
const std::vector<Engine> &attention_engines(const Content &graph);
int64_t attention_workspace(const Content &graph); // bytes
// Issues the graph with the addresses of the pack.
cudnnStatus_t attention_enqueue(Machine &m, Lock &lock, int device, const Stream &stream,
                                const Content &graph, const Content &pack);

} // namespace emulator

#endif
