// SPDX-License-Identifier: Apache-2.0
#include "npy.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "say.h"

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "npy.c: the data is used as it lies in the file, which is little-endian"
#endif

static const char magic[6] = {'\x93', 'N', 'U', 'M', 'P', 'Y'};

// Reader of the header, a Python dict literal. NumPy's own reader evaluates it as Python, so white
// space, both kinds of quotes, any order of the keys and trailing commas are legal.
struct parser {
    const char *at, *end;
    char *why;
    size_t why_size;
    unsigned dtypes; // that are wanted
};

static const struct type {
    enum tool_npy_dtype dtype;
    const char *descr, *name;
    size_t size;
} types[] = {
    {TOOL_NPY_F32, "<f4", "float32 ('<f4')", 4}, {TOOL_NPY_BOOL, "|b1", "bool ('|b1')", 1},
    {TOOL_NPY_F16, "<f2", "float16 ('<f2')", 2}, {TOOL_NPY_U16, "<u2", "uint16 ('<u2')", 2},
    {TOOL_NPY_I32, "<i4", "int32 ('<i4')", 4},   {TOOL_NPY_I64, "<i8", "int64 ('<i8')", 8},
};
enum { TYPES = sizeof types / sizeof *types };

static const struct type *type_of(enum tool_npy_dtype dtype)
{
    const struct type *t = types;

    while (t->dtype != dtype)
        t++;
    return t;
}

size_t tool_npy_size(enum tool_npy_dtype dtype)
{
    return type_of(dtype)->size;
}

const char *tool_npy_name(enum tool_npy_dtype dtype)
{
    return type_of(dtype)->name;
}

TOOL_PRINTF(2, 3)
static bool refuse(struct parser *p, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    vsnprintf(p->why, p->why_size, format, args);
    va_end(args);
    return false;
}

static void skip_space(struct parser *p)
{
    while (p->at < p->end && memchr(" \t\r\n\f", *p->at, 5))
        p->at++;
}

static bool accept(struct parser *p, char c)
{
    skip_space(p);
    if (p->at == p->end || *p->at != c)
        return false;
    p->at++;
    return true;
}

static bool accept_word(struct parser *p, const char *word)
{
    size_t size = strlen(word);

    skip_space(p);
    if ((size_t)(p->end - p->at) < size || memcmp(p->at, word, size) != 0)
        return false;
    p->at += size;
    return true;
}

static bool accept_string(struct parser *p, char *text, size_t size)
{
    size_t used = 0;

    skip_space(p);
    if (p->at == p->end || (*p->at != '\'' && *p->at != '"'))
        return false;
    char quote = *p->at++;
    while (p->at < p->end && *p->at != quote) {
        char c = *p->at++;
        if (c < 0x20 || c == 0x7f || c == '\\' || used + 1 >= size)
            return false;
        text[used++] = c;
    }
    text[used] = 0;
    return accept(p, quote);
}

// "float32 ('<f4'), float16 ('<f2') or uint16 ('<u2')".
static void needed_text(unsigned dtypes, char *text, size_t size)
{
    size_t used = 0;

    for (int i = 0; i < TYPES && used < size; i++) {
        const unsigned bit = (unsigned)types[i].dtype;
        if (!(dtypes & bit))
            continue;
        dtypes &= ~bit;
        used += (size_t)snprintf(text + used, size - used, "%s%s",
                                 used == 0 ? "" : dtypes ? ", " : " or ", types[i].name);
    }
}

static bool parse_dtype(struct parser *p, struct tool_npy *npy)
{
    char descr[64], needed[160] = "";

    needed_text(p->dtypes, needed, sizeof needed);
    skip_space(p);
    if (p->at < p->end && *p->at == '[')
        return refuse(p, "dtype: it is structured, but %s is needed", needed);
    if (!accept_string(p, descr, sizeof descr))
        return refuse(p, "dtype: 'descr' in the header is no plain string");
    for (int i = 0; i < TYPES; i++) {
        if (!(p->dtypes & (unsigned)types[i].dtype))
            continue;
        npy->dtype = types[i].dtype;
        if (strcmp(descr, types[i].descr) == 0)
            return true;
        if (descr[0] == '>' && types[i].descr[0] == '<' &&
            strcmp(descr + 1, types[i].descr + 1) == 0)
            return refuse(p, "dtype: it is big-endian ('%s'), but %s is needed", descr, needed);
    }
    // What NumPy makes of plain numbers.
    const char *convert = "";
    if (strcmp(descr, "<f8") == 0 && (p->dtypes & TOOL_NPY_F32))
        convert = ": .astype('float32') converts";
    if (strcmp(descr, "<i8") == 0 && (p->dtypes & TOOL_NPY_I32))
        convert = ": .astype('int32') converts";
    return refuse(p, "dtype: it is '%s', but %s is needed%s", descr, needed, convert);
}

static bool parse_order(struct parser *p)
{
    if (accept_word(p, "False"))
        return true;
    if (accept_word(p, "True"))
        return refuse(p, "fortran_order: it is True, but C order is needed");
    return refuse(p, "fortran_order: it is neither True nor False");
}

static bool parse_extent(struct parser *p, int64_t *out)
{
    int64_t n = 0;
    bool digits = false;

    skip_space(p);
    if (p->at < p->end && *p->at == '-')
        return refuse(p, "shape: an extent is negative");
    for (; p->at < p->end && *p->at >= '0' && *p->at <= '9'; p->at++) {
        int digit = *p->at - '0';
        if (n > (INT64_MAX - digit) / 10)
            return refuse(p, "shape: an extent is over 2^63 - 1");
        n = 10 * n + digit;
        digits = true;
    }
    if (!digits)
        return refuse(p, "shape: it is no tuple of whole numbers");
    accept(p, 'L'); // written by Python 2
    *out = n;
    return true;
}

static bool parse_shape(struct parser *p, struct tool_npy *npy)
{
    bool comma = true;

    npy->ndim = 0;
    if (!accept(p, '('))
        return refuse(p, "shape: it is no tuple of whole numbers");
    while (!accept(p, ')')) {
        if (!comma)
            return refuse(p, "shape: it is no tuple of whole numbers");
        if (npy->ndim == TOOL_NPY_MAX_NDIM)
            return refuse(p, "shape: more than %d axes", TOOL_NPY_MAX_NDIM);
        if (!parse_extent(p, &npy->shape[npy->ndim++]))
            return false;
        comma = accept(p, ',');
    }
    // "(3)" is a number in Python, "(3,)" a tuple.
    if (npy->ndim == 1 && !comma)
        return refuse(p, "shape: it is no tuple of whole numbers");
    return true;
}

static bool parse_dict(struct parser *p, struct tool_npy *npy)
{
    static const char *const keys[] = {"descr", "fortran_order", "shape"};
    bool seen[3] = {false, false, false};
    bool comma = true;
    char key[64];

    if (!accept(p, '{'))
        return refuse(p, "header: it does not begin with '{'");
    while (!accept(p, '}')) {
        int k = 0;
        if (!comma || !accept_string(p, key, sizeof key) || !accept(p, ':'))
            return refuse(p, "header: it is no dict of descr, fortran_order and shape");
        while (k < 3 && strcmp(key, keys[k]) != 0)
            k++;
        if (k == 3)
            return refuse(p, "header: unknown key '%s'", key);
        if (seen[k])
            return refuse(p, "header: key '%s' is there twice", key);
        seen[k] = true;
        if (k == 0 ? !parse_dtype(p, npy) : k == 1 ? !parse_order(p) : !parse_shape(p, npy))
            return false;
        comma = accept(p, ',');
    }
    for (int k = 0; k < 3; k++) {
        if (!seen[k])
            return refuse(p, "header: key '%s' is missing", keys[k]);
    }
    skip_space(p);
    if (p->at != p->end)
        return refuse(p, "header: there is something behind its '}'");
    return true;
}

static bool count_elements(struct parser *p, struct tool_npy *npy)
{
    const size_t size = tool_npy_size(npy->dtype);
    bool empty = false;

    for (int i = 0; i < npy->ndim; i++)
        empty = empty || npy->shape[i] == 0;
    npy->count = empty ? 0 : 1;
    for (int i = 0; !empty && i < npy->ndim; i++) {
        // Half the range, so that byte counts fit signed types as well.
        if ((uint64_t)npy->shape[i] > SIZE_MAX / 2 / size / npy->count)
            return refuse(p, "shape: the array is too large for this machine");
        npy->count *= (size_t)npy->shape[i];
    }
    npy->bytes = npy->count * size;
    return true;
}

static bool read_header(FILE *file, struct tool_npy *npy, struct parser *p)
{
    unsigned char head[8], size[4] = {0};
    char *text = NULL;

    if (fread(head, 1, sizeof head, file) != sizeof head || memcmp(head, magic, sizeof magic) != 0)
        return ferror(file) ? refuse(p, "it cannot be read: %s", strerror(errno))
                            : refuse(p, "magic: it is not a .npy file");
    if (head[6] < 1 || head[6] > 3 || head[7] != 0)
        return refuse(p, "version: it is %d.%d, but 1.0, 2.0 or 3.0 is needed", head[6], head[7]);
    size_t size_bytes = head[6] == 1 ? 2 : 4;
    if (fread(size, 1, size_bytes, file) != size_bytes)
        return refuse(p, "header: the file is truncated");
    size_t length = (size_t)size[0] | (size_t)size[1] << 8 | (size_t)size[2] << 16 |
                    (size_t)size[3] << 24;
    if (length > TOOL_NPY_MAX_HEADER)
        return refuse(p, "header: its length %zu is over the limit %d", length,
                      TOOL_NPY_MAX_HEADER);
    text = malloc(length + 1);
    if (!text)
        return refuse(p, "header: out of memory");
    bool ok = fread(text, 1, length, file) == length;
    if (!ok) {
        refuse(p, "header: the file is truncated");
    } else {
        p->at = text;
        p->end = text + length;
        ok = parse_dict(p, npy) && count_elements(p, npy);
    }
    free(text);
    return ok;
}

// Of a regular file the size is known before anything is allocated.
static bool check_file_size(FILE *file, const struct tool_npy *npy, struct parser *p)
{
    struct stat info;

    if (fstat(fileno(file), &info) != 0 || !S_ISREG(info.st_mode))
        return true;
    off_t at = ftello(file);
    if (at < 0 || info.st_size < at)
        return true;
    uint64_t there = (uint64_t)(info.st_size - at);
    if (there < npy->bytes)
        return refuse(p, "data: the file is truncated, %zu bytes are needed and %llu are there",
                      npy->bytes, (unsigned long long)there);
    if (there > npy->bytes)
        return refuse(p, "data: %zu bytes are needed and %llu are there", npy->bytes,
                      (unsigned long long)there);
    return true;
}

static bool read_data(FILE *file, struct tool_npy *npy, struct parser *p)
{
    const size_t step = (size_t)64 << 20;
    size_t used = 0, room = 0;

    if (!check_file_size(file, npy, p))
        return false;
    // Grown as the data comes, since a pipe may promise more than it holds.
    while (used < npy->bytes) {
        if (used == room) {
            room = room ? (room > npy->bytes / 2 ? npy->bytes : 2 * room) : step;
            room = room < npy->bytes ? room : npy->bytes;
            void *data = realloc(npy->data, room);
            if (!data)
                return refuse(p, "data: out of memory for %zu bytes", npy->bytes);
            npy->data = data;
        }
        size_t n = fread((char *)npy->data + used, 1, room - used, file);
        if (n == 0)
            return ferror(file) ? refuse(p, "data: it cannot be read: %s", strerror(errno))
                                : refuse(p, "data: the file is truncated, %zu bytes are needed "
                                            "and %zu are there",
                                         npy->bytes, used);
        used += n;
    }
    if (getc(file) != EOF)
        return refuse(p, "data: there is more than the %zu bytes that are needed", npy->bytes);
    return true;
}

bool tool_npy_read_stream(FILE *file, unsigned dtypes, int ndim, struct tool_npy *out, char *why,
                          size_t why_size)
{
    struct parser p = {NULL, NULL, why, why_size, dtypes};

    memset(out, 0, sizeof *out);
    bool ok = read_header(file, out, &p);
    if (ok && ndim == 0 && (out->ndim < 1 || out->ndim > 2))
        ok = refuse(&p, "shape: it has %d axes, but 1 or 2 are needed", out->ndim);
    if (ok && ndim && out->ndim != ndim)
        ok = refuse(&p, "shape: it has %d axes, but %d are needed", out->ndim, ndim);
    ok = ok && read_data(file, out, &p);
    if (!ok) {
        const int axes = out->ndim;
        tool_npy_free(out);
        out->ndim = axes;
    }
    return ok;
}

bool tool_npy_read(const char *path, unsigned dtypes, int ndim, struct tool_npy *out, char *why,
                   size_t why_size)
{
    struct stat info;
    FILE *file = fopen(path, "rb");

    memset(out, 0, sizeof *out);
    if (!file) {
        snprintf(why, why_size, "it cannot be opened: %s", strerror(errno));
        return false;
    }
    bool ok = false;
    if (fstat(fileno(file), &info) == 0 && S_ISDIR(info.st_mode))
        snprintf(why, why_size, "it is a directory");
    else
        ok = tool_npy_read_stream(file, dtypes, ndim, out, why, why_size);
    fclose(file);
    return ok;
}

void tool_npy_free(struct tool_npy *npy)
{
    free(npy->data);
    memset(npy, 0, sizeof *npy);
}

void tool_npy_shape_text(int ndim, const int64_t *shape, char *text, size_t size)
{
    size_t used = (size_t)snprintf(text, size, "(");

    for (int i = 0; i < ndim && used < size; i++)
        used += (size_t)snprintf(text + used, size - used, "%s%lld", i ? ", " : "",
                                 (long long)shape[i]);
    if (used < size)
        snprintf(text + used, size - used, ndim == 1 ? ",)" : ")");
}

bool tool_npy_write(FILE *file, enum tool_npy_dtype dtype, const void *data, int ndim,
                    const int64_t *shape)
{
    const struct type *type = type_of(dtype);
    char tuple[256], header[512];
    unsigned char head[10];
    size_t count = 1;

    for (int i = 0; i < ndim; i++)
        count *= (size_t)shape[i];
    tool_npy_shape_text(ndim, shape, tuple, sizeof tuple);
    int length = snprintf(header, sizeof header,
                          "{'descr': '%s', 'fortran_order': False, 'shape': %s, }", type->descr,
                          tuple);
    // NumPy pads with spaces and a newline so that the data lies at a multiple of 64.
    while ((sizeof head + (size_t)length + 1) % 64)
        header[length++] = ' ';
    header[length++] = '\n';
    memcpy(head, magic, sizeof magic);
    head[6] = 1;
    head[7] = 0;
    head[8] = (unsigned char)(length & 0xff);
    head[9] = (unsigned char)(length >> 8);
    return fwrite(head, 1, sizeof head, file) == sizeof head &&
           fwrite(header, 1, (size_t)length, file) == (size_t)length &&
           fwrite(data, type->size, count, file) == count;
}
