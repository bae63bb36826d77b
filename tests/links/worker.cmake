foreach(name test_results_file test_bad_results test_devices test_process test_scratch test_merge test_worker_outboxes test_worker_run test_worker_eval test_worker_faults
        test_worker_group test_worker_hostile test_worker_language test_worker_machines test_worker_gpus test_worker_ahead test_fetch test_worker_unheard test_worker_refused
        test_fetch_server)
    evq_test_link(${name} evq_worker)
    if(TARGET ${name})
        add_dependencies(${name} evalq-worker)
    endif()
endforeach()
if(TARGET test_worker_gpus)
    add_dependencies(test_worker_gpus evalq_cli)
endif()
if(TARGET test_worker_language)
    add_dependencies(test_worker_language evalq_cli evalq-logger)
endif()
