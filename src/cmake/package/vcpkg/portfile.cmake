# An overlay port of this clone: vcpkg install evenkeel --overlay-ports=src/cmake/package/vcpkg
get_filename_component(SOURCE_PATH "${CURRENT_PORT_DIR}/../../../.." ABSOLUTE)

vcpkg_cmake_configure(SOURCE_PATH "${SOURCE_PATH}"
    OPTIONS -DEVENKEEL_TESTS=OFF -DEVENKEEL_SAMPLES=OFF -DEVENKEEL_CUDA=OFF -DEVENKEEL_MPI=OFF)
vcpkg_cmake_install()
vcpkg_cmake_config_fixup(PACKAGE_NAME evenkeel CONFIG_PATH lib/cmake/evenkeel)
vcpkg_fixup_pkgconfig()

file(REMOVE_RECURSE "${CURRENT_PACKAGES_DIR}/debug/include")
vcpkg_install_copyright(FILE_LIST "${SOURCE_PATH}/LICENSE")
