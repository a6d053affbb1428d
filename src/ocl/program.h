// SPDX-License-Identifier: Apache-2.0
// (text, options) -> cl_program for one device, compiled once and kept in memory and on disk.
#ifndef CLA_OCL_PROGRAM_H
#define CLA_OCL_PROGRAM_H

#include "ocl/api.h"
#include "ocl/cache.h"

// Thread-safe. Two threads that ask for the same program at once get one build: the second waits.
// No lock is held over a driver call that builds another program.
struct cla_programs;

// `cache` may be NULL, and must outlive the programs.
clattn_status cla_programs_create(const struct cla_cl *cl, cl_context context, cl_device_id device,
                                  const struct cla_cache *cache, const struct cla_log *log,
                                  struct cla_programs **out);
void cla_programs_destroy(struct cla_programs **p);

// The built program, retained for the caller, who releases it. `name` is for messages. A failed
// build logs the build log, options, device and driver at `fail_level` (a trial that may fail
// passes CLATTN_LOG_DEBUG) and returns CLATTN_ERR_BUILD; failures are not kept.
clattn_status cla_programs_get(struct cla_programs *p, const char *name, const char *text,
                               const char *options, clattn_log_level fail_level, cl_program *out);

// For a program that cla_programs_get() gave and that does not work: if it came from disk, its file
// is removed and it is built from its source, as above. Else CLATTN_OK and *out is NULL.
clattn_status cla_programs_rebuild(struct cla_programs *p, const char *name, const char *text,
                                   const char *options, clattn_log_level fail_level,
                                   cl_program *out);

// Whether all that stands in options is "-cl-std=CL1.2", "-w", "-DNAME" and "-DNAME=number". No
// others reach the compiler: no text of a caller, a file or the environment can be among them.
bool cla_programs_takes(const char *options);

// Builds from source so far, failed ones included. What came from disk is none.
uint64_t cla_programs_build_count(const struct cla_programs *p);

// Programs that cla_programs_rebuild() replaced. While this stands still, none that
// cla_programs_get() gave has gone, and so no other one has its handle.
uint64_t cla_programs_rebuild_count(const struct cla_programs *p);

#endif // CLA_OCL_PROGRAM_H
