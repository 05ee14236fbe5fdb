#!/bin/sh
exec msrun --worker_num="${RANKS:-2}" --local_worker_num="${RANKS:-2}" --master_addr=127.0.0.1 --master_port="${PORT:-8118}" --log_dir="${LOGS:-runs/logs}" --join=True "$(dirname "$0")/train_ranks.py" "$@"
