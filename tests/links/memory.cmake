# Tests that run out of memory where they want to: tests/fixture/memory.h. wraps_NAME: where, if not wherever so many bytes are
# asked for; the test stands between those functions and who calls them.
set(wraps_test_child evq_channel_send)
set(wraps_test_worker_redis_round evq_suite_registry_fit)
foreach(test test_children test_child test_worker_redis_round)
    evq_test_link(${test} evq_worker)
endforeach()
foreach(test test_children test_child test_worker_redis_round test_id_set test_runner test_sink_csv test_sink_jsonl
    test_spool)
    if(TARGET ${test})
        foreach(name malloc calloc realloc ${wraps_${test}})
            target_link_options(${test} PRIVATE LINKER:--wrap=${name})
        endforeach()
    endif()
endforeach()
