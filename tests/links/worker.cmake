foreach(name test_results_file test_devices test_process test_merge test_worker_run test_worker_eval test_worker_faults
        test_worker_hostile test_worker_machines test_fetch)
    evq_test_link(${name} evq_worker)
    if(TARGET ${name})
        add_dependencies(${name} evalq-worker)
    endif()
endforeach()
