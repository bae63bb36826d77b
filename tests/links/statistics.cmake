# What tests/peers/test_statistics.py compares with scipy and statsmodels; built by tests/peers/run.sh.
add_executable(statistics_cases EXCLUDE_FROM_ALL peers/statistics_cases.c)
target_link_libraries(statistics_cases PRIVATE evq_shared PkgConfig::JANSSON m)
evq_test_link(test_samples evq_samples)
evq_test_link(test_text_cut evq_samples)
