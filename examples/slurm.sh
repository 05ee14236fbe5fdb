#!/bin/bash
#SBATCH --job-name=ckptkit
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --requeue
#SBATCH --open-mode=append
#
# sbatch examples/slurm.sh RUN_ROOT, where RUN_ROOT is seen by all nodes: a shared folder or an s3:// URL.
#
# One task is one rank. The ranks find each other through a scheduler process on the first node, not through msrun.
# What SLURM sees: 0 when training is complete, also if it was complete before; otherwise the exit code of the rank
# that failed first (137: killed, 143: terminated). Then all ranks are ended, the job is put in the queue once more
# (at most $MAX_RESTARTS times), and the next start goes on from the newest checkpoint.

script=${SCRIPT:-$PWD/examples/train_ranks.py} # not from $0: SLURM runs a copy of this file
node=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
MS_SCHED_HOST=$(getent ahostsv4 "$node" | awk 'NR == 1 {print $1}')
MS_SCHED_PORT=$((20000 + SLURM_JOB_ID % 10000))
MS_WORKER_NUM=$SLURM_NTASKS
export MS_SCHED_HOST MS_SCHED_PORT MS_WORKER_NUM

MS_ROLE=MS_SCHED python "$script" "$@" &
scheduler=$!
# shellcheck disable=SC2016 # each task expands its own number
srun --kill-on-bad-exit=1 bash -c 'MS_ROLE=MS_WORKER MS_NODE_ID=$SLURM_PROCID exec python "$@"' rank "$script" "$@"
code=$?
# After a failure it would wait half a minute for ranks that will not come back.
[ "$code" -eq 0 ] || kill "$scheduler" 2>/dev/null
wait "$scheduler"

if [ "$code" -ne 0 ] && [ "${SLURM_RESTART_COUNT:-0}" -lt "${MAX_RESTARTS:-10}" ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
