// Priorities under the control lock: what a slot's leaf is when it is written, updated, voided or emptied, and drawing by
// mass. Reserve, leaf and sums change in one critical section; `dirty` stands while they disagree, and whoever takes the
// lock over then rebuilds the sums from the leaves.
#pragma once

#include <algorithm>

#include "view.h"

namespace shmrb {

inline PriorityBlock& priorities_of(const View& view) { return view.control->priorities; }

// mass = (raw + eps) ^ alpha; 0 ^ 0 is 1, so that alpha 0 draws every record alike.
inline float mass_of(float raw, double eps, double alpha) {
  return static_cast<float>(std::pow(static_cast<double>(raw) + eps, alpha));
}

inline float mass_of(const PriorityBlock& block, float raw) {
  return mass_of(raw, order::peek_value(&block.eps), order::peek_value(&block.alpha));
}

inline bool is_possible(Leaf leaf) { return std::isfinite(leaf.raw) && leaf.raw >= 0 && std::isfinite(leaf.mass); }

inline bool priority_is_possible(const PriorityBlock& block, float raw) {
  return is_possible({raw, mass_of(block, raw)});
}

// What a record without a priority of its own enters with: the greatest seen, 1 before there is one.
inline float default_priority(const PriorityBlock& block) {
  auto greatest = static_cast<float>(order::peek_value(&block.max_priority));
  return greatest > 0 ? greatest : 1.0f;
}

inline void note_greatest(PriorityBlock& block, int64_t slot, float raw) {
  if (raw < order::peek_value(&block.max_priority)) return;
  order::put_value(&block.max_priority, static_cast<double>(raw));
  order::put(&block.max_slot, slot);
}

// Only with `within_buffer`, when the record that was the greatest is gone or has become smaller.
inline void find_greatest(const View& view) {
  PriorityBlock& block = priorities_of(view);
  order::put_value(&block.max_priority, 0.0);
  for (int64_t slot = 0; slot < view.capacity; ++slot) {
    Leaf leaf = view.tree.leaf(slot);
    if (leaf.mass > 0) note_greatest(block, slot, leaf.raw);
  }
}

// Between two states in which words, leaves and sums, or words and what consumption keeps, agree.
class Disagreeing {
 public:
  explicit Disagreeing(const View& view)
      : lock_(view.has(kPriorities) || view.has(kConsumption) ? &view.control->control_lock : nullptr) {
    if (lock_ && order::peek(&lock_->dirty)) lock_ = nullptr;  // within another change, which says when all is well
    if (lock_) order::publish(&lock_->dirty, 1u);
  }
  ~Disagreeing() {
    if (lock_) order::publish(&lock_->dirty, 0u);
  }
  Disagreeing(const Disagreeing&) = delete;
  Disagreeing& operator=(const Disagreeing&) = delete;

 private:
  LockBlock* lock_;
};

// REQUIRES for all below: the control lock is held.

inline void clear_leaf(const View& view, int64_t slot) { view.tree.set_leaf(slot, {0, 0}); }

// Is `slot` one of `count` slots of a lane from `position` on?
inline bool overwrites(const View& view, int64_t slot, int64_t first_slot, int64_t position, int64_t count) {
  if (!view.in_range(slot) || view.lane_of(slot) != view.lane_of(first_slot)) return false;
  int64_t ahead = slot - first_slot - position;
  return (ahead < 0 ? ahead + view.lane_capacity : ahead) < count;
}

// Every mass anew from its raw priority; slots without a live record have none.
inline void rebuild_tree(const View& view) {
  PriorityBlock& block = priorities_of(view);
  for (int64_t slot = 0; slot < view.capacity; ++slot) {
    uint64_t word = order::observe(&view.words[slot]);
    bool counts = word_generation(word) != 0 && !word_void(word) && ticket_is_live(view, slot);
    float raw = counts ? view.tree.leaf(slot).raw : 0;
    if (!priority_is_possible(block, raw)) raw = 0;
    view.tree.set_leaf(slot, counts ? Leaf{raw, mass_of(block, raw)} : Leaf{0, 0});
  }
  view.tree.settle_all();
  if (order::peek(&block.within_buffer)) find_greatest(view);
}

inline void empty_tree(const View& view) {
  for (int64_t slot = 0; slot < view.capacity; ++slot) clear_leaf(view, slot);
  view.tree.settle_all();
  order::put_value(&priorities_of(view).max_priority, 0.0);
}

// Leaves of new records in a lane, from `position` on. `raw` null: the default for all, which is then the greatest seen,
// as if it had been given.
inline void enter_leaves(const View& view, int64_t first_slot, int64_t position, int64_t count, const float* raw) {
  PriorityBlock& block = priorities_of(view);
  auto slot_of = [&](int64_t i) { return first_slot + (position + i) % view.lane_capacity; };
  if (order::peek(&block.within_buffer) && overwrites(view, order::peek(&block.max_slot), first_slot, position, count)) {
    for (int64_t i = 0; i < count; ++i) clear_leaf(view, slot_of(i));  // what is replaced counts no more
    find_greatest(view);
  }
  float common = default_priority(block);
  float common_mass = mass_of(block, common);
  for (int64_t i = 0; i < count; ++i) {
    Leaf leaf = raw ? Leaf{raw[i], mass_of(block, raw[i])} : Leaf{common, common_mass};
    view.tree.set_leaf(slot_of(i), leaf);
    if (raw || i == count - 1) note_greatest(block, slot_of(i), leaf.raw);
    if (i == 0) stopping::at(stopping::kMidLeaves);
  }
  int64_t before_wrap = std::min(count, view.lane_capacity - position);
  view.tree.settle_range(first_slot + position, before_wrap);
  if (before_wrap < count) view.tree.settle_range(first_slot, count - before_wrap);
}

// Takes the mass of these slots away.
inline void clear_leaves(const View& view, std::vector<int64_t>& slots) {
  if (slots.empty()) return;
  Disagreeing disagreeing(view);
  bool greatest_gone = false;
  for (int64_t slot : slots) {
    greatest_gone |= slot == order::peek(&priorities_of(view).max_slot);
    clear_leaf(view, slot);
  }
  view.tree.settle(slots);
  if (order::peek(&priorities_of(view).within_buffer) && greatest_gone) find_greatest(view);
}

// Sets leaves; of several rows for one slot the last counts. `slots` and `leaves` have the same length.
inline void set_priorities(const View& view, std::vector<int64_t>& slots, const std::vector<Leaf>& leaves) {
  PriorityBlock& block = priorities_of(view);
  Disagreeing disagreeing(view);
  bool greatest_shrunk = false;
  for (size_t i = 0; i < slots.size(); ++i) {
    float raw = leaves[i].raw;
    greatest_shrunk |= slots[i] == order::peek(&block.max_slot) && raw < order::peek_value(&block.max_priority);
    view.tree.set_leaf(slots[i], leaves[i]);
    note_greatest(block, slots[i], raw);
    if (i == 0) stopping::at(stopping::kMidLeaves);
  }
  view.tree.settle(slots);
  if (order::peek(&block.within_buffer) && greatest_shrunk) find_greatest(view);
}

}  // namespace shmrb
