// SPDX-License-Identifier: Apache-2.0
// cl_int -> name and status.
#ifndef CLA_OCL_ERROR_H
#define CLA_OCL_ERROR_H

#include "ocl/api.h"

// "CL_INVALID_VALUE"; "unknown OpenCL error" for a number that has no name.
const char *cla_cl_error_name(cl_int code);

// CL_SUCCESS -> CLATTN_OK, the out-of-memory codes -> CLATTN_ERR_OUT_OF_MEMORY, else
// CLATTN_ERR_OPENCL.
clattn_status cla_cl_status(cl_int code);

// Logs "call: CODE_NAME (number)" at error level if `code` is a failure; returns its status.
clattn_status cla_cl_check(const struct cla_log *log, cl_int code, const char *call);

// As cla_cl_check() for a call that makes an object: one that gives neither object nor code has
// failed, too.
clattn_status cla_cl_made(const struct cla_log *log, const void *object, cl_int code,
                          const char *call);

// In a function with `st`, `log` (const struct cla_log *) and label `done`.
#define CLA_CL(call) CLA_TRY(cla_cl_check(log, (call), #call))

#endif // CLA_OCL_ERROR_H
