"""The options of where a run's first parameters come from."""

import dataclasses
from typing import Literal

from vit_jax.foundation.class_matching import By
from vit_jax.models.position_resize import PositionResize
from vit_jax.options import Regex

Weights = Literal['raw', 'ema']


@dataclasses.dataclass(frozen=True)
class InitConfig:
  """Where the parameters of step 0 come from; the rest of the model begins as without a checkpoint."""

  # A released .npz, a training run or a Hugging Face folder: its path, its address in a bucket (gs://,
  # s3://), the https:// address of an .npz, or a released file's short name such as
  # 'imagenet21k/ViT-B_16'. None: random parameters.
  checkpoint: str | None = None
  # Of a run that has an EMA of its parameters: 'raw' or 'ema'. None: the EMA where its checkpoint.best is a
  # metric of it, else the parameters as they were trained.
  weights: Weights | None = None
  # How a head that begins anew begins: 'constant' (zero, and model.head_bias), or 'probe': as a logistic regression
  # of the frozen features of the training images, its penalty chosen by cross-validation.
  head: Literal['constant', 'probe'] = 'constant'
  # How the outputs of a head that does not begin anew are matched with the classes of the data: by 'name', those of new
  # classes beginning anew; or by 'number', for the same classes under other names.
  classes: By = 'name'
  # How position embeddings are resized to another grid: a value of model.position_resize. None: as the
  # checkpoint's own project does it.
  position_resize: PositionResize | None = None
  # Regexes of the model's parameters that begin anew, whatever the checkpoint has. What holds for 'head/' does so for
  # 'distillation_head/', the head of the distillation token.
  reinitialise: tuple[Regex, ...] = ('^head/',)
  # Regexes of the checkpoint's tensors that are left out where the model has no place for them.
  ignore: tuple[Regex, ...] = ('^pre_logits/', '^mask_token$')
