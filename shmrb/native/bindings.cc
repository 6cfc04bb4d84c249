// The doorway to Python, with calls.h, geometry.h, reports.h and tensors.h the only files that know it: converts
// arguments, releases the GIL while copying and waiting, returns plain tuples.
// Addresses arrive as integers that Python has checked (shape, dtype, contiguity, range); no array type is bound, so
// nothing is ever converted behind the caller's back.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <memory>

#include "calls.h"
#include "geometry.h"
#include "reports.h"
#include "segment.h"
#include "tensors.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace shmrb;

namespace {

nb::tuple attach(Segment& s, const std::string& live_lock, uint32_t hint, uint32_t pid, uint32_t role,
                 const std::string& name) {
  int error = s.watch(live_lock);
  if (error) return to_tuple({kSystem, error, kNothing, 0, 0});
  if (role == 0) return to_tuple({});  // an observer takes no client slot
  return call(s, [&](const View&) { return s.attach(hint, pid, role, name); });
}

nb::tuple extend(Segment& s, uint32_t lane, int64_t count, const Addresses& columns, uint64_t versions, uint32_t flags,
                 int64_t slice_ns, uint64_t priorities, uint64_t slots) {
  return write_call(s, [&](const View& view) -> Outcome {
    int64_t longest = view.lane_capacity / 2 > 0 ? view.lane_capacity / 2 : 1;
    if (lane >= view.lane_count || count < 1 || count > longest || columns.size() != view.columns.size())
      return {kCorrupt, 0, kNothing, 0, 0};
    auto sources = pointers(columns);
    if (priorities && !view.has(kPriorities)) return {kCorrupt, 0, kNothing, 0, 0};
    Rows rows{count, sources.data(), at<const int64_t>(versions), at<const float>(priorities), at<int64_t>(slots)};
    return append(view, lane, rows, flags, deadline(slice_ns));
  });
}

nb::tuple write_one(Segment& s, int64_t slot, const Addresses& columns, uint64_t version, int64_t slice_ns) {
  return write_call(s, [&](const View& view) -> Outcome {
    if (!view.in_range(slot) || columns.size() != view.columns.size()) return {kCorrupt, 0, kNothing, 0, 0};
    auto sources = pointers(columns);
    return refill(view, slot, {1, sources.data(), at<const int64_t>(version), nullptr, nullptr}, deadline(slice_ns));
  });
}

nb::tuple update_priority_rows(Segment& s, uint64_t index, int64_t count, uint64_t generation, uint64_t priorities,
                               uint64_t verdicts, int64_t slice_ns) {
  return change_call(s, [&](const View& view) {
    return update_priorities(view, count, at<const int64_t>(index), at<const int64_t>(generation),
                             at<const float>(priorities), at<uint8_t>(verdicts), deadline(slice_ns));
  });
}

// Raw priorities of slots as the tree holds them; NaN where no record is.
nb::tuple raw_priorities(Segment& s, uint64_t index, int64_t count, uint64_t out) {
  return call(s, [&](const View& view) -> Outcome {
    if (!view.has(kPriorities)) return {kCorrupt, 0, kNothing, 0, 0};
    for (int64_t i = 0; i < count; ++i) {
      int64_t slot = at<const int64_t>(index)[i];
      bool named = view.in_range(slot) && holds_record(view, slot, order::observe(&view.words[slot]));
      at<float>(out)[i] = named ? view.tree.leaf(slot).raw : std::numeric_limits<float>::quiet_NaN();
    }
    return {};
  });
}

nb::tuple read_rows(Segment& s, uint64_t index, int64_t count, const Addresses& outputs, uint64_t generation,
               uint64_t version, int64_t cost, int64_t slice_ns) {
  return call(s, [&](const View& view) -> Outcome {
    auto* slots = at<int64_t>(index);
    if (count < 0 || count > UINT32_MAX || outputs.size() != view.columns.size()) return {kCorrupt, 0, kNothing, 0, 0};
    for (int64_t i = 0; i < count; ++i)
      if (!view.in_range(slots[i])) return {kCorrupt, i, kNothing, 0, 0};
    auto targets = pointers(outputs);
    Batch batch{count, targets.data(), slots, at<int64_t>(generation), at<int64_t>(version)};
    return sample_slots(view, batch, cost, deadline(slice_ns));
  });
}

nb::tuple update_rows(Segment& s, uint64_t index, int64_t count, uint64_t generation, std::vector<uint32_t> columns,
                      const Addresses& values, uint64_t versions, bool require_newer, uint64_t verdicts,
                      int64_t slice_ns, int64_t version_column, uint32_t version_kind) {
  return write_call(s, [&](const View& view) -> Outcome {
    for (uint32_t column : columns)
      if (column >= view.columns.size()) return {kCorrupt, 0, kNothing, 0, 0};
    if (count < 0 || count > UINT32_MAX || columns.size() != values.size()) return {kCorrupt, 0, kNothing, 0, 0};
    Versions compared;
    if (versions && version_column < 0) {
      compared = {at<const uint8_t>(versions), reinterpret_cast<uint8_t*>(view.versions), 8, kSignedVersion};
    } else if (versions) {
      if (version_column >= static_cast<int64_t>(view.columns.size())) return {kCorrupt, 0, kNothing, 0, 0};
      const Column& column = view.columns[version_column];
      if (!version_fits(version_kind, column.row_bytes)) return {kCorrupt, 0, kNothing, 0, 0};
      compared = {at<const uint8_t>(versions), column.base, column.row_bytes, static_cast<VersionKind>(version_kind)};
    }
    Patch patch{count, at<const int64_t>(index), at<const int64_t>(generation), std::move(columns), {},
                compared, require_newer, at<uint8_t>(verdicts)};
    for (uint64_t value : values) patch.values.push_back(at<const uint8_t>(value));
    return update(view, patch, deadline(slice_ns));
  });
}

// The answer to a question. Of a dropped buffer it still bears the value, for those who look at what is left.
Outcome answer(const View& view, Outcome outcome) {
  if (outcome.status == kOk && !view.is_ready()) outcome.status = kDead;
  return outcome;
}

nb::tuple generations(Segment& s, uint64_t index, int64_t count, uint64_t out) {
  return call(s, [&](const View& view) -> Outcome {
    for (int64_t i = 0; i < count; ++i) {
      int64_t slot = at<const int64_t>(index)[i];
      at<int64_t>(out)[i] = view.in_range(slot) ? public_generation(view, slot) : -1;
    }
    return answer(view, {});
  });
}

nb::tuple size_of(Segment& s) {
  return call(s, [&](const View& view) { return answer(view, size(view, s.live_lock().c_str())); });
}

nb::tuple write_count_of(Segment& s) {
  return call(s, [&](const View& view) { return answer(view, {kOk, write_count(view), kNothing, 0, 0}); });
}

uint64_t address(nb::handle array) {
  Py_buffer buffer;
  if (PyObject_GetBuffer(array.ptr(), &buffer, PyBUF_SIMPLE) != 0) throw nb::python_error();
  auto result = reinterpret_cast<uintptr_t>(buffer.buf);
  PyBuffer_Release(&buffer);
  return result;
}

BellBlock& bell_of(const View& view, int which) {
  return which == 0 ? view.control->records_bell : view.control->room_bell;
}

uint64_t& bell_word(const View& view, int which, bool on_futex) {
  BellBlock& bell = bell_of(view, which);
  return on_futex ? bell.futex : bell.semaphore;
}

// While waiting a client's entry says for what: 1 records, 2 room, 3 a lane, 4 a lock or slot; 0 nothing.
void label_wait(Segment& s, uint32_t what) {
  Segment::Call counted(s);
  if (!counted || !s.view.writable || !s.view.token) return;
  ClientBlock& me = *s.view.me();
  if (what) {
    order::put(&me.waiting_since_ns, monotonic_ns());
  } else if (order::peek(&me.waiting_for)) {
    s.view.count(kBlockedNs, static_cast<uint64_t>(monotonic_ns() - order::peek(&me.waiting_since_ns)));
  }
  order::publish(&me.waiting_for, what);
}

}  // namespace

NB_MODULE(_native, m) {
  // A process may end while threads still wait in here; what they hold is not leaked, it ends with the process.
  nb::set_leak_warnings(false);
  m.doc() = "Shared-memory slots, locks and copies of shmrb; use shmrb.core.";
  m.attr("FORMAT_NUMBER") = kFormatNumber;
  m.attr("CONTROL_MAGIC") = kControlMagic;
  m.def("abi", &abi, "Struct sizes and field (offset, size) of everything that lies in shared memory.");
  m.def("stopping_points", [] {
    nb::list names;
    for (const char* name : stopping::kNames) names.append(nb::str(name));
    return names;
  });
  m.def("stop_at", [](const std::string& point, const std::string& action, int passes, int pause_ms) {
    int index = stopping::find(point.c_str());
    int kind = action == "pause" ? 0 : action == "stop" ? 1 : action == "kill" ? 2 : -1;
    if (index < 0 || kind < 0 || passes < 1) throw nb::value_error("stop_at: unknown point, action or pass");
    stopping::arm(index, kind, passes, pause_ms);
  }, "point"_a, "action"_a, "passes"_a = 1, "pause_ms"_a = 0);
  m.def("stopping_point", [](const std::string& point) {
    int index = stopping::find(point.c_str());
    if (index < 0) throw nb::value_error("stopping_point: unknown point");
    nb::gil_scoped_release free;
    stopping::at(static_cast<stopping::Point>(index));
  }, "point"_a);
  m.def("byte_held", [](const std::string& live_lock, uint32_t slot) {
    int fd = open(live_lock.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) return true;
    ByteState state = byte_state(fd, slot);
    close(fd);
    return state != ByteState::kFree;
  }, "live_lock"_a, "slot"_a, "Is that client's lock byte held? On any error: yes.");
  m.def("monotonic_ns", &monotonic_ns);
  m.def("this_process", &this_process, "A number for this process; its forked children have others, also if their PIDs are equal.");
  m.def("highest_word", [](uintptr_t words, size_t count) {
    nb::gil_scoped_release free;
    uint64_t highest = 0;
    for (size_t i = 0; i < count; ++i) {
      uint64_t word = order::peek(reinterpret_cast<const uint64_t*>(words) + i);
      if (word > highest) highest = word;
    }
    return highest;
  }, "words"_a, "count"_a, "Of 64-bit words from an address on; 0 of none.");
  m.def("address", &address, "array"_a, "Where a C-contiguous array lies; numpy's own way makes a dictionary first.");

  nb::class_<HeldByte>(m, "HeldByte", "A lock byte held by its own mapping, as a creator holds one while it builds.")
      .def(nb::init<>())
      .def("take", [](HeldByte& b, const std::string& path, uint32_t slot) { return b.take(path.c_str(), slot); },
           "path"_a, "slot"_a, "0 or errno; EAGAIN when somebody holds it.")
      .def("release", &HeldByte::release);

  nb::class_<Stream>(m, "Rng", "One handle's random stream; threads may share it.")
      .def(nb::init<uint64_t>(), "seed"_a)
      .def("next", [](Stream& stream) { return stream.fork().next(); });

  nb::class_<Tensors>(m, "Tensors", "The fields of one schema as tensors of one class.")
      .def(nb::init<nb::capsule, nb::type_object, const std::vector<std::tuple<int, int, std::vector<int64_t>>>&>(),
           "table"_a, "tensor_class"_a, "layouts"_a,
           // The type of a capsule has another home in each Python; the stub shall be the same for all.
           nb::sig("def __init__(self, table: object, tensor_class: type, layouts: "
                   "Sequence[tuple[int, int, Sequence[int]]]) -> None"))
      .def("places", &Tensors::places, "values"_a, "count"_a,
           "Where the values of each field lie; None if one is not in memory just as its column needs it.")
      .def("place", &Tensors::place, "field"_a, "value"_a, "count"_a, "The same for one field.")
      .def("make", &Tensors::make, "count"_a, "New tensors with arbitrary contents, and where they lie.");

  nb::class_<Segment>(m, "Segment", "One attachment's mappings as the algorithms see them.")
      .def("__init__", [](Segment* place, nb::dict geometry) {
        auto made = make_segment(geometry);
        new (place) Segment();
        place->view = made->view;
      }, "geometry"_a)
      .def("attach", &attach, "live_lock"_a, "hint"_a, "pid"_a, "role"_a, "name"_a)
      .def_prop_ro("token", [](Segment& s) { return s.view.token; })
      .def("close", &Segment::close, nb::call_guard<nb::gil_scoped_release>())
      .def("abandon", &Segment::abandon)
      .def("alive", [](Segment& s, uint32_t token) { return s.view.liveness.alive(token); }, "token"_a)
      .def("is_ready", [](Segment& s) { return s.view.is_ready(); })
      .def("extend", &extend, "lane"_a, "count"_a, "columns"_a, "versions"_a, "flags"_a, "slice_ns"_a,
           "priorities"_a = 0, "slots"_a = 0)
      .def("write", &write_one, "slot"_a, "columns"_a, "version"_a, "slice_ns"_a)
      .def("admit", [](Segment& s, int64_t rows, int64_t slice_ns) {
        return change_call(s, [&](const View& view) { return admit(view, rows, deadline(slice_ns)); });
      }, "rows"_a, "slice_ns"_a)
      .def("charge", [](Segment& s, int64_t records, int64_t slice_ns) {
        return change_call(s, [&](const View& view) {
          Outcome o = charge(view, records, deadline(slice_ns));
          o.wake = o.status == kOk && view.has(kLimiter) ? ring_room(view) : 0;
          return o;
        });
      }, "records"_a, "slice_ns"_a)
      .def("open_inserts", [](Segment& s) {
        return call(s, [](const View& view) -> Outcome {
          bool limited = limits_apply(view);
          return {limited ? kLimited : kEmpty, 0, kNothing, 0, limited ? open_inserts(view) : 0};
        });
      })
      .def("sample", &sample, "rng"_a, "count"_a, "outputs"_a, "index"_a, "generation"_a, "version"_a, "cost"_a,
           "slice_ns"_a)
      .def("sample_by_mass", &sample_by_mass, "rng"_a, "count"_a, "outputs"_a, "index"_a, "generation"_a, "weights"_a,
           "version"_a, "cost"_a, "slice_ns"_a)
      .def("windows", &windows, "rng"_a, "kind"_a, "count"_a, "shape"_a, "outputs"_a, "anchors"_a, "index"_a,
           "generation"_a, "valid"_a, "weights"_a, "cost"_a, "slice_ns"_a)
      .def("take", &take_some, "rng"_a, "kind"_a, "count"_a, "cost"_a, "slots"_a, "generations"_a,
           "slice_ns"_a)
      .def("end_takes", &end_takes_of, "back"_a, "index"_a, "count"_a, "generation"_a, "verdicts"_a, "slice_ns"_a)
      .def("consumption", &consumption)
      .def("runs", &runs, "lane"_a)
      .def("run_summary", &run_summary)
      .def("update_priority", &update_priority_rows, "index"_a, "count"_a, "generation"_a, "priorities"_a, "verdicts"_a,
           "slice_ns"_a)
      .def("priorities", &priorities)
      .def("raw_priorities", &raw_priorities, "index"_a, "count"_a, "out"_a)
      .def("wrong_nodes", [](Segment& s) {
        return change_call(s, [&](const View& view) -> Outcome {
          if (!view.has(kPriorities)) return {};
          Held held(view, view.control->control_lock, deadline(kLongestSlice));
          if (!held) return blocked_on(kControlLock, held.who());
          return {kOk, view.tree.wrong_nodes(), kNothing, 0, 0};
        });
      }, "Nodes of the priority tree that are not what their children say.")
      .def("set_exponents", [](Segment& s, double alpha, double beta, int64_t slice_ns) {
        return change_call(s, [&](const View& view) { return set_exponents(view, alpha, beta, deadline(slice_ns)); });
      }, "alpha"_a, "beta"_a, "slice_ns"_a)
      .def("read", &read_rows, "index"_a, "count"_a, "outputs"_a, "generation"_a, "version"_a, "cost"_a,
           "slice_ns"_a)
      .def("update", &update_rows, "index"_a, "count"_a, "generation"_a, "columns"_a, "values"_a, "versions"_a,
           "require_newer"_a, "verdicts"_a, "slice_ns"_a, "version_column"_a = -1, "version_kind"_a = 0)
      .def("empty", [](Segment& s, bool reset, int64_t slice_ns) {
        return change_call(s, [&](const View& view) { return empty(view, reset, deadline(slice_ns)); });
      }, "reset_write_count"_a, "slice_ns"_a)
      .def("end_trajectory", [](Segment& s, uint32_t lane, int64_t slice_ns) {
        return change_call(s, [&](const View& view) { return end_trajectory(view, lane, deadline(slice_ns)); });
      }, "lane"_a, "slice_ns"_a)
      .def("generations", &generations, "index"_a, "count"_a, "out"_a)
      .def("size", &size_of)
      .def("write_count", &write_count_of)
      .def("lanes", &lanes)
      .def("counters", &counters)
      .def("count", &count, "counter"_a, "amount"_a)
      .def("limiter", &limiter)
      .def("clients", &clients)
      .def("client", &client, "token"_a)
      .def("set_limits", [](Segment& s, bool enabled, int64_t min_size, double spi, double min_diff, double max_diff,
                            int64_t slice_ns) {
        return change_call(s, [&](const View& view) {
          return set_limits(view, {enabled, min_size, spi, min_diff, max_diff}, deadline(slice_ns));
        });
      }, "enabled"_a, "min_size"_a, "samples_per_insert"_a, "min_diff"_a, "max_diff"_a, "slice_ns"_a)
      .def("lift", [](Segment& s, bool lifted, int64_t slice_ns) {
        return change_call(s, [&](const View& view) { return lift_limits(view, lifted, deadline(slice_ns)); });
      }, "lifted"_a, "slice_ns"_a)
      .def("lease", [](Segment& s, int64_t lane) {
        return change_call(s, [&](const View& view) -> Outcome {
          if (lane >= static_cast<int64_t>(view.lane_count)) return {kCorrupt, 0, kNothing, 0, 0};
          return lease_lane(view, lane);
        });
      }, "lane"_a)
      .def("rotate", [](Segment& s, uint32_t lane) {
        return change_call(s, [&](const View& view) -> Outcome {
          if (lane >= view.lane_count) return {kCorrupt, 0, kNothing, 0, 0};
          return rotate_lane(view, lane);
        });
      }, "lane"_a)
      .def("newest", [](Segment& s, uint32_t lane, uint64_t generation, int64_t slice_ns) {
        return change_call(s, [&](const View& view) -> Outcome {
          if (lane >= view.lane_count) return {kCorrupt, 0, kNothing, 0, 0};
          return newest_record(view, lane, at<int64_t>(generation), deadline(slice_ns));
        });
      }, "lane"_a, "generation"_a, "slice_ns"_a)
      .def("empty_lanes", [](Segment& s, const std::vector<uint32_t>& lanes, int64_t slice_ns) {
        return change_call(s, [&](const View& view) -> Outcome {
          for (uint32_t lane : lanes)
            if (lane >= view.lane_count) return {kCorrupt, 0, kNothing, 0, 0};
          return empty_lanes(view, lanes, deadline(slice_ns));
        });
      }, "lanes"_a, "slice_ns"_a)
      .def("release_lease", [](Segment& s, uint32_t lane) {
        return change_call(s, [&](const View& view) -> Outcome {
          if (lane >= view.lane_count) return {kCorrupt, 0, kNothing, 0, 0};
          give_back_lane(view, lane);
          return {};
        });
      }, "lane"_a)
      .def("bell_enter", [](Segment& s, int which, bool on_futex) {
        return change_call(s, [&](const View& view) -> Outcome {
          return {kOk, enter_bell(bell_word(view, which, on_futex)), kNothing, 0, 0};
        });
      }, "which"_a, "on_futex"_a)
      .def("bell_leave", [](Segment& s, int which, bool on_futex, uint32_t event) {
        return change_call(s, [&](const View& view) -> Outcome {
          leave_bell(bell_word(view, which, on_futex), event);
          return {};
        });
      }, "which"_a, "on_futex"_a, "event"_a)
      .def("bell_sleep", [](Segment& s, int which, uint32_t event, int64_t slice_ns) {
        return change_call(s, [&](const View& view) -> Outcome {
          return {kOk, sleep_on_bell(bell_of(view, which).futex, event, slice_ns < kLongestSlice ? slice_ns : kLongestSlice),
                  kNothing, 0, 0};
        });
      }, "which"_a, "event"_a, "slice_ns"_a)
      .def("ring", [](Segment& s) {
        return change_call(s, [&](const View& view) -> Outcome {
          return {kOk, 0, kNothing, 0, ring_records(view) | ring_room(view)};
        });
      })
      .def("label_wait", &label_wait, "what"_a)
      .def("reap", [](Segment& s) {
        return change_call(s, [&](const View& view) -> Outcome {
          int64_t dead = reap(view, s.live_lock().c_str());
          uint64_t wake = dead ? ring_records(view) | ring_room(view) : 0;
          return {kOk, dead, kNothing, 0, wake};
        });
      })
      .def("recover", [](Segment& s) {
        return change_call(s, [&](const View& view) -> Outcome {
          int64_t freed = recover_buffer(view, s.live_lock().c_str());
          return {kOk, freed, kNothing, 0, ring_records(view) | ring_room(view)};
        });
      })
      .def("rebuild", [](Segment& s, int64_t slice_ns) {
        return change_call(s, [&](const View& view) { return rebuild(view, deadline(slice_ns)); });
      }, "slice_ns"_a, "Makes anew what follows from the words: start counts, the priority tree, consumption's lists.");
}
