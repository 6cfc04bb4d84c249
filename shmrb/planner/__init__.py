"""Which slots? Decides from counters and windows, touches no payload (floor F4).

Never opens, maps, waits or copies.
"""
