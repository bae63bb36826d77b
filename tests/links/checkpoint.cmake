# What tests/peers/test_checkpoints.py compares; built by tests/peers/run.sh.
add_executable(dump_tensors EXCLUDE_FROM_ALL peers/dump_tensors.c)
target_link_libraries(dump_tensors PRIVATE evq_shared)
target_link_options(test_timed_verify PRIVATE LINKER:--wrap=evq_checkpoint_verify_fingerprint)
