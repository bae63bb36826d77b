# put.c and memory.c of the CUDA backend on a runtime that the test itself is; types from the emulator's headers.
if(TARGET test_cuda_put)
    target_sources(test_cuda_put PRIVATE ${PROJECT_SOURCE_DIR}/kernels/cuda/put.c ${PROJECT_SOURCE_DIR}/kernels/cuda/memory.c)
    target_include_directories(test_cuda_put BEFORE PRIVATE ${PROJECT_SOURCE_DIR}/tests/gpu/emulator/include)
    target_link_libraries(test_cuda_put PRIVATE evq_kernels_cpu)
endif()
# product.c on a cuBLASLt that the test itself is.
if(TARGET test_cuda_product)
    target_sources(test_cuda_product PRIVATE ${PROJECT_SOURCE_DIR}/kernels/cuda/product.c
        ${PROJECT_SOURCE_DIR}/kernels/cuda/cublas.c)
    target_include_directories(test_cuda_product BEFORE PRIVATE ${PROJECT_SOURCE_DIR}/tests/gpu/emulator/include)
    target_link_libraries(test_cuda_product PRIVATE evq_kernels_cpu ${CMAKE_DL_LIBS})
endif()
