"""The flag --weights of the commands that load a checkpoint."""

from typing import Literal

from absl import flags

CHOICES = ('raw', 'ema')
HELP = (
  'Of a run that has an EMA of its parameters: which to take (default: those by which it chose its best).'
)


def chosen(holder: flags.FlagHolder[str | None]) -> Literal['raw', 'ema'] | None:
  """What the flag says, which absl has checked."""
  match holder.value:
    case 'raw' | 'ema' as weights:
      return weights
  return None
