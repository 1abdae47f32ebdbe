#!/usr/bin/env bash
# A run on a GKE cluster that XPK made (`pip install xpk`).
#
#   launch/xpk.sh create NAME --cluster=C --type=v5litepod-256 --image=I [--slices=N] [--storage=S]
#                        [--max-restarts=100] [--grace-seconds=120] -- --config=… --workdir=gs://b/run
#   launch/xpk.sh list --cluster=C
#   launch/xpk.sh delete NAME --cluster=C
#
# The image must have vit_jax and its configs in its working directory. --storage names a bucket that was
# attached to the cluster (`xpk storage attach`). --project=P and --zone=Z are passed to xpk. --dry-run prints
# the command.
#
# XPK itself restarts after 42 and after 127 to 255 (a process that was killed); we add 75. After 1 and 2 the
# run is over.

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=launch/common.sh
source "$repository/launch/common.sh"

# Prints a command as XPK needs it. XPK puts the text into a script in YAML, as `(TEXT) &`; with `exec`,
# Python is the process to which XPK's trap sends SIGTERM. Kubernetes reads $$ as $, and $(NAME) as a variable
# of the container.
as_command() {
  local text
  text="exec $(quoted "$@")"
  [[ $text != *$'\n'* ]] || fail 'XPK cannot carry a line break in an argument; leave it out.'
  printf '%s' "${text//\$/\$\$}"
}

parse 'cluster= type= image= slices= storage= max-restarts= grace-seconds= project= zone=' "$@"
require cluster
flags=("--cluster=${option[cluster]}")
[[ -z ${option[project]:-} ]] || flags+=("--project=${option[project]}")
[[ -z ${option[zone]:-} ]] || flags+=("--zone=${option[zone]}")
[[ ${words[0]:-} == list || ${#words[@]} == 2 ]] \
  || fail 'Give what to do and the name of the workload; --help lists what there is.'

case ${words[0]} in
  create)
    require type image
    make_command
    flags+=("--workload=${words[1]}" "--tpu-type=${option[type]}" "--num-slices=${option[slices]:-1}")
    flags+=("--docker-image=${option[image]}" "--max-restarts=${option[max-restarts]:-100}")
    flags+=("--restart-on-exit-codes=$EXIT_RESTART")
    flags+=("--termination-grace-period-seconds=${option[grace-seconds]:-120}")
    [[ -z ${option[storage]:-} ]] || flags+=("--storage=${option[storage]}")
    text=$(as_command "${command[@]}")
    run xpk workload create "${flags[@]}" "--command=$text"
    ;;
  list) run xpk workload list "${flags[@]}" ;;
  delete) run xpk workload delete "--workload=${words[1]}" "${flags[@]}" ;;
  *) fail "${words[0]} is not something to do here; --help lists what there is." ;;
esac
