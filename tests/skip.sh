#!/bin/sh
# Stands for a test that cannot run in this build: says why and exits with 77, which CTest counts as skipped.
#   sh tests/skip.sh REASON
echo "SKIPPED: $1"
exit 77
