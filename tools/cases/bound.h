// SPDX-License-Identifier: Apache-2.0
// How far a result may be from the exact one: a formula of lengths, types and the numbers
// themselves. docs/math.md, section 12, derives it.
//
// Errors are in units of the roundoff of the arithmetic: BOUND_FLOAT of the paths, BOUND_DOUBLE of
// the reference. Only first powers of it are kept.
#ifndef CLATTN_CASES_BOUND_H
#define CLATTN_CASES_BOUND_H

#include <stdbool.h>
#include <stdint.h>

#define BOUND_FLOAT 0x1p-24
#define BOUND_DOUBLE 0x1p-53

// What a score is made of.
struct bound_score {
    int32_t dim;
    double factor;   // |scale|, times that of an int8 key
    double walk;     // square root of the sum, over the channels, of (q k)^2 + (sum so far)^2
    double softcap;  // 0 = none
    double capped;   // scale * dot product, behind the soft-cap
    double distance; // |slope| * distance of ALiBi
    bool moved;      // ALiBi or a bias is added
    double x;        // the score
};

// Absolute error of a score.
double bound_score(const struct bound_score *s);

// Relative error of the weight e^(x - m) of a score with that error, `below` = m - x.
double bound_weight(double score, double below);

// What a row adds up, of weights that sum up to 1, a sink's among them.
struct bound_row {
    int32_t len;    // keys
    double weights; // sum of p times bound_weight(), the sink's too
    double lse;
    double log_sum; // ln l, the part of the LSE beside the maximum
};

// Absolute error of an LSE.
double bound_lse(const struct bound_row *r);

// One element of O.
struct bound_output {
    int32_t len;
    double spread; // sum of p |v - o| times bound_weight(), the sink with v = 0
    double mass;   // sum of p |v|
    double o;
    double weight_roundoff; // of weights that are rounded to 16 bits for their product with V, or 0
};

// Absolute error of an element of O before it is stored.
double bound_output(const struct bound_output *o);

// Of fused_kv_outer beside that, where the keys that a row sees have values up to `largest`.
double bound_running(double largest);

// Of storing it: relative, and absolute among denormals.
double bound_roundoff(int32_t dtype);
double bound_smallest(int32_t dtype);

#endif // CLATTN_CASES_BOUND_H
