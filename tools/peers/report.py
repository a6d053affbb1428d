# SPDX-License-Identifier: Apache-2.0
"""Results as tables: aligned text, Markdown, CSV.

The results are one dict, as compare.py writes it to JSON. A ratio is how many times as fast clattn
is as the best peer of that shape: above 1 clattn is ahead.
"""
import csv
import io

from contender import ratio


def done(shape, kind):
    return [c for c in shape["cells"] if c["kind"] == kind and "seconds" in c]


def best(cells):
    return min(cells, key=lambda c: c["seconds"]) if cells else None


def names(results, kind):
    """Names of a kind in the order of the first appearance."""
    found = {}
    for shape in results["shapes"]:
        for cell in shape["cells"]:
            if cell["kind"] == kind:
                found[cell["name"]] = True
    return list(found)


def is_opencl(name):
    return name != "CPU path"


def rate(shape, cell):
    """GFLOP/s of pairs that see each other, or with one query GB/s of K and V read once."""
    work = shape["kv_bytes"] if shape["decode"] else shape["flops"]
    return work / cell["seconds"] / 1e9


def unit(shape):
    return "GB/s" if shape["decode"] else "GFLOP/s"


def bound(shape):
    """What a small kernel reached beside it: multiply-adds, or reading as many bytes."""
    return shape.get("read" if shape["decode"] else "peak")


def row_of(shape):
    """Best peer, ratio by device, best OpenCL device and who wins."""
    peer = best(done(shape, "peer"))
    devices = {c["name"]: c for c in done(shape, "device")}
    ratios = {name: ratio(peer, cell) for name, cell in devices.items()} if peer else {}
    opencl = {name: r for name, r in ratios.items() if is_opencl(name)}
    top = max(opencl, key=opencl.get) if opencl else None
    winner = None
    if ratios:
        first = max(ratios, key=ratios.get)
        winner = f"clattn ({first})" if ratios[first] >= 1 else peer["name"]
    return {"peer": peer, "devices": devices, "ratios": ratios, "opencl": top, "winner": winner}


def number(value, digits=2):
    return "-" if value is None else f"{value:.{digits}f}"


def short_ms(seconds):
    ms = seconds * 1e3
    return f"{ms:.3f}" if ms < 10 else f"{ms:.1f}"


def ratio_table(results):
    """(head, rows) of the ratios against the best peer."""
    devices = names(results, "device")
    many = sum(is_opencl(name) for name in devices) > 1
    head = ["shape", "best peer", "ms", "rate"] + (["best OpenCL"] if many else []) + devices
    head.append("ahead")
    rows = []
    for shape in results["shapes"]:
        row = row_of(shape)
        peer, ratios = row["peer"], row["ratios"]
        cells = [shape["shape"]]
        if peer:
            cells += [peer["name"], short_ms(peer["seconds"]),
                      f"{rate(shape, peer):.0f} {unit(shape)}"]
        else:
            cells += ["none", "-", "-"]
        if many:
            cells.append(number(ratios.get(row["opencl"])))
        cells += [number(ratios.get(name)) for name in devices]
        rows.append(cells + [row["winner"] or "-"])
    return head, rows


def time_table(results):
    """(head, rows) of the milliseconds of everybody, and clattn's share of what is possible."""
    devices, peers = names(results, "device"), names(results, "peer")
    head = ["shape"] + devices + peers + ["bound", "best of clattn", "best peer"]
    rows = []
    for shape in results["shapes"]:
        cells = {c["name"]: c for c in shape["cells"]}
        row = [shape["shape"]]
        for name in devices + peers:
            cell = cells.get(name, {})
            row.append(short_ms(cell["seconds"]) if "seconds" in cell else "-")
        limit = bound(shape)
        row.append(f"{limit:.0f} {unit(shape)}" if limit else "-")
        for kind in ("device", "peer"):
            cell = best(done(shape, kind))
            row.append(f"{100 * rate(shape, cell) / limit:.0f} %" if cell and limit else "-")
        rows.append(row)
    return head, rows


def aligned(head, rows):
    """Columns padded to their widest cell; all but the first are right-aligned numbers or words."""
    table = [head] + rows
    widths = [max(len(line[i]) for line in table) for i in range(len(head))]
    lines = []
    for line in table:
        cells = [line[0].ljust(widths[0])] + [c.rjust(w) for c, w in zip(line[1:], widths[1:])]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines) + "\n"


def markdown(head, rows):
    lines = [head, ["---"] * len(head)] + rows
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def conditions(results):
    """One sentence each: machine, and versions."""
    m = results["machine"]
    peaks = [s["peak"] for s in results["shapes"] if s.get("peak")]
    peak = f", multiply-add peak {min(peaks):.0f}-{max(peaks):.0f} GFLOP/s" if peaks else ""
    machine = (f"{results['threads']} threads on {m['cores']} cores of {m['cpu']} ({m['isa']})"
               f"{peak}, {m['system']}, {results['date']}, {results['dtype']}, medians of "
               f"{results['repeat']} rounds in which all run in turn")
    versions = ", ".join(f"{v['name']} {v['version']}".strip() for v in results["versions"])
    return machine + ".", versions + "."


def notes(results):
    """What was left out, and which way each peer took."""
    lines = [f"{s['name']}: {s['reason']}" for s in results["skipped"]]
    for shape in results["shapes"]:
        for cell in shape["cells"]:
            if "reason" in cell:
                lines.append(f"{shape['shape']}, {cell['name']}: {cell['reason']}")
            elif len(cell["rounds"]) < results["repeat"]:
                lines.append(f"{shape['shape']}, {cell['name']}: {len(cell['rounds'])} rounds, "
                             "being slow")
    return lines


def as_text(results):
    machine, versions = conditions(results)
    parts = [machine + "\n" + versions + "\n",
             "Times as fast as the best peer:\n" + aligned(*ratio_table(results)),
             "Milliseconds, and shares of the bound:\n" + aligned(*time_table(results))]
    errors = [c["error"] for s in results["shapes"] for c in s["cells"] if "error" in c]
    if errors:
        parts.append(f"All results agree with double precision within {max(errors):.1e} "
                     f"({results['tolerance']:g} allowed).\n")
    ways = [f"  {s['shape']}: {row_of(s)['peer']['variant']}" for s in results["shapes"]
            if row_of(s)["peer"] and row_of(s)["peer"]["variant"]]
    if ways:
        parts.append("How the best peers computed it:\n" + "\n".join(ways) + "\n")
    left_out = notes(results)
    if left_out:
        parts.append("Left out:\n" + "".join(f"  {line}\n" for line in left_out))
    return "\n".join(parts)


def as_markdown(results):
    """The tables of docs/performance.md."""
    machine, versions = conditions(results)
    errors = [c["error"] for s in results["shapes"] for c in s["cells"] if "error" in c]
    parts = [machine + " " + versions,
             "How many times as fast as the best peer (above 1 clattn is ahead):",
             markdown(*ratio_table(results)).rstrip("\n"),
             "Milliseconds; the bound is what a small kernel reaches in multiply-adds, or in "
             "reading as many bytes:",
             markdown(*time_table(results)).rstrip("\n")]
    if errors:
        parts.append(f"Largest difference from double precision: {max(errors):.1e}.")
    left_out = notes(results)
    if left_out:
        parts.append("Left out:\n\n" + "\n".join(f"* {line}" for line in left_out))
    return "\n\n".join(parts) + "\n"


def as_short_markdown(results):
    """The table of the README: best peer, best OpenCL device and CPU path."""
    head = ["batch, heads, kv heads, len_q, len_kv, dim", "best peer", "clattn, OpenCL",
            "clattn, CPU path"]
    rows = []
    for shape in results["shapes"]:
        row = row_of(shape)
        if not row["peer"]:
            continue
        top, ratios = row["opencl"], row["ratios"]
        rows.append([shape["shape"],
                     f"{row['peer']['name']}, {rate(shape, row['peer']):.0f} {unit(shape)}",
                     f"{ratios[top]:.2f} ({top})" if top else "-",
                     number(ratios.get("CPU path"))])
    return markdown(head, rows)


def as_csv(results):
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["shape", "dtype", "threads", "name", "kind", "version", "variant", "rounds",
                     "runs", "median_ms", "rate", "unit", "share", "of_best_peer", "max_error",
                     "reason"])
    versions = {v["name"]: v["version"] for v in results["versions"]}
    for shape in results["shapes"]:
        peer, limit = best(done(shape, "peer")), bound(shape)
        for cell in shape["cells"]:
            line = [shape["shape"], shape["dtype"], results["threads"], cell["name"], cell["kind"],
                    versions.get(cell["name"], "")]
            if "seconds" in cell:
                speed = rate(shape, cell)
                line += [cell["variant"], len(cell["rounds"]), cell["runs"],
                         f"{cell['seconds'] * 1e3:.4f}", f"{speed:.2f}", unit(shape),
                         f"{speed / limit:.3f}" if limit else "",
                         f"{ratio(peer, cell):.3f}" if peer else "", f"{cell['error']:.1e}", ""]
            else:
                line += [""] * 9 + [cell["reason"]]
            writer.writerow(line)
    return out.getvalue()
