// SPDX-License-Identifier: Apache-2.0
/// @file context.h
/// A context is one device with its compiled kernels: pick a device, ask what it is, and
/// allocate memory on it without OpenCL headers.
#ifndef CLATTN_CONTEXT_H
#define CLATTN_CONTEXT_H

#include "base.h"

#ifdef __cplusplus
extern "C" {
#endif

/// One device: an OpenCL device, or the built-in CPU path. Owns kernel texts, the compiled
/// programs, and one worker thread that starts when it is first needed.
/// Thread-safety: safe; a context may be used from several threads at once, except destroy.
///
/// Fork: a context of the CPU path works on in a child of fork(), with one thread where its parent
/// had used more, and gives the same bits there. OpenCL drivers do not outlive a fork. So in the
/// child each call with an OpenCL context of the parent, or with a plan of one, but those that only
/// tell, returns CLATTN_ERR_NO_OPENCL, and destroying it, its plans or its memory leaves them as
/// they are, on purpose. A child whose parent had opened OpenCL through clattn, if only to count
/// devices, finds none itself: the best device is the CPU path there, with a warning. To use OpenCL
/// in children, fork before, or start them anew (Python: "spawn"). Drivers that an application
/// opened itself, and OpenMP regions of its own, are not known here.
///
/// Exit: drivers end with the process, before handlers of atexit() and destructors of globals that
/// are older than they. So there, too, such calls return CLATTN_ERR_NO_OPENCL and destroying leaves
/// all as it is. A context is better destroyed before exit() or the end of main().
typedef struct clattn_context clattn_context;

/// Bits of clattn_context_desc.flags.
enum {
    /// Do not open OpenCL at all; only the built-in CPU path exists.
    CLATTN_CONTEXT_NO_OPENCL = 1u << 0,
    /// Skip the small kernel that checks a device's answer before it is chosen.
    CLATTN_CONTEXT_NO_SELF_TEST = 1u << 1,
    /// Keep no compiled programs on disk, and take none from there.
    CLATTN_CONTEXT_NO_CACHE = 1u << 2,
    /// Plan as if the device had no local memory; what max_local_bytes = 0 can't say.
    CLATTN_CONTEXT_NO_LOCAL_MEMORY = 1u << 3,
    /// Tiles by the planner's rules alone: none that were measured, of a file or built in.
    CLATTN_CONTEXT_NO_TUNING = 1u << 4,
    /// Kernel texts of the library itself only: none is read from a folder, the installed one
    /// included, and $CLATTN_KERNEL_DIR is ignored. A build with -Dkernels=embedded always does so.
    CLATTN_CONTEXT_EMBEDDED_KERNELS = 1u << 5
};

/// How to make a context. Zero means default for every field but struct_size. `log` is not called
/// about a struct_size that is wrong, since then nothing says where `log` lies.
typedef struct clattn_context_desc {
    size_t struct_size; ///< sizeof(clattn_context_desc), set by clattn_context_desc_init()
    /// Which device: NULL = $CLATTN_DEVICE, and where that is unset or empty the best one. Digits
    /// = index as clattn_device_count() counts; "cpu" = the built-in CPU path, without a look at
    /// OpenCL; else part of the platform's or device's name in any case, the first that fits.
    const char *device;
    uint32_t flags;         ///< CLATTN_CONTEXT_* bits
    int32_t threads;        ///< threads of the CPU path; 0 = as many as OpenMP would take
    /// Folder of .cl files, tried first; then come $CLATTN_KERNEL_DIR, the installed folder and the
    /// copy inside the library. NULL = none
    const char *kernel_dir;
    /// Folder of compiled programs, made where it is missing; NULL = $CLATTN_CACHE_DIR, else
    /// $XDG_CACHE_HOME/clattn, else $HOME/.cache/clattn; on Windows %LOCALAPPDATA%\clattn. Only a
    /// folder of this user that others can't write to is used, and of it only such files; without
    /// one all works, but programs are compiled each time. $CLATTN_CACHE=0 switches it off.
    const char *cache_dir;
    const char *opencl_library; ///< ICD loader to open; NULL = the system's usual names
    clattn_log_fn log;      ///< receives messages; NULL = silent, unless $CLATTN_LOG is set
    void *log_user;         ///< passed to `log`
    clattn_log_level log_level; ///< most verbose level passed on, to 4; 0 = CLATTN_LOG_WARN
    /// Bound of that folder's files of clattn, bytes; the ones unused for longest go first. 0 =
    /// $CLATTN_CACHE_MAX_MIB (MiB), else 64 MiB.
    size_t cache_max_bytes;
    /// Ceiling of the local memory of a work-group, bytes; plans are made as for a device with no
    /// more. It only lowers the device's own figure. 0 = $CLATTN_MAX_LOCAL_BYTES (where 0 means
    /// none), and where that is unset or empty the device's own.
    size_t max_local_bytes;
    /// Likewise the most work-items of a work-group, in all and in each dimension. 0 =
    /// $CLATTN_MAX_GROUP (1 or more), and where that is unset or empty the device's own.
    size_t max_group;
    /// File of measured tiles, which clattn-tune writes (clattn/tune.h); NULL = $CLATTN_TUNE_FILE,
    /// else the file that clattn_tune_path() names. A file that is missing, is broken, or could be
    /// written to by others, it or its folder, is named in the log and ignored. $CLATTN_TUNE=0 is
    /// CLATTN_CONTEXT_NO_TUNING.
    const char *tune_file;
} clattn_context_desc;

/// Sets every field of `desc` to its default and struct_size to `size`.
/// @param desc NULL is ignored.
/// @param size sizeof(clattn_context_desc) of the caller.
/// Threads: any.
CLATTN_API void clattn_context_desc_init(clattn_context_desc *desc, size_t size);

/// What kind of device it is.
typedef enum clattn_device_type {
    CLATTN_DEVICE_BUILTIN_CPU = 0, ///< the CPU path, no OpenCL
    CLATTN_DEVICE_CPU = 1,         ///< OpenCL, CPU
    CLATTN_DEVICE_GPU = 2,         ///< OpenCL, GPU
    CLATTN_DEVICE_ACCELERATOR = 3, ///< OpenCL, accelerator
    CLATTN_DEVICE_OTHER = 4        ///< OpenCL, custom or unknown
} clattn_device_type;

/// The facts about a device that planning uses. Filled by clattn_device_get_info() and
/// clattn_context_get_device_info().
typedef struct clattn_device_info {
    size_t struct_size;      ///< set by the caller to sizeof(clattn_device_info)
    int32_t index;           ///< as in a selector; -1 where no list was made: a device adopted
                             ///< from the application, the CPU path opened as "cpu"
    int32_t type;            ///< enum clattn_device_type
    char platform[128];      ///< platform name; "clattn" for the built-in path
    char name[128];          ///< device name
    char vendor[128];        ///< device vendor
    char driver[128];        ///< driver version
    char version[128];       ///< OpenCL version string
    int32_t compute_units;   ///< compute units; threads for the built-in path
    int32_t native_width_f32; ///< floats in the device's own vector
    size_t max_group;        ///< largest work-group, work-items
    size_t max_items[3];     ///< largest work-group per dimension, work-items
    size_t local_bytes;      ///< local memory of a work-group
    int32_t local_is_global; ///< 1 where local memory is ordinary memory
    int32_t host_unified;    ///< 1 where host and device share memory
    size_t global_bytes;     ///< global memory
    size_t max_alloc_bytes;  ///< largest single allocation
    size_t cache_bytes;      ///< the device's global memory cache; 0 = unknown
    int32_t has_fp16;        ///< 1 with cl_khr_fp16
    int32_t has_subgroups;   ///< 1 with sub-groups
    int32_t vector_shape;    ///< 1 where the kernel with vector lanes as rows is preferred
    /// Driver quirks that were switched on: 1 = its figures of compiled kernels are not believed,
    /// 2 = no vector shape, 4 = it stops long loops, so that the CPU path takes long rows,
    /// 8 = blocking calls from several threads take turns, 16 = programs are left to the driver's
    /// own cache on disk; of clattn's own, only a passed self-test is kept.
    uint32_t quirks;
    int32_t rank;            ///< 0 = the device that would be chosen, then upward
} clattn_device_info;

/// Whether this build of the library can use OpenCL. Opens nothing.
/// @return 1, or 0 where it was left out (-Dopencl=disabled).
/// Threads: any.
CLATTN_API int clattn_has_opencl(void);

/// Counts the devices: all OpenCL devices in the order of their platforms, and after them the
/// built-in CPU path, which always exists and whose index is *count - 1.
/// @param desc  May be NULL. `flags`, `opencl_library` and the log fields are used.
/// @param count Receives the number, at least 1.
/// @return CLATTN_OK, also where there is no OpenCL; CLATTN_ERR_INVALID_ARGUMENT for NULL `count`
///         and for what clattn_context_create() refuses in `desc` and in the environment;
///         CLATTN_ERR_STRUCT_SIZE; CLATTN_ERR_OUT_OF_MEMORY.
/// Threads: any.
CLATTN_API clattn_status clattn_device_count(const clattn_context_desc *desc, int32_t *count);

/// Fills `info` with the facts of the device of this index, lowered to the ceilings of `desc` or of
/// the environment.
/// @param desc  As for clattn_device_count(), which counts the same devices.
/// @param index 0 to *count - 1.
/// @param info  Its struct_size is set by the caller.
/// @return CLATTN_OK; CLATTN_ERR_INVALID_ARGUMENT for NULL `info` and as clattn_device_count();
///         CLATTN_ERR_NO_DEVICE for an index out of range; CLATTN_ERR_STRUCT_SIZE;
///         CLATTN_ERR_OUT_OF_MEMORY.
/// Threads: any.
CLATTN_API clattn_status clattn_device_get_info(const clattn_context_desc *desc, int32_t index,
                                                clattn_device_info *info);

/// Makes a context on the device that `desc` selects.
///
/// Without a selector the best device is taken, from facts alone: discrete GPU, other GPU,
/// accelerator, OpenCL CPU device whose native float vector has 4 or more elements, the built-in
/// CPU path, anything else; among equals the one with more compute units. A device whose self-test
/// fails is passed over with a warning; a device that was named and fails it is refused.
///
/// @param desc NULL = all defaults.
/// @param out  Receives the context; NULL on failure. Destroy it with clattn_context_destroy().
/// @return CLATTN_OK
///         CLATTN_ERR_INVALID_ARGUMENT  NULL `out`, unknown flag bits, negative threads, an
///                                      unknown log_level, both
///                                      max_local_bytes and CLATTN_CONTEXT_NO_LOCAL_MEMORY, both
///                                      tune_file and CLATTN_CONTEXT_NO_TUNING, both kernel_dir
///                                      and CLATTN_CONTEXT_EMBEDDED_KERNELS, a
///                                      CLATTN_MAX_* of the environment that is no number or out
///                                      of range
///         CLATTN_ERR_STRUCT_SIZE       desc->struct_size
///         CLATTN_ERR_NO_DEVICE         no device fits the selector
///         CLATTN_ERR_NO_OPENCL         a device of OpenCL was named, and there is no OpenCL, or
///                                      this process was forked after it was opened, or is at
///                                      its end
///         CLATTN_ERR_UNSUPPORTED       the named device has no compiler of OpenCL C 1.2, or is not
///                                      available
///         CLATTN_ERR_SELF_TEST, CLATTN_ERR_BUILD, CLATTN_ERR_OPENCL  the named device fails
///         CLATTN_ERR_OUT_OF_MEMORY     host or device memory ran out
/// Threads: any.
CLATTN_API clattn_status clattn_context_create(const clattn_context_desc *desc,
                                               clattn_context **out);

/// Waits for work in flight on the CPU path's worker, then frees the context. Its plans and its
/// memory must be destroyed before.
/// @param ctx Receives NULL. NULL and pointers to NULL are ignored.
/// Threads: any, when no other uses the context.
CLATTN_API void clattn_context_destroy(clattn_context **ctx);

/// Fills `info` with the facts of the context's device.
/// @param ctx  The context.
/// @param info Its struct_size is set by the caller.
/// @return CLATTN_OK; CLATTN_ERR_INVALID_ARGUMENT for NULL; CLATTN_ERR_STRUCT_SIZE.
/// Threads: any.
CLATTN_API clattn_status clattn_context_get_device_info(const clattn_context *ctx,
                                                        clattn_device_info *info);

/// How many OpenCL programs this context has compiled from source since it was made, failures
/// included. One that is taken from the program cache on disk does not count.
/// @param ctx NULL gives 0.
/// @return The number; it only grows.
/// Threads: any.
CLATTN_API uint64_t clattn_context_build_count(const clattn_context *ctx);

/// Allocates memory on the context's device: a cl_mem, or host memory for the built-in path. Its
/// contents are not defined.
/// @param ctx   The context, which must outlive the memory.
/// @param bytes At least 1.
/// @param out   Receives the buffer, whose kind says what it is; absent on failure. Free it with
///              clattn_mem_destroy().
/// @return CLATTN_OK; CLATTN_ERR_INVALID_ARGUMENT for NULL or 0 bytes; CLATTN_ERR_OUT_OF_MEMORY,
///         also for more than the device allows at once; CLATTN_ERR_NO_OPENCL on an OpenCL context
///         after fork() or at the process's end; CLATTN_ERR_OPENCL.
/// Threads: any.
CLATTN_API clattn_status clattn_mem_create(clattn_context *ctx, size_t bytes, clattn_buf *out);

/// Copies `bytes` from host memory to `dst` at offset_bytes. Blocks.
/// @param ctx   The context that `dst` is of.
/// @param dst   Host memory, clattn_mem_create()'s or the application's cl_mem.
/// @param src   `bytes` of host memory.
/// @param bytes 0 writes nothing.
/// @return CLATTN_OK                    done
///         CLATTN_ERR_INVALID_ARGUMENT  NULL; an unknown kind; a reserved field that is not 0
///         CLATTN_ERR_BUFFER_MISSING    the buffer is absent or its pointer NULL, or it is a cl_mem
///                                      on a context without OpenCL
///         CLATTN_ERR_BUFFER_TOO_SMALL  offset_bytes and `bytes` reach over its end
///         CLATTN_ERR_WRONG_CONTEXT     a cl_mem of another context
///         CLATTN_ERR_NO_OPENCL         an OpenCL context after fork() or at the process's end
///         CLATTN_ERR_OUT_OF_MEMORY     host or device memory ran out
///         CLATTN_ERR_OPENCL            another OpenCL failure; what `dst` holds is not defined
/// Threads: any.
CLATTN_API clattn_status clattn_mem_write(clattn_context *ctx, const clattn_buf *dst,
                                          const void *src, size_t bytes);

/// Copies `bytes` from `src` at offset_bytes to host memory. Blocks.
/// @param ctx   The context that `src` is of.
/// @param src   Host memory, clattn_mem_create()'s or the application's cl_mem.
/// @param dst   Receives `bytes`.
/// @param bytes 0 reads nothing.
/// @return as clattn_mem_write().
/// Threads: any.
CLATTN_API clattn_status clattn_mem_read(clattn_context *ctx, const clattn_buf *src, void *dst,
                                         size_t bytes);

/// Frees memory of clattn_mem_create(). Work that uses it must be done.
/// @param ctx The context that made it.
/// @param buf Becomes absent. NULL and absent are ignored.
/// Threads: any.
CLATTN_API void clattn_mem_destroy(clattn_context *ctx, clattn_buf *buf);

#ifdef CLATTN_EXPERIMENTAL
/// What clattn_context_measure() measures.
typedef enum clattn_measure {
    CLATTN_MEASURE_FMA_F32 = 0,  ///< fused multiply-adds in registers, GFLOP/s (2 per FMA)
    CLATTN_MEASURE_READ = 1,     ///< reading `bytes` of memory once, GB/s (10^9 bytes)
    /// CLATTN_MEASURE_FMA_F32 in about ten milliseconds, to be taken between other work.
    CLATTN_MEASURE_FMA_F32_SHORT = 2
} clattn_measure;

/// Measures what a small kernel (for the built-in path: a C loop with the same threads) reaches
/// on the device now; the best of several runs.
/// @param ctx   The device.
/// @param what  What is measured.
/// @param bytes For CLATTN_MEASURE_READ, else ignored.
/// @param value Receives the speed.
/// @return CLATTN_OK; CLATTN_ERR_INVALID_ARGUMENT; CLATTN_ERR_BUILD; CLATTN_ERR_OPENCL;
///         CLATTN_ERR_OUT_OF_MEMORY; CLATTN_ERR_NO_OPENCL on an OpenCL context after fork() or at
///         the process's end.
/// Threads: any, but two at once disturb each other.
CLATTN_API clattn_status clattn_context_measure(clattn_context *ctx, clattn_measure what,
                                                size_t bytes, double *value);
#endif

#ifdef __cplusplus
}
#endif

#endif // CLATTN_CONTEXT_H
