// SPDX-License-Identifier: Apache-2.0
#include "random.h"

#include <stdlib.h>

void tool_random_fill(float *data, size_t count, unsigned seed)
{
    unsigned short state[3] = {0x330e, (unsigned short)(seed & 0xffff),
                               (unsigned short)(seed >> 16 & 0xffff)};

    for (size_t i = 0; i < count; i++) {
        double sum = -2.0;
        for (int k = 0; k < 4; k++)
            sum += erand48(state);
        data[i] = (float)(sum * 1.7320508075688772); // four uniforms have variance 1/3
    }
}
