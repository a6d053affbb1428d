// SPDX-License-Identifier: Apache-2.0
#include "tune.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "abi.h"

// ---- rows in memory ----------------------------------------------------------------------------

void cla_tune_free(struct cla_tune *t)
{
    free(t->row);
    free(t->device);
    memset(t, 0, sizeof *t);
}

// Room for one more of `size` bytes; false beyond CLA_TUNE_ROWS.
static bool grow(void **list, int count, int *room, size_t size)
{
    if (count < *room)
        return true;
    const int more = *room ? 2 * *room : 16;
    void *larger = count < CLA_TUNE_ROWS ? realloc(*list, (size_t)more * size) : NULL;
    if (!larger)
        return false;
    *list = larger;
    *room = more;
    return true;
}

bool cla_tune_add_device(struct cla_tune *t, const struct cla_tune_device *d)
{
    void *list = t->device;
    const bool room = grow(&list, t->devices, &t->device_room, sizeof *t->device);
    t->device = list;
    if (room)
        t->device[t->devices++] = *d;
    return room;
}

bool cla_tune_add_row(struct cla_tune *t, const struct cla_tune_row *row)
{
    void *list = t->row;
    const bool room = grow(&list, t->rows, &t->row_room, sizeof *t->row);
    t->row = list;
    if (room)
        t->row[t->rows++] = *row;
    return room;
}

// ---- devices -----------------------------------------------------------------------------------

static void clean(const char *from, char *to, size_t size)
{
    size_t n = 0;
    for (; from[n] && n + 1 < size; n++)
        to[n] = (unsigned char)from[n] < 0x20 || from[n] == 0x7f ? '?' : from[n];
    to[n] = '\0';
}

void cla_tune_device_of(const struct cla_caps *caps, struct cla_tune_device *out)
{
    memset(out, 0, sizeof *out);
    clean(caps->platform, out->platform, sizeof out->platform);
    clean(caps->name, out->name, sizeof out->name);
    clean(caps->driver, out->driver, sizeof out->driver);
    snprintf(out->library, sizeof out->library, "%d.%d.%d", CLATTN_VERSION_MAJOR,
             CLATTN_VERSION_MINOR, CLATTN_VERSION_PATCH);
}

static bool stands_for(const char *pattern, const char *text)
{
    const size_t n = strlen(pattern);
    if (n && pattern[n - 1] == '*' && strncmp(pattern, text, n - 1) == 0)
        return true;
    return strcmp(pattern, text) == 0;
}

void cla_tune_select(struct cla_tune *t, const struct cla_tune_device *device, int *stale)
{
    int kept = 0;
    *stale = 0;
    for (int r = 0; r < t->rows; r++) {
        const struct cla_tune_device *d = &t->device[t->row[r].device];
        if (!stands_for(d->platform, device->platform) || !stands_for(d->name, device->name))
            continue;
        if (stands_for(d->driver, device->driver) && stands_for(d->library, device->library))
            t->row[kept++] = t->row[r];
        else
            ++*stale;
    }
    t->rows = kept;
}

bool cla_tune_add_builtin(struct cla_tune *t, const struct cla_tune_device *device, int *left_out)
{
    struct cla_tune table = {.rows = 0};
    char why[CLA_TUNE_WHY];
    int stale = 0;
    bool good = cla_tune_parse(cla_tune_table, strlen(cla_tune_table), true, &table, why);
    if (good)
        cla_tune_select(&table, device, &stale);
    *left_out = 0;
    for (int r = 0; good && r < table.rows; r++) {
        struct cla_tune_row row = table.row[r];
        row.device = t->devices;
        if (t->devices >= CLA_TUNE_ROWS || t->rows >= CLA_TUNE_ROWS)
            ++*left_out;
        else
            good = cla_tune_add_device(t, &table.device[table.row[r].device]) &&
                   cla_tune_add_row(t, &row);
    }
    cla_tune_free(&table);
    return good;
}

// ---- look up -----------------------------------------------------------------------------------

static int32_t rows_of(const struct cla_problem *p)
{
    const int64_t rows = (int64_t)p->max_len_q * p->group;
    return rows < INT32_MAX ? (int32_t)rows : INT32_MAX;
}

static int32_t mask_kind(const struct cla_problem *p)
{
    if (p->mask || p->bias || p->alibi || p->softcap)
        return CLA_MASK_GENERAL;
    return p->causal || p->window ? CLA_MASK_WINDOW : CLA_MASK_NONE;
}

// The class of a length: from one of the limits, which end with 0, to below the next.
static void class_of(int32_t x, const int32_t *limits, int32_t *lo, int32_t *hi)
{
    int n = 0;
    while (limits[n + 1] && x >= limits[n + 1])
        n++;
    *lo = limits[n];
    *hi = limits[n + 1] ? limits[n + 1] - 1 : INT32_MAX;
}

void cla_tune_key_of(const struct cla_problem *p, int32_t algo, struct cla_tune_key *key)
{
    // Few rows make tiles of their own; from a thousand on there are enough of any.
    static const int32_t rows[] = {1, 2, 3, 5, 9, 17, 65, 256, 1024, 0};
    // Above 16384 keys the group shape carries rounding errors along.
    static const int32_t keys[] = {1, 256, 1024, 16385, 0};
    *key = (struct cla_tune_key){
        .algo = algo, .dim_qk = p->dim_qk, .dim_v = p->dim_v, .dtype_q = p->dtype_q,
        .dtype_kv = p->dtype_kv, .dtype_o = p->dtype_o, .mask_kind = mask_kind(p),
        .paged = p->paged};
    class_of(rows_of(p), rows, &key->rows_lo, &key->rows_hi);
    class_of(p->max_len_kv, keys, &key->keys_lo, &key->keys_hi);
}

static bool same_device(const struct cla_tune_device *a, const struct cla_tune_device *b)
{
    return strcmp(a->platform, b->platform) == 0 && strcmp(a->name, b->name) == 0 &&
           strcmp(a->driver, b->driver) == 0 && strcmp(a->library, b->library) == 0;
}

static struct cla_tune_row *find(const struct cla_tune *t, const struct cla_tune_device *device,
                                 const struct cla_tune_key *key)
{
    for (int r = 0; r < t->rows; r++)
        if (same_device(&t->device[t->row[r].device], device) &&
            memcmp(&t->row[r].key, key, sizeof *key) == 0)
            return &t->row[r];
    return NULL;
}

const struct cla_tune_row *cla_tune_find(const struct cla_tune *tune,
                                         const struct cla_tune_device *device,
                                         const struct cla_tune_key *key)
{
    return find(tune, device, key);
}

bool cla_tune_put(struct cla_tune *t, const struct cla_tune_device *device,
                  const struct cla_tune_row *row)
{
    struct cla_tune_row *old = find(t, device, &row->key);
    struct cla_tune_row copy = *row;
    if (old) {
        copy.device = old->device;
        *old = copy;
        return true;
    }
    for (copy.device = 0; copy.device < t->devices; copy.device++)
        if (same_device(&t->device[copy.device], device))
            break;
    return (copy.device < t->devices || cla_tune_add_device(t, device)) &&
           cla_tune_add_row(t, &copy);
}

static const struct cla_tune_row *look_up(const struct cla_tune *t, const struct cla_problem *p,
                                          int32_t algo, int first)
{
    const int32_t rows = rows_of(p), kind = mask_kind(p);
    for (int r = first; r < t->rows; r++) {
        const struct cla_tune_key *k = &t->row[r].key;
        if (k->algo == algo && k->dim_qk == p->dim_qk && k->dim_v == p->dim_v &&
            k->dtype_q == p->dtype_q && k->dtype_kv == p->dtype_kv && k->dtype_o == p->dtype_o &&
            k->mask_kind == kind && k->paged == p->paged && rows >= k->rows_lo &&
            rows <= k->rows_hi && p->max_len_kv >= k->keys_lo && p->max_len_kv <= k->keys_hi)
            return &t->row[r];
    }
    return NULL;
}

const struct cla_tune_row *cla_tune_look_up(const struct cla_tune *tune,
                                            const struct cla_problem *p, int32_t algo)
{
    return look_up(tune, p, algo, 0);
}

const struct cla_tune_row *cla_tune_next(const struct cla_tune *tune, const struct cla_problem *p,
                                         int32_t algo, const struct cla_tune_row *row)
{
    return look_up(tune, p, algo, (int)(row - tune->row) + 1);
}
