// SPDX-License-Identifier: Apache-2.0
/// @file base.h
/// Status numbers, data types, memory references, version and the log callback.
#ifndef CLATTN_BASE_H
#define CLATTN_BASE_H

#include <stddef.h>
#include <stdint.h>

#define CLATTN_VERSION_MAJOR 0 ///< Version of these headers; clattn_version() has the library's.
#define CLATTN_VERSION_MINOR 1 ///< See CLATTN_VERSION_MAJOR.
#define CLATTN_VERSION_PATCH 0 ///< See CLATTN_VERSION_MAJOR.

/// In front of every public function. A program that links the static library on Windows defines
/// CLATTN_STATIC before it includes these headers.
#if defined(_WIN32)
#if defined(CLATTN_BUILD)
#define CLATTN_API __declspec(dllexport)
#elif defined(CLATTN_STATIC)
#define CLATTN_API
#else
#define CLATTN_API __declspec(dllimport)
#endif
#elif defined(__GNUC__)
#define CLATTN_API __attribute__((visibility("default")))
#else
#define CLATTN_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/// Result of every call that can fail. The numbers are fixed and never reused.
///
/// Errors found before the first command leave every output byte untouched. The field and the
/// values that were wrong go to the log callback, once.
typedef enum clattn_status {
    /// Success.
    CLATTN_OK = 0,
    /// A value is not legal whatever the others are (a negative length, an unknown flag, a
    /// non-finite scale, a NULL output pointer).
    CLATTN_ERR_INVALID_ARGUMENT = 1,
    /// Head counts, head dimensions or lengths contradict each other (heads_q not a multiple of
    /// heads_kv, a mask extent that is neither 1 nor the tensor's), or their product overflows.
    CLATTN_ERR_SHAPE = 2,
    /// A stride is negative, overflows 64 bits, makes elements of an output overlap, or is set
    /// beside a layout that makes it another.
    CLATTN_ERR_STRIDE = 3,
    /// A buffer that the description demands is absent, its pointer is NULL, or its kind does not
    /// suit the call: host memory where a cl_mem is demanded, a cl_mem where there is no OpenCL, a
    /// cl_mem that is no buffer.
    CLATTN_ERR_BUFFER_MISSING = 4,
    /// A buffer is smaller than its offset, shape and strides reach.
    CLATTN_ERR_BUFFER_TOO_SMALL = 5,
    /// An output overlaps an input or another output.
    CLATTN_ERR_OVERLAP = 6,
    /// A length is over the bound that the plan was made for.
    CLATTN_ERR_OVER_BOUND = 7,
    /// The problem is legal, but the algorithm, kernel or device that was asked for does not
    /// serve it; the log and the plan info say why.
    CLATTN_ERR_UNSUPPORTED = 8,
    /// No device fits the selector, or there is none of the kind that was asked for.
    CLATTN_ERR_NO_DEVICE = 9,
    /// The OpenCL library could not be opened, or this build has none, or this process is a child
    /// that was forked after it was opened, or is at its end.
    CLATTN_ERR_NO_OPENCL = 10,
    /// Host or device memory ran out.
    CLATTN_ERR_OUT_OF_MEMORY = 11,
    /// A kernel did not compile; the build log went to the log callback.
    CLATTN_ERR_BUILD = 12,
    /// Another OpenCL call failed; its name and code are in the log. The output is undefined.
    CLATTN_ERR_OPENCL = 13,
    /// A kernel file could not be found or read; the log lists what was tried.
    CLATTN_ERR_FILE = 14,
    /// A struct_size is smaller than the first version of the struct, no multiple of that of
    /// size_t, or larger than this library's with set bytes behind the known end.
    CLATTN_ERR_STRUCT_SIZE = 15,
    /// Handles that do not belong together (a queue, cl_mem or event of another context or device).
    CLATTN_ERR_WRONG_CONTEXT = 16,
    /// A self-test on the device gave wrong numbers.
    CLATTN_ERR_SELF_TEST = 17,
    /// A defect of clattn itself; please report it with the log.
    CLATTN_ERR_INTERNAL = 18
} clattn_status;

/// Fixed English text for a status, for example "a buffer is too small".
/// @param status Any number.
/// @return A text that lives for ever; never NULL, also for numbers that are no status.
/// Threads: any.
CLATTN_API const char *clattn_status_string(clattn_status status);

/// Version of the library at run time.
/// @return major * 10000 + minor * 100 + patch.
/// Threads: any.
CLATTN_API int clattn_version(void);

/// Storage type of a tensor's elements. 0 means f32.
typedef enum clattn_dtype {
    CLATTN_DTYPE_F32 = 0,  ///< IEEE 754 binary32
    CLATTN_DTYPE_F16 = 1,  ///< IEEE 754 binary16; computed with as float
    CLATTN_DTYPE_BF16 = 2, ///< the upper half of a float; computed with as float
    CLATTN_DTYPE_I8 = 3    ///< of K and V only, with a scale for each key
} clattn_dtype;

/// What a clattn_buf points to.
typedef enum clattn_buf_kind {
    CLATTN_BUF_ABSENT = 0, ///< no memory; legal where the tensor is optional or empty
    CLATTN_BUF_HOST = 1,   ///< `ptr` is host memory
    CLATTN_BUF_CL_MEM = 2  ///< `ptr` is a cl_mem, from the application or clattn_mem_create()
} clattn_buf_kind;

/// A piece of memory. It stays the caller's; clattn retains nothing beyond the call's work. A `ptr`
/// that is neither memory nor a live cl_mem cannot be told from one that is.
typedef struct clattn_buf {
    int32_t kind;        ///< enum clattn_buf_kind; default CLATTN_BUF_ABSENT
    uint32_t reserved;   ///< 0
    void *ptr;           ///< host pointer, aligned to the element, or cl_mem
    size_t offset_bytes; ///< where element 0 lies; a multiple of the element size
    /// Bytes from the start of `ptr` (not from the offset) that may be used. For a cl_mem 0 means
    /// its whole size. For host memory 0 means that the size is not known and is not checked.
    size_t size_bytes;
} clattn_buf;

/// Host memory as a buffer.
/// @param ptr   Stays the caller's. NULL gives an absent buffer.
/// @param bytes Its size, against which calls check what they are going to touch; 0 = not known.
/// @return A buffer of kind CLATTN_BUF_HOST without an offset.
/// Threads: any.
static inline clattn_buf clattn_host_buf(const void *ptr, size_t bytes)
{
    clattn_buf b;
    b.kind = ptr ? CLATTN_BUF_HOST : CLATTN_BUF_ABSENT;
    b.reserved = 0;
    b.ptr = (void *)(uintptr_t)ptr;
    b.offset_bytes = 0;
    b.size_bytes = bytes;
    return b;
}

/// How urgent a log message is.
typedef enum clattn_log_level {
    CLATTN_LOG_ERROR = 1, ///< a call fails; the text names the field and the values
    /// one line for each fallback to a slower path ("fallback: ..." of a plan) with its reason;
    /// what a compiler said of a kernel it refused; a device or a file that was passed over
    CLATTN_LOG_WARN = 2,
    /// one line for each plan (types, sizes and features, algorithm, kernel, tile, parts, why,
    /// device) and for each program (compiled or taken from the cache, seconds); which OpenCL
    /// library and which program cache a context has
    CLATTN_LOG_INFO = 3,
    CLATTN_LOG_DEBUG = 4  ///< what was refused, or tried and given up, with the reason
} clattn_log_level;

/// Receives each message as one line without a newline; only those that bring a compiler's build
/// log have line breaks inside.
/// @param user    `log_user` of the context's description.
/// @param level   How urgent it is.
/// @param message Ends with a NUL and lives as long as this call.
/// Threads: called from any thread that calls clattn and from the context's worker thread, also
/// from two at once. It must not call clattn on the same context, which may hold its locks.
typedef void (*clattn_log_fn)(void *user, clattn_log_level level, const char *message);

#ifdef __cplusplus
}
#endif

#endif // CLATTN_BASE_H
