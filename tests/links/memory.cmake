# Tests that run out of memory where they want to: tests/fixture/memory.h.
evq_test_link(test_children evq_worker)
foreach(test test_children test_sink_csv)
    if(TARGET ${test})
        target_link_options(${test} PRIVATE LINKER:--wrap=malloc,--wrap=calloc,--wrap=realloc)
    endif()
endforeach()
