// SPDX-License-Identifier: Apache-2.0
// What a child does: lists the devices, picks one, or tries one step by step.
#ifndef _GNU_SOURCE
#define _GNU_SOURCE // strcasestr()
#endif
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/compare.h"
#include "lib/output.h"
#include "lib/random.h"
#include "lib/shape.h"
#include "probe/probe.h"

static const double tolerance = 1e-5;

json_t *probe_messages(struct tool_log *log)
{
    json_t *list = json_array();

    for (size_t i = 0; i < log->count; i++) {
        if (log->level[i] <= CLATTN_LOG_WARN || log->keep == CLATTN_LOG_INFO)
            json_array_append_new(list, tool_json_text(log->text[i]));
    }
    return list;
}

// ---- list and select ----------------------------------------------------------------------------

static void task_list(const struct probe_options *opt)
{
    struct tool_log log;
    clattn_context_desc desc;
    int32_t count = 0;

    tool_log_init(&log);
    log.quiet = true;
    log.keep = CLATTN_LOG_INFO; // what was looked for where no OpenCL is found
    clattn_context_desc_init(&desc, sizeof desc);
    desc.opencl_library = opt->library;
    desc.log = tool_log_receive;
    desc.log_user = &log;
    desc.log_level = tool_log_level(&log);
    probe_stage(0, "looking for OpenCL devices");
    clattn_status st = clattn_device_count(&desc, &count);
    probe_put("messages", probe_messages(&log));
    for (int32_t i = 0; st == CLATTN_OK && i < count; i++) {
        clattn_device_info info = {.struct_size = sizeof info};
        probe_stage(0, "asking device %d for its facts", (int)i);
        st = clattn_device_get_info(&desc, i, &info);
        if (st == CLATTN_OK)
            probe_add("devices", tool_json_device(&info));
    }
    if (st == CLATTN_OK)
        probe_put("opencl_devices", json_integer(count - 1));
    else
        probe_put("error", tool_json_text(tool_log_error(&log)[0] ? tool_log_error(&log)
                                                                  : clattn_status_string(st)));
    tool_log_free(&log);
}

// Whether a selector names a device, by the library's rule: its index, or a part of its name or its
// platform's, of any case.
static bool names_device(const char *selector, const clattn_device_info *info)
{
    if (strspn(selector, "0123456789") == strlen(selector))
        return strlen(selector) <= 9 && strtol(selector, NULL, 10) == info->index;
    return strcasestr(info->name, selector) || strcasestr(info->platform, selector);
}

// The first device that the selector names, or -1. None is opened: one that cannot be is what a
// probe is for.
static int32_t find_device(const struct probe_options *opt)
{
    clattn_context_desc desc;
    int32_t count = 0;

    clattn_context_desc_init(&desc, sizeof desc);
    desc.opencl_library = opt->library;
    probe_stage(0, "looking for the device that --device names");
    if (clattn_device_count(&desc, &count) != CLATTN_OK)
        return -1;
    for (int32_t i = 0; i < count; i++) {
        clattn_device_info info = {.struct_size = sizeof info};
        if (clattn_device_get_info(&desc, i, &info) == CLATTN_OK &&
            names_device(opt->device, &info))
            return i;
    }
    return -1;
}

// Index of the device that the selector names, or the library's word for why there is none.
static void task_select(const struct probe_options *opt)
{
    struct tool_session s;
    const int32_t index = find_device(opt);

    if (index >= 0) {
        probe_put("index", json_integer(index));
        return;
    }
    tool_session_init(&s);
    s.log.quiet = true;
    s.opencl_library = opt->library;
    probe_stage(0, "opening the device that --device names");
    clattn_status st = tool_session_open(
        &s, opt->device, 0, CLATTN_CONTEXT_NO_SELF_TEST | CLATTN_CONTEXT_NO_TUNING);
    if (st == CLATTN_OK) {
        probe_put("index", json_integer(s.device.index));
    } else {
        const char *why = tool_log_error(&s.log);
        int code = tool_exit_of(st);
        probe_put("why", tool_json_text(why[0] ? why : clattn_status_string(st)));
        probe_put("code", json_integer(code == TOOL_DEVICE ? TOOL_WRONG : code));
    }
    tool_session_close(&s);
}

// ---- kernels ------------------------------------------------------------------------------------

int probe_kernels(bool builtin)
{
    return builtin ? 1 : CLATTN_KERNEL_SUBGROUP;
}

const char *probe_kernel_name(bool builtin, int n)
{
    return builtin ? "host" : tool_kernel_words[CLATTN_KERNEL_GROUP + n];
}

static const char refused[] = "refused: ", given_up[] = "given up: ";

// What the library said behind `prefix` of a choice; NULL where it said something else.
static const char *said_of_choice(const struct tool_log *log, size_t i, const char *prefix)
{
    const size_t size = strlen(prefix);

    return log->level[i] == CLATTN_LOG_DEBUG && strncmp(log->text[i], prefix, size) == 0
               ? log->text[i] + size
               : NULL;
}

// Every choice that was refused, or tried and given up, while a plan was made that failed.
static json_t *refusals_of(const struct tool_log *log)
{
    json_t *list = json_array();

    for (size_t i = 0; i < log->count; i++) {
        const char *text = said_of_choice(log, i, refused);
        text = text ? text : said_of_choice(log, i, given_up);
        if (text)
            json_array_append_new(list, tool_json_text(text));
    }
    return list;
}

static bool was_given_up(const struct tool_log *log)
{
    for (size_t i = 0; i < log->count; i++) {
        if (said_of_choice(log, i, given_up))
            return true;
    }
    return false;
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
                              int step, const char *name, float *out)
{
    clattn_plan *plan = NULL;

    p.algo = algo;
    p.kernel = kernel;
    probe_stage(step, algo == CLATTN_ALGO_FUSED ? "compiling the %s shape" : "planning for %s",
                name);
    clattn_status st = tool_plan_create(s, &p, &plan);
    if (st == CLATTN_OK) {
        probe_stage(step, algo == CLATTN_ALGO_FUSED ? "running the %s shape" : "running %s", name);
        st = run_once(s, &p, plan, out);
    }
    clattn_plan_destroy(&plan);
    return st;
}

// Runs one kernel shape, or the CPU path, and compares with the reference.
static json_t *test_kernel(struct tool_session *s, bool builtin, int n, int step)
{
    // Sizes that end inside a tile on every side; the first rows see few keys.
    const struct tool_problem p = {.batch = 2, .heads_q = 4, .heads_kv = 2, .len_q = 21,
                                   .len_kv = 45, .dim_qk = 40, .dim_v = 40, .causal = true,
                                   .lse = true};
    const size_t count = (size_t)(p.batch * p.heads_q * p.len_q) * (size_t)(p.dim_v + 1);
    const int algo = builtin ? CLATTN_ALGO_HOST : CLATTN_ALGO_FUSED;
    const int kernel = builtin ? CLATTN_KERNEL_AUTO : CLATTN_KERNEL_GROUP + n;
    const char *name = probe_kernel_name(builtin, n), *verdict = "failed";
    float *got = calloc(count, sizeof *got), *want = calloc(count, sizeof *want);
    struct tool_compare result = {.count = 0};
    json_t *o = json_object();

    clattn_status st = CLATTN_ERR_OUT_OF_MEMORY;
    if (got && want)
        st = run_algo(s, p, algo, kernel, step, name, got);
    if (st == CLATTN_ERR_UNSUPPORTED && !was_given_up(&s->log))
        verdict = "refused";
    json_object_set_new(o, "refusals", st == CLATTN_OK ? json_array() : refusals_of(&s->log));
    if (st == CLATTN_OK)
        st = run_algo(s, p, CLATTN_ALGO_REFERENCE, CLATTN_KERNEL_AUTO, step, "the reference", want);
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
    json_object_set_new(o, "messages", probe_messages(&s->log));
    tool_log_clear(&s->log);
    return o;
}

// ---- plans --------------------------------------------------------------------------------------

static json_t *probe_plan(struct tool_session *s, const struct tool_problem *p, int step)
{
    clattn_plan *plan = NULL;
    clattn_plan_info info = {.struct_size = sizeof info};
    char shape[128];

    tool_shape_text(p, shape, sizeof shape);
    probe_stage(step, "planning and compiling for %s", shape);
    clattn_status st = tool_plan_create(s, p, &plan);
    if (st == CLATTN_OK)
        st = clattn_plan_get_info(plan, &info);
    json_t *o = st == CLATTN_OK ? tool_json_plan(plan, &info)
                                : json_pack("{s:o}", "refusals", refusals_of(&s->log));
    json_object_set_new(o, "shape", json_string(shape));
    json_object_set_new(o, "dim", json_integer(p->dim_qk));
    json_object_set_new(o, "status", json_string(clattn_status_string(st)));
    json_object_set_new(o, "messages", probe_messages(&s->log));
    tool_log_clear(&s->log);
    clattn_plan_destroy(&plan);
    return o;
}

// ---- a device -----------------------------------------------------------------------------------

// Opens the device, first without the library's self-test, so that a failure of that is told apart
// and hides nothing. False if it cannot be opened at all.
static bool open_device(struct tool_session *s, const char *selector, bool report)
{
    struct tool_session tested = *s;
    const bool builtin = strcmp(selector, "cpu") == 0;

    probe_stage(PROBE_STEP_OPEN, "opening the device");
    // What is shown as compiled is to have been compiled now.
    const unsigned flags = CLATTN_CONTEXT_NO_CACHE;
    clattn_status st = tool_session_open(
        s, selector, 0,
        flags | CLATTN_CONTEXT_NO_SELF_TEST | (builtin ? CLATTN_CONTEXT_NO_OPENCL : 0u));
    if (st == CLATTN_OK && builtin)
        s->device.index = -1; // no device was counted
    json_t *said = report ? probe_messages(&s->log) : NULL;
    tool_log_clear(&s->log); // it is no message of a kernel or a plan
    if (!report)
        return st == CLATTN_OK;
    if (st == CLATTN_OK)
        probe_merge(tool_json_device(&s->device));
    if (st == CLATTN_OK && !builtin) {
        probe_stage(PROBE_STEP_OPEN, "compiling and running the small self-test kernel");
        tool_session_init(&tested);
        tested.log.quiet = true;
        tested.log.keep = CLATTN_LOG_WARN;
        tested.opencl_library = s->opencl_library;
        // The tuning file was read already, and what is wrong with it said.
        st = tool_session_open(&tested, selector, 0, flags | CLATTN_CONTEXT_NO_TUNING);
        json_t *more = probe_messages(&tested.log);
        json_array_extend(said, more);
        json_decref(more);
        tool_session_close(&tested);
    }
    probe_put("opened", json_boolean(s->ctx != NULL));
    probe_put("status", json_string(clattn_status_string(st)));
    probe_put("messages", said);
    return s->ctx != NULL;
}

void probe_task_device(const struct probe_options *opt, const char *selector, int first)
{
    struct tool_session s;
    struct probe_kept_plan *kept = NULL;
    const bool builtin = strcmp(selector, "cpu") == 0;
    int step = PROBE_STEP_KERNEL;

    tool_session_init(&s);
    s.log.quiet = true;
    s.log.keep = CLATTN_LOG_DEBUG;
    s.opencl_library = opt->library;
    if (open_device(&s, selector, first == PROBE_STEP_OPEN)) {
        for (int n = 0; n < probe_kernels(builtin); n++, step++) {
            if (step >= first)
                probe_add("kernels", test_kernel(&s, builtin, n, step));
        }
        for (int n = 0; n < opt->plans; n++, step++) {
            if (step >= first)
                probe_add("plans", probe_plan(&s, &opt->plan[n], step));
        }
        json_t *facts = tool_json_device(&s.device);
        const int level = probe_case_level(opt, facts);
        const int cases = probe_case_count(level);
        json_decref(facts);
        for (int n = 0; n < cases; n++, step++) {
            if (step >= first)
                probe_add("cases", probe_run_case(&s, &kept, probe_case(level, n), step));
        }
        probe_plans_free(&kept);
        probe_stage(step, "closing the device");
        probe_put("programs_built", json_integer((json_int_t)clattn_context_build_count(s.ctx)));
    }
    tool_session_close(&s);
}

int probe_task(const struct probe_options *opt)
{
    char selector[32];
    int step;

    if (sscanf(opt->child, "device=%31[^,],%d", selector, &step) == 2)
        probe_task_device(opt, selector, step);
    else if (sscanf(opt->child, "drivers=%d", &step) == 1)
        probe_task_drivers(opt, step);
    else if (strcmp(opt->child, "list") == 0)
        task_list(opt);
    else if (strcmp(opt->child, "select") == 0)
        task_select(opt);
    else
        return TOOL_USE;
    probe_end();
    return TOOL_DONE;
}
