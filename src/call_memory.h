// SPDX-License-Identifier: Apache-2.0
// Checks of a call's buffers: kinds, sizes, strides, overlaps. All log what is wrong.
#ifndef CLA_CALL_MEMORY_H
#define CLA_CALL_MEMORY_H

#include "problem.h"

// Facts of the buffers of one call, each of which is asked for once: drivers take up to 0.1 us for
// a question, and there are four for each buffer. Only while the call lasts does a handle surely
// mean the same buffer, so this must not outlive it.
enum { CLA_FACTS_KEPT = 20 };
struct cla_facts {
    cla_mem_fn ask;
    void *user;
    int count;
    struct {
        void *mem;
        struct cla_mem_facts facts;
    } kept[CLA_FACTS_KEPT];
};

// `ask` may be NULL.
void cla_facts_begin(struct cla_facts *f, cla_mem_fn ask, void *user);
// For cla_buf_check() and others, with the struct as `user`; NULL where `ask` is NULL.
cla_mem_fn cla_facts_fn(const struct cla_facts *f);

// What all checks of one call share.
struct cla_checker {
    const struct cla_problem *p;
    const struct cla_log *log;
    cla_mem_fn mem_facts;
    void *user;
};

clattn_status cla_check_buf(const struct cla_checker *c, const char *name, const clattn_buf *buf,
                            size_t elem_bytes, size_t end_bytes, const struct cla_shape *shape);

// Extents [batch, head, sequence]; without batch or sequence no memory is needed.
clattn_status cla_check_tensor(const struct cla_checker *c, const char *name,
                               const clattn_tensor *t, const int64_t extent[3], int64_t dim,
                               int32_t dtype, bool output, struct cla_tensor *out);

// Extents [batch, head, query, key].
clattn_status cla_check_mask(const struct cla_checker *c, const char *name, const clattn_mask *m,
                             const int64_t extent[4], size_t elem_bytes, struct cla_mask *out);

// As many elements as the product of three extents.
clattn_status cla_check_vector(const struct cla_checker *c, const char *name,
                               const clattn_buf *buf, const int64_t extent[3], size_t elem_bytes,
                               struct cla_vector *out);

// That no output overlaps another buffer.
clattn_status cla_check_overlaps(const struct cla_checker *c, const struct cla_call *call);

#endif // CLA_CALL_MEMORY_H
