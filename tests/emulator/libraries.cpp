// libraries.cpp: what dlopen and dlsym would find.
#include <cstring>

#include <cublasLt.h>
#include <cudnn.h>
#include <nccl.h>

#include "machine.h"

using namespace emulator;

// Returns true if the library, such as "libcublas.so.13", is in the list.
bool ek_emulator_has(const char *soname)
{
    if (strncmp(soname, "lib", 3) != 0)
        return false;
    std::string name(soname + 3, strcspn(soname + 3, "."));
    return (name == "cublas" || name == "cublasLt" || name == "cudnn" || name == "nccl") &&
           ("," + machine().libraries + ",").find("," + name + ",") != std::string::npos;
}

void *ek_emulator_symbol(const char *name)
{
    static const struct {
        const char *name;
        void *function;
    } table[] = {
#define NAMED(name, function) {name, reinterpret_cast<void *>(function)}
#define ENTRY(function) NAMED(#function, function)
#define VERSIONED(function) NAMED(#function "_v2", function##_v2)
#undef cublasCreate
#undef cublasDestroy
#undef cublasGetVersion
#undef cublasSetStream
#undef cublasSetWorkspace
#undef cublasSetPointerMode
        VERSIONED(cublasCreate),
        VERSIONED(cublasDestroy),
        VERSIONED(cublasGetVersion),
        VERSIONED(cublasSetStream),
        VERSIONED(cublasSetWorkspace),
        VERSIONED(cublasSetPointerMode),
        ENTRY(cublasSetMathMode),
        ENTRY(cublasSetAtomicsMode),
        ENTRY(cublasGetStatusName),
        ENTRY(cublasGetStatusString),
        ENTRY(cublasGemmEx),
        ENTRY(cublasGemmStridedBatchedEx),
        ENTRY(cublasLtCreate),
        ENTRY(cublasLtDestroy),
        ENTRY(cublasLtMatmulDescCreate),
        ENTRY(cublasLtMatmulDescDestroy),
        ENTRY(cublasLtMatmulDescSetAttribute),
        ENTRY(cublasLtMatrixLayoutCreate),
        ENTRY(cublasLtMatrixLayoutDestroy),
        ENTRY(cublasLtMatmulPreferenceCreate),
        ENTRY(cublasLtMatmulPreferenceDestroy),
        ENTRY(cublasLtMatmulPreferenceSetAttribute),
        ENTRY(cublasLtMatmulAlgoGetHeuristic),
        ENTRY(cublasLtMatmul),
        ENTRY(cudnnCreate),
        ENTRY(cudnnDestroy),
        ENTRY(cudnnSetStream),
        ENTRY(cudnnGetVersion),
        ENTRY(cudnnGetErrorString),
        ENTRY(cudnnGetLastErrorString),
        ENTRY(cudnnBackendCreateDescriptor),
        ENTRY(cudnnBackendDestroyDescriptor),
        ENTRY(cudnnBackendSetAttribute),
        ENTRY(cudnnBackendGetAttribute),
        ENTRY(cudnnBackendFinalize),
        ENTRY(cudnnBackendExecute),
        ENTRY(cudnnCreateTensorDescriptor),
        ENTRY(cudnnSetTensorNdDescriptor),
        ENTRY(cudnnGetTensorNdDescriptor),
        ENTRY(cudnnDestroyTensorDescriptor),
        ENTRY(cudnnCreateDropoutDescriptor),
        ENTRY(cudnnSetDropoutDescriptor),
        ENTRY(cudnnDestroyDropoutDescriptor),
        ENTRY(cudnnCreateRNNDescriptor),
        ENTRY(cudnnSetRNNDescriptor_v8),
        ENTRY(cudnnDestroyRNNDescriptor),
        ENTRY(cudnnCreateRNNDataDescriptor),
        ENTRY(cudnnSetRNNDataDescriptor),
        ENTRY(cudnnDestroyRNNDataDescriptor),
        ENTRY(cudnnGetRNNTempSpaceSizes),
        ENTRY(cudnnGetRNNWeightSpaceSize),
        ENTRY(cudnnGetRNNWeightParams),
        ENTRY(cudnnRNNForward),
        ENTRY(cudnnRNNBackwardData_v8),
        ENTRY(cudnnRNNBackwardWeights_v8),
        ENTRY(ncclGetVersion),
        ENTRY(ncclGetErrorString),
        ENTRY(ncclGetLastError),
        ENTRY(ncclCommInitAll),
        ENTRY(ncclGetUniqueId),
        ENTRY(ncclCommInitRankConfig),
        ENTRY(ncclCommDestroy),
        ENTRY(ncclCommAbort),
        ENTRY(ncclCommCount),
        ENTRY(ncclCommUserRank),
        ENTRY(ncclCommCuDevice),
        ENTRY(ncclCommGetAsyncError),
        ENTRY(ncclGroupStart),
        ENTRY(ncclGroupEnd),
        ENTRY(ncclSend),
        ENTRY(ncclRecv),
        ENTRY(ncclBroadcast),
        ENTRY(ncclReduce),
        ENTRY(ncclAllReduce),
#undef NAMED
#undef ENTRY
#undef VERSIONED
    };
    for (const auto &entry : table)
        if (!strcmp(entry.name, name))
            return entry.function;
    return nullptr;
}
