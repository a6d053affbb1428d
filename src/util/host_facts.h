// SPDX-License-Identifier: Apache-2.0
// What a driver that compiles for the host may look at besides the source: processor, environment.
#ifndef CLA_UTIL_HOST_FACTS_H
#define CLA_UTIL_HOST_FACTS_H

#include <stddef.h>

// The processor: architecture, model and instruction sets, as one text that stays the same on this
// machine, on whichever core it is asked. The caller frees it; NULL if memory ran out.
char *cla_host_cpu(void);

// The "NAME=value" of all environment variables whose names begin with one of `prefixes` and do not
// contain `except`, sorted, a line break after each. The caller frees it; NULL if memory ran out.
char *cla_host_env(const char *const *prefixes, size_t count, const char *except);

#endif // CLA_UTIL_HOST_FACTS_H
