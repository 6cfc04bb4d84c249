// Records that are gone after so many draws, under the control lock.
//
// A consumer takes records (nobody else draws them), copies them, and finishes them; only then does a slot become free for
// the next write, and only then are the records given to the user, unless he asked to finish them himself. What a dead
// client had taken and not finished is given back by whoever notices.
// `members` is the dense set of records that may be drawn, for uniform choice; the links order all records that are not
// consumed, for FIFO and LIFO; `freed` queues slots without a record, for the next writes. These lists follow from the
// words, counts, holders and arrivals, and are made anew from them when somebody died while they were changing.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "abi.h"
#include "order.h"

namespace shmrb {

constexpr uint32_t kMovingBit = 0x8000'0000u;  // in a cost: the record is on its way to its holder, or back

// A take and the limiter's charge for it are one change of many words, and so is giving back: the records of one call are
// marked, one journal moves the credit and says which of the two holds for them, and the marks are taken off again.
enum Moving : uint64_t {
  kNothingMoves = 0,
  kNotTaken = 1,  // records that are marked belong to nobody, and are not charged for
  kAreTaken = 2,  // they belong to their holders, and are
};

// All of `capacity` elements.
struct ConsumptionArrays {
  uint32_t* counts = nullptr;   // draws of the record so far
  uint32_t* holders = nullptr;  // token of the client that took the record; 0 nobody
  uint32_t* costs = nullptr;    // what the limiter was charged for that
  int64_t* arrivals = nullptr;  // number of the record's arrival; once it is consumed, of that
  int64_t* members = nullptr;   // [0, block.members): slots that may be drawn
  int64_t* places = nullptr;    // position in members + 1; of a queued slot −1 − its number in the queue; 0 neither
  int64_t* next = nullptr;      // links: slot + 1; 0 = none
  int64_t* previous = nullptr;
  int64_t* freed = nullptr;     // ring; the n-th slot ever queued lies at n mod capacity
  uint32_t limit = 0;           // draws of a record; from this process's own copy of the description
};

// A slot and the number it is ordered by.
using Arrival = std::pair<int64_t, int64_t>;

// REQUIRES for all that changes something: the control lock is held and says that it is dirty. What is read here may have
// been written by anybody, so no number is used as an index before it was looked at.
class Consumption {
 public:
  Consumption(ConsumptionBlock& block, const ConsumptionArrays& arrays, int64_t capacity, bool refills)
      : block_(block), a_(arrays), capacity_(capacity), refills_(refills) {}

  int64_t members() const { return bounded(order::peek(&block_.members)); }
  int64_t held() const { return bounded(order::peek(&block_.held)); }
  int64_t pending() const { return order::peek(&block_.pending); }
  int64_t freed() const { return bounded(distance(order::peek(&block_.freed_head), order::peek(&block_.freed_tail))); }
  bool refills() const { return refills_; }

  uint32_t holder(int64_t slot) const { return order::peek(&a_.holders[slot]); }
  uint32_t cost(int64_t slot) const { return order::peek(&a_.costs[slot]) & ~kMovingBit; }
  uint64_t* moving() const { return &block_.moving; }
  bool is_consumed(int64_t slot) const { return order::peek(&a_.counts[slot]) >= a_.limit; }
  bool may_be_drawn(int64_t slot) const { return order::peek(&a_.places[slot]) > 0; }
  int64_t member(int64_t position) const { return slot_or_none(order::peek(&a_.members[position])); }
  int64_t first() const { return linked(&block_.first); }
  int64_t last() const { return linked(&block_.last); }
  int64_t after(int64_t slot) const { return linked(&a_.next[slot]); }
  int64_t before(int64_t slot) const { return linked(&a_.previous[slot]); }

  // Does the slot wait in the queue for a write?
  bool is_queued(int64_t slot) const {
    int64_t place = order::observe(&a_.places[slot]);
    return place < 0 && -1 - place >= order::observe(&block_.freed_head);
  }

  // The first slots of the queue, at most `most`, and the head of the queue behind them.
  std::vector<int64_t> queued(int64_t most, int64_t* end) const {
    std::vector<int64_t> slots;
    int64_t number = order::peek(&block_.freed_head);
    int64_t left = freed();
    for (; left > 0 && static_cast<int64_t>(slots.size()) < most; --left, ++number) {
      int64_t slot = slot_or_none(order::peek(&a_.freed[place_of(number)]));
      if (slot >= 0 && order::peek(&a_.places[slot]) == -1 - number) slots.push_back(slot);
    }
    *end = number;
    return slots;
  }
  int64_t* queue_head() const { return &block_.freed_head; }

  // A new record in the slot, whatever was there.
  void enter(int64_t slot) const {
    leave(slot);
    order::put(&a_.counts[slot], 0u);
    order::put(&a_.arrivals[slot], next_number());
    append(slot);
    add_member(slot);
  }

  // The slot holds no record to consume any more.
  void leave(int64_t slot) const {
    drop_member(slot);
    drop_holder(slot);
    unlink(slot);
  }

  // The slot's record died: if writes fill such slots, it is queued.
  void lose(int64_t slot) const {
    leave(slot);
    if (refills_ && !is_queued(slot)) retire(slot);
  }

  // Marked until the charge is made.
  void take(int64_t slot, uint32_t holder, uint32_t cost) const {
    order::put(&a_.costs[slot], cost | kMovingBit);
    order::publish(&a_.holders[slot], holder);
    count_holder(slot, 1);
    drop_member(slot);
  }

  void mark(int64_t slot) const { order::put(&a_.costs[slot], order::peek(&a_.costs[slot]) | kMovingBit); }
  void unmark(int64_t slot) const { order::put(&a_.costs[slot], cost(slot)); }

  // One more draw of a taken record; after the last its slot holds nothing. Counted before the holder lets go: a death in
  // between may cost a draw, never add one.
  void finish(int64_t slot) const {
    uint32_t count = order::peek(&a_.counts[slot]) + 1;
    order::put(&a_.counts[slot], count);
    drop_holder(slot);
    if (count < a_.limit) return add_member(slot);
    unlink(slot);
    retire(slot);
  }

  void give_back(int64_t slot) const {
    drop_holder(slot);
    order::put(&a_.costs[slot], 0u);
    add_member(slot);
  }

  // Swaps two members, for a draw that sets aside what it has looked at.
  void swap_members(int64_t i, int64_t j) const {
    int64_t at_i = member(i), at_j = member(j);
    if (i == j || at_i < 0 || at_j < 0) return;
    put_member(i, at_j);
    put_member(j, at_i);
  }

  // No record is left.
  void clear() const {
    for (int64_t slot = 0; slot < capacity_; ++slot) forget(slot);
    clear_lists();
  }

  // Everything about a slot that holds no record and is not to be filled.
  void forget(int64_t slot) const {
    order::put(&a_.counts[slot], 0u);
    order::put(&a_.holders[slot], 0u);
    order::put(&a_.costs[slot], 0u);
  }

  // The lists anew. `records`: slots that hold a record, consumed or not; `empty`: those under a live ticket without one.
  void rebuild(std::vector<int64_t> records, const std::vector<int64_t>& empty) const {
    std::sort(records.begin(), records.end(), [&](int64_t a, int64_t b) { return arrival(a) < arrival(b); });
    bool taken = order::peek(&block_.moving) != kNotTaken;
    clear_lists();
    for (int64_t slot : empty) {
      forget(slot);
      retire(slot);
    }
    for (int64_t slot : records) {
      if (is_consumed(slot)) {
        order::put(&a_.holders[slot], 0u);
        unmark(slot);
        if (refills_) queue(slot);
        continue;
      }
      append(slot);
      if (order::peek(&a_.costs[slot]) & kMovingBit) {
        unmark(slot);
        if (!taken) order::put(&a_.holders[slot], 0u);
      }
      if (holder(slot)) {
        count_holder(slot, 1);
      } else {
        add_member(slot);
      }
    }
  }

 private:
  int64_t bounded(int64_t count) const { return count < 0 ? 0 : count < capacity_ ? count : capacity_; }
  int64_t slot_or_none(int64_t slot) const { return slot >= 0 && slot < capacity_ ? slot : -1; }
  int64_t linked(const int64_t* link) const {
    int64_t slot = order::peek(link);
    return slot > 0 ? slot_or_none(slot - 1) : -1;
  }
  static int64_t distance(int64_t from, int64_t to) {
    return static_cast<int64_t>(static_cast<uint64_t>(to) - static_cast<uint64_t>(from));
  }
  int64_t place_of(int64_t number) const {
    return static_cast<int64_t>(static_cast<uint64_t>(number) % static_cast<uint64_t>(capacity_));
  }
  int64_t arrival(int64_t slot) const { return order::peek(&a_.arrivals[slot]); }
  int64_t next_number() const { return order::bump(&block_.arrivals, int64_t{1}); }

  void put_member(int64_t position, int64_t slot) const {
    order::put(&a_.members[position], slot);
    order::put(&a_.places[slot], position + 1);
  }

  void add_member(int64_t slot) const {
    int64_t count = members();
    if (may_be_drawn(slot) || count == capacity_) return;
    put_member(count, slot);
    order::put(&block_.members, count + 1);
  }

  void drop_member(int64_t slot) const {
    if (!may_be_drawn(slot)) return;
    int64_t position = order::peek(&a_.places[slot]) - 1;
    order::put(&a_.places[slot], int64_t{0});
    int64_t end = members() - 1;
    if (end < 0) return;
    int64_t moved = member(end);
    if (moved >= 0 && position < end) put_member(position, moved);
    order::put(&block_.members, end);
  }

  void drop_holder(int64_t slot) const {
    if (holder(slot) == 0) return;
    order::put(&a_.holders[slot], 0u);
    count_holder(slot, -1);
  }

  void count_holder(int64_t slot, int64_t sign) const {
    order::put(&block_.held, order::peek(&block_.held) + sign);
    order::put(&block_.pending, order::peek(&block_.pending) + sign * static_cast<int64_t>(cost(slot)));
  }

  void append(int64_t slot) const {
    int64_t end = last();
    order::put(&a_.previous[slot], end + 1);
    order::put(&a_.next[slot], int64_t{0});
    order::put(end >= 0 ? &a_.next[end] : &block_.first, slot + 1);
    order::put(&block_.last, slot + 1);
  }

  void unlink(int64_t slot) const {
    int64_t back = before(slot), on = after(slot);
    if (back < 0 && on < 0 && first() != slot) return;
    order::put(back >= 0 ? &a_.next[back] : &block_.first, on + 1);
    order::put(on >= 0 ? &a_.previous[on] : &block_.last, back + 1);
    order::put(&a_.previous[slot], int64_t{0});
    order::put(&a_.next[slot], int64_t{0});
  }

  // A slot whose record is gone.
  void retire(int64_t slot) const {
    order::put(&a_.counts[slot], a_.limit);
    order::put(&a_.arrivals[slot], next_number());
    if (refills_) queue(slot);
  }

  void queue(int64_t slot) const {
    if (freed() == capacity_) return;
    int64_t number = order::peek(&block_.freed_tail);
    order::put(&a_.freed[place_of(number)], slot);
    order::put(&a_.places[slot], -1 - number);
    order::put(&block_.freed_tail, number + 1);
  }

  void clear_lists() const {
    for (int64_t slot = 0; slot < capacity_; ++slot) {
      order::put(&a_.places[slot], int64_t{0});
      order::put(&a_.next[slot], int64_t{0});
      order::put(&a_.previous[slot], int64_t{0});
    }
    for (int64_t* word : {&block_.members, &block_.held, &block_.pending, &block_.first, &block_.last})
      order::put(word, int64_t{0});
    order::put(&block_.freed_head, order::peek(&block_.freed_tail));
    order::put(&block_.moving, uint64_t{kNothingMoves});
  }

  ConsumptionBlock& block_;
  const ConsumptionArrays& a_;
  int64_t capacity_;
  bool refills_;
};

}  // namespace shmrb
