// From Python's description of a segment to a view: part of the binding.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <memory>

#include "segment.h"

namespace shmrb {

namespace nb = nanobind;

template <typename T>
T* at(uint64_t address) {
  return reinterpret_cast<T*>(static_cast<uintptr_t>(address));
}

inline std::unique_ptr<Segment> make_segment(nb::dict g) {
  auto number = [&](const char* key) { return nb::cast<uint64_t>(g[key]); };
  auto segment = std::make_unique<Segment>();
  View& view = segment->view;
  auto* ctl = at<uint8_t>(number("ctl"));
  auto* slots = at<uint8_t>(number("slots"));
  auto* data = at<uint8_t>(number("data"));
  view.capacity = static_cast<int64_t>(number("capacity"));
  view.lane_count = static_cast<uint32_t>(number("lanes"));
  if (!ctl || !slots || view.lane_count == 0 || view.capacity < view.lane_count)
    throw nb::value_error("geometry: ctl, slots, lanes and capacity must be set");
  if (view.capacity % view.lane_count != 0) throw nb::value_error("geometry: capacity must be a multiple of lanes");
  view.lane_capacity = view.capacity / view.lane_count;
  view.max_clients = static_cast<uint32_t>(number("max_clients"));
  view.features = static_cast<uint32_t>(number("features"));
  view.writable = nb::cast<bool>(g["writable"]);
  view.data_writable = nb::cast<bool>(g["data_writable"]);
  view.control = reinterpret_cast<ControlBlock*>(ctl);
  view.clients = reinterpret_cast<ClientBlock*>(ctl + number("clients"));
  view.lanes = reinterpret_cast<LaneBlock*>(ctl + number("lane_blocks"));
  view.words = reinterpret_cast<uint64_t*>(slots + number("words"));
  view.owners = reinterpret_cast<uint32_t*>(slots + number("owners"));
  view.runs = reinterpret_cast<uint32_t*>(slots + number("runs"));
  view.versions = reinterpret_cast<int64_t*>(slots + number("versions"));
  for (auto& [offset, row_bytes] : nb::cast<std::vector<std::pair<uint64_t, uint64_t>>>(g["columns"]))
    view.columns.push_back({row_bytes && data ? data + offset : nullptr, row_bytes});
  if (view.has(kPriorities)) {
    auto* prio = at<uint8_t>(number("prio"));
    std::vector<double*> sums;
    std::vector<float*> minima;
    for (uint64_t offset : nb::cast<std::vector<uint64_t>>(g["sums"])) sums.push_back(reinterpret_cast<double*>(prio + offset));
    for (uint64_t offset : nb::cast<std::vector<uint64_t>>(g["minima"])) minima.push_back(reinterpret_cast<float*>(prio + offset));
    if (!prio || sums.empty() || sums.size() != minima.size()) throw nb::value_error("geometry: no priority tree");
    view.tree = PriorityTree(reinterpret_cast<uint64_t*>(prio + number("leaves")), std::move(sums), std::move(minima),
                             view.capacity);
  }
  if (view.has(kConsumption)) {
    auto* file = at<uint8_t>(number("consumption"));
    auto places = nb::cast<std::vector<uint64_t>>(g["consumption_arrays"]);
    uint64_t limit = number("consume_after");
    if (!file || places.size() != 9 || limit < 1 || limit > UINT32_MAX || !view.has(kOneLock))
      throw nb::value_error("geometry: no room for consumption");
    auto narrow = [&](int i) { return reinterpret_cast<uint32_t*>(file + places[i]); };
    auto wide = [&](int i) { return reinterpret_cast<int64_t*>(file + places[i]); };
    view.consumed = {narrow(0), narrow(1), narrow(2), wide(3), wide(4), wide(5),
                     wide(6), wide(7), wide(8), static_cast<uint32_t>(limit)};
    if (view.has(kRefills) && view.lane_count != 1) throw nb::value_error("geometry: only one lane can be refilled");
  }
  if (g.contains("starts")) {
    std::vector<uint32_t*> levels;
    std::vector<int64_t> widths;
    for (auto& [offset, width] : nb::cast<std::vector<std::pair<uint64_t, int64_t>>>(g["starts"])) {
      levels.push_back(reinterpret_cast<uint32_t*>(slots + offset));
      widths.push_back(width);
    }
    view.starts = StartCounts(view.runs, std::move(levels), std::move(widths), view.lane_capacity);
  }
  if (g.contains("id_column")) view.id_column = nb::cast<int64_t>(g["id_column"]);
  if (view.id_column >= static_cast<int64_t>(view.columns.size())) throw nb::value_error("geometry: no such id column");
  view.done_columns = nb::cast<std::vector<uint32_t>>(g["done_columns"]);
  for (uint32_t column : view.done_columns)
    if (column >= view.columns.size() || view.columns[column].row_bytes != 1)
      throw nb::value_error("geometry: a done column must hold one byte a row");
  return segment;
}

}  // namespace shmrb
