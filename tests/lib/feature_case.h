// SPDX-License-Identifier: Apache-2.0
// Problems with every feature of the contract, and lists of them: each feature alone, all pairs of
// features, random combinations. Plain data, no device.
#ifndef TESTS_FEATURE_CASE_H
#define TESTS_FEATURE_CASE_H

#include <stdbool.h>
#include <stdint.h>

#include "clattn/clattn.h"

enum { BATCH_MAX = 37, FEATURE_LEN_MAX = 512 };

// How Q, K, V and O lie in memory. What a form cannot have with packed or paged keys is BHSD there.
enum feature_layout {
    FORM_BHSD = 0,
    FORM_BSHD,
    FORM_PADDED,     // rows longer by 3 elements, one element past an aligned address
    FORM_PADDED_8,   // rows padded to a multiple of 8 and 8 more
    FORM_SEQ_FIRST,  // [seq, batch, heads, dim], strided
    FORM_BCAST_HEAD, // K and V with stride 0 on the head
    FORM_V_IN_K,     // V is the first channels of K's memory (latent attention)
    FORM_COUNT
};

// What Q, K and V hold beside random values.
enum feature_input {
    INPUT_NORMAL = 0,
    INPUT_LARGE,         // scores of a size that makes one key of a row outweigh the others
    INPUT_V_PARTLY_NAN,  // V not finite at keys that some rows see and others do not
    INPUT_K_PARTLY_NAN,  // K likewise: rows that see such a key are NaN
    INPUT_COUNT
};

enum feature_sinks { SINKS_NONE = 0, SINKS_NORMAL, SINKS_SPECIAL }; // special: -inf, huge, tiny

// An array of [batch, heads_q, len_q, len_kv]. Axes with a bit in `bcast` have extent 1.
struct feature_array {
    bool used;
    uint32_t bcast;
    bool strided; // the key axis has a step of 2, or broadcast axes full extents of stride 0
};

struct feature_case {
    char name[80];
    int32_t dtype_q, dtype_kv, dtype_o, dtype_bias; // enum clattn_dtype
    int32_t dim_qk, dim_v;
    int32_t batch, heads_q, heads_kv;
    int32_t len_q, len_kv; // of the longest sequence
    bool causal;
    int32_t align; // enum clattn_align
    bool window;
    int32_t left, right;
    struct feature_array mask, bias;
    int32_t alibi; // 0 = none, 1: [heads_q], 2: [batch, heads_q]
    bool has_softcap;
    float softcap;
    int32_t sinks;  // enum feature_sinks
    bool kv_lens, packed_q, packed_kv;
    int32_t page_size; // 0 = not paged
    int32_t layout;    // enum feature_layout
    int32_t input;     // enum feature_input
    bool lse;
    bool has_scale;
    float scale;
    bool on_device;      // tensors in memory of clattn_mem_create(), else in host memory
    bool ints_on_device; // lengths, offsets and table likewise
    int32_t num_splits;  // of split_kv
    int32_t len_max;     // bound of the plan; 0 = FEATURE_LEN_MAX
    int32_t exp_q, exp_k, exp_v; // Q, K and V are 2^these times normal numbers
    uint64_t seed;       // of the numbers
};

// ---- who serves what ----------------------------------------------------------------------------

// In the order and by the names of the library's messages.
enum feature_need {
    NEED_16_BIT, NEED_INT8, NEED_WINDOW, NEED_BIAS, NEED_ALIBI, NEED_SOFTCAP, NEED_SINKS,
    NEED_KV_LENS, NEED_PACKED, NEED_PAGED, NEED_COUNT
};
extern const char *const feature_need_name[NEED_COUNT];

// The contract's table: bits of enum feature_need that an algorithm does not serve.
uint32_t algo_lacks(int32_t algo);
// Bits of what a case needs.
uint32_t feature_needs(const struct feature_case *c);

// ---- lists --------------------------------------------------------------------------------------

// A small causal problem of float32 without any other feature, for callers to change.
struct feature_case feature_plain(void);

// CLATTN_FEATURE_* bits of a case, and the description that it is planned by. Cases share their
// bounds, so that they share programs.
clattn_attention_desc feature_desc(const struct feature_case *c);

// Each value of each axis alone. Writes at most `max`, returns how many.
int feature_alone(uint32_t lacks, bool small, struct feature_case *out, int max);

// A list in which every pair of values of two axes meets that an algorithm lacking `lacks` serves.
// `*pairs` receives how many there are.
int feature_pairs(uint32_t lacks, struct feature_case *out, int max, int *pairs);

// A random combination; the seed fixes it. `small`: of few programs and short lengths.
struct feature_case feature_random(uint32_t lacks, bool small, uint64_t seed);

// As that, of a head dimension.
struct feature_case feature_random_dim(uint32_t lacks, int32_t dim, uint64_t seed);

// Problem n of a stress run: any features, lengths up to STRESS_LEN_MAX, numbers of any size. `run`
// problems in a row have one storage format, the second half of them with pages, and so share two
// programs.
enum { STRESS_LEN_MAX = 2048 };
struct feature_case feature_stress(uint32_t lacks, uint64_t seed, uint64_t n, uint64_t run);

// One line that says all of a case.
void feature_text(const struct feature_case *c, char *text, size_t size);

#endif // TESTS_FEATURE_CASE_H
