// One attachment's view of a segment: addresses, and the geometry that the attaching process checked and keeps to
// itself. Every index, offset and length that comes from shared memory is checked against this private copy.
#pragma once

#include <cstdint>
#include <vector>

#include "abi.h"
#include "bells.h"
#include "consumption.h"
#include "order.h"
#include "ownership.h"
#include "starts.h"
#include "tree.h"

namespace shmrb {

enum Feature : uint32_t { kOneLock = 1, kPriorities = 2, kLimiter = 4, kConsumption = 8, kRefills = 16 };

struct Column {
  uint8_t* base;  // null when the column has no bytes
  size_t row_bytes;
};

struct View {
  ControlBlock* control = nullptr;
  ClientBlock* clients = nullptr;
  LaneBlock* lanes = nullptr;
  uint64_t* words = nullptr;
  uint32_t* owners = nullptr;
  uint32_t* runs = nullptr;
  int64_t* versions = nullptr;
  PriorityTree tree;  // of buffers with priorities; touched under the control lock
  ConsumptionArrays consumed;  // of buffers with consumption; touched under the control lock
  StartCounts starts;  // changed under the lane's lock
  int64_t id_column = -1;  // position of the trajectory id's column
  std::vector<Column> columns;
  std::vector<uint32_t> done_columns;  // one byte a row: non-zero ends the trajectory
  int64_t capacity = 0;
  int64_t lane_capacity = 0;
  uint32_t lane_count = 0;
  uint32_t max_clients = 0;
  uint32_t features = 0;
  bool writable = false;       // ctl and slots are mapped for writing
  bool data_writable = false;  // data is
  uint32_t token = 0;
  Liveness liveness;

  bool has(Feature feature) const { return features & feature; }
  // Not dropped.
  bool is_ready() const { return order::observe(&control->state) == kReadyState; }
  // Has a client slot to change shared words by.
  bool acts() const { return writable && token != 0; }
  ClientBlock* me() const { return token ? &clients[token_slot(token)] : nullptr; }
  void count(Counter counter, uint64_t amount) const {
    if (token) order::bump(&me()->counters[counter], amount);
  }
  void note(Event event, uint64_t amount = 1) const { order::bump(&control->events[event], amount); }

  Consumption consumption() const { return {control->consumption, consumed, capacity, has(kRefills)}; }

  // The one lock that reserve, empty and whatever else must agree with it take.
  LockBlock& lock_of(uint32_t lane) const { return has(kOneLock) ? control->control_lock : lanes[lane].lock; }
  Waited lock_kind() const { return has(kOneLock) ? kControlLock : kLaneLock; }

  uint32_t lane_of(int64_t slot) const { return static_cast<uint32_t>(slot / lane_capacity); }
  bool in_range(int64_t slot) const { return slot >= 0 && slot < capacity; }
};

// A reader's look at a lane's window: head first, floor second, so that a concurrent `empty`, which stores floor first,
// can only make the window smaller.
struct Window {
  int64_t head;
  int64_t floor;

  static Window of(const LaneBlock& lane) {
    int64_t head = order::observe(&lane.head);
    return {head, order::observe(&lane.floor)};
  }
  // Tickets that are live, holes and writes in flight included. The live positions are [0, tickets): floor is a multiple
  // of the lane's capacity.
  int64_t tickets(int64_t lane_capacity) const {
    if (head <= floor) return 0;
    uint64_t size = static_cast<uint64_t>(head) - static_cast<uint64_t>(floor);
    return size < static_cast<uint64_t>(lane_capacity) ? static_cast<int64_t>(size) : lane_capacity;
  }
};

// A head that no writer can have reached would name slots outside the lane.
constexpr int64_t kTicketLimit = int64_t{1} << 62;
inline bool is_ticket(int64_t head) { return head >= 0 && head < kTicketLimit; }

inline bool ticket_is_live(const View& view, int64_t slot) {
  if (view.lane_count == 1) return slot < Window::of(view.lanes[0]).tickets(view.lane_capacity);  // without dividing
  const LaneBlock& lane = view.lanes[view.lane_of(slot)];
  return slot % view.lane_capacity < Window::of(lane).tickets(view.lane_capacity);
}

// Who waits for records, and who waits for room to write. They return the posts owed, each in its half of Outcome::wake.
inline uint64_t ring_records(const View& view) { return ring(view.control->records_bell); }
inline uint64_t ring_room(const View& view) { return static_cast<uint64_t>(ring(view.control->room_bell)) << 32; }

}  // namespace shmrb
