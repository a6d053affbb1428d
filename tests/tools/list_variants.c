// SPDX-License-Identifier: Apache-2.0
// Prints what tools/gpu_compile_check compiles: the kernels that the planner chooses for GPUs of
// typed-in figures, with their options, and the text of a kernel file with its includes.
//
//   list_variants                 a line for each variant, columns separated by tabs:
//       device, set, choice, algorithm, problem, file, items, local bytes, tile, options
//   list_variants FILE            the text of that file, as a driver gets it
//
// `device` names the figures, which several targets share. `set` is "core" for the few that are
// checked always, else "more". `choice` is 0 where the tile is the first choice of some problem,
// else its rank, and 1 for vector tiles, which a GPU gets only by name or as a second choice. A
// variant appears once for each device, under a problem that ranks it so.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "algo/softmax.h"
#include "algo/tiled_ocl.h"
#include "ocl/source.h"
#include "plan.h"

// ---- devices -----------------------------------------------------------------------------------

#define GPU(title, units, group, local, size)                                                      \
    {.name = title, .type = CLA_DEVICE_GPU, .compiler = true, .compute_units = (units),            \
     .native_width_f32 = 1, .max_group = (group), .max_items = {(group), (group), (group)},        \
     .local_bytes = (local), .has_subgroups = (size) != 0,                                       \
     .subgroups = (size) ? CLA_SUBGROUPS_REQUIRED : CLA_SUBGROUPS_NONE, .subgroup_size = (size)}

// As their OpenCL drivers report them; docs/planner.md names the sources. AMD's limit of 256 items
// is ROCm's; with Mesa's 1024 the choices are the same.
static const struct cla_caps devices[] = {
    GPU("nvidia", 128, 1024, 49152, 0),
    GPU("amd", 96, 256, 65536, 0),
    GPU("intel-xe-lp", 96, 512, 65536, 8),
    GPU("intel-xe-hpg", 512, 1024, 65536, 8),
    GPU("intel-xe-hpc", 1024, 1024, 131072, 16),
};
enum { DEVICES = sizeof devices / sizeof devices[0] };

// ---- problems ----------------------------------------------------------------------------------

struct lengths {
    const char *name;
    int32_t batch, heads_q, heads_kv, len_q, len_kv;
};
enum { PREFILL, DECODE, LONG, SMALL, UNBOUNDED, LENGTHS };
static const struct lengths lengths[LENGTHS] = {
    [PREFILL] = {"prefill", 4, 32, 32, 4096, 4096},
    [DECODE] = {"decode", 4, 32, 8, 1, 8192},
    [LONG] = {"long", 1, 32, 8, 4096, 131072},
    [SMALL] = {"small", 1, 8, 8, 256, 256},
    [UNBOUNDED] = {"unbounded", INT32_MAX, 32, 8, INT32_MAX, INT32_MAX},
};

enum { SAME_I8 = CLATTN_DTYPE_I8 }; // of K and V; Q and O are f16
static const char *const dtype_name[] = {"f32", "f16", "bf16", "int8"};
static const char *const mask_name[] = {"none", "window", "general"};
static const int32_t dims[] = {32, 64, 80, 96, 128, 256};
enum { DIMS = sizeof dims / sizeof dims[0], TILES_CORE = 1, TILES_MORE = 2 };

static const struct cla_algo *const algos[] = {&cla_algo_fused, &cla_algo_split_kv,
                                               &cla_algo_two_loop, &cla_algo_fused_kv_outer,
                                               &cla_algo_unfused};
enum { FUSED, SPLIT_KV, TWO_LOOP, KV_OUTER, UNFUSED, ALGOS };

struct wish {
    int algo, lengths;
    int32_t dim, mask, dtype;
    bool paged, core;
};

static struct cla_problem problem_of(const struct wish *w, int32_t kernel)
{
    const struct lengths *n = &lengths[w->lengths];
    const int32_t other = w->dtype == SAME_I8 ? CLATTN_DTYPE_F16 : w->dtype;
    return (struct cla_problem){
        .dtype_q = other, .dtype_kv = w->dtype, .dtype_o = other,
        .dim_qk = w->dim, .dim_v = w->dim,
        .heads_q = n->heads_q, .heads_kv = n->heads_kv, .group = n->heads_q / n->heads_kv,
        .max_batch = n->batch, .max_len_q = n->len_q, .max_len_kv = n->len_kv,
        .causal = w->mask == CLA_MASK_WINDOW, .bias = w->mask == CLA_MASK_GENERAL,
        .lse = true, .paged = w->paged, .page_size = w->paged ? 16 : 0,
        .algo = algos[w->algo]->id, .kernel = kernel, .softmax = CLATTN_SOFTMAX_SAFE};
}

// ---- variants ----------------------------------------------------------------------------------

struct variant {
    const char *device, *algo, *file;
    char problem[64], tile[96], options[512];
    int items, choice;
    size_t local_bytes;
    bool core;
};

static struct variant *found;
static size_t count, room;

static void add(const struct variant *v)
{
    for (size_t i = 0; i < count; i++) {
        struct variant *old = &found[i];
        if (old->device != v->device || strcmp(old->file, v->file) != 0 ||
            strcmp(old->options, v->options) != 0)
            continue;
        old->core = old->core || v->core;
        if (v->choice < old->choice) {
            old->choice = v->choice;
            memcpy(old->problem, v->problem, sizeof old->problem);
        }
        return;
    }
    if (count == room) {
        room = room ? 2 * room : 256;
        found = realloc(found, room * sizeof *found);
        if (!found)
            abort();
    }
    found[count++] = *v;
}

// The kernels of the wish's first tiles of the group shape on one device, or those of its first
// vector tile, which a caller can ask for on a GPU, too.
static void add_tiles(const struct cla_caps *caps, const struct wish *w, int32_t kernel)
{
    const struct cla_problem p = problem_of(w, kernel);
    const struct cla_algo *algo = algos[w->algo];
    struct cla_ranking ranking;
    if (algo->lacks & cla_problem_needs(&p))
        return;
    cla_plan_rank(&p, caps, &ranking);
    for (int i = 0; i < ranking.count && i < TILES_MORE; i++) {
        const struct cla_tile *t = &ranking.choice[i].tile;
        const bool vector = t->kernel == CLATTN_KERNEL_VECTOR, few = cla_tile_is_few(t);
        if (vector && (kernel == CLATTN_KERNEL_AUTO || i > 0))
            continue;
        struct variant v = {.device = caps->name, .algo = algo->name,
                            .choice = vector ? 1 : i,
                            .items = vector ? 1 : t->items_q * t->items_k,
                            .local_bytes = t->local_bytes, .core = w->core && i < TILES_CORE};
        snprintf(v.problem, sizeof v.problem, "%s %d %s %s%s", lengths[w->lengths].name,
                 (int)w->dim, mask_name[w->mask], dtype_name[w->dtype], w->paged ? " paged" : "");
        if (vector)
            snprintf(v.tile, sizeof v.tile, "%dx%d vector%s", (int)t->tile_q, (int)t->tile_k,
                     few ? ", lanes are channels" : "");
        else
            snprintf(v.tile, sizeof v.tile, "%dx%d/%dx%d c%d%s", (int)t->tile_q, (int)t->tile_k,
                     (int)t->items_q, (int)t->items_k, (int)t->chunk_d, t->subgroups ? " sub" : "");
        cla_tiled_options(&p, t, caps, v.options, sizeof v.options);
        const struct cla_tiled_kernel *kernels = few      ? algo->tiled->few
                                                 : vector ? algo->tiled->vector
                                                          : algo->tiled->group;
        for (int k = 0; k < CLA_TILED_KERNELS && kernels[k].file; k++) {
            v.file = kernels[k].file;
            if (k > 0)
                v.local_bytes = 0; // not of the bill
            add(&v);
        }
    }
}

static void add_wish(struct wish w)
{
    for (int d = 0; d < DEVICES; d++)
        add_tiles(&devices[d], &w, CLATTN_KERNEL_AUTO);
}

// ---- what is listed ----------------------------------------------------------------------------

// What CI compiles each time: each kernel, the dimensions of the main one, and each costly feature.
static void add_core(void)
{
    for (int d = 0; d < DIMS; d++)
        add_wish((struct wish){FUSED, PREFILL, dims[d], CLA_MASK_NONE, CLATTN_DTYPE_F32, false,
                               dims[d] == 64 || dims[d] == 128 || dims[d] == 256});
    add_wish((struct wish){FUSED, UNBOUNDED, 128, CLA_MASK_GENERAL, CLATTN_DTYPE_F16, false, true});
    add_wish((struct wish){SPLIT_KV, DECODE, 128, CLA_MASK_WINDOW, SAME_I8, true, true});
    add_wish((struct wish){TWO_LOOP, PREFILL, 64, CLA_MASK_NONE, CLATTN_DTYPE_F32, false, true});
    add_wish((struct wish){KV_OUTER, PREFILL, 64, CLA_MASK_NONE, CLATTN_DTYPE_F32, false, true});
    add_wish((struct wish){UNFUSED, PREFILL, 64, CLA_MASK_GENERAL, CLATTN_DTYPE_F32, false, true});
    for (int a = FUSED; a <= KV_OUTER; a++) {
        const struct wish w = {a, a == SPLIT_KV ? DECODE : PREFILL, 64, CLA_MASK_WINDOW,
                               CLATTN_DTYPE_F32, false, a <= SPLIT_KV};
        for (int d = 0; d < DEVICES; d++)
            add_tiles(&devices[d], &w, CLATTN_KERNEL_VECTOR);
    }
}

// The rest of what the planner comes to: every dimension, both ends of the mask kinds, lengths that
// change the tile, types.
static void add_more(void)
{
    for (int d = 0; d < DIMS; d++)
        for (int m = CLA_MASK_NONE; m <= CLA_MASK_GENERAL; m += CLA_MASK_GENERAL) {
            for (int n = 0; n < LENGTHS; n++)
                if (n != DECODE)
                    add_wish((struct wish){FUSED, n, dims[d], m, CLATTN_DTYPE_F32, false, false});
            add_wish((struct wish){SPLIT_KV, DECODE, dims[d], m, CLATTN_DTYPE_F32, false, false});
            for (int a = TWO_LOOP; a <= KV_OUTER; a++)
                add_wish((struct wish){a, PREFILL, dims[d], m, CLATTN_DTYPE_F32, false, false});
        }
    for (int a = FUSED; a <= SPLIT_KV; a++)
        for (int d = 64; d <= 128; d += 64)
            for (int t = CLATTN_DTYPE_F16; t <= CLATTN_DTYPE_I8; t++)
                for (int paged = 0; paged < 2; paged++)
                    add_wish((struct wish){a, a == FUSED ? PREFILL : DECODE, d, CLA_MASK_WINDOW, t,
                                           paged, false});
}

// Kernels without a tile: row softmax, and the operations around attention, which take 64 items a
// row wherever a device allows as many.
static void add_rows(const struct cla_caps *caps)
{
    static const char *const files[] = {"append.cl", "rotary.cl", "merge_parts.cl"};
    for (int algo = CLATTN_SOFTMAX_NAIVE; algo <= CLATTN_SOFTMAX_ONLINE; algo++) {
        const struct cla_softmax s = {.algo = algo, .lse = true};
        const struct cla_softmax_shape shape = cla_softmax_shape(caps, CLATTN_KERNEL_AUTO);
        struct variant v = {.device = caps->name, .algo = "softmax", .file = "softmax.cl",
                            .items = shape.items, .local_bytes = 8 * (size_t)shape.items,
                            .core = algo == CLATTN_SOFTMAX_ONLINE};
        snprintf(v.problem, sizeof v.problem, "%s f32", algo == CLATTN_SOFTMAX_NAIVE ? "naive"
                 : algo == CLATTN_SOFTMAX_SAFE ? "safe" : "online");
        cla_softmax_options(&s, &shape, caps, v.options, sizeof v.options);
        add(&v);
    }
    for (int f = 0; f < 3; f++) {
        struct variant v = {.device = caps->name, .algo = "operation", .file = files[f],
                            .items = 64, .local_bytes = f == 0 ? 256 : 0, .core = true};
        snprintf(v.problem, sizeof v.problem, "%s", f == 0 ? "f32 to int8" : "f16");
        snprintf(v.options, sizeof v.options, "-cl-std=CL1.2 -w -DDTYPE_Q=%d %s=%d -DITEMS=64",
                 f == 0 ? CLATTN_DTYPE_F32 : CLATTN_DTYPE_F16,
                 f == 0 ? "-DDTYPE_CACHE" : "-DDTYPE_O",
                 f == 0 ? CLATTN_DTYPE_I8 : CLATTN_DTYPE_F16);
        const size_t used = strlen(v.options);
        if (cla_caps_lanes(caps))
            snprintf(v.options + used, sizeof v.options - used, " -DSUBGROUP_LANES=%d",
                     (int)cla_caps_lanes(caps));
        add(&v);
    }
}

int main(int argc, char **argv)
{
    const struct cla_log log = {0};
    if (argc > 1) {
        char *text = NULL;
        if (cla_source_expand(NULL, false, argv[1], &log, &text) != CLATTN_OK) {
            fprintf(stderr, "list_variants: %s can't be read\n", argv[1]);
            return 1;
        }
        fputs(text, stdout);
        free(text);
        return 0;
    }
    add_core();
    add_more();
    for (int d = 0; d < DEVICES; d++)
        add_rows(&devices[d]);
    for (size_t i = 0; i < count; i++) {
        const struct variant *v = &found[i];
        printf("%s\t%s\t%d\t%s\t%s\t%s\t%d\t%zu\t%s\t%s\n", v->device, v->core ? "core" : "more",
               v->choice, v->algo, v->problem, v->file, v->items, v->local_bytes,
               v->tile[0] ? v->tile : "-", v->options);
    }
    free(found);
    return 0;
}
