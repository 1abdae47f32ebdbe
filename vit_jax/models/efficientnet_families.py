"""The families of EfficientNets: their stages before multipliers, and where else they differ."""

import dataclasses
import math
from typing import Literal

from vit_jax.models.mbconv import StageSizes

FamilyName = Literal['B', 'Lite', 'EdgeTPU', 'V2-B', 'V2-S', 'V2-M', 'V2-L', 'V2-XL']

# Of B0 (arXiv 1905.11946, table 1).
_B0 = (
  StageSizes(3, 1, 1, 32, 16, 1),
  StageSizes(3, 2, 6, 16, 24, 2),
  StageSizes(5, 2, 6, 24, 40, 2),
  StageSizes(3, 2, 6, 40, 80, 3),
  StageSizes(5, 1, 6, 80, 112, 3),
  StageSizes(5, 2, 6, 112, 192, 4),
  StageSizes(3, 1, 6, 192, 320, 1),
)


@dataclasses.dataclass(frozen=True)
class Family:
  """What the sizes of a family share."""

  stages: tuple[StageSizes, ...]  # before the multipliers
  top: int = 1280  # channels that the head reads, before the multiplier
  activation: str = 'silu'  # in models/parts/mlps.py, or 'relu6'
  # Whether stem and top, and the depth of the first and the last stage, are not multiplied.
  keeps_ends: bool = False
  least_share: float = 0.9  # rounded channels are at least this share of what they were


def _v2(*rows: tuple[int, int], stem: int) -> tuple[StageSizes, ...]:
  """The second version (arXiv 2104.00298, table 4), of (outputs, blocks) of each stage."""
  shared = [StageSizes(3, 1, 1, 0, 0, 0, 'conv', squeeze=False)]
  shared += [StageSizes(3, 2, 4, 0, 0, 0, 'fused', squeeze=False)] * 2
  shared += [StageSizes(3, *steps, 0, 0, 0) for steps in ((2, 4), (1, 6), (2, 6), (1, 6))]
  inputs = (stem, *(outputs for outputs, _ in rows))
  return tuple(
    stage._replace(inputs=channels, outputs=outputs, blocks=blocks)
    for stage, channels, (outputs, blocks) in zip(shared, inputs, rows, strict=False)
  )


_EDGE = (
  *(StageSizes(3, 1, 4, 32, 24, 1, 'fused', squeeze=False, adds_input=False, expands=24),),
  *(
    StageSizes(3, 2, 8, 24, 32, 2, 'fused', squeeze=False),
    StageSizes(3, 2, 8, 32, 48, 4, 'fused', squeeze=False),
  ),
  *(StageSizes(5, 2, 8, 48, 96, 5, squeeze=False), StageSizes(5, 1, 8, 96, 144, 4, squeeze=False)),
  StageSizes(5, 2, 8, 144, 192, 2, squeeze=False),
)

FAMILIES: dict[str, Family] = {
  'B': Family(_B0),
  'Lite': Family(tuple(stage._replace(squeeze=False) for stage in _B0), activation='relu6', keeps_ends=True),
  'EdgeTPU': Family(_EDGE, activation='relu'),
  'V2-B': Family(_v2((16, 1), (32, 2), (48, 2), (96, 3), (112, 5), (192, 8), stem=32), least_share=0.0),
  'V2-S': Family(_v2((24, 2), (48, 4), (64, 4), (128, 6), (160, 9), (256, 15), stem=24)),
  'V2-M': Family(_v2((24, 3), (48, 5), (80, 5), (160, 7), (176, 14), (304, 18), (512, 5), stem=24)),
  'V2-L': Family(_v2((32, 4), (64, 7), (96, 7), (192, 10), (224, 19), (384, 25), (640, 7), stem=32)),
  'V2-XL': Family(_v2((32, 4), (64, 8), (96, 8), (192, 16), (256, 24), (512, 32), (640, 8), stem=32)),
}


def stages(family: Family, width: float, depth: float) -> tuple[StageSizes, ...]:
  """Those of a family, by its multipliers."""
  last = len(family.stages) - 1

  def channels(number: int) -> int:
    return rounded_channels(number, width, family.least_share)

  return tuple(
    stage._replace(
      inputs=stage.inputs if family.keeps_ends and number == 0 else channels(stage.inputs),
      outputs=channels(stage.outputs),
      blocks=stage.blocks if family.keeps_ends and number in (0, last) else math.ceil(depth * stage.blocks),
      expands=stage.expands and channels(stage.expands),
    )
    for number, stage in enumerate(family.stages)
  )


def rounded_channels(channels: int, multiplier: float, least_share: float = 0.9) -> int:
  """The multiple of 8 nearest to channels x multiplier, that is at least that share of it."""
  wanted = channels * multiplier
  rounded = max(8, int(wanted + 4) // 8 * 8)
  return rounded + 8 if rounded < least_share * wanted else rounded
