// Windows while threads write: never over a seam that moved in between, and trajectory starts that are counted right.
#include <atomic>

#include "arena.h"

namespace {

// Room for the start counts of one lane.
class StartRoom {
 public:
  explicit StartRoom(int64_t lane_capacity) : lane_capacity_(lane_capacity) {
    int64_t counts = (lane_capacity + kStartBlock - 1) / kStartBlock;
    do {
      counts = (counts + kStartFanOut - 1) / kStartFanOut * kStartFanOut;
      widths_.push_back(counts);
      levels_.emplace_back(counts);
      counts /= kStartFanOut;
    } while (widths_.back() > kStartFanOut);
  }

  StartCounts over(const uint32_t* runs) {
    std::vector<uint32_t*> levels;
    for (auto& level : levels_) levels.push_back(level.data());
    return {runs, std::move(levels), widths_, lane_capacity_};
  }

 private:
  int64_t lane_capacity_;
  std::vector<int64_t> widths_;
  std::vector<std::vector<uint32_t>> levels_;
};

Unit unit_of(int64_t length, int64_t burn_in, Boundary boundary, Demand demand) {
  return {length, burn_in, 0, 1, boundary, demand, 0, false};
}

// Draws windows of one kind, each of which must be of records written one after the other.
class WindowReader {
 public:
  WindowReader(const View& view, const Unit& unit, AnchorKind kind, int64_t windows)
      : view_(view), unit_(unit), kind_(kind), drawn_(windows * unit.records()), anchors_(2 * windows),
        valid_(windows * unit.records()), windows_(windows) {}

  Outcome draw(Random& random) {
    WindowBatch batch{drawn_.batch(), windows_, anchors_.data(), valid_.data(), nullptr};
    auto source = anchor_source(view_, kind_, unit_, windows_, soon());
    return WindowDraw(view_, unit_, *source, batch, random, soon()).run();
  }

  void check() const {
    for (int64_t window = 0; window < windows_; ++window) {
      int64_t first = window * unit_.records();
      for (int64_t row = first; row < first + unit_.records(); ++row) {
        CHECK(drawn_.record(row).whole());
        if (row > first && valid_[row] && valid_[row - 1])
          CHECK(drawn_.uids[row] == drawn_.uids[row - 1] + 1);
      }
    }
  }

 private:
  const View& view_;
  Unit unit_;
  AnchorKind kind_;
  Drawn drawn_;
  std::vector<int64_t> anchors_;
  std::vector<uint8_t> valid_;
  int64_t windows_;
};

}  // namespace

// One endless trajectory in a small ring: every word is whole and every run number the same, so only the head says where
// the newest record meets the oldest.
TEST(windows_never_cross_a_seam_that_moves) {
  constexpr int64_t kCapacity = 16;
  Arena arena(kCapacity);
  StartRoom room(kCapacity);
  auto writer = arena.join();
  auto reader = arena.join();
  writer->view.starts = room.over(writer->view.runs);
  reader->view.starts = room.over(reader->view.runs);
  int64_t uid = 0;
  for (; uid < kCapacity; ++uid) CHECK(write_records(writer->view, {Stamped::of(uid)}).status == kOk);
  uint32_t stop = 0;
  check::together({
      [&] {
        while (!order::observe(&stop)) {
          CHECK(finish([&] { return write_records(writer->view, {Stamped::of(uid)}); }).status == kOk);
          ++uid;
        }
      },
      [&] {
        Random random(7);
        WindowReader moved(reader->view, unit_of(4, 2, Boundary::kStop, Demand::kAnything), AnchorKind::kUniform, 2);
        WindowReader sliced(reader->view, unit_of(5, 0, Boundary::kPad, Demand::kFull), AnchorKind::kByTrajectoryStrict, 2);
        for (int64_t round = 0; round < check::rounds(120'000, 3'000'000); ++round)
          for (WindowReader* windows : {&moved, &sliced}) {
            Outcome drawn = windows->draw(random);
            CHECK(drawn.status == kOk || drawn.status == kAgain);
            if (drawn.status == kOk) windows->check();
          }
        order::publish(&stop, 1u);
      },
  });
}

// Ranks and positions of starts are those of a plain count, whatever the size of the lane.
TEST(starts_are_ranked_and_found) {
  Random random(3);
  for (int64_t capacity : {1, 63, 64, 65, 1000, 1023, 1024, 1025, 16 * 1024, 16 * 1024 + 7}) {
    std::vector<uint32_t> runs(capacity);
    StartRoom room(capacity);
    StartCounts starts = room.over(runs.data());
    for (int64_t i = 0; i < capacity; ++i) runs[i] = random.below(5) ? 0 : kRunFirst;
    starts.recount(0, 0, capacity);
    for (int change = 0; change < 50; ++change) {
      auto from = static_cast<int64_t>(random.below(capacity));
      auto count = static_cast<int64_t>(random.below(capacity - from)) + 1;
      for (int64_t i = from; i < from + count; ++i) runs[i] = random.below(9) ? 0 : kRunFirst;
      starts.recount(0, from, count);
      auto until = static_cast<int64_t>(random.below(capacity + 1));
      std::vector<int64_t> positions;
      for (int64_t i = 0; i < capacity; ++i) {
        if (i == until) CHECK(starts.rank(0, i) == static_cast<int64_t>(positions.size()));
        if (runs[i] & kRunFirst) positions.push_back(i);
      }
      CHECK(starts.rank(0, capacity) == static_cast<int64_t>(positions.size()));
      for (int look = 0; look < 20 && !positions.empty(); ++look) {
        auto k = static_cast<int64_t>(random.below(positions.size()));
        CHECK(starts.select(0, k) == positions[k]);
      }
      CHECK(starts.select(0, static_cast<int64_t>(positions.size())) == -1);
    }
  }
}
