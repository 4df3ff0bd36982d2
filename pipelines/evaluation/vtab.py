"""The score of VTAB-1k: 19 tasks in three groups (docs/paper.md H.4)."""

import statistics

# Group -> its tasks, in the order of table 9 of the paper.
GROUPS = {
    "natural": ("caltech101", "cifar100", "dtd", "flowers102", "pets", "sun397", "svhn"),
    "specialized": ("camelyon", "eurosat", "resisc45", "retinopathy"),
    "structured": (
        "clevr_count",
        "clevr_distance",
        "dmlab",
        "dsprites_location",
        "dsprites_orientation",
        "kitti_distance",
        "smallnorb_azimuth",
        "smallnorb_elevation",
    ),
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
    tasks = [task for group in GROUPS.values() for task in group]
    if unknown := sorted(set(results) - set(tasks)):
        raise ValueError(
            f"VTAB has no task {', '.join(map(repr, unknown))}. Its tasks are {', '.join(tasks)}."
        )
    groups = {**GROUPS, "mean": tasks}
    return {
        name: statistics.fmean(results[task] for task in group) if set(group) <= set(results) else None
        for name, group in groups.items()
    }
