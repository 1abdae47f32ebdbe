"""VTAB-1k's score: the mean accuracy of its 19 tasks, and of each of its three groups.

The tasks are `vit_jax.data.sources.vtab.TASKS`. `vit_jax.recipes.vtab(model, task)` is the config of a run on
one.
"""

import math
from collections.abc import Mapping

from vit_jax.data.sources.vtab import GROUPS, TASKS, task_of


def means(accuracies: Mapping[str, float]) -> dict[str, float]:
  """The mean accuracy of each group, and 'vtab', the mean over all 19 tasks, of {task: accuracy on its test split}.

  A mean is left out if one of its tasks is missing: nobody else's could be compared with it. Raises UserError for a
  name that is not a task's.
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
