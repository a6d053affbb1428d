// SPDX-License-Identifier: Apache-2.0
// The report: everything goes into one JSON value, which both outputs are printed from.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/utsname.h>

#include "lib/output.h"
#include "lib/shape.h"
#include "probe/probe.h"

// Processes that one device may cost before its other steps are left out.
enum { LOST_MAX = 3 };

static bool is_builtin(const json_t *device)
{
    const char *type = json_string_value(json_object_get(device, "type"));

    return !type || strcmp(type, tool_device_type(CLATTN_DEVICE_BUILTIN_CPU)) == 0;
}

static json_t *quirks_in_words(json_int_t quirks)
{
    static const char *const words[] = {
        "its figures of compiled kernels are not believed",
        "no vector shape, since its compiler takes vectors apart",
        "it stops long loops, so the CPU path takes long rows",
        "blocking calls from several threads take turns",
        "compiled programs are left to the driver's own cache on disk",
    };
    json_t *list = json_array();

    for (unsigned bit = 0; bit < 32; bit++) {
        if (!(quirks >> bit & 1))
            continue;
        if (bit < sizeof words / sizeof *words)
            json_array_append_new(list, json_string(words[bit]));
        else
            json_array_append_new(list, json_sprintf("0x%x, unknown to this program", 1u << bit));
    }
    return list;
}

// ---- what works ---------------------------------------------------------------------------------

static bool result_is(const json_t *entry, const char *word)
{
    const char *result = json_string_value(json_object_get(entry, "result"));

    return result && strcmp(result, word) == 0;
}

static bool was_lost(const json_t *entry)
{
    return result_is(entry, "crashed") || result_is(entry, "hung");
}

// One right shape, no wrong one, and nothing lost of what a program gets that asks for nothing: the
// shape that the device prefers, the plans and the cases.
static bool device_works(const json_t *device)
{
    const char *preferred =
        json_is_true(json_object_get(device, "vector_shape")) ? "vector" : "group";
    const char *status = json_string_value(json_object_get(device, "status"));
    bool right = false, bad = !status || strcmp(status, clattn_status_string(CLATTN_OK)) != 0;
    size_t i;
    json_t *entry;

    json_array_foreach(json_object_get(device, "kernels"), i, entry) {
        const char *name = json_string_value(json_object_get(entry, "kernel"));
        right = right || result_is(entry, "right");
        bad = bad || result_is(entry, "wrong");
        bad = bad || (was_lost(entry) && (is_builtin(device) || strcmp(name, preferred) == 0));
    }
    json_array_foreach(json_object_get(device, "plans"), i, entry)
        bad = bad || was_lost(entry);
    const json_t *test = json_object_get(device, "self_test");
    bad = bad || json_integer_value(json_object_get(test, "right")) !=
                     json_integer_value(json_object_get(test, "cases"));
    return right && !bad;
}

// ---- one device ---------------------------------------------------------------------------------

// The entry that a step would have made.
static void add_lost_step(const struct probe_options *opt, json_t *device,
                          const struct probe_lost *lost)
{
    const bool builtin = is_builtin(device);
    const int kernels = probe_kernels(builtin);
    int n = lost->step - PROBE_STEP_KERNEL;
    const char *list = "kernels";
    char shape[128];
    json_t *entry = json_pack("{s:s, s:o, s:[], s:[]}", "result", lost->hung ? "hung" : "crashed",
                              "status", tool_json_text(lost->text), "refusals", "messages");

    if (n < kernels) {
        json_object_set_new(entry, "kernel", json_string(probe_kernel_name(builtin, n)));
    } else if (n < kernels + opt->plans) {
        const struct tool_problem *p = &opt->plan[n - kernels];
        list = "plans";
        tool_shape_text(p, shape, sizeof shape);
        json_object_set_new(entry, "shape", json_string(shape));
        json_object_set_new(entry, "dim", json_integer(p->dim_qk));
    } else {
        const struct attn_case *c =
            probe_case(probe_case_level(opt, device), n - kernels - opt->plans);
        json_decref(entry);
        if (!c)
            return; // all steps were done
        list = "cases";
        entry = probe_case_entry(c, lost->hung ? "hung" : "crashed", lost->text);
        json_object_set_new(entry, "messages", json_array());
    }
    json_array_append_new(json_object_get(device, list), entry);
}

static void gather_device(const struct probe_options *opt, json_t *device, const char *selector)
{
    json_t *failures = json_array();
    int first = PROBE_STEP_OPEN, losses = 0;

    json_object_set_new(device, "status", json_string("it was not opened"));
    json_object_set_new(device, "opened", json_false());
    json_object_set_new(device, "programs_built", json_integer(0));
    json_object_set_new(device, "messages", json_array());
    json_object_set_new(device, "kernels", json_array());
    json_object_set_new(device, "plans", json_array());
    if (opt->self_test != PROBE_LEVEL_NONE)
        json_object_set_new(device, "cases", json_array());
    for (bool again = true; again;) {
        char task[64];
        struct probe_lost lost;
        snprintf(task, sizeof task, "device=%s,%d", selector, first);
        probe_child(opt, task, NULL, device, &lost);
        again = lost.lost && lost.step >= PROBE_STEP_KERNEL && lost.step >= first;
        if (lost.lost) {
            json_array_append_new(failures, probe_lost_json(&lost));
            if (lost.step == PROBE_STEP_OPEN)
                json_object_set_new(device, "status", tool_json_text(lost.text));
        }
        if (again)
            add_lost_step(opt, device, &lost);
        if (again && ++losses == LOST_MAX) {
            json_array_append_new(
                failures, json_pack("{s:o, s:[]}", "what",
                                    json_sprintf("given up after %d lost processes", losses),
                                    "said"));
            again = false;
        }
        first = lost.step + 1;
        probe_lost_free(&lost);
    }
    if (opt->self_test != PROBE_LEVEL_NONE)
        json_object_set_new(device, "self_test",
                            probe_case_summary(probe_case_level(opt, device),
                                               json_object_get(device, "cases")));
    json_object_set_new(device, "failures", failures);
    json_object_set_new(device, "quirks_in_words",
                        quirks_in_words(json_integer_value(json_object_get(device, "quirks"))));
    json_object_set_new(device, "works", json_boolean(device_works(device)));
}

// ---- all of them --------------------------------------------------------------------------------

// The built-in path's facts come from its own child.
static void gather_builtin(const struct probe_options *opt, json_t *device, json_t *devices)
{
    gather_device(opt, device, "cpu");
    json_array_append_new(devices, device);
}

static int select_device(const struct probe_options *opt, json_int_t *index, json_t *failures)
{
    struct probe_lost lost;
    json_t *answer = json_object();
    int code = TOOL_DONE;

    probe_child(opt, "select", NULL, answer, &lost);
    json_t *why = json_object_get(answer, "why");
    if (why)
        code = tool_fail((int)json_integer_value(json_object_get(answer, "code")),
                         "--device %s: %s", opt->device, json_string_value(why));
    else if (json_object_get(answer, "index"))
        *index = json_integer_value(json_object_get(answer, "index"));
    else
        json_array_append_new(failures, probe_lost_json(&lost));
    probe_lost_free(&lost);
    json_decref(answer);
    return code;
}

// Lists the devices; false where that failed.
static bool list_devices(const struct probe_options *opt, json_t *listed, json_t *failures)
{
    struct probe_lost lost;

    probe_child(opt, "list", NULL, listed, &lost);
    json_t *error = json_object_get(listed, "error");
    if (lost.lost)
        json_array_append_new(failures, probe_lost_json(&lost));
    else if (error)
        json_array_append_new(failures,
                              json_pack("{s:O, s:O}", "what", error, "said", lost.said));
    bool good = !lost.lost || lost.step < 0;
    probe_lost_free(&lost);
    return good && !error;
}

static void gather_listed(const struct probe_options *opt, const json_t *listed, json_int_t only,
                          json_t *devices)
{
    size_t i;
    json_t *device;

    json_array_foreach(json_object_get(listed, "devices"), i, device) {
        char selector[32];
        if (only >= 0 && (json_int_t)i != only)
            continue;
        snprintf(selector, sizeof selector, "%zu", i);
        gather_device(opt, device, is_builtin(device) ? "cpu" : selector);
        json_array_append(devices, device);
    }
}

static int gather_opencl(const struct probe_options *opt, json_t *report)
{
    json_t *listed = json_object(), *failures = json_object_get(report, "failures");
    json_t *devices = json_object_get(report, "devices");
    json_int_t only = -1;

    int code = opt->device ? select_device(opt, &only, failures) : TOOL_DONE;
    if (!code && !(opt->device && only < 0)) {
        bool good = list_devices(opt, listed, failures);
        json_t *count = json_object_get(listed, "opencl_devices");
        json_t *messages = json_object_get(listed, "messages");
        if (messages)
            json_object_set(report, "messages", messages);
        if (good)
            json_object_set(report, "opencl_devices", count);
        if (good)
            gather_listed(opt, listed, only, devices);
        else if (!opt->device)
            gather_builtin(opt, json_object(), devices);
        bool none = !good || json_integer_value(count) == 0;
        if (clattn_has_opencl() && !opt->library && (none || !opt->device))
            json_object_set_new(report, "drivers", probe_drivers_checked(opt, !good));
        if (clattn_has_opencl() && !opt->library && good && none)
            json_object_set_new(report, "advice", probe_advice());
    }
    json_decref(listed);
    return code;
}

// Shapes of the command line that no device which was looked at has a plan for.
static json_t *unserved(const struct probe_options *opt, const json_t *devices)
{
    json_t *list = json_array(), *device;
    size_t i;

    for (int n = 0; opt->asked && n < opt->plans; n++) {
        char shape[128];
        bool served = false;
        json_array_foreach(devices, i, device) {
            json_t *plan = json_array_get(json_object_get(device, "plans"), (size_t)n);
            served = served || json_object_get(plan, "algo");
        }
        tool_shape_text(&opt->plan[n], shape, sizeof shape);
        if (!served)
            json_array_append_new(list, json_string(shape));
    }
    return list;
}

int probe_gather(const struct probe_options *opt, json_t *report)
{
    int version = clattn_version(), code = TOOL_DONE;
    struct utsname system;
    bool works = false;
    size_t i;
    json_t *device;

    json_object_set_new(report, "version", json_sprintf("%d.%d.%d", version / 10000,
                                                        version / 100 % 100, version % 100));
    if (uname(&system) == 0)
        json_object_set_new(report, "system", json_sprintf("%s %s %s", system.sysname,
                                                           system.release, system.machine));
    else
        json_object_set_new(report, "system", json_string("unknown"));
    json_object_set_new(report, "opencl_built", json_boolean(clattn_has_opencl()));
    json_object_set_new(report, "opencl_devices", json_null());
    json_object_set_new(report, "messages", json_array());
    json_object_set_new(report, "failures", json_array());
    json_object_set_new(report, "devices", json_array());
    // The built-in path shall not wait for drivers, or fail with them.
    if (opt->device && strcasecmp(opt->device, "cpu") == 0)
        gather_builtin(opt, json_object(), json_object_get(report, "devices"));
    else
        code = gather_opencl(opt, report);
    json_array_foreach(json_object_get(report, "devices"), i, device)
        works = works || (json_is_true(json_object_get(device, "works")) &&
                          (opt->device || !is_builtin(device)));
    json_object_set_new(report, "unserved", unserved(opt, json_object_get(report, "devices")));
    json_object_set_new(report, "works", json_boolean(works));
    return code;
}
