"""The contract of a model, and the registry of the models that there are.

A newcomer writes one file with two classes and adds one line to `MODELS`. The first class, a `ModelConfig`, is a frozen
dataclass of options with the model's named sizes, sharding rules and FLOPs; the second, a `Model`, is the network. What
only some models have (positions, attention to look at, a mask token, …) is in capabilities.py. The trainer, plans,
evaluators, pictures and checkpoint formats know models by these two files only.
"""

import abc
import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Generic, Literal, NamedTuple, Self, TypeVar

import jax
from flax import nnx

from vit_jax.foundation import pytrees
from vit_jax.foundation.errors import UserError
from vit_jax.foundation.registry import Registry
from vit_jax.models.capabilities import Grid, OptionalOptions
from vit_jax.models.flops import Layer
from vit_jax.options import RESUMABLE, Positive

DType = Literal['float32', 'bfloat16']
Remat = Literal['none', 'block', 'dots']
Pooling = str  # a name in models/parts/pools.py
Sharding = jax.sharding.NamedSharding
P = TypeVar('P', bound='ModelConfig')
CUSTOM = 'custom'  # the variant that has no size of its own

# (regex of the whole path of a parameter or of state, mesh axes of its LAST dimensions, other ways to split them, …);
# the first match wins; parallel/sharding.py chooses among its ways. Dimensions before those, such as the depth in which
# blocks are stacked, are never split.
ShardingRules = tuple[tuple[str, *tuple[tuple[str | None, ...], ...]], ...]


def device_of(sharding: Sharding) -> Any:
  """One of the devices of a sharding, which are all of one kind."""
  return next(iter(sharding.device_set))


def on_processors(sharding: Sharding | None) -> bool:
  """Whether the devices of a sharding are processors; None (a model loaded for the user's own program): unknown."""
  return sharding is not None and device_of(sharding).platform == 'cpu'


def loaded_on_processors(sharding: Sharding | None) -> bool:
  """Whether a call computes a loaded model, whose sharding is None, where this process computes on processors.

  Ask it in a call, not where a network is built: it starts the devices, which some processes must not do yet.
  """
  return sharding is None and jax.default_backend() == 'cpu'


def under(prefix: str, rules: ShardingRules) -> ShardingRules:
  """The rules of a part, whose parameters lie below a path that the regex `prefix` matches."""
  return tuple((f'({prefix})/({pattern})', *ways) for pattern, *ways in rules)


class FirstLayer(NamedTuple):
  """The layer that meets the image's pixels: what people call it, and the path of its kernel (height, width, C, D)."""

  name: str = 'patch embedding'
  kernel: str = 'patch_embedding/kernel'


@dataclasses.dataclass(frozen=True)
class ModelConfig(OptionalOptions, abc.ABC):
  """The options of a model: a frozen dataclass, of which each architecture has its own.

  Every model says its `title`, `variants`, `sharding_rules`, `patch_pixels` and `num_layers`, and how to `build`,
  `describe` and count it (`layers`). The rest has defaults.

  An option that is None takes the value of the variant; `resolved` fills all of them in. Where options may
  contradict each other, a method `check(path)` raises UserError; `path` is what errors call the section.
  """

  # Named size, such as 'B/16', or 'custom', which needs every size.
  variant: str
  # Number format that the network computes in. Parameters, norms and softmax are float32.
  dtype: DType = dataclasses.field(default='float32', kw_only=True)
  # Rematerialisation, what the backward pass computes again to save memory: 'none', all of a block but its matrix
  # products ('dots'), or each 'block' whole. None for 'none' on CPUs, and elsewhere for the first of these that
  # fits; on TPUs 'none' with the batch in parts comes before 'dots' (training/auto.py).
  remat: Annotated[Remat | None, RESUMABLE] = dataclasses.field(default=None, kw_only=True)
  # Unrolling of blocks, compiled one after the other instead of as a loop: slower to compile, faster to run.
  # None to unroll on TPUs in runs of 5,000 steps and more and on GPUs in those of 1,000 (on a single one only with
  # remat 'none'), and on CPUs models of less than 10 million parameters in runs of 2,000 steps and more, and models
  # with feature maps (docs/scaling.md).
  unroll: Annotated[bool | None, RESUMABLE] = dataclasses.field(default=None, kw_only=True)
  # Epsilon of every norm, added to the variance.
  norm_epsilon: Positive = dataclasses.field(default=1e-6, kw_only=True)
  # Initial bias of the head (the paper's sigmoid pre-training starts at -10).
  head_bias: float = dataclasses.field(default=0.0, kw_only=True)

  # What messages call it, with its article: 'a Vision Transformer'.
  title: ClassVar[str]
  # The named sizes: variant -> a frozen dataclass whose fields are options too, and which `sizes` returns.
  variants: ClassVar[Mapping[str, Any]]
  # Where its parameters lie on the mesh.
  sharding_rules: ClassVar[ShardingRules]
  # Whether a model that was built for one image size takes images of another.
  any_image_size: ClassVar[bool] = True
  # Options that change what is computed from the same parameters: a checkpoint's must be the run's.
  function_options: ClassVar[tuple[str, ...]] = ('norm_epsilon',)

  @abc.abstractmethod
  def build(self, architecture: 'Architecture', rngs: nnx.Rngs, sharding: Sharding | None = None) -> 'Model':
    """The network with initial parameters.

    Args:
      architecture: image size, channels and classes; its `model` is this one.
      rngs: where the initial parameters come from; `nnx.eval_shape` of a build allocates nothing.
      sharding: of the activations, examples first; kept up after every block.

    Raises:
      UserError: sizes that are unknown, missing, or do not go together.
    """

  @abc.abstractmethod
  def layers(self, architecture: 'Architecture') -> list[Layer]:
    """The layers that multiply, from the pixels to the logits, counted from the sizes (models/flops.py)."""

  def training_layers(self, architecture: 'Architecture') -> list[Layer]:
    """The layers that the forward pass of a training step multiplies by, where these are not `layers`."""
    return self.layers(architecture)

  @property
  @abc.abstractmethod
  def patch_pixels(self) -> int:
    """Pixels along a side of a patch, or of a cell of the last feature map."""

  @property
  @abc.abstractmethod
  def num_layers(self) -> int:
    """Blocks whose output `Model.features` gives."""

  @abc.abstractmethod
  def describe(self) -> str:
    """One line for people: 'Vision Transformer, 12 blocks of width 768, 12 heads'."""

  def grid(self, image_size: tuple[int, int], option: str = 'config.data.image_size') -> Grid:
    """Patches (or cells of the last feature map) down and across, of images of height, width in pixels.

    Raises UserError, which calls the size `option`, where patches do not divide it.
    """
    if self.has_feature_maps:
      return patch_grid(image_size, 1, stride=self.patch_pixels, option=option)
    return patch_grid(image_size, self.patch_pixels, option=option)

  def covered(self, image_size: tuple[int, int]) -> tuple[int, int]:
    """Height and width in pixels of what the patches of `grid` hold: less than the image's where they cut it."""
    rows, columns = self.grid(image_size)
    return min(image_size[0], rows * self.patch_pixels), min(image_size[1], columns * self.patch_pixels)

  def resolved(self) -> Self:
    """The same model with variant 'custom' and every size given; raises as `variants.resolve`."""
    if not self.variants:
      return self
    sizes = self.sizes  # pyright: ignore[reportAttributeAccessIssue] (where there are variants)
    return dataclasses.replace(self, variant=CUSTOM, **dataclasses.asdict(sizes))

  @property
  def first_layer(self) -> FirstLayer:
    """The layer that meets the image's pixels."""
    return FirstLayer()

  @property
  def has_feature_maps(self) -> bool:
    """Whether activations are feature maps (B, H, W, C); in their memory a TPU rounds B up to a multiple of 8."""
    return False

  @property
  def poolings(self) -> tuple[Pooling, ...]:
    """What `Model.pool` can do with this model's tokens, its own way apart."""
    return ('gap',)

  @property
  def classifies_images(self) -> bool:
    """Whether an image has one vector of logits (otherwise every token has)."""
    return True

  def differing_function(self, other: 'ModelConfig') -> str | None:
    """An option by which `other` computes something else from the same parameters; None: there is none."""
    for name in self.function_options:
      if getattr(self, name) != getattr(other, name, None):
        return name
    return None

  def on_any_device(self) -> Self:
    """The model without options that only some devices have."""
    return self

  def part_of(self, kind: type[P], **options: Any) -> P:
    """The options that models of another kind have too, as one of these; `options` replace some."""
    return kind(**self.values(*(field.name for field in dataclasses.fields(kind))) | options)

  def values(self, *names: str) -> dict[str, Any]:
    """Some options with their values."""
    return {name: getattr(self, name) for name in names}

  def check_only(self, path: str, what: str, **needed: object) -> None:
    """Raises UserError, which says `what`, for an option of a Vision Transformer that has another value than needed."""
    for name, right in needed.items():
      if getattr(self, name) != right:
        raise UserError(
          f'{path}.{name} is {getattr(self, name)!r}, {what.format(right)}; leave it out, or choose --{path}.name=vit.'
        )

  def with_unrolled_blocks(self, unrolled: bool) -> Self:
    """The model whose blocks are unrolled or a loop, where `unroll` leaves that open."""
    return dataclasses.replace(self, unroll=unrolled) if self.unroll is None else self


def patch_grid(
  image_size: tuple[int, int], patch: int, *, stride: int = 1, option: str = 'config.data.image_size'
) -> Grid:
  """Rows and columns of patches of images of height, width in pixels; UserError, naming `option`, if they do not fit.

  A patch has `patch` cells along a side, of a feature map in front of it that has a cell for every `stride` pixels,
  rounded up at the border.
  """
  rows, columns = (-(-side // stride) for side in image_size)
  if rows % patch == 0 and columns % patch == 0:
    return rows // patch, columns // patch
  pixels = patch * stride
  below = tuple(max(side // pixels, 1) * pixels for side in image_size)
  above = tuple(-(-side // pixels) * pixels for side in image_size)
  nearest = ' or '.join(str(size) for size in dict.fromkeys((below, above)))
  raise UserError(
    f'{option} {tuple(image_size)} does not divide into patches of {pixels} pixels; '
    f'the nearest sizes that do are {nearest}.'
  )


C = TypeVar('C', bound=ModelConfig, covariant=True)


class Model(nnx.Module, Generic[C]):
  """Images to logits. `ModelConfig.build` makes one.

  A subclass names the class of its options: `class Mixer(Model[MixerConfig])`, and has `__call__` and `features`.

  Its `nnx.Param`s are its parameters, which the optimizer trains. All other variables, such as the running
  statistics of batch norm (`nnx.BatchStat`), are its state: a call with keys may update them in place, and the trainer
  keeps what they are then. Sharding rules name both, and so do checkpoint formats.

  Attributes:
    config: its options.
    head: the last layer, float32 (D, K).
  """

  config: C
  head: nnx.Linear

  def __call__(self, images: jax.Array, *, keys: jax.Array | None = None) -> jax.Array:
    """The logits of images.

    Args:
      images: float (B, H, W, C), in the value range that the model was trained with.
      keys: (B,) typed PRNG keys, one for each image, which decide what is dropped; given in training alone. None:
        nothing is dropped, running statistics are used, and no state changes.

    Returns:
      float32 (B, K); (B, N, K) where `config.classifies_images` is False.
    """
    raise NotImplementedError

  def features(self, images: jax.Array, layer: int | None = None) -> jax.Array:
    """(B, H, W, C) -> (B, N, D): the tokens (the cells of a feature map), without dropout.

    Args:
      images: as for the logits.
      layer: after which block, from 0; None or -1: after the last norm.

    Raises:
      ValueError: there is no such block.
    """
    raise NotImplementedError

  def feature_maps(
    self, images: jax.Array, layers: Sequence[int | None], *, norm: bool = False
  ) -> list[jax.Array]:
    """(B, H, W, C) -> (B, h, w, D) for each of `layers`: `features` of the patches alone, in their places.

    Args:
      images: as for the logits.
      layers: numbers of blocks, as `features` takes them.
      norm: apply the last norm to the tokens of every block.

    Raises:
      ValueError: there is no such block, or no norm that fits every block.
    """
    if norm:
      raise ValueError(f'norm is True, and {self.config.title} has no norm for the features of its blocks')
    return [self.feature_map(images, layer) for layer in layers]

  def feature_map(self, images: jax.Array, layer: int | None = None) -> jax.Array:
    """(B, H, W, C) -> (B, h, w, D): `feature_maps` of one layer."""
    rows, columns = self.config.grid((images.shape[1], images.shape[2]), 'The image size')
    tokens = self.features(images, layer)[:, -rows * columns :]
    return tokens.reshape(images.shape[0], rows, columns, -1)

  def pool(self, tokens: jax.Array, how: Pooling | None = None) -> jax.Array:
    """(B, N, D) -> (B, D'): the tokens of `features` pooled; by their mean, unless a model overrides this.

    Args:
      tokens: what `features` gives.
      how: one of `config.poolings`; None: the model's own way.

    Raises:
      ValueError: the model cannot pool so.
    """
    if how not in (None, 'gap'):
      raise ValueError(f"how is {how!r}, and {self.config.title} pools by 'gap' only")
    return tokens.mean(axis=1)

  def head_input(self, tokens: jax.Array) -> jax.Array:
    """(B, N, D) -> (B, D'): what the head reads, pooled and behind the pre-logits layer if there is one."""
    return self.pool(tokens)

  def embeddings(self, images: jax.Array, layer: int | None = None, how: Pooling | None = None) -> jax.Array:
    """(B, H, W, C) -> (B, D'): `features` of a layer, pooled as `pool` does; with neither given what the head reads."""
    tokens = self.features(images, layer)
    return self.head_input(tokens) if layer is None and how is None else self.pool(tokens, how)


@dataclasses.dataclass(frozen=True)
class Architecture:
  """Everything that decides the shapes of a model's parameters and state."""

  model: ModelConfig
  image_size: tuple[int, int]  # height, width
  channels: int
  num_classes: int  # 0: no head

  def build(self, rngs: nnx.Rngs, activation_sharding: jax.sharding.NamedSharding | None = None) -> Model:
    """The network, as `ModelConfig.build`."""
    return self.model.build(self, rngs, activation_sharding)

  def forward_flops(self, image_size: tuple[int, int] | None = None, *, training: bool = False) -> int:
    """FLOPs of one image's logits, of the architecture's size or another; in a training step some may be fewer."""
    resized = dataclasses.replace(self, image_size=image_size or self.image_size)
    layers = self.model.training_layers if training else self.model.layers
    return 2 * sum(layer.multiplications for layer in layers(resized))

  def abstract(self) -> Model:
    """As `build`, with shapes for parameters, and without a kernel that only some devices have: on no devices."""
    anywhere = dataclasses.replace(self, model=self.model.on_any_device())
    return nnx.eval_shape(lambda: anywhere.build(nnx.Rngs(0)))

  def graph_and_shapes(self) -> tuple[nnx.GraphDef, dict[str, jax.ShapeDtypeStruct]]:
    """The graph of `abstract` and the shape of each parameter, and of its state, by its path; raises as `build`."""
    graphdef, shapes, _ = self._divided
    return graphdef, dict(shapes)

  def shapes(self) -> dict[str, jax.ShapeDtypeStruct]:
    """The shape of each parameter, and of the model's state, by its path."""
    return self.graph_and_shapes()[1]

  def state_paths(self) -> frozenset[str]:
    """Those paths of `shapes` that are the model's state."""
    return self._divided[2]

  @functools.cached_property  # a run, a load and a file's rules each ask again, a tenth of a second
  def _divided(self) -> tuple[nnx.GraphDef, dict[str, jax.ShapeDtypeStruct], frozenset[str]]:
    """The graph of `abstract`, the shapes of its variables by their paths, and which of these are its state."""
    network = self.abstract()
    graphdef, variables = nnx.split(network)
    state = nnx.state(network, nnx.Not(nnx.Param))
    return (
      graphdef,
      pytrees.flatten(nnx.to_pure_dict(variables)),
      frozenset(pytrees.flatten(nnx.to_pure_dict(state))),
    )


MODELS: Registry[ModelConfig] = Registry(
  'model',
  {
    'vit': 'vit_jax.models.vit_config:ViTConfig',
    'mae': 'vit_jax.models.mae:MaeConfig',
    'dino': 'vit_jax.models.dino:DinoConfig',
    'moco': 'vit_jax.models.moco:MocoConfig',
    'two_towers': 'vit_jax.models.two_towers:TwoTowersConfig',
    'mixer': 'vit_jax.models.mixer:MixerConfig',
    'resnet': 'vit_jax.models.resnet:ResNetConfig',
    'efficientnet': 'vit_jax.models.efficientnet:EfficientNetConfig',
  },
)
