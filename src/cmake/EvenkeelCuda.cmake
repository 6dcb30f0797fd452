# The CUDA backend: EVENKEEL_CUDA =
#
#   AUTO      with it, for this machine's GPUs alone, where nvcc and a GPU are; without it elsewhere
#   ON        with it, for every kind of GPU (CMAKE_CUDA_ARCHITECTURES names others)
#   OFF       without it
#   EMULATED  the same sources compiled as C++ against tests/emulator, which runs them on the CPU: for tests only
#
# Sets EK_CUDA (whether src/cuda is built) and EK_CUDA_LIBRARIES. cuBLAS, cuDNN and NCCL are only compiled against:
# the library opens them at run time, so that it starts where they are missing.

set(EVENKEEL_CUDA AUTO CACHE STRING "CUDA backend: AUTO, ON, OFF, or EMULATED (tests)")
set_property(CACHE EVENKEEL_CUDA PROPERTY STRINGS AUTO ON OFF EMULATED)
if(NOT EVENKEEL_CUDA MATCHES "^(AUTO|ON|OFF|EMULATED)$")
    message(FATAL_ERROR "EVENKEEL_CUDA is ${EVENKEEL_CUDA}; it can be AUTO, ON, OFF or EMULATED.")
endif()

# Sets `out` to whether this machine has a GPU of NVIDIA's whose driver is loaded.
function(ek_find_gpu out)
    set(${out} OFF PARENT_SCOPE)
    find_program(nvidia_smi nvidia-smi NO_CACHE)
    if(EXISTS /dev/nvidiactl)
        set(${out} ON PARENT_SCOPE)
    elseif(nvidia_smi)
        execute_process(COMMAND ${nvidia_smi} -L OUTPUT_VARIABLE gpus RESULT_VARIABLE failed ERROR_QUIET)
        if(failed EQUAL 0 AND gpus MATCHES "GPU 0")
            set(${out} ON PARENT_SCOPE)
        endif()
    endif()
endfunction()

set(EK_CUDA OFF)
set(EK_CUDA_LIBRARIES)
set(wanted ${EVENKEEL_CUDA})
if(EVENKEEL_CUDA STREQUAL AUTO)
    ek_find_gpu(gpu)
    if(EVENKEEL_SANITIZE)
        set(wanted OFF)
        message(STATUS "CUDA: left out of sanitized builds (EVENKEEL_CUDA=EMULATED runs its kernels under them)")
    elseif(NOT gpu)
        set(wanted OFF)
        message(STATUS "CUDA: left out, because this machine has no GPU (EVENKEEL_CUDA=ON builds it for every GPU)")
    endif()
endif()
if(wanted MATCHES "^(AUTO|ON)$")
    include(CheckLanguage)
    check_language(CUDA)
    if(CMAKE_CUDA_COMPILER AND NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
        if(wanted STREQUAL AUTO)
            set(CMAKE_CUDA_ARCHITECTURES native)
        else()
            # Machine code for A100, H100, and the two kinds of Blackwell if the toolkit has them (a GPU runs that of
            # its generation), and PTX, which other later GPUs compile when a program starts.
            set(CMAKE_CUDA_ARCHITECTURES 80-real 90)
            execute_process(COMMAND ${CMAKE_CUDA_COMPILER} --list-gpu-code OUTPUT_VARIABLE codes ERROR_QUIET)
            foreach(kind 100 120)
                if(codes MATCHES "sm_${kind}[^0-9]")
                    list(APPEND CMAKE_CUDA_ARCHITECTURES ${kind}-real)
                endif()
            endforeach()
        endif()
    endif()
    if(CMAKE_CUDA_COMPILER)
        enable_language(CUDA)
        find_package(CUDAToolkit REQUIRED)
        # Headers of libraries may come with other packages than nvcc. Those of cuBLAS are needed wherever the toolkit's are.
        find_path(EK_CUBLAS_INCLUDE_DIR cublasLt.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
        find_path(EK_CUDNN_INCLUDE_DIR cudnn.h HINTS ${CUDAToolkit_INCLUDE_DIRS} /usr/local/cuda/include)
        find_path(EK_NCCL_INCLUDE_DIR nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS} /usr/local/cuda/include)
        if(NOT EK_CUBLAS_INCLUDE_DIR)
            message(FATAL_ERROR "CUDA: there is nvcc, but no cublasLt.h in ${CUDAToolkit_INCLUDE_DIRS}: install cuBLAS's "
                                "headers (libcublas-dev), name a folder that has them by CMAKE_INCLUDE_PATH, or build "
                                "without GPUs by EVENKEEL_CUDA=OFF.")
        endif()
        list(APPEND CUDAToolkit_INCLUDE_DIRS ${EK_CUBLAS_INCLUDE_DIR})
        list(REMOVE_DUPLICATES CUDAToolkit_INCLUDE_DIRS)
        set(EK_CUDA ON)
        set(EK_CUDA_LIBRARIES CUDA::cudart_static)
        set(CMAKE_CUDA_STANDARD 17)
        set(CMAKE_CUDA_STANDARD_REQUIRED ON)
        set(CMAKE_CUDA_EXTENSIONS OFF)
        set(CMAKE_CUDA_VISIBILITY_PRESET hidden)
        set(CMAKE_CUDA_FLAGS_RELEASE "-O3 -DNDEBUG")
        message(STATUS "CUDA: ${CMAKE_CUDA_COMPILER_VERSION} for ${CMAKE_CUDA_ARCHITECTURES}")
    elseif(wanted STREQUAL ON)
        message(FATAL_ERROR "EVENKEEL_CUDA is ON, but no nvcc was found: put the toolkit's bin folder on "
                            "PATH, or set CMAKE_CUDA_COMPILER.")
    else()
        message(STATUS "CUDA: no nvcc found; the library computes on the host only")
    endif()
elseif(wanted STREQUAL EMULATED)
    enable_language(CXX)
    set(CMAKE_CXX_STANDARD 17)
    set(CMAKE_CXX_STANDARD_REQUIRED ON)
    set(CMAKE_CXX_EXTENSIONS OFF)
    set(CMAKE_CXX_FLAGS_RELEASE "-O1 -DNDEBUG") # -O2 takes longer to compile than it saves in the tests
    set(EK_CUDA ON)
    add_subdirectory(tests/emulator)
    set(EK_CUDA_LIBRARIES ek_emulator stdc++)
    message(STATUS "CUDA: emulated on the CPU (for tests)")
endif()

# Builds a folder's kernels as the object library ek_cuda_kernels. They need nothing of the other folders, so test
# programs share them as one shared library instead of carrying the machine code of every GPU each.
function(ek_cuda_kernels source_dir)
    file(GLOB kernels CONFIGURE_DEPENDS ${source_dir}/*.cu)
    add_library(ek_cuda_kernels OBJECT ${kernels})
    target_include_directories(ek_cuda_kernels PRIVATE ${PROJECT_BINARY_DIR}/arrows/cuda
                               ${PROJECT_SOURCE_DIR}/include)
    if(EVENKEEL_CUDA STREQUAL EMULATED)
        set_source_files_properties(${kernels} PROPERTIES LANGUAGE CXX
            COMPILE_OPTIONS "-xc++;-includecuda_runtime.h;-Wall;-Wextra;-Wno-unknown-pragmas;-Wno-maybe-uninitialized") # nvcc includes it too
        target_link_libraries(ek_cuda_kernels PRIVATE ek_emulator)
        target_compile_definitions(ek_cuda PRIVATE EK_CUDA_EMULATED)
        target_link_libraries(ek_cuda PRIVATE ek_emulator)
    else()
        set_target_properties(ek_cuda_kernels PROPERTIES CUDA_VISIBILITY_PRESET default)
        # No need of the C++ library: launches don't run nvcc's stubs, whose statics would ask for guards.
        target_compile_options(ek_cuda_kernels PRIVATE
            -Xcompiler=-Wall,-Wextra,-fno-exceptions,-fno-rtti,-fno-threadsafe-statics $<$<BOOL:${EVENKEEL_WERROR}>:--Werror=all-warnings>)
        add_library(ek_cuda_kernels_shared SHARED $<TARGET_OBJECTS:ek_cuda_kernels>)
        set_target_properties(ek_cuda_kernels_shared PROPERTIES LINKER_LANGUAGE C)
        target_link_libraries(ek_cuda_kernels_shared PRIVATE CUDA::cudart)
        target_include_directories(ek_cuda SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
        if(EK_CUDNN_INCLUDE_DIR)
            target_compile_definitions(ek_cuda PRIVATE EK_WITH_CUDNN)
            target_include_directories(ek_cuda SYSTEM PRIVATE ${EK_CUDNN_INCLUDE_DIR})
        endif()
        if(EK_NCCL_INCLUDE_DIR)
            target_compile_definitions(ek_cuda PRIVATE EK_WITH_NCCL)
            target_include_directories(ek_cuda SYSTEM PRIVATE ${EK_NCCL_INCLUDE_DIR})
        endif()
    endif()
endfunction()

# What links with the kernels: for programs of the build folder, and for the library that is installed.
function(ek_cuda_test_link target)
    if(EVENKEEL_CUDA STREQUAL EMULATED)
        target_sources(${target} PRIVATE $<TARGET_OBJECTS:ek_cuda_kernels>)
        target_link_libraries(${target} PRIVATE ek_emulator stdc++)
    else()
        target_link_libraries(${target} PRIVATE ek_cuda_kernels_shared CUDA::cudart)
    endif()
endfunction()
function(ek_cuda_library_link target)
    target_sources(${target} PRIVATE $<TARGET_OBJECTS:ek_cuda_kernels>)
    target_link_libraries(${target} PRIVATE ${EK_CUDA_LIBRARIES})
endfunction()
