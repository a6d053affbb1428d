// SPDX-License-Identifier: Apache-2.0
#include "compare.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

uint32_t float_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

void fill_unwritten(void *to, size_t count)
{
    const uint32_t pattern = UNWRITTEN_BITS;
    for (size_t n = 0; n < count; n++)
        memcpy((char *)to + n * sizeof pattern, &pattern, sizeof pattern);
}

// The error as a part of what is tolerated; infinite where NaN or infinity do not agree.
static double error_ratio(float out, float ref, const struct tolerance *tol, double more)
{
    // What may be off by that much may be rounded to an infinity.
    if (isfinite(ref) && isinf(out) && more > 0 && signbit(ref) == signbit(out) &&
        fabs((double)ref) + more > (double)FLT_MAX)
        return 1;
    if (!isfinite(ref) || !isfinite(out)) {
        if (tol->any_nonfinite)
            return isfinite(ref) == isfinite(out) ? 0 : INFINITY;
        if (isnan(ref) || isnan(out))
            return isnan(ref) && isnan(out) ? 0 : INFINITY;
        return ref == out ? 0 : INFINITY;
    }
    const double error = fabs((double)out - ref);
    const double allowed = tol->abs + tol->rel * fabs((double)ref) + more;
    if (error == 0)
        return 0;
    return allowed > 0 ? error / allowed : INFINITY;
}

bool compare(const float *out, const float *ref, size_t count, const struct tolerance *tol,
             struct compare_report *report)
{
    return compare_bounded(out, ref, count, tol, NULL, 0, report);
}

bool compare_bounded(const float *out, const float *ref, size_t count, const struct tolerance *tol,
                     const double *bound, double unit, struct compare_report *report)
{
    struct compare_report r = {.count = count};
    double sum_error = 0, sum_ref = 0;
    for (size_t n = 0; n < count; n++) {
        r.nan_out += isnan(out[n]) != 0;
        r.nan_ref += isnan(ref[n]) != 0;
        if (isfinite(out[n]) && isfinite(ref[n])) {
            const double error = fabs((double)out[n] - ref[n]);
            r.max_abs = fmax(r.max_abs, error);
            if (ref[n] != 0)
                r.max_rel = fmax(r.max_rel, error / fabs((double)ref[n]));
            sum_error += error * error;
            sum_ref += (double)ref[n] * ref[n];
        }
        const bool unwritten = float_bits(out[n]) == UNWRITTEN_BITS;
        const double more = bound ? bound[n] * unit : 0;
        const double ratio = unwritten ? INFINITY : error_ratio(out[n], ref[n], tol, more);
        r.unwritten += unwritten;
        r.failed += ratio > 1;
        if (ratio > r.worst_ratio || n == 0) {
            r.worst_ratio = ratio;
            r.worst_index = n;
            r.worst_out = out[n];
            r.worst_ref = ref[n];
        }
    }
    r.rms_rel = sum_ref > 0 ? sqrt(sum_error / sum_ref) : sqrt(sum_error);
    *report = r;
    return r.failed == 0;
}

void compare_text(const char *what, const struct compare_report *r, char *text, size_t size)
{
    snprintf(text, size,
             "%s: %zu of %zu out of tolerance (%zu unwritten), max abs %.3g, max rel %.3g, "
             "rms rel %.3g, worst [%zu] = %.9g, expected %.9g, %.3g of the tolerance, "
             "NaN %zu, expected %zu",
             what, r->failed, r->count, r->unwritten, r->max_abs, r->max_rel, r->rms_rel,
             r->worst_index, (double)r->worst_out, (double)r->worst_ref, r->worst_ratio,
             r->nan_out, r->nan_ref);
}

void compare_print(const char *what, const struct compare_report *r)
{
    char text[400];
    compare_text(what, r, text, sizeof text);
    printf("    %s\n", text);
}
