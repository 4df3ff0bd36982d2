"""The table of the faults that were found, and the list of the faults that were not."""

from tests.mutants.run import ERROR, KILLED, SURVIVED


def report(results):
    """Returns the table and the lists as text.

    Args:
        results: `Fault` -> `Result`; results of an `equivalent` fault do not count.
    """
    counted = {fault: result for fault, result in results.items() if not fault.equivalent}
    modules = sorted({fault.module for fault in counted})
    width = max(map(len, [*modules, "module"]))
    lines = [f"{'module':{width}}  killed  surviving"]
    for module in [*modules, ""]:
        outcomes = [x.outcome for fault, x in counted.items() if module in ("", fault.module)]
        numbers = f"{outcomes.count(KILLED):6}  {outcomes.count(SURVIVED):9}"
        lines.append(f"{module or 'all':{width}}  {numbers}")
    killed = [result.outcome for result in counted.values()].count(KILLED)
    lines.append(f"killed: {killed} of {len(counted)} faults")
    for outcome, title in ((SURVIVED, "survivors"), (ERROR, "errors")):
        rows = {fault: x for fault, x in counted.items() if x.outcome == outcome}
        if rows:
            lines += ["", f"{title}:"]
        for fault, result in rows.items():
            lines += [
                f"  {fault} ({result.message}; {result.test or 'no test'})",
                f"    {fault.old!r}",
                f"    -> {fault.new!r}",
            ]
    if same := [fault for fault in results if fault.equivalent]:
        lines += ["", "without effect, not counted:"]
        lines += [f"  {fault}: {fault.equivalent}" for fault in same]
    return "\n".join(lines)
