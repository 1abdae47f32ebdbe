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

  # Checkpoint to begin from: the path or bucket address (gs://, s3://) of a released .npz, a training run or a Hugging
  # Face folder, the https:// address of an .npz, a repository of the Hub ('hf:org/name@revision:file'), or a released
  # file's short name such as 'imagenet21k/ViT-B_16'. None for random parameters.
  checkpoint: str | None = None
  # Parameters of a run that has an EMA: 'raw' as they were trained, or 'ema'. None for the EMA if checkpoint.best is a
  # metric of it, otherwise for the raw ones.
  weights: Weights | None = None
  # First values of a head that begins anew: 'constant' (zero, and model.head_bias), or 'probe', a logistic regression
  # of the frozen features of the training images whose penalty is chosen by cross-validation; or 'text', which the
  # checkpoint's text tower (CLIP, SigLIP) makes of the names of the classes.
  head: Literal['constant', 'probe', 'text'] = 'constant'
  # Texts of head 'text', of whose features a class has the mean; {} stands for the name of the class.
  prompts: tuple[str, ...] = ('a photo of a {}.',)
  # How the outputs of a head that does not begin anew are matched with the classes of the data: by 'name', those of new
  # classes beginning anew; or by 'number', for the same classes under other names.
  classes: By = 'name'
  # Interpolation of position embeddings to another grid, a value of model.position_resize. None for that of the
  # checkpoint's own project.
  position_resize: PositionResize | None = None
  # Regexes of the model's parameters that begin anew, whatever the checkpoint has. 'head/' stands for
  # 'distillation_head/', the head of the distillation token, too.
  reinitialise: tuple[Regex, ...] = ('^head/',)
  # Regexes of the checkpoint's tensors that are left out where the model has no place for them.
  ignore: tuple[Regex, ...] = ('^pre_logits/', '^mask_token$')
