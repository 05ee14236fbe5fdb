#!/bin/sh
# examples/msrun.sh [RUN_ROOT]
#
# train_ranks.py on the RANKS ranks of one machine (2 unless set). What they print is in the folder LOGS. Ends with 0 when
# training is complete, otherwise with 1 after it has ended all ranks: start it again, and it goes on.

exec msrun --worker_num="${RANKS:-2}" --local_worker_num="${RANKS:-2}" --master_addr=127.0.0.1 --master_port="${PORT:-8118}" --log_dir="${LOGS:-runs/logs}" --join=True "$(dirname "$0")/train_ranks.py" "$@"
