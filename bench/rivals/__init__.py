"""One small adaptor a contender. Nothing here imports shmrb except `ours`.

An adaptor module has LABEL, DISTRIBUTIONS (whose versions are reported), OPTIONS (each option it
chose, and why), a class `Rival` with

    Rival(fields, capacity, batch, variant)   makes the buffer
    extend(rows) / add(row) / sample() ...    each returns the call to time, no arguments left
    close()

and, for questions with several processes, `Rival.share()` (what a spawned writer gets) and a
function `writer(shared, variant, rows)` that returns the call to repeat in the writer's process.
Only what the questions ask of it has to be there. A call that needs an untimed clean-up comes as
a pair (call, clean-up of its result). FILL_AT_MOST caps the records it is filled with beforehand,
`stored_bytes()` says what it holds outside of its process.
"""
