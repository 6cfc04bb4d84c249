// Batches of windows: anchors from a source, or given ones.
#pragma once

#include <memory>

#include "anchors.h"

namespace shmrb {

// Draws by chance before all records are looked at, and how many of them a look at all is worth.
constexpr int64_t kAnchorsByChance = 128;
constexpr int64_t kRecordsLookedAtADraw = 8;
constexpr int64_t kDrawsBetweenClocks = 1024;
constexpr int64_t kWordsFetchedAhead = 128;  // the hardware has noticed by then

// A slot that somebody holds: frees it when its owner is dead, else says who it is. 0: nobody.
inline uint32_t living_owner(const View& view, int64_t slot) {
  uint32_t owner = order::peek(&view.owners[slot]);
  if (owner == 0 || view.liveness.alive(owner)) return owner;
  if (view.acts() && claim_slot(view, slot) == 0) free_slot(view, slot);
  return 0;
}

class WindowDraw {
 public:
  WindowDraw(const View& view, const Unit& unit, AnchorSource& source, const WindowBatch& batch, Random& random,
             int64_t deadline_ns)
      : view_(view), source_(source), batch_(batch), random_(random), deadline_ns_(deadline_ns),
        expander_(view, unit, batch, Scratch::of_thread()), unit_(unit) {}

  // Draws windows until all are whole. kNoWindow: there are records, and no window fits anywhere.
  Outcome run() {
    std::vector<uint32_t> open(batch_.windows);
    std::iota(open.begin(), open.end(), 0u);
    std::vector<Anchor> anchors(batch_.windows);
    int64_t redraws = 0;
    for (;;) {
      for (uint32_t number : open) {
        anchors[number] = {};
        Outcome drawn = source_.draw(random_, &anchors[number]);
        if (drawn.status != kOk) return drawn;
        if (anchors[number].slot >= 0) expect(anchors[number].slot);
      }
      for (uint32_t number : open) {
        if (accept(anchors[number], number)) continue;
        Outcome placed = place(number);
        if (placed.status != kOk) return placed;
      }
      size_t before = open.size();
      expander_.copy(open);
      if (open.empty()) return {kOk, redraws, kNothing, 0, 0};
      redraws += static_cast<int64_t>(open.size());
      if (open.size() == before && monotonic_ns() >= deadline_ns_) return blocked_on(kNothing, 0);
      legal_.clear();
      source_.refresh();
    }
  }

 private:
  // Draws and expands the anchor of one window.
  Outcome place(uint32_t number) {
    int64_t tries = legal_.empty() ? draws_by_chance() : 1;
    for (int64_t i = 1; i <= tries; ++i) {
      Anchor anchor;
      Outcome drawn = legal_.empty() ? source_.draw(random_, &anchor) : source_.draw_among(random_, legal_, &anchor);
      if (drawn.status != kOk) return drawn;
      if (accept(anchor, number)) return {};
      if (i % kDrawsBetweenClocks == 0 && monotonic_ns() >= deadline_ns_) break;
    }
    return place_by_looking(number);
  }

  // The words around an anchor will be looked at.
  void expect(int64_t slot) const {
    int64_t from = std::max<int64_t>(slot - unit_.behind(), 0);
    int64_t to = std::min(slot + unit_.ahead() + 1, view_.capacity);
    for (int64_t i = from; i < to && i < from + kWordsFetchedAhead; i += 8) __builtin_prefetch(&view_.words[i]);
    for (int64_t i = from; i < to && i < from + kWordsFetchedAhead; i += 16) __builtin_prefetch(&view_.runs[i]);
  }

  int64_t draws_by_chance() const {
    return std::max(kAnchorsByChance, Population(view_).total() / kRecordsLookedAtADraw);
  }

  bool accept(const Anchor& anchor, uint32_t number) {
    if (anchor.slot < 0 || expander_.expand(anchor.slot, anchor.word, number) != Expander::kPlaced) return false;
    if (batch_.weights) batch_.weights[number] = anchor.weight;
    return true;
  }

  // Looks at every record; the call's later windows are drawn among those that were found.
  Outcome place_by_looking(uint32_t number) {
    OwnerNap nap;
    for (;;) {
      int64_t in_the_way = -1;
      bool any_record = false;
      uint64_t moved = heads();
      legal_.clear();
      Population(view_).each([&](int64_t slot) {
        any_record |= word_whole(order::peek(&view_.words[slot]));
        Expander::Verdict verdict = expander_.expand(slot, 0, number);
        if (verdict == Expander::kPlaced) legal_.push_back(slot);
        if (verdict == Expander::kUnsettled) in_the_way = expander_.in_the_way();
      });
      if (!legal_.empty()) {
        Anchor anchor;
        Outcome drawn = source_.draw_among(random_, legal_, &anchor);
        if (drawn.status != kOk) return drawn;
        if (accept(anchor, number)) return {};
      } else if (in_the_way < 0 && moved == heads()) {
        return {any_record ? kNoWindow : kEmpty, 0, kNothing, 0, 0};
      }
      uint32_t owner = in_the_way < 0 ? 0 : living_owner(view_, in_the_way);
      if (monotonic_ns() >= deadline_ns_) return blocked_on(owner ? kSlotOwner : kNothing, owner);
      if (owner) nap.rest(view_, in_the_way, owner, deadline_ns_);
    }
  }

  // Another value when a writer was at work meanwhile.
  uint64_t heads() const {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < view_.lane_count; ++i) sum += static_cast<uint64_t>(order::observe(&view_.lanes[i].head));
    return sum;
  }

  const View& view_;
  AnchorSource& source_;
  const WindowBatch& batch_;
  Random& random_;
  int64_t deadline_ns_;
  Expander expander_;
  const Unit& unit_;
  std::vector<int64_t> legal_;
};

enum class AnchorKind : int { kUniform = 0, kByMass = 1, kByTrajectory = 2, kByTrajectoryStrict = 3 };

inline std::unique_ptr<AnchorSource> anchor_source(const View& view, AnchorKind kind, const Unit& unit, int64_t windows,
                                                   int64_t deadline_ns) {
  if (kind == AnchorKind::kUniform) return std::make_unique<UniformAnchors>(view);
  if (kind == AnchorKind::kByMass) return std::make_unique<MassAnchors>(view, windows, deadline_ns);
  return std::make_unique<TrajectoryAnchors>(view, unit.length, kind == AnchorKind::kByTrajectoryStrict);
}

// Charge, draw windows, settle.
inline Outcome sample_windows(const View& view, Random random, const Unit& unit, AnchorKind kind,
                              const WindowBatch& batch, int64_t cost, int64_t deadline_ns) {
  if (!view.is_ready()) return {kDead, 0, kNothing, 0, 0};
  Outcome charged = charge(view, cost, deadline_ns);
  if (charged.status != kOk) return charged;
  std::unique_ptr<AnchorSource> source = anchor_source(view, kind, unit, batch.windows, deadline_ns);
  Outcome drawn = WindowDraw(view, unit, *source, batch, random, deadline_ns).run();
  bool nothing_legal = drawn.status == kEmpty || drawn.status == kNoWindow || drawn.status == kNoMass;
  drawn.wake |= settle_charge(view, charged.value, drawn.status == kOk, nothing_legal);
  if (drawn.status == kOk && view.token) count_sample(view, batch.rows.count, drawn.value);
  return drawn;
}

// Expands given anchors; the rows of one that is no legal anchor get generation -1 and its own slot. A record that a
// living client is changing is waited for.
inline Outcome expand_given(const View& view, const Unit& unit, const WindowBatch& batch, int64_t deadline_ns) {
  Expander expander(view, unit, batch, Scratch::of_thread());
  std::vector<uint32_t> open(batch.windows);
  std::iota(open.begin(), open.end(), 0u);
  OwnerNap nap;
  for (;;) {
    std::vector<uint32_t> placed, later;
    int64_t in_the_way = -1;
    for (uint32_t number : open) {
      int64_t anchor = batch.anchors[number];
      Expander::Verdict verdict = expander.expand(anchor, 0, number);
      if (verdict == Expander::kUnsettled) in_the_way = expander.in_the_way();
      if (verdict != Expander::kIllegal) {
        (verdict == Expander::kPlaced ? placed : later).push_back(number);
        continue;
      }
      for (int64_t step = 0; step < unit.records(); ++step) {
        int64_t row = batch.row(unit, number, step);
        batch.rows.index[row] = anchor;
        batch.rows.generation[row] = -1;
        batch.valid[row] = 0;
      }
      batch.anchors[batch.windows + number] = -1;
    }
    expander.copy(placed);
    placed.insert(placed.end(), later.begin(), later.end());
    bool nearer = placed.size() < open.size();
    open.swap(placed);
    if (open.empty()) return {};
    uint32_t owner = in_the_way < 0 ? 0 : living_owner(view, in_the_way);
    if (!nearer && monotonic_ns() >= deadline_ns) return blocked_on(owner ? kSlotOwner : kNothing, owner);
    if (owner) nap.rest(view, in_the_way, owner, deadline_ns);
  }
}

// Charge, expand, settle: what a sampler that chose the anchors itself calls.
inline Outcome read_windows(const View& view, const Unit& unit, const WindowBatch& batch, int64_t cost,
                            int64_t deadline_ns) {
  if (!view.is_ready()) return {kDead, 0, kNothing, 0, 0};
  Outcome charged = charge(view, cost, deadline_ns);
  if (charged.status != kOk) return charged;
  Outcome read = expand_given(view, unit, batch, deadline_ns);
  if (cost == 0) return read;
  read.wake |= settle_charge(view, charged.value, read.status == kOk, false);
  if (read.status == kOk && view.token) count_sample(view, batch.rows.count, 0);
  return read;
}

}  // namespace shmrb
