# SPDX-License-Identifier: Apache-2.0
"""Draws results of compare.py (JSON on stdin) as bars: how many times as fast clattn is as the best
peer of each shape. usage: plot.py FILE.svg, in the virtual environment of the peers."""
import json
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import report  # noqa: E402


def draw(results, path):
    import matplotlib
    matplotlib.use("svg")
    matplotlib.rcParams.update({"font.size": 9, "svg.fonttype": "none", "axes.spines.top": False,
                                "axes.spines.right": False, "svg.hashsalt": "clattn"})
    from matplotlib import pyplot
    devices = report.names(results, "device")
    rows = [(s, report.row_of(s)) for s in results["shapes"]]
    rows = [(s, row) for s, row in rows if row["ratios"]]
    if not rows:
        return False
    colours = ["#1b6ca8", "#e0852b", "#4f9d69", "#8d5fa8", "#777777"]
    height = 0.8 / len(devices)
    figure, axes = pyplot.subplots(figsize=(8.5, 1.2 + 0.26 * len(devices) * len(rows)))
    top = max(max(row["ratios"].values()) for _, row in rows)
    for n, name in enumerate(devices):
        places = [(i, row["ratios"][name]) for i, (_, row) in enumerate(rows)
                  if name in row["ratios"]]
        at = [i + (n - (len(devices) - 1) / 2) * height for i, _ in places]
        axes.barh(at, [r for _, r in places], height * 0.92, label=f"clattn, {name}",
                  color=colours[n % len(colours)], zorder=2)
        for y, (_, value) in zip(at, places):
            axes.text(value + top * 0.008, y, f"{value:.2f}", va="center", fontsize=7.5)
    axes.axvline(1, color="black", linewidth=1, zorder=3)
    axes.set_yticks(range(len(rows)), [label(s, row["peer"]) for s, row in rows])
    axes.set_ylim(len(rows) - 0.45, -0.55)
    axes.set_xlim(0, top * 1.12)
    axes.grid(axis="x", color="#dddddd", zorder=0)
    axes.set_xlabel("times as fast as the best peer (1 = as fast, to the right clattn is ahead)")
    axes.set_title(f"Attention in {results['dtype']}, {results['threads']} threads, "
                   f"{results['machine']['cpu']} ({results['machine']['isa']}), "
                   f"{results['date']}", fontsize=10, loc="left", x=-0.32)
    axes.legend(loc="upper center", bbox_to_anchor=(0.4, -0.5 / figure.get_figheight()),
                ncols=len(devices), frameon=False)
    figure.savefig(path, format="svg", bbox_inches="tight", metadata={"Date": None})
    return True


def label(shape, peer):
    return (f"{shape['shape']}\nbest peer: {peer['name']}, "
            f"{report.rate(shape, peer):.0f} {report.unit(shape)}")


if __name__ == "__main__":
    if not draw(json.load(sys.stdin), sys.argv[1]):
        print("plot: no shape has both a peer and clattn", file=sys.stderr)
        sys.exit(1)
