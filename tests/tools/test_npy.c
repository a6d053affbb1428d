// SPDX-License-Identifier: Apache-2.0
// The .npy reader: what NumPy writes, what others write, and any bytes at all.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "lib/compare.h"
#include "lib/npy.h"

enum { FILE_MAX = 4096 };

// A file of this format version, header and data.
static size_t make(unsigned char *file, int major, const char *header, const void *data,
                   size_t bytes)
{
    const size_t length = strlen(header);
    size_t used = 8;

    memcpy(file, "\x93NUMPY", 6);
    file[6] = (unsigned char)major;
    file[7] = 0;
    for (int i = 0; i < (major == 1 ? 2 : 4); i++)
        file[used++] = (unsigned char)(length >> (8 * i));
    memcpy(file + used, header, length);
    used += length;
    if (bytes)
        memcpy(file + used, data, bytes);
    return used + bytes;
}

static bool read_bytes(const void *file, size_t size, unsigned dtypes, int ndim,
                       struct tool_npy *npy, char why[256])
{
    FILE *stream = tmpfile();

    assert_non_null(stream);
    assert_int_equal(fwrite(file, 1, size, stream), size);
    rewind(stream);
    why[0] = 0;
    bool ok = tool_npy_read_stream(stream, dtypes, ndim, npy, why, 256);
    fclose(stream);
    if (!ok) {
        assert_true(why[0] != 0);
        assert_null(npy->data);
        assert_null(strchr(why, '\n'));
    }
    return ok;
}

static const float six[6] = {1, 2, 3, -4, 5.5f, 6};

static void test_good_headers(void **state)
{
    static const char *const headers[] = {
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }          \n",
        "{'shape': (2, 3), 'fortran_order': False, 'descr': '<f4'}",
        "  { \"descr\" : \"<f4\" , \"fortran_order\" : False , \"shape\" : ( 2 , 3 , ) , }  \n \n",
        "{'descr':'<f4','fortran_order':False,'shape':(2,3)}",
        "{'descr': '<f4',\n 'fortran_order': False,\n\t'shape': (2L, 3L)}",
    };

    (void)state;
    for (size_t i = 0; i < sizeof headers / sizeof *headers; i++) {
        for (int major = 1; major <= 3; major++) {
            unsigned char file[FILE_MAX];
            struct tool_npy npy;
            char why[256];
            size_t size = make(file, major, headers[i], six, sizeof six);
            if (!read_bytes(file, size, TOOL_NPY_F32, 2, &npy, why))
                fail_msg("header %zu, version %d: %s", i, major, why);
            assert_int_equal(npy.ndim, 2);
            assert_int_equal(npy.shape[0], 2);
            assert_int_equal(npy.shape[1], 3);
            assert_int_equal(npy.count, 6);
            assert_memory_equal(npy.data, six, sizeof six);
            tool_npy_free(&npy);
        }
    }
}

static void test_bool_and_empty(void **state)
{
    unsigned char file[FILE_MAX];
    struct tool_npy npy;
    char why[256];

    (void)state;
    size_t size = make(file, 1, "{'descr': '|b1', 'fortran_order': False, 'shape': (3,), }\n",
                       "\1\0\1", 3);
    assert_true(read_bytes(file, size, TOOL_NPY_BOOL, 1, &npy, why));
    assert_memory_equal(npy.data, "\1\0\1", 3);
    tool_npy_free(&npy);

    size = make(file, 1, "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 0, 7), }\n", "", 0);
    assert_true(read_bytes(file, size, TOOL_NPY_F32, 3, &npy, why));
    assert_int_equal(npy.count, 0);
    assert_int_equal(npy.shape[2], 7);
    tool_npy_free(&npy);

    // An extent of 0 makes the others harmless.
    size = make(file, 1, "{'descr': '<f4', 'fortran_order': False, 'shape': "
                         "(9223372036854775807, 9223372036854775807, 0), }\n", "", 0);
    assert_true(read_bytes(file, size, TOOL_NPY_F32, 3, &npy, why));
    assert_int_equal(npy.count, 0);
    tool_npy_free(&npy);
}

static void test_bad_headers(void **state)
{
#define HEAD(descr, order, shape)                                                                  \
    "{'descr': " descr ", 'fortran_order': " order ", 'shape': " shape ", }\n"
    static const struct {
        const char *header, *why;
    } cases[] = {
        {HEAD("'<f8'", "False", "(2, 3)"), "dtype: it is '<f8'"},
        {HEAD("'>f4'", "False", "(2, 3)"), "big-endian"},
        {HEAD("'|b1'", "False", "(2, 3)"), "dtype: it is '|b1', but float32"},
        {HEAD("'<i4'", "False", "(2, 3)"), "dtype"},
        {HEAD("[('x', '<f4')]", "False", "(2, 3)"), "structured"},
        {HEAD("4", "False", "(2, 3)"), "dtype"},
        {HEAD("'<f\\x34'", "False", "(2, 3)"), "dtype"},
        {HEAD("'<f4'", "True", "(2, 3)"), "fortran_order: it is True"},
        {HEAD("'<f4'", "0", "(2, 3)"), "fortran_order"},
        {HEAD("'<f4'", "False", "[2, 3]"), "shape"},
        {HEAD("'<f4'", "False", "(2, -3)"), "shape: an extent is negative"},
        {HEAD("'<f4'", "False", "(2, 3"), "shape"},
        {HEAD("'<f4'", "False", "(2 3)"), "shape"},
        {HEAD("'<f4'", "False", "(2.0, 3)"), "shape"},
        {HEAD("'<f4'", "False", "(,)"), "shape"},
        {HEAD("'<f4'", "False", "(6)"), "shape"},
        {HEAD("'<f4'", "False", "()"), "shape: it has 0 axes, but 2"},
        {HEAD("'<f4'", "False", "(6,)"), "shape: it has 1 axes, but 2"},
        {HEAD("'<f4'", "False", "(1,1,1,1,1,1,1,1,1)"), "shape: more than 8"},
        {HEAD("'<f4'", "False", "(9223372036854775808, 1)"), "shape: an extent is over"},
        {HEAD("'<f4'", "False", "(9223372036854775807, 2)"), "shape: the array is too large"},
        {HEAD("'<f4'", "False", "(4294967296, 4294967296)"), "shape: the array is too large"},
        {HEAD("'<f4'", "False", "(2, 4)"), "data: the file is truncated, 32 bytes"},
        {HEAD("'<f4'", "False", "(2, 2)"), "data: 16 bytes are needed and 24"},
        {HEAD("'<f4'", "False", "(1099511627776, 1)"), "data: the file is truncated"},
        {"{'descr': '<f4', 'shape': (2, 3)}", "header: key 'fortran_order' is missing"},
        {"{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (2, 3)}", "twice"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), 'x': 1}", "unknown key 'x'"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3)} x", "behind its '}'"},
        {"{'descr': '<f4' 'fortran_order': False, 'shape': (2, 3)}", "header"},
        {"", "header"},
        {"{", "header"},
        {"{'", "header"},
        {"[]", "header"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        unsigned char file[FILE_MAX];
        struct tool_npy npy;
        char why[256];
        size_t size = make(file, 1, cases[i].header, six, sizeof six);
        if (read_bytes(file, size, TOOL_NPY_F32, 2, &npy, why))
            fail_msg("case %zu was accepted: %s", i, cases[i].header);
        if (!strstr(why, cases[i].why))
            fail_msg("case %zu: '%s' does not say '%s'", i, why, cases[i].why);
    }
}

static void test_bad_start(void **state)
{
    unsigned char file[FILE_MAX];
    struct tool_npy npy;
    char why[256];
    const char *header = HEAD("'<f4'", "False", "(2, 3)");

    (void)state;
    assert_false(read_bytes("", 0, TOOL_NPY_F32, 2, &npy, why));
    assert_non_null(strstr(why, "not a .npy file"));
    assert_false(read_bytes("PK\3\4 a zip of arrays", 20, TOOL_NPY_F32, 2, &npy, why));
    assert_non_null(strstr(why, "not a .npy file"));
    for (int major = 0; major < 256; major++) {
        size_t size = make(file, 1, header, six, sizeof six);
        file[6] = (unsigned char)major;
        if (major == 1)
            continue;
        assert_false(read_bytes(file, size, TOOL_NPY_F32, 2, &npy, why));
        assert_non_null(strstr(why, major == 2 || major == 3 ? "header" : "version"));
    }
    make(file, 2, header, six, sizeof six);
    memset(file + 8, 0xff, 4);
    assert_false(read_bytes(file, 100, TOOL_NPY_F32, 2, &npy, why));
    assert_non_null(strstr(why, "header: its length 4294967295"));
}

static void test_truncated_anywhere(void **state)
{
    unsigned char file[FILE_MAX];
    struct tool_npy npy;
    char why[256];
    size_t size = make(file, 1, HEAD("'<f4'", "False", "(2, 3)"), six, sizeof six);

    (void)state;
    for (size_t n = 0; n < size; n++)
        assert_false(read_bytes(file, n, TOOL_NPY_F32, 2, &npy, why));
    assert_true(read_bytes(file, size, TOOL_NPY_F32, 2, &npy, why));
    tool_npy_free(&npy);
    file[size] = 0;
    assert_false(read_bytes(file, size + 1, TOOL_NPY_F32, 2, &npy, why));
}

// Whatever the bytes, the reader ends, and what it accepts is whole.
static void check_any(const unsigned char *file, size_t size)
{
    struct tool_npy npy;
    char why[256];
    float sum = 0;

    if (!read_bytes(file, size, TOOL_NPY_F32, 2, &npy, why))
        return;
    assert_int_equal(npy.bytes, npy.count * sizeof(float));
    assert_true(npy.bytes <= size);
    for (size_t i = 0; i < npy.count; i++)
        sum += ((const float *)npy.data)[i];
    assert_true(isnan(sum) || sum <= INFINITY);
    tool_npy_free(&npy);
}

static void test_mutations(void **state)
{
    static const unsigned char values[] = {0, 1, '\'', '(', ')', ',', '-', '0', '9', ':', '{', '}',
                                           'T', '\\', 0x7f, 0x80, 0xff};
    unsigned char good[FILE_MAX], file[FILE_MAX];
    size_t size = make(good, 1, HEAD("'<f4'", "False", "(2, 3)"), six, sizeof six);
    uint32_t random = 1;

    (void)state;
    for (size_t at = 0; at < size; at++) {
        for (size_t v = 0; v < sizeof values; v++) {
            memcpy(file, good, size);
            file[at] = values[v];
            check_any(file, size);
        }
    }
    for (int round = 0; round < 3000; round++) {
        memcpy(file, good, size);
        for (int k = 0; k < 1 + round % 8; k++) {
            random = random * 1664525u + 1013904223u;
            file[(random >> 8) % size] = (unsigned char)(random >> 24);
        }
        check_any(file, size);
    }
}

static void test_pipe(void **state)
{
    unsigned char file[FILE_MAX];
    struct tool_npy npy;
    char why[256];
    size_t size = make(file, 1, HEAD("'<f4'", "False", "(2, 3)"), six, sizeof six);

    (void)state;
    // Whole; short; with more behind it; and one that promises 4 TiB.
    for (int round = 0; round < 4; round++) {
        int ends[2];
        size_t n = round == 1 ? size - 1 : round == 2 ? size + 1 : size;
        if (round == 3)
            n = make(file, 1, HEAD("'<f4'", "False", "(1099511627776, 1)"), six, sizeof six);
        assert_int_equal(pipe(ends), 0);
        assert_int_equal(write(ends[1], file, n), n);
        close(ends[1]);
        FILE *stream = fdopen(ends[0], "rb");
        bool ok = tool_npy_read_stream(stream, TOOL_NPY_F32, 2, &npy, why, sizeof why);
        fclose(stream);
        assert_int_equal(ok, round == 0);
        if (ok) {
            assert_memory_equal(npy.data, six, sizeof six);
            tool_npy_free(&npy);
        } else {
            assert_non_null(strstr(why, "data"));
        }
    }
}

// Of several types the file's own one counts, and 0 axes stand for 1 or 2.
static void test_types(void **state)
{
    static const struct {
        const char *descr;
        enum tool_npy_dtype dtype;
        size_t size;
    } types[] = {{"<f4", TOOL_NPY_F32, 4}, {"|b1", TOOL_NPY_BOOL, 1}, {"<f2", TOOL_NPY_F16, 2},
                 {"<u2", TOOL_NPY_U16, 2}, {"<i4", TOOL_NPY_I32, 4}, {"<i8", TOOL_NPY_I64, 8}};
    enum { TYPES = sizeof types / sizeof *types };

    (void)state;
    for (int i = 0; i < TYPES; i++) {
        unsigned char file[FILE_MAX], data[24];
        struct tool_npy npy;
        char why[256], header[128];
        for (size_t n = 0; n < sizeof data; n++)
            data[n] = (unsigned char)(n + 1);
        snprintf(header, sizeof header,
                 "{'descr': '%s', 'fortran_order': False, 'shape': (3,), }\n", types[i].descr);
        const size_t size = make(file, 1, header, data, 3 * types[i].size);
        for (unsigned wanted = 1; wanted < 1u << TYPES; wanted++) {
            const bool fits = wanted & (unsigned)types[i].dtype;
            assert_int_equal(read_bytes(file, size, wanted, 0, &npy, why), fits);
            if (fits) {
                assert_int_equal(npy.dtype, types[i].dtype);
                assert_int_equal(npy.bytes, 3 * types[i].size);
                assert_memory_equal(npy.data, data, npy.bytes);
                tool_npy_free(&npy);
            } else if (!strstr(why, types[i].descr)) {
                fail_msg("%s: '%s'", types[i].descr, why);
            }
        }
        assert_false(read_bytes(file, size, (unsigned)types[i].dtype, 2, &npy, why));
    }
    unsigned char file[FILE_MAX];
    struct tool_npy npy;
    char why[256];
    size_t size = make(file, 1, "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 2, 3), }\n",
                       six, sizeof six);
    assert_false(read_bytes(file, size, TOOL_NPY_F32, 0, &npy, why));
    assert_non_null(strstr(why, "it has 3 axes, but 1 or 2"));
    size = make(file, 1, HEAD("'<f8'", "False", "(2, 3)"), six, sizeof six);
    assert_false(read_bytes(file, size, TOOL_NPY_F32 | TOOL_NPY_F16 | TOOL_NPY_U16, 2, &npy, why));
    assert_non_null(strstr(why, "float32 ('<f4'), float16 ('<f2') or uint16 ('<u2') is needed"));
    assert_non_null(strstr(why, ": .astype('float32') converts"));
    size = make(file, 1, HEAD("'<i8'", "False", "(2, 3)"), six, sizeof six);
    assert_false(read_bytes(file, size, TOOL_NPY_I32, 2, &npy, why));
    assert_non_null(strstr(why, ": .astype('int32') converts"));
    assert_false(read_bytes(file, size, TOOL_NPY_BOOL, 2, &npy, why));
    assert_null(strstr(why, "astype"));
}

static void test_round_trip(void **state)
{
    static const int64_t shapes[][4] = {{2, 3, 1, 1}, {6, 1, 1, 1}, {1, 1, 2, 3}, {5, 0, 2, 1}};

    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        for (int ndim = i == 0 ? 2 : 4; ndim <= 4; ndim++) {
            struct tool_npy npy;
            char why[256];
            FILE *stream = tmpfile();
            assert_non_null(stream);
            assert_true(tool_npy_write(stream, TOOL_NPY_F32, six, ndim, shapes[i]));
            rewind(stream);
            if (!tool_npy_read_stream(stream, TOOL_NPY_F32, ndim, &npy, why, sizeof why))
                fail_msg("%s", why);
            assert_memory_equal(npy.shape, shapes[i], (size_t)ndim * sizeof npy.shape[0]);
            if (npy.count)
                assert_memory_equal(npy.data, six, sizeof six);
            assert_int_equal((ftell(stream) - (long)npy.bytes) % 64, 0);
            tool_npy_free(&npy);
            fclose(stream);
        }
    }
}

static void test_compare(void **state)
{
    const float want[] = {1, -2, 0, NAN, INFINITY, -INFINITY, 100};
    float got[7];
    struct tool_compare c;

    (void)state;
    memcpy(got, want, sizeof got);
    tool_compare(got, want, 7, 0, &c);
    assert_int_equal(c.over, 0);
    assert_true(c.max_error == 0);

    // Each element of its own: a difference just over and just under, then what is not finite.
    got[6] = 100.5f;
    tool_compare(got, want, 7, 0.004, &c);
    assert_int_equal(c.over, 1);
    assert_int_equal(c.worst, 6);
    assert_true(c.worst_error == 0.5);
    tool_compare(got, want, 7, 0.005, &c);
    assert_int_equal(c.over, 0);
    // The larger error is the smaller one beside its value.
    got[2] = 0.25f;
    tool_compare(got, want, 7, 0.005, &c);
    assert_int_equal(c.over, 1);
    assert_int_equal(c.worst, 2);
    assert_true(c.max_error == 0.5);
    for (int i = 0; i < 7; i++) {
        static const float others[] = {NAN, INFINITY, -INFINITY, 3};
        for (int k = 0; k < 4; k++) {
            memcpy(got, want, sizeof got);
            got[i] = others[k];
            bool same = isnan(want[i]) ? isnan(got[i]) : got[i] == want[i];
            tool_compare(got, want, 7, 1e-5, &c);
            assert_int_equal(c.over, same ? 0 : 1);
            if (!same)
                assert_int_equal(c.worst, i);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good_headers), cmocka_unit_test(test_bool_and_empty),
        cmocka_unit_test(test_bad_headers),  cmocka_unit_test(test_bad_start),
        cmocka_unit_test(test_truncated_anywhere), cmocka_unit_test(test_mutations),
        cmocka_unit_test(test_pipe),         cmocka_unit_test(test_types),
        cmocka_unit_test(test_round_trip),   cmocka_unit_test(test_compare),
    };
    return cmocka_run_group_tests_name("npy", tests, NULL, NULL);
}
