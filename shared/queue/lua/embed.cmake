# Joins the server-side functions into one library and writes OUT: a C byte array (C11 guarantees string literals of only 4,095
# bytes) and the build number of DIR/BUILD. The files of library/ come first, in this order. Each function's file follows in a block
# of its own, so that its local names are its own: Lua allows 200 local names in one scope.
set(library base job flow backfill prefer sweep results view ticket plain_submits plain_ends keys)
file(GLOB functions ${DIR}/attempt/*.lua ${DIR}/operate/*.lua ${DIR}/results/*.lua ${DIR}/submit/*.lua
    ${DIR}/tickets/*.lua)
list(SORT functions)
file(READ ${DIR}/BUILD build)
string(STRIP "${build}" build)
set(joined_file ${OUT}.lua)
file(WRITE ${joined_file} "#!lua name=evalq_v1\nlocal BUILD = ${build}\n")
foreach(name IN LISTS library)
    file(READ ${DIR}/library/${name}.lua text)
    file(APPEND ${joined_file} "${text}\n")
endforeach()
foreach(file IN LISTS functions)
    file(READ ${file} text)
    file(APPEND ${joined_file} "do\n${text}end\n\n")
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
