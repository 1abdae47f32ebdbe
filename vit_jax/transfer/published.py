"""Figures of others, quoted: none of them was measured here."""

# Column -> row -> (accuracy %, deviation over three runs or None). arXiv 2010.11929: table 2, and appendix
# D.4 for few-shot; B/16 i21k: the original project's own table of its released file.
QUOTED: dict[str, dict[str, tuple[float, float | None]]] = {
  'H/14 JFT': {
    'imagenet2012': (88.55, 0.04),
    'imagenet2012 (ReaL)': (90.72, 0.05),
    'cifar10': (99.50, 0.06),
    'cifar100': (94.55, 0.04),
    'oxford_iiit_pet': (97.56, 0.03),
    'oxford_flowers102': (99.68, 0.02),
    'VTAB, 19 tasks': (77.63, 0.23),
  },
  'L/16 JFT': {
    'imagenet2012': (87.76, 0.03),
    'imagenet2012 (ReaL)': (90.54, 0.03),
    'cifar10': (99.42, 0.03),
    'cifar100': (93.90, 0.05),
    'oxford_iiit_pet': (97.32, 0.11),
    'oxford_flowers102': (99.74, 0.00),
    'VTAB, 19 tasks': (76.28, 0.46),
  },
  'L/16 i21k': {
    'imagenet2012': (85.30, 0.02),
    'imagenet2012 (ReaL)': (88.62, 0.05),
    'cifar10': (99.15, 0.03),
    'cifar100': (93.25, 0.05),
    'oxford_iiit_pet': (94.67, 0.15),
    'oxford_flowers102': (99.61, 0.02),
    'VTAB, 19 tasks': (72.72, 0.21),
  },
  'B/16 i21k': {'imagenet2012': (84.53, None), 'cifar10': (99.02, None), 'cifar100': (92.06, None)},
  'B/16, 5-shot': {'imagenet2012 5-shot ridge': (64.2, None)},
}

SOURCE = (
  'quoted, not measured here: arXiv 2010.11929, table 2 (mean ± deviation of three fine-tuning runs) and '
  "appendix D.4 (5-shot, learned 1-D positions); B/16 i21k: the original project's table of its released file"
)
