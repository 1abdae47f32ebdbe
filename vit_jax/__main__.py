"""`python -m vit_jax`: lists the commands, or runs one."""

from vit_jax import cli

if __name__ == '__main__':
  cli.main()
