// SPDX-License-Identifier: Apache-2.0
#include "device_rank.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

// Lower is better. A GPU that shares the host's memory is most often the integrated one.
static int device_class(const struct cla_caps *c)
{
    if (!c->compiler)
        return 7;
    switch (c->type) {
    case CLA_DEVICE_GPU:
        return c->host_unified ? 1 : 0;
    case CLA_DEVICE_ACCELERATOR:
        return 2;
    case CLA_DEVICE_CPU:
        return cla_caps_vector_shape(c) ? 3 : 5;
    case CLA_DEVICE_BUILTIN:
        return 4;
    default:
        return 6;
    }
}

static bool better(const struct cla_caps *a, const struct cla_caps *b)
{
    const int ca = device_class(a);
    const int cb = device_class(b);
    if (ca != cb)
        return ca < cb;
    return a->compute_units > b->compute_units;
}

void cla_device_rank(const struct cla_caps *caps, int32_t count, int32_t *order)
{
    for (int32_t i = 0; i < count; i++) {
        int32_t at = i;
        while (at > 0 && better(&caps[i], &caps[order[at - 1]])) {
            order[at] = order[at - 1];
            at--;
        }
        order[at] = i;
    }
}

static bool contains(const char *text, const char *part)
{
    const size_t n = strlen(part);
    for (; *text; text++) {
        size_t k = 0;
        while (k < n && text[k] &&
               tolower((unsigned char)text[k]) == tolower((unsigned char)part[k]))
            k++;
        if (k == n)
            return true;
    }
    return false;
}

bool cla_device_is_builtin(const char *selector)
{
    return strlen(selector) == 3 && contains(selector, "cpu");
}

int32_t cla_device_select(const struct cla_caps *caps, int32_t count, const char *selector)
{
    if (selector[0] && strspn(selector, "0123456789") == strlen(selector)) {
        if (strlen(selector) > 9)
            return -1;
        const long index = strtol(selector, NULL, 10);
        return index < count ? (int32_t)index : -1;
    }
    const bool builtin = cla_device_is_builtin(selector);
    for (int32_t i = 0; i < count; i++) {
        if (builtin ? caps[i].type == CLA_DEVICE_BUILTIN
                    : contains(caps[i].name, selector) || contains(caps[i].platform, selector))
            return i;
    }
    return -1;
}
