// Which anchors: uniform over records, by priority mass, or uniform over trajectories; and the draw that turns them into
// windows.
#pragma once

#include <map>
#include <memory>

#include "draw.h"
#include "windows.h"

namespace shmrb {

// `word` is what the slot showed when it was drawn, 0 when any record will do. `weight` is its importance weight.
struct Anchor {
  int64_t slot = -1;
  uint64_t word = 0;
  float weight = 1;
};

class AnchorSource {
 public:
  virtual ~AnchorSource() = default;
  // slot -1: none this time.
  virtual Anchor draw(Random& random) = 0;
  // When chance finds no legal anchor: one of `legal`, in the proportions of `draw`.
  virtual Anchor draw_among(Random& random, const std::vector<int64_t>& legal) = 0;
};

class UniformAnchors : public AnchorSource {
 public:
  explicit UniformAnchors(const View& view) : population_(view) {}
  Anchor draw(Random& random) override { return {population_.total() ? population_.draw(random) : -1, 0, 1}; }
  Anchor draw_among(Random& random, const std::vector<int64_t>& legal) override {
    return {legal[random.below(legal.size())], 0, 1};
  }

 private:
  Population population_;
};

// Draws a handful at a time, since each needs the control lock.
class MassAnchors : public AnchorSource {
 public:
  MassAnchors(const View& view, int64_t wanted, int64_t deadline_ns)
      : view_(view), handful_(std::max<int64_t>(wanted, kWalksInStep)), deadline_ns_(deadline_ns) {}

  Anchor draw(Random& random) override {
    if (drawn_.empty()) refill(random);
    if (drawn_.empty()) return {};
    Anchor anchor = drawn_.back();
    drawn_.pop_back();
    return anchor;
  }

  Anchor draw_among(Random& random, const std::vector<int64_t>& legal) override {
    Held held(view_, view_.control->control_lock, deadline_ns_);
    if (!held) return {};
    double total = 0;
    for (int64_t slot : legal) total += view_.tree.leaf(slot).mass;
    double left = random.unit() * total;
    for (int64_t slot : legal) {
      double mass = view_.tree.leaf(slot).mass;
      if (mass > 0 && left < mass) return seen(slot, mass);
      left -= mass;
    }
    return {};
  }

 private:
  Anchor seen(int64_t slot, double mass) const {
    double beta = order::peek_value(&priorities_of(view_).beta);
    double weight = std::pow(mass / view_.tree.least(), -beta);
    return {slot, order::observe(&view_.words[slot]), static_cast<float>(weight < 1 ? weight : 1.0)};
  }

  void refill(Random& random) {
    Held held(view_, view_.control->control_lock, deadline_ns_);
    if (!held) return;
    settle_holes(view_, true);
    double total = view_.tree.total();
    if (!(total > 0)) return;
    std::vector<double> targets(handful_);
    std::vector<int64_t> slots(handful_);
    for (double& target : targets) target = random.unit() * total;
    view_.tree.locate(targets.data(), handful_, slots.data());
    for (int64_t slot : slots) drawn_.push_back(seen(slot, view_.tree.leaf(slot).mass));
  }

  const View& view_;
  int64_t handful_;
  int64_t deadline_ns_;
  std::vector<Anchor> drawn_;
};

// A trajectory with equal chances, then a start in it with equal chances: every trajectory counts once, however long. With
// `strict` only those that are long enough count.
class TrajectoryAnchors : public AnchorSource {
 public:
  TrajectoryAnchors(const View& view, int64_t span, bool strict) : view_(view), span_(span), strict_(strict) {
    for (uint32_t i = 0; i < view.lane_count; ++i) {
      lanes_.emplace_back(view, i);
      total_ += lanes_.back().count;
    }
  }

  Anchor draw(Random& random) override {
    if (total_ <= 0) return {};
    auto nth = static_cast<int64_t>(random.below(total_));
    size_t lane = 0;
    while (nth >= lanes_[lane].count) nth -= lanes_[lane++].count;
    const Lane& from = lanes_[lane];
    int64_t first = from.start(view_, nth);
    int64_t end = nth + 1 < from.count ? from.start(view_, nth + 1) : from.window.head();
    if (first < 0 || end <= first) return {};
    int64_t spare = end - first - span_;
    if (spare < 0 && strict_) return {};
    int64_t ticket = first + (spare > 0 ? static_cast<int64_t>(random.below(spare + 1)) : 0);
    return {from.window.slot_of(ticket), 0, 1};
  }

  Anchor draw_among(Random& random, const std::vector<int64_t>& legal) override {
    std::map<std::pair<uint32_t, uint32_t>, std::vector<int64_t>> trajectories;
    for (int64_t slot : legal)
      trajectories[{view_.lane_of(slot), order::peek(&view_.runs[slot]) & kRunNumberMask}].push_back(slot);
    auto chosen = trajectories.begin();
    std::advance(chosen, random.below(trajectories.size()));
    return {chosen->second[random.below(chosen->second.size())], 0, 1};
  }

 private:
  // The trajectories of one lane in ring order; the oldest live record counts as a start.
  struct Lane {
    Lane(const View& view, uint32_t lane) : window(view, lane) {
      int64_t size = window.size();
      if (size == 0) return;
      starts = view.starts.rank(lane, size);
      oldest_position = window.oldest() % view.lane_capacity;
      before_oldest = view.starts.rank(lane, oldest_position);
      cut_off = !(window.look(window.oldest()).run & kRunFirst);
      count = starts + cut_off;
    }

    // Ticket of the nth trajectory's first record, -1 when the counts were changing.
    int64_t start(const View& view, int64_t nth) const {
      if (cut_off && nth == 0) return window.oldest();
      int64_t k = before_oldest + nth - cut_off;
      int64_t position = view.starts.select(window.lane(), k < starts ? k : k - starts);
      if (position < 0 || position >= view.lane_capacity) return -1;
      int64_t behind = (position - oldest_position + view.lane_capacity) % view.lane_capacity;
      return window.oldest() + behind;
    }

    LaneWindow window;
    int64_t starts = 0;
    int64_t oldest_position = 0;
    int64_t before_oldest = 0;
    int64_t cut_off = 0;
    int64_t count = 0;
  };

  const View& view_;
  int64_t span_;
  bool strict_;
  std::vector<Lane> lanes_;
  int64_t total_ = 0;
};

constexpr int kAnchorsByChance = 128;

struct WindowBatch {
  Batch rows;  // count = windows * unit.records()
  int64_t windows;
  int64_t* anchors;  // slots, before any shift
  uint8_t* valid;    // one a row
  float* weights;    // one a window; null: not wanted
};

inline std::vector<int64_t> legal_anchors(const View& view, Expander& expander, int64_t number) {
  std::vector<int64_t> legal;
  Population(view).each([&](int64_t slot) {
    if (expander.expand(slot, number)) legal.push_back(slot);
  });
  return legal;
}

// Draws and expands the anchor of one window. kAgain: lost on the way, or a lock was not to be had.
inline Status place_window(const View& view, AnchorSource& source, Random& random, Expander& expander,
                           const WindowBatch& batch, const std::vector<uint64_t>& words, const Unit& unit,
                           uint32_t number) {
  auto accept = [&](const Anchor& anchor) {
    if (anchor.slot < 0 || !expander.expand(anchor.slot, number)) return false;
    // Drawn by mass: the record must be the one whose mass it was. The anchor is one of the window's own rows.
    int64_t first = number * unit.records();
    for (int64_t row = first; anchor.word && row < first + unit.records(); ++row)
      if (batch.rows.index[row] == anchor.slot && words[row] != anchor.word) return false;
    batch.anchors[number] = anchor.slot;
    if (batch.weights) batch.weights[number] = anchor.weight;
    return true;
  };
  for (int tries = 0; tries < kAnchorsByChance; ++tries)
    if (accept(source.draw(random))) return kOk;
  std::vector<int64_t> legal = legal_anchors(view, expander, number);
  if (legal.empty()) return Population(view).total() ? kNoWindow : kEmpty;
  return accept(source.draw_among(random, legal)) ? kOk : kAgain;
}

// Draws windows until all are whole. kNoWindow: there are records, and no window fits anywhere.
inline Outcome draw_windows(const View& view, const Unit& unit, AnchorSource& source, Random& random,
                            const WindowBatch& batch, int64_t deadline_ns) {
  Scratch& scratch = Scratch::of_thread();
  scratch.words.resize(batch.rows.count);
  Expander expander(view, unit, batch.rows, batch.valid, scratch.words);
  std::vector<uint32_t> open(batch.windows);
  std::iota(open.begin(), open.end(), 0u);
  int64_t redraws = 0;
  for (;;) {
    std::vector<uint32_t> placed, lost;
    for (uint32_t number : open) {
      Status status = place_window(view, source, random, expander, batch, scratch.words, unit, number);
      if (status == kEmpty || status == kNoWindow) return {status, 0, kNothing, 0, 0};
      (status == kOk ? placed : lost).push_back(number);
    }
    copy_windows(view, unit, batch.rows, scratch, placed);
    open.swap(placed);
    open.insert(open.end(), lost.begin(), lost.end());
    if (open.empty()) return {kOk, redraws, kNothing, 0, 0};
    redraws += static_cast<int64_t>(open.size());
    if (monotonic_ns() >= deadline_ns) return blocked_on(kNothing, 0);
  }
}

enum class AnchorKind : int { kUniform = 0, kByMass = 1, kByTrajectory = 2, kByTrajectoryStrict = 3 };

// Charge, draw windows, settle.
inline Outcome sample_windows(const View& view, Random random, const Unit& unit, AnchorKind kind,
                              const WindowBatch& batch, int64_t cost, int64_t deadline_ns) {
  if (order::observe(&view.control->state) != kReadyState) return {kDead, 0, kNothing, 0, 0};
  Outcome charged = charge(view, cost, deadline_ns);
  if (charged.status != kOk) return charged;
  std::unique_ptr<AnchorSource> source;
  if (kind == AnchorKind::kUniform) source = std::make_unique<UniformAnchors>(view);
  else if (kind == AnchorKind::kByMass) source = std::make_unique<MassAnchors>(view, batch.windows, deadline_ns);
  else source = std::make_unique<TrajectoryAnchors>(view, unit.length, kind == AnchorKind::kByTrajectoryStrict);
  Outcome drawn = draw_windows(view, unit, *source, random, batch, deadline_ns);
  settle_charge(view, charged.value, drawn.status == kOk, drawn.status == kEmpty || drawn.status == kNoWindow);
  if (view.has(kLimiter) && view.acts()) drawn.wake |= ring_room(view);
  if (drawn.status == kOk && view.token) count_sample(view, batch.rows.count, drawn.value);
  return drawn;
}

// Expands given anchors; the rows of one that is not legal get generation -1 and its own slot.
inline Outcome read_windows(const View& view, const Unit& unit, const WindowBatch& batch, int64_t deadline_ns) {
  Scratch& scratch = Scratch::of_thread();
  scratch.words.resize(batch.rows.count);
  Expander expander(view, unit, batch.rows, batch.valid, scratch.words);
  std::vector<uint32_t> open(batch.windows);
  std::iota(open.begin(), open.end(), 0u);
  for (;;) {
    std::vector<uint32_t> placed;
    for (uint32_t number : open) {
      if (expander.expand(batch.anchors[number], number)) {
        placed.push_back(number);
        continue;
      }
      for (int64_t row = number * unit.records(); row < (number + 1) * unit.records(); ++row) {
        batch.rows.index[row] = batch.anchors[number];
        batch.rows.generation[row] = -1;
        batch.valid[row] = 0;
      }
    }
    copy_windows(view, unit, batch.rows, scratch, placed);
    open.swap(placed);
    if (open.empty()) return {};
    if (monotonic_ns() >= deadline_ns) return blocked_on(kNothing, 0);
  }
}

}  // namespace shmrb
