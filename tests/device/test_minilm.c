// SPDX-License-Identifier: Apache-2.0
// Attention of a real sentence encoder; see tests/data/minilm/README.md.
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "compare.h"
#include "npy.h"
#include "open_device.h"

static void test_encoder(void **state)
{
    struct test_target *t = *state;
    struct npy q = npy_read(TEST_DATA_DIR, "minilm/q.npy");
    struct npy k = npy_read(TEST_DATA_DIR, "minilm/k.npy");
    struct npy v = npy_read(TEST_DATA_DIR, "minilm/v.npy");
    struct npy mask = npy_read(TEST_DATA_DIR, "minilm/mask.npy");
    struct npy want_o = npy_read(TEST_DATA_DIR, "minilm/o.npy");
    struct npy want_lse = npy_read(TEST_DATA_DIR, "minilm/lse.npy");
    assert_int_equal(q.dims, 4);
    assert_int_equal(q.count, want_o.count);
    assert_int_equal(mask.count, q.extent[0] * q.extent[2]);
    float *o = malloc(q.count * sizeof *o), *lse = malloc(want_lse.count * sizeof *lse);
    assert_true(o && lse);
    fill_unwritten(o, q.count);
    fill_unwritten(lse, want_lse.count);

    clattn_attention_desc desc;
    clattn_attention_desc_init(&desc, sizeof desc);
    desc.heads_q = (int32_t)q.extent[1];
    desc.dim_qk = (int32_t)q.extent[3];
    desc.features = CLATTN_FEATURE_MASK | CLATTN_FEATURE_LSE;
    clattn_plan *plan = target_plan(t, desc);
    clattn_attention_call call;
    clattn_attention_call_init(&call, sizeof call);
    call.batch = (int32_t)q.extent[0];
    call.len_q = call.len_kv = (int32_t)q.extent[2];
    call.q.buf = clattn_host_buf(q.data, q.count * 4);
    call.k.buf = clattn_host_buf(k.data, k.count * 4);
    call.v.buf = clattn_host_buf(v.data, v.count * 4);
    call.mask.buf = clattn_host_buf(mask.data, mask.count);
    call.mask.extent[1] = call.mask.extent[2] = 1;
    call.o.buf = clattn_host_buf(o, q.count * 4);
    call.lse = clattn_host_buf(lse, want_lse.count * 4);
    assert_int_equal(clattn_attention_run(plan, &call), CLATTN_OK);

    const struct tolerance tol = {1e-5, 0, false};
    struct compare_report ro, rl;
    const bool good_o = compare(o, want_o.data, q.count, &tol, &ro);
    const bool good_lse = compare(lse, want_lse.data, want_lse.count, &tol, &rl);
    printf("%s: largest error of O %.2e, of LSE %.2e\n", t->name, ro.max_abs, rl.max_abs);
    if (!good_o || !good_lse) {
        compare_print("O", &ro);
        compare_print("LSE", &rl);
    }
    assert_true(good_o && good_lse);
    clattn_plan_destroy(&plan);
    struct npy *const all[] = {&q, &k, &v, &mask, &want_o, &want_lse};
    for (size_t n = 0; n < sizeof all / sizeof *all; n++)
        free(all[n]->data);
    free(o);
    free(lse);
}

int main(int argc, char **argv)
{
    static const struct target_test tests[] = {
        {"one layer of a sentence encoder", test_encoder, LEVEL_SMALL},
    };
    return targets_main("minilm", argc, argv, tests, sizeof tests / sizeof *tests);
}
