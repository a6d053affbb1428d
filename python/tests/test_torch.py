# SPDX-License-Identifier: Apache-2.0
"""Tensors of PyTorch in host memory, where they lie, against PyTorch's own attention."""
import unittest

import numpy as np

import clattn

try:
    import torch
except ImportError:
    torch = None


@unittest.skipUnless(torch, "PyTorch is not installed")
class Torch(unittest.TestCase):
    def test_tensors(self):
        torch.manual_seed(0)
        projected = torch.randn(2, 50, 3, 6, 32)
        q, k, v = projected.permute(2, 0, 3, 1, 4)
        mask = torch.rand(50, 50) < 0.8
        for options in ({"is_causal": True}, {"attn_mask": mask}, {"scale": 0.3}):
            want = torch.nn.functional.scaled_dot_product_attention(q, k, v, **options)
            mine = {"causal": options.get("is_causal", False), "scale": options.get("scale"),
                    "mask": options.get("attn_mask")}
            out = clattn.attention(q, k, v, align="top-left", device="cpu", **mine)
            self.assertLess(np.abs(out - want.numpy()).max(), 2e-5)

    def test_bfloat16_into_a_tensor(self):
        q, k, v = (torch.randn(1, 4, 30, 64, dtype=torch.bfloat16) for _ in range(3))
        want = torch.nn.functional.scaled_dot_product_attention(q.float(), k.float(), v.float())
        out = torch.full_like(q, float("nan"))
        clattn.attention(*(x.view(torch.uint16) for x in (q, k, v)), dtype="bfloat16",
                         out=out.view(torch.uint16).numpy(), device="cpu")
        self.assertLess((out.float() - want).abs().max().item(), 2e-2)


if __name__ == "__main__":
    unittest.main()
