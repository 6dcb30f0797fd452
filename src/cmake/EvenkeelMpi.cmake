# MPI, which carries bytes between processes: EVENKEEL_MPI = AUTO (with it where its headers are), ON, OFF.
#
# The library links no MPI. It opens a plugin at run time if mpirun has started it: libevenkeel_mpi_openmpi.so or
# libevenkeel_mpi_mpich.so. Each is built if its compiler wrapper is found, both if both are (as on Debian, with
# mpicc.openmpi and mpicc.mpich; MPI_C_COMPILER names another wrapper); otherwise one, for the MPI that find_package(MPI)
# finds.
#
# Sets EK_MPI_KINDS, a list of openmpi and mpich, and for each its targets ek_mpi_<kind> (what to compile and link with)
# and evenkeel_mpi_<kind> (the plugin).

set(EVENKEEL_MPI AUTO CACHE STRING "Plugins for MPI: AUTO, ON or OFF")
set_property(CACHE EVENKEEL_MPI PROPERTY STRINGS AUTO ON OFF)
if(NOT EVENKEEL_MPI MATCHES "^(AUTO|ON|OFF)$")
    message(FATAL_ERROR "EVENKEEL_MPI is ${EVENKEEL_MPI}; it can be AUTO, ON or OFF.")
endif()

set(EK_MPI_KINDS)

# Which MPI's mpi.h lies in the folders: openmpi, mpich (and what descends from it), or nothing.
function(ek_mpi_kind result)
    set(probe ${PROJECT_BINARY_DIR}/mpi_kind.c)
    file(WRITE ${probe} "#include <mpi.h>\n#if defined OPEN_MPI\nek_kind openmpi\n#elif defined MPICH_VERSION\nek_kind mpich\n#endif\n")
    list(TRANSFORM ARGN PREPEND -I OUTPUT_VARIABLE includes)
    execute_process(COMMAND ${CMAKE_C_COMPILER} ${includes} -E ${probe}
                    OUTPUT_VARIABLE text ERROR_VARIABLE errors RESULT_VARIABLE status)
    set(kind)
    if(status EQUAL 0 AND text MATCHES "\nek_kind ([a-z]+)")
        set(kind ${CMAKE_MATCH_1})
    endif()
    set(${result} "${kind}" PARENT_SCOPE)
endfunction()

# ek_mpi_wrapper(wrapper): ek_mpi_<kind>, if there is none yet, of the flags that a compiler wrapper shows.
function(ek_mpi_wrapper wrapper)
    execute_process(COMMAND ${wrapper} -show OUTPUT_VARIABLE shown ERROR_QUIET RESULT_VARIABLE status
                    OUTPUT_STRIP_TRAILING_WHITESPACE)
    if(NOT status EQUAL 0)
        return()
    endif()
    separate_arguments(words UNIX_COMMAND "${shown}")
    set(includes ${words})
    list(FILTER includes INCLUDE REGEX "^-I.")
    list(TRANSFORM includes REPLACE "^-I" "")
    ek_mpi_kind(kind ${includes})
    if(NOT kind OR kind IN_LIST EK_MPI_KINDS)
        return()
    endif()
    set(folders ${words})
    list(FILTER folders INCLUDE REGEX "^-L.")
    list(TRANSFORM folders REPLACE "^-L" "")
    set(libraries)
    foreach(word IN LISTS words)
        if(word MATCHES "^-l(.+)")
            # By its path, so that it is found where the linker looks for nothing at run time.
            find_library(EK_MPI_${kind}_${CMAKE_MATCH_1} ${CMAKE_MATCH_1} HINTS ${folders})
            mark_as_advanced(EK_MPI_${kind}_${CMAKE_MATCH_1})
            if(EK_MPI_${kind}_${CMAKE_MATCH_1})
                list(APPEND libraries ${EK_MPI_${kind}_${CMAKE_MATCH_1}})
            else()
                list(APPEND libraries ${word})
            endif()
        endif()
    endforeach()
    add_library(ek_mpi_${kind} INTERFACE)
    target_include_directories(ek_mpi_${kind} SYSTEM INTERFACE ${includes})
    target_link_directories(ek_mpi_${kind} INTERFACE ${folders})
    target_link_libraries(ek_mpi_${kind} INTERFACE ${libraries})
    set(EK_MPI_KINDS ${EK_MPI_KINDS} ${kind} PARENT_SCOPE)
endfunction()

# ek_mpi_plugin(target kind): a plugin for a kind of MPI.
function(ek_mpi_plugin target kind)
    add_library(${target} MODULE ${PROJECT_SOURCE_DIR}/src/distributed/mpi/mpi.c
                                ${PROJECT_SOURCE_DIR}/src/distributed/mpi/transfer.c)
    target_include_directories(${target} PRIVATE ${PROJECT_BINARY_DIR}/arrows/distributed ${PROJECT_SOURCE_DIR}/include)
    target_link_libraries(${target} PRIVATE ek_mpi_${kind})
    set_target_properties(${target} PROPERTIES INSTALL_RPATH_USE_LINK_PATH ON)
endfunction()

if(EVENKEEL_MPI MATCHES "^(AUTO|ON)$")
    if(MPI_C_COMPILER) # who names a wrapper means it
        ek_mpi_wrapper(${MPI_C_COMPILER})
    endif()
    foreach(kind openmpi mpich)
        find_program(EK_MPICC_${kind} mpicc.${kind})
        if(NOT EK_MPICC_${kind})
            find_program(EK_MPICC_${kind} mpicc PATHS /usr/lib64/${kind}/bin NO_DEFAULT_PATH) # Fedora
        endif()
        mark_as_advanced(EK_MPICC_${kind})
        if(EK_MPICC_${kind})
            ek_mpi_wrapper(${EK_MPICC_${kind}})
        endif()
    endforeach()
    if(NOT EK_MPI_KINDS)
        set(MPI_CXX_SKIP_MPICXX ON)
        find_package(MPI QUIET COMPONENTS C)
        if(MPI_C_FOUND)
            ek_mpi_kind(kind ${MPI_C_INCLUDE_DIRS})
            if(kind)
                add_library(ek_mpi_${kind} INTERFACE)
                target_link_libraries(ek_mpi_${kind} INTERFACE MPI::MPI_C)
                set(EK_MPI_KINDS ${kind})
            endif()
        endif()
    endif()
    foreach(kind IN LISTS EK_MPI_KINDS)
        ek_mpi_plugin(evenkeel_mpi_${kind} ${kind})
    endforeach()
    if(EK_MPI_KINDS)
        list(JOIN EK_MPI_KINDS ", " kinds)
        message(STATUS "MPI: ${kinds}")
    elseif(EVENKEEL_MPI STREQUAL ON)
        message(FATAL_ERROR "EVENKEEL_MPI is ON, but no Open MPI and no MPICH was found (on Debian: apt-get install "
                            "libopenmpi-dev or libmpich-dev), or no compiler wrapper of theirs, mpicc.")
    else()
        message(STATUS "MPI: none found; programs run as one process")
    endif()
endif()
