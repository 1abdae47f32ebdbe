"""VTAB-1k's score: the mean accuracy of its 19 tasks, and of each of its three groups.

`TASKS` is name -> `vit_jax.data.sources.vtab.Task`, which says of each task: `source` ('vtab:clevr_count', what
`config.data.source` takes; classes are computed on the way), `dataset` (TFDS's name), `num_classes`, `group`,
`crop` and `flip` (what its training images bear), `prepare` (the command that prepares the data), `by_hand`
(what must be downloaded by hand first, or ''). Each has the splits 'train800' to train on while choosing,
'val200' to choose by, 'train800val200' to train on in the end, and 'test'; also 'train', 'val' and
'trainval', which are all images that there are. `vit_jax.recipes.vtab(model, task)` is the config of a run.

A task's data is there if `vit_jax.data.sources.tfds.builder_of(task.dataset)` raises no UserError.
"""

import math
from collections.abc import Mapping

from vit_jax.data.sources.vtab import GROUPS, SPLITS, TASKS, Task, task_of

__all__ = ['GROUPS', 'SPLITS', 'TASKS', 'Task', 'means', 'task_of']


def means(accuracies: Mapping[str, float]) -> dict[str, float]:
  """{'natural': …, 'specialized': …, 'structured': …, 'vtab': …}: means over a group's tasks and over all 19.

  A mean of which a task is missing is left out, since it could not be compared with anyone's.

  Args:
    accuracies: task -> accuracy on its test split.

  Raises:
    UserError: a name that is no task.
  """
  for name in accuracies:
    task_of(name)
  members = {group: [task.name for task in TASKS.values() if task.group == group] for group in GROUPS}
  members['vtab'] = list(TASKS)
  return {
    title: math.fsum(accuracies[name] for name in names) / len(names)
    for title, names in members.items()
    if all(name in accuracies for name in names)
  }
