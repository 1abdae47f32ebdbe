"""The schema of a run: frozen dataclasses, every option documented here and nowhere else.

A file in `configs/` returns `to_config_dict(Config(...))`; `from_config_dict` turns it, with the
overrides of the command line applied, back into a validated `Config`. Durations are strings with a
unit (`durations.py`).
"""

import dataclasses
import difflib
import re
import types
import typing
from typing import Any

import ml_collections
from ml_collections import config_dict

from vit_jax import validation
from vit_jax.errors import UserError

COLOUR_LEVELS = 8  # of each channel of a masked patch's colour: three bits


@dataclasses.dataclass(frozen=True)
class Model:
  """The Vision Transformer (paper, section 3.1), a hybrid with a ResNet, an MLP-Mixer, or a ResNet."""

  # A named size, such as 'Ti/16', 'H/14', 'R50+B/16', 'Mixer-B/16' or 'R50x1' (models/variants.py has the
  # table), or 'custom'.
  variant: str = 'B/16'
  # Each of these replaces the variant's own value; 'custom' needs them all (an MLP-Mixer has no heads,
  # a ResNet has resnet_blocks and width).
  patch: int | None = None  # pixels along a side of a patch
  width: int | None = None  # D, the size of a token; of a ResNet the channels of its root, a multiple of 32
  mlp_dim: int | None = None  # hidden units of a block's MLP
  depth: int | None = None  # L, encoder blocks
  heads: int | None = None
  # Bottlenecks in each stage of a ResNet that the patches are cut from; (): its root alone.
  stem_blocks: tuple[int, ...] | None = None
  stem_width: int = 64  # channels of that ResNet's root, a multiple of 32
  # Hidden units of the MLP that mixes tokens: makes the network an MLP-Mixer, which has pool 'gap',
  # stochastic depth and none of the options of attention, tokens and dropout.
  tokens_mlp_dim: int | None = None
  # Bottlenecks in each stage: makes the network a ResNet as in 'Big Transfer' (arXiv 1912.11370), which has
  # pool 'gap', norm_epsilon (1e-5 in the published ones), head_bias, dtype, remat and no other option below.
  resnet_blocks: tuple[int, ...] | None = None
  # What the head reads: the class 'token', 'gap' (mean of all tokens but the registers), 'token_gap'
  # (the class token beside the mean of the patches, as DINOv2's classifier), 'map' (attention pooling),
  # or 'none' (every token gets logits; only loss 'masked_patches' trains such a model).
  pool: str = 'token'
  # Prepend a class token? None: only where pool is 'token' or 'token_gap'.
  class_token: bool | None = None
  # How patches know where they are (models/position.py). Added to the tokens: a 'learned' embedding of each,
  # 'learned2d': half of it of the column, half of the row, or 'sincos2d': fixed sines and cosines of both
  # (MoCo v3). In every block's attention: a 'relative' bias of each head for each offset (row, column) of two
  # patches (Swin, BEiT), 'relative_query': the query's product with a learned key of the offset (the paper's
  # 'relative', which counts offsets in one dimension), or 'rotary': queries and keys turned by row and column
  # (RoFormer). Or 'none'. The relative ones go with attention 'xla' only.
  # Images of another size: what is learned is interpolated, along each axis ('relative' and 'relative_query':
  # between offsets); so is sincos2d. Rotary goes on counting, a patch being one from the next.
  position: str = 'learned'
  # Tokens without a position, behind the class token, that nothing reads (arXiv 2309.16588).
  register_tokens: int = 0
  mask_token: bool = False  # a learned embedding for hidden patches, which loss 'masked_patches' needs
  # Size of the tanh layer between pooling and head (the paper's pre-training has one, of width D).
  representation_size: int | None = None
  gelu: str = 'tanh'  # the approximation of the original code, or 'erf': the exact function
  norm_epsilon: float = 1e-6  # of every norm
  # Initial value of a learned factor of each channel at the end of each branch (LayerScale,
  # arXiv 2103.17239). None: no factors.
  layer_scale: float | None = None
  # Axial attention (the paper's appendix D.6): in the place of each block one that attends along rows and
  # one that attends along columns, each with its MLP. For models without class token and registers.
  axial: bool = False
  # Query-key normalisation: a LayerNorm of each head's queries and keys before their product, which keeps the
  # logits of attention from growing (arXiv 2302.05442, section 2.1; biases as timm's).
  qk_norm: bool = False
  # A depthwise 3 x 3 convolution on the grid of patches, and a second GELU, between the two layers of each
  # block's MLP (LocalViT, arXiv 2104.05707); other tokens pass it by.
  mlp_locality: bool = False
  dropout: float = 0.0
  attention_dropout: float = 0.0
  # What computes attention: 'xla', or a kernel that never writes the weights of all pairs of tokens to
  # memory, but has no attention_dropout: 'cudnn' (NVIDIA GPUs, bfloat16) or 'splash' (TPUs from v4 on).
  # 'auto': the faster one, by devices, number of tokens and dtype (models/fused_attention.py).
  attention: str = 'auto'
  # Probability that an example skips a branch (attention or MLP) of the last block; of earlier blocks in
  # proportion to their depth.
  stochastic_depth: float = 0.0
  # Initial bias of the head (the paper's sigmoid pre-training starts at -10).
  head_bias: float = 0.0
  # What the network computes in: 'float32' or 'bfloat16'. Parameters, norms and softmax are float32.
  dtype: str = 'float32'
  # What the backward pass computes again to save memory: 'none', each 'block' whole, or all of a
  # block but its matrix products ('dots').
  remat: str = 'none'
  # Compile the blocks one after the other instead of as a loop: slower to compile, for some faster.
  unroll: bool = False


@dataclasses.dataclass(frozen=True)
class Data:
  """What the model is trained on, and how an image becomes its input."""

  # 'digits' (comes with scikit-learn), 'tfds:NAME', 'tfds:/a/prepared/directory' or 'folder:/path'.
  # A split written behind it ('tfds:cifar10:train[:98%]') wins over `split`.
  source: str = 'digits'
  split: str = 'train'
  image_size: tuple[int, int] = (224, 224)  # height, width of the model's input
  # ((until, height), …): smaller images at first, such as (('40%', 128), ('70%', 160)), with the width,
  # `resize` and `padding` in proportion. The model is that of `image_size`, at which it is evaluated; its
  # positions are interpolated.
  grow: tuple[tuple[str, int], ...] = ()
  channels: int = 3  # 3: colour, 1: grayscale
  # ((source, weight), …): several sources, drawn from in proportion to their weights, instead of `source`;
  # their classes are united by name. Each is shuffled and passed through on its own, every record once a
  # pass; an epoch is as many images as all have together.
  mixture: tuple[tuple[str, float], ...] = ()
  # Only images of these classes, by name, in training and in evaluators; (): all. Labels stay as they are.
  classes: tuple[str, ...] = ()
  # Train on at most so many images of each class (of each source of a mixture), which `seed` chooses.
  max_per_class: int | None = None
  # How often an image is in a batch, each time augmented anew (arXiv 1901.09335; DeiT takes 3). An epoch
  # stays as many images as there are, so that a pass through the data takes this many epochs.
  repeats: int = 1
  # Classes of the head. None: what the data set says.
  num_classes: int | None = None
  # Images have lists of classes, of at most this many each; needs loss 'sigmoid'. Accuracy is then whether
  # the most probable class is on the list (precision@1; no, for an empty one). None: one class each.
  max_labels: int | None = None
  # How a training image is cut: 'inception' (a random box, distorted), 'random' (resize, pad,
  # random position), 'central' (resize the shorter side, cut the middle) or 'resize' (squash).
  crop: str = 'inception'
  area: tuple[float, float] = (0.05, 1.0)  # 'inception': the box's share of the image
  resize: int | None = None  # pixels before the cut: 'random' both sides, 'central' the shorter one
  padding: int = 0  # 'random': zero pixels added on every side
  flip: bool = True  # mirror half of the training images left to right
  # What is done to the cut image, in this order: 'randaugment(LAYERS,MAGNITUDE)', '3augment' (DeiT III),
  # 'jitter(STRENGTH)' of brightness, contrast and saturation, 'erase(PROBABILITY)' a random box; or a level
  # of AugReg's, which brings mixup along: 'none', 'light1', 'light2', 'medium1', 'medium2', 'strong1' or
  # 'strong2'. Several: 'medium1 | erase(0.25)'.
  augment: str = 'none'
  # Mix each image with another one of the batch, and their targets alike: mixup blends them, cutmix puts a
  # box of the other one in. The shares are drawn from Beta(α, α) with this α; 0: never. With both, a coin
  # decides. None: what `augment` brings along. train/accuracy is then of the image with the larger share.
  mixup: float | None = None
  cutmix: float = 0.0
  mix_per: str = 'batch'  # one draw for the whole 'batch', or one for each 'example'
  value_range: tuple[float, float] = (-1.0, 1.0)  # what 0 and 255 become
  # A folder without train/ and val/: the share of its images held out as 'val'.
  val_fraction: float = 0.1
  # At a training image that cannot be decoded: 'stop', or 'replace' it by that in its row of the next step.
  # What was replaced is counted as data/bad_images and listed in report/bad_images.jsonl.
  bad_images: str = 'stop'
  threads: int = 2  # that decode images, in each process
  prefetch: int = 2  # batches made ahead, in each process

  @property
  def title(self) -> str:
    """What messages call the training data."""
    return ' + '.join(source for source, _ in self.mixture) or self.source


@dataclasses.dataclass(frozen=True)
class FewShot:
  """How an evaluator of type 'fewshot' learns to classify from the frozen features of a few images."""

  # Both the images to learn from and, apart from them, those to choose by are drawn from this split.
  train_split: str = 'train'
  # Images of each class to learn from, each number an evaluation of its own; 0: all but those to choose by.
  shots: tuple[int, ...] = (5,)
  validation: int = 10  # images of each class that the setting (see `grid`) is chosen by
  seeds: int = 3  # draws of images; the metrics are the mean accuracy and its deviation (n - 1) over them
  # 'ridge' (regression to ±1 in closed form, as the paper), 'logistic' (L-BFGS) or 'knn' (cosine).
  probe: str = 'ridge'
  # What the setting is chosen from: the penalty l2 of 'ridge' and 'logistic', the k of 'knn'.
  # (): those of evaluation/probes.py.
  grid: tuple[float, ...] = ()
  # Features after this block, from 0; -1: after the last norm; None: as the head reads them.
  layer: int | None = None
  # Of that layer's tokens: 'token', 'gap', 'token_gap' or 'map', as far as the model has them. None: its own.
  pool: str | None = None

  def metric_prefix(self, evaluator: str, shots: int) -> str:
    """'web' -> 'web_5shot', or 'web_all' for all images: what the metrics' names begin with."""
    return f'{evaluator}_{f"{shots}shot" if shots else "all"}'


@dataclasses.dataclass(frozen=True)
class Evaluator:
  """The metrics of `evaluation/classification.py` (top-1, top-5, loss, …) on one split, during training and
  with --mode=eval, which also writes report/<evaluator>.json and pictures; or those of a few-shot probe."""

  # 'classification': by the model's head; 'fewshot': by a probe of its features, on data of any classes.
  type: str = 'classification'
  source: str | None = None  # None: data.source
  split: str = 'test'
  crop: str = 'resize'  # 'resize' (squash, as the paper's evaluation) or 'central'
  resize: int | None = None  # 'central': pixels of the shorter side before the cut
  batch_size: int | None = None  # None: the training batch size
  every: str = '1 epochs'  # it also runs at the end
  # Of ImageNet's validation images: the path or address of ImageNet ReaL's real.json, or 'download'; the
  # evaluator then gives real_accuracy too. None: no such labels.
  real_labels: str | None = None
  fewshot: FewShot = FewShot()  # for type 'fewshot'


@dataclasses.dataclass(frozen=True)
class Loss:
  """The training objective."""

  # 'softmax'; 'sigmoid' (a yes or no for each class); or 'masked_patches', without labels: to guess the mean
  # colours, of 512, of patches of which most are hidden (the paper's self-supervision, appendix B.1.2).
  # train/loss and train/accuracy are then of these guesses; evaluators are of type 'fewshot'.
  name: str = 'softmax'
  label_smoothing: float = 0.0


@dataclasses.dataclass(frozen=True)
class Optimizer:
  """Adam (AdamW's decoupled decay) or SGD with momentum."""

  name: str = 'adam'  # or 'sgd'
  b1: float = 0.9  # 'adam'
  b2: float = 0.999  # 'adam'
  momentum: float = 0.9  # 'sgd'
  momentum_dtype: str = 'float32'  # 'bfloat16' halves the first moment's memory
  weight_decay: float = 0.0  # times the learning rate, on kernels only
  clip_norm: float | None = None  # largest global norm of the gradient
  # ((regex, factor), ...): a learning rate of its own for the parameters whose path matches.
  lr_multipliers: tuple[tuple[str, float], ...] = ()
  # Regexes of parameter paths that keep their initial value, such as ('^patch_embedding', '^blocks').
  freeze: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Schedule:
  """Learning rate: linear warmup from 0, then a decay to the end of the run."""

  learning_rate: float = 1e-3  # at the end of the warmup
  warmup: str = '0 steps'
  decay: str = 'cosine'  # 'linear', 'cosine', 'constant' or 'rsqrt'
  end_value: float = 0.0  # 'linear' and 'cosine': the rate at the end
  timescale: str = '10000 steps'  # 'rsqrt': rate = peak / sqrt(1 + steps since warmup / timescale)
  cooldown: str = '0 steps'  # 'constant' and 'rsqrt': linear to 0 over the last part of the run


@dataclasses.dataclass(frozen=True)
class Mesh:
  """Devices along each axis; one may be -1, which takes the devices that are left."""

  replica: int = (
    1  # parts of the batch, parameters copied; the first axis to run across slices (or hosts of GPUs)
  )
  data: int = -1  # the same, within a slice as far as `replica` has as many parts as there are slices
  fsdp: int = 1  # parts of the batch, parameters and optimizer state split too
  tensor: int = 1  # parts of every layer
  min_shard_size: int = 2**16  # parameters with fewer elements are copied rather than split


@dataclasses.dataclass(frozen=True)
class Checkpoint:
  """When to save, and what to keep."""

  every: str = '1 epochs'  # it also saves at the end
  keep: int = 2  # the newest ones
  keep_every: str | None = None  # and, for good, one each so often
  # And, of the steps that are both evaluated and saved, the best by '<evaluator>/accuracy', '/loss' or
  # '/mean_average_precision'; of few-shot evaluators '<evaluator>_5shot/accuracy'.
  best: str | None = None


@dataclasses.dataclass(frozen=True)
class Init:
  """Where the parameters of step 0 come from; the rest of the model begins as without a checkpoint."""

  # A released .npz, a training run or a Hugging Face folder: its path, an https:// or gs:// address of
  # an .npz, or a released file's short name such as 'imagenet21k/ViT-B_16'. None: random parameters.
  checkpoint: str | None = None
  # To another grid: 'linear' (aligned corners, the original's), 'bilinear' (half-pixel centres), 'bicubic'
  # or 'bicubic_antialias' (both as torch has them). None: as the checkpoint's own project does it.
  position_resize: str | None = None
  # Regexes of the model's parameters that begin anew, whatever the checkpoint has.
  reinitialise: tuple[str, ...] = ('^head/',)
  # Regexes of the checkpoint's tensors that are left out where the model has no place for them.
  ignore: tuple[str, ...] = ('^representation/', '^mask_token$')


@dataclasses.dataclass(frozen=True)
class Config:
  """A run."""

  seed: int = 0
  total: str = '10 epochs'  # how long to train
  batch_size: int = 512  # images a step, over all devices
  accumulation: int = 1  # parts of a batch computed one after the other, to save memory
  model: Model = Model()
  init: Init = Init()
  data: Data = Data()
  evaluators: dict[str, Evaluator] = dataclasses.field(default_factory=dict)  # name -> evaluator
  loss: Loss = Loss()
  optimizer: Optimizer = Optimizer()
  schedule: Schedule = Schedule()
  # Decay a step of a running average of the parameters, evaluated beside them (Polyak). 0: none.
  average: float = 0.0
  nonfinite: str = 'stop'  # at a loss or gradient that is not finite: 'stop', or 'skip' that step
  mesh: Mesh = Mesh()
  checkpoint: Checkpoint = Checkpoint()
  log_every: str = '50 steps'
  # Seconds after which a step is taken for one that hangs: the process writes the stacks of its threads and
  # ends with exit code 75, to be started again. Compiling, evaluating and saving do not count. 0: never.
  step_limit: float = 1800.0

  def head_size(self, classes: int) -> int:
    """Outputs of the head: the colours of masked patches, or the classes; more than there are is allowed.

    Args:
      classes: of the training data.

    Raises:
      UserError: data.num_classes is less than that.
    """
    if self.loss.name == 'masked_patches':
      return COLOUR_LEVELS**self.data.channels
    if self.data.num_classes is None:
      return classes
    if self.data.num_classes < classes:
      raise UserError(
        f'config.data.num_classes is {self.data.num_classes}, but {self.data.title} has {classes} classes; '
        f'leave it out or raise it.'
      )
    return self.data.num_classes


# Options that may differ when a run is resumed: they do not change what is computed, only where,
# how fast and what is kept; or, as data.bad_images, what was not met so far.
MAY_CHANGE = re.compile(
  r'mesh\.|checkpoint\.|(log_every|step_limit)$|data\.(threads|prefetch|bad_images)$|model\.(unroll|attention)$'
)


def to_config_dict(config: Config) -> ml_collections.ConfigDict:
  """A locked ConfigDict of the config, in which each option keeps its type, also where it is None."""
  result = ml_collections.ConfigDict(_to_dict(config))
  result.lock()
  return result


def _to_dict(section: Any) -> dict[str, Any]:
  hints = typing.get_type_hints(type(section))
  result = {}
  for field in dataclasses.fields(section):
    value = getattr(section, field.name)
    if dataclasses.is_dataclass(value):
      value = _to_dict(value)
    elif isinstance(value, dict):
      value = {name: _to_dict(item) for name, item in value.items()}
    elif value is None:
      kind = _without_none(hints[field.name])
      value = config_dict.placeholder(typing.get_origin(kind) or kind)
    result[field.name] = value
  return result


def from_config_dict(values: ml_collections.ConfigDict | dict[str, Any]) -> Config:
  """The validated config of a ConfigDict, or of the JSON that `as_json` made.

  Raises:
    UserError: an unknown option, a value of the wrong type, or values that contradict each other.
  """
  if isinstance(values, ml_collections.ConfigDict):
    values = values.to_dict()
  config = _section(Config, values, '')
  validation.validate(config, flatten(config))
  return config


def as_json(config: Config) -> dict[str, Any]:
  """The config as nested dicts of JSON's types (tuples become lists)."""
  return dataclasses.asdict(config)


def flatten(config: Config) -> dict[str, Any]:
  """{'model.patch': 16, ...}: every option by its dotted name."""

  def walk(values: dict[str, Any], prefix: str):
    for name, value in values.items():
      if isinstance(value, dict):
        yield from walk(value, f'{prefix}{name}.')
      else:
        yield f'{prefix}{name}', value

  return dict(walk(as_json(config), ''))


def _section(cls: type, values: dict[str, Any], prefix: str) -> Any:
  """Builds dataclass `cls` from a dict, every name and type checked."""
  hints = typing.get_type_hints(cls)
  for name in values:
    if name not in hints:
      near = difflib.get_close_matches(name, hints, n=1)
      hint = f'did you mean {prefix}{near[0]}?' if near else f'it has {", ".join(hints)}.'
      raise UserError(f'config.{prefix}{name} is not an option; {hint}')
  return cls(**{name: _value(hints[name], v, f'{prefix}{name}') for name, v in values.items()})


def _value(hint: Any, value: Any, path: str) -> Any:
  """`value` checked against a type hint of the schema; lists become tuples, ints floats."""
  origin, args = typing.get_origin(hint), typing.get_args(hint)
  if origin is types.UnionType:
    return None if value is None else _value(_without_none(hint), value, path)
  if dataclasses.is_dataclass(hint) and isinstance(value, dict):
    return _section(hint, value, f'{path}.')
  if origin is dict and isinstance(value, dict):
    return {name: _value(args[1], item, f'{path}.{name}') for name, item in value.items()}
  if origin is tuple and isinstance(value, (tuple, list)):
    if args[-1] is Ellipsis:
      args = args[:1] * len(value)
    if len(args) == len(value):
      return tuple(_value(arg, item, path) for arg, item in zip(args, value, strict=True))
  if hint is float and isinstance(value, int) and not isinstance(value, bool):
    return float(value)
  boolean_as_int = hint is int and isinstance(value, bool)
  if isinstance(hint, type) and isinstance(value, hint) and not boolean_as_int:
    return value
  name = hint.__name__ if isinstance(hint, type) and origin is None else str(hint)
  raise UserError(f'config.{path} is {value!r}, which is not of type {name}.')


def _without_none(hint: Any) -> Any:
  (kind,) = (arg for arg in typing.get_args(hint) if arg is not type(None))
  return kind
