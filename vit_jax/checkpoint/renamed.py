"""Names that checkpoints of earlier versions have for what is called otherwise today.

A stored step is never rewritten: where it lacks a name that is asked for and has the older one, the older one
is read.
"""

from collections.abc import Collection

# Today's name -> the older one: of an item, of a part of a leaf's path, and of a part of a metric's name. A path's part
# may stand anywhere: the optimizer's state has the parameters' paths below its own, as in '0/mu/pre_logits/kernel'.
_ITEMS = {'ema': 'average'}
_PATH_PARTS = {'pre_logits': 'representation'}
_METRIC_PARTS = {'_ema/': '_average/', '_ema_': '_average_'}  # 'val_ema/accuracy', 'val_ema_5shot/accuracy'


def stored_item(name: str, stored: Collection[str]) -> str:
  """The name under which an item is stored; `name` itself where neither it nor its older name is there."""
  return _of(name, _ITEMS.get(name, name), stored)


def stored_path(path: str, stored: Collection[str]) -> str:
  """The path under which a leaf is stored, as `stored_item`."""
  return _of(path, '/'.join(_PATH_PARTS.get(part, part) for part in path.split('/')), stored)


def stored_metric(name: str, stored: Collection[str]) -> str:
  """The name under which a step has a metric, as `stored_item`."""
  older = name
  for part, older_part in _METRIC_PARTS.items():
    older = older.replace(part, older_part)
  return _of(name, older, stored)


def _of(name: str, older: str, stored: Collection[str]) -> str:
  return older if name not in stored and older in stored else name
