foreach(test test_ring test_ring_reserve test_pin test_pin_place test_pin_verify test_spool test_client test_client_host test_client_outage test_client_pins test_client_snapshots test_client_results test_client_overwrite test_fetch test_fetch_server)
    evq_test_link(${test} evq_producer)
endforeach()
target_link_options(test_ring_reserve PRIVATE LINKER:--wrap=posix_fallocate)
target_link_options(test_client PRIVATE LINKER:--wrap=evq_clock_backoff_ms)
target_link_options(test_client_overwrite PRIVATE LINKER:--wrap=evq_clock_mono_ms LINKER:--wrap=evq_pin_make)
if(TARGET test_client_outage) # It stands between these and who calls them.
    target_link_options(test_client_outage PRIVATE LINKER:--wrap=evq_spool_open LINKER:--wrap=evq_spool_read
        LINKER:--wrap=evq_codec_job_decode LINKER:--wrap=evq_ring_touch)
endif()
if(NOT TARGET bench_submit)
    add_executable(bench_submit EXCLUDE_FROM_ALL bench/bench_submit.c)
    target_link_libraries(bench_submit PRIVATE evq_fixture evq_producer)
endif()
if(TARGET test_client)
    add_dependencies(test_client evalq) # It looks at the library's symbols.
endif()
add_executable(bench_fetch EXCLUDE_FROM_ALL bench/bench_fetch.c)
target_link_libraries(bench_fetch PRIVATE evq_producer evq_worker)
