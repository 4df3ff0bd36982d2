"""The score of VTAB-1k: 19 tasks in three groups (docs/paper.md H.4)."""

import statistics

from pipelines.data.protocols.vtab_tasks import TASKS

# Group -> its tasks, in the order of table 9 of the paper.
GROUPS = {
    group: tuple(task.name for task in TASKS.values() if task.group == group)
    for group in dict.fromkeys(task.group for task in TASKS.values())
}


def vtab_score(results) -> dict[str, float | None]:
    """Returns the unweighted means of the accuracies of VTAB's tasks.

    Args:
        results: task -> accuracy, in any unit.

    Returns:
        The mean of each group, "natural", "specialized" and "structured", and "mean", that over
        the 19 tasks (not over the groups), in the unit of `results`. A mean whose tasks are not
        all there is None, since it could not be compared.

    Raises:
        ValueError: for a task that is none of VTAB's.
    """
    if unknown := sorted(set(results) - set(TASKS)):
        raise ValueError(
            f"VTAB has no task {', '.join(map(repr, unknown))}. Its tasks are {', '.join(TASKS)}."
        )
    return {
        name: statistics.fmean(map(results.get, tasks)) if results.keys() >= set(tasks) else None
        for name, tasks in {**GROUPS, "mean": tuple(TASKS)}.items()
    }
