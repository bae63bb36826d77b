# The CUDA backend on the host: its own sources, compiled as C++ for the emulator of tests/gpu/emulator/. Needs no CUDA.
enable_language(CXX)
file(GLOB cuda_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/kernels/cuda/*.c ${PROJECT_SOURCE_DIR}/kernels/cuda/*.cu)
file(GLOB cuda_kernels CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/kernels/cuda/*.cu)
set(emulator_folder ${PROJECT_SOURCE_DIR}/tests/gpu/emulator)
set(emulator_flags -std=gnu++17 -Wall -Wextra -Wno-unknown-pragmas -ffp-contract=off -fno-strict-aliasing -fPIC)
# With it, as Ubuntu's compilers have it, longjmp() does not go from one fiber's stack to another's.
list(APPEND emulator_flags -U_FORTIFY_SOURCE)
if(EVQ_WERROR)
    list(APPEND emulator_flags -Werror)
endif()
set(library_flags ${emulator_flags} -O2 -g) # What they read and write they check themselves.
if(EVQ_SANITIZE)
    list(APPEND emulator_flags -fsanitize=${EVQ_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all -g -O1)
else()
    # 16 bytes at an address that is no multiple of 16 are a fault on a device, and nothing on a CPU: they end the test here.
    list(APPEND emulator_flags -O2 -g -fsanitize=alignment -fsanitize-undefined-trap-on-error)
endif()
if(NOT EVQ_SANITIZE AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # Each access is told to the emulator (race_calls.cpp), which takes ThreadSanitizer's place.
    set(told -fsanitize=thread)
    set(told_link -Wl,--wrap=memcpy,--wrap=free)
    set(told_calls ${emulator_folder}/race_calls.cpp)
endif()
set_source_files_properties(${cuda_kernels} ${emulator_folder}/race_samples.cpp PROPERTIES LANGUAGE CXX
    COMPILE_OPTIONS "-xc++;-include;${emulator_folder}/emulator.h;${told}")
add_library(evq_cuda_emulated STATIC EXCLUDE_FROM_ALL ${cuda_sources} ${emulator_folder}/emulator.cpp
    ${emulator_folder}/race.cpp ${emulator_folder}/race_samples.cpp ${emulator_folder}/runtime.cpp ${told_calls})
target_include_directories(evq_cuda_emulated BEFORE PRIVATE ${PROJECT_SOURCE_DIR})
target_include_directories(evq_cuda_emulated BEFORE PUBLIC ${emulator_folder}/include) # Its files come first.
target_compile_options(evq_cuda_emulated PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:${emulator_flags}>"
    "$<$<COMPILE_LANGUAGE:C>:$<TARGET_PROPERTY:evq_flags,INTERFACE_COMPILE_OPTIONS>>")
target_compile_definitions(evq_cuda_emulated PRIVATE _GNU_SOURCE EVQ_VERSION="${PROJECT_VERSION}" EVQ_BLOCKS_MAX=5)
add_dependencies(evq_cuda_emulated evq_shared)
target_link_libraries(evq_cuda_emulated INTERFACE evq_shared ${CMAKE_DL_LIBS})
target_compile_options(evq_cuda_emulated PRIVATE "$<$<COMPILE_LANGUAGE:C>:${told}>")
target_link_options(evq_cuda_emulated INTERFACE ${told_link})
# Stand-ins for cuBLAS, found by the names of the real ones.
foreach(name cublas cublaslt)
    string(REPLACE cublaslt cublasLt file ${name})
    add_library(emulated_${name} SHARED EXCLUDE_FROM_ALL ${emulator_folder}/${name}.cpp)
    target_include_directories(emulated_${name} PRIVATE ${emulator_folder}/include ${PROJECT_SOURCE_DIR})
    target_compile_options(emulated_${name} PRIVATE ${library_flags})
    set_target_properties(emulated_${name} PROPERTIES OUTPUT_NAME ${file} SUFFIX .so.13
        LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/emulator)
endforeach()
foreach(test test_cuda_kernels test_cuda_attention test_cuda_backend test_cuda_checkpoints test_cuda_races
    test_cuda_pipeline)
    evq_test_link(${test} evq_cuda_emulated evq_engine)
    if(TARGET ${test})
        add_dependencies(${test} emulated_cublas emulated_cublaslt)
        set_target_properties(${test} PROPERTIES ENABLE_EXPORTS ON LINKER_LANGUAGE CXX
            BUILD_RPATH ${CMAKE_BINARY_DIR}/emulator)
        # Under ASan it is ASan that calls dlopen(), whose own run path counts then.
        set_tests_properties(${test} PROPERTIES TIMEOUT ${EVQ_TEST_TIMEOUT} ENVIRONMENT LD_LIBRARY_PATH=${CMAKE_BINARY_DIR}/emulator)
    endif()
endforeach()
if(NOT told)
    set_tests_properties(test_cuda_races PROPERTIES DISABLED ON)
endif()
foreach(test test_cuda_checkpoints test_cuda_pipeline)
    if(TARGET ${test})
        target_compile_options(${test} PRIVATE ${told}) # It writes what copies have read.
    endif()
endforeach()
