#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Whether clang-format would leave the C sources as they are. Other versions than 14 format some things differently:
# skipped with those and where it is not installed.
set -eu
clang-format --version 2>/dev/null | grep -q 'version 14\.' || exit 77
cd "$1"
find src include examples tests -name '*.[ch]' -exec clang-format --dry-run -Werror {} +
