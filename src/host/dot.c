// SPDX-License-Identifier: Apache-2.0
// Which kernel a plan runs: those whose tensors are all bfloat16 have one of their own where the
// CPU multiplies pairs of such numbers.
#include "host/host.h"
#include "host/kernel.h"

#ifdef CLA_HOST_HAS_AVX512BF16
#include <cpuid.h>

extern const struct cla_host_kernel cla_host_kernel_avx512bf16;

static bool cpu_has_bf16(void)
{
    // With what the object is compiled for, see meson.build. These say, too, whether the system
    // saves the registers. The last one is not known to every compiler by name.
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512dq") ||
        !__builtin_cpu_supports("avx512vl") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("fma"))
        return false;
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && a >= 1 &&
           __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 5 & 1);
}
#endif

const struct cla_host_kernel *cla_host_dot_stand_in;

const struct cla_host_kernel *cla_host_dot_kernel(void)
{
    if (cla_host_dot_stand_in)
        return cla_host_dot_stand_in;
#ifdef CLA_HOST_HAS_AVX512BF16
    if (cpu_has_bf16())
        return &cla_host_kernel_avx512bf16;
#endif
    return NULL;
}

const struct cla_host_kernel *cla_host_kernel_of(const struct cla_problem *p)
{
    const struct cla_host_kernel *dot = cla_host_takes_dot(p) ? cla_host_dot_kernel() : NULL;
    return dot ? dot : cla_host_kernels()[0];
}

const char *cla_host_isa_of(const struct cla_problem *p)
{
    return cla_host_kernel_of(p)->isa;
}
