// SPDX-License-Identifier: Apache-2.0
// The kernels beside attention, for test_simulator.c: softmax of rows, the operations around
// attention, unfused attention, the peak figures.
#ifndef TESTS_SIMULATOR_ROWS_H
#define TESTS_SIMULATOR_ROWS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "open_device.h"

enum { SIMULATOR_ROWS = 8 }; // tests, at most

// Writes the tests, which run on `device`, and returns how many.
int simulator_rows(struct test_device *device, struct CMUnitTest *tests);

#endif // TESTS_SIMULATOR_ROWS_H
