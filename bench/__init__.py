"""The bench: one question a file, ours and the peers side by side: `python -m bench`."""
