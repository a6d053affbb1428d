// SPDX-License-Identifier: Apache-2.0
// Makes a test program's plans of bfloat16 run the kernel that does in C as a CPU does that
// multiplies pairs of such numbers.
#include <string.h>

#include "host/host.h"
#include "host/kernel.h"

extern const struct cla_host_kernel cla_host_kernel_test_dot;

__attribute__((constructor)) static void stand_in(void)
{
#if defined(__x86_64__) || defined(__i386__)
    if (strcmp(cla_host_isa(), "generic") == 0)
        return; // it is compiled for more than this CPU
#endif
    cla_host_dot_stand_in = &cla_host_kernel_test_dot;
}
