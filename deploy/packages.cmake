# Debian packages: cpack in a build that was configured with -DCMAKE_INSTALL_PREFIX=/usr (docs/platforms.md). The CUDA module is a
# package of its own, so that nothing else asks for NVIDIA's libraries.
set(here ${CMAKE_CURRENT_LIST_DIR})
install(FILES ${here}/systemd/evalq-worker.service ${here}/systemd/evalq-logger.service ${here}/systemd/evalq-gateway.service
    DESTINATION lib/systemd/system)
install(PROGRAMS ${here}/redis/secrets.sh DESTINATION ${CMAKE_INSTALL_DATADIR}/evalq)
install(FILES ${here}/evalq.yaml ${here}/redis/redis.conf DESTINATION ${CMAKE_INSTALL_DOCDIR}/examples)

set(packages evalq libevalq1 libevalq-dev)
if(TARGET evalq_cuda)
    list(APPEND packages evalq-cuda)
    get_directory_property(cuda DIRECTORY kernels DEFINITION CUDAToolkit_VERSION_MAJOR)
endif()
foreach(package IN LISTS packages)
    install(FILES ${here}/copyright ${here}/notices.txt DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/${package} COMPONENT ${package})
endforeach()

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME evalq)
set(CPACK_PACKAGE_VENDOR evalq)
set(CPACK_PACKAGE_CONTACT "The developers of evalq <evalq@evalq.invalid>")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_PRE_BUILD_SCRIPTS ${here}/packages_post.cmake)
set(CPACK_COMPONENTS_ALL ${packages})
set(CPACK_COMPONENTS_GROUPING IGNORE)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON) # And the trigger that has ldconfig find the library.
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)

# What is loaded at run time no linker knows of.
set(CPACK_DEBIAN_EVALQ_PACKAGE_NAME evalq)
set(CPACK_DEBIAN_EVALQ_PACKAGE_SECTION science)
set(CPACK_DEBIAN_EVALQ_PACKAGE_RECOMMENDS "libopenblas0-pthread, libcurl4 | libcurl4t64, libssl3 | libssl3t64, procps, redis-server | valkey-server")
set(CPACK_DEBIAN_EVALQ_PACKAGE_SUGGESTS evalq-cuda)
set(CPACK_DEBIAN_EVALQ_DESCRIPTION "evaluates checkpoints while training goes on
Programs, services and manual pages: evalq, evalq-worker, evalq-logger and
evalq-gateway.")
set(CPACK_DEBIAN_LIBEVALQ1_PACKAGE_NAME libevalq1)
set(CPACK_DEBIAN_LIBEVALQ1_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_LIBEVALQ1_PACKAGE_RECOMMENDS "libssl3 | libssl3t64")
set(CPACK_DEBIAN_LIBEVALQ1_DESCRIPTION "submits checkpoints to evalq from a training process
The client library, which the Python package loads too.")
set(CPACK_DEBIAN_LIBEVALQ-DEV_PACKAGE_NAME libevalq-dev)
set(CPACK_DEBIAN_LIBEVALQ-DEV_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_LIBEVALQ-DEV_PACKAGE_DEPENDS "libevalq1 (= ${PROJECT_VERSION})")
set(CPACK_DEBIAN_LIBEVALQ-DEV_DESCRIPTION "submits checkpoints to evalq: header and link
For programs in C: evalq.h, pkg-config and CMake files.")
# NVIDIA's packages are called differently in each version, Debian's for CUDA 12 otherwise again: they are named as a recommendation
# alone. The module asks for cuBLAS of the major version of its compiler.
set(cublas libcublas${cuda})
foreach(minor RANGE 9)
    string(APPEND cublas " | libcublas-${cuda}-${minor}")
endforeach()
set(CPACK_DEBIAN_EVALQ-CUDA_PACKAGE_NAME evalq-cuda)
set(CPACK_DEBIAN_EVALQ-CUDA_PACKAGE_SECTION science)
set(CPACK_DEBIAN_EVALQ-CUDA_PACKAGE_SHLIBDEPS OFF)
set(CPACK_DEBIAN_EVALQ-CUDA_PACKAGE_DEPENDS "libc6, evalq (= ${PROJECT_VERSION})")
set(CPACK_DEBIAN_EVALQ-CUDA_PACKAGE_RECOMMENDS "${cublas}")
set(CPACK_DEBIAN_EVALQ-CUDA_DESCRIPTION "evaluates checkpoints on NVIDIA GPUs
The module that evalq-worker loads where there is a GPU. cuBLAS ${cuda} is loaded
at run time and not part of it.")
include(CPack)
