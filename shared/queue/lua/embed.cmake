# Joins DIR/library/*.lua in name order, then DIR/*/*.lua, after the library line and writes OUT: a C byte array (C11 string literals
# are only guaranteed to 4,095 bytes) and the build number of DIR/BUILD. What a verb's file calls local is its own:
# Lua allows 200 such names at a time, and those of the numbered parts are everybody's.
file(GLOB library ${DIR}/library/*.lua)
file(GLOB functions ${DIR}/*/*.lua)
list(REMOVE_ITEM functions ${library})
list(SORT library)
list(SORT functions)
set(files ${library} ${functions})
file(READ ${DIR}/BUILD build)
string(STRIP "${build}" build)
set(joined "#!lua name=evalq_v1\nlocal BUILD = ${build}\n")
set(joined_file ${OUT}.lua)
file(WRITE ${joined_file} "${joined}")
foreach(file IN LISTS files)
    file(READ ${file} text)
    get_filename_component(name ${file} NAME)
    if(name MATCHES "^[0-9]")
        file(APPEND ${joined_file} "${text}\n")
    else()
        file(APPEND ${joined_file} "do\n${text}end\n\n")
    endif()
endforeach()
file(READ ${joined_file} hex HEX)
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
string(REGEX REPLACE "(....................................................................................................)" "\\1\n    " bytes "${bytes}")
file(WRITE ${OUT}
"#include \"shared/queue/function_library.h\"

const char evq_function_library_text[] = {
    ${bytes}0x00};
const int64_t evq_function_library_build = ${build};
")
