# Writes OUT: the files of DIR that a browser loads, as C byte arrays, and evq_page_files[].
set(arrays "")
set(rows "")
file(GLOB files RELATIVE ${DIR} ${DIR}/*.svg ${DIR}/*.html ${DIR}/*.css ${DIR}/*.js)
foreach(file ${files})
    file(READ ${DIR}/${file} hex HEX)
    file(SIZE ${DIR}/${file} bytes)
    string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," text "${hex}")
    string(MAKE_C_IDENTIFIER ${file} name)
    get_filename_component(kind ${file} LAST_EXT)
    # Quoted: unquoted, the semicolon would part a list.
    string(REPLACE ".js" "text/javascript; charset=utf-8" kind "${kind}")
    string(REPLACE ".css" "text/css; charset=utf-8" kind "${kind}")
    string(REPLACE ".html" "text/html; charset=utf-8" kind "${kind}")
    string(REPLACE ".svg" "image/svg+xml" kind "${kind}")
    string(APPEND arrays "static const unsigned char ${name}[] = {${text}};\n")
    string(APPEND rows "    {\"${file}\", \"${kind}\", ${name}, ${bytes}},\n")
endforeach()
file(WRITE ${OUT}
"#include \"producer/gateway/page.h\"

${arrays}
const struct evq_page_file evq_page_files[] = {
${rows}};
const size_t evq_page_file_count = sizeof(evq_page_files) / sizeof(evq_page_files[0]);
")
