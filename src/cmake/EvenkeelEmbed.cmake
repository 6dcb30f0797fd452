# ek_embed(folder file): the file, which lies in the folder of that name, becomes part of its object library: page.html
# as `const unsigned char ek_page_html[]`, with a NUL behind its bytes. What is edited is embedded anew.
#
# The build runs this very file as a script, with FILE, SYMBOL and OUTPUT, which writes the array.

if(CMAKE_SCRIPT_MODE_FILE)
    file(READ ${FILE} bytes HEX)
    string(REGEX REPLACE "(................................)" "\\1\n" bytes "${bytes}")
    string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
    file(WRITE ${OUTPUT} "extern const unsigned char ${SYMBOL}[];\nconst unsigned char ${SYMBOL}[] = {\n${bytes}0x00};\n")
    return()
endif()

set(EK_EMBED_SCRIPT ${CMAKE_CURRENT_LIST_FILE})

function(ek_embed folder file)
    get_property(folder_dir GLOBAL PROPERTY EK_DIR_${folder})
    string(MAKE_C_IDENTIFIER ek_${file} symbol)
    set(output ${PROJECT_BINARY_DIR}/embedded/${symbol}.c)
    add_custom_command(OUTPUT ${output}
        COMMAND ${CMAKE_COMMAND} -DFILE=${folder_dir}/${file} -DSYMBOL=${symbol} -DOUTPUT=${output} -P ${EK_EMBED_SCRIPT}
        DEPENDS ${folder_dir}/${file} ${EK_EMBED_SCRIPT} VERBATIM)
    target_sources(ek_${folder} PRIVATE ${output})
endfunction()
