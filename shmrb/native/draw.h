// Prioritised draws and priority updates. A draw walks the tree under the control lock and reads each slot's word there;
// the gathered record must show the same word, or it is drawn again. Draws are independent: batches come out in no order.
#pragma once

#include "read.h"
#include "update.h"

namespace shmrb {

constexpr int kRoundsUnderLock = 8;

// One row's draw while the lock is held: a whole record, or none.
inline bool accept_draw(const View& view, const Batch& batch, Scratch& scratch, uint32_t row, double* masses) {
  int64_t slot = batch.index[row];
  uint64_t word = order::observe(&view.words[slot]);
  if (!word_whole(word) || !ticket_is_live(view, slot)) return false;
  scratch.words[row] = word;
  masses[row] = view.tree.leaf(slot).mass;
  return true;
}

// A draw that landed on a slot in a dead client's hands frees it, so that it loses its mass. The living owner otherwise.
inline uint32_t resolve_busy(const View& view, int64_t slot) {
  uint32_t owner = order::peek(&view.owners[slot]);
  if (owner == 0 || view.liveness.alive(owner)) return owner;
  if (claim_slot(view, slot) == 0) free_slot(view, slot);
  return 0;
}

// REQUIRES: the control lock is held. Draws all pending rows; those that found no whole record stay in `failed`. value and
// who: a slot in the way and its living owner.
inline Outcome draw_by_mass(const View& view, Random& random, const Batch& batch, Scratch& scratch, double* masses,
                            float* least, std::vector<uint32_t>& failed) {
  Outcome drawn;
  std::vector<double> targets(scratch.pending.size());
  std::vector<int64_t> slots(scratch.pending.size());
  failed = scratch.pending;
  for (int round = 0; round < kRoundsUnderLock && !failed.empty(); ++round) {
    settle_holes(view, true);  // a record that died, in the last round too, loses its mass first
    double total = view.tree.total();
    if (!(total > 0)) return {live_records(view) > 0 ? kNoMass : kEmpty, 0, kNothing, 0, 0};
    *least = view.tree.least();
    targets.resize(failed.size());
    slots.resize(failed.size());
    for (double& target : targets) target = random.unit() * total;
    view.tree.locate(targets.data(), static_cast<int64_t>(targets.size()), slots.data());
    for (int64_t slot : slots) __builtin_prefetch(&view.words[slot]);
    size_t open = 0;
    for (size_t k = 0; k < failed.size(); ++k) {
      uint32_t row = failed[k];
      batch.index[row] = slots[k];
      if (accept_draw(view, batch, scratch, row, masses)) continue;
      drawn.value = slots[k];
      drawn.who = resolve_busy(view, slots[k]);
      failed[open++] = row;
    }
    failed.resize(open);
  }
  return drawn;
}

// Draws with probability mass / sum of masses. `weights`: (mass / least mass) ^ -beta, at most 1.
inline Outcome draw_prioritized(const View& view, Random& random, const Batch& batch, float* weights,
                                int64_t deadline_ns) {
  Scratch& scratch = Scratch::of_thread();
  scratch.words.resize(batch.count);
  scratch.pending.resize(batch.count);
  std::iota(scratch.pending.begin(), scratch.pending.end(), 0u);
  std::vector<double> masses(batch.count);
  std::vector<float> leasts(batch.count);
  std::vector<uint32_t> failed;
  int64_t redraws = 0;
  OwnerNap nap;
  while (!scratch.pending.empty()) {
    size_t before = scratch.pending.size();
    Outcome drawn;
    {
      Held held(view, view.control->control_lock, deadline_ns);
      if (!held) return blocked_on(kControlLock, held.who());
      float least = 0;
      drawn = draw_by_mass(view, random, batch, scratch, masses.data(), &least, failed);
      for (uint32_t row : scratch.pending) leasts[row] = least;
    }
    if (drawn.status != kOk) return drawn;
    if (!failed.empty()) {
      std::vector<uint32_t> found;
      std::set_difference(scratch.pending.begin(), scratch.pending.end(), failed.begin(), failed.end(),
                          std::back_inserter(found));
      scratch.pending.swap(found);
    }
    copy_and_check(view, batch, scratch);
    scratch.pending.insert(scratch.pending.end(), failed.begin(), failed.end());
    std::sort(scratch.pending.begin(), scratch.pending.end());
    redraws += static_cast<int64_t>(scratch.pending.size());
    if (scratch.pending.empty()) break;
    if (scratch.pending.size() == before && monotonic_ns() >= deadline_ns) return blocked_on(kSlotOwner, drawn.who);
    if (drawn.who != 0) nap.rest(view, drawn.value, drawn.who, deadline_ns);
  }
  double beta = order::peek_value(&priorities_of(view).beta);
  for (int64_t row = 0; row < batch.count; ++row) {
    float weight = std::pow(static_cast<float>(masses[row] / leasts[row]), static_cast<float>(-beta));
    weights[row] = weight < 1 ? weight : 1.0f;
  }
  return {kOk, redraws, kNothing, 0, 0};
}

// Charge, draw by priority, settle.
inline Outcome sample_prioritized(const View& view, Random random, const Batch& batch, float* weights, int64_t cost,
                                  int64_t deadline_ns) {
  if (!view.has(kPriorities)) return {kCorrupt, 0, kNothing, 0, 0};
  if (!view.acts()) return {kReadOnly, 0, kNothing, 0, 0};
  if (!view.is_ready()) return {kDead, 0, kNothing, 0, 0};
  Outcome charged = charge(view, cost, deadline_ns);
  if (charged.status != kOk) return charged;
  Outcome drawn = draw_prioritized(view, random, batch, weights, deadline_ns);
  bool nothing_legal = drawn.status == kEmpty || drawn.status == kNoMass;
  drawn.wake |= settle_charge(view, charged.value, drawn.status == kOk, nothing_legal);
  if (drawn.status == kOk) count_sample(view, batch.count, drawn.value);
  return drawn;
}

// Whether the slot holds a record that a handle can name. A first write in flight already bears its own generation.
inline bool holds_record(const View& view, int64_t slot, uint64_t word) {
  bool written = word_generation(word) != 0 && !word_void(word) && !(word_busy(word) && word_revision(word) == 0);
  return written && ticket_is_live(view, slot);
}

// The leaves that these priorities give, or the first row that is impossible. -1: none is.
inline int64_t make_leaves(const PriorityBlock& block, int64_t count, const float* raw, std::vector<Leaf>& leaves) {
  leaves.resize(count);
  for (int64_t i = 0; i < count; ++i) {
    leaves[i] = {raw[i], mass_of(block, raw[i])};
    if (!is_possible(leaves[i])) return i;
  }
  return -1;
}

// New priorities for records. `generation` null: whatever record is live. Rows whose record is gone are stale; of several
// rows for one record the last counts. value: rows updated, or with kRefused the first impossible row.
inline Outcome update_priorities(const View& view, int64_t count, const int64_t* index, const int64_t* generation,
                                 const float* raw, uint8_t* verdicts, int64_t deadline_ns) {
  if (!view.has(kPriorities)) return {kCorrupt, 0, kNothing, 0, 0};
  const PriorityBlock& block = priorities_of(view);
  std::vector<Leaf> leaves;
  double alpha = order::peek_value(&block.alpha);
  int64_t impossible = make_leaves(block, count, raw, leaves);  // powers are slow: before the lock
  if (impossible >= 0) {
    view.count(kRefusedPriorities, 1);
    return {kRefused, impossible, kNothing, 0, 0};
  }
  Held held(view, view.control->control_lock, deadline_ns);
  if (!held) return blocked_on(kControlLock, held.who());
  if (!view.is_ready()) return {kDead, 0, kNothing, 0, 0};
  if (alpha != order::peek_value(&block.alpha)) {
    impossible = make_leaves(block, count, raw, leaves);
    if (impossible >= 0) return {kRefused, impossible, kNothing, 0, 0};
  }
  for (int64_t i = 0; i < count; ++i) {
    if (!view.in_range(index[i])) continue;
    __builtin_prefetch(&view.words[index[i]]);
    view.tree.prefetch(index[i]);
  }
  std::vector<int64_t> slots;
  slots.reserve(count);
  for (int64_t i = 0; i < count; ++i) {
    int64_t slot = index[i];
    verdicts[i] = kStale;
    if (!view.in_range(slot)) continue;
    uint64_t word = order::observe(&view.words[slot]);
    auto stamp = static_cast<int64_t>(word_generation(word)) - 1;
    if (!holds_record(view, slot, word) || (generation && generation[i] != stamp)) continue;
    verdicts[i] = kUpdated;
    leaves[slots.size()] = leaves[i];
    slots.push_back(slot);
  }
  auto updated = static_cast<int64_t>(slots.size());
  if (updated > 0) set_priorities(view, slots, leaves);
  held.let_go();
  if (generation) {
    view.count(kRowsUpdated, updated);
    view.count(kStaleRows, count - updated);
  } else {
    view.count(kUncheckedRows, count);
  }
  return {kOk, updated, kNothing, 0, 0};
}

// Exponents for every later draw; NaN leaves one as it is. Another alpha changes every mass. kRefused: some record's mass
// would not be finite.
inline Outcome set_exponents(const View& view, double alpha, double beta, int64_t deadline_ns) {
  if (!view.has(kPriorities)) return {kCorrupt, 0, kNothing, 0, 0};
  Held held(view, view.control->control_lock, deadline_ns);
  if (!held) return blocked_on(kControlLock, held.who());
  PriorityBlock& block = priorities_of(view);
  if (!std::isnan(alpha) && alpha != order::peek_value(&block.alpha)) {
    float greatest = default_priority(block);  // no record has more
    if (!is_possible({greatest, mass_of(greatest, order::peek_value(&block.eps), alpha)}))
      return {kRefused, 0, kNothing, 0, 0};
    Disagreeing disagreeing(view);
    order::put_value(&block.alpha, alpha);
    rebuild_tree(view);
  }
  if (!std::isnan(beta)) order::put_value(&block.beta, beta);
  return {};
}

}  // namespace shmrb
