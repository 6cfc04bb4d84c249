"""What is asked of TorchRL, and then of us: scripts of calls on small buffers. Plain data.

A record made from a number u is {"x": u, ("n", "w"): [u, u + 0.5]}, int64 and float32. A step is
[call, keyword arguments]; `at` is an index as [kind, value], since JSON has neither tuples, slices
nor tensors.
"""

from __future__ import annotations

from typing import Any

Step = list[Any]


def step(call: str, **arguments: Any) -> Step:
    return [call, arguments]


def extend(*numbers: int) -> Step:
    return step("extend", numbers=list(numbers))


def upto(start: int, stop: int) -> Step:
    return extend(*range(start, stop))


def _update(**arguments: Any) -> Step:
    return step("update_if_present", **arguments)


GENERATION_QUERIES = [
    step("generations_of", at=at)
    for at in (
        ["int", 0],
        ["int", 5],
        ["int", -1],
        ["int", 99],
        ["list", [0, 2, 2, 7]],
        ["list", [-1, 8, 1 << 40]],
        ["list", []],
        ["tensor", [1, 3]],
        ["int32", [1, 3]],
        ["tensor", [[0, 1], [6, 7]]],
        ["tensor", []],
        ["tuple", [[0, 1, 7]]],
    )
]

# Name, capacity, steps. Every step is followed by a look at the whole buffer.
RING: list[tuple[str, int, list[Step]]] = [
    ("a first extend", 8, [upto(0, 3)]),
    ("extends that wrap", 8, [upto(0, 5), upto(5, 10), upto(10, 15), upto(15, 23)]),
    ("more than the ring holds", 8, [upto(0, 20)]),
    ("more than twice the ring", 4, [upto(0, 10)]),
    ("more than the ring, from the middle", 8, [upto(0, 3), upto(3, 14), upto(14, 16)]),
    ("one by one", 3, [step("add", number=u) for u in range(7)]),
    ("a ring of one slot", 1, [upto(0, 2), step("add", number=2), upto(3, 7)]),
    ("add and extend mixed", 4, [upto(0, 2), step("add", number=2), upto(3, 6)]),
    ("a list of records", 8, [step("extend_list", numbers=[4, 5, 6])]),
    ("nothing to write", 8, [upto(0, 2), extend()]),
    ("emptied and filled again", 4, [upto(0, 4), step("empty"), upto(4, 7), step("empty")]),
    ("emptied while partly full", 8, [upto(0, 3), step("empty"), upto(3, 5)]),
    ("emptied twice", 4, [upto(0, 3), step("empty"), step("empty"), upto(3, 6)]),
    (
        "emptied, the count of writes kept",
        4,
        [upto(0, 6), step("empty", empty_write_count=False), upto(6, 8), upto(8, 12)],
    ),
    ("never written", 4, [step("empty")]),
    ("stamps of any index", 8, [upto(0, 11), *GENERATION_QUERIES]),
    ("stamps before the first write", 8, GENERATION_QUERIES[:6]),
]

SETTERS: list[tuple[str, int, list[Step]]] = [
    ("one record", 4, [upto(0, 3), step("setitem", at=["int", 1], numbers=[50])]),
    ("some records", 4, [upto(0, 6), step("setitem", at=["tensor", [3, 0]], numbers=[50, 51])]),
    ("a slice", 4, [upto(0, 4), step("setitem", at=["slice", [1, 3, None]], numbers=[50, 51])]),
    (
        "a stepping slice",
        6,
        [upto(0, 6), step("setitem", at=["slice", [0, None, 2]], numbers=[50, 51, 52])],
    ),
    (
        "all of a full ring",
        3,
        [upto(0, 5), step("setitem", at=["slice", [None, None, None]], numbers=[7, 8, 9])],
    ),
    (
        "a field of some",
        4,
        [upto(0, 4), step("set_at_", key="x", values=[90, 91], at=["tensor", [2, 0]])],
    ),
    (
        "a nested field of some",
        4,
        [upto(0, 4), step("set_at_", key=["n", "w"], values=[[9.0, 8.0]], at=["tensor", [1]])],
    ),
    ("a field of all", 4, [upto(0, 4), step("set_", key="x", values=[5, 6, 7, 8])]),
    ("a field of a partly full ring", 8, [upto(0, 3), step("set_", key="x", values=[5, 6, 7])]),
    ("an unknown field", 4, [upto(0, 4), step("set_", key="y", values=[5, 6, 7, 8])]),
    (
        "an unknown field of some",
        4,
        [upto(0, 4), step("set_at_", key="y", values=[5], at=["tensor", [0]])],
    ),
    ("update with fields", 4, [upto(0, 4), step("update_", fields={"x": [1, 1, 2, 2]})]),
    (
        "update, keys chosen",
        4,
        [
            upto(0, 4),
            step(
                "update_",
                fields={"x": [1, 1, 2, 2], "n": {"w": [[0.0, 0.0]] * 4}},
                keys_to_update=["x"],
            ),
        ],
    ),
    ("write all of a full ring", 3, [upto(0, 4), step("write_all", numbers=[7, 8, 9])]),
    ("write all of a partly full ring", 8, [upto(0, 5), step("write_all", numbers=[7, 8, 9])]),
    ("write the first two", 4, [upto(0, 4), step("write_all", numbers=[7, 8], end=2)]),
    (
        "read in order",
        4,
        [upto(0, 6), step("read_all_in_order"), step("read_all_in_order", end=2)],
    ),
    ("read in order, partly full", 8, [upto(0, 3), step("read_all_in_order")]),
    (
        "read by any index",
        4,
        [
            upto(0, 6),
            *(
                step("getitem", at=at)
                for at in (
                    ["int", 2],
                    ["tensor", [3, 3, 0]],
                    ["numpy", [1, 2]],
                    ["list", [0]],
                    ["slice", [1, None, None]],
                    ["slice", [None, None, 2]],
                    ["slice", [None, None, -1]],
                    ["mask", [True, False, False, True]],
                    ["key", "x"],
                    ["key", ["n", "w"]],
                    ["key", "n"],
                )
            ),
        ],
    ),
    (
        "read what is not there",
        8,
        [
            upto(0, 3),
            *(
                step("getitem", at=at)
                for at in (["int", 3], ["tensor", [0, 5]], ["int", 99], ["key", "y"])
            ),
        ],
    ),
]

BATCH_SIZES: list[tuple[str, int | None, list[Step]]] = [
    (
        "none anywhere",
        None,
        [upto(0, 6), step("sample"), step("iterate"), step("sample", batch_size=3)],
    ),
    ("given when made", 4, [upto(0, 6), step("sample"), step("sample", batch_size=4)]),
    (
        "another one in the call warns once",
        4,
        [upto(0, 6), step("sample", batch_size=3), step("sample", batch_size=2), step("sample")],
    ),
    ("from an empty buffer", 4, [step("sample")]),
    ("emptied", 4, [upto(0, 6), step("empty"), step("sample")]),
    ("more than there are", 4, [upto(0, 2), step("sample", batch_size=9)]),
]

# Name, drop_last, shuffle, batch size, steps.
PASSES: list[tuple[str, bool, bool, int, list[Step]]] = [
    ("ten by four", False, True, 4, [upto(0, 10), *[step("sample")] * 5]),
    ("ten by four, the short one dropped", True, True, 4, [upto(0, 10), *[step("sample")] * 5]),
    ("ten by four in order", False, False, 4, [upto(0, 10), *[step("sample")] * 4]),
    (
        "ten by four in order, the short one dropped",
        True,
        False,
        4,
        [upto(0, 10), *[step("sample")] * 3],
    ),
    ("ten by five in order", False, False, 5, [upto(0, 10), *[step("sample")] * 3]),
    ("fewer than a batch", False, False, 4, [upto(0, 2), *[step("sample")] * 2]),
    ("fewer than a batch, dropped", True, False, 4, [upto(0, 2), step("sample")]),
    ("iterated", False, True, 4, [upto(0, 10), step("iterate"), step("iterate")]),
    (
        "iterated, the short one dropped",
        True,
        True,
        4,
        [upto(0, 10), step("iterate"), step("iterate")],
    ),
    (
        "iterated from the middle of a pass",
        False,
        False,
        4,
        [upto(0, 10), step("sample"), step("iterate")],
    ),
    ("next", False, True, 4, [upto(0, 10), *[step("next")] * 6]),
    (
        "next after a pass of samples",
        False,
        False,
        5,
        [upto(0, 10), *[step("sample")] * 2, *[step("next")] * 3],
    ),
    (
        "grown in the middle",
        False,
        False,
        4,
        [upto(0, 10), step("sample"), extend(10), *[step("sample")] * 3],
    ),
    (
        "overwritten in the middle",
        False,
        False,
        6,
        [upto(0, 16), step("sample"), upto(16, 18), *[step("sample")] * 3],
    ),
    (
        "emptied in the middle",
        False,
        False,
        4,
        [upto(0, 10), step("sample"), step("empty"), upto(0, 10), step("sample")],
    ),
    (
        "batch sizes of the calls",
        False,
        False,
        4,
        [upto(0, 10), *(step("sample", batch_size=n) for n in (3, 3, 4, 9, 2))],
    ),
]

# Buffers of capacity 8 with 12 records written: slots 0 to 3 are at generation 1, the others at 0.
# The field `ver` starts at 0 everywhere.
UPDATES: list[tuple[str, list[Step]]] = [
    (
        "current and stale",
        [_update(index=[0, 1, 4, 7], generation=[1, 0, 0, 5], patch={"x": [70, 71, 72, 73]})],
    ),
    (
        "no usable stamp",
        [_update(index=[-1, 8, 99, 2], generation=[-1, -1, 0, -1], patch={"x": [1, 2, 3, 4]})],
    ),
    ("nothing", [_update(index=[], generation=[], patch={"x": []})]),
    ("an empty patch", [_update(index=[0, 1], generation=[1, 0], patch={})]),
    ("a slot twice", [_update(index=[4, 4, 4], generation=[0, 0, 0], patch={"x": [1, 2, 3]})]),
    ("a nested field", [_update(index=[5], generation=[0], patch={"n": {"w": [[1.0, 2.0]]}})]),
    ("a handle used again", [_update(index=[5], generation=[0], patch={"x": [u]}) for u in (1, 2)]),
    (
        # Two batches that were drawn before, and came back after their records went one by one.
        "two batches in flight",
        [
            extend(12, 13),
            _update(index=[0, 2, 4, 6], generation=[1, 1, 0, 0], patch={"x": [100, 102, 104, 106]}),
            upto(14, 18),
            _update(index=[1, 3, 4, 7], generation=[1, 1, 0, 0], patch={"x": [201, 203, 204, 207]}),
            _update(index=[0, 2, 4, 6], generation=[1, 1, 0, 0], patch={"x": [300, 302, 304, 306]}),
        ],
    ),
    (
        "newer, equal, older",
        [
            _update(
                index=[5],
                generation=[0],
                patch={"x": [u]},
                version_key="ver",
                version=[v],
                require_newer=r,
            )
            for u, v, r in (
                (1, 7, True),
                (2, 5, True),
                (3, 7, True),
                (4, 7, False),
                (5, 6, False),
                (6, 8, False),
            )
        ],
    ),
    (
        "versions of one slot in one call",
        [
            _update(
                index=[3, 3, 3, 3],
                generation=[1, 1, 0, 1],
                patch={"x": [70, 50, 99, 71]},
                version_key="ver",
                version=[7, 5, 9, 7],
                require_newer=True,
            )
        ],
    ),
    (
        "one version for all",
        [
            _update(
                index=[0, 4, 5],
                generation=[1, 0, 9],
                patch={"x": [1, 2, 3]},
                version_key="ver",
                version=4,
            )
        ],
    ),
    (
        "all stale, with versions",
        [
            _update(
                index=[0, 1],
                generation=[0, 0],
                patch={"x": [1, 2]},
                version_key="ver",
                version=[1, 1],
            )
        ],
    ),
    (
        "after an overwrite",
        [extend(12, 13), _update(index=[4, 5, 6], generation=[0, 0, 0], patch={"x": [1, 2, 3]})],
    ),
    (
        "after empty",
        [
            step("empty"),
            _update(index=[4], generation=[0], patch={"x": [1]}),
            upto(0, 8),
            _update(index=[4], generation=[0], patch={"x": [1]}),
        ],
    ),
    ("counts that differ", [_update(index=[0], generation=[1, 0], patch={"x": [1]})]),
    (
        "a version without its key",
        [_update(index=[0], generation=[1], patch={"x": [1]}, version=[1])],
    ),
    (
        "a key without its version",
        [_update(index=[0], generation=[1], patch={"x": [1]}, version_key="ver")],
    ),
    (
        "a dotted key",
        [_update(index=[0], generation=[1], patch={"x": [1]}, version_key="n.w", version=[1])],
    ),
    (
        "the key in the patch",
        [_update(index=[0], generation=[1], patch={"ver": [1]}, version_key="ver", version=[1])],
    ),
    (
        "an unknown version key",
        [_update(index=[0], generation=[1], patch={"x": [1]}, version_key="nope", version=[1])],
    ),
    (
        "a version key that is no scalar",
        [_update(index=[0], generation=[1], patch={"x": [1]}, version_key=["n", "w"], version=[1])],
    ),
    (
        "versions that do not fit",
        [_update(index=[0], generation=[1], patch={"x": [1]}, version_key="ver", version=[1, 2])],
    ),
    (
        "a float version",
        [_update(index=[0], generation=[1], patch={"x": [1]}, version_key="ver", version=[1.5])],
    ),
    ("an unknown field", [_update(index=[0], generation=[1], patch={"y": [1]})]),
    ("another dtype", [_update(index=[0], generation=[1], patch={"x": [1.5]})]),
    ("another shape", [_update(index=[0], generation=[1], patch={"x": [1, 2, 3]})]),
]
