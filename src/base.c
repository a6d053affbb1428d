// SPDX-License-Identifier: Apache-2.0
#include "clattn/base.h"

const char *clattn_status_string(clattn_status status)
{
    switch (status) {
    case CLATTN_OK:
        return "success";
    case CLATTN_ERR_INVALID_ARGUMENT:
        return "an argument is not legal";
    case CLATTN_ERR_SHAPE:
        return "shapes contradict each other";
    case CLATTN_ERR_STRIDE:
        return "a stride is not legal";
    case CLATTN_ERR_BUFFER_MISSING:
        return "a buffer is missing";
    case CLATTN_ERR_BUFFER_TOO_SMALL:
        return "a buffer is too small";
    case CLATTN_ERR_OVERLAP:
        return "an output overlaps another buffer";
    case CLATTN_ERR_OVER_BOUND:
        return "a length is over the plan's bound";
    case CLATTN_ERR_UNSUPPORTED:
        return "what was asked for is not supported here";
    case CLATTN_ERR_NO_DEVICE:
        return "no such device";
    case CLATTN_ERR_NO_OPENCL:
        return "there is no OpenCL";
    case CLATTN_ERR_OUT_OF_MEMORY:
        return "out of memory";
    case CLATTN_ERR_BUILD:
        return "a kernel did not compile";
    case CLATTN_ERR_OPENCL:
        return "an OpenCL call failed";
    case CLATTN_ERR_FILE:
        return "a kernel file could not be read";
    case CLATTN_ERR_STRUCT_SIZE:
        return "a struct size is not known";
    case CLATTN_ERR_WRONG_CONTEXT:
        return "handles of different contexts";
    case CLATTN_ERR_SELF_TEST:
        return "the device computes wrong numbers";
    case CLATTN_ERR_INTERNAL:
        return "internal error";
    }
    return "unknown status";
}

int clattn_version(void)
{
    return CLATTN_VERSION_MAJOR * 10000 + CLATTN_VERSION_MINOR * 100 + CLATTN_VERSION_PATCH;
}
