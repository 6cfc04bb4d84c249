// How Python calls the core, and the calls that draw: part of the binding. Addresses and counts were checked in Python.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include "geometry.h"
#include "segment.h"

namespace shmrb {

namespace nb = nanobind;

using Addresses = std::vector<uint64_t>;
constexpr int64_t kLongestSlice = 50'000'000;

inline std::vector<uint8_t*> pointers(const Addresses& addresses) {
  std::vector<uint8_t*> result(addresses.size());
  for (size_t i = 0; i < addresses.size(); ++i) result[i] = at<uint8_t>(addresses[i]);
  return result;
}

inline int64_t deadline(int64_t slice_ns) {
  return monotonic_ns() + (slice_ns < kLongestSlice ? slice_ns : kLongestSlice);
}

inline nb::tuple to_tuple(const Outcome& o) {
  return nb::make_tuple(static_cast<int>(o.status), o.value, static_cast<int>(o.what), o.who, o.wake);
}

// Runs one call without the GIL, counted in, unless the segment is closed.
template <typename Work>
nb::tuple call(Segment& segment, Work work) {
  Outcome outcome{kClosed, 0, kNothing, 0, 0};
  {
    nb::gil_scoped_release free;
    Segment::Call counted(segment);
    if (counted) outcome = work(segment.view);
  }
  return to_tuple(outcome);
}

template <typename Work>
nb::tuple change_call(Segment& segment, Work work) {
  return call(segment, [&](const View& view) -> Outcome {
    if (!view.writable || !view.token) return {kReadOnly, 0, kNothing, 0, 0};
    return work(view);
  });
}

template <typename Work>
nb::tuple write_call(Segment& segment, Work work) {
  return change_call(segment, [&](const View& view) -> Outcome {
    if (!view.data_writable) return {kReadOnly, 0, kNothing, 0, 0};
    return work(view);
  });
}

inline nb::tuple sample(Segment& s, Stream& stream, int64_t count, const Addresses& outputs, uint64_t index,
                 uint64_t generation, uint64_t version, int64_t cost, int64_t slice_ns) {
  return call(s, [&](const View& view) -> Outcome {
    if (count < 1 || count > UINT32_MAX || outputs.size() != view.columns.size()) return {kCorrupt, 0, kNothing, 0, 0};
    auto targets = pointers(outputs);
    Batch batch{count, targets.data(), at<int64_t>(index), at<int64_t>(generation), at<int64_t>(version)};
    return sample_uniform(view, stream.fork(), batch, cost, deadline(slice_ns));
  });
}

inline nb::tuple sample_by_mass(Segment& s, Stream& stream, int64_t count, const Addresses& outputs, uint64_t index,
                         uint64_t generation, uint64_t weights, uint64_t version, int64_t cost, int64_t slice_ns) {
  return call(s, [&](const View& view) -> Outcome {
    if (count < 1 || count > UINT32_MAX || outputs.size() != view.columns.size()) return {kCorrupt, 0, kNothing, 0, 0};
    auto targets = pointers(outputs);
    Batch batch{count, targets.data(), at<int64_t>(index), at<int64_t>(generation), at<int64_t>(version)};
    return sample_prioritized(view, stream.fork(), batch, at<float>(weights), cost, deadline(slice_ns));
  });
}

constexpr int64_t kLongestWindow = int64_t{1} << 24;

// `shape`: length, burn-in, bootstrap, dilation, Boundary, Demand, records that must follow the anchor, by step or not.
inline bool read_unit(const std::vector<int64_t>& shape, Unit* unit) {
  constexpr int64_t kLeast[] = {1, 0, 0, 1, 0, 0, 0, 0};
  constexpr int64_t kMost[] = {kLongestWindow, kLongestWindow, kLongestWindow, kLongestWindow, 3, 3, kLongestWindow, 1};
  if (shape.size() != 8) return false;
  for (size_t i = 0; i < shape.size(); ++i)
    if (shape[i] < kLeast[i] || shape[i] > kMost[i]) return false;
  *unit = {shape[0], shape[1], shape[2], shape[3], static_cast<Boundary>(shape[4]), static_cast<Demand>(shape[5]),
           shape[6], shape[7] == 1};
  return unit->ahead() + unit->behind() <= 2 * kLongestWindow;
}

// `kind`: AnchorKind, or -1 when `anchors` are given. `anchors`: `count` slots, then their generations. `outputs`: one a
// column; by step, those of each step in turn.
inline nb::tuple windows(Segment& s, Stream& stream, int kind, int64_t count, const std::vector<int64_t>& shape,
                  const Addresses& outputs, uint64_t anchors, uint64_t index, uint64_t generation, uint64_t valid,
                  uint64_t weights, int64_t cost, int64_t slice_ns) {
  return call(s, [&](const View& view) -> Outcome {
    Unit unit;
    if (count < 1 || kind < -1 || kind > 3 || !read_unit(shape, &unit)) return {kCorrupt, 0, kNothing, 0, 0};
    size_t sets = unit.by_step ? unit.records() : 1;
    if (outputs.size() != sets * view.columns.size()) return {kCorrupt, 0, kNothing, 0, 0};
    if (count > UINT32_MAX / unit.records()) return {kCorrupt, 0, kNothing, 0, 0};
    auto targets = pointers(outputs);
    WindowBatch batch{{count * unit.records(), targets.data(), at<int64_t>(index), at<int64_t>(generation), nullptr},
                      count, at<int64_t>(anchors), at<uint8_t>(valid), at<float>(weights)};
    if (kind < 0) {
      for (int64_t i = 0; i < count; ++i)
        if (!view.in_range(batch.anchors[i])) return {kCorrupt, i, kNothing, 0, 0};
      return read_windows(view, unit, batch, cost, deadline(slice_ns));
    }
    auto anchor_kind = static_cast<AnchorKind>(kind);
    if (anchor_kind == AnchorKind::kByMass && !view.has(kPriorities)) return {kCorrupt, 0, kNothing, 0, 0};
    if (anchor_kind == AnchorKind::kByMass && !view.acts()) return {kReadOnly, 0, kNothing, 0, 0};
    if (kind >= 2 && view.starts.empty()) return {kCorrupt, 0, kNothing, 0, 0};
    return sample_windows(view, stream.fork(), unit, anchor_kind, batch, cost, deadline(slice_ns));
  });
}

// `kind`: TakeKind. `cost`: what the limiter is charged for a record.
inline nb::tuple take_some(Segment& s, Stream& stream, int kind, int64_t count, uint32_t cost,
                              uint64_t slots, uint64_t generations, int64_t slice_ns) {
  return change_call(s, [&](const View& view) -> Outcome {
    if (kind < 0 || kind > 2 || count < 1 || count > UINT32_MAX || cost >= kMovingBit) return {kCorrupt, 0, kNothing, 0, 0};
    Wish wish{static_cast<TakeKind>(kind), count, cost};
    return take(view, stream.fork(), wish, at<int64_t>(slots), at<int64_t>(generations), deadline(slice_ns));
  });
}

inline nb::tuple end_takes_of(Segment& s, bool back, uint64_t index, int64_t count, uint64_t generation,
                              uint64_t verdicts, int64_t slice_ns) {
  return change_call(s, [&](const View& view) -> Outcome {
    return end_takes(view, back, count, at<const int64_t>(index), at<const int64_t>(generation), at<uint8_t>(verdicts),
                     deadline(slice_ns));
  });
}

}  // namespace shmrb
