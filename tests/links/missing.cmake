# What is said where a part of CUDA is missing: the backend on the emulator without one of cuBLAS's libraries, and the real module
# on a driver without a GPU.
set(missing ${CMAKE_BINARY_DIR}/standin/missing)
add_executable(cuda_missing standin/missing.c)
target_link_libraries(cuda_missing PRIVATE evq_cuda_emulated evq_kernels_cpu)
set_target_properties(cuda_missing PROPERTIES ENABLE_EXPORTS ON LINKER_LANGUAGE CXX)
add_library(empty_cublaslt SHARED standin/empty.c)
target_link_libraries(empty_cublaslt PRIVATE evq_flags)
set_target_properties(empty_cublaslt PROPERTIES OUTPUT_NAME cublasLt SUFFIX .so.13 LIBRARY_OUTPUT_DIRECTORY ${missing}/empty)
add_dependencies(cuda_missing emulated_cublas empty_cublaslt)
set(beside_venv venv/lib/python3.12/site-packages/nvidia/cu13/lib)
set(beside_conda conda/lib)
add_dependencies(cuda_missing emulated_cublaslt)
add_custom_command(TARGET cuda_missing POST_BUILD
    COMMAND ${CMAKE_COMMAND} -E make_directory ${missing}/none ${missing}/half ${missing}/empty
            ${missing}/${beside_venv} ${missing}/${beside_conda}
    COMMAND ${CMAKE_COMMAND} -E copy $<TARGET_FILE:emulated_cublas> $<TARGET_FILE:emulated_cublaslt> ${missing}/${beside_venv}
    COMMAND ${CMAKE_COMMAND} -E copy $<TARGET_FILE:emulated_cublas> $<TARGET_FILE:emulated_cublaslt> ${missing}/${beside_conda}
    COMMAND ${CMAKE_COMMAND} -E copy $<TARGET_FILE:emulated_cublaslt> ${missing}/half VERBATIM)
function(evq_missing_test name folder library said)
    add_test(NAME cuda_missing_${name} COMMAND cuda_missing ${library})
    set_tests_properties(cuda_missing_${name} PROPERTIES LABELS unit
        ENVIRONMENT "LD_LIBRARY_PATH=${missing}/${folder};VIRTUAL_ENV=;CONDA_PREFIX="
        PASS_REGULAR_EXPRESSION "${said};skipped: ")
endfunction()
evq_missing_test(cublas half libcublas.so.13 "0 devices: cuBLAS is not installed .libcublas.so.13")
evq_missing_test(cublaslt none libcublasLt.so.13 "0 devices: cuBLAS is not installed .libcublasLt.so.13")
# None is missing where an environment of Python is active that has them.
foreach(active venv conda)
    string(REPLACE venv VIRTUAL_ENV variable ${active})
    string(REPLACE conda CONDA_PREFIX variable ${variable})
    add_test(NAME cuda_missing_but_in_${active} COMMAND cuda_missing)
    set_tests_properties(cuda_missing_but_in_${active} PROPERTIES LABELS unit PASS_REGULAR_EXPRESSION "1 devices: "
        ENVIRONMENT "LD_LIBRARY_PATH=${missing}/none;VIRTUAL_ENV=;CONDA_PREFIX=;${variable}=${missing}/${active}")
endforeach()
evq_missing_test(symbol empty "" "0 devices: libcublasLt.so.13 has no cublasLtCreate")

if(TARGET evalq_cuda AND TARGET test_backend_module)
    add_library(evq_standin_driver SHARED standin/cuda_driver.c)
    target_link_libraries(evq_standin_driver PRIVATE evq_flags)
    set_target_properties(evq_standin_driver PROPERTIES OUTPUT_NAME cuda VERSION 1 SOVERSION 1
        LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/standin/driver)
    add_test(NAME backend_module_without_a_device COMMAND test_backend_module)
    set_tests_properties(backend_module_without_a_device PROPERTIES LABELS unit
        ENVIRONMENT "LD_LIBRARY_PATH=${CMAKE_BINARY_DIR}/standin/driver"
        PASS_REGULAR_EXPRESSION "probe: look for GPUs: no CUDA-capable device is detected")
endif()
