if(NOT TARGET bench_queue)
    add_executable(bench_queue EXCLUDE_FROM_ALL bench/bench_queue.c bench/by_hand.c)
    target_link_libraries(bench_queue PRIVATE evq_fixture PkgConfig::HIREDIS)
endif()
