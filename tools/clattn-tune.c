// SPDX-License-Identifier: Apache-2.0
// clattn-tune: measures tiles for a device and shapes, and writes what is faster than the planner's
// choice into the file that the library reads.
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clattn/tune.h"
#include "lib/progress.h"
#include "lib/say.h"
#include "lib/shape.h"
#include "tune/tune.h"

volatile int tune_signal;

static void take_signal(int number)
{
    tune_signal = number;
}

// The second Ctrl-C ends the program at once.
static void catch_signals(void)
{
    struct sigaction act;

    memset(&act, 0, sizeof act);
    act.sa_handler = take_signal;
    act.sa_flags = (int)SA_RESETHAND | SA_RESTART;
    sigaction(SIGINT, &act, NULL);
    sigaction(SIGTERM, &act, NULL);
}

static void name_item(struct tune_item *item)
{
    char shape[64], features[96] = "", types[64] = "";

    tool_shape_text(&item->p, shape, sizeof shape);
    tool_features_text(&item->p, features, sizeof features);
    tool_dtypes_text(&item->p, types, sizeof types);
    const bool any = strcmp(features, "none") != 0;
    snprintf(item->name, sizeof item->name, "%s%s%s, %s, %s", shape, any ? " " : "",
             any ? features : "", types, tool_algo_words[item->p.algo]);
}

// Bad files are the user's, unlike the library's own. No other shape would fare better.
static int file_fail(const struct tool_session *s, clattn_status st, const char *file,
                     struct tune_item *item)
{
    if (st != CLATTN_ERR_FILE)
        return tool_library_fail(&s->log, st, item->name);
    item->stopped = true;
    return tool_fail(TOOL_USE, "%s cannot be used (%s): mend or remove what is in the way, or name "
                               "another file with --output", file, tool_log_error(&s->log));
}

// What the file has of an item.
static clattn_status look(struct tool_session *s, const char *file, bool again,
                          struct tune_item *item)
{
    clattn_attention_desc desc;
    clattn_tuning t = {.struct_size = sizeof t};

    tool_desc_init(&item->p, &desc);
    clattn_status st = clattn_tune_read(s->ctx, file, &desc, &t);
    if (st == CLATTN_OK && t.measured && !again) {
        item->resumed = true;
        item->best = t.tile;
        item->ratio = t.ratio;
    }
    return st;
}

static clattn_status save(struct tool_session *s, const char *file, const struct tune_item *item)
{
    clattn_attention_desc desc;

    tool_desc_init(&item->p, &desc);
    desc.tile = item->best;
    return clattn_tune_write(s->ctx, file, &desc, item->ratio);
}

// Finds out before any measuring whether the file can be written, by one beside it.
static clattn_status try_file(struct tool_session *s, const char *file,
                              const struct tune_item *item)
{
    char name[TUNE_PATH + 8];

    snprintf(name, sizeof name, "%s.try", file);
    clattn_status st = save(s, name, item);
    if (st == CLATTN_OK)
        remove(name);
    return st;
}

static int wrong_ones(const struct tune_item *item)
{
    int code = 0;

    for (int i = 0; i < item->tiles; i++) {
        char tile[96];
        tune_tile_text(&item->tile[i].tile, tile, sizeof tile);
        if (item->tile[i].state == TUNE_WRONG)
            code = tool_fail(TOOL_WRONG, "%s, %s: wrong result, off by %.3g at worst", item->name,
                             tile, item->tile[i].max_error);
    }
    return code;
}

// Measures what the file does not have yet, and writes it.
static int measure_one(struct tool_session *s, const struct tune_options *opt,
                       struct tune_clock *clock, const char *file, struct tune_item *item)
{
    clattn_status st = clock->can_write ? CLATTN_OK : try_file(s, file, item);
    if (st != CLATTN_OK)
        return file_fail(s, st, file, item);
    clock->can_write = true;
    st = tune_measure(s, opt, clock, item);
    if (st != CLATTN_OK)
        return tool_library_fail(&s->log, st, item->name);
    tool_log_clear(&s->log);
    // Of other kernels than those that were asked for nothing is known.
    if (!item->stopped && (item->winner >= 0 || !opt->kernel)) {
        st = save(s, file, item);
        item->written = st == CLATTN_OK;
    }
    tune_report(opt, s, item, file);
    return st == CLATTN_OK ? wrong_ones(item) : file_fail(s, st, file, item);
}

static int tune_one(struct tool_session *s, const struct tune_options *opt,
                    struct tune_clock *clock, const char *file, struct tune_item *item)
{
    tool_log_clear(&s->log);
    clattn_status st = tune_list(s, opt->kernel, item);
    name_item(item);
    if (st != CLATTN_OK) // the next one may still do
        return tool_library_fail(&s->log, st, item->name);
    if (!opt->dry_run) {
        st = look(s, file, opt->again, item);
        if (st != CLATTN_OK)
            return file_fail(s, st, file, item);
    }
    if (!item->resumed && !opt->dry_run)
        return measure_one(s, opt, clock, file, item);
    tune_report(opt, s, item, file);
    return TOOL_DONE;
}

static int tune_all(struct tool_session *s, const struct tune_options *opt, const char *file)
{
    struct tune_clock clock = {.start_ms = tool_now_ms(), .budget_ms = 1e3 * opt->budget_s,
                               .items = opt->rows * opt->algos};
    int worst = 0, tiles = 0;

    for (; clock.item < clock.items && !tune_stopped(&clock) && worst != TOOL_DEVICE;
         clock.item++) {
        struct tune_item item = {.p = opt->row[clock.item / opt->algos].p};
        item.p.algo = opt->algo[clock.item % opt->algos];
        const int code = tune_one(s, opt, &clock, file, &item);
        worst = code > worst ? code : worst;
        tiles += item.tiles;
        free(item.tile);
        if (item.stopped)
            break;
    }
    if (opt->dry_run && !opt->json && clock.items > 1)
        printf("\n%d tiles, each to be compiled and measured in pairs with the planner's choice\n"
               "one --shape with one --algo lists each tile; --budget SECONDS bounds the time\n",
               tiles);
    if (!opt->json && clock.item < clock.items && tune_stopped(&clock))
        printf("%s: %d of %d done; the same command goes on with the others\n",
               tune_signal ? "stopped" : "the time is over", clock.item, clock.items);
    return worst;
}

static int run(const struct tune_options *opt)
{
    struct tool_session s;
    char file[TUNE_PATH] = "", what[256] = "";
    int code = 0;

    tool_progress_start(opt->json);
    tool_session_init(&s);
    s.log.quiet = true; // a tile that fails is a line of the table
    if (opt->device)
        snprintf(what, sizeof what, "--device %s", opt->device);
    clattn_status st = tool_session_open(&s, opt->device, 0, CLATTN_CONTEXT_NO_TUNING);
    if (st != CLATTN_OK)
        code = tool_library_fail(&s.log, st, what);
    else if (s.device.type == CLATTN_DEVICE_BUILTIN_CPU)
        code = tool_fail(TOOL_USE, "the built-in CPU path has no tiles to measure: name an OpenCL "
                                   "device with --device");
    else if (opt->output && strlen(opt->output) >= sizeof file)
        code = tool_fail(TOOL_USE, "option --output: over %d characters", TUNE_PATH - 1);
    else if (opt->output)
        snprintf(file, sizeof file, "%s", opt->output);
    else if (!opt->dry_run && clattn_tune_path(file, sizeof file) != CLATTN_OK)
        code = tool_fail(TOOL_USE, "neither XDG_CONFIG_HOME nor HOME names a folder: name a file "
                                   "with --output");
    if (!code && !opt->json) {
        tool_device_text(&s.device, what, sizeof what);
        printf("device  %s\n", what);
        if (!opt->dry_run)
            printf("file    %s\n", file);
        printf("\n");
    }
    if (!code) {
        catch_signals();
        code = tune_all(&s, opt, file);
    }
    tool_session_close(&s);
    return code;
}

int main(int argc, char **argv)
{
    struct tune_options *opt = calloc(1, sizeof *opt);
    int code;

    tool_start("clattn-tune");
    if (!opt)
        return tool_fail(TOOL_DEVICE, "no memory for the options");
    opt->runs = 5;
    code = tune_options(argc, argv, opt);
    if (!code && opt->help)
        tool_print_help(opt->help > 1 ? tune_help_all : tune_help);
    else if (!code && opt->version)
        tool_print_version();
    else if (!code)
        code = run(opt);
    free(opt);
    code = tool_finish(code);
    if (tune_signal)
        raise(tune_signal); // its default action by now: who waits for the program sees it
    return code;
}
