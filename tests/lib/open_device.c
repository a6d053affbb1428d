// SPDX-License-Identifier: Apache-2.0
#include "open_device.h"

#include <ctype.h>
#include <stdarg.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "data.h"
#include "portable.h"
#include "run_case.h"

// ---- names --------------------------------------------------------------------------------------

static const char *const known_names[][2] = {
    {"pocl", "portable computing language"},
    {"intel", "intel"},
    {"llvmpipe", "llvmpipe"},
    {"oclgrind", "oclgrind"},
};

static bool contains(const char *text, const char *lower_part)
{
    const size_t len = strlen(lower_part);
    for (; *text; text++) {
        size_t n = 0;
        while (n < len && tolower((unsigned char)text[n]) == lower_part[n])
            n++;
        if (n == len)
            return true;
    }
    return len == 0;
}

// `name` is one element of a list in the environment, in lower case.
static bool device_fits(const clattn_device_info *info, const char *name)
{
    for (size_t n = 0; n < sizeof known_names / sizeof known_names[0]; n++)
        if (strcmp(name, known_names[n][0]) == 0) {
            // The processor's own name holds "intel" on many machines: only the platform counts.
            return contains(info->platform, known_names[n][1]) ||
                   (strcmp(name, "intel") != 0 && contains(info->name, known_names[n][1]));
        }
    return contains(info->platform, name) || contains(info->name, name);
}

// Calls `each` for the elements of the list in an environment variable until it returns true.
static bool any_in_list(const char *variable, bool (*each)(const char *name, void *user),
                        void *user)
{
    const char *list = getenv(variable);
    while (list && *list) {
        char name[64];
        size_t len = strcspn(list, ", ");
        if (len > 0 && len < sizeof name) {
            for (size_t n = 0; n < len; n++)
                name[n] = (char)tolower((unsigned char)list[n]);
            name[len] = '\0';
            if (each(name, user))
                return true;
        }
        list += len + (list[len] != '\0');
    }
    return false;
}

static bool fits_device(const char *name, void *info)
{
    return device_fits(info, name);
}

static bool set_in_env(const char *variable)
{
    const char *value = getenv(variable);
    return value && *value;
}

// ---- devices ------------------------------------------------------------------------------------

// Programs that were compiled elsewhere would hide faults, and the folder of whoever runs a test is
// not the test's: the cache is off in every program of this library, also when run by hand. So are
// tiles that were measured there: what is planned follows from the rules.
__attribute__((constructor)) static void no_program_cache(void)
{
    setenv("CLATTN_CACHE", "0", 1);
    setenv("CLATTN_TUNE", "0", 1);
}

void log_capture(void *user, clattn_log_level level, const char *message)
{
    struct log_capture *log = user;
    const size_t used = strlen(log->text);
    snprintf(log->text + used, sizeof log->text - used, "%s\n", message);
    log->errors += level == CLATTN_LOG_ERROR;
}

static void print_log(void *user, clattn_log_level level, const char *message)
{
    struct test_device *d = user;
    if (d->capture) {
        log_capture(d->capture, level, message);
        return;
    }
    d->warnings += level <= CLATTN_LOG_WARN;
    printf("    %s: %s\n", d->tag, message);
}

bool takes_threads(const clattn_device_info *info)
{
    return strcmp(info->platform, "Oclgrind") != 0 && strcmp(info->platform, "rusticl") != 0;
}

// Without vectors of their own, software devices take minutes for what others do in seconds.
static int level_of(const clattn_device_info *info)
{
    if (set_in_env("CLATTN_TEST_SMALL") || contains(info->platform, "oclgrind"))
        return LEVEL_SMALL;
    const bool slow = info->type == CLATTN_DEVICE_CPU && info->native_width_f32 < 4;
    return slow || set_in_env("CLATTN_TEST_MEDIUM") ? LEVEL_MEDIUM : LEVEL_FULL;
}

static clattn_status open_one(struct test_device *d, const char *selector, uint32_t flags)
{
    clattn_context_desc desc;
    clattn_context_desc_init(&desc, sizeof desc);
    desc.device = selector;
    desc.flags = flags;
    desc.log = print_log;
    desc.log_user = d;
    clattn_status st = clattn_context_create(&desc, &d->ctx);
    d->info.struct_size = sizeof d->info;
    return st ? st : clattn_context_get_device_info(d->ctx, &d->info);
}

bool device_open_builtin(struct test_device *d)
{
    memset(d, 0, sizeof *d);
    snprintf(d->tag, sizeof d->tag, "cpu");
    d->level = set_in_env("CLATTN_TEST_SMALL") ? LEVEL_SMALL : LEVEL_FULL;
    return open_one(d, "cpu", CLATTN_CONTEXT_NO_OPENCL) == CLATTN_OK;
}

struct search {
    const struct test_device *devices;
    int count;
};

static bool is_missing(const char *name, void *user)
{
    const struct search *s = user;
    for (int n = 0; n < s->count; n++)
        if (device_fits(&s->devices[n].info, name))
            return false;
    printf("CLATTN_TEST_EXPECT names %s, and there is no such device that works\n", name);
    return true;
}

bool devices_open(struct test_device *devices, int *count)
{
    int32_t all = 0, tried = 0;
    *count = 0;
    if (clattn_device_count(NULL, &all) != CLATTN_OK)
        return false;
    for (int32_t index = 0; index < all - 1 && *count < DEVICES_MAX; index++) {
        clattn_device_info info = {.struct_size = sizeof info};
        if (clattn_device_get_info(NULL, index, &info) != CLATTN_OK)
            return false;
        if (set_in_env("CLATTN_TEST_ONLY") && !any_in_list("CLATTN_TEST_ONLY", fits_device, &info))
            continue;
        tried++;
        struct test_device *d = &devices[*count];
        memset(d, 0, sizeof *d);
        char selector[16];
        snprintf(selector, sizeof selector, "%d", index);
        snprintf(d->tag, sizeof d->tag, "%.20s/%.36s", info.platform, info.name);
        clattn_status st = open_one(d, selector, 0);
        printf("device %d: %s, %s, driver %s: %s\n", index, info.platform, info.name, info.driver,
               st ? clattn_status_string(st) : "opened");
        if (st)
            continue;
        // The context must stand on the device that was asked for.
        if (strcmp(d->info.name, info.name) || strcmp(d->info.platform, info.platform)) {
            printf("asked for %s, got %s\n", info.name, d->info.name);
            return false;
        }
        d->level = level_of(&d->info);
        (*count)++;
    }
    if (tried > 0 && *count == 0) {
        printf("there are OpenCL devices, and none works\n");
        return false;
    }
    struct search s = {devices, *count};
    return !any_in_list("CLATTN_TEST_EXPECT", is_missing, &s);
}

void devices_close(struct test_device *devices, int count)
{
    for (int n = 0; n < count; n++)
        clattn_context_destroy(&devices[n].ctx);
}

// ---- targets ------------------------------------------------------------------------------------

// In the order of enum clattn_algo.
static const char *const algo_names[] = {"auto",     "fused",          "host",     "reference",
                                         "two_loop", "fused_kv_outer", "split_kv", "unfused"};
enum { ALGOS = sizeof algo_names / sizeof algo_names[0] };

static bool has_shapes(int32_t algo)
{
    return algo != CLATTN_ALGO_HOST && algo != CLATTN_ALGO_REFERENCE && algo != CLATTN_ALGO_UNFUSED;
}

static bool is_algo(const char *name, void *algo)
{
    return strcmp(name, algo_names[*(const int32_t *)algo]) == 0;
}

static bool algo_is_wanted(int32_t algo)
{
    if (!set_in_env("CLATTN_TEST_ALGOS"))
        return algo == CLATTN_ALGO_FUSED || algo == CLATTN_ALGO_HOST;
    return any_in_list("CLATTN_TEST_ALGOS", is_algo, &algo);
}

static void add_target(struct test_target *targets, int *count, struct test_device *d,
                       int32_t algo, int32_t kernel, int level)
{
    struct test_target *t = &targets[(*count)++];
    *t = (struct test_target){.device = d, .algo = algo, .kernel = kernel, .level = level};
    static const char *const shapes[] = {"", "group", "vector", "subgroup"};
    const bool named = algo != CLATTN_ALGO_FUSED;
    snprintf(t->name, sizeof t->name, "%.60s/%s%s%s", d->tag, named ? algo_names[algo] : "",
             named && has_shapes(algo) ? "/" : "", shapes[kernel]);
}

bool targets_with_subgroups;

int test_share(void)
{
    const char *share = getenv("CLATTN_TEST_SHARE");
    return share ? atoi(share) : 0;
}

static clattn_status try_shape(struct test_device *d, int32_t algo, int32_t kernel)
{
    clattn_attention_desc desc;
    clattn_attention_desc_init(&desc, sizeof desc);
    desc.dim_qk = 16;
    desc.heads_q = 1;
    desc.algo = algo;
    desc.kernel = kernel;
    clattn_plan *plan = NULL;
    const clattn_status st = clattn_attention_plan_create(d->ctx, &desc, &plan);
    clattn_plan_destroy(&plan);
    return st;
}

// The group shape everywhere, but vectors as rows are only promised where the device prefers them,
// and sub-groups where it has them.
static void add_shapes(struct test_target *targets, int *count, struct test_device *d, int32_t algo)
{
    // A device that prefers vectors runs the group shape for the test's sake.
    const bool few = d->info.vector_shape && set_in_env("CLATTN_TEST_PREFERRED");
    add_target(targets, count, d, algo, CLATTN_KERNEL_GROUP, few ? LEVEL_SMALL : d->level);
    const clattn_status vector = try_shape(d, algo, CLATTN_KERNEL_VECTOR);
    if (vector == CLATTN_OK || d->info.vector_shape)
        add_target(targets, count, d, algo, CLATTN_KERNEL_VECTOR,
                   d->info.vector_shape ? d->level : LEVEL_SMALL);
    else
        printf("%s: the vector shape is not for this device (%s)\n", d->tag,
               clattn_status_string(vector));
    if (algo != CLATTN_ALGO_FUSED || !targets_with_subgroups)
        return;
    const clattn_status subgroup = try_shape(d, algo, CLATTN_KERNEL_SUBGROUP);
    if (subgroup == CLATTN_OK || (d->info.has_subgroups && strcmp(d->tag, "oclgrind") != 0))
        add_target(targets, count, d, algo, CLATTN_KERNEL_SUBGROUP, LEVEL_SMALL);
    else
        printf("%s: the subgroup shape is not for this device (%s)\n", d->tag,
               clattn_status_string(subgroup));
}

// What is wanted of a device: an OpenCL algorithm, or one of the CPU on the device's memory.
static void add_algos(struct test_target *targets, int *count, struct test_device *d)
{
    for (int32_t algo = CLATTN_ALGO_FUSED; algo < ALGOS; algo++) {
        if (!algo_is_wanted(algo))
            continue;
        if (has_shapes(algo))
            add_shapes(targets, count, d, algo);
        else
            add_target(targets, count, d, algo, CLATTN_KERNEL_AUTO, d->level);
    }
}

clattn_plan *target_plan(const struct test_target *t, clattn_attention_desc desc)
{
    desc.algo = t->algo;
    desc.kernel = t->kernel;
    desc.flags |= CLATTN_NO_FALLBACK;
    clattn_plan *plan = NULL;
    const int warnings = t->device->warnings;
    const clattn_status st = clattn_attention_plan_create(t->device->ctx, &desc, &plan);
    if (st != CLATTN_OK)
        fail_msg("%s: no plan for dim %d, features %u: %s", t->name, desc.dim_qk, desc.features,
                 clattn_status_string(st));
    clattn_plan_info info = {.struct_size = sizeof info};
    assert_int_equal(clattn_plan_get_info(plan, &info), CLATTN_OK);
    if (info.algo != t->algo || info.kernel != t->kernel || info.is_fallback ||
        t->device->warnings != warnings) {
        for (int n = 0; n < info.num_refusals; n++)
            printf("    refused: %s\n", clattn_plan_get_refusal(plan, n));
        fail_msg("%s: dim %d got algorithm %s, kernel %s, tile %d x %d, fallback %d: %s", t->name,
                 desc.dim_qk, info.algo_name, info.kernel_name, info.tile_q, info.tile_k,
                 info.is_fallback, info.reason);
    }
    return plan;
}

// Says what really ran, and fails where nothing was compiled for an OpenCL target.
static void check_builds(void **state)
{
    const struct test_target *t = *state;
    const uint64_t builds = clattn_context_build_count(t->device->ctx);
    printf("%s: %llu programs built on the device so far\n", t->name, (unsigned long long)builds);
    if (t->algo != CLATTN_ALGO_HOST && t->algo != CLATTN_ALGO_REFERENCE)
        assert_true(builds > 0);
    else if (t->device->info.type == CLATTN_DEVICE_BUILTIN_CPU)
        assert_int_equal(builds, 0);
}

static int close_plans(void **state)
{
    target_plans_close(*state);
    return 0;
}

static int run_targets(const char *suite, struct test_target *targets, int count,
                       const struct target_test *tests, int num_tests)
{
    struct CMUnitTest *all = calloc((size_t)(count * (num_tests + 1)), sizeof *all);
    char(*names)[192] = calloc((size_t)(count * (num_tests + 1)), sizeof *names);
    int n = 0, status = 1;
    for (int t = 0; all && names && t < count; t++)
        for (int m = 0; m <= num_tests; m++) {
            const bool last = m == num_tests;
            if (!last && tests[m].level > targets[t].level)
                continue;
            snprintf(names[n], sizeof names[n], "%s: %s", targets[t].name,
                     last ? "really ran there" : tests[m].name);
            all[n] = (struct CMUnitTest){names[n], last ? check_builds : tests[m].run, NULL,
                                         last ? close_plans : NULL, &targets[t]};
            n++;
        }
    if (all && names)
        status = _cmocka_run_group_tests(suite, all, (size_t)n, NULL, NULL);
    free(all);
    free(names);
    return status;
}

int targets_main(const char *suite, int argc, char **argv, const struct target_test *tests,
                 int num_tests)
{
    struct test_device devices[DEVICES_MAX];
    struct test_target targets[3 * ALGOS * DEVICES_MAX];
    int num_devices = 0, num_targets = 0, status = 1;
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc < 2 || argc > 3 || (strcmp(argv[1], "cpu") && strcmp(argv[1], "opencl"))) {
        printf("usage: %s cpu|opencl [PATTERN of test names]\n", argv[0]);
        return 2;
    }
    if (argc == 3)
        cmocka_set_test_filter(argv[2]);
    if (strcmp(argv[1], "cpu") == 0) {
        if (!device_open_builtin(&devices[0]))
            return 1;
        num_devices = 1;
        add_target(targets, &num_targets, &devices[0], CLATTN_ALGO_HOST, 0, devices[0].level);
        add_target(targets, &num_targets, &devices[0], CLATTN_ALGO_REFERENCE, 0, devices[0].level);
    } else {
        if (!devices_open(devices, &num_devices))
            goto done;
        if (num_devices == 0) {
            printf("no OpenCL device\n");
            status = SKIP_STATUS;
            goto done;
        }
        for (int n = 0; n < num_devices; n++)
            add_algos(targets, &num_targets, &devices[n]);
    }
    status = run_targets(suite, targets, num_targets, tests, num_tests);
done:
    attn_expect_close();
    if (status == 0) // a test that failed has left its plans behind, which keep their context
        devices_close(devices, num_devices);
    return status ? status == SKIP_STATUS ? SKIP_STATUS : 1 : 0;
}
