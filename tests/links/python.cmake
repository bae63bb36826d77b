# The Python package against the programs of this build: tests/python/test_*.py, with the standard library's unittest.
find_program(EVQ_PYTHON NAMES python3 HINTS /usr/bin) # First the one that deploy/bootstrap.sh installs numpy and PyYAML for.
set(python_environment "EVALQ_TEST_BUILD=${CMAKE_BINARY_DIR};PYTHONDONTWRITEBYTECODE=1")
file(GLOB python_tests CONFIGURE_DEPENDS python/test_*.py)
foreach(source IN LISTS python_tests)
    get_filename_component(name ${source} NAME_WE)
    string(REPLACE test_ test_python_ name ${name})
    if(EVQ_PYTHON AND NOT EVQ_SANITIZE)
        add_test(NAME ${name} COMMAND ${EVQ_PYTHON} ${source})
    elseif(EVQ_PYTHON)
        add_test(NAME ${name} COMMAND sh ${CMAKE_CURRENT_SOURCE_DIR}/skip.sh "python3 cannot load a sanitized library")
    else()
        add_test(NAME ${name} COMMAND sh ${CMAKE_CURRENT_SOURCE_DIR}/skip.sh "python3 is not installed")
    endif()
    set_tests_properties(${name} PROPERTIES LABELS "integration;python" TIMEOUT ${EVQ_TEST_TIMEOUT} ENVIRONMENT "${python_environment}"
        SKIP_RETURN_CODE 77)
endforeach()
