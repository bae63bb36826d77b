# A worker with a CUDA module beside it that is none: tests/standin/. Its copy of evalq-worker finds that module first.
set(standin ${CMAKE_BINARY_DIR}/standin)
add_library(evq_standin_cuda MODULE EXCLUDE_FROM_ALL standin/cuda_module.c)
target_link_libraries(evq_standin_cuda PRIVATE evq_kernels_cpu Threads::Threads)
set_target_properties(evq_standin_cuda PROPERTIES OUTPUT_NAME evalq_cuda LIBRARY_OUTPUT_DIRECTORY ${standin}/lib)
add_library(evq_standin_nvml SHARED EXCLUDE_FROM_ALL standin/nvml.c)
target_link_libraries(evq_standin_nvml PRIVATE evq_flags)
set_target_properties(evq_standin_nvml PROPERTIES OUTPUT_NAME nvidia-ml VERSION 1 SOVERSION 1
    LIBRARY_OUTPUT_DIRECTORY ${standin}/nvml)
add_custom_command(OUTPUT ${standin}/bin/evalq-worker
    COMMAND ${CMAKE_COMMAND} -E make_directory ${standin}/bin
    COMMAND ${CMAKE_COMMAND} -E copy $<TARGET_FILE:evalq-worker> ${standin}/bin/evalq-worker
    DEPENDS evalq-worker VERBATIM)
add_custom_target(evq_standin DEPENDS ${standin}/bin/evalq-worker evq_standin_cuda evq_standin_nvml)
if(TARGET test_worker_devices)
    evq_test_link(test_worker_devices evq_worker)
    add_dependencies(test_worker_devices evq_standin evalq_cli)
    target_compile_definitions(test_worker_devices PRIVATE EVQ_TEST_STANDIN="${standin}")
endif()
