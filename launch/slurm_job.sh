#!/usr/bin/env bash
# The job that launch/slurm.sh submits: slurm_job.sh VENV COMMAND…, in the repository.

# Slurm runs a copy of this file, from another folder; the job's working directory is the repository.
# shellcheck source=launch/common.sh
source launch/common.sh

readonly MOST_RESTARTS=100

if [[ -f $1/bin/activate ]]; then
  # shellcheck disable=SC1091
  source "$1/bin/activate"
fi
shift

# Every task sees all GPUs of its node; JAX takes the one with the task's number on that node. When a task
# ends, the others are not killed at once, because they may be saving: they get five minutes.
code=0
srun --cpus-per-task="$SLURM_CPUS_PER_TASK" --gpu-bind=none --kill-on-bad-exit=0 --wait=300 "$@" || code=$?

if [[ $code == "$EXIT_RESTART" ]]; then
  if ((${SLURM_RESTART_COUNT:-0} >= MOST_RESTARTS)); then
    fail "Stopped after $MOST_RESTARTS restarts; submit it again to go on."
  fi
  echo "Exit code $code: queued again."
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
