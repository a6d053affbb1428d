// SPDX-License-Identifier: Apache-2.0
// A program loads the library, computes with threads, and unloads it, again and again: as a plugin
// host does. The threads of OpenMP are still there afterwards, and must find their code.
//
// Usage: test_unload LIBRARY
#include <dlfcn.h>
#include <stdio.h>
#include <time.h>

#include "clattn/clattn.h"

enum { HEADS = 4, LEN = 256, DIM = 64 };

static float q[HEADS * LEN * DIM], o[HEADS * LEN * DIM];

// A pointer to a function is not converted from one to data in strict C.
union symbol {
    void *data;
    clattn_status (*create)(const clattn_context_desc *, clattn_context **);
    void (*init)(clattn_context_desc *, size_t);
    void (*destroy)(clattn_context **);
    clattn_status (*run)(clattn_context *, const float *, const float *, const float *, float *,
                         int32_t, int32_t, int32_t, int32_t, int32_t, int32_t, int);
};

static union symbol find(void *library, const char *name)
{
    union symbol s = {.data = dlsym(library, name)};
    return s;
}

int main(int argc, char **argv)
{
    for (int i = 0; argc == 2 && i < 20; i++) {
        void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
        if (!library) {
            printf("%s\n", dlerror());
            return 1;
        }
        clattn_context_desc desc;
        clattn_context *ctx = NULL;
        find(library, "clattn_context_desc_init").init(&desc, sizeof desc);
        desc.device = "cpu";
        desc.threads = 2;
        if (find(library, "clattn_context_create").create(&desc, &ctx) != CLATTN_OK ||
            find(library, "clattn_attention_f32").run(ctx, q, q, q, o, 1, HEADS, HEADS, LEN, LEN,
                                                      DIM, 0) != CLATTN_OK)
            return 1;
        find(library, "clattn_context_destroy").destroy(&ctx);
        if (dlclose(library) != 0)
            return 1;
        // Long enough for the threads to come from their last work into the wait for more.
        nanosleep(&(struct timespec){0, 2000000}, NULL);
    }
    return argc != 2;
}
