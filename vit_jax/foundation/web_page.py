"""The frame of an HTML page that a browser opens by itself: no scripts, and nothing loaded from elsewhere."""

from collections.abc import Mapping
from html import escape

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #222; background: #fff; margin: 0 auto; padding: 1rem;
  max-width: 64rem; overflow-wrap: break-word; }
h1 { font-size: 1.6rem; line-height: 1.2; margin: 0.5rem 0; }
h2 { font-size: 1.3rem; border-top: 1px solid #ccc; padding-top: 1rem; margin: 2.5rem 0 0.5rem; }
h3 { font-size: 1.05rem; margin: 1.5rem 0 0.25rem; }
a { color: #0b57a4; }
figure { margin: 0 0 1.5rem; }
figcaption { color: #444; font-size: 0.95rem; max-width: 46rem; }
img { display: block; max-width: 100%; height: auto; margin: 0.25rem 0; }
table { border-collapse: collapse; }
td, th { padding: 0.1rem 1rem 0.1rem 0; text-align: left; vertical-align: top; }
td.number { text-align: right; font-variant-numeric: tabular-nums; }
nav, div { display: flex; flex-wrap: wrap; gap: 0.5rem 1.5rem; align-items: flex-start; }
"""


def document(title: str, body: str, style: str = '') -> str:
  """A page with a plain-text title, an HTML body and further rules of CSS."""
  return (
    '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
    '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
    f'<title>{escape(title)}</title>\n<style>{_STYLE}{style}</style>\n</head>\n<body>\n{body}</body>\n</html>\n'
  )


def table(rows: Mapping[str, str]) -> str:
  """A table of names and values, both plain text."""
  cells = ''.join(
    f'<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>\n' for name, value in rows.items()
  )
  return f'<table>\n{cells}</table>\n'
