// The redo journal beside a lock. A change of several words under the lock is written down, announced, made, and struck
// out; whoever takes the lock over from a dead owner makes it again, so it happens wholly or not at all.
#pragma once

#include <cstring>
#include <initializer_list>

#include "view.h"

namespace shmrb {

struct Store {
  void* word;  // an 8-byte word in the ctl file
  uint64_t value;
};

inline uint64_t bits_of(double value) {
  uint64_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

inline void apply_journal(const View& view, JournalBlock& journal) {
  auto* base = reinterpret_cast<uint8_t*>(view.control);
  uint64_t ctl_bytes = reinterpret_cast<uint8_t*>(view.lanes + view.lane_count) - base;
  uint64_t count = order::observe(&journal.count);
  if (count > sizeof journal.entries / sizeof journal.entries[0]) count = 0;  // no protocol step writes that
  for (uint64_t i = 0; i < count; ++i) {
    uint64_t offset = order::peek(&journal.entries[i].offset);
    if (offset % 8 != 0 || offset >= ctl_bytes) continue;
    order::publish(reinterpret_cast<uint64_t*>(base + offset), order::peek(&journal.entries[i].value));
    stopping::at(stopping::kEmptyMidApply);
  }
  order::publish(&journal.count, uint64_t{0});
}

// REQUIRES: the lock that `journal` belongs to is held; at most seven stores, made in their order.
inline void change(const View& view, JournalBlock& journal, std::initializer_list<Store> stores) {
  uint64_t count = 0;
  for (const Store& store : stores) {
    JournalEntry& entry = journal.entries[count++];
    order::put(&entry.offset,
               static_cast<uint64_t>(static_cast<uint8_t*>(store.word) - reinterpret_cast<uint8_t*>(view.control)));
    order::put(&entry.value, store.value);
  }
  order::publish(&journal.count, count);
  stopping::at(stopping::kEmptyJournalled);
  apply_journal(view, journal);
}

}  // namespace shmrb
