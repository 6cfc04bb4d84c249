"""Which slots? Decides from counters and windows; touches no payload, never opens, maps, waits or copies (floor F4)."""
