// SPDX-License-Identifier: Apache-2.0
// Every kernel file on the smallest problems that take every way through it, for a simulator that
// looks at each access: Oclgrind finds races, accesses outside of buffers and barriers that not all
// items reach; the outputs, between guard bands, are held against the reference in double.
//
// A program is a kernel file with its literals. By default each value of each literal is met in
// some program of its kernel; with CLATTN_TEST_PAIRS each pair of values of two literals. Tiles are
// tiny and lengths lie around their edges, so that a kernel with several tiles, ragged ones
// included, is a matter of milliseconds. Where rows lie, which lengths and features there are is
// decided as kernels run, and changes from call to call.
//
//   test_simulator oclgrind|opencl [PATTERN of test names]     only Oclgrind, or each OpenCL device
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "run_feature.h"
#include "simulator_rows.h"

#define COUNT(a) ((int)(sizeof(a) / sizeof((a)[0])))

enum { F32 = CLATTN_DTYPE_F32, F16 = CLATTN_DTYPE_F16, BF16 = CLATTN_DTYPE_BF16,
       I8 = CLATTN_DTYPE_I8, LONG_KEYS = 20000, PROGRAMS_MAX = 64, CALLS = 3 };

// ---- kernels and their literals -----------------------------------------------------------------

// A tile with dimensions that it cuts in some way.
struct shape {
    clattn_tile tile;
    int32_t dim_qk, dim_v;
    bool long_rows; // sums with their rounding errors
};

#define GROUP(q, k, iq, ik, chunk)                                                                 \
    {.kernel = CLATTN_KERNEL_GROUP, .tile_q = (q), .tile_k = (k), .items_q = (iq),                 \
     .items_k = (ik), .chunk_d = (chunk)}
#define VECTOR(w, vecs, k, rk, rd)                                                                 \
    {.kernel = CLATTN_KERNEL_VECTOR, .tile_q = (w) * (vecs), .tile_k = (k), .width = (w),          \
     .vecs_q = (vecs), .block_k = (rk), .block_d = (rd)}
#define FEW(w, rows, k)                                                                            \
    {.kernel = CLATTN_KERNEL_VECTOR, .tile_q = (rows), .tile_k = (k), .width = (w)}

// One chunk of channels and several, more of them than are unrolled, the last one not full; one row
// an item and several, a number of them that is no power of two; 4 keys an item and 8.
static const struct shape group_shapes[] = {
    {GROUP(4, 8, 2, 2, 4), 7, 5, false},
    {GROUP(2, 16, 2, 2, 8), 10, 9, false},
    {GROUP(3, 8, 3, 2, 12), 10, 12, true},
    {GROUP(2, 8, 1, 1, 4), 4, 20, false},
    {GROUP(4, 8, 4, 2, 4), 12, 24, true},
};
static const struct shape vector_shapes[] = {
    {VECTOR(4, 1, 4, 4, 4), 8, 4, false},
    {VECTOR(4, 2, 6, 2, 3), 5, 7, false},
    {VECTOR(8, 1, 16, 8, 8), 16, 9, true},
    {VECTOR(16, 1, 16, 1, 16), 3, 18, false},
};
// Dimensions below a vector, of whole ones, and between; 1, 2, 4 and 8 rows.
static const struct shape few_shapes[] = {
    {FEW(4, 1, 8), 8, 4, false},
    {FEW(4, 2, 8), 7, 9, false},
    {FEW(8, 4, 8), 5, 40, false},
    {FEW(16, 8, 16), 35, 16, true},
};

// Unfused attention has no tile: CLBlast cuts the work. Dimensions around what a vector reads.
static const struct shape whole_shapes[] = {
    {{.kernel = CLATTN_KERNEL_AUTO}, 7, 5, false},
    {{.kernel = CLATTN_KERNEL_AUTO}, 16, 4, false},
    {{.kernel = CLATTN_KERNEL_AUTO}, 19, 8, false},
};

struct kernel {
    const char *name;
    int32_t algo;
    const struct shape *shapes;
    int num_shapes;
};

static const struct kernel kernels[] = {
    {"fused_group", CLATTN_ALGO_FUSED, group_shapes, COUNT(group_shapes)},
    {"fused_vector", CLATTN_ALGO_FUSED, vector_shapes, COUNT(vector_shapes)},
    {"split_kv_group", CLATTN_ALGO_SPLIT_KV, group_shapes, COUNT(group_shapes)},
    {"split_kv_vector", CLATTN_ALGO_SPLIT_KV, vector_shapes, COUNT(vector_shapes)},
    {"split_kv_few", CLATTN_ALGO_SPLIT_KV, few_shapes, COUNT(few_shapes)},
    {"two_loop_group", CLATTN_ALGO_TWO_LOOP, group_shapes, COUNT(group_shapes)},
    {"two_loop_vector", CLATTN_ALGO_TWO_LOOP, vector_shapes, COUNT(vector_shapes)},
    {"fused_kv_outer_group", CLATTN_ALGO_FUSED_KV_OUTER, group_shapes, COUNT(group_shapes)},
    {"fused_kv_outer_vector", CLATTN_ALGO_FUSED_KV_OUTER, vector_shapes, COUNT(vector_shapes)},
    {"unfused", CLATTN_ALGO_UNFUSED, whole_shapes, COUNT(whole_shapes)},
};

enum literal { MASK_KIND, TYPE_KV, TYPE_Q, TYPE_O, PAGED, SHAPE, LITERALS };
enum { KIND_NONE, KIND_WINDOW, KIND_GENERAL, KINDS };

static bool lacks(const struct kernel *k, enum feature_need need)
{
    return algo_lacks(k->algo) >> need & 1;
}

static void count_values(const struct kernel *k, int count[LITERALS])
{
    count[MASK_KIND] = KINDS;
    count[TYPE_Q] = count[TYPE_O] = 3;
    count[TYPE_KV] = lacks(k, NEED_INT8) ? 3 : 4;
    count[PAGED] = lacks(k, NEED_PAGED) ? 1 : 2;
    count[SHAPE] = k->num_shapes;
}

// ---- which programs -----------------------------------------------------------------------------

// Each value of each literal: the n-th program takes the n-th of them, shifted, so that the same
// two do not meet in all.
static int each_value(const int count[LITERALS], int program[][LITERALS])
{
    int most = 0;
    for (int a = 0; a < LITERALS; a++)
        most = count[a] > most ? count[a] : most;
    for (int n = 0; n < most; n++)
        for (int a = 0; a < LITERALS; a++)
            program[n][a] = (n + a) % count[a];
    return most;
}

enum { VALUES_MAX = 8 };

struct pairs {
    bool met[LITERALS][VALUES_MAX][LITERALS][VALUES_MAX];
};

static int new_pairs(const struct pairs *p, const int program[LITERALS])
{
    int n = 0;
    for (int a = 0; a < LITERALS; a++)
        for (int b = a + 1; b < LITERALS; b++)
            n += !p->met[a][program[a]][b][program[b]];
    return n;
}

// Each pair of values: of all programs that there could be, always the one with most new pairs.
static int each_pair(const int count[LITERALS], int program[][LITERALS])
{
    static struct pairs pairs;
    int all = 1, n = 0;
    memset(&pairs, 0, sizeof pairs);
    for (int a = 0; a < LITERALS; a++)
        all *= count[a];
    for (; n < PROGRAMS_MAX; n++) {
        int most = 0;
        for (int id = 0; id < all; id++) {
            int value[LITERALS];
            for (int a = 0, rest = id; a < LITERALS; rest /= count[a++])
                value[a] = rest % count[a];
            const int gain = new_pairs(&pairs, value);
            if (gain > most)
                memcpy(program[n], value, sizeof value);
            most = gain > most ? gain : most;
        }
        if (most == 0)
            return n;
        for (int a = 0; a < LITERALS; a++)
            for (int b = a + 1; b < LITERALS; b++)
                pairs.met[a][program[n][a]][b][program[n][b]] = true;
    }
    return -1;
}

// ---- calls --------------------------------------------------------------------------------------

static int at_least_1(int n)
{
    return n < 1 ? 1 : n;
}

// What a plan is made for: the literals of program n, and features that kernels look at as they
// run.
static struct feature_case case_of(const struct kernel *k, const int value[LITERALS], int n)
{
    static const int32_t types[] = {F32, F16, BF16, I8};
    const struct shape *s = &k->shapes[value[SHAPE]];
    const bool general = value[MASK_KIND] == KIND_GENERAL;
    struct feature_case c = feature_plain();
    c.dtype_q = types[value[TYPE_Q]];
    c.dtype_kv = types[value[TYPE_KV]];
    c.dtype_o = types[value[TYPE_O]];
    c.dim_qk = s->dim_qk;
    c.dim_v = s->dim_v;
    c.causal = value[MASK_KIND] == KIND_WINDOW && n % 2 == 0;
    c.align = n % 3 == 1 ? CLATTN_ALIGN_TOP_LEFT : CLATTN_ALIGN_BOTTOM_RIGHT;
    c.window = (value[MASK_KIND] == KIND_WINDOW && n % 2 == 1) || (general && n % 4 == 3);
    c.left = 3;
    c.right = n % 4 == 3 ? -1 : 2;
    c.mask.used = general && n % 4 != 1;
    c.bias.used = general && n % 2 == 1;
    c.dtype_bias = c.bias.used ? types[n % 3] : F32;
    c.alibi = general && n % 3 != 1 ? 1 + n % 2 : 0;
    c.has_softcap = general && (n % 3 == 1 || !(c.mask.used || c.bias.used));
    c.softcap = 3.5f;
    c.sinks = n % 3 == 0 ? SINKS_NORMAL : n % 3 == 1 ? SINKS_SPECIAL : SINKS_NONE;
    c.kv_lens = n % 2 == 0;
    c.packed_q = !lacks(k, NEED_PACKED) && n % 3 != 2;
    c.packed_kv = !lacks(k, NEED_PACKED) && !value[PAGED] && n % 3 != 0;
    c.page_size = value[PAGED] ? 3 + 2 * (n % 3) : 0;
    c.heads_kv = 1 + n % 2;
    c.heads_q = c.heads_kv * (n % 3 == 0 ? 2 : n % 3 == 1 ? 1 : 3);
    c.lse = n % 4 != 2;
    c.num_splits = n % 3 == 0 ? 3 : n % 3 == 1 ? 7 : 1;
    return c;
}

// Call m of the n-th plan: lengths around the edges of tiles, another place of the rows, values
// that need the careful pass.
static void vary_call(const struct shape *s, struct feature_case *c, int n, int m)
{
    static const int forms[] = {FORM_PADDED, FORM_SEQ_FIRST, FORM_PADDED_8, FORM_BHSD, FORM_BSHD,
                                FORM_BCAST_HEAD};
    const int rows = s->tile.tile_q ? s->tile.tile_q : 4, group = c->heads_q / c->heads_kv;
    const int keys = s->tile.tile_k ? s->tile.tile_k : 8;
    const int whole = at_least_1((rows + group - 1) / group); // queries of a tile
    const int queries[] = {whole + 1, 1, at_least_1(whole - 1), whole};
    const int lengths[] = {2 * keys + 1, keys - 1, keys + 1, keys, 1};
    c->len_q = queries[m == 0 ? 0 : (n + m) % COUNT(queries)];
    c->len_kv = lengths[m == 0 ? 0 : (2 * n + m) % COUNT(lengths)];
    c->batch = m == 0 ? 2 : 1 + (n + m) % 2;
    c->layout = forms[(n + 2 * m) % COUNT(forms)];
    c->input = m == 0 ? INPUT_V_PARTLY_NAN : m == 1 && n % 2 == 0 ? INPUT_LARGE : INPUT_NORMAL;
    c->on_device = (n + m) % 2 == 0;
    c->ints_on_device = (n + m) % 3 == 0;
    c->mask.bcast = c->mask.used ? (uint32_t)(5 * n + 3 * m) % 16 : 0;
    c->bias.bcast = c->bias.used ? (uint32_t)(7 * n + 5 * m) % 16 : 0;
    c->mask.strided = c->bias.strided = m % 2;
    c->has_scale = m == 2;
    c->scale = n % 2 ? 1.5f : -0.3f;
    c->seed = 100u * (uint64_t)n + (uint64_t)m + 1;
}

static clattn_plan *plan_of(const struct test_target *t, const struct kernel *k,
                            const struct shape *s, const struct feature_case *c)
{
    clattn_attention_desc desc = feature_desc(c);
    desc.algo = k->algo;
    desc.tile = s->tile;
    desc.flags |= CLATTN_NO_FALLBACK;
    desc.max_len_kv = s->long_rows ? LONG_KEYS : desc.max_len_kv;
    desc.num_splits = k->algo == CLATTN_ALGO_SPLIT_KV ? c->num_splits : 0;
    clattn_plan *plan = NULL;
    const int warnings = t->device->warnings;
    const clattn_status st = clattn_attention_plan_create(t->device->ctx, &desc, &plan);
    clattn_plan_info info = {.struct_size = sizeof info};
    if (st == CLATTN_OK)
        assert_int_equal(clattn_plan_get_info(plan, &info), CLATTN_OK);
    if (st == CLATTN_OK && info.algo == k->algo && !info.is_fallback &&
        memcmp(&info.tile, &s->tile, sizeof info.tile) == 0 && t->device->warnings == warnings)
        return plan;
    printf("    %s: %s\n", k->name, st ? clattn_status_string(st) : "a plan of something else");
    clattn_plan_destroy(&plan);
    return NULL;
}

static int run_program(const struct test_target *t, const struct kernel *k,
                       const int value[LITERALS], int n)
{
    const struct shape *s = &k->shapes[value[SHAPE]];
    struct feature_case c = case_of(k, value, n);
    clattn_plan *plan = plan_of(t, k, s, &c);
    int failed = plan == NULL;
    for (int m = 0; m < CALLS && !failed; m++) {
        struct feature_data d;
        char text[600];
        vary_call(s, &c, n, m);
        snprintf(c.name, sizeof c.name, "program %d, call %d", n, m);
        feature_data_make(&c, &d);
        failed = !run_feature_plan(t, &c, &d, plan, NULL, NULL, NULL);
        feature_data_free(&d);
        feature_text(&c, text, sizeof text);
        if (failed)
            printf("  FAILED on %s: %s\n", k->name, text);
    }
    clattn_plan_destroy(&plan);
    return failed;
}

static struct test_device *device; // that the tests run on

static void test_kernel(void **state)
{
    const struct kernel *k = *state;
    static int program[PROGRAMS_MAX][LITERALS];
    const struct test_target t = {.device = device, .algo = k->algo, .level = LEVEL_SMALL};
    int count[LITERALS], failed = 0;
    count_values(k, count);
    const int n = getenv("CLATTN_TEST_PAIRS") ? each_pair(count, program)
                                              : each_value(count, program);
    assert_in_range(n, 1, PROGRAMS_MAX);
    for (int i = 0; i < n; i++)
        failed += run_program(&t, k, program[i], i);
    printf("%s: %d programs, %d calls of each, %d programs failed\n", k->name, n, CALLS, failed);
    assert_int_equal(failed, 0);
}

// ---- main ---------------------------------------------------------------------------------------

static int run_on(struct test_device *d)
{
    struct CMUnitTest tests[COUNT(kernels) + SIMULATOR_ROWS];
    char title[120];
    int n = 0;
    device = d;
    for (; n < COUNT(kernels); n++)
        tests[n] = (struct CMUnitTest){kernels[n].name, test_kernel, NULL, NULL,
                                       (void *)(uintptr_t)&kernels[n]};
    n += simulator_rows(d, tests + n);
    snprintf(title, sizeof title, "simulator on %s", d->tag);
    return _cmocka_run_group_tests(title, tests, (size_t)n, NULL, NULL);
}

int main(int argc, char **argv)
{
    struct test_device devices[DEVICES_MAX];
    int count = 0, failed = 0, ran = 0;
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc < 2 || argc > 3 || (strcmp(argv[1], "oclgrind") && strcmp(argv[1], "opencl"))) {
        printf("usage: %s oclgrind|opencl [PATTERN of test names]\n", argv[0]);
        return 2;
    }
    if (argc == 3)
        cmocka_set_test_filter(argv[2]);
    if (!devices_open(devices, &count))
        return 1;
    for (int n = 0; n < count; n++)
        if (strcmp(argv[1], "opencl") == 0 || strcmp(devices[n].info.platform, "Oclgrind") == 0) {
            ran++;
            failed += run_on(&devices[n]);
        }
    if (failed == 0) // a test that failed has left its plans behind
        devices_close(devices, count);
    if (ran == 0)
        printf("no %s device\n", argv[1]);
    // CLBlast keeps its programs until the process ends, and frees them then, when Oclgrind's
    // compiler is gone: memory is corrupted there, so nothing is left to the end.
    fflush(stdout);
    _Exit(failed ? 1 : ran == 0 ? SKIP_STATUS : 0);
}
