"""The assignment of parameters to servers."""

from collections.abc import Collection, Sequence

from torch.nn import Parameter


def share_out(parameters: Sequence[Parameter], servers: int, later: Collection[int] = ()) -> tuple[int, ...]:
    """The server of each parameter, counted among the servers; all 0 where there is none or one.

    Whole parameters, so that every optimiser that treats them one by one makes the bits it makes in one process:
    the largest first, each to the server that has the fewest bytes so far.

    Args:
        later: the numbers of parameters that are not trained at first, maybe never: shared out among themselves, so
            that the others are even.
    """
    owners = [0] * len(parameters)
    for numbers in ([n for n in range(len(parameters)) if n not in later], later):
        loads = [0] * max(1, servers)
        # The number breaks ties: all members have to come to the same answer.
        for number in sorted(numbers, key=lambda n: (-parameters[n].nbytes, n)):
            least = loads.index(min(loads))
            owners[number] = least
            loads[least] += parameters[number].nbytes
    return tuple(owners)
