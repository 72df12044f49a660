"""What processes of this machine listen on, as the kernel tells it."""

from pathlib import Path

LISTENING = "0A"


def sockets_of(pids: set[int]) -> set[str]:
    found = set()
    for pid in pids:
        for descriptor in Path(f"/proc/{pid}/fd").glob("*"):
            try:
                target = descriptor.readlink().name
            except OSError:
                continue
            if target.startswith("socket:["):
                found.add(target[8:-1])
    return found


def listening_hosts(pids: set[int]) -> set[str]:
    """The local addresses, as the kernel writes them, that these processes listen on."""
    mine, hosts = sockets_of(pids), set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTENING and fields[9] in mine:
                hosts.add(fields[1].split(":")[0])
    return hosts
