// The rows of a write on their way into the slots: payload, versions, runs.
#pragma once

#include "limiter.h"

namespace shmrb {

enum WriteFlag : uint32_t {
  kAdmitted = 1,        // the limiter admitted the whole call before its first chunk
  kEndTrajectory = 2,   // the last row ends its trajectory, whatever its done fields say
};

// What is written: one contiguous array a column, rows in order.
struct Rows {
  int64_t count;
  const uint8_t* const* columns;
  const int64_t* versions;  // null: -1
  const float* priorities;  // null: the default for all
  int64_t* slots;           // where each row went is written here; null: not wanted
};

// REQUIRES: every slot of the write is claimed and marked busy by the caller.
inline void copy_rows_in(const View& view, const Rows& rows, int64_t from, int64_t slot, int64_t count) {
  for (size_t c = 0; c < view.columns.size(); ++c) {
    const Column& column = view.columns[c];
    if (column.base)
      order::copy_payload(column.base + slot * column.row_bytes, rows.columns[c] + from * column.row_bytes,
                          count * column.row_bytes);
    if (c == 0) stopping::at(stopping::kMidPayload);
  }
  for (int64_t i = 0; i < count; ++i)
    order::put(&view.versions[slot + i], rows.versions ? rows.versions[from + i] : int64_t{-1});
}

inline void publish_slot(const View& view, int64_t slot) {
  uint64_t word = order::peek(&view.words[slot]);
  order::publish(&view.words[slot], word & ~kBusy64);
  free_slot(view, slot);
}

inline bool row_ends(const View& view, const Rows& rows, int64_t i) {
  for (uint32_t c : view.done_columns)
    if (rows.columns[c][i]) return true;
  return false;
}

// The row's trajectory id, hashed (FNV-1a) so that ids of any dtype and shape fit one word; 0 without an id field.
inline uint64_t trajectory_of(const View& view, const Rows& rows, int64_t i) {
  if (view.id_column < 0) return 0;
  size_t bytes = view.columns[view.id_column].row_bytes;
  const uint8_t* id = rows.columns[view.id_column] + i * bytes;
  uint64_t hash = 0xcbf29ce484222325ull;
  for (size_t k = 0; k < bytes; ++k) hash = (hash ^ id[k]) * 0x100000001b3ull;
  return hash;
}

// Gives each row its run. A writer goes on with the lane's open run only when the lane's last ticket is its own, did not
// end and bears the same trajectory id. Where the writer changes a number is left out: a window that goes on behind an
// end asks for consecutive numbers. The counter moves first, so a death in between can only skip numbers.
inline void stamp_runs(const View& view, LaneBlock& lane, int64_t first_slot, int64_t head, const Rows& rows,
                       uint32_t flags) {
  bool goes_on = lane.last_writer == view.token && !lane.run_ended && head > order::peek(&lane.floor);
  uint32_t number = lane.open_run;
  bool other_writer = lane.last_writer != 0 && lane.last_writer != view.token;
  uint32_t next = (lane.next_run + other_writer) & kRunNumberMask;
  uint64_t trajectory = lane.open_trajectory;
  bool ended = false;
  for (int64_t i = 0; i < rows.count; ++i) {
    uint32_t run = 0;
    uint64_t id = trajectory_of(view, rows, i);
    if (!goes_on || id != trajectory) {
      number = next;
      next = (next + 1) & kRunNumberMask;
      run |= kRunFirst;
    }
    trajectory = id;
    ended = row_ends(view, rows, i) || ((flags & kEndTrajectory) && i == rows.count - 1);
    if (ended) run |= kRunLast;
    order::put(&view.runs[first_slot + (head + i) % view.lane_capacity], run | number);
    goes_on = !ended;
  }
  int64_t position = head % view.lane_capacity;
  auto number_of_lane = static_cast<uint32_t>(&lane - view.lanes);
  int64_t before_wrap = view.lane_capacity - position < rows.count ? view.lane_capacity - position : rows.count;
  view.starts.recount(number_of_lane, position, before_wrap);
  if (before_wrap < rows.count) view.starts.recount(number_of_lane, 0, rows.count - before_wrap);
  order::put(&lane.open_trajectory, trajectory);
  order::put(&lane.next_run, next);
  order::put(&lane.last_writer, view.token);
  order::put(&lane.open_run, number);
  order::put(&lane.run_ended, uint32_t{ended});
}

}  // namespace shmrb
