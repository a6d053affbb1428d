# SPDX-License-Identifier: Apache-2.0
"""Attention in float64, by its definition, and outputs that show a write where none belongs."""
import numpy as np


def sequence(q, k, v, *, causal=False, window=None, scale=None, softcap=None, mask=None, bias=None,
             slopes=None, sinks=None, align="bottom-right"):
    """One sequence: q [heads_q, len_q, dim], k and v [heads_kv, len_kv, dim]; (out, lse)."""
    q, k, v = (np.asarray(x, dtype=np.float64) for x in (q, k, v))
    heads, len_q, dim = q.shape
    group = heads // k.shape[0]
    len_kv = k.shape[1]
    out = np.zeros((heads, len_q, v.shape[2]))
    lse = np.full((heads, len_q), -np.inf)
    off = len_kv - len_q if align == "bottom-right" else 0
    position = np.arange(len_q)[:, None] + off
    key = np.arange(len_kv)[None, :]
    left, right = window if window is not None else (-1, -1)
    if causal:
        right = 0
    inside = np.ones((len_q, len_kv), bool)
    if left >= 0:
        inside &= key >= position - left
    if right >= 0:
        inside &= key <= position + right
    for h in range(heads):
        x = q[h] @ k[h // group].T * (dim ** -0.5 if scale is None else scale)
        if softcap:
            x = softcap * np.tanh(x / softcap)
        if slopes is not None:
            x = x - slopes[h] * np.abs(position - key)
        visible = inside.copy()
        if mask is not None:
            visible &= np.broadcast_to(mask, (heads, len_q, len_kv))[h] != 0
        if bias is not None:
            x = x + np.broadcast_to(bias, (heads, len_q, len_kv))[h].astype(np.float64)
        x = np.where(visible, x, -np.inf)
        if sinks is not None:
            x = np.concatenate([x, np.full((len_q, 1), float(sinks[h]))], axis=1)
        top = x.max(axis=1, initial=-np.inf, keepdims=True)
        weights = np.exp(x - np.where(np.isfinite(top), top, 0))
        total = weights.sum(axis=1, keepdims=True)
        some = total[:, 0] > 0
        out[h, some] = weights[some, :len_kv] @ v[h // group] / total[some]
        lse[h, some] = (top + np.log(np.where(total > 0, total, 1)))[some, 0]
    return out, lse


def attention(q, k, v, *, kv_lens=None, mask=None, bias=None, slopes=None, **options):
    """[batch, heads, length, dim]; mask and bias broadcast."""
    batch, heads, len_q = q.shape[:3]
    len_kv = k.shape[2]
    full = (batch, heads, len_q, len_kv)
    mask = None if mask is None else np.broadcast_to(mask, full)
    bias = None if bias is None else np.broadcast_to(bias, full)
    outs = []
    for b in range(batch):
        n = len_kv if kv_lens is None else kv_lens[b]
        outs.append(sequence(
            q[b], k[b, :, :n], v[b, :, :n], mask=None if mask is None else mask[b, :, :, :n],
            bias=None if bias is None else bias[b, :, :, :n],
            slopes=slopes[b] if slopes is not None and np.ndim(slopes) == 2 else slopes, **options))
    return np.stack([o for o, _ in outs]), np.stack([lse for _, lse in outs])


class Guarded:
    """An array whose memory is all NaN before, with more of it on both sides and between rows."""

    BAND = 96

    def __init__(self, shape, dtype, gap=0):
        *lead, last = shape
        count = int(np.prod(lead)) * (last + gap)
        self.memory = np.empty(count + 2 * self.BAND, dtype)
        self.memory.view(np.uint8)[:] = 0xFF  # NaN in every floating type
        self.rows = self.memory[self.BAND:self.BAND + count].reshape(*lead, last + gap)
        self.array = self.rows[..., :last]
        self.gap = self.rows[..., last:]

    def untouched(self):
        ends = (self.memory[:self.BAND], self.memory[-self.BAND:], np.ascontiguousarray(self.gap))
        return all((part.view(np.uint8) == 0xFF).all() for part in ends)


def bf16_bits(x):
    """float32 rounded to the nearest bfloat16, ties to even, as uint16."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bits(bits):
    return (np.asarray(bits).astype(np.uint32) << 16).view(np.float32)
