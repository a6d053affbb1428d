// SPDX-License-Identifier: Apache-2.0
// The reader of .npy files: two bytes choose what is wanted, the others are the file. It is read as
// a file and as a stream of unknown length, with the same outcome; what is accepted is what lies in
// the bytes, and is the same after it was written and read once more.
#include <sys/mman.h>
#include <unistd.h>

#include "fuzz.h"
#include "lib/npy.h"

static const unsigned all_types = TOOL_NPY_F32 | TOOL_NPY_BOOL | TOOL_NPY_F16 | TOOL_NPY_U16 |
                                  TOOL_NPY_I32 | TOOL_NPY_I64;

static void check_array(const struct tool_npy *a, unsigned dtypes, int ndim, const uint8_t *file,
                        size_t size)
{
    size_t count = 1;
    FUZZ_CHECK(a->ndim >= 0 && a->ndim <= TOOL_NPY_MAX_NDIM, "%d axes", a->ndim);
    FUZZ_CHECK(ndim ? a->ndim == ndim : a->ndim == 1 || a->ndim == 2, "%d axes", a->ndim);
    FUZZ_CHECK(((unsigned)a->dtype & dtypes) == (unsigned)a->dtype, "type %d", (int)a->dtype);
    for (int i = 0; i < a->ndim; i++) {
        FUZZ_CHECK(a->shape[i] >= 0, "extent %lld", (long long)a->shape[i]);
        count = a->shape[i] ? count : 0;
    }
    for (int i = 0; count && i < a->ndim; i++)
        count *= (size_t)a->shape[i];
    FUZZ_CHECK(a->count == count && a->bytes == count * tool_npy_size(a->dtype), "%zu elements",
               a->count);
    FUZZ_CHECK(a->bytes < size && (a->data || !a->bytes), "%zu bytes", a->bytes);
    if (a->bytes)
        FUZZ_CHECK(memcmp(a->data, file + size - a->bytes, a->bytes) == 0, "other data");
}

static void check_again(const struct tool_npy *a)
{
    char *text = NULL, why[512];
    size_t size = 0;
    struct tool_npy again;
    FILE *out = open_memstream(&text, &size);
    FUZZ_CHECK(out && tool_npy_write(out, a->dtype, a->data, a->ndim, a->shape), "not written");
    fclose(out);
    FILE *in = fmemopen(text, size, "rb");
    FUZZ_CHECK(in && tool_npy_read_stream(in, (unsigned)a->dtype, a->ndim, &again, why, sizeof why),
               "not read again: %s", why);
    fclose(in);
    FUZZ_CHECK(again.count == a->count && memcmp(again.shape, a->shape, sizeof a->shape) == 0 &&
                   (!a->bytes || memcmp(again.data, a->data, a->bytes) == 0),
               "another array");
    tool_npy_free(&again);
    free(text);
}

// A file without a name.
static bool read_file(const uint8_t *data, size_t size, unsigned dtypes, int ndim,
                      struct tool_npy *out, char *why, size_t why_size)
{
    static int file = -1;
    char path[64];
    if (file < 0)
        file = memfd_create("npy", MFD_CLOEXEC);
    FUZZ_CHECK(file >= 0 && ftruncate(file, 0) == 0 &&
                   pwrite(file, data, size, 0) == (ssize_t)size,
               "no file");
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    return tool_npy_read(path, dtypes, ndim, out, why, why_size);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct bytes b = {data, size};
    struct tool_npy array, streamed;
    char why[512], why_streamed[512];
    const unsigned chosen = take_byte(&b) & all_types, dtypes = chosen ? chosen : all_types;
    const int ndim = take_below(&b, 6);
    memset(why, 'x', sizeof why);
    memset(why_streamed, 'x', sizeof why);
    const bool good = read_file(b.at, b.left, dtypes, ndim, &array, why, sizeof why);
    FILE *stream = b.left ? fmemopen((void *)(uintptr_t)b.at, b.left, "rb")
                          : fopen("/dev/null", "rb");
    FUZZ_CHECK(stream, "no stream");
    const bool same = tool_npy_read_stream(stream, dtypes, ndim, &streamed, why_streamed,
                                           sizeof why_streamed);
    fclose(stream);
    FUZZ_CHECK(good == same, "file: %s; stream: %s", good ? "good" : why,
               same ? "good" : why_streamed);
    if (good) {
        check_array(&array, dtypes, ndim, b.at, b.left);
        check_array(&streamed, dtypes, ndim, b.at, b.left);
        check_again(&array);
    } else {
        FUZZ_CHECK(memchr(why, 0, sizeof why) && strchr(why, ':'), "no reason");
        FUZZ_CHECK(!array.data && !streamed.data && !array.bytes, "something is left");
    }
    tool_npy_free(&array);
    tool_npy_free(&streamed);
    return 0;
}
