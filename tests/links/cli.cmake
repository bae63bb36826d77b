# These run the programs themselves.
foreach(test test_cli test_cli_health test_cli_operate test_cli_up test_bad_commands)
    if(TARGET ${test})
        add_dependencies(${test} evalq_cli evalq-worker evalq-logger)
    endif()
endforeach()
evq_test_link(test_cli_parts evq_cli)
evq_test_link(test_command_output evq_cli)
