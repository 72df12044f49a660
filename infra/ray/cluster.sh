#!/usr/bin/env bash
# Joins several machines to one Ray cluster, each process bound to its own private address, every call with a token.
#
#   cluster.sh token TOKEN_FILE                    write a random token that only you can read
#   cluster.sh head NODES TOKEN_FILE               run the head, in the foreground, until interrupted
#   cluster.sh join NODES TOKEN_FILE [ADDRESS]     run a node, in the foreground, until interrupted
#   cluster.sh status NODES TOKEN_FILE             show the nodes that have joined
#
# NODES: one "address cpus gpus" a line, the first is the head. ADDRESS: which line this machine is; found by the
# machine's own addresses when left out. Environment: RAY_PORT (6379), RAY_BIN (ray), OBJECT_STORE_BYTES (Ray's choice),
# RAY_TMPDIR (/tmp): where the private folder for Ray's files is made, rl-UID.
set -euo pipefail

die() { echo "cluster.sh: $*" >&2; exit 2; }

usage() { sed -n '2,12s/^# \{0,1\}//p' "$0"; exit 2; }

# Everything that is neither a comment nor empty: "address cpus gpus".
nodes() { grep -Ev '^[[:space:]]*(#|$)' "$1" || die "no nodes in $1"; }

head_address() { nodes "$1" | awk 'NR == 1 { print $1 }'; }

private() {
  case "$1" in
    127.0.0.1) die "Ray takes 127.0.0.1 for the machine's own address and would listen there: use 127.0.0.2 and so on" ;;
    127.* | 10.* | 192.168.* | 169.254.* | 172.1[6-9].* | 172.2[0-9].* | 172.3[01].* | 100.6[4-9].*) ;;
    *) die "$1 is neither private nor loopback: Ray must not listen on a public address" ;;
  esac
}

# The line of NODES that is this machine.
own_address() {
  local known address
  known=" $(hostname -I 2>/dev/null || true) "
  for address in $(nodes "$1" | awk '{ print $1 }'); do
    case "$known" in *" $address "*) echo "$address"; return ;; esac
  done
  die "none of this machine's addresses is in $1; give it as the last argument"
}

share() { nodes "$1" | awk -v a="$2" -v column="$3" '$1 == a { print $column; exit }'; }

# Ray turns authentication on by itself in some starts and not in others: say it in every one.
authenticate() {
  [ -s "$1" ] || die "$1 is missing or empty: run 'cluster.sh token $1' once, and copy it to every machine"
  [ -z "$(find "$1" -perm /077)" ] || die "others can read $1: chmod 600 $1"
  export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH
  RAY_AUTH_TOKEN_PATH="$(realpath "$1")"
}

# What workers import is there before they are: see ringleader/runtime/preload.py. Each node has Ringleader, or no job runs there.
export RAY_START_HOOK="${RAY_START_HOOK:-ringleader.runtime.preload.on_ray_start}"

# Ray opens its folder, and those in it, to every account of the machine: who can remove a file there can put a link in
# its place, through which Ray writes. So it gets a folder inside one that nobody else can enter.
private_folder() {
  local folder
  folder="${RAY_TMPDIR:-/tmp}/rl-$(id -u)"
  mkdir -p -m 700 "$folder" 2>/dev/null || true
  [ -d "$folder" ] && [ ! -L "$folder" ] && [ -O "$folder" ] \
    || die "$folder is no folder of yours, and Ray's files are not safe there: set RAY_TMPDIR to a folder that is"
  chmod 700 "$folder"
  echo "$folder"
}

# In the foreground: whoever starts this (a terminal, tmux, systemd) ends it, and nothing else of Ray's on the machine.
start() {
  local nodes_file="$1" address="$2" folder
  shift 2
  private "$address"
  [ -n "$(share "$nodes_file" "$address" 2)" ] || die "$address is not in $nodes_file"
  folder="$(private_folder)"
  exec "${RAY_BIN:-ray}" start --block --disable-usage-stats --node-ip-address="$address" --temp-dir="$folder/ray" \
    --num-cpus="$(share "$nodes_file" "$address" 2)" --num-gpus="$(share "$nodes_file" "$address" 3)" \
    ${OBJECT_STORE_BYTES:+--object-store-memory="$OBJECT_STORE_BYTES"} "$@"
}

make_token() {
  [ ! -e "$1" ] || die "$1 exists already; remove it to make a new token"
  (umask 077 && od -An -N32 -tx1 /dev/urandom | tr -d ' \n' > "$1")
  echo "wrote $1; copy it to every machine over a channel you trust"
}

port="${RAY_PORT:-6379}"
case "${1:-}" in
  token)
    [ $# -eq 2 ] || usage
    make_token "$2"
    ;;
  head)
    [ $# -eq 3 ] || usage
    authenticate "$3"
    start "$2" "$(head_address "$2")" --head --port="$port" --include-dashboard=false
    ;;
  join)
    [ $# -eq 3 ] || [ $# -eq 4 ] || usage
    authenticate "$3"
    start "$2" "${4:-$(own_address "$2")}" --address="$(head_address "$2"):$port"
    ;;
  status)
    [ $# -eq 3 ] || usage
    authenticate "$3"
    exec "${RAY_BIN:-ray}" status --address="$(head_address "$2"):$port"
    ;;
  *) usage ;;
esac
