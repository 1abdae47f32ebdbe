#!/usr/bin/env bash
# The job that launch/slurm.sh submits: slurm_job.sh VENV COMMAND…, in the repository.

# Slurm runs a copy of this file from elsewhere; the job's folder is the repository.
# shellcheck source=launch/common.sh
source launch/common.sh

readonly MOST_RESTARTS=100

if [[ -f $1/bin/activate ]]; then
  # shellcheck disable=SC1091
  source "$1/bin/activate"
fi
shift

# Every task sees all GPUs of its node: JAX takes the one with its number on that node. A task that ends
# must not have the others killed, which may be saving; those get some minutes.
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
