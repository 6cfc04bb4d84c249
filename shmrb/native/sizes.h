// How many records there are. Words are the truth; what stands in counters is a hint that is counted anew after a death.
#pragma once

#include "slots.h"

namespace shmrb {

// Rows ever reserved, whatever became of them.
inline int64_t reserved_rows(const View& view) {
  int64_t rows = 0;
  for (uint32_t i = 0; i < view.lane_count; ++i)
    rows += order::observe(&view.lanes[i].head) + order::peek(&view.lanes[i].written_offset);
  return rows;
}

// Rows that living clients have reserved and not yet published.
inline int64_t rows_in_flight(const View& view) {
  int64_t rows = 0;
  uint32_t high = order::observe(&view.control->clients_high);
  for (uint32_t slot = 0; slot < high && slot < view.max_clients; ++slot) {
    int64_t flying = order::peek(&view.clients[slot].in_flight);
    if (flying > 0) rows += flying;
  }
  return rows;
}

// REQUIRES: the lane's lock is held, so that no writer fills a hole meanwhile.
inline void recount_holes(const View& view, uint32_t lane) {
  LaneBlock& block = view.lanes[lane];
  order::swap(&block.holes_stale, 0u);
  int64_t first = lane * view.lane_capacity;
  int64_t live = Window::of(block).tickets(view.lane_capacity);
  int64_t holes = 0;
  for (int64_t i = 0; i < live; ++i) holes += word_void(order::peek(&view.words[first + i]));
  order::put(&block.holes, holes);
}

// Counts holes anew where somebody voided a slot. A lane whose lock is taken keeps its old count for this look.
inline void settle_holes(const View& view, bool holds_lock) {
  for (uint32_t lane = 0; lane < view.lane_count; ++lane) {
    if (!order::observe(&view.lanes[lane].holes_stale) || !view.writable) continue;
    if (holds_lock) {
      recount_holes(view, lane);
    } else if (try_lock(view.lock_of(lane), view.token)) {
      recount_holes(view, lane);
      release(view.lock_of(lane));
    }
  }
}

// Records under live tickets: those in flight included, holes not.
inline int64_t live_records(const View& view) {
  int64_t records = 0;
  for (uint32_t i = 0; i < view.lane_count; ++i) {
    const LaneBlock& lane = view.lanes[i];
    int64_t tickets = Window::of(lane).tickets(view.lane_capacity);
    int64_t holes = order::peek(&lane.holes);
    records += tickets > holes ? tickets - holes : 0;
  }
  return records;
}

}  // namespace shmrb
