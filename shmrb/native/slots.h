// Claiming slots and the changes of a slot word.
//
// Only the claimant of a slot touches its word or its record. A claim is a compare-and-swap of the owner word from 0, or
// from the token of a client that is proven dead; then, if the word is busy, the half-written record is voided before
// anything else. A release stores the word first and the owner second, both with release order: a sweep that finds no
// owner finds the final word.
#pragma once

#include "locking.h"
#include "view.h"

namespace shmrb {

// Somebody voided a live record of this slot's lane: `holes` must be counted anew. Set before and after the word is
// stored, so that a count in between is repeated.
inline void doubt_holes(const View& view, int64_t slot) {
  order::publish(&view.lanes[view.lane_of(slot)].holes_stale, 1u);
}

// Did the write that made this slot busy die before the head counted it? Asked before the claim: once nobody dead owns
// them any more, `marked` is taken back. Marked first: what it was set to before is at most the head.
inline bool is_uncounted(const View& view, int64_t slot) {
  const LaneBlock& lane = view.lanes[view.lane_of(slot)];
  if (view.has(kConsumption)) {
    // A write that fills queued slots counts its rows by journal: once that is announced it will be made.
    if (order::observe(&lane.journal.count) != 0) return false;
    if (view.has(kRefills) && view.consumption().is_queued(slot)) return true;
  }
  int64_t marked = order::observe(&lane.marked);
  int64_t head = order::observe(&lane.head);
  if (!is_ticket(head) || marked <= head) return false;
  int64_t ahead = (slot - head) % view.lane_capacity;  // a lane's first slot is a multiple of its capacity
  return (ahead < 0 ? ahead + view.lane_capacity : ahead) < marked - head;
}

// REQUIRES: the slot is claimed by the caller, its word was busy in a dead client's hands.
inline void void_slot(const View& view, int64_t slot, uint64_t word, bool uncounted) {
  doubt_holes(view, slot);
  order::publish(&view.words[slot], make_word(word_generation(word) + 1, 0, kVoid64));
  doubt_holes(view, slot);
  view.note(kVoidedRecords);
  if (word_revision(word) == 0) {  // a first write that was never published: it was counted as an insert
    view.note(kReclaimedRecords);
    if (view.has(kLimiter) && !uncounted) order::bump(&view.control->limiter.uncounted, int64_t{1});
  }
}

// 0 when the slot is the caller's now; else the token of the living owner.
inline uint32_t claim_slot(const View& view, int64_t slot) {
  uint32_t* owner = &view.owners[slot];
  for (;;) {
    uint32_t current = 0;
    if (order::claim(owner, current, view.token)) return 0;
    if (current == view.token || view.liveness.alive(current)) return current;
    bool uncounted = is_uncounted(view, slot);
    if (!order::claim(owner, current, view.token)) continue;
    stopping::at(stopping::kRecovering);
    uint64_t word = order::observe(&view.words[slot]);
    if (word_busy(word)) {
      void_slot(view, slot, word, uncounted);
    } else {
      doubt_holes(view, slot);  // the dead one may have voided it and died before saying so
      view.note(kSlotsFreed);
    }
    return 0;
  }
}

inline void free_slot(const View& view, int64_t slot) { order::publish(&view.owners[slot], 0u); }

// Says that a client has slots in hand which its `in_flight` does not count: in place, refilled, or being reserved. If it
// dies over them, the sizes must be counted by the words.
class Changing {
 public:
  explicit Changing(const View& view) : count_(&view.me()->changing) { order::bump(count_, 1u); }
  ~Changing() { order::bump(count_, ~0u); }
  Changing(const Changing&) = delete;
  Changing& operator=(const Changing&) = delete;

 private:
  uint32_t* count_;
};

// Sleeps on a living owner's word: releases wake nobody, since a claim lasts microseconds.
class OwnerNap {
 public:
  void rest(const View& view, int64_t slot, uint32_t owner, int64_t deadline_ns) {
    int64_t left = deadline_ns - monotonic_ns();
    if (left > 0) futex_wait(&view.owners[slot], owner, nap_ns_ < left ? nap_ns_ : left);
    if (nap_ns_ < 8'000'000) nap_ns_ *= 2;
  }

 private:
  int64_t nap_ns_ = 100'000;
};

// The generation that a write gives: one more, one more again when the record under it was emptied away, and never
// below the base that keeps dropped buffers' handles stale.
inline uint64_t next_generation(const View& view, uint64_t word, bool emptied) {
  uint64_t old = word_generation(word);
  uint64_t next = old + (emptied && old != 0 ? 2 : 1);
  uint64_t base = view.control->generation_base;
  return next < base ? base : next;
}

// What `generations_of` says: −1 never written; an emptied slot reads one higher than its last record did. While a first
// write is in flight it still says what it said before.
inline int64_t public_generation(const View& view, int64_t slot) {
  uint64_t word;
  bool live;
  do {  // the window must be the word's: a write marks its slots before it moves the head
    word = order::observe(&view.words[slot]);
    live = ticket_is_live(view, slot);
  } while (order::observe(&view.words[slot]) != word);
  uint64_t generation = word_generation(word);
  if (generation == 0) return -1;
  if (word_busy(word) && word_revision(word) == 0) {
    uint64_t base = view.control->generation_base;
    return generation <= (base > 1 ? base : 1) ? -1 : static_cast<int64_t>(generation) - 2;
  }
  return static_cast<int64_t>(generation) - (live ? 1 : 0);
}

}  // namespace shmrb
