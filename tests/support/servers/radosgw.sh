#!/usr/bin/env bash
# Ceph's S3 server on one machine: one monitor, one object store in a file, one gateway, all on loopback.
#
#   radosgw.sh install                     Debian's packages (64 MB, 286 MB installed); as root
#   radosgw.sh start DIR PORT MON_PORT     in a new folder, as any user; returns when it answers
#   radosgw.sh stop DIR                    returns when every process is gone; the folder stays
#
# Key and secret are "testing". Bucket names work as BUCKET.localhost too. The store is a sparse file: it takes up to
# BLOCK_BYTES, and what is overwritten or deleted is given back within about GC_SECONDS.
set -Eeuo pipefail # -E: the trap is for what functions call, too

PACKAGES=(radosgw ceph-mon ceph-osd ceph-mgr ceph-common)
BLOCK_BYTES=$((64 << 30)) # a full store hangs every later write without a word
GC_SECONDS=10

install() {
  apt-get update
  DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends "${PACKAGES[@]}"
}

write_config() { # DIR PORT MON_PORT FSID
  cat >"$1/ceph.conf" <<CONF
[global]
fsid = $4
mon host = v2:127.0.0.1:$3
mon initial members = a
ms bind msgr1 = false
public addr = 127.0.0.1
cluster addr = 127.0.0.1
auth cluster required = cephx
auth service required = cephx
auth client required = cephx
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 4
osd pool default pg autoscale mode = off
osd crush chooseleaf type = 0
mon allow pool size one = true
mon warn on pool no redundancy = false
mon max pg per osd = 2000
mon data avail crit = 1
run dir = $1/run
admin socket = $1/run/\$name.asok
log file = $1/log/\$name.log
pid file = $1/run/\$name.pid
keyring = $1/keyring
debug ms = 0
[mon]
mon data = $1/mon
mon cluster log file = $1/log/cluster.log
[osd]
keyring = $1/osd/keyring
osd data = $1/osd
osd objectstore = bluestore
bluestore block size = $BLOCK_BYTES
bluestore block wal size = 0
bluestore block db size = 0
bluestore block create = true
osd memory target = 1500000000
osd class load list = *
osd class default list = *
[client.rgw]
keyring = $1/rgw/keyring
rgw data = $1/rgw
rgw frontends = beast endpoint=127.0.0.1:$2
rgw dns name = localhost
rgw thread pool size = 64
rgw gc obj min wait = 0
rgw gc processor period = $GC_SECONDS
CONF
}

start_monitor() { # DIR MON_PORT FSID
  ceph-authtool --create-keyring "$1/keyring" --gen-key -n mon. --cap mon 'allow *'
  ceph-authtool "$1/keyring" --gen-key -n client.admin --cap mon 'allow *' --cap osd 'allow *' --cap mgr 'allow *'
  monmaptool --create --clobber --fsid "$3" --addv a "[v2:127.0.0.1:$2]" "$1/monmap"
  ceph-mon --mkfs -i a --monmap "$1/monmap" --keyring "$1/keyring"
  ceph-mon -i a
}

start_store() { # DIR
  local uuid secret
  uuid=$(</proc/sys/kernel/random/uuid)
  secret=$(ceph-authtool --gen-print-key)
  echo "{\"cephx_secret\": \"$secret\"}" | timeout 60 ceph osd new "$uuid" 0 -i -
  ceph-authtool --create-keyring "$1/osd/keyring" --name osd.0 --add-key "$secret"
  ceph-osd -i 0 --mkfs --osd-uuid "$uuid"
  ceph-osd -i 0
  timeout 60 ceph osd crush add osd.0 1.0 root=default host=localhost
}

start_gateway() { # DIR PORT
  timeout 60 ceph auth get-or-create client.rgw osd 'allow rwx' mon 'allow rw' -o "$1/rgw/keyring"
  radosgw -n client.rgw
  curl --silent --output /dev/null --retry 100 --retry-connrefused --retry-delay 1 --retry-max-time 100 \
    "http://127.0.0.1:$2/"
  timeout 60 radosgw-admin user create --uid=testing --display-name=testing --access-key=testing --secret=testing
}

start() { # DIR PORT MON_PORT
  mkdir -p "$1"/{mon,osd,rgw,run,log}
  local fsid
  fsid=$(</proc/sys/kernel/random/uuid)
  write_config "$1" "$2" "$3" "$fsid"
  export CEPH_CONF=$1/ceph.conf
  # What does not start is stopped again, and says why.
  exec 3>&2
  trap 'stop "$1"; tail -n 20 "$1/log/start.log" >&3' ERR
  {
    start_monitor "$1" "$3" "$fsid"
    start_store "$1"
    start_gateway "$1" "$2"
  } >"$1/log/start.log" 2>&1
}

stop() { # DIR
  local file pid
  for file in "$1"/run/client.rgw.pid "$1"/run/osd.0.pid "$1"/run/mon.a.pid; do
    [[ -s $file ]] || continue
    pid=$(<"$file")
    kill "$pid" 2>/dev/null || true
    timeout 30 tail --pid="$pid" -f /dev/null || kill -KILL "$pid"
  done
}

case ${1-} in
  install) install ;;
  start) start "$(realpath -m "${2:?folder}")" "${3:?port}" "${4:?port of the monitor}" ;;
  stop) stop "$(realpath -m "${2:?folder}")" ;;
  *)
    sed -n '2,6p' "$0" >&2
    exit 2
    ;;
esac
