# Writes OUT: FILE as a C byte array NAME, ended by a NUL (C11 string literals are only guaranteed to 4,095 bytes), which
# HEADER declares.
file(READ ${FILE} hex HEX)
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
string(REGEX REPLACE "(....................................................................................................)" "\\1\n    " bytes "${bytes}")
file(WRITE ${OUT} "#include \"${HEADER}\"\n\nconst char ${NAME}[] = {\n    ${bytes}0x00};\n")
