foreach(name test_tfevent test_event_file test_id_set test_run_directories test_forward test_sink_jsonl test_sink_memory test_sink_tensorboard test_sink_exec test_logger test_public_address
        test_csv_table test_sink_csv test_sample_upload test_sink_wandb test_sink_webhook test_sink_mlflow test_logger_outage test_bad_sinks test_sinks)
    evq_test_link(${name} evq_logger)
endforeach()

if(TARGET test_sample_upload)
    target_link_libraries(test_sample_upload PRIVATE PkgConfig::XXHASH)
endif()

# Its results are what tests/python and tests/peers watch arrive in trackers.
add_executable(publish_results peers/publish_results.c fixture/claim_result.c)
target_link_libraries(publish_results PRIVATE evq_shared m)
target_link_options(test_forward PRIVATE LINKER:--wrap=evq_checkpoint_verify_fingerprint)
