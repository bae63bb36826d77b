if(NOT TARGET bench_queue)
    add_executable(bench_queue EXCLUDE_FROM_ALL bench/bench_queue.c)
    target_link_libraries(bench_queue PRIVATE evq_fixture)
endif()
