#!/usr/bin/env bash
# A run on the GPUs of a Slurm cluster, with one process per GPU.
#
#   launch/slurm.sh --nodes=4 --gpus=8 [--cpus=8] [--time=24:00:00] [--partition=P] [--account=A] [--name=N]
#                   [--venv=.venv] [--signal-seconds=300] -- --config=… --workdir=/shared/run
#
# --gpus is the number per node, --cpus per process. Slurm sends SIGTERM --signal-seconds before the time is
# up; the run saves, ends with exit code 75 and is queued again. Output: runs/slurm-JOB.out. --dry-run prints
# the command.

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=launch/common.sh
source "$repository/launch/common.sh"

parse 'nodes= gpus= cpus= time= partition= account= name= venv= signal-seconds=' "$@"
((${#words[@]} == 0)) || fail "${words[0]} is not an option; what is to run goes after --."
require nodes gpus
make_command
venv=${option[venv]:-.venv}
# Without the one that is named, the job would run whatever Python it finds. The job's folder is the repository.
[[ -z ${option[venv]:-} || -f $(cd "$repository" && realpath -m "$venv")/bin/activate ]] \
  || fail "--venv=$venv has no bin/activate; name a virtual environment that all nodes see."

flags=("--nodes=${option[nodes]}" "--ntasks-per-node=${option[gpus]}" "--gpus-per-node=${option[gpus]}")
flags+=("--cpus-per-task=${option[cpus]:-8}" "--time=${option[time]:-24:00:00}")
flags+=("--job-name=${option[name]:-vit_jax}" "--signal=TERM@${option[signal-seconds]:-300}")
flags+=(--requeue --open-mode=append "--chdir=$repository" --output=runs/slurm-%j.out)
[[ -z ${option[partition]:-} ]] || flags+=("--partition=${option[partition]}")
[[ -z ${option[account]:-} ]] || flags+=("--account=${option[account]}")
run mkdir -p "$repository/runs"
run sbatch "${flags[@]}" "$repository/launch/slurm_job.sh" "$venv" "${command[@]}"
