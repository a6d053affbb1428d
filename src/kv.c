// SPDX-License-Identifier: Apache-2.0
// Checks that the operations around attention share.
#include "kv.h"

// Mesa's rusticl leaves padding at the end out of the size of an argument.
#define NO_TAIL(type, last)                                                                        \
    _Static_assert(sizeof(type) == CLA_SIZE_TO(type, last), "no padding at the end")
NO_TAIL(struct cla_merge_args, reserved);
NO_TAIL(struct cla_rotate_args, flags);
NO_TAIL(struct cla_append_args, flags);

clattn_status cla_kv_dtype(const struct cla_log *log, const char *field, int32_t dtype)
{
    clattn_status st = cla_check_enum(log, field, dtype, CLATTN_DTYPE_I8);
    if (st == CLATTN_OK && dtype == CLATTN_DTYPE_I8)
        st = cla_fail(log, CLATTN_ERR_UNSUPPORTED, "%s is %d: int8 is a type of caches only", field,
                      (int)dtype);
    return st;
}

clattn_status cla_kv_counts(const struct cla_log *log, const struct cla_kv_count *f, int n)
{
    for (int i = 0; i < n; i++)
        if (f[i].value < f[i].least)
            return cla_fail(log, CLATTN_ERR_INVALID_ARGUMENT, "%s is %lld, less than %lld",
                            f[i].name, (long long)f[i].value, (long long)f[i].least);
    return CLATTN_OK;
}

clattn_status cla_kv_rows(const struct cla_log *log, int32_t batch, int32_t heads, int32_t len,
                          int64_t *rows)
{
    if (__builtin_mul_overflow((int64_t)batch * heads, (int64_t)len, rows))
        return cla_fail(log, CLATTN_ERR_SHAPE, "batch %d x heads %d x length %d overflows 64 bits",
                        (int)batch, (int)heads, (int)len);
    return CLATTN_OK;
}
