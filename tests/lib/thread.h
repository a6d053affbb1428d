// SPDX-License-Identifier: Apache-2.0
// Threads for tests, and a clock that ends a test that hangs.
#ifndef TESTS_THREAD_H
#define TESTS_THREAD_H

struct test_thread;

// Aborts the test if the thread cannot be started.
struct test_thread *thread_start(void (*run)(void *), void *arg);
void thread_join(struct test_thread *t);
void sleep_ms(int ms);

// Ends the process with a line naming `what` unless it is called again within `seconds`; 0 = off.
void watchdog(const char *what, unsigned seconds);

#endif // TESTS_THREAD_H
