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
list(JOIN pages " " EK_SITE_PAGES)
list(TRANSFORM pages PREPEND ${root}/)
list(JOIN headers "\" \"" EK_SITE_INPUT)
list(JOIN pages "\" \"" input)
set(EK_SITE_INPUT "\"${EK_SITE_INPUT}\" \"${input}\" pytorch.names")

# What Doxygen reads of a file comes from a program, called so that folders may have spaces in their names.
set(awk awk -f ${CMAKE_CURRENT_LIST_DIR}/documentation.awk -f ${CMAKE_CURRENT_LIST_DIR}/documentation_pages.awk)
list(JOIN awk "' '" command)
file(CONFIGURE OUTPUT ${EK_SITE}/filter CONTENT [[
#!/bin/sh
exec '@command@' -v names=names.txt -v torch=pytorch.txt -v 'root=@root@' -v 'pages=@EK_SITE_PAGES@' "$1"
]] @ONLY)
file(CHMOD ${EK_SITE}/filter PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE)
configure_file(${CMAKE_CURRENT_LIST_DIR}/Doxyfile.in ${EK_SITE}/Doxyfile @ONLY)

add_custom_target(documentation
    COMMAND ${CMAKE_COMMAND} -E rm -rf html xml
    COMMAND ${awk} -v mode=names ${headers} > names.txt
    COMMAND ${awk} -v mode=pytorch ${root}/include/evenkeel/README.md > pytorch.txt
    COMMAND ${awk} -v mode=aliases -v names=names.txt -v torch=pytorch.txt > pytorch.names
    COMMAND ${EK_DOXYGEN} Doxyfile
    COMMAND ${CMAKE_COMMAND} -E echo "The documentation begins at ${EK_SITE}/html/index.html."
    WORKING_DIRECTORY ${EK_SITE} VERBATIM)
