// SPDX-License-Identifier: Apache-2.0
// Attention in one call: host memory in, host memory out, on the best device there is.
#include <clattn/clattn.h>
#include <stdio.h>

int main(void)
{
    // All queries are 0, so that a query takes the mean of the values that it sees.
    const float q[3 * 2] = {0}, k[3 * 2] = {0}, v[3 * 2] = {1, 10, 2, 20, 3, 30};
    float o[3 * 2];

    // batch 1, 1 query head, 1 key/value head, 3 queries, 3 keys, 2 channels, causal
    const clattn_status st = clattn_attention_f32(NULL, q, k, v, o, 1, 1, 1, 3, 3, 2, 1);
    if (st != CLATTN_OK) {
        fprintf(stderr, "%s\n", clattn_status_string(st));
        return 1;
    }
    for (int i = 0; i < 3; i++)
        printf("query %d: %g %g\n", i, (double)o[2 * i], (double)o[2 * i + 1]);
    return 0;
}
