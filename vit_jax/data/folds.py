"""Folds of cross-validation: one of k parts of the images is held out, and the others are trained on."""

import re

import numpy as np

SPLITS = ('train', 'val')  # those that a fold defines


def parse(text: str) -> tuple[int, int]:
  """'2/5' -> (2, 5): the second of five; ValueError for what is no fold."""
  match = re.fullmatch(r'(\d+)/(\d+)', text)
  number, folds = map(int, match.groups()) if match else (0, 0)
  if not 1 <= number <= folds or folds < 2:
    raise ValueError("it must be one of two folds or more, written as '2/5'")
  return number, folds


def chosen(labels: np.ndarray, split: str, fold: str) -> np.ndarray:
  """bool (N,): the images of 'train' or 'val' among those with labels (N,), or lists of classes (N, n).

  Images are dealt out class by class, each class in the given order, which for a folder is that of the hashes of paths.
  So folds differ by at most one image of each class and in all, and are the same on every machine.
  """
  number, folds = parse(fold)
  order = np.argsort(labels, kind='stable') if labels.ndim == 1 else np.arange(len(labels))
  held = np.zeros(len(labels), bool)
  held[order[number - 1 :: folds]] = True
  return held if split == 'val' else ~held
