// SPDX-License-Identifier: Apache-2.0
// A folder of this process under $TMPDIR, which is gone when it ends.
#ifndef TESTS_FUZZ_TEMPORARY_H
#define TESTS_FUZZ_TEMPORARY_H

#include <stdbool.h>
#include <stddef.h>

// The same one each time.
const char *temporary_folder(void);

// Whether there is exactly one file in `folder`; then its path.
bool temporary_only(const char *folder, char *path, size_t size);

#endif // TESTS_FUZZ_TEMPORARY_H
