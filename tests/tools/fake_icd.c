// SPDX-License-Identifier: Apache-2.0
// A library that looks like an OpenCL driver to a loader and ends the process: $FAKE_ICD says when,
// "load" or "use"; with "hang" it never ends when it is used.
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void *clGetExtensionFunctionAddress(const char *name);

static void end_when(const char *when)
{
    const char *wish = getenv("FAKE_ICD");
    if (wish && strcmp(wish, when) == 0)
        abort();
}

__attribute__((constructor)) static void load(void)
{
    end_when("load");
}

void *clGetExtensionFunctionAddress(const char *name)
{
    (void)name;
    end_when("use");
    const char *wish = getenv("FAKE_ICD");
    while (wish && strcmp(wish, "hang") == 0)
        pause();
    return NULL;
}
