// SPDX-License-Identifier: Apache-2.0
// What the caller's structs have in common: their sizes, enums and bits.
#include <string.h>

#include "problem.h"

// Every struct begins with a word, so that its sizeof is a number of whole words; another size
// would cut a pointer in two.
static clattn_status fail_cut(const char *what, size_t size, const struct cla_log *log)
{
    return cla_fail(log, CLATTN_ERR_STRUCT_SIZE, "%s.struct_size is %zu, no multiple of %zu", what,
                    size, sizeof size);
}

clattn_status cla_struct_in(const char *what, const void *in, size_t min_size, void *out,
                            size_t out_size, const struct cla_log *log)
{
    size_t size = 0;
    memcpy(&size, in, sizeof size);
    if (size < min_size)
        return cla_fail(log, CLATTN_ERR_STRUCT_SIZE,
                        "%s.struct_size is %zu, less than %zu: call %s_init() first", what, size,
                        min_size, what);
    if (size % sizeof size)
        return fail_cut(what, size, log);
    if (size > out_size) {
        // A newer caller: fine as long as it sets nothing that this library does not know. The
        // bound keeps a wild size from reading far beyond the struct.
        if (size > 65536)
            return cla_fail(log, CLATTN_ERR_STRUCT_SIZE, "%s.struct_size is %zu", what, size);
        for (size_t i = out_size; i < size; i++) {
            if (((const unsigned char *)in)[i] != 0)
                return cla_fail(log, CLATTN_ERR_STRUCT_SIZE,
                                "%s.struct_size is %zu, and byte %zu behind the %zu this library "
                                "knows is set",
                                what, size, i, out_size);
        }
        size = out_size;
    }
    memset(out, 0, out_size);
    memcpy(out, in, size);
    return CLATTN_OK;
}

clattn_status cla_struct_out(const char *what, void *out, size_t min_size, const void *full,
                             size_t full_size, const struct cla_log *log)
{
    size_t size = 0;
    memcpy(&size, out, sizeof size);
    if (size < min_size)
        return cla_fail(log, CLATTN_ERR_STRUCT_SIZE, "%s.struct_size is %zu, less than %zu", what,
                        size, min_size);
    if (size % sizeof size)
        return fail_cut(what, size, log);
    memcpy(out, full, size < full_size ? size : full_size);
    memcpy(out, &size, sizeof size);
    return CLATTN_OK;
}

void cla_struct_init(void *s, size_t size)
{
    if (s && size >= sizeof(size_t)) {
        memset(s, 0, size);
        memcpy(s, &size, sizeof size);
    }
}

void clattn_attention_desc_init(clattn_attention_desc *desc, size_t size)
{
    cla_struct_init(desc, size);
}

void clattn_attention_call_init(clattn_attention_call *call, size_t size)
{
    cla_struct_init(call, size);
}

void clattn_context_desc_init(clattn_context_desc *desc, size_t size)
{
    cla_struct_init(desc, size);
}

clattn_status cla_check_enum(const struct cla_log *log, const char *field, int64_t value,
                             int64_t last)
{
    if (value < 0 || value > last)
        return cla_fail(log, CLATTN_ERR_INVALID_ARGUMENT, "%s is %lld, not 0 to %lld", field,
                        (long long)value, (long long)last);
    return CLATTN_OK;
}

clattn_status cla_check_bits(const struct cla_log *log, const char *field, uint32_t value,
                             uint32_t known)
{
    if (value & ~known)
        return cla_fail(log, CLATTN_ERR_INVALID_ARGUMENT, "%s has unknown bits 0x%x", field,
                        (unsigned)(value & ~known));
    return CLATTN_OK;
}
