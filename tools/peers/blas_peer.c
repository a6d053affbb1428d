// SPDX-License-Identifier: Apache-2.0
// Attention as two matrix products of a CPU BLAS with a softmax between them, built as a shared
// library. The BLAS is given as its cblas_sgemm, so that nothing is linked.
//
// The query heads of a key head lie behind each other in memory, so where no mask tells queries
// apart they are rows of one matrix. Rows are cut into blocks: threads share blocks out, a block's
// scores stay in the caches, and a causal block leaves out the keys that none of its rows sees.
#include <math.h>
#ifdef _OPENMP
#include <omp.h>
#endif
#include <stddef.h>

typedef void (*sgemm)(int order, int trans_a, int trans_b, int m, int n, int k, float alpha,
                      const float *a, int lda, const float *b, int ldb, float beta, float *c,
                      int ldc);
enum { ROW_MAJOR = 101, NO_TRANS = 111, TRANS = 112 };

static void softmax_row(float *s, int visible, int len)
{
    float max = -INFINITY, sum = 0;
    for (int j = 0; j < visible; j++)
        max = s[j] > max ? s[j] : max;
    for (int j = 0; j < visible; j++) {
        float e = expf(s[j] - max);
        s[j] = e;
        sum += e;
    }
    float factor = 1 / sum;
    for (int j = 0; j < visible; j++)
        s[j] *= factor;
    for (int j = visible; j < len; j++)
        s[j] = 0;
}

/// shape: batch, heads, key heads, len_q, len_kv, dim. `scores` has room for block * len_kv floats
/// for each of `threads` threads; with one thread here the BLAS may use its own.
void blas_attention(sgemm gemm, const int *shape, int causal, int block, int threads,
                    const float *q, const float *k, const float *v, float *o, float *scores)
{
    int len_q = shape[3], len_kv = shape[4], dim = shape[5];
    // A causal block must not reach over the end of a head.
    int rows = causal ? len_q : shape[1] / shape[2] * len_q;
    int matrices = shape[0] * (causal ? shape[1] : shape[2]);
    int share = causal ? shape[1] / shape[2] : 1;
    int blocks = (rows + block - 1) / block;
    float scale = 1 / sqrtf((float)dim);
#pragma omp parallel for schedule(dynamic) num_threads(threads)
    for (int task = 0; task < matrices * blocks; task++) {
#ifdef _OPENMP
        float *s = scores + (size_t)omp_get_thread_num() * (size_t)block * (size_t)len_kv;
#else
        float *s = scores;
#endif
        // The last rows of a causal matrix see most and come first.
        int matrix = task % matrices, first = (blocks - 1 - task / matrices) * block;
        int count = rows - first < block ? rows - first : block;
        int keys = causal ? first + count + len_kv - len_q : len_kv;
        size_t row = ((size_t)matrix * (size_t)rows + (size_t)first) * (size_t)dim;
        size_t key = (size_t)(matrix / share) * (size_t)len_kv * (size_t)dim;
        gemm(ROW_MAJOR, NO_TRANS, TRANS, count, keys, dim, scale, q + row, dim, k + key, dim, 0, s,
             keys);
        for (int i = 0; i < count; i++)
            softmax_row(s + (size_t)i * (size_t)keys,
                        causal ? first + i + 1 + len_kv - len_q : keys, keys);
        gemm(ROW_MAJOR, NO_TRANS, NO_TRANS, count, dim, keys, 1, s, keys, v + key, dim, 0, o + row,
             dim);
    }
}
