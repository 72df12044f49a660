"""An `exchange.chosen` event in words: which schedule sums which buckets, and the costs that it was chosen by."""

from typing import Any

IN_PLACE = "in_place"


def exchange_text(data: dict[str, Any], generation: int) -> str:
    """The part of `describe` about the exchange."""
    lines = [f"\nexchange (algorithm {data['algorithm']}, since generation {generation})"]
    lines += [f"  {way_text(way)}" for way in data["ways"]]
    return "\n".join([*lines, *_costs(data.get("costs"))])


def way_text(way: dict[str, Any]) -> str:
    """`25.0 MB × 3 buckets: ring`."""
    name = "in place (shared memory)" if way["schedule"] == IN_PLACE else way["schedule"]
    least, most = size_text(way["least_bytes"]), size_text(way["most_bytes"])
    sizes = most if least == most else f"{least} to {most}"
    buckets = "1 bucket" if way["buckets"] == 1 else f"{way['buckets']} buckets"
    return f"{sizes} × {buckets}: {name}"


def size_text(nbytes: float) -> str:
    """Bytes in their biggest unit, of 1000."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if nbytes >= size:
            return f"{nbytes / size:.1f} {unit}"
    return f"{nbytes:.0f} B"


def _costs(costs: dict[str, Any] | None) -> list[str]:
    if costs is None:
        return []
    links = [("between nodes", costs.get("between_nodes")), ("inside a node", costs["inside"])]
    told = [f"{where} {_link(link)}" for where, link in links if link is not None]
    if len(told) == 1:
        told = [_link(costs["inside"])]
    adds = costs["add_bytes_per_s"]
    told += [f"adds {size_text(adds)}/s"] if adds is not None else []
    return [f"  measured: {'; '.join(told)}"]


def _link(link: dict[str, Any]) -> str:
    speed = link["bytes_per_s"]
    latency = f"{link['latency_s'] * 1e3:.3g} ms a message"
    return latency if speed is None else f"{latency}, {size_text(speed)}/s"
