// SPDX-License-Identifier: Apache-2.0
// The definition in plain C, double inside: the oracle of the tests, never optimised. It shares no
// code with cl/ or host/.
#ifndef CLA_REF_REF_H
#define CLA_REF_REF_H

#include "problem.h"

// As cla_host_forward(), in double precision, single-threaded.
clattn_status cla_ref_forward(const struct cla_problem *p, const struct cla_call *call,
                              const struct cla_host_mem *mem);

#endif // CLA_REF_REF_H
