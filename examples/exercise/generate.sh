#!/bin/sh
# Makes generated/numbers, and generated/distinct as the reference solution prints it.
set -e
mkdir -p generated
awk 'BEGIN { x = 1; for (i = 0; i < 200000; i++) { x = (x * 16807) % 2147483647; print x % 1000 } }' > generated/numbers
sort -n -u generated/numbers > generated/distinct
