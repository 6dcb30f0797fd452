# cmake --install: headers, both libraries, plugins, a pkg-config file and a CMake package.

include(CMakePackageConfigHelpers)

# Components: library, development, and openmpi and mpich, the plugins. EvenkeelPackage.cmake makes a package of each.
install(DIRECTORY include/evenkeel DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT development
        FILES_MATCHING PATTERN "*.h")
install(TARGETS evenkeel_shared evenkeel_static EXPORT evenkeel
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT library NAMELINK_COMPONENT development
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT development)
foreach(kind IN LISTS EK_MPI_KINDS)
    install(TARGETS evenkeel_mpi_${kind} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/evenkeel COMPONENT ${kind})
endforeach()
install(EXPORT evenkeel NAMESPACE evenkeel:: FILE evenkeel-targets.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/evenkeel COMPONENT development)
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
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/evenkeel COMPONENT development)
# The prefix is that of cmake --install, so that compilers show no path with "/../" in it. In a tree that was moved,
# pkg-config --define-prefix finds it.
set(EK_PC_PREFIX "@EK_PC_PREFIX@")
configure_file(src/cmake/evenkeel.pc.in evenkeel.pc.in @ONLY)
install(CODE "set(EK_PC_PREFIX \"\${CMAKE_INSTALL_PREFIX}\")
    configure_file(\"${PROJECT_BINARY_DIR}/evenkeel.pc.in\" \"${PROJECT_BINARY_DIR}/evenkeel.pc\" @ONLY)"
        COMPONENT development)
install(FILES ${PROJECT_BINARY_DIR}/evenkeel.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT development)

include(EvenkeelPackage)
