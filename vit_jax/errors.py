"""The errors that a person can cause, each one sentence, and the exit codes they end in."""

EXIT_USER_ERROR = 2  # a wrong config or input: starting again without a change cannot help
EXIT_RESTART = 75  # stopped after a save (preemption): the same command goes on (sysexits' EX_TEMPFAIL)


class UserError(Exception):
  """A wrong config or input. Its text is one sentence: what is wrong, where, and what to do."""


class Preempted(Exception):
  """The run was asked to stop, and saved. Starting the same command again continues it."""
