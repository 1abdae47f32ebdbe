"""The description of the endpoints in OpenAPI 3.1."""

from typing import Any

from vit_jax.serve.photos import Limits

Json = dict[str, Any]
_TEXT, _NUMBER, _WHOLE = {'type': 'string'}, {'type': 'number'}, {'type': 'integer'}


def document(name: str, limits: Limits) -> Json:
  """What /openapi.json answers, of the service of a model."""
  errors = {
    '400': 'No photo, one that cannot be decoded, or something that this model does not give.',
    '408': f'The request has not arrived within {limits.seconds:g} seconds.',
    '413': f'More than {limits.bytes:,} bytes, or a photo of more than {limits.pixels:,} pixels.',
    '415': 'Neither a form nor JSON.',
    '429': 'Too many photos wait; Retry-After says how many seconds to wait.',
    '503': 'The model is being compiled, or the service stops.',
  }
  refused = {code: _answer('application/json', _object(error=_TEXT), text) for code, text in errors.items()}
  photos = {
    'required': True,
    'content': {
      'multipart/form-data': {'schema': {'type': 'object', 'description': 'Files under any names.'}},
      'application/json': {'schema': _object(images=_list({**_TEXT, 'contentEncoding': 'base64'}))},
    },
  }
  top = {'name': 'top', 'in': 'query', 'schema': {**_WHOLE, 'minimum': 1, 'default': 5}}

  def post(summary: str, kind: str, schema: Json, *parameters: Json) -> Json:
    answers = {'200': _answer(kind, schema), **refused}
    return {
      'post': {'summary': summary, 'parameters': [*parameters], 'requestBody': photos, 'responses': answers}
    }

  def get(summary: str, kind: str, schema: Json, **others: Json) -> Json:
    return {'get': {'summary': summary, 'responses': {'200': _answer(kind, schema), **others}}}

  prediction = {'class': _WHOLE, 'name': {'type': ['string', 'null']}, 'probability': _NUMBER}
  predicted = _list(_object(image=_TEXT, predictions=_list(_object(**prediction))))
  embedded = _list(_object(image=_TEXT, embedding=_list(_NUMBER)))
  health = _object(status=_TEXT, name=_TEXT, model=_TEXT, classes=_WHOLE, attention={'type': 'boolean'})
  not_ready = {'503': _answer('application/json', health, errors['503'])}
  paths = {
    '/predict': post('The most probable classes of photos.', 'application/json', predicted, top),
    '/embed': post('Vectors of photos: what the head reads.', 'application/json', embedded),
    '/attention': post('A photo, bright where the model looks.', 'image/png', {}),
    '/health': get('Whether photos are taken.', 'application/json', health, **not_ready),
    '/metrics': get('Counters for Prometheus.', 'text/plain', _TEXT),
    '/openapi.json': get('This description.', 'application/json', {'type': 'object'}),
    '/': get('A page to try the model.', 'text/html', _TEXT),
  }
  return {'openapi': '3.1.0', 'info': {'title': name, 'version': '1'}, 'paths': paths}


def _object(**properties: Json) -> Json:
  return {'type': 'object', 'properties': properties, 'required': list(properties)}


def _list(items: Json) -> Json:
  return {'type': 'array', 'items': items}


def _answer(kind: str, schema: Json, description: str = 'The answer.') -> Json:
  return {'description': description, 'content': {kind: {'schema': schema}}}
