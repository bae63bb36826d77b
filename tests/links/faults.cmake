# Programs of tests/faults, and what is tested with them.
add_executable(fault_proxy faults/proxy.c faults/proxy_link.c faults/proxy_rules.c faults/proxy_resp.c faults/proxy_history.c)
target_link_libraries(fault_proxy PRIVATE evq_shared)
if(TARGET test_faults_proxy)
    add_dependencies(test_faults_proxy fault_proxy)
endif()
