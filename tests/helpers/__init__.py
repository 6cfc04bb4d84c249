"""What tests share: child processes, the import path, oracles."""
