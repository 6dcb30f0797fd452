# cmake --install: headers, both libraries, plugins, a pkg-config file and a CMake package.

include(CMakePackageConfigHelpers)

install(DIRECTORY include/evenkeel DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
install(TARGETS evenkeel_shared evenkeel_static EXPORT evenkeel
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
foreach(kind IN LISTS EK_MPI_KINDS)
    install(TARGETS evenkeel_mpi_${kind} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/evenkeel)
endforeach()
install(EXPORT evenkeel NAMESPACE evenkeel:: FILE evenkeel-targets.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/evenkeel)
# What a static library with the CUDA backend links in addition.
set(EK_PC_CUDA)
set(EK_CONFIG_CUDA)
if(EK_CUDA)
    set(EK_PC_CUDA " -L${CUDAToolkit_LIBRARY_DIR} -lcudart_static -lrt")
    set(EK_CONFIG_CUDA "find_dependency(CUDAToolkit)")
endif()
configure_package_config_file(src/cmake/evenkeel-config.cmake.in evenkeel-config.cmake
        INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/evenkeel)
write_basic_package_version_file(evenkeel-config-version.cmake COMPATIBILITY SameMajorVersion)
install(FILES ${PROJECT_BINARY_DIR}/evenkeel-config.cmake
              ${PROJECT_BINARY_DIR}/evenkeel-config-version.cmake
              src/cmake/FindOneDNN.cmake src/cmake/FindTurboJPEG.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/evenkeel)
# Relative, so that cmake --install --prefix and moved trees work.
file(RELATIVE_PATH EK_PREFIX_FROM_PC /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
configure_file(src/cmake/evenkeel.pc.in evenkeel.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/evenkeel.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
