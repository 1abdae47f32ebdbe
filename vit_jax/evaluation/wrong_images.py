"""The images that a model takes for another class: a table of all, and a page with pictures of the worst."""

import base64
import collections
import csv
import io
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import NamedTuple

import numpy as np
from PIL import Image

from vit_jax.data.decode import Picture
from vit_jax.data.sources.base import Record
from vit_jax.foundation import files, web_page
from vit_jax.foundation.errors import UserError

CSV, PAGE = 'wrong.csv', 'wrong.html'
_SHOWN = 100  # pictures on the page, of some kilobytes each
_CONFUSIONS = 10  # pairs of classes on the page
_SIDE = 192  # pixels of a picture's longer side
_STYLE = """figure { width: 12rem; margin: 0 0 1rem; }
figure img { height: 12rem; width: 12rem; object-fit: contain; background: #f4f4f4; }
figcaption { line-height: 1.3; font-size: 0.9rem; }
small { color: #777; }
"""


class Wrong(NamedTuple):
  """An image that is taken for another class."""

  number: int  # of its record
  file: str
  truth: str
  prediction: str
  probability: float  # of the predicted class
  truth_probability: float  # of the image's own class


def worst_first(wrong: Sequence[Wrong]) -> list[Wrong]:
  """The most confident mistakes first; those equally confident in the order given."""
  return sorted(wrong, key=lambda image: -image.probability)


def write_csv(path: pathlib.Path, wrong: Sequence[Wrong]) -> None:
  """Writes a row for each image, and a header."""
  text = io.StringIO()
  rows = csv.writer(text, lineterminator='\n')
  rows.writerow(['file', 'truth', 'prediction', 'probability', 'truth_probability'])
  for image in wrong:
    shares = (f'{share:.6g}' for share in (image.probability, image.truth_probability))
    rows.writerow([image.file, image.truth, image.prediction, *shares])
  files.write_bytes(path, _encoded(text.getvalue()))


def write_page(
  path: pathlib.Path,
  title: str,
  facts: Mapping[str, str],
  wrong: Sequence[Wrong],
  read: Callable[[int], Record],
) -> None:
  """Writes a page with the pictures of the first of `wrong` in it.

  Args:
    path: the file.
    title: of the page.
    facts: name -> value of the table at the top.
    wrong: the images, the worst first.
    read: the record of a number.
  """
  shown = wrong[:_SHOWN]
  title_html = f'<h1>{escape(title)}</h1>\n{web_page.table(facts)}'
  count = (
    f'The first {len(shown)} of {len(wrong):,} images' if len(shown) < len(wrong) else f'All {len(wrong):,}'
  )
  pictures = ''.join(_figure(image, read) for image in shown)
  body = (
    f'{title_html}{_confusions(wrong)}<h2>The most confident mistakes first</h2>\n'
    f'<p>{count} are shown; <a href="{CSV}">{CSV}</a> is a table of all.</p>\n<div>\n{pictures}</div>\n'
    if wrong
    else f'{title_html}<p>No image is wrong.</p>\n'
  )
  files.write_bytes(path, _encoded(web_page.document(title, body, _STYLE)))


def _confusions(wrong: Sequence[Wrong]) -> str:
  """The most frequent pairs of a class and what it is taken for."""
  counted = collections.Counter((image.truth, image.prediction) for image in wrong)
  pairs = counted.most_common(_CONFUSIONS)
  rows = ''.join(
    f'<tr><td>{_name(truth)}</td><td>{_name(prediction)}</td><td class="number">{count:,}</td></tr>\n'
    for (truth, prediction), count in pairs
  )
  head = '<tr><th>class</th><th>taken for</th><th>images</th></tr>'
  title = f'The {len(pairs)} most frequent of {len(counted):,} confusions'
  return f'<h2>{title}</h2>\n<table>\n{head}\n{rows}</table>\n'


def _figure(image: Wrong, read: Callable[[int], Record]) -> str:
  try:
    name = escape(f'{image.truth} taken for {image.prediction}', quote=True)
    picture = f'<img src="data:image/jpeg;base64,{_thumbnail(read(image.number))}" alt="{name}">'
    if os.path.isfile(image.file):
      picture = f'<a href="{escape(pathlib.Path(image.file).absolute().as_uri(), quote=True)}">{picture}</a>'
  except (UserError, OSError):  # it was there a moment ago
    picture = '<p>It can no longer be read.</p>'
  return (
    f'<figure>\n{picture}\n<figcaption>{_name(image.truth)} ({image.truth_probability:.1%})<br>taken for '
    f'<b>{_name(image.prediction)}</b> ({image.probability:.1%})<br><small>{_name(image.file)}</small></figcaption>\n'
    '</figure>\n'
  )


def _name(text: str) -> str:
  """A name as HTML; one with characters that turn the direction of writing turns no other text."""
  return f'<bdi>{escape(text)}</bdi>'


def _thumbnail(record: Record) -> str:
  """A JPEG in base64; a small image is enlarged, its pixels squares."""
  pixels = Picture(record.image, 3, record.name).pixels((_SIDE, _SIDE))
  picture = Image.fromarray(np.ascontiguousarray(pixels))
  picture.thumbnail((_SIDE, _SIDE))
  times = max(1, _SIDE // max(picture.size))
  if times > 1:
    picture = picture.resize((times * picture.width, times * picture.height), Image.Resampling.NEAREST)
  content = io.BytesIO()
  picture.save(content, 'JPEG', quality=85)
  return base64.b64encode(content.getvalue()).decode()


def _encoded(text: str) -> bytes:
  """UTF-8; a file's name may have bytes that are not."""
  return text.encode('utf-8', 'backslashreplace')
