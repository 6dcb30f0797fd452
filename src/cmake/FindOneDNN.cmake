# oneDNN::oneDNN, from its header and library: its own CMake package asks for OpenCL's headers where it
# was built with OpenCL, which only its GPU engine needs.
find_path(OneDNN_INCLUDE_DIR dnnl.h)
find_library(OneDNN_LIBRARY dnnl)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(OneDNN REQUIRED_VARS OneDNN_LIBRARY OneDNN_INCLUDE_DIR
    REASON_FAILURE_MESSAGE "on Debian: apt-get install libdnnl-dev")
if(OneDNN_FOUND AND NOT TARGET oneDNN::oneDNN)
    add_library(oneDNN::oneDNN UNKNOWN IMPORTED)
    set_target_properties(oneDNN::oneDNN PROPERTIES
        IMPORTED_LOCATION ${OneDNN_LIBRARY} INTERFACE_INCLUDE_DIRECTORIES ${OneDNN_INCLUDE_DIR})
endif()
