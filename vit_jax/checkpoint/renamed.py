"""Names that checkpoints of earlier versions have for what is called otherwise today.

A stored step is never rewritten: where it lacks a name that is asked for and has the older one, the older one
is read.
"""

from collections.abc import Collection, Iterable

# Today's name of an item -> its older name.
ITEMS = {'ema': 'average'}

# Today's part of a leaf's path -> its older name. It may stand anywhere in the path: the optimizer's state
# has the parameters' paths below its own, as in '0/mu/pre_logits/kernel'.
PATH_PARTS = {'pre_logits': 'representation'}

# Today's part of a metric's name -> its older name: 'val_ema/accuracy', 'val_ema_5shot/accuracy'.
METRIC_PARTS = {'_ema/': '_average/', '_ema_': '_average_'}


def stored_item(name: str, stored: Collection[str]) -> str:
  """The name under which an item is stored; `name` itself where neither it nor its older name is there."""
  older = ITEMS.get(name, name)
  if name not in stored and older in stored:
    return older
  return name


def stored_paths(paths: Iterable[str], stored: Collection[str]) -> dict[str, str]:
  """Maps each path asked for to the path under which its leaf is stored, as `stored_item` does."""
  return {path: _stored_path(path, stored) for path in paths}


def stored_metric(name: str, stored: Collection[str]) -> str:
  """The name under which a step has a metric, as `stored_item` does."""
  older = name
  for part, older_part in METRIC_PARTS.items():
    older = older.replace(part, older_part)
  if name not in stored and older in stored:
    return older
  return name


def _stored_path(path: str, stored: Collection[str]) -> str:
  older = '/'.join(PATH_PARTS.get(part, part) for part in path.split('/'))
  if path not in stored and older in stored:
    return older
  return path
