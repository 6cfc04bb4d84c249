// What a segment says about itself, as Python values: part of the binding. Looks without a lock, except where it says so.
#pragma once

#include <nanobind/nanobind.h>

#include <array>
#include <cstring>

#include "segment.h"

namespace shmrb {

namespace nb = nanobind;

// The runs of a lane as they stand, oldest first: (first ticket, records, number, ended). Voids and writes in flight cut.
inline nb::list runs(Segment& s, uint32_t lane_index) {
  nb::list result;
  std::vector<std::array<int64_t, 4>> found;
  {
    nb::gil_scoped_release free;
    Segment::Call counted(s);
    if (counted && lane_index < s.view.lane_count) found = list_runs(s.view, lane_index);
  }
  for (auto& [ticket, records, number, ended] : found) result.append(nb::make_tuple(ticket, records, number, ended != 0));
  return result;
}

// (runs, records of the shortest, of the longest, runs that were cut) over all lanes.
inline nb::tuple run_summary(Segment& s) {
  RunSummary summary;
  {
    nb::gil_scoped_release free;
    Segment::Call counted(s);
    if (counted) summary = summarize_runs(s.view);
  }
  return nb::make_tuple(summary.runs, summary.shortest, summary.longest, summary.cut);
}

// The tree as it stands, and what of it disagrees: for statistics, the doctor and tests.
inline nb::dict priorities(Segment& s) {
  nb::dict result;
  Segment::Call counted(s);
  const View& view = s.view;
  if (!counted || !view.has(kPriorities)) return result;
  const PriorityBlock& block = priorities_of(view);
  result["alpha"] = order::peek_value(&block.alpha);
  result["beta"] = order::peek_value(&block.beta);
  result["eps"] = order::peek_value(&block.eps);
  result["max_priority"] = order::peek_value(&block.max_priority);
  result["total"] = view.tree.total();
  result["least"] = view.tree.least();
  return result;
}

// What consumption counts, and whether its lists say what the words say.
inline nb::dict consumption(Segment& s) {
  nb::dict result;
  Segment::Call counted(s);
  if (!counted || !s.view.has(kConsumption)) return result;
  Consumption consumption = s.view.consumption();
  result["limit"] = s.view.consumed.limit;
  result["members"] = consumption.members();
  result["held"] = consumption.held();
  result["freed"] = consumption.freed();
  return result;
}

inline nb::list lanes(Segment& s) {
  nb::list result;
  Segment::Call counted(s);
  if (!counted) return result;
  for (uint32_t i = 0; i < s.view.lane_count; ++i) {
    const LaneBlock& lane = s.view.lanes[i];
    nb::dict row;
    row["head"] = order::peek(&lane.head);
    row["floor"] = order::peek(&lane.floor);
    row["written"] = order::peek(&lane.head) + order::peek(&lane.written_offset);
    row["lease"] = order::peek(&lane.lease);
    row["lock"] = order::peek(&lane.lock.word) & ~kWaitersBit;
    row["holes"] = order::peek(&lane.holes);
    row["next_run"] = order::peek(&lane.next_run);
    row["written_ns"] = order::peek(&lane.written_ns);
    result.append(row);
  }
  return result;
}

constexpr const char* kCounterNames[] = {"write_calls", "records_written", "sample_calls", "records_sampled",
                                         "redraws", "rows_updated", "stale_rows", "versions_rejected",
                                         "unchecked_updates", "refused_priorities", "blocked_ns", "take_overs",
                                         "overwritten_in_call"};
constexpr const char* kEventNames[] = {"voided_records", "reclaimed_records", "lock_take_overs", "clients_recovered",
                                       "slots_freed"};
constexpr int kNamedCounters = sizeof kCounterNames / sizeof *kCounterNames;
constexpr int kNamedEvents = sizeof kEventNames / sizeof *kEventNames;

// Sums over everybody who is or was attached, and the buffer's events.
inline nb::dict counters(Segment& s) {
  nb::dict result;
  Segment::Call counted(s);
  if (!counted) return result;
  const View& view = s.view;
  uint32_t high = order::peek(&view.control->clients_high);
  for (int c = 0; c < kNamedCounters; ++c) {
    uint64_t sum = order::peek(&view.control->retired[c]);
    for (uint32_t i = 0; i < high && i < view.max_clients; ++i) sum += order::peek(&view.clients[i].counters[c]);
    result[kCounterNames[c]] = sum;
  }
  for (int e = 0; e < kNamedEvents; ++e) result[kEventNames[e]] = order::peek(&view.control->events[e]);
  return result;
}

inline void count(Segment& s, int counter, uint64_t amount) {
  Segment::Call counted(s);
  if (counted && s.view.writable && counter >= 0 && counter < kNamedCounters)
    s.view.count(static_cast<Counter>(counter), amount);
}

inline nb::dict limiter(Segment& s) {
  nb::dict result;
  Segment::Call counted(s);
  if (!counted) return result;
  const LimiterBlock& l = s.view.control->limiter;
  double spi, low, high;
  uint64_t raw = order::peek(reinterpret_cast<const uint64_t*>(&l.samples_per_insert));
  std::memcpy(&spi, &raw, 8);
  raw = order::peek(reinterpret_cast<const uint64_t*>(&l.min_diff));
  std::memcpy(&low, &raw, 8);
  raw = order::peek(reinterpret_cast<const uint64_t*>(&l.max_diff));
  std::memcpy(&high, &raw, 8);
  result["enabled"] = order::peek(&l.enabled) != 0;
  result["lifted"] = order::peek(&l.lifted) != 0;
  result["inserts"] = counted_inserts(s.view);
  result["samples"] = order::peek(&l.samples);
  result["pending"] = s.view.has(kConsumption) ? s.view.consumption().pending() : 0;
  result["size"] = live_records(s.view);
  result["min_size"] = order::peek(&l.min_size);
  result["samples_per_insert"] = spi;
  result["min_diff"] = low;
  result["max_diff"] = high;
  result["opened_by"] = order::peek(&l.opened_by);
  result["opened_times"] = order::peek(&l.opened_times);
  return result;
}

inline nb::dict client_entry(const View& view, uint32_t slot, bool alive) {
  const ClientBlock& block = view.clients[slot];
  char name[sizeof block.name + 1] = {};
  for (size_t i = 0; i < sizeof block.name; ++i) name[i] = order::peek(&block.name[i]);
  nb::dict row;
  row["slot"] = slot;
  row["token"] = make_token(order::peek(&block.epoch), slot);
  row["pid"] = order::peek(&block.pid);
  row["role"] = order::peek(&block.role);
  row["name"] = nb::bytes(name, std::strlen(name));
  row["alive"] = alive;
  row["attached_ns"] = order::peek(&block.attached_ns);
  row["waiting_for"] = order::peek(&block.waiting_for);
  row["waiting_since_ns"] = order::peek(&block.waiting_since_ns);
  row["in_flight"] = order::peek(&block.in_flight);
  row["duties"] = order::peek(&block.duties);
  nb::dict numbers;
  for (int c = 0; c < kNamedCounters; ++c) numbers[kCounterNames[c]] = order::peek(&block.counters[c]);
  row["counters"] = numbers;
  return row;
}

// Clients whose entry is in use, and whether each lives.
inline nb::list clients(Segment& s) {
  nb::list result;
  Segment::Call counted(s);
  if (!counted) return result;
  uint32_t high = order::peek(&s.view.control->clients_high);
  for (uint32_t i = 0; i < high && i < s.view.max_clients; ++i) {
    if (order::observe(&s.view.clients[i].role) == 0) continue;
    result.append(client_entry(s.view, i, byte_state(s.view.liveness.probe, i) != ByteState::kFree));
  }
  return result;
}

inline nb::object client(Segment& s, uint32_t token) {
  Segment::Call counted(s);
  uint32_t slot = token_slot(token & ~kWaitersBit);
  if (!counted || slot >= s.view.max_clients) return nb::none();
  return client_entry(s.view, slot, s.view.liveness.alive(token & ~kWaitersBit));
}

struct FieldSpan {
  const char* name;
  size_t offset, size;
};

template <size_t N>
inline nb::dict describe(size_t size, const FieldSpan (&spans)[N]) {
  nb::dict fields;
  for (const FieldSpan& f : spans) fields[f.name] = nb::make_tuple(f.offset, f.size);
  nb::dict result;
  result["size"] = size;
  result["fields"] = fields;
  return result;
}

#define SPAN(type, field) \
  FieldSpan { #field, offsetof(type, field), sizeof(type::field) }

inline nb::dict abi() {
  nb::dict r;
  r["LockBlock"] = describe(sizeof(LockBlock), {SPAN(LockBlock, word), SPAN(LockBlock, dirty), SPAN(LockBlock, since_ns)});
  r["JournalBlock"] = describe(sizeof(JournalBlock), {SPAN(JournalBlock, count), SPAN(JournalBlock, entries)});
  r["BellBlock"] = describe(sizeof(BellBlock), {SPAN(BellBlock, semaphore), SPAN(BellBlock, futex)});
  using L = LimiterBlock;
  r["LimiterBlock"] = describe(
      sizeof(L), {SPAN(L, enabled), SPAN(L, lifted), SPAN(L, samples), SPAN(L, min_size), SPAN(L, samples_per_insert),
                  SPAN(L, min_diff), SPAN(L, max_diff), SPAN(L, uncounted), SPAN(L, lift_mark), SPAN(L, opened_by),
                  SPAN(L, opened_times)});
  using P = PriorityBlock;
  r["PriorityBlock"] = describe(sizeof(P), {SPAN(P, alpha), SPAN(P, beta), SPAN(P, eps), SPAN(P, max_priority),
                                            SPAN(P, max_slot), SPAN(P, within_buffer)});
  using Q = ConsumptionBlock;
  r["ConsumptionBlock"] = describe(
      sizeof(Q), {SPAN(Q, members), SPAN(Q, held), SPAN(Q, first), SPAN(Q, last), SPAN(Q, freed_head),
                  SPAN(Q, freed_tail), SPAN(Q, arrivals), SPAN(Q, holders_stale), SPAN(Q, moving),
                  SPAN(Q, pending)});
  using C = ControlBlock;
  r["ControlBlock"] = describe(
      sizeof(C), {SPAN(C, magic), SPAN(C, format), SPAN(C, state), SPAN(C, uuid), SPAN(C, generation_base),
                  SPAN(C, capacity), SPAN(C, lanes), SPAN(C, max_clients), SPAN(C, created_ns), SPAN(C, clean),
                  SPAN(C, clients_high), SPAN(C, boot), SPAN(C, control_lock), SPAN(C, empty_lock),
                  SPAN(C, records_bell), SPAN(C, room_bell), SPAN(C, limiter), SPAN(C, journal), SPAN(C, priorities),
                  SPAN(C, consumption), SPAN(C, events), SPAN(C, retired)});
  using B = ClientBlock;
  r["ClientBlock"] = describe(
      sizeof(B), {SPAN(B, epoch), SPAN(B, pid), SPAN(B, role), SPAN(B, waiting_for), SPAN(B, attached_ns),
                  SPAN(B, waiting_since_ns), SPAN(B, in_flight), SPAN(B, duties), SPAN(B, changing), SPAN(B, name),
                  SPAN(B, counters)});
  using N = LaneBlock;
  r["LaneBlock"] = describe(
      sizeof(N), {SPAN(N, lock), SPAN(N, lease), SPAN(N, last_writer), SPAN(N, next_run), SPAN(N, open_run),
                  SPAN(N, run_ended), SPAN(N, holes_stale), SPAN(N, holes), SPAN(N, written_ns),
                  SPAN(N, open_trajectory), SPAN(N, marked), SPAN(N, head), SPAN(N, floor), SPAN(N, written_offset),
                  SPAN(N, journal)});
  return r;
}

}  // namespace shmrb
