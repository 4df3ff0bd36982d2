"""The results as rows, as a table in Markdown, and as JSON."""

import dataclasses
import statistics


def summary(case, times):
    """A row of the table, from the result of `measure`.

    Returns:
        Dict of the case's `op`, `dtype`, `direction`, `batch`, `tokens`, `heads`, `size`;
        `systems`: name -> dict of `best_ms`, `median_ms`, `spread` (the middle half of the times
        as a fraction of the median), and `tflops` and `gbytes` (gigabytes of inputs and outputs
        per second) of the best time, or of `refused`; `peer`: the fastest system but ours and its
        variants; `best_ratio`, `median_ratio`: its times over ours, None without one.
    """
    systems = {}
    for name, found in times.items():
        if isinstance(found, str):
            systems[name] = {"refused": found}
            continue
        low, median, high = statistics.quantiles(found, n=4, method="inclusive")
        best = min(found)
        systems[name] = {
            "best_ms": best,
            "median_ms": median,
            "spread": (high - low) / median,
            "tflops": case.operations / best / 1e9,
            "gbytes": case.bytes / best / 1e6,
        }
    ours = systems["ours"]
    peers = {n: x for n, x in systems.items() if n.split()[0] != "ours" and "best_ms" in x}
    peer = min(peers, key=lambda name: peers[name]["best_ms"], default=None)
    ratios = {
        f"{key}_ratio": min(x[f"{key}_ms"] for x in peers.values()) / ours[f"{key}_ms"]
        if peers
        else None
        for key in ("best", "median")
    }
    return dataclasses.asdict(case) | {"systems": systems, "peer": peer} | ratios


def markdown(found):
    """The report of a run.

    Args:
        found: dict of `machine` (dict of texts), of each of `phases.NAMES` (its rows, a list of
            dicts), and of `not_run`, a list of texts.
    """
    machine = found["machine"]
    lines = [
        f"{machine['date']}, {machine['card']}, driver {machine['driver']}, PyTorch "
        f"{machine['torch']}, {machine['nvcc']}; TF32 is off",
        "",
    ]
    lines += _checks(found["checks"]) + _sanitizer(found["sanitizer"])
    for name, what in (("jax", "under JAX, without TensorFlow"), ("ptx", "compiled from PTX")):
        lines += _others(found[name], what)
    for op in dict.fromkeys(row["op"] for row in found["times"] if "systems" in row):
        lines += _times([row for row in found["times"] if row["op"] == op and "systems" in row])
    failed = [row for row in found["times"] if "systems" not in row]
    lines += [f"- FAILED times of {row['name']}: {'; '.join(row['problems'])}" for row in failed]
    lines += [""] * bool(failed)
    lines += _table(found["ncu"], _PROFILE) + _table(found["resources"], _RESOURCES)
    lines += [f"- not run: {text}" for text in found["not_run"]]
    return "\n".join(lines).rstrip() + "\n"


def _checks(rows):
    if not rows:
        return []
    groups = {}
    for row in rows:
        groups.setdefault((row["op"], row["dtype"]), []).append(row)
    lines = ["| op | dtype | right | wrong |", "| --- | --- | ---: | ---: |"]
    for (op, dtype), group in groups.items():
        wrong = sum(bool(row["problems"]) for row in group)
        lines.append(f"| {op} | {dtype} | {len(group) - wrong} | {wrong} |")
    wrong = [row for row in rows if row["problems"]]
    lines += ["", *(f"- FAILED {row['name']}: {'; '.join(row['problems'])}" for row in wrong)]
    return lines + [""] * bool(wrong)


def _sanitizer(rows):
    lines = []
    for row in rows:
        if row["problems"]:
            lines.append(f"- FAILED {row['name']}: {'; '.join(row['problems'])}")
        else:
            lines.append(f"- {row['name']}: no errors")
    return [*lines, ""] if lines else []


def _times(rows):
    """A table of one op, and why implementations refuse cases."""
    peers = list(dict.fromkeys(name for row in rows for name in row["systems"] if name != "ours"))
    head = ["case", "batch", "ours ms: best", "median", "spread", "TFLOP/s", "GB/s"]
    head += [f"{name} TFLOP/s" for name in peers] + ["ratio: best", "median"]
    lines = [_line(head), _line(["---"] + ["---:"] * (len(head) - 1))]
    for row in rows:
        ours = row["systems"]["ours"]
        cells = [row["name"], row["batch"], f"{ours['best_ms']:.3f}", f"{ours['median_ms']:.3f}"]
        cells += [f"{ours['spread']:.1%}", f"{ours['tflops']:.1f}", f"{ours['gbytes']:.0f}"]
        for name in peers:
            system = row["systems"].get(name, {})
            cells.append(f"{system['tflops']:.1f}" if "tflops" in system else "refused")
        for key in ("best_ratio", "median_ratio"):
            cells.append("-" if row[key] is None else f"{row[key]:.2f}")
        lines.append(_line(cells))
    reasons = {}
    for row in rows:
        for name, system in row["systems"].items():
            if "refused" in system:
                reasons.setdefault((name, system["refused"]), []).append(row["name"])
    lines += ["", *(f"- {n} refuses {', '.join(x)}: {why}" for (n, why), x in reasons.items())]
    return lines + [""] * bool(reasons)


def _others(rows, what):
    """Checks of another kind, in a line."""
    if not rows:
        return []
    wrong = [row for row in rows if row["problems"]]
    lines = [f"- {what}: {len(rows) - len(wrong)} right, {len(wrong)} wrong"]
    lines += [f"- FAILED {what}, {row['name']}: {'; '.join(row['problems'])}" for row in wrong]
    return [*lines, ""]


def _table(rows, columns):
    """A table of the rows with numbers, after what failed."""
    lines = [f"- FAILED {row['name']}: {'; '.join(row['problems'])}" for row in rows]
    lines = [line for line, row in zip(lines, rows, strict=True) if row["problems"]]
    lines += [""] * bool(lines)
    rows = [row for row in rows if "threads" in row]
    if not rows:
        return lines
    lines += [_line(columns), _line(["---"] + ["---:"] * (len(columns) - 1))]
    for row in rows:
        cells = [row.get(key) for key in columns.values()]
        texts = [f"{x:.3g}" if isinstance(x, float) else "-" if x is None else x for x in cells]
        lines.append(_line(texts))
    return [*lines, ""]


# Head -> key of a row.
_PROFILE = {"launch of Nsight Compute": "name", "blocks": "blocks", "threads": "threads"}
_PROFILE |= {"us": "microseconds", "registers": "registers", "tensor cores %": "tensor_percent"}
_PROFILE |= {"compute %": "compute_percent", "memory %": "memory_percent"}
_PROFILE |= {"occupancy %": "occupancy_percent"}
_RESOURCES = {"kernel": "name", "for": "arch", "threads": "threads", "registers": "registers"}
_RESOURCES |= {"shared bytes": "shared", "spilled bytes": "spilled", "occupancy": "occupancy"}


def _line(cells):
    return f"| {' | '.join(str(cell).replace('|', '/') for cell in cells)} |"
