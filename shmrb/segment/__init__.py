"""Where the bytes of a buffer lie; floor F3. `FORMAT.md` beside this file is the contract."""
