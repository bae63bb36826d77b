foreach(test test_ring test_pin test_spool test_client)
    evq_test_link(${test} evq_producer)
endforeach()
