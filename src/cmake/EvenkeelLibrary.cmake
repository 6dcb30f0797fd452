# The library, shared and static, from all folders' objects and the table of backends.

get_property(folders GLOBAL PROPERTY EK_FOLDERS)
set(all_libraries)
foreach(folder IN LISTS folders)
    get_property(libraries GLOBAL PROPERTY EK_LIBRARIES_${folder})
    list(APPEND all_libraries ${libraries})
endforeach()
list(REMOVE_DUPLICATES all_libraries)
ek_folder_objects(all_objects ${folders})

# ek_backends is for programs that stay in the build folder, ek_installed_backends for libraries that leave it.
set(EK_PLUGIN_FOLDER_ek_backends ${PROJECT_BINARY_DIR})
set(EK_PLUGIN_FOLDER_ek_installed_backends ${CMAKE_INSTALL_FULL_LIBDIR}/evenkeel)
foreach(backends ek_backends ek_installed_backends)
    add_library(${backends} OBJECT src/backends.c)
    target_include_directories(${backends} PRIVATE src src/distributed PUBLIC include)
    target_compile_definitions(${backends} PRIVATE EK_PLUGIN_FOLDER="${EK_PLUGIN_FOLDER_${backends}}"
                               $<$<BOOL:${EK_CUDA}>:EK_WITH_CUDA>)
endforeach()

foreach(kind shared static)
    string(TOUPPER ${kind} KIND)
    add_library(evenkeel_${kind} ${KIND} ${all_objects} $<TARGET_OBJECTS:ek_installed_backends>)
    add_library(evenkeel::${kind} ALIAS evenkeel_${kind})
    # While the major version is 0, every number of the interface is another library (version.h).
    set_target_properties(evenkeel_${kind} PROPERTIES
        OUTPUT_NAME evenkeel EXPORT_NAME ${kind}
        VERSION ${PROJECT_VERSION_MAJOR}.${EK_ABI} SOVERSION ${PROJECT_VERSION_MAJOR}.${EK_ABI})
    target_include_directories(evenkeel_${kind} INTERFACE
        $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
        $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
    target_link_libraries(evenkeel_${kind} PRIVATE ${all_libraries})
    if(EK_CUDA)
        ek_cuda_library_link(evenkeel_${kind})
    endif()
endforeach()

# The static library for programs that stay in the build folder: samples, benchmarks and tests. They share the kernels as
# one shared library, since each would carry 80 MB of machine code otherwise.
add_library(evenkeel_local STATIC ${all_objects} $<TARGET_OBJECTS:ek_backends>)
add_library(evenkeel::local ALIAS evenkeel_local)
target_include_directories(evenkeel_local INTERFACE ${PROJECT_SOURCE_DIR}/include)
target_link_libraries(evenkeel_local PRIVATE ${all_libraries})
if(EK_CUDA)
    ek_cuda_test_link(evenkeel_local)
endif()

# What the shared library exports: the functions that the public headers mark EK_API, by name. Hidden visibility alone
# is not enough: kernels (.cu) are visible to test programs, and gcc exports the resolvers of multiversioned functions.
file(GLOB headers CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/include/evenkeel/*.h)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${headers})
set(version_script ${PROJECT_BINARY_DIR}/evenkeel.map)
set(exported)
foreach(header IN LISTS headers)
    file(READ ${header} text)
    string(REPLACE ";" "," text "${text}") # a semicolon would cut the list of matches
    string(REGEX MATCHALL "EK_API[^,(]*[ *\n]ek_[a-z0-9_]+\\(" declarations "${text}")
    foreach(declaration IN LISTS declarations)
        string(REGEX REPLACE ".*[ *\n](ek_[a-z0-9_]+)\\($" "        \\1,\n" name "${declaration}")
        string(APPEND exported "${name}")
    endforeach()
endforeach()
string(REPLACE "," ";" exported "${exported}")
file(CONFIGURE OUTPUT ${version_script} CONTENT "{\n    global:\n${exported}    local: *;\n};\n" @ONLY)
# Its own functions call each other directly, also in a program that exports functions of these names.
target_link_options(evenkeel_shared PRIVATE -Wl,--version-script=${version_script}
                    -Wl,--no-undefined -Wl,-Bsymbolic-functions
                    -Wl,-z,nodelete) # threads of its teams may outlive a dlclose
set_target_properties(evenkeel_shared PROPERTIES LINK_DEPENDS ${version_script})
