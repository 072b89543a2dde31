#!/bin/sh
# The entry of the image: `broker`, `namesrv`, `health [namesrv]`, or any other command of `ropewalk`.
#
# A broker is configured by ROPEWALK_… variables (docs/operate/configuration.md), by a file (`broker -c FILE`), or both.
#
#   ROPEWALK_BROKER_IP1     the address that clients and slaves are told to connect to: a host name or address by which
#                           they reach this container. Without it, the container's own address.
#   ROPEWALK_NAMESRV_ADDR   HOST:PORT of the name servers. Without it the broker brings its own.
set -eu

command=${1:-broker}
[ $# -eq 0 ] || shift

case $command in
broker)
    # In a container the loopback interface reaches nobody, and only the volume outlives it.
    export ROPEWALK_BIND_ADDRESS="${ROPEWALK_BIND_ADDRESS:-0.0.0.0}"
    export ROPEWALK_STORE_PATH_ROOT_DIR="${ROPEWALK_STORE_PATH_ROOT_DIR:-/data}"
    exec ropewalk broker "$@"
    ;;
namesrv)
    exec ropewalk namesrv --host 0.0.0.0 "$@"
    ;;
health)
    # A broker that takes no messages is not healthy, and says why; a name server is when it accepts a connection.
    exec python3 - "${1:-broker}" <<'PYTHON'
import os
import socket
import sys
import urllib.error
import urllib.request

if sys.argv[1] == "namesrv":
    try:
        socket.create_connection(("127.0.0.1", int(os.environ.get("ROPEWALK_NAMESRV_PORT") or 9876)), 3).close()
    except OSError as exc:
        sys.exit(f"the name server does not answer: {exc}")
    sys.exit()
port = os.environ.get("ROPEWALK_METRICS_PROM_EXPORTER_PORT") or "5557"
try:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=3) as page:
        print(page.read().decode().strip())
except urllib.error.HTTPError as exc:
    sys.exit(exc.read().decode().strip())
except OSError as exc:
    sys.exit(f"the broker does not answer: {exc}")
PYTHON
    ;;
*)
    exec ropewalk "$command" "$@"
    ;;
esac
