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
    COMMAND ${CMAKE_COMMAND} -E copy $<TARGET_FILE:evalq-worker> $<TARGET_FILE:evalq_cli> $<TARGET_FILE:evalq-logger>
            ${standin}/bin
    DEPENDS evalq-worker evalq_cli evalq-logger VERBATIM)
# What a machine with a GPU is tested with, here on the stand-in: that it finds nothing wrong where nothing is.
add_executable(gpu_compare gpu/compare.c gpu/compare_samples.c gpu/compare_ops.c gpu/compare_models.c gpu/compare_parts.c gpu/compare_where.c
    gpu/lm_plan.c)
target_link_libraries(gpu_compare PRIVATE evq_engine m)
set_target_properties(gpu_compare PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${standin}/bin)
add_dependencies(gpu_compare evq_standin_cuda)
add_executable(gpu_bench gpu/bench.c gpu/lm_plan.c)
target_link_libraries(gpu_bench PRIVATE evq_engine m)
set_target_properties(gpu_bench PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${standin}/bin)
add_dependencies(gpu_bench evq_standin_cuda)
add_test(NAME gpu_bench COMMAND gpu_bench --shape llama --rows 512 --length 64 --compute fp32 --seconds 0.01 --parts 1)
set_tests_properties(gpu_bench PROPERTIES LABELS unit TIMEOUT ${EVQ_TEST_TIMEOUT} ENVIRONMENT "EVQ_STANDIN=${standin}")
if(EVQ_SANITIZE)
    add_test(NAME gpu_compare COMMAND gpu_compare --small --repeats 1)
else()
    add_test(NAME gpu_compare COMMAND gpu_compare --repeats 2)
endif()
set_tests_properties(gpu_compare PROPERTIES LABELS unit TIMEOUT ${EVQ_TEST_TIMEOUT} ENVIRONMENT "EVQ_STANDIN=${standin}")
file(WRITE ${standin}/lying/lie 100) # Behind the self-check, whose batches are smaller.
add_test(NAME gpu_compare_finds_a_lie COMMAND gpu_compare --small --repeats 1)
set_tests_properties(gpu_compare_finds_a_lie PROPERTIES LABELS unit TIMEOUT ${EVQ_TEST_TIMEOUT}
    ENVIRONMENT "EVQ_STANDIN=${standin}/lying" PASS_REGULAR_EXPRESSION "FAIL qwen3, weights fp32, in fp32")
# What it says of a wrong value, of one that is no number, of a device that fails its self-check, of a fault, and when it is stopped.
function(evq_gpu_compare_says name file number arguments says)
    file(MAKE_DIRECTORY ${standin}/${name})
    add_test(NAME gpu_compare_says_${name} WORKING_DIRECTORY ${standin}/${name} COMMAND sh -c
        "echo ${number} >${file} && EVQ_STANDIN=. ../bin/gpu_compare --small --repeats 1 ${arguments}")
    set_tests_properties(gpu_compare_says_${name} PROPERTIES LABELS unit TIMEOUT ${EVQ_TEST_TIMEOUT}
        PASS_REGULAR_EXPRESSION "${says}")
endfunction()
evq_gpu_compare_says(where wrong 1 "--part norms"
    "FAIL layer norm n 31 [^\n]*in fp32 on cuda[^\n]*\n +wrong rows: 5-8 .4 of 136, 0 without[^\n]*row 5 is place 4 of a sequence of 31. its wrong columns: 2-3 .31 of 31[^\n]*column 2: expected -0.33[0-9]*, got 0.66")
evq_gpu_compare_says(no_number broken 1 "--part gates" "FAIL gate n 31 [^\n]*\n +wrong rows: 7 .1 of 136, 1 without")
evq_gpu_compare_says(unfit lie 90 "" "FAIL self-check: .* rotary positions .* model gpt2, ") # The self-check's batches have 93 rows.
evq_gpu_compare_says(lost fault 1 "--part products" "FAIL the device is lost to this process .run the plan: an illegal memory access")
evq_gpu_compare_says(what_faulted fault 1 "--part models" "FAIL model gpt2, weights fp32, in fp32 on cuda: run the plan: an illegal")
add_test(NAME gpu_compare_says_where_it_stopped COMMAND sh ${PROJECT_SOURCE_DIR}/tests/gpu/stopped.sh $<TARGET_FILE:gpu_compare>)
set_tests_properties(gpu_compare_says_where_it_stopped PROPERTIES LABELS unit TIMEOUT ${EVQ_TEST_TIMEOUT}
    PASS_REGULAR_EXPRESSION "FAIL stopped at rope n ")
add_test(NAME gpu_finds_cublas COMMAND sh ${PROJECT_SOURCE_DIR}/tests/gpu/find_cublas_test.sh)
set_tests_properties(gpu_finds_cublas PROPERTIES LABELS unit TIMEOUT ${EVQ_TEST_TIMEOUT} SKIP_RETURN_CODE 77)
# The same on the CUDA module's own sources, which an emulator runs (tests/links/cuda.cmake).
add_executable(gpu_compare_emulated gpu/compare_emulated.c gpu/compare_samples.c gpu/compare_ops.c gpu/compare_models.c
    gpu/compare_parts.c gpu/compare_where.c gpu/lm_plan.c)
target_link_libraries(gpu_compare_emulated PRIVATE evq_cuda_emulated evq_engine m)
add_dependencies(gpu_compare_emulated emulated_cublas emulated_cublaslt)
set_target_properties(gpu_compare_emulated PROPERTIES ENABLE_EXPORTS ON LINKER_LANGUAGE CXX
    BUILD_RPATH ${CMAKE_BINARY_DIR}/emulator)
add_executable(gpu_products gpu/products.c gpu/lm_products.c gpu/lm_plan.c)
target_link_libraries(gpu_products PRIVATE evq_cuda_emulated evq_kernels_cpu m)
add_dependencies(gpu_products emulated_cublas emulated_cublaslt)
set_target_properties(gpu_products PROPERTIES ENABLE_EXPORTS ON LINKER_LANGUAGE CXX BUILD_RPATH ${CMAKE_BINARY_DIR}/emulator)
foreach(way "" refused_)
    add_test(NAME gpu_${way}products COMMAND gpu_products --shape gpt2 --rows 256)
    set_tests_properties(gpu_${way}products PROPERTIES LABELS unit TIMEOUT ${EVQ_TEST_TIMEOUT}
        PASS_REGULAR_EXPRESSION "gpt2 +up +256 x +192 x +48 to bf16, bias, GELU: [0-9.]+ ms.*gpt2 +products of 256 tokens: "
        FAIL_REGULAR_EXPRESSION "REFUSED" ENVIRONMENT LD_LIBRARY_PATH=${CMAKE_BINARY_DIR}/emulator) # For ASan's dlopen().
endforeach()
set_tests_properties(gpu_refused_products PROPERTIES
    ENVIRONMENT "EMULATOR_REFUSE_EPILOGUES=1;LD_LIBRARY_PATH=${CMAKE_BINARY_DIR}/emulator" FAIL_REGULAR_EXPRESSION "FAIL"
    PASS_REGULAR_EXPRESSION "gpt2 +up +256 x +192 x +48 to bf16: REFUSED, alone [0-9.]+ ms.*\"gpt2 down\", \"refused\": true")
if(NOT EVQ_SANITIZE) # Every thread of every kernel is a fiber: minutes already.
    add_test(NAME gpu_heuristics COMMAND sh ${PROJECT_SOURCE_DIR}/tests/gpu/heuristics.sh)
    set_tests_properties(gpu_heuristics PROPERTIES LABELS unit TIMEOUT ${EVQ_TEST_TIMEOUT} SKIP_RETURN_CODE 77)
    foreach(part samples operations models parts launches)
        add_test(NAME gpu_compare_emulated_${part} COMMAND gpu_compare_emulated ${part})
        set_tests_properties(gpu_compare_emulated_${part} PROPERTIES LABELS unit TIMEOUT ${EVQ_TEST_TIMEOUT})
    endforeach()
endif()
add_custom_target(evq_standin DEPENDS ${standin}/bin/evalq-worker evq_standin_cuda evq_standin_nvml)
file(WRITE ${standin}/gpus "GPU-a 0 85899345920 0 41\n")
file(COPY ${PROJECT_SOURCE_DIR}/tests/data/tokenizers/gpt2/tokenizer.json DESTINATION ${standin}/tokenizer)
file(WRITE ${standin}/tokenizer/tokenizer_config.json "{\"eos_token\": \"<|endoftext|>\"}\n")
add_test(NAME gpu_path COMMAND sh ${PROJECT_SOURCE_DIR}/tests/gpu/path.sh ${standin}/bin 0)
set_tests_properties(gpu_path PROPERTIES LABELS integration TIMEOUT ${EVQ_TEST_TIMEOUT}
    ENVIRONMENT "EVQ_STANDIN=${standin};LD_LIBRARY_PATH=${standin}/nvml;EVQ_GPU_SHAPE=2 64 2 600 64;EVQ_GPU_COMPUTE=fp32;EVQ_GPU_TEXT=${PROJECT_SOURCE_DIR}/tests/data/tasks/wikitext2.txt;EVQ_GPU_TOKENIZER=${standin}/tokenizer"
    PASS_REGULAR_EXPRESSION "second checkpoint: [0-9]+ ms .*tokens. wikitext2.txt, bar 1000 ms: " FAIL_REGULAR_EXPRESSION "FAIL;NOT RUN")
if(TARGET test_worker_devices)
    evq_test_link(test_worker_devices evq_worker)
    add_dependencies(test_worker_devices evq_standin evalq_cli)
    target_compile_definitions(test_worker_devices PRIVATE EVQ_TEST_STANDIN="${standin}")
endif()
