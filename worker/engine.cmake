# The native evaluator and what it stands on, apart from the programs so that tests can link it.
file(GLOB engine_sources CONFIGURE_DEPENDS
    ${CMAKE_CURRENT_LIST_DIR}/datasets/*.c ${CMAKE_CURRENT_LIST_DIR}/loader/*.c ${CMAKE_CURRENT_LIST_DIR}/models/*.c
    ${CMAKE_CURRENT_LIST_DIR}/models/families/*.c
    ${CMAKE_CURRENT_LIST_DIR}/tasks/*.c ${CMAKE_CURRENT_LIST_DIR}/tokenizer/*.c
    ${CMAKE_CURRENT_LIST_DIR}/evaluators/native/*.c ${CMAKE_CURRENT_LIST_DIR}/evaluators/checkpoint_location.c
    ${CMAKE_CURRENT_LIST_DIR}/evaluators/sample_store.c)
add_library(evq_engine STATIC ${engine_sources})
target_link_libraries(evq_engine PUBLIC evq_shared evq_samples evq_kernels_cpu
    PRIVATE PkgConfig::XXHASH ZLIB::ZLIB Threads::Threads m ${CMAKE_DL_LIBS})
