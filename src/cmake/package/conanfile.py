"""Evenkeel for Conan 2: conan create src/cmake/package

Debian's packages of oneDNN, zlib, libpng and TurboJPEG are asked for as system requirements. Conan installs them with
-c tools.system.package_manager:mode=install."""

import os
import re

from conan import ConanFile
from conan.tools.cmake import CMake, CMakeToolchain, cmake_layout
from conan.tools.files import copy, load
from conan.tools.system.package_manager import Apt


class Evenkeel(ConanFile):
    name = "evenkeel"
    description = "data-parallel training in C with load balancing"
    license = "MIT"
    settings = "os", "compiler", "build_type", "arch"
    options = {"mpi": [True, False]}
    default_options = {"mpi": False}

    @property
    def _root(self):
        return os.path.join(self.recipe_folder, "..", "..", "..")

    def set_version(self):
        text = load(self, os.path.join(self._root, "include", "evenkeel", "version.h"))
        self.version = ".".join(re.search(f"EK_VERSION_{part} (\\d+)", text)[1] for part in ("MAJOR", "MINOR", "PATCH"))

    def export_sources(self):
        for pattern in ("CMakeLists.txt", "LICENSE", "src/*", "include/*", "balance/*"):
            copy(self, pattern, self._root, self.export_sources_folder)

    def configure(self):
        self.settings.rm_safe("compiler.libcxx")
        self.settings.rm_safe("compiler.cppstd")

    def layout(self):
        cmake_layout(self)

    def system_requirements(self):
        packages = ["libdnnl-dev", "zlib1g-dev", "libpng-dev", "libturbojpeg0-dev"]
        Apt(self).install(packages + (["libopenmpi-dev"] if self.options.mpi else []))

    def generate(self):
        toolchain = CMakeToolchain(self)
        toolchain.variables["EVENKEEL_TESTS"] = False
        toolchain.variables["EVENKEEL_SAMPLES"] = False
        toolchain.variables["EVENKEEL_CUDA"] = "OFF"
        toolchain.variables["EVENKEEL_MPI"] = "ON" if self.options.mpi else "OFF"
        toolchain.generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build()

    def package(self):
        CMake(self).install()
        copy(self, "LICENSE", self.source_folder, os.path.join(self.package_folder, "licenses"))

    def package_info(self):  # its own CMake package, evenkeel::shared and evenkeel::static
        self.cpp_info.set_property("cmake_find_mode", "none")
        self.cpp_info.builddirs = [os.path.join("lib", "cmake", "evenkeel")]
        self.cpp_info.libs = ["evenkeel"]
