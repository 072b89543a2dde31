import os
import socket
import subprocess
import sys

from tools.drill.testbed.peers import encode_address, holder, socket_inode, who_connected

TABLE = """  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:9C40 0200007F:1F90 01 00000000:00000000 00:00000000 00000000     0        0 4242 1 0 100 0 0 10 0
   1: 0200007F:1F90 0100007F:9C40 01 00000000:00000000 00:00000000 00000000     0        0 4243 1 0 100 0 0 10 0
"""


def test_a_socket_is_found_by_both_its_ends() -> None:
    assert encode_address("127.0.0.1", 40000) == "0100007F:9C40"
    assert socket_inode("127.0.0.1", 40000, "127.0.0.2", 8080, TABLE) == 4242
    assert socket_inode("127.0.0.2", 8080, "127.0.0.1", 40000, TABLE) == 4243
    assert socket_inode("127.0.0.1", 40000, "127.0.0.3", 8080, TABLE) is None


def test_the_process_at_the_other_end_is_told_from_this_one() -> None:
    program = (
        "import socket, sys; s = socket.create_connection(('127.0.0.1', int(sys.argv[1]))); sys.stdin.read()"
    )
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.settimeout(20)
        child = subprocess.Popen(
            [sys.executable, "-c", program, str(listener.getsockname()[1])], stdin=subprocess.PIPE
        )
        try:
            accepted, source = listener.accept()
            with accepted:
                assert who_connected(source, accepted.getsockname(), [os.getpid(), child.pid]) == child.pid
                assert who_connected(source, accepted.getsockname(), [os.getpid()]) is None
        finally:
            child.communicate()
    assert holder(4_000_000_000, [os.getpid(), 2**22 + 1]) is None
