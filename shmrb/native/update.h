// Changing records in place: late results and setters. All slots of the call are claimed first, in ascending order, so
// two callers cannot hold what the other wants; then row by row, with one busy row at a time, so that a kill costs one
// record.
#pragma once

#include <algorithm>
#include <numeric>
#include <vector>

#include "read.h"
#include "versions.h"

namespace shmrb {

enum RowVerdict : uint8_t { kStale = 0, kUpdated = 1, kVersionRejected = 2 };

// The versions that come with a patch, and where the stored ones lie.
struct Versions {
  const uint8_t* rows = nullptr;  // null: the versions are left alone
  uint8_t* stored = nullptr;
  size_t bytes = 0;
  VersionKind kind = kSignedVersion;

  explicit operator bool() const { return rows; }
  VersionKey of_row(uint32_t row) const { return version_key(rows + row * bytes, bytes, kind); }
  VersionKey of_slot(int64_t slot) const { return version_key(stored + slot * bytes, bytes, kind); }
  void store(uint32_t row, int64_t slot) const {
    copy_row(stored + slot * bytes, rows + row * bytes, bytes);
  }
};

// `columns[k]` is the position of a schema column, `values[k]` its new rows. `generation` null: whatever record is live
// (setters).
struct Patch {
  int64_t count;
  const int64_t* index;
  const int64_t* generation;
  std::vector<uint32_t> columns;
  std::vector<const uint8_t*> values;
  Versions versions;
  bool require_newer;
  uint8_t* verdicts;
};

// Fetches what a change of this slot will write.
inline void prefetch_record(const View& view, const Patch& patch, int64_t slot) {
  __builtin_prefetch(&view.words[slot], 1);
  for (uint32_t c : patch.columns)
    if (const Column& column = view.columns[c]; column.base) __builtin_prefetch(column.base + slot * column.row_bytes, 1);
}

// Claims every slot named by `rows`, which are sorted by slot. 0, or the living owner of `*at`; then nothing is claimed.
inline uint32_t claim_rows(const View& view, const Patch& patch, const std::vector<uint32_t>& rows, int64_t* at) {
  for (size_t i = 0; i < rows.size(); ++i) {
    int64_t slot = patch.index[rows[i]];
    if (i > 0 && patch.index[rows[i - 1]] == slot) continue;
    prefetch_record(view, patch, slot);
    uint32_t owner = claim_slot(view, slot);
    if (owner == 0) continue;
    for (size_t k = 0; k < i; ++k) {
      int64_t claimed = patch.index[rows[k]];
      if (k == 0 || patch.index[rows[k - 1]] != claimed) free_slot(view, claimed);
    }
    *at = slot;
    return owner;
  }
  return 0;
}

// REQUIRES: the slot is claimed. Writes one row over a live record.
inline void write_in_place(const View& view, const Patch& patch, uint32_t row, int64_t slot, uint64_t word) {
  uint64_t revision = (word_revision(word) + 1) & kRevisionMask;
  if (revision == 0) revision = 1;  // revision 0 says: a first write
  uint64_t changed = make_word(word_generation(word), revision, 0);
  order::publish(&view.words[slot], changed | kBusy64);
  stopping::at(stopping::kUpdateMarked);
  order::before_payload();
  for (size_t k = 0; k < patch.columns.size(); ++k) {
    const Column& column = view.columns[patch.columns[k]];
    if (column.base)
      copy_row(column.base + slot * column.row_bytes, patch.values[k] + row * column.row_bytes, column.row_bytes);
    if (k == 0) stopping::at(stopping::kUpdateMidPayload);
  }
  if (patch.versions) patch.versions.store(row, slot);
  stopping::at(stopping::kUpdateBeforeCommit);
  order::publish(&view.words[slot], changed);
}

// Whether a row's version beats the stored one.
inline bool is_newer(const Patch& patch, uint32_t row, int64_t slot) {
  VersionKey incoming = patch.versions.of_row(row), stored = patch.versions.of_slot(slot);
  if (!incoming.comparable || !stored.comparable) return false;
  return patch.require_newer ? incoming.order > stored.order : incoming.order >= stored.order;
}

// REQUIRES: the slot is claimed. `rows` are the call's rows for this slot, in input order. Of those whose handle is current
// the one with the highest version wins, the last one among equals; without versions the last.
inline void update_slot(const View& view, const Patch& patch, const uint32_t* rows, size_t count, int64_t slot) {
  uint64_t word = order::peek(&view.words[slot]);
  bool live = word_whole(word) && ticket_is_live(view, slot);
  auto stamp = static_cast<int64_t>(word_generation(word)) - 1;
  uint32_t winner = 0;
  bool found = false;
  for (size_t i = 0; i < count; ++i) {
    uint32_t row = rows[i];
    bool current = live && (!patch.generation || patch.generation[row] == stamp);
    patch.verdicts[row] = current ? (patch.versions ? kVersionRejected : kUpdated) : kStale;
    if (!current) continue;
    if (!found || !patch.versions || patch.versions.of_row(row).order >= patch.versions.of_row(winner).order)
      winner = row;
    found = true;
  }
  if (!found || (patch.versions && !is_newer(patch, winner, slot))) return;
  patch.verdicts[winner] = kUpdated;
  write_in_place(view, patch, winner, slot, word);
}

// The rows whose slot exists, by slot, those of one slot in input order: counted byte by byte, which is stable and takes
// a third of the time of comparing. The others are stale.
inline std::vector<uint32_t> rows_by_slot(const View& view, const Patch& patch) {
  std::vector<uint32_t> rows;
  rows.reserve(patch.count);
  bool sorted = true;
  for (int64_t i = 0; i < patch.count; ++i) {
    int64_t slot = patch.index[i];
    patch.verdicts[i] = kStale;
    if (!view.in_range(slot)) continue;
    __builtin_prefetch(&view.owners[slot], 1);
    sorted = sorted && (rows.empty() || patch.index[rows.back()] <= slot);
    rows.push_back(static_cast<uint32_t>(i));
  }
  std::vector<uint32_t> placed(rows.size());
  for (int shift = 0; !sorted && (view.capacity - 1) >> shift > 0; shift += 8) {
    size_t starts[257] = {};
    auto digit = [&](uint32_t row) { return static_cast<size_t>(patch.index[row] >> shift & 255); };
    for (uint32_t row : rows) ++starts[digit(row) + 1];
    for (int d = 0; d < 256; ++d) starts[d + 1] += starts[d];
    for (uint32_t row : rows) placed[starts[digit(row)]++] = row;
    rows.swap(placed);
  }
  return rows;
}

// value: rows updated. Rows out of range are stale.
inline Outcome update(const View& view, const Patch& patch, int64_t deadline_ns) {
  std::vector<uint32_t> rows = rows_by_slot(view, patch);
  OwnerNap nap;
  int64_t busy = 0;
  Changing changing(view);
  while (uint32_t owner = claim_rows(view, patch, rows, &busy)) {
    if (monotonic_ns() >= deadline_ns) return blocked_on(kSlotOwner, owner);
    nap.rest(view, busy, owner, deadline_ns);
  }
  stopping::at(stopping::kUpdateClaimed);
  bool ready = view.is_ready();
  for (size_t i = 0; i < rows.size();) {
    int64_t slot = patch.index[rows[i]];
    size_t end = i + 1;
    while (end < rows.size() && patch.index[rows[end]] == slot) ++end;
    if (ready) update_slot(view, patch, &rows[i], end - i, slot);
    free_slot(view, slot);
    i = end;
  }
  if (!ready) return {kDead, 0, kNothing, 0, 0};
  int64_t updated = 0, rejected = 0;
  for (int64_t i = 0; i < patch.count; ++i) {
    updated += patch.verdicts[i] == kUpdated;
    rejected += patch.verdicts[i] == kVersionRejected;
  }
  if (patch.generation) {
    view.count(kRowsUpdated, updated);
    view.count(kStaleRows, patch.count - updated - rejected);
    view.count(kVersionsRejected, rejected);
  }
  return {kOk, updated, kNothing, 0, updated ? ring_records(view) : 0};
}

}  // namespace shmrb
