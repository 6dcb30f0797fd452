# The target documentation: a site in build/documentation/html, made by Doxygen of the public headers, the Markdown files
# and the tutorial. It is not part of `all`.

find_program(EK_DOXYGEN doxygen)
mark_as_advanced(EK_DOXYGEN)
if(NOT EK_DOXYGEN)
    add_custom_target(documentation
        COMMAND ${CMAKE_COMMAND} -E echo "The documentation is made by doxygen, which was not found. Install it (Debian's package doxygen) and configure anew."
        COMMAND ${CMAKE_COMMAND} -E false VERBATIM)
    return()
endif()

set(EK_SITE ${PROJECT_BINARY_DIR}/documentation)
set(root ${PROJECT_SOURCE_DIR})
file(GLOB headers CONFIGURE_DEPENDS ${root}/include/evenkeel/*.h)
file(GLOB pages CONFIGURE_DEPENDS RELATIVE ${root} ${root}/*.md ${root}/include/evenkeel/*.md ${root}/samples/*.md
     ${root}/samples/tutorial/*.md ${root}/src/*.md ${root}/tests/*.md ${root}/tests/bench/*.md)
list(JOIN pages " " page_names)
list(TRANSFORM pages PREPEND ${root}/)

set(script ${CMAKE_CURRENT_LIST_DIR}/documentation.awk)
set(names ${EK_SITE}/names.txt)
set(torch ${EK_SITE}/pytorch.txt)
set(aliases ${EK_SITE}/pytorch.names)
list(JOIN headers " " EK_SITE_INPUT)
list(JOIN pages " " input_pages)
string(APPEND EK_SITE_INPUT " ${input_pages} ${aliases}")
set(EK_SITE_FILTER "awk -f ${script} -v names=${names} -v torch=${torch} -v root=${root} -v 'pages=${page_names}'")
configure_file(${CMAKE_CURRENT_LIST_DIR}/Doxyfile.in ${EK_SITE}/Doxyfile @ONLY)

add_custom_target(documentation
    COMMAND ${CMAKE_COMMAND} -E rm -rf html xml
    COMMAND awk -v mode=names -f ${script} ${headers} > ${names}
    COMMAND awk -v mode=pytorch -f ${script} ${root}/include/evenkeel/README.md > ${torch}
    COMMAND awk -v mode=aliases -v names=${names} -v torch=${torch} -f ${script} > ${aliases}
    COMMAND ${EK_DOXYGEN} Doxyfile
    COMMAND ${CMAKE_COMMAND} -E echo "The documentation begins at ${EK_SITE}/html/index.html."
    WORKING_DIRECTORY ${EK_SITE} VERBATIM)
