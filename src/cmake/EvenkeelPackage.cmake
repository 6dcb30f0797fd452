# cpack: Debian packages, from a build whose prefix is /usr.
#
#     cmake -B build-package -DCMAKE_INSTALL_PREFIX=/usr -DEVENKEEL_TESTS=OFF -DEVENKEEL_SAMPLES=OFF
#     cmake --build build-package -j8 && (cd build-package && cpack)
#
#   libevenkeel0.<EK_ABI>   the shared library; libraries of other interfaces can be installed beside it
#   libevenkeel-dev         headers, static library, pkg-config file, CMake package
#   evenkeel-openmpi        the plugin for Open MPI; evenkeel-mpich is the one for MPICH
#
# Needs dpkg-dev, whose dpkg-shlibdeps finds the packages that the libraries depend on.

find_program(EK_GZIP gzip)
mark_as_advanced(EK_GZIP)
if(NOT CMAKE_INSTALL_PREFIX STREQUAL "/usr" OR NOT EK_GZIP)
    return()
endif()

set(EVENKEEL_MAINTAINER "The Evenkeel authors <authors@evenkeel.dev>" CACHE STRING "Maintainer of the packages")
set(EK_PACKAGE_library libevenkeel${PROJECT_VERSION_MAJOR}.${EK_ABI})
set(EK_PACKAGE_development libevenkeel-dev)
set(EK_PACKAGE_openmpi evenkeel-openmpi)
set(EK_PACKAGE_mpich evenkeel-mpich)

# Of a static library only names of symbols are wanted, as of the shared one that cpack strips.
install(CODE "if(CMAKE_INSTALL_DO_STRIP)
        execute_process(COMMAND ${CMAKE_STRIP} --strip-debug --enable-deterministic-archives
            \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_LIBDIR}/libevenkeel.a\" COMMAND_ERROR_IS_FATAL ANY)
    endif()" COMPONENT development)

# The folder of documentation that each package of Debian has.
string(TIMESTAMP EK_PACKAGE_DATE "%a, %d %b %Y %H:%M:%S +0000" UTC) # or SOURCE_DATE_EPOCH's
set(documents ${PROJECT_BINARY_DIR}/package)
configure_file(src/cmake/package/changelog.in ${documents}/changelog @ONLY)
configure_file(src/cmake/package/copyright.in ${documents}/copyright @ONLY)
execute_process(COMMAND ${EK_GZIP} -9nkf ${documents}/changelog COMMAND_ERROR_IS_FATAL ANY)

set(CPACK_COMPONENTS_ALL library development ${EK_MPI_KINDS})
foreach(component IN LISTS CPACK_COMPONENTS_ALL)
    install(FILES ${documents}/copyright ${documents}/changelog.gz
            DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/doc/${EK_PACKAGE_${component}} COMPONENT ${component})
    string(TOUPPER ${component} COMPONENT)
    set(CPACK_DEBIAN_${COMPONENT}_PACKAGE_NAME ${EK_PACKAGE_${component}})
    set(CPACK_DEBIAN_${COMPONENT}_PACKAGE_SHLIBDEPS ON)
    set(CPACK_DEBIAN_${COMPONENT}_PACKAGE_SECTION libs)
    if(NOT component STREQUAL library)
        set(CPACK_DEBIAN_${COMPONENT}_PACKAGE_DEPENDS "${EK_PACKAGE_library} (= ${PROJECT_VERSION})")
    endif()
    if(TARGET evenkeel_mpi_${component}) # the system's MPI needs no search path
        set_target_properties(evenkeel_mpi_${component} PROPERTIES INSTALL_RPATH_USE_LINK_PATH OFF)
    endif()
endforeach()
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
string(APPEND CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS
       ", libdnnl-dev, libpng-dev, libturbojpeg0-dev, zlib1g-dev") # for the static library

set(CPACK_GENERATOR DEB)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_GROUPING IGNORE)
set(CPACK_SET_DESTDIR ON) # below the prefix that the pkg-config file tells
set(CPACK_STRIP_FILES ON)
set(CPACK_PACKAGE_NAME evenkeel)
set(CPACK_PACKAGE_VENDOR Evenkeel)
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "data-parallel training in C with load balancing")
set(CPACK_PACKAGE_CONTACT "${EVENKEEL_MAINTAINER}")
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
# dpkg calls ldconfig by the trigger. The scripts for which cpack adds calls of ldconfig are taken out again.
file(WRITE ${documents}/triggers "activate-noawait ldconfig\n")
set(CPACK_DEBIAN_LIBRARY_PACKAGE_CONTROL_EXTRA ${documents}/triggers)
set(CPACK_POST_BUILD_SCRIPTS ${PROJECT_SOURCE_DIR}/src/cmake/package/remove_scripts.cmake)

set(about "Evenkeel replicates a module to every device, scatters the batch, runs
the replicas on worker threads, and computes the loss on one device or,
balanced, on each. A ledger shows where each device's memory goes.

This package has")
set(CPACK_COMPONENT_LIBRARY_DESCRIPTION "${about} the shared library.")
set(CPACK_COMPONENT_DEVELOPMENT_DESCRIPTION "${about} the headers and the static library.")
set(CPACK_COMPONENT_OPENMPI_DESCRIPTION "${about} the plugin for jobs of Open MPI's mpirun.")
set(CPACK_COMPONENT_MPICH_DESCRIPTION "${about} the plugin for jobs of MPICH's mpirun.")
include(CPack)
