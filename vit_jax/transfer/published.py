"""Figures of others, quoted: none of them was measured here."""

from typing import NamedTuple


class Quoted(NamedTuple):
  """A published accuracy in %.

  Attributes:
    mean: over three runs, or of one.
    deviation: over three runs; None: not published.
    improved: a later figure of the same model, which the paper prints beside it; None: there is none.
  """

  mean: float
  deviation: float | None = None
  improved: float | None = None


# Column -> row. arXiv 2010.11929: table 2, and appendix D.4 for few-shot; B/16 i21k: the original project's own
# table of its released file.
QUOTED: dict[str, dict[str, Quoted]] = {
  'H/14 JFT': {
    'imagenet2012': Quoted(88.55, 0.04),
    'imagenet2012 (ReaL)': Quoted(90.72, 0.05),
    'cifar10': Quoted(99.50, 0.06),
    'cifar100': Quoted(94.55, 0.04),
    'oxford_iiit_pet': Quoted(97.56, 0.03),
    'oxford_flowers102': Quoted(99.68, 0.02),
    'VTAB, 19 tasks': Quoted(77.63, 0.23),
  },
  'L/16 JFT': {
    'imagenet2012': Quoted(87.76, 0.03),
    'imagenet2012 (ReaL)': Quoted(90.54, 0.03),
    'cifar10': Quoted(99.42, 0.03),
    'cifar100': Quoted(93.90, 0.05),
    'oxford_iiit_pet': Quoted(97.32, 0.11),
    'oxford_flowers102': Quoted(99.74, 0.00),
    'VTAB, 19 tasks': Quoted(76.28, 0.46),
  },
  'L/16 i21k': {
    'imagenet2012': Quoted(85.30, 0.02),
    'imagenet2012 (ReaL)': Quoted(88.62, 0.05),
    'cifar10': Quoted(99.15, 0.03),
    'cifar100': Quoted(93.25, 0.05),
    'oxford_iiit_pet': Quoted(94.67, 0.15),
    'oxford_flowers102': Quoted(99.61, 0.02),
    'VTAB, 19 tasks': Quoted(72.72, 0.21),
  },
  'BiT-L R152x4': {
    'imagenet2012': Quoted(87.54, 0.02),
    'imagenet2012 (ReaL)': Quoted(90.54),
    'cifar10': Quoted(99.37, 0.06),
    'cifar100': Quoted(93.51, 0.08),
    'oxford_iiit_pet': Quoted(96.62, 0.23),
    'oxford_flowers102': Quoted(99.63, 0.03),
    'VTAB, 19 tasks': Quoted(76.29, 1.70),
  },
  'Noisy Student': {
    'imagenet2012': Quoted(88.4, improved=88.5),
    'imagenet2012 (ReaL)': Quoted(90.55),
  },
  'B/16 i21k': {'imagenet2012': Quoted(84.53), 'cifar10': Quoted(99.02), 'cifar100': Quoted(92.06)},
  'B/16, 5-shot': {'imagenet2012 5-shot ridge': Quoted(64.2)},
}

# Column -> what its pre-training took, in thousands of TPUv3-core-days (table 2's last row).
THOUSAND_CORE_DAYS = {
  'H/14 JFT': 2.5,
  'L/16 JFT': 0.68,
  'L/16 i21k': 0.23,
  'BiT-L R152x4': 9.9,
  'Noisy Student': 12.3,
}

SOURCE = (
  'quoted, not measured here: arXiv 2010.11929, table 2 (mean ± deviation of three fine-tuning runs) and '
  "appendix D.4 (5-shot, learned 1-D positions); B/16 i21k: the original project's table of its released file"
)
