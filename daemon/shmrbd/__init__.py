"""shmrbd, the daemon that owns replay buffers; floor F6, imports F0 to F3 and never torch.

It creates, adopts, lists and drops buffers, and repairs what dead clients left. It is never on the
data path: kill it, and whoever is attached goes on.
"""

# Exit codes; `shmrb serve` ends with the same ones, and its help lists them.
EXIT_STOPPED = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_TAKEN = 4
