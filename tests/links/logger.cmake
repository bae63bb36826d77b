foreach(name test_tfevent test_series test_tfrun test_idset test_sink_jsonl test_sink_exec test_logger)
    evq_test_link(${name} evq_logger)
endforeach()
