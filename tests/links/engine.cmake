evq_test_link(test_kernels_cpu evq_kernels_cpu)
evq_test_link(test_kernels_tokens evq_kernels_cpu)
evq_test_link(test_native evq_engine)
evq_test_link(test_native_refusals evq_engine)
evq_test_link(test_datasets evq_engine)
if(TARGET test_backend_module)
    target_link_libraries(test_backend_module PRIVATE ${CMAKE_DL_LIBS})
    if(TARGET evalq_cuda)
        add_dependencies(test_backend_module evalq_cuda)
    endif()
endif()

# Run by tests/bench/run.sh and tests/gpu/run.sh; no part of the test suite.
add_executable(bench_mlp EXCLUDE_FROM_ALL bench/bench_mlp.c)
target_link_libraries(bench_mlp PRIVATE evq_kernels_cpu)
add_executable(gpu_compare EXCLUDE_FROM_ALL gpu/compare.c)
target_link_libraries(gpu_compare PRIVATE evq_engine m)

# What tests/peers/ compares with the reference implementations; also run by hand.
add_executable(lm_scores EXCLUDE_FROM_ALL peers/lm_scores.c)
target_link_libraries(lm_scores PRIVATE evq_engine)
add_executable(bench_load EXCLUDE_FROM_ALL bench/bench_load.c)
target_link_libraries(bench_load PRIVATE evq_engine)
