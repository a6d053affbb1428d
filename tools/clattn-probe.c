// SPDX-License-Identifier: Apache-2.0
// clattn-probe: which devices are there, what clattn would do on them, and whether that works.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/compare.h"
#include "lib/options.h"
#include "lib/output.h"
#include "lib/random.h"
#include "lib/say.h"
#include "lib/session.h"

static const char help[] =
    "Usage: clattn-probe [OPTION]...\n"
    "\n"
    "Prints every OpenCL device and the built-in CPU path, the facts that planning uses, whether\n"
    "kernels really compiled, ran and gave the right numbers there, and the plan for usual head\n"
    "dimensions with the reasons.\n"
    "\n"
    "  --device SEL   only this device: its index, cpu for the built-in CPU path, or part of a\n"
    "                 platform's or device's name in any case, the first that fits\n"
    "  --json         print one JSON object\n"
    "  -h, --help     print this text\n"
    "  --version      print the version\n"
    "\n"
    "A kernel shape is tested on a small causal problem with grouped heads against the double\n"
    "reference: right, wrong, refused (the device cannot have it) or failed. A device works where\n"
    "at least one shape is right and none is wrong.\n"
    "\n"
    "Exit status: 0 an OpenCL device works (with --device: that device works, which may be the\n"
    "built-in CPU path); 1 none works; 2 wrong use.\n";

enum { OPT_DEVICE, OPT_JSON, OPT_HELP, OPT_VERSION, OPT_COUNT };

static const struct tool_option option_table[OPT_COUNT] = {
    [OPT_DEVICE] = {"device", 0, TOOL_ARG_REQUIRED, false},
    [OPT_JSON] = {"json", 0, TOOL_ARG_NONE, false},
    [OPT_HELP] = {"help", 'h', TOOL_ARG_NONE, false},
    [OPT_VERSION] = {"version", 0, TOOL_ARG_NONE, false},
};

struct options {
    const char *device;
    bool json, help, version;
};

static const double tolerance = 1e-5;

static int take_option(void *user, int index, const char *shown, const char *value)
{
    struct options *opt = user;

    (void)shown;
    switch (index) {
    case OPT_DEVICE: opt->device = value; return 0;
    case OPT_JSON: opt->json = true; return 0;
    case OPT_HELP: opt->help = true; return 0;
    default: opt->version = true; return 0;
    }
}

// ---- gathering: everything goes into one JSON value, which both outputs are printed from --------

static json_t *messages(struct tool_log *log)
{
    json_t *list = json_array();

    for (size_t i = 0; i < log->count; i++)
        json_array_append_new(list, tool_json_text(log->text[i]));
    tool_log_clear(log);
    return list;
}

// O and LSE of the problem by one plan, one behind the other.
static clattn_status run_once(struct tool_session *s, const struct tool_problem *p,
                              const clattn_plan *plan, float *out)
{
    static const enum tool_tensor inputs[] = {TOOL_Q, TOOL_K, TOOL_V};
    struct tool_memory m;
    clattn_attention_call call;
    float *data = NULL;

    clattn_status st = tool_memory_create(s, p, plan, &m);
    for (unsigned i = 0; st == CLATTN_OK && i < 3; i++) {
        float *larger = realloc(data, m.bytes[inputs[i]]);
        if (!larger) {
            st = CLATTN_ERR_OUT_OF_MEMORY;
            break;
        }
        data = larger;
        tool_random_fill(data, m.bytes[inputs[i]] / sizeof *data, i + 1);
        st = tool_memory_write(s, &m, inputs[i], data);
    }
    if (st == CLATTN_OK) {
        tool_call_init(p, &m, &call);
        st = clattn_attention_run(plan, &call);
    }
    if (st == CLATTN_OK)
        st = tool_memory_read(s, &m, TOOL_O, out);
    if (st == CLATTN_OK)
        st = tool_memory_read(s, &m, TOOL_LSE, out + m.bytes[TOOL_O] / sizeof *out);
    free(data);
    tool_memory_destroy(s, &m);
    return st;
}

static clattn_status run_algo(struct tool_session *s, struct tool_problem p, int algo, int kernel,
                              float *out)
{
    clattn_plan *plan = NULL;

    p.algo = algo;
    p.kernel = kernel;
    clattn_status st = tool_plan_create(s, &p, &plan);
    if (st == CLATTN_OK)
        st = run_once(s, &p, plan, out);
    clattn_plan_destroy(&plan);
    return st;
}

// Runs one kernel shape, or the CPU path, and compares with the reference.
static json_t *test_kernel(struct tool_session *s, int algo, int kernel, const char *name)
{
    // Sizes that end inside a tile on every side; the first rows see few keys.
    const struct tool_problem p = {.batch = 2, .heads_q = 4, .heads_kv = 2, .len_q = 21,
                                   .len_kv = 45, .dim_qk = 40, .dim_v = 40, .causal = true,
                                   .lse = true};
    const size_t count = (size_t)(p.batch * p.heads_q * p.len_q) * (size_t)(p.dim_v + 1);
    float *got = calloc(count, sizeof *got), *want = calloc(count, sizeof *want);
    struct tool_compare result = {.count = 0};
    const char *verdict = "failed";

    clattn_status st = got && want ? run_algo(s, p, algo, kernel, got) : CLATTN_ERR_OUT_OF_MEMORY;
    if (st == CLATTN_ERR_UNSUPPORTED)
        verdict = "refused";
    json_t *o = json_object();
    if (st == CLATTN_OK)
        st = run_algo(s, p, CLATTN_ALGO_REFERENCE, CLATTN_KERNEL_AUTO, want);
    if (st == CLATTN_OK) {
        tool_compare(got, want, count, tolerance, &result);
        verdict = result.over ? "wrong" : "right";
        json_object_set_new(o, "max_error", tool_json_real(result.max_error));
    }
    free(got);
    free(want);
    json_object_set_new(o, "kernel", json_string(name));
    json_object_set_new(o, "result", json_string(verdict));
    json_object_set_new(o, "status", json_string(clattn_status_string(st)));
    json_object_set_new(o, "messages", messages(&s->log));
    return o;
}

static json_t *probe_plan(struct tool_session *s, int32_t dim)
{
    const struct tool_problem p = {.batch = 1, .heads_q = 8, .heads_kv = 8, .len_q = 2048,
                                   .len_kv = 2048, .dim_qk = dim, .dim_v = dim};
    clattn_plan *plan = NULL;
    clattn_plan_info info = {.struct_size = sizeof info};

    clattn_status st = tool_plan_create(s, &p, &plan);
    if (st == CLATTN_OK)
        st = clattn_plan_get_info(plan, &info);
    json_t *o = st == CLATTN_OK ? tool_json_plan(plan, &info) : json_object();
    json_object_set_new(o, "dim", json_integer(dim));
    json_object_set_new(o, "status", json_string(clattn_status_string(st)));
    json_object_set_new(o, "messages", messages(&s->log));
    clattn_plan_destroy(&plan);
    return o;
}

// One right shape and no wrong one.
static bool kernels_work(const json_t *kernels)
{
    bool right = false, wrong = false;
    size_t i;
    json_t *k;

    json_array_foreach(kernels, i, k) {
        const char *result = json_string_value(json_object_get(k, "result"));
        right = right || strcmp(result, "right") == 0;
        wrong = wrong || strcmp(result, "wrong") == 0;
    }
    return right && !wrong;
}

static void probe_kernels(struct tool_session *s, json_t *device)
{
    static const int32_t dims[] = {32, 64, 80, 128, 256};
    json_t *kernels = json_array(), *plans = json_array();

    if (s->device.type == CLATTN_DEVICE_BUILTIN_CPU) {
        json_array_append_new(kernels,
                              test_kernel(s, CLATTN_ALGO_HOST, CLATTN_KERNEL_AUTO, "host"));
    } else {
        for (int k = CLATTN_KERNEL_GROUP; k <= CLATTN_KERNEL_VECTOR; k++)
            json_array_append_new(kernels,
                                  test_kernel(s, CLATTN_ALGO_FUSED, k, tool_kernel_words[k]));
    }
    for (size_t i = 0; i < sizeof dims / sizeof *dims; i++)
        json_array_append_new(plans, probe_plan(s, dims[i]));
    json_object_set_new(device, "works", json_boolean(kernels_work(kernels)));
    json_object_set_new(device, "kernels", kernels);
    json_object_set_new(device, "plans", plans);
    json_object_set_new(device, "programs_built",
                        json_integer((json_int_t)clattn_context_build_count(s->ctx)));
}

static json_t *probe_device(const clattn_device_info *info)
{
    struct tool_session s;
    char selector[16];
    json_t *device = tool_json_device(info);

    tool_session_init(&s);
    s.log.quiet = true;
    s.log.keep = CLATTN_LOG_WARN;
    snprintf(selector, sizeof selector, "%d", (int)info->index);
    // What is shown as compiled is to have been compiled now.
    clattn_status st = tool_session_open(&s, selector, 0, CLATTN_CONTEXT_NO_CACHE);
    json_object_set_new(device, "works", json_false());
    json_object_set_new(device, "status", json_string(clattn_status_string(st)));
    json_object_set_new(device, "messages", messages(&s.log));
    if (st == CLATTN_OK)
        probe_kernels(&s, device);
    tool_session_close(&s);
    return device;
}

// Index of the device that a selector names, by the library's own rule. Without the self-test,
// since a device that fails it is what a probe is for.
static int select_device(const char *selector, int32_t *index)
{
    struct tool_session s;
    char what[256];
    int code = 0;

    tool_session_init(&s);
    clattn_status st = tool_session_open(&s, selector, 0, CLATTN_CONTEXT_NO_SELF_TEST);
    *index = s.device.index;
    if (st != CLATTN_OK) {
        snprintf(what, sizeof what, "--device %s", selector);
        code = tool_library_fail(&s.log, st, what);
        code = code == TOOL_DEVICE ? TOOL_WRONG : code;
    }
    tool_session_close(&s);
    return code;
}

static int probe(const char *selector, json_t *report)
{
    json_t *devices = json_array();
    struct tool_log log;
    clattn_context_desc desc;
    int32_t count = 0, only = -1;
    int version = clattn_version();
    char text[32];

    int code = selector ? select_device(selector, &only) : 0;
    tool_log_init(&log);
    log.quiet = true;
    log.keep = CLATTN_LOG_INFO; // what was looked for where no OpenCL is found
    clattn_context_desc_init(&desc, sizeof desc);
    desc.log = tool_log_receive;
    desc.log_user = &log;
    desc.log_level = tool_log_level(&log);
    clattn_status st = code ? CLATTN_OK : clattn_device_count(&desc, &count);
    snprintf(text, sizeof text, "%d.%d.%d", version / 10000, version / 100 % 100, version % 100);
    json_object_set_new(report, "version", json_string(text));
    json_object_set_new(report, "opencl_devices", json_integer(count - 1));
    json_object_set_new(report, "messages", messages(&log));
    json_object_set_new(report, "devices", devices);
    log.keep = CLATTN_LOG_ERROR;
    for (int32_t i = 0; st == CLATTN_OK && i < count; i++) {
        clattn_device_info info = {.struct_size = sizeof info};
        if (only >= 0 && i != only)
            continue;
        st = clattn_device_get_info(&desc, i, &info);
        if (st == CLATTN_OK)
            json_array_append_new(devices, probe_device(&info));
    }
    if (st != CLATTN_OK) {
        tool_library_fail(&log, st, "devices cannot be listed");
        code = TOOL_WRONG;
    }
    tool_log_free(&log);
    return code;
}

// Devices that work and count for the exit status.
static int count_working(const json_t *report, bool builtin_counts)
{
    int working = 0;
    size_t i;
    json_t *d;

    json_array_foreach(json_object_get(report, "devices"), i, d) {
        const char *type = json_string_value(json_object_get(d, "type"));
        bool builtin = strcmp(type, tool_device_type(CLATTN_DEVICE_BUILTIN_CPU)) == 0;
        if (json_is_true(json_object_get(d, "works")) && (!builtin || builtin_counts))
            working++;
    }
    return working;
}

// ---- text --------------------------------------------------------------------------------------

static const char *text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));

    return text ? text : "";
}

static long long integer_of(const json_t *object, const char *key)
{
    return (long long)json_integer_value(json_object_get(object, key));
}

static void print_list(const json_t *list, const char *before)
{
    size_t i;
    json_t *line;

    json_array_foreach(list, i, line)
        printf("%s%s\n", before, json_string_value(line));
}

static void print_features(const json_t *d, struct libscols_table *table)
{
    static const struct {
        const char *key, *label;
    } features[] = {
        {"local_is_global", ", local memory is ordinary memory"},
        {"host_unified", ", memory shared with the host"},
        {"has_fp16", ", fp16"},
        {"has_subgroups", ", sub-groups"},
    };
    char text[256];

    if (strcmp(text_of(d, "type"), tool_device_type(CLATTN_DEVICE_BUILTIN_CPU)) == 0)
        return;
    snprintf(text, sizeof text, "%s",
             json_is_true(json_object_get(d, "vector_shape")) ? "vector" : "group");
    for (size_t i = 0; i < sizeof features / sizeof *features; i++) {
        if (json_is_true(json_object_get(d, features[i].key)))
            snprintf(text + strlen(text), sizeof text - strlen(text), "%s", features[i].label);
    }
    tool_table_row(table, (const char *[]){"kernel shape, features", text}, 2);
    snprintf(text, sizeof text, "0x%llx", integer_of(d, "quirks"));
    tool_table_row(table, (const char *[]){"driver quirks", text}, 2);
}

static void print_facts(const json_t *d)
{
    static const struct {
        const char *key, *label;
    } numbers[] = {
        {"rank", "rank (0 = default)"},
        {"compute_units", "compute units"},
        {"native_width_f32", "native float vector"},
        {"max_group", "largest work-group"},
        {"local_bytes", "local memory, bytes"},
        {"cache_bytes", "cache, bytes"},
        {"global_bytes", "memory, bytes"},
        {"max_alloc_bytes", "largest allocation, bytes"},
    };
    const struct tool_column columns[] = {{"FACT", false, false}, {"VALUE", false, true}};
    struct libscols_table *table = tool_table_create(columns, 2, false);
    char text[128];

    printf("[%lld] %s: %s\n", integer_of(d, "index"), text_of(d, "platform"), text_of(d, "name"));
    tool_table_row(table, (const char *[]){"type", text_of(d, "type")}, 2);
    tool_table_row(table, (const char *[]){"vendor", text_of(d, "vendor")}, 2);
    tool_table_row(table, (const char *[]){"driver", text_of(d, "driver")}, 2);
    if (text_of(d, "version")[0])
        tool_table_row(table, (const char *[]){"version", text_of(d, "version")}, 2);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        // The built-in path has no figure for most of them.
        if (integer_of(d, numbers[i].key) == 0 && i > 0)
            continue;
        snprintf(text, sizeof text, "%lld", integer_of(d, numbers[i].key));
        tool_table_row(table, (const char *[]){numbers[i].label, text}, 2);
    }
    print_features(d, table);
    snprintf(text, sizeof text, "%s%s", json_is_true(json_object_get(d, "works")) ? "yes" : "NO",
             strcmp(text_of(d, "status"), clattn_status_string(CLATTN_OK)) ? ", it cannot be opened"
                                                                            : "");
    tool_table_row(table, (const char *[]){"works", text}, 2);
    if (integer_of(d, "programs_built")) {
        snprintf(text, sizeof text, "%lld", integer_of(d, "programs_built"));
        tool_table_row(table, (const char *[]){"programs compiled", text}, 2);
    }
    tool_table_print(table);
    print_list(json_object_get(d, "messages"), "  ! ");
}

static void print_kernels(const json_t *d)
{
    const struct tool_column columns[] = {
        {"KERNEL", false, false}, {"RESULT", false, false}, {"MAX ERROR", true, false}};
    struct libscols_table *table = tool_table_create(columns, 3, true);
    json_t *kernels = json_object_get(d, "kernels"), *k;
    size_t i;

    json_array_foreach(kernels, i, k) {
        json_t *error = json_object_get(k, "max_error");
        char text[32] = "";
        if (json_is_number(error))
            snprintf(text, sizeof text, "%.2g", json_number_value(error));
        else if (error)
            snprintf(text, sizeof text, "%s", json_string_value(error));
        const char *cells[] = {text_of(k, "kernel"), text_of(k, "result"), text};
        tool_table_row(table, cells, 3);
    }
    printf("\n");
    tool_table_print(table);
    json_array_foreach(kernels, i, k) {
        if (strcmp(text_of(k, "result"), "right") != 0)
            printf("  ! %s: %s\n", text_of(k, "kernel"), text_of(k, "status"));
        print_list(json_object_get(k, "messages"), "  ! ");
    }
}

// Texts of all plans, each once behind the dimensions it holds for.
static void print_by_dims(const json_t *plans, const char *key, const char *what)
{
    json_t *dims_of = json_object(), *p, *line;
    const char *text;
    size_t i, k;

    json_array_foreach(plans, i, p) {
        json_array_foreach(json_object_get(p, key), k, line) {
            char dims[128];
            json_t *before = json_object_get(dims_of, json_string_value(line));
            snprintf(dims, sizeof dims, "%s%s%lld", before ? json_string_value(before) : "",
                     before ? ", " : "", integer_of(p, "dim"));
            json_object_set_new(dims_of, json_string_value(line), json_string(dims));
        }
    }
    json_object_foreach(dims_of, text, line)
        printf("  %s for dim %s: %s\n", what, json_string_value(line), text);
    json_decref(dims_of);
}

static void print_plans(const json_t *d)
{
    static const char *const keys[] = {"dim", "algo", "kernel", "tile_q", "tile_k", "group_size",
                                       "vector_width", "chunk_d", "local_bytes", "reason"};
    static const struct tool_column columns[] = {
        {"DIM", true, false}, {"ALGORITHM", false, false}, {"KERNEL", false, false},
        {"ROWS", true, false}, {"KEYS", true, false}, {"GROUP", true, false},
        {"VECTOR", true, false}, {"CHUNK", true, false}, {"LOCAL BYTES", true, false},
        {"REASON", false, true}};
    enum { COUNT = sizeof keys / sizeof *keys };
    struct libscols_table *table = tool_table_create(columns, COUNT, true);
    json_t *plans = json_object_get(d, "plans"), *p;
    size_t n;

    json_array_foreach(plans, n, p) {
        char numbers[COUNT][24];
        const char *cells[COUNT];
        for (int i = 0; i < COUNT; i++) {
            json_t *value = json_object_get(p, keys[i]);
            snprintf(numbers[i], sizeof numbers[i], "%lld", (long long)json_integer_value(value));
            cells[i] = json_is_string(value) ? json_string_value(value) : value ? numbers[i] : "-";
        }
        tool_table_row(table, cells, COUNT);
    }
    printf("\n");
    tool_table_print(table);
    print_by_dims(plans, "refusals", "refused");
    print_by_dims(plans, "messages", "!");
}

static void print_text(const json_t *report, const char *selector, int working)
{
    size_t i;
    json_t *d;

    json_array_foreach(json_object_get(report, "devices"), i, d) {
        print_facts(d);
        if (json_object_get(d, "kernels")) {
            print_kernels(d);
            print_plans(d);
        }
        printf("\n");
    }
    if (selector) {
        printf("the device %s\n", working ? "works" : "does NOT work");
        return;
    }
    const json_t *messages_of = json_object_get(report, "messages");
    const long long devices = integer_of(report, "opencl_devices");
    printf("%d of %lld OpenCL devices work%s\n", working, devices,
           working ? "" : "; the built-in CPU path remains");
    print_list(messages_of, devices ? "  ! " : "  looked for: ");
    if (devices == 0 && json_array_size(messages_of) == 0)
        printf("  looked for: the OpenCL loader is there, but it knows no device; drivers register "
               "in the loader's folder of vendors\n");
}

int main(int argc, char **argv)
{
    struct options opt = {.device = NULL};

    tool_start("clattn-probe");
    int code = tool_options_parse(argc, argv, option_table, OPT_COUNT, take_option, &opt);
    if (code)
        return code;
    if (opt.help || opt.version) {
        if (opt.help)
            fputs(help, stdout);
        else
            tool_print_version();
        return tool_finish(TOOL_DONE);
    }
    json_t *report = json_object();
    code = probe(opt.device, report);
    if (!code) {
        int working = count_working(report, opt.device != NULL);
        code = working ? TOOL_DONE : TOOL_WRONG;
        json_object_set_new(report, "works", json_boolean(working > 0));
        if (opt.json)
            tool_json_print(json_incref(report), false);
        else
            print_text(report, opt.device, working);
    }
    json_decref(report);
    return tool_finish(code);
}
