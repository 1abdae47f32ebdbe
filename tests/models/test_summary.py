"""The table of a network's layers: its sums are the plan's, and each block has its own row."""

import itertools
import math
import re

import pytest
import tiny

from vit_jax.config import ViTConfig
from vit_jax.models import summary
from vit_jax.models.base import Architecture


def _rows(model, image_size) -> tuple[Architecture, dict[str, tuple[int, float]]]:
  """(parameters, MFLOPs) of each row of the table."""
  architecture = Architecture(model, image_size, 2, 5)
  lines = summary.table(architecture).splitlines()
  cells = [re.split(r'\s{2,}', line) for line in lines[2:] if not line.startswith('-')]
  rows = {row[0]: row[-2:] if re.search(r'\.\d$', row[-1]) else (row[-1], '0') for row in cells}
  numbers = {name: tuple(float(cell.replace(',', '')) for cell in row) for name, row in rows.items()}
  return architecture, numbers


@pytest.mark.parametrize(
  'model',
  [
    tiny.options(pool='map', register_tokens=2, pre_logits_size=8),
    tiny.options(axial=True, pool='gap'),
    tiny.options(stem_blocks=(1, 2), stem_width=32, patch=2),
    tiny.options(stem_convolutions=((32, 2), (64, 1)), patch=1),
    tiny.options(distillation_token=True, depth=3),
    tiny.mixer(),
    tiny.resnet(blocks=(1, 2)),
    tiny.efficientnet(),
  ],
)
def test_rows_add_up_to_the_parameters_and_flops_of_the_plan(model):
  convolves = model.first_layer.kernel != 'patch_embedding/kernel'
  architecture, rows = _rows(model, (32, 16) if convolves else (12, 8))
  total = rows.pop('total')
  state = architecture.state_paths()
  assert total[0] == sum(
    math.prod(leaf.shape) for path, leaf in architecture.shapes().items() if path not in state
  )
  assert total[0] == sum(parameters for parameters, _ in rows.values())
  assert total[1] == pytest.approx(architecture.forward_flops() / 1e6, abs=0.05)
  assert total[1] == pytest.approx(sum(flops for _, flops in rows.values()), abs=0.05 * len(rows))


def test_each_block_of_table_1_has_its_rows():
  """B/16: 12 D² parameters of matrices a block, as the paper's sizes give."""
  architecture, width, hidden = Architecture(ViTConfig(variant='B/16'), (224, 224), 3, 1000), 768, 3072
  text = summary.table(architecture)
  assert len(re.findall(r'^blocks/\d+/', text, re.MULTILINE)) == 24
  attention = 4 * (width * width + width) + 2 * width  # with its norm
  mlp = 2 * width * hidden + hidden + width + 2 * width
  for row in (
    f'blocks/11/attention  197 × 768 +{attention:,} +{2 * (4 * 197 * width**2 + 2 * 197**2 * width) / 1e6:,.1f}',
    f'blocks/11/mlp  +197 × 768 +{mlp:,} +{4 * 197 * width * hidden / 1e6:,.1f}',
    r'total +86,567,656 +35,127.7',
  ):
    assert re.search(row, text), text


def test_merged_tokens_are_counted_as_many_as_each_block_has():
  """B/16 at 224 pixels and r = 8: MLPs of 189, 181 … tokens behind attentions of 197, 189 …"""
  architecture = Architecture(ViTConfig(variant='B/16', token_merging=8), (224, 224), 3, 0)
  counts = [197 - 8 * block for block in range(13)]
  products = sum(
    4 * n * 768**2 + 2 * n**2 * 768 + 2 * after * 768 * 3072 for n, after in itertools.pairwise(counts)
  )
  assert architecture.forward_flops() == 2 * (products + 196 * 768 * 768)
  assert (
    architecture.forward_flops(training=True)
    == Architecture(ViTConfig(variant='B/16'), (224, 224), 3, 0).forward_flops()
  )
