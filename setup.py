from setuptools import setup

setup()  # for tools that ask for this file: pyproject.toml says everything
