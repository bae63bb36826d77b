# The table of tests/bench/table.py; bench_queue and bench_submit stand with what they link.
foreach(name bench_idle bench_depth)
    add_executable(${name} EXCLUDE_FROM_ALL bench/${name}.c bench/blocked.c)
    target_link_libraries(${name} PRIVATE evq_fixture)
endforeach()
add_executable(noop_evaluator EXCLUDE_FROM_ALL bench/noop_evaluator.c)
target_link_libraries(noop_evaluator PRIVATE evq_shared PkgConfig::JANSSON)
