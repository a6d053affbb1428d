// SPDX-License-Identifier: Apache-2.0
// The text of a tuning file from bytes. What is accepted is written and read again: the same rows,
// and then the same text.
#include "abi.h"
#include "fuzz.h"
#include "plan.h"
#include "tune.h"

static bool same_device(const struct cla_tune_device *a, const struct cla_tune_device *b)
{
    return strcmp(a->platform, b->platform) == 0 && strcmp(a->name, b->name) == 0 &&
           strcmp(a->driver, b->driver) == 0 && strcmp(a->library, b->library) == 0;
}

// Devices without a row are not written, so their numbers may differ.
static void check_same(const struct cla_tune *a, const struct cla_tune *b)
{
    FUZZ_CHECK(a->rows == b->rows, "%d rows, and %d again", a->rows, b->rows);
    for (int device = 0, k = 0; device < a->devices; device++)
        for (int r = 0; r < a->rows; r++) {
            const struct cla_tune_row *x = &a->row[r], *y = &b->row[k];
            if (x->device != device)
                continue;
            FUZZ_CHECK(same_device(&a->device[x->device], &b->device[y->device]), "row %d", r);
            FUZZ_CHECK(memcmp(&x->key, &y->key, sizeof x->key) == 0, "key of row %d", r);
            FUZZ_CHECK(memcmp(&x->tile, &y->tile, sizeof x->tile) == 0, "tile of row %d", r);
            FUZZ_CHECK(x->permille == y->permille && !x->builtin, "row %d", r);
            k++;
        }
}

static void check_rows(const struct cla_tune *t)
{
    FUZZ_CHECK(t->rows <= CLA_TUNE_ROWS && t->devices <= CLA_TUNE_ROWS, "too many");
    for (int r = 0; r < t->rows; r++) {
        const struct cla_tune_row *row = &t->row[r];
        const struct cla_tune_key *k = &row->key;
        FUZZ_CHECK(row->device >= 0 && row->device < t->devices, "device of row %d", r);
        FUZZ_CHECK(cla_algo_has_tiles(k->algo), "algorithm of row %d", r);
        FUZZ_CHECK(k->dim_qk >= 1 && k->dim_qk <= 576 && k->dim_v >= 1 && k->dim_v <= 576,
                   "dims of row %d", r);
        FUZZ_CHECK(k->rows_lo >= 0 && k->rows_lo <= k->rows_hi && k->keys_lo >= 0 &&
                       k->keys_lo <= k->keys_hi, "ranges of row %d", r);
        FUZZ_CHECK(row->permille > 0 && row->permille <= 1000000, "ratio of row %d", r);
        FUZZ_CHECK(row->tile.kernel >= 0 && row->tile.kernel <= CLATTN_KERNEL_SUBGROUP,
                   "kernel of row %d", r);
        FUZZ_CHECK(row->tile.tile_q >= 0 && row->tile.block_d >= 0, "tile of row %d", r);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct cla_tune first = {.rows = 0}, second = {.rows = 0};
    char why[CLA_TUNE_WHY];
    size_t written = 0, again = 0;
    memset(why, 'x', sizeof why);
    const bool good = cla_tune_parse((const char *)data, size, false, &first, why);
    FUZZ_CHECK(memchr(why, 0, sizeof why), "a reason without its end");
    FUZZ_CHECK(good == (why[0] == '\0'), "%d, and \"%s\"", good, why);
    if (good) {
        check_rows(&first);
        char *text = cla_tune_format(&first, &written);
        FUZZ_CHECK(text, "memory");
        FUZZ_CHECK(cla_tune_parse(text, written, false, &second, why), "not read again: %s", why);
        check_same(&first, &second);
        char *twice = cla_tune_format(&second, &again);
        FUZZ_CHECK(twice && again == written && memcmp(text, twice, again) == 0,
                   "another text the second time");
        free(text);
        free(twice);
    }
    cla_tune_free(&first);
    cla_tune_free(&second);
    return 0;
}
