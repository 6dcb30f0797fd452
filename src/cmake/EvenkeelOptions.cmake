# Options of the build.

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
    set(CMAKE_BUILD_TYPE Release CACHE STRING "Debug, Release or RelWithDebInfo" FORCE)
endif()

option(EVENKEEL_TESTS "Build the tests (needs Check)" ${PROJECT_IS_TOP_LEVEL})
option(EVENKEEL_SAMPLES "Build the samples" ${PROJECT_IS_TOP_LEVEL})
option(EVENKEEL_CHECK "Debug builds find mistakes with lifetimes, unless EVENKEEL_CHECK=0 is in the environment" ON)
option(EVENKEEL_WERROR "Treat warnings as errors" OFF)
set(EVENKEEL_SANITIZE "" CACHE STRING "Sanitizers: address,undefined or thread")

set(CMAKE_C_STANDARD 11)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS OFF)
set(CMAKE_C_VISIBILITY_PRESET hidden)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
# -O2 leaves gcc 12's vectoriser on its cheapest setting.
set(CMAKE_C_FLAGS_RELEASE "-O3 -g1 -DNDEBUG")

add_compile_options("$<$<COMPILE_LANGUAGE:C>:-Wall;-Wextra;-Wpedantic;-Wstrict-prototypes;-Wmissing-prototypes;-Wshadow;-Wvla>"
                    "$<$<COMPILE_LANGUAGE:C,CXX>:-fno-math-errno;-fno-trapping-math>")
add_compile_definitions(_GNU_SOURCE)
if(EVENKEEL_WERROR)
    add_compile_options($<$<COMPILE_LANGUAGE:C,CXX>:-Werror>)
endif()

if(EVENKEEL_SANITIZE)
    add_compile_options(-fsanitize=${EVENKEEL_SANITIZE} -fno-omit-frame-pointer -g
                        -fno-sanitize-recover=all)
    add_link_options(-fsanitize=${EVENKEEL_SANITIZE})
    add_compile_definitions(EK_SANITIZED)
    if(EVENKEEL_SANITIZE MATCHES "thread")
        # ThreadSanitizer crashes in ifunc resolvers.
        add_compile_definitions(EK_SANITIZED_THREAD)
    endif()
endif()
