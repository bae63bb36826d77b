evq_test_link(test_tokenizer evq_engine)
evq_test_link(test_tokenizer_bad evq_engine)
evq_test_link(test_token_file evq_engine)
# Run by tests/peers/test_tokenizer.py and tests/bench/run.sh; no part of the test suite.
add_executable(encode_text EXCLUDE_FROM_ALL peers/encode_text.c)
target_link_libraries(encode_text PRIVATE evq_engine)
add_executable(bench_tokenizer EXCLUDE_FROM_ALL bench/bench_tokenizer.c)
target_link_libraries(bench_tokenizer PRIVATE evq_engine)
