"""What folders of timm's models without tokens share: ResNets, Mixers and EfficientNets."""

import abc
import pathlib
from typing import Any, ClassVar

from vit_jax.foundation import pytrees
from vit_jax.models.base import Architecture, ModelConfig
from vit_jax.pretrained import timm_config
from vit_jax.pretrained.base import Pretrained, ReadOptions, with_told
from vit_jax.pretrained.efficientnet_names import step_counts
from vit_jax.pretrained.huggingface import FolderFormat, Unfit, config_of, link_of
from vit_jax.pretrained.json_values import JsonObject
from vit_jax.pretrained.safetensors_files import TensorFiles
from vit_jax.pretrained.timm_names import Shapes
from vit_jax.pretrained.torch_names import HEAD_PATHS, Export, Layout, Rule


class TimmFolder(FolderFormat):
  """A folder of one kind of model of timm's, whose head reads the mean."""

  names: ClassVar[str]  # a regex that timm's names of architectures begin to match
  model: ClassVar[type[ModelConfig]]  # the config of ours
  first_conv: ClassVar[str]  # timm's name of the layer that meets the image
  classifier: ClassVar[str]  # likewise of the head
  known: ClassVar[tuple[str, ...]] = ()  # model_args that are read, beside those that tensors tell
  one_size: ClassVar[bool] = False  # whether a model takes images of one size only, which a folder then names
  epsilon: ClassVar[float | None] = None  # of timm's norms; None: model_args have a place for it

  @abc.abstractmethod
  def model_of(self, values: JsonObject, shapes: Shapes) -> tuple[ModelConfig, int]:
    """Our model and its channels; UserError or UnknownModelError: we have none."""

  @abc.abstractmethod
  def rules(self, architecture: Architecture) -> tuple[Rule, ...]:
    """Which tensor each parameter is in."""

  @abc.abstractmethod
  def named(self, model: Any) -> tuple[str, int, dict[str, Any]]:
    """timm's name of a model, the size of what its head reads, and model_args; Unfit: it has no such model."""

  def recognises(self, path: pathlib.Path) -> bool:
    return timm_config.names(config_of(path), self.names)

  def layout(self, files: TensorFiles, values: JsonObject, options: ReadOptions) -> Layout:
    published, arguments = timm_config.published(values), values.section('model_args')
    timm_config.check(values, *self.known)
    model, channels = self.model_of(values, files.shapes)
    model = with_told(values.path.parent, model, options.told)
    image_size = arguments.sides('img_size', timm_config.image_size(published) or (224, 224))
    num_classes = files.shapes.get(f'{self.classifier}.bias', (0,))[0]
    architecture = Architecture(model, image_size, channels, num_classes)
    return Layout(
      architecture=architecture,
      rules=self.rules(architecture),
      tokens=None,
      preprocess=timm_config.preprocess(published, options.image_size or image_size, channels),
      class_names=timm_config.class_names(values, num_classes),
      link=link_of(values, num_classes),
    )

  def export(self, pretrained: Pretrained) -> Export:
    architecture = pretrained.architecture
    model = architecture.model
    if type(model) is not self.model:
      raise Unfit(f'it is for {self.model.title}, and this is {model.title}')
    name, features, arguments = self.named(model)
    arguments |= {'in_chans': architecture.channels}
    published, notes = timm_config.written(pretrained, first_conv=self.first_conv, classifier=self.classifier)
    if self.one_size:
      arguments['img_size'] = list(architecture.image_size)
      published['fixed_input_size'] = True
    rules = self.rules(architecture)
    return Export(
      rules=rules,
      tokens=None,
      config=timm_config.config(name, pretrained, published, features=features, arguments=arguments),
      constants=step_counts(rules, pytrees.flatten(pretrained.params)),
      dropped=frozenset() if architecture.num_classes else HEAD_PATHS,
      notes=notes + timm_config.about(pretrained, epsilon=self.epsilon or model.norm_epsilon),
    )
