// SPDX-License-Identifier: Apache-2.0
// --self-test: the cases of the test suite on the user's device, against the double reference.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cases/case_memory.h"
#include "lib/output.h"
#include "lib/shape.h"
#include "probe/probe.h"

const char *const probe_level_words[] = {"small", "medium", "full", NULL};

// Without vectors of their own software devices take minutes for what others do in seconds.
int probe_case_level(const struct probe_options *opt, const json_t *device)
{
    const char *type = json_string_value(json_object_get(device, "type"));
    const char *platform = json_string_value(json_object_get(device, "platform"));
    json_int_t width = json_integer_value(json_object_get(device, "native_width_f32"));

    if (opt->self_test != PROBE_LEVEL_AUTO)
        return opt->self_test;
    if (!type || !platform || strcmp(platform, "Oclgrind") == 0)
        return LEVEL_SMALL;
    return strcmp(type, tool_device_type(CLATTN_DEVICE_CPU)) == 0 && width < 4 ? LEVEL_SMALL
                                                                               : LEVEL_MEDIUM;
}

const struct attn_case *probe_case(int level, int n)
{
    int count = 0;
    const struct attn_case *list = attn_cases(&count);

    for (int i = 0; list && i < count; i++) {
        if (list[i].level <= level && n-- == 0)
            return &list[i];
    }
    return NULL;
}

int probe_case_count(int level)
{
    int n = 0;

    while (level != PROBE_LEVEL_NONE && probe_case(level, n))
        n++;
    return n;
}

static void shape_text(const struct attn_case *c, char *text, size_t size)
{
    const struct tool_problem p = {.batch = c->batch, .heads_q = c->heads_q,
                                   .heads_kv = c->heads_kv, .len_q = c->len_q,
                                   .len_kv = c->len_kv, .dim_qk = c->dim, .dim_v = case_dim_v(c)};

    tool_shape_text(&p, text, size);
}

json_t *probe_case_entry(const struct attn_case *c, const char *result, const char *status)
{
    char shape[128];

    shape_text(c, shape, sizeof shape);
    return json_pack("{s:s, s:s, s:s, s:s, s:o}", "name", c->name, "shape", shape, "memory",
                     c->seed % 2 ? "host" : "device", "result", result, "status",
                     tool_json_text(status));
}

// ---- plans --------------------------------------------------------------------------------------

// Cases share their plans, since compiling takes longest.
struct probe_kept_plan {
    struct probe_kept_plan *next;
    clattn_attention_desc desc;
    clattn_plan *plan;
};

static clattn_status plan_of(struct tool_session *s, struct probe_kept_plan **kept,
                             const struct attn_case *c, int step, clattn_plan **plan)
{
    clattn_attention_desc desc = case_desc(c);

    desc.flags = CLATTN_NO_FALLBACK; // the device is to be tested, not the CPU path behind it
    for (struct probe_kept_plan *p = *kept; p; p = p->next) {
        if (memcmp(&p->desc, &desc, sizeof desc) == 0) {
            *plan = p->plan;
            return CLATTN_OK;
        }
    }
    struct probe_kept_plan *p = calloc(1, sizeof *p);
    if (!p)
        return CLATTN_ERR_OUT_OF_MEMORY;
    probe_stage(step, "planning and compiling for case %s", c->name);
    clattn_status st = clattn_attention_plan_create(s->ctx, &desc, &p->plan);
    if (st != CLATTN_OK) {
        free(p);
        return st;
    }
    p->desc = desc;
    p->next = *kept;
    *kept = p;
    *plan = p->plan;
    return CLATTN_OK;
}

void probe_plans_free(struct probe_kept_plan **kept)
{
    for (struct probe_kept_plan *p = *kept, *next; p; p = next) {
        next = p->next;
        clattn_plan_destroy(&p->plan);
        free(p);
    }
    *kept = NULL;
    attn_expect_close();
}

// ---- one case -----------------------------------------------------------------------------------

static json_t *lines_of(char *text)
{
    json_t *list = json_array();
    char *rest = NULL;

    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest))
        json_array_append_new(list, tool_json_text(line));
    return list;
}

static clattn_status run_on(struct tool_session *s, const struct attn_case *c,
                            const clattn_plan *plan, int step, struct case_check *check)
{
    struct attn_data data;
    struct case_memory memory;

    if (!attn_data_make(c, &data))
        return CLATTN_ERR_OUT_OF_MEMORY;
    probe_stage(step, "running case %s", c->name);
    clattn_status st = case_memory_make(s->ctx, c, &data,
                                        c->seed % 2 ? MEMORY_HOST : MEMORY_DEVICE, &memory);
    if (st == CLATTN_OK)
        st = clattn_attention_run(plan, &memory.call);
    if (st == CLATTN_OK)
        st = case_memory_read(s->ctx, &memory);
    if (st == CLATTN_OK)
        case_memory_check(c, &data, &memory, check);
    case_memory_free(s->ctx, &memory);
    attn_data_free(&data);
    return st;
}

json_t *probe_run_case(struct tool_session *s, struct probe_kept_plan **kept,
                       const struct attn_case *c, int step)
{
    clattn_plan *plan = NULL;
    clattn_plan_info info = {.struct_size = sizeof info};
    struct case_check check = {.worst_ratio = 0};

    clattn_status st = plan_of(s, kept, c, step, &plan);
    if (st == CLATTN_OK)
        st = clattn_plan_get_info(plan, &info);
    if (st == CLATTN_OK)
        st = run_on(s, c, plan, step, &check);
    const bool wrong = st == CLATTN_OK && check.why[0];
    json_t *o = probe_case_entry(c, st != CLATTN_OK ? "failed" : wrong ? "wrong" : "right",
                                 clattn_status_string(st));
    json_t *said = probe_messages(&s->log);
    tool_log_clear(&s->log);
    if (plan) {
        json_object_set_new(o, "algo", tool_json_text(info.algo_name));
        json_object_set_new(o, "kernel", tool_json_text(info.kernel_name));
        json_object_set_new(o, "tile_q", json_integer(info.tile_q));
        json_object_set_new(o, "tile_k", json_integer(info.tile_k));
    }
    if (st == CLATTN_OK) {
        json_object_set_new(o, "max_error", tool_json_real(check.max_abs));
        json_object_set_new(o, "of_tolerance", tool_json_real(check.worst_ratio));
        json_t *lines = lines_of(check.why);
        json_array_extend(said, lines);
        json_decref(lines);
    }
    json_object_set_new(o, "messages", said);
    return o;
}

// ---- summary ------------------------------------------------------------------------------------

json_t *probe_case_summary(int level, const json_t *cases)
{
    int right = 0;
    double worst = 0;
    const char *name = "";
    size_t i;
    json_t *c;

    json_array_foreach(cases, i, c) {
        json_t *ratio = json_object_get(c, "of_tolerance");
        right += strcmp(json_string_value(json_object_get(c, "result")), "right") == 0;
        if (json_is_number(ratio) && json_number_value(ratio) > worst) {
            worst = json_number_value(ratio);
            name = json_string_value(json_object_get(c, "name"));
        }
    }
    return json_pack("{s:s, s:i, s:i, s:f, s:s}", "level", probe_level_words[level], "cases",
                     probe_case_count(level), "right", right, "of_tolerance", worst, "worst_case",
                     name);
}
