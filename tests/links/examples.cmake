if(TARGET test_example_gpt)
    add_dependencies(test_example_gpt train_gpt evalq-worker)
endif()
