// SPDX-License-Identifier: Apache-2.0
// ocl/cache: the file format, keys, settings and the bound, on made-up devices.
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#if !defined(_WIN32)
#include <sys/wait.h>
#endif

#include <cmocka.h>

#include "ocl/cache.h"
#include "util/host_facts.h"
#include "portable.h"
#include "record_log.h"

static struct record record;
static char dir[64];
static char why[CLA_CACHE_WHY];

static const struct cla_cache_key some_key = {"program", "-DX=1", "__kernel void k(void) {}"};

static int set_up(void **state)
{
    (void)state;
    strcpy(dir, P_tmpdir "/cla_cache_XXXXXX");
    unsetenv("CLATTN_CACHE");
    unsetenv("CLATTN_CACHE_DIR");
    unsetenv("CLATTN_CACHE_MAX_MIB");
    record_start(&record, CLATTN_LOG_DEBUG);
    return mkdtemp(dir) ? 0 : -1;
}

// Calls `each` for every file of the folder; the number of files.
static int walk(void (*each)(const char *path))
{
    DIR *d = opendir(dir);
    if (!d)
        return 0;
    int n = 0;
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        char path[400];
        if (e->d_name[0] == '.')
            continue;
        n++;
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        if (each)
            each(path);
    }
    closedir(d);
    return n;
}

static void remove_file(const char *path)
{
    unlink(path);
}

static int tear_down(void **state)
{
    (void)state;
    walk(remove_file);
    return rmdir(dir);
}

static struct cla_cache *open_with(const char *facts, uint64_t max_bytes)
{
    const struct cla_cache_settings settings = {.dir = dir, .max_bytes = max_bytes};
    struct cla_cache *cache = cla_cache_open(&settings, facts, &record.log);
    if (!cache)
        fail_msg("%s", record.text);
    return cache;
}

static void put(const struct cla_cache *cache, const struct cla_cache_key *key, const char *text)
{
    if (!cla_cache_put(cache, key, text, strlen(text), why) || why[0])
        fail_msg("%s", why);
}

// What is found; "" where it is no hit.
static enum cla_cache_found get(const struct cla_cache *cache, const struct cla_cache_key *key,
                                char *text, size_t text_size)
{
    void *data = NULL;
    size_t size = 0;
    const enum cla_cache_found found = cla_cache_get(cache, key, &data, &size, why);
    assert_true((found == CLA_CACHE_HIT) == (data != NULL));
    assert_true((found == CLA_CACHE_REFUSED || found == CLA_CACHE_DAMAGED) == (why[0] != '\0'));
    assert_true(size < text_size);
    if (data)
        memcpy(text, data, size);
    text[size] = '\0';
    free(data);
    return found;
}

// ---- format ------------------------------------------------------------------------------------

static const char key_text[] = "a key", payload[] = "payload\0with zero";

static unsigned char *sample(size_t *size)
{
    unsigned char *file =
        cla_cache_encode(key_text, sizeof key_text, payload, sizeof payload, size);
    assert_non_null(file);
    assert_int_equal(*size, CLA_CACHE_HEAD + sizeof key_text + sizeof payload + CLA_CACHE_TAIL);
    return file;
}

static const void *decode(const void *file, size_t size, size_t *data_size)
{
    const char *reason = "untouched";
    const void *data =
        cla_cache_decode(file, size, key_text, sizeof key_text, data_size, &reason);
    assert_true((data != NULL) == (reason == NULL));
    assert_true(data || *data_size == 0);
    return data;
}

static void a_file_is_what_the_header_says(void **state)
{
    (void)state;
    size_t size = 0, data_size = 0;
    unsigned char *file = sample(&size);
    static const unsigned char head[CLA_CACHE_HEAD] = {
        'c', 'l', 'a', 't', 't', 'n', '\r', '\n', CLA_CACHE_FORMAT, 0, 0, 0, 0, 0, 0, 0,
        sizeof key_text, 0, 0, 0, 0, 0, 0, 0, sizeof payload, 0, 0, 0, 0, 0, 0, 0};
    assert_memory_equal(file, head, sizeof head);
    const void *data = decode(file, size, &data_size);
    assert_int_equal(data_size, sizeof payload);
    assert_memory_equal(data, payload, sizeof payload);
    free(file);

    file = cla_cache_encode("", 0, NULL, 0, &size); // nothing at all
    const char *reason = NULL;
    assert_non_null(cla_cache_decode(file, size, "", 0, &data_size, &reason));
    assert_int_equal(data_size, 0);
    free(file);
}

static void every_length_but_its_own_is_refused(void **state)
{
    (void)state;
    size_t size = 0, data_size = 0;
    unsigned char *file = sample(&size);
    for (size_t n = 0; n < size; n++) {
        unsigned char *cut = malloc(n + 1); // its own memory, so that sanitizers see a read past it
        assert_non_null(cut);
        memcpy(cut, file, n);
        unsigned char *exact = realloc(cut, n ? n : 1);
        assert_null(decode(exact, n, &data_size));
        free(exact);
    }
    unsigned char *longer = calloc(1, size + 16);
    memcpy(longer, file, size);
    for (size_t n = size + 1; n <= size + 16; n++)
        assert_null(decode(longer, n, &data_size));
    free(longer);
    free(file);
}

static void every_flipped_bit_is_refused(void **state)
{
    (void)state;
    size_t size = 0, data_size = 0;
    unsigned char *file = sample(&size);
    for (size_t i = 0; i < size; i++) {
        for (int bit = 0; bit < 8; bit++) {
            file[i] ^= (unsigned char)(1 << bit);
            assert_null(decode(file, size, &data_size));
            file[i] ^= (unsigned char)(1 << bit);
        }
        const unsigned char was = file[i];
        file[i] = (unsigned char)~was;
        assert_null(decode(file, size, &data_size));
        file[i] = was;
    }
    assert_non_null(decode(file, size, &data_size));
    free(file);
}

static void another_key_is_refused(void **state)
{
    (void)state;
    size_t size = 0, data_size = 0;
    const char *reason = NULL;
    unsigned char *file = sample(&size);
    assert_null(cla_cache_decode(file, size, "a kez", sizeof key_text, &data_size, &reason));
    assert_non_null(strstr(reason, "something else"));
    assert_null(cla_cache_decode(file, size, key_text, sizeof key_text - 1, &data_size, &reason));
    free(file);
}

// ---- keys --------------------------------------------------------------------------------------

static void what_was_put_is_found(void **state)
{
    (void)state;
    char text[64];
    struct cla_cache *cache = open_with("device 1", 0);
    assert_int_equal(get(cache, &some_key, text, sizeof text), CLA_CACHE_MISS);
    put(cache, &some_key, "binary");
    assert_int_equal(get(cache, &some_key, text, sizeof text), CLA_CACHE_HIT);
    assert_string_equal(text, "binary");
    put(cache, &some_key, "newer");
    cla_cache_close(&cache);
    assert_null(cache);
    cla_cache_close(&cache);
    cla_cache_close(NULL);

    cache = open_with("device 1", 0);
    assert_int_equal(get(cache, &some_key, text, sizeof text), CLA_CACHE_HIT);
    assert_string_equal(text, "newer");
    assert_int_equal(walk(NULL), 1);
    cla_cache_remove(cache, &some_key);
    assert_int_equal(get(cache, &some_key, text, sizeof text), CLA_CACHE_MISS);
    assert_int_equal(get(NULL, &some_key, text, sizeof text), CLA_CACHE_MISS);
    assert_false(cla_cache_put(NULL, &some_key, "x", 1, why));
    cla_cache_remove(NULL, &some_key);
    cla_cache_close(&cache);
}

static void every_part_of_the_key_counts(void **state)
{
    (void)state;
    char text[64];
    static const struct {
        const char *facts;
        struct cla_cache_key key;
    } rows[] = {
        {"d", {"program", "-DX=1", "text"}},  {"e", {"program", "-DX=1", "text"}},
        {"d", {"program", "-DX=2", "text"}},  {"d", {"program", "-DX=1", "texs"}},
        {"d", {"self-test", "-DX=1", "text"}}, {"d", {"program", "-DX=1t", "ext"}},
        {"d", {"program", "", "-DX=1text"}},  {"", {"program", "-DX=1", "text"}},
        {"d", {"program", "-DX=1", ""}},      {"d\n5:-DX=1", {"program", "", "text"}},
    };
    enum { ROWS = sizeof rows / sizeof *rows };
    for (int i = 0; i < ROWS; i++) {
        struct cla_cache *cache = open_with(rows[i].facts, 0);
        assert_int_equal(get(cache, &rows[i].key, text, sizeof text), CLA_CACHE_MISS);
        char number[16];
        snprintf(number, sizeof number, "%d", i);
        put(cache, &rows[i].key, number);
        cla_cache_close(&cache);
    }
    for (int i = 0; i < ROWS; i++) {
        struct cla_cache *cache = open_with(rows[i].facts, 0);
        assert_int_equal(get(cache, &rows[i].key, text, sizeof text), CLA_CACHE_HIT);
        assert_int_equal(atoi(text), i);
        cla_cache_close(&cache);
    }
    assert_int_equal(walk(NULL), ROWS);
}

enum { TEXTS = 9, FACTS = 16 };

static cl_int CL_API_CALL device_info(cl_device_id device, cl_device_info fact, size_t size,
                                      void *value, size_t *needed)
{
    // The "device" is a list of texts: each fact has its own, some of the platform, then numbers.
    static const cl_device_info texts[] = {CL_DEVICE_NAME, CL_DEVICE_VENDOR, CL_DRIVER_VERSION,
                                           CL_DEVICE_VERSION, CL_DEVICE_OPENCL_C_VERSION,
                                           CL_DEVICE_EXTENSIONS};
    static const cl_device_info numbers[FACTS - TEXTS] = {
        CL_DEVICE_LOCAL_MEM_SIZE, CL_DEVICE_TYPE, CL_DEVICE_VENDOR_ID, CL_DEVICE_ADDRESS_BITS,
        CL_DEVICE_NATIVE_VECTOR_WIDTH_FLOAT, CL_DEVICE_MAX_WORK_GROUP_SIZE,
        CL_DEVICE_LOCAL_MEM_TYPE};
    const char *const *list = (const char *const *)(const void *)device;
    for (int i = 0; i < 6; i++)
        if (fact == texts[i]) {
            if (needed)
                *needed = strlen(list[i]) + 1;
            if (value && size > strlen(list[i]))
                memcpy(value, list[i], strlen(list[i]) + 1);
            return CL_SUCCESS;
        }
    if (fact == CL_DEVICE_PLATFORM) {
        memcpy(value, &list, sizeof list);
        return CL_SUCCESS;
    }
    for (int i = TEXTS; i < FACTS; i++)
        if (fact == numbers[i - TEXTS]) {
            const cl_ulong n = strtoull(list[i], NULL, 10);
            memcpy(value, &n, sizeof n);
            return CL_SUCCESS;
        }
    return CL_INVALID_VALUE; // a fact that this driver does not know
}

static cl_int CL_API_CALL platform_info(cl_platform_id platform, cl_platform_info fact, size_t size,
                                        void *value, size_t *needed)
{
    const char *const *list = (const char *const *)(const void *)platform;
    const int i = fact == CL_PLATFORM_NAME ? 6 : fact == CL_PLATFORM_VENDOR ? 7 : 8;
    if (needed)
        *needed = strlen(list[i]) + 1;
    if (value && size > strlen(list[i]))
        memcpy(value, list[i], strlen(list[i]) + 1);
    return CL_SUCCESS;
}

static char *facts_of(const char *const *list)
{
    const struct cla_cl cl = {.GetDeviceInfo = device_info, .GetPlatformInfo = platform_info};
    char *facts = cla_cache_facts(&cl, (cl_device_id)(void *)list);
    assert_non_null(facts);
    return facts;
}

static void every_fact_of_a_device_counts(void **state)
{
    (void)state;
    const char *list[FACTS] = {"name", "vendor", "driver 1", "OpenCL 3.0", "OpenCL C 1.2",
                               "cl_khr_x", "platform", "its vendor", "OpenCL 3.0 p", "32768",
                               "2", "4318", "64", "8", "4096", "1"};
    char *before = facts_of(list), *again = facts_of(list);
    assert_string_equal(before, again);
    free(again);
    char version[32];
    snprintf(version, sizeof version, "%d.%d.%d", CLATTN_VERSION_MAJOR, CLATTN_VERSION_MINOR,
             CLATTN_VERSION_PATCH);
    assert_non_null(strstr(before, version));
    char *cpu = cla_host_cpu(); // of which compilers on the CPU make use
    assert_non_null(cpu);
    assert_non_null(strstr(before, cpu));
    free(cpu);
    for (int i = 0; i < FACTS; i++) {
        const char *was = list[i];
        list[i] = i >= TEXTS ? "16384" : "changed";
        char *other = facts_of(list);
        assert_string_not_equal(before, other);
        free(other);
        list[i] = was;
    }
    // Long texts are not cut, and drivers are told how to compile by their environment.
    char text[3000];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    list[5] = text;
    char *first = facts_of(list);
    text[sizeof text - 2] = 'y';
    char *second = facts_of(list);
    assert_string_not_equal(first, second);
    setenv("POCL_WORK_GROUP_METHOD", "cbs", 1);
    char *third = facts_of(list);
    unsetenv("POCL_WORK_GROUP_METHOD");
    assert_string_not_equal(second, third);
    setenv("POCL_CACHE_DIR", "elsewhere", 1);
    char *fourth = facts_of(list);
    unsetenv("POCL_CACHE_DIR");
    assert_string_equal(second, fourth);
    free(before);
    free(first);
    free(second);
    free(third);
    free(fourth);
}

// ---- settings ----------------------------------------------------------------------------------

static void switches_and_folders(void **state)
{
    (void)state;
    struct cla_cache_settings settings = {.dir = dir, .off = true};
    assert_null(cla_cache_open(&settings, "d", &record.log));
    assert_int_equal(record.count[CLATTN_LOG_INFO], 1);
    settings.off = false;
    setenv("CLATTN_CACHE", "0", 1);
    assert_null(cla_cache_open(&settings, "d", &record.log));
    setenv("CLATTN_CACHE", "1", 1);
    struct cla_cache *cache = cla_cache_open(&settings, "d", &record.log);
    assert_non_null(cache);
    cla_cache_close(&cache);
    assert_null(cla_cache_open(&settings, NULL, &record.log)); // no memory for the facts

    settings.dir = "";
    setenv("CLATTN_CACHE_DIR", dir, 1);
    cache = cla_cache_open(&settings, "d", &record.log);
    put(cache, &some_key, "x");
    assert_int_equal(walk(NULL), 1);
    cla_cache_close(&cache);
    unsetenv("CLATTN_CACHE_DIR");

#if defined(_WIN32)
    static const char variable[] = "LOCALAPPDATA";
#else
    static const char variable[] = "HOME";
#endif
    char *home = getenv(variable) ? strdup(getenv(variable)) : NULL;
    unsetenv(variable);
    unsetenv("XDG_CACHE_HOME");
    record_start(&record, CLATTN_LOG_DEBUG);
    assert_null(cla_cache_open(&settings, "d", &record.log));
    assert_int_equal(record.count[CLATTN_LOG_INFO], 1);
    assert_int_equal(record_total(&record), 1);
    if (home)
        setenv(variable, home, 1);
    free(home);

    char inside[128];
#if defined(_WIN32)
    snprintf(inside, sizeof inside, "NUL\\below"); // nothing can be made there
#else
    snprintf(inside, sizeof inside, "/proc/self/none/below");
#endif
    settings.dir = inside;
    assert_null(cla_cache_open(&settings, "d", &record.log));
    char too_long[2000];
    memset(too_long, 'x', sizeof too_long - 1);
    too_long[sizeof too_long - 1] = '\0';
    settings.dir = too_long;
    assert_null(cla_cache_open(&settings, "d", &record.log));
    assert_int_equal(record.count[CLATTN_LOG_INFO], 3);
#if !defined(_WIN32)
    assert_int_equal(chmod(dir, 0777), 0);
    settings.dir = dir;
    assert_null(cla_cache_open(&settings, "d", &record.log));
    assert_non_null(strstr(record.text, "others can't write to"));
    assert_int_equal(record.count[CLATTN_LOG_INFO], 4);
    assert_int_equal(chmod(dir, 0700), 0);
#endif
    assert_int_equal(record.count[CLATTN_LOG_WARN] + record.count[CLATTN_LOG_ERROR], 0);
}

static void the_bound_comes_from_the_environment(void **state)
{
    (void)state;
    static const struct {
        const char *value;
        unsigned long long mib;
        int warnings;
    } rows[] = {{"1", 1, 0},     {"200", 200, 0},  {"0", 64, 1},     {"-1", 64, 1},
                {"12x", 64, 1},  {"many", 64, 1},  {" 3", 64, 1},    {"17592186044416", 64, 1},
                {"17592186044415", 17592186044415u, 0}, {"99999999999999999999999", 64, 1}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char want[64];
        setenv("CLATTN_CACHE_MAX_MIB", rows[i].value, 1);
        record_start(&record, CLATTN_LOG_DEBUG);
        struct cla_cache *cache = open_with("d", 0);
        snprintf(want, sizeof want, "up to %llu bytes", rows[i].mib << 20);
        if (!strstr(record.text, want) || record.count[CLATTN_LOG_WARN] != rows[i].warnings)
            fail_msg("%s: %s", rows[i].value, record.text);
        cla_cache_close(&cache);
    }
    record_start(&record, CLATTN_LOG_DEBUG);
    struct cla_cache *cache = open_with("d", 12345); // the caller's own goes first
    assert_non_null(strstr(record.text, "up to 12345 bytes"));
    assert_int_equal(record.count[CLATTN_LOG_WARN], 0);
    cla_cache_close(&cache);
}

// ---- doubt -------------------------------------------------------------------------------------

static void flip_last(const char *path)
{
    FILE *file = fopen(path, "r+b");
    assert_non_null(file);
    assert_int_equal(fseek(file, -20, SEEK_END), 0);
    const int c = fgetc(file);
    assert_int_equal(fseek(file, -20, SEEK_END), 0);
    fputc(c ^ 0x10, file);
    fclose(file);
}

static void cut_short(const char *path)
{
    struct stat s;
    assert_int_equal(stat(path, &s), 0);
    assert_int_equal(truncate(path, s.st_size - 1), 0);
}

static void make_empty(const char *path)
{
    assert_int_equal(truncate(path, 0), 0);
}

#if !defined(_WIN32)
static void let_others_write(const char *path)
{
    assert_int_equal(chmod(path, 0666), 0);
}
#endif

static void damaged_files_are_removed(void **state)
{
    (void)state;
    char text[64];
    struct cla_cache *cache = open_with("d", 0);
    void (*const damage[])(const char *) = {flip_last, cut_short};
    for (int i = 0; i < 2; i++) {
        put(cache, &some_key, "some binary that is longer than twenty bytes");
        walk(damage[i]);
        assert_int_equal(get(cache, &some_key, text, sizeof text), CLA_CACHE_DAMAGED);
        assert_int_equal(walk(NULL), 0);
        assert_int_equal(get(cache, &some_key, text, sizeof text), CLA_CACHE_MISS);
    }
    put(cache, &some_key, "binary");
    walk(make_empty); // as a crash of the system can leave it: as if it were not there
    assert_int_equal(get(cache, &some_key, text, sizeof text), CLA_CACHE_MISS);
#if !defined(_WIN32)
    put(cache, &some_key, "binary");
    walk(let_others_write);
    assert_int_equal(get(cache, &some_key, text, sizeof text), CLA_CACHE_REFUSED);
#endif
    put(cache, &some_key, "binary");
    assert_int_equal(get(cache, &some_key, text, sizeof text), CLA_CACHE_HIT);
    cla_cache_close(&cache);
}

// Puts `size` bytes of `data` where the file was.
static void put_bytes(const char *path, const unsigned char *data, size_t size)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(chmod(path, 0600), 0);
}

static char of_other_key[400];

static void remember(const char *path)
{
    strcpy(of_other_key, path);
}

// Every length and every byte, through the folder.
static void no_damage_is_believed(void **state)
{
    (void)state;
    char text[64], path[400];
    unsigned char data[512];
    struct cla_cache *cache = open_with("d", 0);
    put(cache, &some_key, "some binary");
    walk(remember);
    strcpy(path, of_other_key);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    const size_t size = fread(data, 1, sizeof data, file);
    fclose(file);
    assert_in_range(size, CLA_CACHE_HEAD + CLA_CACHE_TAIL + 11, sizeof data - 1);
    for (size_t n = 0; n < size; n++) {
        put_bytes(path, data, n);
        assert_int_equal(get(cache, &some_key, text, sizeof text),
                         n ? CLA_CACHE_DAMAGED : CLA_CACHE_MISS);
        data[n] ^= (unsigned char)(1 + n % 255);
        put_bytes(path, data, size);
        assert_int_equal(get(cache, &some_key, text, sizeof text), CLA_CACHE_DAMAGED);
        assert_int_equal(walk(NULL), 0);
        data[n] ^= (unsigned char)(1 + n % 255);
    }
    put_bytes(path, data, size);
    assert_int_equal(get(cache, &some_key, text, sizeof text), CLA_CACHE_HIT);
    assert_string_equal(text, "some binary");
    cla_cache_close(&cache);
}

static void check_name(const char *path)
{
    const char *name = strrchr(path, '/') + 1;
    assert_int_equal(strspn(name, "0123456789abcdef"), 16);
    assert_string_equal(name + 16, ".clattn");
}

// Whatever is kept: sixteen digits and the ending.
static void names_are_digits(void **state)
{
    (void)state;
    static const char *const texts[] = {"", "../../x", "/etc/passwd", "a\nb", "%s%n", "\xff\xfe"};
    for (int i = 0; i < 6; i++)
        for (int n = 0; n < 6; n++) {
            struct cla_cache *cache = open_with(texts[n], 0);
            const struct cla_cache_key key = {texts[i], texts[5 - i], texts[n]};
            put(cache, &key, "x");
            cla_cache_close(&cache);
        }
    assert_int_equal(walk(check_name), 36);
}

// As if two keys had the same hash: the file's name says that it is the one, its key does not.
static void a_collision_gives_no_wrong_program(void **state)
{
    (void)state;
    char text[64], mine[400];
    const struct cla_cache_key other = {"program", "-DX=2", some_key.text};
    struct cla_cache *cache = open_with("d", 0);
    put(cache, &some_key, "mine");
    walk(remember);
    strcpy(mine, of_other_key);
    assert_int_equal(unlink(mine), 0);
    put(cache, &other, "theirs");
    walk(remember);
    assert_int_equal(rename(of_other_key, mine), 0);
    assert_int_equal(get(cache, &some_key, text, sizeof text), CLA_CACHE_DAMAGED);
    assert_non_null(strstr(why, "something else"));
    cla_cache_close(&cache);
}

static void the_bound_holds(void **state)
{
    (void)state;
    char text[2048], options[16];
    static char large[1000];
    memset(large, 'x', sizeof large - 1);
    struct cla_cache *cache = open_with("d", 5000);
    for (int i = 0; i < 12; i++) {
        snprintf(options, sizeof options, "-DX=%d", i);
        const struct cla_cache_key key = {"program", options, "text"};
        put(cache, &key, large);
        assert_int_equal(get(cache, &key, text, sizeof text), CLA_CACHE_HIT);
        assert_true(walk(NULL) <= 4);
        usleep(2000); // times of files are coarse
    }
    assert_int_equal(walk(NULL), 4);
    const struct cla_cache_key oldest = {"program", "-DX=0", "text"};
    assert_int_equal(get(cache, &oldest, text, sizeof text), CLA_CACHE_MISS);
    static char huge[6000];
    assert_false(cla_cache_put(cache, &oldest, huge, sizeof huge, why));
    assert_non_null(strstr(why, "more than the whole cache"));
    assert_int_equal(walk(NULL), 4);
    cla_cache_close(&cache);
}

// ---- two processes -----------------------------------------------------------------------------

#if !defined(_WIN32)
// Each round: what is there is right or absent, whatever the other one does to it. Each key is
// asked for twice in a row: one after the other only, no key would still be there when its turn
// comes, if the other process did not help.
static int work(int seed)
{
    const struct cla_cache_settings settings = {.dir = dir, .max_bytes = 9000};
    struct cla_cache *cache = cla_cache_open(&settings, "d", NULL);
    if (!cache)
        return 1;
    static char text[1500];
    int hits = 0;
    for (int i = 0; i < 300; i++) {
        char options[16];
        void *data = NULL;
        size_t size = 0;
        const int n = (i / 2 * 7 + seed) % 10;
        snprintf(options, sizeof options, "-DX=%d", n);
        const struct cla_cache_key key = {"program", options, "text"};
        memset(text, 'a' + n, sizeof text);
        const enum cla_cache_found found = cla_cache_get(cache, &key, &data, &size, why);
        if (found == CLA_CACHE_HIT) {
            hits++;
            if (size != sizeof text || memcmp(data, text, size) != 0)
                return 2;
            free(data);
        } else if (found != CLA_CACHE_MISS) {
            return 3;
        } else {
            cla_cache_put(cache, &key, text, sizeof text, why); // may lose to the other one's trim
        }
    }
    cla_cache_close(&cache);
    return hits > 0 ? 0 : 4;
}

static void two_processes_share_a_folder(void **state)
{
    (void)state;
    pid_t child[2];
    for (int i = 0; i < 2; i++) {
        fflush(NULL);
        child[i] = fork();
        assert_true(child[i] >= 0);
        if (child[i] == 0)
            _exit(work(5 * i));
    }
    for (int i = 0; i < 2; i++) {
        int status = -1;
        assert_int_equal(waitpid(child[i], &status, 0), child[i]);
        assert_int_equal(status, 0);
    }
}
#endif

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_is_what_the_header_says),
        cmocka_unit_test(every_length_but_its_own_is_refused),
        cmocka_unit_test(every_flipped_bit_is_refused),
        cmocka_unit_test(another_key_is_refused),
        TEST(what_was_put_is_found),
        TEST(every_part_of_the_key_counts),
        TEST(every_fact_of_a_device_counts),
        TEST(switches_and_folders),
        TEST(the_bound_comes_from_the_environment),
        TEST(damaged_files_are_removed),
        TEST(no_damage_is_believed),
        TEST(names_are_digits),
        TEST(a_collision_gives_no_wrong_program),
        TEST(the_bound_holds),
#if !defined(_WIN32)
        TEST(two_processes_share_a_folder),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
